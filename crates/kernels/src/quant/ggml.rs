//! The block types of ggml, which GGUF files store matrices in.
//!
//! ```text
//! type  values  bytes  layout
//! Q4_0      32     18  f16 d, 16 × u8: value i low, value i + 16 high;   w = d (q - 8)
//! Q4_1      32     20  f16 d, f16 m, codes as above;                     w = d q + m
//! Q5_0      32     22  f16 d, u32 of fifth bits, codes as above;         w = d (q - 16)
//! Q5_1      32     24  f16 d, f16 m, u32 of fifth bits, codes as above;  w = d q + m
//! Q8_0      32     34  f16 d, 32 × i8;                                   w = d q
//! Q4_K     256    144  f16 d, f16 m, 12 bytes of scales, 128 × u8;       w = d s q - m t
//! Q5_K     256    176  as Q4_K with 32 bytes of fifth bits before the codes
//! Q6_K     256    210  128 × u8, 64 × u8 of high bits, 16 × i8 scales s, f16 d;  w = d s (q - 32)
//! MXFP4     32     17  u8 e, codes as Q4_0;                              w = 2^(e - 127) MXFP4[q]
//! Q2_K     256     84  16 × u8: scale s low, minimum t high, 64 × u8 of 2 bits, f16 d, f16 m;    w = d s q - m t
//! Q3_K     256    110  32 × u8 of third bits, 64 × u8 of 2 bits, 12 bytes of scales s, f16 d;    w = d (s - 32) (q - 4)
//! IQ4_NL    32     18  as Q4_0;                                          w = d NL[q]
//! IQ4_XS   256    136  f16 d, u16 and 4 × u8 of scales s, 128 × u8;      w = d (s - 32) NL[q]
//! ```
//!
//! Operations are in f32 in the order that ggml's own Python package takes, so that results are
//! the same bits.

#[cfg(feature = "tools")]
pub(super) mod encode;
mod matrix;
mod runs;

use super::f16::half_to_f32;
#[cfg(feature = "tools")]
pub use encode::encode;
pub use matrix::GgmlMatrix;
pub use runs::{Codes, EVEN, Form, MXFP4_STEPS, NL_STEPS, Run, Steps, table};

/// A block type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ggml {
    /// 4 bits and a scale.
    Q4_0,
    /// 4 bits, a scale and a minimum.
    Q4_1,
    /// 5 bits and a scale.
    Q5_0,
    /// 5 bits, a scale and a minimum.
    Q5_1,
    /// 8 bits and a scale.
    Q8_0,
    /// 4 bits in 8 groups with scales and minima of 6 bits.
    Q4K,
    /// 5 bits in 8 groups with scales and minima of 6 bits.
    Q5K,
    /// 6 bits in 16 groups with scales of 8 bits.
    Q6K,
    /// Floats of 4 bits and a power of two.
    Mxfp4,
    /// 2 bits in 16 groups with scales and minima of 4 bits.
    Q2K,
    /// 3 bits in 16 groups with scales of 6 bits.
    Q3K,
    /// 4 bits that stand for unequal steps, and a scale.
    Iq4Nl,
    /// 4 bits that stand for unequal steps, in 8 groups with scales of 6 bits.
    Iq4Xs,
}

