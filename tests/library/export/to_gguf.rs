//! GGUF files that LEAP writes: they give the model and the tokenizer of the checkpoint.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use leap::export::tokenizer::import;
use leap::export::{Blame, ExportError, ExportOptions, ExportPlan};
use leap::format::model::{Ggml, Header, Mixer, RecurrentLayers, Weights};
use leap::format::tokenizer::TokenizerFile;
use leap::internals::quant::dequantize;

use crate::common::folder::Folder;
use crate::common::models::package;
use crate::export::checkpoint::options;
use crate::tokenizer::{cases, encode, encode_with_special, ids_of, reread, text_of};

/// Checkpoints of each family that is written. Not all have a tokenizer.
const WRITTEN: [&str; 22] = [
    "llama3-tiny",
    "llama-bias-tiny",
    "llama2-meta-tiny",
    "mistral-tiny",
    "qwen2-tiny",
    "qwen3-tiny",
    "qwen3moe-tiny",
    "smollm3-tiny",
    "granite-tiny",
    "gemma3-tiny",
    "phi3-tiny",
    "granite4-tiny",
    "ministral3-tiny",
    "gptoss-tiny",
    "gptoss-mxfp4-tiny",
    "lfm2-tiny",
    "lfm2moe-tiny",
    "granite4h-tiny",
    "qwen35-tiny",
    "qwen35moe-tiny",
    "gemma4-tiny",
    "gemma4moe-tiny",
];

/// Models of embeddings. Tests of their vectors compare the tokenizers.
const EMBEDDERS: [&str; 4] =
    ["bert-embed-tiny", "nomic-embed-tiny", "qwen3-embed-tiny", "gemma3-embed-tiny"];

/// Checkpoints whose GGUF files LEAP does not write, and words of the refusal.
const REFUSED: [(&str, &str); 1] = [("qwen3moe-dense-tiny", "only some layers have experts")];

fn golden(name: &str) -> PathBuf {
    package("tests/golden").join(name)
}

fn as_version(version: i32) -> ExportOptions {
    let weights = match version {
        2 => Weights::Q8 { group: 32 },
        _ => options(version).weights,
    };
    ExportOptions { weights, ctx: None, verify: true }
}

/// The tokenizer of the checkpoint, if it has one.
fn tokenizer(checkpoint: &Path, plan: &ExportPlan) -> Option<TokenizerFile> {
    leap::export::tokenizer::is_in(checkpoint)
        .then(|| import(checkpoint, Some(plan.header().vocab_size)).unwrap().file)
}

/// Writes a GGUF file of the checkpoint in `folder`.
fn write(checkpoint: &Path, version: i32, folder: &Folder) -> Result<PathBuf, ExportError> {
    let plan = match checkpoint.is_dir() {
        true => ExportPlan::open(checkpoint, &as_version(version))?,
        false => ExportPlan::open_gguf(checkpoint, &as_version(version))?,
    };
    let out = folder.join(&format!("{version}.gguf"));
    let tokenizer = tokenizer(checkpoint, &plan);
    let bytes = plan.write_gguf(&out, tokenizer.as_ref(), |_| ControlFlow::Continue(()))?;
    assert_eq!(fs::metadata(&out).unwrap().len(), bytes);
    Ok(out)
}

/// The model file of a checkpoint: its header, and the bytes of its tensors.
fn model_file(plan: Result<ExportPlan, ExportError>) -> (Header, Vec<u8>) {
    let folder = Folder::new();
    let out = folder.join("model.bin");
    plan.and_then(|plan| plan.write(&out, |_| ControlFlow::Continue(()))).unwrap();
    let bytes = fs::read(&out).unwrap();
    let header = Header::parse(&bytes).unwrap();
    let start = header.tensors().next().unwrap().offset as usize;
    let end = header.tensors_end() as usize;
    // The ids and the tokenizer stand in GGUF files in other fields; they have tests of their own.
    let (bos, stop_ids, tokenizer_hash) = (None, Vec::new(), 0);
    (Header { bos, stop_ids, tokenizer_hash, ..header }, bytes[start..end].to_vec())
}

