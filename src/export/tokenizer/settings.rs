//! Settings in the files beside a tokenizer.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use super::error::ImportError;
use super::files::{VALUES_MAX, read};
use super::token::AddedToken;
use crate::format::excerpt;
use crate::format::json::parse;

/// The template for conversations with tools, where each has a file of its own.
const TOOL_TEMPLATE_FILE: &str = "additional_chat_templates/tool_use.jinja";

/// Settings of a Hugging Face or Meta folder; all of them may be absent.
#[derive(Default)]
pub(super) struct Settings {
    /// `added_tokens_decoder`, or added_tokens.json, in the order of ids.
    pub(super) added: Vec<AddedToken>,
    pub(super) bos: Option<String>,
    pub(super) bos_id: Option<u32>,
    /// Whether the tokenizer puts BOS before a text; `None` if the files do not say.
    pub(super) writes_bos: Option<bool>,
    pub(super) eos: Option<String>,
    /// From generation_config.json, else from config.json.
    pub(super) stop_ids: Vec<u32>,
    pub(super) chat_template: Option<String>,
    /// The template for conversations with tools, if there is another one.
    pub(super) tool_template: Option<String>,
    pub(super) has_tokenizer_config: bool,
    pub(super) vocab_size: Option<usize>,
    pub(super) is_legacy: Option<bool>,
    pub(super) case: Case,
}

/// How texts are made small letters, beside what the tokenizer's file says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Case {
    /// Whether BERT's tokenizer makes small letters of capitals.
    pub(super) lowercase: Option<bool>,
    /// Whether it takes accents away.
    pub(super) strips_accents: Option<bool>,
    /// Whether `lowercase` counts more than what `tokenizer.json` says.
    pub(super) goes_first: bool,
    /// Whether sentence-transformers makes small letters of capitals before any tokenizer gets the text.
    pub(super) before: bool,
}

impl Settings {
    pub(super) fn read(folder: &Path) -> Result<Settings, ImportError> {
        let mut settings = Settings::default();
        if let Some(config) = json(&folder.join("tokenizer_config.json"))? {
            settings.take_tokenizer_config(&config).map_err(|what| ImportError::Bad {
                path: folder.join("tokenizer_config.json"),
                what,
            })?;
        }
        if let Some(added) = json(&folder.join("added_tokens.json"))?
            && settings.added.is_empty()
        {
            settings.take_added_tokens(&added);
        }
        // Vision-language models may have the template only here.
        if let Some(file) = json(&folder.join("chat_template.json"))?
            && settings.chat_template.is_none()
        {
            settings.take_templates(file.get("chat_template"));
        }
        if let Some(template) = text(&folder.join("chat_template.jinja"))? {
            settings.chat_template = Some(template);
            settings.tool_template = text(&folder.join(TOOL_TEMPLATE_FILE))?;
        }
        for name in ["generation_config.json", "config.json"] {
            let path = folder.join(name);
            if let Some(config) = json(&path)? {
                settings
                    .take_model_config(&config)
                    .map_err(|what| ImportError::Bad { path, what })?;
            }
        }
        if let Some(config) = json(&folder.join("sentence_bert_config.json"))? {
            settings.case.before = config.get("do_lower_case").and_then(truth) == Some(true);
        }
        if let Some(params) = json(&folder.join("params.json"))? {
            // Llama 2's files have -1 there: the tokenizer decides.
            settings.vocab_size = settings.vocab_size.or(size(&params));
        }
        Ok(settings)
    }

    /// Whether text after special tokens gets a space before it. SentencePiece models do not say: the tokenizer.json
    /// that was converted from the model counts, then `legacy`.
    pub(super) fn prefixes_segments(&self, folder: &Path) -> Result<Option<bool>, ImportError> {
        let json = json(&folder.join("tokenizer.json"))?.unwrap_or_default();
        let steps = json.pointer("/normalizer/normalizers").and_then(Value::as_array);
        let is_prepend = |step: &Value| step.get("type") == Some(&Value::from("Prepend"));
        if steps.into_iter().flatten().any(is_prepend) {
            return Ok(Some(true));
        }
        let scheme = json.pointer("/pre_tokenizer/prepend_scheme").and_then(Value::as_str);
        Ok(scheme.map(|scheme| scheme == "always").or(self.is_legacy))
    }

