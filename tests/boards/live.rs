//! Rings that are queried and changed while they answer: real programs on the loopback interface.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::folder::Folder;
use crate::common::leap;
use crate::common::ran::Ran;
use crate::common::running::Running;
use crate::http::Served;
use crate::measured::give_caches;
use crate::ports::free_port;
use serde_json::{Value, json};

const PROMPT: &str = "Once upon a time there was a";

/// A ring of three boards on this machine, with a folder of its own.
struct Ring {
    folder: Folder,
    file: PathBuf,
}

impl Ring {
    fn new() -> Ring {
        let ports = [0; 3].map(|_| free_port());
        let nodes = ["desk", "pi", "orange"].iter().zip(["0..2", "2..4", "4..6"]).zip(ports);
        let lines: Vec<String> = nodes
            .map(|((name, layers), port)| format!("{name} 127.0.0.1:{port} {layers}\n"))
            .collect();
        let folder = Folder::new();
        let file = folder.write("ring.txt", lines.concat());
        let zone = folder.join("sys/class/thermal/thermal_zone0");
        std::fs::create_dir_all(&zone).unwrap();
        std::fs::write(zone.join("temp"), "48500\n").unwrap();
        std::fs::write(zone.join("trip_point_0_type"), "passive\n").unwrap();
        std::fs::write(zone.join("trip_point_0_temp"), "48000\n").unwrap();
        Ring { folder, file }
    }

    /// A command of `leap` that keeps its files in the ring's folder.
    fn leap(&self, args: &[&str]) -> Command {
        let mut command = leap();
        command.args(args).stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
        command.env("XDG_RUNTIME_DIR", self.folder.path());
        command.env("XDG_CACHE_HOME", self.folder.path());
        command.env("LEAP_SYSFS", self.folder.path());
        command
    }

    fn worker(&self, node: &str) -> Running {
        let ring = self.file.to_str().unwrap();
        let mut command = self.leap(&["worker", "-q", "--ring", ring, "--node", node]);
        command.args(["--transport", "udp", "--threads", "1"]).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    }

    fn serve(&self, args: &[&str]) -> Served {
        let ring = self.file.to_str().unwrap();
        let mut command = self.leap(&["serve", "--listen", "127.0.0.1:0", "--ring", ring]);
        command.args(["--transport", "udp", "--threads", "1", "--ctx", "256"]).args(args);
        Served::by(command)
    }

    /// Output of `leap ring` with `args`.
    fn ask(&self, args: &[&str]) -> Ran {
        Ran::new(self.leap(&[&["ring"], args].concat()).output().unwrap())
    }

    fn status(&self) -> Value {
        let status = self.ask(&["status", "--json"]).succeeds();
        serde_json::from_str(&status.out).unwrap()
    }

    /// Names and layers of the nodes, in the form that `resize` takes.
    fn layers(&self) -> String {
        let status = self.status();
        let nodes = status["nodes"].as_array().unwrap().iter();
        let parts: Vec<String> = nodes
            .map(|node| {
                format!(
                    "{}={}..{}",
                    node["name"].as_str().unwrap(),
                    node["first_layer"],
                    node["end_layer"]
                )
            })
            .collect();
        parts.join(",")
    }
}

/// A pseudo-random number below `n` (Xorshift).
fn below(n: usize, state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state % n as u64) as usize
}

/// A split of six layers over the three nodes.
fn any_split(state: &mut u64) -> String {
    let first = 1 + below(4, state);
    let second = first + 1 + below(5 - first, state);
    format!("desk=0..{first},pi={first}..{second},orange={second}..6")
}

/// Text of `leap run` for `prompt` with this seed.
fn alone(prompt: &str, seed: usize) -> String {
    let mut command = leap();
    command.args([
        "run",
        "-q",
        "--ctx",
        "256",
        "-n",
        "100",
        "-p",
        prompt,
        "--seed",
        &seed.to_string(),
    ]);
    let said = Ran::new(command.stdin(Stdio::null()).output().unwrap()).succeeds().out;
    said.strip_prefix(prompt).unwrap().strip_suffix('\n').unwrap().to_owned()
}

