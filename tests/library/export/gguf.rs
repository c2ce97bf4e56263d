//! GGUF files: they give the same model as other checkpoints; and files that are refused.

use std::error::Error as _;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use leap::export::{Blame, ExportError, ExportOptions, ExportPlan};
use leap::format::model::{
    Encoding, Ggml, HEADER_LEN, Header, RopeScaling, TensorId, TensorKind, Weights,
};

use crate::common::folder::Folder;
use crate::common::models::package;
use crate::export::checkpoint::{Checkpoint, Dims, HUGGING_FACE, SMALL, Stored, export, options};

/// A field's value.
#[derive(Clone)]
pub(crate) enum Value {
    Number(u32),
    Float(f32),
    Text(&'static str),
    Numbers(Vec<u32>),
    Floats(Vec<f32>),
}

use Value::{Float, Floats, Number, Numbers, Text};

/// A GGUF file under construction.
#[derive(Clone)]
pub(crate) struct Gguf {
    pub(crate) fields: Vec<(&'static str, Value)>,
    pub(crate) tensors: Vec<Tensor>,
}

#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Dimensions, columns first.
    pub(crate) dimensions: Vec<u64>,
    pub(crate) dtype: u32,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) const F32: u32 = 0;
const F16: u32 = 1;
const Q8_0: u32 = 8;
pub(crate) const BF16: u32 = 30;
pub(crate) const MXFP4: u32 = 39;
const ALIGNMENT: usize = 32;

impl Gguf {
    /// The Hugging Face checkpoint with `SMALL` dimensions, in the form of llama.cpp's converter.
    fn from(checkpoint: &Checkpoint) -> Gguf {
        let dims = SMALL;
        let fields = vec![
            ("general.architecture", Text("llama")),
            ("llama.block_count", Number(dims.n_layers as u32)),
            ("llama.context_length", Number(512)),
            ("llama.embedding_length", Number(dims.dim as u32)),
            ("llama.feed_forward_length", Number(dims.ffn_dim as u32)),
            ("llama.attention.head_count", Number(dims.n_heads as u32)),
            ("llama.attention.head_count_kv", Number(dims.n_kv_heads as u32)),
            ("llama.attention.key_length", Number(dims.head_dim as u32)),
            ("llama.attention.layer_norm_rms_epsilon", Float(1e-6)),
            ("llama.rope.freq_base", Float(10_000.0)),
        ];
        let tensors = checkpoint.tensors.iter().map(|(name, stored)| tensor(name, stored, dims));
        Gguf { fields, tensors: tensors.collect() }
    }

    pub(crate) fn set(&mut self, key: &'static str, value: Value) {
        self.fields.retain(|(old, _)| *old != key);
        self.fields.push((key, value));
    }

    pub(crate) fn without(&self, key: &str) -> Gguf {
        let mut changed = self.clone();
        changed.fields.retain(|(old, _)| *old != key);
        changed
    }

    fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.fields.len() as u64).to_le_bytes());
        for (key, value) in &self.fields {
            put_string(&mut file, key);
            match value {
                Number(number) => put(&mut file, 4, &number.to_le_bytes()),
                Float(float) => put(&mut file, 6, &float.to_le_bytes()),
                Text(text) => {
                    put(&mut file, 8, &[]);
                    put_string(&mut file, text);
                }
                Numbers(numbers) => {
                    put(&mut file, 9, &4u32.to_le_bytes());
                    file.extend((numbers.len() as u64).to_le_bytes());
                    file.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
                }
                Floats(floats) => {
                    put(&mut file, 9, &6u32.to_le_bytes());
                    file.extend((floats.len() as u64).to_le_bytes());
                    file.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
                }
            }
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_string(&mut file, &tensor.name);
            file.extend((tensor.dimensions.len() as u32).to_le_bytes());
            file.extend(tensor.dimensions.iter().flat_map(|size| size.to_le_bytes()));
            file.extend(tensor.dtype.to_le_bytes());
            file.extend((offset as u64).to_le_bytes());
            offset += tensor.bytes.len().next_multiple_of(ALIGNMENT);
        }
        for tensor in &self.tensors {
            file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
            file.extend(&tensor.bytes);
        }
        file
    }
}

fn put(file: &mut Vec<u8>, kind: u32, bytes: &[u8]) {
    file.extend(kind.to_le_bytes());
    file.extend(bytes);
}

