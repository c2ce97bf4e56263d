//! Command lines: their meaning, and their mistakes.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::{ANSWER, DEMO, PROMPT, command, run};
use crate::common::folder::Folder;
use crate::common::leap;
use crate::common::ran::Ran;

const MOST: &str = "18446744073709551615";

#[test]
fn bad_usage_is_one_line_and_code_2() {
    for (args, what) in [
        (&["run", DEMO, "-p", "a", "--temp", "-1"][..], "--temp"),
        (&["run", DEMO, "-p", "a", "--temp", "nan"], "--temp"),
        (&["run", DEMO, "-p", "a", "--temp", "x"], "--temp \"x\": wanted a number"),
        (&["run", DEMO, "-p", "a", "--threads", "x"], "--threads \"x\": wanted a whole number"),
        (&["run", DEMO, "-p", "a", "--top-p", "1.5"], "--top-p"),
        (&["run", DEMO, "-p", "a", "--min-p", "-0.1"], "--min-p must lie between 0 and 1"),
        (&["run", DEMO, "-p", "a", "--min-p", "nan"], "--min-p"),
        (&["run", DEMO, "-p", "a", "-n", "0"], "-n"),
        (&["run", DEMO, "-p", "a", "-n", "many"], "-n"),
        (&["run", DEMO, "-p", "a", "--ctx", "0"], "--ctx \"0\": wanted at least 1"),
        (&["run", DEMO, "-p", "a", "--ctx", "5000"], "1024"),
        (&["run", DEMO, "-p", "a", "--prompt-file", "b"], "not both"),
        (&["run", DEMO, "-p", "a", "-s", "b"], "--chat"),
        (&["run", DEMO, "-p", "a", "--kv", "f8"], "f16"),
        (&["run", DEMO, "-p", "a", "--cores", "x"], "core"),
        (&["run", DEMO, "-p", "a", "--cores", "4095"], "no core 4095 here; there are "),
        (&["run", DEMO, "-p"], "--prompt needs a value"),
        (&["run", DEMO, "--chat=yes"], "--chat takes no value"),
        (&["run", DEMO, "--tmep", "0"], "did you mean --temp?"),
        (&["benhc", DEMO], "did you mean bench?"),
        (&["run", DEMO, "-p", "a", "--threads", "0"], "--threads"),
        (&["bench", "--threads", "1", "--prompt", "0"], "--prompt"),
        (&["bench", "--layers", "2"], "--layers needs --shape"),
        (&["bench", "--shape", "qwen3-4b", "--layers", "37"], "qwen3-4b has 36 layers"),
        (&["bench", "--shape", "tinyllama", "--version", "5"], "with --shape wanted 1 to 4"),
        (&["plan", "--shape", "tinyllama", "--version", "5", "--boards", "x"], "wanted 1 to 4"),
        (&["run", DEMO, "-c", "--chat-template", "vicuna"], "chatml"),
        (&["run", DEMO, "-p", "a", "--role", "worker"], "no option of leap worker"),
        (&["run", "-t", "models/demo.tokenizer.bin"], "its own tokenizer"),
        (&["run", DEMO, "more"], "more"),
        (&["models/demo.bin"], "leap run"),
        (&["eval", DEMO], "--cases"),
        (&["eval", DEMO, "--text", "a", "--greedy"], "--greedy needs --cases"),
        (&["eval", DEMO, "--text", "a", "--min-top1", "0.5"], "--min-top1 needs --cases or"),
        (&["eval", DEMO, "--text", "a", "--threads", "0"], "--threads \"0\": wanted at least 1"),
        (&["pack", DEMO, "--threads", "0"], "--threads \"0\": wanted at least 1"),
        (&["run", DEMO, "-p", "a", "--temp", "0", "--temp", "1"], "--temp is given twice"),
        (&["ring"], "arguments not provided: action"),
        (&["serve", DEMO, "--name", " "], "--name \" \": the value is empty"),
        (&["serve", DEMO, "--listen", "8080"], "--listen \"8080\": wanted HOST:PORT"),
        (&["serve", DEMO, "--listen", "127.0.0.1:99999"], "wanted HOST:PORT"),
        (&["serve", DEMO, "--streams", "2000000"], "2000000 streams, there may be 1048576 at most"),
        (&["serve", DEMO, "--kv-memory", "1M", "--streams", MOST], "streams, there may be 1048576"),
        (&["serve", DEMO, "--allow-origin", "chat.example.org"], "wanted scheme://host"),
        (&["serve", DEMO, "--allow-origin", "https://chat.example.org/"], "wanted scheme://host"),
        (&["master", DEMO, "--team", "t", "--rebalance-after", "9"], "--rebalance-after is for"),
        (&["run", DEMO, "-p", "a", "--watts", "9,3"], "as in 3.5,9"),
        (&["run", DEMO, "-p", "a", "--watts", "3,9", "--power-cmd", "echo 9"], "not both"),
        (&["bench", DEMO, "--watts", "3,9"], "--watts needs --energy"),
        (&["bench", DEMO, "--sweep"], "--sweep needs --energy"),
        (&["bench", DEMO, "--min-tokens-per-s", "2"], "needs --sweep"),
        (&["bench", DEMO, "--energy", "--sweep", "--min-tokens-per-s", "x"], "tokens a second"),
        (&["run", DEMO, "-p", "a", "--suffix", "b"], "no tokens for filling in"),
        (&["run", DEMO, "--chat", "--suffix", "b"], "--suffix has no effect with --chat"),
    ] {
        run(args).fails(2, what);
    }
    let mut forced = command(&["run", "-p", "a"]);
    Ran::new(forced.env("LEAP_ISA", "mmx").output().unwrap()).fails(2, "LEAP_ISA");
    let mut log = command(&["run", "-p", "a"]);
    Ran::new(log.env("LEAP_LOG", "foo").output().unwrap()).fails(2, "LEAP_LOG");
    for n in ["0", "16", "", "many"] {
        let mut drafts = command(&["run", "-p", "a"]);
        Ran::new(drafts.env("LEAP_DRAFTS", n).output().unwrap()).fails(2, "LEAP_DRAFTS");
    }
    let long = "word ".repeat(200);
    run(&["run", DEMO, "-p", &long, "--ctx", "64"]).fails(2, "64; shorten it or raise --ctx");
    let longest = "word ".repeat(1200);
    run(&["run", DEMO, "-p", &longest]).fails(2, "1024; shorten it: the model allows no more");
}

