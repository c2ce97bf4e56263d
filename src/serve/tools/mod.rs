//! Tools that a model may call: their description in the prompt, and the grammar of calls.

mod call;
mod chain;
mod families;
mod filter;
pub(super) mod finite;
mod lark;
mod literals;
mod marks;
mod named;
mod own;
mod regex;
mod rules;
mod schemas;
mod values;
mod words;

pub(super) use call::ToolCall;
pub(super) use filter::{CallFilter, CallPiece, joined};
pub(super) use own::OwnWords;
#[cfg(fuzzing)]
pub(super) use own::trial::learn;
pub(super) use words::Words;

use std::ops::Range;

use serde_json::{Value, json};

use super::divide::Calls;
use super::error::ApiError;
use super::fields::Fields;
use super::grammar::{GrammarFilter, Grammars, Sign, check_len, with_options};
use super::keywords::check_multiples;
use super::schema::{Follow, closed, fault, loosened};
use crate::tokenizer::{ChatRole, Tags, Tokenizer};
use lark::{Grammar, Lark};
use marks::Arguments;
use named::Place;
use schemas::flattened;

/// Most tools of a request.
const TOOLS_MAX: usize = 128;

/// How an answer begins and ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course<'a> {
    /// Whether it begins with thoughts, which hold no calls.
    pub(super) begins_thinking: bool,
    /// The tags around thoughts.
    pub(super) tags: Option<&'a Tags>,
    /// Ids that end it.
    pub(super) stop_ids: &'a [u32],
}

/// The tools of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tools {
    /// The definitions that the client sent, unchanged.
    definitions: Vec<Value>,
    choice: ToolChoice,
    /// Whether an answer may have several calls.
    may_repeat: bool,
}

/// Whether a model calls tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToolChoice {
    /// The model decides.
    Auto,
    /// At least one call.
    Required,
}

