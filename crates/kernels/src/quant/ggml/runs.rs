//! Blocks as runs of 32 values: integers, their factors and an addend.
//!
//! A value of a run is `scale * code + min * offset`, exactly what [`Ggml::widen`] rounds. Scale and offset are exact in
//! f32: products of an f16 and an integer of at most eight bits.
//!
//! The halves of a run of [`Ggml::Q2K`] have integers of four bits for factors of the block's scale and minimum. So few
//! bits leave both integers until the end: codes are multiplied by theirs, and the sums of activations are, too.

use half::bf16;

use super::{Ggml, LONG, MXFP4, NL, f16_at, mxfp4_scale, scale_and_min};
use crate::quant::f16::half_to_f32;

/// Values of a run.
pub(super) const RUN: usize = 32;

/// Integers that codes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// The code itself, less the code of 0.
    Even,
    /// Those of [`Ggml::Iq4Nl`] and [`Ggml::Iq4Xs`].
    Nl,
    /// Twice the values of [`Ggml::Mxfp4`]. A block's scale is half of that type's, a bf16: f16 has too few exponents.
    Mxfp4,
}

/// [`Steps::Even`] as a constant parameter.
pub const EVEN: usize = Steps::Even as usize;
/// [`Steps::Nl`] as a constant parameter.
pub const NL_STEPS: usize = Steps::Nl as usize;
/// [`Steps::Mxfp4`] as a constant parameter.
pub const MXFP4_STEPS: usize = Steps::Mxfp4 as usize;

/// The integers of the 16 codes of `steps`, plus `bias`.
pub const fn table(steps: usize, bias: u8) -> [u8; 16] {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        let value = match steps {
            EVEN => code as i8,
            NL_STEPS => NL[code] as i8,
            _ => (MXFP4[code] * 2.0) as i8,
        };
        table[code] = (value as u8).wrapping_add(bias);
        code += 1;
    }
    table
}

/// How the codes of a type are stored, for types whose codes have fewer than eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Bits of a code once packed; of [`Ggml::Q3K`] one more than in a file.
    pub bits: usize,
    /// Integers of the codes.
    pub steps: Steps,
    /// The code of the value 0, apart from the offset, if steps are even.
    pub zero: u8,
    /// Scales of a run as floats: one, or one for each 16 values.
    pub n_scales: usize,
    /// Whether runs have an offset.
    pub has_min: bool,
    /// Whether eight runs share a block's parameters, and have integers for scales.
    pub is_long: bool,
}

/// The integers of a run, and its block's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Codes {
    /// Codes in the order of values.
    pub codes: [u8; RUN],
    /// Bits of the block's scale: an f16, or a bf16 with [`Steps::Mxfp4`].
    pub d: u16,
    /// Bits of the block's minimum, an f16; 0 if it has none.
    pub m: u16,
    /// Factors of `d` for each half; 1 in short blocks.
    pub scales: [i8; 2],
    /// Factors of `m` for each half; 1 in short blocks.
    pub mins: [u8; 2],
}

/// A run as int8 weights.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Codes, less the code of 0.
    pub codes: [i8; RUN],
    /// Factors of the first 16 codes and of the others.
    pub scales: [f32; 2],
    /// Addend of each value.
    pub offset: f32,
    /// Factors of the addend in the first 16 values and in the others.
    pub mins: [u8; 2],
}

impl Ggml {
    /// How the codes are stored; `None` if packed codes are bytes.
    pub fn form(self) -> Option<Form> {
        let short = Form {
            bits: 4,
            steps: Steps::Even,
            zero: 0,
            n_scales: 1,
            has_min: false,
            is_long: false,
        };
        let long = Form { is_long: true, ..short };
        match self {
            Ggml::Q4_0 => Some(Form { zero: 8, ..short }),
            Ggml::Q4_1 => Some(Form { has_min: true, ..short }),
            Ggml::Q5_0 => Some(Form { bits: 5, zero: 16, ..short }),
            Ggml::Q5_1 => Some(Form { bits: 5, has_min: true, ..short }),
            Ggml::Q4K => Some(Form { has_min: true, ..long }),
            Ggml::Q5K => Some(Form { bits: 5, has_min: true, ..long }),
            Ggml::Q6K => Some(Form { bits: 6, zero: 32, n_scales: 2, ..long }),
            Ggml::Q2K => Some(Form { bits: 2, has_min: true, ..long }),
            Ggml::Q3K => Some(Form { zero: 4, n_scales: 2, ..long }),
            Ggml::Iq4Nl => Some(Form { steps: Steps::Nl, ..short }),
            Ggml::Iq4Xs => Some(Form { steps: Steps::Nl, ..long }),
            Ggml::Mxfp4 => Some(Form { steps: Steps::Mxfp4, ..short }),
            Ggml::Q8_0 => None,
        }
    }

    /// Bytes of a row of `k` values.
    pub fn row_bytes(self, k: usize) -> usize {
        k / self.len() * self.bytes()
    }

    /// The runs of a row.
    pub fn runs(self, row: &[u8]) -> impl Iterator<Item = Run> {
        let per_block = self.len() / RUN;
        row.chunks_exact(self.bytes())
            .flat_map(move |block| (0..per_block).map(move |i| self.run(block, i)))
    }

