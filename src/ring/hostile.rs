//! Neighbours that hold the key and send malformed frames, or nothing: the machines neither panic nor grow,
//! and go on once a sound neighbour is back.

mod frames;
mod misfits;

use std::collections::VecDeque;

use super::*;
use crate::group::Notice;
use crate::wire::KvType;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::frame::{
    self, Activations, Fetch, FetchKind, FetchPage, Frame, FrameKeep, FramePage, FrameSpan,
    FrameWants, Parts, Repr, Streams, WorkFigures,
};
use crate::wire::hello;

use frames::*;

const SIZES: Sizes = Sizes {
    ctx_len: 64,
    n_streams: 2,
    n_pages: 4,
    max_batch: 8,
    max_logits: 2,
    kv: KvType::F16,
    wire: Dtype::F32,
    dim: 4,
};
const SPANS: [FrameSpan; 1] = [FrameSpan {
    stream: 1,
    wants: FrameWants::Last,
    pos: 0,
    n_rows: 3,
    is_long: false,
    state: [None; 2],
}];
/// Most bytes that a machine of this ring keeps, with any neighbours: an OPEN may ask for batches with as
/// many spans as a frame holds.
const HEAP_MAX: usize = 4 * FRAME_MAX;

/// The frames that both neighbours have sent, and those that they were sent.
struct Neighbours {
    inbox: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    outbox: Vec<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Neighbours {
    fn new() -> Neighbours {
        let (inbox, events) = (VecDeque::new(), VecDeque::new());
        Neighbours { inbox, events, outbox: Vec::new(), buffer: vec![0; FRAME_MAX] }
    }
}

impl Link for Neighbours {
    fn reserve(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer)
    }

    fn commit(&mut self, bytes: usize) {
        self.outbox.push(self.buffer[..bytes].to_vec());
    }

    fn leave(&mut self) {}

    fn front(&mut self) -> Option<&[u8]> {
        self.inbox.front().map(Vec::as_slice)
    }

    fn release(&mut self) {
        self.inbox.pop_front();
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn is_up(&mut self, _: Side) -> bool {
        true
    }

    fn rtt_us(&mut self) -> u32 {
        1
    }

    fn datagram_bytes(&mut self) -> u32 {
        0
    }

    fn carrier(&self) -> &'static str {
        "test"
    }
}

/// Bytes that a node has stored of its layer, which is layer 1.
const STORED: usize = 64;

/// A node's layers, which give back what they took.
struct Layers {
    rows: Vec<u8>,
    max_batch: usize,
    /// Pieces to give away.
    n_pieces: u32,
    stored: [u8; STORED],
}

impl Layers {
    fn new(max_batch: usize) -> Layers {
        Layers { rows: Vec::new(), max_batch, n_pieces: 0, stored: [0; STORED] }
    }
}

impl Rows for Layers {
    fn put(&mut self, first: usize, dtype: Dtype, bytes: &[u8]) {
        let start = first * SIZES.dim as usize * dtype.bytes();
        self.rows.resize(start, 0);
        self.rows.extend_from_slice(bytes);
        assert!(self.rows.len() <= self.max_batch * SIZES.dim as usize * dtype.bytes());
    }

    fn get(&mut self, row: usize, _: Dtype, out: &mut [u8]) {
        assert!(row < self.max_batch);
        out.fill(row as u8);
    }

    fn set_page(&mut self, page: &FramePage, sizes: &Sizes) -> bool {
        let pages = [page.to].into_iter().chain(page.from);
        page.stream < sizes.n_streams && { pages }.all(|(page, _)| page < sizes.n_pages)
    }

    fn keep(&mut self, page: &FrameKeep, sizes: &Sizes) -> bool {
        page.stream < sizes.n_streams && page.at.0 < sizes.n_pages
    }

    fn give_kv(&mut self, _: &mut [u8]) -> Option<KvPiece> {
        self.n_pieces = self.n_pieces.checked_sub(1)?;
        Some(KvPiece { layer: 0, ..PIECE })
    }

    fn take_kv(&mut self, piece: &KvPiece, bytes: &[u8], _: &Sizes) -> Option<bool> {
        if piece.layer != 1 {
            return None;
        }
        let place = self.stored.get_mut(piece.first as usize..);
        let place = place.and_then(|rest| rest.get_mut(..bytes.len()));
        Some(place.filter(|_| piece.page == 0).map(|place| place.copy_from_slice(bytes)).is_some())
    }

