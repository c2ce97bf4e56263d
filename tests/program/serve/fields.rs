//! Requests with more than a question: loading, fields of other servers, neutral values.

use std::io::Read;
use std::thread;

use serde_json::{Value, json};

use super::{FOX, chat, run_alone, text_of};
use crate::common::leap;
use crate::common::models::package;
use crate::common::ran::Ran;
use crate::http::{Served, ask};

/// `body` with the fields of `more`.
fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn ollamas_clients_load_and_unload_without_an_answer() {
    let served = Served::start(&[]);
    let messages: Value = json!([]);
    for (path, body, reason) in [
        ("/api/generate", json!({}), "load"),
        ("/api/generate", json!({"prompt": "", "stream": false, "system": "x"}), "load"),
        ("/api/generate", json!({"keep_alive": "5m", "options": {"num_ctx": 1}}), "load"),
        ("/api/generate", json!({"keep_alive": -1}), "load"),
        ("/api/generate", json!({"keep_alive": 0}), "unload"),
        ("/api/generate", json!({"keep_alive": "0s"}), "unload"),
        ("/api/chat", json!({}), "load"),
        ("/api/chat", json!({"messages": messages, "keep_alive": "10m"}), "load"),
        ("/api/chat", json!({"messages": messages, "keep_alive": "0"}), "unload"),
    ] {
        let answer = served.post(path, &with(&json!({"model": "demo"}), &body));
        assert_eq!((text_of(&answer), &answer["done_reason"]), ("", &json!(reason)), "{body}");
        assert_eq!((&answer["done"], &answer["model"]), (&json!(true), &json!("demo")), "{body}");
    }
    let figures = ask(&served.address, "GET", "/metrics", "").1;
    assert!(figures.contains("\nleap_generated_tokens_total 0\n"), "{figures}");
    let (head, _) = ask(&served.address, "POST", "/api/generate", r#"{"model": "other"}"#);
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
}

#[test]
fn editors_find_the_version_and_the_context_that_they_look_for() {
    let served = Served::start(&["--ctx", "200"]);
    let (_, text) = ask(&served.address, "GET", "/api/version", "");
    let version: Value = serde_json::from_str(&text).unwrap();
    let parts = version["version"].as_str().unwrap().split('.').map(|part| part.parse().unwrap());
    assert!(parts.collect::<Vec<u32>>() >= vec![0, 6, 4], "{version}");
    let info = served.post("/api/show", &json!({"model": "demo"}))["model_info"].clone();
    let family = info["general.architecture"].as_str().unwrap();
    assert_eq!(info[format!("{family}.context_length")], 200, "{info}");
    let run = leap().arg("info").arg(package("models/demo.bin")).arg("--json").output().unwrap();
    let header: Value = serde_json::from_str(&Ran::new(run).succeeds().out).unwrap();
    assert_eq!(info[format!("{family}.embedding_length")], header["dim"], "{info}");
}

#[test]
fn what_the_model_that_stays_takes_is_told() {
    let size = |kv: &str| {
        let served = Served::start(&["--kv-memory", kv]);
        let told = |path: &str| {
            let (_, text) = ask(&served.address, "GET", path, "");
            serde_json::from_str::<Value>(&text).unwrap()["models"][0]["size"].as_u64().unwrap()
        };
        (told("/api/ps"), told("/api/tags"))
    };
    let ((small, file), (large, _)) = (size("4M"), size("8M"));
    assert!(small > file + (3 << 20) && large > small + (3 << 20), "{file} {small} {large}");
}

/// A client takes the time of an answer from its object.
#[test]
fn the_time_in_the_queue_belongs_to_an_answer() {
    let served = Served::start(&["--streams", "1"]);
    // Long enough for requests that come from a machine whose processors have much to do.
    let many = json!({"prompt": "Once upon a time", "temperature": 0, "n": 16, "max_tokens": 800, "stream": true});
    let _first = served.begin_text("/v1/completions", &many);
    // A stream has its head when its request is in the queue.
    let queued = |n: u32| {
        let options = json!({"num_predict": n, "temperature": 0});
        let body = json!({"prompt": "Once upon a time", "raw": true, "options": options});
        let mut stream = served.begin("/api/generate", &body);
        stream.read_exact(&mut [0]).unwrap();
        stream
    };
    let streams = [queued(20), queued(1)];
    let figures = ask(&served.address, "GET", "/metrics", "").1;
    for n in [0, 1] {
        assert!(!figures.contains(&format!("\nleap_jobs_queued {n}\n")), "they do not wait");
    }
    let [second, third] = streams.map(|mut stream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let last = text.lines().rfind(|line| line.contains("total_duration")).unwrap();
        serde_json::from_str::<Value>(last).unwrap()
    });
    let time = |answer: &Value, name: &str| answer[format!("{name}_duration")].as_u64().unwrap();
    let own = |answer: &Value| time(answer, "prompt_eval") + time(answer, "eval");
    let waited = time(&third, "total") - time(&third, "load") - own(&third);
    assert!(waited >= own(&second), "{second} {third}");
}

