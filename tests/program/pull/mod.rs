//! Models by name, and their downloads from a stand-in for the hub and the registry.

mod proxy;
mod stand_in;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::gguf::whole_gguf;
use crate::common::running::Running;
use crate::common::terminal::Terminal;
use crate::http::{Served, ask};
use serde_json::{Value, json};
use stand_in::{COMMIT, Fault, Kind, SYSTEM, StandIn, sha256};

const PROMPT: [&str; 6] = ["-p", "One day", "-n", "8", "--temp", "0"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Runs `leap` with `args`, which must succeed, and returns what it wrote to stdout and stderr.
#[track_caller]
fn good(hub: &StandIn, args: &[&str]) -> (String, String) {
    let output = hub.leap(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{args:?}: {err}");
    (out, err)
}

/// Runs `leap pull name`, which must fail, and returns the exit code and the last line.
fn refused(hub: &StandIn, name: &str) -> (i32, String) {
    let output: Output = hub.leap(&["pull", name]).stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = err.lines().last().unwrap_or_default().to_owned();
    (output.status.code().unwrap_or_else(|| panic!("{name}: ended by a signal: {err}")), last)
}

fn repo(hub: &StandIn) -> PathBuf {
    hub.home.join(".cache/huggingface/hub/models--org--tiny")
}

/// Names in the folder of blobs.
fn blobs(hub: &StandIn) -> Vec<String> {
    let entries = fs::read_dir(repo(hub).join("blobs")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Bytes that look like nothing, of a file that is no model.
fn noise(n: usize) -> Vec<u8> {
    let step = |x: &u32| Some(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(Some(1), step).map(|x| (x >> 24) as u8).take(n).collect()
}

#[test]
fn model_is_fetched_once_found_by_name_and_removed() {
    let hub = StandIn::start();
    hub.put("org/tiny", "tiny-Q4_0.gguf", &noise(100));
    hub.put("org/tiny", "sub/tiny-Q8_0.gguf", &whole_gguf());
    hub.put("org/tiny", "README.md", b"hello");
    let (_, err) = good(&hub, &["pull", "hf:org/tiny"]);
    assert!(err.contains("org/tiny: Q8_0, which suits this machine best of Q8_0, Q4_0"), "{err}");

    let blob = sha256(&whole_gguf());
    let link = repo(&hub).join("snapshots").join(COMMIT).join("sub/tiny-Q8_0.gguf");
    let target = format!("../../../blobs/{blob}");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(&target));
    assert_eq!(fs::read_to_string(repo(&hub).join("refs/main")).unwrap(), COMMIT);
    assert_eq!(blobs(&hub), [blob]);

    // Nothing is asked for again: the second time not even the list, as the name is found.
    let n = hub.count(Kind::Content);
    good(&hub, &["pull", "hf:org/tiny:Q8_0"]);
    assert_eq!(hub.count(Kind::Content), n);
    hub.fail_always(Kind::List, Some(Fault::Status(500, "")));
    let path = hub.home.write("other.gguf", whole_gguf());
    let by_path = good(&hub, &[&["run", path.to_str().unwrap()], &PROMPT[..]].concat());
    let by_name = good(&hub, &[&["run", "hf:org/tiny"], &PROMPT[..]].concat());
    assert_eq!(by_name.0, by_path.0);

    let (list, _) = good(&hub, &["models", "--json"]);
    let row: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&row["name"], &row["pulled"]), (&"hf:org/tiny:Q8_0".into(), &true.into()), "{row}");
    assert!(row["tokens_per_s"].as_f64().unwrap() > 1.0, "{row}");
    let kept = || fs::read_dir(hub.home.join(".cache/leap")).unwrap().count();
    let before = kept();
    good(&hub, &["rm", "hf:org/tiny:Q8_0"]);
    assert!(!repo(&hub).exists());
    assert!(kept() < before, "the converted copy is removed, too");
    let (code, why) = refused(&hub, "hf:org/tiny:Q8_0");
    assert_eq!((code, why.contains("status 500")), (1, true), "{why}");
}

#[test]
fn checkpoint_is_fetched_with_all_it_is_read_with() {
    let hub = StandIn::start();
    let folder = golden("llama3-tiny");
    for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        hub.put("org/tiny", &name, &fs::read(entry.path()).unwrap());
    }
    hub.put("org/tiny", "onnx/model.onnx", b"of no use");
    good(&hub, &["pull", "hf:org/tiny"]);
    let by_path = good(&hub, &[&["run", folder.to_str().unwrap()], &PROMPT[..]].concat());
    let by_name = good(&hub, &[&["run", "hf:org/tiny@main"], &PROMPT[..]].concat());
    assert_eq!(by_name.0, by_path.0);
    assert!(!repo(&hub).join("snapshots").join(COMMIT).join("onnx").exists());
    // A folder that lacks some weights is fetched again, not used.
    let snapshot = repo(&hub).join("snapshots").join(COMMIT);
    fs::remove_file(snapshot.join("model-00002-of-00004.safetensors")).unwrap();
    let output = hub.leap(&["run", "hf:org/tiny"]).stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("hf:org/tiny is not on this machine; `leap pull hf:org/tiny`"), "{err}");
}

