//! Answers in a required form, calls of tools, and log probabilities of tokens.

use std::fs;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use super::{FOX, chat, text_of};
use crate::common::folder::Folder;
use crate::common::{leap, quick};
use crate::http::{Served, ask};

/// A model that knows tools. Its weights are random, so it says nothing meaningful by itself.
pub(super) fn qwen3(folder: &Folder) -> String {
    let model = folder.join("qwen3.bin");
    let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen3-tiny");
    let mut command = leap();
    command.arg("export").arg(&model).arg("--meta-llama").arg(checkpoint);
    assert!(command.output().unwrap().status.success());
    model.to_str().unwrap().to_owned()
}

fn person() -> Value {
    json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "maxItems": 2, "items": {"enum": ["brave", "shy"]}},
    }})
}

fn is_person(text: &str) -> bool {
    let Ok(Value::Object(person)) = serde_json::from_str(text) else { return false };
    let tags = person["tags"].as_array();
    person.len() == 3
        && person["name"].as_str().is_some_and(|name| name.chars().count() <= 12)
        && person["age"].as_u64().is_some_and(|age| age <= 150)
        && tags.is_some_and(|tags| {
            tags.len() <= 2 && tags.iter().all(|tag| *tag == "brave" || *tag == "shy")
        })
}

#[test]
fn a_schema_is_followed_beside_other_requests() {
    let served = Served::start(&["--streams", "3", "--ctx", "512"]);
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "person", "schema": person()}});
    let plain = json!({"messages": chat(FOX), "temperature": 0, "max_tokens": 30});
    let wanted = served.post("/v1/chat/completions", &plain);
    let seeds = if quick() { 1..3 } else { 1..7 };
    thread::scope(|scope| {
        for seed in seeds {
            let (served, format, plain, wanted) = (&served, &format, &plain, &wanted);
            scope.spawn(move || {
                let body = json!({"messages": chat(FOX), "seed": seed, "response_format": format, "n": 2});
                let first = served.post("/v1/chat/completions", &body);
                for index in 0..2 {
                    let choice = &first["choices"][index];
                    let text = choice["message"]["content"].as_str().unwrap();
                    assert!(is_person(text) && choice["finish_reason"] == "stop", "{seed}: {choice}");
                }
                let again = served.post("/v1/chat/completions", &body);
                assert_eq!(again["choices"], first["choices"], "{seed}");
                let body = json!({"messages": chat(FOX), "format": person(), "stream": false, "options": {"seed": seed}});
                let answer = served.post("/api/chat", &body);
                assert!(is_person(text_of(&answer)), "{seed}: {answer}");
                // Answers without a form have the same text as alone.
                let answer = served.post("/v1/chat/completions", plain);
                assert_eq!(text_of(&answer), text_of(wanted));
            });
        }
    });
}

