//! A model with the threads, buffers and KV cache to compute it: a stage on CPUs.

mod beside;
mod in_team;
mod next;
mod pieces;

use std::mem;
use std::path::Path;
use std::sync::Arc;

use super::batch::{self, Batch, ForwardError, Span};
use super::buffers::Buffers;
use super::device::{Device, OpenDevice};
use super::interrupt::Interrupt;
use super::kv::KvShape;
use super::next::NextPlaces;
use super::packed::PackedWeights;
use super::packer::{PackError, PackReport, PackWatch, Packer};
use super::pass::{Pass, Positions};
use super::plan::{PageChange, Plan};
use super::precision::Precision;
use super::rope::Frequencies;
use super::stage::{AssembleError, KvPlace, PiecePlace, Stage, StageInfo, StatePlace};
use super::start_error::StartError;
use super::state::States;
use super::team::Team;
use super::watch::Watch;
use super::{CheckError, Model, Share};
use crate::arena::Arena;
use crate::format::model::Slice;
use crate::kernels::Kernels;
use crate::pool::Pool;
use crate::sys::heap;

/// A model with the threads, buffers and KV cache to compute it.
pub struct Transformer {
    model: Arc<Model>,
    kernels: Kernels,
    pool: Pool,
    plan: Plan,
    memory: Memory,
    frequencies: Frequencies,
    packed: Option<PackedWeights>,
    is_interrupted: Option<fn() -> bool>,
    watch: Option<Box<Watch>>,
    team: Option<Team>,
    /// A device that computes the share's last layers; `model` has the others.
    beside: Option<Beside>,
}

/// A device beside the CPUs, what opens it, and the share of both.
struct Beside {
    device: Box<dyn Device>,
    open: OpenDevice,
    share: Share,
    /// Why the device failed, if it did.
    failure: Option<String>,
}

impl Transformer {
    /// Allocates everything that `plan` asks for.
    ///
    /// If the plan does not fit the model, the machine does not have enough memory, or the model's file is
    /// packed for other kernels.
    pub fn new(
        model: Arc<Model>,
        kernels: Kernels,
        pool: Pool,
        plan: Plan,
    ) -> Result<Transformer, StartError> {
        if let Some(wanted) = model.packed_for().filter(|isa| *isa != kernels.isa()) {
            return Err(StartError::Packed { wanted, found: kernels.isa() });
        }
        let memory = allocate(&model, &plan, None)?;
        let frequencies = Frequencies::new(model.header());
        let packed = PackedWeights::of_model(&model);
        Ok(Transformer {
            model,
            kernels,
            pool,
            plan,
            memory,
            frequencies,
            packed,
            is_interrupted: None,
            watch: None,
            team: None,
            beside: None,
        })
    }

    /// Uses the weights in the cache file at `path`, packed for the kernels; packs those that it lacks. The
    /// results stay the same. `None` if these weights or these kernels have no packed form.
    ///
    /// Weights are compared with their checksums while they are packed. Before an existing file is used, they
    /// are compared like in [`Stage::check_weights`].
    ///
    /// # Errors
    /// If the weights are damaged or `watch` ends the work. Or if the file cannot be written: the weights are
    /// then used unpacked.
    pub fn use_cache(
        &mut self,
        path: &Path,
        watch: PackWatch<'_>,
    ) -> Result<Option<PackReport>, PackError> {
        let Some((packed, report)) = self.packer().cached(path, watch)? else {
            return Ok(None);
        };
        self.check_weights(watch.is_interrupted)?;
        self.packed = Some(packed);
        Ok(Some(report))
    }

    /// Number of matrices that the cache file at `path` lacks; `None` as for [`Transformer::use_cache`].
    ///
    /// # Errors
    /// If the file cannot be used at all.
    pub fn lacks(&self, path: &Path) -> Result<Option<usize>, PackError> {
        self.packer().lacks(path)
    }

