//! States of recurrent layers: their layout, and which state each stream has.
//!
//! A state cannot be cut back like keys and values. So each stream has two slots: a batch reads one and writes the
//! other, and the old state is there until the next batch. If the batch was interrupted, the next one begins there
//! again. If drafts at its end were rejected, the accepted ones are computed again from the journal, which has the
//! batch's inputs of the recurrence; that needs no product with weights. Further slots are checkpoints, from which any
//! stream can continue.
//!
//! A state is a history, the last inputs of the convolution, and for each head a matrix, in units of some columns. All
//! slots of a unit lie together: one thread computes the unit for a whole batch.

use std::ops::Range;

use super::batch::{ForwardError, Span, StateUse, Wants};
use super::plan::Plan;
use crate::format::model::{Header, MixParts, MixRows, Mixer, Slice};
use crate::kernels::DELTA_COLUMNS;

/// Most rows at the end of a batch that can be taken back one by one: a token and drafts after it.
pub const REWIND_ROWS: usize = 16;

/// Layout of the states of a share's recurrent layers.
#[derive(Clone, Copy)]
pub(crate) struct StateShape {
    /// Form of the recurrent layers, of which a node of a team has only its parts.
    pub(crate) mixer: Mixer,
    /// Those parts; of a node without a team all.
    pub(crate) parts: MixParts,
    /// Channels of the convolution.
    pub(crate) channels: usize,
    /// Number of recurrent layers in the share.
    pub(crate) n_layers: usize,
    pub(crate) n_streams: usize,
    n_checkpoints: usize,
}

impl StateShape {
    /// Layout for `layers` of a model, on a node of a team with these rows of the layers; `None` if the model has no
    /// recurrent layers.
    pub(crate) fn new(
        header: &Header,
        layers: Range<usize>,
        (plan, slice): (&Plan, Option<&Slice>),
    ) -> Option<StateShape> {
        let parts = match slice {
            Some(slice) => MixParts::new(header, slice.mix.clone()),
            None => MixParts::all(header),
        }?;
        Some(StateShape {
            mixer: parts.mixer(),
            parts,
            channels: parts.width(MixRows::Channels),
            n_layers: layers.filter(|layer| header.mixer(*layer).is_some()).count(),
            n_streams: plan.n_streams,
            n_checkpoints: plan.checkpoints(header),
        })
    }

    /// Number of slots: two for each stream, then the checkpoints.
    pub(crate) fn n_slots(&self) -> usize {
        2 * self.n_streams + self.n_checkpoints
    }

    /// Values of a row of first projections: to the convolution's inputs and to the output's gate.
    pub(crate) fn in_width(&self) -> usize {
        let gate = if self.mixer.gate_rows() > 0 { self.out_width() } else { 0 };
        self.parts.width(MixRows::Inputs) + gate
    }

    /// Values of a row of inputs of the output projection.
    pub(crate) fn out_width(&self) -> usize {
        self.parts.width(MixRows::Values)
    }

    /// Controls of a token: those of all heads of a layer.
    pub(crate) fn n_controls(&self) -> usize {
        self.parts.whole().n_controls()
    }

    /// Slot of a checkpoint.
    fn checkpoint(&self, index: u32) -> usize {
        2 * self.n_streams + index as usize
    }

    /// Slot of a checkpoint; `None` if it does not exist.
    pub(crate) fn slot_of(&self, index: u32) -> Option<usize> {
        ((index as usize) < self.n_checkpoints).then(|| self.checkpoint(index))
    }

    /// Values of one layer's part of one state.
    pub(crate) fn part_len(&self) -> usize {
        self.history_len() + self.units() * self.unit_len()
    }

    /// Columns of a unit.
    pub(crate) fn columns(&self) -> usize {
        let [_, columns] = self.mixer.state_dims();
        if columns.is_multiple_of(DELTA_COLUMNS) { DELTA_COLUMNS } else { DELTA_COLUMNS / 2 }
    }

    /// Units of a head.
    pub(crate) fn units_of_head(&self) -> usize {
        self.mixer.state_dims()[1] / self.columns()
    }

    /// Units of a layer.
    pub(crate) fn units(&self) -> usize {
        self.mixer.state_heads() * self.units_of_head()
    }

    /// Values of a unit.
    pub(crate) fn unit_len(&self) -> usize {
        self.mixer.state_dims()[0] * self.columns()
    }

