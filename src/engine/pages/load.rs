//! Pages that are filled from elsewhere, for texts that go on from them.

use super::{Held, NONE, Pages};
use crate::model::{KV_PAGE, PagePair};

/// A page of layers with a window that a path needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum WindowNeeded {
    /// The page of that number in the path has it.
    There(usize),
    /// This page is to be filled.
    Empty(usize, u32),
}

impl Pages {
    /// Holds the full and computed pages of `ids`, which are the beginning of a long text or not.
    pub(in crate::engine) fn hold_path(&mut self, ids: &[u32], is_long: bool) -> Held {
        let mut path = Held { is_long, ..Held::default() };
        self.descend(&mut path, ids);
        path.nodes.iter().for_each(|node| self.hold(*node));
        path.window_from = usize::MAX;
        path
    }

    /// How many full pages of `ids`, a long text or not, there are.
    pub(in crate::engine) fn n_whole(&self, ids: &[u32], is_long: bool) -> usize {
        let mut path = Held { is_long, ..Held::default() };
        self.descend(&mut path, ids);
        path.n_shared
    }

    /// How many of `ids`, which follow a path, there are.
    pub(in crate::engine) fn n_after(&self, path: &Held, ids: &[u32]) -> usize {
        self.best_child(path.parent(), ids).map_or(0, |(_, common)| common)
    }

    /// An empty page at the end of a path, if there is one.
    pub(in crate::engine) fn add_page(&mut self, path: &mut Held) -> Option<u32> {
        let node = self.take_page()?;
        self.hold(node);
        path.nodes.push(node);
        Some(node)
    }

    /// Adds the last page of a path, with a page for layers with a window if the model has such layers. No
    /// full page may be added after it.
    pub(in crate::engine) fn add_last(&mut self, path: &mut Held) -> Option<PagePair> {
        let node = self.take()?;
        path.window_from = path.nodes.len();
        path.nodes.push(node);
        Some(self.pair_of(node))
    }

    /// The page that was added last could not be filled.
    pub(in crate::engine) fn drop_last(&mut self, path: &mut Held) {
        let Some(node) = path.nodes.pop() else { return };
        if path.window_from == path.nodes.len() {
            self.unuse_window(node);
            path.window_from = usize::MAX;
        }
        self.unuse(node);
        self.drop_page(node);
    }

    /// The page that was added last is full: with it the path has `ids`.
    pub(in crate::engine) fn end_page(&mut self, path: &mut Held, ids: &[u32]) {
        self.share(path, ids);
    }

    /// The next page backwards in the window of a path's end. It is held from then on. `None` if there are no
    /// more, or none is free.
    pub(in crate::engine) fn next_window(&mut self, path: &mut Held) -> Option<WindowNeeded> {
        self.window?;
        let index = path.window_from.min(path.nodes.len()).checked_sub(1)?;
        if index < self.window_start(path.n_shared * KV_PAGE) {
            return None;
        }
        let node = path.nodes[index];
        let is_there = self.nodes[node as usize].window != NONE;
        if !is_there {
            self.nodes[node as usize].window = self.free_window()?;
        }
        self.hold_window(node);
        path.window_from = index;
        Some(match is_there {
            true => WindowNeeded::There(index),
            false => WindowNeeded::Empty(index, self.nodes[node as usize].window),
        })
    }

    /// Drops the page that [`Pages::next_window`] gave last: it could not be filled if it `is_empty`, or one
    /// behind it could not.
    pub(in crate::engine) fn drop_window(&mut self, path: &mut Held, is_empty: bool) {
        let node = path.nodes[path.window_from];
        path.window_from += 1;
        self.unuse_window(node);
        if !is_empty {
            return;
        }
        let window = std::mem::replace(&mut self.nodes[node as usize].window, NONE);
        self.free_windows.push(window);
    }
}
