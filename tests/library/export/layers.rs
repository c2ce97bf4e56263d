//! Model files with some layers only, for the nodes of a ring.

use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use leap::export::{Blame, ExportPlan};
use leap::format::model::{Header, TensorKind};
use leap::internals::model::{Model, Share};

use crate::common::folder::Folder;
use crate::export::checkpoint::{Checkpoint, Dims, SMALL, options};

const DIMS: Dims = Dims { n_layers: 4, ..SMALL };

fn checkpoint() -> Folder {
    let folder = Folder::new();
    Checkpoint::hugging_face("F16", DIMS).write(&folder);
    folder
}

/// Exports the checkpoint in `folder` to a file in it.
fn export(folder: &Folder, version: i32, layers: Range<usize>) -> PathBuf {
    let out = folder.join(&format!("{}-{}.bin", layers.start, layers.end));
    let mut plan = ExportPlan::open(folder.path(), &options(version)).unwrap();
    plan.set_layers(layers).unwrap();
    plan.write(&out, |_| ControlFlow::Continue(())).unwrap();
    out
}

fn header(path: &Path) -> (Header, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    (Header::parse(&bytes).unwrap(), bytes)
}

#[test]
fn parts_hold_the_tensors_of_the_whole_and_its_fingerprint() {
    for version in [1, 2, 3, 4] {
        let folder = checkpoint();
        let (whole, whole_bytes) = header(&export(&folder, version, 0..4));
        assert_eq!(whole.share, None);
        let mut n_tensors = 0;
        for layers in [0..1, 1..3, 3..4] {
            let (part, bytes) = header(&export(&folder, version, layers.clone()));
            let held = part.share.clone().unwrap();
            assert_eq!((held.layers, held.has_ends), (layers.clone(), layers.start == 0));
            assert_eq!(part.verify(&bytes), Ok(true));
            assert_eq!(part.fingerprint(&bytes), whole.fingerprint(&whole_bytes));
            assert_eq!(part.plain(), whole);
            for tensor in part.tensors() {
                let same = whole.tensors().find(|other| other.id == tensor.id).unwrap();
                let content =
                    |bytes: &[u8], at: u64| bytes[at as usize..][..tensor.bytes as usize].to_vec();
                assert!(content(&bytes, tensor.offset) == content(&whole_bytes, same.offset));
            }
            n_tensors += part.n_tensors();
        }
        assert_eq!(n_tensors, whole.n_tensors());
    }
}

#[test]
fn part_is_no_whole_model() {
    let folder = checkpoint();
    let path = export(&folder, 2, 1..3);
    let error = Model::open(&path).err().unwrap();
    let text = std::error::Error::source(&error).unwrap().to_string();
    assert!(text.contains("only layers 1..3 of 4"), "{text}");
    let output = crate::common::leap().arg("run").arg(&path).args(["-p", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let output = crate::common::leap().arg("info").arg(&path).arg("--verify").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("1..3\n") && text.contains("match"), "{text}");
}

#[test]
fn node_takes_its_share_of_a_part() {
    let folder = checkpoint();
    let whole = Model::open(&export(&folder, 2, 0..4)).unwrap();
    let share = |layers: Range<usize>, has_ends| Share { layers, has_ends };
    let open = || Model::open_part(&export(&folder, 2, 1..3)).unwrap();
    assert_eq!(open().share(), &share(1..3, false));
    assert_eq!(open().fingerprint().unwrap(), whole.fingerprint().unwrap());
    let narrow = open().with_share(share(2..3, false)).unwrap();
    assert_eq!(narrow.share(), &share(2..3, false));
    for (other, word) in [(share(0..2, false), "1..3 of 4"), (share(1..3, true), "embedding")] {
        let error = open().with_share(other).err().unwrap().to_string();
        assert!(error.contains(word), "{error}");
    }
    let master = Model::open_part(&export(&folder, 2, 0..2)).unwrap();
    assert_eq!(master.share(), &share(0..2, true));
    assert!(master.header().tensors().any(|tensor| tensor.id.kind == TensorKind::Classifier));
}

#[test]
fn layers_that_are_none_are_refused() {
    let folder = checkpoint();
    let mut plan = ExportPlan::open(folder.path(), &options(2)).unwrap();
    for (start, end) in [(2, 2), (3, 1), (0, 5), (4, 5)] {
        let error = plan.set_layers(start..end).unwrap_err();
        assert_eq!(error.blame(), Blame::Request);
        assert!(error.to_string().contains("a model of 4"), "{error}");
    }
    let out = folder.join("out.bin");
    for layers in ["1", "a..b", "1..", "2..1", "-1..2"] {
        let mut command = crate::common::leap();
        command.arg("export").arg(&out).arg("--meta-llama").arg(folder.path());
        let output = command.arg("--layers").arg(layers).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{layers}");
        assert!(!out.exists());
    }
}

#[test]
fn packed_part_has_the_fingerprint_too() {
    let folder = checkpoint();
    let (whole, bytes) = header(&export(&folder, 2, 0..4));
    let out = folder.join("packed.bin");
    let mut command = crate::common::leap();
    command.arg("export").arg(&out).arg("--meta-llama").arg(folder.path());
    let output = command
        .args(["--group-size", "64", "--layers", "2..4", "--isa", "neon", "--verify"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let (part, part_bytes) = header(&out);
    assert!(part.packed.is_some() && part.share.is_some());
    assert_eq!(part.fingerprint(&part_bytes), whole.fingerprint(&bytes));
}
