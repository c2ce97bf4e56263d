//! The file's bytes are those that the format defines.

use serde_json::json;

use crate::common::folder::Folder;
use crate::common::quick;
use crate::export::checkpoint::{Checkpoint, Dims, HUGGING_FACE, META, Names, SMALL};
use crate::export::checkpoint::{export, options};
use crate::export::expected::{self, Expected};

fn separate(version: i32) -> Expected {
    Expected {
        version,
        group: 64,
        is_shared: false,
        is_permuted: true,
        max_seq_len: 512,
        bos: 1,
        stop_ids: vec![2],
    }
}

/// Compares without printing thousands of bytes.
fn assert_same(found: &[u8], wanted: &[u8]) {
    let first = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    assert_eq!(first, None, "first byte that differs");
    assert_eq!(found.len(), wanted.len());
}

fn check(checkpoint: &Checkpoint, dims: Dims, names: Names, expected: &Expected) {
    let folder = Folder::new();
    checkpoint.write(&folder);
    let found = export(&folder, &options(expected.version)).unwrap();
    assert_same(&found, &expected::file(checkpoint, dims, names, expected));
}

#[test]
fn every_stored_type_in_both_versions() {
    for dtype in ["F32", "F16", "BF16"] {
        for version in [1, 2] {
            let checkpoint = Checkpoint::hugging_face(dtype, SMALL);
            check(&checkpoint, SMALL, HUGGING_FACE, &separate(version));
        }
    }
}

#[test]
fn meta_rows_stay_in_their_order() {
    for version in [1, 2] {
        let expected = Expected {
            is_permuted: false,
            max_seq_len: 4096,
            bos: -1,
            stop_ids: vec![],
            ..separate(version)
        };
        check(&Checkpoint::meta("F16", SMALL), SMALL, META, &expected);
    }
}

#[test]
fn tied_checkpoint_has_no_classifier() {
    for version in [1, 2] {
        let mut checkpoint = Checkpoint::hugging_face("BF16", SMALL);
        checkpoint.set("config.json", "tie_word_embeddings", json!(true));
        checkpoint.tensors.remove("lm_head.weight");
        let expected = Expected { is_shared: true, ..separate(version) };
        check(&checkpoint, SMALL, HUGGING_FACE, &expected);
    }
}

#[test]
fn four_bit_matrices_are_blocks_and_the_vocabulary_is_int8() {
    for dtype in ["F32", "F16", "BF16"] {
        let mut checkpoint = Checkpoint::hugging_face(dtype, SMALL);
        checkpoint.put_on_steps();
        check(&checkpoint, SMALL, HUGGING_FACE, &separate(3));
    }
    let mut tied = Checkpoint::hugging_face("BF16", SMALL);
    tied.put_on_steps();
    tied.set("config.json", "tie_word_embeddings", json!(true));
    tied.tensors.remove("lm_head.weight");
    check(&tied, SMALL, HUGGING_FACE, &Expected { is_shared: true, ..separate(3) });
}

#[test]
fn matrices_of_4_5_bits_are_rows_of_a_step_and_blocks() {
    // Rows of an even number of blocks; and of three blocks, which are padded.
    for dims in [SMALL, Dims { ffn_dim: 96, ..SMALL }] {
        let mut checkpoint = Checkpoint::hugging_face("BF16", dims);
        checkpoint.put_on_even_steps();
        let group = if dims.ffn_dim == 96 { 32 } else { 64 };
        check(&checkpoint, dims, HUGGING_FACE, &Expected { group, ..separate(4) });
    }
}

#[test]
fn group_backs_off_until_it_divides_every_column_count() {
    let dims = Dims { ffn_dim: 96, ..SMALL };
    for version in [2, 3] {
        let mut checkpoint = Checkpoint::hugging_face("F32", dims);
        checkpoint.put_on_steps();
        check(&checkpoint, dims, HUGGING_FACE, &Expected { group: 32, ..separate(version) });
    }
}

#[test]
fn all_zero_group_has_scale_zero() {
    let mut checkpoint = Checkpoint::hugging_face("F32", SMALL);
    for index in 64..128 {
        checkpoint.poke("model.layers.1.mlp.up_proj.weight", index, 0.0);
    }
    check(&checkpoint, SMALL, HUGGING_FACE, &separate(2));
}

#[test]
fn shards_make_the_same_file_as_one() {
    let checkpoint = Checkpoint::hugging_face("BF16", SMALL);
    let wanted = expected::file(&checkpoint, SMALL, HUGGING_FACE, &separate(2));
    for with_index in [false, true] {
        let folder = Folder::new();
        checkpoint.write_shards(&folder, 3, with_index);
        assert_same(&export(&folder, &options(2)).unwrap(), &wanted);
    }
}

#[test]
fn tensors_of_several_blocks_are_put_together_exactly() {
    // Blocks hold 2^20 values: the embedding is 3 blocks, wq 2, the last ones partial.
    let dims = Dims {
        dim: 1088,
        ffn_dim: 128,
        n_layers: 1,
        n_heads: 10,
        n_kv_heads: 5,
        head_dim: 128,
        vocab_size: 2500,
    };
    let versions = if quick() { 2..3 } else { 1..4 };
    for version in versions {
        let mut checkpoint = Checkpoint::hugging_face("F16", dims);
        checkpoint.put_on_steps();
        check(&checkpoint, dims, HUGGING_FACE, &separate(version));
    }
}
