//! `config.json`, or `params.json` if the first byte is odd, beside weights that are always the same. The other bytes
//! are the file.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use leap::export::{ExportOptions, ExportPlan};
use leap::format::model::Weights;

/// One tensor of each family whose shape is read; all others are missing.
const TABLE: &str = r#"{"tok_embeddings.weight":{"dtype":"BF16","shape":[8,4],"data_offsets":[0,64]},
"layers.0.feed_forward.w1.weight":{"dtype":"BF16","shape":[8,4],"data_offsets":[64,128]}}"#;

static FOLDERS: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
    ["config.json", "params.json"].map(|name| {
        let shm = PathBuf::from("/dev/shm");
        let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
        let folder = base.join(format!("leap-fuzz-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let len = (TABLE.len() as u64).to_le_bytes();
        let weights = [&len, TABLE.as_bytes(), &[0; 128]].concat();
        fs::write(folder.join("consolidated.safetensors"), weights).unwrap();
        folder.join(name)
    })
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((kind, json)) = bytes.split_first() else { return };
    let path = &FOLDERS[usize::from(kind % 2)];
    fs::write(path, json).unwrap();
    let options = ExportOptions { weights: Weights::Q8 { group: 64 }, ctx: None, verify: false };
    let _ = ExportPlan::open(path.parent().unwrap(), &options);
});
