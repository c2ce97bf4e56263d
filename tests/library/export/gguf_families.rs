//! GGUF files of families other than Llama's, in the form of llama.cpp's converter: they become the same as their
//! folders, and impossible settings are named.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;

use leap::export::{ExportOptions, ExportPlan};
use leap::format::model::{Header, Weights};
use serde_json::{Value, json};

use crate::common::folder::Folder;
use crate::common::gguf::with_short_shapes;
use crate::common::models::{export_to, package};
use crate::export::checkpoint::options;
use crate::export::families::{config, opened, tensors};
use crate::export::gguf::Value as Field;
use crate::export::gguf::Value::{Float, Number, Numbers, Text};
use crate::export::gguf::{
    BF16, F32, Gguf, MXFP4, Tensor, export_file, interleaved, refused, refused_with,
};

/// llama.cpp's name of a layer's tensor.
fn in_layer(architecture: &str, name: &str) -> String {
    let of_gemma = match name {
        "post_attention_layernorm" => Some("post_attention_norm"),
        "pre_feedforward_layernorm" => Some("ffn_norm"),
        "post_feedforward_layernorm" => Some("post_ffw_norm"),
        _ => None,
    };
    let name = match (architecture, of_gemma) {
        ("gemma3", Some(name)) => name,
        _ => match name {
            "input_layernorm" => "attn_norm",
            "post_attention_layernorm" if architecture == "gpt-oss" => "post_attention_norm",
            "post_attention_layernorm" => "ffn_norm",
            "self_attn.o_proj" => "attn_output",
            "mlp.gate" | "mlp.router" => "ffn_gate_inp",
            "mlp.gate_up_proj" => "ffn_up",
            other => {
                let short = other.split('.').next_back().unwrap();
                let part = if other.starts_with("mlp") { "ffn" } else { "attn" };
                return format!("{part}_{}", short.trim_end_matches("_proj"));
            }
        },
    };
    name.to_owned()
}

/// A folder's tensors in the form of llama.cpp's converter: all experts in one tensor, queries and keys of Llama's near
/// relatives interleaved, and 1 + w in Gemma's norms.
fn gguf_tensors(name: &str, architecture: &str) -> Vec<Tensor> {
    let config = config(name);
    let mut stacked: BTreeMap<String, Tensor> = BTreeMap::new();
    for (name, shape, mut bytes, dtype) in stored(name, architecture) {
        let (name, end) = name.rsplit_once('.').unwrap();
        let full = match name.strip_prefix("model.layers.").and_then(|n| n.split_once('.')) {
            None => {
                let ours = [("lm_head", "output"), ("model.norm", "output_norm")];
                let found = ours.iter().find(|(from, _)| *from == name);
                found.map_or("token_embd", |(_, to)| to).to_owned()
            }
            Some((layer, rest)) => match rest.strip_prefix("mlp.experts.") {
                Some(of) => {
                    let (_, part) = of.split_once('.').unwrap();
                    let part = part.trim_end_matches("_proj");
                    format!("blk.{layer}.ffn_{part}_exps")
                }
                None => format!("blk.{layer}.{}", in_layer(architecture, rest)),
            },
        };
        let heads = match full.split('.').next_back() {
            Some("attn_q") => &config["num_attention_heads"],
            Some("attn_k") => &config["num_key_value_heads"],
            _ => &Value::Null,
        };
        let is_interleaved = ["llama", "smollm3", "granite"].contains(&architecture);
        if let Some(heads) = heads.as_u64().filter(|_| is_interleaved) {
            bytes = interleaved(&bytes, heads as usize, shape[0] / heads as usize);
        }
        let mut dtype = dtype;
        if architecture == "gemma3" && full.ends_with("norm") {
            let values = bytes.as_chunks::<2>().0.iter();
            let plus = values.map(|b| 1.0 + half::bf16::from_le_bytes(*b).to_f32());
            (dtype, bytes) = (F32, plus.flat_map(f32::to_le_bytes).collect());
        }
        let dimensions = shape.iter().rev().map(|&size| size as u64).collect();
        let tensor = Tensor { name: format!("{full}.{end}"), dimensions, dtype, bytes };
        match stacked.get_mut(&tensor.name) {
            Some(all) => {
                all.dimensions.resize(3, 1);
                all.dimensions[2] += 1;
                all.bytes.extend(tensor.bytes);
            }
            None => drop(stacked.insert(tensor.name.clone(), tensor)),
        }
    }
    stacked.into_values().collect()
}

