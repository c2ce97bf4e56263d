//! Bits that are the same on every tier, in every batch, and however a model's layers are spread.

#[path = "../common/mod.rs"]
mod common;
mod golden;
mod ring;
