//! The buffers of a forward pass, carved from the arena in one place.

use half::f16;

use super::Share;
use super::plan::{KvType, Plan};
use crate::arena::{Carver, Exhausted};
use crate::format::model::Header;
use crate::quant::bcml1::BLOCK;

/// Keys and values of every stream, `[stream, layer, K or V, kv_head, kv_len, head_dim]`.
pub(super) enum KvValues<'a> {
    F16(&'a mut [f16]),
    F32(&'a mut [f32]),
}

/// Input rows of the next projection, as its weights want them.
pub(super) struct Inputs<'a> {
    /// `[batch, k]`.
    pub(super) f32: &'a mut [f32],
    /// The same, quantised; empty if the weights are f32. `[batch, k]`.
    pub(super) q: &'a mut [i8],
    /// Scales of `q`, `[batch, k / group]` at most: as many as its groups are.
    pub(super) scales: &'a mut [f32],
    /// What stands for 0 in sums of products with flipped weights, `[batch, k / group]`.
    pub(super) zeros: &'a mut [f32],
    /// Sums of each 32 values of `q`, `[batch, k / 32]`.
    pub(super) sums: &'a mut [i32],
    /// The same for packed weights.
    pub(super) tile_sums: &'a mut [f32],
}

/// Everything a forward pass writes.
pub(super) struct Buffers<'a> {
    /// Residual stream, `[batch, dim]`.
    pub(super) x: &'a mut [f32],
    /// Queries, keys and values of each row side by side, `[batch, q_dim + 2 * kv_dim]`.
    pub(super) qkv: &'a mut [f32],
    /// Gate and up projection side by side, `[batch, 2 * ffn_dim]`.
    pub(super) gate_up: &'a mut [f32],
    /// What a layer half adds to `x`, `[batch, dim]`.
    pub(super) delta: &'a mut [f32],
    pub(super) inputs: Inputs<'a>,
    /// RoPE cosines, `[batch, head_dim / 2]`.
    pub(super) cos: &'a mut [f32],
    /// RoPE sines, `[batch, head_dim / 2]`.
    pub(super) sin: &'a mut [f32],
    /// `[max_logits, vocab_size]`; empty if the share has no classifier.
    pub(super) logits: &'a mut [f32],
    pub(super) kv: KvValues<'a>,
}

impl<'a> Buffers<'a> {
    /// Takes every buffer that `plan` asks for, always in the same order, so that the KV
    /// cache is found again at the next call.
    pub(super) fn carve(
        header: &Header,
        share: &Share,
        plan: &Plan,
        carver: &mut Carver<'a>,
    ) -> Result<Buffers<'a>, Exhausted> {
        let rows = |width: usize| plan.max_batch.saturating_mul(width);
        let widest = header.dim.max(header.q_dim()).max(header.ffn_dim);
        let (q_width, scale_width) = match header.weights.group() {
            None => (0, 0),
            Some(group) => (widest, widest.div_ceil(group)),
        };
        let logits = if share.has_ends { plan.max_logits } else { 0 };
        let kv_values = plan.kv_values(header, share.layers.len());
        Ok(Buffers {
            x: carver.take("x", rows(header.dim))?,
            qkv: carver.take("qkv", rows(header.q_dim() + 2 * header.kv_dim()))?,
            gate_up: carver.take("gate_up", rows(2 * header.ffn_dim))?,
            delta: carver.take("delta", rows(header.dim))?,
            inputs: Inputs {
                f32: carver.take("inputs", rows(widest))?,
                q: carver.take("quantised inputs", rows(q_width))?,
                scales: carver.take("input scales", rows(scale_width))?,
                zeros: carver.take("zeros of sums", rows(scale_width))?,
                sums: carver.take("input sums", rows(q_width / BLOCK))?,
                tile_sums: carver.take("input sums in tiles", rows(q_width / BLOCK))?,
            },
            cos: carver.take("cos", rows(header.head_dim / 2))?,
            sin: carver.take("sin", rows(header.head_dim / 2))?,
            logits: carver.take("logits", logits.saturating_mul(header.vocab_size))?,
            kv: match plan.kv {
                KvType::F16 => KvValues::F16(carver.take("KV cache", kv_values)?),
                KvType::F32 => KvValues::F32(carver.take("KV cache", kv_values)?),
            },
        })
    }
}