/// A folder's tensors under its names. Those of gpt-oss change: alternating gates and ups are separated and made
/// output-major, blocks of MXFP4 get their scales, and the names of sinks an ending.
fn stored(name: &str, architecture: &str) -> Vec<(String, Vec<usize>, Vec<u8>, u32)> {
    let mut all = tensors(name);
    let mut out = Vec::new();
    for (name, (shape, bytes)) in all.clone() {
        if architecture != "gpt-oss" || !name.contains("experts.") && !name.ends_with("sinks") {
            out.push((name, shape, bytes, BF16));
        } else if name.ends_with("sinks") {
            out.push((format!("{name}.weight"), shape, bytes, BF16));
        } else if let Some(base) = name.strip_suffix("_blocks") {
            let (_, scales) = all.remove(&format!("{base}_scales")).unwrap();
            let blocks = mxfp4(&bytes, &scales);
            let shape = [shape[0], shape[1], shape[2] * 32];
            out.extend(apart(base, &shape, &blocks, MXFP4));
        } else if !name.ends_with("_scales") {
            let (base, shape, bytes) = match (name.strip_suffix("_bias"), &shape[..]) {
                (None, &[n, height, width]) => {
                    (&name[..], vec![n, width, height], transposed(&bytes, n, height))
                }
                (base, _) => (base.unwrap(), [&shape[..], &[1]].concat(), bytes),
            };
            out.extend(apart(base, &shape, &bytes, BF16).into_iter().map(|mut tensor| {
                if name.ends_with("_bias") {
                    tensor.0 = tensor.0.replace(".weight", ".bias");
                    tensor.1.truncate(2);
                }
                tensor
            }));
        }
    }
    out
}

/// Separates rows of gates and of ups into tensors of their own; other tensors stay.
fn apart(
    base: &str,
    shape: &[usize],
    bytes: &[u8],
    dtype: u32,
) -> Vec<(String, Vec<usize>, Vec<u8>, u32)> {
    let layer = base.split('.').nth(2).unwrap();
    let parts: &[&str] = if base.contains("gate_up") { &["gate", "up"] } else { &["down"] };
    let (n, row_bytes) = (parts.len(), bytes.len() / shape[0] / shape[1]);
    let take = |part: usize| bytes.chunks(row_bytes).skip(part).step_by(n).flatten().copied();
    let shape = [shape[0], shape[1] / n, shape[2]];
    let name = |part: &str| format!("model.layers.{layer}.mlp.{part}_exps.weight");
    let parts = parts.iter().enumerate();
    parts.map(|(i, part)| (name(part), shape.to_vec(), take(i).collect(), dtype)).collect()
}

/// The bf16 values of `n` matrices of `height` rows, column by column.
fn transposed(bytes: &[u8], n: usize, height: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for matrix in bytes.chunks(bytes.len() / n) {
        let width = matrix.len() / height;
        for col in (0..width).step_by(2) {
            out.extend((0..height).flat_map(|row| &matrix[row * width + col..][..2]));
        }
    }
    out
}

/// Blocks in ggml's form: the scale, then values 0 to 15 in low halves and 16 to 31 in high ones.
fn mxfp4(blocks: &[u8], scales: &[u8]) -> Vec<u8> {
    let block = |(block, scale): (&[u8], &u8)| {
        let value = |i: usize| block[i / 2] >> (i % 2 * 4) & 15;
        let codes = (0..16).map(|i| value(i) | value(i + 16) << 4);
        [*scale].into_iter().chain(codes).collect::<Vec<u8>>()
    };
    blocks.chunks(16).zip(scales).flat_map(block).collect()
}

