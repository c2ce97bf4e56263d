//! Features of few families' layers: heads that differ, keys and values of other layers, inputs of each layer, and
//! feed-forward layers beside mixtures.

use crate::format::FormatError;
use crate::format::cursor::Cursor;

/// Length of [`MoreFeatures`] in a file.
pub(super) const MORE_LEN: usize = 32;

/// Number of known flags.
const FLAGS: u32 = 5;

/// Features of layers that few families have. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MoreFeatures {
    /// Heads of layers without a window, if those of layers with one are others.
    pub full_heads: Option<FullHeads>,
    /// Whether each head's values are normalised, without weights.
    pub value_norm: bool,
    /// Whether each layer's output is multiplied by a number.
    pub layer_scales: bool,
    /// Width of a feed-forward layer beside the mixture of experts in each layer.
    pub parallel_ffn: Option<usize>,
    /// Whether that layer is a shared expert: it has the mixture's input, and no norms of its own.
    pub is_shared_expert: bool,
    /// Whether a shared expert's output is multiplied by the sigmoid of a gate.
    pub has_shared_gate: bool,
    /// Whether a block behind the last layer guesses the token after the next: see [`Header::next_layer`].
    ///
    /// [`Header::next_layer`]: super::Header::next_layer
    pub has_next: bool,
    /// Number of layers, the model's last, without keys and values: they use those of the last earlier layer that has
    /// a window, or has none, as they do.
    pub n_shared_kv: usize,
    /// Width of the input that each layer gets for each token beside the residual stream; 0 for none.
    pub layer_input_dim: usize,
    /// Logits become `cap * tanh(logit / cap)`.
    pub logit_cap: Option<f32>,
}

/// Heads of layers without a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullHeads {
    /// Width of a head.
    pub head_dim: usize,
    /// Number of key and value heads; divides the number of query heads.
    pub n_kv_heads: usize,
}

impl MoreFeatures {
    /// Whether there are such features.
    pub(super) fn is_some(&self) -> bool {
        *self != MoreFeatures::default()
    }

    pub(super) fn emit(&self) -> Vec<u8> {
        let flags = [
            self.value_norm,
            self.layer_scales,
            self.is_shared_expert,
            self.has_shared_gate,
            self.has_next,
        ];
        let flags = flags.iter().rev().fold(0, |all, flag| all << 1 | u32::from(*flag));
        let heads = self.full_heads.map_or([0, 0], |of| [of.head_dim, of.n_kv_heads]);
        let sizes = [
            heads[0],
            heads[1],
            self.parallel_ffn.unwrap_or(0),
            self.n_shared_kv,
            self.layer_input_dim,
        ];
        let mut out = flags.to_le_bytes().to_vec();
        out.extend(sizes.iter().flat_map(|size| (*size as u32).to_le_bytes()));
        out.extend(self.logit_cap.unwrap_or(0.0).to_le_bytes());
        out.resize(MORE_LEN, 0);
        out
    }

    /// Reads what [`MoreFeatures::emit`] writes; unknown bytes behind it show when the block is emitted again.
    pub(super) fn parse(r: &mut Cursor<'_>) -> Result<MoreFeatures, FormatError> {
        let flags = r.u32("flags of further features")?;
        if flags >> FLAGS != 0 {
            return Err(FormatError::Unsupported(format!("flags {flags:#x} of further features")));
        }
        let mut size = |what| Ok(r.u32(what)? as usize);
        let (head_dim, n_kv_heads) = (size("head_dim of full layers")?, size("their n_kv_heads")?);
        let parallel_ffn = Some(size("width beside the mixture")?).filter(|width| *width != 0);
        let n_shared_kv = size("layers without keys and values")?;
        let layer_input_dim = size("width of layers' inputs")?;
        let logit_cap = Some(r.f32("cap of logits")?).filter(|cap| *cap != 0.0);
        r.take("zeros", MORE_LEN - 28)?;
        let heads = FullHeads { head_dim, n_kv_heads };
        Ok(MoreFeatures {
            full_heads: Some(heads).filter(|_| (head_dim, n_kv_heads) != (0, 0)),
            value_norm: flags & 1 != 0,
            layer_scales: flags & 2 != 0,
            parallel_ffn,
            is_shared_expert: flags & 4 != 0,
            has_shared_gate: flags & 8 != 0,
            has_next: flags & 16 != 0,
            n_shared_kv,
            layer_input_dim,
            logit_cap,
        })
    }
}
