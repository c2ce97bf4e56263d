//! The surroundings in which transformers runs chat templates.

use std::error::Error as _;
use std::fmt;

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use serde_json::Value as Json;

use super::python;
use crate::format::{Date, excerpt};

/// Most instructions of a run; published templates take a few hundred for a message.
const FUEL: u64 = 2_000_000;
/// Name of the only template.
const NAME: &str = "chat";
/// Variable that holds the date.
pub(super) const TODAY: &str = "leap_today";

/// Why a template writes nothing.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The template refuses the conversation, in these words.
    Raised(String),
    /// The template is no program, or cannot go on.
    Failed(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Raised(what) => write!(f, "it refuses the conversation: {what}"),
            Fault::Failed(what) => write!(f, "it fails: {what}"),
        }
    }
}

/// Source of errors that `raise_exception` makes.
#[derive(Debug)]
struct Raised;

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("raised by the template")
    }
}

impl std::error::Error for Raised {}

/// `text` as it is compiled: with Python's line ends, and without the tag that marks what training learns from and writes
/// nothing.
pub(crate) fn source_of(text: &str) -> String {
    let marks = ["{% generation", "{%- generation", "{%+ generation"];
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let text = marks
        .into_iter()
        .fold(text, |text, mark| text.replace(mark, &mark.replace("generation", "if true")));
    text.replace("endgeneration", "endif")
}

/// The template `text`, compiled.
pub(super) fn compiled(text: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(python::emit);
    environment.add_filter("tojson", python::to_json);
    for name in ["length", "count"] {
        environment.add_filter(name, python::length);
    }
    environment.add_filter("string", |value: Value| python::shown(&value));
    environment.add_filter("trim", python::trim);
    environment.add_test("iterable", |value: Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    environment.add_function("strftime_now", strftime_now);
    environment.add_function("raise_exception", |what: String| {
        Err::<String, Error>(Error::new(ErrorKind::InvalidOperation, what).with_source(Raised))
    });
    environment.add_template_owned(NAME, text.to_owned())?;
    Ok(environment)
}

/// The output of a template.
pub(super) fn run(environment: &Environment<'_>, variables: Value) -> Result<String, Fault> {
    let written = environment.get_template(NAME).and_then(|template| template.render(variables));
    written.map_err(|e| fault(&e))
}

/// The meaning of an error of the template's language.
pub(super) fn fault(error: &Error) -> Fault {
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut source = error.source();
    let mut inner = error;
    while let Some(next) = source {
        if next.is::<Raised>() {
            return Fault::Raised(excerpt(&line(inner.detail().unwrap_or_default())));
        }
        inner = next.downcast_ref().unwrap_or(inner);
        source = next.source();
    }
    let at = error.line().map_or(String::new(), |line| format!(" (line {line})"));
    let detail = inner.detail().map_or(String::new(), |detail| format!(": {}", line(detail)));
    Fault::Failed(format!("{}{detail}{at}", inner.kind()))
}

fn strftime_now(state: &State<'_, '_>, format: &str) -> Result<String, Error> {
    let today = state.lookup(TODAY);
    let today = today.as_ref().and_then(Value::as_str).and_then(Date::from_iso);
    today.and_then(|today| today.format(format)).ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}) is not known"))
    })
}

/// `json` as a value of the template's language; its texts, except words and names of a form, are changed by `text`.
pub(super) fn value(json: &Json, key: &str, text: &dyn Fn(&str) -> String) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(is_true) => Value::from(*is_true),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or_default()),
        },
        Json::String(word) if is_of_form(key, word) => Value::from(word.as_str()),
        Json::String(other) => Value::from(text(other)),
        Json::Array(list) => list.iter().map(|json| value(json, key, text)).collect(),
        Json::Object(map) => {
            let name = |key: &str| if is_name(key) { key.to_owned() } else { text(key) };
            map.iter().map(|(key, json)| (name(key), value(json, key, text))).collect()
        }
    }
}

/// Whether a text is a role, or the type of something, which templates compare with words of their own.
fn is_of_form(key: &str, word: &str) -> bool {
    const ROLES: [&str; 7] =
        ["system", "user", "assistant", "tool", "developer", "function", "ipython"];
    const TYPES: [&str; 11] = [
        "text", "image", "function", "object", "array", "string", "number", "integer", "boolean",
        "null", "thinking",
    ];
    key == "role" && ROLES.contains(&word) || key == "type" && TYPES.contains(&word)
}

/// Whether a key can be a name in a program, and so spells no special token.
fn is_name(key: &str) -> bool {
    key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}
