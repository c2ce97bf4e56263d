//! Gathered rows are equal on all nodes.

use super::*;
use crate::wire::frame::FramePage;

/// Small and large, even and uneven, among `n` nodes.
fn cases(n: usize) -> Vec<Case> {
    let even = |bytes| vec![bytes; n];
    let uneven: Vec<usize> = (0..n).map(|node| 17 * node * node + 3).collect();
    let some_empty: Vec<usize> = (0..n).map(|node| (node % 2) * 100).collect();
    let only_lead: Vec<usize> = (0..n).map(|node| usize::from(node == 0) * 4096).collect();
    let mut cases = vec![
        Case::new(1, &even(1), To::All),
        Case::new(1, &even(8192 / n), To::All),
        Case::new(4, &even(16 << 10), To::All),
        Case::new(512, &uneven, To::All),
        Case::new(7, &some_empty, To::All),
        Case::new(3, &only_lead, To::All),
        Case::new(1, &even(0), To::All),
        Case::new(0, &even(64), To::All),
        Case::new(1, &even(32 << 10), To::Lead),
        Case::new(33, &uneven, To::Lead),
        Case::new(5, &some_empty, To::Lead),
        Case::new(1, &even(1), To::All),
    ];
    // The lead has nothing, and columns that no node has stay as they are.
    let mut gaps = Case::new(9, &uneven, To::All);
    gaps.parts[0].clear();
    cases.push(gaps);
    cases
}

#[test]
fn all_nodes_have_the_same_rows() {
    for n in [2, 3, 5] {
        check(Places::new(n), &cases(n), 20);
    }
}

#[test]
fn parts_may_be_longer_than_all_windows() {
    for n in [2, 3] {
        let cases = [
            Case::new(1, &vec![4 << 20; n], To::All),
            Case::new(512, &vec![4 << 10; n], To::All),
            Case::new(1, &vec![4 << 20; n], To::Lead),
        ];
        check(Places::new(n), &cases, 1);
    }
}

#[test]
fn links_with_a_key_and_streams_gather_too() {
    check(Places { key: Some(7), ..Places::new(3) }, &cases(3), 5);
    check(Places { open: TCP, ..Places::new(3) }, &cases(3), 5);
}

#[test]
fn a_batch_may_be_longer_than_a_frame() {
    let places = Places::new(2);
    let n = 65_535;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let member = scope.spawn(|| {
            let mut member = places.member(1);
            loop {
                match member.next(&|| is_over.load(Ordering::Relaxed), &mut |_| {}).unwrap() {
                    Order::Open(_) => member.ready(line()),
                    Order::Pass(_) => break (member.spans().to_vec(), member.tokens().to_vec()),
                    Order::Pages | Order::Close => panic!("it has not been told a batch"),
                }
            }
        });
        let mut lead = places.lead(1);
        let opening = Opening {
            sizes: Sizes { max_batch: n, n_streams: n, ..opening(2).sizes },
            ..opening(2)
        };
        lead.open(&opening, &|| false, &mut |_| {}, Some(Duration::from_secs(120))).unwrap();
        let span = |stream| FrameSpan { stream, n_rows: 1, wants: FrameWants::None, ..spans(1)[0] };
        let spans: Vec<FrameSpan> = (0..n).map(span).collect();
        let tokens: Vec<u32> = (0..u32::from(n)).map(|i| i * 7).collect();
        lead.start(Work::Ids, &spans, &tokens).unwrap();
        while !member.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(member.join().unwrap() == (spans, tokens));
    });
}

#[test]
fn the_lead_knows_how_long_members_compute() {
    const MS: u64 = 20;
    let (places, is_over) = (Places::new(2), AtomicBool::new(false));
    let case = Case::new(1, &[8, 8], To::All);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            let mut member = places.member(1);
            while let Ok(order) = member.next(&|| is_over.load(Ordering::Relaxed), &mut |_| {}) {
                match order {
                    Order::Open(_) => member.ready(line()),
                    Order::Pass(_) => {
                        for _ in 0..3 {
                            thread::sleep(Duration::from_millis(MS));
                            case.run(0, 1, |rows| member.gather(rows)).unwrap();
                        }
                    }
                    Order::Pages | Order::Close => break,
                }
            }
        });
        let mut lead = places.lead(5);
        open(&mut lead, 2);
        pass(&mut lead, std::slice::from_ref(&case), &[0; 3]).unwrap();
        let TeamFigures { gathers, slowest_us, compute_us, .. } = lead.figures();
        assert_eq!(gathers, 3);
        // It began a little before the lead noticed.
        assert!(compute_us[1] > 3 * MS * 1000 / 2, "{compute_us:?}");
        assert!(slowest_us >= compute_us[0].max(compute_us[1]), "{slowest_us} {compute_us:?}");
        lead.close();
    });
}

