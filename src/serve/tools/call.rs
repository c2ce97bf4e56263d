//! Calls of tools.

use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::fields::Fields;
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