/// The GGUF file that llama.cpp's converter makes of a folder.
pub(crate) fn gguf(name: &str, architecture: &'static str) -> Gguf {
    let config = config(name);
    let number = |field: &str| Number(config[field].as_u64().unwrap() as u32);
    let float = |field: &str| Float(config[field].as_f64().unwrap() as f32);
    let key = |name: &str| -> &'static str { format!("{architecture}.{name}").leak() };
    let rope = match &config["rope_parameters"] {
        Value::Null => &config,
        rope => rope.get("full_attention").unwrap_or(rope),
    };
    let mut fields = vec![
        ("general.architecture", Text(architecture)),
        (key("block_count"), number("num_hidden_layers")),
        (key("context_length"), number("max_position_embeddings")),
        (key("embedding_length"), number("hidden_size")),
        (key("feed_forward_length"), number("intermediate_size")),
        (key("attention.head_count"), number("num_attention_heads")),
        (key("attention.head_count_kv"), number("num_key_value_heads")),
        (key("attention.layer_norm_rms_epsilon"), float("rms_norm_eps")),
        (key("rope.freq_base"), Float(rope["rope_theta"].as_f64().unwrap() as f32)),
    ];
    if !config["head_dim"].is_null() {
        fields.push((key("attention.key_length"), number("head_dim")));
    }
    let more: &[(&str, &str)] = match architecture {
        "granite" => &[
            ("embedding_scale", "embedding_multiplier"),
            ("attention.scale", "attention_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("logit_scale", "logits_scaling"),
        ],
        "qwen3moe" if !config["num_local_experts"].is_null() => &[
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
        ],
        "qwen3moe" => &[
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
        ],
        "gpt-oss" => &[
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "intermediate_size"),
            ("attention.sliding_window", "sliding_window"),
        ],
        "gemma3" | "phi3" => &[("attention.sliding_window", "sliding_window")],
        _ => &[],
    };
    let of_kind = |field| if config[field].is_f64() { float(field) } else { number(field) };
    fields.extend(more.iter().map(|(name, field)| (key(name), of_kind(field))));
    match architecture {
        "phi3" => fields.push((key("rope.dimension_count"), Number(12))),
        "gpt-oss" => fields.extend([
            (key("rope.scaling.type"), Text("yarn")),
            (key("rope.scaling.factor"), Float(32.0)),
            (key("rope.scaling.original_context_length"), yarn_ctx(&config)),
            (key("rope.scaling.yarn_beta_fast"), Float(32.0)),
            (key("rope.scaling.yarn_beta_slow"), Float(1.0)),
        ]),
        _ => {}
    }
    Gguf { fields, tensors: gguf_tensors(name, architecture) }
}

#[test]
fn gguf_files_become_what_their_folders_become() {
    for (name, architecture) in [
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("smollm3", "smollm3"),
        ("granite", "granite"),
        ("gemma3", "gemma3"),
        ("phi3", "phi3"),
        ("qwen3moe", "qwen3moe"),
        ("gptoss", "gpt-oss"),
        ("gptoss-mxfp4", "gpt-oss"),
        ("llama-bias", "llama"),
        ("qwen3moe-dense", "qwen3moe"),
    ] {
        let folder = Folder::new();
        let path = folder.join("model.gguf");
        fs::write(&path, gguf(name, architecture).bytes()).unwrap();
        let found = export_file(&path, 1).unwrap();
        let wanted = fs::read(export_to(&folder, &format!("{name}-tiny"), Weights::F32)).unwrap();
        let [of_gguf, of_folder] = [&found, &wanted].map(|file| Header::parse(file).unwrap());
        let (bos, stop_ids) = (of_folder.bos, of_folder.stop_ids.clone());
        assert_eq!(Header { bos, stop_ids, ..of_gguf.clone() }, of_folder, "{name}");
        assert!(found[of_gguf.len_bytes()..] == wanted[of_folder.len_bytes()..], "{name}");
    }
}

fn yarn_ctx(config: &Value) -> Field {
    let rope = [&config["rope_scaling"], &config["rope_parameters"]];
    let ctx = rope.iter().find_map(|rope| rope["original_max_position_embeddings"].as_u64());
    Number(ctx.unwrap() as u32)
}

/// The headers of a folder with some fields of its config.json changed, and of a GGUF file.
fn headers(name: &str, changes: &Value, gguf: &Gguf, ctx: Option<usize>) -> [Header; 2] {
    let folder = Folder::new();
    let path = folder.join("model.gguf");
    fs::write(&path, gguf.bytes()).unwrap();
    let of_gguf = ExportPlan::open_gguf(&path, &ExportOptions { ctx, ..options(1) }).unwrap();
    let of_folder = opened(name, changes, ctx).unwrap().header().clone();
    let (bos, stop_ids) = (of_folder.bos, of_folder.stop_ids.clone());
    [Header { bos, stop_ids, ..of_gguf.header().clone() }, of_folder]
}

