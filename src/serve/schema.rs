//! Adapts a client's schema: closes its objects, and finds the parts that grammars do not support.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::keywords::tidy;

/// Keywords whose schemas describe the same value as the schema that contains them.
const IN_PLACE: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that are lists of schemas.
const LISTS: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
/// Keywords that are objects of schemas.
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that are a schema.
const ONES: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
/// Most keys that an object's parts add to it.
const NAMES_MAX: usize = 1000;
/// Most keys that are added to all objects of a schema.
const ADDED_MAX: usize = 20_000;
/// Most parts of a schema that are tested to find unsupported ones.
const TRIES_MAX: usize = 100;

/// A schema's rules for an object's keys.
type Keywords = Map<String, Value>;

/// Closes objects that name their keys: other keys are allowed only if `additionalProperties` says so. A small model
/// would go on inventing keys until it is cut. Keywords without effect are left out.
pub(super) fn closed(mut schema: Value) -> Value {
    let root = schema.clone();
    let mut closer = Closer { root: &root, parts: HashSet::new(), n_added: 0 };
    closer.find_parts(&root, false);
    closer.close(&mut schema, false);
    for name in ["$defs", "definitions"] {
        let defs = schema.get_mut(name).and_then(Value::as_object_mut);
        for (key, def) in defs.into_iter().flatten() {
            let is_part = closer.parts.contains(&format!("#/{name}/{key}"));
            closer.close(def, is_part);
        }
    }
    schema
}

/// The schemas directly below `node`, each with whether it describes the same value as `node`.
fn below(node: &Keywords) -> impl Iterator<Item = (bool, &Value)> {
    let lists = LISTS.iter().filter_map(|name| {
        let is_same = IN_PLACE.contains(name);
        Some(node.get(*name)?.as_array()?.iter().map(move |child| (is_same, child)))
    });
    let maps = MAPS.iter().filter_map(|name| node.get(*name)?.as_object());
    let ones = ONES.iter().filter_map(|name| node.get(*name).filter(|child| child.is_object()));
    let others = maps.flat_map(Map::values).chain(ones).map(|child| (false, child));
    lists.flatten().chain(others)
}

/// Whether an object's keys come together in `node`: it has `properties`, or combines several schemas.
fn is_combined(node: &Keywords) -> bool {
    let n_all = node.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    let others = ["anyOf", "oneOf", "$ref"].iter().filter(|name| node.contains_key(**name));
    node.contains_key("properties") || n_all + others.count() > 1
}

struct Closer<'s> {
    root: &'s Value,
    /// `$ref`s to definitions that are parts of an object.
    parts: HashSet<String>,
    n_added: usize,
}

/// The keys of an object.
#[derive(Default)]
struct Names<'s> {
    names: HashSet<&'s str>,
    /// `$ref`s that were followed already.
    seen: HashSet<&'s str>,
    /// Whether any schema has `properties`.
    are_named: bool,
}

impl<'s> Closer<'s> {
    fn find_parts(&mut self, node: &Value, is_part: bool) {
        let Some(node) = node.as_object() else { return };
        let has_parts = is_part || is_combined(node);
        if let Some(name) = node.get("$ref").and_then(Value::as_str).filter(|_| has_parts) {
            self.parts.insert(name.to_owned());
        }
        below(node).for_each(|(is_same, child)| self.find_parts(child, is_same && has_parts));
    }

    fn close(&mut self, node: &mut Value, is_part: bool) {
        let Some(node) = node.as_object_mut() else { return };
        let has_parts = is_part || is_combined(node);
        if has_parts && !is_part && may_be_object(node) {
            self.close_object(node);
        }
        tidy(node);
        for name in LISTS {
            let children = node.get_mut(name).and_then(Value::as_array_mut);
            let is_same = IN_PLACE.contains(&name);
            children.into_iter().flatten().for_each(|child| {
                self.close(child, is_same && has_parts);
            });
        }
        // Definitions are closed from the root, where it is known which of them are parts.
        for name in &MAPS[..2] {
            let children = node.get_mut(*name).and_then(Value::as_object_mut);
            children.into_iter().flatten().for_each(|(_, child)| self.close(child, false));
        }
        for name in ONES {
            node.get_mut(name).into_iter().for_each(|child| self.close(child, false));
        }
    }

    /// Names all keys of an object in one place, and allows no others.
    fn close_object(&mut self, node: &mut Keywords) {
        let mut names = Names::default();
        // Parts are looked up in the unchanged schema.
        let before = node.clone();
        if self.collect(&before, &mut names).is_none() || !names.are_named {
            return;
        }
        let properties = node.entry("properties").or_insert_with(|| json!({}));
        let Some(properties) = properties.as_object_mut() else { return };
        let mut missing: Vec<&str> =
            names.names.into_iter().filter(|name| !properties.contains_key(*name)).collect();
        missing.sort_unstable();
        self.n_added += missing.len();
        if self.n_added <= ADDED_MAX {
            properties.extend(missing.into_iter().map(|name| (name.to_owned(), json!(true))));
            node.insert("additionalProperties".to_owned(), json!(false));
        }
    }

