//! Embeddings: a vector for each text.
//!
//! A batch holds whole texts, each a stream from position 0. Rows are computed as for any batch, so a text's vector
//! depends neither on the other texts, nor on the threads, nor on the instruction set.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::error::EngineError;
use super::options::{DeviceChoice, Options};
use super::ready::Engine;
use super::weights::{Listener, WeightsPlace};
use crate::format::model::{Header, Pooling, TensorKind};
use crate::kernels::Kernels;
use crate::model::{
    Batch, ForwardError, KV_PAGE, Model, PackError, PackReport, PageChange, PagePair, Plan, Span,
    Stage, Transformer, Wants,
};
use crate::tokenizer::Tokenizer;

/// Rows of a batch: enough for a matrix's weights to be read once for many.
const BATCH: usize = 512;
/// Most texts of a batch.
const TEXTS: usize = 64;

/// A model that computes embeddings, with its threads and buffers.
pub struct Embedder {
    transformer: Transformer,
    plan: Plan,
    batch: Batch,
    form: VectorForm,
    /// Sums of a text's rows, `[dim]`.
    sums: Vec<f64>,
    /// A pooled vector, and the two dense layers' outputs.
    pooled: [Vec<f32>; 3],
}

/// How a text's vector is made of its tokens' vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorForm {
    /// How they become one.
    pub pooling: Pooling,
    /// Whether it gets the length 1.
    pub is_normalised: bool,
    /// How many of its values are kept, from the first on; `None` for all.
    pub dimensions: Option<usize>,
}

impl VectorForm {
    /// The form of the model of `header`.
    pub fn of(header: &Header) -> VectorForm {
        VectorForm {
            pooling: header.embedding().map_or(Pooling::Last, |of| of.pooling),
            is_normalised: header.embedding().is_none_or(|of| of.is_normalised),
            dimensions: None,
        }
    }
}

/// Why texts have no embedding.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmbedError {
    /// The text has more tokens than the context.
    TooLong {
        /// Its tokens.
        tokens: usize,
        /// Tokens of the context.
        limit: usize,
    },
    /// The text has no tokens.
    Empty,
    /// More values are asked for than a vector has, or none.
    Dimensions {
        /// Values that are asked for.
        wanted: usize,
        /// Values of a vector.
        dim: usize,
    },
    /// A vector has values that are no finite numbers.
    NotFinite,
    /// A batch could not be computed.
    Forward(ForwardError),
}

impl fmt::Display for EmbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmbedError::TooLong { tokens, limit } => {
                write!(f, "the text has {tokens} tokens, the context is {limit}")
            }
            EmbedError::Empty => write!(f, "the text has no tokens"),
            EmbedError::Dimensions { wanted, dim } => {
                write!(f, "{wanted} dimensions, the model's vectors have 1 to {dim}")
            }
            EmbedError::NotFinite => {
                write!(f, "the model's weights lead to numbers that are not finite")
            }
            EmbedError::Forward(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for EmbedError {}

/// Texts as a model of embeddings gets them.
#[derive(Clone, Copy)]
pub struct TextIds<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The model.
    pub header: &'a Header,
    /// Most tokens of a text.
    pub limit: usize,
    /// Whether longer texts lose their end. Otherwise they are refused.
    pub truncates: bool,
}

impl TextIds<'_> {
    /// Ids of `prompt` and `text`, between the ids that the model wants around a text. Names of special tokens become
    /// these tokens.
    ///
    /// # Errors
    /// If the text is too long, or has no tokens.
    pub fn of(&self, prompt: &str, text: &str) -> Result<Vec<u32>, EmbedError> {
        let mut ids = Vec::new();
        match prompt {
            "" => self.tokenizer.encode_with_special(text, &mut ids),
            prompt => self.tokenizer.encode_with_special(&[prompt, text].concat(), &mut ids),
        }
        let [first, last] = ends(self.header, self.tokenizer);
        let n_around = usize::from(first.is_some()) + usize::from(last.is_some());
        let tokens = ids.len() + n_around;
        if tokens > self.limit && !(self.truncates && self.limit > n_around) {
            return Err(EmbedError::TooLong { tokens, limit: self.limit });
        }
        ids.truncate(self.limit - n_around);
        let ids: Vec<u32> = first.into_iter().chain(ids).chain(last).collect();
        if ids.is_empty() { Err(EmbedError::Empty) } else { Ok(ids) }
    }
}

/// The ids before and behind a text: those that a model of embeddings wants; BOS and none in any other.
pub(crate) fn ends(header: &Header, tokenizer: &Tokenizer) -> [Option<u32>; 2] {
    let embedding = header.embedding();
    let first = embedding.and_then(|of| of.first).or(tokenizer.bos());
    [first, embedding.and_then(|of| of.last)]
}

