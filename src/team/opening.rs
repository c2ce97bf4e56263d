//! The OPEN of a team: a lead's request to its members to be ready.

use std::ops::Range;

use crate::group::Broken;
use crate::wire::frame::{self, Frame, NodeLine, Parts, Repr, Sizes, Split, TEAM_NODES_MAX};
use crate::wire::hello::Name;

/// A lead's request to a member to be ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Sizes of streams and batches. The type of activations on the wire is that of the gathers.
    pub sizes: Sizes,
    /// The layers that the team has.
    pub layers: Range<u32>,
    /// Whether the team also embeds ids and turns rows into logits.
    pub has_ends: bool,
    /// The nodes' shares of the work, relative to each other, the lead's first.
    pub shares: heapless::Vec<u16, TEAM_NODES_MAX>,
    /// Index of the member that this goes to; the lead sets it.
    pub node: u16,
    /// Name of the lead.
    pub lead: Name,
}

impl Opening {
    /// Writes the OPEN of `epoch` for the member with index `node`; returns the length of the OPEN, `None` if it does not
    /// fit.
    pub(super) fn emit(&self, epoch: u32, node: u16, out: &mut [u8]) -> Option<usize> {
        let Opening { sizes, layers, has_ends, shares, lead, .. } = self;
        let parts = Parts::Rows { shares, node, has_ends: *has_ends };
        let line = NodeLine { name: lead.clone(), layers: layers.clone(), ..NodeLine::default() };
        frame::emit_open((epoch, None), sizes, parts, &[line], out)
    }

    /// Reads the request from an OPEN.
    ///
    /// # Errors
    /// If the OPEN is one of layers, or a field has no meaning.
    pub(super) fn read(frame: &Frame<'_>) -> Result<Opening, Broken> {
        let Repr::Open { sizes, split: Split::Rows { node, has_ends }, .. } = frame.repr() else {
            return Err(Broken("an OPEN of no team"));
        };
        let line = frame.lines().next().and_then(Result::ok);
        let line = line.filter(|line| !line.layers.is_empty());
        let NodeLine { name, layers, .. } = line.ok_or(Broken("an OPEN without layers"))?;
        let shares = frame.shares().collect::<Result<_, _>>();
        let shares = shares.map_err(|_| Broken("an OPEN without shares"))?;
        Ok(Opening { sizes, layers, has_ends, shares, node, lead: name })
    }
}
