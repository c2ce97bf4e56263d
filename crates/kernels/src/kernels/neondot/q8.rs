//! Int8 weights.

use std::arch::asm;

use super::super::neon::registers::{
    floats, floats_by_lane, load_2, load_4, registers, store_4, to_floats,
};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::{Q8Tile, ZERO};
use super::gemm::{
    NR, gemm_q8, gemm_q8_groups, group_of_32, group_of_any, load_out, load_x, store_out,
};

/// Tiles by their rows. Costs are millions of instructions of a pass of TinyLlama's shape, counted.
pub(super) static TILES: TileSet = TileSet::new(
    &[
        TileKernel::new(1, gemv_q8_q8_f32_1x16c4, 107),
        TileKernel::new(2, gemm_q8_q8_f32_2x16c4, 187),
        TileKernel::new(3, gemm_q8_q8_f32_3x16c4, 264),
        TileKernel::new(4, gemm_q8_q8_f32_4x16c4, 347),
        TileKernel::new(8, gemm_q8_q8_f32_8x16c4, 690),
        TileKernel::new(12, gemm_q8_q8_f32_12x16c4, 1013),
    ],
    0,
);

/// Bytes of a strip of 16 columns.
const STRIP: usize = 64;

tall_registers! {
    // 16 columns of another strip, in tiles with up to eight sums.
    next0 = 20, next1 = 21, next2 = 22, next3 = 23,
    // At the end of a group of few rows, when weights' registers hold scales of strips: scales of up to four rows, or
    // of two and of the third; the zero of sums.
    few_scales = 28, third_scale = 29, few_zero = 30,
    // Single-row kernel: scales of four strips, and the row's scale.
    scale0 = 16, scale1 = 17, scale2 = 18, scale3 = 19, x_scale = 30,
}

/// Adds sums of two rows, less zero, times the weights' scales and the rows' own.
macro_rules! add_group {
    ($a:ident $b:ident, $ta:ident $tb:ident, $rows:ident $i:literal $j:literal,
     $ya:ident $yb:ident $at:literal) => {
        concat!(
            floats!("fsub" $a $a zero),
            floats!("fsub" $b $b zero),
            floats!("fmul" $a $a w_scales),
            floats!("fmul" $b $b w_scales),
            floats_by_lane!("fmla" $ta $a $rows $i),
            floats_by_lane!("fmla" $tb $b $rows $j),
        )
    };
}

/// Loads the scales of a strip of a group, and the zero of sums.
macro_rules! load_w_scales {
    () => {
        concat!(
            "ld1 {{v",
            r!(w_scales),
            ".4s}}, [{w_scales}], {group_bytes}\n",
            "dup v",
            r!(zero),
            ".4s, {zero:w}\n",
        )
    };
}

macro_rules! end_group_12 {
    () => {
        concat!(load_w_scales!(), load_rows_12!("scales"), lines_12!(add_group))
    };
}

macro_rules! end_group_8 {
    () => {
        concat!(load_w_scales!(), load_2!(rows0 rows1, "scales"), lines_8!(add_group))
    };
}

gemm_q8!("neon,dotprod" gemm_q8_q8_f32_12x16c4: 12 by 1, lines_12 sdot_12_rows end_group_12,
    zero = in(reg) ZERO.to_bits());
gemm_q8!("neon,dotprod" gemm_q8_q8_f32_8x16c4: 8 by 1, lines_8 sdot_8_rows end_group_8,
    zero = in(reg) ZERO.to_bits());

/// Two rows by 16 columns of a strip, eight bytes of activations for each four columns.
macro_rules! sdot_2_rows {
    ($a:ident $b:ident: $w0:ident $w1:ident $w2:ident $w3:ident) => {
        concat!(
            sdot!($a $w0 x0 0), sdot!($b $w0 x0 1), sdot!($a $w1 x0 2), sdot!($b $w1 x0 3),
            sdot!($a $w2 x1 0), sdot!($b $w2 x1 1), sdot!($a $w3 x1 2), sdot!($b $w3 x1 3),
        )
    };
}

/// Two rows by 16 columns of a panel.
macro_rules! sdot_2_by_4 {
    ($next:literal) => {
        concat!(
            load_2!(x0 x1, "x"),
            load_4!("16b" w0 w1 w2 w3, "w", "#64"),
            load_4!("16b" next0 next1 next2 next3, "w", "#64"),
            sdot_2_rows!(sum0 sum1: w0 w1 w2 w3),
            load_4!("16b" w0 w1 w2 w3, "w", "#64"),
            sdot_2_rows!(sum2 sum3: next0 next1 next2 next3),
            load_4!("16b" next0 next1 next2 next3, "w", $next),
            sdot_2_rows!(sum4 sum5: w0 w1 w2 w3),
            sdot_2_rows!(sum6 sum7: next0 next1 next2 next3),
        )
    };
}