    /// Compares the weights with their checksums, then packs them for the kernels in this process's memory.
    /// `None` as for [`Transformer::use_cache`].
    ///
    /// # Errors
    /// If the weights are damaged or the caller ends the work. Or if there is not enough memory: the weights
    /// are then used unpacked.
    pub fn pack_in_memory(
        &mut self,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<PackReport>, PackError> {
        self.check_weights(is_interrupted)?;
        let packed = self.packer().in_memory(self.packed.as_ref());
        let Some((packed, report)) = packed.map_err(PackError::Memory)? else { return Ok(None) };
        self.packed = Some(packed);
        Ok(Some(report))
    }

    /// Report of the packed weights in the model's own file; `None` if the file is not packed.
    pub fn packed_in_model(&self) -> Option<PackReport> {
        self.model.packed_for()?;
        let (reused, bytes) = self.packed.as_ref()?.size();
        Some(PackReport { packed: 0, reused, bytes })
    }

    /// Bytes of the weights packed for the kernels, in addition to the model's own. `None` if they have no
    /// packed form, or if the model's file is packed.
    pub fn packed_bytes(&self) -> Option<u64> {
        self.packer().bytes()
    }

    /// Copies mapped packed weights to huge pages in the background. The first forward pass that finds the
    /// copy complete switches to it.
    pub fn move_to_huge_pages(&mut self) {
        if let Some(packed) = &mut self.packed {
            packed.start_move();
        }
    }

    /// Waits for the copy to huge pages, if one is being made.
    pub fn await_huge_pages(&mut self) {
        if let Some(packed) = &mut self.packed {
            packed.await_move();
        }
    }

    /// Whether packed weights are in use.
    pub fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// Whether packed weights are in this process's memory, in huge pages if there are any.
    pub fn is_in_memory(&self) -> bool {
        self.packed.as_ref().is_some_and(PackedWeights::is_in_memory)
    }

    fn packer(&self) -> Packer<'_> {
        Packer { model: &self.model, kernels: &self.kernels, pool: &self.pool }
    }

    /// Has `watch` observe the inputs of matrices.
    pub fn watch_inputs(&mut self, watch: Box<Watch>) {
        self.watch = Some(watch);
    }

    /// The model that is computed.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The kernels in use.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Exchanges the threads of two transformers.
    pub fn trade_threads(&mut self, other: &mut Transformer) {
        mem::swap(&mut self.pool, &mut other.pool);
    }

    /// Bytes of buffers and KV cache.
    pub fn arena_bytes(&self) -> usize {
        self.memory.arena.bytes()
    }

    /// Copies a page of the KV cache to another; both for layers with a window if `is_windowed`.
    fn copy_kv_page(&mut self, from: u32, to: u32, is_windowed: bool) {
        let [from, to] = [from, to].map(|page| self.memory.kv.page_range(page, is_windowed));
        let (_, mut buffers) = self.begin(&[]);
        buffers.kv.copy(from, to);
    }

    /// Bytes of a page of the KV cache, in their order in memory. With `is_windowed`, a page for layers with
    /// a window.
    ///
    /// # Panics
    /// If the page does not exist.
    pub fn kv_page(&mut self, page: u32, is_windowed: bool) -> &mut [u8] {
        let range = self.memory.kv.page_range(page, is_windowed);
        let (_, buffers) = self.begin(&[]);
        buffers.kv.into_bytes(range)
    }

    /// Bytes of a page for layers without a window, and of one for layers with a window.
    pub fn kv_page_bytes(&self) -> [usize; 2] {
        [false, true].map(|is_windowed| {
            self.memory.kv.page_range(0, is_windowed).len() * self.plan.kv.unit_bytes()
        })
    }

    /// A layer's part of a page; `None` if it does not exist.
    fn kv_part(&mut self, KvPlace { layer, page }: KvPlace) -> Option<&mut [u8]> {
        let layer = layer.checked_sub(self.model.share().layers.start)?;
        let range = self.memory.kv.part_range(layer, page)?;
        let (_, buffers) = self.begin(&[]);
        Some(buffers.kv.into_bytes(range))
    }

