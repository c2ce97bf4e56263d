//! OpenAI's protocol of responses: whole and as events, with texts, forms and calls of tools.

use serde_json::{Value, json};

use super::forms::{check_call, tools};
use super::{FOX, chat, text_of};
use crate::http::{Served, ask};

/// The events of a stream; each must be of the type that its name says.
fn events(served: &Served, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let (_, text) = ask(&served.address, "POST", "/v1/responses", &body.to_string());
    let events = text.split_terminator("\n\n").enumerate().map(|(number, event)| {
        let (name, event) = event.split_once('\n').unwrap();
        let event: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), event["type"].as_str());
        assert_eq!(event["sequence_number"], number);
        event
    });
    events.collect()
}

/// The joined deltas of the events with this name.
fn deltas(events: &[Value], name: &str) -> String {
    let named = events.iter().filter(|event| event["type"] == name);
    named.map(|event| event["delta"].as_str().unwrap()).collect()
}

#[test]
fn a_response_is_what_its_events_add_up_to() {
    let served = Served::start(&[]);
    let wanted = json!({"messages": chat(FOX), "temperature": 0, "max_tokens": 20});
    let wanted = served.post("/v1/chat/completions", &wanted);
    let body = json!({"input": FOX, "temperature": 0, "max_output_tokens": 20, "store": true});
    let whole = served.post("/v1/responses", &body);
    let text = &whole["output"][0]["content"][0]["text"];
    assert_eq!(text, text_of(&wanted));
    assert_eq!((&whole["status"], &whole["store"]), (&json!("incomplete"), &json!(false)));
    assert_eq!(whole["usage"]["output_tokens"], 20);
    let events = events(&served, &body);
    assert_eq!(deltas(&events, "response.output_text.delta"), text.as_str().unwrap());
    let last = &events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["output"][0]["content"], whole["output"][0]["content"]);
    // Items give the same text as messages.
    let input = json!([{"role": "user", "content": [{"type": "input_text", "text": FOX}]}]);
    let body = json!({"input": input, "temperature": 0, "max_output_tokens": 20});
    assert_eq!(&served.post("/v1/responses", &body)["output"][0]["content"][0]["text"], text);
}

#[test]
fn responses_have_forms_and_call_tools() {
    let served = Served::start(&[]);
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["a"],
        "properties": {"a": {"type": "boolean"}}});
    let format = json!({"type": "json_schema", "name": "x", "schema": schema, "strict": true});
    let body = json!({"input": "x", "instructions": "y", "text": {"format": format}});
    let answer = served.post("/v1/responses", &body);
    let text = answer["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).unwrap()["a"].is_boolean(), "{answer}");

    // Only the first tool, because the demo model's context is short.
    let tools: Vec<Value> = tools().as_array().unwrap()[..1]
        .iter()
        .map(|tool| {
            let mut flat = tool["function"].clone();
            flat["type"] = json!("function");
            flat
        })
        .collect();
    let body = json!({"input": "Light!", "tools": tools, "seed": 1,
        "tool_choice": {"type": "function", "name": "lamp"}});
    let answer = served.post("/v1/responses", &body);
    let call = &answer["output"][0];
    assert_eq!((&call["type"], &answer["status"]), (&json!("function_call"), &json!("completed")));
    check_call(&json!({"function": call}));
    let events = events(&served, &body);
    let arguments = deltas(&events, "response.function_call_arguments.delta");
    assert_eq!(arguments, call["arguments"].as_str().unwrap());
    let input = json!([{"role": "user", "content": "Light!"}, call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}]);
    let body = json!({"input": input, "tools": tools, "max_output_tokens": 3});
    assert_eq!(served.post("/v1/responses", &body)["object"], "response");
    for (body, field) in [
        (json!({"input": "x", "previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"input": "x", "background": true}), "background"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].type"),
        (json!({"input": []}), "input"),
        (json!({"input": "x", "tools": [{"type": "function"}]}), "tools[0].name"),
        (json!({"input": "x", "tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"input": "x", "text": {"format": {"type": "xml"}}}), "text.format.type"),
    ] {
        let (head, text) = ask(&served.address, "POST", "/v1/responses", &body.to_string());
        let error: Value = serde_json::from_str(&text).unwrap();
        assert!(head.starts_with("HTTP/1.1 400 "), "{body}: {head}");
        assert_eq!(error["error"]["param"], field, "{error}");
    }
}

#[test]
fn a_call_that_is_cut_is_incomplete_before_anybody_reads_its_arguments() {
    let served = Served::start(&[]);
    let mut tool = tools()[1]["function"].clone();
    tool["type"] = json!("function");
    let mut body =
        json!({"input": "Light!", "tools": [tool], "tool_choice": "required", "seed": 1});
    let n = served.post("/v1/responses", &body)["usage"]["output_tokens"].as_u64().unwrap();
    body["max_output_tokens"] = json!(n - 4);
    let whole = served.post("/v1/responses", &body);
    let call = &whole["output"][0];
    assert_eq!((&call["type"], &call["status"]), (&json!("function_call"), &json!("incomplete")));
    let events = events(&served, &body);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert!(!kinds.contains(&"response.function_call_arguments.done"), "{kinds:?}");
    let done = events.iter().find(|event| event["type"] == "response.output_item.done").unwrap();
    assert_eq!(done["item"]["status"], "incomplete");
    assert_eq!(kinds.last(), Some(&"response.incomplete"));
}

#[test]
fn fields_of_other_protocols_count_or_are_refused() {
    let served = Served::start(&[]);
    let body = json!({"input": FOX, "temperature": 0, "max_output_tokens": 24});
    let text = |more: Value| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = served.post("/v1/responses", &body);
        answer["output"][0]["content"][0]["text"].as_str().unwrap().to_owned()
    };
    let whole = text(json!({"n": 1}));
    let stop = whole.split_whitespace().nth(4).unwrap();
    assert_eq!(text(json!({"stop": stop})), whole.split_once(stop).unwrap().0);
    assert_eq!(text(json!({"temperature": 1.5, "top_k": 1})), whole);
    assert_eq!(text(json!({"max_output_tokens": null, "max_tokens": 24})), whole);
    let body = json!({"input": FOX, "n": 2}).to_string();
    let (head, error) = ask(&served.address, "POST", "/v1/responses", &body);
    assert!(head.starts_with("HTTP/1.1 400 ") && error.contains("\"param\":\"n\""), "{error}");
}
