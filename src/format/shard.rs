//! Names of GGUF models in several files.

use std::path::{Path, PathBuf};

/// A file of a model in several files, by its name: `STEM-00002-of-00003.gguf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard<'a> {
    /// Name of the model.
    pub(crate) stem: &'a str,
    /// Number of the file, from 1 on.
    pub(crate) index: usize,
    /// Number of files, as the name spells it.
    pub(crate) count: &'a str,
}

impl<'a> Shard<'a> {
    /// Parts of the name of `path`; none if `path` is a whole model.
    pub(crate) fn of(path: &'a Path) -> Option<Shard<'a>> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, index) = rest.rsplit_once('-')?;
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        let index = Some(index).filter(|index| is_number(index) && is_number(count))?;
        Some(Shard { stem, index: index.parse().ok()?, count })
    }

    /// Paths of all files of the model whose file, or one of them, is `path`.
    #[cfg(any(feature = "tools", feature = "serve"))]
    pub(crate) fn all(path: &Path) -> Vec<PathBuf> {
        let Some(Shard { stem, count, .. }) = Shard::of(path) else { return vec![path.to_owned()] };
        let n: usize = count.parse().unwrap_or(0);
        (1..=n).map(|i| path.with_file_name(format!("{stem}-{i:05}-of-{count}.gguf"))).collect()
    }

    /// Path of the model's first file, beside `path`.
    pub(crate) fn first(self, path: &Path) -> PathBuf {
        path.with_file_name(format!("{}-00001-of-{}.gguf", self.stem, self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "tools")]
    fn files_of_a_model_stand_beside_each_other() {
        let all = Shard::all(Path::new("a/m-00002-of-00002.gguf"));
        assert_eq!(all, ["a/m-00001-of-00002.gguf", "a/m-00002-of-00002.gguf"].map(PathBuf::from));
        assert_eq!(Shard::all(Path::new("m.gguf")), [PathBuf::from("m.gguf")]);
    }

    #[test]
    fn files_of_a_split_model_are_known_by_name() {
        let shard = |name| Shard::of(Path::new(name)).map(|shard| (shard.stem, shard.index));
        assert_eq!(shard("a/m-Q4_0-00002-of-00003.gguf"), Some(("m-Q4_0", 2)));
        for other in
            ["m.gguf", "m-00002-of-00003.bin", "m-2-of-3.gguf", "-of-.gguf", "00001-of-00003.gguf"]
        {
            assert_eq!(shard(other), None, "{other}");
        }
    }
}
