//! Typed access to the fields of a JSON object.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// A JSON object of a request, with its path in the request.
#[derive(Clone)]
pub(super) struct Fields<'v> {
    object: &'v Map<String, Value>,
    /// Prefix of the fields' names in errors: `""`, or the object's path and a dot.
    path: String,
    /// Whether whole numbers may have a fraction, which is cut off.
    cuts_fractions: bool,
}

impl<'v> Fields<'v> {
    /// The fields of `value`. `name` is its path in the request; it is empty for the body.
    pub(super) fn of(value: &'v Value, name: &str) -> Result<Fields<'v>, ApiError> {
        let path = if name.is_empty() { String::new() } else { format!("{name}.") };
        match value.as_object() {
            Some(object) => Ok(Fields { object, path, cuts_fractions: false }),
            None if name.is_empty() => Err(ApiError::new(400, "the body is no JSON object")),
            None => Err(ApiError::field(name, format!("{name} is no object"))),
        }
    }

    /// Cuts the fractions of whole numbers off, as Ollama does in its options.
    pub(super) fn cutting_fractions(self) -> Fields<'v> {
        Fields { cuts_fractions: true, ..self }
    }

    /// The value of `name`; `None` if it is missing or null.
    pub(super) fn get(&self, name: &str) -> Option<&'v Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// An error that names the field `name`.
    pub(super) fn bad(&self, name: &str, problem: &str) -> ApiError {
        let field = format!("{}{name}", self.path);
        ApiError::field(&field, format!("{field} {problem}"))
    }

    /// The path of the field `name`, for errors.
    pub(super) fn path_of(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    pub(super) fn string(&self, name: &str) -> Result<Option<&'v str>, ApiError> {
        let read = |value: &'v Value| value.as_str().ok_or_else(|| self.bad(name, "is no string"));
        self.get(name).map(read).transpose()
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let read =
            |value: &Value| value.as_bool().ok_or_else(|| self.bad(name, "is not true or false"));
        self.get(name).map(read).transpose()
    }

    pub(super) fn array(&self, name: &str) -> Result<Option<&'v [Value]>, ApiError> {
        let read = |value: &'v Value| {
            value.as_array().map(Vec::as_slice).ok_or_else(|| self.bad(name, "is no array"))
        };
        self.get(name).map(read).transpose()
    }

    /// A number within `range`.
    pub(super) fn number(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let problem = format!("is no number between {} and {}", range.start(), range.end());
        let read = |value: &Value| {
            let number = value.as_f64().filter(|number| range.contains(number));
            number.map(|number| number as f32).ok_or_else(|| self.bad(name, &problem))
        };
        self.get(name).map(read).transpose()
    }

    /// A whole number within `range`; see [`whole`].
    pub(super) fn whole(
        &self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let problem = format!("is no whole number between {} and {}", range.start(), range.end());
        let cut = |value: &Value| value.as_f64().map(|number| Value::from(number.trunc()));
        let read = |value: &Value| {
            let number =
                whole(value).or_else(|| whole(&cut(value).filter(|_| self.cuts_fractions)?));
            let number = number.filter(|number| range.contains(number));
            number.ok_or_else(|| self.bad(name, &problem))
        };
        self.get(name).map(read).transpose()
    }

    /// Refuses the field `name` unless it is missing or its value changes nothing.
    pub(super) fn only(
        &self,
        name: &str,
        changes_nothing: impl FnOnce(&Value) -> bool,
    ) -> Result<(), ApiError> {
        match self.get(name) {
            Some(value) if !changes_nothing(value) => {
                Err(self.bad(name, "is not supported: leave it out"))
            }
            _ => Ok(()),
        }
    }
}

/// A whole number. Languages whose numbers are all floats write 3 as `3.0`.
pub(super) fn whole(value: &Value) -> Option<i64> {
    let of_float = |number: f64| Some(number as i64).filter(|whole| *whole as f64 == number);
    value.as_i64().or_else(|| of_float(value.as_f64()?))
}

