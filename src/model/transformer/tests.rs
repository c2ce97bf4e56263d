use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::{KvKind, Wants};
use super::*;
use crate::format::model::{Header, TensorId, Weights};

const PLAN: Plan = Plan {
    ctx_len: 48,
    max_batch: 16,
    max_logits: 16,
    n_streams: 2,
    kv: KvKind::F16,
    kv_pages: None,
};

fn open() -> Model {
    Model::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo.bin")).unwrap()
}

fn four_bits() -> Model {
    let weights = Weights::Q4 { group: 64, int8_embedding: true };
    Model::synthetic(&Header { weights, ..open().header().clone() }).unwrap()
}

/// The shares of a model divided at `cuts`, the first with ends.
fn nodes(open: impl Fn() -> Model, cuts: &[usize], is_packed: bool) -> Vec<Transformer> {
    let n_layers = open().header().n_layers;
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([n_layers]);
    let shares = starts.zip(ends).map(|(a, b)| Share { layers: a..b, has_ends: a == 0 });
    shares
        .map(|share| {
            let model = Arc::new(open().with_share(share).unwrap());
            let pool = Pool::new(&[]).unwrap();
            let mut node = Transformer::new(model, Kernels::best(), pool, PLAN).unwrap();
            if is_packed {
                node.pack_in_memory(&|| false).unwrap();
            }
            node
        })
        .collect()
}

/// Computes `batch` with every node in turn.
fn through(nodes: &mut [Transformer], batch: &Batch) -> Vec<f32> {
    let row_bytes = nodes[0].model().header().dim * Precision::F32.bytes();
    let mut x = vec![0; batch.tokens().len() * row_bytes];
    let read = |node: &mut Transformer, x: &mut [u8]| {
        for (row, out) in x.chunks_exact_mut(row_bytes).enumerate() {
            node.get_row(row, Precision::F32, out);
        }
    };
    nodes[0].embed(batch).unwrap();
    read(&mut nodes[0], &mut x);
    for node in &mut *nodes {
        node.put_rows(0, Precision::F32, &x);
        node.run_layers(batch.spans()).unwrap();
        read(node, &mut x);
    }
    let wanted = batch::wanted_rows(batch.spans());
    let wanted: Vec<u8> =
        wanted.flat_map(|row| &x[row * row_bytes..][..row_bytes]).copied().collect();
    let logits = nodes[0].classify(Precision::F32, &wanted).unwrap().to_vec();
    // Classifying rows leaves the stage's rows unchanged.
    let mut after = x.clone();
    read(&mut nodes[0], &mut after);
    assert!(nodes.len() > 1 || after == x);
    logits
}

/// A batch of these positions of streams, in spans of up to three rows. The spans want the last logits, all,
/// and none in turn.
fn batch(places: &[(usize, std::ops::Range<usize>)]) -> Batch {
    let mut batch = Batch::with_capacity(16);
    for (stream, positions) in places.iter().cloned() {
        for (pos, wants) in
            positions.clone().step_by(3).zip([Wants::Last, Wants::All, Wants::None].iter().cycle())
        {
            let n_rows = (positions.end - pos).min(3);
            let token = |pos| ((pos * 31 + stream * 7) % 300) as u32;
            let tokens: Vec<u32> = (pos..pos + n_rows).map(token).collect();
            batch.push(Span { stream, pos, n_rows, wants: *wants, ..Span::EMPTY }, &tokens);
        }
    }
    batch
}

fn check_shares(open: impl Fn() -> Model, is_packed: bool) {
    let batches =
        [batch(&[(0, 0..9), (1, 0..4)]), batch(&[(1, 4..20)]), batch(&[(0, 9..10), (1, 20..21)])];
    let mut whole = nodes(&open, &[], is_packed);
    let wanted: Vec<Vec<f32>> =
        batches.iter().map(|batch| whole[0].forward(batch).unwrap().to_vec()).collect();
    for cuts in [&[1][..], &[3], &[1, 2, 3]] {
        let mut nodes = nodes(&open, cuts, is_packed);
        for (batch, wanted) in batches.iter().zip(&wanted) {
            assert!(through(&mut nodes, batch) == *wanted, "cuts {cuts:?}, packed {is_packed}");
        }
    }
}

