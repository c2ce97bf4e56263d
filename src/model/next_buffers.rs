//! Buffers of the block that guesses the token after the next.

use super::Share;
use super::plan::Plan;
use super::state::REWIND_ROWS;
use crate::arena::{Carver, Exhausted};
use crate::format::model::Header;

/// Hidden states that are kept of each stream: those of its last positions, since drafts may be rejected.
pub(super) const KEPT: usize = REWIND_ROWS;

/// Buffers of the block; empty if the share lacks it.
pub(super) struct NextBuffers<'a> {
    /// Embeddings of the batch, `[batch, dim]`.
    pub(super) embedded: &'a mut [f32],
    /// Room for the batch's rows, `[batch, dim]`.
    pub(super) rows: &'a mut [f32],
    /// Final hidden states of the streams' last positions, `[n_streams, KEPT, dim]`.
    pub(super) kept: &'a mut [f32],
}

impl<'a> NextBuffers<'a> {
    pub(super) fn carve(
        header: &Header,
        share: &Share,
        plan: &Plan,
        carver: &mut Carver<'a>,
    ) -> Result<NextBuffers<'a>, Exhausted> {
        let dim = if share.has_next(header) { header.dim } else { 0 };
        let rows = plan.max_batch.saturating_mul(dim);
        let kept = plan.n_streams.saturating_mul(KEPT).saturating_mul(dim);
        Ok(NextBuffers {
            embedded: carver.take("embeddings for guesses", rows)?,
            rows: carver.take("rows beside guesses", rows)?,
            kept: carver.take("hidden states for guesses", kept)?,
        })
    }

    /// The buffers, borrowed for a shorter time.
    pub(super) fn whole(&mut self) -> NextBuffers<'_> {
        let NextBuffers { embedded, rows, kept } = self;
        NextBuffers { embedded, rows, kept }
    }
}
