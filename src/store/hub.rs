//! The folder in which Hugging Face's programs keep the hub's models, laid out as `huggingface_hub` does:
//! `models--ORG--REPO` holds `refs` (a branch's commit), `snapshots` (a commit's files, which are links) and
//! `blobs` (their bytes).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::choice::{self, GgufModel, MachineRoom, RepoFile};
use super::error::StoreError;
use super::found::FoundModel;
use super::name::HubName;
use super::name::ModelName;
use super::paths::{
    check_inside, files_below, folder_of, home, is_hash, lines_of, names_in, small_file,
};
use crate::format::{Suggested, json};

/// Longest file that lists a model's files, and most values in it.
const INDEX_BYTES: u64 = 64 << 20;
const INDEX_VALUES: usize = 4 << 20;

/// The hub's models on this machine.
pub(super) struct HubCache {
    root: PathBuf,
}

/// The folders and files of one repository.
pub(super) struct RepoFolder {
    /// Folder of all repositories.
    pub(super) root: PathBuf,
    pub(super) path: PathBuf,
}

impl HubCache {
    /// The folder that `huggingface_hub` takes for this user; `None` if the home is unknown.
    pub(super) fn of_user() -> Option<HubCache> {
        let given = folder_of("HF_HUB_CACHE").or_else(|| folder_of("HUGGINGFACE_HUB_CACHE"));
        let root = given.or_else(|| Some(HubCache::settings()?.join("hub")))?;
        Some(HubCache { root })
    }

    /// Folder of all that Hugging Face's programs keep for this user.
    pub(super) fn settings() -> Option<PathBuf> {
        let cache = || folder_of("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")));
        folder_of("HF_HOME").or_else(|| Some(cache()?.join("huggingface")))
    }

    pub(super) fn repo(&self, repo: &str) -> RepoFolder {
        let path = self.root.join(format!("models--{}", repo.replace('/', "--")));
        RepoFolder { root: self.root.clone(), path }
    }

    pub(super) fn find(
        &self,
        name: &HubName,
        room: &dyn Fn() -> MachineRoom,
    ) -> Result<Option<FoundModel>, StoreError> {
        let repo = self.repo(&name.repo);
        let Some(snapshot) = repo.snapshot(name.revision())? else { return Ok(None) };
        let files = files_below(&snapshot);
        let models = whole_models(&files);
        let problem = |why: String| StoreError::Input(format!("{name}: {why}"));
        let model = match (&name.quant, &models[..]) {
            (Some(quant), _) => choice::named(&models, quant).map_err(problem)?,
            (None, []) => None,
            (None, [only]) => Some(only),
            (None, _) => Some(choice::best(&models, &room()).map_err(problem)?),
        };
        if let Some(model) = model {
            return repo.gguf(&snapshot, (name, model)).map(Some);
        }
        match name.quant.is_none() && is_whole_checkpoint(&snapshot, &files)? {
            true => repo.checkpoint(&snapshot, (name, &files)).map(Some),
            false => Ok(None),
        }
    }

    /// All models that can be named. Damaged ones are skipped.
    pub(super) fn all(&self) -> Vec<FoundModel> {
        let repos = names_in(&self.root).into_iter();
        let repos = repos.filter_map(|folder| {
            let repo = folder.strip_prefix("models--")?.replacen("--", "/", 1);
            // A folder that no name stands for cannot be asked for.
            matches!(ModelName::parse(&format!("hf:{repo}")), Some(Ok(_))).then_some(repo)
        });
        repos.flat_map(|repo| self.models_of(&repo)).collect()
    }

    fn models_of(&self, repo_name: &str) -> Vec<FoundModel> {
        let repo = self.repo(repo_name);
        let mut all = Vec::new();
        for commit in names_in(&repo.path.join("snapshots")) {
            let snapshot = repo.path.join("snapshots").join(&commit);
            let name = |quant: Option<&str>| HubName {
                repo: repo_name.to_owned(),
                quant: quant.map(str::to_owned),
                revision: repo.revision_of(&commit),
            };
            let files = files_below(&snapshot);
            let models = whole_models(&files);
            for model in &models {
                all.extend(
                    repo.gguf(&snapshot, (&name(Some(&quant_among(model, &models))), model)),
                );
            }
            // A name without a quantisation means the GGUF files where there are some.
            if models.is_empty() && is_whole_checkpoint(&snapshot, &files) == Ok(true) {
                all.extend(repo.checkpoint(&snapshot, (&name(None), &files)));
            }
        }
        all
    }
}

impl RepoFolder {
    /// Refuses a link that leads out of the cache. The repository's folder, or that of its blobs, may be on another disk.
    fn check_inside(&self, path: &Path) -> Result<(), StoreError> {
        check_inside(path, &[&self.root, &self.path, &self.path.join("blobs")])
    }

    /// The folder with the files of `revision`, if it is there.
    fn snapshot(&self, revision: &str) -> Result<Option<PathBuf>, StoreError> {
        let commit = match is_commit(revision) {
            true => Some(revision.to_owned()),
            false => self.commit_of(revision)?,
        };
        let folder = commit.map(|commit| self.snapshot_of(&commit));
        Ok(folder.filter(|folder| folder.is_dir()))
    }

