//! Int8 weights.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::{add_rows, load, load_scales};
use super::super::packed::{Tile, TileFn, ZERO};
use super::gemm::{
    any_groups, floats, floats_by_lane, four_groups_of_64, gemm_q8, group_of_64, group_of_any,
    load_out, load_x, sixteen_columns, store_out,
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
    let (group, n) = (x.groups.w, x.steps());
    let group_bytes = NR * (4 + group);
    for strip in 0..4 {
        for (w, x) in panel.chunks_exact(group_bytes * n).zip(x.groups::<M, 4>()) {
            let mut dots = [vdupq_n_s32(0); M];
            // What a product is added to and stays the same, its zero signed.
            let mut totals = [vdupq_n_f32(-0.0); M];
            let x_q: &[u8] = x.q.as_flattened().as_flattened();
            for (w, x_q) in w.chunks_exact(group_bytes).zip(x_q.chunks_exact(M * group)) {
                let (steps, w) = w.split_at(NR * 4);
                add_strip(&mut dots, &w[strip * STRIP..], x_q);
                let step = load_scales(&steps.as_chunks().0[strip]);
                for i in 0..M {
                    totals[i] = vfmaq_f32(totals[i], vcvtq_f32_s32(dots[i]), step);
                }
            }
            add_rows(out, strip, &totals, x.scales);
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

/// Makes totals of two rows their sums less the zero in v26, times the steps in v24.
macro_rules! begin_total {
    ($a:literal $b:literal $ta:literal $tb:literal $x:literal $i:literal $j:literal
     $y:literal $z:literal $at:literal) => {
        concat!(
            floats!("fsub" $ta $a 26),
            floats!("fsub" $tb $b 26),
            floats!("fmul" $ta $ta 24),
            floats!("fmul" $tb $tb 24),
        )
    };
}

/// Adds the same to the totals.
macro_rules! add_total {
    ($a:literal $b:literal $ta:literal $tb:literal $x:literal $i:literal $j:literal
     $y:literal $z:literal $at:literal) => {
        concat!(
            floats!("fsub" 25 $a 26),
            floats!("fsub" 27 $b 26),
            floats!("fmla" $ta 25 24),
            floats!("fmla" $tb 27 24),
        )
    };
}

/// Loads the steps of a strip of a group, and the sums' zero.
macro_rules! load_steps {
    () => {
        "ld1 {{v24.4s}}, [{steps_at}], {group_bytes}\ndup v26.4s, {zero:w}\n"
    };
}

gemm_q8!("neon,dotprod" gemm_12_of_4x64: 12 lines_12 sdot_12_rows add_out_12 four_groups_of_64 (64, 4),
    zero = in(reg) ZERO.to_bits());
gemm_q8!("neon,dotprod" gemm_12_of_any: 12 lines_12 sdot_12_rows add_out_12 any_groups (32.., _),
    zero = in(reg) ZERO.to_bits());
gemm_q8!("neon,dotprod" gemm_8_of_4x64: 8 lines_8 sdot_8_rows add_out_8 four_groups_of_64 (64, 4),
    zero = in(reg) ZERO.to_bits());
gemm_q8!("neon,dotprod" gemm_8_of_any: 8 lines_8 sdot_8_rows add_out_8 any_groups (32.., _),
    zero = in(reg) ZERO.to_bits());

/// Twelve rows of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q8_f32_12x16c4(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    match (x.groups.w, x.steps()) {
        (64, 4) => gemm_12_of_4x64(panel, x, out),
        _ => gemm_12_of_any(panel, x, out),
    }
}

/// Eight rows of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q8_f32_8x16c4(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    match (x.groups.w, x.steps()) {
        (64, 4) => gemm_8_of_4x64(panel, x, out),
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

/// One row of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemv_q8_q8_f32_1x16c4(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    let (steps, rounds) = (x.steps(), x.groups.w / 32);
    let n = x.scales.len();
    assert!(n != 0);
    assert!(steps != 0);
    assert!(rounds != 0);
    assert_eq!(panel.len(), n * steps * NR * (4 + x.groups.w));
    assert!(x.q.len() >= n * steps * rounds * 32);
    assert_eq!(out.len(), NR);
    // SAFETY: for each of `n` activation groups this reads a scale, and reads and writes 16 floats of
    // `out`; for each of its `steps` groups of weights 64 bytes of their steps; in each of their
    // `rounds` of 32 columns 32 bytes of `x` and 512 of weights. So many were found to be there.
    // Everything else is registers that are named.
    unsafe {
        asm!(
            "4:",
            concat!(clear!(0 4), clear!(1 5), clear!(2 6), clear!(3 7)),
            "mov {step}, {steps}",
            "2:",
            "ld1 {{v12.4s, v13.4s, v14.4s, v15.4s}}, [{w}], #64",
            "mov {round}, {rounds}",
            "3:",
            "ld1 {{v28.16b, v29.16b}}, [{x}], #32",
            sdot_16_columns_of_panel!(28),
            sdot_16_columns_of_panel!(29),
            "subs {round}, {round}, #1",
            "b.ne 3b",
            add_totals_4!(12 13 14 15),
            "subs {step}, {step}, #1",
            "b.ne 2b",
            add_out_single!(),
            "subs {n}, {n}, #1",
            "b.ne 4b",
            w = inout(reg) panel.as_ptr() => _, x = inout(reg) x.q.as_ptr() => _,
            scales = inout(reg) x.scales.as_ptr() => _, out = in(reg) out.as_mut_ptr(),
            n = inout(reg) n => _, steps = in(reg) steps, step = out(reg) _,
            rounds = in(reg) rounds, round = out(reg) _,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
            out("v6") _, out("v7") _, out("v12") _, out("v13") _, out("v14") _, out("v15") _,
            out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _,
            out("v22") _, out("v23") _, out("v24") _, out("v25") _, out("v26") _, out("v27") _,
            out("v28") _, out("v29") _,
            options(nostack)
        );
    }
}
