//! Any damage to a file ends in an error, and leaves nothing behind.

use std::fs;

use serde_json::json;

use crate::common::folder::Folder;
use crate::export::checkpoint::{Checkpoint, TINY, export, options};

/// The folder of a tiny checkpoint, and the bytes of its weights.
fn tiny() -> (Folder, Vec<u8>) {
    let folder = Folder::new();
    Checkpoint::hugging_face("F16", TINY).write(&folder);
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    (folder, bytes)
}

#[test]
fn weights_cut_anywhere_are_refused() {
    let (folder, bytes) = tiny();
    export(&folder, &options(2)).unwrap();
    let step = if crate::common::quick() { 997 } else { 97 };
    for len in (0..20).chain((20..bytes.len()).step_by(step)).chain([bytes.len() - 1]) {
        fs::write(folder.join("model.safetensors"), &bytes[..len]).unwrap();
        assert!(export(&folder, &options(2)).is_err(), "{len} bytes");
    }
    fs::write(folder.join("model.safetensors"), [&bytes[..], &[0]].concat()).unwrap();
    assert!(export(&folder, &options(2)).is_err(), "a byte more");
}

#[test]
fn no_flipped_bit_of_the_table_is_fatal() {
    let (folder, bytes) = tiny();
    let table_end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let wanted = export(&folder, &options(1)).unwrap();
    let step = if crate::common::quick() { 37 } else { 3 };
    let mut n_refused = 0;
    for at in (0..8).chain((8..table_end).step_by(step)) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(folder.join("model.safetensors"), &damaged).unwrap();
        match export(&folder, &options(1)) {
            // Some flips turn a type into another of the same width.
            Ok(file) => assert_eq!(file.len(), wanted.len(), "byte {at}"),
            Err(_) => n_refused += 1,
        }
    }
    assert!(n_refused > 10);
}

#[test]
fn table_that_promises_more_than_the_file_holds_is_refused() {
    let tensor = |shape: &str, offsets: &str| {
        let table = format!(
            r#"{{"model.norm.weight":{{"dtype":"F16","shape":{shape},"data_offsets":{offsets}}}}}"#
        );
        let len = (table.len() as u64).to_le_bytes();
        [&len, table.as_bytes(), &[0; 64]].concat()
    };
    for (shape, offsets) in [
        ("[18446744073709551615]", "[0,64]"),
        ("[4294967296,4294967296,4294967296]", "[0,0]"),
        ("[32]", "[0,18446744073709551615]"),
        ("[32]", "[64,0]"),
        ("[32]", "[-1,63]"),
        ("[33]", "[0,66]"),
        ("[31]", "[0,64]"),
    ] {
        let (folder, _) = tiny();
        fs::write(folder.join("model.safetensors"), tensor(shape, offsets)).unwrap();
        assert!(export(&folder, &options(2)).is_err(), "{shape} {offsets}");
    }
    let (folder, _) = tiny();
    for len in [u64::MAX, u64::MAX - 7, 1 << 40, 100_000_001, 0] {
        fs::write(folder.join("model.safetensors"), len.to_le_bytes()).unwrap();
        assert!(export(&folder, &options(2)).is_err(), "table of {len} bytes");
    }
}

#[test]
fn configuration_cut_anywhere_is_refused() {
    let (folder, _) = tiny();
    let config = fs::read(folder.join("config.json")).unwrap();
    for len in 0..config.len() {
        fs::write(folder.join("config.json"), &config[..len]).unwrap();
        assert!(export(&folder, &options(2)).is_err(), "{len} bytes");
    }
    let nested = "[".repeat(100_000);
    for text in [&nested, "null", "3", "\u{feff}{}", "{\"a\": NaN}"] {
        fs::write(folder.join("config.json"), text).unwrap();
        assert!(export(&folder, &options(2)).is_err(), "{}", &text[..text.len().min(20)]);
    }
}

#[test]
fn absurd_number_of_layers_is_refused_at_once() {
    let mut checkpoint = Checkpoint::hugging_face("F16", TINY);
    checkpoint.set("config.json", "num_hidden_layers", json!(i32::MAX));
    let folder = Folder::new();
    checkpoint.write(&folder);
    let error = export(&folder, &options(2)).unwrap_err();
    assert!(error.to_string().contains("wanted at most 4096"), "{error}");
}

#[test]
fn folder_in_place_of_a_file_is_refused() {
    for name in ["config.json", "model.safetensors", "generation_config.json"] {
        let (folder, _) = tiny();
        let _ = fs::remove_file(folder.join(name));
        fs::create_dir(folder.join(name)).unwrap();
        let error = export(&folder, &options(2)).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}
