//! The files with which sentence-transformers makes a model one of embeddings: `modules.json`, and a folder for each module.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::json_fields::{JsonFields, VALUES_MAX};
use super::super::model::{Embedder, Extras};
use super::super::settings::Fields;
use crate::export::error::ExportError;
use crate::export::json;
use crate::format::excerpt;
use crate::format::model::{EmbeddingModel, Header, Pooling, Prompt};

/// The modules that LEAP has, in the order in which a text goes through them.
const ORDER: [&str; 4] = ["Transformer", "Pooling", "Dense", "Normalize"];

/// Reads what the folder says about embeddings. A model without such files is one of embeddings if it can be nothing else.
pub(super) fn read(
    dir: &Path,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    let path = dir.join("modules.json");
    if !json::is_named(&path) {
        if extras.embedder.is_needed() {
            extras.notes.push(
                "modules.json is missing: the mean of the tokens' vectors is taken; --pooling takes another"
                    .to_owned(),
            );
            header.features.embedding = Some(extras.embedder.model(Pooling::Mean, true));
        }
        return Ok(());
    }
    let modules = json::read(&path, VALUES_MAX)?;
    let bad = |problem: String| ExportError::BadFile { path: path.clone(), problem };
    let modules = modules.as_array().ok_or_else(|| bad("no list of modules".to_owned()))?;
    let (mut pooling, mut is_normalised, mut dense) = (None, false, Vec::new());
    let mut last = 0;
    for module in modules {
        let text = |name| module.get(name).and_then(Value::as_str).unwrap_or_default();
        let folder = text("path");
        if folder.split('/').any(|part| part == "..") || folder.starts_with('/') {
            return Err(bad(format!("a module in {}", excerpt(folder))));
        }
        let folder = dir.join(folder);
        let kind = text("type").rsplit('.').next().unwrap_or_default();
        let place = ORDER.iter().position(|other| *other == kind).unwrap_or(ORDER.len());
        if place < last || (place == last && kind == "Pooling") {
            let what = format!("a module {kind} in this place; the order is {}", ORDER.join(", "));
            return Err(ExportError::Unsupported { path, what });
        }
        last = place;
        match kind {
            "Transformer" => {}
            "Pooling" => pooling = Some(self::pooling(&folder.join("config.json"))?),
            "Dense" => dense.push(folder),
            "Normalize" => is_normalised = true,
            other => {
                let what = format!("a module of type {:?}", excerpt(other));
                return Err(ExportError::Unsupported { path, what });
            }
        }
    }
    let pooling = pooling.ok_or_else(|| bad("there is no module of pooling".to_owned()))?;
    let mut model = extras.embedder.model(pooling, is_normalised);
    model.dense_dim = dense_dim(&dense, header.dim, &path)?;
    model.prompts = prompts(&dir.join("config_sentence_transformers.json"))?;
    limit(dir, header)?;
    extras.embedder.dense = dense;
    header.features.embedding = Some(model);
    Ok(())
}

impl Embedder {
    /// The model of embeddings with this pooling.
    pub(in crate::export::config) fn model(
        &self,
        pooling: Pooling,
        is_normalised: bool,
    ) -> EmbeddingModel {
        EmbeddingModel {
            pooling,
            is_normalised,
            is_bidirectional: self.is_bidirectional,
            encoder: self.encoder,
            dense_dim: 0,
            first: None,
            last: None,
            prompts: Vec::new(),
        }
    }
}

/// The only form of pooling that a module's configuration names.
fn pooling(path: &Path) -> Result<Pooling, ExportError> {
    let json = json::read(path, VALUES_MAX)?;
    let fields = JsonFields::new(path, &json)?;
    let modes = [
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_lasttoken", "lasttoken"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        ("pooling_mode_weightedmean_tokens", "weightedmean"),
    ];
    let mut named = Vec::new();
    for (field, mode) in modes {
        if fields.flag(field)? == Some(true) {
            named.push(mode.to_owned());
        }
    }
    if let Some(mode) = fields.text("pooling_mode")? {
        named.push(mode.to_owned());
    }
    if fields.flag("include_prompt")? == Some(false) {
        return Err(fields.unsupported("include_prompt false".to_owned()));
    }
    match named.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["cls"] => Ok(Pooling::First),
        ["mean"] => Ok(Pooling::Mean),
        ["lasttoken" | "last"] => Ok(Pooling::Last),
        _ => {
            let named = excerpt(&named.join(", "));
            Err(fields
                .unsupported(format!("pooling by {named:?}; LEAP has cls, mean and lasttoken")))
        }
    }
}

/// Width between the two dense layers, which lead back to the model's width; 0 without dense layers.
fn dense_dim(dense: &[PathBuf], dim: usize, modules: &Path) -> Result<usize, ExportError> {
    if dense.is_empty() {
        return Ok(0);
    }
    let mut widths = vec![dim];
    for folder in dense {
        let path = folder.join("config.json");
        let json = json::read(&path, VALUES_MAX)?;
        let fields = JsonFields::new(&path, &json)?;
        let activation = fields.text("activation_function")?.unwrap_or_default();
        if fields.flag("bias")? != Some(false) || !activation.ends_with("Identity") {
            return Err(fields.unsupported("a dense layer with biases or an activation".to_owned()));
        }
        let input = fields.required_size("in_features")?;
        if widths.last() != Some(&input) {
            let wanted = widths.last().copied().unwrap_or_default();
            return Err(fields.bad(format!("in_features is {input}, wanted {wanted}")));
        }
        widths.push(fields.required_size("out_features")?);
    }
    match widths[..] {
        [_, width, last] if last == dim => Ok(width),
        _ => {
            let what = format!("dense layers of widths {widths:?}; LEAP has two that lead back");
            Err(ExportError::Unsupported { path: modules.to_owned(), what })
        }
    }
}

/// The prompts of the model, in the order of their names. The default one stands first, under an empty name, too.
fn prompts(path: &Path) -> Result<Vec<Prompt>, ExportError> {
    if !json::is_named(path) {
        return Ok(Vec::new());
    }
    let json = json::read(path, VALUES_MAX)?;
    let bad = |problem: &str| ExportError::BadFile {
        path: path.to_owned(),
        problem: format!("prompts: {problem}"),
    };
    let Some(prompts) = json.get("prompts").filter(|prompts| !prompts.is_null()) else {
        return Ok(Vec::new());
    };
    let prompts = prompts.as_object().ok_or_else(|| bad("no object"))?;
    let mut found = Vec::new();
    for (name, text) in prompts {
        let text = text.as_str().ok_or_else(|| bad("a prompt that is no string"))?;
        found.push(Prompt { name: name.clone(), text: text.to_owned() });
    }
    let default = json.get("default_prompt_name").filter(|name| !name.is_null());
    if let Some(default) = default {
        let named = found.iter().find(|prompt| *default == prompt.name.as_str());
        let named = named.ok_or_else(|| bad("default_prompt_name is none of them"))?;
        found.push(Prompt { name: String::new(), text: named.text.clone() });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Takes over the longest text, if it is shorter than the model's context.
fn limit(dir: &Path, header: &mut Header) -> Result<(), ExportError> {
    let path = dir.join("sentence_bert_config.json");
    if json::is_named(&path) {
        let json = json::read(&path, VALUES_MAX)?;
        let longest = JsonFields::new(&path, &json)?.size("max_seq_length")?;
        header.max_seq_len = longest.unwrap_or(usize::MAX).min(header.max_seq_len);
    }
    Ok(())
}
