//! Ollama's registry: a model's manifest and its files, and their download into Ollama's folder.

use std::fs;
use std::sync::Arc;

use super::client::{Client, Trouble};
use super::disk::{add_line, check_room, make_folder, write_file};
use super::shared::Shared;
use super::transfer::{FileHash, WantedFile, fetch, lock};
use crate::store::error::StoreError;
use crate::store::name::OllamaName;
use crate::store::ollama::{Layer, MANIFEST_BYTES, Manifest, OllamaStore};

/// Media type of manifests.
const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// Fetches the model of `name` into Ollama's folder. The manifest comes last: it names only files that are there.
pub(super) fn pull(name: &OllamaName, shared: &Arc<Shared>) -> Result<(), StoreError> {
    let store = OllamaStore::of_user();
    let store = store.ok_or_else(|| StoreError::Runtime("HOME is not set".to_owned()))?;
    let OllamaName { host, namespace, model, tag } = name;
    let client = Arc::new(Client::new(&format!("https://{host}"), None)?);
    let base = format!("{}/v2/{namespace}/{model}", client.origin());
    let url = format!("{base}/manifests/{tag}");
    let body = client.body((&url, &[("accept", MANIFEST)]), MANIFEST_BYTES, shared);
    let body = body.map_err(|trouble| no_model(trouble, name))?;
    let problem = |why: String| StoreError::Input(format!("{name}: its manifest {why}"));
    let manifest = Manifest::parse(&body).map_err(problem)?;
    let gb = manifest.model().map_err(problem)?.bytes as f64 / 1e9;
    shared.note(format!("{name}: {gb:.2} GB"));
    let blobs = store.root.join("blobs");
    make_folder(&blobs)?;
    let wanted = |layer: &Layer| WantedFile {
        url: format!("{base}/blobs/sha256:{}", layer.sha256),
        bytes: layer.bytes,
        hash: FileHash::Sha256(layer.sha256.clone()),
        digest: format!("sha256:{}", layer.sha256),
        path: store.blob_path(&layer.sha256),
    };
    let files: Vec<WantedFile> = manifest.layers.iter().map(wanted).collect();
    let missing = files.iter().map(WantedFile::missing_bytes);
    check_room(&blobs, missing.fold(0, u64::saturating_add))?;
    let path = store.manifest_path(name);
    let is_noted = fs::read(&path).is_ok_and(|there| there == body);
    if is_noted && files.iter().all(WantedFile::is_there) {
        return Ok(());
    }
    let _lock = lock(&store.root.join(".leap-lock"), shared)?;
    for (file, layer) in files.into_iter().zip(&manifest.layers) {
        if !file.is_there() {
            // Before the file has its name: `leap rm` must know it whatever happens.
            add_line(&store.pulled_list(), &layer.sha256)?;
            fetch(&client, file, shared)?;
        }
    }
    if is_noted {
        return Ok(());
    }
    add_line(&store.pulled_list(), &name.to_string())?;
    path.parent().map_or(Ok(()), make_folder)?;
    write_file(&path, &body)
}

/// The failure to read a manifest, in words.
fn no_model(trouble: Trouble, name: &OllamaName) -> StoreError {
    match trouble {
        Trouble::Status { status: 404, .. } => {
            StoreError::Input(format!("there is no model {name} on {}", name.host))
        }
        Trouble::Status { status: 401 | 403, .. } => {
            StoreError::Input(format!("{} gives {name} to its owner alone", name.host))
        }
        other => other.explain(&name.host),
    }
}