#[test]
fn mistakes_in_a_ring_are_one_line() {
    let folder = Folder::new();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let ring = &*write("ring", "desk 127.0.0.1:21701 0..2\npi 127.0.0.1:21702 2..6\n");
    let gap = &*write("gap", "desk a 0..2\npi b 3..6\n");
    let short = &*write("short", "desk a 0..2\npi b 2..5\n");
    let key = &*write("key", "too short");
    let hex = &*write("hex", &"5a".repeat(32));
    let zeros = &*write("zeros", &"\0".repeat(32));
    let words = &*write("words", "correct horse battery staple 123");
    for (args, code, what) in [
        (&["worker", DEMO][..], 2, "`leap worker --key ring.key`"),
        (&["worker", DEMO, "--split", "2"], 2, "--next-host"),
        (&["worker", DEMO, "--split", "9", "--next-host", "x"], 2, "0..6"),
        (&["worker", DEMO, "--ring", ring], 2, "--node"),
        (&["worker", DEMO, "--ring", ring, "--node", "desk"], 2, "is the master"),
        (&["master", DEMO, "--ring", ring, "--node", "pi"], 2, "is the master"),
        (&["master", DEMO, "--ring", ring, "--split", "2"], 2, "--split"),
        (&["master", DEMO, "--split", "2", "--end", "4"], 2, "--end"),
        (&["run", DEMO, "-p", "a", "--key", key], 2, "leap worker"),
        (&["run", DEMO, "-p", "a", "--busy-poll", "9"], 2, "leap worker"),
        (&["run", DEMO, "-p", "a", "--streams", "2"], 2, "--streams"),
        (&["worker", DEMO, "--wire", "f8"], 2, "f16"),
        (&["worker", DEMO, "--temp", "0"], 2, "it is for leap run and leap master"),
        (&["worker", DEMO, "--json"], 2, "it is for leap run and leap master"),
        (&["worker", DEMO, "--ring-timeout", "1"], 2, "it is for leap master"),
        (&["master", DEMO, "--prefix-cache", "x"], 2, "it is for leap worker"),
        (&["worker", DEMO, "--prefix-cache-size", "1G"], 2, "needs --prefix-cache"),
        (&["worker", DEMO, "--team", "x", "--prefix-cache", "x"], 2, "no board has whole pages"),
        (&["worker", "--draft-model", DEMO, "--prefix-cache", "x"], 2, "this one guesses"),
        (&["plan", DEMO], 2, "--boards"),
        (&["plan", "--boards", ring], 2, "name a model file, or a --shape"),
        (&["plan", DEMO, "--boards", ring], 3, "line 1: "),
        (&["plan", DEMO, "--boards", "/no/boards"], 3, "/no/boards"),
        (&["plan", DEMO, "--boards", ring, "--min-tokens-per-s", "0"], 2, "above 0"),
        (&["run", DEMO, "--give", "auto"], 2, "it is for leap master"),
        (&["master", DEMO, "--ring", ring, "--give", "auto"], 2, "--give needs --key"),
        (&["worker", DEMO, "--ring", ring, "--node", "pi", "--fetch", "auto"], 2, "give no model"),
        (&["worker", "--ring", ring, "--node", "pi", "--fetch", "auto"], 2, "--fetch needs --key"),
        (&["worker", "--split", "1", "--fetch", ":"], 2, "no port"),
        (&["worker", "--join", "auto"], 2, "needs --key"),
        (&["worker", DEMO, "--join", "auto"], 2, "give no model"),
        (&["worker", "--join", "auto", "--ring", ring], 2, "--join"),
        (&["worker", "--boards", "pi"], 2, "it is for leap master"),
        (&["worker", "--key", words], 3, "holds text"),
        (&["master", DEMO, "--boards", "pi"], 2, "--boards needs --key"),
        (&["master", "--boards", "pi", "--key", hex], 2, "name its file"),
        (&["master", DEMO, "--boards", "pi,pi", "--key", hex], 2, "twice"),
        (&["master", DEMO, "--boards", "pi", "--ring", ring, "--key", hex], 2, "no --ring"),
        (&["serve", DEMO, "--boards", "pi", "--ring", ring, "--key", hex], 2, "--ring"),
        (&["master", DEMO, "--boards", "pi", "--objective", "energy"], 2, "needs --"),
        (&["master", DEMO, "--boards", "pi", "--rebalance-after", "soon"], 2, "1 to 86400"),
        (&["serve", DEMO, "--node", "pi"], 2, "--node needs --boards or --team"),
        (&["worker", DEMO, "--ring", ring, "--node", "pi", "--key", zeros], 3, "urandom"),
        (&["worker", DEMO, "--ring", ring, "--node", "pi", "--key", words], 3, "urandom"),
        (&["worker", DEMO, "--ring", ring, "--node", "pi", "--key", "/dev/zero"], 3, "64"),
        (&["bench", "--link", "self", "--key", "/dev/zero"], 3, "64 hexadecimal digits"),
        (&["bench", "--link", "self", "--key", words], 3, "holds text"),
        (&["worker", DEMO, "--transport", "pigeon"], 2, "udp"),
        (&["worker", DEMO, "--ring", "no.txt", "--node", "a"], 3, "no.txt"),
        (&["worker", DEMO, "--ring", gap, "--node", "pi"], 3, "no node has layers 2..3"),
        (&["worker", DEMO, "--ring", short, "--node", "pi"], 3, "no node has layers 5..6"),
        (&["worker", DEMO, "--ring", ring, "--node", "fig"], 3, "desk, pi"),
        (&["worker", DEMO, "--ring", ring, "--node", "pi", "--key", key], 3, "32 bytes"),
        (&["worker", DEMO, "--ring", ring, "--node", "pi", "--transport", "kernel"], 1, "kernel"),
        (
            &["master", DEMO, "-q", "--ring", ring, "-p", "a", "--ring-timeout", "1"],
            4,
            "no progress for 1 s; waiting for pi (127.0.0.1:21702)",
        ),
    ] {
        run(args).fails(code, what);
    }
}

