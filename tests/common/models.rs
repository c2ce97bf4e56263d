//! Models for tests: exported from the checkpoints in `tests/golden`, and the demo model.
#![allow(dead_code, reason = "every test crate compiles this module; none uses all of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use leap::internals::kernels::{Isa, Kernels};
use leap::internals::model::Model;

/// Path of a file of the package.
pub(crate) fn package(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The instruction sets this machine runs.
pub(crate) fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.iter().copied().filter(|&isa| Kernels::for_isa(isa).is_some())
}

/// The int8 model that is built into the program.
pub(crate) fn demo() -> Arc<Model> {
    Arc::new(Model::open(&package("models/demo.bin")).unwrap())
}

/// Bits of logits: a comparison of floats would treat -0 and 0 as equal.
pub(crate) fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[cfg(feature = "pickle")]
#[allow(unused_imports, reason = "as above")]
pub(crate) use reference::*;

#[cfg(feature = "pickle")]
mod reference {
    use std::fs;
    use std::ops::ControlFlow;

    use leap::export::{ExportOptions, ExportPlan};
    use leap::format::model::Weights;
    use serde_json::Value;

    use super::*;
    use crate::common::folder::Folder;

    /// The checkpoints with reference outputs.
    pub(crate) const CHECKPOINTS: [&str; 3] = ["llama3-tiny", "llama2-meta-tiny", "mistral-tiny"];

    /// Checkpoints of other families than Llama's.
    pub(crate) const FAMILIES: [&str; 20] = [
        "qwen2-tiny",
        "qwen3-tiny",
        "smollm3-tiny",
        "granite-tiny",
        "gemma3-tiny",
        "phi3-tiny",
        "qwen3moe-tiny",
        "gptoss-tiny",
        "gptoss-mxfp4-tiny",
        "llama-bias-tiny",
        "qwen3moe-dense-tiny",
        "granite4-tiny",
        "ministral3-tiny",
        "lfm2-tiny",
        "lfm2moe-tiny",
        "qwen35-tiny",
        "qwen35moe-tiny",
        "granite4h-tiny",
        "gemma4-tiny",
        "gemma4moe-tiny",
    ];

    /// Files of llama.cpp's converter, beside the checkpoints that they were made of.
    pub(crate) const GGUF_FILES: [&str; 9] = [
        "granite4-tiny/granite4-tiny-bf16.gguf",
        "ministral3-tiny/ministral3-tiny-bf16.gguf",
        "lfm2-tiny/lfm2-tiny-bf16.gguf",
        "lfm2moe-tiny/lfm2moe-tiny-bf16.gguf",
        "qwen35-tiny/qwen35-tiny-bf16.gguf",
        "qwen35moe-tiny/qwen35moe-tiny-bf16.gguf",
        "granite4h-tiny/granite4h-tiny-bf16.gguf",
        "gemma4-tiny/gemma4-tiny-bf16.gguf",
        "gemma4moe-tiny/gemma4moe-tiny-bf16.gguf",
    ];

    /// The folder of a checkpoint of `tests/golden`: a folder there, or a file in one.
    pub(crate) fn folder_of(checkpoint: &str) -> PathBuf {
        let path = package("tests/golden").join(checkpoint);
        if path.is_dir() { path } else { path.parent().unwrap().to_owned() }
    }

    /// Exports a checkpoint of `tests/golden`: the folder, or a GGUF file. The mapping outlives the file.
    pub(crate) fn export(checkpoint: &str, weights: Weights) -> Arc<Model> {
        let folder = Folder::new();
        Arc::new(Model::open(&export_to(&folder, checkpoint, weights)).unwrap())
    }

    /// Exports the checkpoint in any folder.
    pub(crate) fn export_folder(source: &Path, weights: Weights) -> Arc<Model> {
        let folder = Folder::new();
        Arc::new(Model::open(&export_source(&folder, source, weights)).unwrap())
    }

    /// Exports a checkpoint of `tests/golden` to a file in `folder`.
    pub(crate) fn export_to(folder: &Folder, checkpoint: &str, weights: Weights) -> PathBuf {
        export_source(folder, &package("tests/golden").join(checkpoint), weights)
    }

    fn export_source(folder: &Folder, source: &Path, weights: Weights) -> PathBuf {
        let path = folder.join("model.bin");
        let options = ExportOptions { weights, ctx: None, verify: true };
        let gguf = if source.is_dir() { source.join("model.gguf") } else { source.to_owned() };
        let plan = match gguf.exists() {
            true => ExportPlan::open_gguf(&gguf, &options),
            false => ExportPlan::open(source, &options),
        };
        let plan = plan.unwrap();
        plan.write(&path, |_| ControlFlow::Continue(())).unwrap();
        path
    }

    /// A prompt and the reference implementation's results.
    pub(crate) struct Case {
        pub(crate) prompt: Vec<u32>,
        /// Logits after the last id of the prompt.
        pub(crate) last_logits: Vec<f32>,
        /// Most likely id after each id of the prompt.
        pub(crate) argmax: Vec<u32>,
        /// Mean negative log-likelihood of the prompt's ids but the first.
        pub(crate) nll: Option<f64>,
        /// Continuation by greedy decoding.
        pub(crate) greedy: Vec<u32>,
    }

    /// The reference outputs of a checkpoint.
    pub(crate) fn cases(checkpoint: &str) -> Vec<Case> {
        let path = folder_of(checkpoint).join("golden.json");
        let golden: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        golden["cases"].as_array().unwrap().iter().map(case).collect()
    }

    fn case(case: &Value) -> Case {
        let logits = case["last_logits"].as_array().unwrap();
        Case {
            prompt: ids(&case["prompt_ids"]),
            last_logits: logits.iter().map(|x| x.as_f64().unwrap() as f32).collect(),
            argmax: ids(&case["argmax_per_position"]),
            nll: case["nll"].as_f64(),
            greedy: ids(&case["greedy_ids"]),
        }
    }

    /// The ids in a list.
    pub(crate) fn ids(value: &Value) -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    }
}
