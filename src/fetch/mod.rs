//! A board gets its layers of a model from another board, over a connection that the ring's key seals:
//! see [`crate::wire::give`].
//!
//! - [`giver`]: offers the layers of one model file to any number of boards.
//! - [`taker`]: gets them into a file of its own. An interrupted fetch continues: pieces that are there already are
//!   compared by their hashes, and not sent again.
//! - `download`: brings the pieces, over several connections where one is slow (`lane`). `pieces` says which connection
//!   requests which piece.
//! - `here`: finds pieces that the board has already: in the unfinished file, or in files of other layers or rows
//!   (`kept`).
//! - `content`: the bytes that are given.

mod content;
mod download;
mod error;
pub(crate) mod giver;
mod here;
mod kept;
mod lane;
mod partial;
mod pieces;
pub(crate) mod taker;
#[cfg(test)]
mod tests;
