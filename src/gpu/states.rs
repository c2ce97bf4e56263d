//! States of recurrent layers in a device's memory.
//!
//! Each recurrent layer has a piece of memory with its slots, then its streams' journals. A slot has a state like the
//! CPUs' when it leaves them: the history, then the units. So a state leaves the device in one copy.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::commands::Commands;
use super::device::Handle;
use super::error::GpuError;
use super::memory::{Memory, Place};
use super::pipelines::Pipelines;
use super::tensors::Transfer;
use crate::format::model::Header;
use crate::model::{
    ForwardError, PiecePlace, Plan, REWIND_ROWS, Replay, Span, StatePiece, StatePlace, StateShape,
    States,
};

/// No slot, or no journal.
const NONE: u32 = u32::MAX;

/// The states of a device's recurrent layers, and the work of the current batch on them.
pub(super) struct DeviceStates {
    /// Which positions the states follow.
    pub(super) all: States,
    layers: Vec<Memory>,
    tables: RunTables,
}

/// Runs and rows for shaders, see `shaders/states.glsl`.
struct RunTables {
    memory: Memory,
    /// Most runs, and most rows.
    max: usize,
    n_runs: usize,
    n_rows: usize,
}

/// A device that bytes are sent to and fetched from.
type OnDevice<'a> = (&'a mut Transfer, &'a mut Commands, &'a Pipelines);

