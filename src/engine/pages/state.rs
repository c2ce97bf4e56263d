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
        let (page, len) = ((pos - 1) / KV_PAGE, (pos - 1) % KV_PAGE + 1);
        if let Some(node) = held.nodes.get(page) {
            self.checkpoints.put(index, *node, len);
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
