//! Pages whose content comes from files, for texts that continue from them.

use super::{Held, NONE, Pages};
use crate::model::{KV_PAGE, PagePair};

/// A window page that a path needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum WindowNeeded {
    /// The node at this index of the path has its window page.
    There(usize),
    /// The node at this index lacked one; the page with this number is to be filled.
    Empty(usize, u32),
}

impl Pages {
    /// Holds the full and computed pages of `ids`. `is_long` tells whether they begin a long text.
    pub(in crate::engine) fn hold_path(&mut self, ids: &[u32], is_long: bool) -> Held {
        let mut path = Held { is_long, ..Held::default() };
        self.descend(&mut path, ids);
        path.nodes.iter().for_each(|node| self.hold(*node));
        path.window_from = usize::MAX;
        path
    }

    /// Number of full pages of `ids` in the tree. `is_long` tells whether they begin a long text.
    pub(in crate::engine) fn n_whole(&self, ids: &[u32], is_long: bool) -> usize {
        let mut path = Held { is_long, ..Held::default() };
        self.descend(&mut path, ids);
        path.n_shared
    }

    /// How many of `ids`, which follow `path`, a next page in the tree holds.
    pub(in crate::engine) fn n_after(&self, path: &Held, ids: &[u32]) -> usize {
        self.best_child(path.parent(), ids).map_or(0, |(_, common)| common)
    }

    /// Adds an empty page at the end of a path; `None` if no page is free.
    pub(in crate::engine) fn add_page(&mut self, path: &mut Held) -> Option<u32> {
        let node = self.take_page()?;
        self.hold(node);
        path.nodes.push(node);
        Some(node)
    }

    /// Adds the last page of a path, with a window page if the model has layers with a window. No full page
    /// may be added after it. `None` if no page is free.
    pub(in crate::engine) fn add_last(&mut self, path: &mut Held) -> Option<PagePair> {
        let node = self.take()?;
        path.window_from = path.nodes.len();
        path.nodes.push(node);
        Some(self.pair_of(node))
    }

    /// Removes the last page of a path, which could not be filled.
    pub(in crate::engine) fn drop_last(&mut self, path: &mut Held) {
        let Some(node) = path.nodes.pop() else { return };
        if path.window_from == path.nodes.len() {
            self.unuse_window(node);
            path.window_from = usize::MAX;
        }
        self.unuse(node);
        self.drop_page(node);
    }

    /// Notes that the page added last is full. The path then has `ids`.
    pub(in crate::engine) fn end_page(&mut self, path: &mut Held, ids: &[u32]) {
        self.share(path, ids);
    }

    /// Takes and holds the next window page of a path, from its end backwards. `None` if the window has no
    /// more, or no page is free.
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

    /// Releases the window page that [`Pages::next_window`] gave last, because it or a later page could not be
    /// filled. With `is_empty` the page has no content and is freed.
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
