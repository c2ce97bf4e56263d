//! Loops of tiles that hold running totals in registers, for tiers that lay out weights in four strips of four rows.
//! The tier provides the instructions that multiply, and their registers.
//!
//! A tier provides its map of registers and some macros. `$products` multiplies 16 columns of the strips that are taken
//! at once; when it loads the last of them, the weights' address advances by `$next`. `$lines` repeats a macro for all
//! sums, two at a time. These macros are `begin_sums`; for int8 weights `load_results` and `store_results`, between
//! which totals are results, to which `$end_group` adds a group; for 4-bit weights `begin_total` and `add_total`, which
//! end the first block of an activation group and any other, and `$add_out`, which ends the group.

use super::super::packed::layout::Layout;
use crate::quant::bcml2;

/// Rows of a panel: four strips.
pub(super) const NR: usize = Layout::NEON_DOT.panel_rows();

/// Bytes of a block of a panel of BCML2: scales, zeros, codes.
pub(super) const PANEL_BLOCK_B2: usize = NR * bcml2::BLOCK_BYTES;

/// Loads two registers from `out`, at `$at` bytes.
macro_rules! load_out {
    ($a:ident $b:ident $at:literal) => {
        concat!("ldp q", r!($a), ", q", r!($b), ", [{out}, #", $at, "]\n")
    };
}

/// Stores two registers to `out`, at `$at` bytes.
macro_rules! store_out {
    ($a:ident $b:ident $at:literal) => {
        concat!("stp q", r!($a), ", q", r!($b), ", [{out}, #", $at, "]\n")
    };
}

/// Loads the next 64 bytes of activations.
macro_rules! load_x {
    () => {
        load_4!("16b" x0 x1 x2 x3, "x", "#64")
    };
}

/// Products of a group of 32 columns, the usual length.
macro_rules! group_of_32 {
    ($products:ident) => {
        concat!($products!("{stride}"), $products!("{stride_to_group}"))
    };
}

/// Products of a group of any length.
macro_rules! group_of_any {
    ($products:ident) => {
        concat!(
            "mov {round}, {rounds}\n",
            "2:\n",
            $products!("{stride}"),
            $products!("{stride}"),
            "subs {round}, {round}, #1\n",
            "b.ne 2b\n",
            "add {w}, {w}, #64\n",
        )
    };
}

/// A kernel for tiles of `$rows` rows and int8 weights, which takes `$strips` strips at a time.
macro_rules! gemm_q8 {
    ($features:literal $name:ident: $rows:literal by $strips:literal, $($macros:ident)*
     $(, $operand:ident = in(reg) $value:expr)?) => {
        #[target_feature(enable = $features)]
        fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            gemm_q8_groups!($features of_32: $rows by $strips, $($macros)* group_of_32 32
                $(, $operand = in(reg) $value)?);
            gemm_q8_groups!($features of_any: $rows by $strips, $($macros)* group_of_any 32..
                $(, $operand = in(reg) $value)?);
            match x.group {
                32 => of_32(panel, x, out),
                _ => of_any(panel, x, out),
            }
        }
    };
}

