//! A simulated draft node and a master that has it draft: the real machines over connections with faults, and a
//! stand-in for both models.
//!
//! Drafts must be those that the node's model makes after the text, whatever happens on the way. Texts must be the
//! same as without drafts, and must not take longer than the waits for drafts that the engine allows.

mod boards;
mod models;
mod scenario;
mod texts;
mod wires;
