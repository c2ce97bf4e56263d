//! Families other than Llama's: settings that are impossible or that LEAP does not compute are named. The reference's
//! outputs are in `tests/bits/golden.rs`, GGUF files in `gguf_families`.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use leap::export::{ExportOptions, ExportPlan};
use leap::format::model::{HEADER_LEN, LongRope, RopeScaling, Temperature, TensorKind};
use serde_json::{Value, json};

use crate::common::folder::Folder;
use crate::common::models::package;
use crate::export::checkpoint::options;

fn golden(name: &str) -> PathBuf {
    package("tests/golden").join(format!("{name}-tiny"))
}

pub(crate) fn config(name: &str) -> Value {
    serde_json::from_slice(&fs::read(golden(name).join("config.json")).unwrap()).unwrap()
}

/// The tensors of a folder: shapes and bf16 values.
pub(crate) fn tensors(name: &str) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
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

/// Result of opening a folder with some fields of its config.json changed.
pub(crate) fn opened(
    name: &str,
    changes: &Value,
    ctx: Option<usize>,
) -> Result<ExportPlan, String> {
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
fn internlm_is_llama_with_biases_of_attention() {
    let changes = json!({
        "model_type": "internlm", "architectures": ["InternLMForCausalLM"], "bias": true,
        "attention_bias": null
    });
    let [found, wanted] = [changes, json!({})]
        .map(|changes| opened("llama-bias", &changes, None).unwrap().header().clone());
    assert_eq!(found, wanted);
}

#[test]
fn impossible_settings_of_families_are_named() {
    let layers = |label: &str| Value::from(vec![label; 7]);
    for (name, changes, word) in [
        ("qwen3", json!({ "use_sliding_window": "yes" }), "use_sliding_window"),
        ("qwen3", json!({ "head_dim": 31 }), "head_dim"),
        ("qwen3", json!({ "attention_bias": true }), "q_proj.bias is missing"),
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
        ("gemma3", json!({ "layer_types": layers("chunked_attention") }), "chunked_attention"),
        ("gemma3", json!({ "layer_types": ["full_attention"] }), "layer_types lists 1 layers"),
        ("gemma3", json!({ "sliding_window_pattern": 0 }), "sliding_window_pattern"),
        ("qwen3", json!({ "num_attention_heads": null }), "num_attention_heads is missing"),
        // The class's defaults differ from this model's values.
        ("gemma3", json!({ "num_attention_heads": null }), "q_proj"),
        ("gemma3", json!({ "vocab_size": null }), "wanted [262208"),
        ("gemma3", json!({ "query_pre_attn_scalar": 0 }), "attention_scale"),
        ("gemma3", json!({ "rope_local_base_freq": 0.5 }), "local_theta"),
        ("phi3", json!({ "partial_rotary_factor": 1.5 }), "partial_rotary_factor"),
        ("phi3", json!({ "partial_rotary_factor": 0.01 }), "partial_rotary_factor"),
        ("phi3", json!({ "num_key_value_heads": 4 }), "qkv_proj"),
        ("phi3", json!({ "num_key_value_heads": 1 }), "qkv_proj"),
        ("phi3", json!({ "intermediate_size": 96 }), "gate_up_proj"),
        ("qwen3moe", json!({ "num_experts": null }), "num_local_experts is missing"),
        ("qwen3moe", json!({ "num_experts_per_tok": 9 }), "n_active_experts"),
        ("qwen3moe", json!({ "num_experts": 9 }), "experts.8.gate_proj.weight is missing"),
        ("qwen3moe", json!({ "num_experts": 7 }), "mlp.gate.weight"),
        ("qwen3moe", json!({ "num_experts": 1 << 30 }), "n_experts"),
        ("qwen3moe", json!({ "decoder_sparse_step": 2 }), "0.mlp.gate_proj.weight is missing"),
        ("qwen3moe", json!({ "mlp_only_layers": [1] }), "1.mlp.gate_proj.weight is missing"),
        ("qwen3moe", json!({ "mlp_only_layers": 1 }), "mlp_only_layers"),
        ("qwen3moe", json!({ "decoder_sparse_step": 0 }), "decoder_sparse_step"),
        (
            "qwen3moe-dense",
            json!({ "mlp_only_layers": [] }),
            "3.mlp.experts.0.gate_proj.weight is missing",
        ),
        ("llama-bias", json!({ "mlp_bias": false }), "has no place"),
        ("gptoss", json!({ "swiglu_limit": -1 }), "activation limit"),
        ("gptoss", json!({ "num_local_experts": 5 }), "gate_up_proj"),
        ("gptoss", json!({ "attention_bias": false }), "attention_bias"),
        (
            "gptoss",
            json!({ "rope_scaling": { "rope_type": "yarn", "factor": -1.0 } }),
            "yarn by -1",
        ),
        (
            "gptoss",
            json!({ "rope_scaling": { "rope_type": "yarn", "factor": 2, "beta_fast": 0.5 } }),
            "beta_fast 0.5",
        ),
        ("granite4", json!({ "layer_types": null }), "mamba.in_proj"),
        ("granite4", json!({ "layer_types": ["attention", "mamba", "mamba", "mamba"] }), "mamba"),
        (
            "granite4h",
            json!({ "layer_types": ["attention", "mamba", "mamba", "x", "mamba", "mamba"] }),
            "layer_types x",
        ),
        ("granite4", json!({ "layer_types": ["attention"] }), "layer_types lists 1 layers"),
        ("granite4", json!({ "num_local_experts": 8 }), "num_experts_per_tok"),
        ("granite4", json!({ "shared_intermediate_size": null }), "shared_intermediate_size"),
        ("granite4", json!({ "shared_intermediate_size": 128 }), "input_linear"),
        ("granite4", json!({ "position_embedding_type": "alibi" }), "alibi"),
        ("ministral3", json!({ "text_config": null }), "text_config is missing"),
        ("ministral3", json!({ "quantization_config": { "quant_method": "awq" } }), "awq"),
        ("gptoss-mxfp4", json!({ "intermediate_size": 96 }), "gate_up_proj_blocks"),
        ("gptoss-mxfp4", json!({ "quantization_config": { "quant_method": "awq" } }), "awq"),
    ] {
        let error =
            opened(name, &changes, None).err().unwrap_or_else(|| panic!("{name} {changes}"));
        assert!(error.contains(word), "{name} {changes}: {error}");
    }
}

#[test]
fn ministrals_queries_grow_where_the_configuration_says_so() {
    let grows = |field: &str, value: Value| {
        let mut text = config("ministral3")["text_config"].clone();
        text["rope_parameters"][field] = value;
        let plan = opened("ministral3", &json!({ "text_config": text }), None)?;
        Ok::<_, String>(plan.header().features.temperature)
    };
    let usual = Temperature { slope: 0.1, original_ctx: 64 };
    assert_eq!(grows("rope_theta", json!(1e6)), Ok(Some(usual)));
    assert_eq!(grows("llama_4_scaling_beta", json!(null)), Ok(None));
    assert_eq!(grows("llama_4_scaling_beta", json!(0)), Ok(None));
    for (field, value, word) in [
        ("llama_4_scaling_beta", json!(-1), "slope of the temperature"),
        ("llama_4_scaling_beta", json!("x"), "llama_4_scaling_beta"),
        ("original_max_position_embeddings", json!(null), "original_max_position_embeddings"),
    ] {
        let error = grows(field, value).unwrap_err();
        assert!(error.contains(word), "{field}: {error}");
    }
}

/// Settings of Gemma 4, which stand in an object of their own.
#[test]
fn impossible_settings_of_gemma_4_are_named() {
    let opened = |name: &str, changes: &Value| {
        let mut text = config(name)["text_config"].clone();
        for (field, value) in changes.as_object().unwrap() {
            text[field] = value.clone();
        }
        opened(name, &json!({ "text_config": text }), None)
    };
    let proportional = |factor: f64| {
        json!({ "full_attention": { "rope_type": "proportional", "partial_rotary_factor": factor,
                "rope_theta": 1e6 } })
    };
    let types = |label: &str| Value::from(vec![label; 10]);
    for (name, changes, word) in [
        ("gemma4", json!({ "hidden_activation": "gelu" }), "hidden_activation"),
        ("gemma4", json!({ "attn_logit_softcapping": 50.0 }), "attn_logit_softcapping"),
        ("gemma4", json!({ "use_bidirectional_attention": "all" }), "bidirectional"),
        ("gemma4", json!({ "use_bidirectional_attention": true }), "bidirectional"),
        ("gemma4", json!({ "final_logit_softcapping": -30.0 }), "cap of logits"),
        ("gemma4", json!({ "vocab_size_per_layer_input": 700 }), "vocab_size_per_layer_input 700"),
        ("gemma4", json!({ "hidden_size_per_layer_input": 8 }), "embed_tokens_per_layer"),
        ("gemma4", json!({ "hidden_size_per_layer_input": 0 }), "has no place"),
        ("gemma4", json!({ "layer_types": types("sliding_attention") }), "one kind only"),
        ("gemma4", json!({ "layer_types": types("linear_attention") }), "linear_attention"),
        ("gemma4", json!({ "sliding_window": null }), "one kind only"),
        ("gemma4", json!({ "global_head_dim": 33 }), "head_dim of full layers"),
        ("gemma4", json!({ "global_head_dim": 1024 }), "head_dim of full layers"),
        ("gemma4", json!({ "num_kv_shared_layers": 10 }), "layers without keys and values"),
        ("gemma4", json!({ "num_kv_shared_layers": 6 }), "no such layer before it"),
        ("gemma4", json!({ "num_kv_shared_layers": 4 }), "5.mlp.gate_proj"),
        ("gemma4", json!({ "use_double_wide_mlp": false }), "5.mlp.gate_proj"),
        ("gemma4", json!({ "rope_parameters": proportional(1.5) }), "partial_rotary_factor"),
        ("gemma4moe", json!({ "num_global_key_value_heads": 3 }), "their n_kv_heads"),
        ("gemma4moe", json!({ "attention_k_eq_v": false }), "5.self_attn"),
        ("gemma4moe", json!({ "enable_moe_block": false }), "has no place"),
        ("gemma4moe", json!({ "num_experts": null }), "num_experts is missing"),
        ("gemma4moe", json!({ "num_experts": 7 }), "experts"),
        ("gemma4moe", json!({ "top_k_experts": 9 }), "n_active_experts"),
        ("gemma4moe", json!({ "moe_intermediate_size": 16 }), "experts"),
    ] {
        let error = opened(name, &changes).err().unwrap_or_else(|| panic!("{name} {changes}"));
        assert!(error.contains(word), "{name} {changes}: {error}");
    }
    for changes in [json!({}), json!({ "use_bidirectional_attention": "vision" })] {
        opened("gemma4", &changes).unwrap();
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
    let unrotated = rope("granite4", json!({ "position_embedding_type": "nope" }));
    assert_eq!(unrotated, [false; 4]);
}

#[test]
fn impossible_settings_of_recurrent_families_are_named() {
    for (name, changes, word) in [
        ("granite4h", json!({ "mamba_n_heads": null }), "mamba_n_heads is missing"),
        ("granite4h", json!({ "mamba_n_heads": 4 }), "in_proj"),
        ("granite4h", json!({ "mamba_n_groups": 3 }), "8 recurrent heads in 3 groups"),
        ("granite4h", json!({ "mamba_d_state": 24 }), "a state of 24 by 16"),
        ("granite4h", json!({ "mamba_conv_bias": false }), "mamba_conv_bias"),
        ("granite4h", json!({ "mamba_proj_bias": true }), "mamba_proj_bias"),
        ("granite4h", json!({ "shared_intermediate_size": 32 }), "shared_mlp"),
        ("lfm2", json!({ "conv_bias": true }), "conv_bias"),
        ("lfm2", json!({ "conv_L_cache": 9 }), "taps is 9"),
        ("lfm2", json!({ "conv_L_cache": 4 }), "conv.conv"),
        ("lfm2", json!({ "layer_types": ["conv"] }), "layer_types lists 1 layers"),
        ("lfm2", json!({ "layer_types": null, "full_attn_idxs": null }), "layer_types is missing"),
        ("lfm2", json!({ "block_ffn_dim_multiplier": -1.0 }), "block_ffn_dim_multiplier"),
        ("lfm2moe", json!({ "use_expert_bias": false }), "use_expert_bias"),
        ("lfm2moe", json!({ "routed_scaling_factor": 2.0 }), "routed_scaling_factor"),
        ("lfm2moe", json!({ "num_experts_per_tok": 9 }), "n_active_experts"),
    ] {
        let error =
            opened(name, &changes, None).err().unwrap_or_else(|| panic!("{name} {changes}"));
        assert!(error.contains(word), "{name} {changes}: {error}");
    }
    // Qwen3.5's configuration has the language model's inside.
    let config = config("qwen35moe");
    for (setting, value, word) in [
        ("attn_output_gate", json!(false), "attn_output_gate"),
        ("linear_conv_kernel_dim", json!(1), "taps is 1"),
        ("linear_num_value_heads", json!(3), "recurrent heads"),
        ("linear_key_head_dim", json!(16), "in_proj_qkv"),
        ("linear_value_head_dim", json!(40), "a state of 32 by 40"),
        ("layer_types", json!(["linear_attention"]), "layer_types lists 1 layers"),
        ("layer_types", json!(["x", "x", "x", "x"]), "layer_types x"),
        ("full_attention_interval", json!(0), "full_attention_interval"),
        ("mlp_only_layers", json!([1]), "mlp_only_layers"),
        ("shared_expert_intermediate_size", json!(64), "shared_expert"),
        ("num_experts_per_tok", json!(17), "n_active_experts"),
    ] {
        let mut text = config["text_config"].clone();
        text[setting] = value;
        if setting == "full_attention_interval" {
            text["layer_types"] = Value::Null;
        }
        let changes = json!({ "text_config": text });
        let error =
            opened("qwen35moe", &changes, None).err().unwrap_or_else(|| panic!("{setting}"));
        assert!(error.contains(word), "{setting}: {error}");
    }
}

/// A multimodal Gemma 3 has the language model's configuration inside its own, and other tensors beside it.
#[test]
fn of_a_model_that_also_sees_the_language_model_is_exported() {
    let folder = Folder::new();
    let [plain, wrapped] = ["plain", "wrapped"].map(|name| folder.join(name));
    for path in [&plain, &wrapped] {
        fs::create_dir(path).unwrap();
    }
    let mut text = config("gemma3");
    text.as_object_mut().unwrap().remove("architectures");
    fs::write(plain.join("config.json"), text.to_string()).unwrap();
    fs::copy(golden("gemma3").join("model.safetensors"), plain.join("model.safetensors")).unwrap();
    let whole = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "text_config": text, "vision_config": { "hidden_size": 8 }, "eos_token_id": [1, 106]
    });
    fs::write(wrapped.join("config.json"), whole.to_string()).unwrap();
    let wanted = header_and_bytes(&plain).1;
    for prefix in ["language_model.", "model.language_model."] {
        let mut all: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
        for (name, (shape, bytes)) in tensors("gemma3") {
            let own = if prefix.starts_with("model") { &name["model.".len()..] } else { &name };
            all.push((format!("{prefix}{own}"), shape, bytes));
        }
        let seeing = ["vision_tower.patch.weight", "multi_modal_projector.norm.weight"];
        let before = prefix.trim_end_matches("language_model.");
        all.extend(seeing.map(|name| (format!("{before}{name}"), vec![2], vec![0; 4])));
        let views = all.iter().map(|(name, shape, bytes)| {
            let dtype = safetensors::Dtype::BF16;
            (name, safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).unwrap())
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        fs::write(wrapped.join("model.safetensors"), bytes).unwrap();
        let (plan, found) = header_and_bytes(&wrapped);
        assert!(
            plan.notes().iter().any(|note| note.starts_with("2 tensors")),
            "{:?}",
            plan.notes()
        );
        assert_eq!(plan.header().stop_ids, [1, 106]);
        assert!(found == wanted, "{prefix}");
    }
    let lacking = json!({ "model_type": "gemma3" });
    fs::write(wrapped.join("config.json"), lacking.to_string()).unwrap();
    let error = ExportPlan::open(&wrapped, &options(1)).err().unwrap().to_string();
    assert!(error.contains("text_config"), "{error}");
}

/// The plan of a folder, and the bytes that it writes after the header.
fn header_and_bytes(folder: &std::path::Path) -> (ExportPlan, Vec<u8>) {
    let plan = ExportPlan::open(folder, &options(1)).unwrap();
    let out = Folder::new();
    let path = out.join("model.bin");
    plan.write(&path, |_| ControlFlow::Continue(())).unwrap();
    let bytes = fs::read(path).unwrap();
    (plan, bytes[HEADER_LEN..].to_vec())
}

#[test]
fn long_rope_keeps_the_factors_of_both_ranges() {
    let rope = json!({
        "type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1], "long_factor": [2, 3, 4, 5, 6, 7]
    });
    let changes = json!({
        "rope_parameters": null, "rope_scaling": rope,
        "original_max_position_embeddings": 1024, "max_position_embeddings": 4096
    });
    let of = |ctx| opened("phi3", &changes, ctx).unwrap();
    let magnitude = (1.0 + 4f64.ln() / 1024f64.ln()).sqrt() as f32;
    let long = LongRope { original_ctx: 1024, divisors: vec![2.0, 3.0, 4.0, 5.0, 6.0, 7.0] };
    for (ctx, longest, long) in [
        (None, 4096, Some(long.clone())),
        (Some(512), 512, None),
        (Some(1024), 1024, None),
        (Some(2048), 2048, Some(long)),
    ] {
        let plan = of(ctx);
        let header = plan.header();
        assert_eq!((header.max_seq_len, header.rotary_dim()), (longest, 12));
        assert_eq!(header.rope_scaling, Some(RopeScaling::Divisors));
        assert_eq!(header.features.rope_divisors, [1.0; 6]);
        assert_eq!(header.features.long_rope, long);
        assert_eq!(header.features.rope_magnitude, magnitude);
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
    // Six experts of each layer are unused, each of three matrices of 32 by 64.
    assert_eq!(sum(false) - sum(true), 4 * 3 * 6 * 32 * 64 * 4);
}
