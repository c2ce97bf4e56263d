//! How sessions begin, survive and end.

use super::*;

#[test]
fn a_partition_is_told_and_survived() {
    for_seeds(100, |seed| {
        let mut sim = Sim::new(seed, Some(Faults::NONE));
        sim.exchange(5);
        sim.events();
        let session = sim.next().session().unwrap();
        sim.send(8);
        sim.network.partition(0, 1, true);
        let length = 100_000 + sim.dice.below(5_000_000);
        let end = sim.network.now() + length;
        while sim.network.now() < end {
            sim.step();
        }
        let lost = length > LOST_US + PING_US + 1_000;
        assert!(!lost || *sim.next().state() == LinkState::Lost);
        assert!(!lost || *sim.prev().state() == LinkState::Lost);
        sim.network.partition(0, 1, false);
        sim.steps_until("the return", 1_100_000, |sim| sim.is_up());
        sim.exchange(12);
        let (next, prev) = sim.events();
        let wanted = [LinkEvent::Lost, LinkEvent::Up { session }];
        for events in [next, prev] {
            assert!(events == wanted || (events.is_empty() && length < 2 * LOST_US), "{events:?}");
        }
    });
}

/// Recorded handshakes reveal nothing of the session's keys, even with a key stolen later, because these keys depend on
/// secrets of each end.
#[test]
fn the_same_handshake_with_other_ephemeral_keys_gives_other_session_keys() {
    let sealed = |run: u8| {
        let (mut a, mut b) = (config(0..2, Some(9), 0), config(2..4, Some(9), 0));
        a.seed[2] = run;
        b.seed[2] = run;
        let network = Network::new(1, Faults::NONE);
        let (mut a, mut b) = (network.endpoint(a, Some(1)), network.endpoint(b, None));
        while a.links().next.as_ref().unwrap().session().is_none() {
            a.service(Duration::ZERO).unwrap();
            b.service(Duration::ZERO).unwrap();
            network.step();
        }
        let next = a.links().next.as_mut().unwrap();
        next.reserve().unwrap()[..100].fill(0);
        next.commit(100);
        let mut wire = Recorder::default();
        next.transmit(network.now(), &mut wire);
        wire.sent.retain(|d| d[5] == DatagramKind::Data as u8);
        wire.sent[0][HEADER_LEN..].to_vec()
    };
    assert_eq!(sealed(0), sealed(0));
    assert_ne!(sealed(0), sealed(1));
}

#[test]
fn restarts_begin_a_new_session_on_both_sides() {
    for_seeds(150, |seed| {
        let mut sim = Sim::new(seed, None);
        for run in 1..4 {
            sim.exchange(6);
            sim.send(9);
            (0..sim.dice.below(40)).for_each(|_| sim.step());
            (sim.sent, sim.received, sim.run) = (0, 0, run);
            let restarts_b = sim.dice.below(2) == 0;
            sim.events();
            if restarts_b {
                let config = config(2..4, sim.key, run as u8);
                sim.b = sim.network.restart(1, config, Some(0));
            } else {
                let config = config(0..2, sim.key, run as u8);
                sim.a = sim.network.restart(0, config, Some(1));
            }
            let mut survivor = Vec::new();
            let end = sim.network.now() + 60_000_000;
            while !survivor.contains(&LinkEvent::Reset) {
                assert!(sim.network.now() < end, "no reset in 60 s");
                sim.step();
                let (next, prev) = sim.events();
                survivor.extend(if restarts_b { next } else { prev });
            }
            sim.steps_until("the new session", 60_000_000, |sim| sim.is_up());
        }
        sim.exchange(6);
    });
}

#[test]
fn a_neighbour_that_restarts_is_back_within_two_seconds() {
    for_seeds(20, |seed| {
        let mut sim = Sim::new(seed, Some(Faults::NONE));
        sim.exchange(3);
        let config = config(2..4, sim.key, 1);
        sim.b = sim.network.restart(1, config, None);
        sim.events();
        sim.steps_until("the new session", 2_000_000, |sim| {
            sim.next().next_event() == Some(LinkEvent::Reset)
        });
    });
}

#[test]
fn a_dead_neighbour_is_replaced_at_once() {
    for key in [None, Some(9)] {
        let mut sim = Sim::new(2, Some(Faults::NONE));
        sim.key = key;
        sim.a = sim.network.restart(0, config(0..2, key, 1), Some(1));
        sim.b = sim.network.restart(1, config(2..4, key, 1), Some(0));
        sim.exchange(2);
        let session = sim.prev().session();
        sim.a = sim.network.restart(0, config(0..2, key, 2), Some(1));
        (sim.sent, sim.received, sim.run) = (0, 0, 1);
        sim.steps_until("the next life", 10_000, |sim| sim.prev().session() != session);
    }
}

#[test]
fn a_node_that_was_stopped_itself_does_not_call_its_neighbours_lost() {
    let heard_at = 5_000_000;
    assert_eq!(without_pause(heard_at, 5_100_000, 5_200_000), heard_at);
    assert_eq!(without_pause(heard_at, 5_100_000, 9_100_000), 9_000_000);
    assert_eq!(without_pause(heard_at, 0, 5_000_001), 5_000_001);
}
