//! Which peers are accepted, and what the others are told.

use super::*;

fn refusal(a: LinkConfig, b: LinkConfig, has_same_key: bool) -> Refusal {
    let network = Network::new(1, Faults::NONE);
    let mut a = network.endpoint(a, Some(1));
    let mut b = network.endpoint(b, None);
    for _ in 0..20 {
        a.service(Duration::ZERO).unwrap();
        b.service(Duration::ZERO).unwrap();
        network.step();
    }
    let next = a.links().next.as_mut().unwrap();
    let prev = b.links().prev.as_mut().unwrap();
    let LinkState::Refused(there) = next.state().clone() else { panic!("{:?}", next.state()) };
    assert_eq!(next.next_event(), Some(LinkEvent::Refused(there.clone())));
    assert_eq!(next.next_event(), None, "told once");
    let Some(LinkEvent::Refused(here)) = prev.next_event() else { panic!("told on both ends") };
    assert_eq!(prev.next_event(), None, "told once");
    assert_eq!((next.session(), prev.session()), (None, None));
    assert_eq!(here.refusal, there.refusal);
    assert_eq!((here.name.as_str(), here.from), ("n0", address(0)));
    assert_eq!((there.name.as_str(), there.from), ("n2", address(1)));
    assert!((there.is_next, there.by_peer) == (true, true) && !here.is_next && !here.by_peer);
    // Only a peer that has the same key, and answers this very HELLO, makes further attempts vain.
    assert!(!here.is_final());
    assert_eq!(there.is_final(), has_same_key);
    there.refusal
}

#[test]
fn nodes_that_do_not_fit_are_refused_on_both_ends() {
    for key in [None, Some(1)] {
        let change = |change: fn(&mut RingInfo)| {
            let mut config = config(2..4, key, 0);
            change(&mut config.node);
            refusal(self::config(0..2, key, 0), config, key.is_some())
        };
        assert_eq!(change(|n| n.model = 8), Refusal::Model { prev: 7, next: 8 });
        assert!(matches!(change(|n| n.numerics = 9), Refusal::Numerics { next: 9, .. }));
        assert!(matches!(change(|n| n.vocab_size = 8), Refusal::Dims { .. }));
        assert!(matches!(change(|n| n.dtype = Dtype::F16), Refusal::Dtype { .. }));
        assert_eq!(change(|n| n.wish = Some(3..4)), Refusal::Layers { prev: 0..2, next: 3..4 });
        assert_eq!(change(|n| n.wish = Some(1..4)), Refusal::Layers { prev: 0..2, next: 1..4 });
    }
}

#[test]
fn only_the_node_that_is_expected_may_come() {
    let mut sim = Sim::new(3, Some(Faults::NONE));
    sim.exchange(2);
    sim.events();
    let session = sim.prev().session();
    sim.prev().expect(name("n0"));
    assert_eq!(sim.prev().session(), session, "it is the one that is there");
    // The master puts another node in its place.
    sim.prev().expect(name("n9"));
    assert_eq!(sim.prev().session(), None);
    let wanted = Refusal::Stray { wanted: name("n9") };
    sim.steps_until("a refusal", 30_000_000, |sim| match sim.next().next_event() {
        // The neighbour may still be told of this node.
        Some(LinkEvent::Refused(refused)) => refused.refusal == wanted && !refused.is_final(),
        _ => false,
    });
    sim.prev().expect(name("n0"));
    sim.steps_until("a session", 30_000_000, Sim::is_up);
    sim.exchange(4);
}

