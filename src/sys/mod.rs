//! Everything that asks the operating system.

pub mod file;
