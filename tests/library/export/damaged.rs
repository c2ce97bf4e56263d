//! Model files whose bytes differ from the exported ones.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Output;

use leap::format::model::{HEADER_LEN, Header, Tensor, TensorId, TensorKind};
use leap::internals::model::Model;
use leap::internals::pack::Receipt;

use crate::common::folder::Folder;
use crate::common::models::package;

/// One tensor for each way that weights are used: packed, read row by row, a norm.
const TENSORS: [(TensorKind, usize, &str); 4] = [
    (TensorKind::W2, 1, "layers.1.w2"),
    (TensorKind::FfnNorm, 3, "layers.3.ffn_norm"),
    (TensorKind::Embedding, 0, "embedding"),
    (TensorKind::FinalNorm, 0, "final_norm"),
];

fn demo() -> Vec<u8> {
    fs::read(package("models/demo.bin")).unwrap()
}

/// Flips a bit in the middle of a tensor.
fn damage(file: &mut [u8], kind: TensorKind, layer: usize) {
    let header = Header::parse(file).unwrap();
    let Tensor { offset, bytes, .. } =
        header.tensors().find(|tensor| tensor.id == TensorId { kind, layer }).unwrap();
    file[(offset + bytes / 2) as usize] ^= 0x40;
}

/// Runs `leap COMMAND MODEL` with a cache folder of its own.
fn leap(command: &str, model: &Path, cache: &Path, args: &[&str]) -> Output {
    let mut leap = crate::common::leap();
    leap.arg(command).arg(model).args(args).env("XDG_CACHE_HOME", cache);
    leap.output().unwrap()
}

fn run(model: &Path, cache: &Path, args: &[&str]) -> Output {
    let tokenizer = package("models/demo.tokenizer.bin");
    let always = ["-t", tokenizer.to_str().unwrap(), "-p", "Once", "-n", "12", "--temp", "0"];
    leap("run", model, cache, &[&always, args].concat())
}

