//! A single row of activations with packed 4-bit weights.

use std::arch::asm;

use super::super::super::neon::registers::{
    floats, floats_by_lane, load_4, registers, store_4, to_floats,
};
use super::super::super::packed::tile::Q8Tile;
use super::super::gemm::{NR, widen};
use crate::quant::bcml1::{BLOCK, BLOCK_BYTES};

/// Bytes of a block of a panel.
pub(in super::super) const PANEL_BLOCK: usize = NR * BLOCK_BYTES;

registers! {
    // Sums of low codes and of bytes, for the first two strips and for the others.
    low0 = 0, bytes0 = 1, low1 = 2, bytes1 = 3,
    total0 = 4, total1 = 5, total2 = 6, total3 = 7,
    // Multipliers of an even and of an odd block.
    even0 = 8, even1 = 9, even2 = 10, even3 = 11, odd0 = 12, odd1 = 13, odd2 = 14, odd3 = 15,
    // Offsets. Before that, packed parameters; after that, 128 times a block's sum.
    offset0 = 28, offset1 = 29, offset2 = 30, offset3 = 31, bias = 28,
    // Low codes, and bytes.
    code0 = 16, code1 = 17, code2 = 18, code3 = 19, byte0 = 20, byte1 = 21, byte2 = 22, byte3 = 23,
    // Sums of products of each strip as floats; results.
    dot0 = 16, dot1 = 17, dot2 = 18, dot3 = 19, y0 = 16, y1 = 17, y2 = 18, y3 = 19,
    // Activations, 16 columns in each register.
    x0 = 24, x1 = 25,
    // Mask of low codes; sums of activations of two blocks, or the row's scale.
    mask = 26, x_sums = 27, x_scale = 27,
}

/// The low code of each byte.
macro_rules! low_code {
    ($code:ident $byte:ident) => {
        concat!("and v", r!($code), ".16b, v", r!($byte), ".16b, v", r!(mask), ".16b\n")
    };
}

/// Eight `sdot`: sixteen columns of two strips, whole bytes and low codes.
macro_rules! sdot_codes {
    ($low:ident $bytes:ident $x:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", "#64"),
            low_code!(code0 byte0), low_code!(code1 byte1),
            low_code!(code2 byte2), low_code!(code3 byte3),
            sdot!($bytes byte0 $x 0), sdot!($low code0 $x 0),
            sdot!($bytes byte1 $x 1), sdot!($low code1 $x 1),
            sdot!($bytes byte2 $x 2), sdot!($low code2 $x 2),
            sdot!($bytes byte3 $x 3), sdot!($low code3 $x 3),
        )
    };
}

/// Loads a block's parameters: multipliers to `$a` to `$d`, and offsets.
macro_rules! load_parameters {
    ($a:ident $b:ident $c:ident $d:ident) => {
        concat!(
            load_4!("8h" offset0 offset1 offset2 offset3, "w", "#64"),
            widen!("fcvtl" $a offset0 "4h"),
            widen!("fcvtl" $b offset1 "4h"),
            widen!("fcvtl" $c offset2 "4h"),
            widen!("fcvtl" $d offset3 "4h"),
            widen!("fcvtl2" offset0 offset0 "8h"),
            widen!("fcvtl2" offset1 offset1 "8h"),
            widen!("fcvtl2" offset2 offset2 "8h"),
            widen!("fcvtl2" offset3 offset3 "8h"),
        )
    };
}

/// Adds the codes' sums times `$a` to `$d` to the totals. Sums of bytes less sums of low codes are those of high codes
/// times 16.
macro_rules! add_code_totals {
    ($a:ident $b:ident $c:ident $d:ident) => {
        concat!(
            integers!("sub" dot1 bytes0 low0),
            integers!("sub" dot3 bytes1 low1),
            to_floats!(dot0 low0),
            high_to_floats!(dot1),
            to_floats!(dot2 low1),
            high_to_floats!(dot3),
            floats!("fmla" total0 dot0 $a),
            floats!("fmla" total1 dot1 $b),
            floats!("fmla" total2 dot2 $c),
            floats!("fmla" total3 dot3 $d),
        )
    };
}

/// Converts four integers that are 16 times too large to floats.
macro_rules! high_to_floats {
    ($dot:ident) => {
        concat!("scvtf v", r!($dot), ".4s, v", r!($dot), ".4s, #4\n")
    };
}

/// Ends the previous block, whose multipliers are in `$a` to `$d`, and loads the next block's to `$e` to `$h`.
macro_rules! end_block {
    ($a:ident $b:ident $c:ident $d:ident, $e:ident $f:ident $g:ident $h:ident) => {
        concat!(
            load_parameters!($e $f $g $h),
            floats!("fsub" $a $a $e),
            floats!("fsub" $b $b $f),
            floats!("fsub" $c $c $g),
            floats!("fsub" $d $d $h),
            add_code_totals!($a $b $c $d),
        )
    };
}

