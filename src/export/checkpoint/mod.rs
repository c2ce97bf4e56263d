//! A checkpoint: named tensors with a type and a shape, still in their mapped files.
//!
//! Each container format has a reader that fills a [`Checkpoint`]; what follows knows only
//! names, shapes and bytes.

mod dtype;
mod ggml;
mod gguf;
mod safetensors;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Error;
use crate::sys::map::Map;
pub(super) use dtype::Dtype;
pub(super) use ggml::{Ggml, SHORT as SHORT_BLOCK, split_q8_0};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a folder.
pub(super) struct Checkpoint {
    /// The folder, or the file that stands for all.
    dir: PathBuf,
    files: Vec<(PathBuf, Map)>,
    tensors: BTreeMap<String, Stored>,
}

/// A tensor's type, shape and place in one of the files.
struct Stored {
    file: usize,
    /// The stored type's name is kept if it is one that cannot be converted.
    dtype: Result<Dtype, String>,
    shape: Vec<usize>,
    range: Range<usize>,
}

/// A tensor of a checkpoint.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    /// Its name in the checkpoint.
    pub(super) name: &'a str,
    /// The file it is in.
    pub(super) path: &'a Path,
    /// Type of its values.
    pub(super) dtype: Dtype,
    /// Its shape.
    pub(super) shape: &'a [usize],
    map: &'a Map,
    start: usize,
    bytes: &'a [u8],
}

impl<'a> Source<'a> {
    /// The values `range`, as stored.
    ///
    /// # Panics
    /// If the range is not one of whole blocks inside the tensor.
    pub(super) fn values(&self, range: Range<usize>) -> &'a [u8] {
        &self.bytes[self.dtype.bytes(range.start)..self.dtype.bytes(range.end)]
    }

    /// Says that the values `range` are used soon.
    pub(super) fn advise_will_need(&self, range: Range<usize>) {
        self.map.advise_will_need(self.file_range(range));
    }

    /// Says that the values `range` are not used any more.
    pub(super) fn advise_dont_need(&self, range: Range<usize>) {
        self.map.advise_dont_need(self.file_range(range));
    }

    /// Whether both hold the same values in the same form.
    pub(super) fn equals(&self, other: &Source<'_>) -> bool {
        let same = self.dtype == other.dtype && self.shape == other.shape;
        same && self.bytes == other.bytes
    }

    /// The error that this tensor has `problem`.
    pub(super) fn error(&self, problem: String) -> Error {
        Error::BadTensor { name: self.name.to_owned(), path: self.path.to_owned(), problem }
    }

    fn file_range(&self, range: Range<usize>) -> Range<usize> {
        let (start, end) = (self.dtype.bytes(range.start), self.dtype.bytes(range.end));
        self.start + start..self.start + end
    }
}

impl Checkpoint {
    /// The tensors of a Hugging Face folder: one file, the shards of an index, or every
    /// safetensors file but Meta's `consolidated` ones.
    pub(super) fn hugging_face(dir: &Path) -> Result<Checkpoint, Error> {
        if dir.join(SINGLE).exists() {
            return Checkpoint::open(dir, vec![dir.join(SINGLE)]);
        }
        if dir.join(INDEX).exists() {
            return Checkpoint::open(dir, shards(&dir.join(INDEX))?);
        }
        Checkpoint::open(dir, weight_files(dir, |name| !is_consolidated(name))?)
    }

    /// The tensors of a Meta folder: the `consolidated` files, or else every file.
    pub(super) fn meta(dir: &Path) -> Result<Checkpoint, Error> {
        let mut paths = weight_files(dir, is_consolidated)?;
        if paths.is_empty() {
            paths = weight_files(dir, |_| true)?;
        }
        Checkpoint::open(dir, paths)
    }

    /// The tensors of a GGUF file, or of all files of the model if it is the first of several.
    pub(super) fn gguf(path: &Path) -> Result<Checkpoint, Error> {
        let mut checkpoint = Checkpoint::empty(path);
        let first = open_map(path)?;
        let paths = gguf::files(path, first.as_bytes())?;
        let count = paths.len();
        for (index, path) in paths.into_iter().enumerate() {
            let map = open_map(&path)?;
            if count > 1 {
                gguf::check_split(&path, map.as_bytes(), index, count)?;
            }
            checkpoint.add_file(path, map, gguf::read)?;
        }
        Ok(checkpoint)
    }

    /// Whether `dir` has weights as Hugging Face names them.
    pub(super) fn is_hugging_face(dir: &Path) -> Result<bool, Error> {
        let named = dir.join(SINGLE).exists() || dir.join(INDEX).exists();
        Ok(named || !weight_files(dir, |name| !is_consolidated(name))?.is_empty())
    }

