//! Frames that were written are read back, and malformed ones are refused.

mod team;

use super::*;
use crate::wire::KvType;

const SIZES: Sizes = Sizes {
    ctx_len: 4096,
    n_streams: 3,
    n_pages: 70_000,
    max_batch: 64,
    max_logits: 2,
    kv: KvType::F32,
    wire: Dtype::F16,
    dim: 2,
};

fn line() -> NodeLine {
    NodeLine {
        name: heapless::String::try_from("orange").unwrap(),
        isa: heapless::String::try_from("neondot").unwrap(),
        layers: 6..14,
        held: 0..22,
        bytes_per_token: 1 << 33,
        way: Way {
            rtt_us: 180,
            datagram_bytes: 1432,
            carrier: heapless::String::try_from("udp").unwrap(),
        },
        nodes: 3,
        threads: 4,
        status: Status::Streams(2),
        streams: Streams::Kept,
        keeps: true,
        embeds: true,
    }
}

const SPANS: [FrameSpan; 2] = [
    FrameSpan {
        stream: 1,
        wants: FrameWants::None,
        pos: 70_000,
        n_rows: 2,
        is_long: true,
        state: [None; 2],
    },
    FrameSpan {
        stream: 2,
        wants: FrameWants::Last,
        pos: 0,
        n_rows: 1,
        is_long: false,
        state: [None; 2],
    },
];

const ACTIVATIONS: Activations = Activations {
    epoch: 7,
    batch: 0x0102_0304,
    dtype: Dtype::F16,
    dim: 2,
    n_rows: 3,
    first_row: 1,
    rows: 2,
    n_spans: 2,
    n_figures: 1,
};

const FIGURES: WorkFigures = WorkFigures {
    compute_us: 99,
    heat: Some(Heat { degrees: 0x3c, is_slowed: false }),
    energy: Some(0x105),
};

fn activations() -> Vec<u8> {
    let mut out = vec![0xa5; ACTIVATIONS.bytes()];
    let rows = emit_activations(&ACTIVATIONS, &SPANS, &[FIGURES], &mut out).unwrap();
    rows.copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    out
}

