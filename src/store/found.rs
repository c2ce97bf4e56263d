//! A model that is on this machine.

use std::path::PathBuf;

use super::name::ModelName;
use crate::format::Suggested;

/// A model that is on this machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FoundModel {
    /// The name by which it is found.
    pub(crate) name: ModelName,
    /// Its GGUF file, the first one of several, or its folder.
    pub(crate) path: PathBuf,
    /// Length of its files.
    pub(crate) bytes: u64,
    /// Whether `leap pull` brought it.
    pub(crate) is_pulled: bool,
    /// Settings of answers that come with it.
    pub(crate) suggested: Suggested,
}
