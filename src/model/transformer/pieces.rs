//! Pieces in which a recurrent layer's states leave a transformer and come to another.

use super::Transformer;
use crate::model::stage::PiecePlace;
use crate::model::state::{StatePiece, States};

impl Transformer {
    /// Number of pieces of a recurrent layer, see [`Stage::n_state_pieces`](crate::model::Stage::n_state_pieces).
    pub(super) fn n_pieces(&self) -> u32 {
        self.memory.states.as_ref().map_or(0, |states| states.shape.n_pieces() as u32)
    }

    pub(super) fn piece_bytes(&self) -> usize {
        self.memory.states.as_ref().map_or(0, States::piece_bytes)
    }

    pub(super) fn read_piece(&mut self, place: PiecePlace, out: &mut [u8]) -> bool {
        let Some((_, piece)) = self.piece(place).filter(|_| out.len() == self.piece_bytes()) else {
            return false;
        };
        let states = self.memory.states.as_ref();
        let Some(mut rest) = states.and_then(|states| states.write_head(piece, out)) else {
            return false;
        };
        self.for_values(place, |values| {
            let (to, others) = std::mem::take(&mut rest).split_at_mut(values.len());
            to.copy_from_slice(values);
            rest = others;
        });
        rest.fill(0);
        true
    }

    /// Writes `bytes` from byte `first` on. The first bytes come in one write.
    pub(super) fn write_piece(&mut self, place: PiecePlace, first: usize, bytes: &[u8]) -> bool {
        let Some((_, piece)) = self.piece(place) else { return false };
        let states = self.memory.states.as_mut();
        let values = states.and_then(|states| states.read_head(piece, (first, bytes)));
        let Some((first, bytes)) = values else { return false };
        let mut at = 0;
        self.for_values(place, |values| {
            let own = at..at + values.len();
            at = own.end;
            let (from, to) = (own.start.max(first), own.end.min(first + bytes.len()));
            if from < to {
                values[from - own.start..to - own.start]
                    .copy_from_slice(&bytes[from - first..to - first]);
            }
        });
        true
    }

    /// A layer's index among the recurrent ones here, and what the piece is.
    fn piece(&self, PiecePlace { layer, piece }: PiecePlace) -> Option<(usize, StatePiece)> {
        let states = self.memory.states.as_ref()?;
        let layer = layer.checked_sub(self.model.share().layers.start)?;
        Some((states.find_index(layer)?, states.shape.piece(piece as usize)?))
    }

    /// Calls `f` for the values of a piece, part after part, as bytes.
    fn for_values(&mut self, place: PiecePlace, mut f: impl FnMut(&mut [u8])) {
        let Some((index, piece)) = self.piece(place) else { return };
        let Some(shape) = self.memory.states.as_ref().map(|states| states.shape) else { return };
        let (_, buffers) = self.begin(&[]);
        match shape.slot_of_piece(piece) {
            Some(slot) => {
                let parts = buffers.recurrent.state_parts(&shape, (index, slot));
                parts.for_each(|part| f(bytemuck::cast_slice_mut(part)));
            }
            None => {
                let journal = shape.journal_of(index, piece);
                f(bytemuck::cast_slice_mut(&mut buffers.recurrent.journal[journal]));
            }
        }
    }
}
