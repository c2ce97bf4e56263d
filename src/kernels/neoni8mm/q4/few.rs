//! Tiles of two to eight rows, which take 4-bit weights as they are packed.

/// Takes two vectors of bytes apart: low codes go to their own registers.
macro_rules! split {
    ($a:ident $b:ident) => {
        concat!(
            low_codes!(code0 $a), low_codes!(code1 $b), high_codes!($a), high_codes!($b),
        )
    };
}

macro_rules! low_codes {
    ($code:ident $byte:ident) => {
        concat!("and v", r!($code), ".16b, v", r!($byte), ".16b, v", r!(mask), ".16b\n")
    };
}

macro_rules! high_codes {
    ($byte:ident) => {
        concat!("ushr v", r!($byte), ".16b, v", r!($byte), ".16b, #4\n")
    };
}

/// Fills the register that stays as it is.
macro_rules! constants {
    () => {
        concat!("movi v", r!(mask), ".16b, #15\n")
    };
}

mod eight;
mod four;

pub(super) use eight::{
    gemm_q8_q4_f32_3x16c8, gemm_q8_q4_f32_5x16c8, gemm_q8_q4_f32_6x16c8, gemm_q8_q4_f32_7x16c8,
    gemm_q8_q4_f32_8x16c8,
};
pub(super) use four::{gemm_q8_q4_f32_2x16c8, gemm_q8_q4_f32_4x16c8};