/// Values of the codes of IQ4_NL and IQ4_XS.
const NL: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// Values of the codes of MXFP4: a sign, two bits of exponent and one of mantissa. ggml has no negative zero.
pub const MXFP4: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The power of two that scales a block of MXFP4; 255 stands for no number.
pub fn mxfp4_scale(exponent: u8) -> f32 {
    match exponent {
        0 => f32::MIN_POSITIVE / 2.0,
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// Values of a block of the older types.
pub const SHORT: usize = 32;
/// Values of a block of the `_K` types.
pub(super) const LONG: usize = 256;
/// Bytes of a block of [`Ggml::Q8_0`].
pub const Q8_0_BYTES: usize = 34;

impl Ggml {
    /// All types.
    pub const ALL: [Ggml; 13] = [
        Ggml::Q4_0,
        Ggml::Q4_1,
        Ggml::Q5_0,
        Ggml::Q5_1,
        Ggml::Q8_0,
        Ggml::Q2K,
        Ggml::Q3K,
        Ggml::Q4K,
        Ggml::Q5K,
        Ggml::Q6K,
        Ggml::Iq4Nl,
        Ggml::Iq4Xs,
        Ggml::Mxfp4,
    ];

    /// The number of the type in GGUF files.
    pub fn id(self) -> u8 {
        match self {
            Ggml::Q4_0 => 2,
            Ggml::Q4_1 => 3,
            Ggml::Q5_0 => 6,
            Ggml::Q5_1 => 7,
            Ggml::Q8_0 => 8,
            Ggml::Q2K => 10,
            Ggml::Q3K => 11,
            Ggml::Q4K => 12,
            Ggml::Q5K => 13,
            Ggml::Q6K => 14,
            Ggml::Iq4Nl => 20,
            Ggml::Iq4Xs => 23,
            Ggml::Mxfp4 => 39,
        }
    }

    /// The type that GGUF files number `id`.
    pub fn from_id(id: u32) -> Option<Ggml> {
        Ggml::ALL.into_iter().find(|kind| u32::from(kind.id()) == id)
    }

    /// Name of the type, as llama.cpp writes it.
    pub fn name(self) -> &'static str {
        match self {
            Ggml::Q4_0 => "Q4_0",
            Ggml::Q4_1 => "Q4_1",
            Ggml::Q5_0 => "Q5_0",
            Ggml::Q5_1 => "Q5_1",
            Ggml::Q8_0 => "Q8_0",
            Ggml::Q2K => "Q2_K",
            Ggml::Q3K => "Q3_K",
            Ggml::Q4K => "Q4_K",
            Ggml::Q5K => "Q5_K",
            Ggml::Q6K => "Q6_K",
            Ggml::Iq4Nl => "IQ4_NL",
            Ggml::Iq4Xs => "IQ4_XS",
            Ggml::Mxfp4 => "MXFP4",
        }
    }

    /// Values of a block.
    #[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
    pub fn len(self) -> usize {
        match self {
            Ggml::Q2K | Ggml::Q3K | Ggml::Q4K | Ggml::Q5K | Ggml::Q6K | Ggml::Iq4Xs => LONG,
            _ => SHORT,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            Ggml::Q4_0 => 18,
            Ggml::Q4_1 => 20,
            Ggml::Q5_0 => 22,
            Ggml::Q5_1 => 24,
            Ggml::Q8_0 => Q8_0_BYTES,
            Ggml::Q4K => 144,
            Ggml::Q5K => 176,
            Ggml::Q6K => 210,
            Ggml::Mxfp4 => 17,
            Ggml::Q2K => 84,
            Ggml::Q3K => 110,
            Ggml::Iq4Nl => 18,
            Ggml::Iq4Xs => 136,
        }
    }

    /// Converts whole blocks.
    ///
    /// # Panics
    /// If `out` does not have one place for each value.
    pub fn widen(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Ggml::Q4_0 => each(bytes, out, q4_0),
            Ggml::Q4_1 => each(bytes, out, q4_1),
            Ggml::Q5_0 => each(bytes, out, q5_0),
            Ggml::Q5_1 => each(bytes, out, q5_1),
            Ggml::Q8_0 => each(bytes, out, q8_0),
            Ggml::Q4K => each(bytes, out, q4_k),
            Ggml::Q5K => each(bytes, out, q5_k),
            Ggml::Q6K => each(bytes, out, q6_k),
            Ggml::Mxfp4 => each(bytes, out, mxfp4),
            Ggml::Q2K => each(bytes, out, q2_k),
            Ggml::Q3K => each(bytes, out, q3_k),
            Ggml::Iq4Nl => each(bytes, out, iq4_nl),
            Ggml::Iq4Xs => each(bytes, out, iq4_xs),
        }
    }
}

/// Takes apart blocks of [`Ggml::Q8_0`] into their codes and scales, which are exact in f32.
///
/// # Panics
/// If `codes` does not have one place for each value, or `scales` not one for each block.
#[cfg(feature = "tools")]
pub fn split_q8_0(bytes: &[u8], codes: &mut [u8], scales: &mut [f32]) {
    let (blocks, rest) = bytes.as_chunks::<Q8_0_BYTES>();
    assert!(rest.is_empty());
    assert_eq!(blocks.len(), scales.len());
    assert_eq!(blocks.len() * SHORT, codes.len());
    let out = codes.as_chunks_mut::<SHORT>().0.iter_mut().zip(scales);
    for (block, (codes, scale)) in blocks.iter().zip(out) {
        *scale = f16_at(block, 0);
        codes.copy_from_slice(&block[2..]);
    }
}

