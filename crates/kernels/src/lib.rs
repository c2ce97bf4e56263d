//! The arithmetic of LEAP: what the bytes of quantised weights mean, and kernels that compute with them on every CPU
//! with the same bits; the choice of a token.
//!
//! A package of LEAP's own, whose interface changes without notice.

pub mod kernels;
pub mod numerics;
pub mod quant;
pub mod sampler;
