//! Generation: a scheduler that answers jobs batch by batch, stop conditions and figures.

mod about;
mod answer;
mod backend;
pub(crate) mod bandwidth;
#[cfg(feature = "tools")]
mod calibrate;
pub mod chat;
mod choice;
mod device;
mod draft_model;
pub(crate) mod draft_node;
mod drafts;
mod embedder;
mod error;
mod forks;
mod job;
mod lane;
pub(crate) mod made_up;
mod ngrams;
mod options;
mod own_stage;
mod pace;
mod pages;
mod prefix;
mod ready;
mod recent;
pub mod ring;
mod rules;
mod scheduler;
pub mod score;
mod stop;
mod stream;
pub mod team;
mod thought_limit;
mod together;
mod weights;

pub use crate::kernels::Isa;
pub use crate::model::{DeviceSpeeds, ForwardError, KvKind, Model, Precision, Wants};
pub use about::{EngineInfo, WeightsIn};
#[cfg(feature = "tools")]
pub use calibrate::{CalibrateError, calibrate};
pub use device::{DeviceLine, devices};
pub use draft_model::ModelDrafter;
pub use drafts::{DRAFTS_MAX, DraftKind, DraftMode, Drafter};
#[cfg(feature = "serve")]
pub(crate) use embedder::ends;
pub use embedder::{EmbedError, Embedder, TextIds, VectorForm};
pub use error::{EngineError, JoinError, LeadError, StepError};
pub use job::{Job, JobError, JobEvent, JobFigures, JobId, Outcome, StopReason};
pub use ngrams::NgramDrafter;
pub use options::{
    CTX_LEN_DEFAULT, DeviceChoice, DeviceOptions, KvMemory, Options, STEP_BYTES_MIN, batch_default,
    is_small,
};
pub use pace::StallLimit;
pub use pages::PageFigures;
pub use prefix::Store as PrefixStore;
pub use ready::Engine;
pub use rules::{LogitRules, Odds, RepeatPenalty, TokenFilter};
pub use scheduler::{Scheduler, TellJob};
pub use stream::Stream;
pub use thought_limit::ThoughtLimit;
pub use weights::{Cache, Huge, LargerThanMemory, Listener, Preparing, WeightsPlace};