/// A layer's states and the tables of runs, for shaders.
#[derive(Clone, Copy)]
pub(super) struct StatesOn<'a> {
    pub(super) shape: &'a StateShape,
    /// Address of the first slot.
    pub(super) slots: u64,
    /// Address of the first journal.
    pub(super) journals: u64,
    /// Addresses of runs and rows.
    pub(super) tables: [u64; 2],
    pub(super) n_runs: usize,
    pub(super) n_rows: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RunEntry {
    from: u32,
    to: u32,
    first: u32,
    end: u32,
    journal: u32,
    zeros: [u32; 3],
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StepEntry {
    source: u32,
    run: u32,
    checkpoint: u32,
    zero: u32,
}

/// Bytes of a layer's states.
pub(super) fn layer_bytes(header: &Header, plan: &Plan) -> u64 {
    StateShape::new(header, 0..0, (plan, None)).map_or(0, |shape| {
        let (slots, journals) = floats(&shape);
        4 * (slots + journals)
    })
}

/// Most rows of recurrent layers at a time: those of a batch, or of a journal.
pub(super) fn rows_max(plan: &Plan) -> usize {
    plan.max_batch.max(REWIND_ROWS)
}

/// Values of a layer's slots, and of its journals.
fn floats(shape: &StateShape) -> (u64, u64) {
    let slots = shape.n_slots() as u64 * shape.part_len() as u64;
    (slots, shape.journals_of_layer() as u64)
}

impl DeviceStates {
    /// No states, in zeroed memory; `None` if the model has no recurrent layers.
    ///
    /// # Errors
    /// If there is no room on the device, or its driver fails.
    pub(super) fn new(
        handle: &Arc<Handle>,
        (commands, pipelines): (&mut Commands, &Pipelines),
        (header, layers): (&Header, Range<usize>),
        plan: &Plan,
    ) -> Result<Option<DeviceStates>, GpuError> {
        let Some(all) = States::new(header, layers, (plan, None)) else { return Ok(None) };
        let bytes = layer_bytes(header, plan);
        let memory = |_| Memory::new(handle, bytes, Place::Device);
        let layers: Vec<Memory> = (0..all.shape.n_layers).map(memory).collect::<Result<_, _>>()?;
        commands
            .run(pipelines, |recorder| layers.iter().for_each(|layer| recorder.clear(layer)))?;
        let tables = RunTables::new(handle, rows_max(plan))?;
        Ok(Some(DeviceStates { all, layers, tables }))
    }

    /// Finds the states that `spans` continue.
    ///
    /// # Errors
    /// If there is no such state. Nothing is changed then.
    pub(super) fn begin(&mut self, spans: &[Span]) -> Result<(), ForwardError> {
        self.all.begin(spans)
    }

    /// Makes states before a batch that are copies of others.
    ///
    /// # Errors
    /// If the driver fails.
    pub(super) fn copy(
        &self,
        (commands, pipelines): (&mut Commands, &Pipelines),
    ) -> Result<(), GpuError> {
        let is_copy = |replay: &&Replay| replay.from != Some(replay.to);
        let copies: Vec<&Replay> = self.all.replays().iter().filter(is_copy).collect();
        if copies.is_empty() || self.layers.is_empty() {
            return Ok(());
        }
        let bytes = 4 * self.all.shape.part_len() as u64;
        commands.run(pipelines, |recorder| {
            for layer in &self.layers {
                for Replay { from, to, .. } in &copies {
                    let to = *to as u64 * bytes;
                    match from {
                        Some(from) => {
                            recorder.copy((layer, *from as u64 * bytes), (layer, to), bytes);
                        }
                        None => recorder.clear_part((layer, to), bytes),
                    }
                }
            }
        })
    }

    /// Writes the tables for replays of rows of journals, from replay number `first` on. Returns the number of the first
    /// replay that has no room in them.
    pub(super) fn fill_replays(&mut self, first: usize) -> usize {
        let replays = self.all.replays();
        let runs = self.tables.begin();
        let mut next = first;
        for Replay { stream, from, to, n_rows } in replays.iter().skip(first) {
            if runs.rows_left() < *n_rows {
                break;
            }
            next += 1;
            if *n_rows > 0 {
                let rows = (0..*n_rows).map(|row| (stream * REWIND_ROWS + row, None));
                runs.push([*from, Some(*to), None], rows);
            }
        }
        next
    }

    /// Writes the tables for the current batch, which has `spans`.
    pub(super) fn fill(&mut self, spans: &[Span]) {
        let shape = &self.all.shape;
        let runs = self.tables.begin();
        for run in self.all.runs() {
            let whole = run.in_half(&(0..usize::MAX)).into_iter();
            let mut parts = whole
                .flat_map(|whole| whole.parts(spans, shape))
                .filter(|(_, slot)| slot.is_some())
                .peekable();
            let rows = run.rows.clone().map(|row| {
                let part = parts.next_if(|(end, _)| *end == row + 1);
                (row, part.and_then(|(_, slot)| slot))
            });
            let journal = run.is_journaled.then_some(run.stream);
            runs.push([run.from, Some(run.to), journal], rows);
        }
    }

    /// Whether the tables have no rows.
    pub(super) fn is_idle(&self) -> bool {
        self.tables.n_rows == 0
    }

    /// The states of the device's `layer`, counted from its first.
    pub(super) fn on(&self, layer: usize) -> StatesOn<'_> {
        let memory = &self.layers[self.all.index(layer)];
        let (slots, _) = floats(&self.all.shape);
        StatesOn {
            shape: &self.all.shape,
            slots: memory.address,
            journals: memory.address + 4 * slots,
            tables: self.tables.addresses(),
            n_runs: self.tables.n_runs,
            n_rows: self.tables.n_rows,
        }
    }

    /// Reads a layer's part of a checkpoint, see [`Device::read_state`](crate::model::Device::read_state). Layers are
    /// counted from the device's first, here and below.
    pub(super) fn read(&self, on: OnDevice<'_>, part: StatePlace, out: &mut [u8]) -> bool {
        let (transfer, commands, pipelines) = on;
        let Some((memory, at)) = self.checkpoint(part, out.len()) else { return false };
        transfer.fetch((commands, pipelines), (memory, at), out).is_ok()
    }

    /// Writes a layer's part of a checkpoint.
    pub(super) fn write(&mut self, on: OnDevice<'_>, part: StatePlace, bytes: &[u8]) -> bool {
        let (transfer, commands, pipelines) = on;
        let Some((memory, at)) = self.checkpoint(part, bytes.len()) else { return false };
        let is_sent = transfer.send((commands, pipelines), bytes, (memory, at)).is_ok();
        if is_sent {
            self.all.fill(part.checkpoint);
        }
        is_sent
    }

    /// Reads a piece of a layer's states.
    pub(super) fn read_piece(&self, on: OnDevice<'_>, place: PiecePlace, out: &mut [u8]) -> bool {
        let (transfer, commands, pipelines) = on;
        let found = self.piece(place).filter(|_| out.len() == self.all.piece_bytes());
        let Some((piece, memory, range)) = found else { return false };
        let Some(rest) = self.all.write_head(piece, out) else { return false };
        let (values, zeros) = rest.split_at_mut((range.end - range.start) as usize);
        zeros.fill(0);
        transfer.fetch((commands, pipelines), (memory, range.start), values).is_ok()
    }

    /// Writes the bytes of a piece of a layer's states from byte `first` on.
    pub(super) fn write_piece(
        &mut self,
        on: OnDevice<'_>,
        place: PiecePlace,
        (first, bytes): (usize, &[u8]),
    ) -> bool {
        let (transfer, commands, pipelines) = on;
        let Some((piece, ..)) = self.piece(place) else { return false };
        let Some((at, bytes)) = self.all.read_head(piece, (first, bytes)) else { return false };
        let Some((_, memory, range)) = self.piece(place) else { return false };
        let len = (range.end - range.start) as usize;
        // Shorter pieces end with zeros.
        let bytes = &bytes[..bytes.len().min(len.saturating_sub(at))];
        let to = (memory, range.start + at as u64);
        bytes.is_empty() || transfer.send((commands, pipelines), bytes, to).is_ok()
    }

    /// Memory of a layer's part of a checkpoint, and the first byte there; `None` if it does not exist, or has another
    /// length.
    fn checkpoint(&self, part: StatePlace, bytes: usize) -> Option<(&Memory, u64)> {
        let shape = &self.all.shape;
        let memory = &self.layers[self.all.find_index(part.layer)?];
        let slot = shape.slot_of(part.checkpoint).filter(|_| bytes == 4 * shape.part_len())?;
        Some((memory, slot as u64 * bytes as u64))
    }

    /// A piece of a layer's states, its memory, and the bytes there; `None` if it does not exist.
    fn piece(&self, place: PiecePlace) -> Option<(StatePiece, &Memory, Range<u64>)> {
        let shape = &self.all.shape;
        let memory = &self.layers[self.all.find_index(place.layer)?];
        let piece = shape.piece(place.piece as usize)?;
        let (slots, _) = floats(shape);
        let range = match shape.slot_of_piece(piece) {
            Some(slot) => {
                let start = slot as u64 * shape.part_len() as u64;
                start..start + shape.part_len() as u64
            }
            None => {
                let journal = shape.journal_of(0, piece);
                slots + journal.start as u64..slots + journal.end as u64
            }
        };
        Some((piece, memory, 4 * range.start..4 * range.end))
    }
}

