//! Schemas that consist of several ones (`$ref`, `allOf`, `anyOf`, `oneOf`), as the schemas of which a value has one.

use serde_json::{Map, Value, json};

use super::values::Types;
use crate::format::json;

/// Rules for a value.
pub(super) type Keywords = Map<String, Value>;

/// Most schemas that are combined for one value.
const SCHEMAS_MAX: usize = 512;
/// Most levels of schemas in schemas, and of references.
const LEVELS_MAX: usize = 64;
/// Most bytes of all of them.
const COMBINED_BYTES_MAX: usize = 8 << 20;
/// Keywords that are replaced by what they combine.
const COMBINED: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];
/// Keywords that say nothing about a value, or that only `$ref` needs.
const REMARKS: [&str; 16] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

/// The schemas of which a value of `schema` has one. None of them consists of others, or contradicts itself in its types.
/// References are into `root`.
///
/// # Errors
/// The keyword that cannot be followed, and why.
pub(super) fn alternatives(schema: &Value, root: &Value) -> Result<Vec<Keywords>, String> {
    Search { root, n_left: SCHEMAS_MAX, bytes_left: COMBINED_BYTES_MAX, level: 0 }.expanded(schema)
}

/// `schema` with all parameters that its parts name at one place. A call's reader needs their types.
pub(super) fn flattened(schema: &Value) -> Value {
    let is_combined = COMBINED.iter().any(|name| schema.get(name).is_some());
    let Some(all) = is_combined.then(|| alternatives(schema, schema).ok()).flatten() else {
        return schema.clone();
    };
    let mut properties = Keywords::new();
    let named = all.iter().filter_map(|one| one.get("properties")?.as_object());
    for (key, value) in named.flatten() {
        match properties.get_mut(key) {
            Some(before) if before == value => {}
            Some(before) => *before = json!({"anyOf": [before.clone(), value]}),
            None => drop(properties.insert(key.clone(), value.clone())),
        }
    }
    let mut schema = schema.clone();
    schema["properties"] = properties.into();
    schema
}

struct Search<'r> {
    root: &'r Value,
    n_left: usize,
    bytes_left: usize,
    level: usize,
}

impl Search<'_> {
    /// Counts a schema of so many bytes.
    fn count(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.n_left.checked_sub(1).zip(self.bytes_left.checked_sub(bytes));
        (self.n_left, self.bytes_left) = left.ok_or("it combines too many schemas")?;
        Ok(())
    }

    fn expanded(&mut self, schema: &Value) -> Result<Vec<Keywords>, String> {
        if self.level == LEVELS_MAX {
            return Err("it combines too many schemas".to_owned());
        }
        self.level += 1;
        let all = self.expanded_here(schema);
        self.level -= 1;
        all
    }

    fn expanded_here(&mut self, schema: &Value) -> Result<Vec<Keywords>, String> {
        self.count(0)?;
        let keywords = match schema {
            Value::Bool(true) => return Ok(vec![Keywords::new()]),
            Value::Bool(false) => return Ok(Vec::new()),
            Value::Object(keywords) => keywords,
            other => return Err(format!("{other} is no schema")),
        };
        let mut own = keywords.clone();
        own.retain(|name, _| !COMBINED.contains(&&**name) && !REMARKS.contains(&&**name));
        let mut all = vec![own];
        if let Some(path) = keywords.get("$ref") {
            let pointer = path.as_str().and_then(|path| path.strip_prefix('#'));
            let known = pointer.and_then(|pointer| self.root.pointer(pointer));
            let known = known.ok_or_else(|| format!("$ref: nothing is at {path}"))?;
            let known = self.expanded(known)?;
            all = self.joined(&all, &known)?;
        }
        let parts = |name: &str| keywords.get(name).and_then(Value::as_array);
        for part in parts("allOf").into_iter().flatten() {
            let part = self.expanded(part)?;
            all = self.joined(&all, &part)?;
        }
        for parts in ["anyOf", "oneOf"].iter().filter_map(|name| parts(name)) {
            let mut each = Vec::new();
            for part in parts {
                each.extend(self.expanded(part)?);
            }
            all = self.joined(&all, &each)?;
        }
        Ok(all)
    }

    /// The schemas that require one of `first` and one of `second`.
    fn joined(&mut self, first: &[Keywords], second: &[Keywords]) -> Result<Vec<Keywords>, String> {
        let bytes = |schema: &Keywords| json::compact(&json!(schema)).len();
        let second_bytes: Vec<usize> = second.iter().map(bytes).collect();
        let mut all = Vec::new();
        for one in first {
            let first_bytes = bytes(one);
            for (other, bytes) in second.iter().zip(&second_bytes) {
                self.count(first_bytes + bytes)?;
                all.extend(both(one.clone(), other.clone())?);
            }
        }
        Ok(all)
    }
}

