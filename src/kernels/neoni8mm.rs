//! NEON with int8 matrix products: only those with packed weights differ from [`super::neondot`].
//!
//! `smmla` multiplies two rows of eight weights by two rows of eight activations. A sum holds the
//! four results of a pair of pairs, weight rows first: `[w0 x0, w0 x1, w1 x0, w1 x1]`. A strip of
//! four rows by 12 rows of activations is 12 sums, and 16 columns take 24 `smmla` for four loads of
//! four registers each. The last row of an odd tile is paired with itself.

#![allow(clippy::needless_range_loop, reason = "registers go by their numbers")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::neon::{add_rows, load, load_64, load_halves, load_scales, split_codes, widen_8};
use super::neondot::{add_out, add_total, clear, clear_12, load_x};
use super::packed::{BLOCK_BYTES, Layout, PackedTable, Tile, TileFn};
use super::{Table, neondot, peak};
use crate::quant::bcml1::BLOCK;

/// The tier's functions.
pub(super) static TABLE: Table = Table {
    packed: Some(PackedTable {
        layout: Layout::NEON_I8MM,
        tiles_q8: &TILES_Q8,
        tiles_q4: &TILES_Q4,
        unpack_q4: None,
    }),
    spin_int8,
    ..neondot::TABLE
};

/// The instances of a kernel for tiles of so many rows, which are so many pairs, in so many strips,
/// after one for a single row.
macro_rules! tiles_of {
    ($single:ident $kernel:ident: $($m:literal $pairs:literal $strips:literal,)* $($whole:ident)?) => {
        [$single, $($kernel::<$m, $pairs, $strips>,)* $($whole)?]
    };
}

static TILES_Q8: [TileFn; 12] = tiles_of!(gemv_q8_q8_f32_1x16c8 gemm_q8_q8_f32_mx16c8:
    2 1 2, 3 2 1, 4 2 1, 5 3 1, 6 3 1, 7 4 1, 8 4 1, 9 5 1, 10 5 1, 11 6 1,
    gemm_q8_q8_f32_12x16c8);
static TILES_Q4: [TileFn; 12] = tiles_of!(gemv_q8_q4_f32_1x16c8 gemm_q8_q4_f32_mx16c8:
    2 1 2, 3 2 1, 4 2 1, 5 3 1, 6 3 1, 7 4 1, 8 4 1, 9 5 1, 10 5 1, 11 6 1, 12 6 1,);

/// Rows of a panel: four strips.
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

/// One row of activations by a panel.
#[target_feature(enable = "neon,i8mm")]
fn gemv_q8_q8_f32_1x16c8(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    let (group, n) = (x.groups.w, x.steps());
    let group_bytes = NR * (4 + group);
    for (w, x) in panel.chunks_exact(group_bytes * n).zip(x.groups::<1, 8>()) {
        let mut dots = [vdupq_n_s32(0); 8];
        let mut totals = [vdupq_n_f32(-0.0); 4];
        let x_q = x.q.as_flattened().as_flattened();
        for (w, x_q) in w.chunks_exact(group_bytes).zip(x_q.chunks_exact(group)) {
            let (steps, w) = w.split_at(NR * 4);
            add_panel(&mut dots, w, x_q);
            let steps = load_64(&steps.as_chunks().0[0]);
            for j in 0..4 {
                let step = vreinterpretq_f32_u8(steps[j]);
                let sums = vuzp1q_s32(dots[2 * j], dots[2 * j + 1]);
                totals[j] = vfmaq_f32(totals[j], vcvtq_f32_s32(sums), step);
            }
        }
        for j in 0..4 {
            add_rows(out, j, &[totals[j]], x.scales);
        }
    }
}

/// Four `smmla`: 16 columns of a strip by the activations in registers `$x0` and `$x1`.
macro_rules! smmla_strip {
    ($a:literal $b:literal: $x0:literal $x1:literal) => {
        concat!(
            "ld1 {{v20.16b, v21.16b, v22.16b, v23.16b}}, [{w}], #64\n",
            "smmla {",
            $a,
            ":v}.4s, v20.16b, v",
            $x0,
            ".16b\n",
            "smmla {",
            $b,
            ":v}.4s, v21.16b, v",
            $x0,
            ".16b\n",
            "smmla {",
            $a,
            ":v}.4s, v22.16b, v",
            $x1,
            ".16b\n",
            "smmla {",
            $b,
            ":v}.4s, v23.16b, v",
            $x1,
            ".16b\n",
        )
    };
}

