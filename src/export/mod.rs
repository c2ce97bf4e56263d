//! Checkpoints and tokenizers of other programs to LEAP's files.
//!
//! [`ExportPlan::open`] reads a folder's configuration, finds every tensor of the model in its
//! files and checks shapes and types; nothing is written yet. [`ExportPlan::write`] then converts
//! the weights, a few rows at a time, straight from the mapped files.
//!
//! ```no_run
//! use leap::export::{ExportOptions, ExportPlan};
//! use leap::format::model::Weights;
//! use std::ops::ControlFlow;
//! use std::path::Path;
//!
//! # fn main() -> Result<(), leap::export::ExportError> {
//! let options = ExportOptions { weights: Weights::Q8 { group: 32 }, ctx: None, verify: true };
//! let plan = ExportPlan::open(Path::new("Llama-3.2-1B"), &options)?;
//! plan.write(Path::new("model.bin"), |_| ControlFlow::Continue(()))?;
//! # Ok(())
//! # }
//! ```

mod calibration;
mod checkpoint;
mod config;
mod encoder_names;
mod error;
#[cfg(fuzzing)]
pub mod fuzz;
mod gguf;
pub(crate) mod go_template;
mod job;
mod json;
mod names;
mod plan;
pub mod tokenizer;
mod writer;

pub use calibration::{Calibration, MatrixId, Moments};
pub use error::{Blame, ExportError};
pub use job::{PackRows, Packing, QuantisedRows};
pub use plan::{ExportOptions, ExportPlan, Vocabulary};
pub use writer::ExportProgress;
