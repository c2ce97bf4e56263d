//! A small model in blocks of a GGUF file: any types, and any bytes in place of the header's, the types' and the
//! weights', with right checksums. What is accepted runs.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use leap::engine::{Engine, Options};
use leap::format::ChatTemplate;
use leap::format::model::{
    Architecture, Features, Ggml, GgmlTypes, HEADER_LEN, Header, TensorId, Weights,
};
use leap::internals::model::Model;

/// Offsets of the checksums of the header and of the block of types.
const CRC_AT: usize = 192;
const TYPES_CRC_AT: usize = 244;
/// Types at the beginning of the input.
const N_TYPES: usize = 16;

static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let shm = PathBuf::from("/dev/shm");
    let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
    base.join(format!("leap-fuzz-types-{}.bin", std::process::id()))
});

fn header(types: &[u8; N_TYPES]) -> Header {
    let header = Header {
        weights: Weights::Ggml,
        ggml: GgmlTypes::default(),
        dim: 256,
        ffn_dim: 256,
        n_layers: 2,
        n_heads: 8,
        n_kv_heads: 8,
        vocab_size: 8,
        max_seq_len: 64,
        shared_classifier: true,
        head_dim: 32,
        norm_eps: 1e-5,
        rope_theta: 1e4,
        rope_scaling: None,
        sliding_window: None,
        architecture: Architecture::Llama,
        features: Features::default(),
        bos: None,
        stop_ids: Vec::new(),
        chat_template: ChatTemplate::None,
        tokenizer_hash: 0,
        has_extension: true,
        packed: None,
        share: None,
    };
    let of = |TensorId { kind, layer }| {
        let byte = types[(2 * kind as usize + layer) % N_TYPES];
        Ok::<_, ()>(Ggml::ALL[usize::from(byte) % Ggml::ALL.len()])
    };
    Header { ggml: header.ggml_types(of).unwrap_or_default(), ..header }
}

/// CRC-32 as in zip files, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let shift = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), shift))
}

/// The model's file with `changes`: two bytes that say where, and a new byte. A place beyond the types is in the
/// weights, of which each 16th byte can be changed.
fn file(header: &Header, changes: &[u8]) -> Vec<u8> {
    let mut file = header.emit();
    let weights = file.len();
    // Ones as f32, and small scales.
    file.resize(header.tensors_end() as usize, 0x3c);
    file.resize(file.len() + 4 * header.tensors().count(), 0);
    for change in changes.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        let at = if at < weights { at } else { weights + (at - weights) * 16 };
        if let Some(byte) = file.get_mut(at) {
            *byte = change[2];
        }
    }
    for (at, bytes) in [(TYPES_CRC_AT, HEADER_LEN..weights), (CRC_AT, 0..HEADER_LEN)] {
        file[at..at + 4].fill(0);
        let crc = crc32(&file[bytes]);
        file[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    file
}

fn run(file: &[u8]) {
    fs::write(&*FILE, file).unwrap();
    let Ok(model) = Model::open(&FILE) else { return };
    let (ctx, limit) = (model.header().max_seq_len.min(8), model.header().vocab_size as u32);
    let options =
        Options { ctx_len: Some(ctx), batch: Some(4), threads: Some(1), ..Options::default() };
    let Ok(mut engine) = Engine::new(Arc::new(model), &options) else { return };
    let Ok(mut stream) = engine.stream() else { return };
    let ids = [1, 2, 3, 4, 5].map(|id: u32| id % limit);
    let _ = engine.push(&mut stream, &ids);
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((types, changes)) = bytes.split_first_chunk() else { return };
    let file = file(&header(types), changes);
    if Header::parse(&file).is_ok() {
        run(&file);
    }
});
