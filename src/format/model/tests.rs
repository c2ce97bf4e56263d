//! Tests of the model file's header.

mod embedding;

use std::ops::Range;

use super::bytes::{CRC_AT, header_crc};
use super::*;
use crate::format::cursor::u32_at;
use crate::format::{ChatTemplate, FormatError};

const F32: Weights = Weights::F32;
pub(super) const Q4: Weights = Weights::Q4 { group: 32, int8_embedding: true };
const ALL_Q4: Weights = Weights::Q4 { group: 32, int8_embedding: false };
pub(super) const B2: Weights = Weights::B2 { group: 32, ends: Ends::Int8 };
const ALL_B2: Weights = Weights::B2 { group: 32, ends: Ends::FourBits };
pub(super) const B2_SIX: Weights = Weights::B2 { group: 32, ends: Ends::SixBits };

/// Types of blocks for all matrices of `header`, if these are in blocks: another one in each layer and kind.
pub(super) fn typed(header: Header) -> Header {
    const SHORT: [Ggml; 6] =
        [Ggml::Q4_0, Ggml::Q4_1, Ggml::Q5_0, Ggml::Q5_1, Ggml::Q8_0, Ggml::Mxfp4];
    let of =
        |TensorId { kind, layer }| Ok::<Ggml, ()>(SHORT[(kind as usize + layer) % SHORT.len()]);
    match header.weights {
        Weights::Ggml => Header { ggml: header.ggml_types(of).unwrap(), ..header },
        _ => header,
    }
}

pub(super) fn small(weights: Weights) -> Header {
    typed(Header {
        weights,
        ggml: GgmlTypes::default(),
        dim: 64,
        ffn_dim: 96,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        vocab_size: 40,
        max_seq_len: 128,
        shared_classifier: false,
        head_dim: 32,
        norm_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling: Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_ctx: 64,
        }),
        sliding_window: Some(48),
        architecture: Architecture::Mistral,
        features: Features::default(),
        bos: Some(1),
        stop_ids: vec![2, 39],
        chat_template: ChatTemplate::MistralV1,
        tokenizer_hash: 0x0123_4567_89ab_cdef,
        has_extension: true,
        packed: None,
        share: None,
    })
}

/// A whole file with zero weights and correct checksums.
pub(super) fn file(header: &Header) -> Vec<u8> {
    let mut bytes = header.emit().to_vec();
    let mut crcs = Vec::new();
    for tensor in header.tensors() {
        assert_eq!(tensor.offset, bytes.len() as u64);
        bytes.resize(bytes.len() + tensor.bytes as usize, 0);
        crcs.push(crc32fast::hash(&bytes[tensor.offset as usize..]));
    }
    if header.has_extension {
        bytes.extend(crcs.iter().flat_map(|crc| crc.to_le_bytes()));
    }
    bytes
}

#[test]
fn emit_then_parse_is_the_identity() {
    for weights in [F32, Weights::Q8 { group: 32 }, Q4, ALL_Q4, B2, ALL_B2, B2_SIX, Weights::Ggml] {
        for shared_classifier in [false, true] {
            let header = typed(Header { shared_classifier, ..small(weights) });
            let bytes = file(&header);
            assert_eq!(Header::parse(&bytes), Ok(header.clone()));
            assert_eq!(header.verify(&bytes), Ok(true));
        }
    }
}

/// A header with every feature at once, which no family has.
pub(super) fn featured(weights: Weights) -> Header {
    let features = Features {
        qkv_bias: true,
        output_bias: true,
        ffn_bias: false,
        qk_norm: true,
        post_norms: true,
        sinks: true,
        output_gate: false,
        activation: Activation::ClampedSilu { limit: 7.0 },
        embedding_scale: 6.0,
        attention_scale: Some(0.25),
        residual_scale: 0.5,
        full_layers: LayerSet::new(1..2).unwrap(),
        unrotated_layers: LayerSet::new(0..1).unwrap(),
        local_theta: Some(5_000.0),
        rotary_dim: Some(24),
        rope_magnitude: 1.25,
        rope_divisors: vec![1.5; 12],
        long_rope: Some(LongRope { original_ctx: 16, divisors: vec![2.5; 12] }),
        temperature: Some(Temperature { slope: 0.5, original_ctx: 32 }),
        experts: Some(Experts {
            n: 4,
            n_active: 3,
            is_normalised: true,
            has_biases: true,
            is_sigmoid: false,
        }),
        dense: None,
        recurrent: None,
        more: MoreFeatures::default(),
        embedding: None,
    };
    let (architecture, rope_scaling) = (Architecture::GptOss, Some(RopeScaling::Divisors));
    typed(Header { features, architecture, rope_scaling, ..small(weights) })
}

