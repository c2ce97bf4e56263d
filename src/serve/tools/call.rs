//! Calls of tools.

use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::finite;
use super::marks::{Arguments, ID, Marks};
use super::values::python_arguments;
use crate::format::json;

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct ToolCall {
    /// The client's id of the call; empty if it gave none.
    pub(in crate::serve) id: String,
    pub(in crate::serve) name: String,
    /// A JSON object, as text.
    pub(in crate::serve) arguments: String,
}

impl ToolCall {
    /// Reads an element of a message's `tool_calls`: OpenAI's arguments are text, Ollama's an object.
    pub(in crate::serve) fn read(value: &Value, path: &str) -> Result<ToolCall, ApiError> {
        let id = Fields::of(value, path)?.string("id")?.unwrap_or_default();
        let function = Fields::of(&value["function"], &format!("{path}.function"))?;
        ToolCall::read_function(&function, id)
    }

    /// Reads `name` and `arguments`.
    pub(in crate::serve) fn read_function(
        function: &Fields<'_>,
        id: &str,
    ) -> Result<ToolCall, ApiError> {
        let name = function.string("name")?.ok_or_else(|| function.bad("name", "is missing"))?;
        let bad = || function.bad("arguments", "is no JSON object");
        let arguments: Value = match function.get("arguments") {
            // Clients write nothing, or `null`, for a tool without parameters.
            Some(Value::String(text)) if matches!(text.trim(), "" | "null") => json!({}),
            Some(Value::String(text)) => object_of(text).ok_or_else(bad)?,
            Some(value) => value.clone(),
            None => json!({}),
        };
        let (id, name) = (id.to_owned(), name.to_owned());
        match arguments.is_object() {
            true => Ok(ToolCall { id, name, arguments: json::spaced(&arguments) }),
            false => Err(bad()),
        }
    }
}

/// The JSON object that `text` is, or begins: an answer that is cut short may end within a call. Its open parts are then
/// closed, and a field without a value is left out.
fn object_of(text: &str) -> Option<Value> {
    let begun = Begun::of(text);
    let texts = [text.to_owned(), begun.closed(text), begun.without_last(text)];
    texts.iter().find_map(|text| finite::read(text)).filter(Value::is_object)
}

/// The open parts at the end of the beginning of a JSON text.
#[derive(Default)]
struct Begun {
    /// The closing brackets that are missing, that of the outermost value first.
    brackets: Vec<char>,
    /// End of the last text, if it is open: the start of an escape that is not complete, or the end of all.
    text_end: Option<usize>,
    /// End of all but the last element, and the brackets that are missing behind it.
    element: Option<(usize, usize)>,
}

impl Begun {
    fn of(text: &str) -> Begun {
        let mut begun = Begun::default();
        let mut chars = text.char_indices();
        while let Some((at, c)) = chars.next() {
            let n_open = begun.brackets.len();
            match (c, begun.text_end.is_some()) {
                ('"', is_open) => begun.text_end = (!is_open).then_some(text.len()),
                ('\\', true) => {
                    let len = if text[at + 1..].starts_with('u') { 6 } else { 2 };
                    begun.text_end = Some(if at + len > text.len() { at } else { text.len() });
                    chars.next();
                }
                (_, true) => {}
                ('{' | '[', _) => {
                    begun.brackets.push(if c == '{' { '}' } else { ']' });
                    begun.element = Some((at + 1, n_open + 1));
                }
                ('}' | ']', _) => {
                    begun.brackets.pop();
                }
                (',', _) => begun.element = Some((at, n_open)),
                _ => {}
            }
        }
        begun
    }

    /// The text with all that is open closed.
    fn closed(&self, text: &str) -> String {
        let (end, quote) = self.text_end.map_or((text.len(), ""), |end| (end, "\""));
        let brackets: String = self.brackets.iter().rev().collect();
        [&text[..end], quote, &brackets].concat()
    }

    /// The text without its last element, and with all that is then open closed.
    fn without_last(&self, text: &str) -> String {
        let (end, n_open) = self.element.unwrap_or_default();
        let brackets: String = self.brackets.iter().take(n_open).rev().collect();
        [&text[..end], &brackets].concat()
    }
}

