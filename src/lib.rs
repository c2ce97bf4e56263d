//! LEAP runs language models on edge boards.
//!
//! ```
//! use leap::engine::{Engine, Job, JobEvent, Options, Scheduler};
//! use leap::tokenizer::Tokenizer;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut engine = Engine::open("models/demo.bin".as_ref(), &Options::default())?;
//! let tokenizer = Tokenizer::from_bytes(&std::fs::read("models/demo.tokenizer.bin")?, None)?;
//! let mut scheduler = Scheduler::new(&mut engine, 1, Some(&tokenizer))?;
//! let mut prompt: Vec<u32> = tokenizer.bos().into_iter().collect();
//! tokenizer.encode("Once upon a time", &mut prompt);
//! scheduler.submit(Job { n_predict: 6, ..Job::new(prompt) });
//! let mut text = String::new();
//! while !scheduler.is_idle() {
//!     scheduler.step(&mut engine, &mut |_, event| match event {
//!         JobEvent::Text(part) => text += part,
//!         JobEvent::Failed(error) => eprintln!("{error}"),
//!         _ => {}
//!     });
//! }
//! assert_eq!(text, ", in a green valley,");
//! # Ok(())
//! # }
//! ```
//!
//! [`engine::Engine::push`] gives ids to a stream and returns logits. A [`sampler::Sampler`] chooses from
//! them.
//!
//! Equal models, ids and options give equal logits, bit for bit, on every CPU, with any number of
//! threads, in batches of any size. Decoding allocates nothing. [`engine::Options`] says how a model is run,
//! [`engine::Scheduler`] answers any number of jobs, each until its own stop string or token, and
//! [`engine::chat`] holds conversations. The command `leap export` writes model files.
//!
//! # Layers
//!
//! The crate is built in layers. A module uses only modules below it, and `tests/layering.rs` checks this. `kernels`,
//! `quant`, `numerics` and [`sampler`] are a package of their own.
//!
//! - `quant`, `arena`, [`sampler`]: plain computation. The meaning of a quantised block's bytes, one
//!   allocation carved into buffers, the choice of a token. These modules know no files, sockets or CPUs.
//! - `sys`: all calls of the operating system: maps, CPU features, affinity, signals, clocks. `pool` is a
//!   fixed set of threads on top of it.
//! - [`mod@format`]: the files that LEAP reads and writes, as bytes and as values.
//! - [`tokenizer`]: text to ids and back, and chat templates.
//! - `kernels`: the arithmetic, one file per instruction set, chosen once at start.
//! - `pack`: the file of weights in a tier's own layout, shared by processes.
//! - `model`: configuration, weights, KV cache and the forward pass; and the interface between a node and the
//!   device that computes for it.
//! - `gpu`: a model's last layers on a GPU, with the bits of `kernels` (feature `gpu`).
//! - [`engine`]: generation: jobs and their scheduler, stop conditions, figures.
//! - [`export`]: converts checkpoints of other programs to LEAP's files (feature `tools`; `pickle` for those of
//!   PyTorch).
//! - `store`: models by name: those that other programs keep on this machine, and downloads (feature `pull`).
//! - `wire`: the bytes that nodes of a ring exchange. `transport`: links between two nodes that never lose,
//!   repeat or reorder data, over carriers that do.
//! - `group`: membership of nodes: epochs, missing nodes and their reasons, deadlines.
//! - `ring`: the layers of each node, and the handling of its frames.
//! - `team`: nodes that share every layer by output rows: they compute a pass in lockstep, and gather the
//!   results of all on each.
//! - `channel`: a sealed connection between two boards. `call`: the master of a ring asks boards for their
//!   abilities, and tells each its part. `fetch`: a board gets its layers of a model from another board.
//! - `control`: a socket on which a running master reports the state of its ring, and takes changes.
//! - [`fleet`]: boards that work together: their membership, their speeds, the part of the model that each
//!   gets, how parts move while they work; and a board's own part, as a master or a worker.
//! - `serve`: answers over HTTP, in the protocols that programs speak (feature `serve`).
//! - `cli`: the commands; the only layer that prints or exits.

mod arena;
mod call;
mod channel;
mod cli;
mod control;
pub mod engine;
#[cfg(feature = "tools")]
pub mod export;
mod fetch;
pub mod fleet;
pub mod format;
#[cfg(feature = "gpu")]
mod gpu;
mod group;
mod model;
mod pack;
mod pool;
mod ring;
#[cfg(feature = "serve")]
mod serve;
#[cfg(test)]
mod simulation;
#[cfg(feature = "tools")]
mod store;
mod sys;
mod team;
pub mod tokenizer;
mod transport;
mod wire;

pub use leap_kernels::sampler;
use leap_kernels::{kernels, numerics, quant};

/// The inner modules, for this package's program, tests, benches and fuzzers. Their interfaces change without
/// notice.
#[doc(hidden)]
pub mod internals {
    pub mod cli {
        pub use crate::cli::*;
    }
    pub mod draft_node {
        pub use crate::engine::draft_node::*;
    }
    pub mod kernels {
        pub use crate::kernels::*;
    }
    pub mod model {
        pub use crate::model::*;
    }
    pub mod pack {
        pub use crate::pack::*;
    }
    pub mod pool {
        pub use crate::pool::*;
    }
    pub mod quant {
        pub use crate::quant::*;
    }
    #[cfg(all(fuzzing, feature = "forms"))]
    pub mod serve {
        pub use crate::serve::fuzz::*;
    }
    pub mod sys {
        pub use crate::sys::*;
    }
    pub mod team {
        pub use crate::team::*;
    }
    pub mod transport {
        pub use crate::transport::*;
    }
    pub mod wire {
        pub use crate::wire::*;
    }
}
