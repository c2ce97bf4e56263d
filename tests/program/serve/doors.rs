//! Requests as programs send them: paths, methods and fields; and connections without requests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::common::folder::Folder;
use crate::http::{Served, ask, exchange};

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_else(|| panic!("{answer:?}"))
}

/// A POST with these header lines after the first one, and `body`.
fn post(target: &str, lines: &str, body: &str) -> String {
    let bytes = body.len();
    format!(
        "POST {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{lines}Content-Length: {bytes}\r\n\r\n{body}"
    )
}

#[test]
fn base_addresses_that_end_in_a_slash_and_targets_with_a_host_are_answered() {
    let served = Served::start(&[]);
    let body = r#"{"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2}"#;
    for target in [
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "http://board:8080/v1/chat/completions",
        "/v1/chat/completions?api-version=1",
    ] {
        let answer = exchange(&served.address, post(target, "", body).as_bytes());
        assert_eq!(status(&answer), "200", "{target}: {answer}");
    }
    let body =
        r#"{"messages": [{"role": "user", "content": "Hi."}], "options": {"num_predict": 2}}"#;
    for target in ["//api/chat", "/api/chat/"] {
        let answer = exchange(&served.address, post(target, "", body).as_bytes());
        assert!(status(&answer) == "200" && answer.contains("\"message\""), "{target}: {answer}");
    }
    assert!(ask(&served.address, "GET", "/v1/models/", "").0.starts_with("HTTP/1.1 200 "));
    assert!(ask(&served.address, "GET", "/v1/none/", "").0.starts_with("HTTP/1.1 404 "));
}

#[test]
fn a_model_is_found_under_any_name() {
    let served = Served::start(&["--name", "org/50% fox é"]);
    for (name, wanted) in [
        ("org%2F50%25%20fox%20%C3%A9", "200"),
        ("org/50%25%20fox%20%c3%a9:latest", "200"),
        ("org/50%25%20fox%20%C3", "404"),
        ("org%2F50%", "404"),
        ("org%2F50%2", "404"),
        ("org%2F50%+5", "404"),
        ("%é", "404"),
        ("50%25%20fox%20%C3%A9", "404"),
    ] {
        let head =
            format!("GET /v1/models/{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = exchange(&served.address, head.as_bytes());
        assert_eq!(status(&answer), wanted, "{name}: {answer}");
    }
}

#[test]
fn watchers_may_ask_with_head_wherever_get_is_answered() {
    let served = Served::start(&[]);
    let paths = ["/", "/health", "/v1/models", "/v1/models/demo", "/api/tags", "/api/ps"];
    for path in paths.into_iter().chain(["/api/version"]) {
        let (head, body) = ask(&served.address, "GET", path, "");
        assert_eq!(ask(&served.address, "HEAD", path, ""), (head.clone(), String::new()), "{path}");
        assert!(head.starts_with("HTTP/1.1 200 ") && !body.is_empty(), "{head}");
    }
    // Clients of Ollama read the time at which a running model is unloaded.
    let running = ask(&served.address, "GET", "/api/ps", "").1;
    let running: serde_json::Value = serde_json::from_str(&running).unwrap();
    let model = &running["models"][0];
    assert!(model["expires_at"].is_string() && model["size_vram"].is_u64(), "{running}");
    let (head, body) = ask(&served.address, "HEAD", "/metrics", "");
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}");
    assert!(ask(&served.address, "HEAD", "/v1/completions", "").0.starts_with("HTTP/1.1 405 "));
}

#[test]
fn a_page_that_may_ask_may_send_the_fields_that_its_library_needs() {
    let served = Served::start(&["--allow-origin", "app://notes"]);
    let names = "authorization,content-type,x-stainless-os,x-stainless-helper-method";
    let asked = |origin: &str| {
        let head = format!(
            "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: {names}\r\n\r\n"
        );
        exchange(&served.address, head.as_bytes())
    };
    let answer = asked("app://notes");
    assert!(answer.contains(&format!("Access-Control-Allow-Headers: {names}\r\n")), "{answer}");
    assert!(answer.contains("Access-Control-Allow-Origin: app://notes\r\n"), "{answer}");
    let refused = asked("app://other");
    assert!(status(&refused) == "403" && !refused.contains("Access-Control-"), "{refused}");
}

