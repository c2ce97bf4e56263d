use serde_json::{Value as Json, json};

use super::format::cut;
use super::*;

const NAMES: [&str; 6] = ["<s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|user|>"];

fn name_at(text: &str, at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    NAMES.iter().find(|name| rest.starts_with(**name)).map(|name| at + name.len())
}

fn template(text: &str) -> OwnTemplate {
    let [bos, eos] = ["<s>", ""].map(str::to_owned);
    OwnTemplate::new(text, [bos, eos], &name_at).unwrap()
}

fn talk(messages: Json) -> Talk {
    let messages = messages.as_array().unwrap().clone();
    let today = Date::new(2026, 3, 9).unwrap();
    Talk { messages, variables: Vec::new(), today, begins_answer: true, is_trial: false }
}

/// The text that `text` writes of a message "a", or its error.
fn written(text: &str) -> Result<String, String> {
    let talk = talk(json!([{"role": "user", "content": "a"}]));
    template(text).write(talk).map(|parts| joined(&parts))
}

/// Outputs are those of jinja2 with transformers' settings.
#[test]
fn templates_see_what_transformers_shows_them() {
    for (text, wanted) in [
        ("  {% if true %}\n x\n  {% endif %}\ny\n", " x\ny"),
        (
            "{{ [none, true, 1.0, 1e16, 'it\\'s', {'a': [1]}] }}",
            "[None, True, 1.0, 1e+16, \"it's\", {'a': [1]}]",
        ),
        ("{{ {'b': 'é<\"&', 'a': 1e-7} | tojson }}", "{\"b\": \"é<\\\"&\", \"a\": 1e-07}"),
        (
            "{{ {'b': [], 'a': {'c': 1}} | tojson(indent=2) }}",
            "{\n  \"b\": [],\n  \"a\": {\n    \"c\": 1\n  }\n}",
        ),
        (
            "{{ ['é', '🙂'] | tojson(ensure_ascii=True, separators=(',', ':')) }}",
            "[\"\\u00e9\",\"\\ud83d\\ude42\"]",
        ),
        ("{{ nothing | length }}{{ 'abc' is sequence }}", "0True"),
        (
            "{{ '\u{1c}a b c '.strip().rsplit(' ', 1) }}{{ 'a-b'.partition('-') }}",
            "['a b', 'c']['a', '-', 'b']",
        ),
        ("{{ strftime_now('%d %b %Y') }}", "09 Mar 2026"),
        ("{%- generation -%} x {%- endgeneration -%}!", "x!"),
        ("{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        (
            "{% set ns = namespace(x=1) %}{% for m in messages %}{% set ns.x = m.content %}{% endfor %}{{ ns.x }}",
            "a",
        ),
        ("{{ bos_token }}{{ eos_token is defined }}", "<s>False"),
    ] {
        assert_eq!(written(text).as_deref(), Ok(wanted), "{text}");
    }
}

#[test]
fn a_template_that_refuses_or_fails_says_why_in_one_line() {
    for (text, wanted) in [
        ("{{ raise_exception('Only\n users!') }}", "it refuses the conversation: Only users!"),
        (
            "{% macro no() %}{{ raise_exception('No.') }}{% endmacro %}{{ no() }}",
            "it refuses the conversation: No.",
        ),
        ("{{ messages.x.y }}", "it fails: undefined value"),
        ("{% for i in range(100000) %}{% for j in range(100) %}x{% endfor %}{% endfor %}", "fuel"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "it fails: "),
        ("{{ strftime_now('%Q') }}", "strftime_now"),
    ] {
        let error = written(text).unwrap_err();
        assert!(error.contains(wanted) && !error.contains('\n'), "{text}: {error}");
    }
    for text in ["{% if %}", "{{ '", &"x".repeat(TEMPLATE_BYTES_MAX + 1), &"{{[".repeat(9999)] {
        let error = check(text).unwrap_err();
        assert!(!error.contains('\n') && error.len() < 200, "{error}");
    }
}

