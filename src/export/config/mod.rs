//! A checkpoint's configuration files.

mod family;
mod field_writer;
mod gguf;
mod gguf_fields;
mod gguf_keys;
mod hugging_face;
mod json_fields;
mod meta;
mod model;
mod settings;
mod to_gguf;

pub(super) use gguf::read as gguf;
pub(super) use gguf::rope::tensors as rope_tensors;
pub(super) use hugging_face::read as hugging_face;
pub(super) use meta::read as meta;
pub(super) use model::{Config, Extras};
pub(super) use to_gguf::{check as check_gguf, write as write_gguf};
