//! Model files built from the format's description, with no code of the exporter except the checksum.

use crate::export::checkpoint::{Checkpoint, Dims, Names, Stored};

/// Header fields of an expected file, besides the dimensions.
#[derive(Clone)]
pub(crate) struct Expected {
    pub(crate) version: i32,
    pub(crate) group: usize,
    pub(crate) is_shared: bool,
    pub(crate) is_permuted: bool,
    pub(crate) max_seq_len: i32,
    pub(crate) bos: i32,
    pub(crate) stop_ids: Vec<u32>,
}

/// The expected file for `checkpoint`.
pub(crate) fn file(checkpoint: &Checkpoint, dims: Dims, names: Names, e: &Expected) -> Vec<u8> {
    let [embedding, norm, classifier, layers, per_layer @ ..] = names;
    let load = |name: &str| values(&checkpoint.tensors[&format!("{name}.weight")]);
    let each = |name: &str| -> Vec<Vec<f32>> {
        (0..dims.n_layers).map(|layer| load(&format!("{layers}.{layer}.{name}"))).collect()
    };
    let [attention_norm, ffn_norm, wq, wk, wv, wo, w1, w2, w3] = per_layer;
    let mut norms = each(attention_norm);
    norms.extend(each(ffn_norm));
    norms.push(load(norm));
    let cols = |name: &str| checkpoint.tensors[&format!("{layers}.0.{name}.weight")].shape[1];
    let mut matrices = Vec::new();
    for (name, heads) in [(wq, dims.n_heads), (wk, dims.n_kv_heads)] {
        for w in each(name) {
            let w = if e.is_permuted { permuted(&w, heads, dims) } else { w };
            matrices.push((w, cols(name)));
        }
    }
    for name in [wv, wo, w1, w2, w3] {
        matrices.extend(each(name).into_iter().map(|w| (w, cols(name))));
    }
    let vocabulary_bytes = |name: &str| match e.version {
        1 => f32_bytes(&load(name)),
        _ => q8_bytes(&load(name), e.group),
    };
    let mut tensors: Vec<Vec<u8>> = norms.iter().map(|w| f32_bytes(w)).collect();
    tensors.push(vocabulary_bytes(embedding));
    tensors.extend(matrices.iter().map(|(w, cols)| match e.version {
        1 => f32_bytes(w),
        2 => q8_bytes(w, e.group),
        3 => q4_bytes(w),
        _ => w.chunks(*cols).flat_map(b2_row_bytes).collect(),
    }));
    if !e.is_shared {
        tensors.push(vocabulary_bytes(classifier));
    }
    assemble(dims, e, &tensors)
}