#[test]
fn features_come_back_from_their_block() {
    for weights in [F32, Weights::Q8 { group: 32 }, Q4, B2, B2_SIX, Weights::Ggml] {
        let share = Some(FileShare { layers: 1..2, has_ends: false, fingerprint: 77, slice: None });
        let packed = packed(weights, true, false).packed.filter(|_| weights != F32);
        let whole = featured(weights);
        for header in [Header { share, ..whole.clone() }, Header { packed, ..whole.clone() }, whole]
        {
            let bytes = file(&header);
            assert_eq!(Header::parse(&bytes), Ok(header.clone()));
            assert_eq!(header.verify(&bytes), Ok(true));
        }
    }
    let header = featured(Weights::Q8 { group: 32 });
    assert_eq!(header.tensors().next().map(|tensor| tensor.offset), Some(256 + 256));
    assert_eq!(header.shape(TensorKind::W2), (4 * 64, 96));
    assert_eq!(header.shape(TensorKind::B1), (1, 4 * 96));
    let w1 = header.tensors().find(|tensor| tensor.id.kind == TensorKind::W1).unwrap();
    assert_eq!(header.active_bytes(&w1), w1.bytes / 4 * 3);
    let layers: Vec<LayerSpec> = header.layers().collect();
    assert_eq!((layers[0].window, layers[0].rope), (Some(48), None));
    let scaling = Some(RopeScaling::Divisors);
    let rope = Rope { theta: 10_000.0, scaling, magnitude: 1.25, dim: 24 };
    assert_eq!((layers[1].window, layers[1].rope), (None, Some(rope)));
    assert_eq!((layers[1].attention_scale, layers[1].residual_scale), (0.25, 0.5));
}

/// Three layers, of which only the second is a mixture.
pub(super) fn partly_dense(weights: Weights) -> Header {
    let layers = LayerSet::new([0, 2].into_iter()).unwrap();
    let mut header = Header { n_layers: 3, ..featured(weights) };
    header.features.dense = Some(DenseLayers { layers, ffn_dim: 160 });
    typed(header)
}

#[test]
fn layers_that_are_no_mixtures_have_their_own_tensors() {
    for weights in [F32, Weights::Q8 { group: 32 }, Q4, B2, B2_SIX, Weights::Ggml] {
        let whole = partly_dense(weights);
        let packed = packed(weights, true, false).packed.filter(|_| weights != F32);
        for header in [whole.clone(), Header { packed, ..whole.clone() }] {
            let bytes = file(&header);
            assert_eq!(Header::parse(&bytes), Ok(header.clone()));
            assert_eq!(header.n_tensors(), header.tensors().count());
            let layers = |kind| {
                let of = header.tensors().filter(move |t| t.id.kind == kind);
                of.map(|t| t.id.layer).collect::<Vec<_>>()
            };
            assert_eq!((layers(TensorKind::W1), layers(TensorKind::Router)), (vec![1], vec![1]));
            assert_eq!(
                (layers(TensorKind::DenseW2), layers(TensorKind::Wq)),
                (vec![0, 2], vec![0, 1, 2])
            );
        }
        for layers in [0..1, 1..2, 1..3] {
            let share = FileShare { layers, has_ends: false, fingerprint: 7, slice: None };
            let header = Header { share: Some(share), ..whole.clone() };
            assert_eq!(Header::parse(&file(&header)), Ok(header.clone()));
            assert_eq!(header.n_tensors(), header.tensors().count());
        }
        assert_eq!(whole.shape(TensorKind::DenseW1), (160, 64));
        let slice = Slice { dense_ffn: 64..96, ..Slice::whole(&whole) };
        let share = FileShare { layers: 0..3, has_ends: true, fingerprint: 7, slice: Some(slice) };
        let header = Header { share: Some(share), ..whole.clone() };
        assert_eq!(Header::parse(&file(&header)), Ok(header.clone()));
        assert_eq!(header.held_shape(TensorKind::DenseW1), (32, 64));
    }
    let impossible = |change: fn(&mut Header)| {
        let mut header = partly_dense(Q4);
        change(&mut header);
        assert!(header.check().is_err());
    };
    impossible(|header| header.n_layers = 2);
    impossible(|header| header.features.ffn_bias = true);
    impossible(|header| header.features.dense.as_mut().unwrap().layers = LayerSet::default());
}

