//! Checkpoints that cannot become a model file, and the words of their errors.

use std::error::Error as _;
use std::fs;
use std::ops::ControlFlow;

use leap::export::{Blame, ExportError, ExportOptions, ExportPlan};
use leap::format::model::{Ends, Weights};
use serde_json::{Value, json};

use crate::common::folder::Folder;
use crate::export::checkpoint::{Checkpoint, Dims, SMALL, Stored, export, options};

fn message(error: &ExportError) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Exports the folder, which must fail because of the input, with these words in the message.
fn refused_folder(folder: &Folder, words: &[&str]) {
    for version in [1, 2, 3, 4] {
        let error = export(folder, &options(version)).unwrap_err();
        let message = message(&error);
        assert_eq!(error.blame(), Blame::Input, "{message}");
        for word in words {
            assert!(message.contains(word), "no {word:?} in: {message}");
        }
    }
}

fn refused(checkpoint: &Checkpoint, words: &[&str]) {
    let folder = Folder::new();
    checkpoint.write(&folder);
    refused_folder(&folder, words);
}

fn small() -> Checkpoint {
    Checkpoint::hugging_face("F16", SMALL)
}

fn config(field: &str, value: Value, words: &[&str]) {
    let mut checkpoint = small();
    checkpoint.set("config.json", field, value);
    refused(&checkpoint, &[words, &["config.json"]].concat());
}

#[test]
fn other_architectures_are_named() {
    for kind in ["mixtral", "qwen2_moe", "olmoe", "gemma", "phi", "gpt2"] {
        config("model_type", json!(kind), &["unsupported", kind, "LEAP runs llama"]);
    }
    for class in ["MixtralForCausalLM", "OlmoeForCausalLM", "LlamaForSequenceClassification"] {
        config("architectures", json!([class]), &["unsupported", class, "LEAP runs llama"]);
    }
    config("architectures", json!(["Qwen2MoeForCausalLM"]), &["unsupported", "Qwen2Moe"]);
    config("architectures", json!("LlamaForCausalLM"), &["architectures", "a list"]);
    let mut nameless = small();
    nameless.set("config.json", "model_type", Value::Null);
    nameless.set("config.json", "architectures", Value::Null);
    refused(&nameless, &["model_type is missing"]);
}

#[test]
fn variants_that_leap_does_not_compute_are_named() {
    for (flag, word) in [("attention_bias", "q_proj.bias"), ("mlp_bias", "gate_proj.bias")] {
        let mut unbiased = small();
        unbiased.set("config.json", flag, json!(true));
        refused(&unbiased, &[word, "missing"]);
    }
    config("hidden_act", json!("gelu"), &["unsupported", "hidden_act gelu"]);
    config("num_local_experts", json!(8), &["unsupported", "num_local_experts"]);
    config("quantization_config", json!({ "quant_method": "gptq" }), &["unsupported", "gptq"]);
    config("partial_rotary_factor", json!(0.5), &["unsupported", "partial_rotary_factor"]);
    let other = json!({ "rope_type": "proportional", "factor": 4.0 });
    config("rope_scaling", other, &["unsupported", "proportional"]);
}

#[test]
fn impossible_fields_are_named() {
    for field in ["hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"] {
        for value in [json!(0), json!(-1), json!(1u64 << 31), json!(1.5), json!("64"), json!([])] {
            config(field, value, &[field]);
        }
        config(field, Value::Null, &[field, "missing"]);
        let mut vast = small();
        vast.set("config.json", field, json!(1 << 30));
        let is_counted = field == "num_hidden_layers";
        refused(&vast, &[if is_counted { "wanted at most 4096" } else { "tensor" }]);
    }
    config("num_attention_heads", json!(0), &["num_attention_heads"]);
    config("num_key_value_heads", json!(3), &["n_kv_heads"]);
    config("head_dim", json!(31), &["head_dim"]);
    config("head_dim", json!(1 << 20), &["head_dim"]);
    config("rms_norm_eps", json!("1e-5"), &["rms_norm_eps"]);
    config("rms_norm_eps", json!(-1.0), &["norm_eps"]);
    config("rope_theta", json!(0), &["rope_theta"]);
    config("tie_word_embeddings", json!(1), &["tie_word_embeddings"]);
    config("eos_token_id", json!(-2), &["eos_token_id"]);
    config("eos_token_id", json!([1, "2"]), &["eos_token_id"]);
    let mut uneven = small();
    uneven.set("config.json", "head_dim", Value::Null);
    uneven.set("config.json", "num_attention_heads", json!(5));
    refused(&uneven, &["head_dim is missing"]);
}

