//! Removal of models that `leap pull` brought.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::found::FoundModel;
use super::hub::{HubCache, RepoFolder};
use super::name::ModelName;
use super::ollama::{MANIFEST_BYTES, OllamaStore};
use super::paths::{files_below, names_in, small_file};
use crate::format::Shard;
use crate::sys::file;

/// Ends of the names of files that have arrived in part.
const PARTS: [&str; 2] = [".leap-part", ".leap-part.pieces"];

/// Removes the files of `model` that `leap pull` brought, and returns their bytes. Files of other programs stay, and those
/// that another model shares.
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

/// Removes what has arrived of the repository of `name`, and returns its bytes.
///
/// # Errors
/// If a file cannot be removed.
pub(crate) fn remove_parts(name: &ModelName) -> Result<u64, StoreError> {
    let blobs = match name {
        ModelName::Hub(name) => HubCache::of_user().map(|c| c.repo(&name.repo).path.join("blobs")),
        ModelName::Ollama(_) => OllamaStore::of_user().map(|store| store.root.join("blobs")),
    };
    let Some(folder) = blobs else { return Ok(0) };
    let mut bytes = 0;
    for name in names_in(&folder).iter().filter(|n| PARTS.iter().any(|end| n.ends_with(end))) {
        bytes += removed(&folder.join(name))?;
    }
    Ok(bytes)
}

/// Removes the links to blobs that `leap pull` brought, and those blobs that no link names any more.
fn remove_of_hub(repo: &RepoFolder, path: &Path) -> Result<u64, StoreError> {
    let links: Vec<PathBuf> = match path.is_dir() {
        true => files_below(path).iter().map(|file| path.join(&file.path)).collect(),
        false => Shard::all(path),
    };
    let mut pulled = repo.pulled_blobs();
    let mut own = BTreeSet::new();
    for link in links {
        let Some((name, blob)) = blob_of(&link).filter(|(name, _)| pulled.contains(name)) else {
            continue;
        };
        gone(fs::remove_file(&link), &link)?;
        own.insert((name, blob));
    }
    let still_named = named_blobs(repo);
    let mut bytes = 0;
    for (name, blob) in own.into_iter().filter(|(_, blob)| !still_named.contains(blob)) {
        bytes += removed(&blob)?;
        pulled.remove(&name);
    }
    write_list(&repo.pulled_list(), &pulled)?;
    if still_named.is_empty() && names_in(&repo.path.join("blobs")).is_empty() {
        gone(fs::remove_dir_all(&repo.path), &repo.path)?;
    }
    Ok(bytes)
}

/// Name and path of the blob that a link leads to.
fn blob_of(link: &Path) -> Option<(String, PathBuf)> {
    let blob = link.canonicalize().ok()?;
    let name = blob.file_name()?.to_str()?.to_owned();
    Some((name, blob))
}

/// The blobs that links of snapshots name.
fn named_blobs(repo: &RepoFolder) -> BTreeSet<PathBuf> {
    let snapshots = repo.path.join("snapshots");
    let files = files_below(&snapshots);
    files.iter().filter_map(|file| snapshots.join(&file.path).canonicalize().ok()).collect()
}

/// Removes a manifest, and the blobs that `leap pull` fetched for it and no other manifest names.
fn remove_of_ollama(store: &OllamaStore, name: &str) -> Result<u64, StoreError> {
    let mut pulled = store.pulled();
    let own = store.names().into_iter().find(|other| other.to_string() == name);
    let Some(own) = own else { return Ok(0) };
    let layers = store.manifest(&own)?.map_or_else(Vec::new, |manifest| manifest.layers);
    let path = store.manifest_path(&own);
    gone(fs::remove_file(&path), &path)?;
    pulled.remove(name);
    // Manifests of any kind count, also those that LEAP cannot use.
    let manifests = store.root.join("manifests");
    let mut others = Vec::new();
    for file in files_below(&manifests) {
        match small_file(&manifests.join(&file.path), MANIFEST_BYTES) {
            Ok(bytes) => others.extend(bytes.unwrap_or_default()),
            Err(why) => {
                write_list(&store.pulled_list(), &pulled)?;
                let why = format!("{name} is removed, but its files stay: {why}");
                return Err(StoreError::Input(why));
            }
        }
    }
    let others = String::from_utf8_lossy(&others);
    let mut bytes = 0;
    for sha256 in layers.into_iter().map(|layer| layer.sha256) {
        if pulled.contains(&sha256) && !others.contains(&sha256) {
            bytes += removed(&store.blob_path(&sha256))?;
            pulled.remove(&sha256);
        }
    }
    write_list(&store.pulled_list(), &pulled)?;
    Ok(bytes)
}

/// Writes the list at `path`.
fn write_list(path: &Path, lines: &BTreeSet<String>) -> Result<(), StoreError> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    // A link would be followed.
    if path.is_symlink() {
        return Err(StoreError::refused(path, "is a link"));
    }
    file::write_whole(path, text.as_bytes()).map_err(|e| StoreError::io("write", path, &e))
}

/// Removes the file at `path`, and returns its bytes on the disk.
fn removed(path: &Path) -> Result<u64, StoreError> {
    use std::os::unix::fs::MetadataExt;

    let bytes = fs::symlink_metadata(path).map_or(0, |file| file.blocks() * 512);
    gone(fs::remove_file(path), path)?;
    Ok(bytes)
}

/// The result of a removal; a file that was missing before is no failure.
fn gone(result: io::Result<()>, path: &Path) -> Result<(), StoreError> {
    match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", path, &e)),
        _ => Ok(()),
    }
}
