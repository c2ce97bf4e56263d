//! Texts: sources of prompts, and ends of texts.

use std::fs;

use serde_json::Value;

use super::{ANSWER, DEMO, PROMPT, export, generated, pipe, run};
use crate::common::folder::Folder;

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
    assert!(object["passes"].as_u64().unwrap() <= 20, "{object}");
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
    // A random seed is reported, and gives the same text again.
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
    // Without a limit, the text goes on to the end of the context.
    let ran = run(&["run", "-p", PROMPT, "-n", "-1", "--ctx", "64", "--temp", "0"]).succeeds();
    assert!(ran.err.contains("the context of 64 tokens is full"), "{ran:?}");
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
fn a_prompt_that_is_too_long_fails_alone() {
    let folder = Folder::new();
    let path = folder.write("prompts", format!("The fox\n{}\nA girl\n", "word ".repeat(80)));
    let one = |prompt: &str| {
        let args = ["run", DEMO, "-p", prompt, "-n", "9", "--temp", "0", "--ctx", "64"];
        run(&args).succeeds().out
    };
    let args = ["run", DEMO, "--streams", "2", "-n", "9", "--temp", "0", "--ctx", "64", "-q"];
    let args = [&args[..], &["--prompt-file", path.to_str().unwrap()]].concat();
    let ran = run(&args);
    assert_eq!((ran.code, &*ran.out), (Some(1), &*["The fox", "A girl"].map(one).concat()));
    let lines: Vec<&str> = ran.err.lines().collect();
    assert!(lines[0].starts_with("leap: warning: prompt 2: the prompt has "), "{lines:?}");
    assert!(lines[0].ends_with("the context 64; shorten it or raise --ctx"), "{lines:?}");
    assert_eq!(lines[1..], ["leap: 1 of 3 prompts have no answer"]);
    let json = run(&[&args[..], &["--json"]].concat());
    let objects = json.objects();
    assert_eq!(objects.len(), 3);
    assert!(objects[1]["error"].as_str().unwrap().contains("the context 64"), "{json:?}");
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
