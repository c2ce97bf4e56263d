//! A model: its weights in a mapped file, and the forward pass over them.
//!
//! [`ModelFile`] is the file; [`Model`] is a view of it with the weights that one node uses. Both can be
//! shared freely. [`Transformer`] adds what each user needs alone: threads, kernels, buffers and the KV
//! cache.

mod activation;
mod attention;
mod batch;
mod buffers;
mod check;
mod device;
mod encoder;
mod file;
mod gated;
mod gather;
mod inputs;
mod interrupt;
mod kv;
mod kv_kind;
mod layer_inputs;
mod matrix;
mod mixture;
mod next;
mod next_buffers;
mod packed;
mod packer;
#[cfg(feature = "gpu")]
mod parts;
mod pass;
mod plan;
mod precision;
mod project;
mod recurrent;
mod recurrent_buffers;
mod rope;
mod routes;
mod share;
mod source;
mod stage;
mod start_error;
mod state;
mod synthetic;
mod team;
mod team_pass;
mod transformer;
mod units;
mod view;
mod wanted;
mod watch;
mod zeros;

#[cfg(feature = "gpu")]
pub(crate) use attention::growth;
pub use batch::{Batch, ForwardError, GatherError, Span, StateUse, Wants, check_spans};
pub use check::CheckError;
pub use device::{Device, DeviceSpeeds, OpenDevice};
pub use file::{LoadError, ModelFile, layout_number, packed_for};
pub use gather::{Gather, SpreadRows, To};
#[cfg(feature = "gpu")]
pub(crate) use inputs::activation_group;
#[cfg(feature = "gpu")]
pub(crate) use kv::{KvShape, LayerPlaces};
pub use kv_kind::{KvKind, KvPart};
pub use matrix::Matrix;
pub use packer::{PackError, PackProgress, PackReport, PackWatch, cached_layers};
#[cfg(feature = "gpu")]
pub(crate) use parts::RowParts;
pub use plan::{KV_PAGE, KvPlan, PageChange, PagePair, Plan, PlanError, WindowPlan};
pub use precision::Precision;
#[cfg(feature = "gpu")]
pub(crate) use project::encoding;
#[cfg(feature = "gpu")]
pub(crate) use rope::{Frequencies, angles};
pub use share::Share;
pub use stage::{AssembleError, KvPlace, PiecePlace, Stage, StageInfo, StatePlace};
pub use start_error::StartError;
pub use state::REWIND_ROWS;
#[cfg(feature = "gpu")]
pub(crate) use state::{Replay, StatePiece, StateShape, States};
pub use synthetic::{Shape, SyntheticError};
pub use team::{GivenBytes, SharesError, TEAM_MAX, Team};
pub use transformer::Transformer;
pub use view::Model;
pub use watch::Watch;
