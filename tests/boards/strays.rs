//! Boards that a master cannot use are left out by name, and end nothing: real programs on the loopback interface.

use std::fs::{self, File};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::folder::Folder;
use crate::common::ran::Ran;
use crate::common::running::Running;
use crate::common::{leap, models};
use crate::measured::give_caches;
use crate::ports::{free_port, free_ports};

const PROMPT: &str = "Once upon a time there was a";

/// The fault of a board.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// Another program uses the port of the board's links.
    NoPort,
    /// The board's links use TCP, the master's UDP: the board takes its order, and its master never hears from it.
    Silent,
    /// The board allows only shorter contexts than the master asks for.
    Short,
}

/// A worker on this machine, with a folder of its own.
struct Board {
    folder: PathBuf,
    call: u16,
    _running: Running,
    /// Occupies the port of the board's links, and answers nothing.
    _taken: Option<UdpSocket>,
}

impl Board {
    fn said(&self) -> String {
        fs::read_to_string(self.folder.join("said")).unwrap()
    }
}

/// A master and its boards.
struct Desk {
    folder: Folder,
    key: PathBuf,
}

impl Desk {
    fn new() -> Desk {
        let folder = Folder::new();
        let key = Desk::key(&folder, "key", 7);
        Desk { folder, key }
    }

    fn key(folder: &Folder, name: &str, by: u8) -> PathBuf {
        let key = folder.write(name, (0..32).map(|n| n * by + 1).collect::<Vec<u8>>());
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        key
    }

    fn leap(&self, args: &[&str], key: &PathBuf, kept: &str) -> Command {
        let mut command = leap();
        command.args(args).stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
        command.args(["--host", "127.0.0.1", "--threads", "1"]).arg("--key").arg(key);
        command.env("XDG_RUNTIME_DIR", self.folder.path());
        give_caches(&mut command, &self.folder.join(kept));
        command
    }

    /// Starts a board of this name with the folder `kept`, and returns once it waits for a master.
    fn board(&self, name: &str, kept: &str, key: &PathBuf) -> Board {
        self.board_with((name, kept), key, Fault::Nothing)
    }

    /// Starts a board with this fault.
    fn board_with(&self, (name, kept): (&str, &str), key: &PathBuf, fault: Fault) -> Board {
        let (folder, call) = (self.folder.join(kept), free_port());
        let mut command = self.leap(&["worker", "--node", name], key, kept);
        let port = free_ports(4);
        let _taken = match fault {
            Fault::NoPort | Fault::Silent => Some(UdpSocket::bind(("127.0.0.1", port)).unwrap()),
            Fault::Nothing | Fault::Short => None,
        };
        match fault {
            Fault::Silent => command.args(["--transport", "tcp"]),
            Fault::Short => command.args(["--ctx", "64"]),
            Fault::Nothing | Fault::NoPort => &mut command,
        };
        command.args(["--join", &call.to_string(), "--port", &port.to_string()]);
        let said = File::create(folder.join("said")).unwrap();
        let running = Running(command.stderr(said).stdout(Stdio::null()).spawn().unwrap());
        let board = Board { folder, call, _running: running, _taken };
        let start = Instant::now();
        while !board.said().contains(" waits for a master on ") {
            assert!(start.elapsed() < Duration::from_secs(120), "{}", board.said());
            thread::sleep(Duration::from_millis(20));
        }
        board
    }

    /// The master's messages with these boards, and its text.
    fn run(&self, boards: &[&Board], args: &[&str]) -> Ran {
        let model = models::package("models/demo.bin");
        let boards: Vec<String> =
            boards.iter().map(|board| format!("127.0.0.1:{}", board.call)).collect();
        let mut command = self.leap(&["run", model.to_str().unwrap()], &self.key, "desk");
        command.args(["--node", "desk", "--boards", &boards.join(",")]).args(args);
        command.args([
            "--give",
            &free_port().to_string(),
            "--port",
            &free_ports(4).to_string(),
            "--ctx",
            "256",
        ]);
        command.args(["-n", "30", "--temp", "0", "-p", PROMPT]);
        Ran::new(command.output().unwrap())
    }
}

fn alone() -> String {
    let mut command = leap();
    command.args(["run", "-q", "--ctx", "256", "-n", "30", "--temp", "0", "-p", PROMPT]);
    Ran::new(command.stdin(Stdio::null()).output().unwrap()).succeeds().out
}