#[test]
fn model_of_ollama_is_fetched_into_its_store() {
    let hub = StandIn::start();
    hub.put_ollama("/v2/library/tiny/manifests/1b", &whole_gguf());
    let name = format!("ollama:localhost:{}/library/tiny:1b", hub.port);
    good(&hub, &["pull", &name]);
    let store = hub.home.join(".ollama/models");
    let blob = store.join("blobs").join(format!("sha256-{}", sha256(&whole_gguf())));
    assert_eq!(fs::read(&blob).unwrap(), whole_gguf());
    let manifest = store.join(format!("manifests/localhost:{}/library/tiny/1b", hub.port));
    assert!(fs::read_to_string(&manifest).unwrap().contains("vnd.ollama.image.model"));
    let by_path = good(&hub, &[&["run", blob.to_str().unwrap()], &PROMPT[..]].concat());
    let by_name = good(&hub, &[&["run", &name], &PROMPT[..]].concat());
    assert_eq!(by_name.0, by_path.0);
    // Its parameters are those of the stand-in.
    let (_, err) = good(&hub, &[&["run", &name], &PROMPT[..]].concat());
    assert!(err.contains("the model's settings: stop \"<never>\""), "{err}");
    let (list, _) = good(&hub, &["models"]);
    assert!(list.contains(&name), "{list}");
    good(&hub, &["rm", &name]);
    assert!(!manifest.exists() && !blob.exists());
    let (code, why) = refused(&hub, &name.replace("tiny", "none"));
    assert_eq!((code, why.contains("there is no model ollama:")), (3, true), "{why}");
}

/// Conversations without instructions get those that come with a model of Ollama's.
#[test]
fn instructions_of_ollamas_models_begin_conversations() {
    let hub = StandIn::start();
    hub.put_ollama("/v2/library/tiny/manifests/1b", &whole_gguf());
    let name = format!("ollama:localhost:{}/library/tiny:1b", hub.port);
    good(&hub, &["pull", &name]);
    let blob = format!(".ollama/models/blobs/sha256-{}", sha256(&whole_gguf()));
    let blob = hub.home.join(&blob);
    let chat = ["--chat", "--chat-template", "zephyr", "-n", "8", "--temp", "0"];
    let talk = |args: &[&str]| {
        let mut command = hub.leap(args);
        command.args(chat).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"hi\n").unwrap();
        child.wait_with_output().unwrap()
    };
    let [told, named, other] = [
        talk(&["run", blob.to_str().unwrap(), "--system", SYSTEM]),
        talk(&["run", &name]),
        talk(&["run", &name, "--system", "Be brief."]),
    ];
    assert!(told.status.success() && !told.stdout.is_empty());
    assert_eq!(named.stdout, told.stdout);
    assert_ne!(other.stdout, told.stdout);
    let err = String::from_utf8_lossy(&named.stderr);
    assert!(err.contains("instructions \"Tell a story.\""), "{err}");
    let mut command = hub.leap(&["serve", &name, "--chat-template", "zephyr"]);
    command.args(["--listen", "127.0.0.1:0"]);
    let served = Served::by(command);
    let answer = |path: &str, messages: Value| -> Value {
        let body = json!({"messages": messages, "stream": false, "max_tokens": 8, "temperature": 0,
            "options": {"num_predict": 8, "temperature": 0}, "model": "tiny:1b"});
        let (head, text) = ask(&served.address, "POST", path, &body.to_string());
        assert!(head.starts_with("HTTP/1.1 200"), "{head} {text}");
        serde_json::from_str(&text).unwrap()
    };
    let user = json!({"role": "user", "content": "hi"});
    let system = json!({"role": "system", "content": SYSTEM});
    // Instructions that are too long for the context are told as the model's: a client has not written them.
    let mut command = hub.leap(&["serve", &name, "--chat-template", "zephyr", "--ctx", "30"]);
    command.args(["--listen", "127.0.0.1:0"]);
    let short = Served::by(command);
    let own = json!({"messages": [user]}).to_string();
    let (head, text) = ask(&short.address, "POST", "/v1/chat/completions", &own);
    let is_told = text.contains("with the model's own instructions, the context 30");
    assert!(head.starts_with("HTTP/1.1 400") && is_told, "{text}");
    for (path, text, n_prompt) in [
        ("/api/chat", "/message/content", "/prompt_eval_count"),
        ("/v1/chat/completions", "/choices/0/message/content", "/usage/prompt_tokens"),
    ] {
        let by_default = answer(path, json!([user]));
        let given = answer(path, json!([system, user]));
        assert_eq!(by_default.pointer(text), given.pointer(text), "{path}");
        let other = answer(path, json!([{"role": "system", "content": "No."}, user]));
        assert_eq!(by_default.pointer(n_prompt), given.pointer(n_prompt), "{path}");
        assert_ne!(by_default.pointer(n_prompt), other.pointer(n_prompt), "{path}");
    }
}

