//! Nodes that go, come back, give up, refuse or do not come.

use super::*;

/// Two gathers, which differ in their bytes, and the last one.
fn cases() -> Vec<Case> {
    let (first, second) = (&[700, 800, 900], &[5, 200_000, 7]);
    vec![Case::new(2, first, To::All), Case::new(3, second, To::All), Case::last(3)]
}

const LAST: u32 = 2;

#[test]
fn a_member_that_restarts_is_taken_in_again() {
    let (places, cases, is_over) = (Places::new(3), cases(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let first = scope.spawn(|| serve(places.member(1), 1, &cases, &is_over));
        let second = scope.spawn(|| {
            let mut member = places.member(2);
            let mut n_gathers = 0;
            while n_gathers < 3 {
                match member.next(&|| is_over.load(Ordering::Relaxed), &mut |_| {}).unwrap() {
                    Order::Open(_) => member.ready(line()),
                    Order::Pass(_) => {
                        for (id, case) in cases[..2].iter().enumerate() {
                            n_gathers += 1;
                            if n_gathers < 3 {
                                case.run(id, 2, |rows| member.gather(rows)).unwrap();
                            }
                        }
                    }
                    Order::Pages | Order::Close => panic!("the lead does not close"),
                }
            }
            // It goes with the others in the third gather.
        });
        let mut lead = places.lead(5);
        open(&mut lead, 3);
        pass(&mut lead, &cases, &[0, 1]).unwrap();
        assert_eq!(pass(&mut lead, &cases, &[0, 1]), Err(TeamError::Lost { node: 2 }));
        assert_eq!(lead.start(Work::Ids, &spans(1), &[0]), Err(TeamError::NotOpen));
        second.join().unwrap();
        let second = scope.spawn(|| serve(places.member(2), 2, &cases, &is_over));
        open(&mut lead, 3);
        for _ in 0..5 {
            pass(&mut lead, &cases, &[0, 1, 0, LAST]).unwrap();
        }
        lead.close();
        assert_eq!(second.join().unwrap(), []);
        let errors = first.join().unwrap();
        let is_told = [TeamError::Lost { node: 2 }, TeamError::Superseded];
        assert!(errors.len() == 1 && is_told.contains(&errors[0]), "{errors:?}");
    });
}

#[test]
fn members_go_over_to_a_lead_that_restarts() {
    let (places, cases, is_over) = (Places::new(3), cases(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let member = |own| {
            let (cases, is_over) = (&cases, &is_over);
            scope.spawn(move || serve(places.member(own), own, cases, is_over))
        };
        let members = [member(1), member(2)];
        let mut lead = places.lead(5);
        open(&mut lead, 3);
        pass(&mut lead, &cases, &[1]).unwrap();
        // It goes when the members gather.
        lead.start(Work::Ids, &spans(1), &[1]).unwrap();
        thread::sleep(Duration::from_millis(20));
        drop(lead);
        let mut lead = places.lead(900);
        open(&mut lead, 3);
        pass(&mut lead, &cases, &[1, 0, LAST]).unwrap();
        lead.close();
        for member in members {
            // A member may not have begun when the first lead went.
            let errors = member.join().unwrap();
            assert!(errors.is_empty() || errors == [TeamError::Superseded], "{errors:?}");
        }
    });
}

#[test]
fn a_member_that_gives_up_is_named_at_once() {
    let (places, cases, is_over) = (Places::new(3), cases(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let first = scope.spawn(|| serve(places.member(1), 1, &cases, &is_over));
        let second = scope.spawn(|| {
            let mut member = places.member(2);
            let mut n_passes = 0;
            loop {
                match member.next(&|| is_over.load(Ordering::Relaxed), &mut |_| {}).unwrap() {
                    Order::Open(_) => member.ready(line()),
                    Order::Pass(_) if n_passes < 3 => {
                        n_passes += 1;
                        member.fail();
                    }
                    Order::Pass(_) => {
                        for id in [0, LAST as usize] {
                            cases[id].run(id, 2, |rows| member.gather(rows)).unwrap();
                        }
                        return member;
                    }
                    Order::Pages | Order::Close => panic!("it closes too early"),
                }
            }
        });
        let mut lead = places.lead(5);
        open(&mut lead, 3);
        for _ in 0..3 {
            assert_eq!(pass(&mut lead, &cases, &[0]), Err(TeamError::Lost { node: 2 }));
            open(&mut lead, 3);
        }
        assert_eq!(lead.setbacks().failures, 3);
        pass(&mut lead, &cases, &[0, LAST]).unwrap();
        let _member = second.join().unwrap();
        lead.close();
        assert!(first.join().unwrap().len() <= 3);
    });
}

#[test]
fn a_member_may_refuse_and_accept_another_opening() {
    let places = Places::new(2);
    let (cases, is_over) = ([Case::new(1, &[9, 8], To::All)], AtomicBool::new(false));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            let mut member = places.member(1);
            loop {
                match member.next(&|| is_over.load(Ordering::Relaxed), &mut |_| {}).unwrap() {
                    Order::Open(opening) if opening.sizes.ctx_len > 2048 => {
                        member.refuse("no memory")
                    }
                    Order::Open(_) => member.ready(line()),
                    Order::Pass(_) => cases[0].run(0, 1, |rows| member.gather(rows)).unwrap(),
                    Order::Pages | Order::Close => break,
                }
            }
        });
        let mut lead = places.lead(5);
        let mut told = Vec::new();
        let mut tell = |notice: &Notice| told.push(notice.to_string());
        let refused = lead.open(&opening(2), &|| false, &mut tell, None);
        let (node, why) = (named(1), "no memory".to_owned());
        assert_eq!(refused, Err(TeamError::Refused { node, why }));
        let opening = Opening { sizes: Sizes { ctx_len: 2048, ..opening(2).sizes }, ..opening(2) };
        lead.open(&opening, &|| false, &mut tell, None).unwrap();
        pass(&mut lead, &cases, &[0]).unwrap();
        lead.close();
        let of = |what: &str| told.iter().filter(|line| line.ends_with(what)).count();
        assert_eq!(
            (of("refuses: no memory"), of("node 1 of the team is ready")),
            (1, 1),
            "{told:?}"
        );
    });
}

