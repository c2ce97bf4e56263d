//! Changes of a master's ring: other layers, or other nodes.

use std::ops::Range;

use super::{Asked, Master, roll};
use crate::group::Phase;
use crate::ring::moving::Earlier;
use crate::ring::{Member, NodeLine};

/// Longest wait for batches to be answered before the nodes get other layers.
const HOLD_MAX_US: u64 = 60_000_000;

impl Master {
    /// Prepares a change of layers: until then no batch is begun, and results that come are put aside. `true`
    /// once all begun batches have been answered and a move under way is over, or neither need be waited for.
    pub(crate) fn hold(&mut self) -> bool {
        let since = *self.moves.held_us.get_or_insert(self.polled_us);
        let is_in_vain = self.group.is_troubled() || self.polled_us > since + HOLD_MAX_US;
        match self.group.phase {
            Phase::Opening(_) => true,
            // An end now would lose all that has moved so far.
            Phase::Moving(..) => is_in_vain,
            Phase::Open => is_in_vain || self.is_still(),
        }
    }

    /// Withdraws a change of layers.
    pub(crate) fn go_on(&mut self) {
        self.moves.held_us = None;
    }

    /// Begins a change of layers, by the next [`Master::assign`] or [`Master::rejoin`]. Returns the epoch
    /// whose KV the nodes still have, so that streams go on; `None` if all is recomputed.
    pub(crate) fn begin_move(&mut self) -> Option<u32> {
        self.moves.earlier = match self.group.phase {
            Phase::Open if self.is_still() => {
                Some(Earlier::new(self.group.epoch(), &self.nodes.lines))
            }
            // Nothing has been computed since the last move was begun.
            Phase::Opening(_) => self.moves.earlier.take(),
            Phase::Open | Phase::Moving(..) => {
                self.group.setbacks.drains_given_up += 1;
                None
            }
        };
        self.moves.earlier.as_ref().map(Earlier::epoch)
    }

    /// Assigns layers to the nodes, this one first, with its new `line`; the ring is opened again for that,
    /// and streams go on. Without any, each node has the layers that its own user wants.
    pub(crate) fn assign(&mut self, line: NodeLine, assigned: Vec<Range<u32>>) {
        (self.options.line, self.nodes.assigned, self.failure) = (line, assigned, None);
        (self.moves.held_us, self.nodes.asked) = (None, Asked::Layers);
        self.group.assigned(self.polled_us);
        self.restart(self.polled_us);
    }

    /// Whether the ring's nodes can send what their layers have stored.
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_open() && self.is_still() && !self.group.is_troubled()
    }

    /// Assigns layers ([`Master::assign`]) before some nodes leave, which get none: their KV goes
    /// to the layers' new nodes. No batch begins until [`Master::rejoin`].
    pub(crate) fn hand_over(&mut self, line: NodeLine, assigned: Vec<Range<u32>>) {
        self.assign(line, assigned);
        self.moves.held_us = Some(self.polled_us);
    }

    /// Whether the leaving nodes have handed their KV over. Also true if a node is lost: then all is recomputed.
    pub(crate) fn is_handed_over(&self) -> bool {
        (self.is_open() && self.moves.all_moved != Some(false)) || self.group.is_troubled()
    }

    /// Whether layers' keys and values are on their way.
    pub(crate) fn is_moving(&self) -> bool {
        matches!(self.group.phase, Phase::Moving(..)) || self.moves.all_moved == Some(false)
    }

    /// Starts the wait again, as the nodes that are away are going to be replaced.
    pub(crate) fn be_patient(&mut self) {
        self.group.rest(self.polled_us);
    }

    /// Asks for the ring once more, with new patience, whatever was said before.
    #[cfg(feature = "serve")]
    pub(crate) fn ask_again(&mut self) {
        self.failure = None;
        if self.nodes.asked == Asked::Layers {
            // The client has its answer: a node that refuses these layers for good is left out, if the caller does that.
            self.nodes.asked = Asked::Nodes;
        }
        // A silent link may not count as gone yet when a ring is given up: the ring then is open and not
        // whole.
        if !self.group.is_opening() {
            self.reopen(self.polled_us);
        }
        self.be_patient();
    }

    /// Layers of the last [`Master::assign`]; empty if there was none.
    pub(crate) fn assigned(&self) -> &[Range<u32>] {
        &self.nodes.assigned
    }

    /// Gives the ring other nodes with their layers, this one first, with its new `line`; it is opened again
    /// over a link to the second of them, and streams go on.
    pub(crate) fn rejoin(&mut self, line: NodeLine, members: Vec<Member>) {
        let layers = |member: &Member| member.layers.start as u32..member.layers.end as u32;
        let assigned = members.iter().map(layers).collect();
        self.group.admit(roll(&members, &self.options));
        self.nodes.lines.clear();
        self.assign(line, assigned);
        self.nodes.asked = Asked::Nodes;
    }
}