/// A model with a chat template that can be run.
fn chatting_gguf() -> Vec<u8> {
    const KEY: &[u8] = b"tokenizer.chat_template";
    let mut file = whole_gguf();
    let key = file.windows(KEY.len()).position(|bytes| bytes == KEY).unwrap();
    // The value's type, its length and the text.
    let at = key + KEY.len() + 4;
    let old = u64::from_le_bytes(*file[at..].first_chunk().unwrap()) as usize;
    let template = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}";
    // The tensors behind the fields are aligned to 32 bytes.
    let len = old + template.len().next_multiple_of(32);
    let template = format!("{template:<len$}");
    let value = [&(len as u64).to_le_bytes(), template.as_bytes()].concat();
    file.splice(at..at + 8 + old, value);
    file
}

/// Models of one file have their own settings, also under `--models` and other names.
#[test]
fn models_of_one_file_keep_their_own_instructions() {
    let hub = StandIn::start();
    hub.put_ollama("/v2/library/tiny/manifests/told", &chatting_gguf());
    let name = |tag: &str| format!("ollama:localhost:{}/library/tiny:{tag}", hub.port);
    good(&hub, &["pull", &name("told")]);
    let folder =
        hub.home.join(&format!(".ollama/models/manifests/localhost:{}/library/tiny", hub.port));
    let manifest = fs::read_to_string(folder.join("told")).unwrap();
    let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
    let layers = manifest["layers"].as_array_mut().unwrap();
    layers.retain(|layer| layer["mediaType"] != "application/vnd.ollama.image.system");
    // The first of both in the order of names.
    fs::write(folder.join("plain"), manifest.to_string()).unwrap();
    let aliases = format!("a={},b={}", name("told"), name("plain"));
    for (models, told, plain) in [("auto", "tiny:told", "tiny:plain"), (&aliases, "a", "b")] {
        let mut command = hub.leap(&["serve", "--models", models, "--listen", "127.0.0.1:0"]);
        command.args(["--ctx", "128", "--threads", "1"]).stdin(Stdio::null());
        let served = Served::by(command);
        let n_prompt = |model: &str| {
            let body = json!({"model": model, "prompt": "hi", "stream": false,
                "options": {"num_predict": 1}});
            let (_, text) = ask(&served.address, "POST", "/api/generate", &body.to_string());
            let answer: Value = serde_json::from_str(&text).unwrap();
            answer["prompt_eval_count"].as_u64().unwrap_or_else(|| panic!("{text}"))
        };
        assert!(n_prompt(told) > n_prompt(plain), "{models}");
    }
}

