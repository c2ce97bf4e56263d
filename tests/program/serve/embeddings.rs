//! Embeddings: the command and the three endpoints, alone and beside a model that writes text.

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::common::folder::Folder;
use crate::common::leap;
use crate::common::models::package;
use crate::common::ran::Ran;
use crate::http::{Served, ask};

const MODEL: &str = "bert-embed-tiny";

/// A folder with a model of embeddings in f32, and the texts and vectors of its reference.
fn exported(name: &str) -> (Folder, Value) {
    let folder = Folder::new();
    let source = package("tests/golden").join(name);
    let mut command = leap();
    command.args(["export", "--version", "1", "--meta-llama"]).arg(&source);
    Ran::new(command.arg(folder.join("embed.bin")).output().unwrap()).succeeds();
    let golden = fs::read_to_string(source.join("embedding_golden.json")).unwrap();
    (folder, serde_json::from_str(&golden).unwrap())
}

fn embed(folder: &Folder, args: &[&str], input: &str) -> Ran {
    let mut command = leap();
    command.arg("embed").arg(folder.join("embed.bin")).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that fails at once reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    Ran::new(child.wait_with_output().unwrap())
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn is_near(found: &[f64], wanted: &[f64]) -> bool {
    let off = found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    found.len() == wanted.len() && off < 1e-4
}

#[test]
fn the_command_prints_a_line_or_one_object() {
    let (folder, golden) = exported(MODEL);
    let texts: Vec<&str> =
        golden["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let wanted: Vec<Vec<f64>> = golden["vectors"].as_array().unwrap().iter().map(floats).collect();
    let input = texts.join("\n");
    let lines = embed(&folder, &[], &input).succeeds().out;
    let found: Vec<Vec<f64>> =
        lines.lines().map(|line| line.split(' ').map(|x| x.parse().unwrap()).collect()).collect();
    assert!(found.iter().zip(&wanted).all(|(a, b)| is_near(a, b)), "{lines}");
    assert_eq!(found.len(), wanted.len());
    let file = folder.write("texts.txt", input);
    let json = embed(&folder, &["-f", file.to_str().unwrap(), "--json"], "").succeeds().out;
    let json: Value = serde_json::from_str(&json).unwrap();
    let vectors: Vec<Vec<f64>> =
        json["embeddings"].as_array().unwrap().iter().map(floats).collect();
    assert_eq!(vectors, found);
    assert!(json["tokens"].as_u64().unwrap() > 90);
    let short = embed(&folder, &["-p", texts[1], "--dimensions", "7"], "").succeeds().out;
    assert_eq!(short.split(' ').count(), 7);
    assert_eq!(
        embed(&folder, &["--json"], "").succeeds().out,
        "{\"embeddings\":[],\"tokens\":0}\n"
    );
}

#[test]
fn the_command_refuses_what_does_not_fit() {
    let (folder, _) = exported(MODEL);
    let long = "a ".repeat(200);
    embed(&folder, &[], &format!("b\n{long}")).fails(2, "line 2: the text has 202 tokens");
    // The vectors before stay an object, which says why it ends.
    let many = format!("{}{long}", "b\n".repeat(300));
    let cut = embed(&folder, &["--json"], &many);
    cut.fails(2, "line 301: the text has 202 tokens");
    let object: Value = serde_json::from_str(&cut.out).unwrap();
    assert_eq!(object["embeddings"].as_array().unwrap().len(), 256);
    assert!(object["error"].as_str().unwrap().starts_with("line 301: the text has 202 tokens"));
    let none = embed(&folder, &["--json"], &long);
    none.fails(2, "line 1: ");
    assert_eq!(none.out, "");
    embed(&folder, &["--truncate", "-p", &long], "").succeeds();
    embed(&folder, &["-p", "a", "--dimensions", "65"], "").fails(2, "--dimensions: 65 dimensions");
    embed(&folder, &["-p", "a", "--dimensions", "0"], "").fails(2, "--dimensions");
    embed(&folder, &["-p", "a", "--pooling", "max"], "").fails(2, "mean, cls and last");
    embed(&folder, &["-p", "a", "-f", "x"], "").fails(2, "exclude each other");
    embed(&folder, &["-p", "a", "--prompt-name", "query"], "").fails(2, "has no prompts");
    embed(&folder, &["-f", "/nowhere/at/all"], "").fails(3, "/nowhere/at/all");
    embed(&folder, &["-f", "/dev/null"], "").succeeds();
    let mut command = leap();
    command.arg("run").arg(folder.join("embed.bin")).args(["-p", "a"]);
    Ran::new(command.output().unwrap()).fails(2, "this model computes embeddings");
    let mut command = leap();
    command.args(["embed"]).arg(package("models/demo.bin")).args(["-p", "a"]);
    Ran::new(command.output().unwrap()).fails(2, "this model writes text");
    let mut command = leap();
    command.args(["embed"]).arg(package("models/demo.bin")).args(["-p", "a", "--pooling", "mean"]);
    assert_eq!(Ran::new(command.output().unwrap()).succeeds().out.lines().count(), 1);
}

fn serve(args: &[&str]) -> Served {
    let mut command = leap();
    command.args(["serve", "--listen", "127.0.0.1:0", "--threads", "1"]).args(args);
    command.stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
    Served::by(command)
}

/// The status and the body of an answer.
fn post(served: &Served, path: &str, body: &Value) -> (String, Value) {
    let (head, body) = ask(&served.address, "POST", path, &body.to_string());
    (head.split(' ').nth(1).unwrap().to_owned(), serde_json::from_str(&body).unwrap())
}

#[test]
fn all_endpoints_give_the_reference_s_vectors() {
    let (folder, golden) = exported(MODEL);
    let served = serve(&[folder.join("embed.bin").to_str().unwrap()]);
    let wanted: Vec<Vec<f64>> = golden["vectors"].as_array().unwrap().iter().map(floats).collect();
    let texts = &golden["texts"];
    let check = |all: &mut dyn Iterator<Item = Vec<f64>>| {
        let all: Vec<Vec<f64>> = all.collect();
        assert!(all.len() == wanted.len() && all.iter().zip(&wanted).all(|(a, b)| is_near(a, b)));
    };
    for input in [texts, &golden["ids"]] {
        let answer = served.post("/v1/embeddings", &json!({"model": "embed", "input": input}));
        check(&mut answer["data"].as_array().unwrap().iter().map(|one| floats(&one["embedding"])));
        assert_eq!(answer["data"][3]["index"], 3);
        assert_eq!(answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]);
        let answer = served.post("/api/embed", &json!({"model": "embed:latest", "input": input}));
        check(&mut answer["embeddings"].as_array().unwrap().iter().map(floats));
        assert!(answer["prompt_eval_count"].as_u64().unwrap() > 90);
    }
    let body = json!({"input": texts, "encoding_format": "base64", "dimensions": 64});
    let answer = served.post("/v1/embeddings", &body);
    check(&mut answer["data"].as_array().unwrap().iter().map(|one| {
        let bytes = BASE64_STANDARD.decode(one["embedding"].as_str().unwrap()).unwrap();
        bytes.as_chunks().0.iter().map(|x| f64::from(f32::from_le_bytes(*x))).collect()
    }));
    for text in 0..wanted.len() {
        let answer = served.post("/api/embeddings", &json!({"prompt": texts[text]}));
        assert!(is_near(&floats(&answer["embedding"]), &wanted[text]));
    }
    let one = served.post("/v1/embeddings", &json!({"input": texts[1], "dimensions": 3}));
    assert_eq!(one["data"][0]["embedding"].as_array().unwrap().len(), 3);
    let ids = served.post("/v1/embeddings", &json!({"input": golden["ids"][1]}));
    assert!(is_near(&floats(&ids["data"][0]["embedding"]), &wanted[1]));
    let long = "a ".repeat(500);
    let cut = served.post("/api/embed", &json!({"input": long}));
    assert_eq!(cut["prompt_eval_count"], 96);
    let (_, metrics) = ask(&served.address, "GET", "/metrics", "");
    // Two inputs by two endpoints, one in base64, and the texts one by one.
    let n_answers = 4 + 1 + wanted.len() + 3;
    assert!(metrics.contains(&format!("leap_answers_total {n_answers}\n")), "{metrics}");
    let text = json!({"content": texts[1], "add_special": true, "parse_special": true});
    assert_eq!(served.post("/tokenize", &text)["tokens"], golden["ids"][1]);
    // Ollama's clients always send options; the context is the one that counts here.
    let options = json!({"num_ctx": 12, "temperature": 0.8, "mirostat": 2, "stop": ["a"]});
    let cut = served.post("/api/embed", &json!({"input": long, "options": options}));
    assert_eq!(cut["prompt_eval_count"], 12);
    let shown = served.post("/api/show", &json!({"model": "embed"}));
    let family = shown["details"]["family"].as_str().unwrap();
    assert_eq!(shown["model_info"][format!("{family}.embedding_length")], 64, "{shown}");
    assert_eq!(shown["capabilities"], json!(["embedding"]));
}

#[test]
fn bad_requests_get_one_clear_error() {
    let (folder, _) = exported(MODEL);
    let served = serve(&[folder.join("embed.bin").to_str().unwrap()]);
    let long = "a ".repeat(500);
    for (path, body, wanted) in [
        ("/v1/embeddings", json!({}), "input is not there"),
        ("/v1/embeddings", json!({"input": 5}), "neither a text"),
        ("/v1/embeddings", json!({"input": [[]]}), "input[0] is empty"),
        ("/v1/embeddings", json!({"input": ["a", 5]}), "input[1]"),
        ("/v1/embeddings", json!({"input": [5, "a"]}), "no token ids"),
        ("/v1/embeddings", json!({"input": [[192]]}), "no token ids"),
        ("/v1/embeddings", json!({"input": "a", "dimensions": 65}), "dimensions"),
        ("/v1/embeddings", json!({"input": "a", "dimensions": 0}), "dimensions"),
        ("/v1/embeddings", json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        ("/v1/embeddings", json!({"input": long}), "502 tokens, the context is 96"),
        ("/v1/embeddings", json!({"input": vec!["a"; 2049]}), "more than 2048"),
        ("/v1/embeddings", json!({"input": "a", "prompt_name": "query"}), "prompt_name"),
        ("/api/embed", json!({"input": long, "truncate": false}), "502 tokens"),
        ("/api/embed", json!({"input": "a", "options": []}), "options is no object"),
        ("/v1/embeddings", json!({"input": "a", "stream": true}), "stream is not supported"),
        ("/v1/embeddings", json!({"input": "a", "input_type": "query"}), "input_type"),
        ("/api/embed", json!({"input": "a", "truncate": 1}), "truncate"),
        ("/api/embeddings", json!({"input": "a"}), "prompt is not there"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}]}),
            "embeddings",
        ),
        ("/api/generate", json!({"prompt": "a"}), "embeddings"),
    ] {
        let (status, body) = post(&served, path, &body);
        let error = &body["error"];
        let message = error.as_str().or(error["message"].as_str()).unwrap().to_owned();
        assert!(status == "400" && message.contains(wanted), "{path}: {status} {message}");
    }
    let (status, body) = post(&served, "/v1/embeddings", &json!({"model": "x", "input": "a"}));
    assert!(status == "404" && body["error"]["code"] == "model_not_found", "{body}");
    assert_eq!(served.post("/v1/embeddings", &json!({"input": []}))["data"], json!([]));
    assert_eq!(served.post("/api/embed", &json!({"model": "embed"}))["embeddings"], json!([]));
}

