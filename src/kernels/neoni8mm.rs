//! NEON with int8 matrix products: only those with packed weights differ from [`super::neondot`].
//!
//! `smmla` multiplies two rows of eight weights by two rows of eight activations. A sum holds the
//! four results of a pair of pairs, weight rows first: `[w0 x0, w0 x1, w1 x0, w1 x1]`. A strip of
//! four rows by 12 rows of activations is 12 sums, and 16 columns take 24 `smmla` for four loads of
//! four registers each. The last row of an odd tile is paired with itself.

use std::arch::aarch64::*;
use std::arch::asm;

use super::neon::{add_rows, load, load_halves, load_scales, split_codes, widen_8};
use super::packed::{BLOCK_BYTES, Layout, PackedTable, Tile, TileFn};
use super::{Table, neondot, peak};

/// The tier's functions.
pub(super) static TABLE: Table = Table {
    packed: Some(PackedTable {
        layout: Layout::NEON_I8MM,
        tiles_q8: &TILES_Q8,
        tiles_q4: &TILES_Q4,
    }),
    spin_int8,
    ..neondot::TABLE
};

/// The instances of a kernel for tiles of so many rows, which are so many pairs, in so many strips.
macro_rules! tiles_of {
    ($kernel:ident: $($m:literal $pairs:literal $strips:literal,)*) => {
        [$($kernel::<$m, $pairs, $strips>),*]
    };
}

static TILES_Q8: [TileFn; 12] = tiles_of!(gemm_q8_q8_f32_mx16c8:
    1 1 4, 2 1 4, 3 2 2, 4 2 2, 5 3 1, 6 3 1, 7 4 1, 8 4 1, 9 5 1, 10 5 1, 11 6 1, 12 6 1,);
static TILES_Q4: [TileFn; 12] = tiles_of!(gemm_q8_q4_f32_mx16c8:
    1 1 4, 2 1 4, 3 2 2, 4 2 2, 5 3 1, 6 3 1, 7 4 1, 8 4 1, 9 5 1, 10 5 1, 11 6 1, 12 6 1,);

/// Rows of a panel.
const NR: usize = Layout::NEON_I8MM.panel_rows();

/// Bytes of a strip of 16 columns, or of a block's codes in it.
const STRIP: usize = 64;

/// Bytes of a block of a 4-bit panel.
const PANEL_BLOCK: usize = NR * BLOCK_BYTES;

/// Sums of a strip: of its first two rows, of the others.
type Sums<const PAIRS: usize> = [[int32x4_t; 2]; PAIRS];

/// `M` rows of activations in `PAIRS` pairs by a panel, `S` strips at once.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q8_f32_mx16c8<const M: usize, const PAIRS: usize, const S: usize>(
    panel: &[u8],
    x: &Tile<'_>,
    out: &mut [f32],
) {
    let (group, n) = (x.groups.w, x.steps());
    let group_bytes = NR * (4 + group);
    for first in (0..4).step_by(S) {
        for (w, x) in panel.chunks_exact(group_bytes * n).zip(x.groups::<M, 8>()) {
            let mut dots = [[[vdupq_n_s32(0); 2]; PAIRS]; S];
            // What a product is added to and stays the same, its zero signed.
            let mut totals = [[[vdupq_n_f32(-0.0); 2]; PAIRS]; S];
            for (w, x_q) in w.chunks_exact(group_bytes).zip(x.q.chunks_exact(group / 8)) {
                let (steps, w) = w.split_at(NR * 4);
                add_strips(&mut dots, &w[first * STRIP..], x_q);
                for s in 0..S {
                    let step = twice(load_scales(&steps.as_chunks().0[first + s]));
                    for i in 0..PAIRS {
                        for h in 0..2 {
                            let dots = vcvtq_f32_s32(dots[s][i][h]);
                            totals[s][i][h] = vfmaq_f32(totals[s][i][h], dots, step[h]);
                        }
                    }
                }
            }
            for s in 0..S {
                add_pairs(out, first + s, &totals[s], x.scales);
            }
        }
    }
}

/// Adds the products of `M` rows with some strips of a group; `w` starts with the first.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn add_strips<const M: usize, const PAIRS: usize, const S: usize>(
    dots: &mut [Sums<PAIRS>; S],
    w: &[u8],
    x: &[[[u8; 8]; M]],
) {
    if let (12, [dots]) = (M, dots.as_mut_slice()) {
        if let Ok(dots) = dots.as_mut_slice().try_into() {
            return add_strip_12(dots, w, x.as_flattened().as_flattened());
        }
    }
    let w: &[i8] = bytemuck::cast_slice(w);
    for (w, x) in w.chunks(4 * STRIP).zip(x.as_chunks::<2>().0) {
        let (w, _) = w.as_chunks::<16>();
        for s in 0..S {
            let (w, dots) = (&w[4 * s..][..4], &mut dots[s]);
            eight_columns(dots, [load(&w[0]), load(&w[1])], &x[0]);
            eight_columns(dots, [load(&w[2]), load(&w[3])], &x[1]);
        }
    }
}

