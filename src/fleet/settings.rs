//! A board's settings among the boards that it works with.

use std::path::PathBuf;
use std::time::Duration;

use super::boards::{Boards, Origin};
use super::events::Teller;
use super::members::Fleet;
use crate::ring::plan::Objective;
use crate::transport::carrier::Carrier;
use crate::wire::Dtype;
use crate::wire::seal::Key;

/// A board's settings among the boards that it works with.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) boards: Boards,
    /// How the user named them, which errors repeat.
    pub(crate) named_by: &'static str,
    /// Whether this board takes prompts and leads the others.
    pub(crate) is_master: bool,
    /// Which of the boards this one is: on a master the first unless this says otherwise.
    pub(crate) node: Option<String>,
    pub(crate) links: LinkSettings,
    pub(crate) wishes: Wishes,
    /// TCP port on which this board gives others their layers.
    pub(crate) gives: Option<u16>,
    /// Where this board gets its layers, if it has no model file.
    pub(crate) gets: Option<Origin>,
    /// Where a master is asked about its boards.
    pub(crate) control: ControlPlace,
    /// Milliwatts of this machine at rest and at work, if the user states them.
    pub(crate) milliwatts: Option<(u32, u32)>,
    /// The boards that a master called.
    pub(crate) fleet: Option<Fleet>,
    /// Hears what happens.
    pub(crate) events: Teller,
}

/// How a board's links travel.
#[derive(Clone)]
pub(crate) struct LinkSettings {
    pub(crate) carrier: Carrier,
    /// Where this board listens, if not at the address that others have of it.
    pub(crate) host: Option<String>,
    pub(crate) port: Option<u16>,
    /// The key that all boards share.
    pub(crate) key: Option<Key>,
    /// How activations travel.
    pub(crate) wire: Dtype,
    /// Microseconds to look for datagrams before sleeping.
    pub(crate) busy_poll: Option<u16>,
    /// How long a master waits for progress; `None` for ever.
    pub(crate) timeout: Option<Duration>,
}

/// A master's wishes for the boards that it calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// Goal of a ring's plan.
    pub(crate) objective: Objective,
    /// How long a board may be away, or another plan be better, before parts move; `None` for ever.
    pub(crate) patience: Option<Duration>,
    /// Whether boards are taken from other masters.
    pub(crate) is_taking: bool,
}

/// Where a master is asked about its boards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlPlace {
    /// At a socket in the user's folder.
    Auto,
    /// At this socket.
    At(PathBuf),
    /// Nowhere.
    Off,
}