/// Three rows by 16 columns of a strip, 12 bytes of activations for each four columns.
macro_rules! sdot_3_rows {
    ($a:ident $b:ident $c:ident, $next:literal) => {
        concat!(
            load_4!("16b" w0 w1 w2 w3, "w", $next),
            sdot!($a w0 x0 0), sdot!($b w0 x0 1), sdot!($c w0 x0 2),
            sdot!($a w1 x0 3), sdot!($b w1 x1 0), sdot!($c w1 x1 1),
            sdot!($a w2 x1 2), sdot!($b w2 x1 3), sdot!($c w2 x2 0),
            sdot!($a w3 x2 1), sdot!($b w3 x2 2), sdot!($c w3 x2 3),
        )
    };
}

/// Three rows by 16 columns of a panel.
macro_rules! sdot_3_by_4 {
    ($next:literal) => {
        concat!(
            "ld1 {{v", r!(x0), ".16b, v", r!(x1), ".16b, v", r!(x2), ".16b}}, [{x}], #48\n",
            sdot_3_rows!(sum0 sum1 sum2, "#64"), sdot_3_rows!(sum3 sum4 sum5, "#64"),
            sdot_3_rows!(sum6 sum7 sum8, "#64"), sdot_3_rows!(sum9 sum10 sum11, $next),
        )
    };
}

/// Four rows by 16 columns of two strips.
macro_rules! sdot_4_by_2 {
    ($next:literal) => {
        concat!(
            load_x!(),
            load_4!("16b" w0 w1 w2 w3, "w", "#64"),
            load_4!("16b" next0 next1 next2 next3, "w", $next),
            sdot_rows!(w0 x0: sum0 sum1 sum2 sum3), sdot_rows!(w1 x1: sum0 sum1 sum2 sum3),
            sdot_rows!(w2 x2: sum0 sum1 sum2 sum3), sdot_rows!(w3 x3: sum0 sum1 sum2 sum3),
            sdot_rows!(next0 x0: sum4 sum5 sum6 sum7), sdot_rows!(next1 x1: sum4 sum5 sum6 sum7),
            sdot_rows!(next2 x2: sum4 sum5 sum6 sum7), sdot_rows!(next3 x3: sum4 sum5 sum6 sum7),
        )
    };
}

/// Adds a row's sums with a strip, less zero, times the weights' scales and its own.
macro_rules! add_row {
    ($sum:ident $total:ident $scales:ident, $rows:ident $lane:literal) => {
        concat!(
            floats!("fsub" $sum $sum few_zero),
            floats!("fmul" $sum $sum $scales),
            floats_by_lane!("fmla" $total $sum $rows $lane),
        )
    };
}

/// Loads the scales of four strips of a group, and the zero of sums.
macro_rules! load_4_scales {
    () => {
        concat!(
            load_4!("4s" w0 w1 w2 w3, "w_scales", "{group_bytes}"),
            "dup v", r!(few_zero), ".4s, {zero:w}\n",
        )
    };
}

macro_rules! end_group_2_by_4 {
    () => {
        concat!(
            load_4_scales!(),
            "ldr d", r!(few_scales), ", [{scales}], #8\n",
            add_row!(sum0 total0 w0, few_scales 0), add_row!(sum1 total1 w0, few_scales 1),
            add_row!(sum2 total2 w1, few_scales 0), add_row!(sum3 total3 w1, few_scales 1),
            add_row!(sum4 total4 w2, few_scales 0), add_row!(sum5 total5 w2, few_scales 1),
            add_row!(sum6 total6 w3, few_scales 0), add_row!(sum7 total7 w3, few_scales 1),
        )
    };
}

macro_rules! end_group_3_by_4 {
    () => {
        concat!(
            load_4_scales!(),
            "ldr d", r!(few_scales), ", [{scales}], #8\n",
            "ldr s", r!(third_scale), ", [{scales}], #4\n",
            add_row!(sum0 total0 w0, few_scales 0), add_row!(sum1 total1 w0, few_scales 1),
            add_row!(sum2 total2 w0, third_scale 0), add_row!(sum3 total3 w1, few_scales 0),
            add_row!(sum4 total4 w1, few_scales 1), add_row!(sum5 total5 w1, third_scale 0),
            add_row!(sum6 total6 w2, few_scales 0), add_row!(sum7 total7 w2, few_scales 1),
            add_row!(sum8 total8 w2, third_scale 0), add_row!(sum9 total9 w3, few_scales 0),
            add_row!(sum10 total10 w3, few_scales 1), add_row!(sum11 total11 w3, third_scale 0),
        )
    };
}

macro_rules! end_group_4_by_2 {
    () => {
        concat!(
            "ld1 {{v", r!(w0), ".4s, v", r!(w1), ".4s}}, [{w_scales}], {group_bytes}\n",
            "dup v", r!(few_zero), ".4s, {zero:w}\n",
            "ldr q", r!(few_scales), ", [{scales}], #16\n",
            add_row!(sum0 total0 w0, few_scales 0), add_row!(sum1 total1 w0, few_scales 1),
            add_row!(sum2 total2 w0, few_scales 2), add_row!(sum3 total3 w0, few_scales 3),
            add_row!(sum4 total4 w1, few_scales 0), add_row!(sum5 total5 w1, few_scales 1),
            add_row!(sum6 total6 w1, few_scales 2), add_row!(sum7 total7 w1, few_scales 3),
        )
    };
}

