//! Properties of embeddings as a header has them, and their checks.

use super::embedding::{EMBEDDING_LEN, EmbeddingModel, Encoder, PROMPTS_MAX};
use super::header::Header;
use crate::format::FormatError;

/// Positions that a table of positions may have.
const POSITIONS_MAX: usize = 1 << 20;
/// Widest dense layer.
const DENSE_MAX: usize = 1 << 20;

impl Header {
    /// Properties of a model of embeddings; `None` for models that write text.
    pub fn embedding(&self) -> Option<&EmbeddingModel> {
        self.features.embedding.as_ref()
    }

    /// Form of the layers, if they are like BERT's.
    pub fn encoder(&self) -> Option<Encoder> {
        self.embedding().and_then(|embedding| embedding.encoder)
    }

    /// Whether tokens attend to later ones.
    pub fn is_bidirectional(&self) -> bool {
        self.embedding().is_some_and(|embedding| embedding.is_bidirectional)
    }

    /// Whether feed-forward layers have a gate.
    pub fn has_gates(&self) -> bool {
        self.encoder().is_none_or(|encoder| encoder.is_gated)
    }

    /// Checks that the properties of embeddings fit together and fit the rest of the header.
    pub(super) fn check_embedding(&self) -> Result<(), FormatError> {
        let Some(embedding) = self.embedding() else { return Ok(()) };
        let unsupported = |what: &str| Err(FormatError::Unsupported(what.to_owned()));
        let field = |name, found: usize, wanted: String| {
            Err(FormatError::field(name, u32::try_from(found).unwrap_or(u32::MAX), wanted))
        };
        for id in [embedding.first, embedding.last].into_iter().flatten() {
            if id as usize >= self.vocab_size {
                let wanted = format!("below vocab_size {}", self.vocab_size);
                return field("first or last id of texts", id as usize, wanted);
            }
        }
        if embedding.dense_dim > DENSE_MAX {
            let wanted = format!("at most {DENSE_MAX}");
            return field("width of dense layers behind pooling", embedding.dense_dim, wanted);
        }
        if embedding.len() > EMBEDDING_LEN + PROMPTS_MAX {
            return unsupported("prompts of embeddings with more than 16384 bytes");
        }
        if self.has_state() || self.share.is_some() {
            return unsupported("embeddings by recurrent layers, or by a part of a model");
        }
        if !self.shared_classifier {
            return unsupported("a model of embeddings with a classifier");
        }
        let Some(encoder) = embedding.encoder else { return Ok(()) };
        if encoder.n_positions > POSITIONS_MAX
            || (encoder.n_positions > 0 && self.max_seq_len > encoder.n_positions)
        {
            let wanted =
                format!("at least max_seq_len {}, at most {POSITIONS_MAX}, or 0", self.max_seq_len);
            return field("number of positions", encoder.n_positions, wanted);
        }
        if encoder.n_positions.checked_mul(self.dim).is_none_or(|n| n > i32::MAX as usize) {
            return field("number of positions", encoder.n_positions, "fewer values".to_owned());
        }
        let features = &self.features;
        let has_others = features.qk_norm
            || features.post_norms
            || features.sinks
            || features.output_gate
            || features.residual_scale != 1.0
            || features.experts.is_some()
            || features.dense.is_some()
            || features.more.is_some();
        match has_others {
            true => unsupported("layers like BERT's with features of others"),
            false => Ok(()),
        }
    }
}
