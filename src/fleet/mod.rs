//! Boards that work together: which are there, their speeds, their parts of a model, and how parts move.
//!
//! A board is a machine with LEAP. One of them, the master, takes prompts, and the others work for it. A *ring* divides
//! the layers of a model among them, a *team* the rows of every layer. [`Settings`] say which boards there are
//! ([`Boards`]):
//!
//! - [`Boards::Called`]: the master calls boards that wait, measures them, divides the model, and changes the parts when a
//!   board leaves, comes, or turns out to be slower. The others need only the key, and get their layers from the master.
//! - [`Boards::Layers`] and [`Boards::Shares`]: a file says which part each board has.
//! - [`Boards::of_file`] reads a file of any kind.
//!
//! The master, with a model file:
//!
//! ```no_run
//! use leap::engine::{Options, Scheduler, WeightsPlace};
//! use leap::fleet::{Boards, Key, Led, Settings, Shape, Sought};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let secret = [0; 32];
//! let mut settings = Settings::new(Boards::Called(Sought::Auto(9998), Shape::Ring), true);
//! settings.links.key = Some(Key::new(secret));
//! let place = WeightsPlace { model: Some("llama.bin".into()), ..WeightsPlace::default() };
//! let (mut engine, boards) = Led::start(&mut settings, &place, &Options::default())?;
//! let mut scheduler = Scheduler::new(&mut engine, 1, None)?;
//! loop {
//!     // Submit jobs; parts move between two steps.
//!     boards.iter().for_each(|boards| boards.visit(&mut engine));
//!     scheduler.step(&mut engine, &mut |_, _| {});
//! }
//! # }
//! ```
//!
//! Each of the others, which works until a signal or its [`Stop`] ends it:
//!
//! ```no_run
//! use leap::engine::WeightsPlace;
//! use leap::fleet::{Boards, Key, Settings, Worker};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let secret = [0; 32];
//! let mut settings = Settings::new(Boards::Waiting(9998), false);
//! settings.node = Some("pi".to_owned());
//! settings.links.key = Some(Key::new(secret));
//! Worker::new(&settings, WeightsPlace::default()).work()?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Events`] tell a program what happens to its boards, as data. `examples/ring.rs` has a master and a worker in one
//! process.
//!
//! # Files
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
//! **Settings and events.** `settings` and `boards` hold a board's settings, `wanted` a master's wishes, `events`
//! what happens, `error` why a board has no part, `interrupt` when work ends.
//!
//! **Start of a master.** `master` runs it. `gather` calls the boards: `speeds` measures this board and `figures` keeps the result. `form`
//! finds (`search`) and calls (`roll`, with a `caller`) boards, leaves out those that cannot serve (`admission`),
//! and divides the model by its `load`: by layers (`split`) or by rows (`shares`, `team_plan`). `leap plan` also
//! divides it among teams in a ring (`teams_plan`).
//!
//! **Boards of a master.** `members` knows them, and `hold` keeps other masters from taking them. `keeper` leaves out
//! absent boards, takes in new ones, and moves parts to faster ones, as `watch` decides: `layers` of a ring by
//! `replan`, `rows` of a team; `experience` holds observed speeds. `moves` changes a ring, also on
//! `requests` of users; `prepare` calls the boards for that. `mailbox` connects these threads with
//! the engine's, and `seen` is the known state.
//!
//! **A board's own part.** `place` and `team_seat` find it in the settings, `links` opens its links, `weights`
//! prepares its weights. `ring_board` and `team_board` have an engine do it. `give` gives layers to other boards.
//!
//! **A worker.** `worker` does a part for any master: it waits for `orders`, gets its layers (`obtain`), packs layers
//! `ahead` while it works, and reports its `readiness`.
//!
//! Nothing here prints, ends the process or reads a flag.

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
mod give;
mod hold;
pub(crate) mod interrupt;
mod keeper;
mod layers;
mod links;
pub(crate) mod load;
mod mailbox;
pub(crate) mod master;
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
pub(crate) mod seen;
pub(crate) mod settings;
mod shares;
mod speeds;
pub(crate) mod split;
mod team_board;
pub(crate) mod team_plan;
mod team_seat;
pub(crate) mod teams_plan;
#[cfg(all(test, feature = "demo"))]
mod tests;
mod wanted;
mod watch;
mod weights;
pub(crate) mod worker;

pub use crate::ring::Address;
pub use crate::ring::plan::Objective;
pub use crate::transport::carrier::Carrier;
pub use crate::wire::Dtype;
pub use crate::wire::seal::Key;
pub use boards::{Boards, Origin, RingFile, Sought};
pub use error::PartError;
pub use events::{Event, Events, Shape, Teller};
pub use interrupt::Stop;
pub use master::Led;
pub use ring_board::Sensors;
pub use settings::{ControlPlace, KnownFigures, LinkSettings, Settings, Wishes};
pub use worker::{Most, Worker};
