//! Files with misleading names, and missing home folders.

use std::fs;
use std::path::Path;

use super::{ANSWER, DEMO, PROMPT, command, pipe, run};
use crate::common::folder::Folder;
use crate::common::models::package;
use crate::common::ran::Ran;

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n";

#[test]
fn git_lfs_pointers_are_told_whatever_their_name() {
    let folder = Folder::new();
    let told = |args: &[&str]| run(args).fails(3, "git lfs pull");
    for name in ["m.gguf", "m.bin", "m.safetensors"] {
        let path = folder.write(name, POINTER);
        let path = path.to_str().unwrap();
        told(&["run", path, "-p", "x"]);
        told(&["info", path]);
    }
    let gguf = folder.join("m.gguf");
    told(&["export", "/dev/null", "--gguf", gguf.to_str().unwrap()]);
    told(&["run", DEMO, "-p", "x", "-t", folder.join("m.bin").to_str().unwrap()]);
    let page = folder.write("page.gguf", "<!DOCTYPE html>\n<html></html>");
    run(&["run", page.to_str().unwrap(), "-p", "x"]).fails(3, "a web page");
    // Any file of a checkpoint may be a pointer.
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let folder = Folder::new();
        for entry in fs::read_dir(package("tests/golden/qwen2-tiny")).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.join(path.file_name().unwrap().to_str().unwrap())).unwrap();
        }
        folder.write(name, POINTER);
        let ran = run(&["export", "/dev/null", "--meta-llama", folder.path().to_str().unwrap()]);
        ran.fails(3, "git lfs pull");
        assert!(ran.err.contains(name), "{ran:?}");
    }
}

/// A GGUF file that says that it is number `index` of a model in three files.
fn shard(index: u32) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.extend(3u64.to_le_bytes());
    let key = "general.architecture";
    file.extend((key.len() as u64).to_le_bytes());
    file.extend(key.as_bytes());
    file.extend(8u32.to_le_bytes());
    file.extend(5u64.to_le_bytes());
    file.extend(b"llama");
    for (key, value) in [("split.no", index - 1), ("split.count", 3)] {
        file.extend((key.len() as u64).to_le_bytes());
        file.extend(key.as_bytes());
        file.extend(4u32.to_le_bytes());
        file.extend(value.to_le_bytes());
    }
    file
}

#[test]
fn a_folder_of_gguf_files_is_the_model_in_it_or_says_what_to_name() {
    let folder = Folder::new();
    let dir = folder.path().to_str().unwrap().to_owned();
    let told = |what: &str| {
        run(&["run", &dir, "-p", "x"]).fails(3, what);
        run(&["export", "/dev/null", "--gguf", &dir]).fails(3, what);
    };
    told("without a model");
    // The only model of a folder is taken, and its own problem reported.
    fs::copy(package("tests/golden/gguf/spm.gguf"), folder.join("a.gguf")).unwrap();
    told("a.gguf");
    fs::copy(package("tests/golden/gguf/spm.gguf"), folder.join("b.gguf")).unwrap();
    told("2 GGUF models; name one of them: a.gguf, b.gguf");
    run(&["export", "/dev/null", "--meta-llama", &dir]).fails(3, "--gguf");
}

#[test]
fn files_that_a_split_gguf_model_lacks_are_named() {
    let folder = Folder::new();
    let dir = folder.path().to_str().unwrap().to_owned();
    let name = |index: u32| format!("m-{index:05}-of-00003.gguf");
    let second = folder.write(&name(2), shard(2));
    let run_it = |path: &str| run(&["run", path, "-p", "x"]);
    for path in [&dir, second.to_str().unwrap()] {
        run_it(path).fails(3, "m-00001-of-00003.gguf");
    }
    let first = folder.write(&name(1), shard(1));
    // Each of the files stands for all, if the first one exists.
    for path in [&dir, first.to_str().unwrap(), second.to_str().unwrap()] {
        run_it(path).fails(3, "without m-00003-of-00003.gguf in this folder");
    }
}

