//! Parsers of untrusted bytes, for the fuzz targets alone: no part of the library's interface.

pub use super::checkpoint::fuzz::{gguf, pickle, pytorch, safetensors};
pub use super::tokenizer::fuzz::{chat_template, gguf_tokenizer, tokenizer};