/// Two `smmla`: pair `$pair` of activations in register `$x` by four rows in `$low` and `$high`.
macro_rules! smmla_pair {
    ($low:literal $high:literal $x:literal: $pair:literal) => {
        concat!(
            "smmla {a",
            $pair,
            ":v}.4s, v",
            $low,
            ".16b, v",
            $x,
            ".16b\n",
            "smmla {b",
            $pair,
            ":v}.4s, v",
            $high,
            ".16b, v",
            $x,
            ".16b\n",
        )
    };
}

/// Loads the next 64 bytes of activations.
macro_rules! load_x {
    () => {
        "ld1 {{v28.16b, v29.16b, v30.16b, v31.16b}}, [{x}], #64\n"
    };
}

/// Sixteen columns of six pairs.
macro_rules! smmla_16_columns {
    () => {
        concat!(
            "ld1 {{v24.16b, v25.16b, v26.16b, v27.16b}}, [{w}], {stride}\n",
            load_x!(),
            smmla_pair!(24 25 28: 0),
            smmla_pair!(24 25 29: 1),
            smmla_pair!(24 25 30: 2),
            smmla_pair!(24 25 31: 3),
            load_x!(),
            smmla_pair!(24 25 28: 4),
            smmla_pair!(24 25 29: 5),
            smmla_pair!(26 27 30: 0),
            smmla_pair!(26 27 31: 1),
            load_x!(),
            smmla_pair!(26 27 28: 2),
            smmla_pair!(26 27 29: 3),
            smmla_pair!(26 27 30: 4),
            smmla_pair!(26 27 31: 5),
        )
    };
}

/// [`add_strips`] for 12 rows and a strip.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn add_strip_12(dots: &mut Sums<6>, w: &[u8], x: &[u8]) {
    // 32 columns in a round; a strip's next 16 columns stand behind those of the others.
    let rounds = x.len() / (12 * 32);
    assert!(rounds != 0);
    assert!(w.len() >= (2 * rounds - 1) * 4 * STRIP + STRIP);
    // SAFETY: each round reads 384 bytes of `x` and twice 64 of `w`, 256 apart, which were found to
    // be there; everything else is registers that are named.
    unsafe {
        asm!(
            "2:",
            smmla_16_columns!(),
            smmla_16_columns!(),
            "subs {rounds}, {rounds}, #1",
            "b.ne 2b",
            w = inout(reg) w.as_ptr() => _, x = inout(reg) x.as_ptr() => _,
            stride = in(reg) 4 * STRIP, rounds = inout(reg) rounds => _,
            a0 = inout(vreg) dots[0][0], b0 = inout(vreg) dots[0][1],
            a1 = inout(vreg) dots[1][0], b1 = inout(vreg) dots[1][1],
            a2 = inout(vreg) dots[2][0], b2 = inout(vreg) dots[2][1],
            a3 = inout(vreg) dots[3][0], b3 = inout(vreg) dots[3][1],
            a4 = inout(vreg) dots[4][0], b4 = inout(vreg) dots[4][1],
            a5 = inout(vreg) dots[5][0], b5 = inout(vreg) dots[5][1],
            out("v24") _, out("v25") _, out("v26") _, out("v27") _,
            out("v28") _, out("v29") _, out("v30") _, out("v31") _,
            options(nostack, readonly)
        );
    }
}