/// Conversations are in the template that Ollama has for a model, if it can run.
#[test]
fn conversations_of_ollamas_models_are_in_its_template() {
    const TEMPLATE: &str = "{{ if .System }}[{{ .System }}]{{ end }}{{ range $i, $m := .Messages }}\
        {{ $i }} says {{ .Role }}: {{ $m.Content }}; {{ end }}the answer is ";
    let hub = StandIn::start();
    let gguf = chatting_gguf();
    let put = |tag: &str, config: &str, template: &str| {
        let layers = [("model", &*gguf), ("template", template.as_bytes())];
        hub.put_ollama_of(&format!("/v2/library/tiny/manifests/{tag}"), config, &layers);
        let name = format!("ollama:localhost:{}/library/tiny:{tag}", hub.port);
        good(&hub, &["pull", &name]);
        name
    };
    let ran = |args: &[&str]| {
        let usual = ["run", "--chat", "-p", "hi", "-n", "1", "--json", "--threads", "1"];
        let output = hub.leap(&[&usual, args].concat()).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{err}");
        let line: Value = serde_json::from_slice(&output.stdout).unwrap();
        (line["prompt_tokens"].as_u64().unwrap(), err)
    };
    let own = hub.home.join("own.gguf");
    fs::write(&own, &gguf).unwrap();
    let file = hub.home.join("template");
    fs::write(&file, TEMPLATE).unwrap();
    let (own, file) = (own.to_str().unwrap(), file.to_str().unwrap());
    let (short, long) = (ran(&[own]).0, ran(&[own, "--chat-template", file]).0);
    assert_ne!(long, short);

    let name = put("templated", "{}", TEMPLATE);
    let (n, err) = ran(&[&name]);
    assert_eq!(n, long);
    assert!(err.contains("the model's settings: a template of conversations"), "{err}");
    let given = ran(&[&name, "--chat-template", "zephyr"]).0;
    assert_eq!(given, ran(&[own, "--chat-template", "zephyr"]).0);
    let rendered = put("rendered", r#"{"renderer": "tiny"}"#, TEMPLATE);
    assert_eq!(ran(&[&rendered]).0, short);
    assert_eq!(ran(&[&put("prompt", "{}", "{{ .Prompt }}")]).0, short);
    for (tag, template, why) in [
        ("unknown", "{{ .Messages }}{{ upper .System }}", "it calls upper with 1 arguments"),
        ("broken", "{{ if .Messages }}", "a {{if}} has no end"),
    ] {
        let (n, err) = ran(&[&put(tag, "{}", template)]);
        assert_eq!(n, short, "{tag}");
        let note = "the template in the model's file is used, not Ollama's";
        assert!(err.contains(&format!("{note}: {why}")), "{err}");
    }

    // A line says which setting cannot be used, and the model answers without it.
    let put_of = |tag: &str, layers: &[(&str, &[u8])]| {
        let layers = [&[("model", &*gguf)], layers].concat();
        hub.put_ollama_of(&format!("/v2/library/tiny/manifests/{tag}"), "{}", &layers);
        let name = format!("ollama:localhost:{}/library/tiny:{tag}", hub.port);
        good(&hub, &["pull", &name]);
        name
    };
    let (large, larger) = (vec![b'a'; (64 << 10) + 1], vec![b'a'; (1 << 20) + 1]);
    for (tag, layer, why) in [
        ("long", ("template", &large[..]), "is used, not Ollama's: "),
        ("bytes", ("template", b"{{ .Prompt }}\xff"), "is used, not Ollama's: it is not UTF-8"),
        ("told", ("system", b"\xff"), "its instructions are left out: it is not UTF-8"),
        ("longer", ("system", &larger[..]), "its instructions are left out: "),
    ] {
        let (n, err) = ran(&[&put_of(tag, &[layer])]);
        assert!(n == short && err.contains(why), "{tag}: {err}");
    }

    let models = format!("a={name}");
    for (args, model) in
        [(&["serve", &name][..], "tiny:templated"), (&["serve", "--models", &models], "a")]
    {
        let mut command = hub.leap(args);
        command.args(["--listen", "127.0.0.1:0", "--ctx", "128", "--threads", "1"]);
        let served = Served::by(command);
        let body = json!({"model": model, "messages": [{"role": "user", "content": "hi"}],
            "stream": false, "options": {"num_predict": 1}});
        let (_, text) = ask(&served.address, "POST", "/api/chat", &body.to_string());
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["prompt_eval_count"].as_u64(), Some(long), "{args:?}: {text}");
    }
}

/// A model that another program keeps is used, and never removed.
#[test]
fn models_of_other_programs_are_used_and_left_alone() {
    let hub = StandIn::start();
    let snapshot = repo(&hub).join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repo(&hub).join("blobs")).unwrap();
    fs::create_dir_all(repo(&hub).join("refs")).unwrap();
    fs::write(repo(&hub).join("refs/main"), COMMIT).unwrap();
    fs::write(repo(&hub).join("blobs/abc"), whole_gguf()).unwrap();
    symlink("../../blobs/abc", snapshot.join("tiny-Q4_K_M.gguf")).unwrap();
    good(&hub, &[&["run", "hf:org/tiny"], &PROMPT[..]].concat());
    let output = hub.leap(&["rm", "hf:org/tiny"]).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("was not brought by `leap pull`"), "{err}");
    assert!(snapshot.join("tiny-Q4_K_M.gguf").is_file());
    assert_eq!(hub.count(Kind::List), 0);
}

#[test]
fn download_that_is_cut_at_every_percent_sends_nothing_twice() {
    let hub = StandIn::start();
    let bytes = noise(2_000_000);
    hub.put("org/tiny", "tiny.gguf", &bytes);
    for _ in 0..99 {
        hub.fail(Kind::Content, Fault::Cut(bytes.len() / 100));
    }
    good(&hub, &["pull", "hf:org/tiny", "-q"]);
    assert_eq!(hub.sent_bytes(), bytes.len());
    assert_eq!(hub.count(Kind::Content), 100);
    assert_eq!(fs::read(repo(&hub).join("blobs").join(sha256(&bytes))).unwrap(), bytes);
}

