//! Int8 weights.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::{load, load_64, load_floats, load_scales, store};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::{Tile, USUAL, ZERO};
use super::by_lane::{NR, four_columns};
use super::gemm::{
    floats, floats_by_lane, gemm_q8, group_of_64, group_of_any, load_out, load_x, sixteen_columns,
    store_out,
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
    x: &Tile<'_>,
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
    x: &Tile<'_>,
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

/// Adds sums of two rows less the zero in v25, times the weights' scales in v24 and the rows' own.
macro_rules! add_group {
    ($a:literal $b:literal $ta:literal $tb:literal $x:literal $i:literal $j:literal
     $y:literal $z:literal $at:literal) => {
        concat!(
            floats!("fsub" $a $a 25),
            floats!("fsub" $b $b 25),
            floats!("fmul" $a $a 24),
            floats!("fmul" $b $b 24),
            floats_by_lane!("fmla" $ta $a $x $i),
            floats_by_lane!("fmla" $tb $b $x $j),
        )
    };
}

/// Loads the scales of a strip of a group, and the sums' zero.
macro_rules! load_w_scales {
    () => {
        "ld1 {{v24.4s}}, [{w_scales}], {group_bytes}\ndup v25.4s, {zero:w}\n"
    };
}

macro_rules! end_group_12 {
    () => {
        concat!(
            load_w_scales!(),
            "ld1 {{v26.4s, v27.4s, v28.4s}}, [{scales}], #48\n",
            lines_12!(add_group),
        )
    };
}

macro_rules! end_group_8 {
    () => {
        concat!(load_w_scales!(), "ldp q26, q27, [{scales}], #32\n", lines_8!(add_group))
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
fn gemm_q8_q8_f32_12x16c4(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    match x.group {
        64 => gemm_12_of_64(panel, x, out),
        _ => gemm_12_of_any(panel, x, out),
    }
}

/// Eight rows of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q8_f32_8x16c4(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    match x.group {
        64 => gemm_8_of_64(panel, x, out),
        _ => gemm_8_of_any(panel, x, out),
    }
}

/// Sixteen `sdot`: 16 columns of activations in register `$x` by four strips.
macro_rules! sdot_16_columns_of_panel {
    ($x:literal) => {
        concat!(
            "ld1 {{v20.16b, v21.16b, v22.16b, v23.16b}}, [{w}], #64\n",
            "ld1 {{v24.16b, v25.16b, v26.16b, v27.16b}}, [{w}], #64\n",
            sdot_strip!(0 $x: 20 21 22 23),
            "ld1 {{v20.16b, v21.16b, v22.16b, v23.16b}}, [{w}], #64\n",
            sdot_strip!(1 $x: 24 25 26 27),
            "ld1 {{v24.16b, v25.16b, v26.16b, v27.16b}}, [{w}], #64\n",
            sdot_strip!(2 $x: 20 21 22 23),
            sdot_strip!(3 $x: 24 25 26 27),
        )
    };
}

/// Four `sdot`: a strip in registers `$a` to `$d`.
macro_rules! sdot_strip {
    ($dots:literal $x:literal: $a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "sdot v", $dots, ".4s, v", $a, ".16b, v", $x, ".4b[0]\n", "sdot v", $dots, ".4s, v",
            $b, ".16b, v", $x, ".4b[1]\n", "sdot v", $dots, ".4s, v", $c, ".16b, v", $x,
            ".4b[2]\n", "sdot v", $dots, ".4s, v", $d, ".16b, v", $x, ".4b[3]\n",
        )
    };
}

/// Adds a strip's sums times the weights' scales and the row's own, which is in v27.
macro_rules! add_strip_of_panel {
    ($dots:literal $scales:literal $total:literal) => {
        concat!(
            "scvtf v", $dots, ".4s, v", $dots, ".4s\n",
            floats!("fmul" $dots $dots $scales),
            floats_by_lane!("fmla" $total $dots 27 0),
        )
    };
}

/// One row of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemv_q8_q8_f32_1x16c4(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
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
            "ld1 {{v4.4s, v5.4s, v6.4s, v7.4s}}, [{out}]",
            "2:",
            "ld1 {{v12.4s, v13.4s, v14.4s, v15.4s}}, [{w}], #64",
            "movi v0.2d, #0",
            "movi v1.2d, #0",
            "movi v2.2d, #0",
            "movi v3.2d, #0",
            "mov {round}, {rounds}",
            "3:",
            "ld1 {{v28.16b, v29.16b}}, [{x}], #32",
            sdot_16_columns_of_panel!(28),
            sdot_16_columns_of_panel!(29),
            "subs {round}, {round}, #1",
            "b.ne 3b",
            "ldr s27, [{scales}], #4",
            add_strip_of_panel!(0 12 4),
            add_strip_of_panel!(1 13 5),
            add_strip_of_panel!(2 14 6),
            add_strip_of_panel!(3 15 7),
            "subs {n}, {n}, #1",
            "b.ne 2b",
            "st1 {{v4.4s, v5.4s, v6.4s, v7.4s}}, [{out}]",
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
