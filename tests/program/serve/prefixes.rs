//! Prompts that a server has computed survive a restart.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::ring::{Worker, ring_file};
use super::text_of;
use crate::common::folder::Folder;
use crate::common::leap;
use crate::http::{Served, ask};

/// A request with a prompt of `n` ids, and an answer of a few.
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
fn a_prompt_with_several_answers_counts_once() {
    let served = Served::start(&["--streams", "4"]);
    let mut several = body(100);
    several["n"] = json!(3);
    assert_eq!(n_computed(&served.post("/v1/completions", &several)), 100);
    let again = served.post("/v1/completions", &several);
    assert_eq!((&again["usage"]["prompt_tokens"], n_computed(&again)), (&json!(100), 1));
    several["stream"] = json!(true);
    several["stream_options"] = json!({"include_usage": true});
    let (_, text) = ask(&served.address, "POST", "/v1/completions", &several.to_string());
    let last = text.lines().rfind(|line| line.contains("cached_tokens")).unwrap();
    let last: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(last["usage"], again["usage"]);
    // One of the two prompts is known already.
    let prompts = json!([body(100)["prompt"], vec![900; 50]]);
    let both = json!({"prompt": prompts, "n": 2, "max_tokens": 2});
    let both = served.post("/v1/completions", &both);
    assert_eq!((&both["usage"]["prompt_tokens"], n_computed(&both)), (&json!(150), 51));
}

#[test]
fn a_long_prompt_is_not_computed_again_after_kill_9() {
    let folder = Folder::new();
    let place = folder.join("kept/prefixes");
    let start = || Served::start(&["--prefix-cache", place.to_str().unwrap()]);
    let mut served = start();
    let (first, alone) = (served.post("/v1/completions", &body(330)), body(340));
    assert_eq!(n_computed(&first), 330);
    // Five full pages, and the rest.
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

/// A server like those of [`Served::start`] that cannot write files: a file size limit fails like a full disk.
fn without_disk(args: &[&str]) -> Served {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 4; exec \"$@\"", "sh"]);
    let mut leap = leap();
    leap.args(["serve", "--listen", "127.0.0.1:0", "--threads", "1"]).args(args);
    limited.arg(leap.get_program()).args(leap.get_args());
    limited.stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
    Served::by(limited)
}