    /// A layer's part of a checkpoint, in pieces; `None` if it does not exist.
    fn state_part(&mut self, place: StatePlace) -> Option<impl Iterator<Item = &mut [f32]>> {
        let layer = place.layer.checked_sub(self.model.share().layers.start)?;
        let states = self.memory.states.as_ref()?;
        let (shape, index) = (states.shape, states.find_index(layer)?);
        let slot = shape.slot_of(place.checkpoint)?;
        let (_, buffers) = self.begin(&[]);
        Some(buffers.recurrent.state_parts(&shape, (index, slot)))
    }

    /// Whether a stream with pages of its own can continue from `pos`: all positions in the window of `pos`
    /// must still be stored, after `reached` positions were. A stream with a state cannot.
    pub fn can_rewind(&self, reached: usize, pos: usize) -> bool {
        self.memory.states.is_none() && self.memory.kv.holds_before(reached, pos)
    }

    /// Computes `batch` and returns the logits of the rows that want them, `[wanted, vocab_size]`, in the
    /// rows' order.
    ///
    /// # Errors
    /// If the batch does not fit the model or the plan: nothing is changed then. Or if the pass was
    /// interrupted.
    ///
    /// # Panics
    /// If the model is a share that lacks layers or ends.
    pub fn forward(&mut self, batch: &Batch) -> Result<&mut [f32], ForwardError> {
        assert!(self.about().share.includes(&Share::whole(self.model.header())));
        self.embed(batch)?;
        self.run_layers(batch.spans())?;
        self.logits(batch.spans())
    }

    /// Changes to the layers of `share`, from another file of the same model; otherwise like
    /// [`Stage::set_share`].
    ///
    /// # Errors
    /// See [`Stage::set_share`].
    pub fn take_model(
        &mut self,
        model: &Model,
        share: Share,
        plan: Plan,
    ) -> Result<(), StartError> {
        let model = Arc::new(model.with_share(share).map_err(StartError::Share)?);
        self.memory = allocate(&model, &plan, self.team.as_ref())?;
        self.packed = PackedWeights::of_model(&model);
        (self.model, self.plan) = (model, plan);
        self.open_device_again();
        Ok(())
    }

    /// Logits of the rows of `spans` that want them, `[wanted, vocab_size]`. The node must have all layers,
    /// and have computed them with [`Stage::run_layers`].
    ///
    /// # Errors
    /// None: only a team's [`Gather`] can fail.
    ///
    /// # Panics
    /// If there are more rows than planned, the model is a share without ends, or this is a node of a team.
    pub fn logits(&mut self, spans: &[Span]) -> Result<&mut [f32], ForwardError> {
        assert!(self.team.is_none());
        let (pass, mut buffers) = self.begin(spans);
        let m = pass.normalise_wanted(&mut buffers);
        self.classify_rows(m)
    }

    /// Vectors of all rows of `spans`, `[rows, dim]`, behind the final norm if the model has one. The node must have all
    /// layers, and have computed them with [`Stage::run_layers`].
    ///
    /// # Panics
    /// If there are more rows than planned, or the model is a share without ends.
    pub fn hidden(&mut self, spans: &[Span]) -> &mut [f32] {
        let (pass, buffers) = self.begin(spans);
        pass.hidden(buffers)
    }

    /// Finds the states that `spans` continue, and makes those that are not there yet.
    fn begin_states(&mut self, spans: &[Span]) -> Result<(), ForwardError> {
        let Some(states) = &mut self.memory.states else { return Ok(()) };
        states.begin(spans)?;
        if !states.replays().is_empty() {
            let (pass, mut buffers) = self.begin(&[]);
            pass.positions.states.iter().for_each(|states| pass.replay(states, &mut buffers));
            self.memory.states.iter_mut().for_each(States::replayed);
        }
        Ok(())
    }

    /// Computes like [`Stage::run_layers`], and takes all rows through all layers, whatever logits are wanted.
    ///
    /// # Errors
    /// See [`Stage::run_layers`].
    ///
    /// # Panics
    /// See [`Stage::run_layers`].
    pub fn run_all_rows(&mut self, spans: &[Span]) -> Result<(), ForwardError> {
        self.run(spans, |pass, buffers| pass.layers(true, buffers))
    }

