use super::super::super::divide::{Calls as Divided, Divider};
use super::super::super::fields::Fields;
use super::super::super::grammar::{GrammarFilter, Grammars};
use super::super::super::jobs::Answered;
use super::super::super::schema::closed;
use super::super::{Course, Tools, Words, an_object};
use super::*;
use crate::engine::{Outcome, StopReason, TokenFilter};
use crate::format::tokenizer::{TokenKind, TokenizerFile};
use crate::format::{ChatTemplate, Date};
use crate::tokenizer::{ChatOptions, ThoughtFilter};

/// Around what a template writes for calls.
const BEFORE: &str = "{% if tools %}<|tools|>{{ tools|tojson }}<|end|>{% endif %}\
    {% for m in messages %}<|{{ m.role }}|>{{ m.content }}";
const AFTER: &str = "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

/// Names of families, the part of their templates that writes calls, and the special tokens in it.
const FAMILIES: [(&str, &str, &[&str]); 9] = [
    (
        "Hermes",
        r#"{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments|tojson }}}
</tool_call>{% endfor %}"#,
        &[],
    ),
    (
        "Qwen 3.5",
        r#"{% for c in m.tool_calls or [] %}{{ "\n\n" if loop.first else "\n" }}<tool_call>
<function={{ c.function.name }}>
{% for k, v in c.function.arguments|items %}<parameter={{ k }}>
{{ v if v is string else v|tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}"#,
        &[],
    ),
    (
        "GLM 4.5",
        r#"{% for c in m.tool_calls or [] %}
<tool_call>{{ c.function.name }}
{% for k, v in c.function.arguments|items %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v if v is string else v|tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}"#,
        &[],
    ),
    (
        "DeepSeek 3.2",
        r#"{% if m.tool_calls %}

<｜DSML｜function_calls>
{% for c in m.tool_calls %}<｜DSML｜invoke name="{{ c.function.name }}">
{% for k, v in c.function.arguments|items %}<｜DSML｜parameter name="{{ k }}" string="{{ 'true' if v is string else 'false' }}">{{ v if v is string else v|tojson }}</｜DSML｜parameter>
{% endfor %}</｜DSML｜invoke>
{% endfor %}</｜DSML｜function_calls>{% endif %}"#,
        &["｜DSML｜"],
    ),
    (
        "Mistral",
        "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]\
         {{ c.function.arguments|tojson }}{% endfor %}",
        &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
    ),
    (
        "Mistral Nemo",
        "{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \
         \"arguments\": {{ c.function.arguments|tojson }}, \"id\": \"{{ c.id }}\"}\
         {{ ', ' if not loop.last }}{% endfor %}]{% endif %}",
        &["[TOOL_CALLS]"],
    ),
    (
        "Kimi K2",
        "{% if m.tool_calls %}<|calls|>{% for c in m.tool_calls %}<|call|>functions.{{ c.function.name }}:\
         {{ loop.index0 }}<|arguments|>{{ c.function.arguments|tojson }}<|over|>{% endfor %}<|all|>{% endif %}",
        &["<|calls|>", "<|call|>", "<|arguments|>", "<|over|>", "<|all|>"],
    ),
    (
        "Gemma 4",
        r#"{% macro one(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is mapping %}{{ "{" }}{% for k, w in v|items %}{{ k }}:{{ one(w) }}{{ "," if not loop.last }}{% endfor %}{{ "}" }}{% elif v is iterable %}[{% for w in v %}{{ one(w) }}{{ "," if not loop.last }}{% endfor %}]{% else %}{{ v|tojson }}{% endif %}{% endmacro %}{% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}{{ one(c.function.arguments) }}<tool_call|>{% endfor %}"#,
        &["<|tool_call>", "<tool_call|>", "<|\"|>"],
    ),
    ("LFM2", "", &["<|tool_call_start|>", "<|tool_call_end|>"]),
];

const HARMONY: &str = "{% if tools %}<|start|>developer<|message|>{{ tools|tojson }}<|end|>{% endif %}\
    {% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}<|start|>assistant to=functions.\
    {{ c.function.name }}<|channel|>commentary json<|message|>{{ c.function.arguments|tojson }}<|call|>{% endfor %}\
    {% else %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}\
    {% if add_generation_prompt %}<|start|>assistant{% endif %}";

/// A model's template, with what it knows of tools.
struct Own {
    tokenizer: Arc<Tokenizer>,
    chat: ChatFormat,
    words: Words,
}

fn tokenizer(template: &str, tokens: &[&str]) -> Tokenizer {
    let bytes = include_bytes!("../../../../models/demo.tokenizer.bin");
    let mut file = TokenizerFile::parse(bytes, None).unwrap();
    let names = ["<|tools|>", "<|user|>", "<|tool|>", "<|end|>", "<|assistant|>"];
    for name in names.iter().chain(tokens) {
        file.vocab.push(name.as_bytes(), 0.0, TokenKind::Control).unwrap();
    }
    let mut tokenizer = Tokenizer::new(file).unwrap();
    tokenizer.set_template(template.to_owned()).unwrap();
    tokenizer
}

fn format(tokenizer: &Tokenizer) -> ChatFormat {
    let options = ChatOptions::new(Date::new(2026, 3, 9).unwrap());
    ChatFormat::new(ChatTemplate::Own, tokenizer, options).unwrap()
}

fn learned(template: &str, tokens: &[&str]) -> Option<Own> {
    let tokenizer = Arc::new(tokenizer(template, tokens));
    let chat = format(&tokenizer);
    let words = Words::Own(Arc::new(OwnWords::learn(&chat, &tokenizer)?));
    Some(Own { tokenizer, chat, words })
}

fn families() -> Vec<(&'static str, Own)> {
    let one = |(name, calls, tokens): (&'static str, &str, &[&str])| {
        let own = learned(&[BEFORE, calls, AFTER].concat(), tokens);
        (name, own.unwrap_or_else(|| panic!("{name} is not learned")))
    };
    let channels = ["<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|constrain|>"];
    let harmony = ("gpt-oss", learned(HARMONY, &channels).expect("gpt-oss is not learned"));
    FAMILIES.into_iter().map(one).chain([harmony]).collect()
}

fn tools(choice: &str) -> Tools {
    let parameters = json!({"type": "object", "required": ["city", "days"], "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["metric", "old"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sure": {"type": ["boolean", "null"]}}});
    let body = json!({"tool_choice": choice, "tools": [
        {"type": "function", "function": {"name": "get_weather", "parameters": parameters}},
        {"type": "function", "function": {"name": "ping"}}]});
    Tools::read(&Fields::of(&body, "").unwrap()).unwrap().unwrap()
}