#[test]
fn a_full_disk_stops_no_answer() {
    let folder = Folder::new();
    let mut served = without_disk(&["--prefix-cache", folder.path().to_str().unwrap()]);
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

#[cfg(feature = "tools")]
mod recurrent {
    use super::*;
    use crate::common::ran::Ran;

    /// A request with a prompt of `n` ids that a small vocabulary has.
    fn body(n: u32) -> Value {
        let ids: Vec<u32> = (0..n).map(|i| 5 + i * 7 % 301).collect();
        json!({"prompt": ids, "max_tokens": 8, "temperature": 0.9, "seed": 4, "stop": ["\u{0}"]})
    }

    /// Path of a model with recurrent layers, which has a tokenizer beside it.
    fn model(folder: &Folder) -> String {
        let model = folder.join("model.bin").to_str().unwrap().to_owned();
        let mut export = leap();
        export.args(["export", &model, "--meta-llama", "tests/golden/qwen35-tiny"]);
        Ran::new(export.output().unwrap()).succeeds();
        model
    }

    #[test]
    fn a_long_prompt_goes_on_from_its_state_after_kill_9() {
        let folder = Folder::new();
        let (model, place) = (model(&folder), folder.join("prefixes"));
        let start = || Served::start(&[&model, "--prefix-cache", place.to_str().unwrap()]);
        let mut served = start();
        let (first, longer) = (served.post("/v1/completions", &body(330)), body(340));
        assert_eq!(n_computed(&first), 330);
        // Five full pages, the beginning of the last one, and the state behind it.
        wait_for_files(&place, 7);
        served.signal(Signal::SIGKILL);
        served.code();
        let mut served = start();
        let again = served.post("/v1/completions", &body(330));
        assert_eq!((n_computed(&again), text_of(&again)), (1, text_of(&first)));
        let longer_text = served.post("/v1/completions", &longer);
        assert_eq!(n_computed(&longer_text), 11);
        let figures = ask(&served.address, "GET", "/metrics", "").1;
        assert!(figures.contains("\nleap_prefix_file_tokens_total 329\n"), "{figures}");
        served.signal(Signal::SIGTERM);
        assert_eq!(served.code(), Some(0));
        let other = Served::start(&[&model]);
        assert_eq!(text_of(&other.post("/v1/completions", &longer)), text_of(&longer_text));
    }

    #[test]
    fn a_full_disk_stops_no_answer() {
        let folder = Folder::new();
        let (model, place) = (model(&folder), folder.join("prefixes"));
        let mut served = without_disk(&[&model, "--prefix-cache", place.to_str().unwrap()]);
        let first = served.post("/v1/completions", &body(330));
        let second = served.post("/v1/completions", &body(330));
        assert_eq!((n_computed(&first), n_computed(&second)), (330, 1));
        assert_eq!(text_of(&first), text_of(&second));
        served.said("prefixes are not kept in ");
        served.signal(Signal::SIGTERM);
        assert_eq!(served.code(), Some(0));
        assert_eq!(n_files(&place), 0);
    }
}

/// A ring's boards, each with a folder of its own in `folder`, except those in `without`.
struct Ring<'a> {
    folder: &'a Folder,
    file: String,
    workers: Vec<(&'static str, Worker)>,
    served: Served,
}

impl<'a> Ring<'a> {
    fn start(folder: &'a Folder, layers: [&str; 3], without: &[&str]) -> Ring<'a> {
        let path = folder.write("ring.txt", ring_file(layers));
        let file = path.to_str().unwrap().to_owned();
        let mut command = leap();
        command.args(["serve", "--listen", "127.0.0.1:0", "--ring", &file, "--transport", "udp"]);
        command.args(["--threads", "1", "--ctx", "512"]);
        command.arg("--prefix-cache").arg(folder.join("desk"));
        let names = ["pi", "orange"];
        let start = |name| (name, Ring::worker(folder, &file, name, without));
        let workers = names.map(start).into_iter().collect();
        Ring { folder, workers, served: Served::by(command), file }
    }

    fn worker(folder: &Folder, file: &str, name: &str, without: &[&str]) -> Worker {
        let place = folder.join(name);
        let options = ["--prefix-cache", place.to_str().unwrap()];
        Worker::start_with(file, name, if without.contains(&name) { &[] } else { &options })
    }

    /// Restarts a worker, as after a power loss.
    fn restart(&mut self, name: &str) {
        for (own, worker) in &mut self.workers {
            if *own == name {
                worker.kill();
                *worker = Ring::worker(self.folder, &self.file, own, &[]);
            }
        }
    }

    /// Kills all boards, like a power loss.
    fn kill(mut self) {
        self.served.signal(Signal::SIGKILL);
        self.served.code();
    }

    fn n_read(&self) -> usize {
        let figures = ask(&self.served.address, "GET", "/metrics", "").1;
        let line = figures.lines().find_map(|l| l.strip_prefix("leap_prefix_file_tokens_total "));
        line.unwrap().parse().unwrap()
    }

    /// An answer to the prompt of 330 ids, `n_read` of which must come from files.
    fn answer(&self, n_read: usize) -> String {
        let before = self.n_read();
        let answer = self.served.post("/v1/completions", &body(330));
        // A client has its answer before the server has counted it.
        let end = Instant::now() + Duration::from_secs(10);
        while self.n_read() - before != n_read && Instant::now() < end {}
        assert_eq!(self.n_read() - before, n_read);
        text_of(&answer).to_owned()
    }
}

#[test]
fn a_ring_does_not_compute_a_long_prompt_again_after_kill_9() {
    let folder = Folder::new();
    let [desk, pi, orange] = ["desk", "pi", "orange"].map(|name| folder.join(name));
    let start = || Ring::start(&folder, ["0..2", "2..4", "4..6"], &[]);
    let other = Served::start(&["--ctx", "512"]);
    let wanted = text_of(&other.post("/v1/completions", &body(330))).to_owned();
    let ring = start();
    assert_eq!(ring.answer(0), wanted);
    // Five full pages and the rest, on each board.
    let wait = || [&desk, &pi, &orange].map(|place| wait_for_files(place, 6));
    wait();
    ring.kill();
    let mut ring = start();
    let first = ring.served.post("/v1/completions", &body(330));
    assert_eq!((n_computed(&first), text_of(&first)), (1, &wanted[..]));
    assert_eq!(n_computed(&ring.served.post("/v1/completions", &body(340))), 10);
    // One board restarts.
    ring.restart("pi");
    assert_eq!(ring.answer(330), wanted);
    // The board has lost its storage, too.
    fs::remove_dir_all(&pi).unwrap();
    ring.restart("pi");
    assert_eq!(ring.answer(0), wanted);
    wait();
    ring.restart("pi");
    assert_eq!(ring.answer(330), wanted);
    ring.kill();
    // A file is damaged, which also invalidates those behind it.
    let names = fs::read_dir(&orange).unwrap().map(|entry| entry.unwrap().path());
    let page = { names }.find(|path| path.to_str().unwrap().ends_with("-2.kv")).unwrap();
    let mut bytes = fs::read(&page).unwrap();
    bytes[2000] ^= 4;
    fs::write(&page, bytes).unwrap();
    let ring = start();
    assert_eq!(ring.answer(128), wanted);
    ring.kill();
    // The boards have other layers.
    let ring = Ring::start(&folder, ["0..1", "1..4", "4..6"], &[]);
    assert_eq!(ring.answer(0), wanted);
    ring.kill();
    let ring = Ring::start(&folder, ["0..2", "2..4", "4..6"], &["pi"]);
    assert_eq!(ring.answer(0), wanted);
    ring.served.said("prefixes are not kept: pi has no --prefix-cache");
    ring.kill();
}