#[test]
fn a_form_of_a_model_that_thinks_keeps_the_tags_that_it_speaks_of() {
    let folder = Folder::new();
    let served = Served::start(&[&qwen3(&folder), "--ctx", "512"]);
    let tags = "x <think> y </think> z";
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["a"],
        "properties": {"a": {"enum": [tags]}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    for effort in ["none", "high"] {
        let body = json!({"messages": chat("Tags?"), "response_format": format, "reasoning_effort": effort});
        let answer = served.post("/v1/chat/completions", &body);
        let form: Value = serde_json::from_str(text_of(&answer)).unwrap();
        assert_eq!(form, json!({"a": tags}), "{answer}");
        assert!(answer["choices"][0]["message"]["reasoning_content"].is_null(), "{answer}");
    }
    // Arguments of calls have no thoughts either.
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    let body = json!({"messages": chat("Tags?"), "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false});
    let answer = served.post("/v1/chat/completions", &body);
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"];
    let arguments: Value = serde_json::from_str(call.as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"a": tags}), "{answer}");
}

#[test]
fn schemas_that_cannot_be_followed_are_refused_alone() {
    let served = Served::start(&[]);
    // 2^60 ways to write the same.
    let mut defs = json!({"0": {"type": "string"}});
    for depth in 1..60 {
        let below = json!({"$ref": format!("#/$defs/{}", depth - 1)});
        let pair = json!({"type": "array", "prefixItems": [below, below]});
        defs[depth.to_string()] = json!({"anyOf": [pair, {"allOf": [pair, pair]}]});
    }
    let nested = json!({"$ref": "#/$defs/59", "$defs": defs});
    let many: Vec<Value> = (0..3000).map(|i| json!({"const": format!("{i:0>300}")})).collect();
    for schema in [
        json!({"type": "strange"}),
        json!({"$ref": "https://example.org/schema"}),
        json!({"$ref": "#/$defs/none"}),
        json!({"type": "string", "pattern": "("}),
        json!({"type": "string", "minLength": 5, "maxLength": 2}),
        json!({"type": "array", "uniqueItems": true}),
        // So many states would take all memory.
        json!({"type": "integer", "multipleOf": 9_999_991}),
        json!([1]),
        nested,
        json!({"allOf": many}),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let body =
            json!({"messages": chat(FOX), "max_tokens": 4, "response_format": format}).to_string();
        let (head, text) = ask(&served.address, "POST", "/v1/chat/completions", &body);
        let shown: String = body.chars().take(300).collect();
        assert!(head.starts_with("HTTP/1.1 400 "), "{shown}: {head}\n{text}");
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(error["error"]["param"], "response_format", "{shown}: {error}");
    }
    for (body, wanted) in [
        (json!({"response_format": "json"}), "response_format"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.schema"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
            "response_format.json_schema.schema",
        ),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"1": 101}}), "logit_bias"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
    ] {
        let mut whole = json!({"messages": chat(FOX)});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let (_, text) = ask(&served.address, "POST", "/v1/chat/completions", &whole.to_string());
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(error["error"]["param"], wanted, "{error}");
    }
    let body = json!({"prompt": "Once", "max_tokens": 2});
    assert_eq!(served.post("/v1/completions", &body)["usage"]["completion_tokens"], 2);
}

