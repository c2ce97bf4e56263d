//! Every field that is read from a family's configuration, with each value that it cannot have. A value of the wrong
//! type is named in an error, and absurd numbers get an error, too.

use std::error::Error as _;
use std::fs;
use std::path::Path;

use leap::export::{Blame, ExportError, ExportPlan};
use serde_json::{Value, json};

use crate::common::folder::Folder;
use crate::common::models::package;
use crate::export::checkpoint::options;
use crate::export::families::config;
use crate::export::gguf::Value as Field;
use crate::export::gguf::Value::{Float, Floats, Number, Numbers, Text};
use crate::export::gguf_families::gguf;

/// Kind of a field of a config.json.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Size,
    Number,
    Flag,
    Text,
    List,
    Object,
}

use Kind::{Flag, List, Object, Size};

/// Fields that every family has.
const COMMON: &[(&str, Kind)] = &[
    ("hidden_size", Size),
    ("intermediate_size", Size),
    ("num_hidden_layers", Size),
    ("num_attention_heads", Size),
    ("num_key_value_heads", Size),
    ("head_dim", Size),
    ("vocab_size", Size),
    // Absurd contexts have a fallback.
    ("max_position_embeddings", Kind::Number),
    ("rms_norm_eps", Kind::Number),
    ("rope_theta", Kind::Number),
    ("tie_word_embeddings", Flag),
    ("attention_bias", Flag),
    ("mlp_bias", Flag),
    ("hidden_act", Kind::Text),
    ("model_type", Kind::Text),
    ("architectures", List),
    ("rope_parameters", Object),
    ("quantization_config", Object),
];

/// Fields that a family reads beside the common ones; `/` precedes a field of an object.
const OWN: &[(&str, &[(&str, Kind)])] = &[
    ("qwen2", &[("use_sliding_window", Flag)]),
    ("qwen3", &[("use_sliding_window", Flag), ("rope_parameters/rope_type", Kind::Text)]),
    (
        "qwen3moe",
        &[
            // A mixture without experts is a model without mixtures.
            ("num_experts", Kind::Number),
            ("num_experts_per_tok", Size),
            ("moe_intermediate_size", Size),
            ("norm_topk_prob", Flag),
            ("decoder_sparse_step", Size),
            ("mlp_only_layers", List),
            ("rope_parameters/rope_theta", Kind::Number),
        ],
    ),
    ("smollm3", &[("no_rope_layers", List), ("no_rope_layer_interval", Size)]),
    (
        "granite",
        &[
            ("embedding_multiplier", Kind::Number),
            ("attention_multiplier", Kind::Number),
            ("residual_multiplier", Kind::Number),
            ("logits_scaling", Kind::Number),
        ],
    ),
    (
        "gemma3",
        &[
            ("hidden_activation", Kind::Text),
            ("attn_logit_softcapping", Kind::Number),
            ("final_logit_softcapping", Kind::Number),
            ("use_bidirectional_attention", Flag),
            ("layer_types", List),
            ("sliding_window", Size),
            ("_sliding_window_pattern", Size),
            ("sliding_window_pattern", Size),
            ("query_pre_attn_scalar", Kind::Number),
            ("rope_local_base_freq", Kind::Number),
            ("rope_parameters/full_attention", Object),
            ("rope_parameters/sliding_attention", Object),
            ("rope_parameters/sliding_attention/rope_theta", Kind::Number),
        ],
    ),
    (
        "phi3",
        &[
            ("sliding_window", Size),
            ("partial_rotary_factor", Kind::Number),
            ("rope_parameters/partial_rotary_factor", Kind::Number),
        ],
    ),
    (
        "gptoss",
        &[
            ("sliding_window", Size),
            ("layer_types", List),
            ("swiglu_limit", Kind::Number),
            ("num_local_experts", Size),
            ("num_experts_per_tok", Size),
            ("rope_scaling/rope_type", Kind::Text),
            ("rope_scaling/factor", Kind::Number),
            ("rope_scaling/beta_fast", Kind::Number),
            ("rope_scaling/beta_slow", Kind::Number),
            ("rope_scaling/truncate", Flag),
            ("rope_scaling/attention_factor", Kind::Number),
            ("rope_scaling/original_max_position_embeddings", Size),
        ],
    ),
];

impl Kind {
    /// Values that a field of this kind can never have.
    fn impossible(self) -> Vec<Value> {
        let all = [
            (json!("64"), Kind::Text),
            (json!(true), Flag),
            (json!([[]]), List),
            (json!({ "a": [] }), Object),
            (json!(7), Kind::Number),
        ];
        let is_other = |kind: &Kind| *kind != self && (self, *kind) != (Size, Kind::Number);
        let mut values: Vec<Value> =
            all.into_iter().filter(|(_, kind)| is_other(kind)).map(|(value, _)| value).collect();
        if self == Size {
            values.extend([json!(0), json!(-1), json!(1.5), json!(1u64 << 31), json!(1e300)]);
        }
        values
    }

