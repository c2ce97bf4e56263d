//! Stored number types and their conversion to f32.

use crate::quant::f16::half_to_f32;
use crate::quant::ggml::{Ggml, MXFP4};

/// Type of a tensor's values, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of an IEEE single.
    Bf16,
    /// A signed byte that stands for its number.
    I8,
    /// FP8 with four bits of exponent and three of mantissa, without infinities (OCP 8-bit Floating Point, 1.0).
    F8E4M3,
    /// A byte: 0 is 0, any other 1.
    Bool,
    /// A byte without a meaning of its own.
    U8,
    /// 32 values of MXFP4 (OCP Microscaling Formats, 1.0), two in a byte, the first in its low half. Their scale is
    /// stored elsewhere; here it counts as 1.
    Mxfp4,
    /// Zeros, which are not stored.
    Zeros,
    /// Blocks of quantised values.
    Blocks(Ggml),
}

impl ValueType {
    /// Number of values in a block, and the block's bytes.
    pub(crate) fn block(self) -> (usize, usize) {
        match self {
            ValueType::F32 => (1, 4),
            ValueType::F16 | ValueType::Bf16 => (1, 2),
            ValueType::I8 | ValueType::F8E4M3 | ValueType::Bool | ValueType::U8 => (1, 1),
            ValueType::Zeros => (1, 0),
            ValueType::Mxfp4 => (32, 16),
            ValueType::Blocks(kind) => (kind.len(), kind.bytes()),
        }
    }

    /// Bytes of `n` values, which are whole blocks.
    ///
    /// # Panics
    /// If `n` is not a multiple of a block's values.
    pub(crate) fn bytes(self, n: usize) -> usize {
        let (len, bytes) = self.block();
        assert!(n.is_multiple_of(len));
        n / len * bytes
    }

    /// Converts all values of `bytes`. Single values are exact in f32, those of blocks rounded.
    ///
    /// # Panics
    /// If `out` does not have one place for each value.
    #[inline(always)]
    pub(crate) fn widen(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), self.bytes(out.len()));
        match self {
            ValueType::F32 => convert(bytes, out, f32::from_le_bytes),
            ValueType::F16 => convert(bytes, out, |b| half_to_f32(u16::from_le_bytes(b))),
            ValueType::Bf16 => {
                convert(bytes, out, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16));
            }
            ValueType::I8 => convert(bytes, out, |b| f32::from(i8::from_le_bytes(b))),
            ValueType::F8E4M3 => convert(bytes, out, |[b]| f8e4m3_to_f32(b)),
            ValueType::Bool => convert(bytes, out, |[b]| f32::from(u8::from(b != 0))),
            ValueType::U8 => convert(bytes, out, |[b]| f32::from(b)),
            ValueType::Mxfp4 => {
                for (out, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                    *out = [byte & 15, byte >> 4].map(|code| MXFP4[usize::from(code)]);
                }
            }
            ValueType::Zeros => out.fill(0.0),
            ValueType::Blocks(kind) => kind.widen(bytes, out),
        }
    }
}

/// The value of an FP8 number of form E4M3.
fn f8e4m3_to_f32(byte: u8) -> f32 {
    let (sign, rest) = (u16::from(byte & 0x80) << 8, u16::from(byte & 0x7f));
    match rest {
        0x7f => f32::NAN,
        // Exponent and mantissa stand in an f16's like places, whose exponent's bias is 15, not 7: 8 too few.
        _ => half_to_f32(sign | rest << 7) * 256.0,
    }
}

/// One loop for each type, so that the compiler can use vectors.
#[inline(always)]
fn convert<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = value(*bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_type_survive_at_odd_addresses() {
        let wanted = [1.0, -0.0, -2.5, 65504.0];
        let f16 = wanted.map(half::f16::from_f32).map(half::f16::to_le_bytes).concat();
        let f32 = wanted.map(f32::to_le_bytes).concat();
        let cases = [(ValueType::F32, f32), (ValueType::F16, f16)];
        for (dtype, bytes) in cases {
            let moved = [&[0], &bytes[..]].concat();
            let mut out = [f32::NAN; 4];
            dtype.widen(&moved[1..], &mut out);
            assert_eq!(out.map(f32::to_bits), wanted.map(f32::to_bits));
        }
        let mut out = [0.0; 2];
        ValueType::Bf16.widen(&[0x80, 0x3f, 0x20, 0xc0], &mut out);
        assert_eq!(out, [1.0, -2.5]);
        let mut out = [0.0; 4];
        ValueType::I8.widen(&[0, 1, 0x7f, 0x80], &mut out);
        assert_eq!(out, [0.0, 1.0, 127.0, -128.0]);
        ValueType::F8E4M3.widen(&[0x38, 0x81, 0x7e, 0xff], &mut out);
        assert_eq!(out[..3], [1.0, -1.0 / 512.0, 448.0]);
        assert!(out[3].is_nan());
        ValueType::Bool.widen(&[0, 1, 2, 0xff], &mut out);
        assert_eq!(out, [0.0, 1.0, 1.0, 1.0]);
        let mut out = [0.0; 32];
        ValueType::Mxfp4.widen(&[[0x21; 15].as_slice(), &[0xf7]].concat(), &mut out);
        assert_eq!((out[..2].to_vec(), out[30..].to_vec()), (vec![0.5, 1.0], vec![6.0, -6.0]));
    }
}
