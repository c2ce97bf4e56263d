//! NEON with dot product instructions: only the int8 tiles differ from [`super::neon`].
//!
//! A tile of 4 × 4 rows holds 16 sums of 4 × i32 and takes 16 `sdot` for 8 loads. With packed
//! weights each lane of a vector is a row, and `sdot` multiplies all of them by the four activations
//! in one lane of another vector. A tile of 12 rows of activations by a strip of four rows is 12
//! sums, as many running totals, and eight registers for operands: 16 columns take 48 `sdot` for
//! four loads of four registers each. That leaves no register over, which is why those loops, and
//! those of a single row, are written in assembly.

#![allow(clippy::needless_range_loop, reason = "registers go by their numbers")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::matmul::{chunks, level, level_blocks, level_weights, steps};
use super::neon::{
    self, add_group, add_rows, codes, load, load_32, load_64, load_halves, load_scales, parameters,
    split_codes, store, total_of, widen_8,
};
use super::packed::{BLOCK_BYTES, Layout, PackedTable, Tile, TileFn};
use super::{Blocks4, Groups, SummedRow, Table, peak};
use crate::quant::Q8Row;
use crate::quant::bcml1::BLOCK;

/// The tier's functions.
pub(super) static TABLE: Table = Table {
    dot_q8_q8_f32_1x4,
    dot_q8_q8_f32_4x4,
    dot_q8_q4_f32_1x4,
    dot_q8_q4_f32_4x4,
    packed: Some(PackedTable {
        layout: Layout::NEON_DOT,
        tiles_q8: &TILES_Q8,
        tiles_q4: &TILES_Q4,
        unpack_q4: None,
    }),
    spin_int8,
    ..neon::TABLE
};

/// The instances of a kernel for tiles of so many rows, between one for a single row and one for
/// whole tiles.
macro_rules! tiles_of {
    ($single:ident $kernel:ident: $($m:literal)* $whole:ident) => {
        [$single, $($kernel::<$m>,)* $whole]
    };
}

static TILES_Q8: [TileFn; 12] = tiles_of!(gemv_q8_q8_f32_1x16c4
    gemm_q8_q8_f32_mx16c4: 2 3 4 5 6 7 8 9 10 11 gemm_q8_q8_f32_12x16c4);
static TILES_Q4: [TileFn; 12] = tiles_of!(gemv_q8_q4_f32_1x16c4
    gemm_q8_q4_f32_mx16c4: 2 3 4 5 6 7 8 9 10 11 gemm_q8_q4_f32_12x16c4);

/// Rows of a panel: four strips.
const NR: usize = Layout::NEON_DOT.panel_rows();

/// Bytes of a strip of 16 columns, or of a block's codes in it.
const STRIP: usize = 64;

/// Bytes of a block of a 4-bit panel.
const PANEL_BLOCK: usize = NR * BLOCK_BYTES;

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

/// Twelve rows of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q8_f32_12x16c4(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    for strip in 0..4 {
        add_strip_12(panel, x, strip, out);
    }
}

/// Four `sdot`: rows `$a` to `$d` of activations in register `$x` by weights in register `$w`.
macro_rules! sdot_rows {
    ($w:literal $x:literal: $a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "sdot v", $a, ".4s, v", $w, ".16b, v", $x, ".4b[0]\n", "sdot v", $b, ".4s, v", $w,
            ".16b, v", $x, ".4b[1]\n", "sdot v", $c, ".4s, v", $w, ".16b, v", $x, ".4b[2]\n",
            "sdot v", $d, ".4s, v", $w, ".16b, v", $x, ".4b[3]\n",
        )
    };
}

/// Loads the next 64 bytes of activations.
macro_rules! load_x {
    () => {
        "ld1 {{v28.16b, v29.16b, v30.16b, v31.16b}}, [{x}], #64\n"
    };
}

/// Sixteen columns of 12 rows: 12 vectors of activations, three of them for each four columns.
macro_rules! sdot_16_columns {
    () => {
        concat!(
            "ld1 {{v24.16b, v25.16b, v26.16b, v27.16b}}, [{w}], {stride}\n",
            load_x!(),
            sdot_rows!(24 28: 0 1 2 3),
            sdot_rows!(24 29: 4 5 6 7),
            sdot_rows!(24 30: 8 9 10 11),
            sdot_rows!(25 31: 0 1 2 3),
            load_x!(),
            sdot_rows!(25 28: 4 5 6 7),
            sdot_rows!(25 29: 8 9 10 11),
            sdot_rows!(26 30: 0 1 2 3),
            sdot_rows!(26 31: 4 5 6 7),
            load_x!(),
            sdot_rows!(26 28: 8 9 10 11),
            sdot_rows!(27 29: 0 1 2 3),
            sdot_rows!(27 30: 4 5 6 7),
            sdot_rows!(27 31: 8 9 10 11),
        )
    };
}