#[test]
fn meta_params_are_checked_too() {
    let params = |field: &str, value: Value, words: &[&str]| {
        let mut checkpoint = Checkpoint::meta("F16", SMALL);
        checkpoint.set("params.json", field, value);
        refused(&checkpoint, &[words, &["params.json"]].concat());
    };
    params("dim", json!(0), &["dim"]);
    params("n_heads", Value::Null, &["n_heads is missing"]);
    params("norm_eps", Value::Null, &["norm_eps is missing"]);
    params("vocab_size", json!(-2), &["vocab_size"]);
    params("moe", json!({ "num_experts": 8 }), &["unsupported", "moe"]);
    params("quantization_args", json!({}), &["unsupported", "quantization_args"]);
    let mut wrong = Checkpoint::meta("F16", SMALL);
    wrong.set("params.json", "vocab_size", json!(41));
    refused(&wrong, &["tok_embeddings.weight", "[40, 64]", "[41, 64]"]);
}

#[test]
fn missing_tensor_is_named() {
    for name in ["model.norm", "lm_head", "model.layers.1.mlp.down_proj"] {
        let name = format!("{name}.weight");
        let mut checkpoint = small();
        checkpoint.tensors.remove(&name);
        refused(&checkpoint, &[&name, "missing"]);
    }
}

#[test]
fn surplus_tensor_is_named() {
    for name in ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight"] {
        let mut checkpoint = small();
        let stored = checkpoint.tensors["model.norm.weight"].clone();
        checkpoint.tensors.insert(name.to_owned(), stored);
        refused(&checkpoint, &[name, "no place"]);
    }
}

#[test]
fn misshapen_tensor_is_named() {
    let reshaped = |name: &str, shape: &[usize]| {
        let mut checkpoint = small();
        let stored = checkpoint.tensors.get_mut(name).unwrap();
        stored.shape = shape.to_vec();
        stored.bytes.resize(2 * shape.iter().product::<usize>(), 0);
        refused(&checkpoint, &[name, "shape", &format!("{shape:?}")]);
    };
    reshaped("model.layers.1.self_attn.k_proj.weight", &[64, 65]);
    reshaped("model.layers.0.self_attn.o_proj.weight", &[128, 64]);
    reshaped("model.norm.weight", &[1, 64]);
    reshaped("model.embed_tokens.weight", &[0, 64]);
    reshaped("lm_head.weight", &[]);
}

