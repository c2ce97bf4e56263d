//! Why an engine cannot be started, or cannot run a batch.

use std::fmt;
use std::io;

use super::ring::NodeError;
use super::team::TeamStartError;
use crate::kernels::Isa;
use crate::model::{ForwardError, LoadError, PackError, StartError};
use crate::ring::RingError;
use crate::team::TeamError;

/// Why an engine cannot be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// The model cannot be opened.
    Load(LoadError),
    /// Context, batch or memory do not fit.
    Start(StartError),
    /// The weights are damaged, or there is no memory to pack them.
    Weights(PackError),
    /// This CPU cannot run the instruction set asked for.
    Isa(Isa),
    /// The system refused a thread.
    Threads(io::Error),
    /// Every stream is taken.
    NoStream,
    /// The model computes embeddings, and text is asked for.
    Embeddings,
    /// The device that was asked for cannot be used, for this reason.
    Device(String),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::Load(e) => e.fmt(f),
            EngineError::Start(e) => e.fmt(f),
            EngineError::Weights(e) => e.fmt(f),
            EngineError::Isa(isa) => write!(f, "this CPU cannot run {} kernels", isa.name()),
            EngineError::Threads(_) => write!(f, "cannot start the threads"),
            EngineError::Device(why) => f.write_str(why),
            EngineError::NoStream => write!(f, "all streams are in use"),
            EngineError::Embeddings => write!(
                f,
                "this model computes embeddings, and writes no text: `leap embed` and `leap serve` use it"
            ),
        }
    }
}

impl std::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EngineError::Load(e) => e.source(),
            EngineError::Threads(e) => Some(e),
            _ => None,
        }
    }
}

impl StepError {
    /// Whether a lost board, which may come back, caused the error.
    #[cfg(feature = "serve")]
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            StepError::Ring(e) => e.is_lost(),
            StepError::Team(TeamError::Timeout { .. }) => true,
            _ => false,
        }
    }
}

/// Why a batch was not computed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepError {
    /// The job does not fit the model or the plan.
    Forward(ForwardError),
    /// The ring cannot go on.
    Ring(RingError),
    /// The team cannot go on.
    Team(TeamError),
    /// The stream belongs to another engine.
    Stranger,
    /// Other streams hold all KV pages.
    NoPage,
    /// The nodes lost their KV, and the batches in flight.
    Lost,
    /// The user ended the work.
    Interrupted,
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepError::Forward(e) => e.fmt(f),
            StepError::Ring(e) => e.fmt(f),
            StepError::Team(e) => e.fmt(f),
            StepError::Stranger => write!(f, "the stream belongs to another engine"),
            StepError::NoPage => write!(f, "other streams have the memory for keys and values"),
            StepError::Lost => write!(f, "what the other nodes had stored is lost"),
            StepError::Interrupted => write!(f, "interrupted"),
        }
    }
}

impl std::error::Error for StepError {}

impl From<ForwardError> for StepError {
    fn from(error: ForwardError) -> StepError {
        match error {
            ForwardError::Interrupted => StepError::Interrupted,
            error => StepError::Forward(error),
        }
    }
}

/// Why a ring was not joined.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// This node cannot work.
    Node(NodeError),
    /// The ring cannot be completed.
    Step(StepError),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Node(e) => e.fmt(f),
            JoinError::Step(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for JoinError {}

/// Why a team was not led.
#[derive(Debug)]
#[non_exhaustive]
pub enum LeadError {
    /// This node cannot lead a team.
    Start(TeamStartError),
    /// The team cannot be completed.
    Step(StepError),
}

impl fmt::Display for LeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeadError::Start(e) => e.fmt(f),
            LeadError::Step(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for LeadError {}
