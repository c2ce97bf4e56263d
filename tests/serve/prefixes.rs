//! What a server has computed is there after a restart.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::common::folder::Folder;
use super::common::leap;
use super::http::{Served, ask};
use super::text_of;

/// A prompt of `n` ids, and an answer of a few.
fn body(n: u32) -> Value {
    let ids: Vec<u32> = (0..n).map(|i| 1000 + i * 7 % 301).collect();
    json!({"prompt": ids, "max_tokens": 8, "temperature": 0.9, "seed": 4, "stop": ["\u{0}"]})
}

fn n_computed(answer: &Value) -> i64 {
    let usage = &answer["usage"];
    let cached = usage.pointer("/prompt_tokens_details/cached_tokens").unwrap();
    usage["prompt_tokens"].as_i64().unwrap() - cached.as_i64().unwrap()
}

fn n_files(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

fn wait_for_files(folder: &Path, n: usize) {
    let end = Instant::now() + Duration::from_secs(30);
    while n_files(folder) < n {
        assert!(Instant::now() < end, "{} files", n_files(folder));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_long_prompt_is_not_computed_again_after_kill_9() {
    let folder = Folder::new();
    let place = folder.join("kept/prefixes");
    let start = || Served::start(&["--prefix-cache", place.to_str().unwrap()]);
    let mut served = start();
    let (first, alone) = (served.post("/v1/completions", &body(330)), body(340));
    assert_eq!(n_computed(&first), 330);
    // Five full pages and what follows.
    wait_for_files(&place, 6);
    served.signal(Signal::SIGKILL);
    served.code();
    let mut served = start();
    let again = served.post("/v1/completions", &body(330));
    assert_eq!((n_computed(&again), text_of(&again)), (1, text_of(&first)));
    let longer = served.post("/v1/completions", &alone);
    assert_eq!(n_computed(&longer), 10);
    let figures = ask(&served.address, "GET", "/metrics", "").1;
    assert!(figures.contains("\nleap_prefix_file_tokens_total 330\n"), "{figures}");
    served.signal(Signal::SIGTERM);
    assert_eq!(served.code(), Some(0));
    let other = Served::start(&[]);
    assert_eq!(text_of(&other.post("/v1/completions", &alone)), text_of(&longer));
}

#[test]
fn a_disk_that_takes_nothing_stops_nobody() {
    let folder = Folder::new();
    // A file size limit is refused as a full disk is.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 4; exec \"$@\"", "sh"]);
    let mut leap = leap();
    leap.args(["serve", "--listen", "127.0.0.1:0", "--threads", "1"]);
    leap.arg("--prefix-cache").arg(folder.path());
    limited.arg(leap.get_program()).args(leap.get_args());
    limited.stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
    let mut served = Served::by(limited);
    let first = served.post("/v1/completions", &body(330));
    let second = served.post("/v1/completions", &body(300));
    assert_eq!((n_computed(&first), n_computed(&second)), (330, 1));
    served.said("prefixes are not kept in ");
    served.signal(Signal::SIGTERM);
    assert_eq!(served.code(), Some(0));
    let said = served.said("");
    assert_eq!(said.matches("prefixes are not kept").count(), 1, "{said}");
    assert_eq!(n_files(folder.path()), 0);
}
