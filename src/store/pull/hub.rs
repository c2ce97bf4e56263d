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
use super::transfer::{FileHash, WantedFile, fetch, lock};
use crate::format::json;
use crate::store::choice::{self, GgufModel, MachineRoom, RepoFile};
use crate::store::error::StoreError;
use crate::store::hub::{HubCache, RepoFolder, is_commit};
use crate::store::name::HubName;
use crate::store::paths::{FILE_MAX, check_inside, folder_of, is_hash, is_inner, small_file};

/// Longest list of a repository's files, and most values in it.
const LIST_BYTES: u64 = 16 << 20;
const LIST_VALUES: usize = 1 << 20;
/// Longest token.
const TOKEN_BYTES: u64 = 4096;

/// Files beside the weights that a checkpoint is read with.
const CONFIGS: [&str; 12] = [
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
    "additional_chat_templates/tool_use.jinja",
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
}

/// Fetches the model of `name` into the cache.
pub(super) fn pull(
    name: &HubName,
    room: &MachineRoom,
    shared: &Arc<Shared>,
) -> Result<(), StoreError> {
    let cache = HubCache::of_user();
    let cache = cache.ok_or_else(|| StoreError::Runtime("HOME is not set".to_owned()))?;
    if is_offline() {
        let why = format!("{name} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it");
        let found = cache.find(name, &|| *room)?;
        return found.map(|_| ()).ok_or(StoreError::Runtime(why));
    }
    let client = Arc::new(Client::new(&endpoint()?, token()?)?);
    let listing = list(&client, name, shared)?;
    let files = wanted_files(name, &listing, room, shared)?;
    let repo = cache.repo(&name.repo);
    let snapshot = repo.snapshot_of(&listing.commit);
    // A cache without links has the files themselves.
    let is_missing = |file: &&ListedFile| {
        let there = fs::metadata(snapshot.join(&file.file.path));
        !there.is_ok_and(|there| there.is_file() && there.len() == file.file.bytes)
    };
    let files: Vec<&ListedFile> = files.into_iter().filter(is_missing).collect();
    fetch_all(&client, (name, &listing.commit), (&repo, &files), shared)
        .map_err(|error| gated(error, &client, name))?;
    for file in files {
        link(&repo, &snapshot, file)?;
    }
    let path = repo.path.join("refs").join(name.revision());
    let is_noted = fs::read(&path).is_ok_and(|there| there == listing.commit.as_bytes());
    if !is_commit(name.revision()) && !is_noted {
        make_inner_folder(&repo, path.parent().unwrap_or(&repo.path))?;
        write_file(&path, listing.commit.as_bytes())?;
    }
    Ok(())
}

/// Whether the user forbids downloads, as `huggingface_hub` reads it.
fn is_offline() -> bool {
    let value = env::var("HF_HUB_OFFLINE").unwrap_or_default().to_ascii_uppercase();
    ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
}

