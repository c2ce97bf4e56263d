//! Options of a master, and the steps that it asks of its caller.

use super::{Member, NodeLine, RingError, Sizes};

/// Settings of a master.
#[derive(Clone, Debug)]
pub(crate) struct MasterOptions {
    /// The master's own line of the ring.
    pub line: NodeLine,
    /// Sizes that all nodes have to be ready for.
    pub sizes: Sizes,
    /// Layers of the model.
    pub n_layers: u32,
    /// Bytes of the longest frame its link takes.
    pub frame_bytes: usize,
    /// Most nodes the ring may have; bounds what is under way.
    pub n_nodes: usize,
    /// The nodes as far as they are known, this one first.
    pub members: Vec<Member>,
    /// Longest time without progress; `None` to wait for ever.
    pub timeout_us: Option<u64>,
    /// Fate of nodes that do not fit.
    pub misfits: Misfits,
    /// First epoch: one that no frame under way can have, such as a random number.
    pub epoch: u32,
}

/// Fate of a node that refuses to be in a ring, or cannot take its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfits {
    /// The ring cannot be opened: the same file tells all nodes what they have.
    End,
    /// The ring waits, because the master has told each board what it has: a board may still work on what another master
    /// told it.
    Wait,
    /// The ring waits, and the caller leaves out a node that cannot take its part.
    LeaveOut,
}

/// The next step that a master asks of its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MasterStep {
    /// Nothing before the link has something new.
    Idle,
    /// [`Master::tokens`] are to be embedded and taken through the own layers as
    /// [`Master::spans`] say; then [`Master::computed`].
    Compute,
    /// The pages of [`Master::fetch`] are to be read; then [`Master::fetched`].
    Fetch,
    /// The rows wanted of the oldest batch are back; then [`Master::finish`].
    Done,
    /// Batches in flight do not come back, and streams hold nothing any more.
    Lost,
    /// The ring cannot go on.
    Failed(RingError),
}
