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
//! - [`desk`] connects those threads with the one that has the engine, between two steps of its work.
//!
//! Nothing here prints, ends the process or reads a flag. [`events`] says what happens, as data.

pub(crate) mod admission;
pub(crate) mod ahead;
pub(crate) mod boards;
pub(crate) mod caller;
pub(crate) mod desk;
pub(crate) mod error;
pub(crate) mod events;
mod experience;
pub(crate) mod figures;
pub(crate) mod form;
mod hold;
pub(crate) mod interrupt;
mod keeper;
pub(crate) mod layers;
pub(crate) mod load;
pub(crate) mod members;
pub(crate) mod moves;
pub(crate) mod place;
mod prepare;
mod replan;
pub(crate) mod roll;
pub(crate) mod rows;
mod search;
pub(crate) mod settings;
mod shares;
pub(crate) mod split;
pub(crate) mod team_plan;
pub(crate) mod team_seat;
#[cfg(all(test, feature = "demo"))]
mod tests;
pub(crate) mod wanted;
mod watch;
