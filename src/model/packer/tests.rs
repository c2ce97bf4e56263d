use std::cell::RefCell;

use super::super::{Batch, KvKind, Plan, Precision, Share, Span, Stage, Transformer, Wants};
use super::*;
use crate::format::model::{Ends, Header, Packed, Weights};

fn model() -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo.bin");
    Arc::new(Model::open(&path).unwrap())
}

fn transformer(model: &Arc<Model>, kernels: Kernels) -> Transformer {
    let plan = Plan {
        ctx_len: 64,
        max_batch: 32,
        max_logits: 32,
        n_streams: 1,
        kv: KvKind::F16,
        kv_pages: None,
    };
    Transformer::new(Arc::clone(model), kernels, Pool::new(&[0, 0]).unwrap(), plan).unwrap()
}

fn logits(transformer: &mut Transformer) -> Vec<f32> {
    let batch = |pos: usize, n_rows: usize| {
        let tokens: Vec<u32> = (pos..pos + n_rows).map(|pos| (pos * 37 % 300) as u32).collect();
        let mut batch = Batch::default();
        batch.push(Span { stream: 0, pos, n_rows, wants: Wants::All, ..Span::EMPTY }, &tokens);
        batch
    };
    let mut logits = transformer.forward(&batch(0, 29)).unwrap().to_vec();
    logits.extend_from_slice(transformer.forward(&batch(29, 1)).unwrap());
    logits
}

fn check_in_every_tier(model: &Arc<Model>) {
    let wanted = logits(&mut transformer(model, Kernels::best()));
    assert!(wanted.iter().all(|x| x.is_finite()));
    for kernels in crate::kernels::Isa::ALL.iter().filter_map(|isa| Kernels::for_isa(*isa)) {
        let mut transformer = transformer(model, kernels);
        let report = transformer.pack_in_memory(&|| false).unwrap();
        assert_eq!(report.is_some(), kernels.layout().is_some());
        assert!(logits(&mut transformer) == wanted, "{kernels:?}");
    }
}

#[test]
fn packed_weights_give_the_same_logits() {
    check_in_every_tier(&model());
}

#[test]
fn packed_4_bit_weights_give_the_same_logits() {
    let four_bits = [false, true].map(|int8_embedding| Weights::Q4 { group: 64, int8_embedding });
    let two_levels =
        [Ends::FourBits, Ends::Int8, Ends::SixBits].map(|ends| Weights::B2 { group: 64, ends });
    for weights in four_bits.into_iter().chain(two_levels) {
        let header = model().header().clone();
        let model = Model::synthetic(&Header { weights, ..header }).unwrap();
        check_in_every_tier(&Arc::new(model));
    }
}

#[test]
fn made_up_weights_are_the_same_when_made_up_packed() {
    let four_bits = Weights::Q4 { group: 64, int8_embedding: true };
    let [two_levels, six] = [Ends::Int8, Ends::SixBits].map(|ends| Weights::B2 { group: 64, ends });
    for weights in [Weights::Q8 { group: 64 }, four_bits, two_levels, six] {
        let header = Header { weights, ..model().header().clone() };
        let plain = Arc::new(Model::synthetic(&header).unwrap());
        let wanted = logits(&mut transformer(&plain, Kernels::best()));
        let Some(layout) = Kernels::best().layout() else { return };
        let (layout, panel_rows) = (layout.id(), layout.panel_rows());
        // Files of LEAP 0.2.0 hold a shared classifier twice.
        for shares_embedding in [false, header.shared_classifier] {
            let packed = Some(Packed { layout, panel_rows, shares_embedding, fingerprint: 0 });
            let packed = Model::synthetic(&Header { packed, ..header.clone() }).unwrap();
            let mut packed = transformer(&Arc::new(packed), Kernels::best());
            assert!(packed.is_in_memory() && packed.packed_bytes().is_none());
            assert!(logits(&mut packed) == wanted, "{weights:?}");
        }
    }
}