gemm_q8!("neon,dotprod" gemm_q8_q8_f32_2x16c4: 2 by 4, lines_8 sdot_2_by_4 end_group_2_by_4,
    zero = in(reg) ZERO.to_bits());
gemm_q8!("neon,dotprod" gemm_q8_q8_f32_3x16c4: 3 by 4, lines_12 sdot_3_by_4 end_group_3_by_4,
    zero = in(reg) ZERO.to_bits());
gemm_q8!("neon,dotprod" gemm_q8_q8_f32_4x16c4: 4 by 2, lines_8 sdot_4_by_2 end_group_4_by_2,
    zero = in(reg) ZERO.to_bits());

/// Sixteen `sdot`: 16 columns of activations by four strips.
macro_rules! sdot_16_columns_of_panel {
    ($x:ident) => {
        concat!(
            load_4!("16b" w0 w1 w2 w3, "w", "#64"),
            load_4!("16b" next0 next1 next2 next3, "w", "#64"),
            sdot_strip!(sum0 $x: w0 w1 w2 w3),
            load_4!("16b" w0 w1 w2 w3, "w", "#64"),
            sdot_strip!(sum1 $x: next0 next1 next2 next3),
            load_4!("16b" next0 next1 next2 next3, "w", "#64"),
            sdot_strip!(sum2 $x: w0 w1 w2 w3),
            sdot_strip!(sum3 $x: next0 next1 next2 next3),
        )
    };
}

/// Four `sdot`: 16 columns of a strip.
macro_rules! sdot_strip {
    ($sum:ident $x:ident: $a:ident $b:ident $c:ident $d:ident) => {
        concat!(sdot!($sum $a $x 0), sdot!($sum $b $x 1), sdot!($sum $c $x 2), sdot!($sum $d $x 3))
    };
}

/// Clears a strip's sums.
macro_rules! clear {
    ($sum:ident) => {
        concat!("movi v", r!($sum), ".2d, #0\n")
    };
}

/// Adds a strip's sums times the weights' scales and the row's own.
macro_rules! add_strip_of_panel {
    ($sum:ident $scale:ident $total:ident) => {
        concat!(
            to_floats!($sum $sum),
            floats!("fmul" $sum $sum $scale),
            floats_by_lane!("fmla" $total $sum x_scale 0),
        )
    };
}

/// One row of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemv_q8_q8_f32_1x16c4(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    let (n, rounds) = (x.scales.len(), x.group / 32);
    assert!(n != 0);
    assert!(rounds != 0);
    assert_eq!(panel.len(), n * NR * (4 + x.group));
    assert!(x.q.len() >= n * rounds * 32);
    assert_eq!(out.len(), NR);
    // SAFETY: this reads and writes 16 floats of `out`. For each of `n` groups it reads a scale and 64 bytes of the
    // weights' scales; in each of their `rounds` of 32 columns it reads 32 bytes of `x` and 512 of weights. The lengths
    // were checked above. Everything else is in named registers.
    unsafe {
        asm!(
            load_4!("4s" total0 total1 total2 total3, "out"),
            "2:",
            load_4!("4s" scale0 scale1 scale2 scale3, "w", "#64"),
            concat!(clear!(sum0), clear!(sum1), clear!(sum2), clear!(sum3)),
            "mov {round}, {rounds}",
            "3:",
            concat!("ld1 {{v", r!(x0), ".16b, v", r!(x1), ".16b}}, [{x}], #32"),
            sdot_16_columns_of_panel!(x0),
            sdot_16_columns_of_panel!(x1),
            "subs {round}, {round}, #1",
            "b.ne 3b",
            concat!("ldr s", r!(x_scale), ", [{scales}], #4"),
            add_strip_of_panel!(sum0 scale0 total0),
            add_strip_of_panel!(sum1 scale1 total1),
            add_strip_of_panel!(sum2 scale2 total2),
            add_strip_of_panel!(sum3 scale3 total3),
            "subs {n}, {n}, #1",
            "b.ne 2b",
            store_4!(total0 total1 total2 total3, "out"),
            w = inout(reg) panel.as_ptr() => _, x = inout(reg) x.q.as_ptr() => _,
            scales = inout(reg) x.scales.as_ptr() => _, out = in(reg) out.as_mut_ptr(),
            n = inout(reg) n => _, rounds = in(reg) rounds, round = out(reg) _,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
            out("v6") _, out("v7") _, out("v12") _, out("v13") _, out("v14") _, out("v15") _,
            out("v20") _, out("v21") _, out("v22") _, out("v23") _, out("v24") _, out("v25") _,
            out("v26") _, out("v27") _, out("v28") _, out("v29") _,
            options(nostack)
        );
    }
}