/// Sixteen columns of a panel by the activations in registers `$x0` and `$x1`.
macro_rules! smmla_16_columns_of_panel {
    ($x0:literal $x1:literal) => {
        concat!(
            smmla_strip!("d0" "d1": $x0 $x1),
            smmla_strip!("d2" "d3": $x0 $x1),
            smmla_strip!("d4" "d5": $x0 $x1),
            smmla_strip!("d6" "d7": $x0 $x1),
        )
    };
}

/// Loads 32 activations, each eight twice, to registers v24 to v27.
macro_rules! load_eights {
    () => {
        concat!(
            "ld1r {{v24.2d}}, [{x}], #8\n",
            "ld1r {{v25.2d}}, [{x}], #8\n",
            "ld1r {{v26.2d}}, [{x}], #8\n",
            "ld1r {{v27.2d}}, [{x}], #8\n",
        )
    };
}

/// Adds the products of a row with a group of a panel: of each two rows two sums, twice.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn add_panel(dots: &mut [int32x4_t; 8], w: &[u8], x: &[u8]) {
    let rounds = x.len() / 32;
    assert!(rounds != 0);
    assert!(w.len() >= rounds * 32 * NR);
    // SAFETY: each round reads 32 bytes of `x` and 512 of `w`, which were found to be there;
    // everything else is registers that are named.
    unsafe {
        asm!(
            "2:",
            load_eights!(),
            smmla_16_columns_of_panel!(24 25),
            smmla_16_columns_of_panel!(26 27),
            "subs {rounds}, {rounds}, #1",
            "b.ne 2b",
            w = inout(reg) w.as_ptr() => _, x = inout(reg) x.as_ptr() => _,
            rounds = inout(reg) rounds => _,
            d0 = inout(vreg) dots[0], d1 = inout(vreg) dots[1], d2 = inout(vreg) dots[2],
            d3 = inout(vreg) dots[3], d4 = inout(vreg) dots[4], d5 = inout(vreg) dots[5],
            d6 = inout(vreg) dots[6], d7 = inout(vreg) dots[7],
            out("v20") _, out("v21") _, out("v22") _, out("v23") _,
            out("v24") _, out("v25") _, out("v26") _, out("v27") _,
            options(nostack, readonly)
        );
    }
}

/// One row of activations by a panel of 4-bit weights.
#[target_feature(enable = "neon,i8mm")]
fn gemv_q8_q4_f32_1x16c8(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    let groups = panel.chunks_exact(PANEL_BLOCK * x.steps());
    for (w, x) in groups.zip(x.summed_groups::<1, 8>()) {
        let mut dots = [vdupq_n_s32(0); 8];
        let mut totals = [vdupq_n_f32(-0.0); 4];
        let x_q = x.q.as_flattened().as_flattened().as_chunks::<BLOCK>().0;
        let blocks = w.as_chunks::<PANEL_BLOCK>().0.iter().zip(x_q.iter().zip(x.sums));
        // Of the block before, whose products count by how much its multipliers are larger.
        let mut multipliers = [vdupq_n_f32(0.0); 4];
        for (b, (block, (x_q, [x_sum]))) in blocks.enumerate() {
            let (parameters, codes) = block.split_at(STRIP);
            let parameters = load_64(&parameters.as_chunks().0[0]);
            for j in 0..4 {
                let [next, offsets] = widen_8(vreinterpretq_u16_u8(parameters[j]));
                if b != 0 {
                    let sums = vcvtq_f32_s32(vuzp1q_s32(dots[2 * j], dots[2 * j + 1]));
                    totals[j] = vfmaq_f32(totals[j], sums, vsubq_f32(multipliers[j], next));
                }
                totals[j] = vfmaq_n_f32(totals[j], offsets, *x_sum);
                multipliers[j] = next;
            }
            add_panel_codes(&mut dots, &codes.as_chunks().0.as_chunks().0[0], x_q);
        }
        for j in 0..4 {
            let sums = vcvtq_f32_s32(vuzp1q_s32(dots[2 * j], dots[2 * j + 1]));
            let total = vfmaq_f32(totals[j], sums, multipliers[j]);
            add_rows(out, j, &[total], x.scales);
        }
    }
}

