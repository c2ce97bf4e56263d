//! Which stream holds which pages of the KV cache, and which texts idle pages hold.
//!
//! A full page is found again by its ids and all before them: pages are the nodes of a tree, whose root is
//! the beginning of every text. A stream holds a path of the tree, and below that pages of its own. A page
//! without a holder stays in the tree until its room is needed; the least recently used one is evicted first.
//! The last page of an ended text is in the tree too, with as many ids as it has; a text that continues there
//! takes or copies it.
//!
//! For layers with a window a node has a second page, as long as there is room. A stream holds those inside
//! its window; a text can be continued where all of these exist.

mod load;

use crate::model::{KV_PAGE, KvPlan, PagePair, WindowPlan};

pub(super) use load::WindowNeeded;

/// No page, or no other node.
const NONE: u32 = u32::MAX;

/// Parent of a text's first page, and of a long text's, whose keys differ.
const BEGINNING: u32 = NONE - 1;
const LONG_BEGINNING: u32 = NONE - 2;

/// All pages. Nodes are numbered as their pages of the layers that see everything.
#[derive(Debug)]
pub(super) struct Pages {
    window: Option<WindowPlan>,
    nodes: Vec<Node>,
    /// Ids of each node, `[n_pages, KV_PAGE]`.
    ids: Vec<u32>,
    /// The first of the nodes that begin a text, and of those that begin a long one.
    roots: [u32; 2],
    free: Vec<u32>,
    free_windows: Vec<u32>,
    n_used: usize,
    n_used_windows: usize,
    /// Counts what becomes idle.
    now: u64,
    /// Ids that streams went on from, added up.
    hits: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    child: u32,
    next: u32,
    /// Ids in the tree; 0 if it is not part of it.
    len: usize,
    /// Streams that hold it.
    users: u32,
    /// When it became idle.
    since: u64,
    /// Its page of layers with a window.
    window: u32,
    /// Streams that hold that.
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
    /// From its first position on.
    nodes: Vec<u32>,
    /// How many of them are part of the tree.
    n_shared: usize,
    /// The first whose page of layers with a window is held.
    window_from: usize,
    /// Whether they are those of a long text, and of no use to others.
    pub(super) is_long: bool,
}

/// A page that a stream goes on in, as far as another one's beginning is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageCopy {
    pub(super) from: PagePair,
    pub(super) to: PagePair,
}