#[test]
fn weight_that_is_no_finite_number_is_named() {
    let names = ["model.norm", "model.embed_tokens", "model.layers.1.self_attn.q_proj"];
    for dtype in ["F32", "F16", "BF16"] {
        for (name, value) in names.iter().zip([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
            let name = format!("{name}.weight");
            let mut checkpoint = Checkpoint::hugging_face(dtype, SMALL);
            checkpoint.poke(&name, 63, value);
            refused(&checkpoint, &[&name, "NaN or an infinity"]);
        }
    }
}

#[test]
fn weight_beyond_four_bits_is_named() {
    let name = "model.layers.1.mlp.up_proj.weight";
    for dtype in ["F32", "BF16"] {
        let mut checkpoint = Checkpoint::hugging_face(dtype, SMALL);
        checkpoint.poke(name, 77, -131072.0);
        let folder = Folder::new();
        checkpoint.write(&folder);
        let error = export(&folder, &options(3)).unwrap_err();
        let text = message(&error);
        assert!(text.contains(name) && text.contains("-131072"), "{text}");
        assert_eq!(error.blame(), Blame::Input);
        export(&folder, &options(2)).unwrap();
    }
}

#[test]
fn stored_type_that_cannot_be_converted_is_named() {
    for (dtype, width) in [("U8", 1), ("F8_E5M2", 1), ("F64", 8), ("I32", 4)] {
        let mut checkpoint = small();
        let name = "model.layers.0.mlp.gate_proj.weight";
        let shape = checkpoint.tensors[name].shape.clone();
        let bytes = vec![0; shape.iter().product::<usize>() * width];
        checkpoint.tensors.insert(name.to_owned(), Stored { dtype, shape, bytes });
        refused(&checkpoint, &[name, dtype]);
    }
    let mut checkpoint = small();
    checkpoint.tensors.get_mut("model.norm.weight").unwrap().dtype = "F99";
    refused(&checkpoint, &["model.safetensors", "F99"]);
}

#[test]
fn tensor_in_two_files_is_named() {
    let folder = Folder::new();
    small().write_shards(&folder, 2, false);
    fs::copy(folder.join("model-00001-of-00002.safetensors"), folder.join("more.safetensors"))
        .unwrap();
    refused_folder(&folder, &["lm_head.weight", "model-00001-of-00002", "more.safetensors"]);
}

#[test]
fn missing_shard_is_named() {
    let folder = Folder::new();
    small().write_shards(&folder, 3, true);
    fs::remove_file(folder.join("model-00002-of-00003.safetensors")).unwrap();
    refused_folder(&folder, &["model-00002-of-00003.safetensors", "index.json"]);
}

#[test]
fn index_names_files_of_its_own_folder_only() {
    let index = "model.safetensors.index.json";
    for shard in [json!("../other.safetensors"), json!("/etc/passwd"), json!(""), json!(7)] {
        let folder = Folder::new();
        small().write_shards(&folder, 2, true);
        let json = json!({ "weight_map": { "model.norm.weight": shard } });
        fs::write(folder.join(index), json.to_string()).unwrap();
        refused_folder(&folder, &[index, "model.norm.weight"]);
    }
    for json in ["{}", "[]", "{", "{\"weight_map\": 3}", "{\"weight_map\": {}}"] {
        let folder = Folder::new();
        small().write_shards(&folder, 2, true);
        fs::write(folder.join(index), json).unwrap();
        refused_folder(&folder, &[]);
    }
}

#[test]
fn folder_without_a_checkpoint_says_what_is_missing() {
    let folder = Folder::new();
    refused_folder(&folder, &["config.json", "params.json"]);
    small().write(&folder);
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    refused_folder(&folder, &["no weights", "*.safetensors", "pytorch_model*.bin"]);
    let error = ExportPlan::open(&folder.join("nowhere"), &options(2)).err().unwrap();
    assert!(message(&error).contains("no such folder"));
    let error = ExportPlan::open(&folder.join("config.json"), &options(2)).err().unwrap();
    assert!(message(&error).contains("name the folder it is in"));
    let gguf = folder.join("model.gguf");
    fs::write(&gguf, "GGUF").unwrap();
    let error = ExportPlan::open(&gguf, &options(2)).err().unwrap();
    assert!(message(&error).contains("--gguf"));
}

#[test]
fn group_that_fits_no_matrix_is_refused() {
    let dims = Dims { ffn_dim: 80, ..SMALL };
    let folder = Folder::new();
    Checkpoint::hugging_face("F16", dims).write(&folder);
    let error = export(&folder, &options(2)).unwrap_err();
    assert!(message(&error).contains("80"), "{error}");
    assert_eq!(error.blame(), Blame::Input);
    export(&folder, &options(1)).unwrap();
    for group in [0, 1, 48, usize::MAX] {
        let four_bits = Weights::Q4 { group, int8_embedding: true };
        let two_levels = Weights::B2 { group, ends: Ends::SixBits };
        for weights in [Weights::Q8 { group }, four_bits, two_levels] {
            let folder = Folder::new();
            small().write(&folder);
            let error = export(&folder, &ExportOptions { weights, ..options(2) }).unwrap_err();
            assert_eq!(error.blame(), Blame::Request, "{weights:?}: {error}");
        }
    }
}

#[test]
fn caller_can_stop_the_work() {
    let folder = Folder::new();
    small().write(&folder);
    let plan = ExportPlan::open(folder.path(), &options(2)).unwrap();
    let total = plan.write(&folder.join("out"), |_| ControlFlow::Continue(())).unwrap();
    let before = fs::read(folder.join("out")).unwrap();
    let names = folder.names();
    // Stops at the first block, halfway, and just before the file gets its name.
    for stop_at in [1, total / 2, total] {
        let progress = |progress: leap::export::ExportProgress| {
            assert_eq!(progress.total_bytes, total);
            match progress.done_bytes >= stop_at {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let error = plan.write(&folder.join("out"), progress).unwrap_err();
        assert!(matches!(error, ExportError::Interrupted));
        assert_eq!(error.blame(), Blame::Runtime);
        assert_eq!(folder.names(), names);
        assert_eq!(fs::read(folder.join("out")).unwrap(), before);
    }
}