#[test]
fn a_page_that_may_ask_sees_why_its_request_cannot_be_read() {
    let served = Served::start(&["--allow-origin", "app://notes"]);
    for (lines, wanted) in [
        ("Content-Length: 99999999999\r\n", "413"),
        ("Content-Length: 5, 5\r\n", "400"),
        ("Content-Encoding: gzip\r\n", "415"),
        ("Transfer-Encoding: chunked\r\n\r\nfffffff0\r\n", "413"),
        ("Content-Length: 1\r\n\r\n{", "400"),
    ] {
        let send = |origin: &str| {
            let head = format!(
                "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nOrigin: {origin}\r\n{lines}\r\n"
            );
            exchange(&served.address, head.as_bytes())
        };
        let answer = send("app://notes");
        assert_eq!(status(&answer), wanted, "{lines}: {answer}");
        assert!(answer.contains("Access-Control-Allow-Origin: app://notes\r\n"), "{answer}");
        assert!(!send("app://other").contains("Access-Control-"), "{lines}");
    }
}

#[test]
fn keys_come_in_the_fields_that_other_services_use() {
    let folder = Folder::new();
    let file = folder.path().join("keys");
    std::fs::write(&file, "secret\n").unwrap();
    let served = Served::start(&["--api-key-file", file.to_str().unwrap()]);
    let body = r#"{"content": "Once"}"#;
    for (lines, wanted) in [
        ("X-Api-Key: secret\r\n", "200"),
        ("api-key: secret\r\n", "200"),
        ("Authorization: Bearer unused\r\nX-Api-Key: secret\r\n", "200"),
        ("Authorization: Bearer secret\r\n", "200"),
        ("api-key: secret\r\nX-Api-Key: unused\r\n", "200"),
        ("X-Api-Key: unused\r\napi-key: secret\r\n", "200"),
        ("X-Api-Key: secre\r\n", "401"),
        ("X-Api-Key: \r\n", "401"),
        ("X-Key: secret\r\n", "401"),
    ] {
        let answer = exchange(&served.address, post("/tokenize", lines, body).as_bytes());
        assert_eq!(status(&answer), wanted, "{lines}: {answer}");
    }
}

#[test]
fn a_client_that_closes_its_sending_side_gets_its_answer() {
    let served = Served::start(&[]);
    for body in [r#"{"prompt": "Once", "max_tokens": 40}"#, r#"{"prompt": "Once", "stream": true}"#]
    {
        let mut stream = TcpStream::connect(&served.address).unwrap();
        stream.write_all(post("/v1/completions", "", body).as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(status(&answer) == "200" && answer.contains("finish_reason"), "{body}: {answer}");
    }
    // Fields after the last chunk are ignored.
    let head = "POST /tokenize HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\
                Trailer: X-Sum\r\n\r\n13\r\n{\"content\": \"Once\"}\r\n0\r\nX-Sum: 1\r\n\r\n";
    let answer = exchange(&served.address, head.as_bytes());
    assert!(status(&answer) == "200" && answer.contains("tokens"), "{answer}");
}

#[test]
fn silent_connections_lock_no_client_out() {
    let folder = Folder::new();
    let file = folder.path().join("keys");
    std::fs::write(&file, "secret\n").unwrap();
    let served = Served::start(&["--connections", "8", "--api-key-file", file.to_str().unwrap()]);
    let mut known = TcpStream::connect(&served.address).unwrap();
    let mut tokenize = || {
        let lines =
            "POST /tokenize HTTP/1.1\r\nHost: a\r\nX-Api-Key: secret\r\nContent-Length: 19\r\n\r\n";
        known.write_all(format!("{lines}{{\"content\": \"Once\"}}").as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"]}") {
            let mut byte = [0];
            assert_eq!(known.read(&mut byte).unwrap(), 1, "its connection was closed");
            answer.push(byte[0]);
        }
    };
    tokenize();
    // Some connections send nothing, others begin a request, and others send requests without a key.
    let words: [&[u8]; 3] =
        [b"", b"GET /health HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"];
    let strangers: Vec<TcpStream> = (0..60)
        .map(|n| {
            let mut stream = TcpStream::connect(&served.address).unwrap();
            let _ = stream.write_all(words[n % words.len()]);
            stream
        })
        .collect();
    assert!(ask(&served.address, "GET", "/health", "").0.starts_with("HTTP/1.1 200 "));
    let lines = "Authorization: Bearer secret\r\n";
    let body = r#"{"prompt": "Once", "max_tokens": 2}"#;
    let answer = exchange(&served.address, post("/v1/completions", lines, body).as_bytes());
    assert_eq!(status(&answer), "200", "{answer}");
    // A client that has had an answer keeps its connection.
    tokenize();
    drop(strangers);
}