    fn open(dir: &Path, paths: Vec<PathBuf>) -> Result<Checkpoint, Error> {
        if paths.is_empty() {
            let problem = match holds_pytorch(dir) {
                true => "holds PyTorch files (.pth, .bin); this version reads *.safetensors",
                false => "no *.safetensors file in this folder",
            };
            let problem = problem.to_owned();
            return Err(Error::BadFile { path: dir.to_owned(), problem });
        }
        let mut checkpoint = Checkpoint::empty(dir);
        for path in paths {
            let map = open_map(&path)?;
            checkpoint.add_file(path, map, safetensors::read)?;
        }
        Ok(checkpoint)
    }

    fn empty(dir: &Path) -> Checkpoint {
        Checkpoint { dir: dir.to_owned(), files: Vec::new(), tensors: BTreeMap::new() }
    }

    /// Adds the tensors of `path`, whose bytes are `map`, as `read` finds them.
    fn add_file(
        &mut self,
        path: PathBuf,
        map: Map,
        read: fn(&Path, &[u8], usize) -> Result<Vec<(String, Stored)>, Error>,
    ) -> Result<(), Error> {
        map.advise_sequential();
        let file = self.files.len();
        let tensors = read(&path, map.as_bytes(), file)?;
        self.files.push((path.clone(), map));
        for (name, stored) in tensors {
            match self.tensors.entry(name) {
                Entry::Vacant(slot) => {
                    slot.insert(stored);
                }
                Entry::Occupied(slot) => {
                    let name = slot.key().clone();
                    let problem = match slot.get().file {
                        first if first == file => "is there twice".to_owned(),
                        first => format!("is in {} too", self.files[first].0.display()),
                    };
                    return Err(Error::BadTensor { name, path, problem });
                }
            }
        }
        Ok(())
    }

    /// The folder, or the file that stands for all.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The bytes of the first file.
    pub(super) fn first_bytes(&self) -> &[u8] {
        self.files.first().map_or(&[], |(_, map)| map.as_bytes())
    }

    /// The files the tensors are in.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// Names of all tensors.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The file that tensor `name` is in, if there is such a tensor.
    pub(super) fn path_of(&self, name: &str) -> Option<&Path> {
        self.tensors.get(name).map(|stored| self.files[stored.file].0.as_path())
    }

    /// The tensor called `name`, `None` if there is none.
    ///
    /// # Errors
    /// If its values are of a type that cannot be converted.
    pub(super) fn find(&self, name: &str) -> Result<Option<Source<'_>>, Error> {
        let Some((name, stored)) = self.tensors.get_key_value(name) else { return Ok(None) };
        let (path, map) = &self.files[stored.file];
        match &stored.dtype {
            Ok(dtype) => Ok(Some(Source {
                name,
                path,
                dtype: *dtype,
                shape: &stored.shape,
                map,
                start: stored.range.start,
                bytes: &map.as_bytes()[stored.range.clone()],
            })),
            Err(dtype) => Err(Error::BadTensor {
                name: name.clone(),
                path: path.clone(),
                problem: format!("has values of type {dtype}, which LEAP does not convert"),
            }),
        }
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// If there is none, or its values are of a type that cannot be converted.
    pub(super) fn tensor(&self, name: &str) -> Result<Source<'_>, Error> {
        let missing = || Error::MissingTensor { name: name.to_owned(), dir: self.dir.clone() };
        self.find(name)?.ok_or_else(missing)
    }
}

fn open_map(path: &Path) -> Result<Map, Error> {
    Map::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

fn is_consolidated(name: &str) -> bool {
    name.starts_with("consolidated")
}

/// The safetensors files of `dir` whose names `is_wanted`, by name.
fn weight_files(dir: &Path, is_wanted: fn(&str) -> bool) -> Result<Vec<PathBuf>, Error> {
    let error = |source| Error::Read { path: dir.to_owned(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(error)? {
        let path = entry.map_err(error)?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if name.ends_with(".safetensors") && !name.starts_with('.') && is_wanted(name) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Whether `dir` has weights in PyTorch's own format.
fn holds_pytorch(dir: &Path) -> bool {
    let is_pytorch = |path: &Path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.ends_with(".pth") || (name.starts_with("pytorch_model") && name.ends_with(".bin"))
    };
    fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(|entry| is_pytorch(&entry.path())))
}

/// The files that an index names, each once.
fn shards(index: &Path) -> Result<Vec<PathBuf>, Error> {
    let bad = |problem: String| Error::BadFile { path: index.to_owned(), problem };
    let json = super::config::read_json(index)?;
    let Some(weight_map) = json.get("weight_map").and_then(Value::as_object) else {
        return Err(bad("weight_map is missing or no object".to_owned()));
    };
    let mut names: Vec<&str> = Vec::new();
    for (tensor, file) in weight_map {
        match file.as_str() {
            Some(name) if Path::new(name).file_name() == Some(OsStr::new(name)) => names.push(name),
            _ => return Err(bad(format!("{tensor} is in {file}, wanted a file name"))),
        }
    }
    names.sort_unstable();
    names.dedup();
    let mut paths = Vec::new();
    for name in names {
        let path = index.with_file_name(name);
        if !path.exists() {
            return Err(bad(format!("{name} is not in this folder")));
        }
        paths.push(path);
    }
    Ok(paths)
}