/// Requests share batches: a short one is not kept waiting by one that takes many, nor by one whose client has gone.
#[test]
fn short_requests_come_between_the_batches_of_long_ones() {
    let (folder, golden) = exported(MODEL);
    let served = serve(&[folder.join("embed.bin").to_str().unwrap()]);
    let short = json!({"input": golden["texts"][1]});
    let wanted = served.post("/v1/embeddings", &short);
    let texts: Vec<&Value> = (0..2000).map(|n| &golden["texts"][n % 5]).collect();
    let long = json!({"input": texts});
    served.begin_and_leave("/v1/embeddings", &long);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let of_long = scope.spawn(|| {
            let answer = served.post("/v1/embeddings", &long);
            (answer, answered.load(Ordering::SeqCst))
        });
        while !of_long.is_finished() {
            assert_eq!(served.post("/v1/embeddings", &short), wanted);
            answered.fetch_add(1, Ordering::SeqCst);
        }
        let (answer, n_before) = of_long.join().unwrap();
        assert_eq!(answer["data"].as_array().unwrap().len(), 2000);
        assert_eq!(answer["data"][1996]["embedding"], wanted["data"][0]["embedding"]);
        assert!(n_before >= 3, "{n_before} answers while 2,000 texts were computed");
    });
}

/// Clients that leave, and many at the same time, change nothing.
#[test]
fn every_client_gets_its_own_vectors() {
    let (folder, golden) = exported(MODEL);
    let served = serve(&[folder.join("embed.bin").to_str().unwrap(), "--queue", "100"]);
    let alone: Vec<Value> = (0..5)
        .map(|n| served.post("/v1/embeddings", &json!({"input": golden["texts"][n]})))
        .collect();
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (served, golden, alone) = (&served, &golden, &alone);
            scope.spawn(move || {
                for round in 0..10 {
                    let n = (client + round) % 5;
                    let body = json!({"input": golden["texts"][n]});
                    if (client + round) % 4 == 0 {
                        served.begin_and_leave("/v1/embeddings", &body);
                    }
                    assert_eq!(served.post("/v1/embeddings", &body), alone[n]);
                }
            });
        }
    });
}