/// Instance for activation groups of the given length.
macro_rules! gemm_q8_groups {
    ($features:literal $name:ident: $rows:literal by $strips:literal, $lines:ident $products:ident
     $end_group:ident $group:ident $lengths:pat $(, $($operand:tt)*)?) => {
        #[target_feature(enable = $features)]
        fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            let (n, rounds) = (x.scales.len() / $rows, x.group / 32);
            let group_bytes = NR * (4 + x.group);
            assert!(n != 0);
            assert!(rounds != 0);
            assert!(matches!(x.group, $lengths));
            assert!(x.scales.len().is_multiple_of($rows));
            assert_eq!(panel.len(), n * group_bytes);
            assert!(x.q.len() >= n * rounds * 32 * $rows);
            assert_eq!(out.len(), $rows * NR);
            const { assert!(matches!($strips, 1 | 2 | 4)) };
            // SAFETY: for each of four strips, some of them at a time, this reads and writes four floats of each row in
            // `out`. For each of `n` groups it reads a scale of each row and 16 bytes of the weights' scales. In each
            // of their `rounds` of 32 columns it reads 32 bytes of `x` for each row, and twice 64 bytes of weights,
            // which the other strips lie between. The lengths were checked above. Everything else is in named
            // registers.
            unsafe {
                asm!(
                    "6:",
                    "mov {n}, {n_all}",
                    "mov {x}, {x_first}",
                    "mov {scales}, {scales_first}",
                    "add {w}, {panel}, {strip}, lsl #6",
                    "add {w_scales}, {panel}, {strip}, lsl #4",
                    "add {w}, {w}, #64",
                    $lines!(load_results),
                    "4:",
                    $lines!(begin_sums),
                    $group!($products),
                    $end_group!(),
                    "subs {n}, {n}, #1",
                    "b.ne 4b",
                    $lines!(store_results),
                    concat!("add {strip}, {strip}, #", $strips),
                    "add {out}, {out}, {out_strip}",
                    "cmp {strip}, #4",
                    "b.ne 6b",
                    "// {rounds} {round} {stride_to_group}",
                    panel = in(reg) panel.as_ptr(), x_first = in(reg) x.q.as_ptr(),
                    scales_first = in(reg) x.scales.as_ptr(), n_all = in(reg) n,
                    w = out(reg) _, x = out(reg) _, scales = out(reg) _, w_scales = out(reg) _,
                    n = out(reg) _, round = out(reg) _,
                    strip = inout(reg) 0_usize => _, out = inout(reg) out.as_mut_ptr() => _,
                    rounds = in(reg) rounds,
                    // Distance from the last of the strips to the first strip's next columns.
                    stride = in(reg) (5 - $strips) * STRIP,
                    stride_to_group = in(reg) (5 - $strips) * STRIP + 4 * NR,
                    group_bytes = in(reg) group_bytes, out_strip = const 16 * $rows * $strips,
                    $($($operand)*,)?
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

/// The products of a block of 32 columns; then loads its parameters.
macro_rules! block_of_32 {
    ($products:ident $load_strips:ident) => {
        concat!($products!("#64"), $products!("#64"), $load_strips!(),)
    };
}

/// Kernel for unpacked 4-bit weights.
macro_rules! gemm_q4 {
    ($features:literal $name:ident: $rows:literal $lines:ident $products:ident
     $load_strips:ident $add_out:ident $(, $($operand:tt)*)?) => {
        #[target_feature(enable = $features)]
        fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            let (n, steps) = (x.scales.len() / $rows, x.blocks());
            assert!(n != 0);
            assert!(steps != 0);
            assert!(x.scales.len().is_multiple_of($rows));
            assert_eq!(panel.len(), n * steps * UNPACKED_BLOCK);
            assert!(x.q.len() >= n * steps * BLOCK * $rows);
            assert!(x.sums.len() >= n * steps * $rows);
            assert_eq!(out.len(), $rows * NR);
            // SAFETY: for each of four strips and `n` activation groups this reads a scale of each row, and reads and
            // writes four floats of it in `out`. For each of its `steps` blocks it reads all of the strip, codes and
            // parameters, and of each row 32 bytes of `x` and a sum. The lengths were checked above. Everything else is
            // in named registers.
            unsafe {
                asm!(
                    "6:",
                    "mov {n}, {n_all}",
                    "mov {x}, {x_first}",
                    "mov {sums}, {sums_first}",
                    "mov {scales}, {scales_first}",
                    "mov {w}, {panel}",
                    "4:",
                    $lines!(begin_sums),
                    block_of_32!($products $load_strips),
                    $lines!(begin_total),
                    "subs {step}, {steps}, #1",
                    "b.eq 5f",
                    "2:",
                    block_of_32!($products $load_strips),
                    $lines!(add_total),
                    "subs {step}, {step}, #1",
                    "b.ne 2b",
                    "5:",
                    $add_out!(),
                    "subs {n}, {n}, #1",
                    "b.ne 4b",
                    "add {panel}, {panel}, {strip_bytes}",
                    "add {out}, {out}, {out_strip}",
                    "subs {strips}, {strips}, #1",
                    "b.ne 6b",
                    panel = inout(reg) panel.as_ptr() => _, x_first = in(reg) x.q.as_ptr(),
                    sums_first = in(reg) x.sums.as_ptr(), scales_first = in(reg) x.scales.as_ptr(),
                    w = out(reg) _, x = out(reg) _, sums = out(reg) _, scales = out(reg) _,
                    out = inout(reg) out.as_mut_ptr() => _, strips = inout(reg) 4_usize => _,
                    n_all = in(reg) n, n = out(reg) _, steps = in(reg) steps, step = out(reg) _,
                    $($($operand)*,)?
                    strip_bytes = const STRIP, out_strip = const 16 * $rows,
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

/// Converts four of a strip's parameters to floats: its multipliers (`fcvtl`, `4h`) or offsets (`fcvtl2`, `8h`).
macro_rules! widen {
    ($name:literal $to:ident $from:ident $lanes:literal) => {
        concat!($name, " v", r!($to), ".4s, v", r!($from), ".", $lanes, "\n")
    };
}

/// Loads a block's multipliers and offsets for two strips.
macro_rules! load_strips {
    ($low:ident $high:ident) => {
        concat!(
            "ldp q", r!(low_offsets), ", q", r!(high_offsets), ", [{parameters}], #320\n",
            widen!("fcvtl" $low low_offsets "4h"), widen!("fcvtl" $high high_offsets "4h"),
            widen!("fcvtl2" low_offsets low_offsets "8h"), widen!("fcvtl2" high_offsets high_offsets "8h"),
        )
    };
}

/// An activation group of one block, as models have.
macro_rules! one_block {
    ($products:ident $next:ident $last:ident) => {
        concat!($products!(even), $last!(even))
    };
}

/// An activation group of any number of blocks.
macro_rules! any_blocks {
    ($products:ident $next:ident $last:ident) => {
        concat!(
            "mov {step}, {steps}\n",
            "2:\n",
            $products!(even),
            "subs {step}, {step}, #1\n",
            "b.eq 3f\n",
            $next!(even),
            $products!(odd),
            "subs {step}, {step}, #1\n",
            "b.eq 5f\n",
            $next!(odd),
            "b 2b\n",
            "3:\n",
            $last!(even),
            "b 7f\n",
            "5:\n",
            $last!(odd),
            "7:\n",
        )
    };
}

/// A kernel for tiles of `$rows` rows and packed 4-bit weights, `$strips` strips at a time. `$constants` fills
/// registers that stay. `$begin` begins an activation group's sums and totals, `$products` multiplies a block, `$next`
/// ends it and begins the next block, `$last` ends the group's last block, and `$add_out` ends the group. Even and odd
/// blocks alternate between registers, because multipliers of a block are still needed when the next ones are loaded.
macro_rules! gemm_few_q4 {
    ($features:literal $name:ident: $rows:literal by $strips:literal, $($macros:ident)*
     $(, $operand:ident = in(reg) $value:expr)*) => {
        #[target_feature(enable = $features)]
        pub(in super::super) fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            gemm_few_q4_groups!($features of_1: $rows by $strips, one_block 1, $($macros)*
                $(, $operand = in(reg) $value)*);
            gemm_few_q4_groups!($features of_any: $rows by $strips, any_blocks 1.., $($macros)*
                $(, $operand = in(reg) $value)*);
            match x.blocks() {
                1 => of_1(panel, x, out),
                _ => of_any(panel, x, out),
            }
        }
    };
}

/// Instance for activation groups of the given numbers of blocks.
macro_rules! gemm_few_q4_groups {
    ($features:literal $name:ident: $rows:literal by $strips:literal, $group:ident $lengths:pat, $constants:ident $begin:ident
     $products:ident $next:ident $last:ident $add_out:ident $(, $operand:ident = in(reg) $value:expr)*) => {
        #[target_feature(enable = $features)]
        fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            let (n, steps) = (x.scales.len() / $rows, x.blocks());
            let mut totals = MaybeUninit::<[f32; 8 * $rows]>::uninit();
            assert!(n != 0);
            assert!(matches!(steps, $lengths));
            assert!(x.scales.len().is_multiple_of($rows));
            assert_eq!(panel.len(), n * steps * PANEL_BLOCK);
            assert!(x.q.len() >= n * steps * BLOCK * $rows);
            assert!(x.sums.len() >= n * steps * $rows);
            assert_eq!(out.len(), $rows * NR);
            const { assert!(matches!($strips, 1 | 2)) };
            // The macros' instructions contain this length as numbers.
            const { assert!(PANEL_BLOCK == 320) };
            // SAFETY: for each of four strips, one or two at a time, and `n` activation groups this reads a scale of
            // each row, and reads and writes four floats of it in `out`. For each of its `steps` blocks it reads the
            // strips' codes and parameters, and of each row 32 bytes of `x` and a sum. The lengths were checked above.
            // Of `totals` it reads only what it wrote. Everything else is in named registers.
            unsafe {
                asm!(
                    $constants!(),
                    "6:",
                    "mov {n}, {n_all}",
                    "mov {x}, {x_first}",
                    "mov {sums}, {sums_first}",
                    "mov {scales}, {scales_first}",
                    "add {parameters}, {panel}, {strip}, lsl #4",
                    "add {w}, {panel}, {strip}, lsl #6",
                    "add {w}, {w}, #64",
                    "4:",
                    $begin!(),
                    $group!($products $next $last),
                    $add_out!(),
                    "subs {n}, {n}, #1",
                    "b.ne 4b",
                    "add {out}, {out}, {out_strips}",
                    concat!("add {strip}, {strip}, #", $strips),
                    "cmp {strip}, #4",
                    "b.ne 6b",
                    "// {steps} {step} {totals}",
                    panel = in(reg) panel.as_ptr(), x_first = in(reg) x.q.as_ptr(),
                    sums_first = in(reg) x.sums.as_ptr(), scales_first = in(reg) x.scales.as_ptr(),
                    parameters = out(reg) _, w = out(reg) _, x = out(reg) _, sums = out(reg) _,
                    scales = out(reg) _, totals = in(reg) totals.as_mut_ptr(),
                    out = inout(reg) out.as_mut_ptr() => _, strip = inout(reg) 0_usize => _,
                    n_all = in(reg) n, n = out(reg) _, steps = in(reg) steps, step = out(reg) _,
                    $($operand = in(reg) $value,)*
                    // Distance from the last of the strips to the next block's strips.
                    to_next = in(reg) PANEL_BLOCK - 64 * ($strips - 1),
                    out_strips = const 16 * $rows * $strips,
                    out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
                    out("v6") _, out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _,
                    out("v12") _, out("v13") _, out("v14") _, out("v15") _, out("v16") _,
                    out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _,
                    out("v22") _, out("v23") _, out("v24") _, out("v25") _, out("v26") _, out("v27") _, out("v28") _,
                    out("v29") _, out("v30") _, out("v31") _,
                    options(nostack)
                );
            }
        }
    };
}

pub(in super::super) use {
    any_blocks, block_of_32, gemm_few_q4, gemm_few_q4_groups, gemm_q4, gemm_q8, gemm_q8_groups,
    group_of_32, group_of_any, load_out, load_strips, load_x, one_block, store_out, widen,
};
