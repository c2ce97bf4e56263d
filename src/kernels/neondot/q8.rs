//! Int8 weights.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::registers::{
    floats, floats_by_lane, load_2, load_4, registers, store_4, to_floats,
};
use super::super::neon::{load, load_64, load_floats, load_scales, store};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::{Q8Tile, USUAL, ZERO};
use super::by_lane::{NR, four_columns};
use super::gemm::{
    gemm_q8, group_of_64, group_of_any, load_out, load_x, sixteen_columns, store_out,
};

/// Tiles of so many rows; costs are millions of instructions of a pass by TinyLlama's
/// shape, counted.
pub(super) static TILES: TileSet = TileSet::new(
    &[
        TileKernel::new(1, gemv_q8_q8_f32_1x16c4, 107),
        TileKernel::new(2, gemm_q8_q8_f32_mx16c4::<2, 4>, 229),
        TileKernel::new(3, gemm_q8_q8_f32_mx16c4::<3, 4>, 309),
        TileKernel::new(4, gemm_q8_q8_f32_mx16c4::<4, 2>, 418),
        TileKernel::new(8, gemm_q8_q8_f32_8x16c4, 690),
        TileKernel::new(12, gemm_q8_q8_f32_12x16c4, 1013),
    ],
    0,
);

/// Bytes of a strip of 16 columns.
const STRIP: usize = 64;

/// `M` rows of activations by a panel, `S` strips at a time. Of [`USUAL`] groups the compiler knows
/// the length.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q8_f32_mx16c4<const M: usize, const S: usize>(
    panel: &[u8],
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    if x.group == USUAL {
        gemm_strips::<M, S, true>(panel, x, out);
    } else {
        gemm_strips::<M, S, false>(panel, x, out);
    }
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn gemm_strips<const M: usize, const S: usize, const IS_USUAL: bool>(
    panel: &[u8],
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    let group = if IS_USUAL { USUAL } else { x.group };
    let x_q = bytemuck::cast_slice::<i8, [i8; 16]>(x.q);
    let strips = out.as_chunks_mut::<4>().0.as_chunks_mut::<M>().0.as_chunks_mut::<S>().0;
    for (i, out) in strips.iter_mut().enumerate() {
        let mut totals = [[vdupq_n_f32(0.0); M]; S];
        for (totals, out) in totals.iter_mut().zip(&*out) {
            for (total, out) in totals.iter_mut().zip(out) {
                *total = load_floats(out);
            }
        }
        let groups = panel.chunks_exact(NR * (4 + group)).zip(x_q.chunks_exact(group / 16 * M));
        for ((w, x_q), x_scales) in groups.zip(x.scales.as_chunks::<M>().0) {
            let (scales, w) = w.split_at(NR * 4);
            let w = w.as_chunks::<{ 4 * STRIP }>().0.iter();
            let mut dots = [[vdupq_n_s32(0); M]; S];
            for (w, x_q) in w.zip(x_q.as_chunks::<M>().0) {
                let w = w.as_chunks::<STRIP>().0.as_chunks::<S>().0;
                sixteen_columns(&mut dots, &w[i], x_q);
            }
            let scales = scales.as_chunks::<16>().0.as_chunks::<S>().0;
            for s in 0..S {
                let scale = load_scales(&scales[i][s]);
                for row in 0..M {
                    let sum = vmulq_f32(vcvtq_f32_s32(dots[s][row]), scale);
                    totals[s][row] = vfmaq_n_f32(totals[s][row], sum, x_scales[row]);
                }
            }
        }
        for (totals, out) in totals.iter().zip(out) {
            for (total, out) in totals.iter().zip(out) {
                store(out, *total);
            }
        }
    }
}

/// Adds the products of `M` rows, four columns of each after the other, with `S` strips.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn sixteen_columns<const M: usize, const S: usize>(
    dots: &mut [[int32x4_t; M]; S],
    w: &[[u8; STRIP]; S],
    x: &[[i8; 16]; M],
) {
    let mut x_fours = [vdupq_n_s8(0); M];
    for (fours, x) in x_fours.iter_mut().zip(x) {
        *fours = load(x);
    }
    for s in 0..S {
        let w = load_64(&w[s]);
        four_columns::<M, 0>(&mut dots[s], w[0], &x_fours);
        four_columns::<M, 1>(&mut dots[s], w[1], &x_fours);
        four_columns::<M, 2>(&mut dots[s], w[2], &x_fours);
        four_columns::<M, 3>(&mut dots[s], w[3], &x_fours);
    }
}

tall_registers! {
    // Of a single row: scales of four strips, and its own; 16 columns of another strip.
    scale0 = 16, scale1 = 17, scale2 = 18, scale3 = 19, x_scale = 30,
    next0 = 20, next1 = 21, next2 = 22, next3 = 23,
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

/// Loads the scales of a strip of a group, and the sums' zero.
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

gemm_q8!("neon,dotprod" gemm_12_of_64: 12 lines_12 sdot_12_rows end_group_12 group_of_64 64,
    zero = in(reg) ZERO.to_bits());
gemm_q8!("neon,dotprod" gemm_12_of_any: 12 lines_12 sdot_12_rows end_group_12 group_of_any 32..,
    zero = in(reg) ZERO.to_bits());
gemm_q8!("neon,dotprod" gemm_8_of_64: 8 lines_8 sdot_8_rows end_group_8 group_of_64 64,
    zero = in(reg) ZERO.to_bits());
gemm_q8!("neon,dotprod" gemm_8_of_any: 8 lines_8 sdot_8_rows end_group_8 group_of_any 32..,
    zero = in(reg) ZERO.to_bits());

/// Twelve rows of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q8_f32_12x16c4(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    match x.group {
        64 => gemm_12_of_64(panel, x, out),
        _ => gemm_12_of_any(panel, x, out),
    }
}

/// Eight rows of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q8_f32_8x16c4(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    match x.group {
        64 => gemm_8_of_64(panel, x, out),
        _ => gemm_8_of_any(panel, x, out),
    }
}

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

/// Makes a strip's sums zero.
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
    // SAFETY: this reads and writes 16 floats of `out`; for each of `n` groups it reads a scale and 64
    // bytes of the weights' scales; in each of their `rounds` of 32 columns 32 bytes of `x` and 512 of
    // weights. So many were found to be there. Everything else is registers that are named.
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