#[test]
fn a_refusal_names_the_node_its_place_and_what_to_do() {
    let mut refused = Refused {
        refusal: Refusal::Dtype { prev: Dtype::F16, next: Dtype::F32 },
        is_next: true,
        by_peer: true,
        name: name("pi"),
        from: "[::ffff:10.0.0.2]:9999".parse().unwrap(),
        is_proven: false,
    };
    assert_eq!(
        refused.to_string(),
        "pi at 10.0.0.2:9999 refuses this node: activations are f16 on this node, f32 on pi; give \
         all nodes the same --wire"
    );
    (refused.is_next, refused.by_peer) = (false, false);
    refused.refusal = Refusal::Busy { with: name("desk") };
    assert_eq!(
        refused.to_string(),
        "pi at 10.0.0.2:9999 is refused: the node before this node is desk, which answers; pi \
         waits until its master gives it layers; with a ring file, end desk first"
    );
    // The others have the layers of this board, which was away.
    (refused.is_next, refused.by_peer) = (true, true);
    refused.refusal = Refusal::Stray { wanted: name("fig") };
    assert_eq!(
        refused.to_string(),
        "pi at 10.0.0.2:9999 refuses this node: the ring has other nodes now, and fig is the one \
         before pi; this node waits until its master gives it layers"
    );
    refused.refusal = Refusal::Stray { wanted: name("pi") };
    assert_eq!(
        refused.to_string(),
        "pi at 10.0.0.2:9999 refuses this node: pi does without other boards for now; this node \
         waits until its master gives it layers"
    );
}

#[test]
fn keys_must_be_the_same() {
    let with = |a, b| refusal(config(0..2, a, 0), config(2..4, b, 0), false);
    assert_eq!(with(None, Some(1)), Refusal::KeyNeeded);
    assert_eq!(with(Some(1), None), Refusal::KeyUnwanted);
    assert_eq!(with(Some(1), Some(2)), Refusal::KeyDiffers);
}

#[test]
fn another_protocol_version_is_refused() {
    let mut next = LinkOut::new(config(0..2, None, 0), Mode::Datagrams, address(1), 0);
    let mut wire = Recorder::default();
    next.transmit(0, &mut wire);
    let mut hello = wire.sent.pop().unwrap();
    hello[HEADER_LEN] = 77;
    let mut links = Links { next: None, prev: Some(LinkIn::new(config(2..4, None, 0))) };
    fix_checksum(&mut hello);
    links.on_datagram(0, address(0), &mut hello, &mut wire).unwrap();
    let refuse = Refuse::parse(&wire.sent[0][HEADER_LEN..]).unwrap();
    let wanted = Refusal::Version { prev: 77, next: hello::PROTOCOL };
    assert_eq!(refuse.refusal, wanted);
    assert_eq!(wire.sent[0].len(), HEADER_LEN + hello::REFUSE_FIXED, "what all versions read");
    let mut answer = wire.sent.remove(0);
    let mut links = Links { next: Some(next), prev: None };
    links.on_datagram(0, address(1), &mut answer, &mut wire).unwrap();
    let next = links.next.unwrap();
    assert!(matches!(next.state(), LinkState::Refused(refused) if refused.refusal == wanted));
}

#[test]
fn a_second_neighbour_is_told_that_the_place_is_taken() {
    // A node with other layers, and one with the same: a second master, or a worker of the same name.
    for other in [node(1..2), node(0..2)] {
        let mut sim = Sim::new(2, Some(Faults::NONE));
        sim.exchange(2);
        sim.events();
        let session = sim.prev().session();
        let other = LinkConfig { node: other, ..config(0..2, sim.key, 5) };
        let mut other = sim.network.endpoint(other, Some(1));
        let (mut n_frames, end) = (2, sim.network.now() + 30_000_000);
        while sim.network.now() < end {
            other.service(Duration::ZERO).unwrap();
            n_frames += 1;
            sim.exchange(n_frames);
        }
        let next = other.links().next.as_mut().unwrap();
        let LinkState::Refused(refused) = next.state() else { panic!("{:?}", next.state()) };
        assert_eq!(refused.refusal, Refusal::Busy { with: name("n0") });
        assert!(!refused.is_final());
        assert!(next.next_event().is_some() && next.next_event().is_none(), "told once");
        let (events, told) = sim.events();
        assert_eq!((events, told.len()), (vec![], 1), "the session goes on, and it is told once");
        assert_eq!(sim.prev().session(), session);
        // Once the first one is gone, the second takes its place.
        sim.network.stop(0);
        let is_up = |sim: &mut Sim| {
            other.service(Duration::ZERO).unwrap();
            sim.b.service(Duration::ZERO).unwrap();
            sim.network.step();
            sim.prev().session() != session
        };
        let end = sim.network.now() + 2_000_000;
        let mut is_up = is_up;
        while !is_up(&mut sim) {
            assert!(sim.network.now() < end, "the place is not given up");
        }
    }
}
