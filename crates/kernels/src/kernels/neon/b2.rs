//! Weights of BCML2.
//!
//! A block's sums are eight i16, four for each of two weight rows, of at most `8 * 15 * 127 = 15240`: neighbours can be
//! added as i16 too. Scales times zeros fit i16 as well, and so do sums of 32 activations.

use std::arch::asm;

use super::super::neondot::gemm::{load_out, store_out};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::layout::Layout;
use super::super::packed::tile::Q8Tile;
use super::registers::{floats, registers, to_floats};
use crate::quant::bcml1::BLOCK;
use crate::quant::bcml2::{BLOCK_BYTES, ZERO_PARTS};

/// Tiles of up to four rows. Costs are millions of instructions of a pass of TinyLlama's shape, counted.
pub(super) static TILES: TileSet = TileSet::new(
    &[
        TileKernel::new(1, gemv_q8_b2_f32_1x8c4, 328),
        TileKernel::new(2, gemm_q8_b2_f32_2x8c4, 539),
        TileKernel::new(3, gemm_q8_b2_f32_3x8c4, 749),
        TileKernel::new(4, gemm_q8_b2_f32_4x8c4, 960),
    ],
    0,
);

/// Bytes of a block of a panel: scales and zeros, then codes.
const PANEL_BLOCK: usize = NR * BLOCK_BYTES;

/// Rows of a panel.
const NR: usize = Layout::NEON.panel_rows();

registers! {
    // Sums of up to four rows `a` to `d` with the panel's rows, two in each register; totals with the panel's first
    // four rows and with the other four.
    a0 = 0, a1 = 1, a2 = 2, a3 = 3, b0 = 4, b1 = 5, b2 = 6, b3 = 7,
    c0 = 8, c1 = 9, c2 = 10, c3 = 11, d0 = 12, d1 = 13, d2 = 14, d3 = 15,
    a_total0 = 16, a_total1 = 17, b_total0 = 18, b_total1 = 19, c_total0 = 20, c_total1 = 21,
    d_total0 = 22, d_total1 = 23,
    // Mask of low codes; bytes of four rows and of the others, which become high codes; low codes; four columns of
    // three rows, each four times.
    mask = 24, byte0 = 25, byte1 = 26, code0 = 27, code1 = 28, x0 = 29, x1 = 30, x2 = 31,
    // At the end of a block: scales, then 16 times the scales; zeros, and their products with scales.
    scales = 29, wide = 27, steps0 = 25, steps1 = 26, zeros = 30, offsets = 28,
    // At the end of an activation group: a row's scale, results.
    x_scale = 25, y0 = 26, y1 = 27,
}

/// Multiplies eight bytes to eight i16: the lower ones (`smull`, `8b`) or the upper ones (`smull2`, `16b`).
macro_rules! products {
    ($name:literal $to:ident $w:ident $x:ident $lanes:literal) => {
        concat!(
            $name,
            " v",
            r!($to),
            ".8h, v",
            r!($w),
            ".",
            $lanes,
            ", v",
            r!($x),
            ".",
            $lanes,
            "\n",
        )
    };
}

/// Loads four columns of the next row.
macro_rules! load_four {
    ($x:ident) => {
        concat!("ld1r {{v", r!($x), ".4s}}, [{x}], #4\n")
    };
}

/// Four columns of a row by the panel's rows: `begin` their sums, or `add` to them.
macro_rules! row {
    (begin $x:ident $w0:ident $w1:ident: $a:ident $b:ident $c:ident $d:ident) => {
        row!("smull" "smull2" $x $w0 $w1: $a $b $c $d)
    };
    (add $x:ident $w0:ident $w1:ident: $a:ident $b:ident $c:ident $d:ident) => {
        row!("smlal" "smlal2" $x $w0 $w1: $a $b $c $d)
    };
    ($lower:literal $upper:literal $x:ident $w0:ident $w1:ident: $a:ident $b:ident $c:ident $d:ident) => {
        concat!(
            products!($lower $a $w0 $x "8b"), products!($upper $b $w0 $x "16b"),
            products!($lower $c $w1 $x "8b"), products!($upper $d $w1 $x "16b"),
        )
    };
}

