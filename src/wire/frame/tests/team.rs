//! Frames that nodes of a team send.

use super::*;
use crate::wire::datagram::FRAME_MAX;

const TOKENS: [u32; 3] = [10, u32::MAX, 30];
const ROWS: Parts<'_> = Parts::Rows { shares: &[9, 0, 65_535], node: 2, has_ends: true };
const PART: Part = Part { epoch: 5, gather: 6, offset: 10, part_bytes: 20, compute_us: 7 };

/// The frame that `emit` writes over other bytes.
fn emitted(emit: impl FnOnce(&mut [u8]) -> Option<usize>) -> Vec<u8> {
    let mut out = vec![0xa5; FRAME_MAX];
    let bytes = emit(&mut out).unwrap();
    out.truncate(bytes);
    out
}

fn pass(work: Work, spans: &[FrameSpan], tokens: &[u32]) -> Vec<u8> {
    emitted(|out| Some(emit_pass((5, 6), work, spans, tokens, (0, 0), out)?.0))
}

fn part() -> Vec<u8> {
    let mut out = vec![0xa5; PART_AT + 4];
    emit_part(PART, &mut out).unwrap().copy_from_slice(b"abcd");
    out
}

/// One frame of each kind that a team sends.
pub(super) fn frames() -> [Vec<u8>; 7] {
    [
        emitted(|out| emit_open((5, None), &SIZES, ROWS, &[line()], out)),
        emitted(|out| emit_ready(5, &line(), out)),
        emitted(|out| emit_refuse(5, "no memory", out)),
        pass(Work::Ids, &SPANS, &TOKENS),
        part(),
        pass(Work::Rows, &SPANS, &[]),
        pass(Work::Logits(7), &[], &[]),
    ]
}

#[test]
fn what_a_team_sends_comes_back() {
    let frames = frames();
    let read = |i: usize| Frame::parse(&frames[i]).unwrap();
    let split = Split::Rows { node: 2, has_ends: true };
    let (from, n_lines) = (None, 1);
    let open = Repr::Open { epoch: 5, from, sizes: SIZES, split, n_assigned: 3, n_lines };
    assert_eq!(read(0).repr(), open);
    assert_eq!(read(0).shares().collect::<Result<Vec<_>, _>>(), Ok(vec![9, 0, 65_535]));
    assert_eq!(read(0).lines().collect::<Vec<_>>(), [Ok(line())]);
    assert_eq!(read(1).repr(), Repr::Ready { epoch: 5 });
    assert_eq!(read(1).lines().collect::<Vec<_>>(), [Ok(line())]);
    let refused = (read(2).repr(), read(2).why().to_string());
    assert_eq!(refused, (Repr::Refuse { epoch: 5 }, "no memory".to_owned()));
    for (i, work, n_spans, n_tokens) in
        [(3, Work::Ids, 2, 3), (5, Work::Rows, 2, 0), (6, Work::Logits(7), 0, 0)]
    {
        let wanted = Pass {
            epoch: 5,
            batch: 6,
            work,
            n_tokens,
            n_spans,
            first_token: 0,
            first_span: 0,
            tokens: n_tokens,
            spans: n_spans,
        };
        assert_eq!(read(i).repr(), Repr::Pass(wanted));
        assert!(read(i).spans().map(Result::unwrap).eq(SPANS[..n_spans.into()].iter().copied()));
        assert!(read(i).tokens().eq(TOKENS[..n_tokens.into()].iter().copied()));
    }
    assert_eq!((read(4).repr(), read(4).part()), (Repr::Part(PART), &b"abcd"[..]));
}

#[test]
fn the_bytes_of_a_team_are_these() {
    let part = b"LEPF\x0d\0\0\0\x05\0\0\0\x06\0\0\0\x0a\0\0\0\x14\0\0\0\x07\0\0\0abcd";
    assert_eq!(frames()[4], part);
    let pass = b"LEPF\x0c\0\0\0\x05\0\0\0\x06\0\0\0\x03\0\x02\0\0\0\0\0\x03\0\x02\0\0\0\0\0\
                 \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
                 \x01\0\0\x01\x70\x11\x01\0\x02\0\0\0\x02\0\x01\0\0\0\0\0\x01\0\0\0\
                 \x0a\0\0\0\xff\xff\xff\xff\x1e\0\0\0";
    assert_eq!(frames()[3], pass);
    let open =
        b"LEPF\0\x01\0\0\x05\0\0\0\x01\x01\x02\0\x02\0\0\0\x40\0\x02\0\x03\0\x01\0\x03\0\x02\0\
                 \0\x10\0\0\0\0\0\0\x70\x11\x01\0\0\0\0\0\
                 \x09\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\0\0\0\0\0\0orange\0";
    assert_eq!(frames()[0][..open.len()], *open);
    let ready = b"LEPF\x0a\0\0\0\x05\0\0\0\0\0\0\0";
    assert_eq!(frames()[1][..ready.len()], *ready);
}

