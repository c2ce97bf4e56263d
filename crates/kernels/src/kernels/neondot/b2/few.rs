//! Tiles of one to eight rows, which take weights as they are packed, both pairs of strips at once or one after
//! the other.
//!
//! A cell is a row by a pair of strips. Of the first strip it has sums of low codes, `L`, and of the other sums
//! of bytes as they are, `B`; `B - L` is 16 times the sums of high codes less 8. Its totals are what they stand
//! for with the sign turned, as that makes products with zeros their begin; so they are subtracted from results.

/// The products of bytes, four columns of a pair of strips each, with a register and a lane of activations for
/// each cell; bytes become low codes. Each byte's own products come before those of the last one's low codes,
/// so that cores which take instructions in order need not wait.
macro_rules! products {
    (behind $last:ident [$($last_cells:tt)*], $byte:ident [$($cells:tt)*] $(, $($next:tt)*)?) => {
        concat!(
            products_of!(sdot_bytes $byte $($cells)*),
            products_of!(sdot_low $last $($last_cells)*),
            low_codes!($byte),
            products!(behind $byte [$($cells)*] $(, $($next)*)?),
        )
    };
    (behind $last:ident [$($cells:tt)*]) => {
        products_of!(sdot_low $last $($cells)*)
    };
    ($byte:ident [$($cells:tt)*] $(, $($next:tt)*)?) => {
        concat!(
            products_of!(sdot_bytes $byte $($cells)*),
            low_codes!($byte),
            products!(behind $byte [$($cells)*] $(, $($next)*)?),
        )
    };
}

macro_rules! products_of {
    ($sdot:ident $byte:ident $($cell:tt $x:ident $lane:literal),*) => {
        concat!($(cell!($cell $sdot $byte $x $lane),)*)
    };
}

macro_rules! low_codes {
    ($byte:ident) => {
        concat!("and v", r!($byte), ".16b, v", r!($byte), ".16b, v", r!(mask), ".16b\n")
    };
}

/// A cell's products with bytes.
macro_rules! sdot_bytes {
    ($low:ident $bytes:ident [$($totals:tt)*], $byte:ident $x:ident $lane:literal) => {
        sdot!($bytes $byte $x $lane)
    };
}

/// Its products with low codes.
macro_rules! sdot_low {
    ($low:ident $bytes:ident [$($totals:tt)*], $byte:ident $x:ident $lane:literal) => {
        sdot!($low $byte $x $lane)
    };
}

/// Fills the register that leaves low codes.
macro_rules! make_mask {
    () => {
        concat!("movi v", r!(mask), ".16b, #15\n")
    };
}

/// Loads sixteen columns of a pair of strips.
macro_rules! load_bytes {
    ($w:literal $next:literal) => {
        load_4!("16b" byte0 byte1 byte2 byte3, $w, $next)
    };
}

/// Loads 48 bytes of activations.
macro_rules! load_3_x {
    () => {
        concat!("ld1 {{v", r!(x0), ".16b, v", r!(x1), ".16b, v", r!(x2), ".16b}}, [{x}], #48\n")
    };
}

/// Makes a cell's sums zero, and its totals what the first block's zeros add. Totals are registers or have a
/// place in memory.
macro_rules! begin_cell {
    ($low:ident $bytes:ident [$low_total:ident $high_total:ident],
     $pair:ident $x_sums:ident $lane:literal) => {
        concat!(
            "movi v", r!($low), ".2d, #0\nmovi v", r!($bytes), ".2d, #0\n",
            by_sum!("smull" $pair $low_total low_zeros $x_sums $lane),
            by_sum!("smull" $pair $high_total high_zeros $x_sums $lane),
        )
    };
    ($low:ident $bytes:ident [$at:literal], $($sum:tt)*) => {
        concat!(begin_cell!($low $bytes [low_total high_total], $($sum)*), store_totals!($at))
    };
}

/// Adds to a cell's totals what the next block's zeros add, if they are registers.
macro_rules! add_zeros {
    ($low:ident $bytes:ident [$low_total:ident $high_total:ident],
     $pair:ident $x_sums:ident $lane:literal) => {
        concat!(
            by_sum!("smlal" $pair $low_total low_zeros $x_sums $lane),
            by_sum!("smlal" $pair $high_total high_zeros $x_sums $lane),
        )
    };
    ($low:ident $bytes:ident [$at:literal], $($sum:tt)*) => {
        ""
    };
}