/// Loads the first activations of eight columns early, so that in-order cores need not wait for them.
macro_rules! ahead_2 {
    () => {
        concat!(load_four!(x0), load_four!(x1))
    };
}

macro_rules! ahead_3 {
    () => {
        concat!(load_four!(x0), load_four!(x1), load_four!(x2))
    };
}

/// Multiplies eight columns of the rows, and loads their other activations; low codes come first.
macro_rules! columns_1 {
    ($name:ident) => {
        concat!(
            row!($name x0 code0 code1: a0 a1 a2 a3),
            row!(add x1 byte0 byte1: a0 a1 a2 a3),
        )
    };
}

macro_rules! columns_2 {
    ($name:ident) => {
        concat!(
            row!($name x0 code0 code1: a0 a1 a2 a3), load_four!(x0),
            row!($name x1 code0 code1: b0 b1 b2 b3),
            row!(add x2 byte0 byte1: a0 a1 a2 a3),
            row!(add x0 byte0 byte1: b0 b1 b2 b3),
        )
    };
}

macro_rules! columns_3 {
    ($name:ident) => {
        concat!(
            row!($name x0 code0 code1: a0 a1 a2 a3), load_four!(x0),
            row!($name x1 code0 code1: b0 b1 b2 b3), load_four!(x1),
            row!($name x2 code0 code1: c0 c1 c2 c3), load_four!(x2),
            row!(add x0 byte0 byte1: a0 a1 a2 a3),
            row!(add x1 byte0 byte1: b0 b1 b2 b3),
            row!(add x2 byte0 byte1: c0 c1 c2 c3),
        )
    };
}

macro_rules! columns_4 {
    ($name:ident) => {
        concat!(
            row!($name x0 code0 code1: a0 a1 a2 a3), load_four!(x0),
            row!($name x1 code0 code1: b0 b1 b2 b3), load_four!(x1),
            row!($name x2 code0 code1: c0 c1 c2 c3), load_four!(x2),
            row!($name x0 code0 code1: d0 d1 d2 d3), load_four!(x0),
            row!(add x1 byte0 byte1: a0 a1 a2 a3), load_four!(x1),
            row!(add x2 byte0 byte1: b0 b1 b2 b3),
            row!(add x0 byte0 byte1: c0 c1 c2 c3),
            row!(add x1 byte0 byte1: d0 d1 d2 d3),
        )
    };
}

/// Loads and multiplies eight columns of a block.
macro_rules! eight_columns {
    ($ahead:ident $columns:ident $name:ident $next:literal) => {
        concat!(
            "ldp q",
            r!(byte0),
            ", q",
            r!(byte1),
            ", [{w}], ",
            $next,
            "\n",
            $ahead!(),
            "and v",
            r!(code0),
            ".16b, v",
            r!(byte0),
            ".16b, v",
            r!(mask),
            ".16b\n",
            "and v",
            r!(code1),
            ".16b, v",
            r!(byte1),
            ".16b, v",
            r!(mask),
            ".16b\n",
            "ushr v",
            r!(byte0),
            ".16b, v",
            r!(byte0),
            ".16b, #4\n",
            "ushr v",
            r!(byte1),
            ".16b, v",
            r!(byte1),
            ".16b, #4\n",
            $columns!($name),
        )
    };
}

