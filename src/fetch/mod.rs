//! A board gets its layers of a model from another board, over a connection that the ring's key seals:
//! see [`crate::wire::give`].
//!
//! - [`giver`]: offers the layers of one model file to any number of boards.
//! - [`taker`]: gets them piece by piece into a file of its own. An interrupted fetch continues: pieces that
//!   are there already are compared by their hashes, and not sent again.
//! - `kept`: pieces that the board has in files of other layers or rows: they are compared in the same way.
//! - `content`: the bytes that are given.

mod content;
pub(crate) mod giver;
mod kept;
mod partial;
pub(crate) mod taker;
#[cfg(test)]
mod tests;
