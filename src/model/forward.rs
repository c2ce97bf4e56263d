//! The forward pass: a batch of tokens in, logits out.
//!
//! Each step reads one layer's weights once for all rows of the batch. A prompt's chunk, the
//! next token of one stream and those of several streams are the same call.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::attention::Attention;
use super::buffers::Buffers;
use super::interest::Interest;
use super::kv::KvShape;
use super::packed::{PackError, PackProgress, PackReport, PackedWeights, Packer};
use super::plan::{Plan, PlanError};
use super::project::Projector;
use super::rope;
use super::{CheckError, Matrix, Model, Share};
use crate::arena::{Arena, Exhausted};
use crate::format::model::{Header, TensorKind};
use crate::kernels::{Isa, Kernels};
use crate::pool::Pool;
use crate::sys::heap;

/// One token of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its id.
    pub token: u32,
    /// Whose KV cache it reads and extends.
    pub stream: usize,
    /// Its position in the stream; all earlier ones have been through a forward pass, or
    /// come before it in the same batch.
    pub pos: usize,
    /// Whether its logits are wanted.
    pub wants_logits: bool,
}

/// A batch that does not fit the plan or the model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardError {
    /// The id is not in the vocabulary.
    Token {
        /// The id.
        id: u32,
        /// Ids below this exist.
        vocab_size: usize,
    },
    /// The position lies outside the context.
    ContextFull {
        /// Length of the context.
        ctx_len: usize,
    },
    /// There are more rows, wanted logits or streams than planned.
    Plan,
    /// Nobody wants the result any more; see [`Transformer::interrupt_by`].
    Interrupted,
}

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ForwardError::Token { id, vocab_size } => {
                write!(f, "token id {id} is not below the vocabulary's size {vocab_size}")
            }
            ForwardError::ContextFull { ctx_len } => {
                write!(f, "the context of {ctx_len} tokens is full")
            }
            ForwardError::Plan => write!(f, "the batch is larger than planned"),
            ForwardError::Interrupted => write!(f, "interrupted"),
        }
    }
}

impl std::error::Error for ForwardError {}

/// Why a [`Transformer`] cannot be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The plan does not fit the model.
    Plan(PlanError),
    /// There is not enough memory.
    Memory(Exhausted),
    /// The model's file is packed for other kernels than those that should run it.
    Packed {
        /// The kernels it is packed for.
        wanted: Isa,
        /// The kernels that should run it.
        found: Isa,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Plan(e) => e.fmt(f),
            StartError::Memory(e) => e.fmt(f),
            StartError::Packed { wanted, found } => {
                let (wanted, found) = (wanted.name(), found.name());
                write!(
                    f,
                    "the model's weights are packed for {wanted} kernels, but those in use here are \
                     {found}; export the model again without --isa, or for this machine's kernels"
                )
            }
        }
    }
}

impl std::error::Error for StartError {}

/// A model with the threads, buffers and KV cache to run it.
pub struct Transformer {
    model: Arc<Model>,
    kernels: Kernels,
    pool: Pool,
    plan: Plan,
    kv: KvShape,
    /// Radians per position, `[head_dim / 2]`.
    frequencies: Vec<f64>,
    arena: Arena,
    packed: Option<PackedWeights>,
    /// Whether the weights are known to be those that were exported.
    is_checked: bool,
    is_wanted: Option<fn() -> bool>,
}

impl Transformer {
    /// Allocates everything that `plan` asks for.
    ///
    /// # Errors
    /// If the plan does not fit the model, the machine has not that much memory, or the model's
    /// file is packed for other kernels.
    pub fn new(
        model: Arc<Model>,
        kernels: Kernels,
        pool: Pool,
        plan: Plan,
    ) -> Result<Transformer, StartError> {
        if let Some(wanted) = model.packed_for().filter(|isa| *isa != kernels.isa()) {
            return Err(StartError::Packed { wanted, found: kernels.isa() });
        }
        let (arena, kv) = allocate(&model, &plan)?;
        let frequencies = rope::frequencies(model.header());
        let packed = PackedWeights::of_model(&model);
        Ok(Transformer {
            model,
            kernels,
            pool,
            plan,
            kv,
            frequencies,
            arena,
            packed,
            is_checked: false,
            is_wanted: None,
        })
    }