/// How many pages there are, and what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFigures {
    /// In all.
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
    /// Room for whole contexts.
    pub(super) fn with_capacity(ctx_pages: usize) -> Held {
        Held { nodes: Vec::with_capacity(ctx_pages), ..Held::default() }
    }

    /// Forgets all that is held, as the pages have forgotten their holders.
    pub(super) fn forget(&mut self) {
        self.nodes.clear();
        (self.n_shared, self.window_from) = (0, 0);
    }

    /// Positions that there is room for.
    pub(super) fn room(&self) -> usize {
        self.nodes.len() * KV_PAGE
    }

    /// How many of them are part of the tree.
    pub(super) fn n_shared(&self) -> usize {
        self.n_shared
    }

    /// Positions whose keys and values others can find.
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

    /// The pages of a stream from number `first` on, without those behind the window.
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

    /// Page `index` of a stream, with its page of the layers with a window unless that was evicted.
    pub(super) fn pair(&self, held: &Held, index: usize) -> Option<PagePair> {
        held.nodes.get(index).map(|node| self.pair_of(*node))
    }

    fn pair_of(&self, node: u32) -> PagePair {
        let window = self.nodes[node as usize].window;
        PagePair { page: node, window: (window != NONE).then_some(window) }
    }

    /// Whether a text of `len` ids that begins with `ids`, a long one or not, has room beside what streams
    /// hold.
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

    /// Gives a stream that holds the keys and values of `ids` pages for positions up to `end`, or as many as
    /// there are. Returns the first page that has changed.
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

    /// Makes the full pages of a stream part of the tree. Equal pages of the tree replace the stream's own.
    /// Returns the first replaced one.
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

    /// The node of the tree that is the same takes the place of a stream's own.
    fn replace(&mut self, held: &mut Held, index: usize, node: u32) {
        let own = std::mem::replace(&mut held.nodes[index], node);
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

    /// Makes `node` the child of `parent` with `ids`, or returns the child that has these already.
    fn link(&mut self, parent: u32, node: u32, ids: &[u32]) -> u32 {
        let mut child = self.first_child(parent);
        while child != NONE {
            let Node { next, len, users, .. } = self.nodes[child as usize];
            let common = self.common(child, ids);
            if common == ids.len() {
                return child;
            }
            if common == len && users == 0 {
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

    /// Pages that are wholly behind the window of the token at `pos` are idle.
    fn leave_window(&mut self, held: &mut Held, pos: usize) {
        let Some(WindowPlan { window, .. }) = self.window else { return };
        let from = ((pos + 1).saturating_sub(window) / KV_PAGE).min(held.nodes.len());
        while held.window_from < from {
            self.unuse_window(held.nodes[held.window_from]);
            held.window_from += 1;
        }
    }

    /// Releases the keys and values of `ids`, held by a stream. Other streams can still continue from them.
    pub(super) fn release(&mut self, held: &mut Held, ids: &[u32]) {
        self.share(held, ids);
        let tail = &ids[(held.n_shared * KV_PAGE).min(ids.len())..];
        let linked = match held.nodes.get(held.n_shared) {
            Some(&own) if !tail.is_empty() => self.link(held.parent(), own, tail) == own,
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

    /// Gives an empty stream the longest stored beginning of `ids`, without the last of them. Returns its
    /// number of ids, and a page to copy, if any.
    pub(super) fn adopt(&mut self, held: &mut Held, ids: &[u32]) -> (usize, Option<PageCopy>) {
        let ids = &ids[..ids.len().saturating_sub(1)];
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
                (pos, copy)
            }
            Err(NoPage) => {
                self.release(held, &ids[..len]);
                (0, None)
            }
        }
    }

    /// Lists the full pages of `ids` for an empty stream, which does not hold them yet.
    fn descend(&self, held: &mut Held, ids: &[u32]) {
        for page in ids.chunks_exact(KV_PAGE) {
            match self.best_child(held.parent(), page) {
                Some((node, KV_PAGE)) => held.nodes.push(node),
                _ => break,
            }
            held.n_shared += 1;
        }
    }

    /// Gives a stream a page that begins with `common` ids of `node`: a new page to copy to, or `node` itself
    /// if there is none or it has no other ids.
    fn take_tail(
        &mut self,
        held: &mut Held,
        node: u32,
        common: usize,
    ) -> Result<Option<PageCopy>, NoPage> {
        let len = self.nodes[node as usize].len;
        // The page to copy to could replace one from when the stream was longer, which may be needed again if
        // the stream is shortened further.
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
        // No other stream holds this page, so none holds a page that follows it.
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

    /// The child of `parent` that has most of the beginning of `ids`, and how much.
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

    /// How many ids of a node are the first of `ids`.
    fn common(&self, node: u32, ids: &[u32]) -> usize {
        let len = self.nodes[node as usize].len;
        let own = &self.ids[node as usize * KV_PAGE..][..len];
        own.iter().zip(ids).take_while(|(a, b)| a == b).count()
    }

    /// The first page that the token at `pos` looks back to in layers with a window.
    fn window_start(&self, pos: usize) -> usize {
        self.window.map_or(0, |window| (pos + 1).saturating_sub(window.window) / KV_PAGE)
    }

    /// Whether the token at `pos` finds all that it looks back to.
    fn has_windows(&self, held: &Held, pos: usize, tail: Option<u32>) -> bool {
        let nodes = held.nodes.iter().chain(&tail).skip(self.window_start(pos));
        self.window.is_none() || { nodes }.all(|node| self.nodes[*node as usize].window != NONE)
    }

    /// A page for a stream alone, and one for layers with a window; `None` if there are not both.
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

    /// Counts one user of the page less.
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

    /// Counts one user less of the page in layers with a window.
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
        let window = std::mem::replace(&mut self.nodes[node as usize].window, NONE);
        self.free_windows.extend((window != NONE).then_some(window));
        self.free.push(node);
    }

    fn drop_children(&mut self, node: u32) {
        let mut last = node;
        // From below, without a call for each of a long text's pages.
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
    /// The last node that is part of the tree, which its next one follows.
    fn parent(&self) -> u32 {
        self.n_shared.checked_sub(1).map_or(beginning(self.is_long), |last| self.nodes[last])
    }
}

/// Parent of a text's first page.
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
