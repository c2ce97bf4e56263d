//! A device beside the CPUs.

use super::batch::{ForwardError, Span};
use super::plan::{PageChange, Plan};
use super::stage::{KvPlace, PiecePlace, StatePlace};
use super::start_error::StartError;
use super::view::Model;
use crate::pool::Pool;

/// Opens a device for the last layers of a view of a model. The threads of the pool prepare their weights.
pub type OpenDevice = Box<dyn Fn(&Model, &Plan, &Pool) -> Result<Box<dyn Device>, String> + Send>;

/// Measured speeds of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceSpeeds {
    /// Bytes a second that it reads from its memory.
    pub read: f64,
    /// Bytes of int8 weights a second that it multiplies by one row.
    pub multiplied: f64,
}

/// A device beside the CPUs that computes the last layers of a model, and its classifier, with the bits that the CPUs
/// give.
///
/// The format of its keys and values is the CPUs', see [`Stage::kv_part_bytes`](super::Stage::kv_part_bytes), and so is
/// that of states of recurrent layers. The device follows the batches' spans, as the CPUs do, to know which positions
/// its states belong to.
pub trait Device: Send {
    /// The device's name.
    fn name(&self) -> &str;

    /// The layers that the device computes. Its share has the model's ends if it classifies.
    fn model(&self) -> &Model;

    /// Changes the sizes of buffers and KV cache. The streams' KV is lost.
    ///
    /// # Errors
    /// If the plan does not fit the device.
    fn set_plan(&mut self, plan: &Plan) -> Result<(), StartError>;

    /// Computes the layers on `x`, the rows of `spans`, `[rows, dim]`. Polls `is_interrupted` between layers.
    ///
    /// # Errors
    /// If the pass was interrupted or the device failed.
    fn run_layers(
        &mut self,
        spans: &[Span],
        x: &mut [f32],
        is_interrupted: Option<fn() -> bool>,
    ) -> Result<(), ForwardError>;

    /// Logits, `[m, vocab_size]`, of rows `x` that have been through the final norm, `[m, dim]`.
    ///
    /// # Errors
    /// If the device failed.
    fn classify(&mut self, x: &[f32], logits: &mut [f32]) -> Result<(), ForwardError>;

    /// Gives a stream another page of the KV cache. The caller has checked that all of it exists.
    fn change_page(&mut self, change: &PageChange);

    /// Reads a layer's part of a page; `false` if it does not exist.
    fn read_kv(&mut self, part: KvPlace, out: &mut [u8]) -> bool;

    /// Writes `bytes` to a layer's part of a page, from byte `first` on; `false` if there is no room there.
    fn write_kv(&mut self, part: KvPlace, first: usize, bytes: &[u8]) -> bool;

    /// Reads a recurrent layer's part of a checkpoint; `false` if it does not exist.
    fn read_state(&mut self, part: StatePlace, out: &mut [u8]) -> bool;

    /// Writes a recurrent layer's part of a checkpoint; `false` if it does not exist.
    fn write_state(&mut self, part: StatePlace, bytes: &[u8]) -> bool;

    /// Reads a piece of a recurrent layer's states; `false` if there is no state.
    fn read_state_piece(&mut self, place: PiecePlace, out: &mut [u8]) -> bool;

    /// Writes `bytes` to a piece, from byte `first` on; `false` if there is no place for them.
    fn write_state_piece(&mut self, place: PiecePlace, first: usize, bytes: &[u8]) -> bool;
}