/// Fetches the bytes of all `files` that are not there.
fn fetch_all(
    client: &Arc<Client>,
    (name, commit): (&HubName, &str),
    (repo, files): (&RepoFolder, &[&ListedFile]),
    shared: &Arc<Shared>,
) -> Result<(), StoreError> {
    if files.is_empty() {
        return Ok(());
    }
    let blobs = repo.path.join("blobs");
    make_folder(&blobs)?;
    let wanted = |file: &&ListedFile| wanted(client, (name, commit), (repo, file));
    let missing = files.iter().map(|file| wanted(file).missing_bytes());
    check_room(&blobs, missing.fold(0, u64::saturating_add))?;
    for file in files {
        fetch_blob(client, wanted(file), (repo, file), shared)?;
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
    let listing = json::parse(&body, LIST_VALUES)
        .map_err(|why| wrong(format!("its list is wrong: {why}")))?;
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
        let is_known = |hash: &&str| is_hash(hash, 40) || is_hash(hash, 64);
        let sha256 = entry["lfs"]["sha256"].as_str().filter(|hash| hash.len() == 64);
        let etag = sha256.or(entry["blobId"].as_str()).filter(is_known)?.to_owned();
        let bytes = entry["lfs"]["size"].as_u64().or(entry["size"].as_u64())?;
        let file = RepoFile { path, bytes };
        (bytes <= FILE_MAX).then_some(ListedFile { file, etag })
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
        (Some(quant), _) => {
            let none =
                || format!("no GGUF file is called {quant}; there are {}", choice::quants(&models));
            choice::named(&models, quant)
                .and_then(|model| model.ok_or_else(none))
                .map_err(problem)?
        }
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
    // One file, or several that an index names.
    let weights = |start: &str, end: &str| {
        let (whole, index) = (format!("{start}{end}"), format!("{start}{end}.index.json"));
        let has = |name: &str| listing.files.iter().any(|file| file.file.path == name);
        let is_shard = |path: &str| {
            let number = path.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
            number.is_some_and(|number| number.starts_with('-') && number.contains("-of-"))
        };
        match (has(&index), has(&whole)) {
            (true, _) => of(&|path| path == index || is_shard(path)),
            (false, true) => of(&|path| path == whole),
            (false, false) => Vec::new(),
        }
    };
    let mut files = weights("model", ".safetensors");
    if files.is_empty() {
        files = weights("pytorch_model", ".bin");
    }
    let configs = of(&|path| CONFIGS.contains(&path));
    if files.is_empty() || !configs.iter().any(|file| file.file.path == "config.json") {
        let why = "holds neither a GGUF file nor a checkpoint: config.json with model.safetensors, or with its index";
        return Err(StoreError::Input(format!("{name} {why}")));
    }
    files.extend(configs);
    let bytes = files.iter().map(|file| file.file.bytes).fold(0, u64::saturating_add);
    let gb = bytes as f64 / 1e9;
    let repo = &name.repo;
    shared.note(format!("{repo}: a checkpoint of {gb:.2} GB; its weights become int8 here"));
    Ok(files)
}

/// A file's bytes, where they come from and where they go.
fn wanted(
    client: &Client,
    (name, commit): (&HubName, &str),
    (repo, file): (&RepoFolder, &ListedFile),
) -> WantedFile {
    let ListedFile { file: RepoFile { path, bytes }, etag } = file;
    let (hash, digest) = match etag.len() {
        64 => (FileHash::Sha256(etag.clone()), format!("sha256:{etag}")),
        _ => (FileHash::Git(etag.clone()), path.clone()),
    };
    WantedFile {
        url: format!("{}/{}/resolve/{commit}/{}", client.origin(), name.repo, escaped(path)),
        bytes: *bytes,
        hash,
        digest,
        path: repo.path.join("blobs").join(etag),
    }
}

/// Fetches a file's bytes, if they are not there.
fn fetch_blob(
    client: &Arc<Client>,
    wanted: WantedFile,
    (repo, file): (&RepoFolder, &ListedFile),
    shared: &Arc<Shared>,
) -> Result<(), StoreError> {
    if wanted.is_there() {
        return Ok(());
    }
    // Hugging Face's programs take the same lock.
    let folder = repo.path.file_name().unwrap_or_default();
    let locks = repo.root.join(".locks").join(folder);
    make_folder(&locks)?;
    let _lock = lock(&locks.join(format!("{}.lock", file.etag)), shared)?;
    if wanted.is_there() {
        return Ok(());
    }
    // Before the file has its name: `leap rm` must know it whatever happens.
    add_line(&repo.pulled_list(), &file.etag)?;
    fetch(client, wanted, shared)
}

/// Makes `folder` in the repository's folder, unless a link leads out of it.
fn make_inner_folder(repo: &RepoFolder, folder: &Path) -> Result<(), StoreError> {
    let there = folder.ancestors().find(|folder| folder.exists() || folder.is_symlink());
    check_inside(there.unwrap_or(folder), &[&repo.path])?;
    make_folder(folder)
}

/// Puts a file's name into the snapshot, as a link to its bytes.
fn link(repo: &RepoFolder, snapshot: &Path, file: &ListedFile) -> Result<(), StoreError> {
    let path = snapshot.join(&file.file.path);
    make_inner_folder(repo, path.parent().unwrap_or(snapshot))?;
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
    match error.to_string().contains("GatedRepo") {
        true => no_access(client, name),
        false => error,
    }
}

fn no_access(client: &Client, name: &HubName) -> StoreError {
    let (host, repo) = (client.host(), &name.repo);
    let token = if client.has_token() { "with this token's account" } else { "and set HF_TOKEN" };
    StoreError::Input(format!("{repo} is gated: accept its licence at {host}/{repo}, {token}"))
}