impl Own {
    fn own(&self) -> &OwnWords {
        match &self.words {
            Words::Own(own) => own,
            _ => unreachable!("it is the template's own"),
        }
    }

    /// An answer of the text `said` with calls of these arguments, as the template writes it.
    fn answer(&self, said: &str, arguments: &[Value]) -> String {
        let ids = ["c1c1c1c1c", "c2c2c2c2c"].iter();
        let call = |(arguments, id): (&Value, &&str)| ToolCall {
            id: (*id).to_owned(),
            name: "get_weather".to_owned(),
            arguments: arguments.to_string(),
        };
        let calls: Vec<ToolCall> = arguments.iter().zip(ids).map(call).collect();
        let question = json!({"role": "user", "content": "Weather?"});
        let write = |messages: &[Value], begins: bool| {
            let variables = [("add_generation_prompt".to_owned(), begins.into())];
            let ids = &mut Vec::new();
            let chat = &self.chat;
            chat.render_values(&self.tokenizer, messages, &variables, None, ids).unwrap().unwrap()
        };
        let prompt = write(std::slice::from_ref(&question), true);
        let whole = write(&[question, self.own().answer(said, &calls)], false);
        whole
            .strip_prefix(&prompt)
            .unwrap()
            .strip_suffix("<|end|>")
            .unwrap_or(&whole[prompt.len()..])
            .to_owned()
    }

    /// The text and calls of an answer that comes in two parts.
    fn divided(&self, parts: [&str; 2], reason: StopReason) -> (String, Vec<ToolCall>) {
        self.divided_for(&tools("auto"), parts, reason)
    }

