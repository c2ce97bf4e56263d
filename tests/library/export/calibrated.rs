//! Exports calibrated with a text.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use leap::internals::kernels::{Isa, Kernels};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::common::folder::Folder;
use crate::common::models::package;

fn golden(name: &str) -> PathBuf {
    package("tests/golden").join(name)
}

/// A file with the beginning of the built-in text.
fn text(folder: &Folder) -> String {
    let text = fs::read_to_string(package("src/cli/export/text.txt")).unwrap();
    let path = folder.join("text");
    fs::write(&path, &text[..3000]).unwrap();
    path.to_str().unwrap().to_owned()
}

fn command(out: &Path, model: &str, version: &str, more: &[&str]) -> Command {
    let mut command = crate::common::leap();
    command.arg("export").arg(out).arg("--meta-llama").arg(golden(model));
    command.args(["--version", version]).args(more);
    command
}

fn run(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Exports a model and returns the file.
fn export(folder: &Folder, model: &str, version: &str, more: &[&str]) -> PathBuf {
    export_to(&folder.join(&format!("{model}-{version}-{}.bin", more.len())), model, version, more)
}

/// Exports a model to `out`.
fn export_to(out: &Path, model: &str, version: &str, more: &[&str]) -> PathBuf {
    let (code, text) = run(&mut command(out, model, version, more));
    assert_eq!(code, Some(0), "{text}");
    out.to_owned()
}

#[test]
fn bytes_are_the_same_for_one_thread_and_for_every_tier() {
    let folder = Folder::new();
    let text = text(&folder);
    for (model, version) in [("llama3-tiny", "3"), ("llama3-tiny", "4"), ("gptoss-tiny", "2")] {
        let more = ["--calibrate", &text];
        let bytes = fs::read(export(&folder, model, version, &more)).unwrap();
        let out = folder.join("other");
        let (code, told) = std::thread::scope(|scope| {
            let alone = scope.spawn(|| {
                // The program inherits this thread's single CPU.
                let (mut one, all) = (CpuSet::new(), sched_getaffinity(Pid::from_raw(0)).unwrap());
                let cpu = (0..CpuSet::count()).find(|&cpu| all.is_set(cpu).unwrap()).unwrap();
                one.set(cpu).unwrap();
                sched_setaffinity(Pid::from_raw(0), &one).unwrap();
                run(command(&out, model, version, &more).env("LEAP_ISA", "scalar"))
            });
            alone.join().unwrap()
        });
        assert_eq!(code, Some(0), "{told}");
        assert!(bytes == fs::read(&out).unwrap(), "{model}");
    }
}

#[test]
fn every_kind_of_model_can_be_calibrated() {
    let folder = Folder::new();
    let all =
        [("gemma3-tiny", "3"), ("gptoss-tiny", "4"), ("gemma4-tiny", "4"), ("gemma4moe-tiny", "3")];
    for (model, version) in all {
        let plain = export(&folder, model, version, &["--verify"]);
        let more = ["--calibrate", "default", "--verify"];
        let calibrated = fs::read(export(&folder, model, version, &more)).unwrap();
        assert!(fs::read(plain).unwrap() != calibrated, "{model}");
    }
}

#[test]
fn gguf_files_can_be_calibrated() {
    let folder = Folder::new();
    let more = ["--calibrate", "default", "--verify"];
    let [plain, calibrated] = [("plain.gguf", &more[2..]), ("calibrated.gguf", &more[..])]
        .map(|(name, more)| export_to(&folder.join(name), "gemma3-tiny", "3", more))
        .map(|out| fs::read(out).unwrap());
    assert_eq!(plain.len(), calibrated.len());
    assert!(plain != calibrated);
    let out = folder.join("int8.gguf");
    let (code, text) = run(&mut command(&out, "gemma3-tiny", "2", &more));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--version 3 or 4"), "{text}");
}

#[test]
fn bad_texts_are_refused() {
    let folder = Folder::new();
    let out = folder.join("m");
    let texts: [(&str, &[u8], &str); 3] = [
        ("empty", b"", "has 0 tokens, a calibration needs 512"),
        ("short", b"Once upon a time", "a calibration needs 512"),
        ("binary", b"\xff\xfe\x00", "is not UTF-8"),
    ];
    for (name, bytes, problem) in texts {
        let text = folder.join(name);
        fs::write(&text, bytes).unwrap();
        let more = ["--calibrate", text.to_str().unwrap()];
        let (code, told) = run(&mut command(&out, "llama3-tiny", "3", &more));
        assert_eq!((code, told.contains(problem)), (Some(3), true), "{told}");
    }
    let missing = folder.join("missing");
    let more = ["--calibrate", missing.to_str().unwrap()];
    let (code, told) = run(&mut command(&out, "llama3-tiny", "3", &more));
    assert_eq!((code, told.contains("cannot read")), (Some(3), true), "{told}");
    let (code, told) = run(&mut command(&out, "llama3-tiny", "1", &["--calibrate", "default"]));
    assert_eq!((code, told.contains("--version 2, 3 or 4")), (Some(2), true), "{told}");
    assert_eq!(folder.names(), ["binary", "empty", "short"]);
}

#[test]
fn kernels_of_another_cpu_are_refused_before_anything_is_converted() {
    let folder = Folder::new();
    let isa = Isa::ALL.iter().find(|isa| Kernels::for_isa(**isa).is_none()).unwrap();
    let mut command = command(&folder.join("m"), "llama3-tiny", "4", &["--calibrate", "default"]);
    let (code, told) = run(command.env("LEAP_ISA", isa.name()));
    assert_eq!(
        (code, told.contains("cannot run"), told.contains("converting")),
        (Some(2), true, false),
        "{told}"
    );
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn disk_that_is_too_small_leaves_nothing() {
    let folder = Folder::new();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 16; exec \"$@\"", "sh"]);
    let leap = command(&folder.join("m"), "llama3-tiny", "3", &["--calibrate", "default"]);
    limited.arg(leap.get_program()).args(leap.get_args());
    let (code, text) = run(&mut limited);
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(folder.names(), [""; 0]);
}
