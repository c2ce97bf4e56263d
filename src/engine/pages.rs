//! The pages of the KV cache: which streams hold them, and which texts idle pages hold.
//!
//! A full page is found by its ids and all ids before them: pages are the nodes of a tree, whose root is the
//! beginning of every text. A stream holds a path of the tree, followed by pages of its own. A page without a
//! holder stays in the tree until its memory is needed; the least recently used one is evicted first. The
//! last page of an ended text is in the tree too, with the ids that it has. A text that continues from there
//! takes or copies it.
//!
//! For layers with a window a node has a second page, its window page, while there is room. A stream holds
//! the window pages inside its window. A text can be continued where all of these exist.

mod checkpoints;
mod load;
mod state;

use self::checkpoints::Checkpoints;
use crate::model::{KV_PAGE, KvPlan, PagePair, WindowPlan};

pub(super) use load::WindowNeeded;

/// No page, or no such node.
const NONE: u32 = u32::MAX;

/// Parent of a text's first page; and of a long text's first page, whose keys differ.
const BEGINNING: u32 = NONE - 1;
const LONG_BEGINNING: u32 = NONE - 2;

/// All pages. A node's number is that of its page for layers without a window.
#[derive(Debug)]
pub(super) struct Pages {
    window: Option<WindowPlan>,
    nodes: Vec<Node>,
    /// Ids of each node, `[n_pages, KV_PAGE]`.
    ids: Vec<u32>,
    /// First of the nodes that begin a text, and of those that begin a long text.
    roots: [u32; 2],
    free: Vec<u32>,
    free_windows: Vec<u32>,
    checkpoints: Checkpoints,
    n_used: usize,
    n_used_windows: usize,
    /// Logical clock that orders pages by when they became idle.
    now: u64,
    /// Total number of ids that streams continued from.
    hits: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    child: u32,
    next: u32,
    /// Ids in the tree; 0 if the node is not in the tree.
    len: usize,
    /// Number of streams that hold the node.
    users: u32,
    /// When the node became idle.
    since: u64,
    /// The node's page for layers with a window, or [`NONE`].
    window: u32,
    /// Number of streams that hold the window page.
    window_users: u32,
    window_since: u64,
}

const UNUSED: Node = Node {
    parent: NONE,
    child: NONE,
    next: NONE,
    len: 0,
    users: 0,
    since: 0,
    window: NONE,
    window_users: 0,
    window_since: 0,
};

/// No page is free for a copy that a stream needs.
struct NoPage;

/// The pages of a stream.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The stream's nodes, from its first position on.
    nodes: Vec<u32>,
    /// How many of `nodes`, from the first on, are in the tree.
    n_shared: usize,
    /// Index of the first node whose window page is held.
    window_from: usize,
    /// Whether the pages are those of a long text, which only other long texts can use.
    pub(super) is_long: bool,
}

/// A copy of a page that begins like a stream's text; the stream continues in the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageCopy {
    pub(super) from: PagePair,
    pub(super) to: PagePair,
}

/// Number of pages, and what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFigures {
    /// All pages.
    pub n_pages: usize,
    /// Pages that streams hold.
    pub n_used: usize,
    /// Pages that no stream holds and that a text can continue from.
    pub n_idle: usize,
    /// Prompt tokens that were not computed because pages held them.
    pub hits: u64,
    /// Tokens of pages that were read from files.
    pub read: u64,
}

impl Held {
    /// Holds nothing, with capacity for `ctx_pages` nodes.
    pub(super) fn with_capacity(ctx_pages: usize) -> Held {
        Held { nodes: Vec::with_capacity(ctx_pages), ..Held::default() }
    }

    /// Forgets all held pages, after [`Pages::forget`].
    pub(super) fn forget(&mut self) {
        self.nodes.clear();
        (self.n_shared, self.window_from) = (0, 0);
    }

    /// Positions that the held pages have room for.
    pub(super) fn room(&self) -> usize {
        self.nodes.len() * KV_PAGE
    }

    /// Number of held pages that are in the tree.
    pub(super) fn n_shared(&self) -> usize {
        self.n_shared
    }

    /// Positions whose keys and values other streams can find.
    pub(super) fn shared_len(&self) -> usize {
        self.n_shared * KV_PAGE
    }
}

