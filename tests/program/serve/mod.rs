//! `leap serve` as its clients see it: the text of `leap run` beside any other clients, one clear error for each
//! impossible request, and no client that blocks another.

mod conversations;
mod doors;
mod embeddings;
mod fields;
mod forms;
mod models;
mod prefixes;
mod responses;
mod ring;
mod team;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::leap;
use crate::common::ran::Ran;
use crate::http::{Served, ask, exchange};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const FOX: &str = "Tell me a story about a fox.";

/// Text of `leap run` for `input` with these options.
fn run_alone(args: &[&str], input: &str) -> String {
    let mut command = leap();
    command.args(["run", "-q", "--ctx", "256"]).args(args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    text.strip_suffix('\n').unwrap().to_owned()
}

fn chat(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// The text of the first choice, or of Ollama's answer.
fn text_of(answer: &Value) -> &str {
    let places = ["/choices/0/message/content", "/choices/0/text", "/message/content", "/response"];
    places
        .iter()
        .find_map(|place| answer.pointer(place)?.as_str())
        .unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn an_answer_is_that_of_run_beside_other_requests() {
    // Memory for one and a half contexts, so that answers must wait for it, and share it.
    let mut command = leap();
    command.env("LEAP_LOG", "debug").stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
    command.args(["serve", "--listen", "127.0.0.1:0", "--threads", "1"]);
    command.args(["--streams", "3", "--ctx", "256", "--kv-memory", "580K", "--watts", "2,8"]);
    let mut served = Served::by(command);
    let seeds = if crate::common::quick() { 1..4 } else { 1..9 };
    let wanted: Vec<(i32, String, String)> = seeds
        .map(|seed| {
            let seed_text = seed.to_string();
            let sampling = ["--temp", "0.9", "--top-p", "0.95", "--seed", &seed_text, "-n", "40"];
            let prompt = format!("Once there were {seed} foxes");
            let story = run_alone(&[&sampling[..], &["-p", &prompt]].concat(), "");
            let story = story.strip_prefix(&prompt).unwrap().to_owned();
            (seed, story, run_alone(&[&sampling[..], &["--chat"]].concat(), &format!("{FOX}\n")))
        })
        .collect();
    let checked = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (seed, story, conversation) in &wanted {
            let (served, checked) = (&served, &checked);
            scope.spawn(move || {
                let sampling = json!({"temperature": 0.9, "top_p": 0.95, "seed": seed, "max_tokens": 40});
                let with = |more: Value| {
                    let mut body = sampling.clone();
                    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                    body
                };
                for _ in 0..3 {
                    let prompt = format!("Once there were {seed} foxes");
                    let body = with(json!({"prompt": prompt}));
                    assert_eq!(text_of(&served.post("/v1/completions", &body)), story, "{seed}");
                    // A client that disconnects leaves no trace.
                    served.begin_and_leave("/v1/chat/completions", &with(json!({"messages": chat(FOX), "stream": true})));
                    let body = with(json!({"messages": chat(FOX)}));
                    assert_eq!(text_of(&served.post("/v1/chat/completions", &body)), conversation, "{seed}");
                    let options = json!({"temperature": 0.9, "top_p": 0.95, "top_k": 0, "seed": seed, "num_predict": 40});
                    let body = json!({"messages": chat(FOX), "options": options, "stream": false});
                    assert_eq!(text_of(&served.post("/api/chat", &body)), conversation, "{seed}");
                    checked.fetch_add(3, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(checked.into_inner(), 9 * wanted.len());
    // A client has its answer before the server has counted it.
    let end = Instant::now() + Duration::from_secs(30);
    for gauge in ["jobs_running 0", "jobs_queued 0", "kv_pages 6", "kv_pages_used 0"] {
        let gauge = format!("\nleap_{gauge}\n");
        while !ask(&served.address, "GET", "/metrics", "").1.contains(&gauge) {
            assert!(Instant::now() < end, "never {gauge:?}");
        }
    }
    let figures = ask(&served.address, "GET", "/metrics", "").1;
    assert!(!figures.contains("\nleap_prefix_tokens_total 0\n"), "{figures}");
    let is_told = |figure: &str| figures.contains(&format!("\nleap_{figure}"));
    assert!(is_told("power_watts 2\n") && is_told("token_energy_joules 0."), "{figures}");
    served.signal(Signal::SIGTERM);
    served.said(" idle, 0 lost; ");
    assert_eq!(served.code(), Some(0));
}

#[test]
fn a_stream_is_the_whole_in_pieces() {
    let served = Served::start(&[]);
    let body = json!({"messages": chat(FOX), "temperature": 0, "max_tokens": 30, "n": 2});
    let whole = served.post("/v1/chat/completions", &body);
    assert_eq!(whole["usage"]["completion_tokens"], 60);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let (head, text) = ask(&served.address, "POST", "/v1/chat/completions", &streamed.to_string());
    assert!(head.contains("text/event-stream"), "{head}");
    let mut lines: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(lines.pop(), Some("data: [DONE]"));
    let events: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    for index in 0..2 {
        let of = |event: &Value| {
            let choice = &event["choices"][0];
            let text = choice["delta"]["content"].as_str().filter(|_| choice["index"] == index)?;
            Some(text.to_owned())
        };
        let joined: String = events.iter().filter_map(of).collect();
        assert_eq!(whole["choices"][index]["message"]["content"], joined);
    }
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 60);

    let options = json!({"temperature": 0, "num_predict": 30});
    let body = json!({"prompt": FOX, "options": options});
    let (_, text) = ask(&served.address, "POST", "/api/generate", &body.to_string());
    let objects: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let joined: String =
        objects.iter().map(|object| object["response"].as_str().unwrap()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], joined);
    assert_eq!(objects.last().unwrap()["done_reason"], "length");
}

#[test]
fn what_cannot_be_followed_is_refused_by_name() {
    let served = Served::start(&["--ctx", "64"]);
    let messages = chat("Hi.");
    let long = "fox ".repeat(200);
    for (path, body, status, field) in [
        (
            "/v1/chat/completions",
            json!({"messages": messages, "tools": [{}]}),
            400,
            "tools[0].function",
        ),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 0}), 400, "max_tokens"),
        ("/v1/chat/completions", json!({"messages": messages, "top_p": 2}), 400, "top_p"),
        ("/v1/chat/completions", json!({"messages": messages, "stop": [1]}), 400, "stop"),
        ("/v1/chat/completions", json!({"messages": messages, "n": 17}), 400, "n"),
        ("/v1/chat/completions", json!({"messages": messages, "model": "gpt-4"}), 404, "model"),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "logit_bias": {"1": 500}}),
            400,
            "logit_bias",
        ),
        ("/v1/chat/completions", json!({"messages": messages, "min_p": 1.5}), 400, "min_p"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": 1}]}),
            400,
            "messages[0].content",
        ),
        ("/v1/completions", json!({"prompt": [1, -1]}), 400, "prompt"),
        ("/v1/completions", json!({}), 400, "prompt"),
        ("/v1/completions", json!({"prompt": "a", "suffix": "b"}), 400, "suffix"),
        ("/detokenize", json!({"tokens": [99999999]}), 400, "tokens[0]"),
    ] {
        let (head, text) = ask(&served.address, "POST", path, &body.to_string());
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{body}: {head}");
        assert_eq!(answer["error"]["param"], field, "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "{answer}");
    }
    for stream in [true, false] {
        let body = json!({"messages": chat(&long), "stream": stream}).to_string();
        let (head, text) = ask(&served.address, "POST", "/v1/chat/completions", &body);
        assert!(
            head.starts_with("HTTP/1.1 400 ") && text.contains("context_length_exceeded"),
            "{text}"
        );
    }
    let (head, text) = ask(
        &served.address,
        "POST",
        "/api/chat",
        &json!({"messages": messages, "format": "xml"}).to_string(),
    );
    assert!(
        head.starts_with("HTTP/1.1 400 ") && text.starts_with(r#"{"error":"format "#),
        "{text}"
    );
    assert!(ask(&served.address, "GET", "/v1/none", "").0.starts_with("HTTP/1.1 404 "));
    for (method, path, allowed) in [
        ("GET", "/v1/completions", "POST, OPTIONS"),
        ("POST", "/api/tags", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v1/models/demo", "GET, HEAD, OPTIONS"),
        ("POST", "/v1/models/demo", "GET, HEAD, OPTIONS"),
    ] {
        let (head, _) = ask(&served.address, method, path, "");
        assert!(head.starts_with("HTTP/1.1 405 "), "{path}: {head}");
        assert!(head.contains(&format!("\r\nAllow: {allowed}\r\n")), "{path}: {head}");
    }
}

#[test]
fn hostile_bytes_get_an_error_and_stop_no_other_client() {
    let served = Served::start(&["--connections", "44", "--queue", "18446744073709551615"]);
    let post = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
    let deep = "[".repeat(100_000);
    let wide = format!("[{}1]", "1,".repeat(300_000));
    for (bytes, status) in [
        ("\0\u{1}\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(20_000)), 431),
        (format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400),
        (format!("{post}Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"), 400),
        (format!("{post}Content-Length: 99999999999\r\n\r\n"), 413),
        (format!("{post}Transfer-Encoding: chunked\r\n\r\nfffffff0\r\n"), 413),
        (format!("{post}Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n"), 400),
        (format!("{post}Content-Length: {}\r\n\r\n{deep}", deep.len()), 400),
        (format!("{post}Content-Length: {}\r\n\r\n{wide}", wide.len()), 400),
        (format!("{post}Content-Length: 2\r\n\r\n{{"), 400),
    ] {
        let answer = exchange(&served.address, bytes.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    }
    // Silent connections block no client.
    let idle: Vec<TcpStream> =
        (0..39).map(|_| TcpStream::connect(&served.address).unwrap()).collect();
    let answer = served.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 2}));
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    drop(idle);
    // The next answer must begin right after an answer without a body.
    let head = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answers = exchange(&served.address, head.as_bytes());
    assert!(answers.contains("\r\n\r\nHTTP/1.1 200 OK"), "{answers}");
    // In HTTP/1.0, a stream ends with the connection.
    let body = r#"{"prompt": "Once", "max_tokens": 2, "stream": true}"#;
    let old = format!(
        "POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert!(exchange(&served.address, old.as_bytes()).ends_with("data: [DONE]\n\n"));
    // Requests that arrive together are answered one after the other.
    let both = "GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    assert_eq!(exchange(&served.address, both.as_bytes()).matches("HTTP/1.1 200 OK").count(), 2);
}

#[test]
fn bodies_come_in_chunks_and_after_a_word() {
    let served = Served::start(&[]);
    let body = r#"{"content": "Once upon"}"#;
    let (first, second) = body.split_at(7);
    let head = "POST /tokenize HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
    let chunks = format!(
        "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x};a=b\r\n{second}\r\n0\r\n\r\n",
        first.len(),
        second.len()
    );
    assert!(exchange(&served.address, chunks.as_bytes()).ends_with(r#"{"tokens":[589,598]}"#));
    let mut stream = TcpStream::connect(&served.address).unwrap();
    write!(stream, "{head}Expect: 100-continue\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
    let mut word = [0; 25];
    stream.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with(r#"{"tokens":[589,598]}"#), "{answer}");
}

#[test]
fn only_clients_that_may_ask_are_answered() {
    let folder = crate::common::folder::Folder::new();
    let file = folder.path().join("keys");
    std::fs::write(&file, "secret\n").unwrap();
    let path = file.to_str().unwrap();
    let served = Served::start(&["--api-key-file", path, "--allow-origin", "http://page.example"]);
    let get = |fields: &str| {
        exchange(
            &served.address,
            format!("GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n")
                .as_bytes(),
        )
    };
    let refused = get("");
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    assert!(refused.contains("\r\nWWW-Authenticate: Bearer\r\n"), "{refused}");
    assert!(get("Authorization: Bearer secre\r\n").starts_with("HTTP/1.1 401 "));
    assert!(get("Authorization: Bearer secret\r\n").starts_with("HTTP/1.1 200 "));
    assert!(
        get("Authorization: Bearer secret\r\nOrigin: http://evil.example\r\n")
            .starts_with("HTTP/1.1 403 ")
    );
    let allowed = get("Authorization: Bearer secret\r\nOrigin: http://page.example\r\n");
    assert!(allowed.contains("Access-Control-Allow-Origin: http://page.example\r\n"), "{allowed}");

    std::fs::write(&file, "# none\n").unwrap();
    let run = |args: &[&str]| {
        Ran::new(leap().arg("serve").args(args).stdin(Stdio::null()).output().unwrap())
    };
    run(&["--api-key-file", path]).fails(3, "holds no key");
    run(&["--listen", "0.0.0.0:0"]).fails(2, "--api-key-file");
    run(&["--listen", "nonsense"]).fails(2, "wanted HOST:PORT");
    run(&["--listen", &served.address]).fails(1, "cannot listen on");
    run(&["--streams", "0"]).fails(2, "at least 1");
    run(&["--ctx", "256", "--kv-memory", "300K"]).fails(2, "keys and values of 192 tokens");
    run(&["--kv-memory", "much"]).fails(2, "500M");
    run(&["--prefix-cache", "x", "--team", "none"])
        .fails(2, "--prefix-cache is for one board or a");
    run(&["--prefix-cache", path]).fails(2, "is not a folder");
    run(&["--prefix-cache-size", "1G"]).fails(2, "needs --prefix-cache");
}

#[test]
fn a_queue_that_is_full_says_so() {
    let served = Served::start(&["--streams", "1", "--queue", "0"]);
    let long = json!({"prompt": "Once", "max_tokens": 1000, "temperature": 0, "stop": ["\u{0}"], "stream": true});
    let mut first = served.begin("/v1/completions", &long);
    let mut byte = [0];
    first.read_exact(&mut byte).unwrap();
    let body = json!({"prompt": "Once"}).to_string();
    let mut heads = Vec::new();
    let end = Instant::now() + Duration::from_secs(60);
    while heads.last().is_none_or(|head: &String| head.starts_with("HTTP/1.1 429 ")) {
        heads.push(ask(&served.address, "POST", "/v1/completions", &body).0);
        // The place in the queue is free as soon as the first client has gone.
        let _ = first.shutdown(std::net::Shutdown::Both);
        assert!(Instant::now() < end, "{heads:?}");
    }
    assert!(heads.last().unwrap().starts_with("HTTP/1.1 200 "), "{heads:?}");
    if heads.len() > 1 {
        assert!(heads[0].contains("Retry-After: "), "{}", heads[0]);
    }
}

#[test]
fn a_signal_lets_answers_end() {
    let body = json!({"prompt": "Once", "max_tokens": 60, "temperature": 0, "stop": ["\u{0}"]});
    let mut served = Served::start(&["--drain-s", "18446744073709551615"]);
    let whole = served.post("/v1/completions", &body);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let (mut stream, mut rest) = served.begin_text("/v1/completions", &streamed);
    served.signal(Signal::SIGTERM);
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(served.code(), Some(0));
    let pieces = rest
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let text: String = pieces
        .filter_map(|event| Some(event.pointer("/choices/0/text")?.as_str()?.to_owned()))
        .collect();
    assert_eq!(text, text_of(&whole));
}

#[test]
fn a_browser_gets_the_page_and_the_page_gets_answers() {
    let folder = crate::common::folder::Folder::new();
    let file = folder.path().join("keys");
    std::fs::write(&file, "secret\n").unwrap();
    let served = Served::start(&["--api-key-file", file.to_str().unwrap()]);
    let address = &served.address;
    let get = |method: &str, fields: &str| {
        let head =
            format!("{method} / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{fields}\r\n");
        let answer = exchange(address, head.as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    };
    // The page holds nothing secret, so it needs no key.
    let (head, page) = get("GET", "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains("Content-Type: text/html"),
        "{head}"
    );
    let policy = head.lines().find_map(|line| line.strip_prefix("Content-Security-Policy: "));
    let policy: Vec<&str> = policy.unwrap().split("; ").collect();
    assert!(policy.contains(&"default-src 'none'"), "{policy:?}");
    // No part of the page may come from elsewhere, and no answer may run as a script.
    for rule in policy {
        let (_, sources) = rule.split_once(' ').unwrap();
        let is_inside = |source: &str| source.starts_with('\'') || source == "data:";
        assert!(sources.split(' ').all(is_inside) && !sources.contains("unsafe"), "{rule}");
    }
    for outside in ["http://", "https://", "//cdn", "@import", "url("] {
        let known = ["http://www.w3.org/2000/svg"];
        let page = known.iter().fold(page.clone(), |page, known| page.replace(known, ""));
        assert!(!page.contains(outside), "{outside}");
    }
    let (only_head, nothing) = get("HEAD", "Accept: text/html\r\n");
    assert_eq!((only_head, nothing.as_str()), (head, ""));
    // Programs get the answer for programs.
    assert_eq!(get("GET", "Accept: */*\r\n").1, r#"{"status":"ok"}"#);

    // Requests of the page's own scripts come from its origin; other pages are refused.
    let post = |origin: &str, key: &str| {
        let body = r#"{"content": "Once"}"#;
        let head = format!(
            "POST /tokenize HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nOrigin: {origin}\r\n\
             Authorization: Bearer {key}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        exchange(address, head.as_bytes())
    };
    assert!(post(&format!("http://{address}"), "secret").starts_with("HTTP/1.1 200 "));
    assert!(post(&format!("http://{address}"), "wrong").starts_with("HTTP/1.1 401 "));
    assert!(post("http://evil.example", "secret").starts_with("HTTP/1.1 403 "));
}

#[test]
fn a_line_tells_of_each_request_and_of_its_text_only_on_request() {
    let body = json!({"prompt": "Once upon", "max_tokens": 2, "stream": true});
    let asks = |served: &Served| {
        ask(&served.address, "POST", "/v1/completions", &body.to_string());
        ask(&served.address, "GET", "/v1/none", "");
        exchange(&served.address, b"\0\r\n\r\n");
        // Each connection's thread logs its own request.
        [" /v1/completions ", " /v1/none ", " - - 400 "].map(|part| served.said(part)).concat()
    };
    let served = Served::start(&[]);
    let said = asks(&served);
    let line = |part: &str| {
        said.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{said}"))
    };
    let answered: Vec<&str> = line("/v1/completions").split(' ').collect();
    let [name, date, time, "POST", "/v1/completions", "200", ms, "127.0.0.1", bytes] = answered[..]
    else {
        panic!("{said}")
    };
    assert_eq!((name, date.len(), time.len()), ("leap:", 10, 8), "{said}");
    assert!(ms.strip_suffix("ms").unwrap().parse::<u64>().is_ok(), "{said}");
    assert!(bytes.parse::<u64>().unwrap() > 100, "{said}");
    assert!(line("/v1/none").contains(" 404 ") && !said.contains("Once upon"));

    let served = Served::start(&["--log-prompts"]);
    let said = asks(&served);
    assert!(said.contains(r#""prompt":"Once upon""#), "{said}");

    // The journal adds the time.
    let mut command = leap();
    command.args(["serve", "--listen", "127.0.0.1:0"]).env("JOURNAL_STREAM", "1:2");
    let served = Served::by(command);
    let said = asks(&served);
    assert!(said.lines().any(|line| line.starts_with("leap: - - 400 ")), "{said}");
}

/// `leap serve` with standard input as the one socket from the service manager.
fn activated(input: Stdio) -> Command {
    let program = leap();
    let mut command = Command::new("sh");
    let script = r#"LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&0 </dev/null"#;
    command.args(["-c", script, "sh"]).arg(program.get_program()).args(program.get_args());
    command.arg("serve").stdin(input);
    command
}

#[test]
fn sockets_of_the_service_manager_are_listened_on() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let served = Served::by(activated(Stdio::from(OwnedFd::from(socket))));
    assert_eq!(served.address, address);
    let answer = served.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 2}));
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    // Only sockets may be passed; without one there is nothing to listen on.
    let output = activated(Stdio::null()).output().unwrap();
    Ran::new(output).fails(1, "descriptor 3, of LISTEN_FDS, is no socket");
}