    fn moved(&mut self, _: u32, _: &Sizes) {}
}

const PIECE: KvPiece = KvPiece { layer: 1, page: 0, first: 16, bytes: 8 };
const PAGE: FramePage = FramePage { stream: 1, index: 0, to: (3, None), from: Some((2, None)) };

fn line(index: u32) -> NodeLine {
    NodeLine {
        name: hello::name(&format!("node{index}")),
        isa: heapless::String::new(),
        layers: index..index + 1,
        held: 0..3,
        bytes_per_token: 0,
        nodes: 1,
        threads: 1,
        status: Status::Ready,
        streams: Streams::Empty,
        keeps: false,
        ..NodeLine::default()
    }
}

/// `frame` with each field replaced by each absurd value, cut, and with a byte too many.
fn forgeries(frame: &[u8]) -> Vec<Vec<u8>> {
    let header = [(0, 4), (4, 1), (5, 1), (6, 1), (8, 4), (12, 4), (16, 4), (20, 2), (22, 2)];
    let rest = [
        (7, 1),
        (24, 2),
        (26, 2),
        (28, 2),
        (32, 4),
        (36, 4),
        (40, 4),
        (48, 2),
        (50, 1),
        (52, 4),
        (56, 4),
        (64, 4),
    ];
    let values = [0u32, 1, 2, 3, 8, 9, 64, 65, 0x7f, 0xff, 0xffff, 0x7fff_ffff, u32::MAX];
    let mut all = Vec::new();
    for (at, bytes) in header.into_iter().chain(rest).filter(|(at, _)| at + 4 <= frame.len()) {
        for value in values {
            let mut forged = frame.to_vec();
            forged[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
            all.push(forged);
        }
    }
    all.extend((0..frame.len()).map(|len| frame[..len].to_vec()));
    all.push([frame, &[0]].concat());
    all
}

fn work(worker: &mut Worker, link: &mut Neighbours, layers: &mut Layers) {
    loop {
        match worker.poll(0, link, layers) {
            WorkerStep::Idle => break,
            WorkerStep::Open => {
                let opening = worker.opening();
                layers.max_batch = opening.sizes.max_batch.into();
                let layers = opening.layers.clone().expect("there is a wish");
                assert!(layers.start <= layers.end && layers.end <= 3);
                worker.opened(NodeLine { layers, ..line(1) }, true);
            }
            WorkerStep::Compute => {
                assert!(worker.spans().len() <= layers.max_batch);
                worker.computed(WorkFigures::default());
            }
            WorkerStep::Fetch => {
                assert!(worker.fetch().1 <= worker.fetch().0.pages.len());
                worker.fetched(1);
            }
        }
    }
    while worker.notice().is_some() {}
    assert!(link.inbox.is_empty());
    assert!(worker.heap_bytes() <= HEAP_MAX, "{}", worker.heap_bytes());
}

#[test]
fn a_worker_survives_every_forged_field() {
    let mut worker = Worker::new((line(1), Some(1..2)), (SIZES.dim, 3), FRAME_MAX);
    let (mut link, mut layers) = (Neighbours::new(), Layers::new(0));
    let others = piece(1, KvPiece { layer: 2, ..PIECE });
    let sound = [
        open(1, &[line(0)]),
        rows(1, 7, 3, &SPANS),
        down(1),
        piece(1, PIECE),
        others,
        moved(1, false),
        moved(1, true),
        pages(1),
        keep(1),
        fetch(1, 6, 2),
    ];
    for forged in sound.iter().flat_map(|frame| forgeries(frame)) {
        for frame in [&sound[0], &forged, &sound[0], &sound[1]] {
            link.outbox.clear();
            link.inbox.push_back(frame.clone());
            layers.n_pieces = 2;
            work(&mut worker, &mut link, &mut layers);
        }
        // The sound batch has gone on to the next node.
        let frame = Frame::parse(&link.outbox[0]).unwrap();
        let Repr::Activations(header) = frame.repr() else { panic!("{:?}", frame.repr()) };
        assert_eq!((header.epoch, header.batch, header.n_rows, header.n_figures), (1, 7, 3, 2));
    }
}

/// The master may rely on the KV that was there when an earlier OPEN of the same epoch was answered.
#[test]
fn a_node_that_has_lost_what_it_stored_since_it_answered_says_so() {
    let mut worker = Worker::new((line(1), Some(1..2)), (SIZES.dim, 3), FRAME_MAX);
    let (mut link, mut layers) = (Neighbours::new(), Layers::new(8));
    let mut said = |epoch, is_intact| {
        link.outbox.clear();
        link.inbox.push_back(open(epoch, &[line(0)]));
        assert_eq!(worker.poll(0, &mut link, &mut layers), WorkerStep::Open);
        worker.opened(line(1), is_intact);
        assert_eq!(worker.poll(0, &mut link, &mut layers), WorkerStep::Idle);
        assert_eq!(link.outbox.len(), 1);
        Frame::parse(&link.outbox[0]).unwrap().repr()
    };
    let is_answer = |said| matches!(said, Repr::Open { n_lines: 2, .. });
    assert!(is_answer(said(1, false)) && is_answer(said(1, true)));
    assert_eq!(said(1, false), Repr::Report { epoch: 1, reason: Reason::Lost });
    assert!(is_answer(said(2, false)));
}

fn master(timeout_us: Option<u64>) -> Master {
    Master::new(options(timeout_us))
}

fn options(timeout_us: Option<u64>) -> MasterOptions {
    MasterOptions {
        line: line(0),
        sizes: SIZES,
        n_layers: 2,
        frame_bytes: FRAME_MAX,
        n_nodes: 2,
        members: Vec::new(),
        timeout_us,
        misfits: Misfits::End,
        epoch: 5,
    }
}

#[test]
fn a_master_that_was_stopped_gives_the_others_their_time() {
    let (mut link, mut layers) = (Neighbours::new(), Layers::new(8));
    let mut master = master(Some(30_000_000));
    let mut poll = |now| master.poll(now, &mut link, &mut layers);
    assert_eq!(poll(100_000), MasterStep::Idle);
    // A pause of two minutes without polls; then 29 seconds pass, and two more.
    for tenth in 1_200..1_490 {
        assert_eq!(poll(tenth * 100_000), MasterStep::Idle);
    }
    let last =
        (1_490..1_520).map(|tenth| poll(tenth * 100_000)).find(|step| *step != MasterStep::Idle);
    assert!(matches!(last, Some(MasterStep::Failed(RingError::Timeout { .. }))), "{last:?}");
}

/// The answer of a healthy rest of the ring to a frame of the master.
fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    match Frame::parse(frame).unwrap().repr() {
        Repr::Open { epoch, .. } => Some(open(epoch, &[line(0), line(1)])),
        Repr::Activations(header) => Some(rows(header.epoch, header.batch, 1, &[])),
        Repr::Fetch(asked) => Some(fetch(asked.epoch, asked.batch, 0)),
        _ => None,
    }
}

