//! Rings whose places are teams give the same bits as one node.

use crate::common::models::bits;
use crate::common::rings::Recipe;
use leap::engine::{Engine, KvKind, Wants};
use leap::sampler::argmax;

/// Enough rows for teams to take them in two halves.
const BATCH: usize = 160;

fn recipe(cuts: &[usize], teams: &[&[u16]]) -> Recipe {
    let teams = teams.iter().map(|shares| shares.to_vec()).collect();
    Recipe { batch: BATCH, max_logits: BATCH, teams, ..Recipe::demo(cuts) }
}

/// Logits of all tokens of a prompt, and of those that greedy decoding chooses.
fn run(engine: &mut Engine) -> Vec<Vec<u32>> {
    let vocab_size = engine.header().vocab_size;
    let prompt: Vec<u32> = (0..168).map(|i| (i * 53 % vocab_size) as u32).collect();
    let mut stream = engine.stream().unwrap();
    let mut all = Vec::new();
    let mut next = 0;
    for ids in prompt.chunks(BATCH) {
        let logits = engine.push_batch(&mut stream, ids, Wants::All).unwrap();
        next = argmax(&logits[(ids.len() - 1) * vocab_size..]).unwrap();
        all.push(bits(logits));
    }
    for _ in 0..8 {
        let logits = engine.push(&mut stream, &[next]).unwrap();
        next = argmax(logits).unwrap();
        all.push(bits(logits));
    }
    all
}

const ALONE: &[u16] = &[1];

#[test]
fn places_that_are_teams_give_the_bits_of_one_node() {
    let wanted = run(&mut recipe(&[], &[]).alone());
    let rings: [(&[usize], &[&[u16]]); 4] = [
        (&[2], &[ALONE, &[2, 1]]),
        (&[3], &[&[1, 3], ALONE]),
        (&[2], &[&[1, 1], &[3, 1, 2]]),
        (&[1, 4], &[ALONE, &[1, 1], ALONE]),
    ];
    for (cuts, teams) in rings.into_iter().skip(if crate::common::quick() { 2 } else { 0 }) {
        let (mut engine, _workers) = recipe(cuts, teams).ring();
        let nodes: Vec<usize> =
            engine.ring().unwrap().lines().iter().map(|line| line.nodes.into()).collect();
        assert_eq!(nodes, teams.iter().map(|shares| shares.len()).collect::<Vec<_>>());
        assert!(run(&mut engine) == wanted, "cuts {cuts:?}, teams {teams:?}");
    }
}

#[test]
fn places_keep_keys_and_values_as_the_master_does() {
    for kv in KvKind::ALL {
        let recipe = |cuts: &[usize]| Recipe { kv, ..recipe(cuts, &[&[1, 2], &[2, 1]]) };
        let wanted = run(&mut recipe(&[]).alone());
        let (mut engine, _workers) = recipe(&[3]).ring();
        assert!(run(&mut engine) == wanted, "{kv:?}");
    }
}

/// Layers move between the other places; layers of teams stay.
#[test]
fn layers_of_teams_stay_and_others_move() {
    let recipe = recipe(&[1, 3], &[ALONE, ALONE, &[1, 1]]);
    let place = recipe.place(0);
    let ids: Vec<u32> = (0..64).map(|i| i * 29 % 4000).collect();
    let all = |engine: &mut Engine, moves: &mut dyn FnMut(&mut Engine, usize)| {
        let mut stream = engine.stream().unwrap();
        let mut found = Vec::new();
        for (n, ids) in ids.chunks(8).enumerate() {
            found.push(bits(engine.push(&mut stream, ids).unwrap()));
            moves(engine, n);
        }
        found
    };
    let wanted = all(&mut recipe.alone(), &mut |_, _| {});
    let (mut engine, _workers) = recipe.ring();
    let found = all(&mut engine, &mut |engine, n| match n {
        1 => {
            engine.resplit(&[0..2, 2..3, 3..6], &place).unwrap();
        }
        3 => {
            let error = engine.resplit(&[0..1, 1..4, 4..6], &place).unwrap_err().to_string();
            assert_eq!(error, "node2 is a team, whose layers stay: 3..6");
        }
        5 => {
            engine.resplit(&[0..1, 1..3, 3..6], &place).unwrap();
        }
        _ => {}
    });
    assert!(found == wanted);
}

