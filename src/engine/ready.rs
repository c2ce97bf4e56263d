//! A model ready to run, with its streams.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::about::{EngineInfo, WeightsIn};
use super::backend::{Backend, Local, Logits};
use super::device;
use super::error::{EngineError, StepError};
use super::forks::Forks;
use super::options::Options;
use super::own_stage::OwnStage;
use super::pages::PageFigures;
use super::prefix::{self, Kept, Store};
use super::stream::{Places, Stream};
use super::weights::{Listener, WeightsPlace};
use crate::format::model::Header;
use crate::kernels::{Isa, Kernels};
use crate::model::{
    Batch, ForwardError, Model, OpenDevice, PackError, PackReport, Plan, Span, Stage, StageInfo,
    StartError, Transformer, Wants,
};
use crate::sampler::argmax;

/// Last ids of a text that tell whether guesses are made among the first quarter of the vocabulary; the smallest such
/// quarter; and the part of these ids, one of so many, that may lie outside it.
const IDS_SEEN: usize = 64;
const QUARTER_MIN: usize = 8192;
const OTHERS_PART: usize = 8;

/// A model ready to run, on this node or in a group that it leads, and its streams.
pub struct Engine {
    /// The compute of this node.
    pub(super) stage: OwnStage,
    /// Runs batches: this node alone, or a group of which it is the first node.
    pub(super) backend: Box<dyn Backend>,
    /// The streams' slots, and their pages of the KV cache.
    pub(super) places: Arc<Places>,
    /// Scratch for [`Engine::push_batch`].
    batch: Batch,
}

impl Engine {
    /// Opens the model file at `path` and makes it ready to run. The first time, this includes packing the
    /// weights; see [`Engine::prepare`].
    ///
    /// # Errors
    /// If the file is not a model, is damaged, or does not fit `options` or the machine.
    pub fn open(path: &Path, options: &Options) -> Result<Engine, EngineError> {
        let model = Model::open(path).map_err(EngineError::Load)?;
        let mut engine = Engine::new(Arc::new(model), options)?;
        let place = WeightsPlace {
            model: Some(path.to_owned()),
            cache: options.cache.clone(),
            huge: options.huge,
        };
        engine.prepare(&place, Listener::NONE).map_err(EngineError::Weights)?;
        Ok(engine)
    }

    /// Plans to run `model`, and starts threads. The weights are used unpacked and unchecked until
    /// [`Engine::prepare`] has packed and checked them.
    ///
    /// # Errors
    /// If `options` do not fit the model or the machine.
    pub fn new(model: Arc<Model>, options: &Options) -> Result<Engine, EngineError> {
        match model.header().embedding() {
            Some(_) => Err(EngineError::Embeddings),
            None => Engine::for_packing(model, options),
        }
    }

    /// Like [`Engine::new`], also for models of embeddings, which only have their weights packed.
    ///
    /// # Errors
    /// If `options` do not fit the model or the machine.
    pub fn for_packing(model: Arc<Model>, options: &Options) -> Result<Engine, EngineError> {
        let mut plan = options.plan(model.header());
        plan.kv_pages = options.kv_memory.pages(&plan, &model);
        let kernels = Engine::kernels(Some(&model), options.isa)?;
        let pool = options.pool(&model).map_err(EngineError::Threads)?;
        let mut transformer =
            Transformer::new(model, kernels, pool, plan).map_err(EngineError::Start)?;
        device::give_layers(&mut transformer, options)?;
        let kv_plan = plan.kv_plan(transformer.model().header());
        Ok(Engine {
            stage: OwnStage::new(transformer),
            backend: Box::new(Local::new(plan.max_batch)),
            places: Places::new(plan.n_streams, &kv_plan),
            batch: Batch::with_capacity(plan.max_batch),
        })
    }

    /// Makes the weights ready, like [`Engine::open`]: packs those that no earlier start and no other share
    /// has packed, and compares weights with their checksums unless that was done before.
    ///
    /// If a cache cannot be written, a warning is logged and the weights are packed in memory. Returns the
    /// result of packing, if weights were packed.
    ///
    /// # Errors
    /// If the weights are damaged, there is no memory for them, or the listener ends the work.
    pub fn prepare(
        &mut self,
        place: &WeightsPlace,
        listener: Listener<'_>,
    ) -> Result<Option<PackReport>, PackError> {
        place.prepare(&mut self.stage.transformer, listener)
    }

