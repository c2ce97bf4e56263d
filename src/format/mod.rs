//! The files that LEAP reads and writes: model files ([`model`]) and `tokenizer.bin` ([`tokenizer`]).
//!
//! Everything here works on bytes; the caller opens and maps files. All numbers are little-endian. Input is
//! not trusted: each length is checked before it is used, and no allocation is larger than the input.

pub mod model;
pub mod tokenizer;

mod chat;
mod cursor;
mod date;
mod error;
pub(crate) mod json;
mod printable;
mod shard;
mod stand_in;
#[cfg(any(feature = "tools", feature = "serve"))]
mod suggested;

pub use chat::{ChatTemplate, ChatTexts, EFFORT, OwnText, SystemTexts, filled};
pub use date::Date;
pub use error::FormatError;
pub use printable::{excerpt, printable};
pub(crate) use shard::Shard;
#[cfg(any(feature = "tools", feature = "serve"))]
pub(crate) use stand_in::without_mark;
pub(crate) use stand_in::{foreign_kind, is_utf16, stand_in, text_without_mark};
#[cfg(any(feature = "tools", feature = "serve"))]
pub(crate) use suggested::Suggested;