/// Calls as the model writes them, with arguments in JSON or in Python's words.
pub(super) fn written(marks: &Marks, calls: &[ToolCall]) -> String {
    let mut text = format!("{}{}", marks.sign, marks.head);
    for (index, call) in calls.iter().enumerate() {
        if index > 0 {
            text += marks.next.as_deref().unwrap_or_default();
        }
        let name =
            if marks.quotes_names { json!(call.name).to_string() } else { call.name.clone() };
        let arguments = match marks.arguments {
            Arguments::Json | Arguments::Message => call.arguments.clone(),
            Arguments::Pairs(_) => python_arguments(&call.arguments),
        };
        text += &format!("{name}{}{arguments}", marks.middle);
        text += &marks.tail.as_deref().unwrap_or_default().replace(ID, &call.id);
    }
    text + &marks.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_are_empty_are_an_object_without_fields() {
        let read = |function: Value| ToolCall::read(&json!({"function": function}), "calls[0]");
        for empty in [json!(""), json!(" \n"), json!("null"), json!("{}"), json!({}), json!(null)] {
            let call = read(json!({"name": "f", "arguments": empty})).unwrap();
            assert_eq!(call.arguments, "{}", "{empty}");
        }
        assert_eq!(read(json!({"name": "f"})).unwrap().arguments, "{}");
        for wrong in [json!("[]"), json!("1"), json!("city=Paris"), json!([]), json!(1)] {
            let error = read(json!({"name": "f", "arguments": wrong})).unwrap_err();
            assert_eq!(error.field.as_deref(), Some("calls[0].function.arguments"), "{wrong}");
        }
    }

    #[test]
    fn arguments_that_were_cut_short_are_the_object_that_they_begin() {
        for (begun, wanted) in [
            ("{", "{}"),
            ("{\"ci", "{}"),
            ("{\"city\"", "{}"),
            ("{\"city\": ", "{}"),
            ("{\"city\": \"Par", r#"{"city": "Par"}"#),
            ("{\"city\": \"Par\\", r#"{"city": "Par"}"#),
            ("{\"city\": \"a\\\"", r#"{"city": "a\""}"#),
            ("{\"city\": \"a\\\\", r#"{"city": "a\\"}"#),
            ("{\"city\": \"\\u00e", r#"{"city": ""}"#),
            ("{\"city\": \"\\u00e9", r#"{"city": "é"}"#),
            ("{\"city\": \"ü\\u00", r#"{"city": "ü"}"#),
            ("{\"a\": 12", r#"{"a": 12}"#),
            ("{\"a\": 12, \"b\": tru", r#"{"a": 12}"#),
            ("{\"a\": 12, \"b\": -", r#"{"a": 12}"#),
            ("{\"a\": {\"b\": [1, {\"c\": \"[,{", r#"{"a": {"b": [1, {"c": "[,{"}]}}"#),
            ("{\"a\": {\"b\": [1, {\"c\": ", r#"{"a": {"b": [1, {}]}}"#),
            ("{\"a\": [1, ", r#"{"a": [1]}"#),
            ("{\"a\": -1e999, \"b\": \"x", r#"{"a": -1.7976931348623157e308, "b": "x"}"#),
            ("{\"a\": \"\\ud83d", "{}"),
        ] {
            let function = json!({"name": "f", "arguments": begun});
            let call = ToolCall::read(&json!({"function": function}), "calls[0]").unwrap();
            let value: Value = serde_json::from_str(&call.arguments).unwrap();
            assert_eq!(value, serde_json::from_str::<Value>(wanted).unwrap(), "{begun}");
        }
    }

    /// An answer may be cut behind any of its characters.
    #[test]
    fn every_beginning_of_an_object_is_an_object() {
        let whole = r#"{"a": "x\n\"{,ü\u00e9\ud83d\ude00", "b": [1.5e-3, [], {"c": {}}, null], "d": {"e": [true, "]"]}, "f": ""}"#;
        serde_json::from_str::<Value>(whole).unwrap();
        for (at, _) in whole.char_indices().skip(1) {
            assert!(object_of(&whole[..at]).is_some(), "{}", &whole[..at]);
        }
        for wrong in ["]", "}", "{]", "{\"a\" 1", "x{", "\"", "\\", "{\"a\": x"] {
            let _ = object_of(wrong);
        }
        assert_eq!(object_of("{\"a\" 1}"), None);
        assert_eq!(object_of("{} {"), None);
    }
}
