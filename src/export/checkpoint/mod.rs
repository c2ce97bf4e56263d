//! A checkpoint: named tensors with a type and a shape, still in their mapped files.
//!
//! Each container format has a reader that fills a [`Checkpoint`]; later steps know only names, shapes and rows.

mod dtype;
mod folder;
#[cfg(fuzzing)]
pub(super) mod fuzz;
mod gguf;
mod parallel;
#[cfg(feature = "pickle")]
mod pickle;
#[cfg(feature = "pickle")]
mod pytorch;
#[cfg(not(feature = "pickle"))]
#[path = "no_pytorch.rs"]
mod pytorch;
mod safetensors;
mod scales;
mod source;
mod stored;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::error::ExportError;
use crate::format::stand_in;
pub(super) use crate::quant::ggml::SHORT as INT8_GROUP;
use crate::sys::map::Map;
use scales::Scales;
pub(super) use source::SourceTensor;
use stored::{File, StoredTensor, TensorTable, bad_tensor};

/// The tensors of a folder.
pub(super) struct Checkpoint {
    /// The folder, or the file that stands for all.
    dir: PathBuf,
    files: Vec<File>,
    tensors: BTreeMap<String, StoredTensor>,
    /// Whether int8 weights without scales are incomplete, and not the numbers themselves.
    requires_scales: bool,
}

impl Checkpoint {
    /// The tensors of a Hugging Face folder: one file, the shards of an index, or every file
    /// that is named as weights are; safetensors files go before PyTorch's.
    pub(super) fn hugging_face(dir: &Path) -> Result<Checkpoint, ExportError> {
        let mut checkpoint = Checkpoint::empty(dir);
        for path in folder::hugging_face(dir)? {
            let table = checkpoint.open(path)?;
            checkpoint.add(table)?;
        }
        Ok(checkpoint)
    }

    /// The tensors of a Meta folder: the `consolidated` files, or else every safetensors file.
    /// Files that hold a part of every tensor are put together.
    pub(super) fn meta(dir: &Path) -> Result<Checkpoint, ExportError> {
        let mut checkpoint = Checkpoint::empty(dir);
        let mut tables = Vec::new();
        for path in folder::meta(dir)? {
            tables.push(checkpoint.open(path)?);
        }
        if parallel::is_split(&tables) {
            let table = parallel::join(&checkpoint.files, tables)?;
            checkpoint.add(table)?;
        } else {
            for table in tables {
                checkpoint.add(table)?;
            }
        }
        Ok(checkpoint)
    }

    /// The tensors of a GGUF file, or of all files of the model if it is the first of several.
    pub(super) fn gguf(path: &Path) -> Result<Checkpoint, ExportError> {
        let mut checkpoint = Checkpoint::empty(path);
        let first = open_map(path)?;
        let paths = gguf::files(path, first.as_bytes())?;
        let count = paths.len();
        gguf::check_all_there(&paths)?;
        for (index, path) in paths.into_iter().enumerate() {
            let map = open_map(&path)?;
            if count > 1 {
                gguf::check_split(&path, map.as_bytes(), index, count)?;
            }
            let table = gguf::read(&path, map.as_bytes(), index)?;
            checkpoint.files.push(File { path, map });
            checkpoint.add(table)?;
        }
        gguf::check_n_tensors(path, first.as_bytes(), checkpoint.tensors.len())?;
        Ok(checkpoint)
    }

    /// Whether `dir` has weights as Hugging Face names them.
    pub(super) fn is_hugging_face(dir: &Path) -> Result<bool, ExportError> {
        folder::is_hugging_face(dir)
    }

    fn empty(dir: &Path) -> Checkpoint {
        Checkpoint {
            dir: dir.to_owned(),
            files: Vec::new(),
            tensors: BTreeMap::new(),
            requires_scales: false,
        }
    }

    /// Maps a file and reads its table.
    fn open(&mut self, path: PathBuf) -> Result<TensorTable, ExportError> {
        let map = open_map(&path)?;
        let bytes = map.as_bytes();
        let file = self.files.len();
        let table = match path.extension().and_then(OsStr::to_str) {
            Some("safetensors") => safetensors::read(&path, bytes, file)?,
            _ => pytorch::read(&path, bytes, file)?,
        };
        self.files.push(File { path, map });
        Ok(table)
    }

    /// Adds tensors whose names are new.
    fn add(&mut self, table: TensorTable) -> Result<(), ExportError> {
        for (name, stored) in table {
            match self.tensors.entry(name) {
                Entry::Vacant(slot) => {
                    slot.insert(stored);
                }
                Entry::Occupied(slot) => {
                    let first = self.files[slot.get().file].path.display();
                    let path = &self.files[stored.file].path;
                    return Err(bad_tensor(slot.key(), path, format!("is in {first} too")));
                }
            }
        }
        Ok(())
    }

    /// Keeps only the language model of a vision-language model, under the names of a language model alone. Returns how
    /// many tensors are left out.
    pub(super) fn keep_text_part(&mut self) -> Result<usize, ExportError> {
        const SEEING: [&str; 6] = [
            "vision_tower.",
            "multi_modal_projector.",
            "visual.",
            "embed_vision.",
            "audio_tower.",
            "embed_audio.",
        ];
        let mut kept = TensorTable::new();
        let mut left_out = 0;
        for (name, stored) in std::mem::take(&mut self.tensors) {
            // Files of later releases have `model.` before all but the classifier.
            let (model, part) = match name.strip_prefix("model.") {
                Some(part) => ("model.", part),
                None => ("", name.as_str()),
            };
            if SEEING.iter().any(|seeing| part.starts_with(seeing)) {
                left_out += 1;
                continue;
            }
            let own = part.strip_prefix("language_model.").map(|own| [model, own].concat());
            kept.push((own.unwrap_or(name), stored));
        }
        self.add(kept)?;
        Ok(left_out)
    }

