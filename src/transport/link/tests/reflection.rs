//! Replays by a stranger without the key: to the sender, to another node, to the other half of a node, or
//! into a later run.

use super::*;
use crate::wire::seal::Randomness;

const KEY: Option<u8> = Some(9);

/// A node with both links, which looks for `next` and knows its name if that is given.
fn both(layers: std::ops::Range<u32>, next: Option<&str>, run: u8) -> Links {
    let config = LinkConfig { next: next.map(name), ..config(layers, KEY, run) };
    let out = LinkOut::new(config.clone(), Mode::Datagrams, address(1), 0);
    Links { next: Some(out), prev: Some(LinkIn::new(config)) }
}

/// All events of both links of `node`.
fn events(node: &mut Links) -> Vec<LinkEvent> {
    let (next, prev) = (&mut node.next, &mut node.prev);
    let mut events: Vec<LinkEvent> =
        next.iter_mut().flat_map(|next| std::iter::from_fn(|| next.next_event())).collect();
    events.extend(prev.iter_mut().flat_map(|prev| std::iter::from_fn(|| prev.next_event())));
    events
}

fn sessions(node: &Links) -> [Option<u64>; 2] {
    [node.next.as_ref().and_then(LinkOut::session), node.prev.as_ref().and_then(LinkIn::session)]
}

/// Checks that no event makes a link, takes one away or ends a master.
fn assert_harmless(events: &[LinkEvent], what: &str) {
    for event in events {
        match event {
            LinkEvent::Refused(refused) => assert!(!refused.is_final(), "{what}: {refused}"),
            LinkEvent::Up { .. } | LinkEvent::Reset => panic!("{what}: {event:?}"),
            _ => {}
        }
    }
}

/// For 20 s carries all datagrams of `a` to `b`, from the address of `a`'s next node, and those of `b` to
/// `a`; without `b`, back to `a`.
fn play(a: &mut Links, mut b: Option<&mut Links>, what: &str) {
    for now in (0..20_000_000).step_by(10_000) {
        let mut wire = Recorder::default();
        a.transmit(now, &mut wire);
        let mut under_way = std::collections::VecDeque::from_iter(wire.sent);
        let mut n_played = 0;
        while let Some(mut datagram) = under_way.pop_front() {
            n_played += 1;
            assert!(n_played < 1_000, "{what}: no end of answers");
            let mut wire = Recorder::default();
            let to = b.as_deref_mut().unwrap_or(&mut *a);
            let _ = to.on_datagram(now, address(1), &mut datagram, &mut wire);
            for mut answer in wire.sent {
                let mut wire = Recorder::default();
                let _ = a.on_datagram(now, address(1), &mut answer, &mut wire);
                under_way.extend(wire.sent);
            }
        }
        assert_harmless(&events(a), what);
        assert_eq!(sessions(a), [None; 2], "{what}");
        if let Some(b) = &mut b {
            assert_harmless(&events(b), what);
            assert_eq!(sessions(b), [None; 2], "{what}");
        }
    }
}

#[test]
fn a_node_whose_own_words_come_back_makes_no_link_to_itself() {
    // A master, and a worker.
    for (layers, next) in [(0..2, "n2"), (2..4, "n0")] {
        // Both know the next node's name, or do not.
        for next in [None, Some(next)] {
            let mut node = both(layers.clone(), next, 0);
            play(&mut node, None, "to its sender");
            // The node opens the link again: datagrams of its earlier session are its own, too.
            let mut wire = Recorder::default();
            node.transmit(20_000_000, &mut wire);
            let config = LinkConfig { next: next.map(name), ..config(layers.clone(), KEY, 0) };
            node.next = Some(LinkOut::new(config, Mode::Datagrams, address(2), 20_000_000));
            for mut datagram in wire.sent {
                let mut answers = Recorder::default();
                let _ = node.on_datagram(20_100_000, address(1), &mut datagram, &mut answers);
                assert!(answers.sent.is_empty());
            }
        }
    }
}

#[test]
fn what_is_meant_for_one_node_makes_no_link_to_another() {
    // A node that would fit, one of another model, and one that holds other layers.
    let other = |change: &dyn Fn(&mut RingInfo)| {
        let mut config = config(2..4, KEY, 5);
        config.node.name = name("n9");
        change(&mut config.node);
        Links { next: None, prev: Some(LinkIn::new(config)) }
    };
    let fits = |_: &mut RingInfo| {};
    let other_model = |node: &mut RingInfo| node.model = 8;
    let other_layers = |node: &mut RingInfo| node.wish = Some(3..4);
    let others: [&dyn Fn(&mut RingInfo); 3] = [&fits, &other_model, &other_layers];
    for change in others {
        let mut master = both(0..2, Some("n2"), 0);
        play(&mut master, Some(&mut other(change)), "to another node");
    }
}

