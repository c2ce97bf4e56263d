//! A board's settings among the boards that it works with.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::boards::{Boards, Origin};
use super::events::{Deaf, Teller};
use super::figures::Own;
use super::members::Fleet;
use crate::ring::plan::Objective;
use crate::transport::carrier::Carrier;
use crate::wire::Dtype;
use crate::wire::seal::Key;

/// Time that a master waits for progress, unless a user sets another.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which a called board may be away, unless a user sets another.
const AWAY_FOR: Duration = Duration::from_secs(60);

/// A board's settings among the boards that it works with. [`Settings::new`] has the usual ones.
#[derive(Clone)]
pub struct Settings {
    /// The boards that this one works with.
    pub boards: Boards,
    /// Option by which the user named the boards, for errors of the command line.
    pub(crate) named_by: &'static str,
    /// True if this board takes prompts and leads the others.
    pub is_master: bool,
    /// Name of this board; `None` on a master if it is the first.
    pub node: Option<String>,
    /// Settings of this board's links.
    pub links: LinkSettings,
    /// The wishes of a master.
    pub wishes: Wishes,
    /// TCP port on which this board gives others their layers.
    pub gives: Option<u16>,
    /// Source of this board's layers, if it has no model file.
    pub gets: Option<Origin>,
    /// Socket at which a master answers questions about its boards.
    pub control: ControlPlace,
    /// Figures of this machine.
    pub figures: KnownFigures,
    /// The boards that a master called.
    pub(crate) fleet: Option<Fleet>,
    /// Listener of events.
    pub events: Teller,
}

impl Settings {
    /// The usual settings of the master of these boards, or of a worker: datagrams or the kernel module, exact
    /// activations, no key, and no listener of events. A called board may be away for a minute before the others
    /// take its part.
    pub fn new(boards: Boards, is_master: bool) -> Settings {
        let patience = matches!(boards, Boards::Called(..)).then_some(AWAY_FOR);
        Settings {
            boards,
            named_by: "",
            is_master,
            node: None,
            links: LinkSettings {
                carrier: Carrier::Auto,
                host: None,
                port: None,
                key: None,
                wire: Dtype::F32,
                busy_poll: None,
                timeout: Some(TIMEOUT),
            },
            wishes: Wishes { objective: Objective::Latency, patience, is_taking: false },
            gives: None,
            gets: None,
            control: ControlPlace::Off,
            figures: KnownFigures::default(),
            fleet: None,
            events: Arc::new(Deaf),
        }
    }
}

/// Settings of a board's links.
#[derive(Clone)]
pub struct LinkSettings {
    /// The carrier of the links.
    pub carrier: Carrier,
    /// Host at which this board listens, if not at the address that others have of it.
    pub host: Option<String>,
    /// Port at which this board listens, if it is not the usual one or the one of a file.
    pub port: Option<u16>,
    /// The key that all boards share.
    pub key: Option<Key>,
    /// Type of activations on the wire.
    pub wire: Dtype,
    /// Microseconds to look for datagrams before sleeping.
    pub busy_poll: Option<u16>,
    /// Longest time that a master waits for progress; `None` for ever.
    pub timeout: Option<Duration>,
}

/// Figures of a machine that need not be measured.
#[derive(Clone, Default)]
pub struct KnownFigures {
    /// Milliwatts at rest and at work, if the user states them.
    pub milliwatts: Option<(u32, u32)>,
    /// Speeds and memory, if a test gives them.
    pub(crate) own: Option<Own>,
}

/// A master's wishes for the boards that it calls.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Goal of a ring's plan.
    pub objective: Objective,
    /// Time for which a board is away, or another plan better, before parts move; `None` for ever.
    pub patience: Option<Duration>,
    /// True if boards are taken from other masters.
    pub is_taking: bool,
}

/// Socket at which a master answers questions about its boards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlPlace {
    /// A socket in the user's folder.
    Auto,
    /// This socket.
    At(PathBuf),
    /// None.
    Off,
}
