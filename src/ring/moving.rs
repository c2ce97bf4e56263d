//! KV of moved layers, on its way to the nodes that have these layers now.

use super::{Link, Rows, Sizes};
use crate::group::Broken;
use crate::wire::frame::{self, HEADER_LEN, KvPiece, NodeLine, Streams};
use crate::wire::hello::Name;

/// Most bytes of keys and values in a frame.
pub(super) const KV_BYTES: usize = 32 << 10;

/// A master's record of moves, under way and done.
#[derive(Default)]
pub(super) struct Moves {
    /// Which nodes have what the epoch before left, while nothing was computed since.
    pub(super) earlier: Option<Earlier>,
    /// Since when no batch is begun, as the nodes are to get other layers.
    pub(super) held_us: Option<u64>,
    /// Whether all nodes know that the move of this epoch is over; `None` if there was none.
    pub(super) all_moved: Option<bool>,
}

/// The nodes with layers of an epoch that is over, all of whose batches have been round.
pub(super) struct Earlier {
    epoch: u32,
    nodes: Vec<Name>,
}

impl Earlier {
    /// The epoch of these nodes.
    pub(super) fn new(epoch: u32, lines: &[NodeLine]) -> Earlier {
        let with_layers = lines.iter().filter(|line| !line.layers.is_empty());
        Earlier { epoch, nodes: with_layers.map(|line| line.name.clone()).collect() }
    }

    /// The epoch.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether the nodes of these lines include all nodes with KV. Nodes of one name cannot be told apart:
    /// all of them have to have it.
    pub(super) fn is_kept_by(&self, lines: &[NodeLine]) -> bool {
        let mut same = lines.iter().filter(|line| self.nodes.contains(&line.name));
        same.clone().count() == self.nodes.len()
            && same.all(|line| line.streams == Streams::Kept)
            && lines.iter().all(|line| line.streams != Streams::Untold)
    }
}

/// Sends what this node's former layers have stored, then MOVED; `false` if it has to wait.
pub(super) fn send(epoch: u32, link: &mut impl Link, rows: &mut impl Rows) -> bool {
    loop {
        let Some(out) = link.reserve() else { return false };
        let end = out.len().min(HEADER_LEN + KV_BYTES);
        let piece = rows.give_kv(&mut out[HEADER_LEN..end]);
        let bytes = match piece {
            Some(piece) => frame::emit_kv(epoch, piece, out),
            None => frame::emit_moved(epoch, false, out),
        };
        link.commit(bytes.expect("what was written fits the frame"));
        if piece.is_none() {
            return true;
        }
    }
}

/// Stores a piece; `true` if it is another node's.
pub(super) fn take(
    piece: &KvPiece,
    bytes: &[u8],
    (sizes, n_layers): (&Sizes, u32),
    rows: &mut impl Rows,
) -> Result<bool, Broken> {
    match rows.take_kv(piece, bytes, sizes) {
        Some(true) => Ok(false),
        None if piece.layer < n_layers && bytes.len() <= KV_BYTES => Ok(true),
        _ => Err(Broken("keys and values without a place")),
    }
}

/// Sends a piece on as it came; `false` if it has to wait, and those behind it.
pub(super) fn forward(frame: &[u8], link: &mut impl Link) -> bool {
    match link.reserve().and_then(|out| out.get_mut(..frame.len())) {
        Some(out) => {
            out.copy_from_slice(frame);
            link.commit(frame.len());
            true
        }
        None => {
            link.leave();
            false
        }
    }
}
