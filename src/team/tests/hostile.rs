//! Peers that have the link and send malformed frames: nodes neither panic nor wait for ever, and go on with
//! a sound peer.

use super::*;
use crate::transport::link::LinkState;
use crate::wire::frame::{self, Frame, PART_AT, Part, Pass, Reason, Repr};

/// A peer's end of the links, by hand.
struct Raw {
    endpoint: Box<dyn Endpoint>,
}

impl Raw {
    /// Node `own`'s end of its links with `peer`, which are up.
    fn new(places: &Places, own: usize, peer: usize) -> Raw {
        let mut endpoint = places.endpoint(own, peer);
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < Duration::from_secs(120), "no links");
            endpoint.service(Duration::from_millis(1)).unwrap();
            let links = endpoint.links();
            while links.next.as_mut().is_some_and(|next| next.next_event().is_some()) {}
            while links.prev.as_mut().is_some_and(|prev| prev.next_event().is_some()) {}
            let next = links.next.as_ref().is_some_and(|next| *next.state() == LinkState::Up);
            if next && links.prev.as_ref().is_some_and(|prev| *prev.state() == LinkState::Up) {
                return Raw { endpoint };
            }
        }
    }

    fn send(&mut self, frame: &[u8]) {
        loop {
            if let Some(room) = self.endpoint.links().next.as_mut().unwrap().reserve() {
                room[..frame.len()].copy_from_slice(frame);
                self.endpoint.links().next.as_mut().unwrap().commit(frame.len());
                return self.endpoint.service(Duration::ZERO).unwrap();
            }
            self.endpoint.service(Duration::from_millis(1)).unwrap();
        }
    }

    /// The next frame, if one comes in 5 ms.
    fn receive(&mut self) -> Option<Vec<u8>> {
        self.endpoint.service(Duration::from_millis(5)).unwrap();
        let links = self.endpoint.links();
        while links.next.as_mut().is_some_and(|next| next.next_event().is_some()) {}
        let prev = links.prev.as_mut().unwrap();
        while prev.next_event().is_some() {}
        let frame = prev.front()?.to_vec();
        prev.release();
        Some(frame)
    }

    /// The next frame that `is_wanted`.
    fn until(&mut self, is_wanted: impl Fn(&Frame<'_>) -> bool) {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < Duration::from_secs(120), "nothing comes");
            let frame = self.receive();
            if frame.is_some_and(|frame| is_wanted(&Frame::parse(&frame).unwrap())) {
                return;
            }
        }
    }
}

/// A frame as written by `emit`.
fn frame(emit: impl FnOnce(&mut [u8]) -> Option<usize>) -> Vec<u8> {
    let mut out = vec![0; 1024];
    let bytes = emit(&mut out).unwrap();
    out.truncate(bytes);
    out
}

fn part(epoch: u32, seq: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; PART_AT + bytes.len()];
    let (part_bytes, compute_us) = (bytes.len() as u32, u32::MAX);
    let part = Part { epoch, gather: seq, offset: 0, part_bytes, compute_us };
    let room = frame::emit_part(part, &mut out).unwrap();
    room.copy_from_slice(bytes);
    out
}

/// `frame` with each field replaced by absurd values, cut, and with a byte too many.
fn forgeries(frame: &[u8]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = (1..frame.len()).map(|len| frame[..len].to_vec()).collect();
    all.push([frame, &[0]].concat());
    for value in [0u32, 1, 2, 7, 0xff, 0xffff, 0x7fff_ffff, u32::MAX] {
        for (at, bytes) in (0..frame.len() / 2).flat_map(|i| [(2 * i, 2), (2 * i, 4)]) {
            if at + bytes <= frame.len() {
                let mut forged = frame.to_vec();
                forged[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
                all.push(forged);
            }
        }
    }
    all.extend((0..14).map(|kind| [&frame[..4], &[kind], &frame[5..]].concat()));
    all
}

const BYTES: [u8; 6] = *b"forged";

/// `frame` of epoch `epoch`, if it is of epoch 0: most forgeries are.
fn of_epoch(frame: &[u8], epoch: u32) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if let Some(at) = frame.get_mut(8..12).filter(|at| **at == [0; 4]) {
        at.copy_from_slice(&epoch.to_le_bytes());
    }
    frame
}

/// Whether it is a part of the first gather of this epoch.
fn is_part(frame: &Frame<'_>, epoch: u32) -> bool {
    matches!(frame.repr(), Repr::Part(part) if (part.epoch, part.gather) == (epoch, 0))
}