    /// Packs the weights into the cache file at `path`, unless the file has them.
    ///
    /// # Errors
    /// If the weights are damaged, the file cannot be written, or the listener ends the work.
    pub fn pack_into(
        &mut self,
        place: &WeightsPlace,
        path: &Path,
        listener: Listener<'_>,
    ) -> Result<(), PackError> {
        place.pack_into(&mut self.stage.transformer, path, listener)
    }

    /// The cache file that [`Engine::prepare`] uses; `None` if weights are packed in memory or not packed.
    pub fn cache_file(&self, place: &WeightsPlace) -> Option<PathBuf> {
        place.cache_file(&self.stage.transformer)
    }

    /// The cache file that `place` names, even for a model too small to be packed into a file by default.
    pub fn cache_file_for_any(&self, place: &WeightsPlace) -> Option<PathBuf> {
        place.cache_file_for_any(&self.stage.transformer)
    }

    /// How many packed matrices the cache file at `path` lacks; `None` if the weights have no packed form.
    ///
    /// # Errors
    /// If the file cannot be used at all.
    pub fn cache_lacks(&self, path: &Path) -> Result<Option<usize>, PackError> {
        self.stage.transformer.lacks(path)
    }

    /// Keeps keys and values, and states, of long prompts in files in `folder`, and reads them from there. All models
    /// together get up to `limit` bytes. A separate thread writes the files. A file that cannot be used is
    /// reported and ignored. On a ring every node has to call this, each for its own layers; the master calls
    /// it after joining. Has no effect on a team.
    ///
    /// # Errors
    /// If the folder cannot be made or listed, or the system refuses the thread.
    pub fn keep_prefixes(&mut self, folder: &Path, limit: u64) -> io::Result<()> {
        self.stage.prefixes = Some(Store::open(folder, limit, self.model().fingerprint()?)?);
        Ok(())
    }

    /// Has all threads poll `is_interrupted` before each piece of a batch's work and during waits for a
    /// ring's results. When it returns true, the work ends with [`StepError::Interrupted`].
    pub fn interrupt_by(&mut self, is_interrupted: fn() -> bool) {
        self.stage.interrupt_by(is_interrupted);
        self.backend.interrupt_by(is_interrupted);
    }

    /// Waits again for a ring that was given up to become complete, for as long as before.
    ///
    /// # Errors
    /// [`StepError::Ring`] if the ring is given up again, or the caller withdraws.
    #[cfg(feature = "serve")]
    pub(crate) fn reopen(&mut self) -> Result<(), StepError> {
        self.backend.forget();
        self.backend.reopen(&mut self.stage)
    }

    /// Whether the model was given with the block behind its last layer, see [`Model::with_next`], and this board alone
    /// computes it.
    pub fn guesses(&self) -> bool {
        self.stage.team.is_none() && self.stage.transformer.has_next()
    }

    /// Has the block behind the model's last layer guess up to `n` ids behind `ids`, the last of which `stream` does not
    /// hold yet. Writes the guesses to `out`; none if the block is not loaded, or lacks what it needs.
    ///
    /// # Errors
    /// If the positions do not fit the plan.
    pub(super) fn guess(
        &mut self,
        stream: &Stream,
        (ids, n): (&[u32], usize),
        out: &mut Vec<u32>,
    ) -> Result<(), ForwardError> {
        out.clear();
        let [.., last] = ids else { return Ok(()) };
        let (mut token, mut span) = (*last, stream.span_of_guess());
        let n_ids = n_ids_of_guesses(ids, self.header().vocab_size);
        if !self.guesses() || stream.pos() + 1 != ids.len() {
            return Ok(());
        }
        while out.len() < n && span.pos < stream.room().min(self.ctx_len()) {
            let guessed = self.stage.transformer.guess(span, token, (out.is_empty(), n_ids))?;
            let Some(id) = guessed.and_then(|logits| argmax(logits)) else { break };
            out.push(id);
            (token, span) = (id, Span { pos: span.pos + 1, ..span });
        }
        Ok(())
    }

    /// Exchanges the threads of two engines.
    pub fn trade_threads(&mut self, other: &mut Engine) {
        self.stage.transformer.trade_threads(&mut other.stage.transformer);
    }

