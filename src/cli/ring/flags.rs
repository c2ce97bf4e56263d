//! What a command's options say of a ring.

use std::path::PathBuf;
use std::time::Duration;

use super::carrier::CarrierKind;
use super::origin::Origin;
use crate::wire::Dtype;

/// Seconds that a master waits for progress.
const TIMEOUT_S: u64 = 120;

/// What is said of a ring, by a command's options.
pub(in crate::cli) struct RingFlags {
    pub(in crate::cli) is_master: bool,
    /// The ring file.
    pub(in crate::cli) file: Option<PathBuf>,
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
    pub(in crate::cli) wire: Dtype,
    /// Seconds that a master waits for progress, if not [`TIMEOUT_S`]; 0 for ever.
    pub(in crate::cli) timeout_s: Option<u64>,
    /// Microseconds to look for datagrams before sleeping.
    pub(in crate::cli) busy_poll: Option<u16>,
    pub(in crate::cli) is_quiet: bool,
}

impl RingFlags {
    /// How long a master waits for progress; `None` for ever.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let seconds = self.timeout_s.unwrap_or(TIMEOUT_S);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }
}