/// The schema that requires both; `None` if no value fits both.
fn both(mut first: Keywords, mut second: Keywords) -> Result<Option<Keywords>, String> {
    join_properties(&mut first, &mut second);
    for (name, value) in second {
        let Some(before) = first.get_mut(&name) else {
            first.insert(name, value);
            continue;
        };
        if *before == value {
            continue;
        }
        let less = || before.as_f64() < value.as_f64();
        match name.as_str() {
            "type" => match common_types(before, &value) {
                types if types.is_empty() => return Ok(None),
                types => *before = types.into(),
            },
            "required" => {
                let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
                let mut names = list(before);
                names.extend(list(&value).into_iter().filter(|name| !list(before).contains(name)));
                *before = names.into();
            }
            "minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties" => {
                if less() {
                    *before = value;
                }
            }
            "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties" => {
                if !less() {
                    *before = value;
                }
            }
            "items" if !before.is_array() && !value.is_array() => *before = all_of(before, &value),
            "enum" => {
                let allowed = value.as_array().cloned().unwrap_or_default();
                let values = before.as_array_mut();
                values.into_iter().for_each(|values| values.retain(|v| allowed.contains(v)));
            }
            "const" => return Ok(None),
            name => return Err(format!("{name}: two of them apply to one value")),
        }
    }
    let is_empty = first.get("enum").and_then(Value::as_array).is_some_and(Vec::is_empty);
    Ok((!is_empty).then_some(first))
}

