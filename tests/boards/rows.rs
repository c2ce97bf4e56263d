//! Boards that have only a key become a team: each gets its rows, and no more. Real programs on the loopback interface.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::folder::Folder;
use crate::common::ran::Ran;
use crate::common::running::Running;
use crate::common::{leap, models, own_host};
use crate::http::{Served, ask};
use crate::measured::give_caches;
use leap::format::model::{Header, Tensor, TensorKind};
use serde_json::{Value, json};

const PROMPT: &str = "Once upon a time there was a";

/// Longest wait for something.
const PATIENCE: Duration = Duration::from_secs(120);

/// Three boards on this machine, with a folder for each.
struct Boards {
    folder: Folder,
    host: String,
    key: PathBuf,
}

/// Names of the workers.
const WORKERS: [&str; 2] = ["pi", "orange"];

impl Boards {
    /// Boards with an IP address of their own.
    fn new() -> Boards {
        let folder = Folder::new();
        let host = own_host().to_string();
        let key = folder.write("key", (0..32).map(|n| n * 7 + 1).collect::<Vec<u8>>());
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        Boards { folder, host, key }
    }

    fn leap(&self, args: &[&str], name: &str) -> Command {
        let mut command = leap();
        command.args(args).stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
        command.args(["--host", &self.host, "--node", name, "--threads", "1"]);
        command.arg("--key").arg(&self.key).env("XDG_RUNTIME_DIR", self.folder.path());
        give_caches(&mut command, &self.folder.join(name));
        command
    }

    /// Starts a board, which writes its output to a file of its own.
    fn worker(&self, index: usize) -> Running {
        let mut command = self.leap(&["worker"], WORKERS[index]);
        command.args(["--join", &format!("{}", 9100 + index)]);
        command.args(["--port", &format!("{}", 9010 + 10 * index)]);
        fs::create_dir_all(self.folder.join(WORKERS[index])).unwrap();
        let said = File::create(self.folder.join(WORKERS[index]).join("said")).unwrap();
        Running(command.stderr(said).spawn().unwrap())
    }

    fn said(&self, index: usize) -> String {
        fs::read_to_string(self.folder.join(WORKERS[index]).join("said")).unwrap()
    }

    /// Waits until a board's output contains `what`.
    fn wait_for(&self, index: usize, what: &str) {
        let start = Instant::now();
        while !self.said(index).contains(what) {
            assert!(start.elapsed() < PATIENCE, "{what}: {}", self.said(index));
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The folder of a board's kept files.
    fn kept(&self, index: usize) -> PathBuf {
        self.folder.join(WORKERS[index]).join("leap/layers")
    }

    /// The model files of a board.
    fn files(&self, index: usize) -> Vec<PathBuf> {
        let files = fs::read_dir(self.kept(index)).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|end| end == "bin")).collect()
    }

    /// Edits a board's kept figures to make it seem `by` times slower.
    fn slow_down(&self, index: usize, by: u64) {
        let path = self.kept(index).join("figures");
        let figures = fs::read_to_string(&path).unwrap();
        let (machine, speeds) = figures.split_once('\n').unwrap();
        let slow = |line: &str| {
            let mut numbers: Vec<u64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
            numbers[1..5].iter_mut().for_each(|read| *read /= by);
            numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ") + "\n"
        };
        let speeds: String = speeds.lines().map(slow).collect();
        fs::write(&path, format!("{machine}\n{speeds}")).unwrap();
    }

    /// A command of desk, which leads a team with these workers.
    fn lead(&self, command: &str, workers: &[usize]) -> Command {
        self.lead_of(&models::package("models/demo.bin"), command, workers)
    }

    /// A command like [`Boards::lead`]'s, with another model than the demo.
    fn lead_of(&self, model: &Path, command: &str, workers: &[usize]) -> Command {
        let mut lead = self.leap(&[command, model.to_str().unwrap(), "--team", "auto"], "desk");
        let boards = |index: &usize| format!("{}:{}", self.host, 9100 + index);
        let boards = workers.iter().map(boards).collect::<Vec<_>>().join(",");
        lead.args(["--boards", &boards, "--give", "9102", "--port", "9000", "--ctx", "256"]);
        lead
    }