#[test]
fn values_that_look_like_options_are_values() {
    for prompt in ["--a=--json", "--help", "-h", "-5 degrees", "--", "--threads=99"] {
        let ran = run(&["run", DEMO, "-p", prompt, "-n", "1", "--temp=0", "-q"]).succeeds();
        assert!(ran.out.starts_with(prompt), "{ran:?}");
        let assigned = format!("--prompt={prompt}");
        let again = run(&["run", DEMO, &assigned, "-n", "1", "--temp=0", "-q"]).succeeds();
        assert_eq!(again.out, ran.out);
    }
}

#[test]
fn help_is_there_for_every_command() {
    let all = run(&["--help"]).succeeds().out;
    for name in ["run", "master", "worker", "export", "info", "bench", "pack", "doctor", "eval"] {
        assert!(all.contains(&format!("\n  {name} ")), "{name}: {all}");
        let wanted = run(&["help", name]).succeeds().out;
        assert!(wanted.starts_with(&format!("Usage: leap {name} ")), "{wanted}");
        for args in [[name, "-h"], [name, "--help"], [name, "help"]] {
            assert_eq!(run(&args).succeeds().out, wanted);
        }
    }
    assert_eq!(run(&["help"]).succeeds().out, all);
    assert_eq!(run(&["-h"]).succeeds().out, all);
    assert_eq!(run(&["-V"]).succeeds().out, run(&["--version"]).succeeds().out);
}

