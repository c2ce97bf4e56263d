//! Keywords of a schema: leaves out those that have no effect, and refuses those that cost too much.

use serde_json::{Map, Number, Value};

/// Supported formats of strings. All others have no effect, as JSON Schema allows.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Keywords that only describe a value, by JSON Schema's own rules.
const ANNOTATIONS: [&str; 3] = ["contentEncoding", "contentMediaType", "contentSchema"];
/// Keywords for which null is a value.
const VALUES: [&str; 4] = ["const", "default", "enum", "examples"];
/// Keywords that are counts.
const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];
/// Keywords that limit numbers, with the sign of limits that may be moved towards 0.
const LIMITS: [(&str, i64); 4] =
    [("minimum", -1), ("exclusiveMinimum", -1), ("maximum", 1), ("exclusiveMaximum", 1)];
/// Largest limit that forms follow: the largest f64 that is an i64.
const LIMIT_MAX: i64 = i64::MAX - 1023;
/// Largest multiple that a form follows: a form has a state for each smaller number. 100,000 take about a second.
const MULTIPLE_MAX: u128 = 100_000;
/// Most decimal places of a multiple.
const PLACES_MAX: u32 = 9;

/// Leaves out the keywords of `node` that have no effect on any value, and writes numbers as forms can follow them.
pub(super) fn tidy(node: &mut Map<String, Value>) {
    node.retain(|name, value| !value.is_null() || VALUES.contains(&&**name));
    for name in COUNTS {
        if let Some(count) = node.get_mut(name) {
            make_whole(count);
        }
    }
    for (name, sign) in LIMITS {
        if let Some(limit) = node.get_mut(name) {
            narrow(limit, sign);
        }
    }
    let names: Vec<String> = node.keys().cloned().collect();
    for name in names {
        if is_without_effect(&name, node) {
            node.remove(&name);
        }
    }
}

/// Moves a limit below zero (`sign` is -1) or above zero (1) to the largest number that forms follow. So int64's smallest
/// number and the limits of floats are followed, apart from the numbers beyond.
fn narrow(limit: &mut Value, sign: i64) {
    if limit.as_f64().is_some_and(|n| n * sign as f64 >= LIMIT_MAX as f64) {
        *limit = Value::Number(Number::from(sign * LIMIT_MAX));
    }
}

/// Makes an integer of a number that is one, such as 20.0.
fn make_whole(count: &mut Value) {
    let whole = count.as_f64().filter(|n| n.fract() == 0.0 && (0.0..=u32::MAX.into()).contains(n));
    if let Some(n) = whole {
        *count = Value::Number(Number::from(n as u64));
    }
}

fn is_without_effect(name: &str, node: &Map<String, Value>) -> bool {
    let value = &node[name];
    let is_empty = value.as_object().is_some_and(Map::is_empty);
    let allows_all = *value == Value::Bool(true) || is_empty;
    match name {
        "format" => value.as_str().is_some_and(|name| !FORMATS.contains(&name)),
        "uniqueItems" => *value == Value::Bool(false),
        // Names are always strings.
        "propertyNames" => {
            let is_string = |schema: &Map<String, Value>| {
                schema.len() == 1 && schema.get("type").is_some_and(|kind| kind == "string")
            };
            allows_all || value.as_object().is_some_and(is_string)
        }
        "unevaluatedProperties" | "unevaluatedItems" => allows_all,
        "dependentRequired" | "dependentSchemas" | "dependencies" => is_empty,
        "not" => *value == Value::Bool(false),
        "contains" => {
            let no_least = node.get("minContains").and_then(Value::as_f64) == Some(0.0);
            no_least && !node.contains_key("maxContains")
        }
        "minContains" | "maxContains" => !node.contains_key("contains"),
        "if" => !node.contains_key("then") && !node.contains_key("else"),
        "then" | "else" => !node.contains_key("if"),
        name => ANNOTATIONS.contains(&name),
    }
}

/// Checks that a form can follow the multiples in `schemas`, all of which may apply to one number.
///
/// # Errors
/// If their least common multiple is too large.
pub(super) fn check_multiples<'s>(
    schemas: impl IntoIterator<Item = &'s Value>,
) -> Result<(), String> {
    let mut multiples = Vec::new();
    schemas.into_iter().for_each(|schema| find_multiples(schema, &mut multiples));
    let places = multiples.iter().map(|(_, places)| *places).max().unwrap_or(0);
    let mut all = 1;
    for (n, own) in multiples {
        let n = n * 10_u128.pow(places - own);
        all = all / gcd(all, n) * n;
        if all > MULTIPLE_MAX {
            return Err(format!(
                "multipleOf: {all} is too many numbers to count; the limit is {MULTIPLE_MAX}"
            ));
        }
    }
    Ok(())
}

