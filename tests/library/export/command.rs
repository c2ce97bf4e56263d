//! `leap export` as a user runs it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use leap::format::model::Header;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::common::folder::Folder;
use crate::export::checkpoint::{Checkpoint, Dims, SMALL, Stored};

fn small(folder: &Folder) {
    Checkpoint::hugging_face("F16", SMALL).write(folder);
}

fn command(out: &Path, dir: &Path, more: &[&str]) -> Command {
    let mut command = crate::common::leap();
    command.arg("export").arg(out).arg("--meta-llama").arg(dir).args(more);
    command
}

/// Runs the command; returns the exit code and stderr. Nothing may go to stdout.
fn run(out: &Path, dir: &Path, more: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command(out, dir, more).output().unwrap();
    assert!(stdout.is_empty());
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn last_line_says_what_was_written() {
    let folder = Folder::new();
    small(&folder);
    let out = folder.join("model.bin");
    let (code, text) = run(&out, folder.path(), &["--verify"]);
    assert_eq!(code, Some(0), "{text}");
    let line = text.lines().last().unwrap();
    assert!(line.contains("model.bin: version 2 (int8, groups of 32), 0.1 MB, verified"), "{line}");
    let bytes = fs::read(&out).unwrap();
    assert_eq!(Header::parse(&bytes).unwrap().verify(&bytes), Ok(true));
    let (code, text) = run(&out, folder.path(), &["--version", "1", "--ctx", "99"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(Header::parse(&fs::read(&out).unwrap()).unwrap().max_seq_len, 99);
}

#[test]
fn four_bit_file_says_so() {
    let folder = Folder::new();
    small(&folder);
    let out = folder.join("model.bin");
    let (code, text) = run(&out, folder.path(), &["--version", "3", "--verify"]);
    assert_eq!(code, Some(0), "{text}");
    let line = text.lines().last().unwrap();
    assert!(line.contains("version 3 (4-bit BCML1, embedding int8), 0.1 MB, verified"), "{line}");
    let bytes = fs::read(&out).unwrap();
    assert_eq!(Header::parse(&bytes).unwrap().verify(&bytes), Ok(true));
}

#[test]
fn embedding_of_six_bits_makes_a_smaller_file_that_says_so() {
    let folder = Folder::new();
    small(&folder);
    let out = folder.join("model.bin");
    let lengths = [("8", "embedding int8"), ("6", "embedding 6-bit BCML6")].map(|(bits, said)| {
        let more = ["--version", "4", "--embedding-bits", bits, "--verify"];
        let (code, text) = run(&out, folder.path(), &more);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.lines().last().unwrap().contains(said), "{text}");
        let bytes = fs::read(&out).unwrap();
        assert_eq!(Header::parse(&bytes).unwrap().verify(&bytes), Ok(true));
        bytes.len()
    });
    assert!(lengths[1] < lengths[0]);
}

#[test]
fn smaller_group_is_announced() {
    let folder = Folder::new();
    Checkpoint::hugging_face("F16", Dims { ffn_dim: 96, ..SMALL }).write(&folder);
    let (code, text) = run(&folder.join("m"), folder.path(), &["--group-size", "64"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("group size is 32"), "{text}");
}

#[test]
fn bad_requests_end_with_code_2() {
    let folder = Folder::new();
    small(&folder);
    let out = folder.join("m");
    for more in [
        &["--version", "6"][..],
        &["--version", "x"],
        &["--embedding-bits", "6"],
        &["--version", "3", "--embedding-bits", "8"],
        &["--version", "4", "--embedding-bits", "4"],
        &["--group-size", "48"],
        &["--group-size", "0"],
        &["--ctx", "0"],
        &["--unknown"],
    ] {
        let (code, text) = run(&out, folder.path(), more);
        assert_eq!(code, Some(2), "{more:?}: {text}");
        assert!(!out.exists());
    }
    let (code, text) = run(folder.path(), folder.path(), &[]);
    assert_eq!((code, text.contains("not a regular file")), (Some(2), true), "{text}");
    for input in ["model.safetensors", "config.json"] {
        let (code, text) = run(&folder.join(input), folder.path(), &[]);
        assert_eq!((code, text.contains("file of the checkpoint")), (Some(2), true), "{text}");
    }
    assert_eq!(folder.names(), ["config.json", "model.safetensors"]);
}

#[test]
fn bad_checkpoint_ends_with_code_3_and_the_old_file_stays() {
    let folder = Folder::new();
    let mut checkpoint = Checkpoint::hugging_face("F16", SMALL);
    checkpoint.poke("lm_head.weight", 5, f32::NAN);
    checkpoint.write(&folder);
    fs::write(folder.join("m"), "old").unwrap();
    let names = folder.names();
    let (code, text) = run(&folder.join("m"), folder.path(), &[]);
    assert_eq!((code, text.contains("lm_head.weight")), (Some(3), true), "{text}");
    assert_eq!(fs::read(folder.join("m")).unwrap(), b"old");
    assert_eq!(folder.names(), names);
}

#[test]
fn disk_that_is_too_small_ends_with_code_1() {
    // A file size limit fails like a full disk.
    let folder = Folder::new();
    small(&folder);
    let names = folder.names();
    for name in ["m", "m.gguf"] {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -f 16; exec \"$@\"", "sh"]);
        let leap = command(&folder.join(name), folder.path(), &[]);
        limited.arg(leap.get_program()).args(leap.get_args());
        let output = limited.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("bytes are needed"), "{text}");
        assert_eq!(folder.names(), names);
    }
}