    /// Gives buffers and KV cache other sizes; what the streams held is forgotten.
    ///
    /// # Errors
    /// If the plan does not fit the model or the machine; nothing has been changed then.
    pub fn set_plan(&mut self, plan: Plan) -> Result<(), StartError> {
        (self.arena, self.kv) = allocate(&self.model, &plan)?;
        self.plan = plan;
        Ok(())
    }

    /// Compares the weights with their checksums, on all threads, unless they are known to match. A
    /// file may have none; there is nothing to compare then. `is_wanted` is asked now and then.
    ///
    /// # Errors
    /// If a tensor's bytes are not those that were exported, or nobody wants the answer any more.
    pub fn check_weights(&mut self, is_wanted: &dyn Fn() -> bool) -> Result<(), CheckError> {
        if !self.is_checked {
            self.model.check(&self.model.checkable(), &self.pool, is_wanted)?;
            self.is_checked = true;
        }
        Ok(())
    }

    /// Says that the weights match their checksums: an earlier process compared them, and nobody has
    /// written to the file since.
    pub fn trust_weights(&mut self) {
        self.is_checked = true;
    }

    /// Takes the weights from the cache file at `path`, packed for the kernels; builds it if it
    /// is not there or does not match. The results stay the same. `None` if these weights or
    /// these kernels have no packed form.
    ///
    /// Weights are compared with their checksums as they are packed, and before a file that is there
    /// is used, as in [`Transformer::check_weights`]. `go_on` is told between tensors how far it is
    /// and may end the work.
    ///
    /// # Errors
    /// If the weights are damaged; or if the file cannot be written, and the weights are used as they
    /// are then.
    pub fn use_cache(
        &mut self,
        path: &Path,
        go_on: &dyn Fn(PackProgress) -> bool,
    ) -> Result<Option<PackReport>, PackError> {
        let Some((packed, report)) = self.packer().cached(path, go_on)? else {
            return Ok(None);
        };
        self.is_checked |= report.packed > 0;
        let all = PackProgress { done_bytes: report.bytes, total_bytes: report.bytes };
        self.check_weights(&|| go_on(all))?;
        self.packed = Some(packed);
        Ok(Some(report))
    }

    /// Packs the weights for the kernels in memory of this process, once they have been compared with
    /// their checksums; `None` as for [`Transformer::use_cache`].
    ///
    /// # Errors
    /// If the weights are damaged; or if there is not enough memory, and the weights are used as they
    /// are then.
    pub fn pack_in_memory(&mut self) -> Result<Option<PackReport>, PackError> {
        self.check_weights(&|| true)?;
        let Some((packed, report)) = self.packer().in_memory().map_err(PackError::Memory)? else {
            return Ok(None);
        };
        self.packed = Some(packed);
        Ok(Some(report))
    }

    /// What the model's own file holds packed; `None` if it is as any kernels can use it.
    pub fn packed_in_model(&self) -> Option<PackReport> {
        self.model.packed_for()?;
        self.packed.as_ref().map(PackedWeights::reused)
    }

    /// From now on `is_wanted` is asked by all threads before each piece of a layer's work, and may
    /// end a forward pass with [`ForwardError::Interrupted`]: within milliseconds, however large
    /// the batch is. Its rows then count as not run.
    pub fn interrupt_by(&mut self, is_wanted: fn() -> bool) {
        self.is_wanted = Some(is_wanted);
    }

    /// Bytes of the weights packed for the kernels, beside those of the model; `None` if they have
    /// no packed form, or the model's file holds that.
    pub fn packed_bytes(&self) -> Option<u64> {
        self.packer().bytes()
    }

    /// Copies mapped packed weights to huge pages in the background, and uses the copy from
    /// the forward pass on that finds it complete.
    pub fn move_to_huge_pages(&mut self) {
        if let Some(packed) = &mut self.packed {
            packed.start_move();
        }
    }

    /// Whether packed weights are in use.
    pub fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// Whether packed weights are in memory of this process, in huge pages if there are any.
    pub fn is_in_memory(&self) -> bool {
        self.packed.as_ref().is_some_and(PackedWeights::is_in_memory)
    }