#[cfg(feature = "pickle")]
#[test]
fn every_family_is_the_same_in_places_that_are_teams() {
    use crate::common::folder::Folder;
    use crate::common::models::{FAMILIES, export_to};
    use leap::format::model::{Ends, Weights};

    let step = if crate::common::quick() { 4 } else { 1 };
    let some: Vec<&str> = FAMILIES.into_iter().step_by(step).collect();
    crate::common::side_by_side(&some, |checkpoint| {
        for weights in [Weights::F32, Weights::B2 { group: 32, ends: Ends::SixBits }] {
            let folder = Folder::new();
            let model = export_to(&folder, checkpoint, weights);
            let teams: [&[u16]; 2] = [&[1, 1], &[2, 1]];
            let recipe = |cuts: &[usize]| Recipe { model: model.clone(), ..recipe(cuts, &teams) };
            let wanted = run(&mut recipe(&[]).alone());
            let (mut engine, _workers) = recipe(&[1]).ring();
            assert!(run(&mut engine) == wanted, "{checkpoint}, {weights}");
        }
    });
}

/// Rings of programs.
#[cfg(feature = "demo")]
mod processes {
    use std::io::Read;
    use std::net::Ipv4Addr;
    use std::path::{Path, PathBuf};
    use std::process::{Child, ChildStdout, Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use crate::common::folder::Folder;
    use crate::common::ran::Ran;
    use crate::common::running::Running;
    use crate::common::{leap, own_host};

    const TEXT: [&str; 8] = ["-p", "Once upon a time", "-n", "700", "--temp", "0.8", "--seed", "7"];

    /// The file of a ring whose second place is a team of two boards.
    fn ring_file(folder: &Folder, host: Ipv4Addr) -> PathBuf {
        let desk_and_team = format!(
            "desk {host}:9000 0..3\n\
             pi {host}:9010 3..6\n\
             team pi {host}:9100 2\n\
             team fig {host}:9120 1\n"
        );
        folder.write("ring.txt", desk_and_team)
    }

    fn worker(ring: &Path, node: &str) -> Running {
        let mut worker = leap();
        worker.args(["worker", "--threads", "1", "--transport", "udp", "--node", node, "--ring"]);
        Running(worker.arg(ring).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn master(ring: &Path, folder: &Folder) -> Command {
        let mut master = leap();
        master.args(["master", "--threads", "1", "--transport", "udp", "--ring"]).arg(ring);
        master.arg("--control").arg(folder.join("control")).args(TEXT);
        master.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        master
    }

    /// Reads some more of the master's text.
    fn read(text: &mut Vec<u8>, stdout: &mut ChildStdout) {
        let at = text.len();
        text.resize(at + 64, 0);
        stdout.read_exact(&mut text[at..]).unwrap();
    }

    /// Reads the rest of the text, and the messages.
    fn end(mut text: Vec<u8>, mut stdout: ChildStdout, master: Child) -> (String, String) {
        stdout.read_to_end(&mut text).unwrap();
        let ended = master.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success(), "{said}");
        (String::from_utf8_lossy(&text).into_owned(), said)
    }

    fn alone() -> String {
        Ran::new(leap().arg("run").args(TEXT).stdin(Stdio::null()).output().unwrap()).succeeds().out
    }

    #[test]
    fn a_ring_outlives_the_deaths_of_a_team_and_its_boards() {
        let (folder, host) = (Folder::new(), own_host());
        let ring = ring_file(&folder, host);
        let (pi, fig) = (worker(&ring, "pi"), worker(&ring, "fig"));
        let mut master = master(&ring, &folder).spawn().unwrap();
        let (mut text, mut stdout) = (Vec::new(), master.stdout.take().unwrap());
        read(&mut text, &mut stdout);
        drop(fig);
        let _fig = worker(&ring, "fig");
        read(&mut text, &mut stdout);
        drop(pi);
        let _pi = worker(&ring, "pi");
        let (text, said) = end(text, stdout, master);
        assert_eq!(text, alone());
        assert!(said.contains("pi lost what it had computed"), "{said}");
        assert!(said.contains("layers 3..6") && said.contains("team of 2"), "{said}");
    }

    #[test]
    fn options_of_earlier_versions_and_of_this_one_make_the_same_ring() {
        const SHORT: [&str; 6] = ["-p", "Once upon a time", "-n", "30", "--temp", "0"];
        let alone = leap().arg("run").args(SHORT).stdin(Stdio::null()).output().unwrap();
        let wanted = Ran::new(alone).succeeds().out;
        let folder = Folder::new();
        let key = folder.write("key", (0..32).map(|i| i * 7 + 3).collect::<Vec<u8>>());
        for (desk_is_new, pi_is_new) in [(true, false), (false, true), (true, true)] {
            let host = own_host().to_string();
            let ring = folder.write(&host, format!("desk {host}:9000 0..3\npi {host}:9010 3..6\n"));
            let (file, folder) = (ring.to_str().unwrap(), folder.join(&format!("of-{host}")));
            std::fs::create_dir(&folder).unwrap();
            let part = |is_new: bool, words: [&str; 2], own: &str, next: &str| {
                let mut board = leap();
                board.args(words).args(["--threads", "1", "--transport", "udp", "--key"]).arg(&key);
                board.arg("--cache").arg(&folder).stdin(Stdio::null());
                match is_new {
                    true => board.args(["--boards", file]),
                    false => board.args(["--split", "3", "--host", &host, "--port", own]).args([
                        "--next-host",
                        &host,
                        "--next-port",
                        next,
                    ]),
                };
                board
            };
            // The newer ones have no model: the master gives it.
            let model = if pi_is_new && desk_is_new { "--quiet" } else { "models/demo.bin" };
            let mut pi = part(pi_is_new, ["worker", model], "9010", "9000");
            let pi = pi.args(["--node", "pi"]).stderr(Stdio::null());
            let _pi = Running(pi.spawn().unwrap());
            let mut desk = part(desk_is_new, ["master", "models/demo.bin"], "9000", "9010");
            desk.args(["--node", "desk", "--control", "off", "--ring-timeout", "200"]).args(SHORT);
            let ran = Ran::new(desk.output().unwrap()).succeeds();
            assert_eq!(ran.out, wanted, "{desk_is_new} {pi_is_new}");
            assert_eq!(ran.err.contains("to pi at"), desk_is_new && pi_is_new, "{ran:?}");
        }
    }

    #[test]
    fn a_master_may_lead_a_team_whose_layers_stay() {
        let (folder, host) = (Folder::new(), own_host());
        let ring = folder.write(
            "ring.txt",
            format!(
                "desk {host}:9000 0..3\n\
                 team desk {host}:9100\n\
                 team fig {host}:9120\n\
                 pi {host}:9010 3..6\n\
                 team pi {host}:9140 2\n\
                 team elm {host}:9160 1\n"
            ),
        );
        let (_pi, _elm, fig) = (worker(&ring, "pi"), worker(&ring, "elm"), worker(&ring, "fig"));
        let mut master = master(&ring, &folder).spawn().unwrap();
        let (mut text, mut stdout) = (Vec::new(), master.stdout.take().unwrap());
        read(&mut text, &mut stdout);
        drop(fig);
        let _fig = worker(&ring, "fig");
        let (text, _) = end(text, stdout, master);
        assert_eq!(text, alone());

        let prompts = folder.write("prompts.txt", "Once upon a time\n".repeat(500));
        let mut long = leap();
        long.args(["master", "--threads", "1", "--transport", "udp", "--streams", "2", "--ring"]);
        long.arg(&ring).arg("--prompt-file").arg(prompts);
        long.arg("--control").arg(folder.join("long")).stdin(Stdio::null()).stdout(Stdio::null());
        let _long = Running(long.stderr(Stdio::null()).spawn().unwrap());
        let ask = |args: &[&str]| {
            let control = folder.join("long");
            Ran::new(leap().arg("ring").args(args).arg("--control").arg(control).output().unwrap())
        };
        let begun = Instant::now();
        let status = loop {
            let asked = ask(&["status"]);
            let is_told = |name: &str| asked.out.contains(&format!("\n{name}: "));
            if asked.out.contains("open: ") && is_told("desk") && is_told("pi") {
                break asked.out;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{asked:?}");
            thread::sleep(Duration::from_millis(50));
        };
        assert!(status.contains("desk, 2 boards") && status.contains("pi, 2 boards"), "{status}");
        let line = |name: &str| {
            let line = status.lines().find(|line| line.trim_start().starts_with(name));
            line.unwrap_or_else(|| panic!("no {name} in {status}"))
        };
        assert!(line("fig").contains(" 50 % ") && line("fig").ends_with(" us"), "{status}");
        assert!(line("elm").contains(" 33 % ") && line("elm").ends_with(" us"), "{status}");
        assert!(status.contains(" ms of that; waiting: pi "), "{status}");
        let json = ask(&["status", "--json"]).out;
        for (board, share) in [("fig", "0.5"), ("elm", "0.3333333333333333")] {
            let at = json.find(&format!("{{\"name\": \"{board}\", \"share\": {share}, "));
            let told = &json[at.unwrap_or_else(|| panic!("no {board} in {json}"))..];
            for figure in ["bytes_per_token", "compute_ms", "waiting_ms"] {
                let (_, number) = told.split_once(&format!("\"{figure}\": ")).unwrap();
                assert!(number.starts_with(|c: char| c.is_ascii_digit()), "{figure} in {told}");
            }
        }
        ask(&["resize", "desk=0..2,pi=2..6"]).fails(2, "desk is a team, whose layers stay: 0..3");
        ask(&["replan"]).fails(2, "desk is a team, whose layers stay");
    }

    #[test]
    fn boards_of_a_team_get_its_layers_from_the_master() {
        let (folder, host) = (Folder::new(), own_host());
        let ring = ring_file(&folder, host);
        let key = folder.write("key", (0..32).map(|i| i * 7 + 3).collect::<Vec<u8>>());
        let start = |node: &str| {
            let mut worker = leap();
            worker.args(["worker", "--threads", "1", "--transport", "udp", "--node", node]);
            worker.arg("--fetch").arg(format!("{host}:9300")).arg("--key").arg(&key);
            worker.arg("--cache").arg(folder.join(node)).arg("--ring").arg(&ring);
            std::fs::create_dir(folder.join(node)).unwrap();
            Running(worker.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
        };
        let _boards = [start("pi"), start("fig")];
        let mut master = leap();
        master.args(["master", "models/demo.bin", "--threads", "1", "--transport", "udp"]);
        master.args(["--give", "9300", "--key"]).arg(&key).arg("--ring").arg(&ring).args(TEXT);
        let ran = Ran::new(master.stdin(Stdio::null()).output().unwrap()).succeeds();
        assert_eq!(ran.out, alone());
        // A board that is not the place's lead gets only its rows: a third.
        let bytes = |node: &str| {
            let files = std::fs::read_dir(folder.join(node).join("layers")).unwrap();
            let mut files = files.map(|entry| entry.unwrap().path());
            let file = files.find(|path| path.extension().is_some_and(|end| end == "bin"));
            file.unwrap().metadata().unwrap().len()
        };
        assert!(2 * bytes("fig") < bytes("pi"), "{} of {}", bytes("fig"), bytes("pi"));
    }

    #[test]
    fn boards_of_a_team_that_do_not_fit_are_told() {
        let (folder, host) = (Folder::new(), own_host());
        let ring = folder.write(
            "ring.txt",
            format!(
                "desk {host}:9000 0..3\n\
                 pi {host}:9010 3..6\n\
                 team pi {host}:9100\n\
                 team fig {host}:9120\n"
            ),
        );
        let fails = |args: &[&str], what: &str| {
            let ran = Ran::new(leap().args(args).arg("--ring").arg(&ring).output().unwrap());
            assert!(ran.err.contains(what), "{ran:?}");
        };
        fails(&["master", "--node", "fig"], "fig is a board of pi's team");
        fails(&["worker", "--node", "fog"], "there are desk, pi, fig");
        fails(
            &["master", "--rebalance-after", "60"],
            "cannot move the layers of pi, which is a team",
        );
        // A board that allows only shorter contexts than the master asks for.
        let _pi = worker(&ring, "pi");
        let mut fig = leap();
        fig.args(["worker", "--transport", "udp", "--threads", "1", "--ctx", "64"]);
        fig.args(["--node", "fig", "--ring"]).arg(&ring);
        let _fig = Running(fig.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let ended = master(&ring, &folder).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success(), "{said}");
        assert!(said.contains("a board of pi's team cannot take its part"), "{said}");
    }
}
