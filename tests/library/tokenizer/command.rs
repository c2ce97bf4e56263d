//! The `leap tokenizer` command.

use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::common::folder::Folder;
use crate::tokenizer::gguf::{llama3_gguf, text_value};
use crate::tokenizer::{cases, chat_cases, file, golden};

/// Runs `leap tokenizer`.
fn leap(args: &[&str], stdin: &str) -> Output {
    let mut command = crate::common::leap();
    command.arg("tokenizer").args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command may end before it has read all of its input.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn command_converts_encodes_and_decodes() {
    let folder = Folder::new();
    let input = folder.join("tokenizer.model");
    std::fs::copy(golden("llama2-meta-tiny/tokenizer.model"), &input).unwrap();
    let done = leap(&[folder.path().to_str().unwrap()], "");
    assert!(done.status.success() && done.stdout.is_empty(), "{done:?}");
    let written = folder.join("tokenizer.bin");
    let bytes = std::fs::read(&written).unwrap();
    assert_eq!(bytes, file("llama2-meta-tiny/tokenizer.model", None).to_bytes());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);

    let written = written.to_str().unwrap();
    let (mut texts, mut ids) = (String::new(), String::new());
    for case in cases("llama2-meta-tiny") {
        texts += &format!("{}\n", case["text"]);
        ids += &format!("{}\n", case["ids"]);
    }
    let encoded = leap(&[written, "--encode"], &texts);
    assert_eq!(String::from_utf8(encoded.stdout).unwrap(), ids);
    let decoded = leap(&[written, "--decode"], &ids);
    assert_eq!(String::from_utf8(decoded.stdout).unwrap(), texts);
    let special = leap(&[written, "--encode", "--special"], "\"<s>\"\n");
    assert_eq!(special.stdout, b"[1]\n");
}

#[test]
fn decoding_leaves_special_and_reserved_tokens_out_unless_they_are_asked_for() {
    for name in ["llama3-tiny/tokenizer.json", "llama3-tiny/tokenizer.model"] {
        let input = golden(name);
        let input = input.to_str().unwrap();
        let encoded = leap(&[input, "--encode"], "\"a fox\"\n").stdout;
        let ids: Vec<u32> = serde_json::from_slice(&encoded).unwrap();
        let first = first_reserved(name);
        let line = serde_json::to_string(&[&[first], ids.as_slice(), &[first + 1]].concat());
        let line = format!("{}\n", line.unwrap());
        let decoded = leap(&[input, "--decode"], &line).stdout;
        assert_eq!(String::from_utf8(decoded).unwrap(), "\"a fox\"\n", "{name}");
        let shown = leap(&[input, "--decode", "--special"], &line).stdout;
        let wanted = "\"<|reserved_special_token_0|>a fox<|reserved_special_token_1|>\"\n";
        assert_eq!(String::from_utf8(shown).unwrap(), wanted, "{name}");
    }
}

/// The id of the first reserved token of a golden tokenizer.
fn first_reserved(name: &str) -> u32 {
    file(name, None).vocab.find(b"<|reserved_special_token_0|>").unwrap()
}

#[test]
fn command_names_the_line_it_cannot_read() {
    let input = golden("llama3-tiny/tokenizer.model");
    let input = input.to_str().unwrap();
    for (mode, lines) in [
        ("--encode", "\"a\"\nno json\n"),
        ("--encode", "\"a\"\n[1]\n"),
        ("--decode", "[1]\n[-1]\n"),
        ("--decode", "[1]\n[99999]\n"),
    ] {
        let done = leap(&[input, mode], lines);
        assert_eq!(done.status.code(), Some(3), "{lines:?}");
        assert_eq!(done.stdout.iter().filter(|&&byte| byte == b'\n').count(), 1);
        let message = String::from_utf8(done.stderr).unwrap();
        assert!(message.contains("line 2"), "{message}");
    }
}

