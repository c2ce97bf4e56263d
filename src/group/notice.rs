//! Notices of a node for its user.

use std::collections::VecDeque;
use std::ops::Range;

/// Notices that wait for the user; the oldest make way.
const NOTICES_MAX: usize = 16;

/// A notice of a node for its user, sent once for each change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The ring is complete; `again` after it was broken, or its nodes have got other layers.
    Opened {
        /// Whether it was complete before.
        again: bool,
    },
    /// The node is silent.
    Silent(String),
    /// The node is heard again, and nothing was lost.
    Back(String),
    /// The link to the node began again, and frames in flight are lost.
    Reset(String),
    /// This node has lost what it had stored, and starts again.
    Anew(String),
    /// This node has taken other layers.
    Took {
        /// These.
        layers: Range<u32>,
        /// Matrices that were packed for it.
        packed: usize,
        /// Matrices that had been packed before.
        reused: usize,
    },
    /// The master ended its work.
    MasterLeft,
    /// A neighbour sent what makes no sense.
    Broken(&'static str),
    /// A node does not fit: its name, and the reason.
    Refused(String),
    /// A notice of the links' carrier.
    Carrier(String),
    /// The ring is not complete.
    Waiting {
        /// The nodes that are missing, in words.
        what: String,
        /// Names of those of which that is known.
        missing: Vec<String>,
    },
    /// This node cannot take its part, and why.
    Unfit {
        /// Its name.
        name: String,
        /// Why, and what to do.
        why: String,
    },
    /// The oldest batch is not answered.
    Stalled {
        /// Since when.
        seconds: u64,
        /// Where it is, as far as that is known.
        what: String,
    },
    /// The oldest batch is answered now.
    GoesOn,
}

/// Notices that the user has not had yet.
pub(crate) struct Notices(VecDeque<Notice>);

impl Notices {
    /// No notices yet, with room for the most that there may be.
    pub(crate) fn new() -> Notices {
        Notices(VecDeque::with_capacity(NOTICES_MAX))
    }

    /// Queues `notice` for the user, unless it equals the last one. The oldest notice is dropped if there are
    /// too many.
    pub(crate) fn tell(&mut self, notice: Notice) {
        if self.0.len() == NOTICES_MAX {
            self.0.pop_front();
        }
        if self.0.back() != Some(&notice) {
            self.0.push_back(notice);
        }
    }

    /// The next thing to tell the user.
    pub(crate) fn next(&mut self) -> Option<Notice> {
        self.0.pop_front()
    }

    /// Bytes that they keep on the heap, but for names.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Notice>()
    }
}
