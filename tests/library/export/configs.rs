//! Configuration files become the right header.

use std::fs;
use std::path::{Path, PathBuf};

use leap::export::{ExportOptions, ExportPlan, Vocabulary};
use leap::format::ChatTemplate;
use leap::format::model::{Architecture, Features, GgmlTypes, Header, RopeScaling, Weights};
use serde_json::{Value, json};

use crate::common::folder::Folder;
use crate::export::checkpoint::{Checkpoint, Dims, SMALL, options};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn plan(checkpoint: &Checkpoint) -> ExportPlan {
    let folder = Folder::new();
    checkpoint.write(&folder);
    // The files are mapped, so they may be removed.
    ExportPlan::open(folder.path(), &options(2)).unwrap()
}

/// The header of a Hugging Face checkpoint with some fields changed.
fn header(changes: Value) -> Header {
    let mut checkpoint = Checkpoint::hugging_face("F16", SMALL);
    for (field, value) in changes.as_object().unwrap() {
        checkpoint.set("config.json", field, value.clone());
    }
    plan(&checkpoint).header().clone()
}

#[test]
fn llama3_folder_with_shards() {
    let plan = ExportPlan::open(&golden("llama3-tiny"), &options(2)).unwrap();
    let wanted = Header {
        weights: Weights::Q8 { group: 32 },
        ggml: GgmlTypes::default(),
        dim: 128,
        ffn_dim: 352,
        n_layers: 4,
        n_heads: 8,
        n_kv_heads: 2,
        vocab_size: 4096,
        max_seq_len: 2048,
        shared_classifier: true,
        head_dim: 16,
        norm_eps: 1e-5,
        rope_theta: 500_000.0,
        rope_scaling: Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_ctx: 64,
        }),
        sliding_window: None,
        architecture: Architecture::Llama,
        features: Features::default(),
        bos: Some(4064),
        stop_ids: vec![4065, 4072, 4073],
        chat_template: ChatTemplate::None,
        tokenizer_hash: 0,
        has_extension: true,
        packed: None,
        share: None,
    };
    assert_eq!(*plan.header(), wanted);
    assert!(plan.notes()[0].starts_with("group size is 32"), "{:?}", plan.notes());
}

#[test]
fn mistral_folder() {
    let plan = ExportPlan::open(&golden("mistral-tiny"), &options(1)).unwrap();
    let header = plan.header();
    assert_eq!(header.architecture, Architecture::Mistral);
    assert_eq!(header.sliding_window, Some(48));
    assert_eq!((header.rope_theta, header.rope_scaling), (10_000.0, None));
    assert_eq!((header.max_seq_len, header.shared_classifier), (4096, false));
    assert_eq!((header.bos, &header.stop_ids[..]), (Some(1), &[2][..]));
}

#[test]
fn meta_folder() {
    let plan = ExportPlan::open(&golden("llama2-meta-tiny"), &options(2)).unwrap();
    let header = plan.header();
    assert_eq!((header.vocab_size, header.ffn_dim, header.head_dim), (1500, 256, 24));
    assert_eq!((header.n_kv_heads, header.max_seq_len), (4, 4096));
    assert_eq!((header.rope_theta, header.shared_classifier), (10_000.0, false));
    assert_eq!(header.weights, Weights::Q8 { group: 32 });
}

#[test]
fn llama_3_1_of_meta_scales_rope() {
    let mut checkpoint = Checkpoint::meta("BF16", SMALL);
    checkpoint.set("params.json", "rope_theta", json!(500_000.0));
    assert_eq!(plan(&checkpoint).header().max_seq_len, 8192);
    checkpoint.set("params.json", "use_scaled_rope", json!(true));
    let plan = plan(&checkpoint);
    let wanted = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_ctx: 8192,
    };
    assert_eq!(plan.header().rope_scaling, Some(wanted));
    assert_eq!(plan.header().max_seq_len, 131_072);
}

#[test]
fn llama_3_2_of_meta_is_told_by_its_widths() {
    // Width and depth of Llama 3.2 1B; the FFN and the heads do not matter.
    let dims = Dims {
        dim: 2048,
        ffn_dim: 32,
        n_layers: 16,
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 32,
        vocab_size: 8,
    };
    let mut checkpoint = Checkpoint::meta("BF16", dims);
    checkpoint.set("params.json", "use_scaled_rope", json!(true));
    let factor = |plan: &ExportPlan| match plan.header().rope_scaling {
        Some(RopeScaling::Llama3 { factor, .. }) => factor,
        ref other => panic!("{other:?}"),
    };
    let guessed = plan(&checkpoint);
    assert_eq!(factor(&guessed), 32.0);
    assert!(guessed.notes()[0].contains("32 is taken, as for Llama 3.2"));
    checkpoint.set("params.json", "rope_scaling_factor", json!(16));
    let given = plan(&checkpoint);
    assert_eq!(factor(&given), 16.0);
    assert!(!given.notes().iter().any(|note| note.contains("RoPE")));
}

