//! The program as people and scripts call it: streams, exit codes, signals, files.

mod chat;
mod drafts;
mod ends;
mod files;
mod judging;
mod limits;
mod links;
mod plan;
mod power;
mod reads;
mod self_check;
mod stand_ins;
mod text;
mod usage;

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::leap;
use crate::common::ran::Ran;

const PROMPT: &str = "Once upon a time";
/// The continuation in 20 greedy tokens by the f32 reference; int8 weights give the same text.
const ANSWER: &str =
    ", in a green valley, there lived a stubborn owl called Nilo. His best treasure was a wooden";
const DEMO: &str = "models/demo.bin";
const FOX: &str = "Tell me a story about a fox.";

fn command(args: &[&str]) -> Command {
    let mut command = leap();
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Ran {
    Ran::new(command(args).output().unwrap())
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs the program with `input` on stdin.
fn pipe(args: &[&str], input: impl AsRef<[u8]>) -> Ran {
    let mut child = start(&mut command(args));
    // A program that fails early closes its stdin.
    let _ = child.stdin.take().unwrap().write_all(input.as_ref());
    Ran::new(child.wait_with_output().unwrap())
}

/// Number of generated tokens in the line of figures.
#[track_caller]
fn generated(err: &str) -> usize {
    let after = err.split("generated ").nth(1).unwrap_or_else(|| panic!("no figures: {err}"));
    after.split(' ').next().unwrap().parse().unwrap()
}

/// Exports a golden checkpoint with its tokenizer.
fn export(folder: &Path, name: &str, checkpoint: &str) -> String {
    let out = folder.join(name).to_str().unwrap().to_owned();
    let checkpoint = format!("tests/golden/{checkpoint}");
    let ran = run(&["export", &out, "--meta-llama", &checkpoint, "--version", "1"]).succeeds();
    assert!(ran.err.contains("version 1 (f32)"), "{ran:?}");
    out
}
