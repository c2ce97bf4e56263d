//! Nodes that answer and cannot take their part: the user hears which node and why, and the ring goes on without it
//! where that is possible.

use super::*;

#[test]
fn a_master_names_the_node_that_cannot_take_its_layers() {
    let answers = [
        (Status::Lacks, "node1 is to have layers 1..2, and its file holds 0..3; give it"),
        (Status::Memory, "node1 has not enough memory for layers 1..2; try"),
        (Status::Unassigned, "node1 has no layers"),
        (Status::Damaged, "weights of layers 1..2 on node1 do not match"),
    ];
    for (status, wanted) in answers {
        let (mut link, mut layers) = (Neighbours::new(), Layers::new(8));
        let mut master = master(None);
        assert_eq!(master.poll(1, &mut link, &mut layers), MasterStep::Idle);
        link.inbox.push_back(open(5, &[line(0), NodeLine { status, ..line(1) }]));
        let step = master.poll(2, &mut link, &mut layers);
        let MasterStep::Failed(error) = step else { panic!("{step:?}") };
        assert!(error.to_string().starts_with(wanted), "{error}");
        // Another split may fit.
        master.assign(line(0), vec![0..1, 1..2]);
        assert_eq!(master.poll(400_000, &mut link, &mut layers), MasterStep::Idle);
    }
}

/// A peer that has the key, and does not fit, ends a master that forms its ring, with the reason; a master
/// whose ring was open hears of it, and goes on asking.
#[test]
fn a_peer_that_does_not_fit_ends_no_ring_that_was_open() {
    let refused = || Event::Refused { what: "stray is refused".to_owned(), is_final: true };
    for is_forming in [true, false] {
        let (mut link, mut layers) = (Neighbours::new(), Layers::new(8));
        let mut master = master(None);
        assert_eq!(master.poll(1, &mut link, &mut layers), MasterStep::Idle);
        if is_forming {
            link.events.push_back(refused());
            let step = master.poll(2, &mut link, &mut layers);
            assert_eq!(step, MasterStep::Failed(RingError::Refused("stray is refused".to_owned())));
            continue;
        }
        link.inbox.push_back(open(5, &[line(0), line(1)]));
        assert_eq!(master.poll(2, &mut link, &mut layers), MasterStep::Idle);
        assert!(master.is_open());
        // The worker is gone, and others answer in its place.
        link.events.extend([Event::Reset(Side::Next), refused()]);
        assert_eq!(master.poll(3, &mut link, &mut layers), MasterStep::Idle);
        let lacks = NodeLine { status: Status::Lacks, ..line(1) };
        let other = NodeLine { layers: 3..4, ..line(1) };
        for (now, stray) in [lacks, other].into_iter().enumerate() {
            link.inbox.push_back(open(6, &[line(0), stray]));
            let step = master.poll(400_000 * (1 + now as u64), &mut link, &mut layers);
            assert_eq!(step, MasterStep::Idle);
        }
        let told: Vec<Notice> = std::iter::from_fn(|| master.notice()).collect();
        let refusals = told.iter().filter(|notice| matches!(notice, Notice::Refused(_)));
        assert_eq!(refusals.count(), 3, "{told:?}");
        assert!(!master.is_open());
        link.inbox.push_back(open(6, &[line(0), line(1)]));
        assert_eq!(master.poll(2_000_000, &mut link, &mut layers), MasterStep::Idle);
        assert!(master.is_open());
    }
}

/// Boards that the master has told what they have may still work on what another master told them.
#[test]
fn a_board_that_changes_over_ends_no_master() {
    for misfits in [Misfits::Wait, Misfits::LeaveOut] {
        let (mut link, mut layers) = (Neighbours::new(), Layers::new(8));
        let mut master = Master::new(MasterOptions { misfits, ..options(None) });
        assert_eq!(master.poll(1, &mut link, &mut layers), MasterStep::Idle);
        let what = "pi refuses this node: it has another model".to_owned();
        link.events.push_back(Event::Refused { what, is_final: true });
        assert_eq!(master.poll(2, &mut link, &mut layers), MasterStep::Idle, "{misfits:?}");
        link.inbox.push_back(open(5, &[line(0), line(1)]));
        assert_eq!(master.poll(3, &mut link, &mut layers), MasterStep::Idle);
        assert!(master.is_open(), "{misfits:?}");
    }
}

