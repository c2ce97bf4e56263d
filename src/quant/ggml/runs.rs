//! Blocks as runs of 32 values: integers, their factors and an addend.
//!
//! A value of a run is `scale * code + offset`, exactly what [`Ggml::widen`] rounds. Scale and offset are exact in f32:
//! products of an f16 and an integer of at most eight bits.

use super::{Ggml, LONG, MXFP4, NL, f16_at, mxfp4_scale, scale_and_min};

/// Values of a run.
pub(crate) const RUN: usize = 32;

/// How the codes of a type are stored, for types whose codes have fewer than eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// Bits of a code once packed; of [`Ggml::Q3K`] one more than in a file.
    pub(crate) bits: usize,
    /// The code of the value 0, apart from the offset.
    pub(crate) zero: u8,
    /// Scales of a run: one, or one for each 16 values.
    pub(crate) n_scales: usize,
    /// Whether runs have an offset.
    pub(crate) has_min: bool,
    /// Whether eight runs share a block's parameters, and have integers for scales.
    pub(crate) is_long: bool,
}

/// The integers of a run, and its block's parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes {
    /// Codes in the order of values.
    pub(crate) codes: [u8; RUN],
    /// Bits of the block's scale, an f16.
    pub(crate) d: u16,
    /// Bits of the block's minimum, an f16; 0 if it has none.
    pub(crate) m: u16,
    /// Factors of `d` for each half; 1 in short blocks.
    pub(crate) scales: [i8; 2],
    /// Factor of `m`.
    pub(crate) min: u8,
}

/// A run as int8 weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Codes, less the code of 0.
    pub(crate) codes: [i8; RUN],
    /// Factors of the first 16 codes and of the others.
    pub(crate) scales: [f32; 2],
    /// Addend of each value.
    pub(crate) offset: f32,
}

impl Ggml {
    /// How the codes are stored; `None` if packed codes are bytes.
    pub(crate) fn form(self) -> Option<Form> {
        let short = |bits, zero, has_min| Form { bits, zero, n_scales: 1, has_min, is_long: false };
        let long = |bits, zero, n_scales| {
            let has_min = n_scales == 1;
            Form { bits, zero, n_scales, has_min, is_long: true }
        };
        match self {
            Ggml::Q4_0 => Some(short(4, 8, false)),
            Ggml::Q4_1 => Some(short(4, 0, true)),
            Ggml::Q5_0 => Some(short(5, 16, false)),
            Ggml::Q5_1 => Some(short(5, 0, true)),
            Ggml::Q4K => Some(long(4, 0, 1)),
            Ggml::Q5K => Some(long(5, 0, 1)),
            Ggml::Q6K => Some(long(6, 32, 2)),
            Ggml::Q3K => Some(long(4, 4, 2)),
            Ggml::Q8_0 | Ggml::Iq4Nl | Ggml::Iq4Xs | Ggml::Mxfp4 | Ggml::Q2K => None,
        }
    }

    /// Whether matrices of this type are multiplied as they are. The halves of a run of [`Ggml::Q2K`] have an offset
    /// each.
    pub fn is_multiplied(self) -> bool {
        self != Ggml::Q2K
    }

    /// Bytes of a row of `k` values.
    pub fn row_bytes(self, k: usize) -> usize {
        k / self.len() * self.bytes()
    }

    /// The runs of a row.
    pub(crate) fn runs(self, row: &[u8]) -> impl Iterator<Item = Run> {
        let per_block = self.len() / RUN;
        row.chunks_exact(self.bytes())
            .flat_map(move |block| (0..per_block).map(move |i| self.run(block, i)))
    }

    /// Run `i` of a block.
    fn run(self, block: &[u8], i: usize) -> Run {
        if let Some(form) = self.form() {
            return self.codes(block, i).run(form);
        }
        let nibbles = |bytes: &[u8], values: [f32; 16], factor: f32| {
            nibbles(bytes).map(|code| (values[usize::from(code)] * factor) as i8)
        };
        let (codes, scale) = match self {
            Ggml::Iq4Nl => (nibbles(&block[2..], NL, 1.0), f16_at(block, 0)),
            Ggml::Iq4Xs => {
                (nibbles(&block[8 + 16 * i..][..16], NL, 1.0), super::iq4_xs_scale(block, i))
            }
            // Twice the values are integers.
            Ggml::Mxfp4 => (nibbles(&block[1..], MXFP4, 2.0), mxfp4_scale(block[0]) / 2.0),
            _ => (std::array::from_fn(|i| block[2 + i] as i8), f16_at(block, 0)),
        };
        Run { codes, scales: [scale; 2], offset: 0.0 }
    }