impl Embedder {
    /// Plans to run `model`, and starts threads. Weights are used unpacked and unchecked until
    /// [`Embedder::prepare`] has packed and checked them.
    ///
    /// # Errors
    /// If `options` do not fit the model or the machine.
    pub fn new(model: Arc<Model>, options: &Options) -> Result<Embedder, EngineError> {
        if let DeviceChoice::Gpu { .. } = options.device.choice {
            return Err(EngineError::Device("embeddings are computed on the CPU alone".to_owned()));
        }
        let header = model.header();
        let plan = Embedder::plan(header, options);
        let form = VectorForm::of(header);
        let (sums, pooled) = (vec![0.0; header.dim], vec![0.0; header.dim]);
        let inner = vec![0.0; header.embedding().map_or(0, |of| of.dense_dim)];
        let kernels = Engine::kernels(Some(&model), options.isa)?;
        let pool = options.pool(&model).map_err(EngineError::Threads)?;
        let transformer =
            Transformer::new(model, kernels, pool, plan).map_err(EngineError::Start)?;
        let pooled = [pooled.clone(), inner, pooled];
        let batch = Batch::with_capacity(plan.max_batch);
        Ok(Embedder { transformer, plan, batch, form, sums, pooled })
    }

    /// Sizes of a run: a text that attends to later tokens has to fit into one batch.
    pub fn plan(header: &Header, options: &Options) -> Plan {
        let plan = options.plan(header);
        let least = if header.is_bidirectional() { plan.ctx_len } else { 1 };
        let max_batch = options.batch.unwrap_or(BATCH).max(least).max(1);
        // Pages of layers with a window are a stream's own.
        let has_windows = header.layers().any(|layer| layer.window.is_some());
        let n_streams = if has_windows && !header.is_bidirectional() { 1 } else { TEXTS };
        let n_streams = n_streams.min(max_batch);
        let n_pages = plan.ctx_len.div_ceil(KV_PAGE).max(max_batch.div_ceil(KV_PAGE) + n_streams);
        let kv_pages = Some(n_pages).filter(|_| n_streams > 1);
        Plan { max_batch, max_logits: 1, n_streams, kv_pages, ..plan }
    }

    /// Makes the weights ready, like [`Engine::prepare`].
    ///
    /// # Errors
    /// If the weights are damaged, there is no memory for them, or the listener ends the work.
    pub fn prepare(
        &mut self,
        place: &WeightsPlace,
        listener: Listener<'_>,
    ) -> Result<Option<PackReport>, PackError> {
        place.prepare(&mut self.transformer, listener)
    }

    /// The cache file that [`Embedder::prepare`] uses, if it uses one.
    pub fn cache_file(&self, place: &WeightsPlace) -> Option<PathBuf> {
        place.cache_file(&self.transformer)
    }

    /// Has running batches poll `is_interrupted`; they then end with [`ForwardError::Interrupted`].
    pub fn interrupt_by(&mut self, is_interrupted: fn() -> bool) {
        self.transformer.interrupt_by(is_interrupted);
    }

    /// Header of the model file.
    pub fn header(&self) -> &Header {
        self.transformer.model().header()
    }

    /// Most tokens of a text.
    pub fn ctx_len(&self) -> usize {
        self.plan.ctx_len
    }

    /// Bytes of buffers, and of keys and values.
    pub fn arena_bytes(&self) -> usize {
        self.transformer.arena_bytes()
    }

    /// The model's own form of vectors.
    pub fn form(&self) -> VectorForm {
        self.form
    }

