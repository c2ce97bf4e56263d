//! Neighbours whose address changes while a session lasts.

use super::*;

/// A pair that has exchanged five frames, both ways of the sealing.
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
            assert!(!next.contains(&Event::Reset) && !prev.contains(&Event::Reset));
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

/// Keeps where a link sends to.
#[derive(Default)]
struct Places {
    seen: Vec<SocketAddr>,
}

impl Wire for Places {
    fn burst(&mut self, to: SocketAddr, _: &Burst<'_>) -> bool {
        self.seen.push(to);
        true
    }

    fn control(&mut self, to: SocketAddr, _: &[u8]) {
        self.seen.push(to);
    }
}

#[test]
fn nobody_moves_a_neighbour_but_itself() {
    for key in [None, Some(9)] {
        let (mut a, mut b, seen) = pair(key);
        let next = a.next.as_mut().unwrap();
        let session = next.session().unwrap();
        assert!(next.reserve().is_some());
        next.commit(3_000);
        // What the two sent each other, what a stranger makes of it, and what he makes of the
        // session's number.
        let newer = |datagram: &Vec<u8>| {
            let mut forged = datagram.clone();
            forged[18] = 1;
            fix_checksum(&mut forged);
            forged
        };
        let mut wire = Recorder::default();
        let ack = [0_u32, 16, 0, 0].map(u32::to_le_bytes).concat();
        send_control(&mut wire, address(0), (Kind::Pong, session, 1 << 40), None, &ack);
        send_control(&mut wire, address(0), (Kind::Ping, session, 1 << 40), None, &ack);
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