/// Adds each `multipleOf` below `value`: an integer without its decimal places, and their number.
fn find_multiples(value: &Value, found: &mut Vec<(u128, u32)>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| find_multiples(value, found)),
        Value::Object(keywords) => {
            let multiple = keywords.get("multipleOf").and_then(Value::as_f64);
            if let Some(mut n) = multiple.filter(|n| *n > 0.0) {
                let mut places = 0;
                while n.fract() != 0.0 && places < PLACES_MAX {
                    (n, places) = (n * 10.0, places + 1);
                }
                found.push(((n as u128).clamp(1, u64::MAX.into()), places));
            }
            keywords.values().for_each(|value| find_multiples(value, found));
        }
        _ => {}
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tidied(mut schema: Value) -> Value {
        schema.as_object_mut().into_iter().for_each(tidy);
        schema
    }

    #[test]
    fn keywords_without_effect_are_left_out() {
        for (keyword, value) in [
            ("uniqueItems", json!(false)),
            ("propertyNames", json!({})),
            ("propertyNames", json!({"type": "string"})),
            ("unevaluatedProperties", json!(true)),
            ("unevaluatedItems", json!({})),
            ("dependentRequired", json!({})),
            ("dependentSchemas", json!({})),
            ("dependencies", json!({})),
            ("minContains", json!(2)),
            ("maxContains", json!(2)),
            ("if", json!({"type": "string"})),
            ("then", json!({"type": "string"})),
            ("else", json!({"type": "string"})),
            ("not", json!(false)),
            ("contentMediaType", json!("image/png")),
            ("format", json!("int64")),
            ("pattern", json!(null)),
            ("required", json!(null)),
        ] {
            let schema = json!({"type": "array", keyword: value, "title": "a"});
            let wanted = json!({"type": "array", "title": "a"});
            assert_eq!(tidied(schema.clone()), wanted, "{schema}");
        }
        let kept = json!({"uniqueItems": true, "propertyNames": {"pattern": "a"}, "const": null, "enum": [null],
            "unevaluatedProperties": false, "dependentRequired": {"a": ["b"]}, "not": {}, "format": "date",
            "if": {}, "then": false, "contains": {}, "minContains": 0, "maxContains": 2});
        assert_eq!(tidied(kept.clone()), kept);
        for (schema, wanted) in [
            (json!({"contains": {}, "minContains": 0.0}), json!({})),
            (
                json!({"maxLength": 20.0, "minItems": 0.5}),
                json!({"maxLength": 20, "minItems": 0.5}),
            ),
            (
                json!({"minimum": i64::MIN, "maximum": 1e300}),
                json!({"minimum": -LIMIT_MAX, "maximum": LIMIT_MAX}),
            ),
            (json!({"minimum": 1e300, "maximum": 5}), json!({"minimum": 1e300, "maximum": 5})),
        ] {
            assert_eq!(tidied(schema.clone()), wanted, "{schema}");
        }
    }

    #[test]
    fn multiples_are_followed_up_to_a_limit() {
        let each = |multiples: &[f64]| {
            let parts: Vec<Value> = multiples.iter().map(|n| json!({"multipleOf": n})).collect();
            check_multiples([&json!({"items": {"allOf": parts}})])
        };
        for good in [
            &[0.01][..],
            &[0.5, 5.0, 3600.0],
            &[86_400.0],
            &[60.0, 24.0, 365.0],
            &[0.25, 100.0],
            &[0.0],
        ] {
            assert_eq!(each(good), Ok(()), "{good:?}");
        }
        for bad in
            [&[1_000_003.0][..], &[9973.0, 9967.0], &[1e300], &[1e-300, 1e9], &[0.001, 1000.0]]
        {
            assert!(each(bad).is_err(), "{bad:?}");
        }
        // A property may have this name.
        let named = json!({"properties": {"multipleOf": {"type": "string"}}});
        assert_eq!(check_multiples([&named]), Ok(()));
    }
}
