//! The interface between a node and the device that computes for it.

use super::batch::{Batch, ForwardError, Span};
use super::check::CheckError;
use super::plan::{PageChange, Plan};
use super::precision::Precision;
use super::share::Share;
use super::start_error::StartError;
use crate::format::model::Header;

/// A share of a model on a device that computes it: this machine's CPUs
/// ([`Transformer`](super::Transformer)), or another device.
///
/// The rows of a batch lie in the device's own memory, in any form. Callers write and read them as
/// little-endian bytes, `[n, row_width]` of a [`Precision`]: see [`Header::row_width`].
///
/// Methods that compute a batch are called once per batch, not once per layer.
pub trait Stage {
    /// Description of the model, share, plan and device.
    fn about(&self) -> StageInfo<'_>;

    /// Bytes of weights that are read for one token, in all.
    fn bytes_per_token(&self) -> u64;

    /// Changes the sizes of buffers and KV cache. The streams' KV is lost.
    ///
    /// # Errors
    /// If the plan does not fit the model or the machine. Nothing is changed then.
    fn set_plan(&mut self, plan: Plan) -> Result<(), StartError>;

    /// Changes to the layers of `share`, from the same file. The streams' KV is lost.
    ///
    /// # Errors
    /// If the file does not hold the share, or the plan does not fit the model or the machine. Nothing is
    /// changed then.
    fn set_share(&mut self, share: Share, plan: Plan) -> Result<(), StartError>;

    /// Compares the weights with their checksums, except weights that are known to match. A file without
    /// checksums passes. Polls `is_interrupted`.
    ///
    /// # Errors
    /// If a tensor's bytes do not match its checksum, or the caller ended the work.
    fn check_weights(&self, is_interrupted: &dyn Fn() -> bool) -> Result<(), CheckError>;

    /// Waits until all boards and devices that compute the stage are ready. `false` if one was lost since the last
    /// call, so that the streams' KV is lost.
    ///
    /// # Errors
    /// If a board cannot take its part, the machine cannot take that of a lost device, or the wait is interrupted.
    fn assemble(&mut self) -> Result<bool, AssembleError> {
        Ok(true)
    }

    /// Number of nodes that compute the stage together. If there are several, its share cannot change.
    fn n_nodes(&self) -> usize {
        1
    }

    /// Has running layers poll `is_interrupted`. If it returns true, they end with
    /// [`ForwardError::Interrupted`] within milliseconds, however large the batch is. The batch's rows then
    /// count as not computed.
    fn interrupt_by(&mut self, is_interrupted: fn() -> bool);

    /// Embeds the tokens of `batch` as the stage's rows.
    ///
    /// # Errors
    /// See [`StageInfo::check`]. The stage is unchanged then.
    ///
    /// # Panics
    /// If the share has no ends.
    fn embed(&mut self, batch: &Batch) -> Result<(), ForwardError>;

    /// Computes the share's layers on the rows of `spans`. Where the last layers of a model use the keys and values of
    /// earlier ones, rows without wanted logits are not taken through them.
    ///
    /// # Errors
    /// If the rows do not fit the plan: nothing is changed then. Or if the pass was interrupted.
    fn run_layers(&mut self, spans: &[Span]) -> Result<(), ForwardError>;

    /// Writes rows, given as `bytes`, from row `first` on.
    ///
    /// # Panics
    /// If there are more rows than planned.
    fn put_rows(&mut self, first: usize, precision: Precision, bytes: &[u8]);

    /// Reads one row to `out`, after [`Stage::embed`], [`Stage::put_rows`] or [`Stage::run_layers`].
    ///
    /// # Panics
    /// If there is no row of this number.
    fn get_row(&mut self, row: usize, precision: Precision, out: &mut [u8]);

    /// Gives a stream another page of the KV cache. `false`, with nothing changed, if the stream or a page
    /// does not exist.
    fn change_page(&mut self, change: &PageChange) -> bool;

    /// Whether a layer has the pages for layers with a window. `layer` is counted in the model.
    fn is_windowed(&self, layer: usize) -> bool;