#[test]
fn what_is_told_of_tokens_is_what_they_were_chosen_by() {
    let served = Served::start(&[]);
    let body = json!({"messages": chat(FOX), "temperature": 0, "max_tokens": 12, "logprobs": true, "top_logprobs": 3});
    let whole = served.post("/v1/chat/completions", &body);
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(tokens.len(), 12);
    let joined: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(joined, text_of(&whole));
    for token in &tokens {
        let likeliest = token["top_logprobs"].as_array().unwrap();
        let odds = |token: &Value| token["logprob"].as_f64().unwrap();
        assert_eq!((likeliest.len(), &likeliest[0]["token"]), (3, &token["token"]));
        assert!(likeliest.is_sorted_by(|a, b| odds(a) >= odds(b)), "{token}");
        let sum: f64 = likeliest.iter().map(|token| odds(token).exp()).sum();
        assert!(sum > 0.0 && sum < 1.0 + 1e-5, "{sum}");
    }
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let (_, text) = ask(&served.address, "POST", "/v1/chat/completions", &streamed.to_string());
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.filter_map(|event| serde_json::from_str(event).ok()).collect();
    let told =
        events.iter().filter_map(|event| event.pointer("/choices/0/logprobs/content")?.as_array());
    assert_eq!(told.flatten().cloned().collect::<Vec<Value>>(), tokens);
    let options = json!({"temperature": 0, "num_predict": 12});
    let ollama =
        json!({"messages": chat(FOX), "options": options, "logprobs": true, "top_logprobs": 3});
    let (_, text) = ask(&served.address, "POST", "/api/chat", &ollama.to_string());
    let objects = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let told = objects.filter_map(|object| object["logprobs"].as_array().cloned());
    assert_eq!(told.flatten().collect::<Vec<Value>>(), tokens);
    // Forbidden tokens are not chosen, and their probabilities are reported unchanged.
    let first = tokens[0]["token"].as_str().unwrap();
    let ids = served.post("/tokenize", &json!({"content": first, "add_special": false}));
    let id = ids["tokens"][0].as_u64().unwrap();
    let mut biased = body;
    biased["logit_bias"] = json!({id.to_string(): -100});
    let other = served.post("/v1/chat/completions", &biased);
    let token = &other["choices"][0]["logprobs"]["content"][0];
    assert_eq!(token["top_logprobs"][0], tokens[0]["top_logprobs"][0]);
    assert_ne!(token["token"], tokens[0]["token"]);
    let text = served.post(
        "/v1/completions",
        &json!({"prompt": "Once", "temperature": 0, "max_tokens": 4, "logprobs": 2}),
    );
    let odds = &text["choices"][0]["logprobs"];
    assert_eq!(odds["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(odds["top_logprobs"][3].as_object().unwrap().len(), 2);
}

/// The model of [`qwen3`] with the special tokens of Mistral's template.
fn mistral(folder: &Folder) -> String {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen3-tiny");
    let checkpoint = folder.path().join("mistral");
    fs::create_dir(&checkpoint).unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(from.join(file), checkpoint.join(file)).unwrap();
    }
    let mut tokenizer = fs::read_to_string(from.join("tokenizer.json")).unwrap();
    for (name, other) in [
        ("object_ref_start", "[INST]"),
        ("object_ref_end", "[/INST]"),
        ("box_start", "[AVAILABLE_TOOLS]"),
        ("box_end", "[/AVAILABLE_TOOLS]"),
        ("quad_start", "[TOOL_CALLS]"),
        ("quad_end", "[TOOL_RESULTS]"),
        ("vision_start", "[/TOOL_RESULTS]"),
    ] {
        tokenizer = tokenizer.replace(&format!("<|{name}|>"), other);
    }
    fs::write(checkpoint.join("tokenizer.json"), tokenizer).unwrap();
    let model = folder.join("mistral.bin");
    let mut command = leap();
    command.arg("export").arg(&model).arg("--meta-llama").arg(checkpoint);
    assert!(command.output().unwrap().status.success());
    model.to_str().unwrap().to_owned()
}

/// The events of the streamed answer to the same request.
fn streamed(served: &Served, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let (_, text) = ask(&served.address, "POST", "/v1/chat/completions", &body.to_string());
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    events.filter_map(|event| serde_json::from_str(event).ok()).collect()
}

/// The calls that a stream's events add up to.
fn streamed_calls(events: &[Value]) -> Vec<Value> {
    let mut calls: Vec<Value> = Vec::new();
    for event in events {
        let Some(delta) = event.pointer("/choices/0/delta/tool_calls/0") else { continue };
        let at = delta["index"].as_u64().unwrap() as usize;
        if delta["id"].is_string() {
            assert_eq!((at, &delta["function"]["arguments"]), (calls.len(), &json!("")));
            let mut call = delta.clone();
            call.as_object_mut().unwrap().remove("index");
            calls.push(call);
        } else {
            let more = delta["function"]["arguments"].as_str().unwrap();
            let before = calls[at]["function"]["arguments"].as_str().unwrap().to_owned();
            calls[at]["function"]["arguments"] = json!(before + more);
        }
    }
    calls
}

pub(super) fn check_call(call: &Value) {
    let arguments: Value = match &call["function"]["arguments"] {
        Value::String(text) => serde_json::from_str(text).unwrap(),
        object => object.clone(),
    };
    match call["function"]["name"].as_str().unwrap() {
        "lamp" => assert!(arguments["on"].is_boolean(), "{call}"),
        "person" => assert!(is_person(&arguments.to_string()), "{call}"),
        name => panic!("{name}"),
    }
}

pub(super) fn tools() -> Value {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}});
    let lamp = json!({"type": "object", "additionalProperties": false, "required": ["on"],
        "properties": {"on": {"type": "boolean"}}});
    json!([tool("lamp", lamp), tool("person", person())])
}