#[test]
fn gguf_files_say_how_rope_is_scaled() {
    // LongRoPE in the form of llama.cpp's converter.
    let (short, long) = ([1.0, 1.5, 2.0, 2.5, 3.0, 3.5_f32], [2.0, 3.0, 4.0, 5.0, 6.0, 7.0_f32]);
    let changes = json!({
        "rope_parameters": null, "max_position_embeddings": 4096,
        "original_max_position_embeddings": 1024,
        "rope_scaling": { "type": "longrope", "short_factor": short, "long_factor": long }
    });
    let mut gguf = gguf("phi3", "phi3");
    let magnitude = (1.0 + 4f64.ln() / 1024f64.ln()).sqrt() as f32;
    gguf.set("phi3.context_length", Number(4096));
    gguf.set("phi3.rope.scaling.original_context_length", Number(1024));
    gguf.set("phi3.rope.scaling.attn_factor", Float(magnitude));
    for (name, values) in [("short", short), ("long", long)] {
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let name = format!("rope_factors_{name}.weight");
        gguf.tensors.push(Tensor { name, dimensions: vec![6], dtype: F32, bytes });
    }
    for kind in [None, Some("longrope")] {
        if let Some(kind) = kind {
            gguf.set("phi3.rope.scaling.type", Text(kind));
        }
        for ctx in [None, Some(512), Some(2048)] {
            let [of_gguf, of_folder] = headers("phi3", &changes, &gguf, ctx);
            assert_eq!(of_gguf, of_folder);
        }
    }
    let last = gguf.tensors.pop();
    refused(&gguf, &["rope_factors_short", "without the other"]);
    gguf.tensors.extend(last);
    // Without the context in training, the longest one stands for it, as in llama.cpp.
    let silent = gguf.without("phi3.rope.scaling.original_context_length");
    let [of_gguf, _] = headers("phi3", &changes, &silent, None);
    assert_eq!(of_gguf.features.rope_divisors, short);
    gguf.tensors.last_mut().unwrap().bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let long = ExportOptions { ctx: Some(2048), ..options(1) };
    refused_with(&gguf, &long, &["rope_divisor"]);
    // YaRN, whose blend begins and ends at whole pairs except in gpt-oss.
    let yarn = json!({ "rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128
    }});
    let mut gguf = self::gguf("qwen2", "qwen2");
    for (key, value) in [
        ("qwen2.rope.scaling.type", Text("yarn")),
        ("qwen2.rope.scaling.factor", Float(4.0)),
        ("qwen2.rope.scaling.original_context_length", Number(128)),
    ] {
        gguf.set(key, value);
    }
    let [of_gguf, of_folder] = headers("qwen2", &yarn, &gguf, None);
    assert_eq!(of_gguf, of_folder);
    let gguf = gguf.without("qwen2.rope.scaling.original_context_length");
    let yarn = json!({ "rope_scaling": { "type": "yarn", "factor": 4.0 }});
    let [of_gguf, of_folder] = headers("qwen2", &yarn, &gguf, None);
    assert_eq!(of_gguf, of_folder);
    let [of_gguf, of_folder] =
        headers("qwen2", &json!({}), &gguf.without("qwen2.rope.scaling.factor"), None);
    assert_eq!(of_gguf, of_folder);
}