    /// Adds the keys that `node` and its parts name; `None` if one of them allows other keys, or is unknown.
    fn collect<'n>(&self, node: &'n Keywords, names: &mut Names<'n>) -> Option<()>
    where
        's: 'n,
    {
        let says = ["additionalProperties", "unevaluatedProperties"];
        if says.iter().any(|name| node.contains_key(*name)) {
            return None;
        }
        if let Some(properties) = node.get("properties").and_then(Value::as_object) {
            names.are_named = true;
            names.names.extend(properties.keys().map(String::as_str));
        }
        let required = node.get("required").and_then(Value::as_array).into_iter().flatten();
        names.names.extend(required.filter_map(Value::as_str));
        if names.names.len() > NAMES_MAX {
            return None;
        }
        if let Some(name) = node.get("$ref").and_then(Value::as_str)
            && names.seen.insert(name)
        {
            self.collect(self.root.pointer(name.strip_prefix('#')?)?.as_object()?, names)?;
        }
        let parts = below(node).filter(|(is_same, _)| *is_same);
        for part in parts.filter_map(|(_, part)| part.as_object()) {
            self.collect(part, names)?;
        }
        Some(())
    }
}

fn may_be_object(node: &Keywords) -> bool {
    match node.get("type") {
        Some(Value::String(kind)) => kind == "object",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        _ => true,
    }
}

/// Tests whether a schema is supported. The error says why it is not.
pub(super) type Follow<'f> = &'f dyn Fn(&Value) -> Result<(), String>;

/// Finds unsupported parts of a schema.
struct Search<'f> {
    follow: Follow<'f>,
    /// Definitions of the whole schema.
    defs: Vec<(&'static str, Value)>,
    n_left: usize,
}

/// The path of the deepest unsupported part of `schema`, such as `properties.a`, and why it is unsupported.
pub(super) fn fault(schema: &Value, follow: Follow<'_>) -> Option<(String, String)> {
    Search::new(schema, follow).fault(schema, String::new())
}

/// The schema with every unsupported part left free.
pub(super) fn loosened(schema: &Value, follow: Follow<'_>) -> Value {
    let mut schema = schema.clone();
    Search::new(&schema, follow).loosen(&mut schema);
    schema
}

