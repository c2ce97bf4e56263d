//! Other families than Llama's: their GGUF files are as their folders, and what LEAP does not compute or
//! is impossible is named. The reference's outputs are in `tests/golden.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use leap::export::{ExportOptions, ExportPlan};
use leap::format::model::{Header, RopeScaling, TensorKind, Weights};
use serde_json::{Value, json};

use crate::checkpoint::options;
use crate::common::folder::Folder;
use crate::common::models::{export_to, package};
use crate::gguf::Value as Field;
use crate::gguf::Value::{Float, Number, Text};
use crate::gguf::{BF16, F32, Gguf, MXFP4, Tensor, export_file, interleaved};

fn golden(name: &str) -> PathBuf {
    package("tests/golden").join(format!("{name}-tiny"))
}

fn config(name: &str) -> Value {
    serde_json::from_slice(&fs::read(golden(name).join("config.json")).unwrap()).unwrap()
}

/// The tensors of a folder: shapes and bf16 values.
fn tensors(name: &str) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(golden(name)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let bytes = fs::read(path).unwrap();
        for (name, view) in safetensors::SafeTensors::deserialize(&bytes).unwrap().iter() {
            all.insert(name.to_owned(), (view.shape().to_vec(), view.data().to_vec()));
        }
    }
    all
}

/// What llama.cpp's converter calls a tensor of a layer.
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

/// A folder's tensors as that converter writes them: experts in one, queries and keys of Llama's near
/// relations interleaved, and 1 + w in Gemma's norms.
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
        let is_interleaved = ["smollm3", "granite"].contains(&architecture);
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

/// A folder's tensors under its names, but for gpt-oss: gates and ups, which alternate, apart and
/// output-major, blocks of MXFP4 with their scales, and sinks with an end.
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

/// Rows of gates and of ups, or of neither, as tensors of their own.
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

/// Blocks as ggml has them: the scale, then values 0 to 15 in low halves and 16 to 31 in high ones.
fn mxfp4(blocks: &[u8], scales: &[u8]) -> Vec<u8> {
    let block = |(block, scale): (&[u8], &u8)| {
        let value = |i: usize| block[i / 2] >> (i % 2 * 4) & 15;
        let codes = (0..16).map(|i| value(i) | value(i + 16) << 4);
        [*scale].into_iter().chain(codes).collect::<Vec<u8>>()
    };
    blocks.chunks(16).zip(scales).flat_map(block).collect()
}