fn put_string(file: &mut Vec<u8>, text: &str) {
    file.extend((text.len() as u64).to_le_bytes());
    file.extend(text.as_bytes());
}

fn tensor(name: &str, stored: &Stored, dims: Dims) -> Tensor {
    let [embedding, norm, classifier, layers, per_layer @ ..] = HUGGING_FACE;
    let per_layer_names = [
        "attn_norm",
        "ffn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_down",
        "ffn_up",
    ];
    let short = name.strip_suffix(".weight").unwrap();
    let ours = match short.strip_prefix(&format!("{layers}.")) {
        Some(rest) => {
            let (layer, rest) = rest.split_once('.').unwrap();
            let index = per_layer.iter().position(|name| *name == rest).unwrap();
            format!("blk.{layer}.{}", per_layer_names[index])
        }
        None if short == embedding => "token_embd".to_owned(),
        None if short == norm => "output_norm".to_owned(),
        None => {
            assert_eq!(short, classifier);
            "output".to_owned()
        }
    };
    let bytes = match per_layer_names[2..4].iter().any(|name| ours.ends_with(name)) {
        true => interleaved(&stored.bytes, stored.shape[0] / dims.head_dim, dims.head_dim),
        false => stored.bytes.clone(),
    };
    let dtype = match stored.dtype {
        "F32" => F32,
        "F16" => F16,
        _ => BF16,
    };
    let dimensions = stored.shape.iter().rev().map(|&size| size as u64).collect();
    Tensor { name: format!("{ours}.weight"), dimensions, dtype, bytes }
}

/// Interleaves rows `i` and `i + head_dim / 2` of each head.
pub(crate) fn interleaved(bytes: &[u8], heads: usize, head_dim: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / heads / head_dim;
    let row = |row: usize| &bytes[row * row_bytes..][..row_bytes];
    let mut out = Vec::new();
    for head in 0..heads {
        for i in 0..head_dim / 2 {
            out.extend(row(head * head_dim + i));
            out.extend(row(head * head_dim + i + head_dim / 2));
        }
    }
    out
}

/// Exports the file at `path`.
pub(crate) fn export_file(path: &Path, version: i32) -> Result<Vec<u8>, ExportError> {
    export_as(path, &options(version))
}

/// Exports the file at `path`; the output folder may have no other file.
fn export_as(path: &Path, options: &ExportOptions) -> Result<Vec<u8>, ExportError> {
    let out = Folder::new();
    let model = out.join("model.bin");
    let result = ExportPlan::open_gguf(path, options)
        .and_then(|plan| plan.write(&model, |_| ControlFlow::Continue(())));
    assert_eq!(out.names().len(), usize::from(result.is_ok()));
    result.map(|_| fs::read(&model).unwrap())
}

fn export_bytes(bytes: &[u8], version: i32) -> Result<Vec<u8>, ExportError> {
    let folder = Folder::new();
    let path = folder.join("model.gguf");
    fs::write(&path, bytes).unwrap();
    export_file(&path, version)
}

fn small() -> Gguf {
    Gguf::from(&Checkpoint::hugging_face("F16", SMALL))
}

/// Checks that the file is refused because of the input, with these words.
pub(crate) fn refused(gguf: &Gguf, words: &[&str]) {
    refused_with(gguf, &options(2), words);
}

