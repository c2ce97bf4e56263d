//! Tiles of one to eight rows, which take weights of BCML2 as they are packed.
//!
//! An activation group's integer is summed by parts, as the 4-bit products of `kernels/mod.rs` are: sums of
//! products run on through the group, and count at the end of each block by how much its scales are larger than
//! the next one's. Totals hold it with the other sign, as they begin with products that are subtracted from it:
//!
//! ```text
//! -i = Σ scale(b) * zero(b) * s(b) - 16 * (scale(b) - scale(b + 1)) * D(b)
//! ```
//!
//! Results lose what `fmls` subtracts. They never are -0, so that a zero of either sign leaves them as they are.

/// Makes four integers of a vector's lower or upper 16-bit integers (`sshll`, `4h`, or `sshll2`, `8h`), 16 times
/// as large.
macro_rules! sixteen_times {
    ($name:literal $to:ident $from:ident $lanes:literal) => {
        concat!($name, " v", r!($to), ".4s, v", r!($from), ".", $lanes, ", #4\n")
    };
}

/// Makes eight 16-bit integers of the lower (`umull`, `8b`) or upper (`umull2`, `16b`) bytes of two vectors.
macro_rules! bytes_to_8 {
    ($name:literal $to:ident $a:ident $b:ident $lanes:literal) => {
        concat!(
            $name,
            " v",
            r!($to),
            ".8h, v",
            r!($a),
            ".",
            $lanes,
            ", v",
            r!($b),
            ".",
            $lanes,
            "\n",
        )
    };
}

/// Widens the bytes of one vector.
macro_rules! widen_bytes {
    ($name:literal $to:ident $from:ident $lanes:literal) => {
        concat!($name, " v", r!($to), ".8h, v", r!($from), ".", $lanes, ", #0\n")
    };
}

/// Multiplies four 16-bit integers, the low or the high ones of a vector, by a lane.
macro_rules! wide_by_lane {
    ($name:literal low $to:ident $a:ident $b:ident $lane:literal) => {
        concat!($name, " v", r!($to), ".4s, v", r!($a), ".4h, v", r!($b), ".h[", $lane, "]\n")
    };
    ($name:literal high $to:ident $a:ident $b:ident $lane:literal) => {
        concat!($name, "2 v", r!($to), ".4s, v", r!($a), ".8h, v", r!($b), ".h[", $lane, "]\n")
    };
}

/// The products of a block with a strip. Bytes of the next are loaded as soon as those of this are used, so that cores
/// that work in order need not wait for them.
macro_rules! strip {
    ($x0:ident $x1:ident $x2:ident $x3:ident: $low:ident $high:ident $(, $next:literal)?) => {
        concat!(
            low_codes!(code0 byte0), low_codes!(code1 byte1),
            low_codes!(code2 byte2), low_codes!(code3 byte3),
            high_codes!(byte0), high_codes!(byte1), high_codes!(byte2), high_codes!(byte3),
            smmla_pair!(byte0 byte1 $x1: $low $high), smmla_pair!(byte2 byte3 $x3: $low $high),
            $(load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),)?
            smmla_pair!(code0 code1 $x0: $low $high), smmla_pair!(code2 code3 $x2: $low $high),
        )
    };
}

/// Empty step of kernels that have no registers for results.
macro_rules! nothing {
    () => {
        ""
    };
}

/// A kernel for tiles of `$rows` rows, `$strips` strips at a time. `$load` loads results of the strips, `$begin` begins
/// an activation group's sums and totals, `$products` takes a block, `$next` ends it and begins the one behind, `$last`
/// ends the group's last, `$add_out` the group, and `$store` stores results. Blocks are even and odd in turn, as scales
/// of one are still needed when those of the next are loaded.
macro_rules! gemm_few_b2 {
    ($name:ident: $rows:literal by $strips:literal, $($macros:ident)*) => {
        #[target_feature(enable = "neon,i8mm")]
        pub(in super::super) fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            gemm_few_b2_groups!(of_1: $rows by $strips, one_block 1, $($macros)*);
            gemm_few_b2_groups!(of_any: $rows by $strips, any_blocks 1.., $($macros)*);
            match x.blocks() {
                1 => of_1(panel, x, out),
                _ => of_any(panel, x, out),
            }
        }
    };
}

