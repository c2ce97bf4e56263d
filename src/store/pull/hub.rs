//! Hugging Face's hub: which files a repository has, and their download into the cache of its programs.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::client::{Client, Trouble, escaped};
use super::disk::{add_line, check_room, make_folder, write_file};
use super::shared::Shared;
use super::transfer::{WantedFile, fetch, lock};
use crate::format::json;
use crate::store::choice::{self, GgufModel, MachineRoom, RepoFile};
use crate::store::error::StoreError;
use crate::store::hub::{HubCache, RepoFolder, is_commit};
use crate::store::name::HubName;
use crate::store::paths::{folder_of, is_inner, small_file};

/// Longest list of a repository's files, and most values in it.
const LIST_BYTES: u64 = 16 << 20;
const LIST_VALUES: usize = 1 << 20;
/// Longest token.
const TOKEN_BYTES: u64 = 4096;

/// Files beside the weights that a checkpoint is read with.
const CONFIGS: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
];

/// A repository as the hub describes it.
struct Listing {
    commit: String,
    files: Vec<ListedFile>,
}

struct ListedFile {
    file: RepoFile,
    /// Name of the content: SHA-256 of large files, else git's hash.
    etag: String,
    sha256: Option<String>,
}

/// Fetches the model of `name` into the cache.
pub(super) fn pull(
    name: &HubName,
    room: &MachineRoom,
    shared: &Arc<Shared>,
) -> Result<(), StoreError> {
    if env::var_os("HF_HUB_OFFLINE").is_some_and(|value| value != "0" && !value.is_empty()) {
        let why = format!("{name} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it");
        return Err(StoreError::Runtime(why));
    }
    let cache = HubCache::of_user();
    let cache = cache.ok_or_else(|| StoreError::Runtime("HOME is not set".to_owned()))?;
    let client = Arc::new(Client::new(&endpoint()?, token()?));
    let listing = list(&client, name, shared)?;
    let files = wanted_files(name, &listing, room, shared)?;
    let repo = cache.repo(&name.repo);
    let blobs = repo.path.join("blobs");
    make_folder(&blobs)?;
    let missing = |file: &&&ListedFile| !blobs.join(&file.etag).is_file();
    check_room(&blobs, files.iter().filter(missing).map(|file| file.file.bytes).sum())?;
    for file in &files {
        fetch_blob(&client, (name, &listing.commit), (&repo, file), shared)
            .map_err(|error| gated(error, &client, name))?;
    }
    let snapshot = repo.snapshot_of(&listing.commit);
    for file in files {
        link(&repo, &snapshot, file)?;
    }
    if !is_commit(name.revision()) {
        let path = repo.path.join("refs").join(name.revision());
        path.parent().map_or(Ok(()), make_folder)?;
        write_file(&path, listing.commit.as_bytes())?;
    }
    Ok(())
}

/// Address of the hub.
fn endpoint() -> Result<String, StoreError> {
    let given = env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
    let endpoint = given.unwrap_or_else(|| "https://huggingface.co".to_owned());
    match endpoint.starts_with("https://") || endpoint.starts_with("http://") {
        true => Ok(endpoint),
        false => {
            Err(StoreError::Input(format!("HF_ENDPOINT is {endpoint:?}, wanted https://HOST")))
        }
    }
}

/// The user's token: `HF_TOKEN`, or the file that `hf auth login` writes.
fn token() -> Result<Option<String>, StoreError> {
    let given = env::var("HF_TOKEN").or_else(|_| env::var("HUGGING_FACE_HUB_TOKEN")).ok();
    let token = match given.filter(|token| !token.trim().is_empty()) {
        Some(token) => token,
        None => {
            let path = folder_of("HF_TOKEN_PATH");
            let path = path.or_else(|| Some(HubCache::settings()?.join("token")));
            let bytes = path.map_or(Ok(None), |path| small_file(&path, TOKEN_BYTES))?;
            String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default()
        }
    };
    let token = token.trim();
    match token.bytes().all(|b| b.is_ascii_graphic()) {
        true => Ok(Some(token.to_owned()).filter(|token| !token.is_empty())),
        false => Err(StoreError::Input("HF_TOKEN holds characters that no token has".to_owned())),
    }
}

