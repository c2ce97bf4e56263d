//! Buffers of recurrent layers: states, and the rows of a batch between a layer's projections.

use super::state::StateShape;
use crate::arena::{Carver, Exhausted};

/// Everything that recurrent layers write, besides what all layers do. Empty in models without them.
pub(super) struct RecurrentBuffers<'a> {
    pub(super) rows: MixBuffers<'a>,
    /// States of heads, `[layer, unit, slot, row, column]`.
    pub(super) matrices: &'a mut [f32],
    /// Last inputs of convolutions, `[layer, slot, taps - 1, channel]`, the oldest first.
    pub(super) histories: &'a mut [f32],
    /// `[layer, stream, REWIND_ROWS, channels + controls]`.
    pub(super) journal: &'a mut [f32],
}

/// Rows of a batch between a recurrent layer's projections.
pub(super) struct MixBuffers<'a> {
    /// Projections to the convolution's inputs, and to the output's gate, `[batch, in_width]`.
    pub(super) projected: &'a mut [f32],
    /// Projections to controls, then controls, `[batch, n_controls]`.
    pub(super) controls: &'a mut [f32],
    /// Outputs of the convolution, `[batch, channels]`.
    pub(super) convolved: &'a mut [f32],
    /// Outputs of the recurrence, `[unit, batch, columns]`.
    pub(super) outputs: &'a mut [f32],
}

impl<'a> RecurrentBuffers<'a> {
    /// Takes the buffers for batches of `max_batch` rows.
    pub(super) fn carve(
        state: Option<StateShape>,
        max_batch: usize,
        carver: &mut Carver<'a>,
    ) -> Result<RecurrentBuffers<'a>, Exhausted> {
        let rows = |width: fn(&StateShape) -> usize| {
            state.map_or(0, |state| max_batch.saturating_mul(width(&state)))
        };
        let layers = |len: fn(&StateShape) -> usize| {
            state.map_or(0, |state| len(&state).saturating_mul(state.n_layers))
        };
        Ok(RecurrentBuffers {
            rows: MixBuffers {
                projected: carver.take("mixed", rows(StateShape::in_width))?,
                controls: carver.take("controls", rows(StateShape::n_controls))?,
                convolved: carver.take("convolved", rows(|state| state.channels))?,
                outputs: carver.take("recurrence", rows(StateShape::out_width))?,
            },
            matrices: carver.take("states", layers(StateShape::matrices_of_layer))?,
            histories: carver.take("histories", layers(StateShape::histories_of_layer))?,
            journal: carver.take("journal of states", layers(StateShape::journals_of_layer))?,
        })
    }

    /// The state in `slot` of the recurrent layer `index`: its history, then its units.
    pub(super) fn state_parts(
        self,
        shape: &StateShape,
        (index, slot): (usize, usize),
    ) -> impl Iterator<Item = &'a mut [f32]> + use<'a> {
        let RecurrentBuffers { matrices, histories, .. } = self;
        let (history_len, unit_len) = (shape.history_len(), shape.unit_len());
        let history = index * shape.histories_of_layer() + slot * history_len;
        let history = &mut histories[history..][..history_len];
        let of_layer = shape.matrices_of_layer();
        let matrices = &mut matrices[index * of_layer..][..of_layer];
        let units = matrices.chunks_exact_mut(shape.slots_of_unit().max(1));
        [history].into_iter().chain(units.map(move |unit| &mut unit[slot * unit_len..][..unit_len]))
    }

    /// All buffers, borrowed for a shorter time.
    pub(super) fn whole(&mut self) -> RecurrentBuffers<'_> {
        let RecurrentBuffers { rows, matrices, histories, journal } = self;
        let MixBuffers { projected, controls, convolved, outputs } = rows;
        let rows = MixBuffers { projected, controls, convolved, outputs };
        RecurrentBuffers { rows, matrices, histories, journal }
    }
}