#[test]
fn fields_that_change_nothing_do_not_fail() {
    let served = Served::start(&[]);
    let body =
        json!({"model": "demo", "messages": chat(FOX), "temperature": 0.0, "max_tokens": 12});
    let wanted = served.post("/v1/chat/completions", &body);
    for more in [
        json!({"user": "x", "metadata": {"a": "b"}, "store": false, "parallel_tool_calls": true, "n": 1}),
        json!({"logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "min_p": -1, "top_k": -1}),
        json!({"tool_choice": "none", "service_tier": "auto", "stream_options": {}, "seed": -1, "stop": []}),
        json!({"typical_p": 1.0, "tfs_z": 1, "top_a": 0, "xtc_probability": 0, "dry_multiplier": 0.0}),
        json!({"logprobs": false, "top_logprobs": 0, "response_format": {"type": "text"}, "min_p": 0.05}),
        json!({"cache_prompt": true, "timings_per_token": true, "id_slot": -1, "num_ctx": 8192}),
        json!({"grammar": "", "ignore_eos": false, "mirostat": 0, "mirostat_tau": 5, "min_p": 0}),
        json!({"repeat_penalty": 1.0, "repeat_last_n": 64, "repetition_penalty": 1, "n_probs": 0}),
        json!({"prediction": {"type": "content", "content": "x"}, "verbosity": "low"}),
        json!({"web_search_options": null, "guided_json": null, "stop": null, "logit_bias": []}),
        json!({"stop": "", "max_output_tokens": 4, "truncate": true, "shift": true, "seed": null}),
        json!({"chat_template_kwargs": {"enable_thinking": true, "custom": 1}, "tools": []}),
        json!({"reasoning_effort": "xhigh", "reasoning": {"effort": "low"}, "best_of": 1}),
        json!({"unheard_of": {"a": [1]}, "stream_options": null, "response_format": null}),
    ] {
        let answer = served.post("/v1/chat/completions", &with(&body, &more));
        assert_eq!(text_of(&answer), text_of(&wanted), "{more}");
    }
    let text = json!({"prompt": "Once", "temperature": 0, "max_tokens": 4});
    let wanted_text = served.post("/v1/completions", &text);
    let more = json!({"logprobs": false, "echo": false, "best_of": 1, "suffix": null, "user": "x"});
    let answer = served.post("/v1/completions", &with(&text, &more));
    assert_eq!(text_of(&answer), text_of(&wanted_text));

    let options = json!({"temperature": 0, "num_predict": 12, "repeat_last_n": 64, "mirostat": 0,
        "repeat_penalty": 1.0, "penalize_newline": true, "num_ctx": 4096, "unheard_of": 1,
        "num_keep": 24, "min_p": 0.05, "typical_p": 1.0, "tfs_z": 1.0, "presence_penalty": 0.0, "numa": false,
        "frequency_penalty": 0.0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "seed": -1, "num_batch": 512,
        "num_gpu": 99, "main_gpu": 0, "use_mmap": true, "use_mlock": false, "num_thread": 8, "stop": []});
    let body = json!({"messages": chat(FOX), "stream": false, "options": options, "truncate": true,
        "shift": true, "max_output_tokens": 4, "think": null, "keep_alive": "5m", "tools": null});
    assert_eq!(text_of(&served.post("/api/chat", &body)), text_of(&wanted));
    for think in [json!("low"), json!("none"), json!(false)] {
        let answer = served.post("/api/chat", &with(&body, &json!({"think": think})));
        assert_eq!(text_of(&answer), text_of(&wanted), "{think}");
    }
    let body = json!({"prompt": FOX, "stream": false, "options": options, "tools": [], "context": [],
        "images": [], "template": "", "suffix": ""});
    assert_eq!(text_of(&served.post("/api/generate", &body)), text_of(&wanted));

    let body = json!({"input": FOX, "temperature": 0, "max_output_tokens": 12, "truncation": "auto",
        "include": ["message.output_text.logprobs"], "top_logprobs": 0, "max_tool_calls": 3, "verbosity": "low",
        "text": {"verbosity": "low"}, "reasoning": {"effort": "minimal", "summary": null},
        "previous_response_id": null, "prompt_cache_key": "x"});
    let answer = served.post("/v1/responses", &body);
    assert_eq!(answer["output"][0]["content"][0]["text"], text_of(&wanted));
}

#[test]
fn whole_numbers_may_be_written_as_floats() {
    let served = Served::start(&[]);
    let check = |path: &str, whole: Value, float: Value| {
        let (whole, float) = (served.post(path, &whole), served.post(path, &float));
        assert_eq!(text_of(&whole), text_of(&float), "{path}");
    };
    let body = json!({"messages": chat(FOX), "temperature": 0.9, "seed": 7, "stream": false});
    check(
        "/v1/chat/completions",
        with(&body, &json!({"max_tokens": 12, "top_k": 5, "logit_bias": {"589": -9}})),
        with(
            &body,
            &json!({"max_tokens": 12.0, "top_k": 5.0, "seed": 7.0, "n": 1.0, "logit_bias": {"589.0": -9.0}}),
        ),
    );
    check(
        "/v1/completions",
        json!({"prompt": [589, 598], "max_tokens": 4, "temperature": 0}),
        json!({"prompt": [589.0, 598.0], "max_tokens": 4.0, "temperature": 0}),
    );
    // Ollama cuts fractions off.
    let options =
        |options: Value| json!({"messages": chat(FOX), "stream": false, "options": options});
    check(
        "/api/chat",
        options(json!({"num_predict": 12, "top_k": 5, "seed": 7, "repeat_last_n": 64})),
        options(json!({"num_predict": 12.9, "top_k": 5.5, "seed": 7.0, "repeat_last_n": 64.0})),
    );
    let answer = served.post("/detokenize", &json!({"tokens": [589.0, 598.0]}));
    assert_eq!(answer["content"], "Once upon");
    let fraction = json!({"messages": chat(FOX), "max_tokens": 3.5}).to_string();
    let (head, text) = ask(&served.address, "POST", "/v1/chat/completions", &fraction);
    assert!(head.starts_with("HTTP/1.1 400 ") && text.contains("max_tokens"), "{text}");
}

#[test]
fn text_becomes_tokens_with_the_fields_of_other_servers() {
    let served = Served::start(&[]);
    let bos = json!({"content": "", "add_special": true});
    let bos = served.post("/tokenize", &bos)["tokens"].take();
    let name = served.post("/detokenize", &json!({"tokens": bos}))["content"].take();
    let name = name.as_str().unwrap();
    let text = format!("{name}Once \u{10ffff}");
    let tokens = |more: Value| {
        let body = with(&json!({"content": text}), &more);
        served.post("/tokenize", &body)["tokens"].take()
    };
    let ids = tokens(json!({"model": "demo:latest", "parse_special": false, "with_pieces": false}));
    let n_ids = ids.as_array().unwrap().len();
    assert_eq!(tokens(json!({"unheard_of": 1, "parse_special": null})), ids);
    let special = tokens(json!({"parse_special": true}));
    assert_eq!(special[0], bos[0]);
    assert!(special.as_array().unwrap().len() < n_ids, "{special}");

    let pieces = tokens(json!({"with_pieces": true, "parse_special": true}));
    let pieces = pieces.as_array().unwrap();
    let told: Vec<&Value> = pieces.iter().map(|token| &token["id"]).collect();
    assert_eq!(json!(told), special);
    assert_eq!(pieces[0]["piece"], name);
    // The bytes of a character that is no token are no text each.
    assert_eq!(pieces[pieces.len() - 4]["piece"], json!([0xf4]), "{pieces:?}");

    let body = json!({"tokens": ids, "model": "demo", "unheard_of": 1});
    assert_eq!(served.post("/detokenize", &body)["content"], text);
    for path in ["/tokenize", "/detokenize"] {
        let body = json!({"content": "a", "tokens": [1], "model": "other"}).to_string();
        assert!(ask(&served.address, "POST", path, &body).0.starts_with("HTTP/1.1 404 "), "{path}");
    }
    let body = json!({"content": "a", "with_pieces": "yes"}).to_string();
    assert!(ask(&served.address, "POST", "/tokenize", &body).0.starts_with("HTTP/1.1 400 "));
}

#[test]
fn a_length_below_zero_is_no_limit() {
    let served = Served::start(&["--ctx", "96"]);
    let chat_body = json!({"messages": chat(FOX), "temperature": 0});
    let wanted = served.post("/v1/chat/completions", &chat_body);
    for field in ["max_tokens", "max_completion_tokens", "n_predict"] {
        let answer = served.post("/v1/chat/completions", &with(&chat_body, &json!({field: -1})));
        assert_eq!(text_of(&answer), text_of(&wanted), "{field}");
    }
    let body = json!({"prompt": "Once", "temperature": 0, "max_tokens": -1});
    let n = served.post("/v1/completions", &body)["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(n > 16, "{n}");
    let body = json!({"input": FOX, "temperature": 0, "max_output_tokens": -1});
    let answer = served.post("/v1/responses", &body);
    assert_eq!(answer["output"][0]["content"][0]["text"], text_of(&wanted));
    let options = json!({"temperature": 0, "num_predict": 0});
    let body = json!({"messages": chat(FOX), "stream": false, "options": options});
    assert_eq!(text_of(&served.post("/api/chat", &body)), text_of(&wanted));
}

#[test]
fn a_repeat_penalty_gives_the_same_text_alone_in_company_and_with_drafts() {
    let served = Served::start(&["--streams", "3", "--draft", "off"]);
    let drafting = Served::start(&["--streams", "3"]);
    let plain = json!({"messages": chat(FOX), "temperature": 0.7, "seed": 5, "max_tokens": 40});
    let body = with(&plain, &json!({"repeat_penalty": 1.8, "repeat_last_n": 256}));
    let wanted = served.post("/v1/chat/completions", &body);
    assert_ne!(text_of(&wanted), text_of(&served.post("/v1/chat/completions", &plain)));
    // With a window of 0, no earlier id is penalised.
    let off = with(&plain, &json!({"repeat_penalty": 1.8, "repeat_last_n": 0}));
    let unchanged = served.post("/v1/chat/completions", &off);
    assert_eq!(text_of(&unchanged), text_of(&served.post("/v1/chat/completions", &plain)));
    // The other name counts the whole text; Ollama's protocol has the first name.
    let whole = with(&plain, &json!({"repetition_penalty": 1.8}));
    assert_eq!(text_of(&served.post("/v1/chat/completions", &whole)), text_of(&wanted));
    let options = json!({"temperature": 0.7, "seed": 5, "num_predict": 40, "top_k": 0, "top_p": 1,
        "repeat_penalty": 1.8, "repeat_last_n": -1});
    let ollama = json!({"messages": chat(FOX), "stream": false, "options": options});
    thread::scope(|scope| {
        for server in [&served, &drafting, &drafting, &drafting] {
            let (body, ollama, plain, wanted) = (&body, &ollama, &plain, &wanted);
            scope.spawn(move || {
                let answer = server.post("/v1/chat/completions", body);
                assert_eq!(text_of(&answer), text_of(wanted));
                server.post("/v1/chat/completions", plain);
                assert_eq!(text_of(&server.post("/api/chat", ollama)), text_of(wanted));
            });
        }
    });
}

#[test]
fn min_p_gives_the_text_of_run_in_every_protocol_with_drafts_and_in_company() {
    let sampling = ["--chat", "--temp", "1.5", "--top-p", "1", "--seed", "5", "-n", "40"];
    let of_run = |more: &[&str]| run_alone(&[&sampling[..], more].concat(), &format!("{FOX}\n"));
    let wanted = of_run(&["--min-p", "0.2"]);
    assert_eq!(of_run(&["--min-p", "0.2", "--draft", "off"]), wanted);
    assert_ne!(of_run(&["--min-p", "0"]), wanted);
    // Only the most likely token is as likely as itself.
    assert_eq!(of_run(&["--min-p", "1"]), of_run(&["--top-k", "1"]));
    let served = Served::start(&["--streams", "3"]);
    let body = json!({"temperature": 1.5, "min_p": 0.2, "seed": 5, "max_tokens": 40});
    let options = json!({"temperature": 1.5, "top_p": 1, "top_k": 0, "min_p": 0.2, "seed": 5, "num_predict": 40});
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let chats = with(&body, &json!({"messages": chat(FOX)}));
                assert_eq!(text_of(&served.post("/v1/chat/completions", &chats)), wanted);
                let ollama = json!({"messages": chat(FOX), "stream": false, "options": options});
                assert_eq!(text_of(&served.post("/api/chat", &ollama)), wanted);
                let answer = served.post("/v1/responses", &with(&body, &json!({"input": FOX})));
                assert_eq!(answer["output"][0]["content"][0]["text"], wanted);
            });
        }
    });
}