#[test]
fn the_rest_of_the_options_is_one_word_away() {
    for name in ["run", "master", "worker", "serve"] {
        if cfg!(not(feature = "serve")) && name == "serve" {
            continue;
        }
        let short = run(&[name, "--help"]).succeeds().out;
        assert!(short.lines().count() <= 40, "{name}: {short}");
        let all = run(&[name, "--help-all"]).succeeds().out;
        assert!(all.contains("--transport TRANSPORT") && !all.contains("--ring RING"), "{all}");
    }
    let older = run(&["help", "compatibility"]).succeeds().out;
    for option in [
        "--ring ",
        "--split ",
        "--next-host ",
        "--role ",
        "--give ",
        "--busy-poll, LEAP_BUSY_POLL ",
    ] {
        assert!(older.contains(&format!("\n  {option}")), "{option}: {older}");
    }
}

#[test]
fn a_mistake_is_told_by_the_option_that_was_written() {
    let folder = Folder::new();
    let file = |name: &str, text: &str| folder.write(name, text).to_str().unwrap().to_owned();
    let layers = &*file("layers.txt", "desk 127.0.0.1:21701 0..3\npi 127.0.0.1:21702 3..6\n");
    let shares = &*file("shares.txt", "desk 127.0.0.1:21701 3\npi 127.0.0.1:21721 1\n");
    let names = &*file("names.txt", "desk 127.0.0.1:21701\npi 127.0.0.1:21702\n");
    for (args, wanted, unsaid) in [
        (&["worker", DEMO, "--boards", layers][..], "--boards needs --node", "--ring"),
        (&["worker", DEMO, "--ring", layers], "--ring needs --node", "--boards"),
        (&["worker", DEMO, "--boards", shares], "--boards needs --node", "--team"),
        (&["worker", DEMO, "--team", shares], "--team needs --node", "--boards"),
        (
            &["worker", "--boards", shares, "--prefix-cache", "x"],
            "no board has whole pages",
            "--team",
        ),
        (&["master", DEMO, "--team", "auto"], "--team auto needs --key", "--boards"),
        (
            &["master", DEMO, "--team", "auto", "--boards", names],
            "--team auto needs --key",
            "--ring",
        ),
        (
            &["master", DEMO, "--team", "auto", "--boards", shares],
            "leave out --team auto",
            "--ring",
        ),
        (
            &["master", DEMO, "--team", "auto", "--boards", layers],
            "leave out --team auto",
            "--ring",
        ),
        (&["master", DEMO, "--boards", layers, "--ring", layers], "no --ring beside it", "--split"),
        (&["worker", "--boards", layers, "--join", "auto"], "no --join beside it", "--ring"),
        (&["master", DEMO, "--team", shares, "--give", "auto"], "leave out --give", "--boards"),
        (&["master", DEMO, "--ring", layers, "--ring", layers], "--ring", "--boards"),
        (
            &["worker", DEMO, "--split", "9", "--next-host", "x"],
            "--split gives layers 9..6",
            "--end",
        ),
        (&["worker", "--role", "master", "--split", "2"], "leave out --role", "--boards"),
    ] {
        let ran = run(args);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(wanted) && !ran.err.contains(unsaid), "{args:?}: {ran:?}");
    }
}