/// Begins and ends gathers.
enum Call<'c, 'r> {
    Start(&'c mut [Gathered<'r>]),
    Finish(&'c mut [Gathered<'r>]),
}

/// Runs `cases`, of which each begins before the one before it ends.
fn run_in_turn(
    cases: &[Case],
    own: usize,
    mut call: impl FnMut(Call<'_, '_>) -> Result<(), TeamError>,
) -> Result<(), TeamError> {
    let mut bytes: Vec<_> =
        cases.iter().enumerate().map(|(i, c)| c.computed_by(i, |node| node == own)).collect();
    let mut rows: Vec<_> = cases.iter().zip(&mut bytes).map(|(c, bytes)| c.rows(bytes)).collect();
    for i in 0..cases.len() {
        call(Call::Start(&mut rows[i.saturating_sub(1)..=i]))?;
        if i > 0 {
            call(Call::Finish(&mut rows[i - 1..=i]))?;
        }
    }
    call(Call::Finish(rows.last_mut().map(std::slice::from_mut).unwrap()))?;
    drop(rows);
    let all = cases.iter().zip(&bytes).enumerate();
    all.for_each(|(i, (case, bytes))| case.compare(i, own, bytes));
    Ok(())
}

#[test]
fn a_gather_may_begin_before_the_one_before_it_ends() {
    for n in [2, 3, 5] {
        let (places, is_over) = (Places::new(n), AtomicBool::new(false));
        let started: Vec<usize> = (0..n).map(|node| started_max(n) / (node + 1)).collect();
        let last = Case::last(n);
        let cases = &[cases(n), vec![Case::new(1, &started, To::All); 4]].concat();
        thread::scope(|scope| {
            let _over = Over(&is_over);
            for own in 1..n {
                let (is_over, last) = (&is_over, &last);
                scope.spawn(move || {
                    let mut member = places.member(own);
                    while let Ok(order) =
                        member.next(&|| is_over.load(Ordering::Relaxed), &mut |_| {})
                    {
                        match order {
                            Order::Open(_) => member.ready(line()),
                            Order::Pass(_) => {
                                let ran = run_in_turn(cases, own, |call| match call {
                                    Call::Start(rows) => member.start_gather(rows),
                                    Call::Finish(rows) => member.finish_gather(rows),
                                });
                                ran.unwrap();
                                last.run(0, own, |rows| member.gather(rows)).unwrap();
                            }
                            Order::Pages | Order::Close => break,
                        }
                    }
                });
            }
            let mut lead = places.lead(5);
            open(&mut lead, n);
            for _ in 0..3 {
                lead.start(Work::Ids, &spans(1), &[0]).unwrap();
                let ran = run_in_turn(cases, 0, |call| match call {
                    Call::Start(rows) => lead.start_gather(rows),
                    Call::Finish(rows) => lead.finish_gather(rows),
                });
                ran.unwrap();
                last.run(0, 0, |rows| lead.gather(rows)).unwrap();
            }
            lead.close();
        });
    }
}

#[test]
fn pages_come_in_order_before_the_batch_that_needs_them() {
    let places = Places::new(2);
    let is_over = AtomicBool::new(false);
    // More than a frame holds.
    let page = |index| FramePage { stream: 3, index, to: (index + 7, None), from: None };
    let pages: Vec<FramePage> = (0..1500).map(page).collect();
    let cases = [Case::new(1, &[8, 8], To::All), Case::last(2)];
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let member = scope.spawn(|| {
            let (mut member, mut heard) = (places.member(1), Vec::new());
            loop {
                match member.next(&|| is_over.load(Ordering::Relaxed), &mut |_| {}).unwrap() {
                    Order::Open(_) => member.ready(line()),
                    Order::Pages => heard.extend_from_slice(member.pages()),
                    Order::Pass(_) => {
                        assert_eq!(heard.len(), 1500, "the batch comes first");
                        for (id, case) in cases.iter().enumerate() {
                            case.run(id, 1, |rows| member.gather(rows)).unwrap();
                        }
                    }
                    Order::Close => return heard,
                }
            }
        });
        let mut lead = places.lead(1);
        let limit = Some(Duration::from_secs(120));
        lead.open(&opening(2), &|| false, &mut |_| {}, limit).unwrap();
        lead.change_pages(&pages).unwrap();
        pass(&mut lead, &cases, &[0, 1]).unwrap();
        lead.close();
        assert_eq!(member.join().unwrap(), pages);
    });
}
