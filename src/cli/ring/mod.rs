//! Commands among boards: values of options, the start of a master, answers to `leap ring`, and messages about events.

mod begin;
mod command;
mod control;
mod events;
mod flags;
mod status;
mod team;
mod tell;
mod work;

pub(super) use begin::{announce, begin, load, step_failure, thermometer};
pub(super) use command::Ring;
pub(super) use control::Control;
pub(super) use events::events;
pub(super) use flags::{
    RebalanceAfter, control as control_place, patience, rebalance_after, timeout, transport, wire,
};

/// Rows of a prompt that go round at once: small enough that all nodes have some.
pub(super) const BATCH: usize = 64;