/// Instance for activation groups of the given numbers of blocks.
macro_rules! gemm_few_b2_groups {
    ($name:ident: $rows:literal by $strips:literal, $group:ident $lengths:pat, $load:ident $begin:ident
     $products:ident $next:ident $last:ident $add_out:ident $store:ident) => {
        #[target_feature(enable = "neon,i8mm")]
        fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            let (n, steps) = (x.scales.len() / $rows, x.blocks());
            assert!(n != 0);
            assert!(matches!(steps, $lengths));
            assert!(x.scales.len().is_multiple_of($rows));
            assert_eq!(panel.len(), n * steps * PANEL_BLOCK);
            assert!(x.q.len() >= n * steps * BLOCK * $rows);
            assert!(x.sums.len() >= n * steps * $rows);
            assert_eq!(out.len(), $rows * NR);
            const { assert!(matches!($strips, 1 | 2 | 4)) };
            // The macros' instructions contain this length.
            const { assert!(PANEL_BLOCK == 288) };
            // SAFETY: for each of four strips, some of them at once, and `n` activation groups this reads a scale
            // of each row, and reads and writes four floats of it in `out`; for each of its `steps` blocks it
            // reads the strips' codes, scales and zeros, and of each row 32 bytes of `x` and a sum. So many were
            // found to be there. Everything else is registers that are named.
            unsafe {
                asm!(
                    constants!(),
                    "6:",
                    "mov {n}, {n_all}",
                    "mov {x}, {x_first}",
                    "mov {sums}, {sums_first}",
                    "mov {scales}, {scales_first}",
                    "add {parameters}, {panel}, {strip}, lsl #2",
                    "add {w}, {panel}, {strip}, lsl #6",
                    "add {w}, {w}, #32",
                    $load!(),
                    "4:",
                    $begin!(),
                    $group!($products $next $last),
                    $add_out!(),
                    "subs {n}, {n}, #1",
                    "b.ne 4b",
                    $store!(),
                    "add {out}, {out}, {out_strips}",
                    concat!("add {strip}, {strip}, #", $strips),
                    "cmp {strip}, #4",
                    "b.ne 6b",
                    "// {steps} {step} {block_bytes} {columns_bytes}",
                    panel = in(reg) panel.as_ptr(), x_first = in(reg) x.q.as_ptr(),
                    sums_first = in(reg) x.int_sums().as_ptr(), scales_first = in(reg) x.scales.as_ptr(),
                    parameters = out(reg) _, w = out(reg) _, x = out(reg) _, sums = out(reg) _,
                    scales = out(reg) _, block_bytes = in(reg) PANEL_BLOCK,
                    out = inout(reg) out.as_mut_ptr() => _, strip = inout(reg) 0_usize => _,
                    n_all = in(reg) n, n = out(reg) _, steps = in(reg) steps, step = out(reg) _,
                    columns_bytes = in(reg) 8_usize * $rows, // Eight columns of all rows.
                    // From the last of the strips to the next block's.
                    to_next = in(reg) PANEL_BLOCK - 64 * ($strips - 1),
                    out_strips = const 16 * $rows * $strips,
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

mod eight;
mod four;
mod single;

pub(super) use eight::{
    gemm_q8_b2_f32_5x16c8, gemm_q8_b2_f32_6x16c8, gemm_q8_b2_f32_7x16c8, gemm_q8_b2_f32_8x16c8,
};
pub(super) use four::{gemm_q8_b2_f32_2x16c8, gemm_q8_b2_f32_3x16c8, gemm_q8_b2_f32_4x16c8};
pub(super) use single::gemv_q8_b2_f32_1x16c8;
