//! A serving team.

use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{run_alone, text_of};
use crate::common::folder::Folder;
use crate::common::ran::Ran;
use crate::common::{leap, own_host};
use crate::http::{Served, ask};

/// A worker, killed when this is dropped.
struct Worker(Child);

impl Worker {
    fn die(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.die();
    }
}

/// The file of a team of two, in `folder`; `pi` has two thirds of the rows.
fn team_file(folder: &Folder) -> String {
    let host = own_host();
    let lines = format!("desk {host}:9000 1\npi {host}:9020 2\n");
    folder.write("team.txt", lines).to_str().unwrap().to_owned()
}

fn pi(team: &str) -> Worker {
    let mut worker = leap();
    worker.args(["worker", "-q", "--team", team, "--node", "pi", "--threads", "1"]);
    Worker(worker.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// The figure `name` of `node`.
fn figure(metrics: &str, name: &str, node: &str) -> Option<f64> {
    let begin = format!("leap_node_{name}{{node={node:?}}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&begin)?.parse().ok())
}

#[test]
fn metrics_tell_where_the_time_of_each_node_of_a_team_goes() {
    let folder = Folder::new();
    let team = &team_file(&folder);
    let _pi = pi(team);
    let mut command = leap();
    command.args(["serve", "--listen", "127.0.0.1:0", "--threads", "1", "--ctx", "256"]);
    let served = Served::by({
        command.args(["--team", team]).stdin(Stdio::null());
        command.arg("--control").arg(folder.join("control"));
        command
    });
    let prompt = "Once there was a team";
    let alone = run_alone(&["--temp", "0", "-n", "40", "-p", prompt], "");
    let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 40});
    assert_eq!(
        text_of(&served.post("/v1/completions", &body)),
        alone.strip_prefix(prompt).unwrap()
    );
    // The times of passes are reported a little later.
    let end = Instant::now() + Duration::from_secs(30);
    let metrics = loop {
        let metrics = ask(&served.address, "GET", "/metrics", "").1;
        if figure(&metrics, "gather_seconds_total", "pi").is_some_and(|seconds| seconds > 0.0) {
            break metrics;
        }
        assert!(Instant::now() < end, "{metrics}");
        served.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 2}));
    };
    let of =
        |name, node| figure(&metrics, name, node).unwrap_or_else(|| panic!("{name}: {metrics}"));
    for node in ["desk", "pi"] {
        assert_eq!(of("layers", node), 6.0, "a team shares every layer");
        assert!(of("compute_seconds_total", node) > 0.0, "{metrics}");
        assert!(of("gather_seconds_total", node) > 0.0, "{metrics}");
        assert_eq!(figure(&metrics, "tokens_total", node), None, "a ring's");
    }
    // The board with two thirds of the rows reads more of the weights.
    assert!(of("bytes_per_token", "pi") > 1.5 * of("bytes_per_token", "desk"), "{metrics}");
    let waiting = ["desk", "pi"].map(|node| of("waiting_seconds_total", node));
    assert!(waiting.iter().sum::<f64>() > 0.0, "{metrics}");

    // `leap ring` shows the team, too, and changes nothing here.
    let ask = |args: &[&str]| {
        let mut command = leap();
        command.arg("ring").args(args).arg("--control").arg(folder.join("control"));
        Ran::new(command.output().unwrap())
    };
    let status: Value = serde_json::from_str(&ask(&["status", "--json"]).succeeds().out).unwrap();
    assert_eq!(status["state"], "open", "{status}");
    let shares: Vec<f64> = status["nodes"].as_array().unwrap().iter().map(share_of).collect();
    assert!((shares[1] - 2.0 * shares[0]).abs() < 1e-3, "{status}");
    assert!(status["nodes"][1]["compute_ms"].as_f64().unwrap() > 0.0, "{status}");
    assert!(status["tokens"].as_u64().unwrap() > 0, "{status}");
    let text = ask(&["status"]).succeeds().out;
    assert!(text.contains("\npi ") && text.contains(" 67 % "), "{text}");
    for change in [&["resize", "desk=0..2,pi=2..6"][..], &["replan"]] {
        ask(change).fails(2, "lead of a team");
    }
}

fn share_of(node: &Value) -> f64 {
    assert!(["desk", "pi"].contains(&node["name"].as_str().unwrap()), "{node}");
    node["share"].as_f64().unwrap()
}

/// Four texts at a time need more memory than there is, and the worker dies during each four.
#[test]
fn answers_are_those_of_run_although_a_board_of_the_team_dies() {
    let folder = Folder::new();
    let team = &team_file(&folder);
    let mut worker = pi(team);
    let mut command = leap();
    command.args(["serve", "--listen", "127.0.0.1:0", "--threads", "1", "--ctx", "256"]);
    command.args(["--streams", "4", "--kv-memory", "800K", "--team", team]).stdin(Stdio::null());
    let served = &Served::by(command);
    let prompts = ["Once there was a cat", "Once there was a dog", "The sun", "A boat"];
    let alone = prompts.map(|p| run_alone(&["--temp", "0", "-n", "150", "-p", p], ""));
    for _ in 0..3 {
        thread::scope(|scope| {
            let answers = prompts.map(|prompt| {
                scope.spawn(move || {
                    let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 150});
                    text_of(&served.post("/v1/completions", &body)).to_owned()
                })
            });
            thread::sleep(Duration::from_millis(100));
            worker.die();
            worker = pi(team);
            for ((answer, prompt), alone) in answers.into_iter().zip(prompts).zip(&alone) {
                assert_eq!(answer.join().unwrap(), alone.strip_prefix(prompt).unwrap());
            }
        });
    }
    let pages = |name: &str| {
        let metrics = ask(&served.address, "GET", "/metrics", "").1;
        let line =
            metrics.lines().find_map(|line| line.strip_prefix(&format!("leap_kv_pages{name} ")));
        line.unwrap_or_else(|| panic!("{metrics}")).parse::<usize>().unwrap()
    };
    // An answer reaches its client a moment before the gauges change.
    let start = Instant::now();
    while pages("_used") > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "pages stay in use");
        thread::sleep(Duration::from_millis(10));
    }
    assert!((4..16).contains(&pages("")));
}

/// Requests are refused at once while a board is lost, those that were there before among them.
#[test]
fn a_team_that_is_lost_says_so_until_it_is_back() {
    let folder = Folder::new();
    let team = &team_file(&folder);
    let mut worker = pi(team);
    let mut command = leap();
    command.args(["serve", "--listen", "127.0.0.1:0", "--threads", "1", "--ctx", "256"]);
    command.args(["--streams", "2", "--ring-timeout", "5", "--team", team]).stdin(Stdio::null());
    let served = &Served::by(command);
    let body = json!({"prompt": "The sun", "temperature": 0, "max_tokens": 20}).to_string();
    let status = || ask(&served.address, "POST", "/v1/completions", &body).0[9..12].to_owned();
    let health = || ask(&served.address, "GET", "/health", "").0[9..12].to_owned();
    assert_eq!([status(), health()], ["200", "200"]);
    worker.die();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..5).map(|_| scope.spawn(status)).collect();
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), "503");
        }
    });
    let end = Instant::now() + Duration::from_secs(30);
    while health() != "503" {
        assert!(Instant::now() < end, "the server never says that a board is lost");
    }
    worker = pi(team);
    let end = Instant::now() + Duration::from_secs(60);
    while [health(), status()] != ["200", "200"] {
        assert!(Instant::now() < end, "the board is back, and there is no answer");
        thread::sleep(Duration::from_millis(50));
    }
    drop(worker);
}
