//! Small checkpoints, made here and written as folders.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;

use leap::export::{ExportError, ExportOptions, ExportPlan};
use leap::format::model::{Ends, Weights};
use serde_json::{Value, json};

use crate::common::folder::Folder;

/// A tensor as its file stores it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// A checkpoint: JSON files and tensors by name.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    pub(crate) files: BTreeMap<&'static str, Value>,
    pub(crate) tensors: BTreeMap<String, Stored>,
}

/// Dimensions of the checkpoints made here.
#[derive(Clone, Copy)]
pub(crate) struct Dims {
    pub(crate) dim: usize,
    pub(crate) ffn_dim: usize,
    pub(crate) n_layers: usize,
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) vocab_size: usize,
}

/// Heads whose width is not dim / n_heads, and fewer heads for keys.
pub(crate) const SMALL: Dims = Dims {
    dim: 64,
    ffn_dim: 128,
    n_layers: 2,
    n_heads: 4,
    n_kv_heads: 2,
    head_dim: 32,
    vocab_size: 40,
};

/// The smallest sizes that a model can have.
pub(crate) const TINY: Dims = Dims {
    dim: 32,
    ffn_dim: 32,
    n_layers: 1,
    n_heads: 1,
    n_kv_heads: 1,
    head_dim: 32,
    vocab_size: 8,
};

/// Reproducible values, of which about one in eight is an outlier.
struct Random(u64);

impl Random {
    fn value(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let unit = (self.0 >> 40) as f32 / (1 << 24) as f32 - 0.5;
        if self.0.is_multiple_of(8) { unit * 3.0 } else { unit * 0.1 }
    }
}

/// The bytes of `value` in a stored type.
pub(crate) fn store(dtype: &str, value: f32) -> Vec<u8> {
    match dtype {
        "F32" => value.to_le_bytes().to_vec(),
        "F16" => half::f16::from_f32(value).to_le_bytes().to_vec(),
        "BF16" => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        other => panic!("no test stores {other}"),
    }
}

impl Checkpoint {
    /// A Hugging Face checkpoint with a classifier of its own.
    pub(crate) fn hugging_face(dtype: &'static str, dims: Dims) -> Checkpoint {
        let config = json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": dims.dim,
            "intermediate_size": dims.ffn_dim,
            "num_hidden_layers": dims.n_layers,
            "num_attention_heads": dims.n_heads,
            "num_key_value_heads": dims.n_kv_heads,
            "head_dim": dims.head_dim,
            "vocab_size": dims.vocab_size,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": false,
            "bos_token_id": 1,
            "eos_token_id": 2,
        });
        let names = HUGGING_FACE;
        let files = BTreeMap::from([("config.json", config)]);
        Checkpoint { files, tensors: tensors(dtype, dims, names) }
    }

    /// A Meta checkpoint with a classifier of its own.
    pub(crate) fn meta(dtype: &'static str, dims: Dims) -> Checkpoint {
        let params = json!({
            "dim": dims.dim,
            "n_layers": dims.n_layers,
            "n_heads": dims.n_heads,
            "n_kv_heads": dims.n_kv_heads,
            "head_dim": dims.head_dim,
            "vocab_size": -1,
            "norm_eps": 1e-6,
        });
        let files = BTreeMap::from([("params.json", params)]);
        Checkpoint { files, tensors: tensors(dtype, dims, META) }
    }

    /// Sets a field of one of the JSON files, or removes it if `value` is null.
    pub(crate) fn set(&mut self, file: &'static str, field: &str, value: Value) {
        let json = self.files.entry(file).or_insert_with(|| json!({}));
        let object = json.as_object_mut().unwrap();
        match value {
            Value::Null => object.remove(field),
            value => object.insert(field.to_owned(), value),
        };
    }

    /// Replaces one value of a tensor.
    pub(crate) fn poke(&mut self, name: &str, index: usize, value: f32) {
        let tensor = self.tensors.get_mut(name).unwrap();
        let bytes = store(tensor.dtype, value);
        let start = index * bytes.len();
        tensor.bytes[start..start + bytes.len()].copy_from_slice(&bytes);
    }

    /// Puts each 32 values of every matrix on sixteen even steps, with the first and the last step used: only one 4-bit
    /// encoding is exact then. Every stored type holds these values exactly.
    pub(crate) fn put_on_steps(&mut self) {
        self.put_on_steps_of(3, 65);
    }

    /// Puts values on sixteen equal steps that include 0: only one encoding in 4.5 bits is exact then.
    pub(crate) fn put_on_even_steps(&mut self) {
        self.put_on_steps_of(1, 16);
    }

    fn put_on_steps_of(&mut self, steps: u64, firsts: u64) {
        let mut random = Random(0x1234_5678_9abc_def1);
        for tensor in self.tensors.values_mut().filter(|tensor| tensor.shape.len() == 2) {
            let len: usize = tensor.shape.iter().product();
            let mut bytes = Vec::new();
            for _ in 0..len / 32 {
                let mut below = |n: u64| ((random.value().to_bits() as u64 * 0x9e37) >> 8) % n;
                let (step, first) = (below(steps) + 1, below(firsts));
                let mut codes: Vec<u64> = (0..32).map(|_| below(16)).collect();
                let ends = below(31) as usize;
                (codes[ends], codes[ends + 1]) = (15, 0);
                for code in codes {
                    let value = (code * step) as f32 - first as f32;
                    bytes.extend(store(tensor.dtype, value / 32.0));
                }
            }
            tensor.bytes = bytes;
        }
    }

    /// Writes the checkpoint to `folder`, tensors in one file.
    pub(crate) fn write(&self, folder: &Folder) {
        self.write_json(folder);
        let name = match self.files.contains_key("params.json") {
            true => "consolidated.00.safetensors",
            false => "model.safetensors",
        };
        fs::write(folder.join(name), safetensors(self.tensors.iter())).unwrap();
    }

    /// Writes the checkpoint to `folder`, with its tensors dealt out to `n` files.
    pub(crate) fn write_shards(&self, folder: &Folder, n: usize, with_index: bool) {
        self.write_json(folder);
        let shard = |i: usize| format!("model-{:05}-of-{n:05}.safetensors", i % n + 1);
        for i in 0..n {
            let own = self.tensors.iter().skip(i).step_by(n);
            fs::write(folder.join(&shard(i)), safetensors(own)).unwrap();
        }
        if with_index {
            let names = self.tensors.keys().enumerate();
            let map: BTreeMap<_, _> = names.map(|(i, name)| (name, shard(i))).collect();
            let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
            let path = folder.join("model.safetensors.index.json");
            fs::write(path, index.to_string()).unwrap();
        }
    }

    fn write_json(&self, folder: &Folder) {
        for (name, json) in &self.files {
            fs::write(folder.join(name), json.to_string()).unwrap();
        }
    }
}