    /// Bytes of a layer's part of a page of the KV cache: keys and values of its positions. 0 if the layer stores none:
    /// it is recurrent, or uses those of an earlier layer. Their format depends on the model and the plan, not on the
    /// device. `None` if the share lacks the layer, or parts cannot be read or written from outside.
    fn kv_part_bytes(&self, layer: usize) -> Option<usize>;

    /// Reads a layer's part of a page, `[kv_part_bytes]`; `false` if there is none of this size.
    fn read_kv(&mut self, part: KvPlace, out: &mut [u8]) -> bool;

    /// Writes `bytes` to a layer's part of a page, from byte `first` on; `false` if there is no room there.
    fn write_kv(&mut self, part: KvPlace, first: usize, bytes: &[u8]) -> bool;

    /// Bytes of a recurrent layer's part of a state. Their format depends on the model alone. 0 if the model has no
    /// recurrent layers, or states cannot be read or written from outside.
    fn state_bytes(&self) -> usize {
        0
    }

    /// Reads a layer's part of a checkpoint, `[state_bytes]`; `false` if it does not exist.
    fn read_state(&mut self, _part: StatePlace, _out: &mut [u8]) -> bool {
        false
    }

    /// Writes a layer's part of a checkpoint, `[state_bytes]`; `false` if it does not exist.
    fn write_state(&mut self, _part: StatePlace, _bytes: &[u8]) -> bool {
        false
    }

    /// Number of pieces in which a recurrent layer's states follow the layer to another board: those of the streams and
    /// the checkpoints. 0 like [`Stage::state_piece_bytes`].
    fn n_state_pieces(&self) -> u32 {
        0
    }

    /// Bytes of such a piece. 0 if the model has no recurrent layers, or pieces cannot be read or written.
    fn state_piece_bytes(&self) -> usize {
        0
    }

    /// Reads a piece, `[state_piece_bytes]`; `false` if there is no state.
    fn read_state_piece(&mut self, _place: PiecePlace, _out: &mut [u8]) -> bool {
        false
    }

    /// Writes `bytes` to a piece, from byte `first` on; `false` if there is no place for them.
    fn write_state_piece(&mut self, _place: PiecePlace, _first: usize, _bytes: &[u8]) -> bool {
        false
    }

    /// Logits, `[n, vocab_size]`, of rows given as `bytes`, which are outputs of the model's last layer. The
    /// rows of the stage stay unchanged.
    ///
    /// # Errors
    /// If there are more rows than the plan's `max_logits`.
    ///
    /// # Panics
    /// If the share has no ends.
    fn classify(&mut self, precision: Precision, bytes: &[u8]) -> Result<&mut [f32], ForwardError>;
}

/// Why a stage's boards could not be assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssembleError {
    /// The caller interrupted the wait.
    Interrupted,
    /// A node cannot take its part.
    Refused,
    /// The machine does not have enough memory for the layers of a device that failed.
    Memory,
}

/// Place of a layer's part of a page in the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlace {
    /// Index of the layer in the model.
    pub layer: usize,
    /// Index of the page; among the pages for layers with a window if the layer has these.
    pub page: usize,
}

/// Place of a recurrent layer's part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePlace {
    /// Index of the layer in the model.
    pub layer: usize,
    /// Number of the checkpoint.
    pub checkpoint: u32,
}

/// Place of a piece of a recurrent layer's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PiecePlace {
    /// Index of the layer in the model.
    pub layer: usize,
    /// Number of the piece.
    pub piece: u32,
}

/// Description of a stage.
#[derive(Clone, Copy, Debug)]
pub struct StageInfo<'a> {
    /// The model.
    pub header: &'a Header,
    /// Part of the model that the stage holds.
    pub share: &'a Share,
    /// Sizes of the run.
    pub plan: &'a Plan,
    /// Instruction set of the kernels, or the device's name.
    pub device: &'a str,
    /// Threads that compute.
    pub threads: usize,
}

impl StageInfo<'_> {
    /// Checks whether `batch` can be computed.
    ///
    /// # Errors
    /// If the batch does not fit the model or the plan.
    pub fn check(&self, batch: &Batch) -> Result<(), ForwardError> {
        batch.check(self.plan, self.header.vocab_size)
    }
}
