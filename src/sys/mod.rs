//! Everything that asks the operating system: maps, files that appear whole, signals.
//!
//! All `libc` and `nix` calls of the crate are here. Nothing in this layer knows what its
//! callers are for.
#![allow(unsafe_code)]

pub mod file;
pub mod map;
pub mod signal;
