//! A GGUF file for tests.
#![allow(dead_code, reason = "every test crate compiles this module; not all read GGUF files")]

use std::fs;

use super::models::package;

/// The name of a field or tensor, or a text.
fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// The fields of a GGUF file, their number, and the size of the vocabulary.
fn gguf_fields(file: &[u8]) -> (&[u8], u64, u64) {
    fn number(file: &[u8], at: &mut usize, bytes: usize) -> u64 {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(&file[*at..*at + bytes]);
        *at += bytes;
        u64::from_le_bytes(number)
    }
    fn skip(file: &[u8], at: &mut usize, kind: u64) {
        *at += match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 => number(file, at, 8) as usize,
            _ => 8,
        }
    }
    let (mut at, mut n_tokens) = (16, 0);
    let n_fields = number(file, &mut at, 8);
    let start = at;
    for _ in 0..n_fields {
        let len = number(file, &mut at, 8) as usize;
        let name = &file[at..at + len];
        at += len;
        let kind = number(file, &mut at, 4);
        if kind != 9 {
            skip(file, &mut at, kind);
            continue;
        }
        let (kind, n) = (number(file, &mut at, 4), number(file, &mut at, 8));
        if name == b"tokenizer.ggml.tokens" {
            n_tokens = n;
        }
        (0..n).for_each(|_| skip(file, &mut at, kind));
    }
    (&file[start..at], n_fields, n_tokens)
}

/// The GGUF file `file` as programs that quantise write it: shapes end with their last size above 1.
pub(crate) fn with_short_shapes(file: &[u8]) -> Vec<u8> {
    let word = |at: usize, bytes: usize| {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&file[at..at + bytes]);
        u64::from_le_bytes(word) as usize
    };
    let n_tensors = word(8, 8);
    let mut at = 24 + gguf_fields(file).0.len();
    let mut out = file[..at].to_vec();
    for _ in 0..n_tensors {
        let dims_at = at + 8 + word(at, 8);
        let n_dims = word(dims_at, 4);
        let dim = |index: usize| word(dims_at + 4 + 8 * index, 8);
        let n_kept = (1..=n_dims).rev().find(|n| *n == 1 || dim(n - 1) != 1).unwrap();
        out.extend(&file[at..dims_at]);
        out.extend((n_kept as u32).to_le_bytes());
        out.extend(&file[dims_at + 4..][..8 * n_kept]);
        at = dims_at + 4 + 8 * n_dims;
        out.extend(&file[at..at + 12]);
        at += 12;
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(&file[at.next_multiple_of(32)..]);
    out
}

/// A GGUF file of a small model with the tokenizer of `spm.gguf`.
pub(crate) fn whole_gguf() -> Vec<u8> {
    const DIM: u64 = 64;
    let spm = fs::read(package("tests/golden/gguf/spm.gguf")).unwrap();
    let (tokenizer, n_tokenizer, n_tokens) = gguf_fields(&spm);
    let fields = [
        ("block_count", 1),
        ("context_length", 256),
        ("embedding_length", DIM as u32),
        ("feed_forward_length", DIM as u32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
    ];
    let matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let matrices = matrices.map(|name| (format!("blk.0.{name}.weight"), vec![DIM, DIM]));
    let norms = ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"];
    let norms = norms.map(|name| (name.to_owned(), vec![DIM]));
    let embedding = ("token_embd.weight".to_owned(), vec![DIM, n_tokens]);
    let tensors: Vec<_> = [embedding].into_iter().chain(norms).chain(matrices).collect();

    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((n_tokenizer + fields.len() as u64 + 1).to_le_bytes());
    file.extend(tokenizer);
    for (name, value) in fields {
        file.extend(string(&format!("llama.{name}")));
        file.extend([4u32.to_le_bytes(), value.to_le_bytes()].concat());
    }
    file.extend(string("llama.attention.layer_norm_rms_epsilon"));
    file.extend([6u32.to_le_bytes(), 1e-5f32.to_le_bytes()].concat());
    let mut values = Vec::new();
    for (name, dimensions) in &tensors {
        file.extend(string(name));
        file.extend((dimensions.len() as u32).to_le_bytes());
        file.extend(dimensions.iter().flat_map(|size| size.to_le_bytes()));
        file.extend(0u32.to_le_bytes());
        file.extend((values.len() as u64).to_le_bytes());
        for i in 0..dimensions.iter().product() {
            let value = (i * 7919 + values.len() as u64) % 1009;
            values.extend((value as f32 / 1009.0 - 0.5).to_le_bytes());
        }
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(values);
    file
}
