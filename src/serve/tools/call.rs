//! Calls of tools.

use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::fields::Fields;
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
            Some(Value::String(text)) => serde_json::from_str(text).map_err(|_| bad())?,
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
        for wrong in [json!("{"), json!("[]"), json!("1"), json!([]), json!(1)] {
            let error = read(json!({"name": "f", "arguments": wrong})).unwrap_err();
            assert_eq!(error.field.as_deref(), Some("calls[0].function.arguments"), "{wrong}");
        }
    }
}