#[test]
fn command_refuses_what_makes_no_sense() {
    let input = golden("llama3-tiny/tokenizer.model");
    let input = input.to_str().unwrap();
    let folder = Folder::new();
    let own = folder.join("tokenizer.bin");
    let own = own.to_str().unwrap();
    assert!(leap(&[input, "-o", own], "").status.success());
    for usage in [&[input, "--encode", "--decode"][..], &[input, "--special"], &[own], &[]] {
        assert_eq!(leap(usage, "").status.code(), Some(2), "{usage:?}");
    }
    std::fs::write(folder.join("cut.bin"), &std::fs::read(own).unwrap()[..5000]).unwrap();
    let cut = folder.join("cut.bin");
    for bad in [
        cut.to_str().unwrap(),
        "/no/such/file",
        "/no/such/folder/",
        folder.join("leap-no-tokenizer").to_str().unwrap(),
    ] {
        let done = leap(&[bad, "--encode"], "");
        assert_eq!(done.status.code(), Some(3), "{bad}: {done:?}");
    }
    let done = leap(&[input, "-o", "/no/such/folder/out.bin"], "");
    assert_eq!(done.status.code(), Some(1));
}

#[test]
fn command_encodes_conversations() {
    for folder in ["qwen3-tiny", "smollm3-tiny", "gemma3-tiny", "phi3-tiny", "gptoss-tiny"] {
        let input = golden(folder);
        let (mut lines, mut wanted) = (String::new(), String::new());
        for case in chat_cases(folder).iter().filter(|case| case["lookalike"] != true) {
            let mut line = case["options"].as_object().cloned().unwrap_or_default();
            line.insert("messages".to_owned(), case["messages"].clone());
            line.insert("now".to_owned(), "2026-03-09T12:00:00".into());
            lines += &format!("{}\n", Value::Object(line));
            wanted += &format!("{}\n", case["ids"]);
        }
        let done = leap(&[input.to_str().unwrap(), "--chat"], &lines);
        assert_eq!(String::from_utf8(done.stdout).unwrap(), wanted, "{folder}");
    }
}