    /// Run `i` of a block.
    fn run(self, block: &[u8], i: usize) -> Run {
        if let Some(form) = self.form() {
            return self.codes(block, i).run(form);
        }
        let codes = std::array::from_fn(|i| block[2 + i] as i8);
        Run { codes, scales: [f16_at(block, 0); 2], offset: 0.0, mins: [1; 2] }
    }

    /// The integers of run `i` of a block.
    ///
    /// # Panics
    /// If packed codes are bytes.
    pub fn codes(self, block: &[u8], i: usize) -> Codes {
        let u16_at = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        let short = |codes, m| Codes { codes, d: u16_at(0), m, scales: [1; 2], mins: [1; 2] };
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
                Codes {
                    codes,
                    d: u16_at(0),
                    m: u16_at(2),
                    scales: [scale as i8; 2],
                    mins: [min; 2],
                }
            }
            Ggml::Q2K => {
                let factors = [block[2 * i], block[2 * i + 1]];
                let codes = std::array::from_fn(|l| super::two_bits(&block[16..80], i * RUN + l));
                let scales = factors.map(|both| (both & 15) as i8);
                Codes {
                    codes,
                    d: u16_at(80),
                    m: u16_at(82),
                    scales,
                    mins: factors.map(|both| both >> 4),
                }
            }
            Ggml::Q6K => {
                let scales = [0, 1].map(|half| block[192 + 2 * i + half] as i8);
                let codes = std::array::from_fn(|l| super::q6_k_code(block, i, l));
                Codes { codes, d: u16_at(208), m: 0, scales, mins: [1; 2] }
            }
            Ggml::Q3K => {
                let scales = [0, 1].map(|half| super::q3_k_scale(block, 2 * i + half) - 32);
                let codes = std::array::from_fn(|l| super::q3_k_code(block, i * RUN + l));
                Codes { codes, d: u16_at(108), m: 0, scales, mins: [1; 2] }
            }
            Ggml::Iq4Nl => short(nibbles(&block[2..]), 0),
            Ggml::Iq4Xs => {
                let scales = [super::iq4_xs_scale(block, i) - 32; 2];
                let codes = nibbles(&block[8 + 16 * i..]);
                Codes { codes, d: u16_at(0), m: 0, scales, mins: [1; 2] }
            }
            Ggml::Mxfp4 => {
                // Exact: a power of two, or no number.
                let d = bf16::from_f32(mxfp4_scale(block[0]) / 2.0);
                Codes { d: d.to_bits(), ..short(nibbles(&block[1..]), 0) }
            }
            Ggml::Q8_0 => unreachable!("packed codes of {} are bytes", self.name()),
        }
    }
}

impl Codes {
    /// The run of a type of this form.
    pub fn run(&self, form: Form) -> Run {
        let Codes { codes, d, m, scales, mins } = *self;
        if form.has_halves() {
            let factors = scales.map(|scale| scale as u8);
            let codes = std::array::from_fn(|i| (factors[i / (RUN / 2)] * codes[i]) as i8);
            return Run { codes, scales: [form.scale(d, 1); 2], offset: form.offset(m, 1), mins };
        }
        Run {
            codes: codes.map(|code| form.integer(code)),
            scales: scales.map(|scale| form.scale(d, scale)),
            offset: if form.has_min { form.offset(m, mins[0]) } else { 0.0 },
            mins: [1; 2],
        }
    }
}

impl Form {
    /// Whether the halves of a run have factors of the block's scale and minimum that stay integers: those of
    /// [`Ggml::Q2K`].
    #[inline(always)]
    pub const fn has_halves(self) -> bool {
        self.bits == 2
    }

    /// The integer that a code stands for.
    pub fn integer(self, code: u8) -> i8 {
        match self.steps {
            Steps::Even => code.wrapping_sub(self.zero) as i8,
            steps => table(steps as usize, 0)[usize::from(code)] as i8,
        }
    }

    /// Scale of integers.
    #[inline(always)]
    pub fn scale(self, d: u16, scale: i8) -> f32 {
        let d = match self.steps {
            Steps::Mxfp4 => f32::from_bits(u32::from(d) << 16),
            _ => half_to_f32(d),
        };
        if self.is_long { d * f32::from(scale) } else { d }
    }

    /// Offset of a run.
    #[inline(always)]
    pub fn offset(self, m: u16, min: u8) -> f32 {
        let m = half_to_f32(m);
        if self.is_long { -(m * f32::from(min)) } else { m }
    }

    /// Columns of a block.
    pub fn columns(self) -> usize {
        if self.is_long { LONG } else { RUN }
    }
}

/// The 32 codes of 16 bytes.
#[inline]
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
        for kind in Ggml::ALL {
            let row = random.blocks(kind, 5);
            let mut wanted = vec![0.0; 5 * kind.len()];
            kind.widen(&row, &mut wanted);
            let values = kind.runs(&row).flat_map(|run| {
                (0..RUN).map(move |i| {
                    let offset = f64::from(run.offset) * f64::from(run.mins[i / 16]);
                    f64::from(run.scales[i / 16]) * f64::from(run.codes[i]) + offset
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