#[test]
fn impossible_fields_of_gguf_families_are_named() {
    for (name, architecture, key, value) in [
        ("gptoss", "gpt-oss", "gpt-oss.expert_used_count", Number(9)),
        ("gptoss", "gpt-oss", "gpt-oss.expert_count", Number(1 << 30)),
        ("gptoss", "gpt-oss", "gpt-oss.expert_count", Text("8")),
        ("gptoss", "gpt-oss", "gpt-oss.expert_feed_forward_length", Number(0)),
        ("gptoss", "gpt-oss", "gpt-oss.expert_gating_func", Number(2)),
        ("gptoss", "gpt-oss", "gpt-oss.leading_dense_block_count", Number(1)),
        ("gptoss", "gpt-oss", "gpt-oss.attention.sliding_window", Float(1.5)),
        ("gptoss", "gpt-oss", "gpt-oss.attention.sliding_window_pattern", Numbers(vec![1, 0])),
        ("gptoss", "gpt-oss", "gpt-oss.attention.sliding_window_pattern", Text("x")),
        ("gptoss", "gpt-oss", "gpt-oss.rope.scaling.factor", Float(f32::NAN)),
        ("gptoss", "gpt-oss", "gpt-oss.rope.scaling.factor", Float(-1.0)),
        ("gptoss", "gpt-oss", "gpt-oss.rope.scaling.attn_factor", Float(f32::INFINITY)),
        ("gptoss", "gpt-oss", "gpt-oss.rope.scaling.attn_factor", Text("1")),
        ("gptoss", "gpt-oss", "gpt-oss.rope.scaling.yarn_beta_fast", Float(0.5)),
        ("gptoss", "gpt-oss", "gpt-oss.rope.scaling.yarn_ext_factor", Float(0.5)),
        ("gptoss", "gpt-oss", "gpt-oss.rope.scaling.yarn_log_multiplier", Float(0.1)),
        ("gptoss", "gpt-oss", "gpt-oss.rope.scaling.original_context_length", Number(0)),
        ("qwen3moe", "qwen3moe", "qwen3moe.expert_weights_norm", Number(1)),
        ("qwen3moe", "qwen3moe", "qwen3moe.expert_weights_scale", Float(2.5)),
        ("qwen3moe", "qwen3moe", "qwen3moe.expert_shared_count", Number(1)),
        ("gemma3", "gemma3", "gemma3.final_logit_softcapping", Float(30.0)),
        ("gemma3", "gemma3", "gemma3.rope.freq_base_swa", Float(0.5)),
        ("granite", "granite", "granite.logit_scale", Float(f32::NAN)),
        ("granite", "granite", "granite.residual_scale", Float(-0.5)),
        ("phi3", "phi3", "phi3.rope.dimension_count", Number(17)),
        ("phi3", "phi3", "phi3.rope.dimension_count", Number(7)),
    ] {
        let mut gguf = gguf(name, architecture);
        gguf.set(key, value);
        let name = key.rsplit('.').next().unwrap();
        let word = match name {
            "expert_used_count" => "n_active_experts",
            "expert_count" => "expert",
            "factor" | "yarn_beta_fast" => "rope scaling",
            "attn_factor" => "",
            "freq_base_swa" => "local_theta",
            "dimension_count" => "rotary_dim",
            other => other,
        };
        refused(&gguf, &[word]);
    }
}

#[test]
fn windows_of_gguf_families_follow_their_pattern() {
    for (name, architecture, usual) in [("gemma3", "gemma3", 6), ("gptoss", "gpt-oss", 2)] {
        for period in [None, Some(3)] {
            let mut gguf = gguf(name, architecture);
            if let Some(period) = period {
                let key = format!("{architecture}.attention.sliding_window_pattern");
                gguf.set(key.leak(), Number(period));
            }
            let [header, _] = headers(name, &json!({}), &gguf, None);
            let is_full =
                |layer: usize| (layer + 1).is_multiple_of(period.unwrap_or(usual) as usize);
            for (layer, spec) in header.layers().enumerate() {
                assert_eq!(spec.window.is_none(), is_full(layer), "{name} {period:?} {layer}");
            }
        }
    }
}