/// Makes the sums v0 to v11 zero and the totals v12 to v23 what a product is added to and stays the
/// same, its zero signed.
macro_rules! clear_12 {
    () => {
        concat!(
            clear!(0 12), clear!(1 13), clear!(2 14), clear!(3 15), clear!(4 16), clear!(5 17),
            clear!(6 18), clear!(7 19), clear!(8 20), clear!(9 21), clear!(10 22), clear!(11 23),
        )
    };
}

macro_rules! clear {
    ($dots:literal $total:literal) => {
        concat!("movi v", $dots, ".2d, #0\n", "movi v", $total, ".4s, #128, lsl #24\n")
    };
}

/// Adds the sums in register `$dots` times those in v24 to `$total`.
macro_rules! add_total {
    ($dots:literal $total:literal) => {
        concat!("scvtf v25.4s, v", $dots, ".4s\n", "fmla v", $total, ".4s, v25.4s, v24.4s\n",)
    };
}

/// Adds all sums v0 to v11 to the totals v12 to v23.
macro_rules! add_totals_12 {
    () => {
        concat!(
            add_total!(0 12), add_total!(1 13), add_total!(2 14), add_total!(3 15),
            add_total!(4 16), add_total!(5 17), add_total!(6 18), add_total!(7 19),
            add_total!(8 20), add_total!(9 21), add_total!(10 22), add_total!(11 23),
        )
    };
}

/// Adds the total in register `$total` times a lane of `$scales` to four of `out`, `$at` bytes in.
macro_rules! add_out {
    ($total:literal $scales:literal $lane:literal $at:literal) => {
        concat!(
            "ldr q28, [{out}, #",
            $at,
            "]\n",
            "fmla v28.4s, v",
            $total,
            ".4s, v",
            $scales,
            ".s[",
            $lane,
            "]\n",
            "str q28, [{out}, #",
            $at,
            "]\n",
        )
    };
}

/// Adds the totals v12 to v23 times the next 12 scales to `out`, whose rows are 64 bytes long.
macro_rules! add_out_12 {
    () => {
        concat!(
            "ld1 {{v24.4s, v25.4s, v26.4s}}, [{scales}], #48\n",
            add_out!(12 24 0 0), add_out!(13 24 1 64), add_out!(14 24 2 128),
            add_out!(15 24 3 192), add_out!(16 25 0 256), add_out!(17 25 1 320),
            add_out!(18 25 2 384), add_out!(19 25 3 448), add_out!(20 26 0 512),
            add_out!(21 26 1 576), add_out!(22 26 2 640), add_out!(23 26 3 704),
        )
    };
}

pub(super) use {add_out, add_total, clear, clear_12, load_x};

/// Adds the products of 12 rows with a strip of a panel.
#[target_feature(enable = "neon,dotprod")]
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
            sdot_16_columns!(),
            sdot_16_columns!(),
            "subs {round}, {round}, #1",
            "b.ne 3b",
            "ld1 {{v24.4s}}, [{steps_at}], {group_bytes}",
            "add {w}, {w}, #64",
            add_totals_12!(),
            "subs {step}, {step}, #1",
            "b.ne 2b",
            add_out_12!(),
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

/// One row of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemv_q8_q8_f32_1x16c4(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    let (group, n) = (x.groups.w, x.steps());
    let group_bytes = NR * (4 + group);
    for (w, x) in panel.chunks_exact(group_bytes * n).zip(x.groups::<1, 4>()) {
        let mut dots = [vdupq_n_s32(0); 4];
        let mut totals = [vdupq_n_f32(-0.0); 4];
        let x_q: &[u8] = x.q.as_flattened().as_flattened();
        for (w, x_q) in w.chunks_exact(group_bytes).zip(x_q.chunks_exact(group)) {
            let (steps, w) = w.split_at(NR * 4);
            add_panel(&mut dots, w, x_q);
            let steps = load_64(&steps.as_chunks().0[0]);
            for j in 0..4 {
                let step = vreinterpretq_f32_u8(steps[j]);
                totals[j] = vfmaq_f32(totals[j], vcvtq_f32_s32(dots[j]), step);
            }
        }
        for j in 0..4 {
            add_rows(out, j, &[totals[j]], x.scales);
        }
    }
}