/// A header as a GGUF file has it: without prompts, with all learned positions, and with value heads in its order.
fn as_written(mut header: Header) -> Header {
    if let Some(embedding) = &mut header.features.embedding {
        embedding.prompts.clear();
        let n_positions = embedding.encoder.map_or(0, |encoder| encoder.n_positions);
        header.max_seq_len = header.max_seq_len.max(n_positions);
    }
    if let Some(RecurrentLayers { mixer: Mixer::DeltaRule(rule), .. }) =
        &mut header.features.recurrent
    {
        rule.is_tiled = true;
    }
    header
}

#[test]
fn model_of_the_file_is_that_of_the_checkpoint() {
    for name in WRITTEN.into_iter().chain(EMBEDDERS) {
        let folder = Folder::new();
        let gguf = write(&golden(name), 1, &folder).unwrap();
        let (mut found, values) = model_file(ExportPlan::open_gguf(&gguf, &as_version(1)));
        let (wanted, wanted_values) = model_file(ExportPlan::open(&golden(name), &as_version(1)));
        // Value heads of this model change places. The next test compares them with the converter's.
        assert!(values == wanted_values || name == "qwen35moe-tiny", "{name}: other weights");
        // GGUF files have Mistral's window alone, which not all Mistrals have.
        found.architecture = wanted.architecture;
        assert_eq!(found, as_written(wanted), "{name}");
        assert_eq!(folder.names(), ["1.gguf"]);
    }
}

#[test]
fn model_of_the_file_is_that_of_llama_cpps_converter() {
    let of_converter = |name: &str| golden(name).join(format!("{name}-bf16.gguf"));
    let all = WRITTEN.into_iter().chain(EMBEDDERS);
    for name in all.filter(|name| of_converter(name).exists()) {
        let folder = Folder::new();
        let gguf = write(&golden(name), 1, &folder).unwrap();
        let [(found, own), (wanted, others)] = [gguf, of_converter(name)]
            .map(|file| model_file(ExportPlan::open_gguf(&file, &as_version(1))));
        let max_seq_len = found.max_seq_len;
        assert_eq!(found, Header { max_seq_len, ..wanted }, "{name}");
        // The converter's exponential is that of f32.
        let is_near = |(a, b): (f32, f32)| (a - b).abs() <= 2e-7 * b.abs();
        assert_eq!(own.len(), others.len());
        let mut pairs = floats(&own).into_iter().zip(floats(&others));
        assert!(pairs.all(is_near), "{name}: other weights");
    }
}