/// Adds offsets times one of two sums of activations, and the products of a block. High codes in bytes are less 8,
/// which makes 128 for each activation.
macro_rules! add_block {
    ($lane:literal) => {
        concat!(
            floats_by_lane!("fmla" total0 offset0 x_sums $lane),
            floats_by_lane!("fmla" total1 offset1 x_sums $lane),
            floats_by_lane!("fmla" total2 offset2 x_sums $lane),
            floats_by_lane!("fmla" total3 offset3 x_sums $lane),
            "ld1 {{v", r!(x0), ".16b, v", r!(x1), ".16b}}, [{x}], #32\n",
            "fcvtzs v", r!(bias), ".4s, v", r!(x_sums), ".4s, #7\n",
            "dup v", r!(bias), ".4s, v", r!(bias), ".s[", $lane, "]\n",
            integers!("add" bytes0 bytes0 bias),
            integers!("add" bytes1 bytes1 bias),
            sdot_codes!(low0 bytes0 x0),
            sdot_codes!(low0 bytes0 x1),
            sdot_codes!(low1 bytes1 x0),
            sdot_codes!(low1 bytes1 x1),
        )
    };
}

/// Clears sums, and sets totals to -0.0: adding to it keeps a product as it is, with the sign of a zero.
macro_rules! clear {
    ($sum:ident $total:ident) => {
        concat!("movi v", r!($sum), ".2d, #0\nmovi v", r!($total), ".4s, #128, lsl #24\n")
    };
}

/// Adds the totals times the row's scale to `out`, 16 floats.
macro_rules! add_out_single {
    () => {
        concat!(
            load_4!("4s" y0 y1 y2 y3, "out"),
            "ldr s", r!(x_scale), ", [{scales}], #4\n",
            floats_by_lane!("fmla" y0 total0 x_scale 0),
            floats_by_lane!("fmla" y1 total1 x_scale 0),
            floats_by_lane!("fmla" y2 total2 x_scale 0),
            floats_by_lane!("fmla" y3 total3 x_scale 0),
            store_4!(y0 y1 y2 y3, "out"),
        )
    };
}

/// One row of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn gemv_q8_q4_f32_1x16c4(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    let (n, steps) = (x.scales.len(), x.blocks());
    assert!(n != 0);
    assert!(steps != 0);
    assert_eq!(panel.len(), n * steps * PANEL_BLOCK);
    assert_eq!(x.q.len(), n * steps * BLOCK);
    assert_eq!(x.sums.len(), n * steps);
    assert_eq!(out.len(), NR);
    // SAFETY: for each of `n` groups this reads a scale, and reads and writes all of `out`. For each of its `steps`
    // blocks it reads one of `panel`, 32 bytes of `x` and a sum. The lengths were checked above. Everything else is in
    // named registers.
    unsafe {
        asm!(
            concat!("movi v", r!(mask), ".16b, #15"),
            "2:",
            concat!(clear!(low0 total0), clear!(bytes0 total1)),
            concat!(clear!(low1 total2), clear!(bytes1 total3)),
            load_parameters!(even0 even1 even2 even3),
            "lsr {pair}, {steps}, #1",
            "cbnz {pair}, 4f",
            "b 6f",
            "3:",
            end_block!(odd0 odd1 odd2 odd3, even0 even1 even2 even3),
            "4:",
            concat!("ldr d", r!(x_sums), ", [{sums}], #8"),
            add_block!(0),
            end_block!(even0 even1 even2 even3, odd0 odd1 odd2 odd3),
            add_block!(1),
            "subs {pair}, {pair}, #1",
            "b.ne 3b",
            "tbz {steps}, #0, 5f",
            end_block!(odd0 odd1 odd2 odd3, even0 even1 even2 even3),
            "6:",
            concat!("ldr s", r!(x_sums), ", [{sums}], #4"),
            add_block!(0),
            add_code_totals!(even0 even1 even2 even3),
            "b 7f",
            "5:",
            add_code_totals!(odd0 odd1 odd2 odd3),
            "7:",
            add_out_single!(),
            "subs {n}, {n}, #1",
            "b.ne 2b",
            w = inout(reg) panel.as_ptr() => _, x = inout(reg) x.q.as_ptr() => _,
            sums = inout(reg) x.sums.as_ptr() => _, scales = inout(reg) x.scales.as_ptr() => _,
            out = in(reg) out.as_mut_ptr(), n = inout(reg) n => _, steps = in(reg) steps,
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
