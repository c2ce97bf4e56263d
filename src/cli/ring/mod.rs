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

pub(super) use begin::{begin, load, step_failure, thermometer};
pub(super) use command::Ring;
pub(super) use control::Control;
pub(super) use events::events;
pub(super) use flags::{
    RebalanceAfter, control as control_place, rebalance_after, timeout, transport, wire,
};
