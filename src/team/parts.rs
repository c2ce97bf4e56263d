//! Rows that are gathered, and each node's part of them.

use std::ops::Range;

/// A node's columns of rows: ranges of bytes of a row, which may be empty.
pub type Part = Vec<Range<usize>>;

/// Rows whose columns are spread over the nodes.
#[derive(Debug)]
pub struct Gathered<'a> {
    /// The rows, `[m, row_bytes]`: this node's columns are filled, those of the others will be.
    pub bytes: &'a mut [u8],
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Each node's columns.
    pub parts: &'a [Part],
    /// The nodes that get the parts.
    pub to: To,
}

/// Which nodes get what all nodes computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// All nodes.
    All,
    /// The lead alone; members only send.
    Lead,
}

/// Position in the rows of byte `at` of a part, and the number of the part's bytes from there on.
fn place(columns: &[Range<usize>], row_bytes: usize, at: usize) -> (usize, usize) {
    let width: usize = columns.iter().map(ExactSizeIterator::len).sum();
    let (row, mut column) = (at / width * row_bytes, at % width);
    for range in columns {
        if column < range.len() {
            return (row + range.start + column, range.len() - column);
        }
        column -= range.len();
    }
    unreachable!("the remainder is less than the sum")
}

/// Copies the part `columns` of the rows, from its byte `at`, to `out`.
pub(super) fn pack(
    rows: &[u8],
    row_bytes: usize,
    columns: &[Range<usize>],
    at: usize,
    out: &mut [u8],
) {
    let (mut at, mut out) = (at, out);
    while !out.is_empty() {
        let (start, n) = place(columns, row_bytes, at);
        let (piece, rest) = out.split_at_mut(n.min(out.len()));
        piece.copy_from_slice(&rows[start..start + piece.len()]);
        (at, out) = (at + piece.len(), rest);
    }
}

/// Copies `bytes` to the part `columns` of the rows, from its byte `at`.
pub(super) fn unpack(
    bytes: &[u8],
    at: usize,
    row_bytes: usize,
    columns: &[Range<usize>],
    rows: &mut [u8],
) {
    let (mut at, mut bytes) = (at, bytes);
    while !bytes.is_empty() {
        let (start, n) = place(columns, row_bytes, at);
        let (piece, rest) = bytes.split_at(n.min(bytes.len()));
        rows[start..start + piece.len()].copy_from_slice(piece);
        (at, bytes) = (at + piece.len(), rest);
    }
}