/// Four layers of two kinds; the last two are wider, and use the first two's keys and values.
pub(super) fn unlike(weights: Weights) -> Header {
    let mut header = Header { n_layers: 4, architecture: Architecture::Gemma4, ..small(weights) };
    header.rope_scaling = Some(RopeScaling::Divisors);
    header.features = Features {
        qk_norm: true,
        post_norms: true,
        full_layers: LayerSet::new([1, 3].into_iter()).unwrap(),
        local_theta: Some(5_000.0),
        rope_divisors: vec![1.5; 32],
        dense: LayerSet::new(2..4).map(|layers| DenseLayers { layers, ffn_dim: 160 }),
        more: MoreFeatures {
            full_heads: Some(FullHeads { head_dim: 64, n_kv_heads: 1 }),
            value_norm: true,
            layer_scales: true,
            parallel_ffn: None,
            is_shared_expert: false,
            has_shared_gate: false,
            has_next: false,
            n_shared_kv: 2,
            layer_input_dim: 32,
            logit_cap: Some(30.0),
        },
        ..Features::default()
    };
    typed(header)
}

/// Mixtures with feed-forward layers beside them.
fn parallel(weights: Weights) -> Header {
    let mut header = featured(weights);
    header.features.experts = Some(Experts {
        n: 4,
        n_active: 3,
        is_normalised: true,
        has_biases: false,
        is_sigmoid: false,
    });
    header.features.more.parallel_ffn = Some(160);
    typed(header)
}

#[test]
fn layers_that_differ_have_their_own_tensors() {
    use TensorKind::{
        DenseW1, DenseW2, FullKNorm, FullQNorm, FullWk, FullWo, FullWq, FullWv, InputGate,
        InputOut, KNorm, QNorm, W1, Wk, Wq, Wv,
    };
    for weights in [F32, Weights::Q8 { group: 32 }, Q4, B2, B2_SIX, Weights::Ggml] {
        for whole in [unlike(weights), parallel(weights)] {
            let packed = packed(weights, true, false).packed.filter(|_| weights != F32);
            for header in [whole.clone(), Header { packed, ..whole }] {
                let bytes = file(&header);
                assert_eq!(Header::parse(&bytes), Ok(header.clone()));
                assert_eq!(header.n_tensors(), header.tensors().count());
            }
        }
        let header = unlike(weights);
        let layers = |kind| {
            let of = header.tensors().filter(move |t| t.id.kind == kind);
            of.map(|t| t.id.layer).collect::<Vec<_>>()
        };
        assert_eq!([Wq, QNorm, FullWq, FullQNorm].map(layers), [[0, 2], [0, 2], [1, 3], [1, 3]]);
        assert_eq!([Wk, Wv, KNorm].map(layers), [[0]; 3]);
        assert_eq!([FullWk, FullWv, FullKNorm].map(layers), [[1]; 3]);
        assert_eq!([W1, DenseW1].map(layers), [[0, 1], [2, 3]]);
        let beside = parallel(weights);
        assert_eq!(beside.tensors().filter(|t| t.id.kind == DenseW2).count(), 2);
    }
    let header = unlike(Weights::Q8 { group: 32 });
    assert_eq!([FullWo, FullWk].map(|kind| header.shape(kind)), [(64, 256), (64, 64)]);
    let specs: Vec<LayerSpec> = header.layers().collect();
    assert_eq!(specs.iter().map(|spec| spec.kv_layer).collect::<Vec<_>>(), [0, 1, 0, 1]);
    assert_eq!(
        [0, 3].map(|layer| (specs[layer].head_dim, specs[layer].n_kv_heads)),
        [(32, 2), (64, 1)]
    );
    assert_eq!([0, 3].map(|layer| specs[layer].rope.map(|rope| rope.dim)), [Some(32), Some(64)]);
    assert_eq!(
        [0, 3].map(|layer| specs[layer].rope.and_then(|rope| rope.scaling)),
        [None, Some(RopeScaling::Divisors)]
    );
    // Rows that are too short for groups stay f32.
    let mut narrow = header.clone();
    narrow.features.more.layer_input_dim = 16;
    let [out, gate] = [InputOut, InputGate].map(|kind| narrow.encoding(TensorId::first(kind)));
    assert_eq!((out, gate), (Encoding::F32, Encoding::Q8 { group: 32 }));
    assert_eq!(Header::parse(&file(&narrow)), Ok(narrow));
}