    fn packer(&self) -> Packer<'_> {
        Packer { model: &self.model, kernels: &self.kernels, pool: &self.pool }
    }

    /// The model that is run.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Sizes of the run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The kernels in use.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Bytes of buffers and KV cache.
    pub fn arena_bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// Whether a stream of which up to `reached` positions have been stored can go on from `pos`:
    /// what `pos` looks back to is still there, and no later position took its place.
    pub fn can_rewind(&self, reached: usize, pos: usize) -> bool {
        self.kv.holds_before(reached, pos)
    }

    /// Runs `rows` through the model and returns the logits of those that want them,
    /// `[wanted, vocab_size]`, in the rows' order.
    ///
    /// # Errors
    /// If a row does not fit the model or the plan, and nothing has been changed then; or if
    /// the pass was interrupted.
    ///
    /// # Panics
    /// If the model is a share that lacks layers or ends.
    pub fn forward(&mut self, rows: &[Row]) -> Result<&mut [f32], ForwardError> {
        assert!(self.model.share() == &Share::whole(self.model.header()));
        self.check(rows)?;
        let (pass, mut buffers) = self.begin(rows);
        pass.embed(&mut buffers);
        pass.layers(&mut buffers)?;
        let m = pass.normalise_wanted(&mut buffers);
        Ok(pass.classify(m, buffers))
    }

    /// Whether `rows` could be run.
    ///
    /// # Errors
    /// As for [`Transformer::forward`].
    pub fn check(&self, rows: &[Row]) -> Result<(), ForwardError> {
        check(rows, &self.plan)?;
        check_tokens(rows, self.model.header())
    }

    /// The first stage: the tokens of `rows` become activations.
    ///
    /// # Errors
    /// As for [`Transformer::forward`].
    ///
    /// # Panics
    /// If the model is a share without ends.
    pub fn embed(&mut self, rows: &[Row]) -> Result<(), ForwardError> {
        self.check(rows)?;
        let (pass, mut buffers) = self.begin(rows);
        pass.embed(&mut buffers);
        Ok(())
    }

    /// The activations of the first `n_rows` rows, `[n_rows, dim]`: what [`Transformer::embed`]
    /// or the caller wrote, and [`Transformer::run_layers`] turns into its result.
    ///
    /// # Panics
    /// If these are more rows than planned.
    pub fn activations(&mut self, n_rows: usize) -> &mut [f32] {
        let dim = self.model.header().dim;
        let (_, buffers) = self.begin(&[]);
        &mut buffers.x[..n_rows * dim]
    }

    /// The second stage: takes the activations of `rows` through the share's layers. Tokens do
    /// not matter here.
    ///
    /// # Errors
    /// As for [`Transformer::forward`].
    pub fn run_layers(&mut self, rows: &[Row]) -> Result<(), ForwardError> {
        check(rows, &self.plan)?;
        let (pass, mut buffers) = self.begin(rows);
        pass.layers(&mut buffers)
    }

    /// The last stage: the logits of `x`, activations of the model's last layer, `[m, dim]`.
    ///
    /// # Errors
    /// If these are more than the plan's `max_logits`.
    ///
    /// # Panics
    /// If the model is a share without ends.
    pub fn classify(&mut self, x: &[f32]) -> Result<&mut [f32], ForwardError> {
        let m = x.len() / self.model.header().dim;
        if m > self.plan.max_logits {
            return Err(ForwardError::Plan);
        }
        let (pass, mut buffers) = self.begin(&[]);
        pass.normalise_last(x, &mut buffers);
        Ok(pass.classify(m, buffers))
    }

    fn begin<'s, 'a: 's>(&'a mut self, rows: &'s [Row]) -> (Pass<'s>, Buffers<'a>) {
        if let Some(packed) = &mut self.packed {
            packed.finish_move();
        }
        let mut carver = self.arena.carver();
        let (header, share) = (self.model.header(), self.model.share());
        let buffers = Buffers::carve(header, share, &self.plan, &mut carver);
        let buffers = buffers.expect("the arena was made for this plan");
        let pass = Pass {
            model: &self.model,
            packed: self.packed.as_ref(),
            kernels: &self.kernels,
            pool: &self.pool,
            kv: &self.kv,
            frequencies: &self.frequencies,
            interest: Interest::new(self.is_wanted),
            rows,
        };
        (pass, buffers)
    }
}

fn allocate(model: &Model, plan: &Plan) -> Result<(Arena, KvShape), StartError> {
    let (header, share) = (model.header(), model.share());
    let bytes = plan.bytes(header, share).map_err(StartError::Plan)?;
    let arena = heap::may_fail(|| Arena::new(bytes)).map_err(StartError::Memory)?;
    Ok((arena, KvShape::new(header, share.layers.len(), plan.kv_len(header))))
}

