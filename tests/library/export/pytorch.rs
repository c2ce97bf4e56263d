//! PyTorch checkpoints: files that PyTorch wrote, and malformed ones.

use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};

use leap::export::Blame;

use crate::common::folder::Folder;
use crate::export::checkpoint::{Checkpoint, TINY, export, options};
use crate::export::torch_file::{TorchFile, ZipFile, zip};

const BIN: &str = "pytorch_model.bin";
const WQ: &str = "model.layers.0.self_attn.q_proj.weight";

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pytorch").join(name)
}

/// A copy of a golden folder that PyTorch wrote.
fn fixture(name: &str) -> Folder {
    let folder = Folder::new();
    for entry in fs::read_dir(golden(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap().to_str().unwrap())).unwrap();
    }
    folder
}

/// The folder's configuration with safetensors weights.
fn with_safetensors(name: &str, weights: &str) -> Folder {
    let folder = Folder::new();
    let (config, to) = match name.starts_with("meta") {
        true => ("params.json", "consolidated.safetensors"),
        false => ("config.json", "model.safetensors"),
    };
    fs::copy(golden(name).join(config), folder.join(config)).unwrap();
    fs::copy(golden(weights), folder.join(to)).unwrap();
    folder
}

fn assert_same_model(found: &Folder, wanted: &Folder) {
    for version in [1, 2, 3, 4] {
        let [found, wanted] = [found, wanted].map(|it| export(it, &options(version)).unwrap());
        assert!(found == wanted, "version {version}");
    }
}