#[test]
fn a_model_of_embeddings_stands_beside_one_that_writes() {
    let (folder, golden) = exported(MODEL);
    fs::copy(package("models/demo.bin"), folder.join("demo.bin")).unwrap();
    let tokenizer = package("models/demo.tokenizer.bin");
    fs::copy(tokenizer, folder.join("demo.tokenizer.bin")).unwrap();
    let served = serve(&["--models", folder.path().to_str().unwrap(), "--ctx", "256"]);
    let input = json!({"model": "embed", "input": golden["texts"][1]});
    let found = served.post("/v1/embeddings", &input);
    assert!(is_near(&floats(&found["data"][0]["embedding"]), &floats(&golden["vectors"][1])));
    let body = json!({"model": "demo", "prompt": "Once", "max_tokens": 3, "temperature": 0});
    assert!(
        !served.post("/v1/completions", &body)["choices"][0]["text"].as_str().unwrap().is_empty()
    );
    let (status, body) = post(&served, "/v1/embeddings", &json!({"model": "demo", "input": "a"}));
    assert!(status == "400" && body["error"]["message"].as_str().unwrap().contains("writes text"));
    let (status, _) = post(&served, "/v1/completions", &json!({"model": "embed", "prompt": "a"}));
    assert_eq!(status, "400");
}
