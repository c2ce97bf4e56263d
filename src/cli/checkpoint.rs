//! Checkpoints of other programs, where somebody gives one instead of a model file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Failure;
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
    /// The checkpoint at `path`, or that the file `path` belongs to, judged by content; `None` if
    /// there is none.
    pub(super) fn at(path: &Path) -> Option<CheckpointPath> {
        let has_config = |folder: &Path| CONFIGS.iter().any(|name| folder.join(name).is_file());
        if path.is_dir() {
            return has_config(path).then(|| CheckpointPath::Folder(path.to_owned()));
        }
        if !path.is_file() {
            return None;
        }
        let mut start = Vec::new();
        File::open(path).ok()?.take(9).read_to_end(&mut start).ok()?;
        if start.starts_with(b"GGUF") {
            return Some(CheckpointPath::Gguf(path.to_owned()));
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

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        let (CheckpointPath::Gguf(path) | CheckpointPath::Folder(path)) = self;
        path
    }

    /// The command that makes a model file of it.
    pub(super) fn command(&self) -> String {
        let option = match self {
            CheckpointPath::Gguf(_) => "--gguf",
            CheckpointPath::Folder(_) => "--meta-llama",
        };
        let out = format!("{}.bin", self.name());
        format!("leap export {} {option} {}", quoted(Path::new(&out)), quoted(self.path()))
    }

    /// What a model made of it may be called: the name of the file or folder without its end.
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
        // Where commands that convert are left out, so is what `run` would do.
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

/// A model file that could not be opened; if that is because it is a checkpoint, with what to do.
pub(super) fn load_failure(error: &LoadError) -> Failure {
    let (LoadError::Io { path, .. } | LoadError::Format { path, .. }) = error;
    match CheckpointPath::at(path) {
        Some(checkpoint) => checkpoint.refuse(path),
        None => Failure::input(error),
    }
}

/// `path` as a shell takes it for one word.
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
        for none in ["", "gguf", "no such file", "gguf/golden.json", "llama3-tiny/tokenizer.model"]
        {
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
