//! Nodes that have nothing to do sleep, whatever they wait for.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::folder::Folder;
use crate::common::models::package;
use crate::common::{leap, own_host};

/// Most wake-ups a second of an idle node, and most of its CPU time as a part of a core. A busy machine adds to
/// neither; a node that spins takes all that the machine can give.
const WAKES_PER_S: f64 = 50.0;
const CPU_MOST: f64 = 0.03;
/// Time for a state to settle, and time of the measurement.
const SETTLE: Duration = Duration::from_millis(2500);
const WATCH: Duration = Duration::from_millis(2000);

/// A node's process, killed when this is dropped.
struct Node {
    name: &'static str,
    child: Child,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Wake-ups of a process's threads, and its CPU time.
#[derive(Clone, Copy)]
struct Spent {
    wakes: u64,
    cpu: Duration,
}

impl Node {
    fn spent(&self) -> Spent {
        let mut spent = Spent { wakes: 0, cpu: Duration::ZERO };
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap() {
            let path = task.unwrap().path();
            let status = fs::read_to_string(path.join("status")).unwrap();
            let switches = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
            spent.wakes += switches.unwrap().trim().parse::<u64>().unwrap();
            let schedstat = fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            let ns = schedstat.split(' ').next().and_then(|ns| ns.parse().ok());
            spent.cpu += Duration::from_nanos(ns.unwrap_or(0));
        }
        spent
    }
}

/// A ring of three nodes, on addresses that only this process uses.
struct Ring {
    carrier: &'static str,
    file: PathBuf,
    key: PathBuf,
    folder: Folder,
}

impl Ring {
    fn new(carrier: &'static str) -> Ring {
        let folder = Folder::new();
        let line = |(name, layers): (&str, &str)| format!("{name} {} {layers}\n", own_host());
        let nodes = [("desk", "0..1"), ("pi", "1..4"), ("orange", "4..6")];
        let text: String = nodes.into_iter().map(line).collect();
        let file = folder.write("ring", text);
        let bytes: Vec<u8> = (0..32).collect();
        let key = folder.write("key", bytes);
        Ring { carrier, file, key, folder }
    }

    fn start(&self, name: &'static str, options: &[&str]) -> Node {
        let role = if name == "desk" { "master" } else { "worker" };
        let mut command = leap();
        command.arg(role).arg(package("models/demo.bin")).arg("--ring").arg(&self.file);
        command.args(["--node", name, "--threads", "1", "--transport", self.carrier]);
        // Slow kernels make an answer last.
        command.env("LEAP_ISA", "scalar").args(options).stdin(Stdio::piped());
        command.stdout(File::create(self.folder.join("text")).unwrap());
        let log = File::options().create(true).append(true).open(self.folder.join(name)).unwrap();
        Node { name, child: command.stderr(log).spawn().unwrap() }
    }

    /// A master that waits for nodes, then for a line.
    fn chat(&self) -> Node {
        self.start("desk", &["--chat", "--ctx", "512", "--ring-timeout", "0"])
    }

    /// Waits until the log of `name` contains `what`.
    fn wait_for(&self, name: &str, what: &str) {
        let start = Instant::now();
        let has = || {
            let log = BufReader::new(File::open(self.folder.join(name)).unwrap());
            log.lines().any(|line| line.unwrap().contains(what))
        };
        while !has() {
            assert!(start.elapsed() < Duration::from_secs(30), "{name} does not say {what:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checks that all of `nodes` sleep in this state.
    #[expect(clippy::print_stdout, reason = "figures for who runs the test to see them")]
    fn check(&self, state: &str, nodes: &mut [&mut Node]) {
        thread::sleep(SETTLE);
        let (before, start): (Vec<Spent>, _) =
            (nodes.iter().map(|node| node.spent()).collect(), Instant::now());
        thread::sleep(WATCH);
        let seconds = start.elapsed().as_secs_f64();
        for (node, before) in nodes.iter_mut().zip(before) {
            let Spent { wakes, cpu } = node.spent();
            let wakes = (wakes - before.wakes) as f64 / seconds;
            let cpu = (cpu - before.cpu).as_secs_f64() / seconds;
            let (carrier, name) = (self.carrier, node.name);
            assert_eq!(node.child.try_wait().unwrap(), None, "{carrier}, {state}: {name} is over");
            println!("{carrier}, {state}, {name}: {wakes:.0} wake-ups/s, {:.2} % CPU", 100.0 * cpu);
            let percent = 100.0 * cpu;
            assert!(cpu <= CPU_MOST, "{carrier}, {state}: {name} has {percent:.1} % of a core");
            assert!(
                wakes <= WAKES_PER_S,
                "{carrier}, {state}: {name} wakes {wakes:.0} times a second"
            );
        }
    }

    fn live(&self) {
        let mut pi = self.start("pi", &[]);
        let mut desk = self.chat();
        self.check("the third is missing", &mut [&mut desk, &mut pi]);
        drop(desk);
        self.check("the master left a ring that was not complete", &mut [&mut pi]);
        let mut desk = self.chat();
        let mut orange = self.start("orange", &[]);
        self.wait_for("desk", "ring of 3 nodes");
        self.check("idle", &mut [&mut desk, &mut pi, &mut orange]);
        drop(orange);
        self.check("the third is gone", &mut [&mut desk, &mut pi]);
        let mut orange = self.start("orange", &[]);
        self.wait_for("pi", "began anew");
        drop(pi);
        self.check("the second is gone", &mut [&mut desk, &mut orange]);
        drop(desk);
        self.check("no other program is there", &mut [&mut orange]);
        let desk = self.chat();
        let mut pi = self.start("pi", &["--key", self.key.to_str().unwrap()]);
        self.check("refused", &mut [&mut pi, &mut orange]);
        drop((desk, pi, orange));
        self.answer();
    }

    /// Nodes end in the middle of an answer.
    fn answer(&self) {
        let (mut pi, orange) = (self.start("pi", &[]), self.start("orange", &[]));
        let sampling = ["--temp", "1.5", "--top-p", "1", "--seed", "2", "--ring-timeout", "0"];
        let prompt = ["-p", "Once upon a time", "-n", "500", "--ctx", "512"];
        let mut desk = self.start("desk", &[&prompt[..], &sampling].concat());
        let text = self.folder.join("text");
        while fs::metadata(&text).unwrap().len() < 20 {
            thread::sleep(Duration::from_millis(1));
        }
        drop(orange);
        self.check("the third goes in an answer", &mut [&mut desk, &mut pi]);
        drop(pi);
        self.check("the second goes in an answer", &mut [&mut desk]);
    }
}

#[test]
fn nodes_that_wait_sleep() {
    // Emulators do not sleep like the program.
    if std::env::var_os("LEAP_TEST_RUNNER").is_some() {
        return;
    }
    thread::scope(|scope| {
        for carrier in ["udp", "tcp"] {
            scope.spawn(move || Ring::new(carrier).live());
        }
    });
}