#[test]
fn a_board_may_have_rows_of_layers_that_differ_and_not_some_of_the_layers() {
    use TensorKind::{
        FullWk, FullWo, FullWq, InputGate, InputNorm, InputOut, InputProjection, InputTable,
    };
    let header = unlike(Weights::Q8 { group: 32 });
    let part = |layers, slice| {
        let share = FileShare { layers, has_ends: true, fingerprint: 7, slice };
        Header { share: Some(share), ..header.clone() }
    };
    for layers in [0..2, 2..4] {
        let error = part(layers, None).check().unwrap_err();
        assert!(error.to_string().contains("a part of a model"), "{error}");
    }
    // Boards of a team have some rows of most matrices, and all that is small.
    let whole = Slice::whole(&header);
    let slice = Slice { heads: 0..4, kv_heads: 0..1, full_kv_heads: 0..1, dim: 32..64, ..whole };
    let rows = part(0..4, Some(slice));
    assert_eq!(Header::parse(&file(&rows)), Ok(rows.clone()));
    let held = [FullWq, FullWk, FullWo, InputGate, InputOut].map(|kind| rows.held_shape(kind));
    assert_eq!(held, [(256, 64), (64, 64), (32, 256), (32, 64), (64, 32)]);
    let has = |kind| rows.tensors().any(|tensor| tensor.id.kind == kind);
    assert!(!has(InputTable) && !has(InputProjection) && has(InputNorm));
}

#[test]
fn hostile_values_of_features_of_few_families_are_refused_by_name() {
    let header = unlike(Weights::Q8 { group: 32 });
    let nan = f32::NAN.to_bits();
    for (at, value, word) in [
        (124, 0, "unknown fields"),
        (288, 1 << 5, "flags 0x20 of further features"),
        (288, 1 << 4 | 3, "a block behind the last layer"),
        (292, 0, "head_dim of full layers"),
        (292, 63, "head_dim of full layers"),
        (292, 514, "head_dim of full layers"),
        (292, 62, "rope_divisors"),
        (296, 0, "their n_kv_heads"),
        (296, 3, "their n_kv_heads"),
        (300, 64, "dense layers beside mixtures"),
        (304, 4, "layers without keys and values"),
        (304, u32::MAX, "layers without keys and values"),
        (304, 3, "no such layer before it"),
        (308, u32::MAX, "width of layers' inputs"),
        (312, nan, "cap of logits"),
        (312, (-1f32).to_bits(), "cap of logits"),
        (316, 1, "unknown fields"),
    ] {
        let file = with_block(&header, |block| {
            block[at..at + 4].copy_from_slice(&value.to_le_bytes());
        });
        let error = Header::parse(&file).unwrap_err().to_string();
        assert!(error.contains(word), "{value:#x} at {at}: {error}");
    }
    let impossible = |header: fn(Weights) -> Header, change: fn(&mut Header)| {
        let mut header = header(Q4);
        change(&mut header);
        assert!(header.check().is_err());
    };
    impossible(unlike, |header| header.features.local_theta = None);
    impossible(unlike, |header| header.sliding_window = None);
    impossible(unlike, |header| header.features.qkv_bias = true);
    impossible(unlike, |header| header.features.sinks = true);
    impossible(unlike, |header| header.features.rotary_dim = Some(16));
    impossible(unlike, |header| header.features.ffn_bias = true);
    impossible(parallel, |header| header.features.experts = None);
    impossible(parallel, |header| header.features.more.has_shared_gate = true);
    impossible(unlike, |header| header.features.more.is_shared_expert = true);
    impossible(parallel, |header| header.features.more.parallel_ffn = Some(1 << 31));
    impossible(parallel, |header| {
        header.features.experts.as_mut().unwrap().has_biases = true;
    });
}

#[test]
fn header_with_features_is_pinned() {
    let features = Features { qk_norm: true, ..Features::default() };
    let header = Header { features, architecture: Architecture::Qwen3, ..small(Q4) };
    let bytes = header.emit();
    assert_eq!((bytes.len(), header.len_bytes()), (384, 384));
    assert_eq!([68, 72, 120, 232].map(|at| u32_at(&bytes, at)), [2, 176, 3, 128]);
    assert_eq!(u32_at(&bytes, 236), crc32fast::hash(&bytes[256..]));
    let block = [4u32, 0, 0, 0x3f80_0000, 0, 0x3f80_0000, 0x3f80_0000];
    assert_eq!(bytes[256..284], block.map(u32::to_le_bytes).concat());
    assert!(bytes[284..].iter().all(|&b| b == 0));
}

#[test]
fn models_without_features_have_the_bytes_that_they_always_had() {
    for header in [small(Weights::F32), small(Q4)] {
        let bytes = header.emit();
        assert_eq!((bytes.len(), u32_at(&bytes, 68)), (HEADER_LEN, 1));
    }
}