    /// Values of all slots of one unit.
    pub(crate) fn slots_of_unit(&self) -> usize {
        self.unit_len().saturating_mul(self.n_slots())
    }

    /// Values of all matrices of one layer.
    pub(crate) fn matrices_of_layer(&self) -> usize {
        self.slots_of_unit().saturating_mul(self.units())
    }

    /// Values of one history.
    pub(crate) fn history_len(&self) -> usize {
        (self.mixer.taps() - 1) * self.channels
    }

    /// Values of all histories of one layer. One more than there are slots: the last has zeros, the history of a
    /// text's beginning.
    pub(crate) fn histories_of_layer(&self) -> usize {
        self.history_len().saturating_mul(self.n_slots() + 1)
    }

    /// Values of a row of the journal: inputs of the convolution, and controls.
    pub(crate) fn journal_width(&self) -> usize {
        self.channels + self.n_controls()
    }

    /// Values of one stream's journal in one layer.
    pub(crate) fn journal_len(&self) -> usize {
        REWIND_ROWS * self.journal_width()
    }

    /// Values of all streams' journals in one layer.
    pub(crate) fn journals_of_layer(&self) -> usize {
        self.journal_len().saturating_mul(self.n_streams)
    }
}

/// A piece in which states of a layer leave a board and come to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatePiece {
    /// A stream's slot, 0 or 1.
    Slot {
        stream: usize,
        slot: usize,
    },
    /// The rows from which rejected drafts are taken back.
    Journal {
        stream: usize,
    },
    Checkpoint(u32),
}

impl StateShape {
    /// Pieces of a layer: for each stream its slots and its journal, then the checkpoints.
    pub(crate) fn n_pieces(&self) -> usize {
        3 * self.n_streams + self.n_checkpoints
    }

    /// The piece of this number; `None` if there is none.
    pub(crate) fn piece(&self, number: usize) -> Option<StatePiece> {
        let (stream, part) = (number / 3, number % 3);
        if stream < self.n_streams {
            return Some(match part {
                2 => StatePiece::Journal { stream },
                slot => StatePiece::Slot { stream, slot },
            });
        }
        let index = (number - 3 * self.n_streams) as u32;
        self.slot_of(index).map(|_| StatePiece::Checkpoint(index))
    }

    /// Values of the longest piece.
    pub(crate) fn piece_len(&self) -> usize {
        self.part_len().max(self.journal_len())
    }

    /// Slot of the state that a piece is; `None` if it is a journal.
    pub(crate) fn slot_of_piece(&self, piece: StatePiece) -> Option<usize> {
        match piece {
            StatePiece::Slot { stream, slot } => Some(2 * stream + slot),
            StatePiece::Checkpoint(index) => self.slot_of(index),
            StatePiece::Journal { .. } => None,
        }
    }

    /// Values of a stream's journal in the recurrent layer `index`; none if the piece is no journal.
    pub(crate) fn journal_of(&self, index: usize, piece: StatePiece) -> Range<usize> {
        let StatePiece::Journal { stream } = piece else { return 0..0 };
        let start = index * self.journals_of_layer() + stream * self.journal_len();
        start..start + self.journal_len()
    }
}

/// Rows of a batch that continue one state, in one or more spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) stream: usize,
    /// Spans of the batch.
    pub(crate) spans: Range<usize>,
    /// Rows of the batch.
    pub(crate) rows: Range<usize>,
    /// Slot of the state before the first row; `None` at the beginning of a text.
    pub(crate) from: Option<usize>,
    /// Slot of the state behind the last row.
    pub(crate) to: usize,
    /// Whether rows go to the journal.
    pub(crate) is_journaled: bool,
}

/// A state that is made before a batch: a copy of another, continued by rows of the stream's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replay {
    pub(crate) stream: usize,
    /// Slot of the state to copy; `None` at the beginning of a text. It may be `to` itself.
    pub(crate) from: Option<usize>,
    pub(crate) to: usize,
    /// Number of rows, from the journal's first on.
    pub(crate) n_rows: usize,
}

/// Bytes before the values of a piece: which positions its state follows.
const HEAD_BYTES: usize = 8;

/// The streams' states: which positions they follow, and the work of the current batch.
pub(crate) struct States {
    pub(crate) shape: StateShape,
    /// Index of each layer of the share among its recurrent layers.
    layers: Vec<Option<usize>>,
    streams: Vec<StreamState>,
    /// Which checkpoints have a state.
    filled: Vec<bool>,
    /// Work of the current batch.
    runs: Vec<Run>,
    replays: Vec<Replay>,
}

