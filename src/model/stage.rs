//! The interface between a node and the device that computes in it.

use super::batch::{Batch, ForwardError, Span};
use super::check::CheckError;
use super::plan::{PageChange, Plan};
use super::precision::Precision;
use super::share::Share;
use super::start_error::StartError;
use crate::format::model::Header;

/// A share of a model on a device that runs it: this machine's CPUs
/// ([`Transformer`](super::Transformer)), or another one.
///
/// The rows of a batch lie in the device's own memory, in whatever form. Others write and read them as
/// little-endian bytes, `[n, dim]` of some [`Precision`].
///
/// Methods that run a batch are called once a batch, not once a layer.
pub trait Stage {
    /// Its model, share, plan and device.
    fn about(&self) -> StageInfo<'_>;

    /// Bytes of weights that are read for a token, added up.
    fn bytes_per_token(&self) -> u64;

    /// Gives buffers and KV cache other sizes; what the streams held is forgotten.
    ///
    /// # Errors
    /// If the plan does not fit the model or the machine; nothing has been changed then.
    fn set_plan(&mut self, plan: Plan) -> Result<(), StartError>;

    /// Takes the layers of `share` instead, of the same file; what the streams held is forgotten.
    ///
    /// # Errors
    /// If the file does not hold the share, or the plan does not fit the model or the machine; nothing
    /// has been changed then.
    fn set_share(&mut self, share: Share, plan: Plan) -> Result<(), StartError>;

    /// Compares the weights with their checksums, except those that are known to match. A file without
    /// checksums passes. Polls `is_interrupted`.
    ///
    /// # Errors
    /// If a tensor's bytes are not those that were exported, or the caller ended the work.
    fn check_weights(&self, is_interrupted: &dyn Fn() -> bool) -> Result<(), CheckError>;

    /// Waits until all boards that compute for it are there. `false` if one was away since the last call, and
    /// the streams' KV is lost.
    ///
    /// # Errors
    /// If that will not be.
    fn assemble(&mut self) -> Result<bool, AssembleError> {
        Ok(true)
    }

    /// How many nodes compute it together; of several it keeps its share.
    fn n_nodes(&self) -> usize {
        1
    }

    /// Has running layers poll `is_interrupted`, and end with [`ForwardError::Interrupted`] if it returns
    /// true: within milliseconds, however large the batch is. Its rows then count as not run.
    fn interrupt_by(&mut self, is_interrupted: fn() -> bool);

    /// The tokens of `batch` become its rows.
    ///
    /// # Errors
    /// See [`StageInfo::check`]; the stage is unchanged then.
    ///
    /// # Panics
    /// If the share has no ends.
    fn embed(&mut self, batch: &Batch) -> Result<(), ForwardError>;

    /// Takes the rows of `spans` through the share's layers.
    ///
    /// # Errors
    /// If they do not fit the plan, and nothing has been changed then; or if the pass was interrupted.
    fn run_layers(&mut self, spans: &[Span]) -> Result<(), ForwardError>;

    /// Writes the rows `bytes`, from row `first` on.
    ///
    /// # Panics
    /// If these are more rows than planned.
    fn put_rows(&mut self, first: usize, precision: Precision, bytes: &[u8]);

    /// Reads one row to `out`, as [`Stage::embed`], [`Stage::put_rows`] or [`Stage::run_layers`] left
    /// it.
    ///
    /// # Panics
    /// If there is no such row.
    fn get_row(&mut self, row: usize, precision: Precision, out: &mut [u8]);

    /// Gives a stream another page of the KV cache. `false` if there is no such stream or page, and nothing
    /// has been changed then.
    fn change_page(&mut self, change: &PageChange) -> bool;

    /// Whether the pages of a layer, counted in the model, are those of layers with a window.
    fn is_windowed(&self, layer: usize) -> bool;

    /// Bytes of a layer's part of a page of the KV cache: keys and values of its positions. Their meaning
    /// depends on the model and the plan, not on the device. 0 if none are read or written from outside.
    fn kv_part_bytes(&self) -> usize;

    /// Reads such a part, `[kv_part_bytes]`; `false` if there is none.
    fn read_kv(&mut self, part: KvPlace, out: &mut [u8]) -> bool;

    /// Writes bytes of such a part, from byte `first` on; `false` if there are none.
    fn write_kv(&mut self, part: KvPlace, first: usize, bytes: &[u8]) -> bool;

    /// The logits of the rows `bytes`, the output of the model's last layer: `[n, vocab_size]`. The rows of
    /// the device stay unchanged.
    ///
    /// # Errors
    /// If these are more than the plan's `max_logits`.
    ///
    /// # Panics
    /// If the share has no ends.
    fn classify(&mut self, precision: Precision, bytes: &[u8]) -> Result<&mut [f32], ForwardError>;
}

/// Why not all that computes for a stage is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssembleError {
    /// The caller interrupted the wait.
    Interrupted,
    /// A node cannot take its part.
    Refused,
}

/// Where in the KV cache something lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlace {
    /// The layer, counted in the model.
    pub layer: usize,
    /// The page: of those of layers with a window if it is one.
    pub page: usize,
}

/// A stage's description of itself.
#[derive(Clone, Copy, Debug)]
pub struct StageInfo<'a> {
    /// The model.
    pub header: &'a Header,
    /// Which part of it.
    pub share: &'a Share,
    /// Sizes of the run.
    pub plan: &'a Plan,
    /// Instruction set of the kernels, or the device's name.
    pub device: &'a str,
    /// Threads that compute.
    pub threads: usize,
}

impl StageInfo<'_> {
    /// Whether `batch` could be run.
    ///
    /// # Errors
    /// If it does not fit the model or the plan.
    pub fn check(&self, batch: &Batch) -> Result<(), ForwardError> {
        batch.check(self.plan, self.header.vocab_size)
    }
}