fn list(client: &Client, name: &HubName, shared: &Shared) -> Result<Listing, StoreError> {
    let (origin, repo) = (client.origin(), &name.repo);
    let revision = name.revision().replace('/', "%2F");
    let url = format!("{origin}/api/models/{repo}/revision/{revision}?blobs=true");
    let body = client.body((&url, &[("accept", "application/json")]), LIST_BYTES, shared);
    let body = body.map_err(|trouble| no_repository(trouble, client, name))?;
    let wrong = |why: String| StoreError::Runtime(format!("{}: {why}", client.host()));
    let listing =
        json::parse(&body, LIST_VALUES).map_err(|why| wrong(format!("its list {why}")))?;
    let commit = listing["sha"].as_str().filter(|commit| is_commit(commit));
    let commit = commit.ok_or_else(|| wrong("its list names no commit".to_owned()))?.to_owned();
    let files = listing["siblings"].as_array().map_or(&[][..], |files| files);
    let files = files.iter().filter_map(ListedFile::read).collect();
    Ok(Listing { commit, files })
}

impl ListedFile {
    /// Reads a file's entry; none if LEAP could not keep such a file.
    fn read(entry: &Value) -> Option<ListedFile> {
        let path = entry["rfilename"].as_str().filter(|path| is_inner(path))?.to_owned();
        let is_hash = |hash: &&str| {
            matches!(hash.len(), 40 | 64) && hash.bytes().all(|b| b.is_ascii_hexdigit())
        };
        let sha256 = entry["lfs"]["sha256"].as_str().filter(|hash| hash.len() == 64);
        let etag = sha256.or(entry["blobId"].as_str()).filter(is_hash)?.to_owned();
        let bytes = entry["lfs"]["size"].as_u64().or(entry["size"].as_u64())?;
        let file = RepoFile { path, bytes };
        Some(ListedFile { file, etag, sha256: sha256.map(str::to_owned) })
    }
}

/// The files of the model that `name` means.
fn wanted_files<'l>(
    name: &HubName,
    listing: &'l Listing,
    room: &MachineRoom,
    shared: &Shared,
) -> Result<Vec<&'l ListedFile>, StoreError> {
    let files: Vec<RepoFile> = listing.files.iter().map(|file| file.file.clone()).collect();
    let models = choice::models(&files);
    let problem = |why: String| StoreError::Input(format!("{name}: {why}"));
    let model = match (&name.quant, &models[..]) {
        (Some(quant), _) => choice::named(&models, quant).map_err(problem)?,
        (None, []) => return checkpoint_files(name, listing, shared),
        (None, _) => choice::best(&models, room).map_err(problem)?,
    };
    if !model.is_whole() {
        return Err(problem(format!("{} lacks some of its files", model.quant)));
    }
    shared.note(plan(name, (model, &models), room));
    let is_of = |file: &&ListedFile| model.files.contains(&file.file);
    Ok(listing.files.iter().filter(is_of).collect())
}

/// A line about the model that is to be fetched.
fn plan(name: &HubName, (model, models): (&GgufModel, &[GgufModel]), room: &MachineRoom) -> String {
    let bytes = model.bytes();
    let (gb, tokens) = (bytes as f64 / 1e9, room.tokens_per_s(bytes));
    let why = match name.quant.is_none() && models.len() > 1 {
        true => format!(", which suits this machine best of {}", choice::quants(models)),
        false => String::new(),
    };
    let (repo, quant) = (&name.repo, &model.quant);
    format!("{repo}: {quant}{why}; {gb:.2} GB, about {tokens:.0} tokens/s here if it is dense")
}

/// The files of a checkpoint without GGUF files.
fn checkpoint_files<'l>(
    name: &HubName,
    listing: &'l Listing,
    shared: &Shared,
) -> Result<Vec<&'l ListedFile>, StoreError> {
    let of = |is_wanted: &dyn Fn(&str) -> bool| -> Vec<&'l ListedFile> {
        listing.files.iter().filter(|file| is_wanted(&file.file.path)).collect()
    };
    let weights = |start: &str, end: &str| {
        of(&|path| {
            let is_index = path == format!("{start}{end}.index.json");
            is_index || (path.starts_with(start) && path.ends_with(end) && !path.contains('/'))
        })
    };
    let mut files = weights("model", ".safetensors");
    if files.is_empty() {
        files = weights("pytorch_model", ".bin");
    }
    let configs = of(&|path| CONFIGS.contains(&path));
    if files.is_empty() || !configs.iter().any(|file| file.file.path == "config.json") {
        let why = "holds neither a GGUF file nor a checkpoint with config.json";
        return Err(StoreError::Input(format!("{name} {why}")));
    }
    files.extend(configs);
    let gb = files.iter().map(|file| file.file.bytes).sum::<u64>() as f64 / 1e9;
    let repo = &name.repo;
    shared.note(format!("{repo}: a checkpoint of {gb:.2} GB; its weights become int8 here"));
    Ok(files)
}

