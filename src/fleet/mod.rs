//! Boards that work together: which are there, their speeds, their parts of a model, and how parts move.
//!
//! ```text
//!  search ── roll ── form          the start: boards are found and called, measured, the model is divided
//!              │       │           among them, and each is told its part
//!        admission   load, team_plan
//!                      │
//!                   members        the boards that were called, as long as the master lives
//!                    │    │
//!                  hold   watch ── keeper ── layers (a ring), rows (a team)
//!                                    │
//!                                   moves  a better plan is prepared, told and taken
//! ```
//!
//! **Settings and events.** [`settings`] and [`boards`] hold a board's settings, [`wanted`] a master's wishes, [`events`]
//! what happens, [`error`] why a board has no part, [`interrupt`] when work ends.
//!
//! **Start of a master.** [`gather`] runs it: [`speeds`] measures this board and [`figures`] keeps the result. [`form`]
//! finds ([`search`]) and calls ([`roll`], with a [`caller`]) boards, leaves out those that cannot serve ([`admission`]),
//! and divides the model by its [`load`]: by layers ([`split`]) or by rows ([`shares`], [`team_plan`]). `leap plan` also
//! divides it among teams in a ring ([`teams_plan`]).
//!
//! **Boards of a master.** [`members`] knows them, and [`hold`] keeps other masters from taking them. [`keeper`] leaves out
//! absent boards, takes in new ones, and moves parts to faster ones, as [`watch`] decides: [`layers`] of a ring by
//! [`replan`], [`rows`] of a team; [`experience`] holds observed speeds. [`moves`] changes a ring, also on
//! [`requests`] of users; [`prepare`] calls the boards for that. [`mailbox`] connects these threads with the engine's.
//!
//! **A board's own part.** [`place`] and [`team_seat`] find it in the settings, [`links`] opens its links, [`weights`]
//! prepares its weights. [`ring_board`] and [`team_board`] have an engine do it. [`give`] gives layers to other boards.
//!
//! **A worker.** [`worker`] does a part for any master: it waits for [`orders`], gets its layers ([`obtain`]), packs layers
//! [`ahead`] while it works, and reports its [`readiness`].
//!
//! Nothing here prints, ends the process or reads a flag. [`events`] says what happens, as data.

pub(crate) mod admission;
mod ahead;
pub(crate) mod boards;
mod caller;
pub(crate) mod error;
pub(crate) mod events;
mod experience;
mod figures;
mod form;
pub(crate) mod gather;
pub(crate) mod give;
mod hold;
pub(crate) mod interrupt;
mod keeper;
mod layers;
mod links;
pub(crate) mod load;
pub(crate) mod mailbox;
mod members;
pub(crate) mod moves;
mod obtain;
mod orders;
mod place;
mod prepare;
mod readiness;
mod replan;
pub(crate) mod requests;
pub(crate) mod ring_board;
mod roll;
mod rows;
#[cfg(test)]
mod sample;
mod search;
pub(crate) mod settings;
mod shares;
mod speeds;
pub(crate) mod split;
pub(crate) mod team_board;
pub(crate) mod team_plan;
mod team_seat;
pub(crate) mod teams_plan;
#[cfg(all(test, feature = "demo"))]
mod tests;
mod wanted;
mod watch;
mod weights;
pub(crate) mod worker;