    pub(super) fn snapshot_of(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
    }

    /// The commit that a branch or tag had when it was fetched.
    fn commit_of(&self, revision: &str) -> Result<Option<String>, StoreError> {
        let path = self.path.join("refs").join(revision);
        let Some(bytes) = small_file(&path, 256)? else { return Ok(None) };
        let commit = String::from_utf8_lossy(&bytes).trim().to_owned();
        match is_commit(&commit) {
            true => Ok(Some(commit)),
            false => Err(StoreError::refused(&path, "holds no commit")),
        }
    }

    /// The revision that names the snapshot of `commit`; none for that of the main branch.
    fn revision_of(&self, commit: &str) -> Option<String> {
        let is_of = |name: &str| self.commit_of(name).ok().flatten().as_deref() == Some(commit);
        if is_of("main") {
            return None;
        }
        let refs = files_below(&self.path.join("refs")).into_iter().map(|file| file.path);
        refs.into_iter().find(|name| is_of(name)).or_else(|| Some(commit.to_owned()))
    }

    fn gguf(
        &self,
        snapshot: &Path,
        (name, model): (&HubName, &GgufModel),
    ) -> Result<FoundModel, StoreError> {
        let path = |file: &RepoFile| snapshot.join(&file.path);
        for file in &model.files {
            self.check_inside(&path(file))?;
        }
        let quant = name.quant.clone().unwrap_or_else(|| model.quant.clone());
        let name = HubName { quant: Some(quant), ..name.clone() };
        let files: Vec<&RepoFile> = model.files.iter().collect();
        Ok(self.found(name, path(&model.files[0]), (snapshot, &files)))
    }

    fn checkpoint(
        &self,
        snapshot: &Path,
        (name, files): (&HubName, &[RepoFile]),
    ) -> Result<FoundModel, StoreError> {
        for file in files {
            self.check_inside(&snapshot.join(&file.path))?;
        }
        let files: Vec<&RepoFile> = files.iter().collect();
        Ok(self.found(name.clone(), snapshot.to_owned(), (snapshot, &files)))
    }

    fn found(
        &self,
        name: HubName,
        path: PathBuf,
        (snapshot, files): (&Path, &[&RepoFile]),
    ) -> FoundModel {
        let pulled = self.pulled_blobs();
        let is_own = |file: &&RepoFile| {
            let target = snapshot.join(&file.path).canonicalize().ok();
            let blob = target.as_deref().and_then(Path::file_name).and_then(|blob| blob.to_str());
            blob.is_some_and(|blob| pulled.contains(blob))
        };
        FoundModel {
            name: ModelName::Hub(name),
            path,
            bytes: files.iter().map(|file| file.bytes).fold(0, u64::saturating_add),
            is_pulled: files.iter().any(is_own),
            suggested: Suggested::default(),
        }
    }

    /// The file that lists the blobs which `leap pull` brought.
    pub(super) fn pulled_list(&self) -> PathBuf {
        self.path.join(".leap-pulled")
    }

    pub(super) fn pulled_blobs(&self) -> BTreeSet<String> {
        lines_of(&self.pulled_list())
    }
}

/// Whether `revision` is a commit's full name.
pub(super) fn is_commit(revision: &str) -> bool {
    is_hash(revision, 40)
}

/// The quantisation of `model`, or its file if others of `models` have the same.
fn quant_among(model: &GgufModel, models: &[GgufModel]) -> String {
    match models.iter().filter(|other| other.quant == model.quant).count() {
        1 => model.quant.clone(),
        _ => model.file_name(),
    }
}

fn whole_models(files: &[RepoFile]) -> Vec<GgufModel> {
    choice::models(files).into_iter().filter(GgufModel::is_whole).collect()
}

/// Whether `files` in `folder` are a checkpoint with all its weights.
fn is_whole_checkpoint(folder: &Path, files: &[RepoFile]) -> Result<bool, StoreError> {
    let has = |name: &str| files.iter().any(|file| file.path == name);
    if !has("config.json") {
        return Ok(false);
    }
    for weights in ["model.safetensors", "pytorch_model.bin"] {
        let index = format!("{weights}.index.json");
        if has(&index) {
            let names = weight_files(&folder.join(index))?;
            return Ok(!names.is_empty() && names.iter().all(|name| has(name)));
        }
        if has(weights) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The files that an index of weights names.
pub(super) fn weight_files(index: &Path) -> Result<BTreeSet<String>, StoreError> {
    let bytes = small_file(index, INDEX_BYTES)?.unwrap_or_default();
    let index = json::parse(&bytes, INDEX_VALUES).map_err(|e| StoreError::refused(index, &e))?;
    let map = index["weight_map"].as_object().into_iter().flatten();
    Ok(map.filter_map(|(_, file)| file.as_str()).map(str::to_owned).collect())
}
