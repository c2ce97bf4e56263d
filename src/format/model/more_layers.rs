//! Sizes of layers that differ from each other, and checks of [`MoreFeatures`].

use std::ops::Range;

use super::features::Experts;
use super::header::{HEAD_DIM_MAX, Header};
use super::layer_set::LAYER_SET_MAX;
use super::more_features::{FullHeads, MoreFeatures};
use super::tensors::TensorId;
use crate::format::FormatError;

impl Header {
    /// Heads of layers without a window, if those of layers with one are others.
    fn full_heads(&self) -> Option<FullHeads> {
        self.features.more.full_heads
    }

    /// Whether `layer` has [`MoreFeatures::full_heads`].
    pub fn has_full_heads(&self, layer: usize) -> bool {
        self.full_heads().is_some() && self.features.full_layers.contains(layer)
    }

    /// Width of all query heads of layers with [`MoreFeatures::full_heads`]; 0 if there are none.
    pub(super) fn full_q_dim(&self) -> usize {
        self.full_heads().map_or(0, |of| self.n_heads * of.head_dim)
    }

    /// Width of all key heads of such layers.
    pub(super) fn full_kv_dim(&self) -> usize {
        self.full_heads().map_or(0, |of| of.n_kv_heads * of.head_dim)
    }

    /// Width of a head of such layers.
    pub fn full_head_dim(&self) -> usize {
        self.full_heads().map_or(0, |of| of.head_dim)
    }

    /// Width of the widest layer's query heads together.
    pub fn q_dim_max(&self) -> usize {
        self.q_dim().max(self.full_q_dim())
    }

    /// Width of the widest layer's query, key and value heads together.
    pub fn qkv_dim_max(&self) -> usize {
        (self.q_dim() + 2 * self.kv_dim()).max(self.full_q_dim() + 2 * self.full_kv_dim())
    }

    /// Number of angles of a position: those of layers with a window, of those without, and of those with heads of their
    /// own.
    pub fn angles_max(&self) -> usize {
        let n_plain = if self.features.local_theta.is_some() { 2 } else { 1 };
        (n_plain * self.rotary_dim() + self.full_head_dim()) / 2
    }

    /// Width of the inputs of all layers together.
    pub fn layer_inputs(&self) -> usize {
        self.n_layers * self.features.more.layer_input_dim
    }

    /// The layer whose keys and values `layer` attends to: itself, or an earlier one. `None` only in a header that was
    /// not checked.
    pub fn kv_layer(&self, layer: usize) -> Option<usize> {
        let first_shared = self.n_layers - self.features.more.n_shared_kv.min(self.n_layers);
        if layer < first_shared || layer >= self.n_layers {
            return Some(layer);
        }
        let is_full = |layer: usize| self.features.full_layers.contains(layer);
        (0..first_shared).rev().find(|own| is_full(*own) == is_full(layer))
    }

    /// Number of the block behind the last layer that guesses the token after the next (multi-token prediction,
    /// arXiv:2404.19737), which has the tensors of a layer with attention and a few more. `None` if there is none.
    pub fn next_layer(&self) -> Option<usize> {
        self.features.more.has_next.then_some(self.n_layers)
    }

    /// Number of layers, and the block behind them if there is one.
    pub fn n_layers_and_next(&self) -> usize {
        self.n_layers + usize::from(self.features.more.has_next)
    }

