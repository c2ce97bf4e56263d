//! A ring by a command's options.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::carrier::CarrierKind;
use super::origin::Origin;
use crate::cli::Failure;
use crate::cli::power::StatedWatts;
use crate::fleet::members::Fleet;
use crate::fleet::wanted::Boards;
use crate::format::text_without_mark;
use crate::ring::Topology;
use crate::ring::plan::Objective;
use crate::wire::Dtype;

/// Seconds that a master waits for progress.
const TIMEOUT_S: u64 = 120;
/// How long a board that is called may be away, unless the user sets another time.
const REBALANCE_AFTER: Duration = Duration::from_secs(60);

/// A line for each node.
#[derive(Clone, Debug)]
pub(in crate::cli) enum RingFile {
    /// In this file.
    At(PathBuf),
    /// This text, which the master has made.
    Told(String),
}

impl RingFile {
    pub(in crate::cli) fn read(&self) -> Result<Topology, Failure> {
        let told;
        let text = match self {
            RingFile::At(path) => {
                told = fs::read_to_string(path).map_err(|e| Failure::unreadable(path, &e))?;
                &told
            }
            RingFile::Told(text) => text,
        };
        Topology::parse(text_without_mark(text)).map_err(|e| self.is_bad(&e))
    }

    /// Error about the file.
    pub(super) fn is_bad(&self, what: &dyn fmt::Display) -> Failure {
        Failure::Input(format!("{self}: {what}"))
    }
}

impl fmt::Display for RingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingFile::At(path) => write!(f, "{}", path.display()),
            RingFile::Told(_) => write!(f, "the master's ring"),
        }
    }
}

/// Where a master is asked about its ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum ControlPlace {
    /// At a socket in the user's folder.
    Auto,
    /// At this one.
    At(PathBuf),
    /// Nowhere.
    Off,
}

/// `auto`, `off` or a path.
pub(in crate::cli) fn control(value: &str) -> Result<ControlPlace, String> {
    match value {
        "" => Err("wanted a path, auto or off".to_owned()),
        "auto" => Ok(ControlPlace::Auto),
        "off" => Ok(ControlPlace::Off),
        path => Ok(ControlPlace::At(PathBuf::from(path))),
    }
}

/// How long a board that is called may be away before the ring does without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum RebalanceAfter {
    /// For ever: layers move only on request.
    Off,
    /// After this time.
    Time(Duration),
}

/// `off`, or seconds.
pub(in crate::cli) fn rebalance_after(value: &str) -> Result<RebalanceAfter, String> {
    match (value, value.parse()) {
        ("off", _) => Ok(RebalanceAfter::Off),
        (_, Ok(seconds @ 1..=86400)) => Ok(RebalanceAfter::Time(Duration::from_secs(seconds))),
        _ => Err(format!("{value:?} is neither off nor a number of seconds from 1 to 86400")),
    }
}

/// Options of a command that concern the ring.
#[derive(Clone)]
pub(in crate::cli) struct RingFlags {
    pub(in crate::cli) is_master: bool,
    pub(in crate::cli) file: Option<RingFile>,
    /// Which node of it this is.
    pub(in crate::cli) node: Option<String>,
    /// Without a file: the layers of the master; a worker's first.
    pub(in crate::cli) split: Option<usize>,
    /// Without a file: the layer after a worker's last.
    pub(in crate::cli) end: Option<usize>,
    pub(in crate::cli) transport: CarrierKind,
    /// Where this board listens.
    pub(in crate::cli) host: Option<String>,
    pub(in crate::cli) port: Option<u16>,
    /// Without a file: the next board.
    pub(in crate::cli) next_host: Option<String>,
    pub(in crate::cli) next_port: Option<u16>,
    /// File with the key that all boards share.
    pub(in crate::cli) key: Option<PathBuf>,
    /// TCP port on which a master gives other boards their layers.
    pub(in crate::cli) give: Option<u16>,
    /// Where a worker without a model gets its layers.
    pub(in crate::cli) fetch: Option<Origin>,
    /// TCP port on which a worker waits to be called.
    pub(in crate::cli) join: Option<u16>,
    /// Boards that a master calls.
    pub(in crate::cli) boards: Option<Boards>,
    /// Whether it takes those that work for another master.
    pub(in crate::cli) is_taking: bool,
    /// Whether they share every layer by rows.
    pub(in crate::cli) is_team: bool,
    /// For what it divides a model among them.
    pub(in crate::cli) objective: Objective,
    pub(in crate::cli) wire: Dtype,
    /// Seconds that a master waits for progress, if not [`TIMEOUT_S`]; 0 for ever.
    pub(in crate::cli) timeout_s: Option<u64>,
    /// Microseconds to look for datagrams before sleeping.
    pub(in crate::cli) busy_poll: Option<u16>,
    /// Where a master is asked about its ring.
    pub(in crate::cli) control: ControlPlace,
    /// How long a board may be away, or another split be better, before layers move by themselves; `None` for ever.
    pub(in crate::cli) rebalance_after: Option<Duration>,
    /// The machine's power, if the user states it.
    pub(in crate::cli) watts: Option<StatedWatts>,
    /// The boards that were called.
    pub(in crate::cli) fleet: Option<Fleet>,
    pub(in crate::cli) is_quiet: bool,
}

impl RingFlags {
    /// Whether the master decides the layers of each node.
    pub(in crate::cli) fn is_told(&self) -> bool {
        matches!(self.file, Some(RingFile::Told(_)))
    }

    /// The time after which layers move: with --boards there is one unless `value` says otherwise.
    pub(in crate::cli) fn rebalance(
        value: Option<RebalanceAfter>,
        has_boards: bool,
    ) -> Option<Duration> {
        match value {
            Some(RebalanceAfter::Time(time)) => Some(time),
            None if has_boards => Some(REBALANCE_AFTER),
            None | Some(RebalanceAfter::Off) => None,
        }
    }

    /// Where the board of this name is, if there is a ring file that says so.
    pub(in crate::cli) fn host_of(&self, name: &str) -> Option<String> {
        let topology = self.file.as_ref()?.read().ok()?;
        let member = topology.members().iter().find(|member| member.name == name)?;
        Some(member.address.host.clone())
    }

    /// A lost ring, with what its boards say why they do not serve.
    pub(in crate::cli) fn with_reasons(&self, failure: Failure) -> Failure {
        let unfit = self.fleet.as_ref().and_then(|fleet| fleet.holds.unfit());
        match (failure, unfit) {
            (Failure::Ring(what), Some(unfit)) => Failure::Ring(format!("{what}; {unfit}")),
            (failure, _) => failure,
        }
    }

    /// How long a master waits for progress; `None` for ever.
    pub(in crate::cli) fn timeout(&self) -> Option<Duration> {
        let seconds = self.timeout_s.unwrap_or(TIMEOUT_S);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }
}