/// The two slots of a stream.
#[derive(Clone, Copy, Default)]
struct StreamState {
    /// Number of tokens before each slot's state; `None` if it has none.
    ends: [Option<usize>; 2],
    /// Which of the slots the journal's rows follow, and their number.
    journal: Option<(usize, usize)>,
}

impl States {
    /// No states, for `layers` of a model, on a node of a team with these rows; `None` if the model has no recurrent
    /// layers.
    pub(crate) fn new(
        header: &Header,
        layers: Range<usize>,
        (plan, slice): (&Plan, Option<&Slice>),
    ) -> Option<States> {
        let shape = StateShape::new(header, layers.clone(), (plan, slice))?;
        let mut n = 0;
        let index = |layer| {
            header.mixer(layer).map(|_| {
                n += 1;
                n - 1
            })
        };
        Some(States {
            shape,
            layers: layers.map(index).collect(),
            streams: vec![StreamState::default(); plan.n_streams],
            filled: vec![false; shape.n_checkpoints],
            runs: Vec::with_capacity(plan.max_batch),
            replays: Vec::with_capacity(plan.n_streams),
        })
    }

    /// Index among the share's recurrent layers of its `layer`; `None` if that layer has no state.
    pub(crate) fn find_index(&self, layer: usize) -> Option<usize> {
        self.layers.get(layer).copied().flatten()
    }

    /// Index among the share's recurrent layers of its `layer`.
    pub(crate) fn index(&self, layer: usize) -> usize {
        self.layers[layer].expect("only a recurrent layer has a state")
    }

    /// Bytes of a piece.
    pub(crate) fn piece_bytes(&self) -> usize {
        HEAD_BYTES + self.shape.piece_len() * size_of::<f32>()
    }

