//! The loops of tiles whose running totals stand in registers, for tiers that lay weights out in four
//! strips of four rows: which instructions multiply, and which registers they use, is theirs.
//!
//! A tier's macros are what differs, and its map of registers: `w0` to `w3` hold 16 columns of weights,
//! `x0` to `x3` what [`load_x`] gives. `$products` multiplies the former by the latter. `$lines` repeats a macro for all rows, two at a time: `begin_sums`;
//! for int8 weights `load_results` and `store_results`, between which totals are results, to which
//! `$end_group` adds a group; for 4-bit ones `begin_total` and `add_total`, which end a block, the first
//! of an activation group and any other, and `$add_out`, which ends the activation group.

/// Loads two registers from `out`, `$at` bytes in.
macro_rules! load_out {
    ($a:ident $b:ident $at:literal) => {
        concat!("ldp q", r!($a), ", q", r!($b), ", [{out}, #", $at, "]\n")
    };
}

/// Stores them.
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

/// Sixteen columns of a strip; `$next` leads to what is next of it.
macro_rules! sixteen_columns {
    ($products:ident $next:literal) => {
        concat!(load_4!("16b" w0 w1 w2 w3, "w", $next), $products!())
    };
}

/// A group of 64 columns, as most are.
macro_rules! group_of_64 {
    ($products:ident) => {
        concat!(
            sixteen_columns!($products "{stride}"), sixteen_columns!($products "{stride}"),
            sixteen_columns!($products "{stride}"), sixteen_columns!($products "{stride_to_group}"),
        )
    };
}

/// A group of any length.
macro_rules! group_of_any {
    ($products:ident) => {
        concat!(
            "mov {round}, {rounds}\n",
            "2:\n",
            sixteen_columns!($products "{stride}"), sixteen_columns!($products "{stride}"),
            "subs {round}, {round}, #1\n",
            "b.ne 2b\n",
            "add {w}, {w}, #64\n",
        )
    };
}

/// A kernel for tiles of `$rows` rows and int8 weights in groups of such a length.
macro_rules! gemm_q8 {
    ($features:literal $name:ident: $rows:literal $lines:ident $products:ident $end_group:ident
     $group:ident $lengths:pat $(, $($operand:tt)*)?) => {
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
            // SAFETY: for each of four strips this reads and writes four floats of each row in `out`;
            // for each of `n` groups it reads a scale of each row and 16 bytes of the weights' scales;
            // in each of their `rounds` of 32 columns 32 bytes of `x` for each row, and twice 64 of
            // weights, with those of the other strips between. So many were found to be there.
            // Everything else is registers that are named.
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
                    "add {strip}, {strip}, #1",
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
                    stride = in(reg) 4 * STRIP, stride_to_group = in(reg) 4 * STRIP + 4 * NR,
                    group_bytes = in(reg) group_bytes, out_strip = const 16 * $rows,
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

/// The products of a block of 32 columns, then its parameters.
macro_rules! block_of_32 {
    ($products:ident $load_parameters:ident) => {
        concat!(
            load_4!("16b" w0 w1 w2 w3, "w", "#64"),
            $products!(),
            load_4!("16b" w0 w1 w2 w3, "w", "#64"),
            $products!(),
            $load_parameters!(),
        )
    };
}

/// The same for unpacked 4-bit weights.
macro_rules! gemm_q4 {
    ($features:literal $name:ident: $rows:literal $lines:ident $products:ident
     $load_parameters:ident $add_out:ident $(, $($operand:tt)*)?) => {
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
            // SAFETY: for each of four strips and `n` activation groups this reads a scale of each
            // row, and reads and writes four floats of it in `out`; for each of its `steps` blocks it
            // reads all of the strip, codes and parameters, and of each row 32 bytes of `x` and a sum.
            // So many were found to be there. Everything else is registers that are named.
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
                    block_of_32!($products $load_parameters),
                    $lines!(begin_total),
                    "subs {step}, {steps}, #1",
                    "b.eq 5f",
                    "2:",
                    block_of_32!($products $load_parameters),
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

pub(in super::super) use {
    block_of_32, gemm_q4, gemm_q8, group_of_64, group_of_any, load_out, load_x, sixteen_columns,
    store_out,
};
