//! Model files: a 256-byte header, then tensors, then a table of checksums.
//!
//! ```text
//! offset  type     field
//! 0       u32      magic 0x616B3432
//! 4       i32      version: 1 = f32, 2 = int8, 3 = 4 bits, 4 = 4 bits in two levels,
//!                  5 = blocks of a GGUF file; plus 256 if the matrices are packed, plus 512 if the file holds only some layers
//! 8       i32 × 7  dim, ffn_dim, n_layers, n_heads, n_kv_heads, vocab_size, max_seq_len
//! 36      u8       shared_classifier
//! 37      i32      group_size (versions 2 to 4; unaligned)
//! 64      u32      extension magic "LEAX"; without an extension, bytes 64 to 255 are zero
//! 68      u32      extension version: 1, or 2 with a block of features
//! 72      u32      extension length in bytes from offset 64: 132; 148 if the matrices are packed; 168 if the
//!                  file holds only some layers; 176 with a block of features; 180 if it holds only some rows;
//!                  184 in version 5
//! 76      u32      flags: bit 0 (versions 3 and 4): embedding and classifier are int8;
//!                  bit 1 (version 4, without bit 0): embedding and classifier have 6 bits
//! 80      u32      head_dim
//! 84      f32      norm_eps
//! 88      f64      rope_theta
//! 96      u32      rope scaling: 0 none, 1 linear, 2 llama3; with a block of features also 3 yarn,
//!                  4 yarn with a blend that begins and ends at whole pairs, 5 a divisor for each pair
//! 100     u32      rope: original context length
//! 104     f32 × 3  rope: factor, low_freq_factor, high_freq_factor; for yarn factor, beta_slow, beta_fast
//! 116     u32      sliding window in tokens, 0 = none
//! 120     u32      architecture: 0 llama, 1 mistral; with a block of features also 2 qwen2, 3 qwen3,
//!                  4 smollm3, 5 granite, 6 gemma3, 7 phi3, 8 qwen3moe, 9 gptoss
//! 124     i32      bos id, -1 = none
//! 128     u32      number of stop ids, at most 8
//! 132     u32 × 8  stop ids
//! 164     u32      chat template id
//! 168     u64      fingerprint of the tokenizer file, 0 = unknown
//! 176     u64 × 2  checksum table: offset and length in bytes
//! 192     u32      CRC32 of these 256 bytes with this field zero
//! 196     u32 × 2  packed matrices: id of the layout, plus 65536 times the version of the order of blocks in
//!                  version 5; rows of a panel, plus 65536 if a shared classifier is the packed embedding
//! 204     u64      packed matrices: fingerprint of the same model without packing
//! 212     u32 × 2  some layers: the first, and the one after the last
//! 220     u32      some layers: 1 with embedding, final norm and classifier, otherwise 0; plus 2 if the file
//!                  holds only some rows of its matrices
//! 224     u64      some layers: fingerprint of the whole model without packing
//! 232     u32      length of the block of features, a multiple of 128
//! 236     u32      CRC32 of that block
//! 240     u32      some rows: CRC32 of the block of rows
//! 244     u32      version 5: CRC32 of the block of types
//! 256              block of features, if there is one
//! …                version 5: block of types, a multiple of 128 bytes: for each matrix of the whole model the number of
//!                  its type in GGUF files, u8, kind after kind and layer after layer, 0 where a layer lacks the kind
//! …                block of rows, if the file holds only some rows: 128 bytes, u32 × 2 (first, one after the last) each for query heads, KV heads, dim, ffn_dim,
//!                  vocab_size and the width of dense layers; then zeros
//! …                tensors, in the order of [`Header::tensors`], without gaps
//! …       u32 × n  CRC32 of each tensor's bytes, in the same order
//! ```
//!
//! The block of features describes a model whose layers compute more than Llama's. Programs that know only
//! version 1 of the extension refuse version 2. Dense layers are layers without experts in a model that has
//! mixtures of experts in its other layers; in a model without mixtures, layers of another ffn width.
//!
//! ```text
//! offset  type     field, from the start of the block
//! 0       u32      flags: bit 0 biases of queries, keys and values; 1 bias of attention's output;
//!                  2 norms of queries and keys; 3 norms after attention and feed-forward layer; 4 sinks;
//!                  5 weights of experts add up to 1; 6 biases of router and experts; 7 biases of gate, up and
//!                  down in a model without experts; 8 gate of attention's output;
//!                  9 weights of experts are sigmoids, with biases of the choice
//! 4       u32      activation: 0 SiLU, 1 GELU by tanh, 2 clamped SiLU, 3 GELU by the error function
//! 8       f32      limit of clamped SiLU
//! 12      f32 × 4  embedding_scale, attention_scale (0 = 1 / sqrt(head_dim)), residual_scale,
//!                  rope_magnitude
//! 28      u32      rotary_dim, 0 = head_dim
//! 32      f64      local_theta, 0 = none
//! 40      u32 × 2  number of experts, and of active experts per token; 0 = no mixture
//! 48      u64 × 4  full_layers, a bit for each layer, the lowest bit first
//! 80      u64 × 4  unrotated_layers
//! 112     u32      number of rope_divisors
//! 116     u32      longest text, in tokens, that uses these; 0 if all texts use them
//! 120     u32      ffn width of dense layers; 0 = there are none
//! 124     u32      further parts of the block: bit 0 recurrent layers, bit 1 temperature, bit 2 features of few families,
//!                  bit 3 embeddings
//! 128     f32 × n  rope_divisors; then, unless all texts use them, the same number for longer texts
//! …       u64 × 4  if there are dense layers: their bits, in the form of full_layers
//! …       8        if there is a temperature: f32 slope, u32 context
//! …       96       if there are recurrent layers: u64 × 4 their bits; u32 form: 1 short convolution, 2 gated delta rule,
//!                  3 state space;
//!                  u32 taps; for the delta rule u32 × 5 key heads, value heads, key dim, value dim, and 1 if value head
//!                  h has key head h % key_heads; for a state space u32 × 4 groups, heads, state dim, head dim; then zeros
//! …       32       if there are features of few families: u32 flags (bit 0 norms of values, 1 scales of layers,
//!                  2 the layer beside the mixture is a shared expert, 3 which has a gate);
//!                  u32 × 2 head_dim and n_kv_heads of full layers, 0 = those of the others; u32 ffn width beside the
//!                  mixture, 0 = none; u32 layers at the end without keys and values; u32 width of each layer's input,
//!                  0 = none; f32 cap of logits, 0 = none; then zeros
//! …       32 + n   if the model is one of embeddings: u32 pooling (1 mean, 2 first token, 3 last token); u32 flags (bit 0
//!                  vectors of length 1, 1 tokens attend to later ones, 2 layers like BERT's, 3 which have gates, 4 there is
//!                  a first id, 5 a last id); u32 learned positions, 0 = none; u32 width between the dense layers behind
//!                  pooling, 0 = none; u32 × 2 ids before and behind a text; u32 number of prompts; u32 0; then for
//!                  each prompt u32 length and bytes of its name, and the same of its text
//! …                zeros up to a multiple of 128
//! ```
//!
//! In a mixture ffn_dim is the width of one expert, and w1, w2 and w3 hold all experts one after the other.
//! The classifier is followed by these tensors, each for all layers, if the model has them: bq, bk, bv, bo,
//! q_norm, k_norm `[head_dim]`, attention_post_norm, ffn_post_norm `[dim]`, sinks `[n_heads]`, router
//! `[experts, dim]`, router_bias, b1, b2, b3, all f32; then dense_w1, dense_w2 and dense_w3 of the dense
//! layers, which have no w1, w2, w3 and router. Values of bq, bk, q_norm and k_norm are in the order of the
//! rows of wq and wk.
//!
//! Without the extension head_dim is dim / n_heads, rope_theta 500000, norm_eps 1e-5, and there is neither
//! scaling nor window; the file then ends with its last tensor. A version 1 file with a separate classifier
//! stores vocab_size negated.
//!
//! An int8 matrix is `i8 q[rows * cols]`, then `f32 scale[rows * cols / group_size]`. A 4-bit matrix is its
//! [BCML1](crate::quant::bcml1) blocks, `[rows, cols / 32]` of 20 bytes; group_size is then that of
//! activations and of int8 matrices. A 4.5-bit matrix is its [BCML2](crate::quant::bcml2) rows, of
//! `4 + 18 * cols / 32` bytes rounded up to a multiple of 4; group_size is then that of int8 matrices.
//! A 6-bit embedding and classifier are [BCML6](crate::quant::bcml6) rows, of `4 + 25 * cols / 32` bytes
//! rounded up likewise. A matrix of version 5 is its rows of a GGUF file's [blocks](crate::quant::ggml), then zeros up
//! to a multiple of 4 bytes.
//!
//! In a packed file, matrices that are multiplied have the layout of the kernels of one instruction set,
//! which the layout's id names. Each is as long as with its rows rounded up to whole panels. An embedding that is
//! only looked up stays row-major. One that is also the classifier is packed; files of LEAP 0.2.0 hold it row-major
//! too, and the packed copy as classifier. Tensors are padded with zeros to multiples of 128 bytes. Readers that do
//! not know packing refuse the version.
//!
//! A file of some layers is one node's share of a ring: the header of the whole model, and the tensors of
//! these layers. All such files of a model have the same fingerprint. A file of some rows is for a board of a
//! team: of each matrix that is multiplied, and of each expert's, it holds the rows that the board computes.
//! An embedding that is only looked up is left out.

