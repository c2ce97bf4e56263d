//! Int8 weights.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::registers::{floats, load_4, registers, to_floats};
use super::super::neon::{load_64, load_floats, store};
use super::super::neondot::gemm::{
    gemm_q8, gemm_q8_groups, group_of_32, group_of_any, load_out, load_x, store_out,
};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::Q8Tile;
use super::pairs::{NR, STRIP};

/// Tiles by their rows. Costs are millions of instructions of a pass of TinyLlama's shape, counted.
pub(super) static TILES: TileSet = TileSet::new(
    &[
        TileKernel::new(1, gemv_q8_q8_f32_1x16c8, 130),
        TileKernel::new(2, gemm_q8_q8_f32_2x16c8, 133),
        TileKernel::new(4, gemm_q8_q8_f32_4x16c8, 234),
        TileKernel::new(8, gemm_q8_q8_f32_8x16c8, 462),
        TileKernel::new(12, gemm_q8_q8_f32_12x16c8, 683),
    ],
    0,
);

tall_registers! {
    // At the end of a group: scales of four weight rows; those of the first two and of the others, each twice; a pair's
    // scales.
    w_scales = 27, low_scales = 24, high_scales = 26, x_scales = 25,
    // At the end of a group of few rows, when weights' registers hold scales of strips: scales of two pairs; a strip's
    // scales, each twice.
    pair0 = 28, pair1 = 31, few_low_scales = 29, few_high_scales = 30,
    // Single-row kernel: 16 columns of a strip.
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

gemm_q8!("neon,i8mm" gemm_q8_q8_f32_12x16c8: 12 by 1, lines_12 smmla_12_rows end_group_12);
gemm_q8!("neon,i8mm" gemm_q8_q8_f32_8x16c8: 8 by 1, lines_8 smmla_8_rows end_group_8);

/// A pair by 16 columns of a strip.
macro_rules! smmla_2_rows {
    ($low:ident $high:ident, $next:literal) => {
        concat!(
            load_4!("16b" w0 w1 w2 w3, "w", $next),
            smmla_pair!(w0 w1 x0: $low $high), smmla_pair!(w2 w3 x1: $low $high),
        )
    };
}

/// A pair by 16 columns of a panel.
macro_rules! smmla_2_by_4 {
    ($next:literal) => {
        concat!(
            "ldp q", r!(x0), ", q", r!(x1), ", [{x}], #32\n",
            smmla_2_rows!(low0 high0, "#64"), smmla_2_rows!(low1 high1, "#64"),
            smmla_2_rows!(low2 high2, "#64"), smmla_2_rows!(low3 high3, $next),
        )
    };
}

/// Two pairs by 16 columns of a strip.
macro_rules! smmla_4_rows {
    ($low0:ident $high0:ident $low1:ident $high1:ident, $next:literal) => {
        concat!(
            load_4!("16b" w0 w1 w2 w3, "w", $next),
            smmla_pair!(w0 w1 x0: $low0 $high0), smmla_pair!(w0 w1 x1: $low1 $high1),
            smmla_pair!(w2 w3 x2: $low0 $high0), smmla_pair!(w2 w3 x3: $low1 $high1),
        )
    };
}

/// Two pairs by 16 columns of two strips.
macro_rules! smmla_4_by_2 {
    ($next:literal) => {
        concat!(
            load_x!(),
            smmla_4_rows!(low0 high0 low1 high1, "#64"),
            smmla_4_rows!(low2 high2 low3 high3, $next),
        )
    };
}

/// Copies a strip's scales, each twice.
macro_rules! spread_scales {
    ($scales:ident) => {
        concat!(
            floats!("zip1" few_low_scales $scales $scales),
            floats!("zip2" few_high_scales $scales $scales),
        )
    };
}

/// Adds a pair's sums with a strip times the weights' scales and its own.
macro_rules! add_pair {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $pair:ident) => {
        concat!(
            to_floats!($low $low),
            to_floats!($high $high),
            floats!("fmul" $low $low few_low_scales),
            floats!("fmul" $high $high few_high_scales),
            floats!("fmla" $low_total $low $pair),
            floats!("fmla" $high_total $high $pair),
        )
    };
}

macro_rules! end_group_2_by_4 {
    () => {
        concat!(
            load_4!("4s" w0 w1 w2 w3, "w_scales", "{group_bytes}"),
            load_pair!(pair0, "scales"),
            spread_scales!(w0), add_pair!(low0 high0, low_total0 high_total0, pair0),
            spread_scales!(w1), add_pair!(low1 high1, low_total1 high_total1, pair0),
            spread_scales!(w2), add_pair!(low2 high2, low_total2 high_total2, pair0),
            spread_scales!(w3), add_pair!(low3 high3, low_total3 high_total3, pair0),
        )
    };
}

macro_rules! end_group_4_by_2 {
    () => {
        concat!(
            "ld1 {{v", r!(w0), ".4s, v", r!(w1), ".4s}}, [{w_scales}], {group_bytes}\n",
            load_pair!(pair0, "scales"), load_pair!(pair1, "scales"),
            spread_scales!(w0), add_pair!(low0 high0, low_total0 high_total0, pair0),
            add_pair!(low1 high1, low_total1 high_total1, pair1),
            spread_scales!(w1), add_pair!(low2 high2, low_total2 high_total2, pair0),
            add_pair!(low3 high3, low_total3 high_total3, pair1),
        )
    };
}

gemm_q8!("neon,i8mm" gemm_q8_q8_f32_2x16c8: 2 by 4, lines_8 smmla_2_by_4 end_group_2_by_4);
gemm_q8!("neon,i8mm" gemm_q8_q8_f32_4x16c8: 4 by 2, lines_8 smmla_4_by_2 end_group_4_by_2);

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

/// Four `smmla`: 16 columns of a strip by as many activations, with sums that are operands.
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

/// Adds the products of a row with a group of a panel. Each two weight rows have two sums, each of them twice.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn add_panel(dots: &mut [int32x4_t; 8], w: &[u8], x: &[u8]) {
    let rounds = x.len() / 32;
    assert!(rounds != 0);
    assert!(w.len() >= rounds * 32 * NR);
    // SAFETY: each round reads 32 bytes of `x` and 512 of `w`; the lengths were checked above. Everything else is in
    // named registers.
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