/// Checks that the file is refused with these words when the model is exported with `options`.
pub(crate) fn refused_with(gguf: &Gguf, options: &ExportOptions, words: &[&str]) {
    let folder = Folder::new();
    let path = folder.join("model.gguf");
    fs::write(&path, gguf.bytes()).unwrap();
    let plan = ExportPlan::open_gguf(&path, options);
    let written =
        |plan: ExportPlan| plan.write(&folder.join("model.bin"), |_| ControlFlow::Continue(()));
    let error = plan.and_then(written).unwrap_err();
    let message = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    assert_eq!(error.blame(), Blame::Input, "{message}");
    for word in words.iter().chain(&["model.gguf"]) {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

#[test]
fn model_is_the_one_that_safetensors_files_give() {
    for dtype in ["F32", "F16", "BF16"] {
        let mut checkpoint = Checkpoint::hugging_face(dtype, SMALL);
        checkpoint.put_on_steps();
        let folder = Folder::new();
        checkpoint.write(&folder);
        for version in [1, 2, 3, 4] {
            let wanted = export(&folder, &options(version)).unwrap();
            let found = export_bytes(&Gguf::from(&checkpoint).bytes(), version).unwrap();
            assert!(found[HEADER_LEN..] == wanted[HEADER_LEN..], "{dtype}, version {version}");
            let mut header = Header::parse(&found).unwrap();
            // The ids come from the tokenizer, which this file lacks.
            (header.bos, header.stop_ids) = (Some(1), vec![2]);
            assert_eq!(header, Header::parse(&wanted).unwrap());
        }
    }
}

#[test]
fn missing_classifier_is_the_embedding() {
    let mut gguf = small();
    gguf.tensors.retain(|tensor| tensor.name != "output.weight");
    let found = export_bytes(&gguf.bytes(), 2).unwrap();
    assert!(Header::parse(&found).unwrap().shared_classifier);
}

#[test]
fn window_and_linear_scaling_are_taken_over() {
    let mut gguf = small();
    gguf.set("llama.attention.sliding_window", Number(48));
    gguf.set("llama.rope.scaling.type", Text("linear"));
    gguf.set("llama.rope.scaling.factor", Float(4.0));
    let header = Header::parse(&export_bytes(&gguf.bytes(), 2).unwrap()).unwrap();
    assert_eq!(header.sliding_window, Some(48));
    assert_eq!(header.rope_scaling, Some(leap::format::model::RopeScaling::Linear { factor: 4.0 }));
}

/// The small model with all matrices in Q8_0, with arbitrary codes.
fn in_8_bits() -> Gguf {
    let mut gguf = small();
    let mut state = 1u32;
    for tensor in gguf.tensors.iter_mut().filter(|tensor| tensor.dimensions.len() == 2) {
        let blocks = tensor.dimensions.iter().product::<u64>() / 32;
        tensor.dtype = Q8_0;
        tensor.bytes.clear();
        for block in 0..blocks {
            tensor.bytes.extend(half::f16::from_f32(block as f32 * 1e-4).to_le_bytes());
            for _ in 0..32 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                tensor.bytes.push((state >> 24) as u8);
            }
        }
    }
    gguf
}

#[test]
fn int8_groups_are_copied() {
    let gguf = in_8_bits();
    let folder = Folder::new();
    let path = folder.join("model.gguf");
    fs::write(&path, gguf.bytes()).unwrap();
    let weights = Weights::Q8 { group: 32 };
    let found = export_as(&path, &ExportOptions { weights, ..options(2) }).unwrap();
    let header = Header::parse(&found).unwrap();
    assert_eq!(header.weights, weights);
    let embedding = header.tensors().find(|t| t.id.kind == TensorKind::Embedding).unwrap();
    let stored = &gguf.tensors.iter().find(|t| t.name == "token_embd.weight").unwrap().bytes;
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in stored.chunks(34) {
        codes.extend(&block[2..]);
        let scale = half::f16::from_le_bytes([block[0], block[1]]);
        scales.extend(scale.to_f32().to_le_bytes());
    }
    let wanted = [codes, scales].concat();
    assert!(found[embedding.offset as usize..][..wanted.len()] == wanted);
}

#[test]
fn split_models_are_read_from_their_first_file() {
    let whole = small();
    let wanted = export_bytes(&whole.bytes(), 2).unwrap();
    let folder = Folder::new();
    let path = |n: usize| folder.join(&format!("m-{n:05}-of-00003.gguf"));
    let mut parts = Vec::new();
    for n in 0..3 {
        let mut part = whole.clone();
        let mut index = 0;
        part.tensors.retain(|_| {
            index += 1;
            index % 3 == n
        });
        if n > 0 {
            part.fields.clear();
        }
        part.set("split.no", Number(n as u32));
        part.set("split.count", Number(3));
        part.set("split.tensors.count", Number(whole.tensors.len() as u32));
        fs::write(path(n + 1), part.bytes()).unwrap();
        parts.push(part);
    }
    assert!(export_file(&path(1), 2).unwrap() == wanted);
    let refusal = |path: &Path| export_file(path, 2).unwrap_err().to_string();
    assert!(refusal(&path(2)).contains("name the first"));
    // A tensor is missing, or in two files.
    let lost = parts[1].tensors.pop().unwrap();
    fs::write(path(2), parts[1].bytes()).unwrap();
    let told = refusal(&path(1));
    assert!(told.contains("m-00001-of-00003.gguf") && told.contains("tensors"), "{told}");
    let twice = parts[0].tensors[0].clone();
    parts[1].tensors.extend([lost, twice]);
    fs::write(path(2), parts[1].bytes()).unwrap();
    let told = refusal(&path(1));
    assert!(told.contains("is in") && told.contains("m-00002-of-00003.gguf"), "{told}");
    parts[1].tensors.pop();
    fs::write(path(2), parts[1].bytes()).unwrap();
    fs::copy(path(2), path(3)).unwrap();
    assert!(refusal(&path(1)).contains("split.no is 1, wanted 2"));
    fs::remove_file(path(3)).unwrap();
    assert!(refusal(&path(1)).contains("m-00003-of-00003.gguf"));
    fs::copy(path(1), folder.join("other.gguf")).unwrap();
    assert!(refusal(&folder.join("other.gguf")).contains("-00001-of-00003.gguf"));
}

#[test]
fn what_leap_does_not_compute_is_named() {
    for architecture in ["qwen2moe", "gemma2", "olmoe", "llama4", "olmo2", "clip"] {
        let mut gguf = small();
        gguf.set("general.architecture", Text(architecture));
        refused(&gguf, &["unsupported", architecture]);
    }
    for (key, value) in [
        ("llama.expert_count", Number(8)),
        ("llama.logit_scale", Float(0.5)),
        ("llama.attention.scale", Float(0.5)),
        ("llama.attention.value_length", Number(64)),
        ("llama.rope.dimension_count", Number(16)),
        ("llama.rope.scaling.type", Text("dynamic")),
        ("llama.attn_logit_softcapping", Float(50.0)),
        ("llama.attention.head_count_kv", Numbers(vec![2, 1])),
        ("general.type", Text("adapter")),
    ] {
        let mut gguf = small();
        gguf.set(key, value);
        let word = key.strip_prefix("general.").unwrap_or(key);
        refused(&gguf, &["unsupported", word]);
    }
}

#[test]
fn lists_of_one_value_for_all_layers_are_that_value() {
    let wanted = export_bytes(&small().bytes(), 2).unwrap();
    let mut gguf = small();
    for key in [
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.feed_forward_length",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.rope.freq_base",
    ] {
        let (_, value) = gguf.fields.iter().find(|(name, _)| *name == key).unwrap();
        let all = match value {
            Number(n) => Numbers(vec![*n; 2]),
            Float(x) => Floats(vec![*x; 2]),
            _ => unreachable!("{key} is a number"),
        };
        gguf.set(key, all);
    }
    assert!(export_bytes(&gguf.bytes(), 2).unwrap() == wanted);
}

#[test]
fn biases_that_some_layers_or_matrices_lack_are_zero() {
    let mut gguf = small();
    let dim = gguf.tensor("output_norm.weight").dimensions.clone();
    let zeros = |name: &str, dimensions: Vec<u64>| {
        let bytes = vec![0; 4 * dimensions[0] as usize];
        Tensor { name: name.to_owned(), dimensions, dtype: F32, bytes }
    };
    let mut all = gguf.clone();
    let q = gguf.tensor("blk.0.attn_q.weight").dimensions[1];
    let kv = gguf.tensor("blk.0.attn_k.weight").dimensions[1];
    let ffn = gguf.tensor("blk.0.ffn_up.weight").dimensions[1];
    for layer in 0..2 {
        for (name, n) in [
            ("attn_q", q),
            ("attn_k", kv),
            ("attn_v", kv),
            ("attn_output", dim[0]),
            ("ffn_gate", ffn),
            ("ffn_up", ffn),
            ("ffn_down", dim[0]),
        ] {
            all.tensors.push(zeros(&format!("blk.{layer}.{name}.bias"), vec![n]));
        }
    }
    gguf.tensors.push(zeros("blk.1.attn_output.bias", dim.clone()));
    gguf.tensors.push(zeros("blk.0.attn_v.bias", vec![kv]));
    gguf.tensors.push(zeros("blk.0.ffn_down.bias", dim));
    let wanted = export_bytes(&all.bytes(), 1).unwrap();
    assert!(export_bytes(&gguf.bytes(), 1).unwrap() == wanted);
}

/// The header of a file, and its notes.
fn planned(gguf: &Gguf) -> (Header, String) {
    let folder = Folder::new();
    let path = folder.join("model.gguf");
    fs::write(&path, gguf.bytes()).unwrap();
    let plan = ExportPlan::open_gguf(&path, &options(2)).unwrap();
    (plan.header().clone(), plan.notes().join("; "))
}

#[test]
fn harmless_nonsense_in_a_file_is_a_note() {
    for (value, ctx) in [
        (None, 4096),
        (Some(Number(0)), 4096),
        (Some(Number(i32::MAX as u32)), 1 << 24),
        (Some(Number(1 << 31)), 1 << 24),
        (Some(Float(-1.0)), 4096),
    ] {
        let mut gguf = small().without("llama.context_length");
        gguf.fields.extend(value.map(|value| ("llama.context_length", value)));
        let (header, notes) = planned(&gguf);
        assert_eq!(header.max_seq_len, ctx);
        assert!(notes.contains("context_length") && notes.contains("--ctx"), "{notes}");
    }
    // Scales and factors of 0 stand for none, like in llama.cpp.
    let (wanted, _) = planned(&small());
    for (key, value) in [
        ("llama.logit_scale", Float(0.0)),
        ("llama.expert_weights_scale", Float(0.0)),
        ("llama.rope.scaling.factor", Float(0.0)),
        ("llama.rope.scale_linear", Float(0.0)),
        ("llama.expert_count", Number(0)),
    ] {
        let mut gguf = small();
        gguf.set(key, value);
        assert_eq!(planned(&gguf).0, wanted, "{key}");
    }
    let mut gguf = small();
    let extra = gguf.tensor("output_norm.weight").clone();
    for name in ["v.blk.0.ln1.weight", "mm.input_projection.weight", "blk.0.attn_rot_embd.weight"] {
        gguf.tensors.push(Tensor { name: name.to_owned(), ..extra.clone() });
    }
    let (header, notes) = planned(&gguf);
    assert_eq!(header, wanted);
    assert!(notes.contains("left out: ") && notes.contains("v.blk.0.ln1.weight"), "{notes}");
}

#[test]
fn divisors_of_rope_that_no_formula_gives_are_kept() {
    let mut gguf = small();
    let n = SMALL.head_dim / 2;
    let divisors: Vec<f32> = (0..n).map(|i| 1.0 + i as f32 / 8.0).collect();
    let bytes = divisors.iter().flat_map(|divisor| divisor.to_le_bytes()).collect();
    let (name, dimensions) = ("rope_freqs.weight".to_owned(), vec![n as u64]);
    gguf.tensors.push(Tensor { name, dimensions, dtype: F32, bytes });
    let (header, _) = planned(&gguf);
    assert_eq!(header.rope_scaling, Some(RopeScaling::Divisors));
    assert_eq!(header.features.rope_divisors, divisors);
    gguf.tensor("rope_freqs.weight").bytes[..4].copy_from_slice(&0f32.to_le_bytes());
    refused(&gguf, &["rope_divisor"]);
}

#[test]
fn missing_and_impossible_fields_are_named() {
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        refused(&small().without(key), &[key, "missing"]);
        if key.starts_with("llama") && !key.ends_with("epsilon") {
            for value in [Number(0), Number(u32::MAX), Float(1.0), Text("4")] {
                let mut gguf = small();
                gguf.set(key, value);
                refused(&gguf, &[key]);
            }
        }
    }
    let mut gguf = small();
    gguf.set("llama.block_count", Number(4096));
    refused(&gguf, &["blk.2.", "missing"]);
    for n in [4097, i32::MAX as u32] {
        gguf.set("llama.block_count", Number(n));
        refused(&gguf, &["layers, wanted at most 4096"]);
    }
}