    /// The kernels for `model`: `isa` if it is given; otherwise those that the model's file is packed for;
    /// otherwise the best of this CPU.
    ///
    /// # Errors
    /// If this CPU cannot run them.
    pub fn kernels(model: Option<&Model>, isa: Option<Isa>) -> Result<Kernels, EngineError> {
        if let Some(isa) = isa {
            return Kernels::for_isa(isa).ok_or(EngineError::Isa(isa));
        }
        let best = Kernels::best();
        let Some(wanted) = model.and_then(Model::packed_for) else { return Ok(best) };
        let unusable = StartError::Packed { wanted, found: best.isa() };
        Kernels::for_isa(wanted).ok_or(EngineError::Start(unusable))
    }

    /// Header of the model file.
    pub fn header(&self) -> &Header {
        self.stage.transformer.model().header()
    }

    /// The model, or the share of it that runs here.
    pub fn model(&self) -> &Model {
        self.stage.transformer.model()
    }

    /// Model, kernels, memory and threads of this engine.
    pub fn about(&self) -> EngineInfo {
        let weights =
            match (self.stage.transformer.is_packed(), self.stage.transformer.is_in_memory()) {
                (false, _) => WeightsIn::Unpacked,
                (true, false) => WeightsIn::Mapped,
                (true, true) => WeightsIn::Memory,
            };
        let StageInfo { plan, threads, .. } = self.stage.transformer.about();
        let arena_bytes = self.stage.transformer.arena_bytes();
        EngineInfo { isa: self.isa(), threads, kv: plan.kv, arena_bytes, weights }
    }

    /// Has the device that `open` opens compute the last layers, as many as it takes. Streams' KV is lost.
    ///
    /// # Errors
    /// If the device cannot be used, or the machine does not have enough memory. Nothing is changed then.
    ///
    /// # Panics
    /// If there is a device, or the engine leads a team.
    pub fn use_device(&mut self, open: OpenDevice) -> Result<(), StartError> {
        self.stage.transformer.use_device(open)
    }

    /// Name of the device beside the CPUs, and the number of layers that it computes; `None` if there is none.
    pub fn device(&self) -> Option<(&str, usize)> {
        self.stage.transformer.device_beside()
    }

    /// Bytes of the weights that the device beside the CPUs has, as a file has them; 0 without one.
    pub fn device_bytes(&self) -> u64 {
        self.stage.transformer.device_weight_bytes()
    }

    /// Part of the bytes of a token's weights that the device beside the CPUs reads, 0 to 1.
    pub fn device_part(&self) -> f64 {
        self.stage.transformer.part_beside().min(1.0)
    }

    /// Instruction set of the kernels in use.
    pub fn isa(&self) -> Isa {
        self.stage.transformer.kernels().isa()
    }

    /// Waits until weights have been copied to huge pages; copying takes memory bandwidth.
    pub fn await_huge_pages(&mut self) {
        self.stage.transformer.await_huge_pages();
    }

    /// Bytes of the weights packed for the kernels, in addition to the model's own. `None` if they have no
    /// packed form, or if the model's file is packed.
    pub fn packed_bytes(&self) -> Option<u64> {
        self.stage.transformer.packed_bytes()
    }

    /// The sizes that the engine runs with.
    pub(crate) fn plan(&self) -> &Plan {
        self.stage.transformer.about().plan
    }

    /// Longest context of a stream.
    pub fn ctx_len(&self) -> usize {
        self.plan().ctx_len
    }

    /// Most rows of a batch.
    pub fn max_batch(&self) -> usize {
        self.plan().max_batch
    }

    /// Most rows of a batch that may want logits.
    pub(super) fn max_logits(&self) -> usize {
        self.plan().max_logits
    }

    /// A new, empty stream. Dropping it frees its slot.
    ///
    /// # Errors
    /// If all planned streams are in use.
    pub fn stream(&mut self) -> Result<Stream, EngineError> {
        Stream::new(&self.places, self.header(), self.ctx_len()).ok_or(EngineError::NoStream)
    }

    /// Appends `ids` to the stream, in batches, and returns the logits after the last one; no logits if `ids`
    /// is empty.
    ///
    /// If the context would overflow or an id does not exist. The stream then holds the batches before the
    /// failing one.
    pub fn push(&mut self, stream: &mut Stream, ids: &[u32]) -> Result<&mut [f32], StepError> {
        self.push_all(stream, ids, false)
    }