#[test]
fn killed_download_goes_on_where_it_was() {
    let hub = StandIn::start();
    let bytes = noise(70_000_000);
    hub.put("org/tiny", "tiny.gguf", &bytes);
    hub.fail_always(Kind::Content, Some(Fault::Slow(3)));
    let child = hub.leap(&["pull", "hf:org/tiny", "-q"]).stdin(Stdio::null()).spawn().unwrap();
    let running = Running(child);
    let end = Instant::now() + Duration::from_secs(120);
    while hub.sent_bytes() < 30_000_000 {
        assert!(Instant::now() < end, "30 MB were never sent");
        thread::sleep(Duration::from_millis(5));
    }
    drop(running);
    assert!(blobs(&hub).iter().all(|name| name.contains("leap-part")), "{:?}", blobs(&hub));
    // The links of a name come last: until then there is none.
    assert!(!repo(&hub).join("snapshots").exists());
    hub.fail_always(Kind::Content, None);
    good(&hub, &["pull", "hf:org/tiny", "-q"]);
    assert_eq!(blobs(&hub), [sha256(&bytes)]);
    // Three connections lose a record of up to 1 MiB each, and what was on its way.
    let twice = hub.sent_bytes() - bytes.len();
    assert!(twice < 20_000_000, "{twice} bytes were sent twice");
}

#[test]
fn wrong_bytes_never_get_a_name() {
    let hub = StandIn::start();
    hub.put("org/tiny", "tiny.gguf", &whole_gguf());
    hub.fail(Kind::Content, Fault::Wrong);
    let (code, why) = refused(&hub, "hf:org/tiny");
    assert_eq!((code, why.contains("another hash")), (1, true), "{why}");
    assert_eq!(blobs(&hub), [""; 0]);
    assert!(!repo(&hub).join("snapshots").exists());
    // Power that failed cost bytes of the first part: it is fetched again.
    hub.fail(Kind::Content, Fault::Cut(200_000));
    hub.fail_always(Kind::Resolve, Some(Fault::Status(404, "")));
    hub.fail(Kind::Resolve, Fault::Redirect(content(&hub)));
    refused(&hub, "hf:org/tiny");
    hub.fail_always(Kind::Resolve, None);
    let part = repo(&hub).join("blobs").join(format!("{}.leap-part", sha256(&whole_gguf())));
    let mut bytes = fs::read(&part).unwrap();
    assert_eq!(bytes[..200_000], whole_gguf()[..200_000]);
    bytes[1000] ^= 1;
    fs::write(&part, bytes).unwrap();
    good(&hub, &["pull", "hf:org/tiny", "-q"]);
    assert_eq!(blobs(&hub), [sha256(&whole_gguf())]);
}

fn content(hub: &StandIn) -> String {
    format!("https://127.0.0.1:{}/cdn/{}", hub.port, sha256(&whole_gguf()))
}

#[test]
fn failures_are_told_in_one_line() {
    let hub = StandIn::start();
    hub.put("org/tiny", "tiny.gguf", &whole_gguf());
    let name = "hf:org/tiny";
    let big = "http://127.0.0.1:1/x".to_owned();
    let turn = format!("https://localhost:{}/org/tiny/resolve/{COMMIT}/tiny.gguf", hub.port);
    for (kind, fault, code, part) in [
        (Kind::List, Fault::Status(401, ""), 3, "no repository org/tiny on localhost"),
        (Kind::List, Fault::Status(403, "x-error-code: GatedRepo\r\n"), 3, "accept its licence at"),
        (Kind::List, Fault::Status(429, "retry-after: 3600\r\n"), 1, "try again later in 3600 s"),
        (Kind::List, Fault::Endless, 1, "sends a list of over 16777216 bytes"),
        (Kind::Resolve, Fault::Status(403, "x-error-code: GatedRepo\r\n"), 3, "is gated: accept"),
        (Kind::Resolve, Fault::Status(404, "x-error-code: EntryNotFound\r\n"), 1, "EntryNotFound"),
        (Kind::Resolve, Fault::Redirect(big), 1, "redirects to \"http://127.0.0.1:1/x\""),
        (Kind::Resolve, Fault::Redirect(turn), 1, "redirects too often"),
        (Kind::Content, Fault::Status(403, ""), 1, "status 403"),
        (Kind::Content, Fault::Cut(10), 1, "ended early"),
    ] {
        hub.fail_always(kind, Some(fault.clone()));
        let (is, why) = refused(&hub, name);
        assert_eq!((is, why.contains(part)), (code, true), "{fault:?}: {why}");
        hub.fail_always(kind, None);
    }
    for (name, code, part) in [
        ("hf:org/none", 3, "there is no repository org/none on localhost"),
        ("hf:org/tiny@v9", 3, "org/tiny has no revision \"v9\""),
        ("hf:org/tiny:Q5_0", 3, "no GGUF file is called Q5_0; there are tiny"),
        ("hf:org", 3, "there is no repository org"),
        ("hf:../x", 2, "wanted hf:ORG/REPO"),
        ("model.gguf", 2, "is no name of a model"),
    ] {
        let (is, why) = refused(&hub, name);
        assert_eq!((is, why.contains(part)), (code, true), "{name}: {why}");
    }
    let mut alone = hub.leap(&["pull", name]);
    let output = alone.env("HF_ENDPOINT", "https://localhost:1").output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), err.contains("localhost:1: ")), (Some(1), true), "{err}");
    let mut strange = hub.leap(&["pull", name]);
    let output = strange.env("SSL_CERT_FILE", "/dev/null").output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("no certificate that this machine trusts"), "{err}");
    good(&hub, &["pull", name]);
}