    /// Values of this kind that make no sense.
    fn absurd(self) -> Vec<Value> {
        match self {
            Size => vec![json!(1 << 30), json!(i32::MAX)],
            Kind::Number => vec![json!(-1), json!(0), json!(1e300), json!(-1e300), json!(1e-320)],
            Kind::Text => vec![json!(""), json!("x".repeat(100_000))],
            List => vec![json!([]), json!(["x"]), json!(vec!["\u{0}"; 9_999])],
            Flag | Object => Vec::new(),
        }
    }
}

fn message(error: &ExportError) -> String {
    assert_eq!(error.blame(), Blame::Input, "{error}");
    let source = error.source().map(ToString::to_string);
    format!("{error}: {}", source.unwrap_or_default())
}

/// Result of a configuration: a model whose header is valid, or an error.
fn judged(plan: Result<ExportPlan, ExportError>) -> Result<(), String> {
    plan.map(|plan| plan.header().check().unwrap()).map_err(|e| message(&e))
}

/// True if a sampled test takes the case with this number.
fn is_taken(number: &mut usize) -> bool {
    *number += 1;
    !crate::common::quick() || number.is_multiple_of(17)
}

#[test]
fn no_value_of_a_config_json_is_too_strange() {
    let mut number = 0;
    for (family, own) in OWN {
        let folder = Folder::new();
        let golden = package("tests/golden").join(format!("{family}-tiny"));
        for entry in fs::read_dir(golden).unwrap().map(Result::unwrap) {
            if entry.path().extension().is_some_and(|extension| extension == "safetensors") {
                fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
            }
        }
        let opened = |config: &Value| {
            folder.write("config.json", config.to_string());
            judged(ExportPlan::open(folder.path(), &options(1)))
        };
        opened(&config(family)).unwrap();
        for (field, kind) in COMMON.iter().chain(*own) {
            let changed = |value: Value| {
                let mut config = config(family);
                let at = field.split('/').fold(&mut config, |at, name| &mut at[name]);
                *at = value;
                opened(&config)
            };
            let name = field.rsplit('/').next().unwrap();
            for value in kind.impossible() {
                if is_taken(&mut number) {
                    let error = changed(value.clone()).err();
                    let error = error.unwrap_or_else(|| panic!("{family}: {field} {value}"));
                    assert!(error.contains(name), "{family}: {field} {value}: {error}");
                    assert!(error.contains("config.json") && error.len() < 1000, "{error}");
                }
            }
            for value in kind.absurd() {
                if is_taken(&mut number) {
                    let error = changed(value).err().unwrap_or_default();
                    assert!(error.len() < 1000, "{family}: {field}: {error}");
                }
            }
        }
    }
}

#[test]
fn no_value_of_a_gguf_file_is_too_strange() {
    let texts = ["general.architecture", "rope.scaling.type"];
    let values = || {
        let numbers = [0, 1, 1 << 31, u32::MAX].map(Number);
        let floats = [f32::NAN, f32::INFINITY, -1.0, 1e-42, 0.5, 3e38].map(Float);
        let lists = [vec![], vec![1; 4], vec![u32::MAX; 300]].map(Numbers);
        numbers.into_iter().chain(floats).chain(lists).chain([Text("x")])
    };
    let mut number = 0;
    for (family, architecture, more) in [
        ("qwen3moe", "qwen3moe", &["expert_gating_func", "expert_weights_norm"][..]),
        ("smollm3", "smollm3", &["rope.scaling.attn_factor", "rope.scale_linear"]),
        ("granite", "granite", &["rope.scaling.type", "attention.value_length"]),
        ("gemma3", "gemma3", &["attention.sliding_window_pattern", "rope.freq_base_swa"]),
        ("phi3", "phi3", &["attention.causal", "attention.clamp_kqv"]),
        ("gptoss", "gpt-oss", &["rope.scaling.yarn_attn_factor", "attention.scale"]),
    ] {
        let good = gguf(family, architecture);
        let keys: Vec<&'static str> = good.fields.iter().map(|(key, _)| *key).collect();
        let more = more.iter().map(|name| &*format!("{architecture}.{name}").leak());
        for key in keys.into_iter().chain(more) {
            for value in values().filter(|_| is_taken(&mut number)) {
                let is_text = texts.iter().any(|text| key.ends_with(text));
                let is_wrong = matches!(value, Text(_)) != is_text;
                let mut changed = good.clone();
                changed.set(key, value.clone());
                let error = of_file(&changed.bytes()).err();
                let told = || format!("{key} {}: {error:?}", shown(&value));
                assert!(error.as_ref().is_none_or(|error| error.len() < 1000), "{}", told());
                // A text is no number, and a number is no text.
                if is_wrong {
                    assert!(error.as_ref().is_some_and(|error| error.contains(key)), "{}", told());
                }
            }
        }
    }
}

fn of_file(bytes: &[u8]) -> Result<(), String> {
    let folder = Folder::new();
    let path = folder.join("model.gguf");
    fs::write(&path, bytes).unwrap();
    judged(ExportPlan::open_gguf(Path::new(&path), &options(1)))
}

fn shown(value: &Field) -> String {
    match value {
        Number(number) => number.to_string(),
        Float(float) => float.to_string(),
        Text(text) => format!("{text:?}"),
        Numbers(numbers) => format!("{} numbers", numbers.len()),
        Floats(floats) => format!("{} floats", floats.len()),
    }
}
