//! Typed reads of JSON fields; each error names file and field.

use std::path::Path;

use serde_json::{Map, Value};

use super::settings::Fields;
use crate::export::error::ExportError;
use crate::format::excerpt;

/// Most JSON values of a configuration: some have lists with a value for every layer.
pub(super) const VALUES_MAX: usize = 1 << 16;

/// A JSON object of a configuration file. A field that is null counts as absent.
#[derive(Clone, Copy)]
pub(super) struct JsonFields<'a> {
    path: &'a Path,
    object: &'a Map<String, Value>,
    /// Values of sizes that are absent.
    defaults: &'static [(&'static str, usize)],
    /// Other names of fields that are absent.
    aliases: &'static [(&'static str, &'static str)],
}

impl<'a> JsonFields<'a> {
    pub(super) fn new(path: &'a Path, json: &'a Value) -> Result<JsonFields<'a>, ExportError> {
        match json.as_object() {
            Some(object) => Ok(JsonFields { path, object, defaults: &[], aliases: &[] }),
            None => {
                let problem = "no JSON object".to_owned();
                Err(ExportError::BadFile { path: path.to_owned(), problem })
            }
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        let own = |name: &str| self.object.get(name).filter(|value| !value.is_null());
        let alias = || self.aliases.iter().find(|(known, _)| *known == name);
        own(name).or_else(|| own(alias()?.1))
    }

    pub(super) fn texts(&self, name: &str) -> Result<Vec<&'a str>, ExportError> {
        let list = |value: &'a Value| value.as_array()?.iter().map(Value::as_str).collect();
        Ok(self.read(name, "a list of strings", list)?.unwrap_or_default())
    }

    pub(super) fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>, ExportError> {
        let list = |value: &Value| value.as_array()?.iter().map(Value::as_f64).collect();
        self.read(name, "a list of numbers", list)
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<JsonFields<'a>>, ExportError> {
        let object = self.read(name, "an object", Value::as_object)?;
        Ok(object.map(|object| JsonFields { object, ..*self }))
    }

    /// The fields with defaults for sizes that may be absent.
    pub(super) fn with_defaults(
        self,
        defaults: &'static [(&'static str, usize)],
    ) -> JsonFields<'a> {
        JsonFields { defaults, ..self }
    }

    /// The fields with other names for some that may be absent.
    pub(super) fn with_aliases(
        self,
        aliases: &'static [(&'static str, &'static str)],
    ) -> JsonFields<'a> {
        JsonFields { aliases, ..self }
    }

    /// A token id or a list of them; -1 stands for none.
    pub(super) fn ids(&self, name: &str) -> Result<Option<Vec<u32>>, ExportError> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let is_one = |value: &&Value| value.as_i64() != Some(-1);
        let ids = |value: &Value| match value.as_array() {
            Some(list) => list.iter().filter(is_one).map(id).collect(),
            None => Some(value).filter(is_one).map(id).into_iter().collect(),
        };
        self.read(name, "a token id or a list of them", ids)
    }

    fn read<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ExportError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => {
                Err(self.bad(format!("{name} is {}, wanted {wanted}", excerpt(&value.to_string()))))
            }
        }
    }
}

impl Fields for JsonFields<'_> {
    fn size(&self, name: &str) -> Result<Option<usize>, ExportError> {
        let read = |value: &Value| {
            // Some programs write 8192.0.
            let whole = |number: &f64| number.fract() == 0.0 && *number >= 0.0;
            let size = value.as_u64().or_else(|| value.as_f64().filter(whole).map(|n| n as u64))?;
            usize::try_from(size).ok().filter(|&size| size > 0 && size <= i32::MAX as usize)
        };
        let size = self.read(name, "a whole number above 0 and below 2^31", read)?;
        let default = || self.defaults.iter().find(|(known, _)| *known == name);
        Ok(size.or_else(|| default().map(|(_, size)| *size)))
    }

    fn number(&self, name: &str) -> Result<Option<f64>, ExportError> {
        self.read(name, "a number", Value::as_f64)
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, ExportError> {
        self.read(name, "true or false", Value::as_bool)
    }

    fn text(&self, name: &str) -> Result<Option<&str>, ExportError> {
        self.read(name, "a string", Value::as_str)
    }

    fn labels(&self, name: &str) -> Result<Option<Vec<String>>, ExportError> {
        let label = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
            _ => None,
        };
        self.read(name, "a list", |value| value.as_array()?.iter().map(label).collect())
    }

    fn unsupported(&self, what: String) -> ExportError {
        ExportError::Unsupported { path: self.path.to_owned(), what }
    }

    fn missing(&self, name: &str) -> ExportError {
        self.bad(format!("{name} is missing"))
    }

    fn bad(&self, problem: String) -> ExportError {
        ExportError::BadFile { path: self.path.to_owned(), problem }
    }
}