/// Encodes values in blocks of [`Ggml::Q8_0`]: the scale is `max|w| / 127`, rounded to f16.
///
/// # Panics
/// If `out` does not have the bytes of whole blocks of `values`.
#[cfg(feature = "tools")]
fn encode_q8_0(values: &[f32], out: &mut [u8]) {
    let (values, out) = (values.as_chunks::<SHORT>().0, out.as_chunks_mut::<Q8_0_BYTES>().0);
    assert_eq!(values.len(), out.len());
    for (values, out) in values.iter().zip(out) {
        let max = values.iter().fold(0.0, |max: f32, value| max.max(value.abs()));
        let d = half::f16::from_f32(max / 127.0);
        let (scale, codes) = out.split_at_mut(2);
        scale.copy_from_slice(&d.to_le_bytes());
        let factor = if d == half::f16::ZERO { 0.0 } else { 1.0 / d.to_f32() };
        for (code, value) in codes.iter_mut().zip(values) {
            *code = (value * factor).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
        }
    }
}

fn each<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    widen: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, rest) = bytes.as_chunks::<BYTES>();
    assert!(rest.is_empty());
    assert_eq!(blocks.len() * LEN, out.len());
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<LEN>().0) {
        widen(block, out);
    }
}

fn f16_at(block: &[u8], at: usize) -> f32 {
    half_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

fn q4_0(block: &[u8; 18], out: &mut [f32; SHORT]) {
    let d = f16_at(block, 0);
    for (i, &byte) in block[2..].iter().enumerate() {
        out[i] = d * (f32::from(byte & 15) - 8.0);
        out[i + 16] = d * (f32::from(byte >> 4) - 8.0);
    }
}

fn q4_1(block: &[u8; 20], out: &mut [f32; SHORT]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for (i, &byte) in block[4..].iter().enumerate() {
        out[i] = d * f32::from(byte & 15) + m;
        out[i + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// The 32 codes of 5 bits in `bytes`: fifth bits, then the others.
fn five_bits(bytes: &[u8]) -> [f32; SHORT] {
    let fifth = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    std::array::from_fn(|i| {
        let byte = bytes[4 + i % 16];
        let low = if i < 16 { byte & 15 } else { byte >> 4 };
        f32::from(low | ((fifth >> i & 1) as u8) << 4)
    })
}

fn q5_0(block: &[u8; 22], out: &mut [f32; SHORT]) {
    let d = f16_at(block, 0);
    *out = five_bits(&block[2..]).map(|q| d * (q - 16.0));
}

fn q5_1(block: &[u8; 24], out: &mut [f32; SHORT]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    *out = five_bits(&block[4..]).map(|q| d * q + m);
}

fn q8_0(block: &[u8; Q8_0_BYTES], out: &mut [f32; SHORT]) {
    let d = f16_at(block, 0);
    for (out, &byte) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(byte as i8);
    }
}

fn mxfp4(block: &[u8; 17], out: &mut [f32; SHORT]) {
    let d = mxfp4_scale(block[0]);
    for (i, &byte) in block[1..].iter().enumerate() {
        out[i] = d * MXFP4[usize::from(byte & 15)];
        out[i + 16] = d * MXFP4[usize::from(byte >> 4)];
    }
}

/// Scale and minimum of group `i` of 8, six bits each. The upper two bits of the last four groups are in the bytes of
/// the first four.
fn scale_and_min(scales: &[u8], i: usize) -> (u8, u8) {
    match i {
        0..4 => (scales[i] & 63, scales[i + 4] & 63),
        _ => {
            let low = scales[i + 4];
            (low & 15 | scales[i - 4] >> 6 << 4, low >> 4 | scales[i] >> 6 << 4)
        }
    }
}

/// Groups of 32: two of them share 32 bytes, the first in the low halves. `fifth` gives the fifth bit of value `l` in
/// group `i`.
fn k_groups(block: &[u8], codes: &[u8], out: &mut [f32; LONG], fifth: impl Fn(usize, usize) -> u8) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&block[4..16], i);
        let (d, m) = (d * f32::from(scale), m * f32::from(min));
        for (l, (out, &byte)) in out.iter_mut().zip(&codes[i / 2 * 32..][..32]).enumerate() {
            let low = byte >> (i % 2 * 4) & 15;
            *out = d * f32::from(low | fifth(i, l) << 4) - m;
        }
    }
}

