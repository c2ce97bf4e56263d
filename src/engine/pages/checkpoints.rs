//! Checkpoints: states of recurrent layers, each kept behind some ids of a page.
//!
//! A checkpoint belongs to a node of the tree and goes with it. The least recently used one makes room for a new one.

/// A checkpoint, whose number is its index.
#[derive(Clone, Copy, Debug, Default)]
struct Checkpoint {
    /// Node of the page that the state follows; `None` if no text can continue from it.
    node: Option<u32>,
    /// Ids of the page before the state.
    len: usize,
    /// Number of streams that hold it: they write it, or will continue from it.
    users: u32,
    /// When it was last used.
    since: u64,
}

/// All checkpoints; none if the model has no recurrent layers.
#[derive(Debug)]
pub(super) struct Checkpoints(Vec<Checkpoint>);

/// A checkpoint that texts can continue from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) index: u32,
    pub(super) node: u32,
    /// Ids of the page before the state.
    pub(super) len: usize,
}

impl Checkpoints {
    pub(super) fn new(n: usize) -> Checkpoints {
        Checkpoints(vec![Checkpoint::default(); n])
    }

    pub(super) fn forget(&mut self) {
        self.0.fill(Checkpoint::default());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that texts can continue from.
    pub(super) fn all(&self) -> impl Iterator<Item = Found> {
        self.0.iter().enumerate().filter_map(|(index, checkpoint)| {
            let node = checkpoint.node?;
            Some(Found { index: index as u32, node, len: checkpoint.len })
        })
    }

    /// Takes the least recently used one that no stream holds; the caller then holds it.
    pub(super) fn take(&mut self) -> Option<u32> {
        let unused = self.0.iter_mut().enumerate().filter(|(_, one)| one.users == 0);
        // Those without a page come first.
        let (index, oldest) = unused.min_by_key(|(_, one)| (one.node.is_some(), one.since))?;
        (oldest.node, oldest.users) = (None, 1);
        Some(index as u32)
    }

    pub(super) fn hold(&mut self, index: u32) {
        self.0[index as usize].users += 1;
    }

    /// Counts one user less.
    pub(super) fn release(&mut self, index: u32, now: u64) {
        let one = &mut self.0[index as usize];
        (one.users, one.since) = (one.users - 1, now);
    }

    /// Gives a checkpoint its place behind `len` ids of `node`, unless another is there.
    pub(super) fn put(&mut self, index: u32, node: u32, len: usize) {
        if !self.is_there(node, len) {
            let one = &mut self.0[index as usize];
            (one.node, one.len) = (Some(node), len);
        }
    }

    /// Forgets the checkpoints of `node`, whose page is freed. A stream may still hold their states.
    pub(super) fn leave(&mut self, node: u32) {
        self.0.iter_mut().filter(|one| one.node == Some(node)).for_each(|one| one.node = None);
    }

    /// Moves the checkpoints of a page to another that begins with the same ids.
    pub(super) fn change_node(&mut self, from: u32, to: u32) {
        for index in 0..self.0.len() {
            let Checkpoint { node, len, .. } = self.0[index];
            if node == Some(from) {
                self.0[index].node = (!self.is_there(to, len)).then_some(to);
            }
        }
    }

    /// The checkpoint behind `len` ids of `node`.
    pub(super) fn find(&self, node: u32, len: usize) -> Option<u32> {
        let index = self.0.iter().position(|one| (one.node, one.len) == (Some(node), len))?;
        Some(index as u32)
    }

    fn is_there(&self, node: u32, len: usize) -> bool {
        self.find(node, len).is_some()
    }
}