#[test]
fn a_master_survives_every_forged_field() {
    let mut layers = Layers::new(8);
    let is_open: fn(&Repr) -> bool = |repr| matches!(repr, Repr::Open { .. });
    let is_result: fn(&Repr) -> bool = |repr| matches!(repr, Repr::Activations(_));
    let is_found: fn(&Repr) -> bool = |repr| matches!(repr, Repr::Fetch(_));
    let answers = [
        (is_open, open(0, &[line(0), line(1)])),
        (is_result, rows(0, 0, 1, &[])),
        (is_found, fetch(0, 0, 0)),
    ];
    for (is_kind, example) in answers {
        for index in 0..forgeries(&example).len() {
            let (mut master, mut link) = (master(None), Neighbours::new());
            let heap_bytes = master.heap_bytes();
            let asked = PagesToRead { ids: vec![7; 3], ..PagesToRead::default() };
            master.submit_fetch(asked, (&[], &[]));
            master.submit((&SPANS, &[1, 2, 3]), (&[], &[PAGE]));
            let mut is_forged = false;
            let step = (0..100).find_map(|turn| {
                for sent in std::mem::take(&mut link.outbox) {
                    let Some(sound) = answer(&sent) else { continue };
                    if !is_forged && is_kind(&Frame::parse(&sent).unwrap().repr()) {
                        is_forged = true;
                        link.inbox.extend(forgeries(&sound).into_iter().nth(index));
                    }
                    link.inbox.push_back(sound);
                }
                match master.poll(turn * 400_000, &mut link, &mut layers) {
                    MasterStep::Compute => master.computed(WorkFigures::default()),
                    MasterStep::Fetch => master.fetched(1),
                    MasterStep::Lost => {
                        master.submit_fetch(PagesToRead::default(), (&[], &[]));
                        master.submit((&SPANS, &[1, 2, 3]), (&[], &[PAGE]));
                    }
                    MasterStep::Idle => {}
                    step => return Some(step),
                }
                while master.notice().is_some() {}
                None
            });
            assert!(is_forged);
            assert_eq!(step, Some(MasterStep::Done), "{index}");
            assert!(master.heap_bytes() <= heap_bytes + 4 * size_of::<NodeLine>(), "{index}");
        }
    }
}