    /// The lead's messages and text.
    fn run(&self, workers: &[usize]) -> Ran {
        let mut lead = self.lead("run", workers);
        lead.args(["-n", "60", "--seed", "7", "--temp", "0.8", "-p", PROMPT]);
        Ran::new(lead.output().unwrap()).succeeds()
    }
}

/// The text that one board alone writes.
fn alone() -> String {
    let mut command = leap();
    command.args(["run", "-q", "--ctx", "256", "-n", "60", "--seed", "7", "--temp", "0.8"]);
    Ran::new(command.args(["-p", PROMPT]).stdin(Stdio::null()).output().unwrap()).succeeds().out
}

/// The demo with other weights in one matrix, as training makes them.
fn tuned(folder: &Folder) -> PathBuf {
    let mut file = fs::read(models::package("models/demo.bin")).unwrap();
    let header = Header::parse(&file).unwrap();
    let is_down = |tensor: &(usize, Tensor)| tensor.1.id.kind == TensorKind::W2;
    let (index, tensor) = header.tensors().enumerate().find(is_down).unwrap();
    let place = tensor.offset as usize..(tensor.offset + tensor.bytes) as usize;
    file[place.clone()].iter_mut().skip(1000).step_by(7).for_each(|byte| *byte ^= 1);
    let crc = crc32fast::hash(&file[place]);
    let at = header.tensors_end() as usize + 4 * index;
    file[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    fs::copy(models::package("models/demo.tokenizer.bin"), folder.join("tuned.tokenizer.bin"))
        .unwrap();
    folder.write("tuned.bin", file)
}

/// Boards that wait with the rows of one model get those of the next, also if their shares are the same.
#[test]
fn boards_of_a_team_get_the_rows_of_another_model() {
    let boards = Boards::new();
    let model = tuned(&boards.folder);
    let words = ["-n", "60", "--seed", "7", "--temp", "0.8", "-p", PROMPT];
    let mut alone_with = leap();
    alone_with.arg("run").arg(&model).args(["-q", "--ctx", "256"]).args(words);
    let other = Ran::new(alone_with.stdin(Stdio::null()).output().unwrap()).succeeds().out;
    assert_ne!(other, alone());
    let _pi = boards.worker(0);
    assert_eq!(boards.run(&[0]).out, alone());
    for (model, wanted) in [(model, other), (models::package("models/demo.bin"), alone())] {
        let mut lead = boards.lead_of(&model, "run", &[0]);
        lead.args(words).args(["--ring-timeout", "60", "--rebalance-after", "off"]);
        assert_eq!(Ran::new(lead.output().unwrap()).succeeds().out, wanted);
    }
}

/// The boards' shares in the lead's table.
fn shares(ran: &Ran) -> [u64; 3] {
    let share = |name: &str| {
        let line = ran.err.lines().find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {}", ran.err));
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    ["desk", "pi", "orange"].map(share)
}

#[test]
fn boards_with_a_key_alone_get_their_rows_and_become_a_team() {
    let boards = Boards::new();
    let wanted = alone();
    let model = fs::metadata(models::package("models/demo.bin")).unwrap().len();
    // orange is made to seem much slower than the others.
    let mut workers = [0, 1].map(|index| boards.worker(index));
    (0..2).for_each(|index| boards.wait_for(index, " waits for a master on "));
    drop(workers);
    boards.slow_down(1, 8);
    workers = [0, 1].map(|index| boards.worker(index));
    let ran = boards.run(&[0, 1]);
    assert_eq!(ran.out, wanted);
    let of = shares(&ran);
    assert!(of[2] * 3 < of[1] && of[2] * 3 < of[0], "{}", ran.err);
    let sizes = [0, 1].map(|index| {
        assert!(ran.err.contains(&format!("gives its rows of layers 0..6 to {}", WORKERS[index])));
        boards.wait_for(index, "computes ");
        assert!(boards.said(index).contains("\nleap: rows of layers 0..6 came from "));
        let files = boards.files(index);
        assert_eq!(files.len(), 1, "{files:?}");
        fs::metadata(&files[0]).unwrap().len()
    });
    assert!(sizes[1] < sizes[0] && sizes[0] + sizes[1] < model, "{sizes:?} of {model}");

    // Nothing is sent twice: neither to boards that were away, nor to boards of the next lead.
    for start in 0..2 {
        if start == 0 {
            drop(workers);
            workers = [0, 1].map(|index| boards.worker(index));
        }
        let again = boards.run(&[0, 1]);
        assert_eq!(again.out, wanted);
        assert_eq!(shares(&again), of, "{}", again.err);
        assert!(!again.err.contains("gives its rows"), "{}", again.err);
    }
    (0..2).for_each(|index| assert!(boards.said(index).contains("were here already")));

    // A damaged file is fetched once more.
    drop(workers);
    let file = &boards.files(0)[0];
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).unwrap();
    workers = [0, 1].map(|index| boards.worker(index));
    let mended = boards.run(&[0, 1]);
    assert_eq!(mended.out, wanted);
    assert!(boards.said(0).contains("its layers are fetched again"), "{}", boards.said(0));
    assert!(!boards.said(0).contains("anew"), "{}", boards.said(0));
    // In another team the board has other rows.
    let other = boards.run(&[0]);
    assert_eq!(other.out, wanted);
    assert!(other.err.contains("gives its rows of layers 0..6 to pi"), "{}", other.err);
    assert_eq!(boards.files(0).len(), 2);
    drop(workers);
}

/// The text of a server's answer.
fn answer(served: &Served) -> String {
    let body = json!({
        "prompt": PROMPT, "temperature": 0.8, "top_p": 0.9, "seed": 7, "max_tokens": 60
    });
    let answer: Value = served.post("/v1/completions", &body);
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn such_a_team_outlives_the_death_of_each_board() {
    let boards = Boards::new();
    let wanted = alone();
    let wanted = wanted.strip_prefix(PROMPT).unwrap().strip_suffix('\n').unwrap();
    let mut workers = [0, 1].map(|index| Some(boards.worker(index)));
    let serve = || {
        let mut lead = boards.lead("serve", &[0, 1]);
        lead.args(["--listen", "127.0.0.1:0", "--streams", "2"]);
        Served::by(lead)
    };
    let served = serve();
    let is_over = AtomicBool::new(false);
    let rounds = if crate::common::quick() { 1 } else { 3 };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(answer(&served), wanted);
            }
        });
        for index in (0..2).cycle().take(2 * rounds) {
            thread::sleep(Duration::from_millis(500));
            drop(workers[index].take());
            thread::sleep(Duration::from_millis(300));
            workers[index] = Some(boards.worker(index));
            boards.wait_for(index, "computes ");
            assert!(boards.said(index).contains("were here already"), "{}", boards.said(index));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    // Boards that wait for their lead serve the next one.
    drop(served);
    assert_eq!(answer(&serve()), wanted);
}