#[test]
fn streams_go_on_while_layers_move_and_a_worker_dies() {
    let ring = Ring::new();
    let (pi, _orange) = (ring.worker("pi"), ring.worker("orange"));
    // The last workers must run until all answers are there.
    let mut pi = Some(pi);
    let served = ring.serve(&["--streams", "3"]);
    let wanted: Vec<String> = (1..4).map(|seed| alone(PROMPT, seed)).collect();
    assert_eq!(ring.layers(), "desk=0..2,pi=2..4,orange=4..6");
    let (is_over, n_answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    let n_moves = if crate::common::quick() { 6 } else { 25 };
    thread::scope(|scope| {
        for (seed, wanted) in (1..).zip(&wanted) {
            let (served, is_over, n_answers) = (&served, &is_over, &n_answers);
            scope.spawn(move || {
                let body = json!({"prompt": PROMPT, "temperature": 1, "top_p": 0.9, "seed": seed, "max_tokens": 100});
                while !is_over.load(Ordering::Relaxed) {
                    let answer = served.post("/v1/completions", &body);
                    assert_eq!(answer["choices"][0]["text"].as_str(), Some(&**wanted), "seed {seed}");
                    n_answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut state = 0x1eaf;
        for n in 0..n_moves {
            let split = any_split(&mut state);
            if n == n_moves / 2 {
                drop(pi.take());
                pi = Some(ring.worker("pi"));
            }
            let moved = ring.ask(&["resize", &split]).succeeds();
            let told = split.replace(',', ", ").replace('=', " ");
            assert_eq!(moved.out, format!("{told}\n"));
            assert_eq!(ring.layers(), split);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(n_answers.load(Ordering::Relaxed) >= 3);
    // The plan uses observed times.
    let body = json!({"prompt": PROMPT, "temperature": 1, "seed": 1, "max_tokens": 100});
    served.post("/v1/completions", &body);
    for node in ring.status()["nodes"].as_array().unwrap() {
        assert_eq!(node["degrees_celsius"].as_f64(), Some(48.0), "{node}");
        assert_eq!(node["throttled"].as_bool(), Some(true), "{node}");
    }
    let status = ring.ask(&["status"]).succeeds().out;
    assert!(status.contains("\npi is too warm: "), "{status}");
    let replanned = ring.ask(&["replan", "--objective", "throughput"]).succeeds();
    assert!(replanned.out.contains("desk 0.."), "{replanned:?}");
    let status = ring.ask(&["status"]).succeeds().out;
    assert!(status.starts_with("node ") && status.contains("\nopen: "), "{status}");
}

/// Changes a byte of the smallest file in `folder` that has this layer.
fn damage(folder: &Path, layer: usize) {
    let held = |path: &PathBuf| {
        let mut parts = path.file_stem()?.to_str()?.split('-').skip(1).map(str::parse::<usize>);
        let range = parts.next()?.ok()?..parts.next()?.ok()?;
        (path.extension()? == "bin" && range.contains(&layer)).then_some(range.len())
    };
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files.filter(|path| held(path).is_some()).min_by_key(held).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
}

/// Boards that have only the key, and a master that calls them.
struct Boards {
    ring: Ring,
    key: PathBuf,
    /// Ports of the links (the master's first), and ports that the master calls.
    links: [String; 3],
    calls: [String; 2],
    give: String,
}

impl Boards {
    fn new() -> Boards {
        let ring = Ring::new();
        let key = ring.folder.write("key", (0..32).map(|n| n * 7 + 1).collect::<Vec<u8>>());
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let [pi, orange, give] = [0; 3].map(|_| free_port().to_string());
        let links = [0; 3].map(|_| free_port().to_string());
        Boards { ring, key, links, calls: [pi, orange], give }
    }

    /// Starts pi (0) or orange (1).
    fn worker(&self, index: usize) -> Running {
        self.worker_with(index, &[])
    }

    /// Starts pi or orange with more options.
    fn worker_with(&self, index: usize, args: &[&str]) -> Running {
        let (name, key) = (["pi", "orange"][index], self.key.to_str().unwrap());
        let mut command = self.ring.leap(&["worker", "-q", "--key", key, "--node", name]);
        give_caches(&mut command, &self.ring.folder.join(name));
        command.args(["--join", &self.calls[index], "--port", &self.links[index + 1]]);
        command.args(["--host", "127.0.0.1", "--transport", "udp", "--threads", "1"]);
        command.args(["--watts", "2,6"]).args(args);
        Running(command.stderr(Stdio::null()).spawn().unwrap())
    }

    /// Waits until `served` has left out a board because it does not serve; returns the boards that are left out.
    fn left_out(&self, served: &Served) -> Value {
        let start = Instant::now();
        loop {
            let left_out = self.ring.status()["left_out"].clone();
            let why = left_out[0]["why"].as_str().unwrap_or_default();
            if why.starts_with("it does not serve: ") {
                return left_out;
            }
            let told = || served.said("");
            assert!(start.elapsed() < Duration::from_secs(300), "{left_out}, {}", told());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts desk, which calls these workers.
    fn serve(&self, workers: &[usize], args: &[&str]) -> Served {
        self.serve_from(self.ring.folder.path(), workers, args)
    }

    /// Starts desk with `cache` as the folder for its files.
    fn serve_from(&self, cache: &Path, workers: &[usize], args: &[&str]) -> Served {
        let model = crate::common::models::package("models/demo.bin");
        self.serve_model(&model, cache, workers, args)
    }

    /// Starts desk with another model.
    fn serve_model(&self, model: &Path, cache: &Path, workers: &[usize], args: &[&str]) -> Served {
        let place = |index: &usize| format!("127.0.0.1:{}", self.calls[*index]);
        let boards = workers.iter().map(place).collect::<Vec<_>>().join(",");
        let (model, key) = (model.to_str().unwrap(), self.key.to_str().unwrap());
        let mut command = self.ring.leap(&["serve", model, "--listen", "127.0.0.1:0"]);
        give_caches(&mut command, cache);
        command.args(["--boards", &boards, "--key", key, "--objective", "memory"]);
        command.args(["--node", "desk", "--host", "127.0.0.1", "--port", &self.links[0]]);
        command.args([
            "--give",
            &self.give,
            "--transport",
            "udp",
            "--threads",
            "1",
            "--ctx",
            "256",
        ]);
        command.args(args);
        Served::by(command)
    }

    /// Starts laptop, another master that calls both boards, and writes its output to its own file `said`.
    fn laptop(&self, args: &[&str]) -> Running {
        let model = crate::common::models::package("models/demo.bin");
        let (model, key) = (model.to_str().unwrap(), self.key.to_str().unwrap());
        let [give, port] = [0; 2].map(|_| free_port().to_string());
        let boards = self.calls.each_ref().map(|call| format!("127.0.0.1:{call}")).join(",");
        let mut command = self.ring.leap(&["master", model, "--boards", &boards, "--key", key]);
        give_caches(&mut command, &self.ring.folder.join("laptop"));
        command.args(["--node", "laptop", "--host", "127.0.0.1", "--port", &port]);
        command.args(["--give", &give, "--control", "off", "--transport", "udp"]);
        command.args(["--threads", "1", "--ctx", "256", "--objective", "memory"]);
        command.args(["-p", PROMPT, "-n", "30", "--temp", "0"]).args(args);
        let said = std::fs::File::create(self.ring.folder.join("said")).unwrap();
        Running(command.stdout(Stdio::null()).stderr(said).spawn().unwrap())
    }

    /// Waits until the ring has these nodes, the master first. The others may be in any order, which depends on free
    /// memory when each was asked.
    fn wait_for(&self, names: &[&str]) {
        let start = Instant::now();
        loop {
            let status = self.ring.status();
            let nodes = status["nodes"].as_array().unwrap().iter();
            let mut found: Vec<&str> = nodes.map(|node| node["name"].as_str().unwrap()).collect();
            let mut wanted = names.to_vec();
            for names in [&mut found, &mut wanted] {
                if let Some((_, others)) = names.split_first_mut() {
                    others.sort_unstable();
                }
            }
            if status["state"] == "open" && found == wanted {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "{status}, not {names:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The request with the same answer as [`alone`] with seed 1.
fn asked() -> Value {
    json!({"prompt": PROMPT, "temperature": 1, "top_p": 0.9, "seed": 1, "max_tokens": 100})
}

/// Repeats the same request while `work` runs, and checks its answers.
fn while_answers_are_right<T>(served: &Served, work: impl FnOnce() -> T) -> T {
    let (wanted, is_over) = (alone(PROMPT, 1), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let answer = served.post("/v1/completions", &asked());
                assert_eq!(answer["choices"][0]["text"].as_str(), Some(&*wanted), "{answer}");
            }
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

#[test]
fn a_ring_does_without_boards_that_die_and_takes_in_those_that_come() {
    let boards = Boards::new();
    let [mut pi, mut orange] = [0, 1].map(|index| Some(boards.worker(index)));
    let args = ["--rebalance-after", "1", "--streams", "2"];
    let served = boards.serve(&[0, 1], &args);
    boards.wait_for(&["desk", "pi", "orange"]);
    while_answers_are_right(&served, || {
        drop(orange.take());
        boards.wait_for(&["desk", "pi"]);
        drop(pi.take());
        boards.wait_for(&["desk"]);
        let answer = served.post("/v1/completions", &asked());
        assert!(answer["choices"][0]["text"].is_string(), "{answer}");
        orange = Some(boards.worker(1));
        boards.wait_for(&["desk", "orange"]);
        pi = Some(boards.worker(0));
        boards.wait_for(&["desk", "pi", "orange"]);
    });
    // No client asks for anything at this time.
    drop(pi.take());
    boards.wait_for(&["desk", "orange"]);
    drop(served);
    // A new master, too, goes on without a board that is away.
    let served = boards.serve(&[0, 1], &args);
    boards.wait_for(&["desk", "orange"]);
    while_answers_are_right(&served, || {
        pi = Some(boards.worker(0));
        boards.wait_for(&["desk", "orange", "pi"]);
    });
    // The other board still follows the previous master's order, in which it is the node before this one.
    drop(served);
    let served = boards.serve(&[1], &args);
    while_answers_are_right(&served, || boards.wait_for(&["desk", "orange"]));
    drop(served);
    let served = boards.serve(&[0], &args);
    while_answers_are_right(&served, || boards.wait_for(&["desk", "pi"]));
}

#[test]
fn a_second_master_takes_a_servers_boards_only_if_it_is_told_to_and_gives_them_back() {
    let boards = Boards::new();
    let _workers = [0, 1].map(|index| boards.worker(index));
    let served = boards.serve(&[0, 1], &["--rebalance-after", "off"]);
    boards.wait_for(&["desk", "pi", "orange"]);
    let (start, wanted) = (Instant::now(), alone(PROMPT, 1));
    let is_late = || start.elapsed() > Duration::from_secs(240);
    let said = || std::fs::read_to_string(boards.ring.folder.join("said")).unwrap();
    let second = boards.laptop(&[]);
    while !said().contains("it works for desk at 127.0.0.1; --take takes it from there") {
        assert!(!is_late(), "the second master says for whom the boards work: {}", said());
        thread::sleep(Duration::from_millis(50));
    }
    let answer = served.post("/v1/completions", &asked());
    assert_eq!(answer["choices"][0]["text"].as_str(), Some(&*wanted));
    drop(second);
    // With `--take`, the second master takes them. The server reports this, stays, and tells its clients why there is
    // no answer.
    let mut second = boards.laptop(&["--take"]);
    let ask = || crate::http::ask(&served.address, "POST", "/v1/completions", &asked().to_string());
    served.said("another master took ");
    while second.0.try_wait().unwrap().is_none() {
        let (head, text) = crate::http::ask(&served.address, "GET", "/health", "");
        if head.starts_with("HTTP/1.1 503 ") {
            assert!(text.contains("another master took ") && text.contains("laptop"), "{text}");
            break;
        }
        assert!(!is_late(), "{head}{text}");
    }
    assert!(second.0.wait().unwrap().success(), "{}", said());
    // The boards are free: the server takes them back by itself.
    loop {
        let (head, text) = ask();
        if head.starts_with("HTTP/1.1 200 ") {
            let answer: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(answer["choices"][0]["text"].as_str(), Some(&*wanted));
            break;
        }
        assert!(head.starts_with("HTTP/1.1 503 ") && !is_late(), "{head}{text}");
        thread::sleep(Duration::from_millis(200));
    }
    served.said(" works for this master again");
}

/// No folder can be made below a file: this stands for a read-only file system.
#[test]
fn a_server_that_can_keep_nothing_answers_and_says_when_its_boards_are_gone() {
    let boards = Boards::new();
    let file = boards.ring.folder.write("no-folder", "");
    let mut worker = Some(boards.worker(0));
    let args = ["--rebalance-after", "off", "--ring-timeout", "3"];
    let served = boards.serve_from(&file, &[0], &args);
    let (start, wanted) = (Instant::now(), alone(PROMPT, 1));
    let is_late = || start.elapsed() > Duration::from_secs(240);
    let ask = || crate::http::ask(&served.address, "POST", "/v1/completions", &asked().to_string());
    let check = |text: &str| {
        let answer: Value = serde_json::from_str(text).unwrap();
        assert_eq!(answer["choices"][0]["text"].as_str(), Some(&*wanted), "{answer}");
    };
    let (head, text) = ask();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}{text}");
    check(&text);
    // The board is switched off: requests are refused with the reason, and the server stays.
    drop(worker.take());
    let why = "the ring is lost: no progress for 3 s; ";
    let (head, text) = ask();
    assert!(
        head.starts_with("HTTP/1.1 503 ") && text.contains(why) && text.contains("pi"),
        "{head}{text}"
    );
    // `/health` gives the reason, too, as long as it lasts.
    let is_told = || {
        let (head, text) = crate::http::ask(&served.address, "GET", "/health", "");
        head.starts_with("HTTP/1.1 503 ") && text.contains(why)
    };
    while !is_told() {
        assert!(!is_late(), "/health says that boards are gone");
        thread::sleep(Duration::from_millis(50));
    }
    for _ in 0..40 {
        thread::sleep(Duration::from_millis(100));
        assert!(is_told(), "/health says so until they are back");
    }
    // The board is switched on again.
    worker.replace(boards.worker(0));
    loop {
        let (head, text) = ask();
        if head.starts_with("HTTP/1.1 200 ") {
            check(&text);
            break;
        }
        assert!(head.starts_with("HTTP/1.1 503 ") && !is_late(), "{head}{text}");
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn boards_fetch_layers_while_the_ring_runs() {
    let boards = Boards::new();
    let ring = &boards.ring;
    let mut workers = [boards.worker(0), boards.worker(1)];
    let served = boards.serve(&[0, 1], &["--rebalance-after", "off"]);
    let wanted = alone(PROMPT, 1);
    while_answers_are_right(&served, || {
        let splits = [
            "desk=0..1,pi=1..5,orange=5..6",
            "desk=0..2,pi=2..3,orange=3..6",
            "desk=0..4,pi=4..5,orange=5..6",
        ];
        for split in splits {
            ring.ask(&["resize", split]).succeeds();
            assert_eq!(ring.layers(), split);
            let order = std::fs::read_to_string(ring.folder.join("pi/leap/layers/order")).unwrap();
            let pi = split.split(&['=', ','][..]).nth(3).unwrap();
            let line = order.lines().find(|line| line.starts_with("pi ")).unwrap();
            assert!(line.ends_with(pi), "{order}");
        }
        for (index, running) in workers.iter_mut().enumerate() {
            let _ = running.0.kill();
            let _ = running.0.wait();
            // A disk has damaged a layer: the layer is sent again.
            let layers = ring.folder.join(["pi", "orange"][index]).join("leap/layers");
            damage(&layers, [4, 5][index]);
            *running = boards.worker(index);
        }
        ring.ask(&["resize", "desk=0..1,pi=1..2,orange=2..6"]).succeeds();
    });
    assert_eq!(ring.layers(), "desk=0..1,pi=1..2,orange=2..6");
    ring.ask(&["replan", "--objective", "memory"]).succeeds();
    // All boards but this one state their watts.
    ring.ask(&["replan", "--objective", "energy"]).fails(1, "the watts of desk");
    ring.ask(&["resize", "desk=0..1,pi=1..3,orange=4..6"]).fails(2, "are no split");
    let says = |served: &Served| {
        let answer = served.post("/v1/completions", &asked());
        assert_eq!(answer["choices"][0]["text"].as_str(), Some(&*wanted));
    };
    says(&served);
    // The next master finds boards whose layers have moved.
    drop(served);
    says(&boards.serve(&[0, 1], &[]));
}

#[test]
fn nodes_compute_with_as_many_threads_as_the_ring_file_says() {
    let ring = Ring::new();
    let lines = std::fs::read_to_string(&ring.file).unwrap();
    std::fs::write(&ring.file, lines.replace('\n', " threads=2\n")).unwrap();
    // A node's own `--threads` overrides the ring file.
    let _orange = ring.worker("orange");
    let file = ring.file.to_str().unwrap();
    let mut command = ring.leap(&["worker", "-q", "--ring", file, "--node", "pi"]);
    let _pi = Running(command.args(["--transport", "udp"]).stderr(Stdio::null()).spawn().unwrap());
    let mut command = ring.leap(&["serve", "--listen", "127.0.0.1:0", "--ring", file]);
    command.args(["--transport", "udp", "--ctx", "256"]);
    let served = Served::by(command);
    served.post("/v1/completions", &asked());
    let status = ring.status();
    let threads = |node: usize| status["nodes"][node]["threads"].as_u64().unwrap();
    assert_eq!([0, 1, 2].map(threads), [2, 2, 1], "{status}");
}

#[test]
fn wrong_requests_are_refused_and_nothing_is_lost() {
    let ring = Ring::new();
    let none = ring.ask(&["status"]);
    none.fails(1, "no master of a ring runs here");
    let (_pi, _orange) = (ring.worker("pi"), ring.worker("orange"));
    let served = ring.serve(&[]);
    let before = ring.layers();
    let energy = &["replan", "--objective", "energy"][..];
    for (args, code, what) in [
        (&["resize", "desk=0..2,pi=2..4"][..], 2, "orange gets no layers"),
        (&["resize", "desk=0..2,pi=2..4,apple=4..6"], 2, "there is no apple in the ring"),
        (&["resize", "desk=0..2,pi=2..4,pi=4..5,orange=5..6"], 2, "pi is named twice"),
        (&["resize", "desk=0..2,pi=3..4,orange=4..6"], 2, "are no split of 0..6"),
        (&["resize", "desk=0..2,pi=2..2,orange=2..6"], 2, "are no split of 0..6"),
        (&["resize", "desk=0..2,pi=2..4,orange=4..7"], 2, "are no split of 0..6"),
        (&["resize", "orange=0..2,pi=2..4,desk=4..6"], 2, "are no split of 0..6"),
        (&["resize", "desk"], 2, "no NAME=FIRST..END"),
        (&["resize", "desk=0..99999999999999999999"], 2, "no NAME=FIRST..END"),
        (&["resize"], 2, "wants the layers"),
        (&["status", "desk=0..1"], 2, "wants the layers"),
        (&["stop"], 2, "none of status"),
        (energy, 2, "leap plan"),
        (&["replan", "--objective", "memory"], 2, "memory"),
        (&["replan", "--objective", "beauty"], 2, "beauty"),
        (&["replan"], 1, "too few tokens"),
        (&["status", "--control", "/nowhere"], 1, "no master of a ring listens on /nowhere"),
    ] {
        ring.ask(args).fails(code, what);
        assert_eq!(ring.layers(), before, "{args:?}");
    }
    let answer = served.post(
        "/v1/completions",
        &json!({"prompt": PROMPT, "temperature": 1, "top_p": 0.9, "seed": 1, "max_tokens": 100}),
    );
    assert_eq!(answer["choices"][0]["text"].as_str(), Some(&*alone(PROMPT, 1)));
}

#[test]
fn masters_that_died_make_way_and_two_are_told_apart() {
    let ring = Ring::new();
    let folder = ring.folder.join("leap");
    std::fs::create_dir(&folder).unwrap();
    let dead = folder.join("ring-1.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let (_pi, _orange) = (ring.worker("pi"), ring.worker("orange"));
    let mut served = ring.serve(&[]);
    assert!(!dead.exists());
    let other = folder.join("ring-2.sock");
    let listener = UnixListener::bind(&other).unwrap();
    let both = ring.ask(&["status"]);
    both.fails(2, "--control");
    assert!(both.err.contains(other.to_str().unwrap()), "{both:?}");
    drop(listener);
    assert_eq!(ring.layers(), "desk=0..2,pi=2..4,orange=4..6");
    served.signal(nix::sys::signal::Signal::SIGTERM);
    served.code();
    ring.ask(&["status"]).fails(1, "no master");
    // The socket is at the given path, or does not exist.
    drop(served);
    let path = ring.folder.join("socket");
    let served = ring.serve(&["--control", path.to_str().unwrap()]);
    ring.ask(&["status"]).fails(1, "no master");
    ring.ask(&["status", "--control", path.to_str().unwrap()]).succeeds();
    drop(served);
    let _served = ring.serve(&["--control", "off"]);
    ring.ask(&["status"]).fails(1, "no master");
}

#[test]
fn many_prompts_of_a_master_are_answered_while_layers_move() {
    let ring = Ring::new();
    let (_pi, _orange) = (ring.worker("pi"), ring.worker("orange"));
    let n = if crate::common::quick() { 40 } else { 200 };
    let prompts: String = (0..n).map(|n| format!("Once there was a fox, {n}\n")).collect();
    let file = ring.folder.write("prompts.txt", prompts);
    let args = [
        "--prompt-file",
        file.to_str().unwrap(),
        "--streams",
        "4",
        "--ctx",
        "256",
        "-n",
        "60",
        "--seed",
        "3",
        "-q",
    ];
    let wanted =
        Ran::new(ring.leap(&[&["run"], &args[..]].concat()).output().unwrap()).succeeds().out;
    let mut command = ring.leap(&[&["master"], &args[..]].concat());
    command.args(["--ring", ring.file.to_str().unwrap(), "--transport", "udp", "--threads", "1"]);
    let out = ring.folder.join("out");
    let stdout = std::fs::File::create(&out).unwrap();
    let mut master = Running(command.stdout(stdout).stderr(Stdio::null()).spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(300);
    let (mut state, mut n_moves) = (0xf0c5, 0);
    while master.0.try_wait().unwrap().is_none() {
        if n_moves < 8 {
            n_moves += usize::from(ring.ask(&["resize", &any_split(&mut state)]).code == Some(0));
        }
        assert!(Instant::now() < end, "the master hangs");
    }
    assert!(n_moves > 0, "it was over too soon");
    assert_eq!(master.0.wait().unwrap().code(), Some(0));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), wanted);
}

#[test]
fn status_names_a_board_that_was_left_out_and_a_master_its_model_that_was_overwritten() {
    let boards = Boards::new();
    let folder = &boards.ring.folder;
    for file in ["demo.bin", "demo.tokenizer.bin"] {
        std::fs::copy(crate::common::models::package("models").join(file), folder.join(file))
            .unwrap();
    }
    let _pi = boards.worker(0);
    // This board allows only shorter contexts than the master asks for.
    let _orange = boards.worker_with(1, &["--ctx", "64"]);
    let model = folder.join("demo.bin");
    let served = boards.serve_model(&model, folder.path(), &[0, 1], &["--rebalance-after", "1"]);
    boards.wait_for(&["desk", "pi"]);
    // The ring may open before the master has heard why orange is not in it. On a busy machine orange may be away for a
    // while, and be tried again.
    let left_out = boards.left_out(&served);
    let [orange] = &left_out.as_array().unwrap()[..] else { panic!("{left_out}") };
    let address = format!("127.0.0.1:{}", boards.calls[1]);
    assert_eq!((&orange["name"], &orange["address"]), (&json!("orange"), &json!(address)));
    let status = boards.ring.ask(&["status"]).succeeds().out;
    let line = format!("\nleft out: orange at {address}: it does not serve: ");
    assert!(status.contains(&line), "{status}");
    let answer = served.post("/v1/completions", &asked());
    assert_eq!(answer["choices"][0]["text"].as_str(), Some(&*alone(PROMPT, 1)));
    // No board fetches layers at this time. The weights are overwritten in place.
    let file = std::fs::File::options().write(true).open(&model).unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    file.write_all_at(&[0x55; 9], middle).unwrap();
    served.said("demo.bin was overwritten while it ran: start that master again");
}

#[test]
fn a_board_that_comes_later_and_cannot_serve_is_left_out() {
    let boards = Boards::new();
    let _pi = boards.worker(0);
    let served = boards.serve(&[0, 1], &["--rebalance-after", "1"]);
    boards.wait_for(&["desk", "pi"]);
    // This board allows only shorter contexts than the master asks for.
    let _orange = boards.worker_with(1, &["--ctx", "64"]);
    let left_out = boards.left_out(&served);
    let why = left_out[0]["why"].as_str().unwrap();
    assert!(why.contains("contexts of up to 64 tokens"), "{why}");
    boards.wait_for(&["desk", "pi"]);
    let answer = served.post("/v1/completions", &asked());
    assert_eq!(answer["choices"][0]["text"].as_str(), Some(&*alone(PROMPT, 1)));
}