/// Fetches a file's bytes, if they are not there.
fn fetch_blob(
    client: &Arc<Client>,
    (name, commit): (&HubName, &str),
    (repo, file): (&RepoFolder, &ListedFile),
    shared: &Arc<Shared>,
) -> Result<(), StoreError> {
    let ListedFile { file: RepoFile { path, bytes }, etag, sha256 } = file;
    let url = format!("{}/{}/resolve/{commit}/{}", client.origin(), name.repo, escaped(path));
    let digest = match sha256 {
        Some(sha256) => format!("sha256:{sha256}"),
        None => path.clone(),
    };
    let wanted = WantedFile {
        url,
        bytes: *bytes,
        sha256: sha256.clone(),
        digest,
        path: repo.path.join("blobs").join(etag),
    };
    if wanted.is_there() {
        return Ok(());
    }
    // Hugging Face's programs take the same lock.
    let folder = repo.path.file_name().unwrap_or_default();
    let locks = repo.root.join(".locks").join(folder);
    make_folder(&locks)?;
    let _lock = lock(&locks.join(format!("{etag}.lock")), shared)?;
    if wanted.is_there() {
        return Ok(());
    }
    fetch(client, wanted, shared)?;
    add_line(&repo.pulled_list(), etag)
}

/// Puts a file's name into the snapshot, as a link to its bytes.
fn link(repo: &RepoFolder, snapshot: &Path, file: &ListedFile) -> Result<(), StoreError> {
    let path = snapshot.join(&file.file.path);
    let folder = path.parent().unwrap_or(snapshot);
    make_folder(folder)?;
    let real = |path: &Path| path.canonicalize().map_err(|e| StoreError::io("read", path, &e));
    if !real(folder)?.starts_with(real(&repo.path)?) {
        return Err(StoreError::refused(folder, "is a link that leads out of its folder"));
    }
    let ups = "../".repeat(2 + file.file.path.matches('/').count());
    let target = format!("{ups}blobs/{}", file.etag);
    if fs::read_link(&path).is_ok_and(|old| old == Path::new(&target)) {
        return Ok(());
    }
    match fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(StoreError::io("replace", &path, &e));
        }
        _ => {}
    }
    symlink(&target, &path).map_err(|e| StoreError::io("make", &path, &e))
}

/// The failure to list a repository, in words.
fn no_repository(trouble: Trouble, client: &Client, name: &HubName) -> StoreError {
    let (repo, host) = (&name.repo, client.host());
    match &trouble {
        Trouble::Status { code, .. } if code == "RevisionNotFound" => {
            StoreError::Input(format!("{repo} has no revision {:?} on {host}", name.revision()))
        }
        Trouble::Status { status: 403, .. } => no_access(client, name),
        Trouble::Status { code, .. } if code == "GatedRepo" => no_access(client, name),
        Trouble::Status { status: 401, .. } if client.has_token() => StoreError::Input(format!(
            "{host} refuses the token (HF_TOKEN, or the one of `hf auth login`), or there is no {repo}"
        )),
        Trouble::Status { status: 401 | 404, .. } => StoreError::Input(format!(
            "there is no repository {repo} on {host}, or it is private: then set HF_TOKEN"
        )),
        _ => trouble.explain(host),
    }
}

/// The failure to fetch a file: that of a repository whose licence was not accepted has its own words.
fn gated(error: StoreError, client: &Client, name: &HubName) -> StoreError {
    let text = error.to_string();
    let is_refused = ["status 401", "status 403"].iter().any(|status| text.contains(status));
    match is_refused {
        true => no_access(client, name),
        false => error,
    }
}

fn no_access(client: &Client, name: &HubName) -> StoreError {
    let (origin, repo) = (client.origin(), &name.repo);
    let token = if client.has_token() { "with this token's account" } else { "and set HF_TOKEN" };
    StoreError::Input(format!("{repo} is gated: accept its licence at {origin}/{repo}, {token}"))
}