/// The bytes of a safetensors file.
pub(crate) fn safetensors<'a>(tensors: impl Iterator<Item = (&'a String, &'a Stored)>) -> Vec<u8> {
    let mut table = serde_json::Map::new();
    let mut values = Vec::new();
    for (name, tensor) in tensors {
        let start = values.len();
        values.extend_from_slice(&tensor.bytes);
        let offsets = [start, values.len()];
        table.insert(
            name.clone(),
            json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets }),
        );
    }
    let table = Value::Object(table).to_string();
    [&(table.len() as u64).to_le_bytes(), table.as_bytes(), &values].concat()
}

/// Tensor names of a family, in this order: embedding, norm, classifier, prefix of layers, then each layer's
/// attention_norm, ffn_norm, wq, wk, wv, wo, w1, w2, w3.
pub(crate) type Names = [&'static str; 13];

pub(crate) const HUGGING_FACE: Names = [
    "model.embed_tokens",
    "model.norm",
    "lm_head",
    "model.layers",
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.down_proj",
    "mlp.up_proj",
];

pub(crate) const META: Names = [
    "tok_embeddings",
    "norm",
    "output",
    "layers",
    "attention_norm",
    "ffn_norm",
    "attention.wq",
    "attention.wk",
    "attention.wv",
    "attention.wo",
    "feed_forward.w1",
    "feed_forward.w2",
    "feed_forward.w3",
];

fn tensors(dtype: &'static str, dims: Dims, names: Names) -> BTreeMap<String, Stored> {
    let Dims { dim, ffn_dim, n_heads, n_kv_heads, head_dim, vocab_size, .. } = dims;
    let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, shape: &[usize]| {
        let len = shape.iter().product();
        let bytes = (0..len).flat_map(|_| store(dtype, random.value())).collect();
        tensors.insert(format!("{name}.weight"), Stored { dtype, shape: shape.to_vec(), bytes });
    };
    let [embedding, norm, classifier, layers, per_layer @ ..] = names;
    add(embedding.to_owned(), &[vocab_size, dim]);
    add(norm.to_owned(), &[dim]);
    add(classifier.to_owned(), &[vocab_size, dim]);
    let shapes: [&[usize]; 9] = [
        &[dim],
        &[dim],
        &[q_dim, dim],
        &[kv_dim, dim],
        &[kv_dim, dim],
        &[dim, q_dim],
        &[ffn_dim, dim],
        &[dim, ffn_dim],
        &[ffn_dim, dim],
    ];
    for layer in 0..dims.n_layers {
        for (name, shape) in per_layer.iter().zip(shapes) {
            add(format!("{layers}.{layer}.{name}"), shape);
        }
    }
    tensors
}

/// Options for version 1, or for another version with groups of 64.
pub(crate) fn options(version: i32) -> ExportOptions {
    let weights = match version {
        1 => Weights::F32,
        2 => Weights::Q8 { group: 64 },
        3 => Weights::Q4 { group: 64, int8_embedding: true },
        5 => Weights::Ggml,
        _ => Weights::B2 { group: 64, ends: Ends::Int8 },
    };
    ExportOptions { weights, ctx: None, verify: true }
}

/// Exports `folder` and returns the file's bytes. After an error, no file may be left.
pub(crate) fn export(folder: &Folder, options: &ExportOptions) -> Result<Vec<u8>, ExportError> {
    let out = Folder::new();
    let path = out.join("model.bin");
    let result = ExportPlan::open(folder.path(), options)
        .and_then(|plan| plan.write(&path, |_| ControlFlow::Continue(())));
    match result {
        Ok(len) => {
            assert_eq!(out.names(), ["model.bin"]);
            let bytes = fs::read(&path).unwrap();
            assert_eq!(bytes.len() as u64, len);
            Ok(bytes)
        }
        Err(e) => {
            assert_eq!(out.names(), [""; 0], "{e}");
            Err(e)
        }
    }
}