    fn divided_for(
        &self,
        tools: &Tools,
        [first, second]: [&str; 2],
        reason: StopReason,
    ) -> (String, Vec<ToolCall>) {
        let thoughts = self.chat.thoughts().map(|kind| ThoughtFilter::new(kind, false));
        let mut divider = Divider { thoughts, calls: tools.calls(&self.words) };
        assert!(!matches!(divider.calls, Divided::None));
        let mut piece =
            divider.divide(&mut Answered { text: first.to_owned(), ..Answered::default() });
        let end = Some(Ok(Outcome { reason, ..Outcome::INTERRUPTED }));
        piece.append(divider.divide(&mut Answered {
            text: second.to_owned(),
            end,
            ..Answered::default()
        }));
        (piece.text, joined(&piece.calls))
    }

    fn filter(&self, choice: &str) -> GrammarFilter {
        self.filter_for(&tools(choice))
    }

    fn filter_for(&self, tools: &Tools) -> GrammarFilter {
        self.filtered(tools).unwrap()
    }

    fn filtered(&self, tools: &Tools) -> Result<GrammarFilter, String> {
        let stop_ids = self.chat.stop_ids();
        let course = Course { begins_thinking: false, tags: None, stop_ids };
        let place = (&self.words, &*self.tokenizer);
        tools.filter(place, &self.grammars(), (course, None))
    }

    fn grammars(&self) -> Grammars {
        let n = self.tokenizer.vocab_len();
        Grammars::new(Arc::clone(&self.tokenizer), n, self.chat.stop_ids()).unwrap()
    }

    /// Texts that random answers should have in them: those around calls and values, and `others`.
    fn hints(&self, others: &[&str]) -> Vec<Vec<u32>> {
        let marks = self.words.marks();
        let signs = ["\"", "'", "}", "]", ", "];
        let texts = marks.texts().chain(signs).chain(others.iter().copied());
        texts.map(|text| self.ids(text)).filter(|ids| !ids.is_empty()).collect()
    }

    /// The ids of a model's text, in which special tokens are named.
    fn ids(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut rest) = (Vec::new(), 0);
        for (name, id) in self.tokenizer.controls(text) {
            self.tokenizer.encode_continuing(&text[rest..name.start], &mut ids);
            ids.push(id);
            rest = name.end;
        }
        self.tokenizer.encode_continuing(&text[rest..], &mut ids);
        ids
    }

    /// Whether the filter allows the whole text.
    fn allows(&self, mut filter: GrammarFilter, text: &str) -> bool {
        self.ids(text).into_iter().all(|id| {
            let mut logits = vec![0.0; self.tokenizer.vocab_len()];
            filter.restrict(&mut logits).unwrap();
            logits[id as usize] == 0.0 && filter.take(id).is_ok()
        })
    }
}

const TEXT: &str = "Zürich \"<b>\" it's\n{1}, 漢";

#[test]
fn calls_are_read_as_the_template_writes_them_however_they_are_cut() {
    let arguments = [
        json!({"city": TEXT, "days": -2, "tags": ["a", "b, }]"], "sure": null}),
        json!({"city": "12", "days": 0, "unit": "old"}),
    ];
    for (name, own) in families() {
        // In gpt-oss an answer has one call.
        let n = if name == "gpt-oss" { 1 } else { 2 };
        let said = if name == "gpt-oss" { "" } else { "I look." };
        let text = own.answer(said, &arguments[..n]);
        for cut in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
            let (rest, calls) = own.divided([&text[..cut], &text[cut..]], StopReason::Complete);
            assert_eq!((rest.as_str(), calls.len()), (said, n), "{name}: {text:?} cut at {cut}");
            for (call, wanted) in calls.iter().zip(&arguments) {
                let read: Value = serde_json::from_str(&call.arguments).unwrap();
                assert_eq!(
                    (call.name.as_str(), &read),
                    ("get_weather", wanted),
                    "{name}: {text:?}"
                );
            }
        }
    }
}

#[test]
fn strings_of_json_and_of_python_may_spell_the_marks() {
    for (name, own) in families() {
        let marks = own.words.marks();
        let is_python = |pairs: &Pairs| matches!(pairs.values, Values::Python);
        let may_spell = match &marks.arguments {
            Arguments::Json => true,
            Arguments::Pairs(pairs) => is_python(pairs),
            // A message ends at its token.
            Arguments::Message => false,
        };
        if !may_spell {
            continue;
        }
        let spelled = format!("{{{} {} }}", marks.sign, marks.end);
        let arguments = json!({"city": spelled, "days": 1});
        let text = own.answer("I look.", std::slice::from_ref(&arguments));
        for cut in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
            let (rest, calls) = own.divided([&text[..cut], &text[cut..]], StopReason::Complete);
            assert_eq!((rest.as_str(), calls.len()), ("I look.", 1), "{name}: {text:?} at {cut}");
            let read: Value = serde_json::from_str(&calls[0].arguments).unwrap();
            assert_eq!(read, arguments, "{name}: {text:?} at {cut}");
        }
    }
}