/// A network that asks for a login answers every request with its page.
#[test]
fn page_in_the_place_of_a_small_file_gets_no_name() {
    let hub = StandIn::start();
    for entry in fs::read_dir(golden("llama3-tiny")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        hub.put("org/tiny", &name, &fs::read(entry.path()).unwrap());
    }
    hub.fail_always(Kind::Resolve, Some(Fault::Wrong));
    let (code, why) = refused(&hub, "hf:org/tiny");
    assert_eq!(code, 1, "{why}");
    assert!(!repo(&hub).join("snapshots").exists());
    hub.fail_always(Kind::Resolve, None);
    good(&hub, &["pull", "hf:org/tiny"]);
}

/// `leap rm` removes what `leap pull` brought, and nothing else.
#[test]
fn removal_spares_what_others_brought_or_share() {
    let hub = StandIn::start();
    hub.put("org/tiny", "tiny-Q4_0.gguf", &whole_gguf());
    hub.put("org/tiny", "tiny-Q8_0.gguf", &noise(1000));
    for name in ["hf:org/tiny:Q4_0", "hf:org/tiny:Q8_0"] {
        good(&hub, &["pull", name]);
    }
    let output = hub.leap(&["rm", "hf:org/tiny"]).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("may be hf:org/tiny:Q4_0 or hf:org/tiny:Q8_0: name one"), "{err}");
    good(&hub, &["rm", "hf:org/tiny:Q8_0"]);
    assert_eq!(blobs(&hub), [sha256(&whole_gguf())]);
    // Another program fetches it again: it is that program's now.
    let link = repo(&hub).join("snapshots").join(COMMIT).join("tiny-Q8_0.gguf");
    fs::write(repo(&hub).join("blobs").join(sha256(&noise(1000))), noise(1000)).unwrap();
    symlink(format!("../../blobs/{}", sha256(&noise(1000))), &link).unwrap();
    assert_eq!(hub.leap(&["rm", "hf:org/tiny:Q8_0"]).output().unwrap().status.code(), Some(3));
    good(&hub, &["rm", "hf:org/tiny:Q4_0"]);
    assert!(link.is_file() && blobs(&hub) == [sha256(&noise(1000))]);

    // Two of Ollama's models share their file; LEAP cannot read the manifest of one.
    hub.put_ollama("/v2/library/tiny/manifests/1b", &whole_gguf());
    let name = format!("ollama:localhost:{}/library/tiny:1b", hub.port);
    good(&hub, &["pull", &name]);
    let store = hub.home.join(".ollama/models");
    let blob = store.join("blobs").join(format!("sha256-{}", sha256(&whole_gguf())));
    let other = store.join("manifests/registry.ollama.ai/-odd/other");
    fs::create_dir_all(&other).unwrap();
    let digest =
        format!(r#"{{"layers": [{{"digest": "sha256:{}", "size": "?"}}]}}"#, sha256(&whole_gguf()));
    fs::write(other.join("latest"), digest).unwrap();
    good(&hub, &["rm", &name]);
    assert!(blob.is_file());

    // A part of a download is removed, too.
    hub.put("org/tiny", "tiny-Q5_0.gguf", &noise(100_000));
    hub.fail_always(Kind::Content, Some(Fault::Cut(50_000)));
    hub.fail(Kind::Content, Fault::Cut(50_000));
    hub.fail(Kind::Content, Fault::Status(404, ""));
    refused(&hub, "hf:org/tiny:Q5_0");
    assert!(blobs(&hub).iter().any(|name| name.contains("leap-part")), "{:?}", blobs(&hub));
    good(&hub, &["rm", "hf:org/tiny:Q5_0"]);
    assert!(!blobs(&hub).iter().any(|name| name.contains("leap-part")), "{:?}", blobs(&hub));
}

