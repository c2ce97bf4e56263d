#![allow(unsafe_code)]
//! What LEAP asks of the operating system; callers above need no `unsafe` and no `libc`.

pub mod cpu;
pub mod memory;
