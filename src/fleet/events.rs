//! Events of the boards, as data: the program that starts a master puts them into words.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use super::team_plan::TeamPlan;
use crate::ring::Address;
use crate::ring::plan::{Part, Task};

/// Hears what happens to the boards, from any thread.
pub(crate) trait Events: Send + Sync {
    /// Hears of one event when it happens.
    fn tell(&self, event: &Event<'_>);
}

/// The listener of events, shared by all threads that have some.
pub(crate) type Teller = Arc<dyn Events>;

/// How the boards share a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each has some of its layers.
    Ring,
    /// Each has some rows of every layer.
    Team,
}

/// The layers of each node, in the order of the ring.
pub(crate) type Layers = [(String, Range<usize>)];

/// Hears and says nothing.
#[cfg(test)]
pub(super) struct Deaf;

#[cfg(test)]
impl Events for Deaf {
    fn tell(&self, _: &Event<'_>) {}
}

/// An event of the boards.
pub(crate) enum Event<'a> {
    /// This board is about to be measured, which takes some seconds.
    Measures,
    /// So many boards answer on this UDP port, fewer than `wanted`: the master goes on looking.
    Searches { found: usize, wanted: usize, port: u16 },
    /// So many answers, as of as many boards, came from one address: it counts as one board.
    Crowd { at: IpAddr, answers: usize },
    /// The board at `place` is not there, or will not: the master calls it again.
    Waits { place: &'a Address, why: &'a str },
    /// The board at `place` has been away for long enough: the master starts without it.
    Absent { place: &'a Address, why: &'a str },
    /// The board at `place`, which says that it has this name, cannot be in it.
    LeftOut { place: &'a Address, name: Option<&'a str>, why: &'a str },
    /// The boards that are there cannot have the model: the master waits for the others.
    TooFew { why: &'a str },
    /// The split of the model by layers, and `team_token_s`, the time of a token as a team, if that is much
    /// shorter.
    Divided { task: &'a Task<'a>, parts: &'a [Part], team_token_s: Option<f64> },
    /// The split of the model by rows, and `ring_token_s`, the time of a token as a ring, if the boards could
    /// be one.
    Shared { plan: &'a TeamPlan<'a>, ring_token_s: Option<f64> },
    /// A board of the ring or team cannot do what it was told.
    Unfit { name: &'a str, why: &'a str },
    /// Another master took a board, which names it in `why`. The board is asked for until it is free.
    Taken { name: &'a str, why: &'a str },
    /// A board works for this master again.
    Regained { name: &'a str },
    /// A board could not be told which layers it has now, and will not know it after a restart.
    Forgetful { name: &'a str, why: &'a str },
    /// A board is away, or answers but is `idle` for this reason; the others are about to take its part.
    Gone { name: &'a str, idle: Option<&'a str>, shape: Shape },
    /// A board is there that is about to get a part.
    Came { name: &'a str, shape: Shape },
    /// A better plan is about to be taken, which is so many times as good.
    Better { gain: f64, shape: Shape },
    /// The nodes of the ring are the same, and have these layers now.
    Moved { nodes: &'a Layers },
    /// The ring has other nodes now, with these layers.
    OtherRing { nodes: &'a Layers },
    /// The team has these boards now.
    OtherTeam { nodes: &'a [String] },
    /// Parts stay as they are, for this reason.
    Stays { why: &'a str, shape: Shape },
}