#[test]
fn shares_together_give_the_logits_of_the_whole() {
    for is_packed in [false, true] {
        check_shares(open, is_packed);
        check_shares(four_bits, is_packed);
    }
}

#[test]
fn a_share_needs_less_memory_and_keeps_the_fingerprint() {
    let whole = open();
    let layers = 1..whole.header().n_layers;
    let share = open().with_share(Share { layers, has_ends: false }).unwrap();
    assert_eq!(share.fingerprint().unwrap(), whole.fingerprint().unwrap());
    assert!(share.bytes_per_token() < whole.bytes_per_token());
    let bytes = |model: &Model| PLAN.bytes(model.header(), model.share()).unwrap();
    assert!(bytes(&share) < bytes(&whole));
}

#[test]
fn a_share_is_some_of_the_models_layers() {
    for (start, end) in [(0, 0), (2, 99), (3, 2)] {
        let layers = start..end;
        assert!(open().with_share(Share { layers, has_ends: true }).is_err());
    }
    let share = Share { layers: 0..1, has_ends: false };
    let held: Vec<TensorId> =
        open().header().tensors().map(|t| t.id).filter(|id| share.holds(*id)).collect();
    assert!(held.iter().all(|id| id.layer == 0 && id.kind.is_per_layer()));
    assert_eq!(held.len(), 9);
}

#[test]
fn rows_outside_the_plan_are_refused_in_every_stage() {
    let mut nodes = nodes(open, &[1], false);
    let span = Span { stream: 0, pos: 0, n_rows: 1, wants: Wants::Last, ..Span::EMPTY };
    let embed = |node: &mut Transformer, span: Span, token: u32| {
        let mut batch = Batch::default();
        batch.push(span, &vec![token; span.n_rows]);
        node.embed(&batch)
    };
    let is_full = ForwardError::ContextFull { ctx_len: 48 };
    for (span, error) in [
        (Span { stream: 2, ..span }, ForwardError::Plan),
        (Span { n_rows: 17, ..span }, ForwardError::Plan),
        (Span { pos: 48, ..span }, is_full.clone()),
        (Span { pos: 40, n_rows: 9, ..span }, is_full.clone()),
        (Span { pos: usize::MAX, ..span }, is_full),
    ] {
        assert_eq!(embed(&mut nodes[0], span, 0), Err(error.clone()));
        assert_eq!(nodes[1].run_layers(&[span]), Err(error));
    }
    assert_eq!(
        nodes[1].run_layers(&[Span { n_rows: usize::MAX, ..span }; 2]),
        Err(ForwardError::Plan)
    );
    assert!(matches!(embed(&mut nodes[0], span, u32::MAX), Err(ForwardError::Token { .. })));
    let dim = nodes[0].model().header().dim;
    assert_eq!(nodes[0].classify(Precision::F32, &vec![0; 17 * dim * 4]), Err(ForwardError::Plan));
}

#[test]
fn a_pass_ends_at_any_piece_or_not_at_all() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    static LIMIT: AtomicU32 = AtomicU32::new(u32::MAX);
    let is_interrupted = || ASKED.fetch_add(1, Ordering::Relaxed) == LIMIT.load(Ordering::Relaxed);
    let batch = batch(&[(0, 0..12)]);
    let mut whole = nodes(open, &[], true).remove(0);
    let wanted = whole.forward(&batch).unwrap().to_vec();
    whole.interrupt_by(is_interrupted);
    assert!(whole.forward(&batch).unwrap() == wanted);
    let n_asked = ASKED.load(Ordering::Relaxed);
    // Polled more often than once for each of a layer's five steps.
    assert!(n_asked as usize > 5 * whole.model().header().n_layers, "{n_asked}");
    for limit in (0..n_asked).step_by(29).chain([n_asked - 1]) {
        ASKED.store(0, Ordering::Relaxed);
        LIMIT.store(limit, Ordering::Relaxed);
        // The poll returns true only once, and still the pass ends.
        assert_eq!(whole.forward(&batch).err(), Some(ForwardError::Interrupted), "{limit}");
        assert!(whole.forward(&batch).unwrap() == wanted);
    }
}
