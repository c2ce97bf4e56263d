//! Models that shaders exist for.

use super::tensors::PANEL_ROWS;
use crate::format::model::{Activation, Header};

/// Widest head.
const HEAD_DIM_MAX: usize = 512;

/// Why no GPU computes a model with this header; `None` if one can.
pub(super) fn unsupported(header: &Header) -> Option<&'static str> {
    let (features, more) = (&header.features, &header.features.more);
    let is_other = more.full_heads.is_some()
        || more.value_norm
        || more.layer_scales
        || (more.parallel_ffn.is_some() && !more.is_shared_expert)
        || more.n_shared_kv > 0
        || more.layer_input_dim > 0;
    let is_whole = |width: usize| width.is_multiple_of(PANEL_ROWS);
    let has_narrow_experts =
        features.experts.is_some() && !(is_whole(header.dim) && is_whole(header.ffn_dim));
    let checks = [
        (header.embedding().is_some(), "it computes embeddings"),
        (has_narrow_experts, "the width of its experts is no multiple of 32"),
        (is_other, "its layers differ from each other"),
        (features.activation == Activation::GeluErf, "its activation is the GELU of erf"),
        (header.slice().is_some(), "its file has only some rows of each matrix"),
        (header.head_dim > HEAD_DIM_MAX || !header.head_dim.is_multiple_of(2), "its heads' width"),
    ];
    checks.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why)
}
