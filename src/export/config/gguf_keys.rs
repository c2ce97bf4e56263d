//! Names of a GGUF file's fields, behind the family's name, that are both read and written.
//!
//! Those of sizes that every kind of configuration has are in [`super::settings`].

use super::settings;

/// A list, if it is 0 in recurrent layers or differs between layers otherwise.
pub(super) const KV_HEADS: &str = settings::KV_HEADS[2];
pub(super) const FFN: &str = "feed_forward_length";
pub(super) const NORM_EPS: &str = "attention.layer_norm_rms_epsilon";
/// Epsilon of the LayerNorm that encoders have in place of RMSNorm.
pub(super) const LAYER_NORM_EPS: &str = "attention.layer_norm_epsilon";
/// Whether tokens attend to earlier ones alone.
pub(super) const CAUSAL: &str = "attention.causal";
/// Number of a form of pooling, as model files have it; 0 for none.
pub(super) const POOLING: &str = "pooling_type";
/// Widths of the dense layers behind pooling, and the tensors' numbers in their names.
pub(super) const DENSE_DIMS: [[&str; 2]; 2] =
    [["dense_2_feat_in", "dense_2_feat_out"], ["dense_3_feat_in", "dense_3_feat_out"]];
pub(super) const VALUE_DIM: &str = "attention.value_length";
pub(super) const ROTARY_DIM: &str = "rope.dimension_count";

/// Base of the RoPE frequencies of layers with a window.
pub(super) const LOCAL_BASE: &str = "rope.freq_base_swa";
/// How many of RoPE's pairs belong to time, height, width and nothing; it says nothing to texts, but llama.cpp wants it.
pub(super) const ROPE_SECTIONS: &str = "rope.dimension_sections";
/// In Granite 4's hybrids, whether layers with attention have RoPE.
pub(super) const ROPE_FINETUNED: &str = "rope.scaling.finetuned";

pub(super) const EXPERTS: &str = "expert_count";
pub(super) const ACTIVE_EXPERTS: &str = "expert_used_count";
pub(super) const EXPERT_FFN: &str = "expert_feed_forward_length";
/// Width of a shared expert.
pub(super) const SHARED_FFN: &str = "expert_shared_feed_forward_length";
/// Function from scores to the weights of experts: [`SOFTMAX`], [`SIGMOID`] or another.
pub(super) const GATING: &str = "expert_gating_func";
pub(super) const SOFTMAX: usize = 1;
pub(super) const SIGMOID: usize = 2;
/// Number of layers without experts, the model's first.
pub(super) const LEADING_DENSE: &str = "leading_dense_block_count";

/// Flags of layers.
pub(super) const RECURRENT_LAYERS: &str = "attention.recurrent_layers";
/// Distance of the layers with attention, if no list says which they are.
pub(super) const FULL_INTERVAL: &str = "full_attention_interval";
/// Number of blocks behind the last layer, which count as layers in the file.
pub(super) const NEXT_LAYERS: &str = "nextn_predict_layers";

/// Taps of a short convolution.
pub(super) const SHORT_TAPS: &str = "shortconv.l_cache";
pub(super) const SSM_TAPS: &str = "ssm.conv_kernel";
/// Width of a key, or rows of a head's state.
pub(super) const SSM_STATE: &str = "ssm.state_size";
/// Number of key heads, or of groups.
pub(super) const SSM_GROUPS: &str = "ssm.group_count";
/// Number of value heads, or of heads.
pub(super) const SSM_HEADS: &str = "ssm.time_step_rank";
/// Width of all these heads together.
pub(super) const SSM_INNER: &str = "ssm.inner_size";

/// Width of a head in layers with a window.
pub(super) const LOCAL_HEAD_DIM: &str = "attention.key_length_swa";
pub(super) const LOCAL_VALUE_DIM: &str = "attention.value_length_swa";
pub(super) const LOCAL_ROTARY_DIM: &str = "rope.dimension_count_swa";
/// Number of layers that use others' keys and values, the model's last.
pub(super) const SHARED_KV: &str = "attention.shared_kv_layers";
pub(super) const LAYER_INPUT_DIM: &str = "embedding_length_per_layer_input";
/// Cap of logits; 0 for none.
pub(super) const LOGIT_CAP: &str = "final_logit_softcapping";
