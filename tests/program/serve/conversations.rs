//! Conversations in which user and model do not take turns.

use serde_json::{Value, json};

use super::forms::qwen3;
use super::{FOX, chat, text_of};
use crate::common::folder::Folder;
use crate::http::{Served, ask};

fn say(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

#[test]
fn an_answer_that_has_begun_is_gone_on_with() {
    let served = Served::start(&[]);
    let body = json!({"messages": chat(FOX), "temperature": 0, "max_tokens": 24, "logprobs": true});
    let whole = served.post("/v1/chat/completions", &body);
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let begun: String = tokens[..6].iter().map(|token| token["token"].as_str().unwrap()).collect();
    let rest = text_of(&whole).strip_prefix(&begun).unwrap();
    let messages = json!([say("user", FOX), say("assistant", &begun)]);
    let ask_for = |more: Value| {
        let mut body = json!({"messages": messages, "temperature": 0, "max_tokens": 18});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        served.post("/v1/chat/completions", &body)
    };
    for more in [
        json!({}),
        json!({"continue_final_message": true, "add_generation_prompt": false}),
        json!({"add_generation_prompt": false}),
        json!({"add_generation_prompt": true}),
    ] {
        assert_eq!(text_of(&ask_for(more.clone())), rest, "{more}");
    }
    // With this option, the message is a turn of its own, and the answer follows it.
    let behind = ask_for(json!({"continue_final_message": false}));
    let on = ask_for(json!({}));
    let n_ids = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(n_ids(&behind) > n_ids(&on), "{behind}");
    let prefix = json!([say("user", FOX), {"role": "assistant", "content": begun, "prefix": true}]);
    let body = json!({"messages": prefix, "stream": false, "options": {"temperature": 0, "num_predict": 18}});
    assert_eq!(text_of(&served.post("/api/chat", &body)), rest);
    let body = json!({"input": prefix, "temperature": 0, "max_output_tokens": 18});
    let answer = served.post("/v1/responses", &body);
    assert_eq!(answer["output"][0]["content"][0]["text"], rest);
    for field in ["continue_final_message", "add_generation_prompt"] {
        let body = json!({"messages": chat(FOX), field: field == "continue_final_message"});
        let (head, text) = ask(&served.address, "POST", "/v1/chat/completions", &body.to_string());
        let error: Value = serde_json::from_str(&text).unwrap();
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        assert_eq!(error["error"]["param"], field);
    }
}

#[test]
fn what_clients_send_back_of_an_earlier_turn_is_read() {
    let served = Served::start(&[]);
    let ids = |path: &str, name: &str, last: Value| {
        let mut body = json!({"max_tokens": 1, "max_output_tokens": 1, "temperature": 0});
        body[name] = json!([say("user", "hi"), say("assistant", "No."), last, say("user", "Why?")]);
        let usage = served.post(path, &body)["usage"].take();
        usage["prompt_tokens"].as_u64().or(usage["input_tokens"].as_u64()).unwrap()
    };
    for (path, name) in [("/v1/chat/completions", "messages"), ("/v1/responses", "input")] {
        let part = json!([{"type": "refusal", "refusal": "I must not."}]);
        let refused = ids(path, name, json!({"role": "assistant", "content": part}));
        assert_eq!(refused, ids(path, name, say("assistant", "I must not.")), "{path}");
        let nothing = ids(path, name, json!({"role": "user", "content": null}));
        assert_eq!(nothing, ids(path, name, json!({"role": "user"})), "{path}");
        assert_eq!(nothing, ids(path, name, say("user", "")), "{path}");
    }
}

#[test]
fn a_form_that_has_begun_is_gone_on_with() {
    let served = Served::start(&[]);
    let schema = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["name", "age"]});
    let form = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let ask_for = |begun: &str| {
        let messages = json!([say("user", FOX), say("assistant", begun)]);
        let body = json!({"messages": messages, "temperature": 0, "max_tokens": 60, "response_format": form});
        ask(&served.address, "POST", "/v1/chat/completions", &body.to_string())
    };
    for begun in ["{", "{\"na", "{\"name\": \"Ann\","] {
        let answer: Value = serde_json::from_str(&ask_for(begun).1).unwrap();
        let whole = format!("{begun}{}", text_of(&answer));
        let whole: Value = serde_json::from_str(&whole).unwrap_or_else(|e| panic!("{e}: {whole}"));
        assert!(whole["name"].is_string() && whole["age"].is_u64(), "{whole}");
    }
    let (head, error) = ask_for("Well, ");
    assert!(head.starts_with("HTTP/1.1 400 ") && error.contains("the last message"), "{error}");
}

/// Conversations that every template must accept.
fn check_conversations(served: &Served) {
    let thought =
        json!({"role": "assistant", "content": null, "reasoning_content": "They greet me."});
    let thinking = json!({"role": "assistant", "content": "", "thinking": "They greet me."});
    for messages in [
        json!([say("system", "You plan a small company. Begin.")]),
        json!([say("developer", "Begin."), say("system", "Now.")]),
        json!([
            say("user", "hi"),
            say("assistant", "Hello."),
            say("system", "Be brief."),
            say("user", "Now?")
        ]),
        json!([say("user", "hi"), say("system", "Be brief.")]),
        json!([say("assistant", "Welcome!"), say("user", "hi")]),
        json!([say("system", "Be brief."), say("assistant", "Welcome!"), say("user", "hi")]),
        json!([say("system", "Be brief."), say("assistant", "Welcome!")]),
        json!([say("assistant", "Once upon")]),
        json!([say("user", "hi"), thought, say("user", "continue")]),
        json!([say("user", "hi"), thinking, say("user", "continue")]),
        json!([say("user", "hi"), thought]),
    ] {
        let body = json!({"messages": messages, "max_tokens": 4, "temperature": 0});
        let answer = served.post("/v1/chat/completions", &body);
        assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() > 0, "{messages}");
        let body = json!({"messages": messages, "stream": false, "options": {"num_predict": 4}});
        assert_eq!(served.post("/api/chat", &body)["done"], true, "{messages}");
    }
}

#[test]
fn a_conversation_is_answered_with_any_first_and_last_role() {
    for template in ["llama3", "llama2", "mistral-v1", "zephyr", "none"] {
        check_conversations(&Served::start(&["--chat-template", template]));
    }
    let folder = Folder::new();
    check_conversations(&Served::start(&[&qwen3(&folder), "--ctx", "512"]));
}

#[test]
fn an_answer_that_has_begun_is_no_place_for_thoughts() {
    let folder = Folder::new();
    let served = Served::start(&[&qwen3(&folder), "--ctx", "512"]);
    let messages = json!([say("user", "hi"), say("assistant", "Yes")]);
    let body = json!({"messages": messages, "max_tokens": 12, "seed": 3});
    let answer = served.post("/v1/chat/completions", &body);
    assert!(answer["choices"][0]["message"]["reasoning_content"].is_null(), "{answer}");
    // A call without a result is refused.
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let called = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let body = json!({"messages": [say("user", "hi"), called]});
    let (head, text) = ask(&served.address, "POST", "/v1/chat/completions", &body.to_string());
    assert!(
        head.starts_with("HTTP/1.1 400 ") && text.contains("the result of the call is missing"),
        "{text}"
    );
}