/// A master that leaves out nodes which cannot take their part, with an open ring of two; its epoch is 5.
fn open_master(link: &mut Neighbours, layers: &mut Layers) -> Master {
    let mut master = Master::new(MasterOptions { misfits: Misfits::LeaveOut, ..options(None) });
    assert_eq!(master.poll(1, link, layers), MasterStep::Idle);
    link.inbox.push_back(open(5, &[line(0), line(1)]));
    assert_eq!(master.poll(2, link, layers), MasterStep::Idle);
    assert!(master.is_open());
    while master.notice().is_some() {}
    master
}

/// Nodes get other layers on request, and one refuses: the client hears it, and the ring gets its former layers. The
/// node serves with these, so it is not left out.
#[test]
fn a_node_that_refuses_other_layers_is_not_left_out_of_its_ring() {
    let (mut link, mut layers) = (Neighbours::new(), Layers::new(8));
    let mut master = open_master(&mut link, &mut layers);
    master.assign(line(0), vec![0..1, 1..2]);
    let full = NodeLine { status: Status::Memory, ..line(1) };
    link.inbox.push_back(open(6, &[line(0), full]));
    let step = master.poll(3, &mut link, &mut layers);
    assert!(matches!(step, MasterStep::Failed(RingError::Node { .. })), "{step:?}");
    assert_eq!(master.notice(), None);
    master.assign(line(0), vec![0..1, 1..2]);
    link.inbox.push_back(open(7, &[line(0), line(1)]));
    assert_eq!(master.poll(400_000, &mut link, &mut layers), MasterStep::Idle);
    assert!(master.is_open());
}

/// A ring is asked for again once the other layers are given up: a node that still refuses its layers is left out, so
/// that the ring is not given up for ever.
#[cfg(feature = "serve")]
#[test]
fn a_ring_that_is_asked_for_again_leaves_out_a_node_that_refuses_its_layers() {
    let (mut link, mut layers) = (Neighbours::new(), Layers::new(8));
    let mut master = open_master(&mut link, &mut layers);
    master.assign(line(0), vec![0..1, 1..2]);
    let full = || NodeLine { status: Status::Memory, ..line(1) };
    link.inbox.push_back(open(6, &[line(0), full()]));
    let step = master.poll(3, &mut link, &mut layers);
    assert!(matches!(step, MasterStep::Failed(RingError::Node { .. })), "{step:?}");
    master.ask_again();
    link.inbox.push_back(open(6, &[line(0), full()]));
    assert_eq!(master.poll(400_000, &mut link, &mut layers), MasterStep::Idle);
    let told = master.notice();
    assert!(matches!(&told, Some(Notice::Unfit { name, .. }) if name == "node1"), "{told:?}");
}

/// A node that joins an open ring and refuses is named for each reason once, and serves when it is mended.
#[test]
fn a_node_that_joins_and_refuses_is_named_once_and_asked_again() {
    let (mut link, mut layers) = (Neighbours::new(), Layers::new(8));
    let mut master = open_master(&mut link, &mut layers);
    let file = "node0 10.0.0.1 0..1\nnode1 10.0.0.2 1..2";
    let members = || Topology::parse(file).unwrap().members().to_vec();
    let small = || NodeLine { status: Status::Context(8), ..line(1) };
    for epoch in [6, 7] {
        // The second time the ring changes, and the reason is told again.
        master.rejoin(line(0), members());
        for now in 1..3 {
            link.inbox.push_back(open(epoch, &[line(0), small()]));
            let now = u64::from(epoch) * 1_000_000 + now * 400_000;
            assert_eq!(master.poll(now, &mut link, &mut layers), MasterStep::Idle);
        }
        let told: Vec<Notice> = std::iter::from_fn(|| master.notice()).collect();
        assert!(matches!(&told[..], [Notice::Unfit { name, .. }] if name == "node1"), "{told:?}");
    }
    link.inbox.push_back(open(7, &[line(0), line(1)]));
    assert_eq!(master.poll(9_000_000, &mut link, &mut layers), MasterStep::Idle);
    assert!(master.is_open());
}