/// Subtracts a cell's sums times a block's steps from its totals. To those in memory it adds what the next
/// block's zeros add.
macro_rules! end_block {
    ($low:ident $bytes:ident [$low_total:ident $high_total:ident], first $($sum:tt)*) => {
        subtract_sums!($low $bytes $low_total $high_total, low_steps0 high_steps0)
    };
    ($low:ident $bytes:ident [$low_total:ident $high_total:ident], second $($sum:tt)*) => {
        subtract_sums!($low $bytes $low_total $high_total, low_steps1 high_steps1)
    };
    ($low:ident $bytes:ident [$at:literal], $($sum:tt)*) => {
        concat!(
            load_totals!(low_total high_total $at),
            add_zeros!($low $bytes [low_total high_total], $($sum)*),
            end_block!($low $bytes [low_total high_total], $($sum)*),
            store_totals!($at),
        )
    };
}

/// Ends a cell at the end of a group, where totals become floats. Totals from memory overwrite the cell's sums,
/// which are no longer needed.
macro_rules! end_cell {
    ($low:ident $bytes:ident [$low_total:ident $high_total:ident], $($sum:tt)*) => {
        concat!(
            end_block!($low $bytes [$low_total $high_total], $($sum)*),
            to_floats!($low_total $low_total),
            to_floats!($high_total $high_total),
        )
    };
    ($low:ident $bytes:ident [$at:literal], $($sum:tt)*) => {
        concat!(
            load_totals!(low_total high_total $at),
            end_block!($low $bytes [low_total high_total], $($sum)*),
            to_floats!($low low_total),
            to_floats!($bytes high_total),
        )
    };
}

macro_rules! subtract_sums {
    ($low:ident $bytes:ident $low_total:ident $high_total:ident, $low_steps:ident $high_steps:ident) => {
        concat!(
            integers!("sub" high $bytes $low),
            integers!("mls" $low_total $low $low_steps),
            integers!("mls" $high_total high $high_steps),
        )
    };
}

/// An instruction that makes four integers of four numbers of 16 bits, the first or the second of a register,
/// and a lane of others.
macro_rules! by_sum {
    ($name:literal first $to:ident $zeros:ident $($x_sum:tt)*) => {
        concat!($name, by_sum!($to $zeros "4h" $($x_sum)*))
    };
    ($name:literal second $to:ident $zeros:ident $($x_sum:tt)*) => {
        concat!($name, "2", by_sum!($to $zeros "8h" $($x_sum)*))
    };
    ($to:ident $zeros:ident $lanes:literal $x_sums:ident $lane:literal) => {
        concat!(" v", r!($to), ".4s, v", r!($zeros), ".", $lanes, ", v", r!($x_sums), ".h[", $lane, "]\n")
    };
}

/// Loads a block's scales and zeros, and makes products of them, of rows with low codes and with high ones.
macro_rules! load_parameters {
    ($scales:ident) => {
        concat!(
            "ldp q", r!($scales), ", q", r!(zeros), ", [{parameters}], {panel_block}\n",
            numbers_of_16_bits!("umull" low_zeros $scales "8b"), ", v", r!(zeros), ".8b\n",
            numbers_of_16_bits!("smull2" high_zeros $scales "16b"), ", v", r!(zeros), ".16b\n",
        )
    };
}

/// Loads the scales of the last block whose parameters were loaded, and its zeros, as no load of 16 bytes
/// reaches back so far.
macro_rules! load_scales {
    () => {
        concat!("ldp q", r!(scales), ", q", r!(next_scales), ", [{parameters}, -{panel_block}]\n")
    };
}

/// Makes steps of what a block's scales have above the next one's, those of low codes 16 times as large, of one
/// pair of strips or of both.
macro_rules! make_steps {
    (1 $scales:ident) => {
        concat!(
            numbers_of_16_bits!("sshll2" high_steps0 $scales "16b"), ", #0\n",
            numbers_of_16_bits!("sshll" low_steps0 $scales "8b"), ", #4\n",
            widen!("sxtl" low_steps0 low_steps0 "4h"),
            widen!("sxtl" high_steps0 high_steps0 "4h"),
        )
    };
    (2 $scales:ident) => {
        concat!(
            numbers_of_16_bits!("sshll2" high_steps0 $scales "16b"), ", #0\n",
            numbers_of_16_bits!("sshll" low_steps0 $scales "8b"), ", #4\n",
            widen!("sxtl2" low_steps1 low_steps0 "8h"),
            widen!("sxtl2" high_steps1 high_steps0 "8h"),
            widen!("sxtl" low_steps0 low_steps0 "4h"),
            widen!("sxtl" high_steps0 high_steps0 "4h"),
        )
    };
}