    /// Computes one of the share's layers on all rows of `spans`. If later layers use its keys and values, these stay
    /// stored for each stream.
    ///
    /// # Errors
    /// See [`Stage::run_layers`].
    ///
    /// # Panics
    /// If the share lacks the layer. See also [`Stage::run_layers`].
    pub fn run_layer(&mut self, layer: usize, spans: &[Span]) -> Result<(), ForwardError> {
        assert!(self.model.share().layers.contains(&layer));
        self.run(spans, |pass, buffers| pass.each_layer(layer..layer + 1, buffers))
    }

    /// Has `compute` take the rows of `spans` through layers.
    fn run(
        &mut self,
        spans: &[Span],
        compute: impl FnOnce(&Pass<'_>, &mut Buffers<'_>) -> Result<(), ForwardError>,
    ) -> Result<(), ForwardError> {
        assert!(self.team.is_none());
        batch::check_spans(spans, &self.plan)?;
        self.begin_states(spans)?;
        let (pass, mut buffers) = self.begin(spans);
        compute(&pass, &mut buffers)?;
        self.run_layers_beside(spans)?;
        self.memory.states.iter_mut().for_each(|states| states.end(spans));
        self.store_next(spans);
        Ok(())
    }

    fn begin<'s, 'a: 's>(&'a mut self, spans: &'s [Span]) -> (Pass<'s>, Buffers<'a>) {
        if let Some(packed) = &mut self.packed {
            packed.finish_move();
        }
        let mut carver = self.memory.arena.carver();
        let (header, share) = (self.model.header(), self.model.share());
        let team = self.team.as_ref();
        let buffers = Buffers::carve((header, share, team), &self.plan, &mut carver);
        let buffers = buffers.expect("the arena was made for this plan");
        let pass = Pass {
            model: &self.model,
            packed: self.packed.as_ref(),
            kernels: &self.kernels,
            pool: &self.pool,
            positions: Positions {
                kv: &self.memory.kv,
                frequencies: &self.frequencies,
                states: self.memory.states.as_ref(),
            },
            interrupt: Interrupt::new(self.is_interrupted),
            watch: self.watch.as_deref(),
            spans,
            first: 0,
            m: spans.iter().map(|span| span.n_rows).sum(),
            slice: team.map_or_else(|| Slice::whole(header), |team| team.own().clone()),
            team,
        };
        (pass, buffers)
    }
}

