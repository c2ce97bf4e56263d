use super::*;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::frame::FrameWants;
use crate::wire::name::name;

fn opening() -> Opening {
    Opening {
        ctx_len: 4096,
        n_streams: 3,
        n_pages: 9,
        max_batch: 512,
        max_logits: 4,
        kv: KvType::Int8,
        wire: Dtype::F16,
        layers: 3..9,
        has_ends: true,
        shares: [9, 0, 65_535].into_iter().collect(),
        node: 2,
        lead: name("desk"),
    }
}

fn line() -> TeamLine {
    TeamLine {
        name: name("pi"),
        isa: heapless::String::try_from("neondot").unwrap(),
        threads: 4,
        bytes_per_token: 1 << 40,
        embeds: true,
        rtt_us: 0,
    }
}

const SPANS: [FrameSpan; 2] = [
    FrameSpan { stream: 1, wants: FrameWants::Last, pos: 5, n_rows: 2, is_long: false },
    FrameSpan { stream: 2, wants: FrameWants::None, pos: 0, n_rows: 1, is_long: true },
];
const TOKENS: [u32; 3] = [10, u32::MAX, 30];

/// Bytes that `emit` writes over other bytes.
fn emitted(emit: impl FnOnce(&mut [u8]) -> Option<usize>) -> Vec<u8> {
    let mut out = vec![0xa5; FRAME_MAX];
    let bytes = emit(&mut out).unwrap();
    out.truncate(bytes);
    out
}

fn part() -> Vec<u8> {
    let mut out = vec![0xa5; PART_AT + 4];
    emit_part((5, 6), 10, 20, 7, &mut out).unwrap().copy_from_slice(b"abcd");
    out
}

/// One frame of each kind.
fn frames() -> [Vec<u8>; 11] {
    [
        emitted(|out| emit_open(5, &opening(), 2, out)),
        emitted(|out| emit_ready(5, &line(), out)),
        emitted(|out| emit_refused(5, "no memory", out)),
        emitted(|out| Some(emit_pass((5, 6), Work::Ids, &SPANS, &TOKENS, (0, 0), out)?.0)),
        part(),
        emitted(|out| emit_failed(5, 3, out)),
        emitted(|out| emit_close(5, out)),
        emitted(|out| emit_missing(5, 1, out)),
        emitted(|out| Some(emit_pass((5, 6), Work::Rows, &SPANS, &[], (0, 0), out)?.0)),
        emitted(|out| Some(emit_pass((5, 6), Work::Logits(7), &[], &[], (0, 0), out)?.0)),
        emitted(|out| Some(emit_pass((5, 6), Work::Pages, &[], &TOKENS, (0, 0), out)?.0)),
    ]
}

#[test]
fn what_is_emitted_is_read() {
    let frames = frames();
    let read = |i: usize| TeamFrame::parse(&frames[i]).unwrap();
    assert_eq!(read(0), TeamFrame::Open(5, opening()));
    assert_eq!(read(1), TeamFrame::Ready(5, line()));
    assert_eq!(read(2), TeamFrame::Refused(5, Text::try_from("no memory").unwrap()));
    let TeamFrame::Pass(5, 6, piece) = read(3) else { panic!("{:?}", read(3)) };
    assert!(piece.spans().map(Result::unwrap).eq(SPANS));
    assert!(piece.tokens().eq(TOKENS));
    assert_eq!((piece.n_spans, piece.n_tokens, piece.first_span, piece.first_token), (2, 3, 0, 0));
    let piece = PartPiece { offset: 10, part_bytes: 20, compute_us: 7, bytes: b"abcd" };
    assert_eq!(read(4), TeamFrame::Part(5, 6, piece));
    assert_eq!(read(5), TeamFrame::Failed(5, 3));
    assert_eq!(read(6), TeamFrame::Close(5));
    assert_eq!(read(7), TeamFrame::Missing(5, 1));
    for (i, work, n_spans) in [(8, Work::Rows, 2), (9, Work::Logits(7), 0)] {
        let TeamFrame::Pass(5, 6, piece) = read(i) else { panic!("{:?}", read(i)) };
        assert_eq!((piece.work, piece.n_spans, piece.n_tokens), (work, n_spans, 0));
        assert_eq!((piece.spans().count(), piece.tokens().count()), (n_spans.into(), 0));
    }
    let TeamFrame::Pass(5, 6, piece) = read(10) else { panic!("{:?}", read(10)) };
    assert!(piece.work == Work::Pages && piece.tokens().eq(TOKENS));
}