/// A member that sends some of `answers` before it is ready, and one of `parts` before its own.
fn deceive(mut raw: Raw, answers: &[Vec<u8>], parts: &[Vec<u8>]) {
    let (mut answers, mut parts) = (answers.iter(), parts.iter());
    loop {
        let Some(heard) = raw.receive() else { continue };
        match Frame::parse(&heard).unwrap().repr() {
            Repr::Open { epoch, .. } => {
                for answer in answers.by_ref().take(3) {
                    raw.send(&of_epoch(answer, epoch));
                }
                raw.send(&frame(|out| frame::emit_ready(epoch, &line(), out)));
            }
            Repr::Pass(Pass { epoch, batch, .. }) => {
                assert_eq!(batch, 0);
                if let Some(part) = parts.next() {
                    raw.send(&of_epoch(part, epoch));
                }
                raw.send(&part(epoch, 0, &BYTES));
            }
            Repr::Part(_) => {}
            Repr::Close { .. } => {
                assert_eq!((answers.len(), parts.len()), (0, 0));
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_lead_survives_every_forged_frame() {
    let places = Places::new(2);
    let mut answers = forgeries(&frame(|out| frame::emit_ready(0, &line(), out)));
    let refused = forgeries(&frame(|out| frame::emit_refuse(0, "no", out)));
    answers.extend(refused.into_iter().step_by(5));
    let parts = [forgeries(&part(0, 0, &BYTES)), forgeries(&part(0, 1, &BYTES))].concat();
    thread::scope(|scope| {
        let hostile = scope.spawn(|| deceive(Raw::new(&places, 1, 0), &answers, &parts));
        let start = Instant::now();
        let mut lead = places.lead(1000);
        let (mut n_passed, mut n_lost) = (0, 0);
        while n_passed + n_lost <= parts.len() {
            match lead.open(&opening(2), &|| false, &mut |_| {}, Some(Duration::from_secs(120))) {
                Err(TeamError::Refused { .. }) => continue,
                opened => opened.unwrap(),
            }
            lead.start(Work::Ids, &spans(1), &[0]).unwrap();
            let mut bytes = *b"sound.......";
            let parts = [0..6, 6..12].map(|part| vec![part]);
            let rows = Gathered { bytes: &mut bytes, row_bytes: 12, parts: &parts, to: To::All };
            match lead.gather(rows) {
                Ok(()) => n_passed += 1,
                Err(error) => {
                    assert_eq!(error, TeamError::Lost { node: 1 });
                    n_lost += 1;
                }
            }
            assert_eq!(&bytes[..6], b"sound.");
        }
        // A member's claim of an hour of computing is not believed.
        assert!(u128::from(lead.figures().compute_us[1]) <= start.elapsed().as_micros());
        assert!(n_lost > 100 && n_passed > 20, "{n_lost} lost, {n_passed} passed");
        lead.close();
        hostile.join().unwrap();
    });
}

/// A member that does what its lead says, as far as that can be done.
fn obey(mut member: Member, is_over: &AtomicBool) -> usize {
    let mut n_gathers = 0;
    loop {
        match member.next(&|| is_over.load(Ordering::Relaxed), &mut |_| {}) {
            Ok(Order::Open(opening)) => {
                assert_eq!((opening.node, opening.shares.len()), (1, 2));
                member.ready(line());
            }
            Ok(Order::Pass(work)) => {
                let rows: usize = member.spans().iter().map(|span| usize::from(span.n_rows)).sum();
                match work {
                    Work::Ids => assert_eq!(rows, member.tokens().len()),
                    Work::Rows => assert!(rows <= 512 && member.tokens().is_empty()),
                    Work::Logits(n) => assert!(n <= 4 && rows + member.tokens().len() == 0),
                }
                let mut bytes = *b"......sound.";
                let parts = [0..6, 6..12].map(|part| vec![part]);
                let rows =
                    Gathered { bytes: &mut bytes, row_bytes: 12, parts: &parts, to: To::All };
                n_gathers += usize::from(member.gather(rows).is_ok());
                assert_eq!(&bytes[6..], b"sound.");
            }
            Ok(Order::Pages | Order::Close) => {}
            Err(_) => return n_gathers,
        }
    }
}

#[test]
fn a_member_survives_every_forged_frame() {
    let places = Places::new(2);
    let is_over = AtomicBool::new(false);
    let opened = |epoch| frame(|out| opening(2).emit(epoch, 1, out));
    let of = |epoch: u32, work: Work, spans: &[FrameSpan], ids: &[u32]| {
        frame(|out| Some(frame::emit_pass((epoch, 0), work, spans, ids, (0, 0), out)?.0))
    };
    let batch = |epoch| of(epoch, Work::Ids, &spans(2), &[1, 2]);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let member = scope.spawn(|| obey(places.member(1), &is_over));
        let mut raw = Raw::new(&places, 0, 1);
        let mut epoch: u32 = 7;
        let (rows, logits) = (of(7, Work::Rows, &spans(2), &[]), of(7, Work::Logits(4), &[], &[]));
        let kinds = [opened(7), batch(7), rows, logits, part(7, 0, &BYTES)];
        let mut n = 0;
        for (kind, sound) in kinds.iter().enumerate() {
            for mut forged in forgeries(sound) {
                epoch += 2;
                n += 1;
                // A forged batch or part comes where a sound one could.
                if let Some(at) = forged.get_mut(8..12).filter(|at| **at == 7u32.to_le_bytes()) {
                    at.copy_from_slice(&epoch.to_le_bytes());
                }
                if kind > 0 {
                    raw.send(&opened(epoch));
                    raw.until(|frame| frame.repr() == Repr::Ready { epoch });
                }
                if kind > 3 {
                    raw.send(&batch(epoch));
                }
                raw.send(&forged);
                let next = epoch + 1;
                raw.send(&opened(next));
                raw.until(|frame| frame.repr() == Repr::Ready { epoch: next });
                raw.send(&batch(next));
                raw.send(&part(next, 0, &BYTES));
                raw.until(|frame| is_part(frame, next));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(member.join().unwrap() >= n);
    });
}

/// A member with links to this raw lead gives up each of `bad` batches, and takes the `sound` one.
fn give_up(opening: &Opening, bad: &[Batch<'_>], sound: Batch<'_>) {
    let places = Places::new(2);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let member = scope.spawn(|| obey(places.member(1), &is_over));
        let mut raw = Raw::new(&places, 0, 1);
        let batches = bad.iter().map(|batch| (batch, false)).chain([(&sound, true)]);
        for (epoch, ((work, spans, ids), is_sound)) in (7..).zip(batches) {
            raw.send(&frame(|out| opening.emit(epoch, 1, out)));
            raw.until(|frame| frame.repr() == Repr::Ready { epoch });
            raw.send(&frame(|out| {
                Some(frame::emit_pass((epoch, 0), *work, spans, ids, (0, 0), out)?.0)
            }));
            raw.until(|frame| match is_sound {
                false => frame.repr() == Repr::Report { epoch, reason: Reason::GivenUp(1) },
                true => is_part(frame, epoch),
            });
        }
        is_over.store(true, Ordering::Relaxed);
        member.join().unwrap();
    });
}

/// Work, spans and ids of a batch.
type Batch<'a> = (Work, &'a [FrameSpan], &'a [u32]);

#[test]
fn work_for_ends_that_a_member_has_not_is_none() {
    let opening = Opening { has_ends: false, ..opening(2) };
    let spans = spans(2);
    let bad: [Batch<'_>; 2] = [(Work::Ids, &spans, &[1, 2]), (Work::Logits(1), &[], &[])];
    give_up(&opening, &bad, (Work::Rows, &spans, &[]));
}

#[test]
fn a_batch_without_rows_is_none() {
    let bad: [Batch<'_>; 2] = [(Work::Ids, &[], &[]), (Work::Rows, &[], &[])];
    give_up(&opening(2), &bad, (Work::Ids, &spans(2), &[1, 2]));
}

#[test]
fn a_member_of_another_place_is_refused() {
    let places = Places::new(2);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let member = scope.spawn(|| obey(places.member(1), &is_over));
        let mut raw = Raw::new(&places, 0, 1);
        for (node, n_nodes) in [(0, 2), (1, 3), (4, 16)] {
            raw.send(&frame(|out| opening(n_nodes).emit(9, node, out)));
            raw.until(|frame| {
                let is_refused = frame.repr() == Repr::Refuse { epoch: 9 };
                is_refused && frame.why().contains("it is node 1 of 2")
            });
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(member.join().unwrap(), 0);
    });
}
