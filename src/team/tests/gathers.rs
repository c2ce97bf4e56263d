//! What is gathered is the same on all nodes.

use super::*;

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
    // The lead has nothing, and columns that are nobody's stay as they are.
    let mut gaps = Case::new(9, &uneven, To::All);
    gaps.parts[0] = [0..0, 0..0];
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
                    Order::Close => panic!("it has not been told a batch"),
                }
            }
        });
        let mut lead = places.lead(1);
        let opening = Opening { max_batch: n, n_streams: n, ..opening(2) };
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
                    Order::Close => break,
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
