//! Drafts of a smaller model on another board, whose cores are free for it: see [`crate::wire::draft`].
//!
//! - [`node`]: that board. It keeps the keys and values of each text, and drafts on while no message comes.
//! - [`master`]: the board that writes texts. A thread of its own talks with the node; `desk` is shared by
//!   that thread and the engine's, so that the engine never waits.
//! - `vocabulary`: whether both know the same tokens.

mod desk;
pub mod master;
pub mod node;
#[cfg(all(test, feature = "demo"))]
mod tests;
mod vocabulary;

/// TCP port on which a draft node listens, unless the user names one. It differs from that of a ring's
/// boards, as one board may be both.
pub const PORT_DEFAULT: u16 = 9997;