#[test]
fn failures_that_pass_are_waited_for() {
    let hub = StandIn::start();
    hub.put("org/tiny", "tiny.gguf", &whole_gguf());
    hub.fail(Kind::List, Fault::Status(429, "retry-after: 1\r\n"));
    hub.fail(Kind::List, Fault::Status(503, ""));
    hub.fail(Kind::Resolve, Fault::Status(500, ""));
    hub.fail(Kind::Content, Fault::Status(502, ""));
    good(&hub, &["pull", "hf:org/tiny"]);
    assert_eq!(blobs(&hub), [sha256(&whole_gguf())]);
}

#[test]
fn servers_without_parts_send_the_whole_file() {
    let hub = StandIn::start();
    let bytes = noise(70_000_000);
    hub.put("org/tiny", "tiny.gguf", &bytes);
    hub.fail_always(Kind::Content, Some(Fault::Whole));
    good(&hub, &["pull", "hf:org/tiny", "-q"]);
    assert_eq!(blobs(&hub), [sha256(&bytes)]);
    // Parts that were not asked for are refused.
    hub.put("org/tiny", "other-Q4_0.gguf", &noise(40_000_000));
    hub.fail_always(Kind::Content, Some(Fault::OtherPart));
    let (code, why) = refused(&hub, "hf:org/tiny:Q4_0");
    assert_eq!((code, why.contains("of a file where")), (1, true), "{why}");
}

#[test]
fn token_goes_to_the_hub_alone() {
    let hub = StandIn::start();
    hub.put("org/tiny", "tiny.gguf", &whole_gguf());
    hub.want_token("hf_secret");
    let (code, why) = refused(&hub, "hf:org/tiny");
    assert_eq!((code, why.contains("and set HF_TOKEN")), (3, true), "{why}");
    // The file that `hf auth login` writes.
    fs::create_dir_all(hub.home.join(".cache/huggingface")).unwrap();
    hub.home.write(".cache/huggingface/token", "hf_secret\n");
    good(&hub, &["pull", "hf:org/tiny"]);
}

#[test]
fn hostile_names_and_links_are_refused() {
    let hub = StandIn::start();
    for path in ["../../../../escaped.gguf", "/tmp/escaped.gguf", "a/../../escaped.gguf"] {
        hub.put("org/tiny", path, &whole_gguf());
    }
    let (code, why) = refused(&hub, "hf:org/tiny");
    assert_eq!((code, why.contains("holds neither a GGUF file nor")), (3, true), "{why}");

    let snapshot = repo(&hub).join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repo(&hub).join("refs")).unwrap();
    fs::write(repo(&hub).join("refs/main"), COMMIT).unwrap();
    symlink(golden("gguf/model.gguf"), snapshot.join("tiny-Q8_0.gguf")).unwrap();
    let (code, why) = refused(&hub, "hf:org/tiny:Q8_0");
    assert_ne!(code, 0, "{why}");
    let output = hub.leap(&["run", "hf:org/tiny:Q8_0"]).stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("a link that leads out of its folder"), "{err}");
    fs::write(repo(&hub).join("refs/main"), "../../../../etc").unwrap();
    let output = hub.leap(&["info", "hf:org/tiny:Q8_0"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("holds no commit"), "{output:?}");
}

#[test]
fn hostile_manifests_are_refused() {
    let hub = StandIn::start();
    let name = format!("ollama:localhost:{}/library/tiny", hub.port);
    let path = "/v2/library/tiny/manifests/latest";
    let layer = |digest: &str| {
        let kind = "application/vnd.ollama.image.model";
        format!(r#"{{"layers": [{{"mediaType": "{kind}", "digest": "{digest}", "size": 1}}]}}"#)
    };
    for (manifest, part) in [
        (layer("sha256:../../../../escaped"), "a layer without a SHA-256"),
        (layer(""), "a layer without a SHA-256"),
        (r#"{"layers": []}"#.to_owned(), "has no GGUF file"),
        ("[]".to_owned(), "is no manifest"),
        ("\0".to_owned(), "not valid JSON"),
    ] {
        hub.put_manifest(path, &manifest);
        let (code, why) = refused(&hub, &name);
        assert_eq!((code, why.contains(part)), (3, true), "{manifest}: {why}");
    }
    hub.fail_always(Kind::Manifest, Some(Fault::Endless));
    let (code, why) = refused(&hub, &name);
    assert_eq!((code, why.contains("over 4194304 bytes")), (1, true), "{why}");

    // A manifest of 1 GB on the disk.
    let folder = hub.home.join(".ollama/models/manifests/registry.ollama.ai/library/tiny");
    fs::create_dir_all(&folder).unwrap();
    fs::File::create(folder.join("latest")).unwrap().set_len(1 << 30).unwrap();
    let output = hub.leap(&["run", "ollama:tiny"]).stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), err.contains("is longer than")), (Some(3), true), "{err}");
}

