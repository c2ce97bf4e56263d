//! Any bytes as a GGUF file: its tensors, its tokenizer, and the model that its fields describe.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use leap::export::{ExportOptions, ExportPlan, fuzz};
use leap::format::model::Weights;

static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let shm = PathBuf::from("/dev/shm");
    let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
    base.join(format!("leap-fuzz-{}.gguf", std::process::id()))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::gguf(bytes);
    fuzz::gguf_tokenizer(bytes);
    fs::write(&*FILE, bytes).unwrap();
    for weights in [Weights::Q8 { group: 64 }, Weights::Ggml] {
        let _ = ExportPlan::open_gguf(&FILE, &ExportOptions { weights, ctx: None, verify: false });
    }
});