#[test]
fn folder_that_does_not_exist_ends_with_code_1() {
    let folder = Folder::new();
    small(&folder);
    let (code, text) = run(&folder.join("none/m"), folder.path(), &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("none/m"), "{text}");
}

#[test]
fn signals_leave_no_file() {
    let folder = Folder::new();
    let (rows, dim) = (1 << 18, 64);
    let mut checkpoint = Checkpoint::hugging_face("F16", Dims { vocab_size: 8, ..SMALL });
    checkpoint.set("config.json", "vocab_size", json!(rows));
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        let stored =
            Stored { dtype: "F16", shape: vec![rows, dim], bytes: vec![0; 2 * rows * dim] };
        checkpoint.tensors.insert(name.to_owned(), stored);
    }
    checkpoint.write(&folder);
    for (name, signal, code) in [
        ("m", Signal::SIGTERM, Some(143)),
        ("m", Signal::SIGKILL, None),
        ("m.gguf", Signal::SIGINT, Some(130)),
    ] {
        let (status, text) = (0..20)
            .find_map(|_| cut_short(folder.path(), name, signal))
            .expect("20 times the model was written before the signal came");
        assert_eq!(status.code(), code, "{text}");
        assert_eq!(text.contains("interrupted"), code.is_some(), "{text}");
    }
}

#[test]
fn gguf_file_says_so() {
    let folder = Folder::new();
    small(&folder);
    let out = folder.join("model.GGUF");
    for (version, types) in [("1", "f32"), ("2", "Q8_0"), ("3", "Q4_1, Q8_0"), ("4", "Q4_1, Q8_0")]
    {
        let (code, text) = run(&out, folder.path(), &["--version", version, "--verify"]);
        assert_eq!(code, Some(0), "{text}");
        let line = text.lines().last().unwrap();
        assert!(line.contains(&format!("model.GGUF: GGUF ({types}), ")), "{line}");
        assert!(line.contains("MB, verified, in"), "{line}");
        assert!(fs::read(&out).unwrap().starts_with(b"GGUF\x03\0\0\0"));
    }
}

#[test]
fn options_that_gguf_files_do_not_have_are_named() {
    let folder = Folder::new();
    small(&folder);
    let names = folder.names();
    for (option, value) in
        [("--isa", "avx2"), ("--layers", "0..1"), ("--embedding-bits", "6"), ("--group-size", "64")]
    {
        let more = ["--version", "4", option, value];
        let (code, text) = run(&folder.join("m.gguf"), folder.path(), &more);
        assert_eq!(code, Some(2), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(&format!("{option} is for model files")), "{text}");
        assert_eq!(folder.names(), names);
    }
    let (code, text) = run(&folder.join("m.gguf"), folder.path(), &["--version", "5"]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("no matrix in blocks"), "{text}");
    assert_eq!(folder.names(), names);
}

/// Converts the checkpoint in `folder` to a file called `name`, and sends `signal` while it is written. Returns how the program ended and
/// what it said; `None` if it had written the file before the signal came.
///
/// # Panics
///
/// If a part of a file is left.
fn cut_short(folder: &Path, name: &str, signal: Signal) -> Option<(ExitStatus, String)> {
    let out = Folder::new();
    let mut child = command(&out.join(name), folder, &["--version", "1", "--verify"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !has_begun(&child, out.path()) && child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "the program opened no file");
        std::thread::sleep(Duration::from_millis(1));
    }
    if child.try_wait().unwrap().is_none() {
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    if out.names() == [name] {
        return None;
    }
    assert_eq!(out.names(), [""; 0]);
    Some((output.status, String::from_utf8(output.stderr).unwrap()))
}

/// True if the program has opened its output file in `folder`.
fn has_begun(child: &Child, folder: &Path) -> bool {
    let files = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
    let mut paths = files.filter_map(|file| fs::read_link(file.path()).ok());
    paths.any(|path| path.starts_with(folder))
}