/// Layers move in a ring of two, and the master hears each forged frame before the sound one.
#[test]
fn a_move_survives_every_forged_field() {
    let kept = |index| NodeLine { streams: Streams::Kept, ..line(index) };
    let sound = [piece(6, PIECE), piece(6, KvPiece { layer: 0, ..PIECE }), moved(6, false)];
    for forged in sound.iter().flat_map(|frame| forgeries(frame)) {
        let (mut master, mut link, mut layers) = (master(None), Neighbours::new(), Layers::new(8));
        master.submit((&SPANS, &[1, 2, 3]), (&[], &[PAGE]));
        for turn in 0..4 {
            for sent in std::mem::take(&mut link.outbox) {
                link.inbox.extend(answer(&sent));
            }
            match master.poll(turn, &mut link, &mut layers) {
                MasterStep::Compute => master.computed(WorkFigures::default()),
                MasterStep::Done => master.finish(),
                step => assert_eq!(step, MasterStep::Idle),
            }
        }
        assert_eq!(master.begin_move(), Some(5));
        master.assign(kept(0), vec![0..1, 1..2]);
        layers.n_pieces = 2;
        assert_eq!(master.poll(9, &mut link, &mut layers), MasterStep::Idle);
        let asked = Frame::parse(&link.outbox.pop().unwrap()).unwrap().repr();
        assert!(matches!(asked, Repr::Open { epoch: 6, from: Some(5), .. }), "{asked:?}");
        link.inbox.push_back(open(6, &[kept(0), kept(1)]));
        assert_eq!(master.poll(10, &mut link, &mut layers), MasterStep::Idle);
        let kinds: Vec<_> =
            link.outbox.iter().map(|sent| Frame::parse(sent).unwrap().repr().kind()).collect();
        assert_eq!(kinds, [frame::Kind::Kv, frame::Kind::Kv, frame::Kind::Moved]);
        assert!(!master.is_open());
        link.outbox.clear();
        link.inbox.extend([forged, piece(6, PIECE), moved(6, false)]);
        for turn in 11..400 {
            match master.poll(turn * 10_000, &mut link, &mut layers) {
                MasterStep::Compute => master.computed(WorkFigures::default()),
                MasterStep::Lost => {}
                step => assert_eq!(step, MasterStep::Idle),
            }
            for sent in std::mem::take(&mut link.outbox) {
                // A ring that was broken is opened again, and what was stored counts for nothing.
                if let Repr::Open { epoch, from, .. } = Frame::parse(&sent).unwrap().repr() {
                    assert_eq!(from, None);
                    link.inbox.push_back(open(epoch, &[line(0), line(1)]));
                }
            }
            if master.is_open() {
                break;
            }
        }
        assert!(master.is_open());
    }
}

/// The other node says it has what was stored, and then nothing: all is computed again.
#[test]
fn a_move_that_does_not_end_is_given_up() {
    let kept = |index| NodeLine { streams: Streams::Kept, ..line(index) };
    let (mut master, mut link, mut layers) = (master(None), Neighbours::new(), Layers::new(8));
    assert_eq!(master.poll(0, &mut link, &mut layers), MasterStep::Idle);
    link.inbox.push_back(open(5, &[line(0), line(1)]));
    assert_eq!(master.poll(1, &mut link, &mut layers), MasterStep::Idle);
    assert_eq!(master.begin_move(), Some(5));
    master.assign(kept(0), vec![0..1, 1..2]);
    assert_eq!(master.poll(2, &mut link, &mut layers), MasterStep::Idle);
    link.inbox.push_back(open(6, &[kept(0), kept(1)]));
    link.outbox.clear();
    let second = 1_000_000;
    let mut asked = (1..60).filter_map(|now| {
        assert_eq!(master.poll(now * second, &mut link, &mut layers), MasterStep::Idle);
        let sent = std::mem::take(&mut link.outbox);
        let is_open = |sent: &Vec<u8>| match Frame::parse(sent).unwrap().repr() {
            Repr::Open { epoch, from, .. } => Some((now, epoch, from)),
            _ => None,
        };
        sent.iter().find_map(is_open)
    });
    assert_eq!(asked.next(), Some((33, 7, None)));
}