impl<'f> Search<'f> {
    fn new(schema: &Value, follow: Follow<'f>) -> Search<'f> {
        let defs = ["$defs", "definitions"].iter();
        let defs = defs.filter_map(|name| Some((*name, schema.get(*name)?.clone())));
        Search { follow, defs: defs.collect(), n_left: TRIES_MAX }
    }

    /// Tests a part. Once too many parts were tested, each one counts as unsupported.
    fn check(&mut self, node: &Value) -> Result<(), String> {
        self.n_left =
            self.n_left.checked_sub(1).ok_or("too many of its parts cannot be followed")?;
        let mut node = node.clone();
        if let Some(object) = node.as_object_mut() {
            for (name, defs) in &self.defs {
                object.entry(*name).or_insert_with(|| defs.clone());
            }
        }
        (self.follow)(&node)
    }

    fn fault(&mut self, node: &Value, path: String) -> Option<(String, String)> {
        let cause = self.check(node).err()?;
        for step in steps(node) {
            let below =
                if path.is_empty() { step.join(".") } else { format!("{path}.{}", step.join(".")) };
            if self.n_left > 0
                && let Some(found) = child(node, &step).and_then(|child| self.fault(child, below))
            {
                return Some(found);
            }
        }
        Some((path, cause))
    }

    fn loosen(&mut self, node: &mut Value) {
        if self.check(node).is_ok() {
            return;
        }
        for step in steps(node) {
            let child = step.iter().try_fold(&mut *node, |node, name| match node {
                Value::Array(values) => values.get_mut(name.parse::<usize>().ok()?),
                node => node.get_mut(name),
            });
            child.into_iter().for_each(|child| self.loosen(child));
        }
        if self.check(node).is_ok() {
            return;
        }
        if let Some(object) = node.as_object_mut() {
            object.retain(|name, _| KEPT.contains(&name.as_str()));
        }
        if self.check(node).is_ok() {
            return;
        }
        *node = match node.get("type") {
            Some(kind) => json!({"type": kind}),
            None => json!({}),
        };
        if self.check(node).is_err() {
            *node = json!({});
        }
    }
}

/// Keywords that a loosened schema keeps: the kind of a value, and its contents.
const KEPT: [&str; 15] = [
    "type",
    "enum",
    "const",
    "$ref",
    "$defs",
    "definitions",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "prefixItems",
    "anyOf",
    "oneOf",
    "allOf",
    "description",
];

/// Paths to the schemas below `node` that can be tested alone.
fn steps(node: &Value) -> Vec<Vec<String>> {
    let Some(node) = node.as_object() else { return Vec::new() };
    let mut steps = Vec::new();
    for name in &MAPS[..1] {
        let children = node.get(*name).and_then(Value::as_object).into_iter().flatten();
        steps.extend(children.map(|(key, _)| vec![(*name).to_owned(), key.clone()]));
    }
    for name in LISTS {
        let n = node.get(name).and_then(Value::as_array).map_or(0, Vec::len);
        steps.extend((0..n).map(|at| vec![name.to_owned(), at.to_string()]));
    }
    let ones = ONES.iter().filter(|name| node.get(**name).is_some_and(Value::is_object));
    steps.extend(ones.map(|name| vec![(*name).to_owned()]));
    steps
}

fn child<'n>(node: &'n Value, step: &[String]) -> Option<&'n Value> {
    step.iter().try_fold(node, |node, name| match node {
        Value::Array(values) => values.get(name.parse::<usize>().ok()?),
        node => node.get(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_hold_the_keys_that_are_named_unless_the_schema_says_otherwise() {
        let a = json!({"type": "string"});
        for (schema, wanted) in [
            (
                json!({"properties": {"a": {"items": {"properties": {"a": a}}}}}),
                json!({"properties": {"a": {"items": {"properties": {"a": a}, "additionalProperties": false}}},
                    "additionalProperties": false}),
            ),
            // A required key is a key, too.
            (
                json!({"type": "object", "properties": {"a": a}, "required": ["b"]}),
                json!({"type": "object", "properties": {"a": a, "b": true}, "required": ["b"],
                    "additionalProperties": false}),
            ),
            // Alternatives are closed one by one; schemas that apply together are closed once.
            (
                json!({"anyOf": [{"properties": {"a": a}}, {"type": "null"}]}),
                json!({"anyOf": [{"properties": {"a": a}, "additionalProperties": false}, {"type": "null"}]}),
            ),
            (
                json!({"allOf": [{"properties": {"a": a}}, {"$ref": "#/$defs/b"}],
                    "$defs": {"b": {"properties": {"b": a}}, "c": {"properties": {"c": a}}}}),
                json!({"allOf": [{"properties": {"a": a}}, {"$ref": "#/$defs/b"}],
                    "properties": {"a": true, "b": true}, "additionalProperties": false,
                    "$defs": {"b": {"properties": {"b": a}},
                        "c": {"properties": {"c": a}, "additionalProperties": false}}}),
            ),
            (
                json!({"properties": {"x": {"type": "string", "format": "int99"}, "y": {"format": "date"}}}),
                json!({"properties": {"x": {"type": "string"}, "y": {"format": "date"}},
                    "additionalProperties": false}),
            ),
        ] {
            assert_eq!(closed(schema.clone()), wanted, "{schema}");
        }
        for open in [
            json!({"type": "object"}),
            json!(true),
            json!({"properties": {"a": a}, "additionalProperties": true}),
            json!({"properties": {"a": a}, "additionalProperties": {"type": "integer"}}),
            json!({"allOf": [{"properties": {"a": a}}, {"additionalProperties": true}]}),
            json!({"type": "array", "items": {"enum": ["a"]}}),
        ] {
            assert_eq!(closed(open.clone()), open);
        }
        let open = json!({"properties": {"a": a}, "unevaluatedProperties": true});
        assert_eq!(closed(open), json!({"properties": {"a": a}}));
        // Schemas may be cyclic.
        let round = json!({"properties": {"a": {"$ref": "#"}}, "allOf": [{"$ref": "#"}, {"$ref": "#/allOf/1"}]});
        assert_eq!(closed(round)["additionalProperties"], false);
    }

    #[test]
    fn what_cannot_be_followed_is_found_and_left_free() {
        let follow = |schema: &Value| match schema.to_string().contains("bad") {
            true => Err("it is bad".to_owned()),
            false => Ok(()),
        };
        let good = json!({"type": "integer", "minimum": 3});
        let schema = json!({"type": "object", "required": ["a"], "properties": {"a": good,
            "b": {"type": "array", "items": {"type": "string", "pattern": "bad", "title": "x"}}}});
        let wanted = json!({"type": "object", "required": ["a"], "properties": {"a": good,
            "b": {"type": "array", "items": {"type": "string"}}}});
        assert_eq!(loosened(&schema, &follow), wanted);
        let found = fault(&schema, &follow).unwrap();
        assert_eq!((&*found.0, &*found.1), ("properties.b.items", "it is bad"));
        assert_eq!(fault(&wanted, &follow), None);
        // The number of unsupported parts does not matter.
        let bad = json!({"type": "string", "pattern": "bad"});
        let many: Keywords = (0..1000).map(|key| (format!("k{key}"), bad.clone())).collect();
        let schema = json!({"type": "object", "properties": many});
        let loose = loosened(&schema, &follow);
        assert!(loose == json!({"type": "object"}) || loose == json!({}), "{loose}");
        assert!(fault(&schema, &follow).is_some());
    }
}
