//! Int8 weights.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::registers::{floats, load_4, registers, to_floats};
use super::super::neon::{load_64, load_floats, load_scales, store};
use super::super::neondot::gemm::{
    gemm_q8, group_of_64, group_of_any, load_out, load_x, sixteen_columns, store_out,
};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::{Q8Tile, USUAL};
use super::pairs::{
    NR, STRIP, add_pairs, by_rows, eight_columns, load_pairs, of_pair, store_pairs,
};

/// Tiles of so many rows; costs are millions of instructions of a pass by TinyLlama's
/// shape, counted.
pub(super) static TILES: TileSet = TileSet::new(
    &[
        TileKernel::new(1, gemv_q8_q8_f32_1x16c8, 130),
        TileKernel::new(2, gemm_q8_q8_f32_mx16c8::<2, 1, 4>, 174),
        TileKernel::new(4, gemm_q8_q8_f32_mx16c8::<4, 2, 2>, 300),
        TileKernel::new(8, gemm_q8_q8_f32_8x16c8, 462),
        TileKernel::new(12, gemm_q8_q8_f32_12x16c8, 683),
    ],
    0,
);

/// `M` rows of activations in `PAIRS` pairs by a panel, `S` strips at a time. Of [`USUAL`] groups the
/// compiler knows the length.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q8_f32_mx16c8<const M: usize, const PAIRS: usize, const S: usize>(
    panel: &[u8],
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    if x.group == USUAL {
        gemm_strips::<M, PAIRS, S, true>(panel, x, out);
    } else {
        gemm_strips::<M, PAIRS, S, false>(panel, x, out);
    }
}

#[target_feature(enable = "neon,i8mm")]
#[inline]
fn gemm_strips<const M: usize, const PAIRS: usize, const S: usize, const IS_USUAL: bool>(
    panel: &[u8],
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    let group = if IS_USUAL { USUAL } else { x.group };
    let x_q = bytemuck::cast_slice::<i8, [u8; 8]>(x.q).as_chunks::<M>().0.as_chunks::<2>().0;
    let strips = out.as_chunks_mut::<4>().0.as_chunks_mut::<M>().0.as_chunks_mut::<S>().0;
    for (i, out) in strips.iter_mut().enumerate() {
        let mut totals = [[[vdupq_n_f32(0.0); 2]; PAIRS]; S];
        for (totals, out) in totals.iter_mut().zip(&*out) {
            *totals = load_pairs(out);
        }
        let groups = panel.chunks_exact(NR * (4 + group)).zip(x_q.chunks_exact(group / 16));
        for ((w, x_q), x_scales) in groups.zip(x.scales.as_chunks::<M>().0) {
            let (scales, w) = w.split_at(NR * 4);
            let mut dots = [[[vdupq_n_s32(0); 2]; PAIRS]; S];
            for (w, x_q) in w.as_chunks::<{ 4 * STRIP }>().0.iter().zip(x_q) {
                let w = w.as_chunks::<STRIP>().0.as_chunks::<S>().0;
                for s in 0..S {
                    let [a, b, c, d] = load_64(&w[i][s]);
                    let (a, b) = (vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
                    let (c, d) = (vreinterpretq_s8_u8(c), vreinterpretq_s8_u8(d));
                    eight_columns(&mut dots[s], [a, b], &x_q[0]);
                    eight_columns(&mut dots[s], [c, d], &x_q[1]);
                }
            }
            let scales = scales.as_chunks::<16>().0.as_chunks::<S>().0;
            for s in 0..S {
                let scale = load_scales(&scales[i][s]);
                let sums = by_rows::<M, PAIRS>(&dots[s]);
                let mut scaled = [[vdupq_n_f32(0.0); 2]; PAIRS];
                for pair in 0..PAIRS {
                    let scale = of_pair::<M>(pair, scale);
                    for h in 0..2 {
                        scaled[pair][h] = vmulq_f32(vcvtq_f32_s32(sums[pair][h]), scale[h]);
                    }
                }
                add_pairs(&mut totals[s], &scaled, x_scales);
            }
        }
        for (totals, out) in totals.iter().zip(out) {
            store_pairs(out, totals);
        }
    }
}

tall_registers! {
    // At the end of a group: scales of four rows of weights, and of the first two and of the others,
    // each twice; a pair's scales.
    w_scales = 27, low_scales = 24, high_scales = 26, x_scales = 25,
    // Of a single row: 16 columns of a strip.
    strip0 = 20, strip1 = 21, strip2 = 22, strip3 = 23,
}

/// Adds a pair's sums times the weights' scales and its own.
macro_rules! add_group {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        concat!(
            load_pair!(x_scales, "scales"),
            to_floats!($low $low),
            to_floats!($high $high),
            floats!("fmul" $low $low low_scales),
            floats!("fmul" $high $high high_scales),
            floats!("fmla" $low_total $low x_scales),
            floats!("fmla" $high_total $high x_scales),
        )
    };
}

/// Loads the scales of a strip of a group, each twice.
macro_rules! load_w_scales {
    () => {
        concat!(
            "ld1 {{v", r!(w_scales), ".4s}}, [{w_scales}], {group_bytes}\n",
            floats!("zip1" low_scales w_scales w_scales),
            floats!("zip2" high_scales w_scales w_scales),
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
fn gemm_q8_q8_f32_12x16c8(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    match x.group {
        64 => gemm_12_of_64(panel, x, out),
        _ => gemm_12_of_any(panel, x, out),
    }
}

/// Eight rows of activations by a panel.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q8_f32_8x16c8(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    match x.group {
        64 => gemm_8_of_64(panel, x, out),
        _ => gemm_8_of_any(panel, x, out),
    }
}

/// One row of activations by a panel.
#[target_feature(enable = "neon,i8mm")]
fn gemv_q8_q8_f32_1x16c8(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
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

/// Four `smmla`: 16 columns of a strip by as many activations, for sums that are operands.
macro_rules! smmla_strip {
    ($low:literal $high:literal: $x0:ident $x1:ident) => {
        concat!(
            load_4!("16b" strip0 strip1 strip2 strip3, "w", "#64"),
            smmla_to!($low strip0 $x0), smmla_to!($high strip1 $x0),
            smmla_to!($low strip2 $x1), smmla_to!($high strip3 $x1),
        )
    };
}

/// Sixteen columns of a panel by as many activations.
macro_rules! smmla_16_columns_of_panel {
    ($x0:ident $x1:ident) => {
        concat!(
            smmla_strip!("low0" "high0": $x0 $x1),
            smmla_strip!("low1" "high1": $x0 $x1),
            smmla_strip!("low2" "high2": $x0 $x1),
            smmla_strip!("low3" "high3": $x0 $x1),
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
            smmla_16_columns_of_panel!(eight0 eight1),
            smmla_16_columns_of_panel!(eight2 eight3),
            "subs {rounds}, {rounds}, #1",
            "b.ne 2b",
            w = inout(reg) w.as_ptr() => _, x = inout(reg) x.as_ptr() => _,
            rounds = inout(reg) rounds => _,
            low0 = inout(vreg) dots[0], high0 = inout(vreg) dots[1], low1 = inout(vreg) dots[2],
            high1 = inout(vreg) dots[3], low2 = inout(vreg) dots[4], high2 = inout(vreg) dots[5],
            low3 = inout(vreg) dots[6], high3 = inout(vreg) dots[7],
            out("v20") _, out("v21") _, out("v22") _, out("v23") _,
            out("v24") _, out("v25") _, out("v26") _, out("v27") _,
            options(nostack, readonly)
        );
    }
}