    /// Writes a piece's head to `out`, and returns the rest of it; `None` if the piece has no state.
    pub(crate) fn write_head<'o>(
        &self,
        piece: StatePiece,
        out: &'o mut [u8],
    ) -> Option<&'o mut [u8]> {
        let head = self.head(piece)?;
        let (place, rest) = out.split_at_mut_checked(HEAD_BYTES)?;
        place.copy_from_slice(bytemuck::cast_slice(&head.map(u32::to_le)));
        Some(rest)
    }

    /// Takes the head from `bytes`, which are those of a piece from byte `first` on. Returns the bytes of values, and the
    /// place of the first of them among those of all values; `None` if there is no room for them. The first bytes come
    /// with the whole head.
    pub(crate) fn read_head<'b>(
        &mut self,
        piece: StatePiece,
        (first, bytes): (usize, &'b [u8]),
    ) -> Option<(usize, &'b [u8])> {
        if first.saturating_add(bytes.len()) > self.piece_bytes() {
            return None;
        }
        if first > 0 {
            return Some((first.checked_sub(HEAD_BYTES)?, bytes));
        }
        let ([a, b, c, d, e, f, g, h], bytes) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let head = [[*a, *b, *c, *d], [*e, *f, *g, *h]].map(u32::from_le_bytes);
        self.set_head(piece, head).then_some((0, bytes))
    }

    /// Which positions a piece follows, as two numbers; `None` if it has no state.
    fn head(&self, piece: StatePiece) -> Option<[u32; 2]> {
        match piece {
            StatePiece::Slot { stream, slot } => {
                self.streams[stream].ends[slot].map(|end| [end as u32, 0])
            }
            StatePiece::Journal { stream } => {
                self.streams[stream].journal.map(|(slot, n_rows)| [slot as u32, n_rows as u32])
            }
            StatePiece::Checkpoint(index) => self.filled[index as usize].then_some([0; 2]),
        }
    }

    /// Notes that a piece was written that had this head elsewhere; `false` if no piece has it.
    fn set_head(&mut self, piece: StatePiece, [a, b]: [u32; 2]) -> bool {
        let [a, b] = [a, b].map(|number| number as usize);
        match piece {
            StatePiece::Slot { stream, slot } => self.streams[stream].ends[slot] = Some(a),
            StatePiece::Journal { .. } if a > 1 || b > REWIND_ROWS => return false,
            StatePiece::Journal { stream } => self.streams[stream].journal = Some((a, b)),
            StatePiece::Checkpoint(index) => self.fill(index),
        }
        true
    }

    /// Notes that a checkpoint has a state.
    pub(crate) fn fill(&mut self, index: u32) {
        self.filled[index as usize] = true;
    }

    /// Work of the current batch.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Rows to compute again before the current batch.
    pub(crate) fn replays(&self) -> &[Replay] {
        &self.replays
    }

    /// Finds the state that each of `spans` continues.
    ///
    /// # Errors
    /// If there is no such state or checkpoint. Nothing is changed then.
    pub(crate) fn begin(&mut self, spans: &[Span]) -> Result<(), ForwardError> {
        self.runs.clear();
        self.replays.clear();
        // A board without recurrent layers may get some later, with their states.
        if self.shape.n_layers == 0 {
            return Ok(());
        }
        let mut row = 0;
        for (index, span) in spans.iter().enumerate() {
            let rows = row..row + span.n_rows;
            row = rows.end;
            if span.n_rows > 0 {
                self.add(index, span, rows)?;
            }
        }
        for run in &self.runs {
            let own = 2 * run.stream;
            let state = &mut self.streams[run.stream];
            state.ends[run.to - own] = None;
            state.journal = None;
        }
        Ok(())
    }

    /// Adds a span to the runs.
    fn add(&mut self, index: usize, span: &Span, rows: Range<usize>) -> Result<(), ForwardError> {
        let Span { stream, pos, state: StateUse { from, to }, .. } = *span;
        let missing = ForwardError::State { stream, pos };
        let is_checkpoint = |index: u32| self.shape.slot_of(index).is_some();
        if !from.into_iter().chain(to).all(is_checkpoint) {
            return Err(missing);
        }
        if let Some(run) = self.runs.iter_mut().find(|run| run.stream == stream) {
            // A later part of the same text. Its rows follow at once.
            let follows = run.rows.end == rows.start && from.is_none();
            if !follows {
                return Err(missing);
            }
            (run.spans.end, run.rows.end, run.is_journaled) = (index + 1, rows.end, false);
            return Ok(());
        }
        let own = 2 * stream;
        let found = match from {
            Some(from) => Some((Some(self.shape.checkpoint(from)), 0)),
            None if pos == 0 => Some((None, 0)),
            None => self.find(stream, pos).map(|slot| (Some(own + slot), 1 - slot)),
        };
        let Some((mut from, to)) = found else { return Err(missing) };
        let is_journaled = span.wants == Wants::All && (2..=REWIND_ROWS).contains(&span.n_rows);
        let other = own + 1 - to;
        if is_journaled && from != Some(other) {
            // The stream needs a state of its own to come back to.
            self.replays.push(Replay { stream, from, to: other, n_rows: 0 });
            from = Some(other);
        }
        let spans = index..index + 1;
        self.runs.push(Run { stream, spans, rows, from, to: own + to, is_journaled });
        Ok(())
    }

    /// Which of a stream's slots has the state at `pos`, or will have it after a replay.
    fn find(&mut self, stream: usize, pos: usize) -> Option<usize> {
        let StreamState { ends, journal } = self.streams[stream];
        if let Some(slot) = ends.iter().position(|end| *end == Some(pos)) {
            return Some(slot);
        }
        let (slot, n_rows) = journal?;
        let n_rows = pos.checked_sub(ends[slot]?).filter(|n| *n <= n_rows)?;
        let to = 2 * stream + slot;
        self.replays.push(Replay { stream, from: Some(to), to, n_rows });
        Some(slot)
    }

    /// Notes that the current batch's replays were computed.
    pub(crate) fn replayed(&mut self) {
        for Replay { stream, from, to, n_rows } in self.replays.drain(..) {
            let end = &mut self.streams[stream].ends[to - 2 * stream];
            *end = end.filter(|_| from == Some(to)).map(|end| end + n_rows);
        }
    }

    /// Notes that the current batch, which has `spans`, was computed.
    pub(crate) fn end(&mut self, spans: &[Span]) {
        for run in self.runs.drain(..) {
            let last = &spans[run.spans.end - 1];
            for to in spans[run.spans.clone()].iter().filter_map(|span| span.state.to) {
                self.filled[to as usize] = true;
            }
            let own = 2 * run.stream;
            let state = &mut self.streams[run.stream];
            state.ends[run.to - own] = Some(last.pos + last.n_rows);
            let other = 1 - (run.to - own);
            // A copy of a checkpoint was made for this batch.
            let first = &spans[run.spans.start];
            state.ends[other] = (run.from == Some(own + other)).then_some(first.pos);
            state.journal = run.is_journaled.then_some((other, run.rows.len()));
        }
    }
}

