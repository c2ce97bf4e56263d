//! Bits that are the same on every tier, in every batch, and in every split of a model's layers.

#[path = "../common/mod.rs"]
mod common;
mod device;
mod golden;
#[cfg(feature = "pickle")]
mod next;
mod ring;
#[cfg(feature = "pickle")]
mod turns;
#[cfg(feature = "pickle")]
mod wanted;
