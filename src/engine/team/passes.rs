//! What lead and members have in common: what a node says of itself, and what its passes gather with.

use std::ops::Range;

use crate::model::{ForwardError, Gather, GatherError, Stage, StageInfo, To, Transformer};
use crate::team::{Gathered, Lead, Member, TeamError, TeamLine};
use crate::wire::hello;

/// What a node says of itself.
pub(super) fn line(transformer: &Transformer, name: &str) -> TeamLine {
    let StageInfo { device, threads, .. } = transformer.about();
    TeamLine {
        name: hello::name(name),
        isa: heapless::String::try_from(device).unwrap_or_default(),
        threads: threads as u16,
        bytes_per_token: transformer.bytes_per_token(),
        embeds: transformer.model().header().slice().is_none(),
        rtt_us: 0,
    }
}

/// Why a pass came to nothing, as whoever runs it sees it.
pub(super) fn forward_error(error: TeamError) -> ForwardError {
    match error {
        TeamError::Lost { node } => ForwardError::Gather(GatherError::Lost { node }),
        TeamError::Interrupted => ForwardError::Interrupted,
        _ => ForwardError::Gather(GatherError::Superseded),
    }
}

/// A team's node, as a pass calls it.
pub(super) struct Gathering<'a, N>(pub(super) &'a mut N);

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
        parts: &[[Range<usize>; 2]],
        to: To,
    ) -> Result<(), ForwardError> {
        let to = match to {
            To::All => crate::team::To::All,
            To::Lead => crate::team::To::Lead,
        };
        self.0.gather(Gathered { bytes, row_bytes, parts, to }).map_err(forward_error)
    }
}
