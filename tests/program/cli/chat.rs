//! Conversations over a pipe.

use serde_json::{Value, json};

use super::{FOX, export, generated, pipe, run};
use crate::common::folder::Folder;
use crate::common::models::package;

#[test]
fn conversation_keeps_what_it_has_computed() {
    let args = ["run", "-c", "--temp", "0", "-n", "20", "--json"];
    let ran = pipe(&args, format!("{FOX}\n\nWhat did the fox do?\n")).succeeds();
    let turns = ran.objects();
    assert_eq!(turns.len(), 2, "an empty line is no message");
    assert_eq!(turns[0]["prompt"], FOX);
    let tokens = |turn: &Value| turn["prompt_tokens"].as_u64().unwrap();
    // The second turn computes only the answer's last token, its end, and the new message.
    let alone = pipe(&args, "What did the fox do?\n").succeeds();
    let alone = tokens(&alone.objects()[0]);
    assert!(tokens(&turns[1]) <= alone + 2, "{} of {alone}", tokens(&turns[1]));

    // A new conversation that computes everything again gives the same text.
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
    // A short message does not fit beside long instructions.
    let long = "word ".repeat(100);
    let ran = run(&["run", "-c", "--ctx", "64", "-p", "hi", "-s", &long]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains(", instructions included; "), "{ran:?}");
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
    assert!(ran.err.contains("no message could be answered"), "{ran:?}");
    pipe(&args, "\n").succeeds();
}

#[test]
fn thoughts_are_for_models_that_have_them() {
    for args in [
        &["run", "-c", "--think", "on", "-p", FOX][..],
        &["run", "--think", "off", "-p", FOX],
        &["run", "-c", "--think", "no", "-p", FOX],
    ] {
        assert_eq!(run(args).code, Some(2), "{args:?}");
    }
    let folder = Folder::new();
    let (qwen3, gptoss) = (
        export(folder.path(), "qwen3.bin", "qwen3-tiny"),
        export(folder.path(), "gptoss.bin", "gptoss-tiny"),
    );
    let prompt_tokens = |model: &str, think: &str| {
        let args = ["run", model, "-c", "--temp", "0", "-n", "4", "--json", "-p", "Hi"];
        let ran = run(&[&args[..], &["--think", think]].concat()).succeeds();
        ran.objects()[0]["prompt_tokens"].as_u64().unwrap()
    };
    // Without thoughts, the prompt ends with an empty thought.
    let [on, off, hide] = ["on", "off", "hide"].map(|think| prompt_tokens(&qwen3, think));
    assert!(off > on && on == hide, "{on} {off} {hide}");
    assert_eq!(prompt_tokens(&gptoss, "on"), prompt_tokens(&gptoss, "hide"));
    let ran = run(&["run", &gptoss, "-c", "--think", "off", "-p", "Hi"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("always thinks"), "{ran:?}");
}

/// Templates in Go's language write what Go's own package makes of them.
#[test]
fn templates_in_gos_language_write_what_go_writes() {
    let folder = Folder::new();
    let fixtures = std::fs::read(package("tests/golden/go-templates.json")).unwrap();
    let fixtures: Vec<Value> = serde_json::from_slice(&fixtures).unwrap();
    assert_eq!(fixtures.len(), 6);
    for fixture in &fixtures {
        let name = fixture["name"].as_str().unwrap();
        folder.write(name, fixture["template"].as_str().unwrap());
        let rendered = fixture["rendered"].as_array().unwrap();
        let talks = rendered.iter().map(|one| {
            let mut talk = one["talk"].clone();
            talk["now"] = "2026-03-09".into();
            format!("{talk}\n")
        });
        let template = folder.join(name);
        let tokenizer = ["tokenizer", "models/demo.tokenizer.bin", "--chat", "--text"];
        let args = [&tokenizer[..], &["--chat-template", template.to_str().unwrap()]].concat();
        let ran = pipe(&args, talks.collect::<String>()).succeeds();
        let texts = rendered.iter().map(|one| format!("{}\n", one["text"]));
        assert_eq!(ran.out, texts.collect::<String>(), "{name}");
    }
}

/// In Go the other part of a loop is for lists without elements, not for loops that end early.
#[test]
fn a_loop_in_gos_language_that_breaks_off_has_had_a_turn() {
    let folder = Folder::new();
    let talk =
        |messages: Value| format!("{}\n", json!({"messages": messages, "now": "2026-03-09"}));
    let user = json!({"role": "user", "content": "a"});
    let call = json!({"function": {"name": "f", "arguments": {"b": 2, "a": 1}}});
    let calls = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    for (template, wanted) in [
        ("{{ range .Messages }}<{{ .Role }}>{{ break }}{{ else }}none{{ end }}", "<user>"),
        ("{{ range .Messages }}{{ continue }}{{ else }}none{{ end }}|", "|"),
        (
            "{{ range $i, $m := .Messages }}{{ range .ToolCalls }}{{ .Function.Name }}{{ break }}{{ else }}-{{ end }}{{ end }}",
            "-f",
        ),
        (
            "{{ range .Messages }}{{ range .ToolCalls }}{{ range $k, $v := .Function.Arguments }}{{ $k }}{{ break }}{{ else }}-{{ end }}{{ end }}{{ end }}",
            "a",
        ),
        (
            "{{ range .Messages }}{{ range $j, $c := .ToolCalls }}{{ $j }}{{ else }}{{ .Role }}{{ end }}{{ end }}",
            "user0",
        ),
    ] {
        let path = folder.write("template", template);
        let tokenizer = ["tokenizer", "models/demo.tokenizer.bin", "--chat", "--text"];
        let args = [&tokenizer[..], &["--chat-template", path.to_str().unwrap()]].concat();
        let ran = pipe(&args, talk(json!([user, calls]))).succeeds();
        assert_eq!(ran.out, format!("{}\n", json!(wanted)), "{template}");
    }
}
