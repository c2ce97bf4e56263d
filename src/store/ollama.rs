//! The folder in which Ollama keeps its models: `manifests/HOST/NAMESPACE/MODEL/TAG` names files in `blobs` by their
//! SHA-256.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::StoreError;
use super::found::FoundModel;
use super::name::ModelName;
use super::name::OllamaName;
use super::parameters::{self, CONFIG, PARAMETERS, SYSTEM, SYSTEM_BYTES, TEMPLATE, TEXT_BYTES};
use super::paths::{
    FILE_MAX, check_inside, folder_of, home, is_hash, lines_of, names_in, small_file,
};
use crate::format::{Suggested, json};

/// Longest manifest, and most values in it.
pub(super) const MANIFEST_BYTES: u64 = 4 << 20;
const MANIFEST_VALUES: usize = 100_000;
/// Media type of the layer that is a GGUF file.
const MODEL: &str = "application/vnd.ollama.image.model";
/// Media type of a layer that changes the weights.
const ADAPTER: &str = "application/vnd.ollama.image.adapter";

/// Loss of a model whose instructions or template cannot be used.
const NO_INSTRUCTIONS: &str = "its instructions are left out";
const NO_TEMPLATE: &str = "the template in the model's file is used, not Ollama's";

/// A folder of Ollama's models.
pub(super) struct OllamaStore {
    pub(super) root: PathBuf,
}

/// A file that a manifest names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) kind: String,
    /// SHA-256 in hexadecimal digits.
    pub(super) sha256: String,
    pub(super) bytes: u64,
}

/// Files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The configuration, then the layers.
    pub(super) layers: Vec<Layer>,
}

impl OllamaStore {
    /// The folders where Ollama keeps models on this machine: the user's, then those of a system's service.
    pub(super) fn all() -> Vec<OllamaStore> {
        let system = ["/usr/share/ollama/.ollama/models", "/var/lib/ollama/models"];
        let mut roots: Vec<PathBuf> = OllamaStore::of_user().into_iter().map(|s| s.root).collect();
        roots.extend(system.map(PathBuf::from));
        roots.dedup();
        roots.into_iter().map(|root| OllamaStore { root }).collect()
    }

    /// The folder that Ollama takes for this user; `None` if the home is unknown.
    pub(super) fn of_user() -> Option<OllamaStore> {
        let given = folder_of("OLLAMA_MODELS");
        let root = given.or_else(|| Some(home()?.join(".ollama/models")))?;
        Some(OllamaStore { root })
    }

    /// Folders in which files may lie.
    fn places(&self) -> [&Path; 1] {
        [&self.root]
    }

    /// Path of the manifest of `name`.
    pub(super) fn manifest_path(&self, name: &OllamaName) -> PathBuf {
        let OllamaName { host, namespace, model, tag } = name;
        let folder = self.root.join("manifests").join(host);
        folder.join(namespace).join(model).join(tag)
    }

    /// Path of the file with this SHA-256.
    pub(super) fn blob_path(&self, sha256: &str) -> PathBuf {
        self.root.join("blobs").join(format!("sha256-{sha256}"))
    }

    pub(super) fn manifest(&self, name: &OllamaName) -> Result<Option<Manifest>, StoreError> {
        let path = self.manifest_path(name);
        let Some(bytes) = small_file(&path, MANIFEST_BYTES)? else { return Ok(None) };
        check_inside(&path, &self.places())?;
        Manifest::parse(&bytes).map(Some).map_err(|why| StoreError::refused(&path, &why))
    }

    pub(super) fn find(&self, name: &OllamaName) -> Result<Option<FoundModel>, StoreError> {
        let Some(manifest) = self.manifest(name)? else { return Ok(None) };
        let model = manifest.model().map_err(|why| StoreError::Input(format!("{name}: {why}")))?;
        let path = self.blob_path(&model.sha256);
        let Ok(file) = fs::metadata(&path) else { return Ok(None) };
        check_inside(&path, &self.places())?;
        if file.len() != model.bytes {
            let why = format!("has {} bytes, its manifest says {}", file.len(), model.bytes);
            return Err(StoreError::refused(&path, &why));
        }
        Ok(Some(FoundModel {
            name: ModelName::Ollama(name.clone()),
            path,
            bytes: model.bytes,
            is_pulled: self.pulled().contains(&name.to_string()),
            suggested: self.suggested(&manifest)?,
        }))
    }