impl Pages {
    pub(super) fn new(plan: &KvPlan) -> Pages {
        let n_windows = plan.window.map_or(0, |window| window.n_pages);
        let descending = |n: usize| (0..n as u32).rev().collect();
        Pages {
            window: plan.window,
            nodes: vec![UNUSED; plan.n_pages],
            ids: vec![0; plan.n_pages * KV_PAGE],
            roots: [NONE; 2],
            free: descending(plan.n_pages),
            free_windows: descending(n_windows),
            checkpoints: Checkpoints::new(plan.checkpoints),
            n_used: 0,
            n_used_windows: 0,
            now: 0,
            hits: 0,
        }
    }

    /// Frees all pages: what they held is lost.
    pub(super) fn forget(&mut self) {
        let n_pages = self.nodes.len();
        let n_windows = self.window.map_or(0, |window| window.n_pages);
        self.nodes.fill(UNUSED);
        self.checkpoints.forget();
        self.roots = [NONE; 2];
        (self.n_used, self.n_used_windows) = (0, 0);
        for (free, n) in [(&mut self.free, n_pages), (&mut self.free_windows, n_windows)] {
            free.clear();
            free.extend((0..n as u32).rev());
        }
    }

    pub(super) fn figures(&self) -> PageFigures {
        let (n_pages, n_used) = (self.nodes.len(), self.n_used);
        let n_idle = n_pages - n_used - self.free.len();
        PageFigures { n_pages, n_used, n_idle, hits: self.hits, read: 0 }
    }

