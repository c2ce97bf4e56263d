//! Tiles of two to six rows, which take 4-bit weights as they are packed, two strips at a time.
//!
//! Each row has, for a strip of the first kind, a sum of low codes, `L`, and for the other strip a sum of bytes
//! as they are, `B = L + 16 * Σ (code - 8) * q`. Both are floats by their bits. So `B - L` is exact, and
//! with 128 times the sum of activations it is 16 times the high codes' sum; the other
//! strip's steps are a sixteenth. All of these are integers below 2^24.

/// Four columns of two strips: each row's sums, a register and a lane of its activations.
macro_rules! four_columns {
    ($byte:ident: $($bytes:ident $low:ident $x:ident $lane:literal),*) => {
        concat!(
            "and v", r!(code), ".16b, v", r!($byte), ".16b, v", r!(mask), ".16b\n",
            $(sdot!($bytes $byte $x $lane),)*
            $(sdot!($low code $x $lane),)*
        )
    };
}

macro_rules! copy {
    ($to:ident $from:ident) => {
        concat!("mov v", r!($to), ".16b, v", r!($from), ".16b\n")
    };
}

/// Makes a row's sums zero, and its totals what the first block's offsets add.
macro_rules! begin_row {
    (, $low:ident $bytes:ident, [$low_total:ident $high_total:ident],
     $running:ident $x_sums:ident $lane:literal) => {
        concat!(
            copy!($low zero),
            copy!($bytes zero),
            floats_by_lane!("fmul" $low_total low_offsets $running $lane),
            floats_by_lane!("fmul" $high_total high_offsets $running $lane),
        )
    };
}

/// A row's sums of products at the end of a block.
macro_rules! dots {
    ($low:ident $bytes:ident, $running:ident $lane:literal) => {
        concat!(
            floats!("fsub" low_dot $low zero),
            floats!("fsub" high_dot $bytes $low),
            floats_by_lane!("fmla" high_dot c128 $running $lane),
        )
    };
}

/// Adds them to a row's totals, and what the next block's offsets add.
macro_rules! next_row {
    ($low_steps:ident $high_steps:ident, $low:ident $bytes:ident, [$low_total:ident $high_total:ident],
     $running:ident $x_sums:ident $lane:literal) => {
        concat!(
            dots!($low $bytes, $running $lane),
            floats!("fmla" $low_total low_dot $low_steps),
            floats!("fmla" $high_total high_dot $high_steps),
            floats_by_lane!("fmla" $low_total low_offsets $x_sums $lane),
            floats_by_lane!("fmla" $high_total high_offsets $x_sums $lane),
        )
    };
}

/// Ends a row after the last block.
macro_rules! last_row {
    ($low_steps:ident $high_steps:ident, $low:ident $bytes:ident, [$low_total:ident $high_total:ident],
     $running:ident $x_sums:ident $lane:literal) => {
        concat!(
            dots!($low $bytes, $running $lane),
            floats!("fmla" $low_total low_dot $low_steps),
            floats!("fmla" $high_total high_dot $high_steps),
        )
    };
}

/// Copies a number that is an operand to each lane.
macro_rules! fill {
    ($to:ident $from:literal) => {
        concat!("dup v", r!($to), ".4s, {", $from, ":w}\n")
    };
}

mod four;
mod six;

pub(super) use four::{gemm_q8_q4_f32_2x16c4, gemm_q8_q4_f32_3x16c4, gemm_q8_q4_f32_4x16c4};
pub(super) use six::{gemm_q8_q4_f32_5x16c4, gemm_q8_q4_f32_6x16c4};
