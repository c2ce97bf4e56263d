//! Why a checkpoint did not become a model file.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use crate::format::{self, excerpt};
use crate::quant;

/// Whose fault an [`Error`] is.
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
pub enum Error {
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
        /// What is wrong, and where it helps, what would be right.
        problem: String,
    },
    /// The checkpoint is sound, but LEAP cannot run such a model.
    Unsupported {
        /// The file that says so.
        path: PathBuf,
        /// The feature.
        what: String,
    },
    /// A tensor that the model needs is nowhere.
    MissingTensor {
        /// Its name in this kind of checkpoint.
        name: String,
        /// The checkpoint's folder.
        dir: PathBuf,
    },
    /// A tensor cannot be used.
    BadTensor {
        /// Its name.
        name: String,
        /// The file it is in.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The configuration contradicts itself or goes beyond what a model file can say.
    Model {
        /// The configuration file.
        path: PathBuf,
        /// The field.
        source: format::Error,
    },
    /// The model does not have the layers asked for.
    Layers {
        /// The layers.
        layers: Range<usize>,
        /// How many there are.
        n_layers: usize,
    },
    /// The group size cannot be used at all, or not for this model.
    Group(quant::Error),
    /// The output cannot be written there.
    Output {
        /// The output.
        path: PathBuf,
        /// Why not.
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
    /// What was written does not read back as it should.
    Verify {
        /// The output.
        path: PathBuf,
        /// The first difference.
        source: format::Error,
    },
    /// The caller asked to stop.
    Interrupted,
}

impl Error {
    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            Error::Read { .. }
            | Error::BadFile { .. }
            | Error::Unsupported { .. }
            | Error::MissingTensor { .. }
            | Error::BadTensor { .. }
            | Error::Model { .. }
            | Error::Group(quant::Error::NoGroup { .. }) => Blame::Input,
            Error::Group(_) | Error::Layers { .. } | Error::Output { .. } => Blame::Request,
            Error::Write { .. } | Error::Thread { .. } => Blame::Runtime,
            Error::Verify { .. } | Error::Interrupted => Blame::Runtime,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Read { path, .. } => write!(f, "cannot read {}", path.display()),
            Error::BadFile { path, problem } => write!(f, "{}: {problem}", path.display()),
            Error::Unsupported { path, what } => {
                write!(f, "{}: unsupported: {what}", path.display())
            }
            Error::MissingTensor { name, dir } => {
                write!(f, "{}: tensor {} is missing", dir.display(), excerpt(name))
            }
            Error::BadTensor { name, path, problem } => {
                write!(f, "{}: tensor {} {problem}", path.display(), excerpt(name))
            }
            Error::Model { path, .. } => write!(f, "{}", path.display()),
            Error::Layers { layers: Range { start, end }, n_layers } => {
                write!(f, "no layers {start}..{end} in a model of {n_layers}")
            }
            Error::Group(error) => error.fmt(f),
            Error::Output { path, problem } => {
                write!(f, "cannot write {}: {problem}", path.display())
            }
            Error::Write { path, .. } => write!(f, "cannot write {}", path.display()),
            Error::Thread { .. } => f.write_str("cannot start a thread"),
            Error::Verify { path, .. } => {
                write!(f, "{} was not written correctly", path.display())
            }
            Error::Interrupted => f.write_str("interrupted; no model file was written"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Read { source, .. } | Error::Write { source, .. } | Error::Thread { source } => {
                Some(source)
            }
            Error::Model { source, .. } | Error::Verify { source, .. } => Some(source),
            _ => None,
        }
    }
}