    /// The integers of run `i` of a block.
    ///
    /// # Panics
    /// If packed codes are bytes.
    pub(crate) fn codes(self, block: &[u8], i: usize) -> Codes {
        let u16_at = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        let short = |codes, m| Codes { codes, d: u16_at(0), m, scales: [1; 2], min: 0 };
        match self {
            Ggml::Q4_0 => short(nibbles(&block[2..]), 0),
            Ggml::Q4_1 => short(nibbles(&block[4..]), u16_at(2)),
            Ggml::Q5_0 => short(five_bits(&block[2..]), 0),
            Ggml::Q5_1 => short(five_bits(&block[4..]), u16_at(2)),
            Ggml::Q4K | Ggml::Q5K => {
                let (scale, min) = scale_and_min(&block[4..16], i);
                let codes = match self {
                    Ggml::Q4K => k_codes(&block[16..], i, |_| 0),
                    _ => k_codes(&block[48..], i, |l| block[16 + l] >> i & 1),
                };
                Codes { codes, d: u16_at(0), m: u16_at(2), scales: [scale as i8; 2], min }
            }
            Ggml::Q6K => {
                let scales = [0, 1].map(|half| block[192 + 2 * i + half] as i8);
                let codes = std::array::from_fn(|l| super::q6_k_code(block, i, l));
                Codes { codes, d: u16_at(208), m: 0, scales, min: 0 }
            }
            Ggml::Q3K => {
                let scales = [0, 1].map(|half| super::q3_k_scale(block, 2 * i + half) - 32);
                let codes = std::array::from_fn(|l| super::q3_k_code(block, i * RUN + l));
                Codes { codes, d: u16_at(108), m: 0, scales, min: 0 }
            }
            _ => unreachable!("the packed codes of {} are bytes", self.name()),
        }
    }
}

impl Codes {
    /// The run of a type of this form.
    fn run(&self, form: Form) -> Run {
        let Codes { codes, d, m, scales, min } = *self;
        Run {
            codes: codes.map(|code| code.wrapping_sub(form.zero) as i8),
            scales: scales.map(|scale| form.scale(d, scale)),
            offset: if form.has_min { form.offset(m, min) } else { 0.0 },
        }
    }
}

impl Form {
    /// Scale of values.
    #[inline(always)]
    pub(crate) fn scale(self, d: u16, scale: i8) -> f32 {
        let d = crate::quant::f16::half_to_f32(d);
        if self.is_long { d * f32::from(scale) } else { d }
    }

    /// Offset of a run.
    #[inline(always)]
    pub(crate) fn offset(self, m: u16, min: u8) -> f32 {
        let m = crate::quant::f16::half_to_f32(m);
        if self.is_long { -(m * f32::from(min)) } else { m }
    }

    /// Columns of a block.
    pub(crate) fn len(self) -> usize {
        if self.is_long { LONG } else { RUN }
    }
}

/// The 32 codes of 16 bytes.
fn nibbles(bytes: &[u8]) -> [u8; RUN] {
    std::array::from_fn(|i| bytes[i % 16] >> (i / 16 * 4) & 15)
}

/// The 32 codes of fifth bits, then the others.
fn five_bits(bytes: &[u8]) -> [u8; RUN] {
    let fifth = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut codes = nibbles(&bytes[4..]);
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= ((fifth >> i & 1) as u8) << 4;
    }
    codes
}

/// Codes of run `i` of a `_K` type: two runs share 32 bytes.
fn k_codes(codes: &[u8], i: usize, fifth: impl Fn(usize) -> u8) -> [u8; RUN] {
    let bytes = &codes[i / 2 * RUN..][..RUN];
    std::array::from_fn(|l| bytes[l] >> (i % 2 * 4) & 15 | fifth(l) << 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::random::Random;

    #[test]
    fn runs_are_the_values_before_they_are_rounded() {
        let mut random = Random(7);
        for kind in Ggml::ALL.into_iter().filter(|kind| kind.is_multiplied()) {
            let row = random.blocks(kind, 5);
            let mut wanted = vec![0.0; 5 * kind.len()];
            kind.widen(&row, &mut wanted);
            let values = kind.runs(&row).flat_map(|run| {
                (0..RUN).map(move |i| {
                    f64::from(run.scales[i / 16]) * f64::from(run.codes[i]) + f64::from(run.offset)
                })
            });
            let values: Vec<f32> = values.map(|value| value as f32).collect();
            assert_eq!(values, wanted, "{}", kind.name());
        }
    }

    #[test]
    fn numbers_of_types_are_those_of_gguf_files() {
        for kind in Ggml::ALL {
            assert_eq!(Ggml::from_id(kind.id().into()), Some(kind));
        }
        assert_eq!(Ggml::from_id(16), None);
    }
}