    /// Appends like [`Engine::push`], and has the state of recurrent layers kept behind the last of `ids`, so that
    /// [`Engine::go_back`] finds it there.
    pub(super) fn push_and_keep(
        &mut self,
        stream: &mut Stream,
        ids: &[u32],
    ) -> Result<&mut [f32], StepError> {
        self.push_all(stream, ids, true)
    }

    fn push_all(
        &mut self,
        stream: &mut Stream,
        ids: &[u32],
        is_kept: bool,
    ) -> Result<&mut [f32], StepError> {
        if ids.is_empty() {
            return Ok(&mut []);
        }
        self.make_long(stream, ids.len())?;
        let max_batch = self.max_batch();
        let (first, last) = ids.split_at((ids.len() - 1) / max_batch * max_batch);
        for batch in first.chunks(max_batch) {
            self.push_batch(stream, batch, Wants::None)?;
        }
        self.push_one(stream, last, (Wants::Last, is_kept))
    }

    /// Appends one batch to the stream and returns the wanted logits, `[wanted, vocab_size]`.
    ///
    /// If the batch or the logits are more than planned, the context would overflow, an id does not exist, or
    /// the stream belongs to another engine. The stream is then unchanged.
    pub fn push_batch(
        &mut self,
        stream: &mut Stream,
        ids: &[u32],
        wants: Wants,
    ) -> Result<&mut [f32], StepError> {
        self.push_one(stream, ids, (wants, false))
    }

    fn push_one(
        &mut self,
        stream: &mut Stream,
        ids: &[u32],
        (wants, is_kept): (Wants, bool),
    ) -> Result<&mut [f32], StepError> {
        if !self.is_own(stream) {
            return Err(StepError::Stranger);
        }
        if ids.len() > self.max_batch() {
            return Err(ForwardError::Plan.into());
        }
        let wants = if ids.is_empty() { Wants::None } else { wants };
        loop {
            match self.try_push(stream, ids, (wants, is_kept)) {
                // The stream's KV is computed again in the next round.
                Err(StepError::Lost) => {}
                pushed => break pushed?,
            }
        }
        let logits = match wants {
            Wants::None => &mut [],
            Wants::Last | Wants::All => self.collect()?.1,
        };
        stream.ids.extend_from_slice(ids);
        Ok(logits)
    }

    /// Runs the stream's next batch, and waits for the wanted logits.
    fn try_push(
        &mut self,
        stream: &mut Stream,
        ids: &[u32],
        (wants, is_kept): (Wants, bool),
    ) -> Result<(), StepError> {
        self.restore(stream)?;
        self.make_long(stream, ids.len())?;
        let end = stream.pos() + ids.len();
        if end <= self.ctx_len() && self.reserve(stream, end) < end {
            return Err(StepError::NoPage);
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let mut span = stream.span(ids.len(), wants);
        if is_kept {
            stream.keep_state(&mut span);
        }
        batch.push(span, ids);
        let submitted = self.submit(&batch);
        self.batch = batch;
        submitted?;
        match wants {
            Wants::None => Ok(()),
            Wants::Last | Wants::All => self.wait(),
        }
    }

    /// Recomputes the stream's KV if it was lost.
    fn restore(&mut self, stream: &mut Stream) -> Result<(), StepError> {
        if stream.is_lost() {
            let ids = stream.ids.clone();
            self.adopt(stream, &ids);
            let rest = &ids[stream.pos()..];
            for batch in rest.chunks(self.max_batch()) {
                self.push_batch(stream, batch, Wants::None)?;
            }
        }
        Ok(())
    }

    /// Recomputes the stream's KV if `n` more ids make its text a long one.
    fn make_long(&mut self, stream: &mut Stream, n: usize) -> Result<(), StepError> {
        let n_ids = stream.pos() + n;
        if stream.crosses(n_ids) {
            let ids = stream.ids.clone();
            stream.grow_to(n_ids);
            for batch in ids.chunks(self.max_batch()) {
                self.push_batch(stream, batch, Wants::None)?;
            }
        }
        Ok(())
    }

    /// Whether a batch can be submitted without waiting for the result of another.
    pub(super) fn has_room(&self) -> bool {
        self.backend.has_room()
    }

    /// Number of nodes that compute at the same time.
    pub(super) fn n_nodes(&self) -> usize {
        self.backend.n_nodes()
    }

    /// Pipeline depth for one stream: batches that can be in flight without waiting for each other's nodes.
    pub(super) fn batches_in_a_lap(&self) -> usize {
        self.backend.depth()
    }

    /// Submits a batch. Batches that want logits are collected in the order of submission.
    ///
    /// # Errors
    /// If the batch does not fit the model or the plan, or could not be computed.
    pub(super) fn submit(&mut self, batch: &Batch) -> Result<(), StepError> {
        self.stage.transformer.about().check(batch)?;
        let submitted = self.backend.submit(&mut self.stage, batch);
        self.heard(submitted)
    }

    /// Passes `result` on; after [`StepError::Lost`], this node forgets the KV that the nodes lost.
    fn heard(&self, result: Result<(), StepError>) -> Result<(), StepError> {
        if result == Err(StepError::Lost) {
            self.places.forget();
        }
        result
    }

    /// Waits for the results of the oldest submitted batch that wants logits.
    ///
    /// # Errors
    /// If the batch could not be computed.
    pub(super) fn wait(&mut self) -> Result<(), StepError> {
        let waited = self.backend.wait(&mut self.stage, None);
        self.heard(waited)
    }

    /// Waits for the oldest submitted batch that wants logits. Returns its spans and logits,
    /// `[wanted, vocab_size]`.
    ///
    /// # Errors
    /// If the batch could not be computed.
    pub(super) fn collect(&mut self) -> Result<Logits<'_>, StepError> {
        let Engine { stage, backend, places, .. } = self;
        backend.collect(stage).inspect_err(|error| {
            if *error == StepError::Lost {
                places.forget();
            }
        })
    }