/// Two commands to an answer, or one for a person at a terminal.
#[test]
fn person_at_a_terminal_gets_a_missing_model_fetched() {
    let hub = StandIn::start();
    hub.put("org/tiny", "tiny-Q8_0.gguf", &whole_gguf());
    let mut command = hub.leap(&[&["run", "hf:org/tiny"], &PROMPT[..]].concat());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "nobody is there: {output:?}");
    assert_eq!(hub.count(Kind::List), 0);
    let mut terminal = Terminal::start(&hub.leap(&[&["run", "hf:org/tiny"], &PROMPT[..]].concat()));
    terminal.wait_for("org/tiny: Q8_0; 0.00 GB");
    terminal.wait_for("One day");
}

/// A server's clients fetch models, use and remove them, as Ollama's do.
#[test]
fn clients_of_a_server_fetch_and_remove_models() {
    let hub = StandIn::start();
    hub.put("org/tiny", "tiny-Q8_0.gguf", &whole_gguf());
    hub.put_ollama("/v2/library/other/manifests/1b", &whole_gguf());
    let mut command = hub.leap(&["serve", "--models", "auto", "--listen", "127.0.0.1:0"]);
    command.args(["--ctx", "128", "--threads", "1"]).stdin(Stdio::null());
    let served = Served::by(command);
    let names = || {
        let (_, body) = ask(&served.address, "GET", "/v1/models", "");
        let body: Value = serde_json::from_str(&body).unwrap();
        let all = body["data"].as_array().unwrap().iter();
        all.map(|model| model["id"].as_str().unwrap().to_owned()).collect::<Vec<String>>()
    };
    assert_eq!(names(), [""; 0]);

    let pull = json!({"model": "hf.co/org/tiny:Q8_0"}).to_string();
    let (head, lines) = ask(&served.address, "POST", "/api/pull", &pull);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let statuses: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["status"].take())
        .collect();
    assert_eq!(
        (&statuses[0], statuses.last().unwrap()),
        (&"pulling manifest".into(), &"success".into())
    );
    assert_eq!(names(), ["hf.co/org/tiny:Q8_0"]);
    let prompt = |model: &str| {
        json!({"model": model, "prompt": "One day", "raw": true, "stream": false,
            "options": {"temperature": 0, "num_predict": 8}})
    };
    let by_client = served.post("/api/generate", &prompt("hf.co/org/tiny:Q8_0"));
    let by_name = good(&hub, &[&["run", "hf:org/tiny"], &PROMPT[..]].concat()).0;
    assert_eq!(
        format!("One day{}", by_client["response"].as_str().unwrap()),
        by_name.trim_end_matches('\n')
    );

    let name = format!("localhost:{}/library/other:1b", hub.port);
    let pulled = served.post("/api/pull", &json!({"name": name, "stream": false}));
    assert_eq!(pulled["status"], "success");
    served.post("/api/generate", &prompt(&name));
    for (wanted, status) in [(&*name, "200"), (&name, "404"), ("none", "404")] {
        let body = json!({"model": wanted}).to_string();
        let (head, text) = ask(&served.address, "DELETE", "/api/delete", &body);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{wanted}: {head} {text}");
    }
    assert_eq!(names(), ["hf.co/org/tiny:Q8_0"]);
    let body = json!({"model": format!("localhost:{}/library/none", hub.port)}).to_string();
    let (head, text) = ask(&served.address, "POST", "/api/pull", &body);
    assert!(head.starts_with("HTTP/1.1 404 "), "{head} {text}");
    hub.put("org/noise", "noise-Q8_0.gguf", &noise(1000));
    let body = json!({"model": "hf.co/org/noise:Q8_0"}).to_string();
    let (_, text) = ask(&served.address, "POST", "/api/pull", &body);
    assert!(text.contains("was fetched, but cannot be used"), "{text}");
    // Another server knows the model by its full name, too.
    drop(served);
    let mut command = hub.leap(&["serve", "--models", "auto", "--listen", "127.0.0.1:0"]);
    command.args(["--ctx", "128", "--threads", "1"]).stdin(Stdio::null());
    let served = Served::by(command);
    let again = served.post("/api/generate", &prompt("hf.co/org/tiny:Q8_0"));
    assert_eq!(again["response"], by_client["response"]);
    let (_, body) = ask(&served.address, "GET", "/v1/models", "");
    assert!(body.contains("\"tiny:Q8_0\"") && !body.contains("noise"), "{body}");
}