    /// Computes the vectors of `texts`, and gives each to `tell` with the text's index, in order. `tell` returns whether
    /// to go on.
    ///
    /// # Errors
    /// If a text or the form does not fit the model: nothing is computed then. Or if a batch fails.
    pub fn embed(
        &mut self,
        texts: &[Vec<u32>],
        form: VectorForm,
        tell: &mut dyn FnMut(usize, &[f32]) -> bool,
    ) -> Result<(), EmbedError> {
        self.check(texts, form)?;
        let mut next = 0;
        while next < texts.len() {
            let first = next;
            next += self.n_at_once(texts[first..].iter());
            if texts[first].len() > self.plan.max_batch {
                self.run_long(&texts[first], form.pooling)?;
                let vector = self.finish(form)?;
                if !tell(first, vector) {
                    return Ok(());
                }
                continue;
            }
            self.run(&texts[first..next])?;
            let mut row = 0;
            for (index, text) in (first..).zip(&texts[first..next]) {
                self.pool(row, (0, text.len(), text.len()), form.pooling);
                row += text.len();
                let vector = self.finish(form)?;
                if !tell(index, vector) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// How many of `texts`, from the first on, go through the model together. At least one: a longer text than a batch goes
    /// alone, part by part.
    pub fn n_at_once<'t>(&self, texts: impl Iterator<Item = &'t Vec<u32>>) -> usize {
        let mut n_rows = 0;
        let fits = |text: &&Vec<u32>| {
            n_rows += text.len();
            n_rows <= self.plan.max_batch
        };
        texts.take(self.plan.n_streams).take_while(fits).count().max(1)
    }

    fn check(&self, texts: &[Vec<u32>], form: VectorForm) -> Result<(), EmbedError> {
        let (limit, &Header { dim, vocab_size, .. }) = (self.plan.ctx_len, self.header());
        if let Some(wanted) = form.dimensions.filter(|n| *n == 0 || *n > dim) {
            return Err(EmbedError::Dimensions { wanted, dim });
        }
        for text in texts {
            if text.len() > limit {
                return Err(EmbedError::TooLong { tokens: text.len(), limit });
            }
            if text.is_empty() {
                return Err(EmbedError::Empty);
            }
            if let Some(&id) = text.iter().find(|id| **id as usize >= vocab_size) {
                return Err(EmbedError::Forward(ForwardError::Token { id, vocab_size }));
            }
        }
        Ok(())
    }

    /// Computes the rows of `texts`, which fit into one batch.
    fn run(&mut self, texts: &[Vec<u32>]) -> Result<(), EmbedError> {
        self.batch.clear();
        let mut page = 0;
        for (stream, text) in texts.iter().enumerate() {
            for index in 0..text.len().div_ceil(KV_PAGE) {
                self.give_page(stream, index, page);
                page += 1;
            }
            self.batch.push(span(stream, 0, text), text);
        }
        self.compute()
    }

    /// Computes a text that is longer than a batch, part by part, and pools its rows.
    fn run_long(&mut self, text: &[u32], pooling: Pooling) -> Result<(), EmbedError> {
        for index in 0..text.len().div_ceil(KV_PAGE) {
            self.give_page(0, index, index);
        }
        let mut pos = 0;
        for part in text.chunks(self.plan.max_batch) {
            self.batch.clear();
            self.batch.push(span(0, pos, part), part);
            self.compute()?;
            self.pool(0, (pos, part.len(), text.len()), pooling);
            pos += part.len();
        }
        Ok(())
    }

    fn give_page(&mut self, stream: usize, index: usize, page: usize) {
        if self.plan.kv_pages.is_some() {
            let to = PagePair { page: page as u32, window: None };
            self.transformer.change_page(&PageChange { stream, index, to, from: None });
        }
    }

    fn compute(&mut self) -> Result<(), EmbedError> {
        let Embedder { transformer, batch, .. } = self;
        transformer.embed(batch).map_err(EmbedError::Forward)?;
        transformer.run_all_rows(batch.spans()).map_err(EmbedError::Forward)
    }

    /// Pools `n` rows of the batch from `row` on, which are those of a text of `of` tokens from position `pos` on.
    fn pool(&mut self, row: usize, (pos, n, of): (usize, usize, usize), pooling: Pooling) {
        let dim = self.sums.len();
        let rows = self.transformer.hidden(self.batch.spans());
        let mut rows = rows[row * dim..].chunks_exact(dim).take(n);
        let sums = &mut self.sums;
        let mut take = |row: &[f32]| {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum = f64::from(*x));
        };
        match pooling {
            Pooling::First if pos == 0 => rows.next().into_iter().for_each(take),
            Pooling::First => {}
            Pooling::Last => rows.next_back().into_iter().for_each(take),
            Pooling::Mean => {
                if pos == 0 {
                    rows.next().into_iter().for_each(&mut take);
                }
                for row in rows {
                    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
                }
                if pos + n == of {
                    sums.iter_mut().for_each(|sum| *sum /= of as f64);
                }
            }
        }
    }

    /// The vector of the pooled rows: through the dense layers, cut, and normalised.
    fn finish(&mut self, form: VectorForm) -> Result<&[f32], EmbedError> {
        let [pooled, inner, out] = &mut self.pooled;
        pooled.iter_mut().zip(&self.sums).for_each(|(x, sum)| *x = *sum as f32);
        let model = self.transformer.model();
        let kernels = self.transformer.kernels();
        if !inner.is_empty() {
            dense(kernels, model.vector(TensorKind::PooledIn, 0), pooled, inner);
            dense(kernels, model.vector(TensorKind::PooledOut, 0), inner, out);
            pooled.copy_from_slice(out);
        }
        let vector = &mut pooled[..form.dimensions.unwrap_or(self.sums.len())];
        if form.is_normalised {
            let squares = vector.iter().fold(0.0, |sum, x| sum + f64::from(*x) * f64::from(*x));
            let length = squares.sqrt();
            if length > 0.0 {
                vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
            }
        }
        match vector.iter().all(|x| x.is_finite()) {
            true => Ok(vector),
            false => Err(EmbedError::NotFinite),
        }
    }
}

/// `out = w · x`.
fn dense(kernels: &Kernels, w: &[f32], x: &[f32], out: &mut [f32]) {
    kernels.matmul_f32(w, x.len(), x, &mut [out]);
}

fn span(stream: usize, pos: usize, tokens: &[u32]) -> Span {
    Span { stream, pos, n_rows: tokens.len(), wants: Wants::None, ..Span::EMPTY }
}
