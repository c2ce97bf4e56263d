//! Int8 weights.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::{load, load_64, load_floats, load_scales, store};
use super::super::neondot::gemm::{
    floats, gemm_q8, group_of_64, group_of_any, load_out, load_x, sixteen_columns, store_out,
    to_floats,
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
    let group_bytes = NR * (4 + x.group);
    for first in (0..4).step_by(S) {
        for (w, x) in panel.chunks_exact(group_bytes).zip(x.groups::<M, 8>()) {
            let mut dots = [[[vdupq_n_s32(0); 2]; PAIRS]; S];
            let (scales, w) = w.split_at(NR * 4);
            add_strips(&mut dots, &w[first * STRIP..], x.q);
            for s in 0..S {
                let scale = twice(load_scales(&scales.as_chunks().0[first + s]));
                let mut totals = [[vdupq_n_f32(0.0); 2]; PAIRS];
                for i in 0..PAIRS {
                    for h in 0..2 {
                        totals[i][h] = vmulq_f32(vcvtq_f32_s32(dots[s][i][h]), scale[h]);
                    }
                }
                add_pairs(out, first + s, &totals, x.scales);
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

/// Adds a pair's sums times the weights' scales in v24 and v26 and its own.
macro_rules! add_group {
    ($low:literal $high:literal $low_total:literal $high_total:literal $at:literal) => {
        concat!(
            "ld1r {{v25.2d}}, [{scales}], #8\n",
            to_floats!($low $low),
            to_floats!($high $high),
            floats!("fmul" $low $low 24),
            floats!("fmul" $high $high 26),
            floats!("fmla" $low_total $low 25),
            floats!("fmla" $high_total $high 25),
        )
    };
}

/// Loads the scales of a strip of a group, each twice.
macro_rules! load_w_scales {
    () => {
        concat!(
            "ld1 {{v27.4s}}, [{w_scales}], {group_bytes}\n",
            "zip1 v24.4s, v27.4s, v27.4s\n",
            "zip2 v26.4s, v27.4s, v27.4s\n",
        )
    };
}

macro_rules! end_group_12 {
    () => {
        concat!(load_w_scales!(), lines_12!(add_group))
    };
}

macro_rules! end_group_8 {
    () => {
        concat!(load_w_scales!(), lines_8!(add_group))
    };
}

gemm_q8!("neon,i8mm" gemm_12_of_64: 12 lines_12 smmla_12_rows end_group_12 group_of_64 64);
gemm_q8!("neon,i8mm" gemm_12_of_any: 12 lines_12 smmla_12_rows end_group_12 group_of_any 32..);
gemm_q8!("neon,i8mm" gemm_8_of_64: 8 lines_8 smmla_8_rows end_group_8 group_of_64 64);
gemm_q8!("neon,i8mm" gemm_8_of_any: 8 lines_8 smmla_8_rows end_group_8 group_of_any 32..);

/// Twelve rows of activations by a panel.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q8_f32_12x16c8(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    match x.group {
        64 => gemm_12_of_64(panel, x, out),
        _ => gemm_12_of_any(panel, x, out),
    }
}

/// Eight rows of activations by a panel.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q8_f32_8x16c8(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    match x.group {
        64 => gemm_8_of_64(panel, x, out),
        _ => gemm_8_of_any(panel, x, out),
    }
}

/// One row of activations by a panel.
#[target_feature(enable = "neon,i8mm")]
fn gemv_q8_q8_f32_1x16c8(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    let out = &mut out.as_chunks_mut::<4>().0[..4];
    let mut totals =
        [load_floats(&out[0]), load_floats(&out[1]), load_floats(&out[2]), load_floats(&out[3])];
    let group_bytes = NR * (4 + x.group);
    for (w, x) in panel.chunks_exact(group_bytes).zip(x.groups::<1, 8>()) {
        let mut dots = [vdupq_n_s32(0); 8];
        let (scales, w) = w.split_at(NR * 4);
        add_panel(&mut dots, w, x.q.as_flattened().as_flattened());
        let scales = load_64(&scales.as_chunks().0[0]);
        for j in 0..4 {
            let sums = vcvtq_f32_s32(vuzp1q_s32(dots[2 * j], dots[2 * j + 1]));
            let sums = vmulq_f32(sums, vreinterpretq_f32_u8(scales[j]));
            totals[j] = vfmaq_n_f32(totals[j], sums, x.scales[0]);
        }
    }
    for j in 0..4 {
        store(&mut out[j], totals[j]);
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