/// A file of boards is what the option for such a file would have made of it.
#[test]
fn a_file_of_boards_stands_for_the_option_that_its_lines_mean() {
    let folder = Folder::new();
    let file = |name: &str, text: &str| folder.write(name, text).to_str().unwrap().to_owned();
    let layers = file("layers.txt", "desk 127.0.0.1:21701 0..3\npi 127.0.0.1:21702 3..6\n");
    let shares = file("shares.txt", "desk 127.0.0.1:21701 3\npi 127.0.0.1:21721 1\n");
    let names = file("names.txt", "desk 127.0.0.1:21701\npi 127.0.0.1:21702\n");
    let mixed = file("mixed.txt", "desk 127.0.0.1\n127.0.0.2\n");
    for (file, option) in [(&layers, "--ring"), (&shares, "--team")] {
        for command in ["master", "worker", "run"] {
            let node = ["--node", "orange"];
            let new = run(&[&[command, DEMO, "--boards", file][..], &node].concat());
            let role = if command == "run" { "master" } else { command };
            let old = run(&[&[role, DEMO, option, file][..], &node].concat());
            assert_eq!((new.code, &new.err), (old.code, &old.err), "{command} {option}");
            assert!(new.err.contains("orange"), "{new:?}");
        }
    }
    run(&["master", DEMO, "--boards", &names]).fails(2, "--boards needs --key");
    run(&["worker", DEMO, "--boards", &names, "--node", "pi"]).fails(2, "for leap master");
    // The file names the master unless the command line does.
    run(&["master", DEMO, "--boards", &names, "--node", "oak"]).fails(2, "--boards needs --key");
    run(&["master", DEMO, "--boards", &mixed]).fails(3, "some lines have a name");
    run(&["master", DEMO, "--boards", "/no/boards"]).fails(3, "/no/boards");
}

#[test]
fn a_setting_of_the_machine_counts_where_the_command_line_says_nothing() {
    let with = |variable: &str, value: &str, args: &[&str]| {
        let mut command = leap();
        command.args(["run", DEMO, "-p", PROMPT, "-n", "1", "--temp=0", "-q"]).args(args);
        Ran::new(command.env(variable, value).stdin(Stdio::null()).output().unwrap())
    };
    with("LEAP_HUGE", "perhaps", &[]).fails(2, "perhaps");
    with("LEAP_HUGE", "perhaps", &["--huge", "off"]).succeeds();
    with("LEAP_WATTS", "9,3", &[]).fails(2, "9,3");
    with("LEAP_WATTS", "3,9", &["--power-cmd", "echo 5"]).succeeds();
    // Options that only rings have are ignored here.
    with("LEAP_BUSY_POLL", "soon", &[]).succeeds();
}