#[test]
fn a_missing_member_is_named_once() {
    let (places, is_over) = (Places::new(3), AtomicBool::new(false));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let member = scope.spawn(|| serve(places.member(1), 1, &[], &is_over));
        let mut lead = places.lead(5);
        let mut told = Vec::new();
        let mut tell = |notice: &Notice| told.push(notice.clone());
        let limit = Some(Duration::from_millis(5500));
        let error = lead.open(&opening(3), &|| false, &mut tell, limit).unwrap_err();
        assert_eq!(error, TeamError::Timeout { node: named(1), seconds: 5 });
        let of = |notice: &Notice| told.iter().filter(|told| *told == notice).count();
        let what = format!("{} has no link to {}", named(1), named(2));
        let unlinked = Notice::Waiting { what, missing: Vec::new() };
        let what = format!("waiting for {}", named(2));
        let expected = [Notice::Waiting { what, missing: vec![named(2)] }, unlinked];
        assert!(expected.iter().all(|notice| of(notice) == 1), "{told:?}");
        assert!(!told.iter().any(|notice| matches!(notice, Notice::Ready(_))), "{told:?}");
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(member.join().unwrap(), [TeamError::Interrupted]);
    });
}

#[test]
fn a_team_that_was_given_up_is_waited_for_again() {
    let (places, is_over) = (Places::new(2), AtomicBool::new(false));
    let cases = [Case::new(1, &[9, 8], To::All)];
    let limit = Some(Duration::from_secs(3));
    // How often a wait for the member that is away looked for it.
    let wait = |lead: &mut Lead| {
        let n_looks = AtomicU16::new(0);
        let look = || {
            n_looks.fetch_add(1, Ordering::Relaxed);
            false
        };
        let ended = lead.open(&opening(2), &look, &mut |_| {}, limit);
        assert_eq!(ended, Err(TeamError::Timeout { node: named(1), seconds: 3 }));
        n_looks.into_inner()
    };
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let member = scope.spawn(|| {
            let mut member = places.member(1);
            for _ in 0..2 {
                loop {
                    match member.next(&|| is_over.load(Ordering::Relaxed), &mut |_| {}).unwrap() {
                        Order::Open(_) => member.ready(line()),
                        Order::Pass(_) => break,
                        Order::Pages | Order::Close => panic!("it closes too early"),
                    }
                }
                member.fail();
            }
        });
        let mut lead = places.lead(5);
        for _ in 0..2 {
            open(&mut lead, 2);
            assert_eq!(pass(&mut lead, &cases, &[0]), Err(TeamError::Lost { node: 1 }));
        }
        member.join().unwrap();
        assert_eq!(lead.setbacks().failures, 2);
        // No batch is in flight meanwhile.
        thread::sleep(Duration::from_secs(4));
        assert!(wait(&mut lead) > 1, "it was given up for the time in which nothing was asked");
        assert!(wait(&mut lead) > 1, "it was given up for the wait before");
    });
}

#[test]
fn a_gather_that_waits_can_be_interrupted() {
    let places = Places::new(2);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        // It takes batches and gathers nothing.
        let member = scope.spawn(|| {
            let mut member = places.member(1);
            while !is_over.load(Ordering::Relaxed) {
                if let Ok(Order::Open(_)) =
                    member.next(&|| is_over.load(Ordering::Relaxed), &mut |_| {})
                {
                    member.ready(line());
                }
            }
            // Nothing was begun.
            let rows = Gathered {
                bytes: &mut [],
                row_bytes: 4,
                parts: &[vec![0..1, 1..2], vec![2..4, 0..0]],
                to: To::All,
            };
            member.fail();
            assert_eq!(member.gather(rows), Err(TeamError::NotOpen));
        });
        let mut lead = places.lead(5);
        open(&mut lead, 2);
        lead.interrupt_by(|| true);
        let cases = [Case::new(1, &[9, 8], To::All)];
        assert_eq!(pass(&mut lead, &cases, &[0]), Err(TeamError::Interrupted));
        is_over.store(true, Ordering::Relaxed);
        member.join().unwrap();
        let error = lead.open(&opening(2), &|| true, &mut |_| {}, None);
        assert_eq!(error, Err(TeamError::Interrupted));
    });
}

#[test]
fn a_mesh_is_of_2_to_16_nodes_with_one_place_free() {
    let places = Places::new(3);
    let nothing = Mesh::new(vec![None]);
    let none_free = Mesh::new(vec![Some(places.endpoint(0, 1)), Some(places.endpoint(0, 2))]);
    let two_free = Mesh::new(vec![None, Some(places.endpoint(1, 2)), None]);
    for mesh in [nothing, none_free, two_free, Mesh::new(Vec::new())] {
        assert_eq!(mesh.err().map(|e| e.kind()), Some(std::io::ErrorKind::InvalidInput));
    }
}