#[test]
fn boards_that_cannot_be_in_a_ring_are_left_out_by_name_and_the_others_answer() {
    let (desk, wanted) = (Desk::new(), alone());
    let other_key = Desk::key(&desk.folder, "other", 5);
    let pi = desk.board("pi", "pi", &desk.key);
    let strays = [
        ("pi", "twin", &desk.key, "without pi at 127.0.0.1:"),
        ("desk", "mirror", &desk.key, "two boards are called desk, the other one is at 127.0.0.1"),
        ("# x", "hash", &desk.key, "without \"# x\" at 127.0.0.1:"),
        ("stranger", "stranger", &other_key, ": it has another key"),
    ];
    let left_out: Vec<Board> =
        strays.iter().map(|(name, kept, key, _)| desk.board(name, kept, key)).collect();
    let all: Vec<&Board> = [&pi].into_iter().chain(&left_out).collect();
    for args in [&["--role", "master", "--objective", "memory"][..], &["--team", "auto"]] {
        let ran = desk.run(&all, args).succeeds();
        assert_eq!(ran.out, wanted, "{args:?}: {}", ran.err);
        for (_, _, _, what) in &strays {
            assert!(ran.err.contains(what), "{args:?}: {what}: {}", ran.err);
        }
        assert!(ran.err.contains("layers"), "{}", ran.err);
        assert!(pi.said().contains("layers "), "{}", pi.said());
    }
    // Without any other board, the master ends with a message.
    let ran = desk.run(&[&left_out[2]], &["--role", "master"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.err.contains("leap: no board is left: 127.0.0.1:"), "{ran:?}");
}

#[test]
fn a_board_that_takes_its_order_and_cannot_serve_says_why_and_is_left_out() {
    let (desk, wanted) = (Desk::new(), alone());
    let pi = desk.board("pi", "pi", &desk.key);
    let fig = desk.board_with(("fig", "fig"), &desk.key, Fault::NoPort);
    for args in [&["--role", "master", "--objective", "memory"][..], &["--team", "auto"]] {
        let args = [args, &["--rebalance-after", "2"]].concat();
        let ran = desk.run(&[&pi, &fig], &args).succeeds();
        assert_eq!(ran.out, wanted, "{args:?}: {}", ran.err);
        let why = "leap: warning: fig does not serve: ";
        assert!(ran.err.contains(why), "{args:?}: {}", ran.err);
        assert!(ran.err.contains("leap: fig does not serve, the others take its "), "{}", ran.err);
        assert!(!ran.err.contains("fig is away"), "it answers: {}", ran.err);
        assert!(ran.err.contains("pi"), "{args:?}: {}", ran.err);
    }
    // A master that must wait for its boards says at its end what it waited for.
    let args = ["--role", "master", "--objective", "memory", "--rebalance-after", "off"];
    let ran = desk.run(&[&pi, &fig], &[&args[..], &["--ring-timeout", "5"]].concat());
    assert_eq!(ran.code, Some(4), "{ran:?}");
    let end = ran.err.lines().last().unwrap();
    assert!(
        end.starts_with("leap: the ring is lost: ") && end.contains("fig does not serve: "),
        "{end}"
    );
}

#[test]
fn a_board_whose_links_stay_silent_and_one_that_does_not_fit_are_left_out_of_the_first_ring() {
    let (desk, wanted) = (Desk::new(), alone());
    let pi = desk.board("pi", "pi", &desk.key);
    let faults = [
        (Fault::Silent, "nothing is heard on its links, though it answers calls"),
        (Fault::Short, "64"),
    ];
    for (fault, why) in faults {
        let fig = desk.board_with(("fig", "fig"), &desk.key, fault);
        for args in [&["--role", "master", "--objective", "memory"][..], &["--team", "auto"]] {
            let args = [args, &["--rebalance-after", "2"]].concat();
            let ran = desk.run(&[&pi, &fig], &args).succeeds();
            assert_eq!(ran.out, wanted, "{args:?}: {}", ran.err);
            let said = "leap: fig does not serve, the others take its ";
            let line = ran.err.lines().find(|line| line.starts_with(said));
            assert!(line.is_some_and(|line| line.contains(why)), "{args:?}: {}", ran.err);
            assert!(!ran.err.contains("fig is away"), "it answers: {}", ran.err);
            assert!(!pi.said().contains("does not serve"), "{}", pi.said());
        }
    }
}
