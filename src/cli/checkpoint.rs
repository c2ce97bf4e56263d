//! Checkpoints of other programs, given instead of a model file.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::format::Shard;
use crate::model::LoadError;

/// Where a checkpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CheckpointPath {
    /// A GGUF file.
    Gguf(PathBuf),
    /// A folder, Hugging Face's or Meta's.
    Folder(PathBuf),
}

/// Files that say what model is in their folder.
const CONFIGS: [&str; 2] = ["config.json", "params.json"];

impl CheckpointPath {
    /// The checkpoint at `path`, or the checkpoint that the file `path` belongs to, judged by content; `None` if there
    /// is none.
    pub(super) fn at(path: &Path) -> Option<CheckpointPath> {
        let has_config = |folder: &Path| CONFIGS.iter().any(|name| folder.join(name).is_file());
        if path.is_dir() {
            return match has_config(path) {
                true => Some(CheckpointPath::Folder(path.to_owned())),
                false => GgufFolder::read(path).only().map(CheckpointPath::Gguf),
            };
        }
        if !path.is_file() {
            return None;
        }
        let mut start = Vec::new();
        File::open(path).ok()?.take(9).read_to_end(&mut start).ok()?;
        if start.starts_with(b"GGUF") {
            let first =
                Shard::of(path).map(|shard| shard.first(path)).filter(|path| path.is_file());
            return Some(CheckpointPath::Gguf(first.unwrap_or_else(|| path.to_owned())));
        }
        let folder = match path.parent()? {
            folder if folder.as_os_str().is_empty() => Path::new("."),
            folder => folder,
        };
        // A safetensors file starts with the length of its JSON header, a PyTorch file is a zip
        // archive or, before 1.6, a pickle.
        let is_part = matches!(&*start, [_, _, _, _, 0, 0, 0, 0, b'{'])
            || start.starts_with(b"PK\x03\x04")
            || start.starts_with(&[0x80, 2])
            || (start.starts_with(b"{") && path.extension().is_some_and(|name| name == "json"));
        (is_part && has_config(folder)).then(|| CheckpointPath::Folder(folder.to_owned()))
    }

    /// Path of the file or folder.
    pub(super) fn path(&self) -> &Path {
        let (CheckpointPath::Gguf(path) | CheckpointPath::Folder(path)) = self;
        path
    }

    /// The command that converts the checkpoint to a model file.
    pub(super) fn command(&self) -> String {
        let option = match self {
            CheckpointPath::Gguf(_) => "--gguf",
            CheckpointPath::Folder(_) => "--meta-llama",
        };
        let out = format!("{}.bin", self.name());
        format!("leap export {} {option} {}", quoted(Path::new(&out)), quoted(self.path()))
    }

    /// A name for the converted model: that of the file or folder, without its ending.
    pub(super) fn name(&self) -> String {
        let name = match self {
            CheckpointPath::Gguf(path) => path.file_stem().map(ToOwned::to_owned),
            CheckpointPath::Folder(path) => {
                // `.` and `..` have names too.
                let path = path.canonicalize().unwrap_or_else(|_| path.clone());
                path.file_name().map(ToOwned::to_owned)
            }
        };
        name.map_or("model".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    /// Says that `path`, this checkpoint or a part of it, is no model file, and what makes one.
    pub(super) fn refuse(&self, path: &Path) -> Failure {
        let what = match self {
            CheckpointPath::Gguf(_) => "a GGUF file",
            CheckpointPath::Folder(folder) if folder == path => "the folder of a checkpoint",
            CheckpointPath::Folder(_) => "a file of a checkpoint",
        };
        // A program without `tools` has no command that converts, and `run` does not convert either.
        let (by_itself, elsewhere) = match cfg!(feature = "tools") {
            true => ("; `leap run` does so by itself", ""),
            false => ("", " on a computer, as this program does not convert"),
        };
        let (path, command) = (path.display(), self.command());
        Failure::Input(format!(
            "{path} is {what}, not a model file; `{command}` makes one{elsewhere}{by_itself}"
        ))
    }
}

/// The failure for a model file that could not be opened. If it is a checkpoint, the message says what to do.
pub(super) fn load_failure(error: &LoadError) -> Failure {
    let (LoadError::Io { path, .. } | LoadError::Format { path, .. }) = error;
    match CheckpointPath::at(path) {
        Some(checkpoint) => checkpoint.refuse(path),
        None if path.is_dir() => Failure::Input(GgufFolder::read(path).problem(path)),
        None => Failure::input(error),
    }
}

/// The GGUF file that `path` stands for: `path` itself, or the only model of a folder.
#[cfg(feature = "tools")]
pub(super) fn gguf_at(path: &Path) -> Result<PathBuf, Failure> {
    if path.is_dir() {
        let folder = GgufFolder::read(path);
        return folder.only().ok_or_else(|| Failure::Input(folder.problem(path)));
    }
    match CheckpointPath::at(path) {
        Some(CheckpointPath::Gguf(first)) => Ok(first),
        _ => Ok(path.to_owned()),
    }
}

/// The GGUF files of a folder.
struct GgufFolder {
    /// Whole models, and the first files of models in several.
    models: Vec<PathBuf>,
    /// A later file of a model whose first file is missing.
    headless: Option<PathBuf>,
}

impl GgufFolder {
    /// Most names that a message lists.
    const LISTED: usize = 8;

    fn read(folder: &Path) -> GgufFolder {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "gguf") && path.is_file());
        // Vision parts and calibration data are no models.
        let is_beside = |name: &str| name.contains("mmproj") || name.contains("imatrix");
        paths.retain(|path| !name_of(path).starts_with('.') && !is_beside(&name_of(path)));
        paths.sort();
        let is_first = |path: &&PathBuf| Shard::of(path).is_none_or(|shard| shard.index == 1);
        let models = paths.iter().filter(is_first).cloned().collect();
        let lacks_first =
            |path: &&PathBuf| Shard::of(path).is_some_and(|s| !s.first(path).is_file());
        let headless = paths.iter().find(lacks_first).cloned();
        GgufFolder { models, headless }
    }