/// Special tokens that `text` writes of the conversation, which are marked as such, and its whole text.
fn tokens(text: &str, messages: Json) -> (Vec<String>, String) {
    let parts = template(text).write(talk(messages)).unwrap();
    let mut found = Vec::new();
    for part in &parts {
        let Written::Markup(text) = part else { continue };
        let mut at = 0;
        while at < text.len() {
            let end = name_at(text, at);
            found.extend(end.map(|end| text[at..end].to_owned()));
            at = end.unwrap_or(at + 1);
        }
    }
    (found, joined(&parts))
}

/// The templates look into texts, cut them, change them and put them together.
#[test]
fn only_the_template_writes_special_tokens() {
    let thinks = "{% for m in messages %}{% set text = m.content %}{% if '</think>' in text %}\
        {% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}\
        {{ '<|im_start|>' ~ m.role ~ '\\n<think>\\n' ~ text.strip() ~ '</think>' }}<|im_end|>{% endfor %}";
    let split = "{% for m in messages %}<|im_start|>{{ m.content.split('<|im_end|>') | join('+') }}\
        {{ m.content | upper | trim }}{% if m.content.endswith('<|user|>') %}<|im_end|>{% endif %}{% endfor %}";
    let macros = "{% macro say(open, text) %}{{ open }}{{ text[:4] }}{{ text[4:] }}{% endmacro %}\
        {{ bos_token }}{% for m in messages %}{{ say('<|user|>', m.content) }}{% endfor %}";
    let glued =
        "{% for m in messages %}{{ '<|im_' ~ m.content ~ '|>' }}<|{{ m.role }}|>{% endfor %}";
    let json = "{% for m in messages %}<|user|>{{ m | tojson }}{{ '%s<|im_end|>' | format(m.content) }}{% endfor %}";
    let all = ["<|im_start|>", "<think>", "</think>", "<|im_end|>"];
    for (text, content, wanted, whole) in [
        (
            thinks,
            "<|im_end|>\n<think>x</think>\n\n y <|im_start|> ",
            &all[..],
            "<|im_start|>user\n<think>\ny <|im_start|></think><|im_end|>",
        ),
        (thinks, " a </thin", &all, "<|im_start|>user\n<think>\na </thin</think><|im_end|>"),
        (
            split,
            "a<|im_end|>b<|user|>",
            &["<|im_start|>", "<|im_end|>"],
            "<|im_start|>a+b<|user|>A<|IM_END|>B<|USER|><|im_end|>",
        ),
        (split, "<|im_start|>", &["<|im_start|>"], "<|im_start|><|im_start|><|IM_START|>"),
        (macros, "<|im_end|> \u{f0041}", &["<s>", "<|user|>"], "<s><|user|><|im_end|> \u{f0041}"),
        (glued, "end", &["<|user|>"], "<|im_end|><|user|>"),
        (
            json,
            "\"<|im_end|>\"\n",
            &["<|user|>", "<|im_end|>"],
            "<|user|>{\"role\": \"user\", \"content\": \"\\\"<|im_end|>\\\"\\n\"}\"<|im_end|>\"\n<|im_end|>",
        ),
    ] {
        let (found, written) = tokens(text, json!([{"role": "user", "content": content}]));
        assert_eq!(
            (found.as_slice(), written.as_str()),
            (&wanted.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()[..], whole),
            "{text}"
        );
    }
}

#[test]
fn a_token_in_a_variable_is_text_where_a_message_spells_it() {
    let variable = "{% set end = '</think>' %}{% for m in messages %}\
        {{ m.content.split(end)[-1] }}{{ end }}{% endfor %}";
    let of = |content: &str| {
        template(variable).write(talk(json!([{"role": "user", "content": content}])))
    };
    assert_eq!(of("a").unwrap().last(), Some(&Written::Markup("</think>".to_owned())));
    assert_eq!(of("a</think>b").unwrap(), [Written::Text("b</think>".to_owned())]);
    // A character that stands for a token in the masked template.
    assert!(of("a</think>\u{50000}").unwrap_err().contains("cannot be told"));
}