#[track_caller]
fn succeeds(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    (text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn names_the_damage(output: &Output, tensor: &str) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let last = err.lines().last().unwrap();
    assert!(last.contains(tensor) && last.contains("checksum"), "{err}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[test]
fn a_damaged_model_is_never_packed_or_run() {
    for (kind, layer, name) in TENSORS {
        let folder = Folder::new();
        let caches = folder.join("caches");
        fs::create_dir(&caches).unwrap();
        let mut file = demo();
        damage(&mut file, kind, layer);
        let model = folder.write("model.bin", &file);
        let cache = caches.to_str().unwrap();
        names_the_damage(&run(&model, &caches, &["--cache", cache]), name);
        names_the_damage(&run(&model, &caches, &["--cache", "off"]), name);
        names_the_damage(&run(&model, &caches, &[]), name);
        names_the_damage(&leap("pack", &model, &caches, &["--cache", cache]), name);
        assert_eq!(fs::read_dir(&caches).unwrap().count(), 0);
        // The repaired file is another file at the same path.
        folder.write("model.bin", demo());
        let (text, _) = succeeds(&run(&model, &caches, &["--cache", cache]));
        assert_eq!(text, succeeds(&run(&package("models/demo.bin"), &caches, &[])).0);
    }
}

/// The model is damaged after packing: the cache is sound, but it lacks some weights.
#[test]
fn a_model_damaged_after_it_was_packed_is_refused() {
    let folder = Folder::new();
    let model = folder.write("model.bin", demo());
    let cache = folder.join("model.leapw");
    let args = ["--cache", cache.to_str().unwrap()];
    succeeds(&run(&model, folder.path(), &args));
    let mut file = demo();
    damage(&mut file, TensorKind::Embedding, 0);
    folder.write("model.bin", &file);
    names_the_damage(&run(&model, folder.path(), &args), "embedding");
}

#[test]
fn a_worker_does_not_join_with_damaged_layers() {
    let folder = Folder::new();
    let mut file = demo();
    damage(&mut file, TensorKind::Wq, 3);
    let model = folder.write("model.bin", &file);
    let args = ["--split", "2", "--next-host", "127.0.0.1", "--transport", "udp", "--port", "0"];
    names_the_damage(&leap("worker", &model, folder.path(), &args), "layers.3.wq");
}

/// The demo model's file in the published format, without checksums.
fn published() -> Vec<u8> {
    let file = demo();
    let header = Header::parse(&file).unwrap();
    let tensors = HEADER_LEN..header.tensors_end() as usize;
    let header = Header { has_extension: false, stop_ids: Vec::new(), bos: None, ..header };
    [&header.emit()[..], &file[tensors]].concat()
}

#[test]
fn every_byte_of_a_file_without_checksums_counts() {
    let folder = Folder::new();
    let cache = folder.join("model.leapw");
    let args = ["--cache", cache.to_str().unwrap()];
    let good = published();
    let model = folder.write("model.bin", &good);
    let (wanted, _) = succeeds(&run(&model, folder.path(), &["--cache", "off"]));
    let fingerprint = |model: &Path| Model::open(model).unwrap().fingerprint().unwrap();
    let whole = fingerprint(&model);
    for at in [HEADER_LEN + 4096 + 77, good.len() / 2 + 5000, good.len() - 9000] {
        let mut file = good.clone();
        file[at] ^= 0x40;
        folder.write("model.bin", &file);
        assert_ne!(fingerprint(&model), whole, "byte {at}");
        succeeds(&run(&model, folder.path(), &args));
        folder.write("model.bin", &good);
        let (text, err) = succeeds(&run(&model, folder.path(), &args));
        assert_eq!(text, wanted, "byte {at}");
        assert!(err.contains("packed") && !err.contains("reused"), "byte {at}: {err}");
    }
    let (_, err) = succeeds(&run(&model, folder.path(), &args));
    assert!(err.contains("reused") || !err.contains("packed"), "{err}");
}

/// A model large enough for a receipt: 33 MiB of zeros.
fn large(folder: &Folder) -> PathBuf {
    let small = demo();
    let header = Header::parse(&small).unwrap();
    let (dim, ffn_dim, n_layers, n_heads, head_dim) = (512, 2048, 10, 8, 64);
    let header = Header { dim, ffn_dim, n_layers, head_dim, n_heads, n_kv_heads: 8, ..header };
    let mut file = header.emit().to_vec();
    file.resize(header.tensors_end() as usize, 0);
    let range = |tensor: &Tensor| -> Range<usize> {
        tensor.offset as usize..(tensor.offset + tensor.bytes) as usize
    };
    let crcs: Vec<u8> = header
        .tensors()
        .flat_map(|tensor| crc32fast::hash(&file[range(&tensor)]).to_le_bytes())
        .collect();
    file.extend(crcs);
    assert!(file.len() > 32 << 20);
    folder.write("model.bin", file)
}

#[test]
fn a_receipt_saves_the_second_comparison_until_the_file_changes() {
    let folder = Folder::new();
    let model = large(&folder);
    let receipts = folder.join("leap");
    let start = |args: &[&str]| run(&model, folder.path(), args);
    let read = |model: &Path| {
        let model = Model::open(model).unwrap();
        (*model.stamp().unwrap(), Receipt::read(&receipts, model.stamp().unwrap()))
    };
    assert_eq!(read(&model).1, None);
    succeeds(&start(&["--cache", "off"]));
    let (_, Some(receipt)) = read(&model) else { panic!("no receipt") };
    // The receipt covers every layer, and embedding and classifier.
    assert_eq!(receipt.checked, [true; 11]);

    let mut file = fs::read(&model).unwrap();
    damage(&mut file, TensorKind::Wo, 4);
    fs::write(&model, &file).unwrap();
    names_the_damage(&start(&["--cache", "off"]), "layers.4.wo");
    assert_eq!(read(&model).1, None);
    // This receipt can only be made by hand: it shows that receipts are believed.
    let believed = Receipt { stamp: read(&model).0, ..receipt };
    believed.write(&receipts).unwrap();
    succeeds(&start(&["--cache", "off"]));
    // A receipt does not count for layers that were not compared.
    let checked = (0..11).map(|layer| layer != 4).collect();
    Receipt { checked, ..believed }.write(&receipts).unwrap();
    names_the_damage(&start(&["--cache", "off"]), "layers.4.wo");
}