impl Tools {
    /// Reads `tools` and `tool_choice`; `None` if there are none that may be called.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Option<Tools>, ApiError> {
        let definitions = fields.array("tools")?.unwrap_or_default();
        if definitions.len() > TOOLS_MAX {
            return Err(fields.bad("tools", &format!("has more than {TOOLS_MAX} elements")));
        }
        let mut names = Vec::new();
        for (index, tool) in definitions.iter().enumerate() {
            let tool = Fields::of(tool, &format!("tools[{index}]"))?;
            if tool.string("type")?.is_some_and(|kind| kind != "function") {
                return Err(tool.bad("type", "is not function"));
            }
            let function =
                tool.get("function").ok_or_else(|| tool.bad("function", "is missing"))?;
            let function = Fields::of(function, &tool.path_of("function"))?;
            let name = function.string("name")?.filter(|name| !name.is_empty());
            names.push(name.ok_or_else(|| function.bad("name", "is missing"))?);
            if function.get("parameters").is_some_and(|parameters| !parameters.is_object()) {
                return Err(function.bad("parameters", "is no schema"));
            }
        }
        let mut definitions = definitions.to_vec();
        let may_repeat = fields.flag("parallel_tool_calls")?;
        let mut is_named = false;
        let choice = match fields.get("tool_choice") {
            None => ToolChoice::Auto,
            Some(word) if choice_word(word).is_some() => match choice_word(word) {
                Some("none") => return Ok(None),
                Some("auto") => ToolChoice::Auto,
                Some("required" | "any") => ToolChoice::Required,
                _ => return Err(fields.bad("tool_choice", "is none of none, auto and required")),
            },
            Some(named) => {
                // The protocol of responses does not nest the name.
                let name = named.pointer("/function/name").or(named.get("name"));
                let name = name.and_then(Value::as_str);
                let at = names.iter().position(|known| Some(*known) == name);
                let at = at.ok_or_else(|| fields.bad("tool_choice", "names none of the tools"))?;
                definitions = vec![definitions.swap_remove(at)];
                is_named = true;
                ToolChoice::Required
            }
        };
        // A tool that the client names is called once, unless the client asks for more.
        let may_repeat = may_repeat.unwrap_or(!is_named);
        match (definitions.is_empty(), choice) {
            (true, ToolChoice::Required) => Err(fields.bad("tool_choice", "needs tools")),
            (true, ToolChoice::Auto) => Ok(None),
            (false, choice) => Ok(Some(Tools { definitions, choice, may_repeat })),
        }
    }

    /// Whether the answer has to be a call.
    pub(super) fn is_required(&self) -> bool {
        self.choice == ToolChoice::Required
    }

    /// Puts the description of the tools where the model's template has it in a conversation. `default` replaces
    /// missing instructions.
    pub(super) fn tell(
        &self,
        words: &Words,
        default: Option<&str>,
        turns: &mut Vec<(ChatRole, String)>,
    ) {
        let Words::Named(family) = words else {
            // The checkpoint's own template writes it.
            return;
        };
        let definitions = family.definitions.text(&self.definitions);
        let is_user = |turn: &(ChatRole, String)| turn.0 == ChatRole::User;
        let at = match family.definitions.place {
            Place::Instructions => {
                let is_system = turns.first().is_some_and(|turn| turn.0 == ChatRole::System);
                let system = is_system.then(|| turns.remove(0).1);
                let system = system.as_deref().or(default).unwrap_or_default();
                let gap = if system.is_empty() { "" } else { "\n\n" };
                turns.insert(0, (ChatRole::System, format!("{system}{gap}{definitions}")));
                return;
            }
            Place::FirstUser => turns.iter().position(is_user),
            Place::LastUser => turns.iter().rposition(is_user),
        };
        let at = at.unwrap_or_else(|| {
            // Without a user's turn, the description gets one of its own.
            let is_system = turns.first().is_some_and(|turn| turn.0 == ChatRole::System);
            turns.insert(usize::from(is_system), (ChatRole::User, String::new()));
            usize::from(is_system)
        });
        turns.insert(at, (ChatRole::Tools, definitions));
    }

    /// The grammar of an answer with calls. With `form`, an answer without calls is JSON of that schema.
    ///
    /// Unsupported parts of a tool's parameters are left free if no call is required.
    ///
    /// # Errors
    /// If a call is required, and the parameters of a tool are not a supported schema.
    pub(super) fn filter(
        &self,
        place: (&Words, &Tokenizer),
        grammars: &Grammars,
        (course, form): (Course<'_>, Option<&Value>),
    ) -> Result<GrammarFilter, String> {
        let schemas = self.parameters()?;
        let compile = |schemas: &[Value]| self.compile(place, (grammars, schemas), (course, form));
        let cause = match compile(&schemas) {
            Ok(filter) => return Ok(filter),
            Err(cause) => cause,
        };
        let marks = place.0.marks();
        let follow = |schema: &Value| {
            grammars.schema(schema, course.stop_ids)?;
            lark::check(&marks, place.1, schema)
        };
        match self.choice {
            ToolChoice::Required => Err(self.fault(&schemas, &follow).unwrap_or(cause)),
            ToolChoice::Auto => {
                let loosened: Vec<Value> =
                    schemas.iter().map(|schema| an_object(loosened(schema, &follow))).collect();
                let any = vec![an_object(json!({})); schemas.len()];
                compile(&loosened).or_else(|_| compile(&any))
            }
        }
    }

    /// The schemas of the tools' arguments.
    fn parameters(&self) -> Result<Vec<Value>, String> {
        let one = |tool: &Value| {
            // A function without parameters takes none.
            let none = json!({"properties": {}});
            let schema = tool["function"].get("parameters").filter(|schema| !schema.is_null());
            let schema = schema.unwrap_or(&none);
            check_len(schema)?;
            Ok(closed(an_object(schema.clone())))
        };
        self.definitions.iter().map(one).collect()
    }

    /// The first unsupported part of a tool's parameters, and why it is unsupported.
    fn fault(&self, schemas: &[Value], follow: Follow<'_>) -> Option<String> {
        self.definitions.iter().zip(schemas).find_map(|(tool, schema)| {
            let (path, cause) = fault(schema, follow)?;
            let gap = if path.is_empty() { "" } else { "." };
            Some(format!("{}, parameters{gap}{path}: {cause}", tool["function"]["name"]))
        })
    }

    fn compile(
        &self,
        (words, tokenizer): (&Words, &Tokenizer),
        (grammars, schemas): (&Grammars, &[Value]),
        (course, form): (Course<'_>, Option<&Value>),
    ) -> Result<GrammarFilter, String> {
        check_multiples(schemas.iter().chain(form))?;
        let Course { begins_thinking, tags, stop_ids } = course;
        let marks = words.marks();
        let is_unreadable = |name: &String| name.contains([' ', '<']);
        if marks.arguments == Arguments::Message
            && let Some(name) = self.names().find(is_unreadable)
        {
            return Err(format!("the model's messages cannot go to a function called {name:?}"));
        }
        let lark = Lark::new(&marks, tokenizer);
        let sign = lark.sign();
        let tools: Vec<(String, Value)> = self.names().zip(schemas.iter().cloned()).collect();
        let Grammar { rules: rest, patterns } = lark.rest(&tools, self.may_repeat)?;
        if let Some(patterns) = patterns {
            grammars.schema(&patterns, stop_ids)?;
        }
        match (self.choice, form) {
            (ToolChoice::Required, _) => {
                grammars.lark(format!("start: {sign} rest\n{rest}"), None, stop_ids)
            }
            (ToolChoice::Auto, Some(form)) => {
                let form = with_options(form.clone());
                let start = format!("start: {sign} rest | form\nform: %json {form}");
                grammars.lark(format!("{start}\n{rest}"), None, stop_ids)
            }
            (ToolChoice::Auto, None) => {
                let tokens = tokenizer.controls(&marks.sign);
                let is_whole = |name: &Range<usize>| name.len() == marks.sign.len();
                let token = tokens.first().filter(|(name, _)| is_whole(name)).map(|(_, id)| *id);
                let is_message = marks.arguments == Arguments::Message;
                let sign = match token {
                    _ if is_message => Sign::in_header(&marks.sign, header_ids(tokenizer)?),
                    Some(id) => Sign::token(id),
                    None if marks.is_whole => Sign::at_start(&marks.sign),
                    None => Sign::new(&marks.sign, tags, begins_thinking),
                };
                grammars.lark(format!("start: rest\n{rest}"), Some(sign), stop_ids)
            }
        }
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let name = |tool: &Value| tool["function"]["name"].as_str().unwrap_or_default().to_owned();
        self.definitions.iter().map(name)
    }

    /// Separates calls of these tools from an answer.
    pub(super) fn calls(&self, words: &Words) -> Calls {
        let marks = words.marks();
        if marks.arguments == Arguments::Message {
            return Calls::InMessages(false);
        }
        let schema = |tool: &Value| flattened(&tool["function"]["parameters"]);
        let schemas = self.names().zip(self.definitions.iter().map(schema)).collect();
        Calls::InText(CallFilter::new(marks, schemas, self.is_required()))
    }

    /// The definitions with what clients may leave out.
    pub(super) fn filled_definitions(&self) -> Vec<Value> {
        let filled = |tool: &Value| {
            let mut tool = tool.clone();
            tool["type"] = "function".into();
            if tool["function"]["description"].is_null() {
                tool["function"]["description"] = "".into();
            }
            let parameters = &mut tool["function"]["parameters"];
            if parameters.is_null() {
                *parameters = json!({});
            }
            for (name, default) in [("type", json!("object")), ("properties", json!({}))] {
                if parameters[name].is_null() {
                    parameters[name] = default;
                }
            }
            tool
        };
        self.definitions.iter().map(filled).collect()
    }

    /// The definitions as the client sent them.
    pub(super) fn definitions(&self) -> &[Value] {
        &self.definitions
    }
}

/// The tokens that begin the header of a message, or a part of it, and the one that ends it.
fn header_ids(tokenizer: &Tokenizer) -> Result<[u32; 3], String> {
    let mut ids = [0; 3];
    for (id, name) in ids.iter_mut().zip(["<|start|>", "<|channel|>", "<|message|>"]) {
        *id = tokenizer.special(name).ok_or_else(|| format!("the vocabulary lacks {name}"))?;
    }
    Ok(ids)
}

/// The word in `tool_choice`, or the type of its object, unless it names a tool.
fn choice_word(choice: &Value) -> Option<&str> {
    let word = match choice {
        Value::Object(fields) => fields.get("type")?,
        word => word,
    };
    word.as_str().filter(|word| *word != "function")
}

/// Restricts a schema to objects, since arguments are always objects.
fn an_object(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.entry("type").or_insert(json!("object"));
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_tools_is_named() {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        for (body, wanted) in [
            (json!({"tools": [{"type": "x"}]}), "tools[0].type"),
            (json!({"tools": [{"function": {}}]}), "tools[0].function.name"),
            (
                json!({"tools": [{"function": {"name": "f", "parameters": 3}}]}),
                "tools[0].function.parameters",
            ),
            (json!({"tools": [tool], "tool_choice": "perhaps"}), "tool_choice"),
            (json!({"tools": [tool], "tool_choice": {"function": {"name": "g"}}}), "tool_choice"),
            (json!({"tools": [tool], "tool_choice": {"type": "function"}}), "tool_choice"),
            (json!({"tools": [tool], "tool_choice": {"name": "g"}}), "tool_choice"),
            (json!({"tool_choice": "required"}), "tool_choice"),
        ] {
            let error = Tools::read(&Fields::of(&body, "").unwrap()).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(wanted), "{body}");
        }
        let none = json!({"tools": [tool], "tool_choice": "none"});
        assert_eq!(Tools::read(&Fields::of(&none, "").unwrap()), Ok(None));
    }

    /// A client that names a tool wants one call of it.
    #[test]
    fn a_tool_that_is_asked_for_by_name_is_called_once_unless_more_is_said() {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let named = json!({"type": "function", "function": {"name": "f"}});
        for (choice, parallel, may_repeat) in [
            (json!("auto"), Value::Null, true),
            (json!("required"), Value::Null, true),
            (named.clone(), Value::Null, false),
            (named.clone(), json!(true), true),
            (json!({"type": "function", "name": "f"}), Value::Null, false),
            (named, json!(false), false),
            (json!("auto"), json!(false), false),
        ] {
            let body =
                json!({"tools": [tool], "tool_choice": choice, "parallel_tool_calls": parallel});
            let tools = Tools::read(&Fields::of(&body, "").unwrap()).unwrap().unwrap();
            assert_eq!(tools.may_repeat, may_repeat, "{body}");
        }
    }

    /// Whether the filter allows the tokens of `text`.
    #[cfg(feature = "forms")]
    fn accepts(filter: &GrammarFilter, tokenizer: &Tokenizer, text: &str) -> bool {
        use crate::engine::TokenFilter;
        let (mut filter, mut ids) = (filter.clone(), Vec::new());
        tokenizer.encode(text, &mut ids);
        ids.into_iter().all(|id| {
            let mut logits = vec![0.0; 4096];
            filter.restrict(&mut logits).unwrap();
            logits[id as usize] == 0.0 && filter.take(id).is_ok()
        })
    }

    #[cfg(feature = "forms")]
    #[test]
    fn what_cannot_be_enforced_is_left_free_and_all_else_is_kept() {
        use crate::format::ChatTemplate;
        use crate::format::tokenizer::TokenizerFile;
        let file = include_bytes!("../../../models/demo.tokenizer.bin");
        let tokenizer = Tokenizer::new(TokenizerFile::parse(file, None).unwrap()).unwrap();
        let tokenizer = std::sync::Arc::new(tokenizer);
        let stop_ids = tokenizer.stop_ids().to_vec();
        let grammars = Grammars::new(std::sync::Arc::clone(&tokenizer), 4096, &stop_ids).unwrap();
        let parameters = json!({"type": "object", "required": ["to", "urgent"], "properties": {
            "to": {"type": "string", "pattern": "^(?!x)[a-z]+$"},
            "tags": {"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b"]}},
            "urgent": {"type": "boolean"}}});
        let body = json!({"tools": [{"function": {"name": "ping"}},
            {"function": {"name": "mail", "parameters": parameters}}]});
        let tools = Tools::read(&Fields::of(&body, "").unwrap()).unwrap().unwrap();
        let place = (&Words::of(ChatTemplate::Qwen3).unwrap(), &*tokenizer);
        let form =
            json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
        let form = closed(form);
        let course = Course { begins_thinking: false, tags: None, stop_ids: &stop_ids };
        let alone = tools.filter(place, &grammars, (course, None)).unwrap();
        let formed = tools.filter(place, &grammars, (course, Some(&form))).unwrap();
        let call = |name: &str, arguments: &str| {
            format!(
                "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>"
            )
        };
        for (text, is_call) in [
            (call("mail", r#"{"to": "X y", "tags": ["a", "a"], "urgent": true}"#), true),
            (call("ping", "{}"), true),
            (call("mail", r#"{"to": "x", "tags": ["c"], "urgent": true}"#), false),
            (call("mail", r#"{"to": "x", "urgent": 3}"#), false),
            (call("mail", r#"{"to": "x", "urgent": true, "more": 1}"#), false),
            (call("ping", r#"{"more": 1}"#), false),
            (call("pong", "{}"), false),
        ] {
            assert_eq!(accepts(&alone, &tokenizer, &text), is_call, "{text}");
            assert_eq!(accepts(&formed, &tokenizer, &text), is_call, "{text}");
        }
        assert!(accepts(&formed, &tokenizer, r#"{"a": 3}"#));
        assert!(!accepts(&formed, &tokenizer, r#"{"a": "x"}"#));
        assert!(!accepts(&formed, &tokenizer, "Hello"));
        assert!(accepts(&alone, &tokenizer, "Hello"));
    }
}