/// Sets a flag when this is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Seconds that a board may be away before the others go on without it.
const SOON: &str = "1";

#[test]
fn rows_of_boards_that_are_gone_for_good_are_shared_anew() {
    let boards = Boards::new();
    let wanted = alone();
    let wanted = wanted.strip_prefix(PROMPT).unwrap().strip_suffix('\n').unwrap();
    let mut workers = [0, 1].map(|index| Some(boards.worker(index)));
    // A lead begins without those that are not there as soon.
    (0..2).for_each(|index| boards.wait_for(index, " waits for a master on "));
    let mut lead = boards.lead("serve", &[0, 1]);
    lead.args(["--listen", "127.0.0.1:0", "--streams", "2", "--rebalance-after", SOON]);
    lead.arg("--control").arg(boards.folder.join("control"));
    let served = Served::by(lead);
    let status = |form: &[&str]| {
        let mut asked = leap();
        asked.args(["ring", "status", "--control"]).arg(boards.folder.join("control")).args(form);
        Ran::new(asked.output().unwrap()).succeeds().out
    };
    let nodes = || {
        let status: Value = serde_json::from_str(&status(&["--json"])).unwrap();
        let nodes = status["nodes"].as_array().unwrap().iter();
        nodes.map(|node| node["name"].as_str().unwrap().to_owned()).collect::<Vec<String>>()
    };
    // A board that answered late beside busy programs gets its rows later.
    let until_all_are_nodes = || {
        let start = Instant::now();
        while nodes() != ["desk", "pi", "orange"] {
            assert!(start.elapsed() < PATIENCE, "{:?}", nodes());
            thread::sleep(Duration::from_millis(50));
        }
    };
    let setbacks = || {
        let json: Value = serde_json::from_str(&status(&["--json"])).unwrap();
        let count = |kind: &str| json["setbacks"][kind].as_u64().unwrap();
        [count("failures"), count("streams_lost")]
    };
    // Three forms of the counts; beside busy programs they may change while they are read.
    let settled = || {
        let start = Instant::now();
        loop {
            let before = setbacks();
            let (_, metrics) = ask(&served.address, "GET", "/metrics", "");
            let text = status(&[]);
            if setbacks() == before {
                return (before, text, metrics);
            }
            assert!(start.elapsed() < PATIENCE, "the counts do not settle: {before:?}, {text}");
        }
    };
    // The cost of boards that die is counted over all teams of the master.
    let assert_counted = |at_least: u64| {
        let (counts, text, metrics) = settled();
        assert!(text.contains("\nsince the start: "), "{text}");
        for (kind, n) in ["failures", "streams_lost"].into_iter().zip(counts) {
            assert!(n >= at_least, "{kind}: {n}");
            assert!(
                text.contains(&format!("{} {n}", kind.replace('_', " "))),
                "{text}, {counts:?}"
            );
            let line = format!("\nleap_setbacks_total{{kind=\"{kind}\"}} {n}\n");
            assert!(metrics.contains(&line), "{metrics}, {counts:?}");
        }
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Texts are written all the time.
        let end = End(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(answer(&served), wanted);
            }
        });
        until_all_are_nodes();
        drop(workers[0].take());
        let said = served.said("leap: the team has changed: desk, orange\n");
        assert!(said.contains("pi is away: the others take its rows"), "{said}");
        boards.wait_for(1, "computes ");
        assert_eq!(answer(&served), wanted);
        assert_eq!(nodes(), ["desk", "orange"]);
        assert_counted(1);

        // The master goes on alone.
        drop(workers[1].take());
        served.said("leap: the team has changed: desk\n");
        assert_eq!(answer(&served), wanted);
        assert_eq!(nodes(), ["desk"]);

        // One board comes back, then the other, which still knows the old team.
        workers[1] = Some(boards.worker(1));
        let said = served.said("leap: orange is there, and gets rows\n");
        assert!(!said.contains("pi is there"), "{said}");
        boards.wait_for(1, "computes ");
        workers[0] = Some(boards.worker(0));
        served.said("leap: pi is there, and gets rows\n");
        served.said("leap: the team has changed: desk, pi, orange\n");
        boards.wait_for(0, "computes ");
        assert_eq!(answer(&served), wanted);
        assert_eq!(nodes(), ["desk", "pi", "orange"]);
        assert_counted(2);
        drop(end);
    });
}

#[test]
fn what_cannot_be_a_team_is_one_line() {
    let folder = Folder::new();
    let key = folder.write("key", (0..32).map(|n| n * 7 + 1).collect::<Vec<u8>>());
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let key = key.to_str().unwrap();
    let demo = models::package("models/demo.bin");
    let demo = demo.to_str().unwrap();
    for (args, what) in [
        (
            &["worker", "--team", "auto", "--key", key][..],
            "a worker that waits for it needs only --key",
        ),
        (&["run", demo, "--team", "auto"], "--team auto needs --key"),
        (&["run", "--team", "auto", "--key", key], "name its file"),
        (&["run", demo, "--team", "auto", "--ring", "r", "--key", key], "no --ring beside it"),
        (&["serve", demo, "--team", "auto", "--ring", "r", "--key", key], "no --ring beside it"),
        (&["run", demo, "--team", "t", "--boards", "a", "--key", key], "no --team beside it"),
        (
            &["run", demo, "--team", "auto", "--objective", "memory", "--key", key],
            "--objective is for rings",
        ),
    ] {
        let mut command = leap();
        command.args(args).stdin(Stdio::null()).env("XDG_CACHE_HOME", folder.path());
        Ran::new(command.output().unwrap()).fails(2, what);
    }
}
