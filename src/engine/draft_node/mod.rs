//! Drafts from a smaller model on another board, which has cores free for it: see [`crate::wire::draft`].
//!
//! - [`node`]: the board with the smaller model. It keeps the KV of each text, and drafts further while no
//!   message arrives.
//! - [`master`]: the board that generates texts. A separate thread talks with the node. `guesses` is shared by
//!   that thread and the engine's, so that the engine never waits.
//! - `caller` and `session`: both sides of the protocol, as state machines without sockets, threads and clocks. The
//!   simulation runs them.
//! - `vocabulary`: whether both boards know the same tokens.

pub(crate) mod caller;
mod error;
pub(crate) mod guesses;
pub mod master;
pub mod node;
pub(crate) mod session;
#[cfg(all(test, feature = "demo"))]
mod tests;
pub(crate) mod vocabulary;

pub use caller::TellLoss;
pub use error::DraftNodeError;

/// Default TCP port of a draft node. It differs from the ports of a ring's boards, because one board can be
/// both.
pub const PORT_DEFAULT: u16 = 9997;