/// The begin of an instruction that makes eight numbers of 16 bits of eight bytes.
macro_rules! numbers_of_16_bits {
    ($name:literal $to:ident $from:ident $lanes:literal) => {
        concat!($name, " v", r!($to), ".8h, v", r!($from), ".", $lanes)
    };
}

/// Begins an activation group, whose first scales go to `$scales`; `$lines` is for its cells.
macro_rules! begin {
    ($lines:ident $scales:ident, $($load_sums:tt)*) => {
        concat!($($load_sums)*, load_parameters!($scales), $lines!(begin_cell))
    };
}

/// Begins the next block, whose scales go to `$next`, and ends the one before, with scales in `$scales`, of so
/// many pairs of strips.
macro_rules! next {
    ($pairs:tt $lines:ident $scales:ident $next:ident, $($load_sums:tt)*) => {
        concat!(
            $($load_sums)*,
            load_parameters!($next),
            $lines!(add_zeros),
            "sub v", r!($scales), ".16b, v", r!($scales), ".16b, v", r!($next), ".16b\n",
            make_steps!($pairs $scales),
            $lines!(end_block),
        )
    };
}

/// Ends the last block of a group.
macro_rules! last {
    ($pairs:tt $lines:ident $scales:ident) => {
        concat!(make_steps!($pairs $scales), $lines!(end_cell))
    };
}

/// Defines what tiles begin an activation group with, and end blocks with, where no register keeps a block's
/// scales: they are loaded twice.
macro_rules! ends_of_blocks {
    ($begin:ident $next:ident $last:ident: $pairs:tt $lines:ident $($load_sums:tt)*) => {
        macro_rules! $begin {
            () => {
                begin!($lines next_scales, $($load_sums)*)
            };
        }

        macro_rules! $next {
            ($parity:ident) => {
                concat!(load_scales!(), next!($pairs $lines scales next_scales, $($load_sums)*))
            };
        }

        macro_rules! $last {
            ($parity:ident) => {
                concat!(load_scales!(), last!($pairs $lines scales))
            };
        }
    };
}

/// Subtracts four totals times scales of rows from the results at `out`, which then goes on by so much.
macro_rules! add_4 {
    ([$($step:literal)?] $a:ident $a_scales:ident $i:literal, $b:ident $b_scales:ident $j:literal,
     $c:ident $c_scales:ident $k:literal, $d:ident $d_scales:ident $l:literal) => {
        concat!(
            load_4!("4s" y0 y1 y2 y3, "out"),
            floats_by_lane!("fmls" y0 $a $a_scales $i),
            floats_by_lane!("fmls" y1 $b $b_scales $j),
            floats_by_lane!("fmls" y2 $c $c_scales $k),
            floats_by_lane!("fmls" y3 $d $d_scales $l),
            store_4!(y0 y1 y2 y3, "out" $(, $step)?),
        )
    };
}

/// Adds two rows' results to the output.
macro_rules! add_2 {
    ([$step:literal] $a:ident $a_scales:ident $i:literal, $b:ident $b_scales:ident $j:literal) => {
        concat!(
            load_out!(y0 y1 0),
            floats_by_lane!("fmls" y0 $a $a_scales $i),
            floats_by_lane!("fmls" y1 $b $b_scales $j),
            "stp q", r!(y0), ", q", r!(y1), ", [{out}], ", $step, "\n",
        )
    };
}

/// A kernel for tiles of `$rows` rows that takes `$pairs` pairs of strips at once. `$products` takes a block,
/// `$begin` begins an activation group with its first block's zeros, `$next` begins a block and ends the one
/// before, `$last` ends the last, and `$add_out` the group.
macro_rules! gemm_few {
    ($name:ident: $rows:literal by $pairs:literal, $($macros:ident)*) => {
        /// One tile by a panel.
        #[target_feature(enable = "neon,dotprod")]
        pub(in super::super) fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            gemm_few_groups!(of_1: $rows by $pairs, one_block 1, $($macros)*);
            gemm_few_groups!(of_any: $rows by $pairs, any_blocks 1.., $($macros)*);
            match x.blocks() {
                1 => of_1(panel, x, out),
                _ => of_any(panel, x, out),
            }
        }
    };
}