/// The file of llama.cpp's converter for the folder `name`, with a field's number changed; in a list, that at `index`.
fn converted(name: &str, field: &str, index: usize, value: u32) -> Vec<u8> {
    let path = package("tests/golden").join(name).join(format!("{name}-bf16.gguf"));
    let mut bytes = fs::read(path).unwrap();
    let key = [&(field.len() as u64).to_le_bytes()[..], field.as_bytes()].concat();
    let at = bytes.windows(key.len()).position(|part| part == key).unwrap() + key.len();
    let is_list = bytes[at] == 9;
    let at = at + 4 + if is_list { 12 + 4 * index } else { 0 };
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn impossible_fields_of_files_from_the_converter_are_named() {
    let float = f32::to_bits;
    for (name, field, index, value, word) in [
        ("gemma4-tiny", "gemma4.feed_forward_length", 7, 128, "feed_forward_length"),
        ("gemma4-tiny", "gemma4.feed_forward_length", 0, 0, "feed_forward_length"),
        ("gemma4-tiny", "gemma4.embedding_length_per_layer_input", 0, 8, "per_layer_token_embd"),
        ("gemma4-tiny", "gemma4.embedding_length_per_layer_input", 0, 0, "has no place"),
        ("gemma4-tiny", "gemma4.attention.shared_kv_layers", 0, 6, "feed_forward_length"),
        ("gemma4-tiny", "gemma4.attention.key_length_swa", 0, 8, "attention.value_length_swa 16"),
        ("gemma4-tiny", "gemma4.rope.dimension_count_swa", 0, 8, "rope.dimension_count_swa 8"),
        ("gemma4-tiny", "gemma4.final_logit_softcapping", 0, float(-1.0), "cap of logits"),
        ("gemma4-tiny", "gemma4.attention.sliding_window", 0, 0, "one kind only"),
        ("gemma4moe-tiny", "gemma4.attention.head_count_kv", 0, 1, "attention.head_count_kv"),
        ("gemma4moe-tiny", "gemma4.attention.head_count_kv", 5, 3, "their n_kv_heads"),
        ("gemma4moe-tiny", "gemma4.attention.shared_kv_layers", 0, 6, "layers without keys"),
        ("gemma4moe-tiny", "gemma4.expert_used_count", 0, 9, "n_active_experts"),
        ("gemma4moe-tiny", "gemma4.expert_count", 0, 0, "has no place"),
        ("ministral3-tiny", "mistral3.attention.temperature_scale", 0, float(-1.0), "slope"),
        (
            "ministral3-tiny",
            "mistral3.rope.scaling.yarn_log_multiplier",
            0,
            float(0.5),
            "yarn_log_multiplier 0.5",
        ),
        ("granite4-tiny", "granite.attention.head_count_kv", 1, 1, "layers that differ"),
        ("granite4-tiny", "granite.expert_count", 0, 8, "a mixture of experts"),
        ("lfm2-tiny", "lfm2.shortconv.l_cache", 0, 9, "taps is 9"),
        ("lfm2-tiny", "lfm2.attention.head_count_kv", 2, 0, "shortconv.in_proj"),
        ("lfm2-tiny", "lfm2.attention.head_count_kv", 2, 4, "attn_k"),
        ("lfm2moe-tiny", "lfm2moe.expert_gating_func", 0, 1, "expert_gating_func 1"),
        ("qwen35-tiny", "qwen35.nextn_predict_layers", 0, 9, "nextn_predict_layers is 9"),
        ("qwen35-tiny", "qwen35.nextn_predict_layers", 0, 0, "has no place"),
        ("qwen35-tiny", "qwen35.ssm.time_step_rank", 0, 3, "ssm.inner_size is 128"),
        ("qwen35-tiny", "qwen35.ssm.conv_kernel", 0, 0, "ssm.conv_kernel is 0"),
        ("qwen35moe-tiny", "qwen35moe.ssm.group_count", 0, 3, "4 recurrent heads in 3 groups"),
        ("granite4h-tiny", "granitehybrid.ssm.state_size", 0, 24, "a state of 24 by 16"),
        ("granite4h-tiny", "granitehybrid.expert_shared_feed_forward_length", 0, 32, "shexp"),
    ] {
        let folder = Folder::new();
        let path = folder.write("model.gguf", converted(name, field, index, value));
        let error = ExportPlan::open_gguf(&path, &options(1)).err();
        let error = error.unwrap_or_else(|| panic!("{name} {field}"));
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let text = format!("{error}: {}", source.unwrap_or_default());
        assert!(text.contains(word), "{name} {field}: {text}");
    }
}

/// Files of `llama-quantize` have vectors where those of the converter have matrices of one row.
#[test]
fn shapes_may_lack_their_last_ones() {
    for name in ["granite4h-tiny", "qwen35moe-tiny", "lfm2moe-tiny"] {
        let file =
            fs::read(package("tests/golden").join(format!("{name}/{name}-bf16.gguf"))).unwrap();
        let short = with_short_shapes(&file);
        assert_eq!(short.len() < file.len(), name != "lfm2moe-tiny", "{name}");
        let folder = Folder::new();
        let models = [file, short].map(|bytes| {
            folder.write("model.gguf", bytes);
            let plan = ExportPlan::open_gguf(&folder.join("model.gguf"), &options(2)).unwrap();
            let path = folder.join("model.bin");
            plan.write(&path, |_| ControlFlow::Continue(())).unwrap();
            fs::read(path).unwrap()
        });
        assert!(models[0] == models[1], "{name}");
    }
}