    fn take_tokenizer_config(&mut self, config: &Value) -> Result<(), String> {
        self.has_tokenizer_config = true;
        self.bos = config.get("bos_token").and_then(name);
        self.eos = config.get("eos_token").and_then(name);
        self.writes_bos = match config.get("bos_token") {
            Some(Value::Null) => Some(false),
            _ => config.get("add_bos_token").and_then(truth),
        };
        self.is_legacy = config.get("legacy").and_then(truth);
        self.case.lowercase = config.get("do_lower_case").and_then(truth);
        self.case.strips_accents = config.get("strip_accents").and_then(truth);
        // Classes without a tokenizer of their own take the file as it is.
        let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        self.case.goes_first = !["PreTrainedTokenizerFast", "TokenizersBackend"].contains(&class);
        self.take_templates(config.get("chat_template"));
        let Some(added) = config.get("added_tokens_decoder").and_then(Value::as_object) else {
            return Ok(());
        };
        for (id, token) in added {
            let bad =
                || format!("added_tokens_decoder: {:?} is not an id with a content", excerpt(id));
            let name = token.get("content").and_then(Value::as_str).ok_or_else(bad)?.to_owned();
            let flag = |key| token.get(key).and_then(Value::as_bool).unwrap_or(false);
            self.added.push(AddedToken {
                id: id.parse().map_err(|_| bad())?,
                name,
                is_special: flag("special"),
                strips_right: flag("rstrip"),
                strips_left: flag("lstrip"),
                is_whole_word: flag("single_word"),
            });
        }
        self.added.sort_by_key(|token| token.id);
        Ok(())
    }

    /// Takes templates: a string, or a list or an object of named ones. `default` counts, or else the first, and
    /// `tool_use` for conversations with tools.
    fn take_templates(&mut self, value: Option<&Value>) {
        let Some(value) = value else { return };
        let named: Vec<(&str, &Value)> = match value {
            Value::Object(named) => {
                named.iter().map(|(name, text)| (name.as_str(), text)).collect()
            }
            Value::Array(list) => list.iter().filter_map(named).collect(),
            text => vec![("default", text)],
        };
        let called = |name: &str| named.iter().find(|(called, _)| *called == name);
        let text = |(_, text): &(&str, &Value)| text.as_str().map(str::to_owned);
        self.chat_template = called("default").or(named.first()).and_then(text);
        self.tool_template = called("tool_use").and_then(text);
    }

    /// Reads `{"name": id}`. The file does not say which tokens are special; all count as such, because people mostly
    /// add markers.
    fn take_added_tokens(&mut self, added: &Value) {
        let tokens = added.as_object().into_iter().flatten().filter_map(|(name, id)| {
            let (id, name) = (id_of(id)?, name.clone());
            Some(AddedToken::special(id, name))
        });
        self.added = tokens.collect();
        self.added.sort_by_key(|token| token.id);
    }

    /// Takes over settings that no earlier file has set. Call it first for the file that takes precedence.
    fn take_model_config(&mut self, config: &Value) -> Result<(), String> {
        self.vocab_size = self.vocab_size.or(size(config));
        self.bos_id = self.bos_id.or(config.get("bos_token_id").and_then(id_of));
        if !self.stop_ids.is_empty() {
            return Ok(());
        }
        let bad = || "eos_token_id is neither an id nor a list of ids".to_owned();
        // Some files have -1 if there is no such token.
        self.stop_ids = match config.get("eos_token_id") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(ids)) => ids.iter().filter_map(id_of).collect(),
            Some(Value::Number(id)) => id_of(&Value::Number(id.clone())).into_iter().collect(),
            Some(_) => return Err(bad()),
        };
        Ok(())
    }
}

/// The value as transformers reads it; null counts as absent.
fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Null => None,
        Value::Bool(truth) => Some(*truth),
        Value::Number(number) => Some(number.as_f64() != Some(0.0)),
        Value::String(text) => {
            Some(!["", "0", "false", "no"].contains(&text.to_lowercase().as_str()))
        }
        Value::Array(list) => Some(!list.is_empty()),
        Value::Object(fields) => Some(!fields.is_empty()),
    }
}

fn id_of(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn size(config: &Value) -> Option<usize> {
    // Gemma 3's vision-language models have the language model's size in `text_config`.
    let text = config.pointer("/text_config/vocab_size");
    config.get("vocab_size").or(text).and_then(id_of).map(|size| size as usize)
}

/// A token is a string, or an object with its content.
fn name(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}

/// The name and the text of a template in a list.
fn named(entry: &Value) -> Option<(&str, &Value)> {
    let name = entry.get("name").and_then(Value::as_str).unwrap_or_default();
    Some((name, entry.get("template")?))
}

fn text(path: &Path) -> Result<Option<String>, ImportError> {
    // A link whose file is missing is to be reported.
    if matches!(fs::symlink_metadata(path), Err(e) if e.kind() == ErrorKind::NotFound) {
        return Ok(None);
    }
    let what = "not UTF-8".to_owned();
    let bytes = read(path)?;
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| ImportError::Bad { path: path.to_path_buf(), what })
}

/// The JSON of a file, if there is one.
pub(super) fn json(path: &Path) -> Result<Option<Value>, ImportError> {
    let Some(text) = text(path)? else { return Ok(None) };
    let bad = |what| ImportError::Bad { path: path.to_path_buf(), what };
    parse(text.as_bytes(), VALUES_MAX).map(Some).map_err(bad)
}