    /// Gives tensors the names that they have within a model with a head. An encoder's lose the name of the model.
    ///
    /// # Errors
    /// If two tensors would have one name.
    pub(super) fn name_as_within(&mut self, is_encoder: bool) -> Result<(), ExportError> {
        let is_bare = self.has("embed_tokens.weight");
        let name = |name: String| match is_encoder {
            true => name.strip_prefix("bert.").map_or(name.clone(), str::to_owned),
            false if is_bare => format!("model.{name}"),
            false => name,
        };
        let all = std::mem::take(&mut self.tensors);
        self.add(all.into_iter().map(|(own, stored)| (name(own), stored)).collect())
    }

    /// Adds the weights of dense layers in `folders`, as `dense.0.linear.weight` and so on.
    ///
    /// # Errors
    /// If a folder has none.
    pub(super) fn add_dense(&mut self, folders: &[PathBuf]) -> Result<(), ExportError> {
        for (index, folder) in folders.iter().enumerate() {
            for path in folder::hugging_face(folder)? {
                let table = self.open(path)?;
                let name = |own: String| format!("dense.{index}.{own}");
                self.add(table.into_iter().map(|(own, stored)| (name(own), stored)).collect())?;
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
        self.files.first().map_or(&[], |file| file.map.as_bytes())
    }

    /// The files the tensors are in.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// Names of all tensors.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The first file that tensor `name` is in, if there is such a tensor.
    pub(super) fn path_of(&self, name: &str) -> Option<&Path> {
        self.tensors.get(name).map(|stored| self.files[stored.file].path.as_path())
    }

    /// The tensor called `name`, `None` if there is none.
    ///
    /// # Errors
    /// If its values cannot be used.
    pub(super) fn find(&self, name: &str) -> Result<Option<SourceTensor<'_>>, ExportError> {
        let Some((name, stored)) = self.tensors.get_key_value(name) else { return Ok(None) };
        let tensor = SourceTensor::new(&self.files, name, stored)?;
        if !stored.is_in_eight_bits() {
            return Ok(Some(tensor));
        }
        if self.has(&format!("{name}_zero_point")) {
            return Err(tensor.error("has zero points, which LEAP does not read".to_owned()));
        }
        let names = scales::names(name);
        match [&names[0], &names[1]].map(|name| self.tensors.get_key_value(name)) {
            [Some(_), Some(_)] => Err(tensor.error("has scales under two names".to_owned())),
            [Some((name, of)), None] | [None, Some((name, of))] => {
                let bad = |problem| bad_tensor(name, &self.files[of.file].path, problem);
                Ok(Some(tensor.scaled(Scales::new(stored, of).map_err(bad)?)))
            }
            [None, None] if stored.is_fp8() || self.requires_scales => {
                Err(tensor.error(format!("has eight bits, and there is no {name}_scale")))
            }
            [None, None] => Ok(Some(tensor)),
        }
    }

    /// Refuses weights in eight bits that have no scales.
    pub(super) fn require_scales(&mut self) {
        self.requires_scales = true;
    }

    /// Whether any weights in eight bits have scales.
    pub(super) fn has_any_scales(&self) -> bool {
        let of = |name: &String| scales::weights_of(name).any(|name| self.is_in_eight_bits(&name));
        self.tensors.keys().any(of)
    }

    fn is_in_eight_bits(&self, name: &str) -> bool {
        self.tensors.get(name).is_some_and(StoredTensor::is_in_eight_bits)
    }

    /// Whether the tensor `name` has scales of weights in eight bits, or of what is multiplied by them.
    pub(super) fn has_scales(&self, name: &str) -> bool {
        scales::weights_of(name).any(|weights| self.is_in_eight_bits(&weights))
            || (scales::is_of_kv(name) && self.tensors.values().any(StoredTensor::is_in_eight_bits))
    }

    /// A vector of zeros that no file holds.
    pub(super) fn zeros(&self, cols: usize) -> SourceTensor<'_> {
        SourceTensor::zeros(&self.files, &self.dir, cols)
    }

    /// Whether there is a tensor called `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The values of two tensors, MXFP4 blocks and their scales.
    ///
    /// # Errors
    /// If one of them is missing, or they do not fit each other.
    pub(super) fn mxfp4(
        &self,
        blocks: &str,
        scales: &str,
    ) -> Result<SourceTensor<'_>, ExportError> {
        let stored = |name: &str| {
            let missing =
                || ExportError::MissingTensor { name: name.to_owned(), dir: self.dir.clone() };
            self.tensors.get_key_value(name).ok_or_else(missing)
        };
        SourceTensor::mxfp4(&self.files, stored(blocks)?, stored(scales)?)
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// If there is none, or its values cannot be used.
    pub(super) fn tensor(&self, name: &str) -> Result<SourceTensor<'_>, ExportError> {
        let missing =
            || ExportError::MissingTensor { name: name.to_owned(), dir: self.dir.clone() };
        self.find(name)?.ok_or_else(missing)
    }
}

/// Maps a file that will be read mostly in order.
fn open_map(path: &Path) -> Result<Map, ExportError> {
    let map =
        Map::open(path).map_err(|source| ExportError::Read { path: path.to_owned(), source })?;
    if let Some(problem) = stand_in(map.as_bytes()) {
        let (path, problem) = (path.to_owned(), problem.to_owned());
        return Err(ExportError::BadFile { path, problem });
    }
    map.advise_sequential();
    Ok(map)
}
