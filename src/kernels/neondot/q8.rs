//! Int8 weights.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::{add_rows, load, load_scales};
use super::super::packed::{Tile, TileFn, ZERO};
use super::gemm::{
    floats, floats_by_lane, gemm_q8, group_of_64, group_of_any, load_out, load_x, sixteen_columns,
    store_out,
};
use super::{NR, four_columns};

/// Tiles of so many rows.
pub(super) static TILES: [TileFn; 12] = tiles_of!(gemv_q8_q8_f32_1x16c4
    gemm_q8_q8_f32_mx16c4: 2 3 4 5 6 7 gemm_q8_q8_f32_8x16c4
    9 10 11 gemm_q8_q8_f32_12x16c4);

/// Bytes of a strip of 16 columns.
const STRIP: usize = 64;

/// `M` rows of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q8_f32_mx16c4<const M: usize>(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    let group_bytes = NR * (4 + x.group);
    for strip in 0..4 {
        for (w, x) in panel.chunks_exact(group_bytes).zip(x.groups::<M, 4>()) {
            let mut dots = [vdupq_n_s32(0); M];
            let (scales, w) = w.split_at(NR * 4);
            add_strip(&mut dots, &w[strip * STRIP..], x.q.as_flattened().as_flattened());
            let scale = load_scales(&scales.as_chunks().0[strip]);
            add_rows(out, strip, &dots.map(|dots| vmulq_f32(vcvtq_f32_s32(dots), scale)), x.scales);
        }
    }
}

/// Adds the products of `M` rows with a strip of a group; `w` starts with it.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn add_strip<const M: usize>(dots: &mut [int32x4_t; M], w: &[u8], x: &[u8]) {
    let x: &[i8] = bytemuck::cast_slice(x);
    let w: &[i8] = bytemuck::cast_slice(w);
    // In blocks of 16 columns, so that the lanes of `x` are known.
    let x = x.as_chunks::<16>().0.as_chunks::<M>().0;
    for (w, x) in w.chunks(4 * STRIP).zip(x) {
        let (w, _) = w.as_chunks::<16>();
        four_columns::<M, 0>(dots, load(&w[0]), x);
        four_columns::<M, 1>(dots, load(&w[1]), x);
        four_columns::<M, 2>(dots, load(&w[2]), x);
        four_columns::<M, 3>(dots, load(&w[3]), x);
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
