//! The program as people and scripts call it: streams, exit codes, signals, files.
#![cfg(all(feature = "tools", feature = "demo"))]

mod common;

use std::fs;
use std::io::{PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::folder::Folder;
use common::leap;
use common::models::package;
use common::ran::Ran;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const PROMPT: &str = "Once upon a time";
/// What the f32 reference goes on with in 20 greedy tokens, decoded; int8 weights say the same.
const ANSWER: &str =
    ", in a green valley, there lived a stubborn owl called Nilo. His best treasure was a wooden";
const DEMO: &str = "models/demo.bin";
const FOX: &str = "Tell me a story about a fox.";

fn command(args: &[&str]) -> Command {
    let mut command = leap();
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Ran {
    Ran::new(command(args).output().unwrap())
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs with `input` on stdin.
fn pipe(args: &[&str], input: impl AsRef<[u8]>) -> Ran {
    let mut child = start(&mut command(args));
    // A program that fails early closes its end.
    let _ = child.stdin.take().unwrap().write_all(input.as_ref());
    Ran::new(child.wait_with_output().unwrap())
}

/// Number of generated tokens in the line of figures.
#[track_caller]
fn generated(err: &str) -> usize {
    let after = err.split("generated ").nth(1).unwrap_or_else(|| panic!("no figures: {err}"));
    after.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn leap_alone_tells_a_story() {
    let ran = run(&[]).succeeds();
    assert!(ran.out.starts_with("Once upon a time") && ran.out.len() > 60, "{ran:?}");
    for figure in ["prompt 5 tokens", "generated ", "first token after", "memory", "1 thread"] {
        assert!(ran.err.contains(figure), "{ran:?}");
    }
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
}

#[test]
fn greedy_text_is_the_references() {
    let ran = run(&["run", DEMO, "-p", PROMPT, "--temp", "0", "-n", "20"]).succeeds();
    assert_eq!(ran.out, format!("{PROMPT}{ANSWER}\n"));
    assert_eq!(generated(&ran.err), 20);
}

#[test]
fn prompt_comes_from_flag_file_or_pipe() {
    let folder = Folder::new();
    let file = folder.write("prompt.txt", format!("{PROMPT}\n"));
    let wanted = format!("{PROMPT}{ANSWER}\n");
    let rest = ["--temp=0", "--n-predict=20", "-q"];
    let with = |first: &[&'static str]| [first, &rest].concat();
    let prompt_file = format!("--prompt-file={}", file.display());
    let runs = [
        run(&with(&["run", DEMO, "--prompt", PROMPT])),
        run(&[&with(&["run", DEMO])[..], &[&prompt_file]].concat()),
        pipe(&with(&["run", DEMO]), PROMPT),
        pipe(&with(&["run", DEMO]), format!("{PROMPT}\r\n")),
        pipe(&with(&["run", DEMO, "-p", "-"]), PROMPT),
        pipe(&with(&["run"]), PROMPT),
    ];
    for (index, ran) in runs.into_iter().enumerate() {
        let ran = ran.succeeds();
        assert_eq!((ran.out.as_str(), ran.err.as_str()), (&*wanted, ""), "run {index}");
    }
}

#[test]
fn json_is_one_object() {
    let args = ["run", DEMO, "-p", PROMPT, "--temp", "0", "-n", "20", "--json"];
    let ran = run(&[&args[..], &["--threads", "1"]].concat()).succeeds();
    let objects = ran.objects();
    assert_eq!(objects.len(), 1);
    let object = &objects[0];
    for (field, wanted) in [
        ("model", Value::from(DEMO)),
        ("prompt", PROMPT.into()),
        ("text", ANSWER.into()),
        ("stop_reason", "length".into()),
        ("prompt_tokens", 5.into()),
        ("generated_tokens", 20.into()),
        ("ctx_len", 1024.into()),
        ("kv", "f16".into()),
        ("threads", 1.into()),
    ] {
        assert_eq!(object[field], wanted, "{field}");
    }
    for field in
        ["prompt_tokens_per_s", "generated_tokens_per_s", "ttft_ms", "memory_bytes", "arena_bytes"]
    {
        assert!(object[field].as_f64().unwrap() > 0.0, "{field}");
    }
    assert!(object["isa"].is_string());
    assert_eq!(ran.err, "");
}

#[test]
fn stop_string_ends_the_text_wherever_tokens_cut_it() {
    let args = ["run", "-p", PROMPT, "--temp", "0", "-q", "--stop"];
    for (stop, wanted) in [
        ("een val", ", in a gr"),
        (" a stubborn owl", ", in a green valley, there lived"),
        (",", ""),
    ] {
        let ran = run(&[&args[..], &[stop]].concat()).succeeds();
        assert_eq!(ran.out, format!("{PROMPT}{wanted}\n"), "{stop:?}");
    }
    let ran = run(&[&args[..], &["lived", "--stop", "valley", "--json"]].concat()).succeeds();
    let object = &ran.objects()[0];
    assert_eq!(object["text"], ", in a green ");
    assert_eq!(object["stop_reason"], "stop_string");
}

#[test]
fn seeds_repeat() {
    let story = |seed: &str| run(&["run", "-n", "24", "-q", "--seed", seed]).succeeds().out;
    assert_eq!(story("5"), story("5"));
    assert_ne!(story("5"), story("6"));
    // One that is drawn is told, and repeats.
    let drawn = run(&["run", "-n", "24", "--seed", "0"]).succeeds();
    let seed = drawn.err.trim_end().rsplit_once("; seed ").unwrap().1;
    assert_eq!(story(seed), drawn.out);
    let json = run(&["run", "-n", "24", "--json"]).succeeds();
    let object = &json.objects()[0];
    let text = format!("{PROMPT}{}\n", object["text"].as_str().unwrap());
    assert_eq!(story(&object["seed"].to_string()), text);
    let exact = run(&["run", "-n", "1", "--json", "--seed", "18446744073709551615"]).succeeds();
    assert_eq!(exact.objects()[0]["seed"], u64::MAX);
}

#[test]
fn n_counts_generated_tokens() {
    for n in ["1", "7"] {
        let ran = run(&["run", "-p", PROMPT, "-n", n]).succeeds();
        assert_eq!(generated(&ran.err).to_string(), n);
    }
    let ran = run(&["run", "-p", "", "-n", "1", "--threads", "1"]).succeeds();
    for one in ["prompt 1 token,", "generated 1 token,", " 1 thread,"] {
        assert!(ran.err.contains(one), "{ran:?}");
    }
    // Without a limit the text goes on to the end of the context.
    let ran = run(&["run", "-p", PROMPT, "-n", "-1", "--ctx", "64", "--temp", "0"]).succeeds();
    assert!(ran.err.contains("the context of 64 tokens is full"), "{ran:?}");
}

#[test]
fn bad_usage_is_one_line_and_code_2() {
    for (args, what) in [
        (&["run", DEMO, "-p", "a", "--temp", "-1"][..], "--temp"),
        (&["run", DEMO, "-p", "a", "--temp", "nan"], "--temp"),
        (&["run", DEMO, "-p", "a", "--top-p", "1.5"], "--top-p"),
        (&["run", DEMO, "-p", "a", "-n", "0"], "-n"),
        (&["run", DEMO, "-p", "a", "-n", "many"], "-n"),
        (&["run", DEMO, "-p", "a", "--ctx", "0"], "context of 0"),
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
        (&["run", DEMO, "-c", "--chat-template", "vicuna"], "chatml"),
        (&["run", DEMO, "-p", "a", "--role", "worker"], "--role"),
        (&["run", "-t", "models/demo.tokenizer.bin"], "its own tokenizer"),
        (&["run", DEMO, "more"], "more"),
        (&["models/demo.bin"], "leap run"),
        (&["eval", DEMO], "--cases"),
        (&["run", DEMO, "-p", "a", "--suffix", "b"], "no tokens for filling in"),
        (&["run", DEMO, "--chat", "--suffix", "b"], "--suffix is for a prompt"),
    ] {
        run(args).fails(2, what);
    }
    let mut forced = command(&["run", "-p", "a"]);
    Ran::new(forced.env("LEAP_ISA", "mmx").output().unwrap()).fails(2, "LEAP_ISA");
    let mut log = command(&["run", "-p", "a"]);
    Ran::new(log.env("LEAP_LOG", "foo").output().unwrap()).fails(2, "LEAP_LOG");
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
    let zeros = &*write("zeros", &"\0".repeat(32));
    let words = &*write("words", "correct horse battery staple 123");
    for (args, code, what) in [
        (&["worker", DEMO][..], 2, "--ring"),
        (&["worker", DEMO, "--split", "2"], 2, "--next-host"),
        (&["worker", DEMO, "--split", "9", "--next-host", "x"], 2, "0..6"),
        (&["worker", DEMO, "--ring", ring], 2, "--node"),
        (&["worker", DEMO, "--ring", ring, "--node", "desk"], 2, "is the master"),
        (&["master", DEMO, "--ring", ring, "--node", "pi"], 2, "is the master"),
        (&["master", DEMO, "--ring", ring, "--split", "2"], 2, "--split"),
        (&["master", DEMO, "--split", "2", "--end", "4"], 2, "--end"),
        (&["run", DEMO, "-p", "a", "--key", key], 2, "--role"),
        (&["run", DEMO, "-p", "a", "--busy-poll", "9"], 2, "--role"),
        (&["run", DEMO, "-p", "a", "--streams", "2"], 2, "--streams"),
        (&["worker", DEMO, "--wire", "f8"], 2, "f16"),
        (&["worker", DEMO, "--temp", "0"], 2, "it is for --role single and --role master"),
        (&["worker", DEMO, "--json"], 2, "it is for --role single and --role master"),
        (&["worker", DEMO, "--ring-timeout", "1"], 2, "it is for --role master"),
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
fn a_ring_of_one_needs_no_link() {
    let folder = Folder::new();
    let path = folder.join("ring");
    fs::write(&path, "desk 127.0.0.1 0..6\n").unwrap();
    let args = ["-p", "Once upon a time", "-n", "9", "--temp", "0"];
    let alone = run(&[&["run", DEMO][..], &args].concat()).succeeds();
    let ring = run(&[&["master", DEMO, "--ring", path.to_str().unwrap()][..], &args].concat());
    assert_eq!(ring.succeeds().out, alone.out);
}

#[test]
fn prompts_side_by_side_are_answered_in_order() {
    let folder = Folder::new();
    let path = folder.join("prompts");
    fs::write(&path, "Once upon a time\n\nThe fox\nA girl\n").unwrap();
    let path = path.to_str().unwrap();
    let one =
        |prompt: &str| run(&["run", DEMO, "-p", prompt, "-n", "9", "--temp", "0"]).succeeds().out;
    let args = ["run", DEMO, "--streams", "2", "--prompt-file", path, "-n", "9", "--temp", "0"];
    let wanted = ["Once upon a time", "The fox", "A girl"].map(one).concat();
    assert_eq!(run(&args).succeeds().out, wanted);
}

#[test]
fn bad_files_are_one_line_and_code_3() {
    let folder = Folder::new();
    run(&["run", "no/model.bin", "-p", "a"]).fails(3, "no/model.bin");
    run(&["run", ".", "-p", "a"]).fails(3, "not a regular file");
    run(&["run", "Cargo.toml", "-p", "a"]).fails(3, "Cargo.toml");
    run(&["run", DEMO, "--prompt-file", "no.txt"]).fails(3, "no.txt");
    run(&["run", DEMO, "-p", "a", "-t", "no.bin"]).fails(3, "no.bin");
    pipe(&["run", DEMO], b"\xff\xfe").fails(3, "UTF-8");
    let alone = folder.join("m.bin");
    fs::copy(package(DEMO), &alone).unwrap();
    let alone = alone.to_str().unwrap();
    run(&["run", alone, "-p", "a"]).fails(3, "no tokenizer beside the model");
    // One of another model does not fit, by name or by fingerprint.
    let bytes = fs::read(package("models/demo.tokenizer.bin")).unwrap();
    let without_trailer = &bytes[..bytes.len() - 1];
    let other = folder.write("tokenizer.bin", without_trailer);
    run(&["run", alone, "-p", "a"]).fails(3, "no fitting tokenizer");
    let with = |tokenizer: &str| run(&["run", alone, "-p", "a", "-t", tokenizer]);
    with(other.to_str().unwrap()).fails(3, "cannot use tokenizer");
    let llama = folder.join("llama.bin");
    let llama = llama.to_str().unwrap();
    run(&["tokenizer", "tests/golden/llama2-meta-tiny", "-o", llama]).succeeds();
    with(llama).fails(3, "as the model has");
    with(DEMO).fails(3, "a model file");
    run(&["tokenizer", DEMO]).fails(3, "a model file");
}

#[test]
fn text_of_files_does_not_reach_the_terminal_as_it_is() {
    let folder = Folder::new();
    let dir = folder.path().to_str().unwrap();
    let nasty = format!("\u{1b}[2J\u{9b}31m\r\n\u{202e}{}", "x".repeat(100_000));
    let refused = |args: &[&str]| {
        let ran = run(args);
        ran.fails(3, folder.path().file_name().unwrap().to_str().unwrap());
        let line = ran.err.trim_end_matches('\n');
        assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
        assert!(line.contains("[2J") && line.chars().count() < 500, "{line:?}");
    };
    for config in [
        json!({ "model_type": nasty }),
        json!({ "architectures": [nasty], "model_type": "llama" }),
        json!({ "model_type": "llama", "hidden_size": { "a": nasty } }),
        json!({ "model_type": "llama", "hidden_act": nasty }),
    ] {
        folder.write("config.json", config.to_string());
        folder.write("model.safetensors.index.json", "{}");
        refused(&["export", "/dev/null", "--meta-llama", dir]);
    }
    let config = fs::read(package("tests/golden/mistral-tiny/config.json")).unwrap();
    folder.write("config.json", config);
    for map in [json!({ (&nasty): 3 }), json!({ "a": { "b": nasty } }), json!({ "a": nasty })] {
        let index = json!({ "weight_map": map });
        folder.write("model.safetensors.index.json", index.to_string());
        refused(&["export", "/dev/null", "--meta-llama", dir]);
    }
    for tokenizer in [
        json!({ "model": { "type": nasty } }),
        json!({ "model": { "byte_fallback": true, "vocab": { (&nasty): -1 }, "merges": [] },
            "normalizer": { "normalizers": [{ "type": "Replace", "pattern": { "String": " " },
            "content": "\u{2581}" }] } }),
    ] {
        let path = folder.write("tokenizer.json", tokenizer.to_string());
        refused(&["tokenizer", path.to_str().unwrap()]);
    }
}

/// Two bytes of JSON take dozens in memory: a file of many small values is refused unread.
#[test]
fn json_of_too_many_values_is_refused() {
    let folder = Folder::new();
    let zeros = |n: usize| format!("{{\"a\": [0{}]}}", ",0".repeat(n));
    folder.write("config.json", zeros(1 << 16));
    folder.write("model.safetensors.index.json", "{}");
    let dir = folder.path().to_str().unwrap();
    run(&["export", "/dev/null", "--meta-llama", dir]).fails(3, "more than 65536 values");
    let many = folder.write("tokenizer.json", zeros(1 << 22));
    let many = many.to_str().unwrap();
    run(&["tokenizer", many]).fails(3, "more than 4194304 values");
    run(&["eval", DEMO, "--cases", many]).fails(3, "more than 4194304 values");
    run(&["eval", DEMO, "--ids", many]).fails(3, "more than 4194304 values");
}

#[test]
fn unreadable_model_is_code_3() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let path = folder.write("m.bin", "x");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Root reads everything; then the file is short instead.
    let what = if fs::read(&path).is_ok() { "truncated" } else { "denied" };
    run(&["run", path.to_str().unwrap(), "-p", "a"]).fails(3, what);
}

/// A stdout that nobody reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn reader_that_goes_away_ends_the_answer() {
    for args in [&["run", "-p", PROMPT, "-n", "200"][..], &["run", "-c", "-p", FOX]] {
        let ran = Ran::new(command(args).stdout(closed()).output().unwrap()).succeeds();
        assert!(generated(&ran.err) <= 2, "{ran:?}");
    }
    for args in [&["run", "-n", "3", "--json"][..], &["--help"]] {
        let ran = Ran::new(command(args).stdout(closed()).output().unwrap()).succeeds();
        assert_eq!(ran.err, "", "{args:?}");
    }
}

#[test]
fn full_disk_is_a_failure() {
    let folder = Folder::new();
    let prompts = folder.write("prompts", "Once\nThe fox\n");
    let prompts = prompts.to_str().unwrap();
    let ids = folder.write("ids.json", "[4064, 589, 598]");
    let ids = ids.to_str().unwrap();
    for args in [
        &["run", "-p", PROMPT, "-n", "9"][..],
        &["run", "-p", PROMPT, "-n", "9", "--json"],
        &["run", "-c", "-p", FOX, "-n", "9"],
        &["run", DEMO, "--streams", "2", "--prompt-file", prompts, "-n", "9"],
        &["run", DEMO, "--streams", "2", "--prompt-file", prompts, "-n", "9", "--json"],
        &["info", DEMO],
        &["eval", DEMO, "--ids", ids],
        &["--help"],
        &["run", "--help"],
        &["--version"],
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ran = Ran::new(command(args).stdout(full).output().unwrap());
        ran.fails(1, "cannot write to stdout");
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
fn conversation_keeps_what_it_has_computed() {
    let args = ["run", "-c", "--temp", "0", "-n", "20", "--json"];
    let ran = pipe(&args, format!("{FOX}\n\nWhat did the fox do?\n")).succeeds();
    let turns = ran.objects();
    assert_eq!(turns.len(), 2, "an empty line is no message");
    assert_eq!(turns[0]["prompt"], FOX);
    let tokens = |turn: &Value| turn["prompt_tokens"].as_u64().unwrap();
    // The second turn holds the last token of the answer, its end, and the new message alone.
    let alone = pipe(&args, "What did the fox do?\n").succeeds();
    let alone = tokens(&alone.objects()[0]);
    assert!(tokens(&turns[1]) <= alone + 2, "{} of {alone}", tokens(&turns[1]));

    // A fresh conversation that computes everything anew says the same.
    let text = pipe(&args[..6], format!("{FOX}\nWhat did the fox do?\n")).succeeds();
    let answers: Vec<&str> = turns.iter().map(|turn| turn["text"].as_str().unwrap()).collect();
    assert_eq!(text.out, format!("{}\n{}\n", answers[0], answers[1]));
    let small_batches = [&args[..], &["--batch", "3"]].concat();
    let again = pipe(&small_batches, format!("{FOX}\nWhat did the fox do?\n")).succeeds();
    let again: Vec<Value> = again.objects().iter().map(|turn| turn["text"].clone()).collect();
    assert_eq!(again, answers);
}

#[test]
fn system_prompt_is_part_of_the_context() {
    let args = ["run", "-c", "--temp", "0", "-n", "4", "--json", "-p", FOX];
    let without = run(&args).succeeds().objects()[0]["prompt_tokens"].as_u64().unwrap();
    let with = run(&[&args[..], &["-s", "You tell stories."]].concat()).succeeds();
    let objects = with.objects();
    assert_eq!(objects.len(), 1, "a message on the command line is the whole conversation");
    assert!(objects[0]["prompt_tokens"].as_u64().unwrap() > without + 4);
}

#[test]
fn full_context_drops_the_oldest_turns_and_says_so() {
    let args = ["run", "-c", "--temp", "0", "--ctx", "64"];
    let ran = pipe(&args, format!("{FOX}\nWhat did it do?\nAnd then?\n")).succeeds();
    assert_eq!(ran.out.lines().filter(|line| !line.is_empty()).count(), 3, "{ran:?}");
    assert!(ran.err.contains("dropped the oldest turns"), "{ran:?}");
    assert!(ran.err.contains("the answer ends here"), "{ran:?}");
    let too_long = format!("{}\nhi\n", "word ".repeat(100));
    let ran = pipe(&[&args[..], &["-n", "5"]].concat(), too_long).succeeds();
    assert!(ran.err.contains("the message needs") && ran.err.contains("raise --ctx"), "{ran:?}");
    assert_eq!(generated(&ran.err), 5, "the next message is answered");
    let ran = pipe(&args, "word ".repeat(100));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("no message was short enough"), "{ran:?}");
    pipe(&args, "\n").succeeds();
}

/// A run of 1000 tokens that takes long enough to be interrupted.
fn slow(args: &[&str]) -> Child {
    start(&mut slow_command(args))
}

fn slow_command(args: &[&str]) -> Command {
    let mut command = command(&["run", "--temp", "5", "--top-p", "1", "--seed", "3"]);
    command.args(["--threads", "1"]).args(args).env("LEAP_ISA", "scalar");
    command
}

/// Waits for `n` bytes of the child's text.
fn wait_for_text(child: &mut Child, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    child.stdout.as_mut().unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
}

#[test]
fn interrupt_ends_the_answer() {
    let mut child = slow(&["-p", "x", "-n", "1000"]);
    wait_for_text(&mut child, 10);
    interrupt(&child);
    let ran = Ran::new(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!((1..1000).contains(&generated(&ran.err)), "{ran:?}");
    assert!(ran.out.ends_with('\n'), "{ran:?}");
}

#[test]
fn termination_ends_the_conversation() {
    for is_answering in [true, false] {
        let mut child = slow(&["-c"]);
        let mut stdin = child.stdin.take().unwrap();
        if is_answering {
            writeln!(stdin, "x").unwrap();
            wait_for_text(&mut child, 10);
        } else {
            writeln!(stdin).unwrap();
            // The empty line is no message: the program waits for one, or soon will.
            std::thread::sleep(Duration::from_millis(300));
        }
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        // No further line comes, and the input does not end.
        let ran = Ran::new(child.wait_with_output().unwrap());
        drop(stdin);
        // Nothing is cut short while it waits for a message.
        assert_eq!(ran.code, Some(if is_answering { 143 } else { 0 }), "{ran:?}");
    }
}

#[test]
fn interrupt_leaves_the_conversation_open() {
    let mut child = slow(&["-c"]);
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "x").unwrap();
    wait_for_text(&mut child, 10);
    interrupt(&child);
    // The line break after the answer shows that the program is ready for the next one.
    while wait_for_text(&mut child, 1) != b"\n" {}
    writeln!(stdin, "y").unwrap();
    wait_for_text(&mut child, 10);
    interrupt(&child);
    drop(stdin);
    let ran = Ran::new(child.wait_with_output().unwrap()).succeeds();
    assert_eq!(ran.err.matches("generated ").count(), 2, "{ran:?}");
}

/// Fills a pipe up, without keeping its other writers from waiting for room.
fn fill(pipe: &PipeWriter) {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let mut open = fs::OpenOptions::new();
    let mut pipe = open.write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    while pipe.write(&[0; 512]).is_ok() {}
    while pipe.write(&[0]).is_ok() {}
}

#[test]
fn second_interrupt_ends_the_program() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = slow_command(&["-p", "x", "-n", "1000"]);
    command.stdout(writer.try_clone().unwrap()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    reader.read_exact(&mut [0]).unwrap();
    // The text finds no room from here on, so the program cannot end by itself.
    fill(&writer);
    interrupt(&child);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(child.try_wait().unwrap(), None, "the first interrupt ends the answer alone");
    let start = Instant::now();
    let status = loop {
        interrupt(&child);
        std::thread::sleep(Duration::from_millis(10));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the second one does not end it");
    };
    assert_eq!(status.signal(), Some(Signal::SIGINT as i32));
}

#[test]
fn model_shortened_while_in_use_ends_the_program_with_one_line() {
    let folder = Folder::new();
    let model = folder.write("model.bin", fs::read(DEMO).unwrap());
    folder.write("model.tokenizer.bin", fs::read("models/demo.tokenizer.bin").unwrap());
    let path = model.to_str().unwrap();
    // Without packed weights every token reads the mapped file.
    let mut child = slow(&[path, "--cache", "off", "--huge", "off", "-p", "x", "-n", "1000"]);
    wait_for_text(&mut child, 10);
    fs::File::options().write(true).open(&model).unwrap().set_len(4096).unwrap();
    Ran::new(child.wait_with_output().unwrap()).fails(1, "somebody shortened it");
}

#[test]
fn doctor_names_what_mends_and_judges_by_its_exit_code() {
    let ran = run(&["doctor", DEMO, "--json", "--ring"]);
    let findings = ran.objects();
    let has = |what: &str| findings.iter().any(|finding| finding["what"] == what);
    for what in ["cores", "governor", "pages", "memory", "bandwidth", "cache", "module", "port"] {
        assert!(has(what), "{what}: {ran:?}");
    }
    for finding in &findings {
        assert_eq!(finding["state"] != "good", finding["mend"].is_string(), "{finding}");
    }
    let is_fit = findings.iter().all(|finding| finding["state"] != "bad");
    assert_eq!(ran.code, Some(if is_fit { 0 } else { 1 }), "{ran:?}");

    // Somebody with one board is not bothered with what a ring needs.
    let alone = run(&["doctor", DEMO]);
    for what in ["module", "port", "network", "buffers"] {
        let is_told = alone.out.lines().any(|line| line.split_whitespace().nth(1) == Some(what));
        assert!(!is_told, "{what}: {alone:?}");
    }
    assert!(alone.err.contains("leap doctor --ring"), "{alone:?}");
    run(&["doctor", "--port", "9999"]).fails(2, "--ring");

    let long = run(&["doctor", DEMO, "--ctx", "999999"]);
    assert!(long.code == Some(1) && long.out.contains("--ctx 1024"), "{long:?}");
    run(&["doctor", "no-such-model.bin"]).fails(3, "no-such-model.bin");
    run(&["doctor", "README.md"]).fails(3, "README.md");
}

#[test]
fn name_of_the_program_picks_the_applet() {
    // An emulator is told the program's file, and gives it that name.
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

/// Exports a checkpoint of the golden ones with its tokenizer.
fn export(folder: &Path, name: &str, checkpoint: &str) -> String {
    let out = folder.join(name).to_str().unwrap().to_owned();
    let checkpoint = format!("tests/golden/{checkpoint}");
    let ran = run(&["export", &out, "--meta-llama", &checkpoint, "--version", "1"]).succeeds();
    assert!(ran.err.contains("version 1 (f32)"), "{ran:?}");
    out
}

#[test]
fn models_in_one_folder_find_their_own_tokenizers() {
    let folder = Folder::new();
    let llama3 = export(folder.path(), "one.bin", "llama3-tiny");
    let llama2 = export(folder.path(), "two.bin", "llama2-meta-tiny");
    let again = export(folder.path(), "three.bin", "llama3-tiny");
    for (model, text) in [(&llama3, "The fox"), (&llama2, "The fox"), (&again, "The fox")] {
        let ran = run(&["run", model, "-p", text, "-n", "3", "--temp", "0", "-q"]).succeeds();
        assert!(ran.out.starts_with(text), "{ran:?}");
    }
    // Three models with two tokenizers.
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 5, "{names:?}");
}

#[test]
fn eval_judges_by_its_exit_code() {
    let folder = Folder::new();
    let model = export(folder.path(), "m.bin", "llama2-meta-tiny");
    let cases = "tests/golden/llama2-meta-tiny/golden.json";
    let eval = |more: &[&str]| run(&[&["eval", &model, "--cases", cases][..], more].concat());
    let strict = ["--max-drift", "2e-4", "--min-top1", "1", "--greedy", "--json"];
    let ran = eval(&strict).succeeds();
    let report = &ran.objects()[0];
    assert_eq!(report["greedy_match"], report["greedy_tokens"]);
    assert_eq!(report["top1_agreement"], 1.0);
    assert!(report["max_drift"].as_f64().unwrap() < 1e-4, "{report}");
    eval(&["--max-drift", "1e-9"]).fails(1, "drift");
    eval(&["--kv", "f16", "--max-drift", "1e-7"]).fails(1, "drift");
    // The cases of another vocabulary.
    let other = "tests/golden/llama3-tiny/golden.json";
    run(&["eval", &model, "--cases", other]).fails(3, "golden.json");
    run(&["eval", "no.bin", "--cases", cases]).fails(3, "no.bin");
    run(&["eval", &model, "--ids", "Cargo.toml"]).fails(3, "Cargo.toml");
}

/// The first ids of the demo model's validation text, in whole windows of 256 and one more.
fn validation_ids() -> Vec<u32> {
    let text = fs::read_to_string(package("tests/golden/demo-validation-ids.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn demo_model_is_as_good_as_its_f32_original() {
    // `leap eval` of the checkpoint exported with `--version 1`, on these ids in windows of 256.
    // `scripts/eval-demo.sh` does so for the whole text.
    const F32_PERPLEXITY: f64 = 1.547_690_297_506;
    let folder = Folder::new();
    let ids = &validation_ids()[..];
    assert_eq!(ids.len() % 256, 1, "the last id is only predicted");
    let path = folder.write("ids.json", serde_json::to_string(ids).unwrap());
    let ran = run(&["eval", DEMO, "--ids", path.to_str().unwrap(), "--json"]).succeeds();
    let report = &ran.objects()[0];
    assert_eq!(report["parts"], ids.len() / 256);
    let perplexity = report["perplexity"].as_f64().unwrap();
    let worse = perplexity / F32_PERPLEXITY - 1.0;
    assert!(worse.abs() <= 1e-3, "perplexity {perplexity}, f32 has {F32_PERPLEXITY}");

    // A rest that fills no window changes nothing; one alone is measured.
    let rest = folder.write("rest.json", serde_json::to_string(&ids[..300]).unwrap());
    let first = folder.write("first.json", serde_json::to_string(&ids[..257]).unwrap());
    let nll = |path: &Path| {
        let ran = run(&["eval", DEMO, "--ids", path.to_str().unwrap(), "--json"]).succeeds();
        ran.objects()[0]["nll"].as_f64().unwrap()
    };
    assert_eq!(nll(&rest), nll(&first));
    let short = folder.write("short.json", "[4064, 589, 598]");
    assert!(nll(&short) > 0.0);
}

/// Runs the program in a shell that has set these limits; `None` where an emulator, not the program,
/// would meet them.
fn limited(limits: &str, args: &[&str]) -> Option<Ran> {
    if std::env::var_os("LEAP_TEST_RUNNER").is_some_and(|runner| !runner.is_empty()) {
        return None;
    }
    let mut shell = Command::new("sh");
    let script = format!("ulimit -c 0; {limits}; exec \"$0\" \"$@\"");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_leap")]).args(args).stdin(Stdio::null());
    let output = shell.env("RUST_BACKTRACE", "0").output().unwrap();
    Some(Ran::new(output))
}

/// Below the first of these the program is not loaded; with the last it runs.
#[test]
fn little_memory_gives_text_or_one_line() {
    let args = ["run", DEMO, "-p", PROMPT, "-n", "4", "--temp", "0", "-q", "--ctx", "512"];
    let free = run(&args).succeeds().out;
    let mut answered = 0;
    for kib in (10_000..40_000).step_by(700).chain([60_000, 2_000_000]) {
        for cache in [&["--cache", "off"][..], &[]] {
            let limits = format!("ulimit -v {kib}");
            let Some(ran) = limited(&limits, &[&args, cache].concat()) else { return };
            match ran.code {
                // What loads the program had no memory.
                Some(127) => {}
                Some(0) => {
                    assert_eq!(ran.out, free, "{kib} KiB");
                    answered += 1;
                }
                _ => ran.fails(1, ""),
            }
        }
    }
    assert!(answered > 1, "{answered}");
}

#[test]
fn a_link_server_that_gets_no_thread_says_so() {
    for kib in (10_000..30_000).step_by(1000) {
        let args = ["bench", "--link", "self"];
        let Some(ran) = limited(&format!("ulimit -v {kib}"), &args) else { return };
        match ran.code {
            // What loads the program had no memory, or there was enough of it.
            Some(0 | 127) => {}
            _ => ran.fails(1, ""),
        }
    }
}

#[test]
fn small_stacks_give_text_or_one_line() {
    let args = ["run", DEMO, "-p", PROMPT, "-n", "4", "--temp", "0", "-q"];
    let free = run(&args).succeeds().out;
    for kib in [64, 128, 256, 512] {
        let Some(ran) = limited(&format!("ulimit -s {kib}"), &args) else { return };
        match ran.code {
            Some(0) => assert_eq!(ran.out, free, "{kib} KiB"),
            _ => ran.fails(1, "ulimit -s"),
        }
    }
}

#[test]
fn too_few_open_files_are_no_fault_of_the_model() {
    let args = ["run", DEMO, "-p", PROMPT, "-n", "4"];
    for n in [3, 4, 5, 6] {
        let Some(ran) = limited(&format!("ulimit -n {n}"), &args) else { return };
        assert!(matches!(ran.code, Some(0 | 1 | 127)), "{n} files: {ran:?}");
    }
    let context = ["--ctx", "1024", "--streams", "60000", "-q"];
    let ran = limited(
        "ulimit -v 500000",
        &["run", DEMO].iter().chain(&context).copied().collect::<Vec<_>>(),
    );
    let Some(ran) = ran else { return };
    ran.fails(1, "lower --ctx");
}