/// The part of a run in some rows of a batch, which is computed in halves.
#[derive(Clone, Debug)]
pub(crate) struct HalfRun<'r> {
    pub(crate) run: &'r Run,
    /// Rows of the half.
    pub(crate) rows: Range<usize>,
    /// Number of the run's rows before these.
    pub(crate) n_before: usize,
    /// Slot of the state before the first row; `None` at the beginning of a text.
    pub(crate) from: Option<usize>,
}

impl Run {
    /// The part in `half`, some rows of the batch; `None` if there is none. A run without rows is its only part.
    pub(crate) fn in_half(&self, half: &Range<usize>) -> Option<HalfRun<'_>> {
        let (start, end) = (self.rows.start.max(half.start), self.rows.end.min(half.end));
        if start >= end && !self.rows.is_empty() {
            return None;
        }
        let n_before = start - self.rows.start;
        let from = if n_before > 0 { Some(self.to) } else { self.from };
        Some(HalfRun { run: self, rows: start - half.start..end - half.start, n_before, from })
    }
}

impl HalfRun<'_> {
    /// Row of the half that follows each part of the run's spans in it, with the checkpoint that keeps the state there.
    pub(crate) fn parts<'s>(
        &self,
        spans: &'s [Span],
        shape: &StateShape,
    ) -> impl Iterator<Item = (usize, Option<usize>)> + use<'s> {
        let (first, shape) = (self.rows.start, *shape);
        let own = self.n_before..self.n_before + self.rows.len();
        let mut end = 0;
        spans[self.run.spans.clone()].iter().filter_map(move |span| {
            let start = end;
            end += span.n_rows;
            let is_there = start < own.end && own.start < end;
            let checkpoint = span.state.to.filter(|_| end <= own.end);
            let last = first + end.min(own.end).saturating_sub(own.start);
            is_there.then(|| (last, checkpoint.map(|to| shape.checkpoint(to))))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::model::Weights;
    use crate::model::{KvKind, Shape};

    #[test]
    fn a_run_goes_on_in_the_second_half_where_the_first_ended() {
        let plan = Plan {
            ctx_len: 256,
            max_batch: 192,
            max_logits: 1,
            n_streams: 2,
            kv: KvKind::F16,
            kv_pages: None,
        };
        let header = Shape::from_name("qwen3.5-0.8b").unwrap().header(Weights::F32);
        let shape = StateShape::new(&header, 0..1, (&plan, None)).unwrap();
        let span = |n_rows, to| Span { n_rows, state: StateUse { from: None, to }, ..Span::EMPTY };
        // Rows 90 to 110 of a batch, in spans of 4, 2 and 14 rows; checkpoints follow the first and the last.
        let spans = [span(90, None), span(4, Some(1)), span(2, None), span(14, Some(0))];
        let (from, to) = (Some(3), 2);
        let run = Run { stream: 1, spans: 1..4, rows: 90..110, from, to, is_journaled: false };
        let pieces = |half: Range<usize>| {
            let piece = run.in_half(&half)?;
            let parts: Vec<_> = piece.parts(&spans, &shape).collect();
            Some((piece.rows, piece.n_before, piece.from, parts))
        };
        let [first, second] = [0, 1].map(|index| Some(shape.checkpoint(index)));
        let all = vec![(94, second), (96, None), (110, first)];
        assert_eq!(pieces(0..192), Some((90..110, 0, from, all)));
        // A half that ends with a span, and one that ends within one.
        assert_eq!(pieces(0..96), Some((90..96, 0, from, vec![(94, second), (96, None)])));
        assert_eq!(pieces(96..192), Some((0..14, 6, Some(to), vec![(14, first)])));
        assert_eq!(pieces(0..92), Some((90..92, 0, from, vec![(92, None)])));
        let rest = vec![(2, second), (4, None), (18, first)];
        assert_eq!(pieces(92..192), Some((0..18, 2, Some(to), rest)));
        assert_eq!([pieces(0..90), pieces(110..192)], [None, None]);
        // A replay of no rows only copies.
        let copy = Run { spans: 0..1, rows: 0..0, ..run.clone() };
        assert_eq!(copy.in_half(&(0..0)).unwrap().rows, 0..0);
    }
}
