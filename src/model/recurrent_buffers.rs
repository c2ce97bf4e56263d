//! Buffers of recurrent layers: states, and the rows of a batch between a layer's projections.

use super::state::StateShape;
use crate::arena::{Carver, Exhausted};
use crate::format::model::Mixer;

/// Everything that recurrent layers write, besides what all layers do. Empty in models without them.
pub(super) struct RecurrentBuffers<'a> {
    pub(super) rows: MixRows<'a>,
    /// States of heads, `[layer, unit, slot, row, column]`.
    pub(super) matrices: &'a mut [f32],
    /// Last inputs of convolutions, `[layer, slot, taps - 1, channel]`, the oldest first.
    pub(super) histories: &'a mut [f32],
    /// `[layer, stream, REWIND_ROWS, channels + controls]`.
    pub(super) journal: &'a mut [f32],
}

/// Rows of a batch between a recurrent layer's projections.
pub(super) struct MixRows<'a> {
    /// Projections to the convolution's inputs, and to the output's gate, `[batch, in_rows + gate_rows]`.
    pub(super) projected: &'a mut [f32],
    /// Projections to controls, then controls, `[batch, n_controls]`.
    pub(super) controls: &'a mut [f32],
    /// Outputs of the convolution, `[batch, channels]`.
    pub(super) convolved: &'a mut [f32],
    /// Outputs of the recurrence, `[unit, batch, columns]`.
    pub(super) outputs: &'a mut [f32],
}

impl<'a> RecurrentBuffers<'a> {
    /// Takes the buffers for batches of `max_batch` rows, in a model of width `dim`.
    pub(super) fn carve(
        state: Option<StateShape>,
        (dim, max_batch): (usize, usize),
        carver: &mut Carver<'a>,
    ) -> Result<RecurrentBuffers<'a>, Exhausted> {
        let rows = |width: fn(&Mixer, usize) -> usize| {
            state.map_or(0, |state| max_batch.saturating_mul(width(&state.mixer, dim)))
        };
        let layers = |len: fn(&StateShape) -> usize| {
            state.map_or(0, |state| len(&state).saturating_mul(state.n_layers))
        };
        Ok(RecurrentBuffers {
            rows: MixRows {
                projected: carver.take("mixed", rows(|m, dim| m.in_rows(dim) + m.gate_rows()))?,
                controls: carver.take("controls", rows(|m, _| m.n_controls()))?,
                convolved: carver.take("convolved", rows(Mixer::channels))?,
                outputs: carver.take("recurrence", rows(Mixer::out_cols))?,
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
        let MixRows { projected, controls, convolved, outputs } = rows;
        let rows = MixRows { projected, controls, convolved, outputs };
        RecurrentBuffers { rows, matrices, histories, journal }
    }
}
