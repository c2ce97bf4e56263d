use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::KvType;
use super::*;
use crate::format::model::{TensorId, Weights};

const PLAN: Plan =
    Plan { ctx_len: 48, max_batch: 16, max_logits: 16, n_streams: 2, kv: KvType::F16 };

fn open() -> Model {
    Model::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo.bin")).unwrap()
}

fn four_bits() -> Model {
    let weights = Weights::Q4 { group: 64, int8_embedding: true };
    Model::synthetic(&Header { weights, ..open().header().clone() }).unwrap()
}

/// The shares that `cuts` divide a model into, the first with ends.
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
                node.pack_in_memory().unwrap();
            }
            node
        })
        .collect()
}

/// Runs `rows` through the stages of every node in turn.
fn through(nodes: &mut [Transformer], rows: &[Row]) -> Vec<f32> {
    let dim = nodes[0].model().header().dim;
    nodes[0].embed(rows).unwrap();
    let mut x = nodes[0].activations(rows.len()).to_vec();
    for node in &mut *nodes {
        node.activations(rows.len()).copy_from_slice(&x);
        node.run_layers(rows).unwrap();
        x.copy_from_slice(node.activations(rows.len()));
    }
    let wanted = rows.iter().zip(x.chunks_exact(dim)).filter(|(row, _)| row.wants_logits);
    let wanted: Vec<f32> = wanted.flat_map(|(_, x)| x).copied().collect();
    nodes[0].classify(&wanted).unwrap().to_vec()
}

fn rows(stream: usize, positions: std::ops::Range<usize>) -> impl Iterator<Item = Row> {
    positions.map(move |pos| Row {
        token: ((pos * 31 + stream * 7) % 300) as u32,
        stream,
        pos,
        wants_logits: pos % 3 == 1,
    })
}

fn check_shares(open: impl Fn() -> Model, is_packed: bool) {
    let batches: Vec<Vec<Row>> = vec![
        rows(0, 0..9).chain(rows(1, 0..4)).collect(),
        rows(1, 4..20).collect(),
        rows(0, 9..10).chain(rows(1, 20..21)).collect(),
    ];
    let mut whole = nodes(&open, &[], is_packed);
    let wanted: Vec<Vec<f32>> =
        batches.iter().map(|rows| whole[0].forward(rows).unwrap().to_vec()).collect();
    for cuts in [&[1][..], &[3], &[1, 2, 3]] {
        let mut nodes = nodes(&open, cuts, is_packed);
        for (rows, wanted) in batches.iter().zip(&wanted) {
            assert!(through(&mut nodes, rows) == *wanted, "cuts {cuts:?}, packed {is_packed}");
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
    assert_eq!(share.fingerprint(), whole.fingerprint());
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
    let row = Row { token: 0, stream: 0, pos: 0, wants_logits: true };
    for (row, error) in [
        (Row { stream: 2, ..row }, ForwardError::Plan),
        (Row { pos: 48, ..row }, ForwardError::ContextFull { ctx_len: 48 }),
    ] {
        assert_eq!(nodes[0].embed(&[row]), Err(error.clone()));
        assert_eq!(nodes[1].run_layers(&[row]), Err(error));
    }
    assert!(matches!(
        nodes[0].embed(&[Row { token: u32::MAX, ..row }]),
        Err(ForwardError::Token { .. })
    ));
    let dim = nodes[0].model().header().dim;
    assert_eq!(nodes[0].classify(&vec![0.0; 17 * dim]), Err(ForwardError::Plan));
}

#[test]
fn a_pass_ends_at_any_piece_or_not_at_all() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    static LIMIT: AtomicU32 = AtomicU32::new(u32::MAX);
    let is_wanted = || ASKED.fetch_add(1, Ordering::Relaxed) != LIMIT.load(Ordering::Relaxed);
    let rows: Vec<Row> = rows(0, 0..12).collect();
    let mut whole = nodes(open, &[], true).remove(0);
    let wanted = whole.forward(&rows).unwrap().to_vec();
    whole.interrupt_by(is_wanted);
    assert!(whole.forward(&rows).unwrap() == wanted);
    let n_asked = ASKED.load(Ordering::Relaxed);
    // More often than once for each of a layer's five steps.
    assert!(n_asked as usize > 5 * whole.model().header().n_layers, "{n_asked}");
    for limit in (0..n_asked).step_by(29).chain([n_asked - 1]) {
        ASKED.store(0, Ordering::Relaxed);
        LIMIT.store(limit, Ordering::Relaxed);
        // Wanted again a moment later, which helps no more.
        assert_eq!(whole.forward(&rows).err(), Some(ForwardError::Interrupted), "{limit}");
        assert!(whole.forward(&rows).unwrap() == wanted);
    }
}
