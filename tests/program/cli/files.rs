//! Files that cannot be used.

use std::fs;

use serde_json::json;

use super::{DEMO, command, pipe, run};
use crate::common::folder::Folder;
use crate::common::models::package;
use crate::common::ran::Ran;

#[test]
fn bad_files_are_one_line_and_code_3() {
    let folder = Folder::new();
    run(&["run", "no/model.bin", "-p", "a"]).fails(3, "no/model.bin");
    run(&["run", ".", "-p", "a"]).fails(3, "without a model");
    run(&["run", "Cargo.toml", "-p", "a"]).fails(3, "Cargo.toml");
    run(&["run", DEMO, "--prompt-file", "no.txt"]).fails(3, "no.txt");
    run(&["run", DEMO, "-p", "a", "-t", "no.bin"]).fails(3, "no.bin");
    pipe(&["run", DEMO], b"\xff\xfe").fails(3, "UTF-8");
    let alone = folder.join("m.bin");
    fs::copy(package(DEMO), &alone).unwrap();
    let alone = alone.to_str().unwrap();
    run(&["run", alone, "-p", "a"]).fails(3, "no tokenizer beside the model");
    // A tokenizer of another model does not fit, by name or by fingerprint.
    let bytes = fs::read(package("models/demo.tokenizer.bin")).unwrap();
    let without_trailer = &bytes[..bytes.len() - 1];
    let other = folder.write("tokenizer.bin", without_trailer);
    run(&["run", alone, "-p", "a"]).fails(3, "no fitting tokenizer");
    let with = |tokenizer: &str| run(&["run", alone, "-p", "a", "-t", tokenizer]);
    with(other.to_str().unwrap()).fails(3, "cannot use tokenizer");
    let llama = folder.join("llama.bin");
    let llama = llama.to_str().unwrap();
    run(&["tokenizer", "tests/golden/llama2-meta-tiny", "-o", llama]).succeeds();
    with(llama).fails(3, "as the model has");
    with(DEMO).fails(3, "a model file");
    run(&["tokenizer", DEMO]).fails(3, "a model file");
}

#[test]
fn text_of_files_does_not_reach_the_terminal_as_it_is() {
    let folder = Folder::new();
    let dir = folder.path().to_str().unwrap();
    let nasty = format!("\u{1b}[2J\u{9b}31m\r\n\u{202e}{}", "x".repeat(100_000));
    let refused = |args: &[&str]| {
        let ran = run(args);
        ran.fails(3, folder.path().file_name().unwrap().to_str().unwrap());
        let line = ran.err.trim_end_matches('\n');
        assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
        assert!(line.contains("[2J") && line.chars().count() < 500, "{line:?}");
    };
    for config in [
        json!({ "model_type": nasty }),
        json!({ "architectures": [nasty], "model_type": "llama" }),
        json!({ "model_type": "llama", "hidden_size": { "a": nasty } }),
        json!({ "model_type": "llama", "hidden_act": nasty }),
    ] {
        folder.write("config.json", config.to_string());
        folder.write("model.safetensors.index.json", "{}");
        refused(&["export", "/dev/null", "--meta-llama", dir]);
    }
    let config = fs::read(package("tests/golden/mistral-tiny/config.json")).unwrap();
    folder.write("config.json", config);
    for map in [json!({ (&nasty): 3 }), json!({ "a": { "b": nasty } }), json!({ "a": nasty })] {
        let index = json!({ "weight_map": map });
        folder.write("model.safetensors.index.json", index.to_string());
        refused(&["export", "/dev/null", "--meta-llama", dir]);
    }
    for tokenizer in [
        json!({ "model": { "type": nasty } }),
        json!({ "model": { "byte_fallback": true, "vocab": { (&nasty): -1 }, "merges": [] },
            "normalizer": { "type": "Sequence", "normalizers": [{ "type": "Replace",
            "pattern": { "String": " " }, "content": "\u{2581}" }] } }),
    ] {
        let path = folder.write("tokenizer.json", tokenizer.to_string());
        refused(&["tokenizer", path.to_str().unwrap()]);
    }
}

/// Two bytes of JSON take dozens of bytes in memory: a file of many small values is refused unparsed.
#[test]
fn json_of_too_many_values_is_refused() {
    let folder = Folder::new();
    let zeros = |n: usize| format!("{{\"a\": [0{}]}}", ",0".repeat(n));
    folder.write("config.json", zeros(1 << 16));
    folder.write("model.safetensors.index.json", "{}");
    let dir = folder.path().to_str().unwrap();
    run(&["export", "/dev/null", "--meta-llama", dir]).fails(3, "more than 65536 values");
    let many = folder.write("tokenizer.json", zeros(1 << 22));
    let many = many.to_str().unwrap();
    run(&["tokenizer", many]).fails(3, "more than 4194304 values");
    run(&["eval", DEMO, "--cases", many]).fails(3, "more than 4194304 values");
    run(&["eval", DEMO, "--ids", many]).fails(3, "more than 4194304 values");
}

#[test]
fn a_tokenizer_without_an_end_is_not_read() {
    let folder = Folder::new();
    let out = folder.join("out.bin");
    let out = out.to_str().unwrap();
    run(&["tokenizer", "/dev/zero", "-o", out]).fails(3, "not a regular file");
    run(&["run", DEMO, "-t", "/dev/zero", "-p", "a"]).fails(3, "not a regular file");
}

/// A wrong name after --cache costs no file.
#[test]
fn packed_weights_replace_no_other_file() {
    let folder = Folder::new();
    let notes = folder.write("notes.txt", "a note");
    let model = folder.join("model.bin");
    fs::copy(package(DEMO), &model).unwrap();
    for path in [&notes, &model] {
        let before = fs::read(path).unwrap();
        let args = ["pack", model.to_str().unwrap(), "--cache", path.to_str().unwrap()];
        // The scalar kernels pack nothing.
        let packed = Ran::new(command(&args).env_remove("LEAP_ISA").output().unwrap());
        assert!(packed.code != Some(0) && packed.err.contains("is not replaced"), "{packed:?}");
        assert_eq!(fs::read(path).unwrap(), before);
    }
}

#[test]
fn unreadable_model_is_code_3() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let path = folder.write("m.bin", "x");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Root can read everything, and finds a short file instead.
    let what = if fs::read(&path).is_ok() { "truncated" } else { "denied" };
    run(&["run", path.to_str().unwrap(), "-p", "a"]).fails(3, what);
}