#[test]
fn name_of_the_program_picks_the_applet() {
    // An emulator gets the program's file, and names it by that.
    if std::env::var("LEAP_TEST_RUNNER").is_err() {
        let program = leap().get_program().to_owned();
        for (name, args, what) in [
            ("inference", &["-p", PROMPT, "--temp", "0", "-n", "20", "-q"][..], ANSWER),
            ("export", &["--help"], "--meta-llama"),
            ("tokenizer", &["--help"], "--encode"),
        ] {
            let output = Command::new(&program).arg0(name).args(args).output().unwrap();
            let ran = Ran::new(output).succeeds();
            assert!(ran.out.contains(what), "{name}: {ran:?}");
        }
    }
    let folder = Folder::new();
    let link = folder.join("inference");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_leap"), &link).unwrap();
    let mut command = leap();
    let words: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).collect();
    let (_, runner) = words.split_last().unwrap();
    let words = runner.iter().copied().chain([link.as_os_str()]).collect::<Vec<_>>();
    let mut linked = Command::new(words[0]);
    linked.args(&words[1..]).args(["-p", PROMPT, "--temp=0", "-n", "20", "-q"]);
    command = linked;
    let ran = Ran::new(command.stdin(Stdio::null()).output().unwrap()).succeeds();
    assert_eq!(ran.out, format!("{PROMPT}{ANSWER}\n"));
}

/// A variable of a shell that is not set leaves an empty value, and the file is not there is no help.
#[test]
fn an_empty_name_is_told_by_its_option() {
    for (command, options) in [
        ("run", &["--tokenizer", "--prompt-file", "--cache", "--draft", "--stop"][..]),
        ("run", &["--draft-node", "--power-cmd", "--kv", "--version", "--watts"]),
        ("master", &["--boards", "--key", "--node", "--host", "--control", "--ring", "--team"]),
        ("worker", &["--prefix-cache", "--draft-model", "--join", "--next-host", "--fetch"]),
        ("serve", &["--listen", "--api-key-file", "--name", "--prefix-cache", "--key", "--host"]),
        ("bench", &["--link", "--link-server", "--key", "--cache"]),
        ("eval", &["--cases", "--text", "--ids", "--against", "--tokenizer"]),
        ("export", &["--gguf", "--meta-llama", "--calibrate"]),
        ("plan", &["--boards", "--out"]),
        ("pack", &["--cache"]),
        ("tokenizer", &["--output"]),
        ("ring", &["--control"]),
        ("doctor", &["--listen", "--api-key-file", "--cache"]),
        ("self-check", &["--server"]),
    ] {
        for option in options {
            let wanted = format!("{option} \"\": the value is empty");
            run(&[command, "x", option, ""]).fails(2, &wanted);
            run(&[command, "x", &format!("{option}=")]).fails(2, &wanted);
        }
    }
    run(&["plan", "-o", "", "--boards", "x"]).fails(2, "--out \"\": the value is empty");
    for (command, name) in [
        ("run", "MODEL"),
        ("worker", "MODEL"),
        ("serve", "MODEL"),
        ("bench", "MODEL"),
        ("pack", "MODEL"),
        ("plan", "MODEL"),
        ("doctor", "MODEL"),
        ("eval", "MODEL"),
        ("info", "FILE"),
        ("export", "OUT"),
        ("tokenizer", "INPUT"),
        ("ring", "ACTION"),
    ] {
        run(&[command, ""]).fails(2, &format!("{name} \"\": the value is empty"));
        run(&[command, "--", ""]).fails(2, &format!("{name} \"\": the value is empty"));
    }
    // A text may be empty.
    run(&["run", DEMO, "-p", "", "-n", "1", "--temp", "0", "-q"]).succeeds();
}

#[test]
fn a_board_without_others_is_told_the_usual_way_to_name_them() {
    let folder = Folder::new();
    let key = folder.write("ring.key", (0..32).collect::<Vec<u8>>());
    let key = key.to_str().unwrap();
    for (args, wanted, unsaid) in [
        (&["worker"][..], "`leap worker --key ring.key` waits for a master", "--split"),
        (&["worker", DEMO, "--key", key], "leave out the model file", "--split"),
        (&["master", DEMO], "`leap master MODEL --boards auto --key ring.key`", "--split"),
        (&["master", DEMO, "--key", key], "--boards HOST,... or --boards FILE", "--split"),
    ] {
        let ran = run(args);
        ran.fails(2, wanted);
        assert!(!ran.err.contains(unsaid), "{ran:?}");
    }
}