#[test]
fn no_markup_of_a_call_that_is_cut_short_is_text() {
    for (name, own) in families() {
        let text = own.answer("", &[json!({"city": TEXT, "days": 3})]);
        let filter = || tools("required").calls(&own.words);
        for cut in (1..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let thoughts = own.chat.thoughts().map(|kind| ThoughtFilter::new(kind, false));
            let mut divider = Divider { thoughts, calls: filter() };
            let end = Some(Ok(Outcome { reason: StopReason::Length, ..Outcome::INTERRUPTED }));
            let piece = divider.divide(&mut Answered {
                text: text[..cut].to_owned(),
                end,
                ..Answered::default()
            });
            assert_eq!(piece.text, "", "{name}: {text:?} cut at {cut}");
        }
    }
}

#[test]
fn a_grammar_allows_what_the_template_writes_and_no_other_arguments() {
    for (name, own) in families() {
        for (arguments, is_allowed) in [
            (json!({"city": TEXT, "days": -2, "unit": "old", "tags": ["a"], "sure": true}), true),
            (json!({"city": "", "days": 0, "sure": null}), true),
            (json!({"city": "x", "days": "soon"}), false),
            (json!({"city": "x", "days": 1, "unit": "other"}), false),
            (json!({"city": "x", "days": 1, "more": 1}), false),
            (json!({"city": "x"}), false),
        ] {
            let text = own.answer("", std::slice::from_ref(&arguments));
            // Schemas of strings with a line break in their text are not what small models write.
            for choice in ["required", "auto"] {
                let text = text.trim_start_matches('\n');
                let is_so = own.allows(own.filter(choice), text);
                assert_eq!(is_so, is_allowed, "{name}, {choice}: {text:?}");
            }
        }
        assert!(own.allows(own.filter("auto"), "It is warm."), "{name}");
        assert!(!own.allows(own.filter("required"), "It is warm."), "{name}");
    }
}

#[test]
fn strings_have_the_lengths_that_a_schema_names() {
    let parameters = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "minLength": 2, "maxLength": 4}}});
    let body = json!({"tool_choice": "required", "tools": [
        {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]});
    let tools = Tools::read(&Fields::of(&body, "").unwrap()).unwrap().unwrap();
    for (name, own) in families() {
        for (city, is_allowed) in
            [("Rome", true), ("漢字", true), ("a\"b", true), ("R", false), ("Milan", false)]
        {
            let text = own.answer("", &[json!({"city": city})]);
            let is_so = own.allows(own.filter_for(&tools), text.trim_start_matches('\n'));
            assert_eq!(is_so, is_allowed, "{name}: {text:?}");
        }
    }
}

/// Tools of one function, whose arguments have this schema, and which has to be called.
fn one_tool(parameters: &Value) -> Tools {
    let body = json!({"tool_choice": "required", "tools": [
        {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]});
    Tools::read(&Fields::of(&body, "").unwrap()).unwrap().unwrap()
}

/// Schemas of arguments, those that fit, and others. Names stand in the order of the schema.
fn schemas() -> Vec<(Value, Value, Value)> {
    [of_texts(), of_objects()].concat()
}

fn of_texts() -> Vec<(Value, Value, Value)> {
    let string = |more: Value| {
        let mut schema = json!({"type": "string"});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"properties": {"a": schema}, "required": ["a"]})
    };
    vec![
        (
            string(json!({"pattern": "^[a-z]+-\\d{2}$"})),
            json!([{"a": "ab-12"}]),
            json!([{"a": "ab-1"}, {"a": "xab-12y"}]),
        ),
        (
            string(json!({"pattern": "b/\"c|^x", "minLength": 2})),
            json!([{"a": "ab/\"cd"}, {"a": "xy"}]),
            json!([{"a": "x"}, {"a": "b/c"}]),
        ),
        (
            string(json!({"format": "date"})),
            json!([{"a": "2026-02-28"}]),
            json!([{"a": "2026-02-30"}]),
        ),
        (
            json!({"properties": {"a": {"anyOf": [{"type": "string", "pattern": "^[a-z]{3}$"}, {"type": "null"}]}}}),
            json!([{"a": "abc"}, {"a": null}, {}]),
            json!([{"a": "ABC"}, {"a": 1}]),
        ),
    ]
}