/// Instance for activation groups of the given numbers of blocks.
macro_rules! gemm_few_groups {
    ($name:ident: $rows:literal by $pairs:literal, $group:ident $lengths:pat,
     $begin:ident $products:ident $next:ident $last:ident $add_out:ident) => {
        #[target_feature(enable = "neon,dotprod")]
        fn $name(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
            let (n, steps) = (x.scales.len() / $rows, x.blocks());
            let mut totals = MaybeUninit::<[i32; 32]>::uninit();
            assert!(n != 0);
            assert!(matches!(steps, $lengths));
            assert!(x.scales.len().is_multiple_of($rows));
            assert_eq!(panel.len(), n * steps * PANEL_BLOCK);
            assert!(x.q.len() >= n * steps * BLOCK * $rows);
            assert!(x.sums.len() >= n * steps * $rows);
            assert_eq!(out.len(), $rows * NR);
            const { assert!(matches!($pairs, 1 | 2)) };
            // SAFETY: for each of two pairs of strips, one or both at once, and `n` activation groups this reads
            // a scale of each row, and reads and writes eight floats of it in `out`; for each of its `steps`
            // blocks it reads the pair's codes and parameters, which end inside the block where those of the
            // other pair are read beside them, and of each row 32 bytes of `x` and a sum. So many were found to
            // be there. Of `totals` it reads what it wrote. Everything else is registers that are named.
            unsafe {
                asm!(
                    make_mask!(),
                    "6:",
                    "mov {n}, {n_all}",
                    "mov {x}, {x_first}",
                    "mov {sums}, {sums_first}",
                    "mov {scales}, {scales_first}",
                    "add {parameters}, {panel}, {pair}, lsl #2",
                    "add {w}, {panel}, {pair}, lsl #7",
                    "add {w}, {w}, #32",
                    "add {second_w}, {w}, #128",
                    "4:",
                    $begin!(),
                    $group!($products $next $last),
                    $add_out!(),
                    "subs {n}, {n}, #1",
                    "b.ne 4b",
                    "add {out}, {out}, {out_pairs}",
                    concat!("add {pair}, {pair}, #", $pairs),
                    "cmp {pair}, #2",
                    "b.ne 6b",
                    "// {steps} {step} {totals} {to_first}",
                    panel = in(reg) panel.as_ptr(), x_first = in(reg) x.q.as_ptr(),
                    sums_first = in(reg) x.sums.as_ptr(), scales_first = in(reg) x.scales.as_ptr(),
                    parameters = out(reg) _, w = out(reg) _, second_w = out(reg) _, x = out(reg) _,
                    sums = out(reg) _, scales = out(reg) _, out = inout(reg) out.as_mut_ptr() => _,
                    pair = inout(reg) 0_usize => _, n_all = in(reg) n, n = out(reg) _,
                    steps = in(reg) steps, step = out(reg) _, totals = in(reg) totals.as_mut_ptr(),
                    panel_block = const PANEL_BLOCK,
                    // From a pair's second half to the first of its next block.
                    to_next = in(reg) PANEL_BLOCK - 64,
                    // From the last results of the pairs to the first.
                    to_first = in(reg) 64_isize - 32 * $rows * $pairs, out_pairs = const 32 * $rows * $pairs,
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

/// Calls a macro with a cell's registers, where its totals are, and what else it takes. A file's `own_cell!` has the
/// cells whose totals are not in the same place in all tiles.
macro_rules! cell {
    (0 $line:ident $($rest:tt)*) => {
        $line!(low0 bytes0 [low_total0 high_total0], $($rest)*)
    };
    (1 $line:ident $($rest:tt)*) => {
        $line!(low1 bytes1 [low_total1 high_total1], $($rest)*)
    };
    (2 $line:ident $($rest:tt)*) => {
        $line!(low2 bytes2 [low_total2 high_total2], $($rest)*)
    };
    (3 $line:ident $($rest:tt)*) => {
        $line!(low3 bytes3 [low_total3 high_total3], $($rest)*)
    };
    ($($own:tt)*) => {
        own_cell!($($own)*)
    };
}

mod eight;
mod six;

pub(super) use eight::{gemm_q8_b2_f32_7x16c4, gemm_q8_b2_f32_8x16c4};
pub(super) use six::{
    gemm_q8_b2_f32_2x16c4, gemm_q8_b2_f32_3x16c4, gemm_q8_b2_f32_4x16c4, gemm_q8_b2_f32_5x16c4,
    gemm_q8_b2_f32_6x16c4, gemv_q8_b2_f32_1x16c4,
};
