//! Checkpoints: states of recurrent layers, each kept behind some ids of a page.
//!
//! A text of such a model can be continued only where a checkpoint is. A checkpoint belongs to a node of the tree and
//! goes with it. The least recently used one makes room for a new one.

use super::{Held, NONE, PageCopy, Pages};
use crate::model::KV_PAGE;

/// One checkpoint, whose number is its index.
#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    /// Node of the page that the state follows, or [`NONE`].
    node: u32,
    /// Ids of the page before the state, 1 to [`KV_PAGE`].
    len: usize,
    /// Number of streams that hold it: they write it, or will continue from it.
    users: u32,
    /// When it was last used.
    since: u64,
}

/// All checkpoints; none if the model has no recurrent layers.
#[derive(Debug)]
pub(super) struct Checkpoints(Vec<Checkpoint>);

/// Where a text can be continued.
#[derive(Clone, Copy, Debug)]
struct Place {
    checkpoint: usize,
    /// Ids before it.
    pos: usize,
    /// Node of the page that it lies in.
    node: u32,
}

impl Checkpoints {
    pub(super) fn new(n: usize) -> Checkpoints {
        Checkpoints(vec![Checkpoint { node: NONE, len: 0, users: 0, since: 0 }; n])
    }

    pub(super) fn forget(&mut self) {
        *self = Checkpoints::new(self.0.len());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the checkpoints of `node`, whose page is freed. A stream may still hold their states.
    pub(super) fn leave(&mut self, node: u32) {
        let of_node = self.0.iter_mut().filter(|checkpoint| checkpoint.node == node);
        of_node.for_each(|checkpoint| checkpoint.node = NONE);
    }

    /// Moves the checkpoints of a page to another that begins with the same ids.
    pub(super) fn change_node(&mut self, from: u32, to: u32) {
        for index in 0..self.0.len() {
            let Checkpoint { node, len, .. } = self.0[index];
            if node == from {
                let is_there = self.find(to, len).is_some();
                self.0[index].node = if is_there { NONE } else { to };
            }
        }
    }

    /// The checkpoint behind `len` ids of `node`.
    fn find(&self, node: u32, len: usize) -> Option<usize> {
        self.0.iter().position(|checkpoint| (checkpoint.node, checkpoint.len) == (node, len))
    }
}

impl Pages {
    /// A checkpoint for a stream to write, which then holds it; `None` if others hold all.
    pub(in crate::engine) fn take_checkpoint(&mut self) -> Option<u32> {
        let all = &mut self.checkpoints.0;
        let unused = all.iter_mut().enumerate().filter(|(_, checkpoint)| checkpoint.users == 0);
        // Those without a page come first.
        let (index, oldest) =
            unused.min_by_key(|(_, checkpoint)| (checkpoint.node != NONE, checkpoint.since))?;
        (oldest.node, oldest.users) = (NONE, 1);
        Some(index as u32)
    }

    /// Notes that a stream has written a checkpoint behind its first `pos` ids, and holds it no longer.
    pub(in crate::engine) fn end_checkpoint(&mut self, held: &Held, index: u32, pos: usize) {
        let (page, len) = ((pos - 1) / KV_PAGE, (pos - 1) % KV_PAGE + 1);
        let node = held.nodes.get(page).copied();
        let node = node.filter(|node| self.checkpoints.find(*node, len).is_none());
        self.now += 1;
        let one = &mut self.checkpoints.0[index as usize];
        (one.node, one.len, one.since) = (node.unwrap_or(NONE), len, self.now);
        one.users -= 1;
    }

    /// Notes that a stream does not need a checkpoint any longer.
    pub(in crate::engine) fn drop_checkpoint(&mut self, index: u32) {
        self.now += 1;
        let one = &mut self.checkpoints.0[index as usize];
        one.since = self.now;
        one.users -= 1;
    }

    /// Like [`Pages::adopt`], in a model with recurrent layers. Also returns the checkpoint to continue from, which the
    /// stream then holds.
    pub(super) fn adopt_with_state(
        &mut self,
        held: &mut Held,
        ids: &[u32],
    ) -> (usize, Option<PageCopy>, Option<u32>) {
        self.descend(held, ids);
        let Some(Place { checkpoint, pos, node }) = self.last_place(held, ids) else {
            held.forget();
            return (0, None, None);
        };
        let n_whole = pos / KV_PAGE;
        held.nodes.truncate(n_whole);
        held.n_shared = n_whole;
        (0..n_whole).for_each(|index| self.hold(held.nodes[index]));
        let tail = pos % KV_PAGE;
        let copy = if tail == 0 { Ok(None) } else { self.take_tail(held, node, tail) };
        let Ok(copy) = copy else {
            self.release(held, &ids[..n_whole * KV_PAGE]);
            return (0, None, None);
        };
        self.hits += pos as u64;
        self.checkpoints.0[checkpoint].users += 1;
        (pos, copy, Some(checkpoint as u32))
    }

    /// The last checkpoint on the path of `ids`, whose full pages `held` lists.
    fn last_place(&self, held: &Held, ids: &[u32]) -> Option<Place> {
        let path = &ids[held.room()..];
        let places = self.checkpoints.0.iter().enumerate().filter_map(|(index, checkpoint)| {
            let Checkpoint { node, len, .. } = *checkpoint;
            if node == NONE {
                return None;
            }
            let page = match held.nodes.iter().position(|held| *held == node) {
                Some(page) => page,
                // It may be the page behind the full ones.
                None => {
                    let is_next = self.nodes[node as usize].parent == held.parent()
                        && self.common(node, path) >= len;
                    held.nodes.len() + usize::from(!is_next) * ids.len()
                }
            };
            Some(Place { checkpoint: index, pos: page * KV_PAGE + len, node })
        });
        places.filter(|place| place.pos <= ids.len()).max_by_key(|place| place.pos)
    }
}
