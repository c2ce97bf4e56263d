//! Events of the boards, as data: the program that starts a master puts them into words.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::error::PartError;
use super::team_plan::TeamPlan;
use crate::channel::ChannelError;
use crate::engine::Preparing;
use crate::engine::team::{MemberNotice, TeamLead};
use crate::fetch::giver::Gift;
use crate::fetch::taker::{FetchError, Fetched};
use crate::group::Notice;
use crate::ring::plan::{Part, Task};
use crate::ring::{Address, Place};
use crate::sys::tensor::OpenError;
use crate::transport::{Endpoint, TransportError};
use crate::wire::Dtype;
use crate::wire::frame::NodeLine;

/// Hears what happens to the boards, from any thread.
pub trait Events: Send + Sync {
    /// Hears of one event when it happens.
    fn tell(&self, event: &Event<'_>);
}

/// The listener of events, shared by all threads that have some.
pub type Teller = Arc<dyn Events>;

/// Kinds of division of a model among boards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A ring: each board has some of the layers.
    Ring,
    /// A team: each board has some rows of every layer.
    Team,
}

/// The layers of each node, in the order of the ring.
pub(super) type Layers = [(String, Range<usize>)];

/// Ignores all events.
pub(super) struct Deaf;

impl Events for Deaf {
    fn tell(&self, _: &Event<'_>) {}
}

/// An event of the boards.
#[non_exhaustive]
#[expect(missing_docs, reason = "the text of a variant says what its fields are")]
pub enum Event<'a> {
    /// This board is about to be measured, which takes some seconds.
    Measures,
    /// The master goes on looking for boards: `found` answer on this UDP port, and `wanted` were in the last split.
    Searches { found: usize, wanted: usize, port: u16 },
    /// One address gave this number of answers, each with another board's number. It counts as one board.
    Crowd { at: IpAddr, answers: usize },
    /// The board at `place` is not there, or refuses: the master calls it again.
    Waits { place: &'a Address, why: &'a str },
    /// The board at `place` has been away for long enough: the master starts without it.
    Absent { place: &'a Address, why: &'a str },
    /// The board at `place`, which gives this name, cannot be in the ring or team.
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
    /// A board could not be told its present layers: after a restart it has the earlier ones.
    Forgetful { name: &'a str, why: &'a str },
    /// The others are about to take the part of a board that is away, or that answers and is `idle` for this reason.
    Gone { name: &'a str, idle: Option<&'a str>, shape: Shape },
    /// A board is there that is about to get a part.
    Came { name: &'a str, shape: Shape },
    /// A plan that is `gain` times as good is about to be taken.
    Better { gain: f64, shape: Shape },
    /// The nodes of the ring are the same, and have these layers now.
    Moved { nodes: &'a Layers },
    /// The ring has other nodes now, with these layers.
    OtherRing { nodes: &'a Layers },
    /// The team has these boards now.
    OtherTeam { nodes: &'a [String] },
    /// Parts stay as they are, for this reason.
    Stays { why: &'a str, shape: Shape },
    /// There is no key: any machine that reaches this board at `at` can join.
    Unsealed { at: &'a str, shape: Shape },
    /// The ring file gives this board more threads than it has cores: one for each core computes.
    TooManyThreads { told: usize, cores: usize },
    /// Datagrams take the place of the kernel module.
    WithoutKernel { why: &'a OpenError },
    /// This board's own name has no address yet, and is looked up again.
    Nameless { why: &'a TransportError },
    /// A notice of the links' carrier.
    Carrier(&'a str),
    /// This board's links of a ring are open.
    Linked { place: &'a Place, endpoint: &'a dyn Endpoint },
    /// This board's links of a team are open, on this port and those behind it.
    Meshed { name: &'a str, at: &'a Address },
    /// This board is up. Other boards come in their own time.
    Up,
    /// The ring is open for the first time, with these nodes, rows of this width and activations of this type.
    RingOpened { lines: &'a [NodeLine], dim: u32, wire: Dtype },
    /// An event of the ring, at a worker or the master.
    Ring { notice: &'a Notice, is_worker: bool },
    /// The team is complete; its boards share these layers, or all if `None`.
    TeamOpened { team: &'a TeamLead, layers: Option<Range<usize>> },
    /// An event of the team, at its lead.
    Team { notice: &'a Notice },
    /// An event of the team, at a member.
    Member { notice: &'a MemberNotice },
    /// This board gives others their layers at this address.
    Gives { at: SocketAddr },
    /// A board asks for its layers.
    Gift(&'a Gift),
    /// The board that gives this one its layers is away.
    WaitsForLayers { from: &'a Address, why: &'a FetchError },
    /// Layers are about to come.
    Fetches,
    /// This part of the layers' bytes has come.
    Fetching { done: u64, all: u64 },
    /// This board's layers are there.
    Fetched { fetched: &'a Fetched, from: &'a Address },
    /// Fetched layers are damaged, and are fetched again.
    Damaged { why: &'a PartError },
    /// Layers that were fetched before cannot be used.
    Unusable { why: &'a PartError },
    /// Weights are about to be made ready.
    Prepares,
    /// Weights are being made ready.
    Weights(&'a Preparing<'a>),
    /// Prompts are not kept in this folder.
    NoPrefixes { folder: &'a Path, why: &'a str },
    /// This board waits at this address for a master to call it.
    WaitsForMaster { name: &'a str, at: SocketAddr },
    /// Masters that look for boards do not find this one.
    Unfindable { why: &'a io::Error },
    /// This board's name cannot stand in a ring file, so that masters go on without it.
    Misnamed { why: &'a str },
    /// A stranger called from this address.
    Ignores { from: IpAddr, why: &'a ChannelError },
    /// This board's speed and the split are not kept: there is no folder for them.
    KeepsNothing { why: &'a PartError },
    /// This board has nothing to do until a master calls.
    Rests,
    /// This board cannot do what a master told it.
    OrderFailed { why: &'a str },
}
