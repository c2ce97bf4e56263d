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
    /// Option by which the user named the boards, for errors.
    pub(crate) named_by: &'static str,
    /// True if this board takes prompts and leads the others.
    pub(crate) is_master: bool,
    /// Name of this board; `None` on a master if it is the first.
    pub(crate) node: Option<String>,
    pub(crate) links: LinkSettings,
    pub(crate) wishes: Wishes,
    /// TCP port on which this board gives others their layers.
    pub(crate) gives: Option<u16>,
    /// Source of this board's layers, if it has no model file.
    pub(crate) gets: Option<Origin>,
    /// Socket at which a master answers questions about its boards.
    pub(crate) control: ControlPlace,
    /// Milliwatts of this machine at rest and at work, if the user states them.
    pub(crate) milliwatts: Option<(u32, u32)>,
    /// The boards that a master called.
    pub(crate) fleet: Option<Fleet>,
    /// Listener of events.
    pub(crate) events: Teller,
}

/// Settings of a board's links.
#[derive(Clone)]
pub(crate) struct LinkSettings {
    pub(crate) carrier: Carrier,
    /// Host at which this board listens, if not at the address that others have of it.
    pub(crate) host: Option<String>,
    pub(crate) port: Option<u16>,
    /// The key that all boards share.
    pub(crate) key: Option<Key>,
    /// Type of activations on the wire.
    pub(crate) wire: Dtype,
    /// Microseconds to look for datagrams before sleeping.
    pub(crate) busy_poll: Option<u16>,
    /// Longest time that a master waits for progress; `None` for ever.
    pub(crate) timeout: Option<Duration>,
}

/// A master's wishes for the boards that it calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// Goal of a ring's plan.
    pub(crate) objective: Objective,
    /// Time for which a board is away, or another plan better, before parts move; `None` for ever.
    pub(crate) patience: Option<Duration>,
    /// True if boards are taken from other masters.
    pub(crate) is_taking: bool,
}

/// Socket at which a master answers questions about its boards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlPlace {
    /// A socket in the user's folder.
    Auto,
    /// This socket.
    At(PathBuf),
    /// None.
    Off,
}