#[test]
fn other_lengths_of_a_team_are_refused() {
    for frame in frames() {
        let is_part = frame[4] == 13;
        for len in 0..frame.len() {
            // A PART has as many bytes as the frame's length allows.
            let is_shorter_part = is_part && len > PART_AT;
            assert_eq!(Frame::parse(&frame[..len]).is_ok(), is_shorter_part, "{len}");
        }
        assert_eq!(Frame::parse(&[&frame[..], &[0]].concat()).is_ok(), is_part);
    }
}

#[test]
fn fields_of_a_team_without_meaning_are_refused() {
    let forged = |frame: usize, at: usize, value: u8| {
        let mut forged = frames()[frame].clone();
        forged[at] = value;
        Frame::parse(&forged).map(drop)
    };
    let nodes = Err(WireError::Field("number of nodes"));
    assert_eq!(forged(4, 0, 0), Err(WireError::Magic));
    assert_eq!(forged(0, 4, 14), Err(WireError::Field("kind")));
    assert_eq!(forged(0, 14, 3), nodes);
    assert_eq!(forged(0, 26, 0), nodes);
    assert_eq!(forged(0, 28, 17), nodes);
    assert_eq!(forged(0, 28, 1), nodes);
    assert_eq!(forged(0, 12, 2), Err(WireError::Field("what the parts are")));
    assert_eq!(forged(0, 12, 0), Err(WireError::Field("what the parts are")));
    assert_eq!(forged(0, 13, 2), Err(WireError::Field("what the parts are")));
    assert_eq!(forged(0, 5, 2), Err(WireError::Field("dtype")));
    assert_eq!(forged(3, 30, 3), Err(WireError::Field("work")));
    assert_eq!(forged(4, 16, 17), Err(WireError::Field("offset in the part")));
    assert_eq!(forged(4, 19, 255), Err(WireError::Field("offset in the part")));
    let mut ready = frames()[1].clone();
    *ready.last_mut().unwrap() = 2;
    let line = Frame::parse(&ready).unwrap().lines().next();
    assert_eq!(line, Some(Err(WireError::Field("whether it embeds"))));
    let mut open = frames()[0].clone();
    open[HEADER_LEN + 2] = 1;
    assert!(Frame::parse(&open).unwrap().shares().next().unwrap().is_err());
}

#[test]
fn a_batch_goes_into_frames_of_any_length() {
    for room in [60, 66, 76, 96, 1000] {
        let (mut n_sent, mut spans, mut tokens) = ((0, 0), Vec::new(), Vec::new());
        while n_sent != (2, 3) {
            let mut out = vec![0; room];
            let before = n_sent;
            let (bytes, end) =
                emit_pass((1, 2), Work::Ids, &SPANS, &TOKENS, n_sent, &mut out).unwrap();
            let frame = Frame::parse(&out[..bytes]).unwrap();
            let Repr::Pass(pass) = frame.repr() else { panic!("another kind") };
            assert_eq!((pass.first_span.into(), pass.first_token.into()), before);
            assert!(end > before, "no progress in {room} bytes");
            spans.extend(frame.spans().map(Result::unwrap));
            tokens.extend(frame.tokens());
            n_sent = end;
        }
        assert!(spans == SPANS && tokens == TOKENS);
    }
    let room = &mut [0; HEADER_LEN - 1];
    assert_eq!(emit_pass((1, 2), Work::Ids, &SPANS, &TOKENS, (0, 0), room), None);
}

#[test]
fn what_does_not_fit_is_not_written() {
    let mut out = [0; PART_AT];
    assert!(emit_part(PART, &mut out).is_none());
    assert!(emit_part(PART, &mut out[..3]).is_none());
    assert!(emit_open((1, None), &SIZES, ROWS, &[line()], &mut out).is_none());
    assert!(emit_ready(1, &line(), &mut out).is_none());
    assert!(emit_refuse(1, "", &mut out).is_none());
}
