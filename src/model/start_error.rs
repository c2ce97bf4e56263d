//! Why a model cannot be run.

use std::fmt;
use std::io;

use super::plan::PlanError;
use crate::arena::Exhausted;
use crate::kernels::Isa;

/// Why a [`super::Transformer`] cannot be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The plan does not fit the model.
    Plan(PlanError),
    /// The model's file does not have these layers, or cannot be mapped.
    Share(io::Error),
    /// Several nodes compute this share together, so it cannot change.
    Fixed,
    /// Not enough memory.
    Memory(Exhausted),
    /// A device beside the CPUs cannot take its layers, for this reason.
    Device(String),
    /// The model's file is packed for other kernels than those in use.
    Packed {
        /// Kernels that the file is packed for.
        wanted: Isa,
        /// Kernels in use.
        found: Isa,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Plan(e) => e.fmt(f),
            StartError::Share(e) => e.fmt(f),
            StartError::Fixed => f.write_str("layers of a team stay"),
            StartError::Memory(e) => e.fmt(f),
            StartError::Device(why) => f.write_str(why),
            StartError::Packed { wanted, found } => {
                let (wanted, found) = (wanted.name(), found.name());
                write!(
                    f,
                    "the model's weights are packed for {wanted} kernels, but those in use here are \
                     {found}; export the model again without --isa, or for this machine's kernels"
                )
            }
        }
    }
}

impl std::error::Error for StartError {}