#[test]
fn a_byte_order_mark_before_a_prompt_changes_nothing() {
    let folder = Folder::new();
    let file = folder.write("prompt.txt", format!("\u{feff}{PROMPT}\r\n"));
    let greedy = ["-n", "20", "--temp", "0", "-q"];
    let from_file = ["run", DEMO, "--prompt-file", file.to_str().unwrap()];
    let ran = run(&[&from_file[..], &greedy].concat()).succeeds();
    assert!(ran.out.starts_with(PROMPT) && ran.out.contains(ANSWER), "{ran:?}");
    let piped = pipe(&[&["run", DEMO][..], &greedy].concat(), format!("\u{feff}{PROMPT}"));
    assert_eq!(piped.out, ran.out);
    // A mark before a chat's first message is ignored, too.
    let chat = [&["run", DEMO, "--chat", "--chat-template", "chatml"][..], &greedy].concat();
    let [with, without] = ["\u{feff}Hi\n", "Hi\n"].map(|message| pipe(&chat, message));
    assert_eq!((with.code, with.out), (without.code, without.out));
    let lines = ["tokenizer", DEMO_TOKENIZER, "--encode"];
    let [with, without] =
        ["\u{feff}\"a\"\n\"b\"\n", "\"a\"\n\"b\"\n"].map(|text| pipe(&lines, text));
    assert_eq!(with.succeeds().out, without.succeeds().out);
}

const DEMO_TOKENIZER: &str = "models/demo.tokenizer.bin";

/// Runs a checkpoint with only these environment variables.
fn run_with(environment: &[(&str, &Path)]) -> Ran {
    let mut command =
        command(&["run", "tests/golden/qwen2-tiny", "-p", "x", "-n", "2", "--temp", "0"]);
    for name in ["HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "TMPDIR"] {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied());
    Ran::new(command.output().unwrap())
}

#[test]
fn without_a_home_a_checkpoint_runs_and_leaves_nothing_behind() {
    let folder = Folder::new();
    let nowhere = Path::new("/proc/no-such-folder");
    let temporary = ("TMPDIR", folder.path());
    for (home, what) in [
        (None, "HOME is not set"),
        (Some(Path::new("")), "HOME is not set"),
        (Some(nowhere), "/proc/no-such-folder/.cache/leap cannot be made"),
    ] {
        let environment: Vec<(&str, &Path)> =
            home.map(|home| ("HOME", home)).into_iter().chain([temporary]).collect();
        let ran = run_with(&environment).succeeds();
        assert!(ran.err.contains(what) && ran.err.contains("XDG_CACHE_HOME"), "{ran:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{ran:?}");
    }
    let ran = run_with(&[("TMPDIR", nowhere)]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("HOME is not set") && ran.err.contains("leap export"), "{ran:?}");
    // A folder that a killed process left behind is removed.
    fs::create_dir(folder.join("leap-once-1")).unwrap();
    run_with(&[temporary]).succeeds();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The first bytes in hexadecimal say nothing to a person who downloaded the wrong file.
#[test]
fn a_file_of_another_kind_is_named_with_the_kinds_that_leap_takes() {
    let folder = Folder::new();
    for (bytes, kind) in [
        (&b"\x7fELF\x02\x01\x01\0\0\0\0\0"[..], "it is a program (ELF)"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03abc", "it is compressed by gzip"),
        (b"PK\x03\x04\x14\0\0\0", "it is a zip archive"),
        (b"%PDF-1.7\n", "it is a PDF document"),
        (b"ROLE=worker\nNODE=pi\n", "it is a text"),
        (&[0; 600], "it is full of zeros"),
    ] {
        let path = folder.write("file.bin", bytes);
        let path = path.to_str().unwrap();
        let ran = run(&["run", path, "-p", "a"]);
        ran.fails(3, kind);
        assert!(ran.err.contains("a GGUF file, or the folder of a checkpoint"), "{ran:?}");
        assert!(!ran.err.contains("0x"), "{ran:?}");
        run(&["info", path]).fails(3, kind);
        run(&["run", DEMO, "-p", "a", "-t", path]).fails(3, kind);
    }
    let unknown = folder.write("file.bin", b"\x01\x02\x03\x04\x05\x06\x07\x08");
    run(&["run", unknown.to_str().unwrap(), "-p", "a"]).fails(3, "it is not a model; wanted");
}