#[test]
fn tensors_that_cannot_be_used_are_named() {
    let name = "blk.1.ffn_up.weight";
    let change = |change: fn(&mut Tensor), words: &[&str]| {
        let mut gguf = small();
        change(gguf.tensor(name));
        refused(&gguf, &[words, &[name]].concat());
    };
    change(|t| t.dtype = 16, &["IQ2_XXS"]);
    change(|t| t.dtype = 99, &["number 99"]);
    // Rows of 64 are not whole blocks of 256.
    change(|t| t.dtype = 12, &["blocks of 256"]);
    change(|t| t.dimensions.reverse(), &["shape"]);
    change(|t| t.dimensions[1] = 1 << 40, &["beyond the file"]);
    change(|t| t.dimensions = vec![1 << 32, 1 << 32], &["beyond the file"]);
    change(|t| t.dimensions.push(1), &["shape"]);
    let mut gguf = small();
    gguf.tensor(name).name = "blk.1.attn_q.bias".to_owned();
    refused(&gguf, &["tensor"]);
    let mut gguf = small();
    let extra = gguf.tensor("output_norm.weight").clone();
    gguf.tensors.push(Tensor { name: "blk.0.attn_x.weight".to_owned(), ..extra });
    refused(&gguf, &["blk.0.attn_x.weight", "no place"]);
    let mut gguf = small();
    let again = gguf.tensor(name).clone();
    gguf.tensors.push(again);
    refused(&gguf, &[name]);
    let mut gguf = small();
    let bytes = &mut gguf.tensor("output.weight").bytes;
    bytes[..2].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
    refused(&gguf, &["output.weight", "infinity"]);
}