#[test]
fn code_llama_and_mistral_of_their_makers_are_told_by_their_fields() {
    let mut checkpoint = Checkpoint::meta("BF16", SMALL);
    checkpoint.set("params.json", "rope_theta", json!(1_000_000.0));
    let code_llama = plan(&checkpoint).header().clone();
    assert_eq!((code_llama.rope_theta, code_llama.max_seq_len), (1e6, 16_384));
    assert_eq!(code_llama.architecture, Architecture::Llama);

    checkpoint.set("params.json", "hidden_dim", json!(SMALL.ffn_dim));
    let mistral = plan(&checkpoint).header().clone();
    assert_eq!((mistral.architecture, mistral.sliding_window), (Architecture::Mistral, None));
    assert_eq!(mistral.max_seq_len, 32_768);

    checkpoint.set("params.json", "rope_theta", Value::Null);
    checkpoint.set("params.json", "sliding_window", json!(4096));
    let first = plan(&checkpoint).header().clone();
    assert_eq!((first.rope_theta, first.sliding_window), (10_000.0, Some(4096)));
}

#[test]
fn meta_classifier_that_copies_the_embedding_is_shared() {
    let mut checkpoint = Checkpoint::meta("BF16", SMALL);
    let copy = checkpoint.tensors["tok_embeddings.weight"].clone();
    checkpoint.tensors.insert("output.weight".to_owned(), copy);
    let plan = plan(&checkpoint);
    assert!(plan.header().shared_classifier);
    assert_eq!(plan.notes(), ["not needed, left out: output.weight"]);
}

#[test]
fn folder_with_both_configurations_is_read_by_the_weights_it_has() {
    let mut checkpoint = Checkpoint::meta("BF16", SMALL);
    let config = Checkpoint::hugging_face("BF16", SMALL).files["config.json"].clone();
    checkpoint.files.insert("config.json", config);
    assert_eq!(plan(&checkpoint).header().max_seq_len, 4096);
    let folder = Folder::new();
    checkpoint.write(&folder);
    Checkpoint::hugging_face("BF16", SMALL).write(&folder);
    let plan = ExportPlan::open(folder.path(), &options(2)).unwrap();
    assert_eq!(plan.header().max_seq_len, 512);
}

#[test]
fn missing_fields_mean_what_transformers_takes_them_to_mean() {
    let mut dims = SMALL;
    (dims.n_kv_heads, dims.head_dim) = (4, 16);
    let mut checkpoint = Checkpoint::hugging_face("F16", dims);
    for field in [
        "head_dim",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "hidden_act",
        "bos_token_id",
        "eos_token_id",
        "model_type",
    ] {
        checkpoint.set("config.json", field, Value::Null);
    }
    let plan = plan(&checkpoint);
    let header = plan.header();
    assert_eq!((header.head_dim, header.n_kv_heads, header.max_seq_len), (16, 4, 2048));
    assert_eq!((header.norm_eps, header.rope_theta), (1e-6, 10_000.0));
    assert_eq!((header.bos, header.stop_ids.len()), (None, 0));
}

#[test]
fn explicit_null_is_a_missing_field() {
    let folder = Folder::new();
    let checkpoint = Checkpoint::hugging_face("F16", SMALL);
    checkpoint.write(&folder);
    let mut config = checkpoint.files["config.json"].clone();
    for field in ["sliding_window", "rope_scaling", "quantization_config", "bos_token_id"] {
        config[field] = Value::Null;
    }
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let plan = ExportPlan::open(folder.path(), &options(1)).unwrap();
    assert_eq!((plan.header().bos, plan.header().sliding_window), (None, None));
}

#[test]
fn generation_config_has_the_last_word_on_ids() {
    let mut checkpoint = Checkpoint::hugging_face("F16", SMALL);
    checkpoint.set("generation_config.json", "eos_token_id", json!([5, 7, 5, 9]));
    let header = plan(&checkpoint).header().clone();
    assert_eq!((header.bos, header.stop_ids), (Some(1), vec![5, 7, 9]));
    checkpoint.set("generation_config.json", "bos_token_id", json!(3));
    checkpoint.set("generation_config.json", "eos_token_id", Value::Null);
    let header = plan(&checkpoint).header().clone();
    assert_eq!((header.bos, header.stop_ids), (Some(3), vec![2]));
}

#[test]
fn ids_beyond_the_vocabulary_are_left_out_and_told() {
    let mut checkpoint = Checkpoint::hugging_face("F16", SMALL);
    let n = SMALL.vocab_size;
    checkpoint.set("generation_config.json", "eos_token_id", json!([2, n, -1]));
    checkpoint.set("generation_config.json", "bos_token_id", json!(n + 7));
    let plan = plan(&checkpoint);
    assert_eq!((plan.header().bos, &plan.header().stop_ids[..]), (None, &[2][..]));
    let notes = plan.notes().join("; ");
    assert!(notes.contains(&format!("{n} is left out")) && notes.contains("begins"), "{notes}");
}

