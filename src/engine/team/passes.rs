//! What a node's passes gather with, and where their time goes.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::model::{ForwardError, Gather, GatherError, To};
use crate::team::{Gathered, Lead, Member, TeamError};

/// Where the time of passes went, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeamTimes {
    /// Passes.
    pub passes: u64,
    /// Rows of them.
    pub rows: u64,
    /// From the beginning of each to its end.
    pub whole: Duration,
    /// In gathers: moving bytes, and waiting for other nodes.
    pub gathering: Duration,
    /// Gathers.
    pub gathers: u64,
}

impl TeamTimes {
    /// What it spent on computing.
    pub fn computing(&self) -> Duration {
        self.whole.saturating_sub(self.gathering)
    }
}

/// A team's node, as a pass calls it.
pub(super) struct Gathering<'a, N> {
    pub(super) node: &'a mut N,
    pub(super) times: &'a mut TeamTimes,
}

/// What lead and members have in common.
pub(super) trait TeamNode {
    fn gather(&mut self, rows: Gathered<'_>) -> Result<(), TeamError>;
}

impl TeamNode for Lead {
    fn gather(&mut self, rows: Gathered<'_>) -> Result<(), TeamError> {
        Lead::gather(self, rows)
    }
}

impl TeamNode for Member {
    fn gather(&mut self, rows: Gathered<'_>) -> Result<(), TeamError> {
        Member::gather(self, rows)
    }
}

impl<N: TeamNode> Gather for Gathering<'_, N> {
    fn gather(
        &mut self,
        bytes: &mut [u8],
        row_bytes: usize,
        parts: &[Range<usize>],
        to: To,
    ) -> Result<(), ForwardError> {
        let to = match to {
            To::All => crate::team::To::All,
            To::Lead => crate::team::To::Lead,
        };
        let start = Instant::now();
        let result = self.node.gather(Gathered { bytes, row_bytes, parts, to });
        self.times.gathering += start.elapsed();
        self.times.gathers += 1;
        result.map_err(|error| match error {
            TeamError::Lost { node } => ForwardError::Gather(GatherError::Lost { node }),
            TeamError::Interrupted => ForwardError::Interrupted,
            _ => ForwardError::Gather(GatherError::Superseded),
        })
    }
}