/// Eight `smmla`: a strip's low and high codes by the activations in v24 to v27.
macro_rules! smmla_codes {
    ($a:literal $b:literal) => {
        concat!(
            "ld1 {{v20.16b, v21.16b, v22.16b, v23.16b}}, [{w}], #64\n",
            "and v28.16b, v20.16b, {mask:v}.16b\n",
            "and v29.16b, v21.16b, {mask:v}.16b\n",
            "and v30.16b, v22.16b, {mask:v}.16b\n",
            "and v31.16b, v23.16b, {mask:v}.16b\n",
            "ushr v20.16b, v20.16b, #4\n",
            "ushr v21.16b, v21.16b, #4\n",
            "ushr v22.16b, v22.16b, #4\n",
            "ushr v23.16b, v23.16b, #4\n",
            "smmla {",
            $a,
            ":v}.4s, v28.16b, v24.16b\n",
            "smmla {",
            $b,
            ":v}.4s, v29.16b, v24.16b\n",
            "smmla {",
            $a,
            ":v}.4s, v20.16b, v25.16b\n",
            "smmla {",
            $b,
            ":v}.4s, v21.16b, v25.16b\n",
            "smmla {",
            $a,
            ":v}.4s, v30.16b, v26.16b\n",
            "smmla {",
            $b,
            ":v}.4s, v31.16b, v26.16b\n",
            "smmla {",
            $a,
            ":v}.4s, v22.16b, v27.16b\n",
            "smmla {",
            $b,
            ":v}.4s, v23.16b, v27.16b\n",
        )
    };
}

/// Adds the products of a row with the codes of a block, as [`add_panel`] does.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn add_panel_codes(dots: &mut [int32x4_t; 8], w: &[[u8; STRIP]; 4], x: &[u8; BLOCK]) {
    // SAFETY: this reads all of `x` and of `w`; everything else is registers that are named.
    unsafe {
        asm!(
            load_eights!(),
            smmla_codes!("d0" "d1"),
            smmla_codes!("d2" "d3"),
            smmla_codes!("d4" "d5"),
            smmla_codes!("d6" "d7"),
            w = inout(reg) w.as_ptr() => _, x = inout(reg) x.as_ptr() => _,
            mask = in(vreg) vdupq_n_u8(15),
            d0 = inout(vreg) dots[0], d1 = inout(vreg) dots[1], d2 = inout(vreg) dots[2],
            d3 = inout(vreg) dots[3], d4 = inout(vreg) dots[4], d5 = inout(vreg) dots[5],
            d6 = inout(vreg) dots[6], d7 = inout(vreg) dots[7],
            out("v20") _, out("v21") _, out("v22") _, out("v23") _, out("v24") _, out("v25") _,
            out("v26") _, out("v27") _, out("v28") _, out("v29") _, out("v30") _, out("v31") _,
            options(nostack, readonly, preserves_flags)
        );
    }
}

/// Twelve rows of activations by a panel.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q8_f32_12x16c8(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    for strip in 0..4 {
        add_strip_12(panel, x, strip, out);
    }
}

/// Two `smmla`: a pair of activations in register `$x` by the first two rows of weights in `$low`,
/// added to `$a`, and by the others in `$high`, added to `$b`.
macro_rules! smmla_pair {
    ($low:literal $high:literal $x:literal: $a:literal $b:literal) => {
        concat!(
            "smmla v", $a, ".4s, v", $low, ".16b, v", $x, ".16b\n", "smmla v", $b, ".4s, v", $high,
            ".16b, v", $x, ".16b\n",
        )
    };
}

/// Sixteen columns of six pairs.
macro_rules! smmla_16_columns {
    () => {
        concat!(
            "ld1 {{v24.16b, v25.16b, v26.16b, v27.16b}}, [{w}], {stride}\n",
            load_x!(),
            smmla_pair!(24 25 28: 0 6),
            smmla_pair!(24 25 29: 1 7),
            smmla_pair!(24 25 30: 2 8),
            smmla_pair!(24 25 31: 3 9),
            load_x!(),
            smmla_pair!(24 25 28: 4 10),
            smmla_pair!(24 25 29: 5 11),
            smmla_pair!(26 27 30: 0 6),
            smmla_pair!(26 27 31: 1 7),
            load_x!(),
            smmla_pair!(26 27 28: 2 8),
            smmla_pair!(26 27 29: 3 9),
            smmla_pair!(26 27 30: 4 10),
            smmla_pair!(26 27 31: 5 11),
        )
    };
}