mod bytes;
mod check;
mod embedding;
mod embedding_header;
mod feature_bytes;
mod features;
mod fingerprint;
mod ggml_block;
mod ggml_types;
mod header;
mod kinds;
mod layer;
mod layer_set;
mod mix_parts;
mod more_features;
mod more_layers;
mod part;
mod reads;
mod recurrent;
mod rows;
mod slice;
mod tensors;
mod weights;

pub use crate::quant::Ggml;
pub use embedding::{EmbeddingModel, Encoder, PROMPTS_MAX, Pooling, Prompt};
pub use features::{
    Activation, DenseLayers, EXPERTS_ACTIVE_MAX, Experts, Features, LongRope, Temperature,
};
pub use fingerprint::fingerprint;
pub use ggml_types::GgmlTypes;
pub use header::{
    Architecture, FileShare, HEAD_DIM_MAX, HEADER_LEN, Header, MAGIC, PACKED_ALIGN, PANEL_ROWS_MAX,
    Packed, RopeScaling, SEQ_LEN_MAX, STOP_IDS_MAX,
};
pub use kinds::{RowOrder, TensorKind, TensorRole};
pub use layer::{LayerSpec, Rope};
pub use layer_set::{LAYER_SET_MAX, LayerSet};
pub use mix_parts::{MixParts, MixRows};
pub use more_features::{FullHeads, MoreFeatures};
pub use part::{Extent, Part};
pub use reads::{WeightPart, WeightRead};
pub use recurrent::{DeltaRule, Mixer, RecurrentLayers, STATE_COLUMNS, StateSpace, TAPS_MAX};
pub use slice::Slice;
pub use tensors::{Tensor, TensorId};
pub use weights::{Encoding, Ends, Weights};

#[cfg(test)]
mod tests;
