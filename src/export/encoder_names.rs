//! Names of the tensors of encoders like BERT, which have little in common with language models' names.

use std::ops::Range;

use crate::format::model::{Architecture, Header, TensorId, TensorKind};

/// A tensor of a checkpoint, and those of its rows that are meant, of how many; `None` for all.
pub(super) type Found = (String, Option<(Range<usize>, usize)>);

/// Where tensor `id` of an encoder is, in a Hugging Face folder or a GGUF file.
pub(super) fn find(id: TensorId, header: &Header, is_hugging_face: bool) -> Found {
    let name = match (header.architecture, is_hugging_face) {
        (Architecture::NomicBert, true) => return in_nomic(id, header),
        (_, true) => in_bert(id.kind),
        (_, false) => return in_gguf(id, header),
    };
    let end = if is_bias(id.kind) { "bias" } else { "weight" };
    let layers =
        if id.kind.is_per_layer() { format!("encoder.layer.{}.", id.layer) } else { String::new() };
    (format!("{layers}{name}.{end}"), None)
}

fn is_bias(kind: TensorKind) -> bool {
    use TensorKind::*;
    matches!(kind, Bq | Bk | Bv | Bo | B1 | B2 | B3)
        || matches!(kind, EmbeddingNormBias | AttentionNormBias | FfnNormBias)
}

fn in_bert(kind: TensorKind) -> &'static str {
    use TensorKind::*;
    match kind {
        Embedding => "embeddings.word_embeddings",
        TokenType => "embeddings.token_type_embeddings",
        PositionTable => "embeddings.position_embeddings",
        EmbeddingNorm | EmbeddingNormBias => "embeddings.LayerNorm",
        Wq | Bq => "attention.self.query",
        Wk | Bk => "attention.self.key",
        Wv | Bv => "attention.self.value",
        Wo | Bo => "attention.output.dense",
        AttentionNorm | AttentionNormBias => "attention.output.LayerNorm",
        W1 | B1 => "intermediate.dense",
        W2 | B2 => "output.dense",
        FfnNorm | FfnNormBias => "output.LayerNorm",
        _ => "",
    }
}

/// Rows of queries, keys or values in one tensor of all.
fn part_of_qkv(kind: TensorKind, header: &Header) -> Option<(Range<usize>, usize)> {
    let (q, kv) = (header.q_dim(), header.kv_dim());
    let rows = match kind {
        TensorKind::Wq => 0..q,
        TensorKind::Wk => q..q + kv,
        TensorKind::Wv => q + kv..q + 2 * kv,
        _ => return None,
    };
    Some((rows, q + 2 * kv))
}

fn in_nomic(TensorId { kind, layer }: TensorId, header: &Header) -> Found {
    use TensorKind::*;
    let name = match kind {
        EmbeddingNorm | EmbeddingNormBias => "emb_ln",
        Wq | Wk | Wv => "attn.Wqkv",
        Wo => "attn.out_proj",
        AttentionNorm | AttentionNormBias => "norm1",
        W1 => "mlp.fc12",
        W3 => "mlp.fc11",
        W2 => "mlp.fc2",
        FfnNorm | FfnNormBias => "norm2",
        other => in_bert(other),
    };
    let end = if is_bias(kind) { "bias" } else { "weight" };
    let layers =
        if kind.is_per_layer() { format!("encoder.layers.{layer}.") } else { String::new() };
    (format!("{layers}{name}.{end}"), part_of_qkv(kind, header))
}

fn in_gguf(TensorId { kind, layer }: TensorId, header: &Header) -> Found {
    use TensorKind::*;
    let is_nomic = header.architecture == Architecture::NomicBert;
    let name = match kind {
        Embedding => "token_embd",
        TokenType => "token_types",
        PositionTable => "position_embd",
        EmbeddingNorm | EmbeddingNormBias => "token_embd_norm",
        Wq | Wk | Wv if is_nomic => "attn_qkv",
        Wq | Bq => "attn_q",
        Wk | Bk => "attn_k",
        Wv | Bv => "attn_v",
        Wo | Bo => "attn_output",
        AttentionNorm | AttentionNormBias => "attn_output_norm",
        W1 if is_nomic => "ffn_gate",
        W1 | B1 | W3 => "ffn_up",
        W2 | B2 => "ffn_down",
        FfnNorm | FfnNormBias => "layer_output_norm",
        _ => "",
    };
    let end = if is_bias(kind) { "bias" } else { "weight" };
    let layers = if kind.is_per_layer() { format!("blk.{layer}.") } else { String::new() };
    let part = part_of_qkv(kind, header).filter(|_| is_nomic);
    (format!("{layers}{name}.{end}"), part)
}

/// Whether an encoder's tensor is one of a head that embeddings do not need.
pub(super) fn is_of_head(name: &str) -> bool {
    ["pooler.", "cls.", "classifier."].iter().any(|head| name.starts_with(head))
        || name == "embeddings.position_ids"
}
