//! Several models in one server: each request gets the text of its model, whatever is loaded and dropped meanwhile.

use std::fs::{self, File};
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::forms::qwen3;
use super::{run_alone, text_of};
use crate::common::folder::Folder;
use crate::common::models::package;
use crate::common::ran::Ran;
use crate::common::{leap, quick};
use crate::http::{Served, ask};

/// Longest wait for a change of the server's state.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sizes with which each of [`three`] takes a few MB.
const SIZES: [&str; 4] = ["--ctx", "256", "--streams", "2"];

/// A folder with the models `demo`, `draft` and `qwen3`, and the folder for caches `cache`.
pub(super) fn three() -> Folder {
    let folder = Folder::new();
    for (from, to) in [("demo.bin", "demo.bin"), ("demo-draft.bin", "draft.bin")] {
        fs::copy(package("models").join(from), folder.join(to)).unwrap();
    }
    fs::copy(package("models/demo.tokenizer.bin"), folder.join("tokenizer.bin")).unwrap();
    qwen3(&folder);
    fs::create_dir(folder.join("cache")).unwrap();
    folder
}

fn serve(models: &str, folder: &Folder, args: &[&str]) -> Served {
    let mut command = leap();
    command.args(["serve", "--models", models, "--listen", "127.0.0.1:0", "--threads", "1"]);
    command.args(SIZES).args(args).env("XDG_CACHE_HOME", folder.join("cache"));
    command.stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
    Served::by(command)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn get(served: &Served, path: &str) -> Value {
    let (head, body) = ask(&served.address, "GET", path, "");
    assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
    serde_json::from_str(&body).unwrap()
}

/// Names of the loaded models, sorted.
fn loaded(served: &Served) -> Vec<String> {
    let all = get(served, "/api/ps");
    let names = all["models"].as_array().unwrap().iter();
    let name = |model: &Value| model["name"].as_str().unwrap().replace(":latest", "");
    let mut names: Vec<String> = names.map(name).collect();
    names.sort();
    names
}

/// Waits until exactly `names` are loaded.
pub(super) fn wait_for_loaded(served: &Served, names: &[&str]) {
    let end = Instant::now() + PATIENCE;
    loop {
        let found = loaded(served);
        if found == names {
            return;
        }
        assert!(Instant::now() < end, "{found:?} are loaded, never {names:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the metrics have this line: a client has its answer before the server has counted it.
fn wait_for_figure(served: &Served, line: &str) {
    let end = Instant::now() + PATIENCE;
    loop {
        let figures = ask(&served.address, "GET", "/metrics", "").1;
        if figures.lines().any(|own| own == line) {
            return;
        }
        assert!(Instant::now() < end, "never {line:?}: {figures}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes of memory that the loaded model `name` takes.
fn size(served: &Served, name: &str) -> u64 {
    let all = get(served, "/api/ps");
    let mut models = all["models"].as_array().unwrap().iter();
    let own = models.find(|model| model["name"] == format!("{name}:latest"));
    own.unwrap_or_else(|| panic!("{name} is not in {all}"))["size"].as_u64().unwrap()
}

pub(super) fn question(model: &str, seed: u64) -> Value {
    json!({"model": model, "prompt": "Once there was", "max_tokens": 24, "temperature": 0.9,
        "top_p": 0.95, "seed": seed})
}

fn ask_for(served: &Served, model: &str) -> Value {
    served.post("/v1/completions", &question(model, 1))
}

/// The counter `name` of a model, 0 if there is none.
fn counter(served: &Served, name: &str, model: &str) -> u64 {
    let figures = ask(&served.address, "GET", "/metrics", "").1;
    let start = format!("{name}{{model=\"{model}\"}} ");
    let value = figures.lines().find_map(|line| line.strip_prefix(start.as_str()));
    value.map_or(0, |value| value.parse().unwrap())
}

#[test]
fn a_request_chooses_its_model_and_aliases_are_names() {
    let folder = three();
    let demo = folder.join("demo.bin");
    let models = format!("gpt-4o-mini={},{}", text(&demo), text(&folder.join("qwen3.bin")));
    let served = serve(&models, &folder, &[]);
    let all = get(&served, "/v1/models");
    let ids = |all: &Value| -> Vec<String> {
        let all = all["data"].as_array().unwrap().iter();
        all.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&all), ["gpt-4o-mini", "qwen3"]);
    let tags = get(&served, "/api/tags");
    assert_eq!(tags["models"][0]["name"], "gpt-4o-mini:latest");
    assert_eq!(tags["models"][1]["details"]["family"], "qwen3");
    assert!(loaded(&served).is_empty());
    assert_eq!(get(&served, "/v1/models/qwen3")["id"], "qwen3");

    let wanted = |path: &str| {
        let args = ["--temp", "0.9", "--top-p", "0.95", "--seed", "1", "-n", "24"];
        let whole = run_alone(&[&[path][..], &args, &["-p", "Once there was"]].concat(), "");
        whole.strip_prefix("Once there was").unwrap().to_owned()
    };
    let qwen3 = wanted(text(&folder.join("qwen3.bin")));
    for (name, text) in [
        ("gpt-4o-mini", wanted(text(&demo))),
        ("qwen3", qwen3.clone()),
        ("qwen3:latest", qwen3.clone()),
    ] {
        let answer = ask_for(&served, name);
        assert_eq!(text_of(&answer), text, "{name}");
        assert_eq!(answer["model"], name.replace(":latest", ""), "{name}");
    }
    // A request that names none gets the model that was asked last.
    let mut unnamed = question("", 1);
    unnamed.as_object_mut().unwrap().remove("model");
    assert_eq!(text_of(&served.post("/v1/completions", &unnamed)), qwen3);

    let (head, body) =
        ask(&served.address, "POST", "/v1/completions", &question("gpt-5", 1).to_string());
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    assert!(body.contains(r#"there are \"gpt-4o-mini\", \"qwen3\""#), "{body}");
}

#[test]
fn a_model_is_shown_and_its_words_are_used_without_loading_it() {
    let folder = three();
    let served = serve(text(folder.path()), &folder, &[]);
    let shown = served.post("/api/show", &json!({"model": "qwen3"}));
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("tools")), "{shown}");
    assert_eq!(shown["model_info"]["qwen3.context_length"], 256);
    let tokens = served.post("/tokenize", &json!({"model": "demo", "content": "Once upon"}));
    assert_eq!(tokens, json!({"tokens": [589, 598]}));
    assert!(loaded(&served).is_empty());
    let pulled = served.post("/api/pull", &json!({"model": "demo", "stream": false}));
    assert_eq!(pulled, json!({"status": "success"}));
    let (head, _) = ask(&served.address, "POST", "/api/pull", r#"{"model": "../none"}"#);
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    for (method, path) in [("POST", "/api/show"), ("DELETE", "/api/delete")] {
        let (head, body) = ask(&served.address, method, path, r#"{"model": "none"}"#);
        assert!(head.starts_with("HTTP/1.1 404 ") && body.contains("none"), "{path}: {head}{body}");
    }
    let (head, _) = ask(&served.address, "GET", "/api/delete", "");
    assert!(head.contains("\r\nAllow: DELETE, OPTIONS\r\n"), "{head}");
}

#[test]
fn the_model_that_was_unused_for_longest_makes_room() {
    let folder = three();
    let served = serve(text(folder.path()), &folder, &["--kv-memory", "1M"]);
    let names = ["demo", "draft", "qwen3"];
    names.iter().for_each(|model| drop(ask_for(&served, model)));
    let sizes = names.map(|model| size(&served, model));
    drop(served);

    // Any two fit, and three do not.
    let memory = (sizes.iter().sum::<u64>() - 1).to_string();
    let served = serve(text(folder.path()), &folder, &["--kv-memory", "1M", "--memory", &memory]);
    for model in ["demo", "draft", "demo", "qwen3"] {
        ask_for(&served, model);
    }
    assert_eq!(loaded(&served), ["demo", "qwen3"]);
    ask_for(&served, "draft");
    assert_eq!(loaded(&served), ["draft", "qwen3"]);
    assert_eq!(counter(&served, "leap_model_loads_total", "draft"), 2);
    assert_eq!(counter(&served, "leap_model_drops_total", "draft"), 1);
    assert_eq!(counter(&served, "leap_model_drops_total", "demo"), 1);
    // Figures of models that are gone still count.
    wait_for_figure(&served, "leap_generated_tokens_total 120");
    wait_for_figure(&served, "leap_models_loaded 2");
    drop(served);

    let memory = (sizes[0] - 1).to_string();
    let served = serve(text(folder.path()), &folder, &["--kv-memory", "1M", "--memory", &memory]);
    let (head, body) =
        ask(&served.address, "POST", "/v1/completions", &question("demo", 1).to_string());
    assert!(head.starts_with("HTTP/1.1 500 ") && body.contains("--memory"), "{head}{body}");
    ask_for(&served, "draft");
}

#[test]
fn keep_alive_says_how_long_a_model_stays() {
    let folder = three();
    let served = serve(text(folder.path()), &folder, &[]);
    let load = |model: &str, keep_alive: Value| {
        let body = json!({"model": model, "keep_alive": keep_alive});
        served.post("/api/generate", &body)["done_reason"].clone()
    };
    assert_eq!(load("demo", json!("100ms")), "load");
    wait_for_loaded(&served, &[]);
    assert_eq!(load("demo", json!(-1)), "load");
    assert_eq!(load("draft", json!("1h")), "load");
    let all = get(&served, "/api/ps");
    let expires = |index: usize| all["models"][index]["expires_at"].as_str().unwrap();
    assert!(expires(0).starts_with("2318-") && expires(1).starts_with("20"), "{all}");
    // An answer says how long, too.
    let options = json!({"num_predict": 2});
    let body = json!({"model": "draft", "prompt": "a", "stream": false, "keep_alive": 0, "options": options});
    assert_eq!(served.post("/api/generate", &body)["eval_count"], 2);
    wait_for_loaded(&served, &["demo"]);
    assert_eq!(load("demo", json!("0")), "unload");
    wait_for_loaded(&served, &[]);
    // Nothing is loaded to be unloaded.
    assert_eq!(load("qwen3", json!(0)), "unload");
    assert_eq!(counter(&served, "leap_model_loads_total", "qwen3"), 0);
    assert_eq!(counter(&served, "leap_model_drops_total", "demo"), 2);
    let (head, body) =
        ask(&served.address, "POST", "/api/chat", r#"{"model": "demo", "keep_alive": "soon"}"#);
    assert!(head.starts_with("HTTP/1.1 400 ") && body.contains("keep_alive"), "{body}");
}

#[test]
fn clients_that_choose_at_random_get_the_texts_of_run_while_models_come_and_go() {
    const N_CLIENTS: u64 = 16;
    let folder = three();
    let names = ["demo", "draft", "qwen3"];
    let seeds: Vec<u64> = (1..4).collect();
    let wanted: Vec<Vec<String>> = names
        .iter()
        .map(|name| {
            let path = folder.join(&format!("{name}.bin"));
            let of = |seed: &u64| {
                let seed = seed.to_string();
                let args = ["--temp", "0.9", "--top-p", "0.95", "--seed", &seed, "-n", "24"];
                let args = [&[text(&path)][..], &args, &["-p", "Once there was"]].concat();
                run_alone(&args, "").strip_prefix("Once there was").unwrap().to_owned()
            };
            seeds.iter().map(of).collect()
        })
        .collect();
    let sizes = {
        let served = serve(text(folder.path()), &folder, &["--kv-memory", "1M"]);
        names.iter().for_each(|model| drop(ask_for(&served, model)));
        names.map(|model| size(&served, model))
    };
    let memory = (sizes.iter().sum::<u64>() - 1).to_string();
    let mut served =
        serve(text(folder.path()), &folder, &["--kv-memory", "1M", "--memory", &memory]);
    let n_each = if quick() { 3 } else { 12 };
    let n_right = AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in 0..N_CLIENTS {
            let (served, wanted, n_right) = (&served, &wanted, &n_right);
            scope.spawn(move || {
                let mut state = client + 1;
                for _ in 0..n_each {
                    // xorshift64
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let (model, seed) = ((state >> 20) as usize % 3, (state >> 40) as usize % 3);
                    let mut body = question(names[model], seed as u64 + 1);
                    let own = &wanted[model][seed];
                    if state & 1 == 0 {
                        let answer = served.post("/v1/completions", &body);
                        assert_eq!(text_of(&answer), own, "client {client}, {body}");
                    } else {
                        body["stream"] = json!(true);
                        assert_eq!(streamed(served, &body), *own, "client {client}, {body}");
                    }
                    n_right.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(n_right.into_inner() as u64, N_CLIENTS * n_each);
    let loads = names.map(|model| counter(&served, "leap_model_loads_total", model));
    let drops = names.map(|model| counter(&served, "leap_model_drops_total", model));

    let n_loads = loads.iter().sum::<u64>();
    assert!(loads.iter().all(|n| *n > 0) && n_loads > 3, "{loads:?}");
    let n_loaded = loaded(&served).len() as u64;
    assert_eq!(n_loads, drops.iter().sum::<u64>() + n_loaded, "{loads:?} {drops:?}");
    wait_for_figure(&served, &format!("leap_answers_total {}", N_CLIENTS * n_each));
    served.signal(Signal::SIGTERM);
    assert_eq!(served.code(), Some(0));
}

/// The text of a streamed completion.
fn streamed(served: &Served, body: &Value) -> String {
    let (head, text) = ask(&served.address, "POST", "/v1/completions", &body.to_string());
    assert!(head.starts_with("HTTP/1.1 200 ") && text.ends_with("data: [DONE]\n\n"), "{text}");
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    events
        .filter_map(|event| Some(event.pointer("/choices/0/text")?.as_str()?.to_owned()))
        .collect()
}

/// A folder of models in which `slow` is a checkpoint, and a lock that keeps it from being converted.
fn with_slow_model() -> (Folder, File) {
    let folder = three();
    fs::create_dir(folder.join("slow")).unwrap();
    for file in fs::read_dir(package("tests/golden/qwen3-tiny")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.join("slow").join(file.file_name())).unwrap();
    }
    let cache = folder.join("cache/leap");
    fs::create_dir(&cache).unwrap();
    let lock = File::open(cache).unwrap();
    lock.lock().unwrap();
    (folder, lock)
}

#[test]
fn a_model_that_is_being_loaded_stops_no_other_models_answers() {
    let (folder, lock) = with_slow_model();
    let served = serve(text(folder.path()), &folder, &[]);
    let mut long = question("demo", 1);
    (long["stream"], long["max_tokens"]) = (json!(true), json!(200));
    let (mut stream, _) = served.begin_text("/v1/completions", &long);
    // One of them goes away before the model is there.
    let slow = [(); 3].map(|()| served.begin("/v1/completions", &question("slow", 1)));
    let body =
        json!({"model": "slow", "prompt": "Once", "stream": false, "options": {"num_predict": 2}});
    let mut timed = served.begin("/api/generate", &body);
    served.said("waiting for another process");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    ask_for(&served, "draft");
    assert_eq!(loaded(&served), ["demo", "draft"]);
    let [first, second, third] = slow;
    drop(third);
    drop(lock);
    for mut stream in [first, second] {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let mut answer = String::new();
    timed.read_to_string(&mut answer).unwrap();
    let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let nanoseconds = |name: &str| answer[format!("{name}_duration")].as_u64().unwrap();
    let parts = ["load", "prompt_eval", "eval"].map(nanoseconds);
    assert!(parts[0] > 0, "{answer}");
    // The rest is the wait for a stream.
    assert!(nanoseconds("total") >= parts.iter().sum::<u64>(), "{answer}");
    assert_eq!(counter(&served, "leap_model_loads_total", "slow"), 1);
    wait_for_loaded(&served, &["demo", "draft", "slow"]);
}

/// The bytes of an answer up to the first `part`.
fn read_until(stream: &mut TcpStream, part: &str) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    while !bytes.ends_with(part.as_bytes()) {
        stream.read_exact(&mut byte).unwrap_or_else(|e| panic!("never {part:?}: {e}"));
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_stream_says_something_while_its_model_is_loaded_for_long() {
    let (folder, lock) = with_slow_model();
    let served = serve(text(folder.path()), &folder, &[]);
    let mut body = question("slow", 1);
    body["stream"] = json!(true);
    let mut of_openai = served.begin("/v1/completions", &body);
    let mut wrong = body.clone();
    wrong["typical_p"] = json!(0.1);
    let mut of_wrong = served.begin("/v1/completions", &wrong);
    let mut of_ollama = served.begin("/api/generate", &json!({"model": "slow"}));
    let head = read_until(&mut of_openai, ": waiting\n\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    read_until(&mut of_wrong, ": waiting\n\n");
    let line = read_until(&mut of_ollama, "}\n");
    assert!(line.contains("\"done\":false") && line.contains("\"response\":\"\""), "{line}");
    drop(lock);
    let mut rest = [(); 3].map(|()| String::new());
    for (mut stream, rest) in [of_openai, of_wrong, of_ollama].into_iter().zip(&mut rest) {
        stream.read_to_string(rest).unwrap();
        assert!(!rest.contains("HTTP/1.1"), "{rest}");
    }
    assert!(rest[0].contains("data: [DONE]"), "{}", rest[0]);
    assert!(rest[1].contains("data: {\"error\":") && rest[1].contains("typical_p"), "{}", rest[1]);
    assert!(rest[2].contains("\"done_reason\":\"load\""), "{}", rest[2]);
}

#[test]
fn a_signal_ends_a_server_that_loads_a_model() {
    let (folder, _lock) = with_slow_model();
    let mut served = serve(text(folder.path()), &folder, &[]);
    let mut slow = served.begin("/v1/completions", &question("slow", 1));
    served.said("waiting for another process");
    let mut long = question("demo", 1);
    (long["stream"], long["max_tokens"]) = (json!(true), json!(200));
    let (mut stream, _) = served.begin_text("/v1/completions", &long);
    served.signal(Signal::SIGTERM);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(served.code(), Some(0));
}

#[test]
fn a_broken_model_is_named_and_stops_no_other() {
    let folder = three();
    let cut = folder.write("cut.bin", &fs::read(folder.join("demo.bin")).unwrap()[..3000]);
    let junk = folder.write("junk.gguf", "hello");
    let both = format!("{},{}", text(&cut), text(&junk));
    let mut command = leap();
    command.args(["serve", "--models", &both]).stdin(Stdio::null());
    let ran = Ran::new(command.output().unwrap());
    assert_eq!(ran.code, Some(3), "{ran:?}");
    for name in ["cut.bin is not served: ", "junk.gguf is not served: "] {
        assert!(ran.err.contains(name), "{ran:?}");
    }

    let served = serve(text(folder.path()), &folder, &[]);
    let (head, body) =
        ask(&served.address, "POST", "/v1/completions", &question("cut", 1).to_string());
    assert!(head.starts_with("HTTP/1.1 500 ") && body.contains("truncated"), "{head}{body}");
    ask_for(&served, "demo");
    // A file that is damaged where only loading it shows this, and later is whole.
    let whole = fs::read(folder.join("draft.bin")).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    folder.write("draft.bin", &damaged);
    let (head, body) =
        ask(&served.address, "POST", "/v1/completions", &question("draft", 1).to_string());
    assert!(head.starts_with("HTTP/1.1 500 ") && body.contains("draft"), "{head}{body}");
    folder.write("draft.bin", &whole);
    ask_for(&served, "draft");
    assert_eq!(loaded(&served), ["demo", "draft"]);
}

/// Beside the model that is named first others come and go.
#[test]
fn a_model_that_stays_loaded_stands_beside_others() {
    let folder = three();
    let [draft, qwen3] = ["draft.bin", "qwen3.bin"].map(|name| text(&folder.join(name)).to_owned());
    // The last one has the name of the model that stays.
    let models = format!("{draft},{qwen3},house:latest={draft}");
    let fixed = folder.join("demo.bin");
    let mut command = leap();
    command.args(["serve", text(&fixed), "--name", "house", "--models", &models]);
    command.args(["--listen", "127.0.0.1:0", "--threads", "1", "--memory", "20M"]).args(SIZES);
    command.env("XDG_CACHE_HOME", folder.join("cache")).stdin(Stdio::null());
    let mut served = Served::by(command);
    let all = get(&served, "/v1/models");
    let ids: Vec<&Value> = all["data"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, ["house", "draft", "qwen3"]);
    assert_eq!(loaded(&served), ["house"]);
    for (name, file) in
        [("house", "demo.bin"), ("draft", "draft.bin"), ("qwen3:latest", "qwen3.bin")]
    {
        let args = ["--temp", "0.9", "--top-p", "0.95", "--seed", "1", "-n", "24"];
        let path = folder.join(file);
        let whole = run_alone(&[&[text(&path)][..], &args, &["-p", "Once there was"]].concat(), "");
        let answer = ask_for(&served, name);
        assert_eq!(text_of(&answer), whole.strip_prefix("Once there was").unwrap(), "{name}");
    }
    // It is the one that requests mean that name none, whichever was asked last.
    let mut unnamed = question("", 1);
    unnamed.as_object_mut().unwrap().remove("model");
    assert_eq!(served.post("/v1/completions", &unnamed)["model"], "house");
    let pulled = served.post("/api/pull", &json!({"model": "house:latest", "stream": false}));
    assert_eq!(pulled, json!({"status": "success"}));
    // Neither a request nor time drops it, and it is not removed.
    for model in ["house", "qwen3"] {
        served.post("/api/generate", &json!({"model": model, "keep_alive": 0}));
    }
    wait_for_loaded(&served, &["draft", "house"]);
    let (head, body) = ask(&served.address, "DELETE", "/api/delete", r#"{"model": "house"}"#);
    assert!(head.starts_with("HTTP/1.1 400 ") && body.contains("stays loaded"), "{head}{body}");
    served.signal(Signal::SIGTERM);
    assert_eq!(served.code(), Some(0));
}

#[test]
fn options_of_one_model_are_refused_beside_several() {
    let run = |args: &[&str]| {
        Ran::new(leap().arg("serve").args(args).stdin(Stdio::null()).output().unwrap())
    };
    for (option, value) in [
        ("--tokenizer", "t.bin"),
        ("--name", "x"),
        ("--boards", "auto"),
        ("--team", "auto"),
        ("--chat-template", "llama3"),
        ("--draft-node", "pi"),
        ("--version", "2"),
    ] {
        let ran = run(&["--models", "b.bin", option, value]);
        assert_eq!(ran.code, Some(2), "{option}: {ran:?}");
        assert_eq!(ran.err.trim_end().lines().count(), 1, "{option}: {ran:?}");
    }
    run(&["--models", "b.bin", "--draft", "c.bin"]).fails(2, "--draft");
    run(&["--models", "b.bin", "--cache", "c.leapw"]).fails(2, "--cache c.leapw is no folder");
    run(&["--memory", "2G"]).fails(2, "--memory is for --models");
    run(&["--models", "a=,b.bin"]).fails(2, "names no model");
    let ran = run(&["--models", "none.bin"]);
    assert!(ran.code == Some(3) && ran.err.contains("none.bin is not served"), "{ran:?}");
}

/// Files that are copied in, replaced or removed count from the next request on.
#[test]
fn files_may_change_while_the_server_runs() {
    let folder = three();
    let models = folder.join("models");
    fs::create_dir(&models).unwrap();
    let put = |from: &str, to: &str| {
        let part = folder.join("part");
        fs::copy(folder.join(from), &part).unwrap();
        fs::rename(part, models.join(to)).unwrap();
    };
    put("tokenizer.bin", "tokenizer.bin");
    put("demo.bin", "one.bin");
    let served = serve(text(&models), &folder, &[]);
    let answer = |model: &str| ask_for(&served, model)["choices"][0]["text"].clone();
    let first = answer("one");
    put("draft.bin", "one.bin");
    let second = answer("one:latest");
    assert_ne!(first, second, "the new file answers");
    put("demo.bin", "two.bin");
    assert_eq!(answer("two"), first);

    // A checkpoint's folder that is still being copied.
    let checkpoint = package("tests/golden/llama3-tiny");
    let copy = models.join("three");
    fs::create_dir(&copy).unwrap();
    fs::copy(checkpoint.join("config.json"), copy.join("config.json")).unwrap();
    let body = question("three", 1).to_string();
    let (head, _) = ask(&served.address, "POST", "/v1/completions", &body);
    assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
    for entry in fs::read_dir(&checkpoint).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    answer("three");

    for name in ["one.bin", "two.bin"] {
        fs::remove_file(models.join(name)).unwrap();
    }
    wait_for_loaded(&served, &["three"]);
    let (head, _) =
        ask(&served.address, "POST", "/v1/completions", &question("one", 1).to_string());
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    // Without a name, a model that is there answers.
    served.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 2}));
}
