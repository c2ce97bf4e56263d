//! Reports of nodes to their group's first node.

use super::WireError;

/// A node's report to the group's first node, in a REPORT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The node before the reporting node has been silent for a while.
    Silent,
    /// A link that was silent works again, and nothing was lost.
    Back,
    /// A link started again, so frames are lost.
    Reset,
    /// The reporting node has no link to the node with this index, or to the one before it if the index is 0. Repeated,
    /// in any epoch.
    Missing(u32),
    /// The reporting node has been at the same piece of work for this many seconds. Repeated, in any epoch.
    Busy(u32),
    /// The reporting node packs the weights of layers that are new to it; the value is the percentage done. Repeated,
    /// in any epoch.
    Packing(u32),
    /// The reporting node has lost its KV.
    Lost,
    /// The reporting node waits for boards of its team. Repeated, in any epoch.
    Incomplete,
    /// The reporting node has given up the epoch because of the node with this index.
    GivenUp(u32),
}

impl Reason {
    /// Whether nodes repeat this report, in any epoch.
    pub fn is_repeated(self) -> bool {
        match self {
            Reason::Missing(_) | Reason::Busy(_) | Reason::Packing(_) | Reason::Incomplete => true,
            Reason::Silent | Reason::Back | Reason::Reset | Reason::Lost => false,
            Reason::GivenUp(_) => false,
        }
    }

    /// The report with this code and value.
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

    /// The report's code and value.
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