#[test]
fn a_ring_of_one_node_is_its_own_next_one() {
    let mut node = config(0..4, KEY, 0);
    node.next = Some(node.node.name.clone());
    let out = LinkOut::new(node.clone(), Mode::Datagrams, address(0), 0);
    let mut node = Links { next: Some(out), prev: Some(LinkIn::new(node)) };
    for now in (0..1_000_000).step_by(1_000) {
        let mut wire = Recorder::default();
        node.transmit(now, &mut wire);
        let mut under_way = std::collections::VecDeque::from_iter(wire.sent);
        while let Some(mut datagram) = under_way.pop_front() {
            let mut wire = Recorder::default();
            node.on_datagram(now, address(0), &mut datagram, &mut wire).unwrap();
            under_way.extend(wire.sent);
        }
    }
    assert_eq!(*node.next.as_ref().unwrap().state(), LinkState::Up);
    assert_eq!(*node.prev.as_ref().unwrap().state(), LinkState::Up);
}

/// A ring of two that has worked for 400 ms, and everything that its nodes sent each other.
fn ring(now: &mut Micros) -> (Links, Links, Vec<Vec<u8>>) {
    let mut a = both(0..2, Some("n2"), 0);
    let mut b = both(2..4, Some("n0"), 0);
    let mut seen = Vec::new();
    run(&mut a, &mut b, now, 400_000, &mut seen);
    assert!(sessions(&a).iter().chain(&sessions(&b)).all(Option::is_some));
    (a, b, seen)
}

fn run(a: &mut Links, b: &mut Links, now: &mut Micros, us: Micros, seen: &mut Vec<Vec<u8>>) {
    let end = *now + us;
    while *now < end {
        for node in [&mut *a, &mut *b] {
            if let Some(next) = &mut node.next
                && next.reserve().is_some()
            {
                next.commit(3_000);
            }
            if let Some(prev) = &mut node.prev {
                prev.release();
            }
        }
        carry(a, b, [0, 1], *now, seen);
        carry(b, a, [1, 0], *now, seen);
        *now += 1_000;
    }
}

#[test]
fn nothing_that_running_nodes_sent_is_of_use_elsewhere_or_later() {
    let mut now = 0;
    let (mut a, mut b, seen) = ring(&mut now);
    let kinds: Vec<u8> = seen.iter().map(|datagram| datagram[5]).collect();
    for kind in [
        DatagramKind::Hello,
        DatagramKind::Welcome,
        DatagramKind::Confirm,
        DatagramKind::Data,
        DatagramKind::Ack,
        DatagramKind::Ping,
        DatagramKind::Pong,
    ] {
        assert!(kinds.contains(&(kind as u8)), "{kind:?} was sent");
    }
    let (of_a, of_b) = (sessions(&a), sessions(&b));
    let mut other = both(2..4, Some("n0"), 7);
    other.prev = {
        let mut config = config(2..4, KEY, 7);
        config.node.name = name("n9");
        Some(LinkIn::new(config))
    };
    let mut later = both(2..4, Some("n0"), 8);
    events(&mut a);
    events(&mut b);
    for node in [&mut a, &mut b, &mut other, &mut later] {
        // From the addresses of the neighbours, and from another one.
        for from in [0, 1, 5] {
            for datagram in &seen {
                now += 1_000;
                let mut wire = Recorder::default();
                let _ = node.on_datagram(now, address(from), &mut datagram.clone(), &mut wire);
            }
        }
    }
    for (node, what) in [(&mut other, "another node"), (&mut later, "a later run")] {
        assert_harmless(&events(node), what);
        assert_eq!(sessions(node), [None; 2], "{what}");
    }
    // The ring goes on with its sessions.
    run(&mut a, &mut b, &mut now, 2_000_000, &mut Vec::new());
    for (node, before) in [(&mut a, of_a), (&mut b, of_b)] {
        assert_harmless(
            &events(node)
                .into_iter()
                .filter(|event| !matches!(event, LinkEvent::Up { .. }))
                .collect::<Vec<_>>(),
            "a running node",
        );
        assert_eq!(sessions(node), before);
        assert_eq!(*node.next.as_ref().unwrap().state(), LinkState::Up);
    }
}

#[test]
fn runs_have_different_numbers() {
    let mut random = Randomness::new([1; 32]);
    let mut runs: Vec<u64> =
        (0..100).map(|_| LinkConfig::new(node(0..2), None, random.draw()).run).collect();
    runs.sort_unstable();
    runs.dedup();
    assert_eq!(runs.len(), 100);
}