/// A block's products, then its parameters, which stand before its codes. Rows take turns, so that no instruction waits
/// for the one before.
macro_rules! block {
    ($ahead:ident $columns:ident $lines:ident) => {
        concat!(
            eight_columns!($ahead $columns begin "#32"), eight_columns!($ahead $columns add "#32"),
            eight_columns!($ahead $columns add "#32"), eight_columns!($ahead $columns add "#48"),
            "ldp d", r!(scales), ", d", r!(zeros), ", [{w}, #-160]\n",
            $lines!(join_pairs),
            "ushll v", r!(wide), ".8h, v", r!(scales), ".8b, #4\n",
            "umull v", r!(offsets), ".8h, v", r!(scales), ".8b, v", r!(zeros), ".8b\n",
            $lines!(join_rows),
            "ushll v", r!(steps0), ".4s, v", r!(wide), ".4h, #0\n",
            "ushll2 v", r!(steps1), ".4s, v", r!(wide), ".8h, #0\n",
            $lines!(subtract_zeros),
            $lines!(add_products),
        )
    };
}

/// Arguments of `$line`, once for each row: its sums, its totals, and the offset of its results in `out` in bytes.
macro_rules! lines_1 {
    ($line:ident) => {
        $line!(a0 a1 a2 a3, a_total0 a_total1, 0)
    };
}

macro_rules! lines_2 {
    ($line:ident) => {
        concat!(lines_1!($line), $line!(b0 b1 b2 b3, b_total0 b_total1, 32))
    };
}

macro_rules! lines_3 {
    ($line:ident) => {
        concat!(lines_2!($line), $line!(c0 c1 c2 c3, c_total0 c_total1, 64))
    };
}

macro_rules! lines_4 {
    ($line:ident) => {
        concat!(lines_3!($line), $line!(d0 d1 d2 d3, d_total0 d_total1, 96))
    };
}

/// Makes a row's totals zero.
macro_rules! begin_totals {
    ($a:ident $b:ident $c:ident $d:ident, $total0:ident $total1:ident, $at:literal) => {
        concat!("movi v", r!($total0), ".2d, #0\nmovi v", r!($total1), ".2d, #0\n")
    };
}

/// Adds neighbours of a row's sums, and loads its sum of activations into a register that becomes free.
macro_rules! join_pairs {
    ($a:ident $b:ident $c:ident $d:ident, $total0:ident $total1:ident, $at:literal) => {
        concat!(
            "addp v",
            r!($a),
            ".8h, v",
            r!($a),
            ".8h, v",
            r!($b),
            ".8h\n",
            "addp v",
            r!($c),
            ".8h, v",
            r!($c),
            ".8h, v",
            r!($d),
            ".8h\n",
            // Loads the lower half of an i32.
            "ld1r {{v",
            r!($b),
            ".8h}}, [{sums}], {sum_bytes}\n",
        )
    };
}

/// Adds neighbours again, to a sum for each of the panel's rows.
macro_rules! join_rows {
    ($a:ident $b:ident $c:ident $d:ident, $total0:ident $total1:ident, $at:literal) => {
        concat!(
            "saddlp v",
            r!($a),
            ".4s, v",
            r!($a),
            ".8h\n",
            "saddlp v",
            r!($c),
            ".4s, v",
            r!($c),
            ".8h\n",
        )
    };
}

/// Subtracts the products of a block's zeros from a row's totals.
macro_rules! subtract_zeros {
    ($a:ident $b:ident $c:ident $d:ident, $total0:ident $total1:ident, $at:literal) => {
        concat!(
            "smlsl v",
            r!($total0),
            ".4s, v",
            r!(offsets),
            ".4h, v",
            r!($b),
            ".4h\n",
            "smlsl2 v",
            r!($total1),
            ".4s, v",
            r!(offsets),
            ".8h, v",
            r!($b),
            ".8h\n",
        )
    };
}

/// Adds a row's sums times scales to its totals.
macro_rules! add_products {
    ($a:ident $b:ident $c:ident $d:ident, $total0:ident $total1:ident, $at:literal) => {
        concat!(
            "mla v",
            r!($total0),
            ".4s, v",
            r!($a),
            ".4s, v",
            r!(steps0),
            ".4s\n",
            "mla v",
            r!($total1),
            ".4s, v",
            r!($c),
            ".4s, v",
            r!(steps1),
            ".4s\n",
        )
    };
}