fn refused(folder: &Folder, words: &[&str]) {
    let error = export(folder, &options(2)).unwrap_err();
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    let message = format!("{error}{source}");
    assert_eq!(error.blame(), Blame::Input, "{message}");
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

/// A valid checkpoint as a PyTorch file.
fn tiny() -> (Folder, TorchFile) {
    let folder = Folder::new();
    let checkpoint = Checkpoint::hugging_face("F16", TINY);
    checkpoint.write(&folder);
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    let file = TorchFile::new(checkpoint.tensors.iter());
    fs::write(folder.join(BIN), file.bytes()).unwrap();
    (folder, file)
}

fn refused_bytes(bytes: impl AsRef<[u8]>, words: &[&str]) {
    let (folder, _) = tiny();
    fs::write(folder.join(BIN), bytes).unwrap();
    refused(&folder, words);
}

/// Changes the valid file, which must then be refused.
fn refused_file(change: impl FnOnce(&mut TorchFile), words: &[&str]) {
    let (_, mut file) = tiny();
    change(&mut file);
    refused_bytes(file.bytes(), words);
}

/// Changes the valid archive, which must then be refused.
fn refused_archive(change: impl FnOnce(&mut Vec<ZipFile>), words: &[&str]) {
    let (_, file) = tiny();
    let mut files = file.files();
    change(&mut files);
    refused_bytes(zip(&files), words);
}

// Tests of files that PyTorch writes.

#[test]
fn shards_with_and_without_an_index() {
    let wanted = with_safetensors("sharded", "plain.safetensors");
    let folder = fixture("sharded");
    assert_same_model(&folder, &wanted);
    fs::remove_file(folder.join("pytorch_model.bin.index.json")).unwrap();
    assert_same_model(&folder, &wanted);
}

#[test]
fn slices_columns_and_transposes_of_shared_storages() {
    assert_same_model(&fixture("views"), &with_safetensors("views", "plain.safetensors"));
}

#[test]
fn bfloat16_float32_int8_and_bool() {
    assert_same_model(&fixture("types"), &with_safetensors("types", "types.safetensors"));
}

#[test]
fn model_parallel_files_with_either_split_of_the_embedding() {
    for name in ["meta2", "meta3"] {
        assert_same_model(&fixture(name), &with_safetensors(name, "meta.safetensors"));
    }
}

#[test]
fn surplus_model_parallel_file_is_refused() {
    let folder = fixture("meta3");
    fs::copy(folder.join("consolidated.01.pth"), folder.join("consolidated.02.pth")).unwrap();
    refused(&folder, &["has shape [48, 32], wanted [32, 32]"]);
}

#[test]
fn format_before_zip_archives_is_refused_with_what_to_do() {
    refused(&fixture("legacy"), &[BIN, "before 1.6", "torch.save(torch.load"]);
}

#[test]
fn safetensors_go_before_pytorch_files() {
    let folder = fixture("views");
    fs::copy(golden("types.safetensors"), folder.join("model.safetensors")).unwrap();
    assert_same_model(&folder, &with_safetensors("views", "types.safetensors"));
}

// Tests of folders.

#[test]
fn missing_file_of_a_series_is_named() {
    let folder = fixture("sharded");
    fs::remove_file(folder.join("pytorch_model-00002-of-00002.bin")).unwrap();
    refused(&folder, &["pytorch_model-00002-of-00002.bin is not", "index.json"]);
    fs::remove_file(folder.join("pytorch_model.bin.index.json")).unwrap();
    refused(&folder, &["pytorch_model-00002-of-00002.bin is not"]);

    let folder = fixture("meta3");
    fs::remove_file(folder.join("params.json")).unwrap();
    fs::copy(golden("types/config.json"), folder.join("config.json")).unwrap();
    refused(&folder, &["params.json is missing"]);

    let folder = fixture("meta3");
    fs::remove_file(folder.join("consolidated.00.pth")).unwrap();
    refused(&folder, &["consolidated.00.pth is not"]);
    let folder = fixture("meta3");
    fs::remove_file(folder.join("consolidated.01.pth")).unwrap();
    refused(&folder, &["has shape"]);
}

#[test]
fn model_parallel_files_that_do_not_match_are_refused() {
    let checkpoint = Checkpoint::meta("F16", TINY);
    let folder = Folder::new();
    checkpoint.write(&folder);
    fs::remove_file(folder.join("consolidated.00.safetensors")).unwrap();
    let whole = TorchFile::new(checkpoint.tensors.iter());
    let pair = |second: &TorchFile, words: &[&str]| {
        fs::write(folder.join("consolidated.00.pth"), whole.bytes()).unwrap();
        fs::write(folder.join("consolidated.01.pth"), second.bytes()).unwrap();
        refused(&folder, words);
    };
    let mut second = whole.clone();
    second.entries.retain(|entry| entry.name != "norm.weight");
    pair(&second, &["norm.weight", "is in 1 of 2 files"]);

    let mut second = whole.clone();
    let norm = second.entries.iter().position(|entry| entry.name == "norm.weight").unwrap();
    second.storages[norm].1[5] ^= 1;
    pair(&second, &["norm.weight", "differs from the copy", "consolidated.01.pth"]);

    let mut second = whole.clone();
    second.entry("layers.0.attention.wq.weight").shape[0] = 16;
    pair(&second, &["wq.weight", "[32, 32]", "[16, 32]", "consolidated.01.pth"]);

    let mut second = whole.clone();
    second.entry("layers.0.attention.wq.weight").class = "BFloat16Storage";
    pair(&second, &["wq.weight", "F16", "Bf16"]);
    // Two whole models do not make one.
    pair(&whole, &["[64, 32]"]);
}

#[test]
fn files_that_only_look_like_weights_are_refused() {
    refused_bytes("", &[BIN, "empty"]);
    refused_bytes("<!DOCTYPE html>", &[BIN, "web page"]);
    refused_bytes("PK\x03\x04", &[BIN, "zip archive"]);
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    refused_bytes(pointer, &[BIN, "git lfs pull"]);
    refused_bytes(zip(&[]), &["does not begin"]);
    refused_bytes(zip(&[ZipFile::new("word/document.xml", "x")]), &["data.pkl is missing"]);
}

// Tests of pickles.

/// An archive whose table is `pickle`.
fn with_pickle(pickle: &[u8]) -> Vec<u8> {
    zip(&[ZipFile::new("model/data.pkl", pickle), ZipFile::new("model/version", "3\n")])
}

#[test]
fn pickle_that_calls_a_function_is_refused_and_nothing_runs() {
    let (folder, _) = tiny();
    let proof = folder.join("proof");
    let shell = format!("touch {}", proof.display());
    let python = format!("open({:?}, 'w')", proof.display().to_string());
    for (name, argument) in [
        ("os\nsystem", &shell),
        ("posix\nsystem", &shell),
        ("subprocess\ngetoutput", &shell),
        ("builtins\neval", &python),
        ("builtins\nexec", &python),
        ("torch.hub\nload", &python),
    ] {
        let len = (argument.len() as u32).to_le_bytes();
        let call = [b"X", &len[..], argument.as_bytes(), b"\x85R"].concat();
        let pickle = format!("\u{2}}}X\u{1}\0\0\0wc{name}\n").into_bytes();
        let pickle = [b"\x80", &pickle[..], &call, b"s."].concat();
        fs::write(folder.join(BIN), with_pickle(&pickle)).unwrap();
        let output = crate::common::leap()
            .args(["export", "--meta-llama"])
            .arg(folder.path())
            .arg(folder.join("out"))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{text}");
        let name = name.replace('\n', ".");
        assert!(text.contains(&name) && text.contains("not called"), "{text}");
        assert!(!proof.exists() && !folder.join("out").exists());
    }
}

#[test]
fn table_that_is_none_is_refused() {
    refused_bytes(with_pickle(b""), &["data.pkl", "cut off"]);
    refused_bytes(with_pickle(b"\x80\x02]."), &["data.pkl", "wanted tensors by name"]);
    refused_bytes(with_pickle(&[b'('; 5000]), &["data.pkl", "nested"]);
    refused_bytes(with_pickle(&vec![b'}'; 3 << 20]), &["data.pkl", "too many"]);
    refused_bytes(with_pickle(b"\x80\x02}."), &["model.", "missing"]);
}

// Tests of tensors.

#[test]
fn tensor_outside_its_storage_is_named() {
    let wq = |change: fn(&mut crate::export::torch_file::Entry), words: &[&str]| {
        refused_file(|file| change(file.entry(WQ)), &[&[WQ], words].concat());
    };
    wq(|e| e.offset = 1, &["reaches beyond"]);
    wq(|e| e.offset = i64::MAX, &["reaches beyond"]);
    wq(|e| e.strides = vec![33, 1], &["reaches beyond"]);
    wq(|e| e.strides = vec![1 << 40, 1], &["reaches beyond"]);
    wq(|e| e.strides = vec![i64::MAX, i64::MAX - 1], &["strides"]);
    wq(|e| e.shape = vec![i64::MAX, i64::MAX], &["overlap"]);
    wq(|e| e.len = 2000, &["too short", "2048 bytes"]);
    wq(|e| e.len = i64::MAX, &["too short"]);
    wq(|e| e.len = 1000, &["reaches beyond"]);
    wq(|e| e.key = "99".to_owned(), &["data/99", "lacks"]);
    wq(|e| e.key = "../data.pkl".to_owned(), &["lacks"]);
    wq(|e| e.class = "FloatStorage", &["too short"]);
    wq(|e| e.class = "DoubleStorage", &["F64", "wanted"]);
}

#[test]
fn tensor_whose_values_overlap_is_named() {
    for strides in [[0, 1], [1, 0], [0, 0], [1, 1], [31, 1], [1, 31]] {
        let change = |file: &mut TorchFile| file.entry(WQ).strides = strides.to_vec();
        refused_file(change, &[WQ, "overlap"]);
    }
}

#[test]
fn impossible_shapes_are_refused() {
    refused_file(|file| file.entry(WQ).shape = vec![1 << 62], &["data.pkl", "but strides [32, 1]"]);
    refused_file(|file| file.entry(WQ).shape[0] = -32, &["data.pkl", "-32"]);
    refused_file(|file| file.entry(WQ).strides[1] = -1, &["data.pkl", "-1"]);
    refused_file(|file| file.entry(WQ).offset = -1, &["data.pkl", "-1"]);
    refused_file(|file| file.entry(WQ).len = -1, &["data.pkl", "-1"]);
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let change = |file: &mut TorchFile| file.entries.push(file.entries[3].clone());
    refused_file(change, &["too"]);
}

// Tests of archives.

#[test]
fn files_that_share_bytes_are_named() {
    refused_archive(|files| files[4].is_at_previous = true, &["data/1", "data/2", "overlap"]);
    // The bytes of this file extend into the next one.
    let (_, file) = tiny();
    let mut bytes = file.bytes();
    let records: Vec<usize> =
        (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b"PK\x01\x02")).collect();
    for at in [20, 24].map(|field| records[4] + field) {
        bytes[at] += 50;
    }
    refused_bytes(bytes, &["data/2", "data/3", "overlap"]);
}