/// A token id.
pub(super) fn token_id(value: &Value) -> Option<u32> {
    u32::try_from(whole(value)?).ok()
}

/// A string, or an array of up to `max` strings. Empty strings are left out.
pub(super) fn strings(
    fields: &Fields<'_>,
    name: &str,
    max: usize,
) -> Result<Vec<String>, ApiError> {
    let bad =
        || fields.bad(name, &format!("is neither a string nor an array of up to {max} strings"));
    match fields.get(name) {
        None => Ok(Vec::new()),
        Some(Value::String(one)) if one.is_empty() => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one.clone()]),
        Some(Value::Array(many)) if many.len() <= max => {
            let texts = many.iter().map(|one| one.as_str().map(str::to_owned).ok_or_else(bad));
            let is_text =
                |text: &Result<String, ApiError>| !matches!(text, Ok(text) if text.is_empty());
            texts.filter(is_text).collect()
        }
        Some(_) => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_read_as_what_they_should_be() {
        let value = json!({"a": "x", "b": 0.5, "c": 3, "d": true, "e": null, "f": ["y"]});
        let fields = Fields::of(&value, "").unwrap();
        assert_eq!(fields.string("a").unwrap(), Some("x"));
        assert_eq!(fields.number("b", 0.0..=2.0).unwrap(), Some(0.5));
        assert_eq!(fields.whole("c", 0..=3).unwrap(), Some(3));
        assert_eq!(fields.flag("d").unwrap(), Some(true));
        assert_eq!(fields.string("e").unwrap(), None);
        assert_eq!(strings(&fields, "f", 1).unwrap(), ["y"]);
        assert_eq!(strings(&fields, "a", 1).unwrap(), ["x"]);
    }

    #[test]
    fn whole_numbers_may_be_written_as_floats() {
        let value = json!({"a": 3.0, "b": -1e0, "c": 3.7, "d": -0.9, "e": 1e300, "f": "3"});
        let fields = Fields::of(&value, "").unwrap();
        let read = |name, fields: &Fields<'_>| fields.whole(name, -1..=3).ok().flatten();
        assert_eq!((read("a", &fields), read("b", &fields)), (Some(3), Some(-1)));
        let cutting = fields.clone().cutting_fractions();
        for (name, wanted) in [("c", Some(3)), ("d", Some(0)), ("e", None), ("f", None)] {
            assert_eq!((read(name, &fields), read(name, &cutting)), (None, wanted), "{name}");
        }
        let ids = json!([905.0, 4294967295_u32, 4294967296.0, -1.0, 0.5, u64::MAX, null]);
        let ids: Vec<Option<u32>> = ids.as_array().unwrap().iter().map(token_id).collect();
        assert_eq!(ids, [Some(905), Some(u32::MAX), None, None, None, None, None]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let value = json!({"a": 1, "b": -1, "c": 0.5, "f": [1]});
        let fields = Fields::of(&value, "options").unwrap();
        for (error, wanted) in [
            (fields.string("a").unwrap_err(), "options.a"),
            (fields.number("b", 0.0..=2.0).unwrap_err(), "options.b"),
            (fields.whole("c", 0..=3).unwrap_err(), "options.c"),
            (fields.flag("a").unwrap_err(), "options.a"),
            (fields.array("a").map(drop).unwrap_err(), "options.a"),
            (strings(&fields, "f", 1).unwrap_err(), "options.f"),
            (fields.only("a", |v| *v == 2).unwrap_err(), "options.a"),
        ] {
            assert_eq!(error.field.as_deref(), Some(wanted));
            assert!(error.status == 400 && error.message.starts_with(wanted), "{error:?}");
        }
        assert!(fields.only("a", |v| *v == 1).is_ok());
        assert!(Fields::of(&json!([]), "").is_err());
    }
}