#[test]
fn damaged_files_are_refused_or_read_but_never_fatal() {
    let bytes = small().bytes();
    let step = if crate::common::quick() { 997 } else { 97 };
    for len in (0..64).chain((64..bytes.len()).step_by(step)) {
        assert!(export_bytes(&bytes[..len], 2).is_err(), "{len} bytes");
    }
    let table_end = 4096.min(bytes.len());
    let step = if crate::common::quick() { 97 } else { 23 };
    let mut n_refused = 0;
    for at in (0..24).chain((24..table_end).step_by(step)) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        n_refused += usize::from(export_bytes(&damaged, 2).is_err());
    }
    assert!(n_refused > 10);
}

#[test]
fn tensors_may_not_overlap_or_stand_askew() {
    let bytes = small().bytes();
    let name = b"blk.0.attn_output.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    // After the name: number of dimensions, two dimensions, type, offset.
    let at = at + name.len() + 4 + 16 + 4;
    for (offset, word) in [(0u64, "overlaps"), (1, "no multiple of 32"), (u64::MAX - 31, "beyond")]
    {
        let mut moved = bytes.clone();
        moved[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        let error = export_bytes(&moved, 2).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn command_takes_one_checkpoint() {
    let folder = Folder::new();
    let out = folder.join("model.bin");
    let run = |args: &[&str]| {
        let output = crate::common::leap().arg("export").arg(&out).args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let path = package("tests/golden/gguf/model.gguf");
    let path = path.to_str().unwrap();
    let (code, text) = run(&["--gguf", path, "--verify"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("no tokenizer") && text.contains("verified"), "{text}");
    assert_eq!(run(&[]).0, Some(2));
    assert_eq!(run(&["--gguf", path, "--meta-llama", "x"]).0, Some(2));
    assert_eq!(run(&["--gguf", "no-such-file"]).0, Some(3));
    // An output that is also the input would be read while it is written.
    let input = folder.join("copy.gguf");
    fs::copy(path, &input).unwrap();
    let output = crate::common::leap().arg("export").arg(&input).arg("--gguf").arg(&input).output();
    assert_eq!(output.unwrap().status.code(), Some(2));
}

/// A model 256 values wide, whose every matrix is in blocks of arbitrary bytes, of each of `types` in turn.
pub(crate) fn in_blocks(types: &[Ggml]) -> Gguf {
    let mut gguf = small();
    let mut state = 1_u64;
    let mut next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    for (key, width) in [("llama.embedding_length", 256), ("llama.feed_forward_length", 512)] {
        gguf.set(key, Number(width));
    }
    let matrices = gguf.tensors.iter_mut();
    for (tensor, kind) in matrices.zip(types.iter().cycle()) {
        let is_key_or_value = tensor.name.contains("attn_k") || tensor.name.contains("attn_v");
        for (axis, size) in tensor.dimensions.iter_mut().enumerate() {
            *size = match *size {
                64 if axis == 0 || !is_key_or_value => 256,
                128 if tensor.name.contains("ffn") => 512,
                size => size,
            };
        }
        let values: u64 = tensor.dimensions.iter().product();
        if tensor.dimensions.len() == 1 {
            tensor.dtype = F32;
            tensor.bytes = 1.0_f32.to_le_bytes().repeat(values as usize);
            continue;
        }
        let cols = tensor.dimensions[0] as usize;
        let kind = if cols.is_multiple_of(kind.len()) { *kind } else { Ggml::Q8_0 };
        tensor.dtype = kind.id().into();
        tensor.bytes =
            (0..kind.row_bytes(cols) * (values as usize / cols)).map(|_| next()).collect();
        for block in tensor.bytes.chunks_exact_mut(kind.bytes()) {
            // Halves that are ordinary numbers.
            match kind {
                Ggml::Mxfp4 => block[0] = 110 + block[0] % 16,
                Ggml::Q2K => (block[81], block[83]) = (0x10, 0x10),
                Ggml::Q6K => block[209] = 0x10,
                Ggml::Q3K => block[109] = 0x10,
                Ggml::Q4_1 | Ggml::Q5_1 | Ggml::Q4K | Ggml::Q5K => {
                    (block[1], block[3]) = (0x10, 0x10);
                }
                _ => block[1] = 0x10,
            }
        }
    }
    gguf
}

/// The values of every matrix in a model file.
fn values(model: &[u8]) -> Vec<(TensorId, Vec<f32>)> {
    let header = Header::parse(model).unwrap();
    let matrices = header.tensors().filter(|tensor| !tensor.id.kind.is_vector());
    let values = matrices.map(|tensor| {
        let bytes = &model[tensor.offset as usize..][..header.content_bytes(tensor.id) as usize];
        let mut values = vec![0.0; tensor.rows * tensor.cols];
        match header.encoding(tensor.id) {
            Encoding::Ggml(kind) => kind.widen(bytes, &mut values),
            _ => values.copy_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(bytes)),
        }
        (tensor.id, values)
    });
    values.collect()
}

#[test]
fn a_model_keeps_the_weights_of_a_gguf_file_exactly() {
    let gguf = in_blocks(&Ggml::ALL);
    let [plain, blocks] = [1, 5].map(|version| export_bytes(&gguf.bytes(), version).unwrap());
    let header = Header::parse(&blocks).unwrap();
    assert_eq!(header.verify(&blocks), Ok(true));
    assert!(header.ggml.in_use().len() >= 10, "{:?}", header.ggml);
    assert!(values(&blocks) == values(&plain));
    // Beside norms, checksums and the header the file is as long as the blocks are.
    let stored: usize = gguf.tensors.iter().map(|tensor| tensor.bytes.len()).sum();
    assert!(blocks.len() < stored + 4096, "{} {stored}", blocks.len());
}

#[test]
fn weights_that_cannot_be_kept_are_named() {
    let refusal = |gguf: &Gguf| {
        refused_with(gguf, &options(5), &["blocks"]);
    };
    refusal(&small());
    let mut gguf = in_blocks(&[Ggml::Q4_0]);
    gguf.tensor("blk.0.attn_q.weight").bytes[1] = 0x7c;
    refused_with(&gguf, &options(5), &["blk.0.attn_q.weight", "NaN"]);
}

#[test]
fn floats_among_blocks_are_counted() {
    let mut gguf = in_blocks(&[Ggml::Q4_0]);
    let other = gguf.tensor("blk.1.ffn_up.weight");
    (other.dtype, other.bytes) = (F16, vec![0; 2 * 256 * 512]);
    let folder = Folder::new();
    let path = folder.write("model.gguf", gguf.bytes());
    let plan = ExportPlan::open_gguf(&path, &options(5)).unwrap();
    assert_eq!(plan.notes(), ["version 5 makes Q8_0 of 1 matrix of floats"]);
}

#[test]
fn blocks_are_kept_and_floats_alone_become_int8() {
    let planned = |gguf: &Gguf| {
        let folder = Folder::new();
        let path = folder.write("model.gguf", gguf.bytes());
        let mut plan = ExportPlan::open_gguf(&path, &options(2)).unwrap();
        plan.keep_blocks_if_any().unwrap();
        (plan.header().weights.version(), plan.notes().join("; "))
    };
    assert_eq!(planned(&in_blocks(&[Ggml::Q4_0])), (5, String::new()));
    // Floats alone become int8 without a word, as those of folders do.
    assert_eq!(planned(&small()), (2, String::new()));
}