#[test]
fn activations_come_back() {
    let bytes = activations();
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(frame.repr(), Repr::Activations(ACTIVATIONS));
    assert_eq!(frame.spans().collect::<Result<Vec<_>, _>>(), Ok(SPANS.to_vec()));
    assert_eq!(frame.figures().collect::<Vec<_>>(), [FIGURES]);
    assert_eq!(frame.rows(), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn bytes_are_pinned() {
    let mut wanted = Vec::new();
    wanted.extend_from_slice(b"LEPF\x01\x01\0\0\x07\0\0\0\x04\x03\x02\x01\x02\0\0\0");
    wanted.extend_from_slice(b"\x03\0\x01\0\x02\0\x02\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    wanted.extend_from_slice(b"\x01\0\0\x01\x70\x11\x01\0\x02\0\0\0");
    wanted.extend_from_slice(b"\x02\0\x01\0\0\0\0\0\x01\0\0\0");
    wanted.extend_from_slice(b"\x63\0\0\x3c\x05\x01\0\0\x01\x02\x03\x04\x05\x06\x07\x08");
    assert_eq!(activations(), wanted);
}

#[test]
fn open_assigns_shares_and_collects_lines() {
    let mut out = [0xa5; 500];
    let statuses = [
        Status::Ready,
        Status::Unassigned,
        Status::Lacks,
        Status::Damaged,
        Status::Fixed,
        Status::Team,
    ];
    for status in statuses {
        let lines = [line(), NodeLine { status, ..line() }];
        for assigned in [&[][..], &[0..6, 6..14, 14..22]] {
            let from = (!assigned.is_empty()).then_some(8);
            let len =
                emit_open((9, from), &SIZES, Parts::Layers(assigned), &lines, &mut out).unwrap();
            let frame = Frame::parse(&out[..len]).unwrap();
            let n_assigned = assigned.len() as u16;
            let split = Split::Layers;
            let wanted = Repr::Open { epoch: 9, from, sizes: SIZES, split, n_assigned, n_lines: 2 };
            assert_eq!(frame.repr(), wanted);
            assert_eq!(frame.assigned().collect::<Result<Vec<_>, _>>(), Ok(assigned.to_vec()));
            assert_eq!(frame.lines().collect::<Result<Vec<_>, _>>(), Ok(lines.to_vec()));
            let parts = Parts::Layers(assigned);
            assert_eq!(emit_open((9, None), &SIZES, parts, &lines, &mut out[..len - 1]), None);
        }
    }
    let [none, backwards] = [(3, 3), (4, 3)].map(|(start, end)| {
        let layers = std::ops::Range { start, end };
        let len = emit_open((9, None), &SIZES, Parts::Layers(&[layers]), &[], &mut out).unwrap();
        Frame::parse(&out[..len]).unwrap().assigned().next().unwrap()
    });
    assert!(none == Ok(3..3) && backwards.is_err());
}

#[test]
fn reports_and_close_come_back() {
    let mut out = [0xa5; 100];
    let reasons = [
        Reason::Silent,
        Reason::Back,
        Reason::Reset,
        Reason::Missing(0),
        Reason::Missing(3),
        Reason::Busy(70),
        Reason::Packing(41),
        Reason::Lost,
        Reason::Incomplete,
        Reason::GivenUp(2),
    ];
    for reason in reasons {
        let len = emit_report(3, reason, "pi", &mut out).unwrap();
        let frame = Frame::parse(&out[..len]).unwrap();
        assert_eq!(
            (frame.repr(), frame.name().as_str()),
            (Repr::Report { epoch: 3, reason }, "pi")
        );
    }
    let len = emit_close(3, &mut out).unwrap();
    assert_eq!(Frame::parse(&out[..len]).unwrap().repr(), Repr::Close { epoch: 3 });
}

#[test]
fn what_is_said_of_boards_comes_back() {
    let board = |name: &str, share| BoardReport {
        name: heapless::String::try_from(name).unwrap(),
        isa: heapless::String::try_from("neondot").unwrap(),
        bytes_per_token: 1 << 33,
        compute_us: 1 << 34,
        rtt_us: 180,
        threads: 4,
        share,
    };
    let report = BoardsReport {
        name: heapless::String::try_from("pi").unwrap(),
        passes: 0x0102_0304,
        whole_us: 1 << 35,
        slowest_us: (1 << 35) - 1,
        boards: [board("pi", 2), board("fig", 65_535)].into_iter().collect(),
    };
    let mut out = [0xa5; 300];
    let len = emit_boards(&report, &mut out).unwrap();
    let mut wanted =
        Vec::from(*b"LEPF\x06\0\0\0\0\0\0\0\x04\x03\x02\x01\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
    wanted.extend_from_slice(b"\0\0\0\0\x08\0\0\0\xff\xff\xff\xff\x07\0\0\0pi");
    assert_eq!(out[..wanted.len()], wanted);
    assert_eq!(
        out[len - 24..len],
        *b"\0\0\0\0\x02\0\0\0\0\0\0\0\x04\0\0\0\xb4\0\0\0\x04\0\xff\xff"
    );
    let frame = Frame::parse(&out[..len]).unwrap();
    assert_eq!((frame.repr(), frame.boards()), (Repr::Boards(2), Some(report.clone())));
    assert_eq!(emit_boards(&report, &mut out[..len - 1]), None);
    out[24] = BOARDS_MAX as u8 + 1;
    assert!(matches!(Frame::parse(&out), Err(WireError::Field("number of boards"))));
}

#[test]
fn pieces_of_keys_and_values_come_back() {
    let piece = KvPiece { layer: 7, page: 2, first: 96, bytes: 5 };
    let mut out = [0xa5; 100];
    out[HEADER_LEN..][..5].copy_from_slice(b"piece");
    let len = emit_kv(3, piece, &mut out).unwrap();
    let mut wanted =
        b"LEPF\x04\0\0\0\x03\0\0\0\x07\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    wanted.extend_from_slice(b"\0\0\0\0\x60\0\0\0\x05\0\0\0\0\0\0\0piece");
    assert_eq!(out[..len], wanted);
    let frame = Frame::parse(&out[..len]).unwrap();
    assert_eq!((frame.repr(), frame.kv()), (Repr::Kv { epoch: 3, piece }, &b"piece"[..]));
    assert!(Frame::parse(&out[..len - 1]).is_err());
    for is_over in [false, true] {
        let len = emit_moved(4, is_over, &mut out).unwrap();
        let repr = Frame::parse(&out[..len]).unwrap().repr();
        assert_eq!(repr, Repr::Moved { epoch: 4, is_over });
    }
}

const PAGES: [FramePage; 2] = [
    FramePage { stream: 2, index: 70, to: (0x102, None), from: None },
    FramePage { stream: 0, index: 1, to: (3, Some(4)), from: Some((5, Some(6))) },
];

#[test]
fn pages_come_back() {
    let mut out = [0xa5; 200];
    let (len, n) = emit_pages(3, &PAGES, &mut out).unwrap();
    let mut wanted = b"LEPF\x07\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
    wanted.resize(HEADER_LEN, 0);
    wanted.extend_from_slice(b"\x02\0\0\0\x46\0\0\0\x02\x01\0\0\xff\xff\xff\xff");
    wanted.extend_from_slice(b"\xff\xff\xff\xff\xff\xff\xff\xff");
    wanted.extend_from_slice(b"\0\0\0\0\x01\0\0\0\x03\0\0\0\x04\0\0\0\x05\0\0\0\x06\0\0\0");
    assert_eq!((&out[..len], n), (&wanted[..], 2));
    let frame = Frame::parse(&out[..len]).unwrap();
    assert_eq!(frame.repr(), Repr::Pages { epoch: 3, n_pages: 2 });
    assert_eq!(frame.pages().collect::<Result<Vec<_>, _>>(), Ok(PAGES.to_vec()));
    assert!(Frame::parse(&out[..len - 1]).is_err());
    // Only one page fits.
    assert_eq!(emit_pages(3, &PAGES, &mut out[..len - 1]), Some((len - PAGE_LEN, 1)));
    assert_eq!(emit_pages(3, &PAGES, &mut out[..HEADER_LEN]), None);
}

fn keeps() -> [FrameKeep; 2] {
    let keep = FrameKeep {
        stream: 2,
        is_long: true,
        index: 70,
        n_whole: 81,
        at: (0x102, None),
        state: None,
        n_ids: 64,
        ids: std::array::from_fn(|at| 0x0201 + at as u32),
    };
    let mut last = FrameKeep {
        stream: 0,
        at: (3, Some(4)),
        is_long: false,
        state: Some(253),
        n_ids: 2,
        ..keep
    };
    last.ids[2..].fill(0);
    [keep, last]
}

#[test]
fn pages_that_are_to_be_kept_come_back() {
    let mut out = [0xa5; 700];
    let (len, n) = emit_keeps(3, &keeps(), &mut out).unwrap();
    let mut wanted = b"LEPF\x08\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
    wanted.resize(HEADER_LEN, 0);
    wanted.extend_from_slice(b"\x02\0\x01\x40\x46\0\0\0\x51\0\0\0\x02\x01\0\0");
    wanted.extend_from_slice(b"\xff\xff\xff\xff\0\0\0\0\x01\x02\0\0\x02\x02\0\0");
    assert_eq!((&out[..wanted.len()], n), (&wanted[..], 2));
    let rest = &out[HEADER_LEN + KEEP_LEN..len];
    assert_eq!(rest[..24], *b"\0\0\0\x02\x46\0\0\0\x51\0\0\0\x03\0\0\0\x04\0\0\0\xfe\0\0\0");
    let frame = Frame::parse(&out[..len]).unwrap();
    assert_eq!(frame.repr(), Repr::Keep { epoch: 3, n_pages: 2 });
    assert_eq!(frame.keeps().collect::<Result<Vec<_>, _>>(), Ok(keeps().to_vec()));
    assert!(Frame::parse(&out[..len - 1]).is_err());
    assert_eq!(emit_keeps(3, &keeps(), &mut out[..len - 1]), Some((len - KEEP_LEN, 1)));
    for n_ids in [0, 65, 255] {
        out[HEADER_LEN + 3] = n_ids;
        let frame = Frame::parse(&out[..len - KEEP_LEN]).unwrap();
        assert!(frame.keeps().all(|page| page.is_err()), "{n_ids}");
    }
}

const FETCH: Fetch =
    Fetch { epoch: 3, batch: 0x0102, is_long: true, n_pages: 3, n_found: 1, n_ids: 3 };
const FETCHED: [FetchPage; 3] = [
    FetchPage { index: 5, kind: FetchKind::Whole, page: 9 },
    FetchPage { index: 1, kind: FetchKind::Windowed, page: 0x304 },
    FetchPage { index: 2, kind: FetchKind::State, page: 7 },
];

#[test]
fn pages_that_are_to_be_read_come_back() {
    let mut out = [0xa5; 200];
    let len = emit_fetch(&FETCH, &FETCHED, &[7, 8, 9], &mut out).unwrap();
    let mut wanted =
        b"LEPF\x09\0\0\x01\x03\0\0\0\x02\x01\0\0\x03\0\0\0\0\0\0\0\x01\0\x03\0".to_vec();
    wanted.resize(HEADER_LEN, 0);
    wanted.extend_from_slice(b"\x05\0\0\0\x09\0\0\0\x01\0\0\x80\x04\x03\0\0");
    wanted.extend_from_slice(b"\x02\0\0\x40\x07\0\0\0");
    wanted.extend_from_slice(b"\x07\0\0\0\x08\0\0\0\x09\0\0\0");
    assert_eq!(out[..len], wanted);
    let frame = Frame::parse(&out[..len]).unwrap();
    assert_eq!(frame.repr(), Repr::Fetch(FETCH));
    let (pages, ids) = frame.fetch();
    assert_eq!(
        (pages.collect::<Vec<_>>(), ids.collect::<Vec<_>>()),
        (FETCHED.to_vec(), vec![7, 8, 9])
    );
    assert!(Frame::parse(&out[..len - 1]).is_err());
    assert_eq!(emit_fetch(&FETCH, &FETCHED, &[7, 8, 9], &mut out[..len - 1]), None);
}

#[test]
fn long_names_are_cut_at_a_character() {
    let mut out = [0; 100];
    let len = emit_report(0, Reason::Reset, &"é".repeat(40), &mut out).unwrap();
    assert_eq!(Frame::parse(&out[..len]).unwrap().name(), "é".repeat(16).as_str());
}

#[test]
fn every_truncation_and_surplus_byte_is_refused() {
    let bytes = activations();
    for len in 0..bytes.len() {
        assert!(Frame::parse(&bytes[..len]).is_err(), "{len}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(Frame::parse(&longer).is_err());
}

#[test]
fn no_forged_byte_makes_an_accessor_panic() {
    let mut open = vec![0; 500];
    let len =
        emit_open((9, None), &SIZES, Parts::Layers(&[0..1, 1..4]), &[line()], &mut open).unwrap();
    open.truncate(len);
    let mut pages = vec![0; 200];
    let (len, _) = emit_pages(9, &PAGES, &mut pages).unwrap();
    pages.truncate(len);
    let [mut keep, mut fetch] = [vec![0; 700], vec![0; 200]];
    let (len, _) = emit_keeps(9, &keeps(), &mut keep).unwrap();
    keep.truncate(len);
    let len = emit_fetch(&FETCH, &FETCHED, &[7, 8, 9], &mut fetch).unwrap();
    fetch.truncate(len);
    for frame in [activations(), open, pages, keep, fetch].into_iter().chain(team::frames()) {
        for at in 0..frame.len() {
            for byte in [0, 1, 2, 3, 0x7f, 0xff] {
                let mut forged = frame.clone();
                forged[at] = byte;
                let Ok(frame) = Frame::parse(&forged) else { continue };
                let _ = (frame.spans().count(), frame.figures().count());
                let _ = (frame.rows().len(), frame.lines().count(), frame.name());
                let _ = (frame.assigned().count(), frame.pages().count(), frame.keeps().count());
                let (pages, ids) = frame.fetch();
                let _ = (pages.count(), ids.count());
                let _ = (frame.tokens().count(), frame.part(), frame.shares().count());
                let _ = frame.why();
            }
        }
    }
}

#[test]
fn energies_begin_anew_and_may_be_unknown() {
    for (joules, energy) in [
        (Some(2.61), Some(261)),
        (Some(0.0), Some(0)),
        (Some(f64::from(u32::MAX) / 1e2 + 1.0), Some(100)),
        (Some(-1.0), Some(0)),
        (Some(f64::NAN), Some(0)),
        (None, None),
    ] {
        let heat = Some(Heat { degrees: 71, is_slowed: joules.is_none() });
        let figures = WorkFigures::new(7, MachineReading { joules, heat });
        assert_eq!(figures, WorkFigures { compute_us: 7, heat, energy });
        let mut out = [0xa5; FIGURES_LEN];
        figures.emit(&mut out);
        assert_eq!(WorkFigures::parse(&out), figures);
    }
    // A time that is longer than the field can hold.
    let long = WorkFigures::new(u32::MAX, MachineReading { joules: None, heat: None });
    let most = WorkFigures { compute_us: WorkFigures::COMPUTE_MAX, ..WorkFigures::default() };
    assert_eq!(long, most);
    for (degrees, told) in [(126, 126), (127, 126), (255, 126)] {
        for is_slowed in [false, true] {
            let heat = |degrees| Some(Heat { degrees, is_slowed });
            let mut out = [0; FIGURES_LEN];
            WorkFigures { heat: heat(degrees), ..most }.emit(&mut out);
            assert_eq!(WorkFigures::parse(&out).heat, heat(told));
        }
    }
    let mut out = [0; FIGURES_LEN];
    long.emit(&mut out);
    assert_eq!(WorkFigures::parse(&out), most);
}