#[test]
fn options_of_boards_that_are_called_say_so_beside_a_file_of_parts() {
    let folder = Folder::new();
    let file = |name: &str, text: &str| folder.write(name, text).to_str().unwrap().to_owned();
    let layers = &*file("layers.txt", "desk 127.0.0.1:21701 0..3\npi 127.0.0.1:21702 3..6\n");
    let shares = &*file("shares.txt", "desk 127.0.0.1:21701 3\npi 127.0.0.1:21721 1\n");
    let mut commands = vec!["master"];
    if cfg!(feature = "serve") {
        commands.push("serve");
    }
    for command in commands {
        for boards in [layers, shares] {
            let take = [command, DEMO, "--boards", boards, "--take"];
            run(&take).fails(2, "--take is for boards that are called, by --boards auto");
        }
        let objective = [command, DEMO, "--boards", shares, "--objective", "memory"];
        run(&objective).fails(2, "--objective is for boards that are called and for rings");
        let rebalance = [command, DEMO, "--boards", shares, "--rebalance-after", "9"];
        run(&rebalance).fails(2, "--rebalance-after is for boards that are called");
    }
}

#[test]
fn options_without_effect_are_refused_with_what_they_are_for() {
    for (args, wanted) in [
        (&["run", DEMO, "--no-history"][..], "--no-history needs --chat"),
        (&["run", DEMO, "-p", "a", "--chat-template", "qwen3"], "--chat-template needs --chat"),
        (
            &["run", DEMO, "--streams", "2", "--suffix", "b"],
            "--suffix has no effect with --streams",
        ),
        (&["run", DEMO, "-p", "a", "--version", "2"], "for a checkpoint that is converted"),
        (&["worker", "--draft-model", DEMO, "--node", "pi"], "--node has no effect with"),
        (&["worker", DEMO, "--next-port", "9"], "--next-port needs --next-host"),
        (
            &["serve", DEMO, "--control", "x"],
            "--control needs --boards or --team: it is for a ring",
        ),
        (&["serve", DEMO, "--wire", "f16"], "--wire needs --boards or --team"),
        (&["serve", DEMO, "--transport", "udp"], "--transport needs --boards or --team"),
        (&["serve", DEMO, "--rebalance-after", "9"], "--rebalance-after needs --boards"),
        (&["serve", DEMO, "--ring-timeout", "9"], "--ring-timeout needs --boards"),
        (&["serve", DEMO, "--objective", "memory"], "--objective needs --boards"),
        (&["serve", DEMO, "--take"], "--take needs --boards"),
        (&["serve", DEMO, "--version", "2"], "for a checkpoint that is converted"),
        (&["serve", DEMO, "--no-auth", "--api-key-file", "x"], "no effect with --api-key-file"),
        (&["serve", DEMO, "-q", "--log-prompts"], "--log-prompts has no effect with --quiet"),
        (&["bench", "--cache", "x"], "--cache needs a model file"),
        (&["bench", "--shape", "tinyllama", "--cache", "x"], "--cache needs a model file"),
        (&["bench", DEMO, "--key", "x"], "--key needs --link or --link-server"),
        (&["bench", "--link", "self", "--cache", "x"], "--cache"),
        (&["bench", DEMO, "--link", "self"], "a model file has no effect with --link"),
        (
            &["bench", "--link-server", "0.0.0.0", "--json"],
            "--json has no effect with --link-server",
        ),
        (&["bench", DEMO, "--version", "3"], "--version needs --shape"),
        (&["bench", "--depth", "9"], "--depth needs a model file or --shape"),
        (&["bench", "--draft"], "--draft needs a model file or --shape"),
        (&["eval", DEMO, "--cases", "x", "--window", "9"], "--window needs --text or --ids"),
        (&["eval", DEMO, "--ids", "x", "--tokenizer", "y"], "--tokenizer needs --text"),
        (
            &["export", "x", "--gguf", "y", "--version", "1", "--group-size", "64"],
            "--group-size is for",
        ),
        (
            &["export", "x", "--gguf", "y", "--ctx", "4294967297"],
            "--ctx: context of 4294967297 tokens",
        ),
        (&["plan", DEMO, "--boards", "x", "--version", "3"], "--version needs --shape"),
        (&["plan", DEMO, "--boards", "x", "--explain", "--json"], "--explain has no effect with"),
        (&["doctor", "--cache", "x"], "--cache needs a model file"),
        (&["doctor", "--ctx", "64"], "--ctx needs a model file"),
        (&["doctor", "--undo", "--ring"], "--ring has no effect with --undo"),
    ] {
        if args[0] == "serve" && cfg!(not(feature = "serve")) {
            continue;
        }
        run(args).fails(2, wanted);
    }
}