fn values(stored: &Stored) -> Vec<f32> {
    let halves = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    match stored.dtype {
        "F32" => {
            let words = stored.bytes.chunks(4);
            words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        "F16" => stored.bytes.chunks(2).map(|b| half::f16::from_bits(halves(b)).to_f32()).collect(),
        _ => stored.bytes.chunks(2).map(|b| half::bf16::from_bits(halves(b)).to_f32()).collect(),
    }
}

/// `W.view(heads, 2, head_dim / 2, C).transpose(1, 2).reshape(R, C)`
fn permuted(w: &[f32], heads: usize, dims: Dims) -> Vec<f32> {
    let half = dims.head_dim / 2;
    let mut out = Vec::new();
    for head in 0..heads {
        for i in 0..half {
            for part in 0..2 {
                for col in 0..dims.dim {
                    out.push(w[((head * 2 + part) * half + i) * dims.dim + col]);
                }
            }
        }
    }
    out
}

fn f32_bytes(w: &[f32]) -> Vec<u8> {
    w.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn q8_bytes(w: &[f32], group: usize) -> Vec<u8> {
    let mut q = Vec::new();
    let mut scales = Vec::new();
    for group in w.chunks(group) {
        let max = group.iter().fold(0.0f32, |max, w| max.max(w.abs()));
        let scale = max / 127.0;
        for w in group {
            let value = if max == 0.0 { 0.0 } else { w * (1.0 / scale) };
            // `round` rounds halves away from zero.
            q.push(value.round() as i8 as u8);
        }
        scales.extend(scale.to_le_bytes());
    }
    [q, scales].concat()
}

/// Blocks of weights on sixteen even steps, with the first and the last step used.
fn q4_bytes(w: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in w.chunks(32) {
        let low = block.iter().copied().fold(f32::MAX, f32::min);
        let high = block.iter().copied().fold(f32::MIN, f32::max);
        let step = (high - low) / 15.0;
        for float in [step, low] {
            let stored = half::f16::from_f32(float);
            assert_eq!(stored.to_f32(), float, "the test's weights are on steps");
            bytes.extend(stored.to_le_bytes());
        }
        let code = |w: f32| {
            let code = ((w - low) / step) as u8;
            assert_eq!(f32::from(code) * step + low, w, "the test's weights are on steps");
            code
        };
        for i in 0..16 {
            bytes.push(code(block[i]) + 16 * code(block[i + 16]));
        }
    }
    bytes
}

/// A row of blocks on the same sixteen even steps, one of which is 0.
fn b2_row_bytes(w: &[f32]) -> Vec<u8> {
    let [low, high] = [f32::min, f32::max].map(|of| w[..32].iter().copied().reduce(of).unwrap());
    let step = (high - low) / 15.0;
    let mut bytes = (step / (127.0 * 16.0)).to_le_bytes().to_vec();
    for block in w.chunks(32) {
        let low = block.iter().copied().fold(f32::MAX, f32::min);
        bytes.extend([127, (16.0 * -low / step) as u8]);
        let code = |w: f32| ((w - low) / step) as u8;
        bytes.extend((0..16).map(|i| code(block[i]) + 16 * code(block[i + 16])));
    }
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn assemble(dims: Dims, e: &Expected, tensors: &[Vec<u8>]) -> Vec<u8> {
    let mut header = vec![0; 256];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    let vocab = dims.vocab_size as i32;
    put(0, &0x616B_3432u32.to_le_bytes());
    put(4, &e.version.to_le_bytes());
    put(8, &(dims.dim as i32).to_le_bytes());
    put(12, &(dims.ffn_dim as i32).to_le_bytes());
    put(16, &(dims.n_layers as i32).to_le_bytes());
    put(20, &(dims.n_heads as i32).to_le_bytes());
    put(24, &(dims.n_kv_heads as i32).to_le_bytes());
    put(28, &(if e.version == 1 && !e.is_shared { -vocab } else { vocab }).to_le_bytes());
    put(32, &e.max_seq_len.to_le_bytes());
    put(36, &[u8::from(e.is_shared)]);
    if e.version >= 3 {
        put(76, &1u32.to_le_bytes());
    }
    if e.version >= 2 {
        put(37, &(e.group as i32).to_le_bytes());
    }
    put(64, b"LEAX");
    put(68, &1u32.to_le_bytes());
    put(72, &132u32.to_le_bytes());
    put(80, &(dims.head_dim as u32).to_le_bytes());
    put(84, &1e-6f32.to_le_bytes());
    put(88, &10_000f64.to_le_bytes());
    put(124, &e.bos.to_le_bytes());
    put(128, &(e.stop_ids.len() as u32).to_le_bytes());
    for (i, id) in e.stop_ids.iter().enumerate() {
        put(132 + 4 * i, &id.to_le_bytes());
    }
    let table_at = 256 + tensors.iter().map(Vec::len).sum::<usize>();
    put(176, &(table_at as u64).to_le_bytes());
    put(184, &(4 * tensors.len() as u64).to_le_bytes());
    let crc = crc32fast::hash(&header);
    header[192..196].copy_from_slice(&crc.to_le_bytes());
    let crcs: Vec<u8> = tensors.iter().flat_map(|t| crc32fast::hash(t).to_le_bytes()).collect();
    [header, tensors.concat(), crcs].concat()
}