    /// The model, if the folder has exactly one.
    fn only(&self) -> Option<PathBuf> {
        match &self.models[..] {
            [model] if self.headless.is_none() => Some(model.clone()),
            _ => None,
        }
    }

    /// Why the folder at `path` is no model, and what to do.
    fn problem(&self, path: &Path) -> String {
        let shown = path.display();
        if let Some((other, shard)) = self.headless.as_ref().and_then(|p| Some((p, Shard::of(p)?)))
        {
            let (part, first) = (name_of(other), name_of(&shard.first(other)));
            return format!(
                "{shown} holds {part} without {first}: download all {} files of the model to one folder",
                shard.count.trim_start_matches('0')
            );
        }
        if self.models.is_empty() {
            return format!(
                "{shown} is a folder without a model: neither config.json nor params.json nor a GGUF file; \
                 name a model file, or the folder of a checkpoint"
            );
        }
        let names: Vec<String> = self.models.iter().map(|path| name_of(path)).collect();
        let rest = if names.len() > GgufFolder::LISTED { ", …" } else { "" };
        let listed = names[..names.len().min(GgufFolder::LISTED)].join(", ");
        format!("{shown} holds {} GGUF models; name one of them: {listed}{rest}", names.len())
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// `path`, quoted as one word for a shell.
pub(super) fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,=".contains(c);
    match !path.is_empty() && path.chars().all(is_plain) {
        true => path,
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
    }

    #[test]
    fn checkpoints_are_known_by_their_bytes() {
        let gguf = golden("gguf/model.gguf");
        assert_eq!(CheckpointPath::at(&gguf), Some(CheckpointPath::Gguf(gguf)));
        for (part, folder) in [
            ("llama3-tiny", "llama3-tiny"),
            ("llama3-tiny/config.json", "llama3-tiny"),
            ("llama3-tiny/model-00002-of-00004.safetensors", "llama3-tiny"),
            ("llama3-tiny/model.safetensors.index.json", "llama3-tiny"),
            ("mistral-tiny/pytorch_model.bin", "mistral-tiny"),
            ("llama2-meta-tiny/consolidated.00.pth", "llama2-meta-tiny"),
        ] {
            let wanted = Some(CheckpointPath::Folder(golden(folder)));
            assert_eq!(CheckpointPath::at(&golden(part)), wanted, "{part}");
        }
        for none in ["", "no such file", "gguf/golden.json", "llama3-tiny/tokenizer.model"] {
            assert_eq!(CheckpointPath::at(&golden(none)), None, "{none}");
        }
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo.bin");
        assert_eq!(CheckpointPath::at(&demo), None);
    }

    #[test]
    fn command_is_one_for_the_shell() {
        let gguf = CheckpointPath::Gguf("my models/it's.Q8_0.gguf".into());
        let command = r"leap export 'it'\''s.Q8_0.bin' --gguf 'my models/it'\''s.Q8_0.gguf'";
        assert_eq!(gguf.command(), command);
        let folder = CheckpointPath::Folder("/m/Llama-3.2-1B/".into());
        assert_eq!(folder.command(), "leap export Llama-3.2-1B.bin --meta-llama /m/Llama-3.2-1B/");
    }
}