/// Lets the master of a ring of two, which waits for a batch, hear `said` every second, after a sound OPEN;
/// returns the user's notices, and the error in the end.
fn told(seconds: u64, said: impl Fn(u32, u64) -> Vec<u8>) -> (Vec<Notice>, RingError) {
    let (mut link, mut layers) = (Neighbours::new(), Layers::new(8));
    let mut options = options(Some(seconds * 1_000_000));
    let file = "node0 10.0.0.1 0..1\nnode1 10.0.0.2 1..2";
    options.members = Topology::parse(file).unwrap().members().to_vec();
    let (mut master, mut notices) = (Master::new(options), Vec::new());
    master.submit((&SPANS, &[1, 2, 3]), (&[], &[PAGE]));
    for tenth in 1..10_000 {
        for sent in std::mem::take(&mut link.outbox) {
            if let Repr::Open { epoch, .. } = Frame::parse(&sent).unwrap().repr() {
                link.inbox.push_back(open(epoch, &[line(0), line(1)]));
                link.inbox.push_back(said(epoch, tenth / 10));
            }
        }
        if tenth % 10 == 0 {
            link.inbox.push_back(said(0, tenth / 10));
        }
        match master.poll(tenth * 100_000, &mut link, &mut layers) {
            MasterStep::Compute => master.computed(WorkFigures::default()),
            MasterStep::Lost => master.submit((&SPANS, &[1, 2, 3]), (&[], &[PAGE])),
            MasterStep::Failed(error) => return (notices, error),
            step => assert_eq!(step, MasterStep::Idle),
        }
        while let Some(notice) = master.notice() {
            notices.push(notice);
        }
    }
    panic!("it waits for ever: {notices:?}");
}

#[test]
fn a_node_that_answers_and_does_not_compute_is_named() {
    let busy = |_, second: u64| {
        let mut out = vec![0; FRAME_MAX];
        let reason = Reason::Busy(second as u32);
        let bytes = frame::emit_report(0, reason, "node1", &mut out).unwrap();
        out.truncate(bytes);
        out
    };
    let (notices, error) = told(30, busy);
    let [Notice::Opened { again: false }, Notice::Stalled { seconds: 10, what }] = &notices[..]
    else {
        panic!("{notices:?}");
    };
    assert!(what.starts_with("node1 has been computing for "), "{what}");
    let error = error.to_string();
    assert!(error.contains("30 s") && error.contains("node1 has been computing"), "{error}");
}

#[test]
fn a_ring_that_breaks_as_soon_as_it_is_open_is_given_up() {
    let (_, error) = told(30, |epoch, _| down(epoch));
    assert!(matches!(error, RingError::Timeout { seconds: 30, .. }), "{error:?}");
}

#[test]
fn a_worker_takes_what_is_assigned_and_else_its_wish() {
    let asked = |wish: Option<std::ops::Range<u32>>, assigned: &[std::ops::Range<u32>]| {
        let mut worker = Worker::new((line(1), wish), (SIZES.dim, 3), FRAME_MAX);
        let (mut link, mut layers) = (Neighbours::new(), Layers::new(0));
        let mut out = vec![0; FRAME_MAX];
        let bytes =
            frame::emit_open((1, None), &SIZES, Parts::Layers(assigned), &[line(0)], &mut out)
                .unwrap();
        link.inbox.push_back(out[..bytes].to_vec());
        match worker.poll(0, &mut link, &mut layers) {
            WorkerStep::Open => Some(worker.opening().layers.clone()),
            _ => None,
        }
    };
    assert_eq!(asked(Some(1..2), &[0..2, 2..3]), Some(Some(2..3)));
    assert_eq!(asked(Some(1..2), &[]), Some(Some(1..2)));
    assert_eq!(asked(None, &[0..2, 2..3]), Some(Some(2..3)));
    assert_eq!(asked(None, &[]), Some(None));
    assert_eq!(asked(None, std::slice::from_ref(&(0..3))), Some(None));
    // None, as it is to leave.
    assert_eq!(asked(Some(1..2), &[0..3, 3..3]), Some(Some(3..3)));
    // None of this model's.
    assert_eq!(asked(Some(1..2), &[0..2, 2..4]), None);
}