fn of_objects() -> Vec<(Value, Value, Value)> {
    vec![
        (
            json!({"properties": {"a": {"type": "integer"}, "b": true, "c": {"type": "null"}},
                "minProperties": 1, "maxProperties": 2}),
            json!([{"a": 1}, {"b": "x"}, {"a": 1, "c": null}, {"b": 1, "c": null}]),
            json!([{}, {"a": 1, "b": 2, "c": null}]),
        ),
        (
            json!({"additionalProperties": {"type": "integer"}, "minProperties": 2, "maxProperties": 3}),
            json!([{"x": 1, "y": 2}, {"x": 1, "y": 2, "z": 3}]),
            json!([{"x": 1}, {"x": 1, "y": "b"}, {"p": 1, "q": 2, "r": 3, "s": 4}]),
        ),
        (
            json!({"$ref": "#/$defs/all", "$defs": {"all": {"properties": {"a": {"type": "integer", "minimum": 3}},
                "required": ["a"]}}}),
            json!([{"a": 3}]),
            json!([{"a": 2}, {}]),
        ),
        (
            json!({"anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]},
                {"properties": {"b": {"type": "string"}}, "required": ["b"]}]}),
            json!([{"a": 1}, {"b": "x"}]),
            json!([{}, {"a": 2}, {"a": 1, "b": "x"}]),
        ),
        (
            json!({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"a": {"maximum": 5, "minimum": -1000}, "b": {"type": "boolean"}}}]}),
            json!([{"a": 4}, {"a": 5, "b": true}]),
            json!([{"a": 6}, {"b": true}]),
        ),
        (
            json!({"properties": {"a": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 2}}}),
            json!([{"a": ["x"]}, {"a": ["y", "x"]}]),
            json!([{"a": []}, {"a": ["z"]}, {"a": ["x", "x", "x"]}]),
        ),
        (
            json!({"properties": {"a": {"type": "object", "required": ["k"], "properties": {
                "k": {"type": "string", "pattern": "^[0-9]+$"}, "n": {"$ref": "#/properties/a"}}}}}),
            json!([{"a": {"k": "1"}}, {"a": {"k": "1", "n": {"k": "2"}}}]),
            json!([{"a": {"k": "x"}}, {"a": {}}, {"a": {"k": "1", "n": {}}}]),
        ),
        (
            json!({"properties": {"a": {"prefixItems": [{"type": "integer"}, {"type": "boolean"}], "type": "array",
                "items": false, "minItems": 1}}}),
            json!([{"a": [1]}, {"a": [1, true]}]),
            json!([{"a": []}, {"a": [true]}, {"a": [1, true, 2]}]),
        ),
    ]
}

#[test]
fn arguments_fit_schemas_of_any_kind() {
    for (name, own) in families() {
        for (schema, good, bad) in schemas() {
            let tools = one_tool(&schema);
            let filter = match own.filtered(&tools) {
                Ok(filter) => filter,
                // Objects of JSON are not counted where some of their properties may be missing.
                Err(error) => {
                    assert!(error.contains("min/maxProperties"), "{name}, {schema}: {error}");
                    assert!(!matches!(own.words.marks().arguments, Arguments::Pairs(_)), "{name}");
                    continue;
                }
            };
            let good = good.as_array().unwrap().iter().map(|arguments| (arguments, true));
            let bad = bad.as_array().unwrap().iter().map(|arguments| (arguments, false));
            for (arguments, is_allowed) in good.chain(bad) {
                let text = own.answer("", std::slice::from_ref(arguments));
                let is_so = own.allows(filter.clone(), text.trim_start_matches('\n'));
                assert_eq!(is_so, is_allowed, "{name}, {schema}: {text:?}");
                if is_allowed {
                    let (_, calls) = own.divided_for(&tools, ["", &text], StopReason::Complete);
                    let read: Value = serde_json::from_str(&calls[0].arguments).unwrap();
                    assert_eq!(read, *arguments, "{name}, {schema}: {text:?}");
                }
            }
        }
    }
}

