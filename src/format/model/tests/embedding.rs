//! Hostile blocks of models of embeddings.

use super::*;

/// A small encoder with a prompt, in f32.
fn embedding() -> Header {
    let encoder = Encoder { n_positions: 128, is_gated: false };
    let prompt = Prompt { name: "query".to_owned(), text: "query: ".to_owned() };
    let embedding = EmbeddingModel {
        pooling: Pooling::Mean,
        is_normalised: true,
        is_bidirectional: true,
        encoder: Some(encoder),
        dense_dim: 96,
        first: Some(1),
        last: Some(2),
        prompts: vec![prompt],
    };
    let features = Features {
        qkv_bias: true,
        output_bias: true,
        ffn_bias: true,
        activation: Activation::GeluErf,
        embedding: Some(embedding),
        ..Features::default()
    };
    let small = small(F32);
    Header {
        features,
        architecture: Architecture::Bert,
        shared_classifier: true,
        max_seq_len: small.max_seq_len.min(128),
        ..small
    }
}

#[test]
fn hostile_embeddings_are_refused_by_name() {
    let header = embedding();
    assert_eq!(Header::parse(&with_block(&header, |_| {})).unwrap(), header);
    // Behind the fixed part of the block.
    let start = 128;
    for (at, value, word) in [
        (0, 0, "pooling 0"),
        (0, u32::MAX, "pooling"),
        (4, u32::MAX, "flags"),
        (4, 0b11_1011, "unknown fields"),
        (8, u32::MAX, "number of positions"),
        (8, 1, "number of positions"),
        (12, u32::MAX, "dense layers"),
        (16, u32::MAX, "first or last id"),
        (20, 1 << 20, "first or last id"),
        (24, u32::MAX, "prompts"),
        (24, 0, "unknown fields"),
        (28, 1, "unknown fields"),
        (32, u32::MAX, "truncated"),
        (36, u32::MAX, "UTF-8"),
    ] {
        let file = with_block(&header, |block| {
            block[start + at..][..4].copy_from_slice(&value.to_le_bytes());
        });
        let error = Header::parse(&file).unwrap_err().to_string();
        assert!(error.contains(word), "{value:#x} at {at}: {error}");
    }
}