/// A file of `header` with correct checksums, whose block of features `change` has changed.
fn with_block(header: &Header, change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let good = file(header);
    let len = header.len_bytes();
    let mut block = good[HEADER_LEN..len].to_vec();
    change(&mut block);
    let mut head = good[..HEADER_LEN].to_vec();
    head[232..236].copy_from_slice(&(block.len() as u32).to_le_bytes());
    head[236..240].copy_from_slice(&crc32fast::hash(&block).to_le_bytes());
    let crc = header_crc(&head);
    head[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    [&head[..], &block, &good[len..]].concat()
}

#[test]
fn hostile_features_are_refused_by_name() {
    let header = featured(Weights::Q8 { group: 32 });
    let nan = f32::NAN.to_bits();
    for (at, value, word) in [
        (0, 1 << 10, "feature flags"),
        (4, 4, "activation 4"),
        (8, nan, "activation limit"),
        (12, 0, "embedding_scale"),
        (16, nan, "attention_scale"),
        (20, f32::INFINITY.to_bits(), "residual_scale"),
        (24, (-1f32).to_bits(), "rope_magnitude"),
        (28, 23, "rotary_dim"),
        (28, 34, "rotary_dim"),
        (28, 22, "rope_divisors"),
        (36, 0x7ff0_0000, "local_theta"),
        (40, u32::MAX, "n_experts"),
        (40, 0, "unknown fields"),
        (44, 0, "n_active_experts"),
        (44, 5, "n_active_experts"),
        (48, 4, "full_layers"),
        (108, 1 << 31, "unrotated_layers"),
        (112, u32::MAX, "rope_divisors"),
        (112, 11, "unknown fields"),
        (116, 0, "unknown fields"),
        (120, 1, "truncated"),
        (124, 0, "unknown fields"),
        (124, 3, "truncated"),
        (124, 1 << 31 | 2, "unknown fields"),
        (128, 0, "rope_divisor"),
        (176, nan, "rope_divisor"),
        (224, nan, "slope of the temperature"),
        (224, 0, "slope of the temperature"),
        (228, 0, "context of the temperature"),
        (232, 1, "unknown fields"),
    ] {
        let file = with_block(&header, |block| {
            block[at..at + 4].copy_from_slice(&value.to_le_bytes());
        });
        let error = Header::parse(&file).unwrap_err().to_string();
        assert!(error.contains(word), "{value:#x} at {at}: {error}");
    }
    for len in [0, 100, 128, 384] {
        let file = with_block(&header, |block| block.resize(len, 0));
        assert!(Header::parse(&file).is_err(), "{len}");
    }
    let mut damaged = file(&header);
    damaged[300] ^= 1;
    let what = "block of features".to_owned();
    assert_eq!(Header::parse(&damaged), Err(FormatError::Checksum { what }));
}

#[test]
fn a_block_that_says_nothing_and_features_without_one_are_refused() {
    let change = |from: &Header, at: usize, value: u32| {
        let mut bytes = file(from);
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let crc = header_crc(&bytes[..HEADER_LEN]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        Header::parse(&bytes).unwrap_err().to_string()
    };
    let llama = small(Q4);
    assert!(change(&llama, 96, 3).contains("nowhere"));
    assert!(change(&llama, 120, 3).contains("nowhere"));
    assert!(change(&llama, 120, 99).contains("architecture id 99"));
    assert!(change(&llama, 68, 3).contains("version 3"));
    let qwen = Header { architecture: Architecture::Qwen3, ..small(Q4) };
    assert!(change(&qwen, 120, 0).contains("says nothing"));
}

#[test]
fn files_of_some_layers_have_their_tensors_alone() {
    for weights in [F32, Weights::Q8 { group: 32 }, Q4, B2, ALL_B2, B2_SIX, Weights::Ggml] {
        for has_ends in [false, true] {
            let share = Some(FileShare { layers: 1..2, has_ends, fingerprint: 77, slice: None });
            let header = Header { share, ..small(weights) };
            let bytes = file(&header);
            assert_eq!(Header::parse(&bytes), Ok(header.clone()));
            assert_eq!(header.verify(&bytes), Ok(true));
            assert_eq!(header.fingerprint(&bytes), 77);
            assert!(header.tensors().all(|t| t.id.layer == usize::from(t.id.kind.is_per_layer())));
            assert_eq!(header.tensors().any(|t| t.id.kind == TensorKind::Embedding), has_ends);
        }
    }
    for layers in [1..1, Range { start: 2, end: 1 }, 1..3, 7..9] {
        let share = Some(FileShare { layers, has_ends: false, fingerprint: 0, slice: None });
        let header = Header { share, ..small(Q4) };
        assert!(matches!(header.check(), Err(FormatError::Unsupported(_))));
        assert!(Header::parse(&header.emit()).is_err());
    }
}

#[test]
fn files_of_some_rows_have_those_of_each_matrix() {
    let of = |header: Header, slice: Slice| {
        let share = FileShare { layers: 0..2, has_ends: true, fingerprint: 77, slice: Some(slice) };
        Header { share: Some(share), ..header }
    };
    for weights in [F32, Weights::Q8 { group: 32 }, Q4, B2, ALL_B2, B2_SIX, Weights::Ggml] {
        for whole in [small(weights), featured(weights)] {
            let all = Slice::whole(&whole);
            let slice = Slice { heads: 0..1, kv_heads: 0..1, dim: 32..64, ..all.clone() };
            let header = of(whole.clone(), slice.clone());
            let bytes = file(&header);
            assert_eq!(Header::parse(&bytes), Ok(header.clone()));
            assert_eq!(header.verify(&bytes), Ok(true));
            let [wo, norm] = [TensorKind::Wo, TensorKind::FfnNorm].map(|k| header.held_shape(k));
            assert_eq!((wo, norm), ((32, whole.q_dim()), (1, whole.dim)));
            // A node with some of the rows embeds nothing.
            let has = |kind| header.tensors().any(|tensor| tensor.id.kind == kind);
            assert_eq!(has(TensorKind::Embedding), whole.classifier() == TensorKind::Embedding);
            // The model's fingerprint is the same, but the fingerprint for packing differs.
            assert_eq!(header.fingerprint(&bytes), 77);
            assert_ne!(header.fingerprint_of_rows(77), 77);
            for len in 0..header.len_bytes() {
                assert!(Header::parse(&bytes[..len]).is_err(), "{len}");
            }
            // The range of rows has a checksum, and must lie within the model's.
            let mut damaged = bytes.clone();
            damaged[header.len_bytes() - 1] ^= 1;
            assert!(matches!(Header::parse(&damaged), Err(FormatError::Checksum { .. })));
            let backwards = Range { start: 9, end: 8 };
            for dim in [0..whole.dim + 1, backwards] {
                let header = of(whole.clone(), Slice { dim, ..slice.clone() });
                assert!(matches!(header.check(), Err(FormatError::Unsupported(_))));
                assert!(Header::parse(&header.emit()).is_err());
            }
        }
    }
}

#[test]
fn published_files_have_defaults() {
    let plain = Header {
        head_dim: 16,
        norm_eps: 1e-5,
        rope_theta: 500_000.0,
        rope_scaling: None,
        sliding_window: None,
        architecture: Architecture::Llama,
        features: Features::default(),
        bos: None,
        stop_ids: Vec::new(),
        chat_template: ChatTemplate::None,
        tokenizer_hash: 0,
        has_extension: false,
        ..small(Weights::Q8 { group: 32 })
    };
    let bytes = file(&plain);
    assert!(bytes[41..HEADER_LEN].iter().all(|&b| b == 0));
    assert_eq!(Header::parse(&bytes), Ok(plain.clone()));
    assert_eq!(plain.verify(&bytes), Ok(false));
}

#[test]
fn header_bytes_are_pinned() {
    let bytes = small(Weights::Q8 { group: 32 }).emit();
    let base: [i32; 9] = [0x616B3432, 2, 64, 96, 2, 4, 2, 40, 128];
    let base: Vec<u8> = base.iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(bytes[..36], base);
    assert_eq!(bytes[36..41], [0, 32, 0, 0, 0]);
    assert_eq!(&bytes[64..68], b"LEAX");
    assert_eq!(u32_at(&bytes, 80), 32);
    assert_eq!(bytes[88..96], 10_000f64.to_le_bytes());
    assert_eq!(u32_at(&bytes, 128), 2);
    assert_eq!(u32_at(&bytes, 136), 39);
}

#[test]
fn four_bit_header_bytes_are_pinned() {
    for (weights, flags) in [(Q4, 1), (ALL_Q4, 0)] {
        let header = small(weights);
        let bytes = header.emit();
        assert_eq!((u32_at(&bytes, 4), u32_at(&bytes, 37), u32_at(&bytes, 76)), (3, 32, flags));
        let bytes_of = |kind| header.tensors().find(|t| t.id.kind == kind).map(|t| t.bytes);
        let embedding = if flags == 1 { 40 * 64 + 40 * 2 * 4 } else { 40 * 2 * 20 };
        assert_eq!(bytes_of(TensorKind::Embedding), Some(embedding));
        assert_eq!(bytes_of(TensorKind::Classifier), Some(embedding));
        assert_eq!(bytes_of(TensorKind::Wq), Some(128 * 2 * 20));
        assert_eq!(bytes_of(TensorKind::W2), Some(64 * 3 * 20));
        assert_eq!(bytes_of(TensorKind::FfnNorm), Some(64 * 4));
    }
}

#[test]
fn six_bit_ends_are_pinned() {
    for shared_classifier in [false, true] {
        let header = Header { shared_classifier, ..small(B2_SIX) };
        let bytes = header.emit();
        assert_eq!((u32_at(&bytes, 4), u32_at(&bytes, 37), u32_at(&bytes, 76)), (4, 32, 2));
        let bytes_of = |kind| header.tensors().find(|t| t.id.kind == kind).map(|t| t.bytes);
        let embedding = 40 * (4 + 2 * 25 + 2);
        assert_eq!(bytes_of(TensorKind::Embedding), Some(embedding));
        let classifier = (!shared_classifier).then_some(embedding);
        assert_eq!(bytes_of(TensorKind::Classifier), classifier);
        assert_eq!(bytes_of(TensorKind::W2), Some(64 * (4 + 3 * 18 + 2)));
    }
    let header = packed(B2_SIX, true, true);
    assert_eq!(header.content_bytes(TensorId::first(TensorKind::Embedding)), 48 * (4 + 2 * 25 + 2));
}

#[test]
fn four_bit_file_without_extension_has_no_int8() {
    let plain = Header { has_extension: false, head_dim: 16, ..small(ALL_Q4) };
    assert_eq!(Header::parse(&file(&plain)).map(|header| header.weights), Ok(ALL_Q4));
}

#[test]
fn flags_without_a_meaning_are_refused() {
    let int8 = Weights::Q8 { group: 32 };
    let refused = [(Weights::F32, 1), (int8, 1), (int8, 2), (Q4, 3), (Q4, 2), (B2, 3), (B2_SIX, 4)];
    for (weights, flags) in refused {
        let mut bytes = file(&small(weights));
        bytes[76..80].copy_from_slice(&u32::to_le_bytes(flags));
        let crc = header_crc(&bytes[..HEADER_LEN]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        let wanted = Err(FormatError::Unsupported(format!("header flags {flags:#x}")));
        assert_eq!(Header::parse(&bytes), wanted);
    }
}

#[test]
fn separate_classifier_negates_the_vocabulary_of_version_1() {
    let bytes = small(Weights::F32).emit();
    assert_eq!(bytes[28..32], (-40i32).to_le_bytes());
    assert_eq!(bytes[36], 0);
}

#[test]
fn every_truncation_and_surplus_byte_is_refused() {
    for weights in [Weights::Q8 { group: 32 }, Q4, ALL_Q4, B2_SIX] {
        let mut bytes = file(&small(weights));
        for len in (0..bytes.len()).step_by(97).chain([255, 256, bytes.len() - 1]) {
            assert!(Header::parse(&bytes[..len]).is_err(), "length {len}");
        }
        bytes.push(0);
        let end = bytes.len() as u64 - 1;
        assert_eq!(Header::parse(&bytes), Err(FormatError::TrailingBytes { end, have: end + 1 }));
    }
}

#[test]
fn damaged_base_fields_are_refused_without_checksum() {
    for weights in [Weights::Q8 { group: 32 }, ALL_Q4] {
        let good = file(&Header { has_extension: false, head_dim: 16, ..small(weights) });
        for at in (0..36).step_by(4).chain([37]) {
            for value in [0, -1, i32::MIN, i32::MAX, 0x4000_0001] {
                let mut bytes = good.clone();
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                assert!(Header::parse(&bytes).is_err(), "{value} at {at}");
            }
        }
    }
}

/// The header of a packed file.
fn packed(weights: Weights, shared_classifier: bool, shares_embedding: bool) -> Header {
    let fingerprint = 0x0123_4567;
    let packed = Some(Packed { layout: 0x0202, panel_rows: 16, shares_embedding, fingerprint });
    typed(Header { packed, shared_classifier, ..small(weights) })
}

#[test]
fn packed_matrices_have_whole_panels_and_aligned_places() {
    for weights in [Weights::Q8 { group: 32 }, Q4, ALL_Q4, B2_SIX, Weights::Ggml] {
        // A shared classifier is the packed embedding, or in files of LEAP 0.2.0 a packed copy of it.
        for (shared, shares) in [(false, false), (true, false), (true, true)] {
            let header = packed(weights, shared, shares);
            let bytes = file(&header);
            assert_eq!(Header::parse(&bytes), Ok(header.clone()));
            assert_eq!(header.verify(&bytes), Ok(true));
            assert!(header.tensors().all(|t| t.offset % 128 == 0 && t.bytes % 128 == 0));
            assert_eq!(header.fingerprint(&bytes), 0x0123_4567);
            assert_eq!(header.packing_of(TensorKind::Embedding), header.packed.filter(|_| shares));
            assert_eq!(header.packing_of(header.classifier()), header.packed);
            assert_eq!(header.has(TensorKind::Classifier), !shares);
            let copies = usize::from(shared && !shares);
            assert_eq!(header.n_tensors(), header.plain().n_tensors() + copies);
        }
    }
    // In panels of 16, 40 rows of 64 columns become 48: codes, and a scale for each 32 values.
    let header = packed(Weights::Q8 { group: 32 }, false, false);
    assert_eq!(header.content_bytes(TensorId::first(TensorKind::Classifier)), 48 * (64 + 2 * 4));
    assert_eq!(header.content_bytes(TensorId::first(TensorKind::Embedding)), 40 * (64 + 2 * 4));
}

#[test]
fn packed_header_bytes_are_pinned() {
    let bytes = packed(Weights::Q8 { group: 32 }, false, false).emit();
    assert_eq!([4, 72, 196, 200].map(|at| u32_at(&bytes, at)), [258, 148, 0x0202, 16]);
    assert_eq!(bytes[204..212], 0x0123_4567u64.to_le_bytes());
    assert!(bytes[212..].iter().all(|&b| b == 0));
    let bytes = packed(Weights::Q8 { group: 32 }, true, true).emit();
    assert_eq!(u32_at(&bytes, 200), 65_536 + 16);
}

#[test]
fn packed_files_need_a_kind_that_is_packed_and_their_extension() {
    assert!(packed(Weights::F32, false, false).check().is_err());
    assert!(packed(Q4, false, true).check().is_err());
    for panel_rows in [0, PANEL_ROWS_MAX + 1, usize::MAX] {
        let header = packed(Q4, false, false);
        let packed = header.packed.map(|packed| Packed { panel_rows, ..packed });
        assert!(Header { packed, ..header }.check().is_err(), "{panel_rows}");
    }
    let plain = Header { has_extension: false, head_dim: 16, ..small(ALL_Q4) };
    let mut bytes = file(&plain);
    bytes[4..8].copy_from_slice(&259i32.to_le_bytes());
    assert!(Header::parse(&bytes).is_err());
}

#[test]
fn every_flipped_bit_of_an_extended_header_is_refused() {
    let blocks = featured(Weights::Ggml);
    for header in
        [small(F32), small(Q4), small(B2_SIX), packed(Q4, false, false), featured(Q4), blocks]
    {
        let good = file(&header);
        for bit in 0..HEADER_LEN * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&bytes).is_err(), "bit {bit}");
        }
    }
}

