//! Neighbours whose address changes while a session lasts.

use super::*;

/// A pair that has exchanged five frames, sealed if there is a key.
fn settled(key: Option<u8>) -> Sim {
    let mut sim = Sim::new(4, Some(Faults::NONE));
    sim.key = key;
    sim.a = sim.network.restart(0, config(0..2, key, 1), Some(1));
    sim.b = sim.network.restart(1, config(2..4, key, 1), Some(0));
    sim.exchange(5);
    sim.events();
    sim
}

#[test]
fn a_neighbour_that_moves_keeps_its_session() {
    for key in [None, Some(9)] {
        for (who, keeps_old) in [(0, true), (0, false), (1, true), (1, false)] {
            let mut sim = settled(key);
            let session = sim.prev().session();
            let start = sim.network.now();
            let new = sim.network.move_endpoint(who, keeps_old);
            sim.exchange(25);
            let took_us = sim.network.now() - start;
            assert!(took_us < 1_000_000, "key {key:?}, node {who}, {keeps_old}: {took_us} us");
            assert_eq!((sim.next().session(), sim.prev().session()), (session, session));
            assert!(who == 1 || sim.prev().address() == Some(new));
            let (next, prev) = sim.events();
            assert!(!next.contains(&LinkEvent::Reset) && !prev.contains(&LinkEvent::Reset));
        }
    }
}

#[test]
fn neighbours_that_move_time_and_again_lose_nothing() {
    for_seeds(60, |seed| {
        let mut sim = Sim::new(seed, None);
        sim.exchange(5);
        for round in 1..6 {
            let who = sim.dice.below(2) as usize;
            sim.network.move_endpoint(who, true);
            if sim.dice.below(2) == 0 {
                sim.network.move_endpoint(1 - who, true);
            }
            (0..sim.dice.below(300)).for_each(|_| sim.step());
            sim.exchange(5 + 5 * round);
        }
    });
}

/// Records the addresses that a link sends to.
#[derive(Default)]
struct Places {
    seen: Vec<SocketAddr>,
}

impl Wire for Places {
    fn burst(&mut self, to: SocketAddr, _: &Burst<'_>) -> Sending {
        self.seen.push(to);
        Sending::Gone
    }

    fn control(&mut self, to: SocketAddr, _: &[u8]) {
        self.seen.push(to);
    }
}

#[test]
fn only_a_neighbour_itself_can_change_its_address() {
    for key in [None, Some(9)] {
        let (mut a, mut b, seen) = pair(key);
        let next = a.next.as_mut().unwrap();
        let session = next.session().unwrap();
        assert!(next.reserve().is_some());
        next.commit(3_000);
        // Datagrams of the two nodes, forgeries of them by a stranger, and some with only the session's
        // number.
        let newer = |datagram: &Vec<u8>| {
            let mut forged = datagram.clone();
            forged[18] = 1;
            fix_checksum(&mut forged);
            forged
        };
        let mut wire = Recorder::default();
        let ack = [0_u32, 16, 0, 0].map(u32::to_le_bytes).concat();
        send_control(&mut wire, address(0), (DatagramKind::Pong, session, 1 << 40), None, &ack);
        send_control(&mut wire, address(0), (DatagramKind::Ping, session, 1 << 40), None, &ack);
        let forged = seen.iter().map(newer);
        for datagram in seen.iter().cloned().chain(forged).chain(wire.sent) {
            for links in [&mut a, &mut b] {
                let bytes = &mut datagram.clone();
                links.on_datagram(400_000, address(5), bytes, &mut Recorder::default()).unwrap();
            }
        }
        assert_eq!(b.prev.as_ref().unwrap().address(), Some(address(0)));
        for (links, home) in [(&mut a, address(1)), (&mut b, address(0))] {
            let mut places = Places::default();
            links.transmit(400_000, &mut places);
            assert!(!places.seen.is_empty() && places.seen.iter().all(|to| *to == home));
        }
    }
}

// Paths that do not take all datagrams

/// A pair whose way from A to B takes datagrams of at most `bytes` from the start.
fn narrow(key: Option<u8>, bytes: usize, is_told: bool) -> Sim {
    let mut sim = Sim::new(4, Some(Faults::NONE));
    sim.key = key;
    sim.network.set_limit(0, 1, bytes, is_told);
    sim.a = sim.network.restart(0, config(0..2, key, 1), Some(1));
    sim.b = sim.network.restart(1, config(2..4, key, 1), Some(0));
    sim
}

/// Bytes of the longest UDP datagram in an IP packet.
fn in_packet(bytes: usize) -> usize {
    bytes - 28
}

#[test]
fn datagrams_follow_a_path_that_narrows() {
    for key in [None, Some(9)] {
        for (mtu, wanted) in [(1500, 1432), (1459, 752), (1280, 752), (600, 514), (576, 514)] {
            for is_told in [true, false] {
                for is_narrow_before in [true, false] {
                    let bytes = in_packet(mtu);
                    let mut sim = match is_narrow_before {
                        true => narrow(key, bytes, is_told),
                        false => settled(key),
                    };
                    sim.steps_until("the session", 1_000_000, Sim::is_up);
                    sim.network.set_limit(0, 1, bytes, is_told);
                    sim.send(40);
                    sim.steps_until("the shorter datagrams", 100_000, |sim| {
                        sim.send(40);
                        sim.step();
                        sim.receive();
                        sim.next().stats().datagram_bytes == wanted
                    });
                    sim.exchange(60);
                    assert_eq!(sim.next().stats().datagram_bytes, wanted, "{mtu} {is_told}");
                    assert!(!sim.events().0.contains(&LinkEvent::Lost));
                }
            }
        }
    }
}

#[test]
fn datagrams_follow_a_path_that_widens() {
    for key in [None, Some(9)] {
        for is_told in [true, false] {
            let mut sim = narrow(key, in_packet(576), is_told);
            sim.exchange(20);
            assert_eq!(sim.next().stats().datagram_bytes, 514);
            // Longer datagrams are tested in vain for a while.
            let end = sim.network.now() + 20_000_000;
            while sim.network.now() < end {
                sim.step();
            }
            assert_eq!(sim.next().stats().datagram_bytes, 514);
            sim.network.set_limit(0, 1, in_packet(1280), is_told);
            let settled = |sim: &mut Sim| sim.next().stats().datagram_bytes == 752;
            sim.steps_until("the way to widen", 60_000_000, settled);
            sim.network.set_limit(0, 1, in_packet(1500), is_told);
            let settled = |sim: &mut Sim| sim.next().stats().datagram_bytes == 1432;
            sim.steps_until("the way to widen", 60_000_000, settled);
            sim.exchange(60);
            assert!(!sim.events().0.contains(&LinkEvent::Lost));
        }
    }
}

#[test]
fn frames_arrive_over_bad_and_narrow_networks() {
    for_seeds(100, |seed| {
        let mut sim = Sim::new(seed, None);
        for round in 0..4 {
            let mtu = [576, 600, 1280, 1500][sim.dice.below(4) as usize];
            let is_told = sim.dice.below(2) == 0;
            sim.network.set_limit(0, 1, in_packet(mtu), is_told);
            sim.exchange(10 * (round + 1));
        }
    });
}

#[test]
fn lost_datagrams_are_no_narrow_path() {
    for_seeds(20, |seed| {
        let faults = Faults { loss: 0.05, ..Faults::NONE };
        let mut sim = Sim::new(seed, Some(faults));
        sim.exchange(100);
        assert_eq!(sim.next().stats().datagram_bytes, 1432);
    });
}