/// The values of all tensors of a GGUF file, as LEAP reads them.
fn values(gguf: &Path) -> Vec<f32> {
    let (_, bytes) = model_file(ExportPlan::open_gguf(gguf, &as_version(1)));
    floats(&bytes)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn quantised_weights_are_near_those_of_the_checkpoint() {
    for name in WRITTEN.into_iter().chain(EMBEDDERS) {
        let folder = Folder::new();
        let [exact, eight, four] =
            [1, 2, 3].map(|version| values(&write(&golden(name), version, &folder).unwrap()));
        for (rounded, limit) in [(&eight, 0.01), (&four, 0.1)] {
            let square = |x: f32| f64::from(x) * f64::from(x);
            let off: f64 = exact.iter().zip(rounded).map(|(a, b)| square(a - b)).sum();
            let all: f64 = exact.iter().map(|a| square(*a)).sum();
            assert!(off > 0.0 && off.sqrt() < limit * all.sqrt(), "{name}: {off} of {all}");
        }
    }
}

#[test]
fn int8_of_the_file_is_kept_by_model_files() {
    for name in ["llama3-tiny", "gemma3-tiny", "qwen3moe-tiny", "qwen35moe-tiny", "gemma4moe-tiny"]
    {
        let folder = Folder::new();
        let gguf = write(&golden(name), 2, &folder).unwrap();
        let exact = values(&gguf);
        let mut at = 0;
        let (header, bytes) = model_file(ExportPlan::open_gguf(&gguf, &as_version(2)));
        assert_eq!(header.weights, Weights::Q8 { group: 32 });
        let start = header.tensors().next().unwrap().offset as usize;
        for tensor in header.tensors() {
            let own = &bytes[tensor.offset as usize - start..][..tensor.bytes as usize];
            let len = tensor.rows * tensor.cols;
            let mut found = floats(own);
            if found.len() != len {
                let (codes, scales) = own.split_at(len);
                found.resize(len, 0.0);
                dequantize(bytemuck::cast_slice(codes), &floats(scales), 32, &mut found);
            }
            assert!(found == exact[at..at + len], "{name}: {}", tensor.id);
            at += len;
        }
    }
}

#[test]
fn blocks_of_a_file_are_copied() {
    let folder = Folder::new();
    for version in [2, 3, 4] {
        let first = write(&golden("llama3-tiny"), version, &folder).unwrap();
        let again = write(&first, 5, &folder).unwrap();
        assert!(values(&first) == values(&again), "version {version}");
        let plan = ExportPlan::open_gguf(&again, &as_version(5)).unwrap();
        let types = plan.header().ggml.in_use();
        let wanted = match version {
            2 => vec![Ggml::Q8_0],
            // No matrix of this model has columns for Q4_K.
            _ => vec![Ggml::Q4_1, Ggml::Q8_0],
        };
        assert_eq!(types, wanted);
    }
    for name in ["granite4h-tiny", "qwen35moe-tiny", "gemma4moe-tiny"] {
        let first = write(&golden(name), 3, &folder).unwrap();
        let again = write(&first, 5, &folder).unwrap();
        assert!(values(&first) == values(&again), "{name}");
    }
}

#[test]
fn ids_are_those_of_the_checkpoint() {
    for name in WRITTEN {
        let folder = Folder::new();
        let gguf = write(&golden(name), 2, &folder).unwrap();
        let plan = ExportPlan::open(&golden(name), &as_version(2)).unwrap();
        let Some(wanted) = tokenizer(&golden(name), &plan) else { continue };
        let found = import(&gguf, None).unwrap().file;
        assert_eq!(found.bos, wanted.bos, "{name}");
        assert_eq!(found.chat_texts.own.map(|own| own.text), {
            wanted.chat_texts.own.clone().map(|own| own.text)
        });
        assert!(found.stop_ids.starts_with(&wanted.stop_ids[..wanted.stop_ids.len().min(3)]));
        let [found, wanted] = [&import(&gguf, None).unwrap().file, &wanted].map(reread);
        for case in cases(name) {
            let text = text_of(&case, "text");
            if case["spm"].is_array() && case["spm"] != case["plain"] {
                // Such files merge as SentencePiece does, and not as the checkpoint's tokenizer.json.
                assert_eq!(encode(&found, text), ids_of(&case, "spm"), "{name}: {text:?}");
                continue;
            }
            assert_eq!(encode(&found, text), encode(&wanted, text), "{name}: {text:?}");
            let both = [&found, &wanted].map(|tokenizer| encode_with_special(tokenizer, text));
            assert_eq!(both[0], both[1], "{name}: {text:?}");
            let ids = encode(&wanted, text);
            let texts = [&found, &wanted].map(|tokenizer| tokenizer.decode(&ids, false));
            assert_eq!(texts[0], texts[1], "{name}");
        }
    }
}

#[test]
fn other_families_are_refused_by_name() {
    for (name, words) in REFUSED {
        let folder = Folder::new();
        let error = write(&golden(name), 2, &folder).unwrap_err();
        assert_eq!(error.blame(), Blame::Input);
        let message = error.to_string();
        assert!(message.contains(words), "no {words:?} in {message}");
        assert_eq!(folder.names(), [""; 0]);
    }
}
