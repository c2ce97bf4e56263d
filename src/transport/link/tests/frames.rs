//! Frames arrive once, whole and in order, at little cost.

use super::*;

#[test]
fn frames_arrive_once_and_in_order_over_a_bad_network() {
    for_seeds(300, |seed| {
        let mut sim = Sim::new(seed, None);
        sim.exchange(30);
        let in_flight = |sim: &mut Sim| sim.next().in_flight() == 0;
        sim.steps_until("the last acknowledgement", 20_000_000, in_flight);
    });
}

#[test]
fn keys_change_while_frames_flow_over_a_bad_network() {
    for_seeds(10, |seed| {
        let mut sim = Sim::new(seed, None);
        sim.key = Some(9);
        sim.a = sim.network.restart(0, config(0..2, sim.key, 1), Some(1));
        sim.b = sim.network.restart(1, config(2..4, sim.key, 1), Some(0));
        let mut n_frames = 0;
        // Generations end by time, also while the neighbour is away for longer than they last.
        for round in 0..10 {
            n_frames += 3;
            sim.exchange(n_frames);
            sim.send(n_frames + 2);
            let is_cut = round % 4 == 3;
            sim.network.partition(0, 1, is_cut);
            let end = sim.network.now() + 150_000_000;
            sim.steps_until("time to pass", 160_000_000, |sim| sim.network.now() > end);
            sim.network.partition(0, 1, false);
        }
        sim.exchange(n_frames + 2);
        assert!((6..=13).contains(&sim.next().generation()), "{}", sim.next().generation());
        // Generations end by bytes.
        for i in 0..50 {
            sim.next().count_sealed(1 << 30);
            sim.exchange(n_frames + 3 + i);
        }
        assert!(sim.next().generation() > 20, "{}", sim.next().generation());
        let (next, prev) = sim.events();
        assert!(!next.contains(&LinkEvent::Reset) && !prev.contains(&LinkEvent::Reset));
    });
}

#[test]
fn a_slow_reader_bounds_what_is_on_the_way() {
    let mut sim = Sim::new(3, Some(Faults::NONE));
    sim.steps_until("the session", 1_000_000, Sim::is_up);
    for _ in 0..2_000 {
        sim.send(100);
        sim.step();
    }
    // Each end has four banks.
    assert_eq!(sim.sent, 8);
    let chunks = sim.next().stats().datagrams;
    let wasted = sim.next().stats().retransmits;
    assert!(wasted < chunks / 2, "{wasted} of {chunks} chunks were sent again");
    sim.exchange(100);
}

#[test]
fn nothing_is_sent_twice_over_a_good_network() {
    for_seeds(20, |seed| {
        let mut sim = Sim::new(seed, Some(Faults::NONE));
        sim.exchange(50);
        assert_eq!(sim.next().stats().retransmits, 0);
        assert_eq!(sim.prev().stats().duplicates, 0);
        let srtt_us = sim.next().stats().srtt_us;
        assert!((150..2_000).contains(&srtt_us), "{srtt_us}");
    });
}

#[test]
fn lone_frames_are_not_asked_for_before_their_acknowledgement_is_late() {
    for rtt_us in [100, 1_000, 1_600, 2_000, 5_000, 20_000] {
        let way_us = rtt_us / 2;
        let mut sim = Sim::new(1, Some(Faults { delay_us: way_us..way_us + 1, ..Faults::NONE }));
        sim.steps_until("the session", 1_000_000, Sim::is_up);
        let settled = sim.network.now() + 5_000_000;
        sim.steps_until("pings", 10_000_000, |sim| sim.network.now() > settled);
        for n_frames in 1..=50 {
            sim.exchange(n_frames);
            sim.steps_until("the acknowledgement", 100_000, |sim| sim.next().in_flight() == 0);
        }
        let duplicates = sim.prev().stats().duplicates;
        assert_eq!(duplicates, 0, "{rtt_us} us there and back");
    }
}

#[test]
fn one_lost_datagram_costs_milliseconds() {
    for chunk in 0..3 {
        let mut sim = Sim::new(1, Some(Faults::NONE));
        sim.exchange(3);
        let mut wire = Recorder::default();
        let room = sim.next().reserve().unwrap();
        room[..3000].fill(1);
        sim.next().commit(3000);
        let now = sim.network.now();
        sim.next().transmit(now, &mut wire);
        wire.sent.retain(|d| d[5] == 0);
        wire.sent.remove(chunk);
        for datagram in &wire.sent {
            sim.network.inject(address(0), 1, datagram);
        }
        sim.steps_until("repair", 6_000, |sim| sim.prev().front().is_some());
    }
}

#[test]
fn a_frame_that_is_asked_for_comes_again_if_it_was_lost() {
    let mut sim = Sim::new(1, Some(Faults::NONE));
    sim.exchange(3);
    sim.steps_until("the acknowledgement", 100_000, |sim| sim.next().in_flight() == 0);
    // Datagrams of frames that A sends once B has asked.
    let ask = |sim: &mut Sim, now| {
        let (mut asked, mut out) = (Recorder::default(), Recorder::default());
        sim.prev().ask();
        sim.prev().transmit(now, &mut asked);
        for mut datagram in asked.sent {
            let links = sim.a.links();
            links.on_datagram(now, address(1), &mut datagram, &mut Recorder::default()).unwrap();
        }
        sim.next().transmit(now, &mut out);
        out.sent.iter().filter(|datagram| datagram[5] == DatagramKind::Data as u8).count()
    };
    let now = sim.network.now();
    assert_eq!(ask(&mut sim, now), 0, "there is none");
    sim.send(4);
    let mut lost = Recorder::default();
    sim.next().transmit(now, &mut lost);
    assert_eq!(ask(&mut sim, now), 0, "it is on its way");
    assert_eq!(ask(&mut sim, now + 1_000), lost.sent.len());
    sim.exchange(10);
}

#[test]
fn frames_that_are_known_to_have_come_need_no_acknowledgement() {
    let mut sim = Sim::new(1, Some(Faults::NONE));
    sim.exchange(3);
    sim.steps_until("the acknowledgement", 100_000, |sim| sim.next().in_flight() == 0);
    let now = sim.network.now();
    // More frames than all banks hold.
    for number in 3..60 {
        sim.send(number + 1);
        let (mut out, mut back) = (Recorder::default(), Recorder::default());
        sim.next().transmit(now, &mut out);
        for mut datagram in out.sent {
            sim.b.links().on_datagram(now, address(0), &mut datagram, &mut back).unwrap();
        }
        sim.prev().release();
        sim.received += 1;
        sim.prev().imply_released();
        sim.prev().transmit(now, &mut back);
        // The first answer may still extend A's window.
        assert!(back.sent.is_empty() || number == 3, "an acknowledgement of frame {number}");
        let head = sim.next().head();
        sim.next().on_released(head);
        assert_eq!(sim.next().in_flight(), 0);
    }
    sim.exchange(100);
}
