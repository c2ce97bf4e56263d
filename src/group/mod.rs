//! A group: nodes that run one model together, a ring of places or a team.
//!
//! Its first node (a ring's master, a team's lead) begins *epochs*, and the others agree to them. This module
//! has the parts that both kinds of group share: the first node's state machine ([`Membership`]), its view of
//! the others ([`Roll`]), its deadlines ([`Patience`]) and failures ([`Blame`], [`Setbacks`]); and for every
//! node the batches that fit the agreed sizes ([`Agreed`]), the interval of repeated messages ([`Every`]) and
//! notices for the user ([`Notices`]). It knows no links, no frames of batches and no clock: time is
//! microseconds passed in.
//!
//! # The first node's states
//!
//! ```text
//!    ┌───────────── epoch + 1 ◄────────────────┬────────────────────────────────┐
//!    ▼                                         │ too slow, or trouble           │ trouble, or other parts
//!  Opening ─────────────────────────────────► Moving ────────────────────────► Open ──┐
//!   │  ▲    OPEN to all nodes, all READY         KV of moved layers is where     ▲    │ batches,
//!   └──┘    (nothing moves: at once Open)        it belongs                      └────┘ PAGES, REPORT
//!  REFUSE or MISSING
//! ```
//!
//! - *Trouble* is a link that started again, or a node that is gone, gave up, lost its KV or sent a malformed
//!   message. Trouble leads to another epoch from `Opening` too, because answers to the last OPEN may be lost.
//! - *REFUSE* is reported once, and the node is asked again. It ends a change of a ring's layers on request, and each
//!   opening of a team. It also ends a ring that forms for the first time, unless the caller leaves out such nodes.
//! - In any state, no progress for longer than the limit ends the wait. The user hears which node was missing, and
//!   may try again.
//!
//! All nodes drop frames of an epoch that is over, so no old frame is ever taken for a new one.
//!
//! A draft node is a member with another role: OPEN gives it no part of the model, READY or REFUSE answers, and its
//! deadlines are those of a group ([`Every`], [`Patience`]). Batches do not pass through it, so the group opens without
//! it, and the draft node has epochs of its own.
//!
//! # What a ring and a team do differently
//!
//! - *How a batch passes through.* In a ring (`ring/`) each place runs its layers and sends rows on. Several batches
//!   are in flight, and OPEN goes round like them: the master hears of all nodes through two neighbours, and nodes tell
//!   it which node they miss. In a team (`team/`) all nodes run each layer at the same time and exchange what they
//!   computed: one batch at a time, and the lead has links to all.
//! - *Moving.* Only layers move with their KV; shares of rows do not, and a team that changes recomputes its
//!   streams.
//! - *The caller.* A ring is polled: its machine returns the next thing to compute. A team's pass calls its
//!   gathers in the middle of a layer, and waits there.

mod agreed;
mod blame;
mod every;
mod membership;
mod notice;
mod patience;
mod phase;
mod roll;
mod setbacks;

pub(crate) use agreed::{Agreed, Broken};
pub(crate) use blame::Blame;
pub(crate) use every::{Every, MISSING_EVERY_US};
pub(crate) use membership::{Membership, Overdue};
pub(crate) use notice::{Notice, Notices};
pub(crate) use patience::Patience;
pub(crate) use phase::{Moving, Phase};
pub(crate) use roll::{Expected, Roll, Ups};
pub use setbacks::Setbacks;