    /// On a ring, waits for the oldest submitted batch that wants logits while `is_waiting` returns true.
    ///
    /// # Errors
    /// If the batch could not be computed.
    pub(super) fn wait_while(&mut self, is_waiting: &dyn Fn() -> bool) -> Result<(), StepError> {
        let waited = self.backend.wait(&mut self.stage, Some(is_waiting));
        self.heard(waited)
    }

    /// Waits for the oldest submitted batch that wants logits, and drops its result.
    ///
    /// # Errors
    /// If the batch could not be computed.
    pub(super) fn skip(&mut self) -> Result<(), StepError> {
        let skipped = self.backend.skip(&mut self.stage);
        self.heard(skipped)
    }

    /// Drops the results of all submitted batches: the caller will not collect them.
    pub(super) fn forget(&mut self) {
        self.backend.forget();
    }

    /// Makes room for positions of the stream up to `end`. Returns the end of the room that there is.
    pub(super) fn reserve(&mut self, stream: &mut Stream, end: usize) -> usize {
        if stream.room() < end || stream.has_new_page() {
            let Engine { stage, backend, .. } = self;
            stream.extend(end, &mut |change| backend.change_page(stage, change));
        }
        stream.room()
    }

    /// Makes the stream forget everything beyond its common beginning with `ids`, and returns the number of
    /// `ids` that it holds, including those from other streams. Pushing the rest makes the stream hold `ids`.
    ///
    /// At least one id is left to push, for its logits. With a sliding window no ids remain if positions that
    /// the next id needs have been overwritten.
    pub fn rewind(&mut self, stream: &mut Stream, ids: &[u32]) -> usize {
        self.adopt(stream, ids);
        stream.pos()
    }

    /// Rewinds like [`Engine::rewind`]; faster if only the last few ids of the stream differ from `ids`. A model with
    /// recurrent layers goes back to a state that was kept ([`Engine::push_and_keep`]).
    pub(super) fn go_back(&mut self, stream: &mut Stream, ids: &[u32]) {
        let goes_on = stream.serves(ids.len()) && stream.pos() < ids.len();
        if goes_on && ids.starts_with(stream.ids()) {
            return;
        }
        let keep = self.n_shared(stream, ids);
        // Other streams may hold a full page, so the stream may not write to it.
        if keep > 0 && keep >= stream.shared_len() && !self.header().has_state() {
            stream.ids.truncate(keep);
        } else {
            self.rewind(stream, ids);
        }
    }

    fn adopt(&mut self, stream: &mut Stream, ids: &[u32]) {
        if self.stage.prefixes.is_some() {
            stream.clear();
            self.load((ids, stream.is_long(ids.len())));
        }
        let Engine { stage, backend, .. } = self;
        stream.adopt(ids, &mut |change| backend.change_page(stage, change));
    }