#[test]
fn a_few_conversations_show_what_a_template_does() {
    let today = Date::new(2026, 3, 9).unwrap();
    let plain =
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}";
    let facts = template(plain).facts(today).clone();
    assert!(facts.takes_system && facts.thoughts.is_none());
    assert!(joined(&facts.after_answer).starts_with("<|im_end|><|im_start|>"), "{facts:?}");
    let strict = [
        "{% if messages[0].role == 'system' %}{{ raise_exception('System?') }}{% endif %}</think>",
        plain,
    ];
    let facts = template(&strict.concat()).facts(today).clone();
    assert!(!facts.takes_system && facts.thoughts == Some(Thoughts::Tags(Tags::THINK)));
}

#[test]
fn an_answer_that_goes_on_is_the_end_of_the_text() {
    let parts = |text: &str| {
        vec![
            Written::Markup("<|user|>No. No".to_owned()),
            Written::Text(text.to_owned()),
            Written::Markup("<|im_end|>".to_owned()),
        ]
    };
    for (text, wanted) in [
        ("No.\u{f8ff}", Some("<|user|>No. NoNo.")),
        ("\u{f8ff}e\u{f8ff}", Some("<|user|>No. No\u{f8ff}e")),
        ("e", None),
    ] {
        let cut = cut(parts(text)).map(|parts| joined(&parts));
        assert_eq!(cut.as_deref(), wanted, "{text:?}");
    }
}

#[test]
fn keys_and_roles_never_become_special_tokens() {
    let text = "{% for m in messages %}<|im_start|>{{ '<|' ~ m.role ~ '|>' }}{{ m.calls | tojson }}<|im_end|>{% endfor %}";
    let message = json!([{"role": "im_end", "calls": {"<|im_end|>": 18446744073709551615_u64}}]);
    let (found, written) = tokens(text, message);
    assert_eq!(found, ["<|im_start|>", "<|im_end|>"]);
    assert_eq!(written, "<|im_start|><|im_end|>{\"<|im_end|>\": 18446744073709551615}<|im_end|>");
}

/// Tags as long and as deep as they may be are compiled or refused.
#[test]
fn deep_templates_end_no_process() {
    for (open, unit, close) in
        [("{{ a", "+a", " }}"), ("{{ a", ".b", " }}"), ("{{ ", "not ", "a }}")]
    {
        let n = (TAG_BYTES_MAX - open.len() - close.len()) / unit.len();
        let refused = |n| check(&[open, &unit.repeat(n), close].concat()).err();
        assert!(!refused(n).is_some_and(|why| why.contains("a tag of more")), "{unit}");
        assert!(refused(n + 1).is_some_and(|why| why.contains("a tag of more")), "{unit}");
    }
}

/// However many conversations show how a template writes, a slow one is off after the time of one.
#[test]
fn a_template_that_is_slow_to_learn_is_off() {
    let slow = template("{% for i in range(90000) %}{{ 'a slow one' }}{% endfor %}");
    *slow.trial_left.lock().unwrap() = Duration::from_nanos(1);
    let today = Date::new(2026, 3, 9).unwrap();
    assert!(!slow.facts(today).takes_system);
    assert_eq!(slow.trial_left(), Duration::ZERO);
    assert_eq!(slow.stopped().as_deref(), Some("it takes too much time"));
    let talk = talk(json!([{"role": "user", "content": "a"}]));
    assert_eq!(slow.write(talk).err().as_deref(), Some("it takes too much time"));
}

#[test]
fn runs_that_are_not_waited_for_count_until_they_are_over() {
    let late = Arc::new(AtomicUsize::new(0));
    let run = || Run { state: AtomicU8::new(WAITED_FOR), late: Arc::clone(&late) };
    let count = || late.load(Ordering::Relaxed);
    let (slow, quick) = (run(), run());
    quick.end();
    quick.give_up();
    assert_eq!(count(), 0);
    slow.give_up();
    assert_eq!(count(), 1);
    slow.end();
    assert_eq!(count(), 0);
}
