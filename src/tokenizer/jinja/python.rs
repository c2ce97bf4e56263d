//! Values as Python shows them, and methods of its strings.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value as Json;

use crate::format::json;
use crate::tokenizer::script::is_white;

/// Most levels of values in values: JSON of requests has fewer.
const LEVELS_MAX: usize = 200;

/// Writes a value as Python's `str` does.
pub(super) fn emit(out: &mut Output<'_>, _: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&shown(value)),
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "no room for the text"))
}

/// A value as Python's `str` shows it.
pub(super) fn shown(value: &Value) -> String {
    let mut out = String::new();
    match value.as_str() {
        Some(text) => out.push_str(text),
        None => show(&mut out, value, 0),
    }
    out
}

fn show(out: &mut String, value: &Value, level: usize) {
    if level > LEVELS_MAX {
        return out.push_str("...");
    }
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&json::python_float(f64::try_from(value.clone()).unwrap_or(f64::NAN)));
        }
        ValueKind::String => show_text(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (at, element) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                show(out, &element, level + 1);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                show(out, &key, level + 1);
                out.push_str(": ");
                show(out, &value.get_item(&key).unwrap_or_default(), level + 1);
            }
            out.push('}');
        }
        _ => {
            // Writing to a string cannot fail.
            let _ = write!(out, "{value}");
        }
    }
}

/// Writes a text as Python's `repr` does.
fn show_text(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// The length of a value; an undefined one has none.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { minijinja::filters::length(value) }
}

/// JSON as transformers spells it: with spaces, and with every character that JSON need not escape.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let is_ascii: Option<bool> = options.get("ensure_ascii")?;
    let is_sorted: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let mut value = json_of(value, 0)?;
    if is_sorted == Some(true) {
        value.sort_all_objects();
    }
    let separators = separators.as_deref().and_then(|all| Some([all.first()?, all.get(1)?]));
    let text = json::python(&value, indent, separators.map(|both| both.map(String::as_str)));
    Ok(if is_ascii == Some(true) { json::ascii(&text) } else { text })
}

fn json_of(value: &Value, level: usize) -> Result<Json, Error> {
    let bad = |what| Error::new(ErrorKind::InvalidOperation, what);
    if level > LEVELS_MAX {
        return Err(bad("values in values are too many for JSON"));
    }
    Ok(match value.kind() {
        ValueKind::None => Json::Null,
        ValueKind::Bool => value.is_true().into(),
        ValueKind::Number => match (value.as_i64(), u64::try_from(value.clone())) {
            (Some(number), _) if value.is_integer() => number.into(),
            (None, Ok(number)) if value.is_integer() => number.into(),
            _ => f64::try_from(value.clone()).unwrap_or(f64::NAN).into(),
        },
        ValueKind::String => value.as_str().unwrap_or_default().into(),
        ValueKind::Seq | ValueKind::Iterable => value
            .try_iter()?
            .map(|element| json_of(&element, level + 1))
            .collect::<Result<_, _>>()?,
        ValueKind::Map => {
            let members = value.try_iter()?.map(|key| {
                Ok::<_, Error>((shown(&key), json_of(&value.get_item(&key)?, level + 1)?))
            });
            Json::Object(members.collect::<Result<_, _>>()?)
        }
        _ => return Err(bad("there is no JSON of an undefined value")),
    })
}

/// A text without white space around it, or without any of `characters`.
pub(super) fn trim(text: String, characters: Option<String>) -> String {
    match characters {
        None => text.trim_matches(is_white).to_owned(),
        Some(characters) => text.trim_matches(|c| characters.contains(c)).to_owned(),
    }
}

/// Calls a method that only Python's values have.
pub(super) fn method(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, name, args);
    };
    match (name, args) {
        ("strip", []) => Ok(text.trim_matches(is_white).into()),
        ("lstrip", []) => Ok(text.trim_start_matches(is_white).into()),
        ("rstrip", []) => Ok(text.trim_end_matches(is_white).into()),
        // The library's own never ends.
        ("count", [sign]) if sign.as_str() == Some("") => Ok((text.chars().count() + 1).into()),
        ("removeprefix", _) => {
            let (prefix,): (String,) = from_args(args)?;
            Ok(text.strip_prefix(&*prefix).unwrap_or(text).into())
        }
        ("removesuffix", _) => {
            let (suffix,): (String,) = from_args(args)?;
            Ok(text.strip_suffix(&*suffix).unwrap_or(text).into())
        }
        ("partition", _) => {
            let (sign,): (String,) = from_args(args)?;
            let (before, after) = text.split_once(&*sign).unwrap_or((text, ""));
            let sign = if before.len() < text.len() { &*sign } else { "" };
            Ok([before, sign, after].map(Value::from).into_iter().collect())
        }
        ("rsplit", _) => {
            let (sign, most): (String, Option<i64>) = from_args(args)?;
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(text.len());
            let pieces = text.rsplitn(most.saturating_add(1), &*sign).map(Value::from);
            let pieces: Vec<Value> = pieces.collect();
            Ok(pieces.into_iter().rev().collect())
        }
        _ => unknown_method_callback(state, value, name, args),
    }
}
