//! A checkpoint's configuration files.

mod family;
mod gguf;
mod gguf_fields;
mod hugging_face;
mod json_fields;
mod meta;
mod model;
mod settings;

pub(super) use gguf::read as gguf;
pub(super) use hugging_face::read as hugging_face;
pub(super) use meta::read as meta;
pub(super) use model::{Config, Extras};
