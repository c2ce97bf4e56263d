//! Notices of a node for its user.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

/// Most notices that wait for the user; further ones replace the oldest.
const NOTICES_MAX: usize = 16;

/// A notice of a node for its user, sent once for each change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The group is complete.
    Opened {
        /// Whether it was complete before, and broke or got other layers.
        again: bool,
    },
    /// The node is silent.
    Silent(String),
    /// The node is heard again, and nothing was lost.
    Back(String),
    /// The link to the node began again, and frames in flight are lost.
    Reset(String),
    /// The node has lost its KV, and starts again.
    Anew(String),
    /// This node has taken other layers.
    Took {
        /// The layers.
        layers: Range<u32>,
        /// Matrices that were packed for them.
        packed: usize,
        /// Matrices that had been packed before.
        reused: usize,
    },
    /// The master ended its work.
    MasterLeft,
    /// A neighbour sent a malformed message, which this describes.
    Broken(&'static str),
    /// A node does not fit: its name and the reason, in one text.
    Refused(String),
    /// A notice of the links' carrier.
    Carrier(String),
    /// The group is not complete.
    Waiting {
        /// The nodes or links that are missing, in words.
        what: String,
        /// Names of the missing nodes, as many as are known.
        missing: Vec<String>,
    },
    /// The node is there, and is asked to be ready.
    Came(String),
    /// The node is ready.
    Ready(String),
    /// A node cannot take its part.
    Unfit {
        /// Name of the node.
        name: String,
        /// The reason, and what to do; it calls the node "it".
        why: String,
    },
    /// The oldest batch has not been answered for long.
    Stalled {
        /// Duration of the wait, in seconds.
        seconds: u64,
        /// Position of the batch, if known.
        what: String,
    },
    /// The stalled batch has been answered.
    GoesOn,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Opened { again: false } => write!(f, "a master opened the ring"),
            Notice::Opened { again: true } => write!(f, "the ring is complete again"),
            Notice::Silent(name) => write!(f, "nothing is heard of {name}; waiting"),
            Notice::Back(name) => write!(f, "{name} is heard again"),
            Notice::Reset(name) => write!(f, "the link to {name} began anew"),
            Notice::Anew(name) => {
                write!(f, "{name} lost what it had computed, and begins anew")
            }
            Notice::Took { layers: Range { start, end }, packed, reused } => {
                let s = if *packed == 1 { "" } else { "s" };
                write!(f, "took layers {start}..{end}: {packed} tensor{s} packed, {reused} reused")
            }
            Notice::MasterLeft => write!(f, "the master left; waiting for the next one"),
            Notice::Broken(what) => write!(f, "a neighbour sent {what}"),
            Notice::Refused(what) | Notice::Waiting { what, .. } | Notice::Carrier(what) => {
                f.write_str(what)
            }
            Notice::Came(name) => write!(f, "{name} is there"),
            Notice::Ready(name) => write!(f, "{name} is ready"),
            Notice::Unfit { name, why } => write!(f, "{name} refuses: {why}"),
            Notice::Stalled { seconds, what } => write!(f, "no progress for {seconds} s: {what}"),
            Notice::GoesOn => write!(f, "the ring goes on"),
        }
    }
}

/// Notices that the user has not read yet.
pub(crate) struct Notices(VecDeque<Notice>);

impl Notices {
    /// An empty queue with room for [`NOTICES_MAX`] notices.
    pub(crate) fn new() -> Notices {
        Notices(VecDeque::with_capacity(NOTICES_MAX))
    }

    /// Queues `notice` for the user, unless it equals the last one. A full queue drops its oldest notice.
    pub(crate) fn tell(&mut self, notice: Notice) {
        if self.0.len() == NOTICES_MAX {
            self.0.pop_front();
        }
        if self.0.back() != Some(&notice) {
            self.0.push_back(notice);
        }
    }

    /// Takes the oldest notice.
    pub(crate) fn next(&mut self) -> Option<Notice> {
        self.0.pop_front()
    }

    /// Heap bytes of the queue, without the names in it.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Notice>()
    }
}
