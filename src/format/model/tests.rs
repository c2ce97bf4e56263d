//! Tests of the model header.

use std::ops::Range;

use super::bytes::{CRC_AT, header_crc};
use super::*;
use crate::format::cursor::u32_at;
use crate::format::{ChatTemplate, FormatError};

const Q4: Weights = Weights::Q4 { group: 32, int8_embedding: true };
const ALL_Q4: Weights = Weights::Q4 { group: 32, int8_embedding: false };

fn small(weights: Weights) -> Header {
    Header {
        weights,
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
        bos: Some(1),
        stop_ids: vec![2, 39],
        chat_template: ChatTemplate::MistralV1,
        tokenizer_hash: 0x0123_4567_89ab_cdef,
        has_extension: true,
        packed: None,
        share: None,
    }
}

/// A whole file with zero weights and right checksums.
fn file(header: &Header) -> Vec<u8> {
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
    for weights in [Weights::F32, Weights::Q8 { group: 32 }, Q4, ALL_Q4] {
        for shared_classifier in [false, true] {
            let header = Header { shared_classifier, ..small(weights) };
            let bytes = file(&header);
            assert_eq!(Header::parse(&bytes), Ok(header.clone()));
            assert_eq!(header.verify(&bytes), Ok(true));
        }
    }
}

#[test]
fn files_of_some_layers_have_their_tensors_alone() {
    for weights in [Weights::F32, Weights::Q8 { group: 32 }, Q4] {
        for has_ends in [false, true] {
            let share = Some(FileShare { layers: 1..2, has_ends, fingerprint: 77 });
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
        let share = Some(FileShare { layers, has_ends: false, fingerprint: 0 });
        let header = Header { share, ..small(Q4) };
        assert!(matches!(header.check(), Err(FormatError::Unsupported(_))));
        assert!(Header::parse(&header.emit()).is_err());
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
fn four_bit_file_without_extension_has_no_int8() {
    let plain = Header { has_extension: false, head_dim: 16, ..small(ALL_Q4) };
    assert_eq!(Header::parse(&file(&plain)).map(|header| header.weights), Ok(ALL_Q4));
}

#[test]
fn flags_without_a_meaning_are_refused() {
    for (weights, flags) in [(Weights::F32, 1), (Weights::Q8 { group: 32 }, 1), (Q4, 3), (Q4, 2)] {
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
    for weights in [Weights::Q8 { group: 32 }, Q4, ALL_Q4] {
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

/// A file of packed matrices, among which the embedding is not.
fn packed(weights: Weights, shared_classifier: bool) -> Header {
    let packed = Some(Packed { layout: 0x0202, panel_rows: 16, fingerprint: 0x0123_4567 });
    Header { packed, shared_classifier, ..small(weights) }
}

#[test]
fn packed_matrices_have_whole_panels_and_aligned_places() {
    for weights in [Weights::Q8 { group: 32 }, Q4, ALL_Q4] {
        for shared in [false, true] {
            let header = packed(weights, shared);
            let bytes = file(&header);
            assert_eq!(Header::parse(&bytes), Ok(header.clone()));
            assert_eq!(header.verify(&bytes), Ok(true));
            assert!(header.tensors().all(|t| t.offset % 128 == 0 && t.bytes % 128 == 0));
            assert_eq!(header.fingerprint(&bytes), 0x0123_4567);
            assert_eq!(header.packing_of(TensorKind::Embedding), None);
            assert_eq!(header.packing_of(TensorKind::Classifier), header.packed);
            assert_eq!(header.n_tensors(), header.plain().n_tensors() + usize::from(shared));
        }
    }
    // 40 rows of 64 columns are 48 in panels of 16: codes, and a scale for each 32.
    let header = packed(Weights::Q8 { group: 32 }, false);
    assert_eq!(header.content_bytes(TensorKind::Classifier), 48 * (64 + 2 * 4));
    assert_eq!(header.content_bytes(TensorKind::Embedding), 40 * (64 + 2 * 4));
}

#[test]
fn packed_header_bytes_are_pinned() {
    let bytes = packed(Weights::Q8 { group: 32 }, false).emit();
    assert_eq!([4, 72, 196, 200].map(|at| u32_at(&bytes, at)), [258, 148, 0x0202, 16]);
    assert_eq!(bytes[204..212], 0x0123_4567u64.to_le_bytes());
    assert!(bytes[212..].iter().all(|&b| b == 0));
}

#[test]
fn packed_files_need_a_kind_that_is_packed_and_their_extension() {
    assert!(packed(Weights::F32, false).check().is_err());
    for panel_rows in [0, PANEL_ROWS_MAX + 1, usize::MAX] {
        let header = packed(Q4, false);
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
    for header in [small(Weights::F32), small(Q4), packed(Q4, false)] {
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