/// Adds a row's totals times its scale to `out`.
macro_rules! add_out {
    ($a:ident $b:ident $c:ident $d:ident, $total0:ident $total1:ident, $at:literal) => {
        concat!(
            "ld1r {{v", r!(x_scale), ".4s}}, [{scales}], #4\n",
            load_out!(y0 y1 $at),
            to_floats!($total0 $total0), to_floats!($total1 $total1),
            floats!("fmla" y0 $total0 x_scale), floats!("fmla" y1 $total1 x_scale),
            store_out!(y0 y1 $at),
        )
    };
}

const _: () = assert!(ZERO_PARTS == 1 << 4);

/// A kernel for tiles of `$rows` rows. `$ahead` and `$columns` take eight columns of them; `$lines` repeats a macro for
/// each row.
macro_rules! gemm_b2 {
    ($name:ident: $rows:literal $ahead:ident $columns:ident $lines:ident) => {
        #[target_feature(enable = "neon")]
        fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            let (n, steps) = (x.scales.len() / $rows, x.blocks());
            assert!(n != 0);
            assert!(steps != 0);
            assert!(x.scales.len().is_multiple_of($rows));
            assert_eq!(panel.len(), n * steps * PANEL_BLOCK);
            assert!(x.q.len() >= n * steps * BLOCK * $rows);
            assert!(x.sums.len() >= n * steps * $rows);
            assert_eq!(out.len(), $rows * NR);
            // The macros' instructions contain this length as numbers.
            const { assert!(PANEL_BLOCK == 16 + 128) };
            // SAFETY: for each of `n` activation groups this reads a scale of each row, and reads and writes eight
            // floats of it in `out`. For each of its `steps` blocks it reads the panel's whole block, and of each row
            // 32 bytes of `x` and half of a sum. The lengths were checked above. Everything else is in named registers.
            unsafe {
                asm!(
                    concat!("movi v", r!(mask), ".16b, #15"),
                    "4:",
                    $lines!(begin_totals),
                    "mov {step}, {steps}",
                    "2:",
                    block!($ahead $columns $lines),
                    "subs {step}, {step}, #1",
                    "b.ne 2b",
                    $lines!(add_out),
                    "subs {n}, {n}, #1",
                    "b.ne 4b",
                    w = inout(reg) panel.as_ptr().wrapping_add(2 * NR) => _,
                    x = inout(reg) x.q.as_ptr() => _, sums = inout(reg) x.int_sums().as_ptr() => _,
                    scales = inout(reg) x.scales.as_ptr() => _, out = in(reg) out.as_mut_ptr(),
                    n = inout(reg) n => _, steps = in(reg) steps, step = out(reg) _,
                    sum_bytes = in(reg) size_of::<i32>(),
                    out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
                    out("v6") _, out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _,
                    out("v12") _, out("v13") _, out("v14") _, out("v15") _, out("v16") _,
                    out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _,
                    out("v22") _, out("v23") _, out("v24") _, out("v25") _, out("v26") _,
                    out("v27") _, out("v28") _, out("v29") _, out("v30") _, out("v31") _,
                    options(nostack)
                );
            }
        }
    };
}

gemm_b2!(gemv_q8_b2_f32_1x8c4: 1 ahead_2 columns_1 lines_1);
gemm_b2!(gemm_q8_b2_f32_2x8c4: 2 ahead_3 columns_2 lines_2);
gemm_b2!(gemm_q8_b2_f32_3x8c4: 3 ahead_3 columns_3 lines_3);
gemm_b2!(gemm_q8_b2_f32_4x8c4: 4 ahead_3 columns_4 lines_4);