impl Stage for Transformer {
    fn about(&self) -> StageInfo<'_> {
        StageInfo {
            header: self.model.header(),
            share: self.beside.as_ref().map_or(self.model.share(), |beside| &beside.share),
            plan: &self.plan,
            device: self.kernels.isa().name(),
            threads: self.pool.threads(),
        }
    }

    fn bytes_per_token(&self) -> u64 {
        let bytes = self.model.bytes_per_token() + self.bytes_beside();
        // A file for a team's node holds only the rows of this node.
        let team = self.team.as_ref().filter(|_| self.model.header().slice().is_none());
        team.map_or(bytes, |team| team.part_of(bytes))
    }

    fn set_plan(&mut self, plan: Plan) -> Result<(), StartError> {
        if let Some(share) = self.share_without_room(&plan) {
            return self.set_share(share, plan);
        }
        self.memory = allocate(&self.model, &plan, self.team.as_ref())?;
        self.plan = plan;
        Ok(())
    }

    /// Changes the share. Packed weights stay in use if the new share has them, too.
    fn set_share(&mut self, share: Share, plan: Plan) -> Result<(), StartError> {
        let model = Arc::new(self.model.with_share(share).map_err(StartError::Share)?);
        self.memory = allocate(&model, &plan, self.team.as_ref())?;
        if model.packed_for().is_some() {
            self.packed = PackedWeights::of_model(&model);
        }
        (self.model, self.plan) = (model, plan);
        self.open_device_again();
        Ok(())
    }

    /// Compares on all threads.
    fn check_weights(&self, is_interrupted: &dyn Fn() -> bool) -> Result<(), CheckError> {
        self.model.check(&[], &self.pool, is_interrupted)?;
        match &self.beside {
            Some(beside) => beside.device.model().check(&[], &self.pool, is_interrupted),
            None => Ok(()),
        }
    }

    /// Takes back the layers of a device that failed.
    fn assemble(&mut self) -> Result<bool, AssembleError> {
        self.without_failed_device().map_err(|error| {
            log::warn!("the CPU cannot compute a lost device's layers: {error}");
            AssembleError::Memory
        })
    }

    /// All threads poll before each piece of a layer's work.
    fn interrupt_by(&mut self, is_interrupted: fn() -> bool) {
        self.is_interrupted = Some(is_interrupted);
    }

    fn embed(&mut self, batch: &Batch) -> Result<(), ForwardError> {
        self.about().check(batch)?;
        let (pass, mut buffers) = self.begin(batch.spans());
        pass.embed(batch.tokens(), &mut buffers);
        pass.remember_embeddings(&mut buffers);
        Ok(())
    }

    fn run_layers(&mut self, spans: &[Span]) -> Result<(), ForwardError> {
        self.run(spans, |pass, buffers| pass.layers(false, buffers))
    }

    fn put_rows(&mut self, first: usize, precision: Precision, bytes: &[u8]) {
        let (dim, inputs) = (self.model.header().dim, self.model.header().layer_inputs());
        let (_, buffers) = self.begin(&[]);
        let rows = bytes.chunks_exact((dim + inputs) * precision.bytes());
        for (row, bytes) in (first..).zip(rows) {
            let (x, of_layers) = bytes.split_at(dim * precision.bytes());
            precision.read(x, &mut buffers.x[row * dim..][..dim]);
            let own = &mut buffers.tables.layer_inputs[row * inputs..][..inputs];
            precision.read(of_layers, own);
        }
    }

    fn get_row(&mut self, row: usize, precision: Precision, out: &mut [u8]) {
        let (dim, inputs) = (self.model.header().dim, self.model.header().layer_inputs());
        let (_, buffers) = self.begin(&[]);
        let (x, of_layers) = out.split_at_mut(dim * precision.bytes());
        precision.write(&buffers.x[row * dim..][..dim], x);
        precision.write(&buffers.tables.layer_inputs[row * inputs..][..inputs], of_layers);
    }

    fn change_page(&mut self, change: &PageChange) -> bool {
        if !self.memory.kv.has(change) {
            return false;
        }
        let PageChange { stream, index, to, from } = *change;
        self.memory.kv.set_page(stream, index, to.page, to.window);
        self.change_page_beside(change);
        if let Some(from) = from {
            self.copy_kv_page(from.page, to.page, false);
            if let (Some(from), Some(to)) = (from.window, to.window) {
                self.copy_kv_page(from, to, true);
            }
        }
        true
    }

    fn is_windowed(&self, layer: usize) -> bool {
        self.plan.kv_plan(self.model.header()).window.is_some()
            && self.model.header().layer(layer).window.is_some()
    }

    fn kv_part_bytes(&self, layer: usize) -> Option<usize> {
        let StageInfo { header, share, plan, .. } = self.about();
        let header = self.team.as_ref().map_or(header, Team::narrow);
        let is_own = share.layers.contains(&layer);
        is_own.then(|| plan.kv_part_of(header, layer).map_or(0, |part| part.bytes()))
    }

    fn read_kv(&mut self, part: KvPlace, out: &mut [u8]) -> bool {
        if let Some(device) = self.beside_for(part.layer) {
            return device.read_kv(part, out);
        }
        let bytes = self.kv_part(part).filter(|bytes| bytes.len() == out.len());
        bytes.map(|bytes| out.copy_from_slice(bytes)).is_some()
    }

    fn write_kv(&mut self, part: KvPlace, first: usize, bytes: &[u8]) -> bool {
        if let Some(device) = self.beside_for(part.layer) {
            return device.write_kv(part, first, bytes);
        }
        let part = self.kv_part(part).and_then(|part| part.get_mut(first..));
        let place = part.and_then(|rest| rest.get_mut(..bytes.len()));
        place.map(|place| place.copy_from_slice(bytes)).is_some()
    }

    fn state_bytes(&self) -> usize {
        self.memory.states.as_ref().map_or(0, |states| states.shape.part_len() * size_of::<f32>())
    }

    fn read_state(&mut self, part: StatePlace, mut out: &mut [u8]) -> bool {
        if out.len() != self.state_bytes() {
            return false;
        }
        if let Some(device) = self.beside_for(part.layer) {
            return device.read_state(part, out);
        }
        let Some(parts) = self.state_part(part) else { return false };
        for part in parts {
            let bytes: &[u8] = bytemuck::cast_slice(part);
            let (place, rest) = std::mem::take(&mut out).split_at_mut(bytes.len());
            place.copy_from_slice(bytes);
            out = rest;
        }
        true
    }

    fn write_state(&mut self, part: StatePlace, mut bytes: &[u8]) -> bool {
        if bytes.len() != self.state_bytes() {
            return false;
        }
        if let Some(device) = self.beside_for(part.layer) {
            return device.write_state(part, bytes);
        }
        let index = part.checkpoint;
        let Some(parts) = self.state_part(part) else { return false };
        for part in parts {
            let place: &mut [u8] = bytemuck::cast_slice_mut(part);
            let (first, rest) = bytes.split_at(place.len());
            place.copy_from_slice(first);
            bytes = rest;
        }
        self.memory.states.iter_mut().for_each(|states| states.fill(index));
        true
    }

    fn n_state_pieces(&self) -> u32 {
        self.n_pieces()
    }

    fn state_piece_bytes(&self) -> usize {
        self.piece_bytes()
    }

    fn read_state_piece(&mut self, place: PiecePlace, out: &mut [u8]) -> bool {
        match self.beside_for(place.layer) {
            Some(device) => device.read_state_piece(place, out),
            None => self.read_piece(place, out),
        }
    }

    fn write_state_piece(&mut self, place: PiecePlace, first: usize, bytes: &[u8]) -> bool {
        match self.beside_for(place.layer) {
            Some(device) => device.write_state_piece(place, first, bytes),
            None => self.write_piece(place, first, bytes),
        }
    }

    fn classify(&mut self, precision: Precision, bytes: &[u8]) -> Result<&mut [f32], ForwardError> {
        assert!(self.team.is_none());
        let (dim, width) = (self.model.header().dim, self.model.header().row_width());
        let m = bytes.len() / (width * precision.bytes());
        if m > self.plan.max_logits.min(self.plan.max_batch) {
            return Err(ForwardError::Plan);
        }
        let (pass, buffers) = self.begin(&[]);
        // `x` may hold rows that still have to be sent.
        let x = &mut buffers.delta[..m * dim];
        precision.read_states(bytes, width, x.chunks_exact_mut(dim));
        pass.normalise(x.chunks_exact(dim), buffers.inputs.f32);
        self.classify_rows(m)
    }
}

/// Memory of a run, and its layout.
struct Memory {
    arena: Arena,
    kv: KvShape,
    states: Option<States>,
    /// Hidden states for guesses; `None` if the share lacks the block behind the last layer, or a team has it.
    next: Option<NextPlaces>,
}

fn allocate(model: &Model, plan: &Plan, team: Option<&Team>) -> Result<Memory, StartError> {
    let (header, layers) = (model.header(), model.share().layers.clone());
    let bytes = plan.team_bytes(model.header(), model.share(), team).map_err(StartError::Plan)?;
    let arena = heap::may_fail(|| Arena::new(bytes)).map_err(StartError::Memory)?;
    let states = States::new(header, layers, (plan, team.map(Team::own)));
    let next = NextPlaces::new(header, model.share(), plan).filter(|_| team.is_none());
    Ok(Memory { arena, kv: kv_shape(model, plan, team), states, next })
}

fn kv_shape(model: &Model, plan: &Plan, team: Option<&Team>) -> KvShape {
    let header = team.map_or(model.header(), Team::narrow);
    KvShape::new(header, model.share().layers.clone(), plan)
}

#[cfg(test)]
mod tests;