/// All families refuse the same schemas, and name the place.
#[test]
fn schemas_that_no_grammar_follows_are_refused_with_their_place() {
    for (schema, wanted) in [
        (json!({"properties": {"a": {"type": "string", "pattern": "(?!x)y"}}}), "properties.a: "),
        (
            json!({"properties": {"a": {"type": "array", "uniqueItems": true}}}),
            "properties.a: Unimplemented keys: [\"uniqueItems\"]",
        ),
        (
            json!({"properties": {"a": {"type": "string", "not": {"const": "x"}}}}),
            "properties.a: Unimplemented keys: [\"not\"]",
        ),
        (json!({"properties": {"a": {"$ref": "#/$defs/no"}}}), "properties.a: "),
        (
            json!({"properties": {"a": {"type": "string", "pattern": "^a{3}$", "maxLength": 2}}, "required": ["a"]}),
            "properties.a: ",
        ),
    ] {
        for (name, own) in families() {
            let error = own.filtered(&one_tool(&schema)).expect_err(name);
            assert!(error.contains(wanted), "{name}, {schema}: {error}");
        }
    }
}

/// A text that a filter allows: random tokens, and often those of `hints`. `None` if it does not end in time.
fn drawn(
    own: &Own,
    mut filter: GrammarFilter,
    hints: &[Vec<u32>],
    state: &mut u64,
) -> Option<String> {
    const TOKENS_MAX: usize = 300;
    let mut next = |n: usize| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 33) as usize % n
    };
    let (mut ids, mut queue) = (Vec::new(), Vec::new());
    while ids.len() < TOKENS_MAX {
        let mut logits = vec![0.0; own.tokenizer.vocab_len()];
        filter.restrict(&mut logits).unwrap();
        if queue.is_empty() && next(2) == 0 {
            queue.extend(hints[next(hints.len())].iter().rev());
        }
        let allowed = |id: &u32| logits[*id as usize] == 0.0;
        let id = queue.pop().filter(allowed).unwrap_or_else(|| {
            queue.clear();
            let start = next(logits.len()) as u32;
            let all = (start..logits.len() as u32).chain(0..start);
            all.into_iter().find(allowed).expect("something may come")
        });
        ids.extend((!own.chat.stop_ids().contains(&id)).then_some(id));
        if filter.take(id).unwrap() {
            return Some(own.tokenizer.decode(&ids, true));
        }
    }
    None
}