#[test]
fn command_names_what_is_wrong_with_a_conversation() {
    let input = golden("qwen3-tiny");
    let input = input.to_str().unwrap();
    let good = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
    for (line, word) in [
        ("[]", "not a JSON object"),
        ("{}", "the last one must be the user's"),
        (r#"{"messages": 1}"#, "messages: wanted a list"),
        (r#"{"messages": ["a"]}"#, "message 1: role is missing"),
        (r#"{"messages": [{"role": "user"}]}"#, "message 1: content is missing"),
        (r#"{"messages": [{"role": "tool", "content": ""}]}"#, "role \"tool\""),
        (r#"{"messages": [{"role": "assistant", "content": ""}]}"#, "must take turns"),
        (r#"{"enable_thinking": 1}"#, "enable_thinking: wanted true or false"),
        (r#"{"reasoning_effort": "<|end|>"}"#, "reasoning_effort: wanted low"),
        (r#"{"now": "2026-02-30"}"#, "now: wanted a date"),
        (r#"{"tools": []}"#, "\"tools\" is no option"),
    ] {
        let done = leap(&[input, "--chat"], &format!("{good}\n{line}\n"));
        assert_eq!(done.status.code(), Some(3), "{line}");
        assert_eq!(done.stdout.iter().filter(|&&byte| byte == b'\n').count(), 1);
        let message = String::from_utf8(done.stderr).unwrap();
        assert!(message.contains("line 2") && message.contains(word), "{message}");
    }
    let usages =
        [&["--chat", "--encode"][..], &["--chat", "--special"], &["--chat-template", "gemma"]];
    for usage in usages {
        assert_eq!(leap(&[&[input], usage].concat(), "").status.code(), Some(2), "{usage:?}");
    }
    for (template, word) in [("gemma", "<start_of_turn>"), ("smollm3", "--chat-template")] {
        let done = leap(&[input, "--chat", "--chat-template", template], "");
        let message = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(3), "{message}");
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn a_template_that_is_no_program_is_refused_by_name_of_the_option() {
    let folder = Folder::new();
    std::fs::copy(golden("qwen3-tiny/tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    folder.write("chat_template.jinja", "{% if %}");
    let input = folder.path().to_str().unwrap();
    let done = leap(&[input, "--chat"], "");
    assert_eq!(done.status.code(), Some(3), "{done:?}");
    let message = String::from_utf8(done.stderr).unwrap();
    assert!(message.lines().last().unwrap().contains("--chat-template"), "{message}");
    let line = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n";
    let done = leap(&[input, "--chat", "--chat-template", "chatml"], line);
    assert!(done.status.success() && done.stdout.starts_with(b"["), "{done:?}");
}

/// A message may spell a special token; it stays text.
#[test]
fn the_checkpoints_own_template_writes_conversations() {
    let folder = Folder::new();
    std::fs::copy(golden("qwen3-tiny/tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    let template = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('No tools.') }}{% endif %}\
        <|im_start|>{{ m.role | upper }}: {{ m.content | trim }}<|im_end|>{% endfor %}{{ word }}";
    folder.write("chat_template.jinja", template);
    let input = folder.path().to_str().unwrap();
    let line = r#"{"messages": [{"role": "user", "content": " <|im_end|>a "}], "word": "Go"}"#;
    let refused = r#"{"messages": [{"role": "tool", "content": "x"}]}"#;
    let done = leap(&[input, "--chat", "--text"], &format!("{line}\n{refused}\n"));
    assert_eq!(done.stdout, b"\"<|im_start|>USER: <|im_end|>a<|im_end|>Go\"\n");
    let message = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(3), "{message}");
    assert!(message.ends_with("it refuses the conversation: No tools.\n"), "{message}");
    let ids = |args: &[&str], line: &str| -> Vec<u32> {
        let done = leap(&[&[input], args].concat(), &format!("{line}\n"));
        assert!(done.status.success(), "{done:?}");
        serde_json::from_slice(&done.stdout).unwrap()
    };
    let special = ids(&["--encode", "--special"], "\"<|im_start|><|im_end|>\"");
    let text = ids(&["--encode"], "\"USER: <|im_end|>a\"");
    let end = ids(&["--encode"], "\"Go\"");
    let wanted = [&special[..1], &text, &special[1..], &end].concat();
    assert_eq!(ids(&["--chat"], line), wanted);
    // The file's template stands in for a model's, and a tokenizer.bin keeps it.
    let path = folder.join("chat_template.jinja");
    let named = ["--chat", "--chat-template", path.to_str().unwrap()];
    assert_eq!(ids(&named, line), wanted);
    assert!(leap(&[input], "").status.success());
    let kept = folder.join("tokenizer.bin");
    let done = leap(&[kept.to_str().unwrap(), "--chat"], &format!("{line}\n"));
    assert_eq!(serde_json::from_slice::<Vec<u32>>(&done.stdout).unwrap(), wanted);
}

/// A text that doubles at every step, however large the conversation.
#[test]
fn a_template_that_takes_too_much_memory_is_stopped() {
    let folder = Folder::new();
    std::fs::copy(golden("qwen3-tiny/tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    let bomb = "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}\
        {% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x | length }}";
    folder.write("bomb.jinja", bomb);
    let (input, bomb) = (folder.path().to_str().unwrap(), folder.join("bomb.jinja"));
    let done =
        leap(&[input, "--chat", "--chat-template", bomb.to_str().unwrap()], "{\"messages\": []}\n");
    let message = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(3), "{message}");
    assert!(message.contains("too much memory"), "{message}");
}

/// Tools choose the template, also of a tokenizer.bin and of a GGUF file; a file that stands in for both does not care.
#[test]
fn conversations_with_tools_have_a_template_of_their_own() {
    let folder = Folder::new();
    std::fs::copy(golden("qwen3-tiny/tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    folder.write(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "tool_use", "template": "T{{ tools | length }}"}, {"name": "default", "template": "D"}]}"#,
    );
    let named = folder.write("named.jinja", "N");
    let input = folder.path().to_str().unwrap();
    assert!(leap(&[input], "").status.success());
    let kept = folder.join("tokenizer.bin");
    let lines = "{\"messages\": []}\n{\"messages\": [], \"tools\": [1, 2]}\n{\"messages\": [], \"tools\": null}\n";
    let texts = |args: &[&str]| {
        let done = leap(&[args, &["--chat", "--text"]].concat(), lines);
        String::from_utf8(done.stdout).unwrap()
    };
    let templates = ["D", "T{{ tools | length }}"].map(text_value);
    let keys = ["tokenizer.chat_template", "tokenizer.chat_template.tool_use"];
    let fields: Vec<(&str, &[u8])> =
        keys.into_iter().zip(templates.iter().map(Vec::as_slice)).collect();
    let apart = Folder::new();
    let gguf = llama3_gguf(&apart, &fields);
    for input in [input, kept.to_str().unwrap(), gguf.to_str().unwrap()] {
        assert_eq!(texts(&[input]), "\"D\"\n\"T2\"\n\"D\"\n");
        let stands_in = [input, "--chat-template", named.to_str().unwrap()];
        assert_eq!(texts(&stands_in), "\"N\"\n\"N\"\n\"N\"\n");
    }
}

/// Templates that recurse, allocate, keep memory or panic in the library that runs them.
#[test]
fn hostile_templates_end_no_process() {
    // Values that can be dropped, and values so deep that nothing can be done with them, however LEAP is compiled.
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let deeper = "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [[[[ns.x]]]] %}{% endfor %}";
    let cycle = "{% set ns = namespace() %}{% set ns.x = ns %}";
    let keeps = "{% set ns = namespace() %}{% set ns.y = 'x' * (2000000 + messages | length) %}\
        {% set ns.x = ns %}";
    let macros = "{% set ns = namespace() %}{% set ns.y = 'x' * (2000000 + messages | length) %}\
        {% macro f() %}{{ ns.y | length }}{% endmacro %}{% set ns.f = f %}";
    let (nests, computes) = ("nest too deeply", "cannot be computed");
    let (memory, itself) = ("too much memory", "contain themselves");
    for (begin, end, wanted) in [
        (deep, "", None),
        (deeper, "{{ ns.x ~ 'a' }}", Some(nests)),
        (deeper, "{{ [ns.x] | join }}", Some(nests)),
        (deeper, "{{ ns.x == [ns.x] }}", Some(nests)),
        (deeper, "{{ [ns.x, [ns.x]] | sort }}", Some(nests)),
        (deep, "{{ ns.x | tojson }}", Some("too many for JSON")),
        (cycle, "{{ ns ~ 'a' }}", Some(nests)),
        (cycle, "{{ [ns] | join }}", Some(nests)),
        (cycle, "{{ 'a' | replace('a', ns) }}", Some(nests)),
        (cycle, "{{ raise_exception(ns) }}", Some(nests)),
        (cycle, "{{ ns in 'abc' }}", Some(nests)),
        (keeps, "", Some(itself)),
        (macros, "", None),
        ("", "{{ '%.999999999f' | format(1.5) }}", Some(computes)),
        ("", "{{ '{:.70000f}'.format(1.5) }}", Some(computes)),
        ("", "{{ '%999999999999d' | format(1) }}", Some(memory)),
        ("", "{{ ('x' * 99999999) | length }}", Some(memory)),
        ("", "{{ 'a' | indent(10**9) }}", Some(memory)),
        ("", "{{ 'a' | indent(2**63, true) }}", Some(computes)),
        ("", "{{ [1] | batch(10**18) }}", Some(computes)),
        ("", "{{ ([1, 2] * 10**9) | list | length }}", Some(memory)),
        ("", "{{ range(10**9) }}", Some("too many elements")),
    ] {
        let folder = Folder::new();
        std::fs::copy(golden("qwen3-tiny/tokenizer.json"), folder.join("tokenizer.json")).unwrap();
        folder.write("hostile.jinja", [begin, end].concat());
        let path = folder.join("hostile.jinja");
        let args = [folder.path().to_str().unwrap(), "--chat", "--chat-template"];
        let args = [&args[..], &[path.to_str().unwrap()]].concat();
        let done = leap(&args, "{\"messages\": []}\n{\"messages\": []}\n");
        let message = String::from_utf8_lossy(&done.stderr);
        match wanted {
            None => assert!(done.status.success(), "{begin}{end}: {done:?}"),
            Some(wanted) => {
                assert!(matches!(done.status.code(), Some(2 | 3)), "{begin}{end}: {done:?}");
                assert!(message.contains(wanted), "{begin}{end}: {message}");
                assert_eq!(message.trim().lines().count(), 1, "{message}");
            }
        }
    }
}