/// Parts the totals of a pair in `$a`, of the first two rows of weights, and `$b`, of the others, and
/// adds them times lanes of `$scales` to two rows of `out`.
macro_rules! add_out_pair {
    ($a:literal $b:literal $scales:literal: $lane0:literal $at0:literal $lane1:literal $at1:literal) => {
        concat!(
            "uzp1 v29.4s, v", $a, ".4s, v", $b, ".4s\n",
            "uzp2 v", $b, ".4s, v", $a, ".4s, v", $b, ".4s\n",
            add_out!(29 $scales $lane0 $at0),
            add_out!($b $scales $lane1 $at1),
        )
    };
}

/// Adds the products of 12 rows with a strip of a panel.
#[target_feature(enable = "neon,i8mm")]
#[inline(never)]
fn add_strip_12(panel: &[u8], x: &Tile<'_>, strip: usize, out: &mut [f32]) {
    let (group_bytes, steps, rounds) = (NR * (4 + x.groups.w), x.steps(), x.groups.w / 32);
    let n = x.scales.len() / 12;
    assert!(strip < 4);
    assert!(n != 0);
    assert!(steps != 0);
    assert!(rounds != 0);
    assert!(x.scales.len().is_multiple_of(12));
    assert_eq!(panel.len(), n * steps * group_bytes);
    assert!(x.q.len() >= n * steps * rounds * 32 * 12);
    assert_eq!(out.len(), 12 * NR);
    let (steps_at, w) = (panel[16 * strip..].as_ptr(), panel[4 * NR + STRIP * strip..].as_ptr());
    // SAFETY: for each of `n` activation groups this reads 12 scales, and reads and writes four
    // floats of each row of `out`; for each of its `steps` groups of weights it reads 16 bytes of
    // their steps; in each of their `rounds` of 32 columns 384 bytes of `x`, and twice 64 of `w`,
    // with those of the other strips between. So many were found to be there. Everything else is
    // registers that are named.
    unsafe {
        asm!(
            "4:",
            clear_12!(),
            "mov {step}, {steps}",
            "2:",
            "mov {round}, {rounds}",
            "3:",
            smmla_16_columns!(),
            smmla_16_columns!(),
            "subs {round}, {round}, #1",
            "b.ne 3b",
            "ld1 {{v26.4s}}, [{steps_at}], {group_bytes}",
            "add {w}, {w}, #64",
            "zip1 v24.4s, v26.4s, v26.4s",
            add_total!(0 12), add_total!(1 14), add_total!(2 16),
            add_total!(3 18), add_total!(4 20), add_total!(5 22),
            "zip2 v24.4s, v26.4s, v26.4s",
            add_total!(6 13), add_total!(7 15), add_total!(8 17),
            add_total!(9 19), add_total!(10 21), add_total!(11 23),
            "subs {step}, {step}, #1",
            "b.ne 2b",
            "ld1 {{v24.4s, v25.4s, v26.4s}}, [{scales}], #48",
            add_out_pair!(12 13 24: 0 0 1 64),
            add_out_pair!(14 15 24: 2 128 3 192),
            add_out_pair!(16 17 25: 0 256 1 320),
            add_out_pair!(18 19 25: 2 384 3 448),
            add_out_pair!(20 21 26: 0 512 1 576),
            add_out_pair!(22 23 26: 2 640 3 704),
            "subs {n}, {n}, #1",
            "b.ne 4b",
            w = inout(reg) w => _, x = inout(reg) x.q.as_ptr() => _,
            steps_at = inout(reg) steps_at => _, scales = inout(reg) x.scales.as_ptr() => _,
            out = in(reg) out[4 * strip..].as_mut_ptr(), n = inout(reg) n => _,
            steps = in(reg) steps, step = out(reg) _, rounds = in(reg) rounds, round = out(reg) _,
            stride = in(reg) 4 * STRIP, group_bytes = in(reg) group_bytes,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
            out("v6") _, out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _,
            out("v12") _, out("v13") _, out("v14") _, out("v15") _, out("v16") _, out("v17") _,
            out("v18") _, out("v19") _, out("v20") _, out("v21") _, out("v22") _, out("v23") _,
            out("v24") _, out("v25") _, out("v26") _, out("v27") _,
            out("v28") _, out("v29") _, out("v30") _, out("v31") _,
            options(nostack)
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