/// How many texts are drawn: `few`, or as many as the variable `LEAP_ROUNDS` says.
fn rounds(few: u64) -> u64 {
    std::env::var("LEAP_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

/// Most of these texts are no calls that a model would write. All that is sent of them has to be valid JSON.
#[test]
fn any_text_that_the_grammar_allows_is_calls_with_valid_arguments() {
    // 10,000 for each family were run by hand.
    let n_rounds = rounds(12);
    for (name, own) in families() {
        let hints = own.hints(&["old", "metric", "true", "7"]);
        let mut n_whole = 0;
        let filter = own.filter("required");
        for round in 0..n_rounds {
            let filter = filter.clone();
            let Some(text) = drawn(&own, filter, &hints, &mut (round * 7919 + 1)) else { continue };
            n_whole += 1;
            let at =
                text.char_indices().map(|(at, _)| at).nth(text.chars().count() / 2).unwrap_or(0);
            let (rest, calls) = own.divided([&text[..at], &text[at..]], StopReason::Complete);
            assert!(rest.trim().is_empty() && !calls.is_empty(), "{name}: {text:?} has {rest:?}");
            for call in calls {
                let read: Value = serde_json::from_str(&call.arguments)
                    .unwrap_or_else(|e| panic!("{name}: {text:?}: {e}"));
                let is_right = match call.name.as_str() {
                    "get_weather" => read["city"].is_string() && read["days"].is_number(),
                    name => name == "ping" && read == json!({}),
                };
                assert!(is_right, "{name}: {text:?} is {}({read})", call.name);
            }
        }
        assert!(n_whole > 0, "{name}: no text ends");
    }
}

/// Arguments that a grammar of calls allows are among those that the grammar of JSON allows.
#[test]
fn any_arguments_that_the_grammar_allows_fit_their_schema_as_json() {
    let n_rounds = rounds(2);
    for (name, own) in families() {
        let hints = own.hints(&["a", "b", "ab-12", "x", "1", "true", "null", "None", "2026-02-28"]);
        for (schema, ..) in schemas() {
            let closed = closed(an_object(schema.clone()));
            let json = own.grammars().schema(&closed, own.chat.stop_ids());
            let tools = one_tool(&schema);
            let (Ok(json), Ok(filter)) = (json, own.filtered(&tools)) else { continue };
            for round in 0..n_rounds {
                let state = &mut (round * 7919 + 11);
                let Some(text) = drawn(&own, filter.clone(), &hints, state) else { continue };
                let (_, calls) = own.divided_for(&tools, ["", &text], StopReason::Complete);
                for call in calls {
                    let fits = own.allows(json.clone(), &call.arguments);
                    assert!(fits, "{name}, {schema}: {text:?} is {}", call.arguments);
                }
            }
        }
    }
}

/// Names and texts of a client that spell tokens, marks and ids are text, and schemas hold wherever they are defined.
#[test]
fn odd_names_and_schemas_are_kept() {
    const ROUNDS: u64 = 8;
    let tool_name = "has space<|end|>\u{1}";
    let parameters = json!({"type": "object", "required": ["x>y=:", "colour", "some", "any"],
        "$defs": {"Colour": {"enum": ["red", "blue <|end|>"]}},
        "properties": {
            "x>y=:": {"type": "boolean"},
            "colour": {"$ref": "#/$defs/Colour"},
            "some": {"anyOf": [{"enum": ["\u{1}", "it's"]}, {"type": "null"}]},
            "any": {"enum": [1, null, "12"]}}});
    let function = json!({"name": tool_name, "parameters": parameters});
    let body = json!({"tool_choice": "required", "parallel_tool_calls": false,
        "tools": [{"type": "function", "function": function}]});
    let tools = Tools::read(&Fields::of(&body, "").unwrap()).unwrap().unwrap();
    for (name, own) in families() {
        // A header of gpt-oss's ends a function's name at a space.
        if name == "gpt-oss" {
            let error = own.filtered(&tools).unwrap_err();
            assert!(error.contains("has space"), "{error}");
            continue;
        }
        let hints = own.hints(&["red", "true", "null", "None", "12", "it's"]);
        let filter = own.filter_for(&tools);
        let mut n_whole = 0;
        for round in 0..ROUNDS {
            let state = &mut (round * 104_729 + 3);
            let Some(text) = drawn(&own, filter.clone(), &hints, state) else { continue };
            n_whole += 1;
            let (rest, calls) = own.divided_for(&tools, ["", &text], StopReason::Complete);
            assert!(rest.trim().is_empty() && calls.len() == 1, "{name}: {text:?} has {rest:?}");
            let read: Value = serde_json::from_str(&calls[0].arguments).unwrap();
            let has = |key: &str, all: Value| all.as_array().unwrap().contains(&read[key]);
            let is_right = read["x>y=:"].is_boolean()
                && has("colour", json!(["red", "blue <|end|>"]))
                && has("some", json!(["\u{1}", "it's", null]))
                && has("any", json!([1, null, "12"]));
            assert!(is_right && calls[0].name == tool_name, "{name}: {text:?} is {read}");
        }
        assert!(n_whole > 0, "{name}: no text ends");
    }
}

/// Texts of templates, joined at random.
#[test]
fn any_marks_that_are_learned_find_calls_however_a_text_is_cut() {
    const PARTS: [&str; 24] = [
        "\n",
        "\n",
        "\n",
        "\n",
        "\t",
        "\r",
        "<call>",
        "</call>",
        "{\"name\": \"",
        "\", \"arguments\": ",
        "}",
        "=",
        "<arg=",
        ">",
        "</arg>",
        "fnq",
        "aq",
        "'",
        ", ",
        " ",
        "<",
        "é",
        "7",
        "[",
    ];
    // 100,000 were run by hand.
    let n_rounds = rounds(4000);
    let tokenizer = tokenizer("", &[]);
    let (mut state, mut n_learned) = (1_u64, 0);
    for kind in 0..n_rounds {
        let mut bytes = vec![kind as u8];
        for _ in 0..24 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes.extend(PARTS[(state >> 33) as usize % PARTS.len()].as_bytes());
        }
        n_learned += usize::from(trial::learn(&bytes, &tokenizer).is_some());
    }
    assert!(n_learned > 0);
}