impl RunTables {
    fn new(handle: &Arc<Handle>, max: usize) -> Result<RunTables, GpuError> {
        let bytes = max * (size_of::<RunEntry>() + size_of::<StepEntry>());
        let memory = Memory::new(handle, bytes as u64, Place::Host)?;
        Ok(RunTables { memory, max, n_runs: 0, n_rows: 0 })
    }

    /// Empties the tables.
    fn begin(&mut self) -> &mut RunTables {
        (self.n_runs, self.n_rows) = (0, 0);
        self
    }

    fn rows_left(&self) -> usize {
        self.max - self.n_rows
    }

    /// Appends a run from a slot to another, with the journal that keeps its rows. Rows have a place in their inputs, and
    /// the slot of the checkpoint behind them.
    fn push(
        &mut self,
        [from, to, journal]: [Option<usize>; 3],
        rows: impl Iterator<Item = (usize, Option<usize>)>,
    ) {
        let number = |of: Option<usize>| of.map_or(NONE, |number| number as u32);
        let run = self.n_runs as u32;
        let (first, at) = (self.n_rows as u32, self.max * size_of::<RunEntry>());
        let (runs, steps) = self.memory.as_mut_slice::<u8>().split_at_mut(at);
        let steps: &mut [StepEntry] = bytemuck::cast_slice_mut(steps);
        for (step, (source, checkpoint)) in steps[self.n_rows..].iter_mut().zip(rows) {
            let (source, checkpoint) = (source as u32, number(checkpoint));
            *step = StepEntry { source, run, checkpoint, zero: 0 };
            self.n_rows += 1;
        }
        let [from, to, journal] = [from, to, journal].map(number);
        let end = self.n_rows as u32;
        let runs: &mut [RunEntry] = bytemuck::cast_slice_mut(runs);
        runs[self.n_runs] = RunEntry { from, to, first, end, journal, zeros: [0; 3] };
        self.n_runs += 1;
    }

    fn addresses(&self) -> [u64; 2] {
        let start = self.memory.address;
        [start, start + (self.max * size_of::<RunEntry>()) as u64]
    }
}