/// Moves the properties of both schemas into the first one. The rules for other keys of one apply to those of the other.
fn join_properties(first: &mut Keywords, second: &mut Keywords) {
    let names = ["properties", "additionalProperties"];
    if !second.keys().any(|key| names.contains(&&**key)) {
        return;
    }
    let take = |schema: &mut Keywords| {
        let others = schema.remove(names[1]);
        (schema.remove(names[0]), others)
    };
    let (first_named, first_others) = take(first);
    let (second_named, second_others) = take(second);
    let has_named = first_named.is_some() || second_named.is_some();
    let object = |value: Option<Value>| match value {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let (mut named, more) = (object(first_named), object(second_named));
    let any = Value::Bool(true);
    let [first_rest, second_rest] =
        [&first_others, &second_others].map(|others| others.as_ref().unwrap_or(&any));
    for (key, value) in &mut named {
        *value = all_of(value, more.get(key).unwrap_or(second_rest));
    }
    for (key, value) in &more {
        if !named.contains_key(key) {
            named.insert(key.clone(), all_of(first_rest, value));
        }
    }
    named.retain(|_, value| *value != Value::Bool(false));
    if first_others.is_some() || second_others.is_some() {
        first.insert(names[1].to_owned(), all_of(first_rest, second_rest));
    }
    if has_named {
        first.insert(names[0].to_owned(), named.into());
    }
}

/// The schema that requires both.
fn all_of(first: &Value, second: &Value) -> Value {
    match (first, second) {
        (Value::Bool(true), other) | (other, Value::Bool(true)) => other.clone(),
        (Value::Bool(false), _) | (_, Value::Bool(false)) => Value::Bool(false),
        (first, second) if first == second => first.clone(),
        (first, second) => json!({"allOf": [first, second]}),
    }
}

/// Names of the types that both values of `type` name. Integers are numbers.
fn common_types(first: &Value, second: &Value) -> Vec<Value> {
    let list = |value: &Value| match value {
        Value::Array(names) => names.clone(),
        name => vec![name.clone()],
    };
    let has = |names: &[Value], name: &str| names.iter().any(|known| known == name);
    let (first, second) = (list(first), list(second));
    let allows = |names: &[Value], name: &Value| {
        names.contains(name) || (name == "integer" && has(names, "number"))
    };
    let mut common: Vec<Value> =
        first.iter().filter(|name| allows(&second, name)).cloned().collect();
    let more = second.iter().filter(|name| allows(&first, name) && !common.contains(name));
    let more: Vec<Value> = more.cloned().collect();
    common.extend(more);
    common
}

/// The values that `schema` lists, if it does.
pub(super) fn listed(schema: &Keywords) -> Option<Vec<&Value>> {
    let values = match (schema.get("const"), schema.get("enum")) {
        (Some(value), None) => vec![value],
        (Some(value), Some(values)) => {
            values.as_array()?.iter().filter(|known| *known == value).collect()
        }
        (None, values) => values?.as_array()?.iter().collect(),
    };
    let types = Types::of_keywords(schema);
    Some(values.into_iter().filter(|value| types.allow(Types::of_value(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_schemas_are_not_multiplied() {
        let large: Map<String, Value> = (0..20_000).map(|i| (format!("p{i}"), json!({}))).collect();
        let schema = json!({"properties": large, "anyOf": vec![json!({"minProperties": 1}); 400]});
        assert!(alternatives(&schema, &schema).unwrap_err().contains("too many"));
    }

    #[test]
    fn a_schema_of_several_is_a_choice_of_simple_ones() {
        let root = json!({"$defs": {"n": {"type": "number", "title": "N"}, "round": {"$ref": "#/$defs/round"}}});
        for (schema, wanted) in [
            (json!({"$ref": "#/$defs/n", "minimum": 3}), json!([{"minimum": 3, "type": "number"}])),
            (
                json!({"allOf": [{"type": ["integer", "string"]}, {"$ref": "#/$defs/n"}, {"maximum": 4}], "maximum": 9}),
                json!([{"maximum": 4, "type": ["integer"]}]),
            ),
            (
                json!({"type": "object", "anyOf": [{"required": ["a"]}, {"type": "null"}, true]}),
                json!([{"type": "object", "required": ["a"]}, {"type": "object"}]),
            ),
            (
                json!({"allOf": [{"properties": {"a": true, "b": {"type": "null"}}, "additionalProperties": false},
                    {"properties": {"a": {"type": "string"}, "c": true}, "required": ["a"]}]}),
                json!([{"additionalProperties": false, "required": ["a"],
                    "properties": {"a": {"type": "string"}, "b": {"type": "null"}}}]),
            ),
            (json!({"enum": [1, 2], "oneOf": [{"enum": [2, 3]}, false]}), json!([{"enum": [2]}])),
            (json!({"const": 1, "allOf": [{"const": 2}]}), json!([])),
        ] {
            let all = alternatives(&schema, &root).unwrap();
            assert_eq!(json!(all), wanted, "{schema}");
        }
        for (schema, wanted) in [
            (json!({"$ref": "#/$defs/round"}), "too many"),
            (json!({"$ref": "#/$defs/none"}), "$ref: nothing is at"),
            (json!({"pattern": "a", "allOf": [{"pattern": "b"}]}), "pattern: two"),
        ] {
            let error = alternatives(&schema, &root).unwrap_err();
            assert!(error.contains(wanted), "{schema}: {error}");
        }
    }
}
