//! Pages of models with recurrent layers: a text can be continued only where a checkpoint of its state is.

use super::checkpoints::Found;
use super::{Held, PageCopy, Pages};
use crate::model::KV_PAGE;

impl Pages {
    /// A checkpoint for a stream to write, which then holds it; `None` if streams hold all.
    pub(in crate::engine) fn take_checkpoint(&mut self) -> Option<u32> {
        self.checkpoints.take()
    }

    /// Notes that a stream has written a checkpoint behind its first `pos` ids, and holds it no longer.
    pub(in crate::engine) fn end_checkpoint(&mut self, held: &Held, index: u32, pos: usize) {
        let (page, len) = place(pos);
        if let Some(node) = held.nodes.get(page) {
            self.checkpoints.put(index, *node, len);
        }
        self.drop_checkpoint(index);
    }

    /// The checkpoint behind a stream's first `pos` ids, if there is one.
    pub(in crate::engine) fn checkpoint_at(&self, held: &Held, pos: usize) -> Option<u32> {
        let (page, len) = place(pos);
        self.checkpoints.find(*held.nodes.get(page)?, len)
    }

    /// Whether texts can be continued only where a checkpoint is.
    pub(in crate::engine) fn has_checkpoints(&self) -> bool {
        !self.checkpoints.is_empty()
    }

    /// How many of `ids` come before their last checkpoint. `is_long` tells whether they begin a long text.
    pub(in crate::engine) fn n_before_checkpoint(&self, ids: &[u32], is_long: bool) -> usize {
        let mut path = Held { is_long, ..Held::default() };
        self.descend(&mut path, ids);
        self.last_checkpoint(&path, ids).map_or(0, |(pos, _)| pos)
    }

    /// Notes that a checkpoint was filled with the state behind `ids`, and is held no longer. `path` has the full pages
    /// of `ids`, and may have the last one. Another page of the tree may begin with the rest of `ids`.
    pub(in crate::engine) fn end_loaded(&mut self, path: &Held, ids: &[u32], index: u32) {
        let (page, len) = place(ids.len());
        let of_path = path.nodes.get(page).copied();
        let of_tree = || {
            let (node, common) = self.best_child(path.parent(), &ids[page * KV_PAGE..])?;
            (common == len).then_some(node)
        };
        if let Some(node) = of_path.or_else(of_tree) {
            self.checkpoints.put(index, node, len);
        }
        self.drop_checkpoint(index);
    }

    /// Notes that a stream does not hold a checkpoint any longer.
    pub(in crate::engine) fn drop_checkpoint(&mut self, index: u32) {
        self.now += 1;
        self.checkpoints.release(index, self.now);
    }

    /// Adopts like [`Pages::adopt`]. Also returns the checkpoint to continue from, which the stream then holds.
    pub(super) fn adopt_with_state(
        &mut self,
        held: &mut Held,
        ids: &[u32],
    ) -> (usize, Option<PageCopy>, Option<u32>) {
        self.descend(held, ids);
        let Some((pos, Found { index, node, .. })) = self.last_checkpoint(held, ids) else {
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
        self.checkpoints.hold(index);
        (pos, copy, Some(index))
    }

    /// The last checkpoint on the path of `ids`, whose full pages `held` lists, and the number of ids before it.
    fn last_checkpoint(&self, held: &Held, ids: &[u32]) -> Option<(usize, Found)> {
        let (n_whole, rest) = (held.nodes.len(), &ids[held.room()..]);
        let page_of = |found: &Found| {
            let page = held.nodes.iter().position(|node| *node == found.node);
            // It may be the page behind the full ones.
            let is_next = || {
                self.nodes[found.node as usize].parent == held.parent()
                    && self.common(found.node, rest) >= found.len
            };
            page.or_else(|| is_next().then_some(n_whole))
        };
        let all = self.checkpoints.all();
        let places = all.filter_map(|found| Some((page_of(&found)? * KV_PAGE + found.len, found)));
        places.max_by_key(|(pos, _)| *pos)
    }
}

/// Index of the page before a state behind `pos` ids, and how many of the ids are in that page.
fn place(pos: usize) -> (usize, usize) {
    ((pos - 1) / KV_PAGE, (pos - 1) % KV_PAGE + 1)
}
