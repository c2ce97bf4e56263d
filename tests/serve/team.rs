//! A team that serves.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::common::folder::Folder;
use super::common::leap;
use super::common::ran::Ran;
use super::http::{Served, ask};
use super::{run_alone, text_of};

/// Ends with what it is in.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The figure `name` of `node`.
fn figure(metrics: &str, name: &str, node: &str) -> Option<f64> {
    let begin = format!("leap_node_{name}{{node={node:?}}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&begin)?.parse().ok())
}

#[test]
fn metrics_tell_where_the_time_of_each_node_of_a_team_goes() {
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = format!("127.80.{high}.{low}");
    let folder = Folder::new();
    let path = folder.write("team.txt", format!("desk {host}:9000 1\npi {host}:9020 2\n"));
    let team = path.to_str().unwrap();
    let mut worker = leap();
    worker.args(["worker", "-q", "--team", team, "--node", "pi", "--threads", "1"]);
    let _pi = Worker(worker.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
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
    // What passes took is told a little later.
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
    // Who has two thirds of the rows reads more of the weights.
    assert!(of("bytes_per_token", "pi") > 1.5 * of("bytes_per_token", "desk"), "{metrics}");
    let waiting = ["desk", "pi"].map(|node| of("waiting_seconds_total", node));
    assert!(waiting.iter().sum::<f64>() > 0.0, "{metrics}");

    // The same by `leap ring`, which changes nothing here.
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