/// Sixteen `sdot`: 16 columns of activations in register `$x` by four strips.
macro_rules! sdot_16_columns_of_panel {
    ($x:literal) => {
        concat!(
            "ld1 {{v20.16b, v21.16b, v22.16b, v23.16b}}, [{w}], #64\n",
            "ld1 {{v24.16b, v25.16b, v26.16b, v27.16b}}, [{w}], #64\n",
            sdot_strip!("d0" $x: 20 21 22 23),
            "ld1 {{v20.16b, v21.16b, v22.16b, v23.16b}}, [{w}], #64\n",
            sdot_strip!("d1" $x: 24 25 26 27),
            "ld1 {{v24.16b, v25.16b, v26.16b, v27.16b}}, [{w}], #64\n",
            sdot_strip!("d2" $x: 20 21 22 23),
            sdot_strip!("d3" $x: 24 25 26 27),
        )
    };
}

/// Four `sdot`: a strip in registers `$a` to `$d`.
macro_rules! sdot_strip {
    ($dots:literal $x:literal: $a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "sdot {",
            $dots,
            ":v}.4s, v",
            $a,
            ".16b, v",
            $x,
            ".4b[0]\n",
            "sdot {",
            $dots,
            ":v}.4s, v",
            $b,
            ".16b, v",
            $x,
            ".4b[1]\n",
            "sdot {",
            $dots,
            ":v}.4s, v",
            $c,
            ".16b, v",
            $x,
            ".4b[2]\n",
            "sdot {",
            $dots,
            ":v}.4s, v",
            $d,
            ".16b, v",
            $x,
            ".4b[3]\n",
        )
    };
}

/// Adds the products of a row with a group of a panel.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn add_panel(dots: &mut [int32x4_t; 4], w: &[u8], x: &[u8]) {
    let rounds = x.len() / 32;
    assert!(rounds != 0);
    assert!(w.len() >= rounds * 32 * NR);
    // SAFETY: each round reads 32 bytes of `x` and 512 of `w`, which were found to be there;
    // everything else is registers that are named.
    unsafe {
        asm!(
            "2:",
            "ld1 {{v28.16b, v29.16b}}, [{x}], #32",
            sdot_16_columns_of_panel!(28),
            sdot_16_columns_of_panel!(29),
            "subs {rounds}, {rounds}, #1",
            "b.ne 2b",
            w = inout(reg) w.as_ptr() => _, x = inout(reg) x.as_ptr() => _,
            rounds = inout(reg) rounds => _,
            d0 = inout(vreg) dots[0], d1 = inout(vreg) dots[1],
            d2 = inout(vreg) dots[2], d3 = inout(vreg) dots[3],
            out("v20") _, out("v21") _, out("v22") _, out("v23") _,
            out("v24") _, out("v25") _, out("v26") _, out("v27") _, out("v28") _, out("v29") _,
            options(nostack, readonly)
        );
    }
}

/// `M` rows of activations by a panel of 4-bit weights.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q4_f32_mx16c4<const M: usize>(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    for strip in 0..4 {
        let groups = panel.chunks_exact(PANEL_BLOCK * x.steps());
        for (w, x) in groups.zip(x.summed_groups::<M, 4>()) {
            let mut dots = [vdupq_n_s32(0); M];
            let mut totals = [vdupq_n_f32(-0.0); M];
            let w = w.as_chunks::<PANEL_BLOCK>().0;
            let x_q: &[u8] = x.q.as_flattened().as_flattened();
            let [mut multipliers, mut offsets] = strip_parameters(w.first(), strip);
            let blocks = x_q.chunks_exact(M * BLOCK).zip(x.sums);
            for ((b, block), (x_q, x_sums)) in w.iter().enumerate().zip(blocks) {
                add_codes(&mut dots, &block.as_chunks().0[1 + strip], x_q);
                let [next_multipliers, next_offsets] = strip_parameters(w.get(b + 1), strip);
                let step = vsubq_f32(multipliers, next_multipliers);
                for i in 0..M {
                    let total = vfmaq_n_f32(totals[i], offsets, x_sums[i]);
                    totals[i] = vfmaq_f32(total, vcvtq_f32_s32(dots[i]), step);
                }
                (multipliers, offsets) = (next_multipliers, next_offsets);
            }
            add_rows(out, strip, &totals, x.scales);
        }
    }
}