fn q4_k(block: &[u8; 144], out: &mut [f32; LONG]) {
    k_groups(block, &block[16..], out, |_, _| 0);
}

fn q5_k(block: &[u8; 176], out: &mut [f32; LONG]) {
    let fifth = &block[16..48];
    k_groups(block, &block[48..], out, |i, l| fifth[l] >> i & 1);
}

/// Code `l` of run `run`. There are halves of 128 values; in each, four runs of 32 share 64 bytes of low and 32 of high
/// bits.
#[inline]
fn q6_k_code(block: &[u8], run: usize, l: usize) -> u8 {
    let (half, s) = (run / 4, run % 4);
    let low = block[half * 64 + s % 2 * 32 + l] >> (s / 2 * 4) & 15;
    let high = block[128 + half * 32 + l] >> (2 * s) & 3;
    low | high << 4
}

fn q6_k(block: &[u8; 210], out: &mut [f32; LONG]) {
    let d = f16_at(block, 208);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (l, out) in out.iter_mut().enumerate() {
            let scale = f32::from(block[192 + run * 2 + l / 16] as i8);
            *out = d * scale * (f32::from(q6_k_code(block, run, l)) - 32.0);
        }
    }
}

/// Value `i` of 256 codes of 2 bits. Each half of 128 values has 32 bytes; each run of 32 values has two bits in all of
/// these.
fn two_bits(codes: &[u8], i: usize) -> u8 {
    codes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}

fn q2_k(block: &[u8; 84], out: &mut [f32; LONG]) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (d, m) = (f16_at(block, 80), f16_at(block, 82));
    for (i, out) in out.iter_mut().enumerate() {
        let group = scales[i / 16];
        let (d, m) = (d * f32::from(group & 15), m * f32::from(group >> 4));
        *out = d * f32::from(two_bits(codes, i)) - m;
    }
}

/// Code `i` of a block: the value, plus 4. A value whose third bit is not set is lower by 4.
#[inline]
fn q3_k_code(block: &[u8], i: usize) -> u8 {
    two_bits(&block[32..96], i) | (block[i % 32] >> (i / 32) & 1) << 2
}

/// Scale of 16 values, plus 32.
#[inline]
fn q3_k_scale(block: &[u8], group: usize) -> i8 {
    let scales = &block[96..108];
    let low = scales[group % 8] >> (group / 8 * 4) & 15;
    let high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
    (low | high << 4) as i8
}

fn q3_k(block: &[u8; 110], out: &mut [f32; LONG]) {
    let d = f16_at(block, 108);
    for (i, out) in out.iter_mut().enumerate() {
        let scale = f32::from(q3_k_scale(block, i / 16)) - 32.0;
        *out = d * scale * (f32::from(q3_k_code(block, i)) - 4.0);
    }
}

fn iq4_nl(block: &[u8; 18], out: &mut [f32; SHORT]) {
    unequal_steps(f16_at(block, 0), &block[2..], out);
}

/// Scale of 32 values, plus 32.
fn iq4_xs_scale(block: &[u8], group: usize) -> i8 {
    let high = u16::from_le_bytes([block[2], block[3]]);
    let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
    (low | ((high >> (2 * group) & 3) as u8) << 4) as i8
}

fn iq4_xs(block: &[u8; 136], out: &mut [f32; LONG]) {
    for (group, out) in out.as_chunks_mut::<SHORT>().0.iter_mut().enumerate() {
        let scale = f32::from(iq4_xs_scale(block, group)) - 32.0;
        unequal_steps(f16_at(block, 0) * scale, &block[8 + group * 16..][..16], out);
    }
}

/// Values of 16 bytes of codes.
fn unequal_steps(d: f32, codes: &[u8], out: &mut [f32; SHORT]) {
    for (i, &byte) in codes.iter().enumerate() {
        out[i] = d * NL[usize::from(byte & 15)];
        out[i + 16] = d * NL[usize::from(byte >> 4)];
    }
}
