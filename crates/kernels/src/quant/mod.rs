//! Values of the bytes of quantised weights and activations, in plain scalar code.
//!
//! Nothing here is fast. This module defines the formats; `kernels` computes with them and `export` writes them.

pub mod bcml1;
pub mod bcml2;
pub mod bcml6;
pub mod f16;
#[cfg(feature = "tools")]
pub mod feedback;
pub mod ggml;
#[cfg(feature = "tools")]
pub mod products;
mod q8;
#[cfg(any(test, feature = "testing"))]
pub mod random;
mod rows;

pub use bcml1::Bcml1Matrix;
pub use bcml2::Bcml2Matrix;
pub use bcml6::Bcml6Matrix;
pub use ggml::{Ggml, GgmlMatrix};
pub use q8::{
    GROUP_DEFAULT, GROUP_MAX, GROUP_MIN, Q8Activations, Q8Matrix, Q8Row, QuantError, dequantize,
    group_size_for, quantize, quantize_group,
};
pub use rows::{STEP_BYTES, StepMatrix, row_bytes};