/// Multipliers and offsets of a strip of a block, zeros if there is none.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn strip_parameters(block: Option<&[u8; PANEL_BLOCK]>, strip: usize) -> [float32x4_t; 2] {
    match block {
        Some(block) => widen_8(load_halves(&block.as_chunks().0[strip])),
        None => [vdupq_n_f32(0.0); 2],
    }
}

/// Adds the products of `M` rows with a strip of a block.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn add_codes<const M: usize>(dots: &mut [int32x4_t; M], w: &[u8; STRIP], x: &[u8]) {
    let x: &[i8] = bytemuck::cast_slice(x);
    let x = x.as_chunks::<16>().0;
    let (w, _) = w.as_chunks();
    let [low, high] = split_codes(&w[0]);
    four_columns::<M, 0>(dots, low, x);
    four_columns::<M, 1>(dots, high, x);
    let [low, high] = split_codes(&w[1]);
    four_columns::<M, 2>(dots, low, x);
    four_columns::<M, 3>(dots, high, x);
    let [low, high] = split_codes(&w[2]);
    four_columns::<M, 4>(dots, low, x);
    four_columns::<M, 5>(dots, high, x);
    let [low, high] = split_codes(&w[3]);
    four_columns::<M, 6>(dots, low, x);
    four_columns::<M, 7>(dots, high, x);
}

/// Twelve rows of activations by a panel of 4-bit weights.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q4_f32_12x16c4(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    for strip in 0..4 {
        add_q4_strip_12(panel, x, strip, out);
    }
}

/// Sixteen columns of 12 rows by codes, `$at` and `$next` bytes into the strip; v26 is a mask.
macro_rules! sdot_16_columns_q4 {
    ($at:literal $next:literal) => {
        concat!(
            "ldr q25, [{w}, #", $at, "]\n",
            load_x!(),
            "and v24.16b, v25.16b, v26.16b\n",
            "ushr v25.16b, v25.16b, #4\n",
            sdot_rows!(24 28: 0 1 2 3),
            sdot_rows!(24 29: 4 5 6 7),
            sdot_rows!(24 30: 8 9 10 11),
            "ldr q27, [{w}, #", $next, "]\n",
            sdot_rows!(25 31: 0 1 2 3),
            load_x!(),
            "and v24.16b, v27.16b, v26.16b\n",
            sdot_rows!(25 28: 4 5 6 7),
            sdot_rows!(25 29: 8 9 10 11),
            "ushr v27.16b, v27.16b, #4\n",
            sdot_rows!(24 30: 0 1 2 3),
            sdot_rows!(24 31: 4 5 6 7),
            load_x!(),
            sdot_rows!(24 28: 8 9 10 11),
            sdot_rows!(27 29: 0 1 2 3),
            sdot_rows!(27 30: 4 5 6 7),
            sdot_rows!(27 31: 8 9 10 11),
        )
    };
}

/// Adds a block to `$total`: the offsets in v31 times a lane of `$sums`, and the sums in `$dots`
/// times the steps in v24.
macro_rules! add_q4_total {
    ($dots:literal $total:literal $sums:literal $lane:literal) => {
        concat!(
            "fmla v", $total, ".4s, v31.4s, v", $sums, ".s[", $lane, "]\n",
            add_total!($dots $total),
        )
    };
}

