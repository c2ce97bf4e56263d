//! The loops of tiles whose running totals stand in registers, for tiers that lay weights out in four
//! strips of four rows: which instructions multiply, and which registers they use, is theirs.
//!
//! A tier's macros are what differs. `$lines` repeats a macro for all rows, two at a time: `begin_sums`;
//! `begin_total` and `add_total`, which end a group, the first of an activation group and any other.
//! `$products` multiplies 16 columns of weights in registers v24 to v27 by what [`load_x`] gives it;
//! `$add_out` ends an activation group.

/// An instruction that makes four floats of two fours, by their registers.
macro_rules! floats {
    ($name:literal $to:literal $a:literal $b:literal) => {
        concat!($name, " v", $to, ".4s, v", $a, ".4s, v", $b, ".4s\n")
    };
}

/// The same of four floats and one lane of others.
macro_rules! floats_by_lane {
    ($name:literal $to:literal $a:literal $b:literal $lane:literal) => {
        concat!($name, " v", $to, ".4s, v", $a, ".4s, v", $b, ".s[", $lane, "]\n")
    };
}

/// Four floats of four integers.
macro_rules! to_floats {
    ($to:literal $from:literal) => {
        concat!("scvtf v", $to, ".4s, v", $from, ".4s\n")
    };
}

/// Loads two registers from `out`, `$at` bytes in.
macro_rules! load_out {
    ($a:literal $b:literal $at:literal) => {
        concat!("ldp q", $a, ", q", $b, ", [{out}, #", $at, "]\n")
    };
}

/// Stores them.
macro_rules! store_out {
    ($a:literal $b:literal $at:literal) => {
        concat!("stp q", $a, ", q", $b, ", [{out}, #", $at, "]\n")
    };
}

/// Loads the next 64 bytes of activations.
macro_rules! load_x {
    () => {
        "ld1 {{v28.16b, v29.16b, v30.16b, v31.16b}}, [{x}], #64\n"
    };
}

/// Sixteen columns of a strip; `$next` leads to what is next of it.
macro_rules! sixteen_columns {
    ($products:ident $next:literal) => {
        concat!("ld1 {{v24.16b, v25.16b, v26.16b, v27.16b}}, [{w}], {", $next, "}\n", $products!(),)
    };
}

/// A group of 64 columns.
macro_rules! group_of_64 {
    ($products:ident $lines:ident $total:ident) => {
        concat!(
            sixteen_columns!($products "stride"), sixteen_columns!($products "stride"),
            sixteen_columns!($products "stride"), sixteen_columns!($products "stride_to_group"),
            load_steps!(),
            $lines!($total),
        )
    };
}

/// An activation group of four groups of 64, as most are.
macro_rules! four_groups_of_64 {
    ($products:ident $lines:ident) => {
        concat!(
            group_of_64!($products $lines begin_total), group_of_64!($products $lines add_total),
            group_of_64!($products $lines add_total), group_of_64!($products $lines add_total),
        )
    };
}

/// A group of any length.
macro_rules! group_of_any {
    ($products:ident $lines:ident $total:ident $round:literal) => {
        concat!(
            "mov {round}, {rounds}\n",
            $round, ":\n",
            sixteen_columns!($products "stride"), sixteen_columns!($products "stride"),
            "subs {round}, {round}, #1\n",
            "b.ne ", $round, "b\n",
            "add {w}, {w}, #64\n",
            load_steps!(),
            $lines!($total),
        )
    };
}

/// An activation group of any number of groups of any length.
macro_rules! any_groups {
    ($products:ident $lines:ident) => {
        concat!(
            group_of_any!($products $lines begin_total "3"),
            "subs {step}, {steps}, #1\n",
            "b.eq 5f\n",
            "2:\n",
            group_of_any!($products $lines add_total "7"),
            "subs {step}, {step}, #1\n",
            "b.ne 2b\n",
            "5:\n",
        )
    };
}

/// A kernel for tiles of `$rows` rows and int8 weights in groups of such a length and number.
macro_rules! gemm_q8 {
    ($features:literal $name:ident: $rows:literal $lines:ident $products:ident $add_out:ident
     $groups:ident $shape:pat $(, $($operand:tt)*)?) => {
        #[target_feature(enable = $features)]
        fn $name(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
            let (group_bytes, steps) = (NR * (4 + x.groups.w), x.steps());
            let (n, rounds) = (x.scales.len() / $rows, x.groups.w / 32);
            assert!(n != 0);
            assert!(steps != 0);
            assert!(rounds != 0);
            assert!(matches!((x.groups.w, steps), $shape));
            assert!(x.scales.len().is_multiple_of($rows));
            assert_eq!(panel.len(), n * steps * group_bytes);
            assert!(x.q.len() >= n * steps * rounds * 32 * $rows);
            assert_eq!(out.len(), $rows * NR);
            // SAFETY: for each of four strips and `n` activation groups this reads a scale of each
            // row, and reads and writes four floats of it in `out`; for each of the `steps` groups of
            // weights in these it reads 16 bytes of their steps; in each of their `rounds` of 32
            // columns 32 bytes of `x` for each row, and twice 64 of weights, with those of the other
            // strips between. So many were found to be there. Everything else is registers that are
            // named.
            unsafe {
                asm!(
                    "6:",
                    "mov {n}, {n_all}",
                    "mov {x}, {x_first}",
                    "mov {scales}, {scales_first}",
                    "add {w}, {panel}, {strip}, lsl #6",
                    "add {steps_at}, {panel}, {strip}, lsl #4",
                    "add {w}, {w}, #64",
                    "4:",
                    $lines!(begin_sums),
                    $groups!($products $lines),
                    $add_out!(),
                    "subs {n}, {n}, #1",
                    "b.ne 4b",
                    "add {strip}, {strip}, #1",
                    "add {out}, {out}, {out_strip}",
                    "cmp {strip}, #4",
                    "b.ne 6b",
                    "// {steps} {step} {rounds} {round} {stride_to_group}",
                    panel = in(reg) panel.as_ptr(), x_first = in(reg) x.q.as_ptr(),
                    scales_first = in(reg) x.scales.as_ptr(), n_all = in(reg) n,
                    w = out(reg) _, x = out(reg) _, scales = out(reg) _, steps_at = out(reg) _,
                    n = out(reg) _, step = out(reg) _, round = out(reg) _,
                    strip = inout(reg) 0_usize => _, out = inout(reg) out.as_mut_ptr() => _,
                    steps = in(reg) steps, rounds = in(reg) rounds,
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
            "ld1 {{v24.16b, v25.16b, v26.16b, v27.16b}}, [{w}], #64\n",
            $products!(),
            "ld1 {{v24.16b, v25.16b, v26.16b, v27.16b}}, [{w}], #64\n",
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
        fn $name(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
            let (n, steps) = (x.scales.len() / $rows, x.steps());
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
    any_groups, block_of_32, floats, floats_by_lane, four_groups_of_64, gemm_q4, gemm_q8,
    group_of_64, group_of_any, load_out, load_x, sixteen_columns, store_out, to_floats,
};