#[test]
fn more_ends_than_a_model_file_has_room_for_are_left_out_and_told() {
    let mut checkpoint = Checkpoint::hugging_face("F16", SMALL);
    checkpoint.set(
        "generation_config.json",
        "eos_token_id",
        json!([2, 99, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    );
    let plan = plan(&checkpoint);
    assert_eq!(plan.header().stop_ids, [2, 3, 4, 5, 6, 7, 8, 9]);
    let notes = plan.notes().join("; ");
    assert!(notes.contains("99 is left out") && notes.contains("[10, 11] end no text"), "{notes}");
}

#[test]
fn sizes_that_are_written_as_fractions_are_sizes() {
    let header = header(
        json!({ "max_position_embeddings": 8192.0, "intermediate_size": SMALL.ffn_dim as f64 }),
    );
    assert_eq!((header.max_seq_len, header.ffn_dim), (8192, SMALL.ffn_dim));
}

#[test]
fn window_counts_for_mistral_only() {
    assert_eq!(header(json!({ "sliding_window": 100 })).sliding_window, None);
    let mistral = json!({
        "sliding_window": 100, "model_type": "mistral", "architectures": ["MistralForCausalLM"]
    });
    assert_eq!(header(mistral).sliding_window, Some(100));
}

#[test]
fn classifier_is_shared_where_that_changes_nothing() {
    let tied = |tie: Value, has_classifier: bool, is_copy: bool| {
        let mut checkpoint = Checkpoint::hugging_face("F16", SMALL);
        checkpoint.set("config.json", "tie_word_embeddings", tie);
        if is_copy {
            let copy = checkpoint.tensors["model.embed_tokens.weight"].clone();
            checkpoint.tensors.insert("lm_head.weight".to_owned(), copy);
        }
        if !has_classifier {
            checkpoint.tensors.remove("lm_head.weight");
        }
        let plan = plan(&checkpoint);
        (plan.header().shared_classifier, plan.notes().len())
    };
    assert_eq!(tied(json!(true), true, true), (true, 1));
    assert_eq!(tied(json!(true), true, false), (false, 1));
    assert_eq!(tied(json!(true), false, false), (true, 0));
    assert_eq!(tied(json!(false), true, true), (false, 0));
    assert_eq!(tied(Value::Null, true, false), (false, 0));
    assert_eq!(tied(Value::Null, false, false), (true, 0));
}

#[test]
fn buffers_that_can_be_computed_are_left_out() {
    let mut checkpoint = Checkpoint::hugging_face("F16", SMALL);
    let norm = checkpoint.tensors["model.norm.weight"].clone();
    let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    checkpoint.tensors.insert(name.to_owned(), norm);
    assert_eq!(plan(&checkpoint).notes(), [format!("not needed, left out: {name}")]);
}

#[test]
fn context_can_be_chosen() {
    let folder = Folder::new();
    Checkpoint::hugging_face("F16", SMALL).write(&folder);
    let chosen = ExportOptions { ctx: Some(100), ..options(2) };
    assert_eq!(ExportPlan::open(folder.path(), &chosen).unwrap().header().max_seq_len, 100);
    let absurd = ExportOptions { ctx: Some(usize::MAX), ..options(2) };
    assert!(ExportPlan::open(folder.path(), &absurd).is_err());
}

#[test]
fn tokenizer_fills_in_what_the_configuration_leaves_open() {
    let vocabulary = Vocabulary {
        bos: Some(11),
        stop_ids: vec![12, 13],
        chat_template: ChatTemplate::Llama3,
        tokenizer_hash: 14,
        around: [None; 2],
    };
    let mut open = plan(&Checkpoint::meta("F16", SMALL));
    open.set_vocabulary(vocabulary.clone()).unwrap();
    assert_eq!((open.header().bos, &open.header().stop_ids[..]), (Some(11), &[12, 13][..]));
    assert_eq!(open.header().chat_template, ChatTemplate::Llama3);
    let mut said = plan(&Checkpoint::hugging_face("F16", SMALL));
    said.set_vocabulary(vocabulary).unwrap();
    assert_eq!((said.header().bos, &said.header().stop_ids[..]), (Some(1), &[2][..]));
    assert_eq!(said.header().tokenizer_hash, 14);
    let outside = Vocabulary { bos: Some(40), ..Vocabulary::default() };
    // An id without a token in the model is left out.
    let mut open = plan(&Checkpoint::meta("F16", SMALL));
    open.set_vocabulary(outside).unwrap();
    assert_eq!(open.header().bos, None);
}