/// The file that llama.cpp's converter makes of a folder.
fn gguf(name: &str, architecture: &'static str) -> Gguf {
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
    ] {
        let folder = Folder::new();
        let path = folder.join("model.gguf");
        fs::write(&path, gguf(name, architecture).bytes()).unwrap();
        let found = export_file(&path, 1, false).unwrap();
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

/// What is said of a folder with some fields of its config.json changed.
fn opened(name: &str, changes: &Value, ctx: Option<usize>) -> Result<ExportPlan, String> {
    let folder = Folder::new();
    let mut config = config(name);
    for (field, value) in changes.as_object().unwrap() {
        config[field] = value.clone();
    }
    folder.write("config.json", config.to_string());
    for entry in fs::read_dir(golden(name)).unwrap() {
        let entry = entry.unwrap();
        let file = entry.file_name().into_string().unwrap();
        if file.contains("model") && !file.contains("tokenizer") {
            fs::copy(entry.path(), folder.join(&file)).unwrap();
        }
    }
    let options = ExportOptions { ctx, ..options(1) };
    ExportPlan::open(folder.path(), &options).map_err(|e| {
        let source = std::error::Error::source(&e).map(ToString::to_string);
        format!("{e}: {}", source.unwrap_or_default())
    })
}

#[test]
fn impossible_settings_of_families_are_named() {
    let layers = |label: &str| Value::from(vec![label; 7]);
    for (name, changes, word) in [
        ("qwen3", json!({ "use_sliding_window": "yes" }), "use_sliding_window"),
        ("qwen3", json!({ "head_dim": 31 }), "head_dim"),
        ("qwen3", json!({ "attention_bias": true }), "attention_bias"),
        ("qwen3", json!({ "num_experts": 8 }), "num_experts"),
        ("smollm3", json!({ "no_rope_layers": [1, 0] }), "no_rope_layers lists 2 layers"),
        ("smollm3", json!({ "no_rope_layers": 3 }), "no_rope_layers"),
        ("smollm3", json!({ "no_rope_layers": null, "no_rope_layer_interval": 0 }), "interval"),
        ("granite", json!({ "logits_scaling": 0 }), "logits_scaling"),
        ("granite", json!({ "embedding_multiplier": -1.0 }), "embedding_multiplier"),
        ("granite", json!({ "residual_multiplier": 1e39 }), "residual_multiplier"),
        ("granite", json!({ "attention_multiplier": "x" }), "attention_multiplier"),
        ("gemma3", json!({ "hidden_activation": "gelu" }), "hidden_activation"),
        ("gemma3", json!({ "final_logit_softcapping": 30.0 }), "final_logit_softcapping"),
        ("gemma3", json!({ "use_bidirectional_attention": true }), "bidirectional"),
        ("gemma3", json!({ "layer_types": layers("chunked_attention") }), "chunked_attention"),
        ("gemma3", json!({ "layer_types": ["full_attention"] }), "layer_types lists 1 layers"),
        ("gemma3", json!({ "sliding_window_pattern": 0 }), "sliding_window_pattern"),
        ("gemma3", json!({ "query_pre_attn_scalar": 0 }), "attention_scale"),
        ("gemma3", json!({ "rope_local_base_freq": 0.5 }), "local_theta"),
        ("phi3", json!({ "partial_rotary_factor": 1.5 }), "partial_rotary_factor"),
        ("phi3", json!({ "partial_rotary_factor": 0.01 }), "partial_rotary_factor"),
        ("phi3", json!({ "num_key_value_heads": 4 }), "qkv_proj"),
        ("phi3", json!({ "num_key_value_heads": 1 }), "qkv_proj"),
        ("phi3", json!({ "intermediate_size": 96 }), "gate_up_proj"),
        ("qwen3moe", json!({ "num_experts": null }), "num_experts is missing"),
        ("qwen3moe", json!({ "num_experts_per_tok": 9 }), "n_active_experts"),
        ("qwen3moe", json!({ "num_experts": 9 }), "experts.8.gate_proj.weight is missing"),
        ("qwen3moe", json!({ "num_experts": 7 }), "mlp.gate.weight"),
        ("qwen3moe", json!({ "num_experts": 1 << 30 }), "n_experts"),
        ("qwen3moe", json!({ "decoder_sparse_step": 2 }), "decoder_sparse_step"),
        ("qwen3moe", json!({ "mlp_only_layers": [1] }), "mlp_only_layers"),
        ("gptoss", json!({ "swiglu_limit": -1 }), "activation limit"),
        ("gptoss", json!({ "num_local_experts": 5 }), "gate_up_proj"),
        ("gptoss", json!({ "attention_bias": false }), "attention_bias"),
        ("gptoss", json!({ "rope_scaling": { "rope_type": "yarn", "factor": -1.0 } }), "rope"),
        ("gptoss-mxfp4", json!({ "intermediate_size": 96 }), "gate_up_proj_blocks"),
        ("gptoss-mxfp4", json!({ "quantization_config": { "quant_method": "fp8" } }), "fp8"),
    ] {
        let error =
            opened(name, &changes, None).err().unwrap_or_else(|| panic!("{name} {changes}"));
        assert!(error.contains(word), "{name} {changes}: {error}");
    }
}

#[test]
fn windows_count_where_the_configuration_says_so() {
    let windows = |name: &str, changes: Value| -> Vec<bool> {
        let plan = opened(name, &changes, None).unwrap();
        plan.header().layers().map(|layer| layer.window.is_some()).collect()
    };
    assert_eq!(windows("qwen2", json!({})), [false; 5]);
    let used = json!({ "use_sliding_window": true });
    assert_eq!(windows("qwen2", used), [false, false, false, true, true]);
    let by_rule = json!({ "layer_types": null });
    assert_eq!(windows("gemma3", by_rule), [true, true, true, true, true, false, true]);
    let by_rule = json!({ "layer_types": null, "_sliding_window_pattern": 2 });
    assert_eq!(windows("gemma3", by_rule), [true, false, true, false, true, false, true]);
    assert_eq!(windows("gptoss", json!({ "layer_types": null })), [true, false, true, false]);
    let rope = |name: &str, changes: Value| -> Vec<bool> {
        let plan = opened(name, &changes, None).unwrap();
        plan.header().layers().map(|layer| layer.rope.is_some()).collect()
    };
    let wanted = [true, true, true, false, true, true, true, false];
    assert_eq!(rope("smollm3", json!({ "no_rope_layers": null })), wanted);
}

#[test]
fn long_rope_takes_the_factors_of_the_context() {
    let rope = json!({
        "type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1], "long_factor": [2, 3, 4, 5, 6, 7]
    });
    let changes = json!({
        "rope_parameters": null, "rope_scaling": rope,
        "original_max_position_embeddings": 1024, "max_position_embeddings": 4096
    });
    let of = |ctx| opened("phi3", &changes, ctx).unwrap();
    let magnitude = (1.0 + 4f64.ln() / 1024f64.ln()).sqrt() as f32;
    for (ctx, longest, divisors) in [
        (None, 1024, vec![1.0; 6]),
        (Some(512), 512, vec![1.0; 6]),
        (Some(2048), 2048, vec![2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
    ] {
        let plan = of(ctx);
        let header = plan.header();
        assert_eq!((header.max_seq_len, header.rotary_dim()), (longest, 12));
        assert_eq!(header.rope_scaling, Some(RopeScaling::Divisors));
        assert_eq!(header.features.rope_divisors, divisors);
        assert_eq!(header.features.rope_magnitude, magnitude);
        assert!(plan.notes().iter().any(|note| note.contains("1024")), "{:?}", plan.notes());
    }
    let mut wrong = changes.clone();
    wrong["rope_scaling"]["long_factor"] = json!([1, 2]);
    let error = opened("phi3", &wrong, None).err().unwrap();
    assert!(error.contains("long_factor has 2 numbers, wanted 6"), "{error}");
    wrong["rope_scaling"]["long_factor"] = json!([1, 2, 3, 4, 5, 0]);
    assert!(opened("phi3", &wrong, Some(2048)).err().unwrap().contains("rope_divisor"));
}

#[test]
fn a_mixture_counts_the_experts_that_a_token_uses() {
    let plan = opened("qwen3moe", &json!({}), None).unwrap();
    let header = plan.header();
    assert_eq!(header.shape(TensorKind::W1), (8 * 32, 64));
    let sum = |active: bool| -> u64 {
        let bytes = |t| if active { header.active_bytes(&t) } else { t.bytes };
        header.tensors().map(bytes).sum()
    };
    // Of each layer three matrices of 32 by 64 for each of six experts are not used.
    assert_eq!(sum(false) - sum(true), 4 * 3 * 6 * 32 * 64 * 4);
}