    fn suggested(&self, manifest: &Manifest) -> Result<Suggested, StoreError> {
        let mut left_out = Vec::new();
        let mut file = |kind: &str, bytes_max, loss: &str| {
            let found = self.file(manifest, kind, bytes_max)?;
            // The model can be used without it.
            found.map_err(|why| left_out.push(format!("{loss}: {why}"))).or(Ok(None))
        };
        let parameters = file(PARAMETERS, TEXT_BYTES, "its parameters are left out")?;
        let mut suggested =
            parameters.map_or_else(Suggested::default, |p| parameters::suggested(&p));
        let system = file(SYSTEM, SYSTEM_BYTES, NO_INSTRUCTIONS)?;
        let config = file(CONFIG, TEXT_BYTES, "its configuration is left out")?;
        let template = match config.is_some_and(|config| parameters::has_renderer(&config)) {
            true => None,
            false => file(TEMPLATE, TEXT_BYTES, NO_TEMPLATE)?,
        };
        let mut text = |bytes: Option<Vec<u8>>, loss: &str| {
            let text = String::from_utf8(bytes.unwrap_or_default());
            let text = text.map_err(|_| left_out.push(format!("{loss}: it is not UTF-8"))).ok();
            text.filter(|text| !text.trim().is_empty())
        };
        let system = text(system, NO_INSTRUCTIONS);
        let template = text(template, NO_TEMPLATE);
        suggested.left_out.append(&mut left_out);
        Ok(Suggested { system, template, ..suggested })
    }

    /// Contents of the first layer of this media type, if there is one; or why they cannot be used.
    fn file(
        &self,
        manifest: &Manifest,
        kind: &str,
        bytes_max: u64,
    ) -> Result<Result<Option<Vec<u8>>, StoreError>, StoreError> {
        let layer = manifest.layers.iter().find(|layer| layer.kind == kind);
        let Some(path) = layer.map(|layer| self.blob_path(&layer.sha256)) else {
            return Ok(Ok(None));
        };
        let bytes = small_file(&path, bytes_max);
        match bytes {
            Ok(Some(_)) => check_inside(&path, &self.places())?,
            Ok(None) => return Ok(Err(StoreError::refused(&path, "is missing"))),
            Err(_) => {}
        }
        Ok(bytes)
    }

    /// All models that can be named. Damaged ones are skipped.
    pub(super) fn models(&self) -> Vec<FoundModel> {
        self.names().iter().filter_map(|name| self.find(name).ok().flatten()).collect()
    }

    /// The names of all manifests.
    pub(super) fn names(&self) -> Vec<OllamaName> {
        let below = |paths: Vec<String>| -> Vec<String> {
            let names = |path: &String| {
                let folder = self.root.join("manifests").join(path);
                let names = names_in(&folder).into_iter();
                names.map(|name| format!("{path}/{name}")).collect::<Vec<String>>()
            };
            paths.iter().flat_map(names).collect()
        };
        let hosts = names_in(&self.root.join("manifests"));
        let models = below(below(hosts));
        let parsed = below(models).into_iter().filter_map(|path| {
            let (model, tag) = path.rsplit_once('/')?;
            match ModelName::parse(&format!("ollama:{model}:{tag}"))?.ok()? {
                ModelName::Ollama(name) => Some(name),
                ModelName::Hub(_) => None,
            }
        });
        parsed.collect()
    }

    /// The file that lists the models which `leap pull` brought, and the files that it fetched for them.
    pub(super) fn pulled_list(&self) -> PathBuf {
        self.root.join(".leap-pulled")
    }

    pub(super) fn pulled(&self) -> BTreeSet<String> {
        lines_of(&self.pulled_list())
    }
}

impl Manifest {
    /// Reads a manifest.
    pub(super) fn parse(bytes: &[u8]) -> Result<Manifest, String> {
        let manifest = json::parse(bytes, MANIFEST_VALUES)?;
        let layers = manifest["layers"].as_array().ok_or("is no manifest: it has no layers")?;
        let config = Some(&manifest["config"]).filter(|config| config.is_object());
        let layers = config.into_iter().chain(layers).map(Layer::read);
        Ok(Manifest { layers: layers.collect::<Result<_, _>>()? })
    }

    /// The layer that is a GGUF file.
    pub(super) fn model(&self) -> Result<&Layer, String> {
        if self.layers.iter().any(|layer| layer.kind == ADAPTER) {
            return Err("has an adapter, which LEAP does not apply".to_owned());
        }
        let models: Vec<&Layer> = self.layers.iter().filter(|layer| layer.kind == MODEL).collect();
        match models[..] {
            [model] => Ok(model),
            [] => Err("has no GGUF file".to_owned()),
            [..] => Err("has several GGUF files".to_owned()),
        }
    }
}

impl Layer {
    fn read(layer: &Value) -> Result<Layer, String> {
        let digest = layer["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
        let sha256 =
            digest.filter(|digest| is_hash(digest, 64)).ok_or("names a layer without a SHA-256")?;
        let bytes = layer["size"].as_u64().filter(|bytes| *bytes <= FILE_MAX);
        let bytes = bytes.ok_or("names a layer without a right size")?;
        let kind = layer["mediaType"].as_str().unwrap_or_default().to_owned();
        Ok(Layer { kind, sha256: sha256.to_owned(), bytes })
    }
}
