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
//! - [`form`] divides a model among boards at the start of a master.
//! - [`keeper`] looks after them during work: it leaves out absent boards, takes in new ones, and moves parts
//!   of the model to quicker boards.
//! - [`mailbox`] connects those threads with the one that has the engine, between two steps of its work.
//! - [`settings`] says which boards there are, and this one's part; [`ring_board`] and [`team_board`] have an engine do
//!   it, as a master or a lead.
//! - [`worker`] is a board that does its part for any master: it waits for `orders`, gets (`obtain`) its layers, and
//!   reports how far it is (`readiness`).
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