fn check(rows: &[Row], plan: &Plan) -> Result<(), ForwardError> {
    let wanted = rows.iter().filter(|row| row.wants_logits).count();
    let has_stream = |row: &Row| row.stream < plan.n_streams;
    if rows.len() > plan.max_batch || wanted > plan.max_logits || !rows.iter().all(has_stream) {
        return Err(ForwardError::Plan);
    }
    match rows.iter().any(|row| row.pos >= plan.ctx_len) {
        true => Err(ForwardError::ContextFull { ctx_len: plan.ctx_len }),
        false => Ok(()),
    }
}

fn check_tokens(rows: &[Row], header: &Header) -> Result<(), ForwardError> {
    let vocab_size = header.vocab_size;
    match rows.iter().find(|row| row.token as usize >= vocab_size) {
        Some(row) => Err(ForwardError::Token { id: row.token, vocab_size }),
        None => Ok(()),
    }
}

/// One forward pass over `rows`.
struct Pass<'a> {
    model: &'a Model,
    packed: Option<&'a PackedWeights>,
    kernels: &'a Kernels,
    pool: &'a Pool,
    kv: &'a KvShape,
    frequencies: &'a [f64],
    interest: Interest,
    rows: &'a [Row],
}

impl Pass<'_> {
    fn projector(&self) -> Projector<'_> {
        let (kernels, pool, interest) = (self.kernels, self.pool, &self.interest);
        Projector { kernels, pool, group: self.model.header().weights.group(), interest }
    }

    /// The matrix of `kind` in `layer`, packed if it is.
    fn matrix(&self, kind: TensorKind, layer: usize) -> Matrix<'_> {
        let header = self.model.header();
        let packed = self.packed.and_then(|packed| packed.matrix((kind, layer), header));
        packed.unwrap_or_else(|| self.model.matrix(kind, layer))
    }

    /// Fills `x` with the tokens' embeddings.
    fn embed(&self, buffers: &mut Buffers<'_>) {
        let header = self.model.header();
        let embedding = self.model.matrix(TensorKind::Embedding, 0);
        for (row, x) in self.rows.iter().zip(buffers.x.chunks_exact_mut(header.dim)) {
            embedding.read_row(row.token as usize, self.kernels, x);
        }
    }

    /// Takes `x` through the share's layers.
    fn layers(&self, buffers: &mut Buffers<'_>) -> Result<(), ForwardError> {
        let half = self.model.header().head_dim / 2;
        let tables = buffers.cos.chunks_exact_mut(half).zip(buffers.sin.chunks_exact_mut(half));
        for (row, (cos, sin)) in self.rows.iter().zip(tables) {
            rope::angles(self.frequencies, row.pos, cos, sin);
        }
        for layer in self.model.share().layers.clone() {
            self.attention(layer, buffers);
            self.feed_forward(layer, buffers);
            if self.interest.is_lost() {
                return Err(ForwardError::Interrupted);
            }
        }
        Ok(())
    }

    fn attention(&self, layer: usize, buffers: &mut Buffers<'_>) {
        let header = self.model.header();
        let (m, dim, q_dim) = (self.rows.len(), header.dim, header.q_dim());
        let matrix = |kind| self.matrix(kind, layer);
        let projector = self.projector();

        let wqkv = [matrix(TensorKind::Wq), matrix(TensorKind::Wk), matrix(TensorKind::Wv)];
        let norm = self.norm(TensorKind::AttentionNorm, layer);
        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| norm(x, row, out);
        projector.prepare(&mut buffers.inputs, (m, dim), &wqkv[0], Some(&fill));
        projector.project(&buffers.inputs, (m, dim), &wqkv, buffers.qkv);

        let (kernels, pool, kv) = (self.kernels, self.pool, self.kv);
        let own_layer = layer - self.model.share().layers.start;
        let (n_heads, interest) = (header.n_heads, &self.interest);
        let attention = Attention { kernels, pool, kv, n_heads, interest };
        attention.run(self.rows, own_layer, buffers);

        let wo = matrix(TensorKind::Wo);
        projector.prepare(&mut buffers.inputs, (m, q_dim), &wo, None);
        projector.project(&buffers.inputs, (m, q_dim), &[wo], buffers.delta);
        self.add_delta(buffers);
    }

    fn feed_forward(&self, layer: usize, buffers: &mut Buffers<'_>) {
        let header = self.model.header();
        let (m, dim, ffn_dim) = (self.rows.len(), header.dim, header.ffn_dim);
        let matrix = |kind| self.matrix(kind, layer);
        let projector = self.projector();

        let gate_up = [matrix(TensorKind::W1), matrix(TensorKind::W3)];
        let norm = self.norm(TensorKind::FfnNorm, layer);
        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| norm(x, row, out);
        projector.prepare(&mut buffers.inputs, (m, dim), &gate_up[0], Some(&fill));
        projector.project(&buffers.inputs, (m, dim), &gate_up, buffers.gate_up);

        let w2 = matrix(TensorKind::W2);
        let (kernels, gate_up) = (self.kernels, &*buffers.gate_up);
        let fill = |row: usize, out: &mut [f32]| {
            let (gate, up) = gate_up[row * 2 * ffn_dim..][..2 * ffn_dim].split_at(ffn_dim);
            kernels.swiglu(gate, up, out);
        };
        projector.prepare(&mut buffers.inputs, (m, ffn_dim), &w2, Some(&fill));
        projector.project(&buffers.inputs, (m, ffn_dim), &[w2], buffers.delta);
        self.add_delta(buffers);
    }

    /// Adds `delta` to `x`.
    fn add_delta(&self, buffers: &mut Buffers<'_>) {
        let dim = self.model.header().dim;
        let (x, delta) = (&mut *buffers.x, &*buffers.delta);
        self.pool.run_chunks(&mut x[..self.rows.len() * dim], dim, &|row, x| {
            self.kernels.add(x, &delta[row * dim..][..dim]);
        });
    }

    /// What writes the RMSNorm of a row of some activations.
    fn norm(
        &self,
        kind: TensorKind,
        layer: usize,
    ) -> impl Fn(&[f32], usize, &mut [f32]) + Sync + use<'_> {
        let (header, kernels) = (self.model.header(), self.kernels);
        let (dim, eps) = (header.dim, header.norm_eps);
        let weight = self.model.norm(kind, layer);
        move |x, row, out| kernels.rms_norm(&x[row * dim..][..dim], weight, eps, out)
    }

    /// Final norm of the rows of `x` that want logits into the classifier's inputs; returns
    /// how many those are.
    fn normalise_wanted(&self, buffers: &mut Buffers<'_>) -> usize {
        let dim = self.model.header().dim;
        let rows = self.rows.iter().zip(buffers.x.chunks_exact(dim));
        let wanted = rows.filter(|(row, _)| row.wants_logits).map(|(_, x)| x);
        self.normalise_final(wanted, buffers.inputs.f32)
    }

    /// The same for all of `x`, `[m, dim]`.
    fn normalise_last(&self, x: &[f32], buffers: &mut Buffers<'_>) -> usize {
        let dim = self.model.header().dim;
        self.normalise_final(x.chunks_exact(dim), buffers.inputs.f32)
    }

    fn normalise_final<'x>(&self, x: impl Iterator<Item = &'x [f32]>, out: &mut [f32]) -> usize {
        let header = self.model.header();
        let weight = self.model.norm(TensorKind::FinalNorm, 0);
        let mut m = 0;
        for (x, out) in x.zip(out.chunks_exact_mut(header.dim)) {
            self.kernels.rms_norm(x, weight, header.norm_eps, out);
            m += 1;
        }
        m
    }

    /// Logits of the `m` rows that have been through the final norm, `[m, vocab_size]`.
    fn classify<'b>(&self, m: usize, buffers: Buffers<'b>) -> &'b mut [f32] {
        let header = self.model.header();
        let Buffers { mut inputs, logits, .. } = buffers;
        // Whoever asked for logits gets them.
        let interest = Interest::new(None);
        let projector = Projector { interest: &interest, ..self.projector() };
        let classifier = self.matrix(self.model.header().classifier(), 0);
        projector.prepare(&mut inputs, (m, header.dim), &classifier, None);
        projector.project(&inputs, (m, header.dim), &[classifier], logits);
        &mut logits[..m * header.vocab_size]
    }
}

#[cfg(test)]
mod tests;