#[test]
fn a_second_start_packs_nothing_and_gives_the_same_logits() {
    let model = model();
    let name = format!("leap-packed-{}.leapw", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut first = transformer(&model, Kernels::best());
    let steps = RefCell::new(Vec::new());
    let tell = |PackProgress { done_bytes, total_bytes }| {
        steps.borrow_mut().push((done_bytes, total_bytes));
    };
    let watch = PackWatch { tell: &tell, ..PackWatch::NONE };
    let Some(built) = first.use_cache(&path, watch).unwrap() else { return };
    let steps = steps.into_inner();
    assert!(steps.len() > built.packed && steps.is_sorted());
    assert_eq!((steps[0], steps[steps.len() - 1]), ((0, built.bytes), (built.bytes, built.bytes)));
    assert!(built.packed > 0 && built.reused == 0);
    let wanted = logits(&mut first);
    let mut second = transformer(&model, Kernels::best());
    let reused = second.use_cache(&path, PackWatch::NONE).unwrap().unwrap();
    assert_eq!(reused, PackReport { packed: 0, reused: built.packed, bytes: built.bytes });
    assert!(logits(&mut second) == wanted);
    second.move_to_huge_pages();
    while !second.is_in_memory() {
        assert!(logits(&mut second) == wanted);
    }
    assert!(logits(&mut second) == wanted);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn an_interrupted_build_leaves_no_file() {
    let model = model();
    let path = std::env::temp_dir().join(format!("leap-half-{}.leapw", std::process::id()));
    let mut transformer = transformer(&model, Kernels::best());
    if transformer.kernels().layout().is_some() {
        let result =
            transformer.use_cache(&path, PackWatch { is_interrupted: &|| true, ..PackWatch::NONE });
        assert!(matches!(result, Err(PackError::Weights(CheckError::Interrupted))));
        assert!(!path.exists());
    }
}

/// Number of matrices in a layer.
const PER_LAYER: usize = 7;

fn share(layers: Range<usize>, has_ends: bool) -> Share {
    Share { layers, has_ends }
}

/// Output rows of a share for fixed input rows. The result must not depend on what `transformer` held before.
fn activations(transformer: &mut Transformer) -> Vec<u8> {
    let dim = transformer.model().header().dim;
    let x: Vec<u8> = (0..5 * dim).flat_map(|i| (i as f32 * 0.37).sin().to_le_bytes()).collect();
    transformer.put_rows(0, Precision::F32, &x);
    let spans = [Span { stream: 0, pos: 0, n_rows: 5, wants: Wants::None, ..Span::EMPTY }];
    transformer.run_layers(&spans).unwrap();
    let mut rows = vec![0; x.len()];
    for (row, out) in rows.chunks_exact_mut(4 * dim).enumerate() {
        transformer.get_row(row, Precision::F32, out);
    }
    rows
}

#[test]
fn another_share_packs_only_what_no_share_has_packed() {
    let model = model();
    let path = std::env::temp_dir().join(format!("leap-shares-{}.leapw", std::process::id()));
    let start = |share: Share| {
        let model = Arc::new(model.with_share(share).unwrap());
        transformer(&model, Kernels::best())
    };
    let mut node = start(share(0..4, true));
    let Some(first) = node.use_cache(&path, PackWatch::NONE).unwrap() else { return };
    assert_eq!((first.packed, first.reused), (4 * PER_LAYER + 1, 0));
    // The running node takes other layers, and already has two of them.
    let plan = *node.about().plan;
    node.set_share(share(2..6, false), plan).unwrap();
    let second = node.use_cache(&path, PackWatch::NONE).unwrap().unwrap();
    assert_eq!((second.packed, second.reused), (2 * PER_LAYER, 2 * PER_LAYER));
    let wanted = activations(&mut start(share(2..6, false)));
    assert!(activations(&mut node) == wanted);
    // The file still holds weights outside the node's share.
    let mut other = start(share(0..3, true));
    assert_eq!(other.lacks(&path).unwrap(), Some(0));
    let third = other.use_cache(&path, PackWatch::NONE).unwrap().unwrap();
    assert_eq!((third.packed, third.reused), (0, 3 * PER_LAYER + 1));
    // Only the share itself is copied to memory.
    other.move_to_huge_pages();
    let wanted = activations(&mut start(share(0..3, true)));
    while !other.is_in_memory() {
        assert!(activations(&mut other) == wanted);
    }
    assert!(activations(&mut other) == wanted);
    let summary = crate::pack::summary(&std::fs::read(&path).unwrap()).unwrap();
    let (layers, has_ends) = cached_layers(summary.entries.iter().map(|entry| entry.key));
    assert_eq!((layers.len(), &layers[0], has_ends), (1, &(0..6), true));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn another_share_in_memory_packs_only_what_is_new() {
    let model = model();
    let mut node = transformer(&model, Kernels::best());
    let plan = *node.about().plan;
    node.set_share(share(1..3, false), plan).unwrap();
    let Some(first) = node.pack_in_memory(&|| false).unwrap() else { return };
    assert_eq!((first.packed, first.reused), (2 * PER_LAYER, 0));
    node.set_share(share(2..5, true), plan).unwrap();
    let second = node.pack_in_memory(&|| false).unwrap().unwrap();
    assert_eq!((second.packed, second.reused), (2 * PER_LAYER + 1, PER_LAYER));
    let mut fresh = transformer(&model, Kernels::best());
    fresh.set_share(share(2..5, true), plan).unwrap();
    assert!(activations(&mut node) == activations(&mut fresh));
}