    /// The pages of a stream from number `first` on, without window pages that lie behind the window.
    pub(super) fn pairs<'a>(
        &'a self,
        held: &'a Held,
        first: usize,
    ) -> impl Iterator<Item = (usize, PagePair)> + 'a {
        let nodes = held.nodes.iter().enumerate().skip(first);
        nodes.map(|(index, node)| {
            let pair = self.pair_of(*node);
            let window = pair.window.filter(|_| index >= held.window_from);
            (index, PagePair { window, ..pair })
        })
    }

    /// Page `index` of a stream, with its window page unless that was evicted.
    pub(super) fn pair(&self, held: &Held, index: usize) -> Option<PagePair> {
        held.nodes.get(index).map(|node| self.pair_of(*node))
    }

    fn pair_of(&self, node: u32) -> PagePair {
        let window = self.nodes[node as usize].window;
        PagePair { page: node, window: (window != NONE).then_some(window) }
    }

    /// Whether there is room, beside the pages that streams hold, for a text of `len` ids that begins with
    /// `ids`. `is_long` tells whether it is a long text.
    pub(super) fn has_room_for(&self, (ids, is_long): (&[u32], bool), len: usize) -> bool {
        let (mut parent, mut n_shared) = (beginning(is_long), 0);
        for page in ids.chunks_exact(KV_PAGE) {
            match self.best_child(parent, page) {
                Some((node, KV_PAGE)) if self.nodes[node as usize].users > 0 => parent = node,
                _ => break,
            }
            n_shared += 1;
        }
        let n = len.div_ceil(KV_PAGE);
        let has_windows = self
            .window
            .is_none_or(|window| n.min(window.ring_pages) <= window.n_pages - self.n_used_windows);
        has_windows && n - n_shared.min(n) <= self.nodes.len() - self.n_used
    }

    /// Gives a stream, whose first keys and values are those of `ids`, pages for positions up to `end`, or as
    /// many as there are. Returns the index of its first page that has changed.
    pub(super) fn extend(&mut self, held: &mut Held, ids: &[u32], end: usize) -> usize {
        let mut first = self.share(held, ids);
        self.leave_window(held, ids.len());
        first = first.min(held.nodes.len());
        while held.room() < end
            && let Some(node) = self.take()
        {
            held.nodes.push(node);
        }
        first
    }

    /// Adds the full pages of a stream to the tree. Equal pages of the tree replace the stream's own. Returns
    /// the index of the first replaced page.
    fn share(&mut self, held: &mut Held, ids: &[u32]) -> usize {
        let mut first = held.nodes.len();
        while (held.n_shared + 1) * KV_PAGE <= ids.len() {
            let index = held.n_shared;
            let own = held.nodes[index];
            let node = self.link(held.parent(), own, &ids[index * KV_PAGE..][..KV_PAGE]);
            if node != own {
                self.replace(held, index, node);
                first = first.min(index);
            }
            held.n_shared += 1;
        }
        first
    }

    /// Replaces a stream's own page at `index` with `node`, an equal one of the tree.
    fn replace(&mut self, held: &mut Held, index: usize, node: u32) {
        let own = std::mem::replace(&mut held.nodes[index], node);
        self.checkpoints.change_node(own, node);
        self.hold(node);
        if self.window.is_some() && index >= held.window_from {
            if self.nodes[node as usize].window == NONE {
                let from = &mut self.nodes[own as usize];
                let window = std::mem::replace(&mut from.window, NONE);
                from.window_users = 0;
                let to = &mut self.nodes[node as usize];
                (to.window, to.window_users) = (window, 1);
            } else {
                self.hold_window(node);
                self.unuse_window(own);
            }
        }
        self.unuse(own);
        self.drop_page(own);
    }

    /// Makes `node` the child of `parent` with `ids`. Returns it, or the child that has these ids already.
    fn link(&mut self, parent: u32, node: u32, ids: &[u32]) -> u32 {
        let mut child = self.first_child(parent);
        while child != NONE {
            let Node { next, len, users, .. } = self.nodes[child as usize];
            let common = self.common(child, ids);
            if common == ids.len() {
                return child;
            }
            if common == len && users == 0 {
                self.checkpoints.change_node(child, node);
                self.drop_page(child);
            }
            child = next;
        }
        self.ids[node as usize * KV_PAGE..][..ids.len()].copy_from_slice(ids);
        let next = self.first_child(parent);
        let one = &mut self.nodes[node as usize];
        (one.parent, one.next, one.len) = (parent, next, ids.len());
        *self.first_child_mut(parent) = node;
        node
    }

    /// Releases window pages that lie wholly behind the window of the token at `pos`.
    fn leave_window(&mut self, held: &mut Held, pos: usize) {
        let Some(WindowPlan { window, .. }) = self.window else { return };
        let from = ((pos + 1).saturating_sub(window) / KV_PAGE).min(held.nodes.len());
        while held.window_from < from {
            self.unuse_window(held.nodes[held.window_from]);
            held.window_from += 1;
        }
    }

    /// Releases a stream's pages, which hold the KV of `ids`. Other streams can still continue from them.
    pub(super) fn release(&mut self, held: &mut Held, ids: &[u32]) {
        self.share(held, ids);
        let tail = &ids[(held.n_shared * KV_PAGE).min(ids.len())..];
        let linked = match held.nodes.get(held.n_shared) {
            Some(&own) if !tail.is_empty() => {
                let node = self.link(held.parent(), own, tail);
                if node != own {
                    self.checkpoints.change_node(own, node);
                }
                node == own
            }
            _ => false,
        };
        let n_kept = held.n_shared + usize::from(linked);
        self.now += 1;
        for (index, node) in held.nodes.drain(..).enumerate() {
            if index >= held.window_from {
                self.unuse_window(node);
            }
            self.unuse(node);
            if index >= n_kept {
                self.drop_page(node);
            }
        }
        (held.n_shared, held.window_from) = (0, 0);
    }

    /// Gives an empty stream the longest stored beginning of `ids`, without the last of them. Returns the
    /// number of its ids, a page to copy, if any, and in a model with recurrent layers a checkpoint to continue from.
    pub(super) fn adopt(
        &mut self,
        held: &mut Held,
        ids: &[u32],
    ) -> (usize, Option<PageCopy>, Option<u32>) {
        let ids = &ids[..ids.len().saturating_sub(1)];
        if !self.checkpoints.is_empty() {
            return self.adopt_with_state(held, ids);
        }
        self.descend(held, ids);
        let mut len = held.room();
        let tail = self.best_child(held.parent(), &ids[len..]);
        let tail = tail.filter(|(node, common)| {
            self.has_windows(held, len + common, Some(*node)) && *common > 0
        });
        if tail.is_none() {
            while !self.has_windows(held, len, None) {
                held.nodes.pop();
                held.n_shared -= 1;
                len = held.room();
            }
        }
        let pos = len + tail.map_or(0, |(_, common)| common);
        held.window_from = self.window_start(pos).min(held.nodes.len());
        for index in 0..held.nodes.len() {
            self.hold(held.nodes[index]);
            if self.window.is_some() && index >= held.window_from {
                self.hold_window(held.nodes[index]);
            }
        }
        let copy = match tail {
            Some((node, common)) => self.take_tail(held, node, common),
            None => Ok(None),
        };
        match copy {
            Ok(copy) => {
                self.hits += pos as u64;
                (pos, copy, None)
            }
            Err(NoPage) => {
                self.release(held, &ids[..len]);
                (0, None, None)
            }
        }
    }

    /// Adds the full pages of `ids` to an empty stream's list; does not hold them yet.
    fn descend(&self, held: &mut Held, ids: &[u32]) {
        for page in ids.chunks_exact(KV_PAGE) {
            match self.best_child(held.parent(), page) {
                Some((node, KV_PAGE)) => held.nodes.push(node),
                _ => break,
            }
            held.n_shared += 1;
        }
    }

    /// Gives a stream a page that begins with `common` ids of `node`. That is a new page to copy to, or
    /// `node` itself if it has no other ids or no page is free.
    fn take_tail(
        &mut self,
        held: &mut Held,
        node: u32,
        common: usize,
    ) -> Result<Option<PageCopy>, NoPage> {
        let len = self.nodes[node as usize].len;
        // Taking a page would evict an idle window page. It may be one that the stream has left, and needs
        // again if it is shortened further.
        let is_short = len < KV_PAGE && self.window.is_some() && self.free_windows.is_empty();
        self.hold(node);
        self.hold_window_if_any(node);
        let is_alone = self.nodes[node as usize].users == 1;
        let is_taken = is_alone && (common == len || is_short);
        if let Some(to) = if is_taken { None } else { self.take() } {
            let copy = PageCopy { from: self.pair_of(node), to: self.pair_of(to) };
            self.unuse_both(node);
            held.nodes.push(to);
            return Ok(Some(copy));
        }
        if !is_alone {
            self.unuse_both(node);
            return Err(NoPage);
        }
        // No other stream holds this page, so no stream holds a page after it.
        self.drop_children(node);
        self.unlink(node);
        held.nodes.push(node);
        Ok(None)
    }

    fn unuse_both(&mut self, node: u32) {
        if self.nodes[node as usize].window != NONE {
            self.unuse_window(node);
        }
        self.unuse(node);
    }

    /// The child of `parent` with the longest common beginning with `ids`, and that length.
    fn best_child(&self, parent: u32, ids: &[u32]) -> Option<(u32, usize)> {
        let mut child = self.first_child(parent);
        let mut best = None;
        while child != NONE {
            let common = self.common(child, ids);
            if best.is_none_or(|(_, most)| common > most) {
                best = Some((child, common));
            }
            child = self.nodes[child as usize].next;
        }
        best
    }

    /// Number of ids at a node's beginning that equal those of `ids`.
    fn common(&self, node: u32, ids: &[u32]) -> usize {
        let len = self.nodes[node as usize].len;
        let own = &self.ids[node as usize * KV_PAGE..][..len];
        own.iter().zip(ids).take_while(|(a, b)| a == b).count()
    }

    /// The first page that the token at `pos` attends to in layers with a window.
    fn window_start(&self, pos: usize) -> usize {
        self.window.map_or(0, |window| (pos + 1).saturating_sub(window.window) / KV_PAGE)
    }

    /// Whether all window pages exist that the token at `pos` attends to. `tail` follows the held nodes.
    fn has_windows(&self, held: &Held, pos: usize, tail: Option<u32>) -> bool {
        let nodes = held.nodes.iter().chain(&tail).skip(self.window_start(pos));
        self.window.is_none() || { nodes }.all(|node| self.nodes[*node as usize].window != NONE)
    }

    /// A page for one stream, with a window page if the model needs one; `None` if either is missing.
    fn take(&mut self) -> Option<u32> {
        let window = if self.window.is_some() { self.free_window()? } else { NONE };
        let Some(node) = self.take_page() else {
            self.free_windows.extend((window != NONE).then_some(window));
            return None;
        };
        self.nodes[node as usize].window = window;
        self.hold(node);
        self.hold_window_if_any(node);
        Some(node)
    }

    fn take_page(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            let idle = (0..self.nodes.len()).filter(|index| self.nodes[*index].is_idle_leaf());
            let oldest = idle.min_by_key(|index| self.nodes[*index].since)?;
            self.drop_page(oldest as u32);
        }
        let node = self.free.pop()?;
        self.nodes[node as usize] = UNUSED;
        Some(node)
    }

    fn free_window(&mut self) -> Option<u32> {
        if let Some(window) = self.free_windows.pop() {
            return Some(window);
        }
        let idle = self.nodes.iter_mut().filter(|node| node.is_idle_window());
        let oldest = idle.min_by_key(|node| node.window_since)?;
        Some(std::mem::replace(&mut oldest.window, NONE))
    }

    fn hold(&mut self, node: u32) {
        let node = &mut self.nodes[node as usize];
        self.n_used += usize::from(node.users == 0);
        node.users += 1;
    }

    /// Counts one user of the page less, and notes when it became idle.
    fn unuse(&mut self, node: u32) {
        let node = &mut self.nodes[node as usize];
        node.users -= 1;
        node.since = self.now;
        self.n_used -= usize::from(node.users == 0);
    }

    fn hold_window(&mut self, node: u32) {
        let node = &mut self.nodes[node as usize];
        self.n_used_windows += usize::from(node.window_users == 0);
        node.window_users += 1;
    }

    /// Counts one user of the window page less, and notes when it became idle.
    fn unuse_window(&mut self, node: u32) {
        if self.window.is_none() {
            return;
        }
        self.now += 1;
        let node = &mut self.nodes[node as usize];
        node.window_users -= 1;
        node.window_since = self.now;
        self.n_used_windows -= usize::from(node.window_users == 0);
    }

    fn hold_window_if_any(&mut self, node: u32) {
        if self.nodes[node as usize].window != NONE {
            self.hold_window(node);
        }
    }

    /// Frees a node that no stream holds, and all nodes below it.
    fn drop_page(&mut self, node: u32) {
        self.drop_children(node);
        self.unlink(node);
        self.checkpoints.leave(node);
        let window = std::mem::replace(&mut self.nodes[node as usize].window, NONE);
        self.free_windows.extend((window != NONE).then_some(window));
        self.free.push(node);
    }

    fn drop_children(&mut self, node: u32) {
        let mut last = node;
        // Drops leaves first: recursion over a long text's pages would be deep.
        while self.nodes[node as usize].child != NONE {
            while self.nodes[last as usize].child != NONE {
                last = self.nodes[last as usize].child;
            }
            let parent = self.nodes[last as usize].parent;
            self.drop_page(last);
            last = parent;
        }
    }

    fn unlink(&mut self, node: u32) {
        let Node { parent, next, len, .. } = self.nodes[node as usize];
        if len == 0 {
            return;
        }
        let mut at = self.first_child(parent);
        if at == node {
            *self.first_child_mut(parent) = next;
        } else {
            while self.nodes[at as usize].next != node {
                at = self.nodes[at as usize].next;
            }
            self.nodes[at as usize].next = next;
        }
        let one = &mut self.nodes[node as usize];
        (one.parent, one.next, one.len) = (NONE, NONE, 0);
    }

    fn first_child(&self, parent: u32) -> u32 {
        match parent {
            BEGINNING => self.roots[0],
            LONG_BEGINNING => self.roots[1],
            _ => self.nodes[parent as usize].child,
        }
    }

    fn first_child_mut(&mut self, parent: u32) -> &mut u32 {
        match parent {
            BEGINNING => &mut self.roots[0],
            LONG_BEGINNING => &mut self.roots[1],
            _ => &mut self.nodes[parent as usize].child,
        }
    }
}

impl Held {
    /// Parent of the next page that joins the tree: the last shared node, or the root.
    fn parent(&self) -> u32 {
        self.n_shared.checked_sub(1).map_or(beginning(self.is_long), |last| self.nodes[last])
    }
}

/// Parent of a text's first page: the root of long texts or of others.
fn beginning(is_long: bool) -> u32 {
    if is_long { LONG_BEGINNING } else { BEGINNING }
}

impl Node {
    fn is_idle_leaf(&self) -> bool {
        self.len > 0 && self.users == 0 && self.child == NONE
    }

    fn is_idle_window(&self) -> bool {
        self.window != NONE && self.window_users == 0
    }
}

#[cfg(test)]
mod tests;
