//! The models that a server may load, as its operator provides them.

use std::ops::ControlFlow;

use super::service::{ModelAbout, ServedModel};
use crate::engine::{Embedder, Engine, Scheduler};
use crate::tokenizer::Tokenizer;

/// A model that requests may name.
#[derive(Clone, Debug)]
pub(crate) struct ListedModel {
    /// Its description for clients.
    pub(crate) about: ModelAbout,
    /// Longest context of its answers, in tokens.
    pub(crate) ctx_len: usize,
    /// Seconds since 1970 of the last change of its file.
    pub(crate) modified: u64,
    /// Memory that it takes when it is loaded: weights, keys and values, and buffers.
    pub(crate) memory: u64,
}

/// A model with its words, which need not be loaded.
pub(crate) struct DescribedModel {
    pub(crate) model: ServedModel,
    pub(crate) ctx_len: usize,
    pub(crate) vocab_size: usize,
}

/// A model that can answer.
pub(crate) struct LoadedModel {
    pub(crate) machine: Machine,
    pub(crate) model: ServedModel,
}

/// The machine that answers for a model.
pub(crate) enum Machine {
    Writes(Box<Engine>),
    Embeds(Box<Embedder>),
}

/// Why a model cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceError {
    /// There is no such model here.
    Absent,
    /// There is no such model elsewhere, either.
    Unknown(String),
    /// This program or its operator does not allow it.
    Refused(String),
    /// It should work, but does not.
    Failed(String),
}

/// Progress of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// A step of the work, in Ollama's words: `verifying sha256 digest`.
    Step(&'static str),
    /// Bytes of a file, of which `completed` are there.
    #[cfg_attr(not(feature = "pull"), allow(dead_code, reason = "nothing is downloaded"))]
    Bytes { digest: String, total: u64, completed: u64 },
}

/// Callback for the progress of a download, which ends the download by [`ControlFlow::Break`].
pub(crate) type TellProgress<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// The models of a server with several. Methods are called from any thread, also at the same time.
pub(crate) trait ModelSource: Send + Sync {
    /// All models that can be used now; their folders are looked at each time.
    fn list(&self) -> Vec<ListedModel>;

    /// The model `name`, if it can be used.
    ///
    /// # Errors
    /// If there is none, or its file is damaged.
    fn find(&self, name: &str) -> Result<ListedModel, SourceError>;

    /// The model `name` without its weights.
    ///
    /// # Errors
    /// If there is none, or its file is damaged.
    fn describe(&self, name: &str) -> Result<DescribedModel, SourceError>;

    /// Loads the model `name` in the calling thread, which then runs it. A signal ends the work.
    ///
    /// # Errors
    /// If there is none, its file is damaged, or the machine lacks the means.
    fn load(&self, name: &str) -> Result<LoadedModel, SourceError>;

    /// The scheduler of a loaded model.
    ///
    /// # Errors
    /// If the engine has no stream.
    fn schedule<'t>(
        &self,
        engine: &mut Engine,
        tokenizer: &'t Tokenizer,
    ) -> Result<Scheduler<'t>, SourceError>;

    /// Downloads the model `name`. A file that is half there is gone on with.
    ///
    /// # Errors
    /// If there is none, or it cannot be downloaded.
    fn pull(&self, name: &str, tell: TellProgress<'_>) -> Result<(), SourceError>;

    /// Removes the files of the model `name`.
    ///
    /// # Errors
    /// If there is none, or its files are not this server's to remove.
    fn delete(&self, name: &str) -> Result<(), SourceError>;
}
