#![allow(unsafe_code)]
//! LEAP's calls to the operating system: the date, cores, memory, maps, files that appear whole, signals,
//! sockets, network devices, power sensors, the service manager and its sockets.
//!
//! All `libc` and `nix` calls of the crate are here. Nothing in this layer knows what its
//! callers are for.

pub mod activation;
mod cgroup;
pub mod child;
pub mod clock;
pub mod clocks;
pub mod confined;
pub mod cpu;
pub mod crc;
pub mod file;
pub mod folders;
pub mod heap;
pub mod heat;
pub mod huge;
#[cfg(feature = "gpu")]
pub mod library;
pub mod map;
pub mod memory;
pub mod net;
pub mod nic;
pub mod notify;
pub mod poll;
pub mod power;
pub mod random;
pub mod signal;
pub mod simd;
pub mod tensor;
pub mod tree;