#[test]
fn a_flipped_bit_in_a_tensor_is_found_by_verify() {
    let header = small(Weights::F32);
    let mut bytes = file(&header);
    let at = header.tensors().find(|t| t.id.kind == TensorKind::Wk).map(|t| t.offset as usize);
    bytes[at.expect("every model has wk")] ^= 4;
    let what = "layers.0.wk".to_owned();
    assert_eq!(header.verify(&bytes), Err(FormatError::Checksum { what }));
}

#[test]
fn truncation_names_the_tensor() {
    let header = small(Weights::F32);
    let bytes = file(&header);
    let wq = header.tensors().find(|t| t.id == TensorId { kind: TensorKind::Wq, layer: 1 });
    let cut = wq.expect("two layers").offset as usize + 5;
    match Header::parse(&bytes[..cut]) {
        Err(FormatError::Truncated { what, .. }) => assert_eq!(what, "layers.1.wq"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn types_of_blocks_that_do_not_fit_are_refused() {
    let sound = file(&partly_dense(Weights::Ggml));
    let header = Header::parse(&sound).unwrap();
    assert_eq!(header.ggml.in_use().len(), 6);
    let start = header.len_bytes() - header.types_len();
    let refusal = |at: usize, byte: u8| {
        let mut bytes = sound.clone();
        bytes[start + at] = byte;
        let crc = crc32fast::hash(&bytes[start..start + header.types_len()]);
        bytes[244..248].copy_from_slice(&crc.to_le_bytes());
        let crc = header_crc(&bytes[..HEADER_LEN]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        Header::parse(&bytes).unwrap_err().to_string()
    };
    // A type without number, none, and one of longer blocks than a row has.
    for byte in [200, 0] {
        assert!(refusal(0, byte).contains(&format!("in blocks of type {byte}")));
    }
    assert!(refusal(0, Ggml::Q4K.id()).contains("rows of 64 values in blocks of 256"));
    assert!(refusal(header.types_len() - 1, 1).contains("of other tensors"));
    let mut bytes = sound.clone();
    bytes[start] = Ggml::Q5_0.id();
    assert!(Header::parse(&bytes).unwrap_err().to_string().contains("types of blocks"));
}
