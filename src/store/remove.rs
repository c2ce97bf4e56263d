//! Removal of models that `leap pull` brought.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::found::FoundModel;
use super::hub::{HubCache, RepoFolder};
use super::name::ModelName;
use super::ollama::OllamaStore;
use super::paths::{files_below, names_in};
use crate::format::Shard;

/// Removes the files of `model` that `leap pull` brought, and returns their bytes. Files that another model shares stay.
///
/// # Errors
/// If another program brought the model, or a file cannot be removed.
pub(crate) fn remove(model: &FoundModel) -> Result<u64, StoreError> {
    if !model.is_pulled {
        let (name, path) = (&model.name, model.path.display());
        let why = "was not brought by `leap pull`; remove it with the program that did so";
        return Err(StoreError::Input(format!("{name} {why}: {path}")));
    }
    match &model.name {
        ModelName::Hub(name) => {
            let cache = HubCache::of_user();
            cache.map_or(Ok(0), |cache| remove_of_hub(&cache.repo(&name.repo), &model.path))
        }
        ModelName::Ollama(name) => {
            let stores = OllamaStore::all().into_iter();
            let mut own = stores.filter(|store| model.path.starts_with(&store.root));
            own.next().map_or(Ok(0), |store| remove_of_ollama(&store, &name.to_string()))
        }
    }
}

/// Removes the links of a model, and blobs that no link names any more.
fn remove_of_hub(repo: &RepoFolder, path: &Path) -> Result<u64, StoreError> {
    let links: Vec<PathBuf> = match path.is_dir() {
        true => files_below(path).iter().map(|file| path.join(&file.path)).collect(),
        false => Shard::all(path),
    };
    let blobs: BTreeSet<PathBuf> =
        links.iter().filter_map(|link| link.canonicalize().ok()).collect();
    for link in &links {
        gone(fs::remove_file(link), link)?;
    }
    let pulled = repo.pulled_blobs();
    let still_named = named_blobs(repo);
    let mut bytes = 0;
    for blob in blobs {
        let name = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if pulled.contains(name) && !still_named.contains(&blob) {
            bytes += fs::metadata(&blob).map_or(0, |file| file.len());
            gone(fs::remove_file(&blob), &blob)?;
        }
    }
    if named_blobs(repo).is_empty() && names_in(&repo.path.join("blobs")).is_empty() {
        gone(fs::remove_dir_all(&repo.path), &repo.path)?;
    }
    Ok(bytes)
}

/// The blobs that links of snapshots name.
fn named_blobs(repo: &RepoFolder) -> BTreeSet<PathBuf> {
    let snapshots = repo.path.join("snapshots");
    let files = files_below(&snapshots);
    files.iter().filter_map(|file| snapshots.join(&file.path).canonicalize().ok()).collect()
}

/// Removes a manifest, and blobs that no other manifest names.
fn remove_of_ollama(store: &OllamaStore, name: &str) -> Result<u64, StoreError> {
    let mut own = Vec::new();
    let mut others = BTreeSet::new();
    let mut path = None;
    for other in store.names() {
        let layers = store.manifest(&other).ok().flatten().map_or_else(Vec::new, |m| m.layers);
        match other.to_string() == name {
            true => {
                path = Some(store.manifest_path(&other));
                own = layers;
            }
            false => others.extend(layers.into_iter().map(|layer| layer.sha256)),
        }
    }
    if let Some(path) = path {
        gone(fs::remove_file(&path), &path)?;
    }
    let mut bytes = 0;
    for layer in own.iter().filter(|layer| !others.contains(&layer.sha256)) {
        let blob = store.blob_path(&layer.sha256);
        bytes += fs::metadata(&blob).map_or(0, |file| file.len());
        gone(fs::remove_file(&blob), &blob)?;
    }
    Ok(bytes)
}

/// The result of a removal; a file that was missing before is no failure.
fn gone(result: io::Result<()>, path: &Path) -> Result<(), StoreError> {
    match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", path, &e)),
        _ => Ok(()),
    }
}
