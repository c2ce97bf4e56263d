//! Fields of models of embeddings.

use crate::export::config::field_writer::FieldWriter;
use crate::export::config::gguf_keys as keys;
use crate::format::model::{EmbeddingModel, Header};

/// Longest text that the file names. Of learned positions it has all, though the model's limit may be lower.
pub(super) fn ctx(header: &Header) -> usize {
    match header.encoder() {
        Some(encoder) if encoder.n_positions > 0 => encoder.n_positions,
        _ => header.max_seq_len,
    }
}

/// Adds what models of embeddings have.
pub(super) fn write(header: &Header, fields: &mut FieldWriter<'_>) {
    let Some(model) = header.embedding() else { return };
    fields.number(keys::POOLING, model.pooling as usize);
    if model.encoder.is_some() {
        fields.flag(keys::CAUSAL, false);
    }
    if model.dense_dim > 0 {
        let (dim, dense_dim) = (header.dim, model.dense_dim);
        let widths = [[dim, dense_dim], [dense_dim, dim]];
        let named = keys::DENSE_DIMS.into_iter().flatten().zip(widths.into_iter().flatten());
        named.for_each(|(name, width)| fields.number(name, width));
    }
}

/// The part of `model` that a GGUF file says: not its prompts. The ids around a text are the tokenizer's.
pub(super) fn as_written(model: &EmbeddingModel) -> EmbeddingModel {
    EmbeddingModel { first: None, last: None, prompts: Vec::new(), ..model.clone() }
}
