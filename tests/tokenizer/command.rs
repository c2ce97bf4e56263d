//! The `leap tokenizer` command.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::common::folder::Folder;
use crate::{cases, common, file, golden};

/// Runs `leap tokenizer`.
fn leap(args: &[&str], stdin: &str) -> Output {
    let mut command = common::leap();
    command.arg("tokenizer").args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn command_converts_encodes_and_decodes() {
    let folder = Folder::new();
    let input = folder.join("tokenizer.model");
    std::fs::copy(golden("llama2-meta-tiny/tokenizer.model"), &input).unwrap();
    let done = leap(&[folder.path().to_str().unwrap()], "");
    assert!(done.status.success() && done.stdout.is_empty(), "{done:?}");
    let written = folder.join("tokenizer.bin");
    let bytes = std::fs::read(&written).unwrap();
    assert_eq!(bytes, file("llama2-meta-tiny/tokenizer.model", None).to_bytes());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);

    let written = written.to_str().unwrap();
    let (mut texts, mut ids) = (String::new(), String::new());
    for case in cases("llama2-meta-tiny") {
        texts += &format!("{}\n", case["text"]);
        ids += &format!("{}\n", case["ids"]);
    }
    let encoded = leap(&[written, "--encode"], &texts);
    assert_eq!(String::from_utf8(encoded.stdout).unwrap(), ids);
    let decoded = leap(&[written, "--decode"], &ids);
    assert_eq!(String::from_utf8(decoded.stdout).unwrap(), texts);
    let special = leap(&[written, "--encode", "--special"], "\"<s>\"\n");
    assert_eq!(special.stdout, b"[1]\n");
}

#[test]
fn command_names_the_line_it_cannot_read() {
    let input = golden("llama3-tiny/tokenizer.model");
    let input = input.to_str().unwrap();
    for (mode, lines) in [
        ("--encode", "\"a\"\nno json\n"),
        ("--encode", "\"a\"\n[1]\n"),
        ("--decode", "[1]\n[-1]\n"),
        ("--decode", "[1]\n[99999]\n"),
    ] {
        let done = leap(&[input, mode], lines);
        assert_eq!(done.status.code(), Some(3), "{lines:?}");
        assert_eq!(done.stdout.iter().filter(|&&byte| byte == b'\n').count(), 1);
        let message = String::from_utf8(done.stderr).unwrap();
        assert!(message.contains("line 2"), "{message}");
    }
}

#[test]
fn command_refuses_what_makes_no_sense() {
    let input = golden("llama3-tiny/tokenizer.model");
    let input = input.to_str().unwrap();
    let folder = Folder::new();
    let own = folder.join("tokenizer.bin");
    let own = own.to_str().unwrap();
    assert!(leap(&[input, "-o", own], "").status.success());
    for usage in [&[input, "--encode", "--decode"][..], &[input, "--special"], &[own], &[]] {
        assert_eq!(leap(usage, "").status.code(), Some(2), "{usage:?}");
    }
    std::fs::write(folder.join("cut.bin"), &std::fs::read(own).unwrap()[..5000]).unwrap();
    let cut = folder.join("cut.bin");
    for bad in [
        cut.to_str().unwrap(),
        "/no/such/file",
        "/no/such/folder/",
        folder.join("leap-no-tokenizer").to_str().unwrap(),
    ] {
        let done = leap(&[bad, "--encode"], "");
        assert_eq!(done.status.code(), Some(3), "{bad}: {done:?}");
    }
    let done = leap(&[input, "-o", "/no/such/folder/out.bin"], "");
    assert_eq!(done.status.code(), Some(1));
}
