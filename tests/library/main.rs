//! The engine as a library, and files: checkpoints, vocabularies, conversions.

#[path = "../common/allocator.rs"]
mod allocator;
#[path = "../common/mod.rs"]
mod common;
#[cfg(all(feature = "pickle", feature = "demo"))]
mod convert;
mod drafts;
#[cfg(feature = "pickle")]
mod embed;
#[cfg(feature = "pickle")]
mod export;
#[cfg(all(feature = "gpu", feature = "pickle"))]
mod gpu;
#[cfg(all(feature = "gpu", feature = "pickle"))]
mod gpu_states;
mod hostile;
mod kv_quality;
#[cfg(feature = "tools")]
mod long_text;
#[cfg(feature = "pickle")]
mod next;
mod prefixes;
#[cfg(feature = "pickle")]
mod recurrent;
mod scheduler;
#[cfg(feature = "pickle")]
mod state_files;
#[cfg(feature = "pickle")]
mod teams;
#[cfg(feature = "tools")]
mod tokenizer;
