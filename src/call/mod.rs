//! Calls by which a ring gets its boards, without a list of layers: see [`crate::wire::call`].
//!
//! - [`board`]: a board that has nothing but the key, and waits to be called.
//! - [`find`]: how the master finds it if its address is not configured.
//! - [`master`]: calls it, asks for its figures and the way there, and tells it the ring.

pub(crate) mod board;
pub(crate) mod find;
mod holder;
pub(crate) mod master;
#[cfg(test)]
mod tests;