    /// Fills pages with the beginning of a text that files hold.
    fn load(&mut self, text: prefix::Text<'_>) {
        let Engine { stage, backend, places, .. } = self;
        if backend.can_read(stage) {
            stage.fit_prefixes();
            prefix::load(&mut Files { stage, backend: &mut **backend }, places, text);
        }
    }

    /// True if the prefix files hold more of the prompt than memory does: the caller drains the pipeline, then loads.
    pub(super) fn has_to_read(&mut self, stream: &Stream, ids: &[u32]) -> bool {
        let Engine { stage, backend, places, .. } = self;
        if stage.prefixes.is_none() || !backend.reads_together(stage) {
            return false;
        }
        stage.fit_prefixes();
        let text = (ids, stream.is_long(ids.len()));
        prefix::has_more(&mut Files { stage, backend: &mut **backend }, places, text)
    }

    /// Has the pages of `prompt` and the states at its `forks` written to files, as far as its stream has computed them,
    /// if prefixes are kept.
    pub(super) fn keep(
        &mut self,
        stream: &Stream,
        kept: &mut Kept,
        (prompt, forks): (&[u32], Option<&Forks>),
    ) {
        let Engine { stage, backend, .. } = self;
        if stage.prefixes.is_none() {
            return;
        }
        while let Some(page) = kept.next(stream, prompt, forks)
            && backend.keep(stage, &page)
        {
            kept.told(page.state.is_some());
        }
    }

    /// Tells the backend that no batch follows for now.
    pub(super) fn rest(&mut self) {
        self.backend.rest(&mut self.stage);
    }

    /// Number and use of the pages of the KV cache.
    pub fn page_figures(&self) -> PageFigures {
        let read = self.stage.prefixes.as_ref().map_or(0, Store::n_read);
        PageFigures { read, ..self.places.figures() }
    }

    /// How many of `ids` the stream could keep, if it shared no page with other streams.
    pub(super) fn n_shared(&self, stream: &Stream, ids: &[u32]) -> usize {
        let common = stream.ids.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let keep = common.min(ids.len().saturating_sub(1));
        let can_keep =
            stream.serves(ids.len()) && self.stage.transformer.can_rewind(stream.reached, keep);
        if can_keep { keep } else { 0 }
    }

    /// Whether the stream belongs to this engine.
    pub(super) fn is_own(&self, stream: &Stream) -> bool {
        stream.is_of(&self.places)
    }
}

/// The page files of an engine's nodes.
struct Files<'a> {
    stage: &'a mut OwnStage,
    backend: &'a mut dyn Backend,
}

impl prefix::Files for Files<'_> {
    fn own(&mut self) -> Option<&mut Store> {
        self.stage.prefixes.as_mut()
    }

    fn read(&mut self, text: prefix::Text<'_>, pages: &[prefix::PageToRead]) -> usize {
        self.backend.read_pages(self.stage, text, pages)
    }
}

/// Number of ids, from the first on, that are guessed behind `ids`. In vocabularies of merges the first quarter has the
/// frequent ones; where nearly all of a text's last ids are among them, guesses need not read the classifier's other rows.
fn n_ids_of_guesses(ids: &[u32], vocab_size: usize) -> usize {
    let quarter = vocab_size / 4;
    let last = &ids[ids.len().saturating_sub(IDS_SEEN)..];
    let n_others = last.iter().filter(|id| **id as usize >= quarter).count();
    match quarter >= QUARTER_MIN && n_others * OTHERS_PART <= last.len() {
        true => quarter,
        false => vocab_size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_are_among_the_first_ids_where_a_text_has_no_others() {
        let text = |n_others: usize| {
            let ids = (0..100).map(|i| if i < 100 - n_others { 5 } else { 90_000 });
            ids.collect::<Vec<u32>>()
        };
        assert_eq!(n_ids_of_guesses(&text(0), 200_000), 50_000);
        assert_eq!(n_ids_of_guesses(&text(8), 200_000), 50_000);
        assert_eq!(n_ids_of_guesses(&text(9), 200_000), 200_000);
        // A small vocabulary is read whole.
        assert_eq!(n_ids_of_guesses(&text(0), 32_000), 32_000);
        assert_eq!(n_ids_of_guesses(&[], 200_000), 50_000);
    }
}