/// Checks that a server whose model knows tools calls them, streams the same calls, and accepts their results.
fn check_tools(served: &Served, tools: &Value) {
    for (seed, choice) in
        [(1, json!("required")), (2, json!({"type": "function", "function": {"name": "person"}}))]
    {
        let body = json!({"messages": chat("Light!"), "tools": tools, "tool_choice": choice, "seed": seed, "parallel_tool_calls": false});
        let answer = served.post("/v1/chat/completions", &body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert!(calls.len() == 1 && choice["message"]["content"].is_null(), "{answer}");
        check_call(&calls[0]);
        let events = streamed(served, &body);
        let n_pieces = events
            .iter()
            .filter(|event| event.pointer("/choices/0/delta/tool_calls").is_some())
            .count();
        assert!(n_pieces > 3, "arguments come in one piece");
        assert_eq!(streamed_calls(&events)[0]["function"], calls[0]["function"]);
        // Calls in Ollama's protocol come whole.
        let ollama = json!({"messages": chat("Light!"), "tools": tools, "options": {"seed": seed, "num_predict": 1}});
        let (head, text) = ask(&served.address, "POST", "/api/chat", &ollama.to_string());
        assert!(head.starts_with("HTTP/1.1 200 "), "{text}");
        // The call's result is sent back.
        let messages = json!([{"role": "user", "content": "Light!"}, choice["message"],
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": "done"}]);
        let body = json!({"messages": messages, "tools": tools, "max_tokens": 3});
        let (head, text) = ask(&served.address, "POST", "/v1/chat/completions", &body.to_string());
        assert!(head.starts_with("HTTP/1.1 200 "), "{text}");
    }
    check_cut_call(served, tools);
}

/// Checks that a conversation goes on behind a call that `max_tokens` cut short.
fn check_cut_call(served: &Served, tools: &Value) {
    let is_cut = |message: &Value| {
        let arguments = message["tool_calls"][0]["function"]["arguments"].as_str();
        arguments
            .is_some_and(|text| !text.is_empty() && serde_json::from_str::<Value>(text).is_err())
    };
    let cut = (5..60).step_by(3).find_map(|n| {
        let body = json!({"messages": chat("Light!"), "tools": tools, "tool_choice": "required", "seed": 1, "max_tokens": n});
        let message = served.post("/v1/chat/completions", &body)["choices"][0]["message"].take();
        is_cut(&message).then_some(message)
    });
    let cut = cut.expect("some number of tokens ends within a call");
    let result = json!({"role": "tool", "tool_call_id": cut["tool_calls"][0]["id"], "content": "it was cut"});
    for next in [json!({"role": "user", "content": "Go on."}), result] {
        let messages = json!([{"role": "user", "content": "Light!"}, cut, next]);
        let body = json!({"messages": messages, "tools": tools, "max_tokens": 3});
        let (head, text) = ask(&served.address, "POST", "/v1/chat/completions", &body.to_string());
        assert!(head.starts_with("HTTP/1.1 200 "), "{text}");
    }
}

#[test]
fn tools_are_called_as_hermes_wants() {
    let folder = Folder::new();
    let served = Served::start(&[&qwen3(&folder), "--ctx", "2048"]);
    let shown = served.post("/api/show", &json!({}));
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    check_tools(&served, &tools());
}

#[test]
fn tools_are_called_as_llama3_and_mistral_want() {
    check_tools(&Served::start(&[]), &json!([tools()[1]]));
    let folder = Folder::new();
    let served =
        Served::start(&[&mistral(&folder), "--chat-template", "mistral-v3", "--ctx", "2048"]);
    check_tools(&served, &tools());
    // Other templates have no text for tools.
    let served = Served::start(&["--chat-template", "none"]);
    let body = json!({"messages": chat("Light!"), "tools": tools()}).to_string();
    let (head, text) = ask(&served.address, "POST", "/v1/chat/completions", &body);
    assert!(head.starts_with("HTTP/1.1 400 ") && text.contains(r#""param":"tools""#), "{text}");
}

/// A template that writes arguments one by one, as Qwen 3.5's does, and thoughts where it gets any.
const OWN: &str = r"{% if tools %}<|im_start|>system
{{ tools|tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
<function={{ c.function.name }}>
{% for k, v in c.function.arguments|items %}<parameter={{ k }}>
{{ v if v is string else v|tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is false %}<think>

</think>

{% else %}<think>
{{ hint or '' }}{% endif %}{% endif %}";

/// A server whose model has the template [`OWN`].
fn own_served(folder: &Folder) -> Served {
    own_served_with(folder, &[])
}

fn own_served_with(folder: &Folder, args: &[&str]) -> Served {
    let template = folder.join("own.jinja");
    fs::write(&template, OWN).unwrap();
    let template = template.to_str().unwrap();
    let own = [&qwen3(folder), "--chat-template", template, "--ctx", "2048"];
    Served::start(&[&own, args].concat())
}

#[test]
fn tools_are_called_as_the_checkpoints_own_template_wants() {
    let folder = Folder::new();
    let served = own_served(&folder);
    let shown = served.post("/api/show", &json!({}));
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    let schema = json!({"type": "object", "required": ["on", "room"], "properties": {
        "on": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall <b>"]},
        "level": {"type": "integer", "minimum": 0, "maximum": 9}}});
    let tools = json!([tool("lamp", schema)]);
    let is_lamp = |arguments: &Value| {
        let rooms = ["kitchen", "hall <b>"];
        arguments["on"].is_boolean()
            && rooms.iter().any(|room| arguments["room"] == *room)
            && arguments.get("level").is_none_or(|level| level.as_u64().is_some_and(|n| n < 10))
    };
    for seed in 1..5 {
        let body = json!({"messages": chat("Light!"), "tools": tools, "tool_choice": "required",
            "parallel_tool_calls": false, "seed": seed, "max_tokens": 200});
        let answer = served.post("/v1/chat/completions", &body);
        let message = &answer["choices"][0]["message"];
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        assert!(message["content"].is_null(), "{answer}");
        let calls = message["tool_calls"].as_array().unwrap();
        for call in calls {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            assert!(is_lamp(&serde_json::from_str(arguments).unwrap()), "{answer}");
        }
        let events = streamed(&served, &body);
        let again = streamed_calls(&events);
        assert_eq!(again.len(), calls.len());
        for (again, call) in again.iter().zip(calls) {
            assert_eq!(again["function"], call["function"]);
        }
        // The result goes back, with what the model thought and said.
        let mut message = message.clone();
        message["reasoning_content"] = json!("A lamp.");
        let messages = json!([{"role": "user", "content": "Light!"}, message,
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": "done"}]);
        for body in [
            json!({"messages": messages, "tools": tools, "max_tokens": 3}),
            json!({"messages": messages, "max_tokens": 3}),
        ] {
            served.post("/v1/chat/completions", &body);
        }
    }
}

#[test]
fn thoughts_end_after_a_number_of_tokens_and_their_words_are_the_same_until_then() {
    let folder = Folder::new();
    let served = own_served(&folder);
    for seed in 1..4 {
        let mut body =
            json!({"messages": chat("Why?"), "seed": seed, "max_tokens": 40, "temperature": 0.5});
        let free = served.post("/v1/chat/completions", &body);
        body["max_thinking_tokens"] = json!(6);
        let answer = served.post("/v1/chat/completions", &body);
        let [free, limited] = [free, answer].map(|answer| answer["choices"][0]["message"].clone());
        let thought = limited["reasoning_content"].as_str().unwrap().trim_end();
        let whole = free["reasoning_content"].as_str().unwrap();
        assert!(whole.starts_with(thought), "{limited} {free}");
        assert!(!thought.is_empty() && thought.len() < whole.len(), "{limited} {free}");
        assert_ne!(limited["content"], "", "{limited}");
    }
}

/// A request's own number counts, and -1 stands for none.
#[test]
fn a_server_limits_thoughts_of_requests_that_do_not() {
    let folder = Folder::new();
    let served = own_served_with(&folder, &["--think-tokens", "6"]);
    let thought = |limit: Value| {
        let body = json!({"messages": chat("Why?"), "seed": 1, "max_tokens": 40,
            "temperature": 0.5, "max_thinking_tokens": limit});
        let answer = served.post("/v1/chat/completions", &body);
        answer["choices"][0]["message"]["reasoning_content"].as_str().unwrap().trim().len()
    };
    let [usual, same, shorter, free] = [Value::Null, json!(6), json!(2), json!(-1)].map(thought);
    assert!(shorter < usual && usual == same && usual < free, "{shorter} {usual} {same} {free}");
}

#[test]
fn a_client_sets_variables_of_the_checkpoints_own_template() {
    let folder = Folder::new();
    let served = own_served(&folder);
    let count = |kwargs: Value| {
        let body = json!({"messages": chat("Hi"), "max_tokens": 1, "chat_template_kwargs": kwargs});
        served.post("/v1/chat/completions", &body)["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert!(count(json!({"hint": "First count to ten. "})) > count(json!({})));
    let body = json!({"messages": chat("Hi"), "chat_template_kwargs": {"messages": []}});
    let (head, text) = ask(&served.address, "POST", "/v1/chat/completions", &body.to_string());
    assert!(head.starts_with("HTTP/1.1 400 "), "{text}");
    assert!(text.contains("chat_template_kwargs.messages"), "{text}");
}

/// A schema with a lookahead, which cannot be enforced.
fn mail() -> Value {
    json!({"type": "object", "required": ["to", "urgent"], "properties": {
        "to": {"type": "string", "pattern": "^(?!x)[a-z]+$", "maxLength": 8},
        "tags": {"type": "array", "uniqueItems": true, "maxItems": 1, "items": {"enum": ["a", "b"]}},
        "urgent": {"type": "boolean"}}})
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

#[test]
fn a_parameter_that_cannot_be_enforced_leaves_the_tool_usable() {
    let folder = Folder::new();
    let served = Served::start(&[&qwen3(&folder), "--ctx", "2048"]);
    let ping = tool("ping", json!({"type": "object", "properties": {}}));
    let strange = tool("strange", json!({"type": "strange"}));
    let tools = json!([ping, tool("mail", mail()), strange]);
    for seed in 1..4 {
        let body = json!({"messages": chat("hi"), "tools": tools, "max_tokens": 4, "seed": seed});
        served.post("/v1/chat/completions", &body);
        let body = json!({"messages": chat("hi"), "tools": tools, "stream": false, "options": {"num_predict": 4}});
        served.post("/api/chat", &body);
    }
    // If a call is required, the error gives tool, field and cause.
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "mail"}})] {
        let body = json!({"messages": chat("hi"), "tools": [ping, tool("mail", mail())], "tool_choice": choice});
        let (head, text) = ask(&served.address, "POST", "/v1/chat/completions", &body.to_string());
        let error: Value = serde_json::from_str(&text).unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        for part in ["\"mail\"", "properties.to", "look-around"] {
            assert!(message.contains(part), "{message}");
        }
    }
    let schema = json!({"type": "object", "properties": {"tags": {"items": {"pattern": "(?=x)"}}}});
    let format = json!({"type": "json_schema", "schema": schema});
    let body = json!({"messages": chat("hi"), "response_format": format}).to_string();
    let (_, text) = ask(&served.address, "POST", "/v1/chat/completions", &body);
    assert!(text.contains("properties.tags.items: look-around"), "{text}");
}

#[test]
fn a_form_and_tools_go_together() {
    let folder = Folder::new();
    let served = Served::start(&[&qwen3(&folder), "--ctx", "2048"]);
    let format = json!({"type": "json_schema", "json_schema": {"name": "p", "schema": person()}});
    for seed in 1..7 {
        let body = json!({"messages": chat("Light!"), "tools": tools(), "response_format": format,
            "seed": seed, "temperature": 1.5, "parallel_tool_calls": false});
        let answer = served.post("/v1/chat/completions", &body);
        let message = &answer["choices"][0]["message"];
        match message["tool_calls"].as_array() {
            Some(calls) => check_call(&calls[0]),
            None => assert!(is_person(text_of(&answer)), "{answer}"),
        }
        let body = json!({"messages": chat("Light!"), "tools": tools(), "format": person(), "stream": false,
            "options": {"seed": seed}});
        let answer = served.post("/api/chat", &body);
        let is_called = answer["message"]["tool_calls"].is_array();
        assert!(is_called || is_person(text_of(&answer)), "{answer}");
    }
    // A required call has the form of a call.
    let body = json!({"messages": chat("Light!"), "tools": tools(), "response_format": format,
        "tool_choice": "required", "seed": 1, "parallel_tool_calls": false});
    let answer = served.post("/v1/chat/completions", &body);
    check_call(&answer["choices"][0]["message"]["tool_calls"][0]);
}

#[test]
fn forms_have_the_keys_that_their_schema_names() {
    let served = Served::start(&["--streams", "3"]);
    let schema = json!({"type": "object", "required": ["name", "friend"], "properties": {
        "name": {"type": "string", "maxLength": 12},
        "friend": {"$ref": "#/$defs/friend"}},
        "$defs": {"friend": {"properties": {"is_brave": {"type": "boolean"}}, "required": ["is_brave"],
            "type": "object"}}});
    let formats = [
        json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}),
        json!({"type": "json_schema", "schema": schema}),
        json!({"type": "json_schema", "name": "x", "strict": false, "schema": schema}),
        json!({"type": "json_object", "schema": schema}),
    ];
    let is_whole = |text: &str| {
        let form: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(form.as_object().unwrap().len(), 2, "{form}");
        assert!(form["friend"].as_object().unwrap().len() == 1, "{form}");
    };
    for seed in 1..6 {
        let wishes = json!({"messages": chat(FOX), "max_tokens": 300, "seed": seed});
        for format in &formats {
            let mut body = wishes.clone();
            body["response_format"] = format.clone();
            is_whole(text_of(&served.post("/v1/chat/completions", &body)));
        }
        let mut body = wishes.clone();
        body["json_schema"] = schema.clone();
        is_whole(text_of(&served.post("/v1/chat/completions", &body)));
        let body = json!({"messages": chat(FOX), "format": schema, "stream": false, "options": {"seed": seed}});
        is_whole(text_of(&served.post("/api/chat", &body)));
    }
}

#[test]
fn keywords_without_effect_and_many_keys_are_followed() {
    let served = Served::start(&[]);
    let any = json!({"type": "string"});
    let many: serde_json::Map<String, Value> =
        (0..600).map(|i| (format!("k{i}"), any.clone())).collect();
    for schema in [
        json!({"type": "object", "required": ["a"], "uniqueItems": false, "propertyNames": any,
            "dependentRequired": {}, "unevaluatedProperties": true, "if": {}, "format": null,
            "properties": {"a": {"type": "string", "maxLength": 2.0, "minLength": 1, "pattern": null}}}),
        json!({"type": "object", "properties": many, "required": ["k599"]}),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let body = json!({"messages": chat(FOX), "temperature": 0, "max_tokens": 400, "response_format": format});
        let answer = served.post("/v1/chat/completions", &body);
        let text = text_of(&answer);
        assert!(text.trim_start().starts_with('{'), "{answer}");
        let is_cut = answer["choices"][0]["finish_reason"] == "length";
        assert!(is_cut || serde_json::from_str::<Value>(text).is_ok(), "{answer}");
    }
}