    /// The tensors of that block.
    #[cfg(feature = "tools")]
    pub(crate) fn ids_of_next(&self) -> impl Iterator<Item = TensorId> + '_ {
        let kinds = self.kinds().filter(|kind| kind.is_per_layer());
        let all = kinds.filter_map(|kind| Some(TensorId { kind, layer: self.next_layer()? }));
        all.filter(|id| self.has_in(id.kind, id.layer))
    }

    /// Whether tensor `id` belongs to the block behind the last layer.
    pub fn is_of_next(&self, id: TensorId) -> bool {
        id.kind.is_per_layer() && self.next_layer() == Some(id.layer)
    }

    /// Whether `layer` stores keys and values.
    pub fn has_own_kv(&self, layer: usize) -> bool {
        self.kv_layer(layer) == Some(layer)
    }

    /// Values of a row between two boards: its hidden state, and behind it the inputs of all layers.
    pub fn row_width(&self) -> usize {
        self.dim + self.layer_inputs()
    }

    /// The first of the layers that one board must have together, up to the last: the first whose keys and values later
    /// layers use. The number of layers if there are none.
    pub fn joined_from(&self) -> usize {
        let first_shared = self.n_layers - self.features.more.n_shared_kv.min(self.n_layers);
        let used = (first_shared..self.n_layers).filter_map(|layer| self.kv_layer(layer));
        used.min().unwrap_or(self.n_layers)
    }

    /// Why a node cannot have only a part of the model, some layers or rows of each; `None` if it can.
    pub fn why_whole(&self) -> Option<&'static str> {
        self.embedding().map(|_| "it computes embeddings")
    }

    /// Why a node cannot have just `layers`; `None` if it can.
    pub fn why_not_alone(&self, layers: &Range<usize>) -> Option<String> {
        let (from, n_layers) = (self.joined_from(), self.n_layers);
        let is_end = |at: usize| at <= from || at == n_layers;
        match self.why_whole().filter(|_| layers.len() < n_layers) {
            Some(why) => Some(format!("one board must have all layers of this model: {why}")),
            None if is_end(layers.start) && is_end(layers.end) => None,
            None => Some(format!(
                "one board must have layers {from}..{n_layers} together, because the last use keys and values of the first"
            )),
        }
    }

    /// Whether there are further features besides a shared expert and the block behind the last layer.
    fn has_unlike_parts(&self) -> bool {
        let MoreFeatures { parallel_ffn, has_shared_gate, has_next, .. } = self.features.more;
        let is_shared_expert = parallel_ffn.is_some();
        let alike = MoreFeatures {
            parallel_ffn,
            is_shared_expert,
            has_shared_gate,
            has_next,
            ..MoreFeatures::default()
        };
        self.features.more != alike
    }

    /// Checks that the further features fit together and fit the rest of the header.
    pub(super) fn check_more(&self) -> Result<(), FormatError> {
        let MoreFeatures { parallel_ffn, n_shared_kv, layer_input_dim, logit_cap, .. } =
            self.features.more;
        let unsupported = |what: &str| Err(FormatError::Unsupported(what.to_owned()));
        if let Some(cap) = logit_cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
            return unsupported(&format!("a cap of logits of {cap}"));
        }
        self.check_full_heads()?;
        self.check_next(self.has_unlike_parts())?;
        if self.has_unlike_parts() && self.has_state() {
            return unsupported("recurrent layers with features of other families");
        }
        if n_shared_kv >= self.n_layers {
            let wanted = format!("below n_layers {}", self.n_layers);
            let found = n_shared_kv as u32;
            return Err(FormatError::field("layers without keys and values", found, wanted));
        }
        if n_shared_kv > 0 && self.n_layers > LAYER_SET_MAX {
            return unsupported("shared keys and values beyond the 256th layer");
        }
        let first_shared = self.n_layers - n_shared_kv;
        if (first_shared..self.n_layers).any(|layer| self.kv_layer(layer).is_none()) {
            return unsupported("a layer that shares keys and values, and no such layer before it");
        }
        if self.n_layers.checked_mul(layer_input_dim).is_none_or(|n| n > i32::MAX as usize) {
            let wanted = "fewer than 2^31 values in all layers".to_owned();
            let found = layer_input_dim as u32;
            return Err(FormatError::field("width of layers' inputs", found, wanted));
        }
        let MoreFeatures { is_shared_expert, has_shared_gate, .. } = self.features.more;
        let lacks_layer = is_shared_expert && parallel_ffn.is_none();
        if lacks_layer || (has_shared_gate && !is_shared_expert) {
            return unsupported("a shared expert that is not there");
        }
        let is_plain = |experts: Experts| !experts.has_biases;
        match parallel_ffn {
            Some(_) if self.features.dense.is_some() => unsupported("dense layers beside mixtures"),
            Some(_) if !self.features.experts.is_some_and(is_plain) => {
                unsupported("a layer beside a mixture that is not there, or has biases")
            }
            Some(width) if width > i32::MAX as usize => {
                let wanted = "below 2^31".to_owned();
                Err(FormatError::field("width beside the mixture", width as u32, wanted))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the model can have the block behind its last layer; `is_other` says whether its layers have features
    /// of few families besides.
    fn check_next(&self, is_other: bool) -> Result<(), FormatError> {
        let is_odd = is_other || self.sliding_window.is_some() || self.embedding().is_some();
        match self.features.more.has_next && (is_odd || self.n_layers > LAYER_SET_MAX) {
            true => Err(FormatError::Unsupported(
                "a block behind the last layer of a model whose layers differ, or that has more than 256"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }

    fn check_full_heads(&self) -> Result<(), FormatError> {
        let Some(FullHeads { head_dim, n_kv_heads }) = self.full_heads() else { return Ok(()) };
        if head_dim == 0 || head_dim % 2 == 1 || head_dim > HEAD_DIM_MAX {
            let wanted = format!("an even number up to {HEAD_DIM_MAX}");
            return Err(FormatError::field("head_dim of full layers", head_dim as u32, wanted));
        }
        if n_kv_heads == 0 || !self.n_heads.is_multiple_of(n_kv_heads) {
            let wanted = format!("a divisor of n_heads {}", self.n_heads);
            return Err(FormatError::field("their n_kv_heads", n_kv_heads as u32, wanted));
        }
        let features = &self.features;
        let is_fit = features.local_theta.is_some()
            && features.rotary_dim.is_none()
            && !(features.qkv_bias || features.sinks);
        match is_fit && self.sliding_window.is_some() {
            true => Ok(()),
            false => Err(FormatError::Unsupported(
                "heads of full layers without local_theta and a window, or with biases, sinks or \
                 rotary_dim"
                    .to_owned(),
            )),
        }
    }
}
