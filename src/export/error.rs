//! Why a checkpoint did not become a model file.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use crate::format::{FormatError, excerpt};
use crate::quant;

/// Whose fault an [`ExportError`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The checkpoint is bad or of a kind LEAP cannot run.
    Input,
    /// The request cannot be followed, whatever the checkpoint.
    Request,
    /// The machine: a full disk, an interruption.
    Runtime,
}

/// Why a checkpoint did not become a model file. No output file is left then.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExportError {
    /// A file of the checkpoint cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file of the checkpoint is damaged or says something impossible.
    BadFile {
        /// The file or folder.
        path: PathBuf,
        /// Description of the defect, with the right value where that helps.
        problem: String,
    },
    /// The checkpoint is sound, but LEAP cannot run such a model.
    Unsupported {
        /// The file that says so.
        path: PathBuf,
        /// The feature.
        what: String,
    },
    /// A tensor that the model needs is missing.
    MissingTensor {
        /// The tensor's name in this kind of checkpoint.
        name: String,
        /// The checkpoint's folder.
        dir: PathBuf,
    },
    /// A tensor cannot be used.
    BadTensor {
        /// The tensor's name.
        name: String,
        /// The file that the tensor is in.
        path: PathBuf,
        /// The fault, in words.
        problem: String,
    },
    /// The configuration contradicts itself or goes beyond what a model file can say.
    Model {
        /// The configuration file.
        path: PathBuf,
        /// The field.
        source: FormatError,
    },
    /// The model does not have the layers asked for.
    Layers {
        /// The layers.
        layers: Range<usize>,
        /// Number of layers of the model.
        n_layers: usize,
    },
    /// The group size cannot be used at all, or not for this model.
    Group(quant::QuantError),
    /// The output cannot be written to that path.
    Output {
        /// The output.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
    /// Writing failed.
    Write {
        /// The output.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refused a thread.
    Thread {
        /// The system's reason.
        source: io::Error,
    },
    /// The written file does not read back as it should.
    Verify {
        /// The output.
        path: PathBuf,
        /// The first difference.
        source: FormatError,
    },
    /// The caller asked to stop.
    Interrupted,
}

impl ExportError {
    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            ExportError::Read { .. }
            | ExportError::BadFile { .. }
            | ExportError::Unsupported { .. }
            | ExportError::MissingTensor { .. }
            | ExportError::BadTensor { .. }
            | ExportError::Model { .. }
            | ExportError::Group(quant::QuantError::NoGroup { .. }) => Blame::Input,
            ExportError::Group(_) | ExportError::Layers { .. } | ExportError::Output { .. } => {
                Blame::Request
            }
            ExportError::Write { .. } | ExportError::Thread { .. } => Blame::Runtime,
            ExportError::Verify { .. } | ExportError::Interrupted => Blame::Runtime,
        }
    }
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::Read { path, .. } => write!(f, "cannot read {}", path.display()),
            ExportError::BadFile { path, problem } => write!(f, "{}: {problem}", path.display()),
            ExportError::Unsupported { path, what } => {
                write!(f, "{}: unsupported: {what}", path.display())
            }
            ExportError::MissingTensor { name, dir } => {
                write!(f, "{}: tensor {} is missing", dir.display(), excerpt(name))
            }
            ExportError::BadTensor { name, path, problem } => {
                write!(f, "{}: tensor {} {problem}", path.display(), excerpt(name))
            }
            ExportError::Model { path, .. } => write!(f, "{}", path.display()),
            ExportError::Layers { layers: Range { start, end }, n_layers } => {
                write!(f, "no layers {start}..{end} in a model of {n_layers}")
            }
            ExportError::Group(error) => error.fmt(f),
            ExportError::Output { path, problem } => {
                write!(f, "cannot write {}: {problem}", path.display())
            }
            ExportError::Write { path, .. } => write!(f, "cannot write {}", path.display()),
            ExportError::Thread { .. } => f.write_str("cannot start a thread"),
            ExportError::Verify { path, .. } => {
                write!(f, "{} was not written correctly", path.display())
            }
            ExportError::Interrupted => f.write_str("interrupted; no model file was written"),
        }
    }
}

impl std::error::Error for ExportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ExportError::Read { source, .. }
            | ExportError::Write { source, .. }
            | ExportError::Thread { source } => Some(source),
            ExportError::Model { source, .. } | ExportError::Verify { source, .. } => Some(source),
            _ => None,
        }
    }
}