/// As [`gemm_q8_q8_f32_mx16c8`] with 4-bit weights.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q4_f32_mx16c8<const M: usize, const PAIRS: usize, const S: usize>(
    panel: &[u8],
    x: &Tile<'_>,
    out: &mut [f32],
) {
    for first in (0..4).step_by(S) {
        let groups = panel.chunks_exact(PANEL_BLOCK * x.steps());
        for (w, x) in groups.zip(x.summed_groups::<M, 8>()) {
            let mut dots = [[[vdupq_n_s32(0); 2]; PAIRS]; S];
            let mut totals = [[[vdupq_n_f32(-0.0); 2]; PAIRS]; S];
            let w = w.as_chunks::<PANEL_BLOCK>().0;
            let blocks = x.q.as_chunks::<4>().0.iter().zip(x.sums);
            for ((b, block), (x_q, x_sums)) in w.iter().enumerate().zip(blocks) {
                for s in 0..S {
                    let [mut step, offsets] = strip_parameters(block, first + s);
                    if let Some(next) = w.get(b + 1) {
                        step = vsubq_f32(step, strip_parameters(next, first + s)[0]);
                    }
                    let (step, offsets) = (twice(step), twice(offsets));
                    let (w, _) = block.as_chunks::<STRIP>().0[1 + first + s].as_chunks();
                    for c in 0..2 {
                        let ([a, a_high], [b, b_high]) =
                            (split_codes(&w[2 * c]), split_codes(&w[2 * c + 1]));
                        eight_columns(&mut dots[s], [a, b], &x_q[2 * c]);
                        eight_columns(&mut dots[s], [a_high, b_high], &x_q[2 * c + 1]);
                    }
                    for i in 0..PAIRS {
                        let x_sums = pair_of(x_sums, i);
                        for h in 0..2 {
                            let total = vfmaq_f32(totals[s][i][h], offsets[h], x_sums);
                            let dots = vcvtq_f32_s32(dots[s][i][h]);
                            totals[s][i][h] = vfmaq_f32(total, dots, step[h]);
                        }
                    }
                }
            }
            for s in 0..S {
                add_pairs(out, first + s, &totals[s], x.scales);
            }
        }
    }
}

/// Multipliers and offsets of a strip of a block.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn strip_parameters(block: &[u8; PANEL_BLOCK], strip: usize) -> [float32x4_t; 2] {
    widen_8(load_halves(&block.as_chunks().0[strip]))
}

/// Each of four values twice.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn twice(x: float32x4_t) -> [float32x4_t; 2] {
    [vzip1q_f32(x, x), vzip2q_f32(x, x)]
}

/// The two values of pair `pair` of a tile's rows, twice.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn pair_of<const M: usize>(x: &[f32; M], pair: usize) -> float32x4_t {
    let [a, b] = [x[2 * pair], x[(2 * pair + 1).min(M - 1)]];
    let two = u64::from(a.to_bits()) | u64::from(b.to_bits()) << 32;
    vreinterpretq_f32_u64(vdupq_n_u64(two))
}

/// Adds the products of eight columns.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn eight_columns<const M: usize, const PAIRS: usize>(
    dots: &mut Sums<PAIRS>,
    w: [int8x16_t; 2],
    x: &[[u8; 8]; M],
) {
    let pairs = bytemuck::cast_slice::<[u8; 8], i8>(x).as_chunks::<16>().0;
    for i in 0..PAIRS {
        let x = if 2 * i + 1 < M { load(&pairs[i]) } else { load_eight(&x[M - 1]) };
        for h in 0..2 {
            dots[i][h] = smmla(dots[i][h], w[h], x);
        }
    }
}

/// Eight bytes, twice.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn load_eight(x: &[u8; 8]) -> int8x16_t {
    vreinterpretq_s8_u64(vdupq_n_u64(u64::from_ne_bytes(*x)))
}

/// Adds totals times scales to four columns of `out`, `[M, 16]`.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn add_pairs<const M: usize, const PAIRS: usize>(
    out: &mut [f32],
    strip: usize,
    totals: &[[float32x4_t; 2]; PAIRS],
    scales: &[f32; M],
) {
    let mut rows = [vdupq_n_f32(0.0); M];
    for i in 0..PAIRS {
        let [low, high] = totals[i];
        rows[2 * i] = vuzp1q_f32(low, high);
        if 2 * i + 1 < M {
            rows[2 * i + 1] = vuzp2q_f32(low, high);
        }
    }
    add_rows(out, strip, &rows, scales);
}

/// Adds the products of two rows of eight by two rows of eight, as the intrinsic `vmmlaq_s32` does,
/// which is not stable.
#[target_feature(enable = "neon,i8mm")]
fn smmla(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: this function's features include the instruction, which works on registers alone.
    unsafe {
        asm!("smmla {sums:v}.4s, {w:v}.16b, {x:v}.16b", sums = inout(vreg) sums, w = in(vreg) w,
            x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// See [`super::Kernels::spin_int8`]: 32 products an instruction.
#[target_feature(enable = "neon,i8mm")]
fn spin_int8(rounds: usize) -> i32 {
    let x = vdupq_n_s8(std::hint::black_box(3));
    let step = |sums: &mut [int32x4_t; 16]| {
        for sum in sums {
            *sum = smmla(*sum, x, x);
        }
    };
    peak::spin(rounds, 32, vdupq_n_s32(0), step, |sums| vgetq_lane_s32::<0>(sums))
}