#[test]
fn numbers_without_meaning_are_told_by_their_own_option() {
    let huge = "99999999999999999999999";
    for (args, wanted) in [
        (&["run", DEMO, "-p", "a", "-n", huge][..], "too large, or -1 for no limit"),
        (&["run", DEMO, "-p", "a", "-n", "0"], "wanted at least 1, or -1 for no limit"),
        (&["run", DEMO, "-p", "a", "--threads", huge], "the number is too large"),
        (&["worker", "--key", "x", "--threads", "0"], "--threads \"0\": wanted at least 1"),
        (&["worker", "--key", "x", "--batch", "0"], "--batch \"0\": wanted at least 1"),
        (&["worker", "--key", "x", "--ctx", "0"], "--ctx \"0\": wanted at least 1"),
        (&["serve", DEMO, "--kv-memory", "0"], "--kv-memory \"0\": nothing has room"),
        (&["serve", DEMO, "--kv-memory", "1K"], "--kv-memory: memory for keys and values"),
        (&["serve", DEMO, "--kv-memory", "8GB"], "with K, M, G or T, as in 500M or 2G"),
        (&["run", DEMO, "--device", "0"], "part of a device's name (leap doctor lists them)"),
        (&["run", DEMO, "-p", "a", "--ctx", "5000"], "--ctx: context of 5000 tokens"),
        (&["plan", DEMO, "--boards", "x", "--streams", "0"], "--streams \"0\": wanted at least 1"),
        (&["bench", "--link", ":9999"], "wanted HOST or HOST:PORT, as in 10.0.0.2:9999"),
        (&["bench", "--link", "9999"], "wanted HOST or HOST:PORT, as in 10.0.0.2:9999"),
        (&["bench", "--link-server", "9999"], "wanted HOST or HOST:PORT"),
        (&["bench", "--link"], "--link needs a value: measure links to the node HOST[:PORT]"),
    ] {
        if args[0] == "serve" && cfg!(not(feature = "serve")) {
            continue;
        }
        let ran = run(args);
        ran.fails(2, wanted);
        assert!(args.contains(&"-n") || !ran.err.contains("-n,"), "{ran:?}");
    }
    let folder = Folder::new();
    for (figure, wanted) in [
        ("memory=8GB", "wanted a number of GB without a unit, as in memory=8"),
        ("rtt=2ms", "wanted a number of microseconds without a unit, as in rtt=200"),
    ] {
        let boards = folder.write("boards", format!("desk 10.0.0.1 read=9 int8=9 {figure}\n"));
        run(&["plan", DEMO, "--boards", boards.to_str().unwrap()]).fails(3, wanted);
    }
}

#[test]
fn settings_of_the_machine_name_their_commands_and_the_reader_of_the_file() {
    let told = run(&["help", "compatibility"]).succeeds().out;
    let told = told.split_whitespace().collect::<Vec<&str>>().join(" ");
    assert!(told.contains("is read by the services"), "{told}");
    assert!(told.contains("LEAP_BUSY_POLL master, worker: microseconds"), "{told}");
    assert!(told.contains("LEAP_HUGE run, master, worker"), "{told}");
}
