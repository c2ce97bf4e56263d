//! What nodes tell their group's first node in a REPORT.

use super::WireError;

/// A node's report to the group's first node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The node before has been silent for a while.
    Silent,
    /// A link is heard again, and nothing was lost.
    Back,
    /// A link started again: frames are lost.
    Reset,
    /// This node has no link to the node with this index, or if that is 0 to the one before it, in whatever
    /// epoch: said again and again.
    Missing(u32),
    /// This node itself has been at the same piece of work for so many seconds, in whatever epoch.
    Busy(u32),
    /// This node itself packs the weights of layers that are new to it, and so many percent are done.
    Packing(u32),
    /// This node itself has lost what it had stored of the streams.
    Lost,
    /// This node itself waits for boards of its team, in whatever epoch.
    Incomplete,
    /// This node has given up the epoch, because of the node with this index.
    GivenUp(u32),
}

impl Reason {
    /// Whether it is said again and again, in whatever epoch.
    pub fn is_repeated(self) -> bool {
        match self {
            Reason::Missing(_) | Reason::Busy(_) | Reason::Packing(_) | Reason::Incomplete => true,
            Reason::Silent | Reason::Back | Reason::Reset | Reason::Lost => false,
            Reason::GivenUp(_) => false,
        }
    }

    /// The reason with this code, and its number.
    pub(super) fn parse(code: u8, number: u32) -> Result<Reason, WireError> {
        Ok(match code {
            0 => Reason::Silent,
            1 => Reason::Back,
            2 => Reason::Reset,
            3 => Reason::Missing(number),
            4 => Reason::Busy(number),
            5 => Reason::Packing(number),
            6 => Reason::Lost,
            7 => Reason::Incomplete,
            8 => Reason::GivenUp(number),
            _ => return Err(WireError::Field("reason")),
        })
    }

    /// Its code, and what belongs to it.
    pub(super) fn code(self) -> (u8, u32) {
        match self {
            Reason::Silent => (0, 0),
            Reason::Back => (1, 0),
            Reason::Reset => (2, 0),
            Reason::Missing(node) => (3, node),
            Reason::Busy(seconds) => (4, seconds),
            Reason::Packing(percent) => (5, percent),
            Reason::Lost => (6, 0),
            Reason::Incomplete => (7, 0),
            Reason::GivenUp(node) => (8, node),
        }
    }
}
