//! Int8 weights.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::{add_rows, load, load_64, load_scales};
use super::super::neondot::gemm::{
    any_groups, floats, four_groups_of_64, gemm_q8, group_of_64, group_of_any, load_out, load_x,
    sixteen_columns, store_out, to_floats,
};
use super::super::packed::{Tile, TileFn};
use super::{NR, STRIP, Sums, add_pairs, eight_columns, twice};

/// Tiles of so many rows.
pub(super) static TILES: [TileFn; 12] = tiles_of!(gemv_q8_q8_f32_1x16c8 gemm_q8_q8_f32_mx16c8:
    2 1 2 3 2 1 4 2 1 5 3 1 6 3 1 7 4 1, gemm_q8_q8_f32_8x16c8
    9 5 1 10 5 1 11 6 1, gemm_q8_q8_f32_12x16c8);

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

/// Makes totals of a pair its sums times the steps in v24 and v26.
macro_rules! begin_total {
    ($low:literal $high:literal $low_total:literal $high_total:literal $at:literal) => {
        concat!(
            to_floats!($low_total $low),
            to_floats!($high_total $high),
            floats!("fmul" $low_total $low_total 24),
            floats!("fmul" $high_total $high_total 26),
        )
    };
}

/// Adds the same to the totals.
macro_rules! add_total {
    ($low:literal $high:literal $low_total:literal $high_total:literal $at:literal) => {
        concat!(
            to_floats!(25 $low),
            to_floats!(27 $high),
            floats!("fmla" $low_total 25 24),
            floats!("fmla" $high_total 27 26),
        )
    };
}

/// Loads the steps of a strip of a group, each twice.
macro_rules! load_steps {
    () => {
        concat!(
            "ld1 {{v27.4s}}, [{steps_at}], {group_bytes}\n",
            "zip1 v24.4s, v27.4s, v27.4s\n",
            "zip2 v26.4s, v27.4s, v27.4s\n",
        )
    };
}

gemm_q8!("neon,i8mm" gemm_12_of_4x64: 12 lines_12 smmla_12_rows add_out_12 four_groups_of_64 (64, 4));
gemm_q8!("neon,i8mm" gemm_12_of_any: 12 lines_12 smmla_12_rows add_out_12 any_groups (32.., _));
gemm_q8!("neon,i8mm" gemm_8_of_4x64: 8 lines_8 smmla_8_rows add_out_8 four_groups_of_64 (64, 4));
gemm_q8!("neon,i8mm" gemm_8_of_any: 8 lines_8 smmla_8_rows add_out_8 any_groups (32.., _));

/// Twelve rows of activations by a panel.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q8_f32_12x16c8(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    match (x.groups.w, x.steps()) {
        (64, 4) => gemm_12_of_4x64(panel, x, out),
        _ => gemm_12_of_any(panel, x, out),
    }
}

/// Eight rows of activations by a panel.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q8_f32_8x16c8(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    match (x.groups.w, x.steps()) {
        (64, 4) => gemm_8_of_4x64(panel, x, out),
        _ => gemm_8_of_any(panel, x, out),
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
