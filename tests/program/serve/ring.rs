//! A serving ring, one board of which dies.

use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::models::{question, three, wait_for_loaded};
use super::{FOX, chat, run_alone, text_of};
use crate::common::folder::Folder;
use crate::common::leap;
use crate::http::{Served, ask};
use crate::ports::free_port;

/// A worker of a ring, killed when this is dropped.
pub(super) struct Worker(Child);

impl Worker {
    fn start(ring: &str, node: &str) -> Worker {
        Worker::start_with(ring, node, &[])
    }

    pub(super) fn start_with(ring: &str, node: &str, options: &[&str]) -> Worker {
        let mut command = leap();
        command.args([
            "worker",
            "-q",
            "--ring",
            ring,
            "--node",
            node,
            "--transport",
            "udp",
            "--threads",
            "1",
            "--watts",
            "2,8",
        ]);
        command.args(options);
        Worker(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Kills the worker, like a power loss.
    pub(super) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The ring file of three boards with these layers, on free ports.
pub(super) fn ring_file(layers: [&str; 3]) -> String {
    let ports = [0; 3].map(|_| free_port());
    let nodes = ["desk", "pi", "orange"].iter().zip(layers).zip(ports);
    nodes.map(|((name, layers), port)| format!("{name} 127.0.0.1:{port} {layers}\n")).collect()
}

#[test]
fn a_ring_serves_what_one_board_would_though_a_worker_dies() {
    let folder = Folder::new();
    let path = folder.write("ring.txt", ring_file(["0..2", "2..4", "4..6"]));
    let ring = path.to_str().unwrap();
    let _orange = Worker::start(ring, "orange");
    let pi = Worker::start(ring, "pi");
    let mut command = leap();
    command.env("LEAP_SYSFS", folder.path()).args(["serve", "--listen", "127.0.0.1:0"]);
    command.args(["--ring", ring, "--transport", "udp", "--streams", "3", "--ctx", "256"]);
    let served = Served::by(command);
    let wanted: Vec<String> = (1..4)
        .map(|seed| {
            let seed = seed.to_string();
            run_alone(
                &["--chat", "--temp", "0.9", "--top-p", "0.95", "--seed", &seed, "-n", "120"],
                &format!("{FOX}\n"),
            )
        })
        .collect();
    let (began, begun) = mpsc::channel();
    // Dropped when all answers are there.
    let mut second_pi = None;
    thread::scope(|scope| {
        for (seed, wanted) in (1..).zip(&wanted) {
            let (served, began) = (&served, began.clone());
            scope.spawn(move || {
                let body = json!({"messages": chat(FOX), "temperature": 0.9, "top_p": 0.95, "seed": seed, "max_tokens": 120, "stream": true});
                served.begin_and_leave("/v1/chat/completions", &body);
                let (mut stream, mut answer) = served.begin_text("/v1/chat/completions", &body);
                began.send(()).unwrap();
                stream.read_to_string(&mut answer).unwrap();
                let events = answer.lines().filter_map(|line| line.strip_prefix("data: "));
                let events = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
                let text: String = events
                    .filter_map(|event| Some(event.pointer("/choices/0/delta/content")?.as_str()?.to_owned()))
                    .collect();
                assert_eq!(&text, wanted, "{seed}");
            });
        }
        begun.iter().take(3).for_each(drop);
        drop(pi);
        second_pi = Some(Worker::start(ring, "pi"));
        let body = json!({"prompt": "Once", "max_tokens": 2});
        assert_eq!(served.post("/v1/completions", &body)["usage"]["completion_tokens"], 2);
    });
    // Figures name each node.
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let text = ask(&served.address, "GET", "/metrics", "").1;
        if text.contains("\nleap_node_layers{node=\"orange\"} 2\n") {
            assert!(text.contains("\nleap_node_compute_seconds_total{node=\"pi\"} "), "{text}");
            // The master has no sensor here.
            let tells =
                |node| text.contains(&format!("\nleap_node_energy_joules_total{{node={node:?}}} "));
            assert!(tells("pi") && tells("orange") && !tells("desk"), "{text}");
            // Memory for a context of each stream.
            assert!(text.contains("\nleap_kv_pages 12\n"), "{text}");
            assert!(!text.contains("\nleap_prefix_tokens_total 0\n"), "{text}");
            let is_free = text.contains("\nleap_kv_pages_used 0\n");
            if is_free && !text.contains("\nleap_kv_pages_idle 0\n") {
                break;
            }
        }
        assert!(Instant::now() < end, "{text}");
    }
    drop(second_pi);
}

/// The boards compute one of several models. The others, which the master computes alone, answer also while a board is
/// lost.
#[test]
fn one_of_several_models_is_on_a_ring() {
    let folder = three();
    let path = folder.write("ring.txt", ring_file(["0..2", "2..4", "4..6"]));
    let ring = path.to_str().unwrap();
    let _orange = Worker::start(ring, "orange");
    let mut pi = Worker::start(ring, "pi");
    let [demo, draft, qwen3] =
        ["demo", "draft", "qwen3"].map(|name| folder.join(&format!("{name}.bin")));
    let models = [&draft, &qwen3].map(|path| path.to_str().unwrap()).join(",");
    let mut command = leap();
    command.env("XDG_CACHE_HOME", folder.join("cache")).env("LEAP_SYSFS", folder.path());
    command.arg("serve").arg(&demo).args(["--listen", "127.0.0.1:0", "--models", &models]);
    command.args(["--ring", ring, "--transport", "udp", "--streams", "3", "--ctx", "256"]);
    command.args(["--ring-timeout", "10"]);
    let mut served = Served::by(command);
    let all = [("demo", &demo), ("draft", &draft), ("qwen3", &qwen3)];
    let wanted = all.map(|(_, path)| {
        let args = ["--temp", "0.9", "--top-p", "0.95", "--seed", "1", "-n", "24"];
        let path = [path.to_str().unwrap()];
        let whole = run_alone(&[&path[..], &args, &["-p", "Once there was"]].concat(), "");
        whole.strip_prefix("Once there was").unwrap().to_owned()
    });
    let is_right = |model: usize| {
        let answer = served.post("/v1/completions", &question(all[model].0, 1));
        assert_eq!(text_of(&answer), wanted[model], "{}", all[model].0);
    };
    thread::scope(|scope| {
        for client in 0..9 {
            scope.spawn(move || (0..4).for_each(|request| is_right((client + request) % 3)));
        }
    });
    // The first model stays, whatever a request wants.
    for model in ["demo", "draft", "qwen3"] {
        served.post("/api/generate", &json!({"model": model, "keep_alive": 0}));
    }
    wait_for_loaded(&served, &["demo"]);
    pi.kill();
    let status = |model: &str| {
        let question = question(model, 1).to_string();
        ask(&served.address, "POST", "/v1/completions", &question).0[9..12].to_owned()
    };
    thread::scope(|scope| {
        // More requests than the model has streams.
        let lost = || assert_eq!(status("demo"), "503", "a board is lost");
        let waiting: Vec<_> = (0..7).map(|_| scope.spawn(lost)).collect();
        is_right(1);
        let has_waited = waiting.iter().all(|waiting| waiting.is_finished());
        assert!(!has_waited, "the other model waited until the ring gave up");
        (0..3).for_each(|request| is_right(1 + request % 2));
    });
    assert_eq!([status("demo"), status("draft")], ["503", "200"]);
    assert!(ask(&served.address, "GET", "/health", "").0.starts_with("HTTP/1.1 503 "));
    let _second_pi = Worker::start(ring, "pi");
    let end = Instant::now() + Duration::from_secs(60);
    while status("demo") != "200" {
        assert!(Instant::now() < end, "the board is back, and the model has no answer");
        thread::sleep(Duration::from_millis(50));
    }
    (0..3).for_each(is_right);
    served.signal(Signal::SIGTERM);
    assert_eq!(served.code(), Some(0));
}