#[test]
fn the_bytes_are_these() {
    let part = b"LEPT\x04\0\0\0\x05\0\0\0\x06\0\0\0\x0a\0\0\0\x14\0\0\0\x07\0\0\0abcd";
    assert_eq!(frames()[4], part);
    let pass = b"LEPT\x03\0\0\0\x05\0\0\0\x06\0\0\0\x03\0\x02\0\0\0\0\0\x03\0\x02\0\0\0\0\0\
                 \x01\0\x01\0\x05\0\0\0\x02\0\0\0\x02\0\0\x01\0\0\0\0\x01\0\0\0\
                 \x0a\0\0\0\xff\xff\xff\xff\x1e\0\0\0";
    assert_eq!(frames()[3], pass);
    let open = b"LEPT\0\0\x02\0\x05\0\0\0\0\0\0\0\0\x10\0\0\x03\0\0\x02\x04\0\x02\x01\x01\x02\0\0\
                 \x03\0\0\0\x09\0\0\0desk\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
                 \x03\0\0\0\x09\0\0\0\x09\0\0\0\xff\xff";
    assert_eq!(frames()[0], open);
    let logits = b"LEPT\x03\0\0\0\x05\0\0\0\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\0\x02\0";
    assert_eq!(frames()[9], logits);
}

#[test]
fn other_lengths_are_refused() {
    for frame in frames() {
        let is_part = frame[4] == 4;
        for len in 0..frame.len() {
            // A part's bytes are as many as came.
            let is_shorter_part = is_part && len > PART_AT;
            assert_eq!(TeamFrame::parse(&frame[..len]).is_ok(), is_shorter_part, "{len}");
        }
        assert_eq!(TeamFrame::parse(&[&frame[..], &[0]].concat()).is_ok(), is_part);
    }
}

#[test]
fn no_field_makes_it_panic() {
    for frame in frames() {
        for at in 0..frame.len() {
            for value in [0, 1, 2, 0x7f, 0x80, 0xff] {
                let mut forged = frame.clone();
                forged[at] = value;
                if let Ok(TeamFrame::Pass(_, _, piece)) = TeamFrame::parse(&forged) {
                    let bytes = 12 * piece.spans().count() + 4 * piece.tokens().count();
                    assert_eq!(bytes, frame.len() - SPANS_AT);
                }
            }
        }
    }
}

#[test]
fn fields_without_meaning_are_refused() {
    let forged = |frame: usize, at: usize, value: u8| {
        let mut forged = frames()[frame].clone();
        forged[at] = value;
        TeamFrame::parse(&forged).map(drop)
    };
    assert_eq!(forged(0, 0, 0), Err(WireError::Magic));
    assert_eq!(forged(0, 4, 8), Err(WireError::Field("kind")));
    assert_eq!(forged(0, 6, 3), Err(WireError::Field("number of nodes")));
    assert_eq!(forged(0, 32, 17), Err(WireError::Field("number of nodes")));
    assert_eq!(forged(0, 32, 1), Err(WireError::Field("number of nodes")));
    assert_eq!(forged(0, 26, 9), Err(WireError::Field("kind of keys and values")));
    assert_eq!(forged(0, 27, 2), Err(WireError::Field("type of gathers")));
    assert_eq!(forged(0, 28, 2), Err(WireError::Field("ends")));
    assert_eq!(forged(0, 72, 9), Err(WireError::Field("layers")));
    assert_eq!(forged(1, 74, 2), Err(WireError::Field("whether it embeds")));
    assert_eq!(forged(3, 30, 4), Err(WireError::Field("work")));
    assert_eq!(forged(4, 16, 17), Err(WireError::Field("offset in the part")));
    assert_eq!(forged(4, 19, 255), Err(WireError::Field("offset in the part")));
}

#[test]
fn a_batch_goes_into_frames_of_any_length() {
    for room in [44, 50, 60, 80, 1000] {
        let (mut n_sent, mut spans, mut tokens) = ((0, 0), Vec::new(), Vec::new());
        while n_sent != (2, 3) {
            let mut out = vec![0; room];
            let before = n_sent;
            let (bytes, end) =
                emit_pass((1, 2), Work::Ids, &SPANS, &TOKENS, n_sent, &mut out).unwrap();
            let TeamFrame::Pass(1, 2, piece) = TeamFrame::parse(&out[..bytes]).unwrap() else {
                panic!("another kind");
            };
            assert_eq!(usize::from(piece.first_span), before.0);
            assert_eq!(usize::from(piece.first_token), before.1);
            assert!(end > before, "no progress in {room} bytes");
            spans.extend(piece.spans().map(Result::unwrap));
            tokens.extend(piece.tokens());
            n_sent = end;
        }
        assert!(spans == SPANS && tokens == TOKENS);
    }
    assert_eq!(emit_pass((1, 2), Work::Ids, &SPANS, &TOKENS, (0, 0), &mut [0; 31]), None);
}

#[test]
fn what_does_not_fit_is_not_written() {
    let mut out = [0; PART_AT];
    assert!(emit_part((1, 2), 0, 100, 0, &mut out).is_none());
    assert!(emit_part((1, 2), 0, 100, 0, &mut out[..3]).is_none());
    assert!(emit_open(1, &opening(), 0, &mut out).is_none());
    assert!(emit_ready(1, &line(), &mut out).is_none());
    assert!(emit_refused(1, "", &mut out).is_none());
    assert!(emit_close(1, &mut out[..15]).is_none());
}
