//! Code that leads and members share: a node's description of itself, and the exchange that its passes use.

use crate::model::{
    ForwardError, Gather, GatherError, SpreadRows, Stage, StageInfo, To, Transformer,
};
use crate::team::{Gathered, Lead, Member, NodeLine, TeamError, UNDER_WAY_MAX, started_max};
use crate::wire::hello;

/// A team node's description of itself.
pub(super) fn line(transformer: &Transformer, name: &str) -> NodeLine {
    let StageInfo { device, threads, .. } = transformer.about();
    NodeLine {
        name: hello::name(name),
        isa: heapless::String::try_from(device).unwrap_or_default(),
        threads: threads as u16,
        bytes_per_token: transformer.bytes_per_token(),
        embeds: transformer.model().header().slice().is_none(),
        ..NodeLine::default()
    }
}

/// Converts the error of a pass to that of a stage.
pub(super) fn forward_error(error: TeamError) -> ForwardError {
    match error {
        TeamError::Lost { node } => ForwardError::Gather(GatherError::Lost { node }),
        TeamError::Interrupted => ForwardError::Interrupted,
        _ => ForwardError::Gather(GatherError::Superseded),
    }
}

/// A node of a team, in the form that a pass uses.
pub(super) struct Gathering<'a, N>(pub(super) &'a mut N);

/// Operations that lead and members share.
pub(super) trait TeamNode {
    fn n_nodes(&self) -> usize;
    fn gather(&mut self, rows: Gathered<'_>) -> Result<(), TeamError>;
    fn start_gather(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), TeamError>;
    fn finish_gather(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), TeamError>;
}

impl TeamNode for Lead {
    fn n_nodes(&self) -> usize {
        Lead::n_nodes(self)
    }

    fn gather(&mut self, rows: Gathered<'_>) -> Result<(), TeamError> {
        Lead::gather(self, rows)
    }

    fn start_gather(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), TeamError> {
        Lead::start_gather(self, rows)
    }

    fn finish_gather(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), TeamError> {
        Lead::finish_gather(self, rows)
    }
}

impl TeamNode for Member {
    fn n_nodes(&self) -> usize {
        Member::n_nodes(self)
    }

    fn gather(&mut self, rows: Gathered<'_>) -> Result<(), TeamError> {
        Member::gather(self, rows)
    }

    fn start_gather(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), TeamError> {
        Member::start_gather(self, rows)
    }

    fn finish_gather(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), TeamError> {
        Member::finish_gather(self, rows)
    }
}

impl<N: TeamNode> Gather for Gathering<'_, N> {
    fn gather(&mut self, mut rows: SpreadRows<'_>) -> Result<(), ForwardError> {
        self.0.gather(gathered(&mut rows)).map_err(forward_error)
    }

    fn start_max(&self) -> usize {
        started_max(self.0.n_nodes())
    }

    fn start(&mut self, rows: &mut [SpreadRows<'_>]) -> Result<(), ForwardError> {
        self.0.start_gather(&mut all_gathered(rows)).map_err(forward_error)
    }

    fn finish(&mut self, rows: &mut [SpreadRows<'_>]) -> Result<(), ForwardError> {
        self.0.finish_gather(&mut all_gathered(rows)).map_err(forward_error)
    }
}

/// Converts rows for the team's gathers.
fn gathered<'a>(rows: &'a mut SpreadRows<'_>) -> Gathered<'a> {
    let to = match rows.to {
        To::All => crate::team::To::All,
        To::Lead => crate::team::To::Lead,
    };
    Gathered { bytes: rows.bytes, row_bytes: rows.row_bytes, parts: rows.parts, to }
}

fn all_gathered<'a>(rows: &'a mut [SpreadRows<'_>]) -> heapless::Vec<Gathered<'a>, UNDER_WAY_MAX> {
    rows.iter_mut().map(gathered).collect()
}
