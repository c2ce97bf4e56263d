//! Simulated teams: leads and members, each in a thread of its own. One thread runs at a time, and the time alone
//! decides which.

mod nodes;
mod scenario;
mod shape;
mod speed;

pub(super) use scenario::check;