#[test]
fn compressed_file_is_refused_without_a_look_inside() {
    // The directory gives its unpacked length as 4 GB.
    for name in ["model/data/2", "model/data.pkl"] {
        let bomb = |files: &mut Vec<ZipFile>| {
            let file = files.iter_mut().find(|file| file.name == name).unwrap();
            (file.method, file.len) = (8, u32::MAX - 1);
        };
        refused_archive(bomb, &[name, "compressed"]);
    }
    refused_archive(|files| files[2].len += 1, &["compressed"]);
}

#[test]
fn other_archives_that_cannot_be_read_are_refused() {
    refused_archive(|files| files[3].flags = 1, &["encrypted"]);
    refused_archive(|files| files[1].bytes = b"bigger".to_vec(), &["big-endian"]);
    refused_archive(|files| files[3].name = files[2].name.clone(), &["two files of one name"]);
    refused_archive(|files| files.truncate(4), &["lacks"]);
    refused_archive(
        |files| {
            let more = (0..66_000).map(|i| ZipFile::new(&format!("model/{i}"), ""));
            files.extend(more);
        },
        &["more than 65536 files"],
    );
}

#[test]
fn file_cut_anywhere_is_refused() {
    let (folder, file) = tiny();
    let bytes = file.bytes();
    export(&folder, &options(2)).unwrap();
    let step = if crate::common::quick() { 997 } else { 97 };
    for len in (0..bytes.len()).step_by(step).chain([bytes.len() - 1]) {
        fs::write(folder.join(BIN), &bytes[..len]).unwrap();
        let error = export(&folder, &options(2)).unwrap_err();
        assert_eq!(error.blame(), Blame::Input, "{len} bytes: {error}");
    }
}

#[test]
fn no_flipped_bit_is_fatal() {
    let (folder, file) = tiny();
    let bytes = file.bytes();
    let wanted = export(&folder, &options(1)).unwrap();
    let step = if crate::common::quick() { 997 } else { 61 };
    let mut n_refused = 0;
    for at in (0..bytes.len()).step_by(step) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(folder.join(BIN), &damaged).unwrap();
        match export(&folder, &options(1)) {
            Ok(file) => assert_eq!(file.len(), wanted.len(), "byte {at}"),
            Err(error) => {
                assert_eq!(error.blame(), Blame::Input, "byte {at}: {error}");
                n_refused += 1;
            }
        }
    }
    assert!(n_refused > 0);
}