/// Adds the products of 12 rows with a strip of a panel of 4-bit weights.
#[target_feature(enable = "neon,dotprod")]
fn add_q4_strip_12(panel: &[u8], x: &Tile<'_>, strip: usize, out: &mut [f32]) {
    let (n, steps) = (x.scales.len() / 12, x.steps());
    assert!(strip < 4);
    assert!(n != 0);
    assert!(steps != 0);
    assert!(x.scales.len().is_multiple_of(12));
    assert_eq!(panel.len(), n * steps * PANEL_BLOCK);
    assert!(x.q.len() >= n * steps * BLOCK * 12);
    assert!(x.sums.len() >= n * steps * 12);
    assert_eq!(out.len(), 12 * NR);
    let (parameters, w) = (panel[16 * strip..].as_ptr(), panel[STRIP * (1 + strip)..].as_ptr());
    // SAFETY: for each of `n` activation groups this reads 12 scales, and reads and writes four
    // floats of each row of `out`; for each of its `steps` blocks it reads 16 bytes of its
    // parameters and of those of the next, or of zeros behind the group's last, 64 bytes of its
    // codes, 384 of `x` and 48 of sums. So many were found to be there. Everything else is registers
    // that are named.
    unsafe {
        asm!(
            "4:",
            clear_12!(),
            "mov {step}, {steps}",
            "movi v26.16b, #15",
            "2:",
            sdot_16_columns_q4!(0 16),
            sdot_16_columns_q4!(32 48),
            "add {w}, {w}, {block}",
            "ld1 {{v31.8h}}, [{parameters}], {block}",
            "subs {step}, {step}, #1",
            "csel {next}, {zeros}, {parameters}, eq",
            "ldr q30, [{next}]",
            "ld1 {{v27.4s, v28.4s, v29.4s}}, [{sums}], #48",
            "fcvtl v24.4s, v31.4h",
            "fcvtl v30.4s, v30.4h",
            "fcvtl2 v31.4s, v31.8h",
            "fsub v24.4s, v24.4s, v30.4s",
            add_q4_total!(0 12 27 0),
            add_q4_total!(1 13 27 1),
            add_q4_total!(2 14 27 2),
            add_q4_total!(3 15 27 3),
            add_q4_total!(4 16 28 0),
            add_q4_total!(5 17 28 1),
            add_q4_total!(6 18 28 2),
            add_q4_total!(7 19 28 3),
            add_q4_total!(8 20 29 0),
            add_q4_total!(9 21 29 1),
            add_q4_total!(10 22 29 2),
            add_q4_total!(11 23 29 3),
            "b.ne 2b",
            add_out_12!(),
            "subs {n}, {n}, #1",
            "b.ne 4b",
            w = inout(reg) w => _, x = inout(reg) x.q.as_ptr() => _,
            parameters = inout(reg) parameters => _, next = out(reg) _,
            sums = inout(reg) x.sums.as_ptr() => _, scales = inout(reg) x.scales.as_ptr() => _,
            out = in(reg) out[4 * strip..].as_mut_ptr(), n = inout(reg) n => _,
            steps = in(reg) steps, step = out(reg) _,
            block = in(reg) PANEL_BLOCK, zeros = in(reg) [0_u8; 16].as_ptr(),
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

/// One row of activations by a panel of 4-bit weights.
#[target_feature(enable = "neon,dotprod")]
fn gemv_q8_q4_f32_1x16c4(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    match out.as_chunks_mut() {
        ([out], []) if x.steps().is_multiple_of(2) => add_q4_panel(panel, x, out),
        _ => gemm_q8_q4_f32_mx16c4::<1>(panel, x, out),
    }
}

/// Eight `sdot`: a strip's low and high codes by the activations in v24 and v25; v26 is a mask.
macro_rules! sdot_codes {
    ($dots:literal) => {
        concat!(
            "ld1 {{v16.16b, v17.16b, v18.16b, v19.16b}}, [{w}], #64\n",
            "and v20.16b, v16.16b, v26.16b\n",
            "and v21.16b, v17.16b, v26.16b\n",
            "and v22.16b, v18.16b, v26.16b\n",
            "and v23.16b, v19.16b, v26.16b\n",
            "ushr v16.16b, v16.16b, #4\n",
            "ushr v17.16b, v17.16b, #4\n",
            "ushr v18.16b, v18.16b, #4\n",
            "ushr v19.16b, v19.16b, #4\n",
            "sdot v",
            $dots,
            ".4s, v20.16b, v24.4b[0]\n",
            "sdot v",
            $dots,
            ".4s, v16.16b, v24.4b[1]\n",
            "sdot v",
            $dots,
            ".4s, v21.16b, v24.4b[2]\n",
            "sdot v",
            $dots,
            ".4s, v17.16b, v24.4b[3]\n",
            "sdot v",
            $dots,
            ".4s, v22.16b, v25.4b[0]\n",
            "sdot v",
            $dots,
            ".4s, v18.16b, v25.4b[1]\n",
            "sdot v",
            $dots,
            ".4s, v23.16b, v25.4b[2]\n",
            "sdot v",
            $dots,
            ".4s, v19.16b, v25.4b[3]\n",
        )
    };
}

/// Loads a block's parameters: multipliers to `$a` to `$d`, offsets to v28 to v31.
macro_rules! load_parameters {
    ($a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "ld1 {{v28.8h, v29.8h, v30.8h, v31.8h}}, [{w}], #64\n",
            "fcvtl v",
            $a,
            ".4s, v28.4h\n",
            "fcvtl v",
            $b,
            ".4s, v29.4h\n",
            "fcvtl v",
            $c,
            ".4s, v30.4h\n",
            "fcvtl v",
            $d,
            ".4s, v31.4h\n",
            "fcvtl2 v28.4s, v28.8h\n",
            "fcvtl2 v29.4s, v29.8h\n",
            "fcvtl2 v30.4s, v30.8h\n",
            "fcvtl2 v31.4s, v31.8h\n",
        )
    };
}

/// Adds the sums v0 to v3 times `$a` to `$d` to the totals v4 to v7.
macro_rules! add_totals_4 {
    ($a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "scvtf v16.4s, v0.4s\n",
            "scvtf v17.4s, v1.4s\n",
            "scvtf v18.4s, v2.4s\n",
            "scvtf v19.4s, v3.4s\n",
            "fmla v4.4s, v16.4s, v",
            $a,
            ".4s\n",
            "fmla v5.4s, v17.4s, v",
            $b,
            ".4s\n",
            "fmla v6.4s, v18.4s, v",
            $c,
            ".4s\n",
            "fmla v7.4s, v19.4s, v",
            $d,
            ".4s\n",
        )
    };
}

/// Ends the block before, whose multipliers are in v8 to v11 or in v12 to v15, with those of the
/// next in the others.
macro_rules! end_block {
    ($a:literal $b:literal $c:literal $d:literal, $e:literal $f:literal $g:literal $h:literal) => {
        concat!(
            load_parameters!($e $f $g $h),
            "fsub v", $a, ".4s, v", $a, ".4s, v", $e, ".4s\n",
            "fsub v", $b, ".4s, v", $b, ".4s, v", $f, ".4s\n",
            "fsub v", $c, ".4s, v", $c, ".4s, v", $g, ".4s\n",
            "fsub v", $d, ".4s, v", $d, ".4s, v", $h, ".4s\n",
            add_totals_4!($a $b $c $d),
        )
    };
}

/// Offsets times a lane of v27, and the products of a block.
macro_rules! add_block {
    ($lane:literal) => {
        concat!(
            "fmla v4.4s, v28.4s, v27.s[",
            $lane,
            "]\n",
            "fmla v5.4s, v29.4s, v27.s[",
            $lane,
            "]\n",
            "fmla v6.4s, v30.4s, v27.s[",
            $lane,
            "]\n",
            "fmla v7.4s, v31.4s, v27.s[",
            $lane,
            "]\n",
            "ld1 {{v24.16b, v25.16b}}, [{x}], #32\n",
            sdot_codes!(0),
            sdot_codes!(1),
            sdot_codes!(2),
            sdot_codes!(3),
        )
    };
}

/// Adds the products of one row with a panel whose groups are pairs of blocks.
#[target_feature(enable = "neon,dotprod")]
fn add_q4_panel(panel: &[u8], x: &Tile<'_>, out: &mut [f32; NR]) {
    let (n, pairs) = (x.scales.len(), x.steps() / 2);
    assert!(n != 0);
    assert!(pairs != 0);
    assert_eq!(panel.len(), n * pairs * 2 * PANEL_BLOCK);
    assert_eq!(x.q.len(), n * pairs * 2 * BLOCK);
    assert_eq!(x.sums.len(), n * pairs * 2);
    // SAFETY: for each of `n` groups this reads a scale and writes what it read of `out`, all of it;
    // for each pair of blocks it reads two blocks of `panel`, 64 bytes of `x` and two sums. So many
    // were found to be there. Everything else is registers that are named.
    unsafe {
        asm!(
            "movi v26.16b, #15",
            "2:",
            concat!(clear!(0 4), clear!(1 5), clear!(2 6), clear!(3 7)),
            "mov {pair}, {pairs}",
            "ldr d27, [{sums}], #8",
            load_parameters!(8 9 10 11),
            "b 4f",
            "3:",
            "ldr d27, [{sums}], #8",
            end_block!(12 13 14 15, 8 9 10 11),
            "4:",
            add_block!(0),
            end_block!(8 9 10 11, 12 13 14 15),
            add_block!(1),
            "subs {pair}, {pair}, #1",
            "b.ne 3b",
            add_totals_4!(12 13 14 15),
            "ld1 {{v16.4s, v17.4s, v18.4s, v19.4s}}, [{out}]",
            "ldr s27, [{scales}], #4",
            "fmla v16.4s, v4.4s, v27.s[0]",
            "fmla v17.4s, v5.4s, v27.s[0]",
            "fmla v18.4s, v6.4s, v27.s[0]",
            "fmla v19.4s, v7.4s, v27.s[0]",
            "st1 {{v16.4s, v17.4s, v18.4s, v19.4s}}, [{out}]",
            "subs {n}, {n}, #1",
            "b.ne 2b",
            w = inout(reg) panel.as_ptr() => _, x = inout(reg) x.q.as_ptr() => _,
            sums = inout(reg) x.sums.as_ptr() => _, scales = inout(reg) x.scales.as_ptr() => _,
            out = in(reg) out.as_mut_ptr(), n = inout(reg) n => _, pairs = in(reg) pairs,
            pair = out(reg) _,
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

/// Adds the products of columns `4 * C..4 * C + 4` of some, of which each has `M` fours of `x`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn four_columns<const M: usize, const C: usize>(
    dots: &mut [int32x4_t; M],
    w: int8x16_t,
    x: &[[i8; 16]],
) {
    for i in 0..M {
        let at = C * M + i;
        dots[i] = sdot_lane(dots[i], w, load(&x[at / 4]), at % 4);
    }
}

/// One activation row by four weight rows.
#[target_feature(enable = "neon,dotprod")]
fn dot_q8_q8_f32_1x4(x: &Q8Row<'_>, w: &[Q8Row<'_>; 4], groups: Groups) -> [f32; 4] {
    let [y] = tile_q8([x], w, groups);
    y
}

/// Four activation rows by four weight rows: `[activation][weight]`.
#[target_feature(enable = "neon,dotprod")]
fn dot_q8_q8_f32_4x4(x: &[Q8Row<'_>; 4], w: &[Q8Row<'_>; 4], groups: Groups) -> [[f32; 4]; 4] {
    tile_q8(x.each_ref(), w, groups)
}

/// `M` activation rows by four weight rows: `[activation][weight]`.
#[target_feature(enable = "neon,dotprod")]
fn tile_q8<const M: usize>(
    x: [&Q8Row<'_>; M],
    w: &[Q8Row<'_>; 4],
    groups: Groups,
) -> [[f32; 4]; M] {
    let (mut out, mut totals) = ([vdupq_n_f32(0.0); M], [vdupq_n_f32(0.0); M]);
    let mut sums = [[vdupq_n_s32(0); 4]; M];
    let (k, n) = (x[0].q.len(), groups.x / groups.w);
    let (x, w) = (level(x, k, groups.x), level(w.each_ref(), k, groups.w));
    for g in 0..k / groups.w {
        let (x_chunks, w_chunks) = (chunks(&x, g, groups.w), chunks(&w, g, groups.w));
        if g % n == 0 {
            (sums, totals) = ([[vdupq_n_s32(0); 4]; M], [vdupq_n_f32(-0.0); M]);
        }
        for c in 0..groups.w / 16 {
            let w = [
                load(&w_chunks[0][c]),
                load(&w_chunks[1][c]),
                load(&w_chunks[2][c]),
                load(&w_chunks[3][c]),
            ];
            for i in 0..M {
                let x = load(&x_chunks[i][c]);
                for j in 0..4 {
                    sums[i][j] = sdot(sums[i][j], x, w[j]);
                }
            }
        }
        let steps = steps(&w, g, n);
        for i in 0..M {
            totals[i] = add_group(totals[i], sums[i], &steps);
            if (g + 1) % n == 0 {
                out[i] = vfmaq_n_f32(out[i], totals[i], x[i].scales[g / n]);
            }
        }
    }
    let mut y = [[0.0; 4]; M];
    for i in 0..M {
        store(&mut y[i], out[i]);
    }
    y
}

/// One activation row by four weight rows of 4 bits.
#[target_feature(enable = "neon,dotprod")]
fn dot_q8_q4_f32_1x4(x: &SummedRow<'_>, w: &Blocks4<'_>, group: usize) -> [f32; 4] {
    let [y] = tile_q4([x], w, group);
    y
}

/// Four activation rows by four weight rows of 4 bits: `[activation][weight]`.
#[target_feature(enable = "neon,dotprod")]
fn dot_q8_q4_f32_4x4(x: &[SummedRow<'_>; 4], w: &Blocks4<'_>, group: usize) -> [[f32; 4]; 4] {
    tile_q4(x.each_ref(), w, group)
}

/// `M` activation rows by four weight rows of 4 bits: `[activation][weight]`.
#[target_feature(enable = "neon,dotprod")]
fn tile_q4<const M: usize>(x: [&SummedRow<'_>; M], w: &Blocks4<'_>, group: usize) -> [[f32; 4]; M] {
    let (mut out, mut totals) = ([vdupq_n_f32(0.0); M], [vdupq_n_f32(0.0); M]);
    let (blocks, group_blocks) = (w[0].len(), group / BLOCK);
    let (x_blocks, w) = (level_blocks(x, blocks), level_weights(w, blocks));
    let mut sums = [[vdupq_n_s32(0); 4]; M];
    for b in 0..blocks {
        if b % group_blocks == 0 {
            (sums, totals) = ([[vdupq_n_s32(0); 4]; M], [vdupq_n_f32(-0.0); M]);
        }
        let block = [&w[0][b], &w[1][b], &w[2][b], &w[3][b]];
        let codes = [codes(block[0]), codes(block[1]), codes(block[2]), codes(block[3])];
        let [mut multipliers, offsets] = parameters(block);
        if (b + 1) % group_blocks != 0 {
            let next = [&w[0][b + 1], &w[1][b + 1], &w[2][b + 1], &w[3][b + 1]];
            multipliers = vsubq_f32(multipliers, parameters(next)[0]);
        }
        for i in 0..M {
            let x = load_32(&x_blocks[i].0[b]);
            for j in 0..4 {
                sums[i][j] = add_products_q4(sums[i][j], x, codes[j]);
            }
            let total = vfmaq_n_f32(totals[i], offsets, x_blocks[i].1[b] as f32);
            totals[i] = vfmaq_f32(total, vcvtq_f32_s32(total_of(sums[i])), multipliers);
        }
        if (b + 1) % group_blocks == 0 {
            for i in 0..M {
                out[i] = vfmaq_n_f32(out[i], totals[i], x[i].row.scales[b / group_blocks]);
            }
        }
    }
    let mut y = [[0.0; 4]; M];
    for i in 0..M {
        store(&mut y[i], out[i]);
    }
    y
}

/// Adds the products of a block to four sums.
#[target_feature(enable = "neon,dotprod")]
fn add_products_q4(sums: int32x4_t, x: [int8x16_t; 2], codes: [int8x16_t; 2]) -> int32x4_t {
    sdot(sdot(sums, x[0], codes[0]), x[1], codes[1])
}

/// Adds 16 products to four sums, as the intrinsic `vdotq_s32` does, which is not stable.
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sums: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    // SAFETY: this function's features include the instruction, which works on registers alone.
    unsafe {
        asm!("sdot {sums:v}.4s, {x:v}.16b, {w:v}.16b", sums = inout(vreg) sums, x = in(vreg) x,
            w = in(vreg) w, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Adds the products of each four of `w` with the four of `x` in `lane`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn sdot_lane(sums: int32x4_t, w: int8x16_t, x: int8x16_t, lane: usize) -> int32x4_t {
    match lane {
        0 => sdot_by::<0>(sums, w, x),
        1 => sdot_by::<1>(sums, w, x),
        2 => sdot_by::<2>(sums, w, x),
        _ => sdot_by::<3>(sums, w, x),
    }
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn sdot_by<const LANE: usize>(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: this function's features include the instruction, which works on registers alone.
    unsafe {
        asm!("sdot {sums:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]", sums = inout(vreg) sums,
            w = in(vreg) w, x = in(vreg) x, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// See [`super::Kernels::spin_int8`]: 16 products an instruction.
#[target_feature(enable = "neon,dotprod")]
fn spin_int8(rounds: usize) -> i32 {
    let x = vdupq_n_s8(std::hint::black_box(3));
    let step = |sums: &mut [int32x4_t; 16]| {
        for sum in sums {
            *sum = sdot(*sum, x, x);
        }
    };
    peak::spin(rounds, 16, vdupq_n_s32(0), step, |sums| vgetq_lane_s32::<0>(sums))
}
