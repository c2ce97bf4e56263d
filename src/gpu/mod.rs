//! Layers on a GPU, with the bits of the CPU's kernels, by Vulkan.
//!
//! A GPU computes the last layers of a model, as a [`Device`](crate::model::Device) of a
//! [`Transformer`](crate::model::Transformer). Keys and values have the CPU's format, so pages pass both ways; so do states of
//! recurrent layers.
//!
//! # Exactness
//!
//! Long sums are of integers, so their order does not matter. What is left are short chains of f32, in the order that
//! [`kernels`](crate::kernels) describes. Vulkan promises neither a fused multiply-add nor a correct division, so shaders
//! use `shaders/exact.glsl`, and a [self-test](self_test) at each start compares its operations with the CPU's. A device
//! that gives another bit is not used.
//!
//! # Order
//!
//! Each submission is waited for before the next memory access, so the host and the device never use memory at the same
//! time.

mod commands;
mod device;
mod error;
mod exact;
mod examine;
mod layer;
mod memory;
mod mixture;
mod pass;
mod pipelines;
mod places;
mod record;
mod recurrent;
mod room;
mod self_test;
mod speed;
mod states;
mod support;
mod tensors;
#[cfg(test)]
mod tests;
mod vectors;

pub(crate) use examine::{Examined, examine};
pub(crate) use pass::{Gpu, GpuOptions};
pub(crate) use self_test::Fusing;
