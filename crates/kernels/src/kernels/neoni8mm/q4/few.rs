//! Tiles of two to eight rows, which take 4-bit weights as they are packed.

mod eight;
mod four;

pub(super) use eight::{
    gemm_q8_q4_f32_3x16c8, gemm_q8_q4_f32_5x16c8, gemm_q8_q4_f32_6x16c8, gemm_q8_q4_f32_7x16c8,
    gemm_q8_q4_f32_8x16c8,
};
pub(super) use four::{gemm_q8_q4_f32_2x16c8, gemm_q8_q4_f32_4x16c8};
