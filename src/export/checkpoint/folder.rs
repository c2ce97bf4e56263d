//! Which files of a folder hold the weights.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::export::error::ExportError;
use crate::export::json;
use crate::format::excerpt;

/// Most JSON values of a table of tensors; the largest published ones have a fifth of that.
const TENSORS_MAX: usize = 1 << 19;

/// Hugging Face's names for weights, in order of preference: of a single file, and of the index of
/// several.
const NAMES: [[&str; 2]; 2] = [
    ["model.safetensors", "model.safetensors.index.json"],
    ["pytorch_model.bin", "pytorch_model.bin.index.json"],
];

/// The weights of a Hugging Face folder.
pub(super) fn hugging_face(dir: &Path) -> Result<Vec<PathBuf>, ExportError> {
    for [single, index] in NAMES {
        if dir.join(single).exists() {
            return Ok(vec![dir.join(single)]);
        }
        if dir.join(index).exists() {
            return shards(&dir.join(index));
        }
    }
    let safetensors = files(dir, is_hugging_face_safetensors)?;
    let paths = if safetensors.is_empty() { files(dir, is_bin)? } else { safetensors };
    if paths.is_empty() && !files(dir, is_pth)?.is_empty() {
        let problem = "params.json is missing, which belongs to consolidated.*.pth".to_owned();
        return Err(ExportError::BadFile { path: dir.to_owned(), problem });
    }
    expect_all(dir, numbered_of(&paths))?;
    non_empty(dir, paths)
}

/// The weights of a Meta folder.
pub(super) fn meta(dir: &Path) -> Result<Vec<PathBuf>, ExportError> {
    for is_wanted in [is_consolidated_safetensors, is_pth, is_safetensors] {
        let paths = files(dir, is_wanted)?;
        if !paths.is_empty() {
            expect_all(dir, numbered_from_zero(&paths))?;
            return Ok(paths);
        }
    }
    non_empty(dir, Vec::new())
}

/// Whether `dir` has weights as Hugging Face names them.
pub(super) fn is_hugging_face(dir: &Path) -> Result<bool, ExportError> {
    let is_weight = |name: &str| is_hugging_face_safetensors(name) || is_bin(name);
    let is_named = NAMES.as_flattened().iter().any(|name| dir.join(name).exists());
    Ok(is_named || !files(dir, is_weight)?.is_empty())
}

fn is_safetensors(name: &str) -> bool {
    name.ends_with(".safetensors")
}

fn is_consolidated_safetensors(name: &str) -> bool {
    name.starts_with("consolidated") && is_safetensors(name)
}

fn is_hugging_face_safetensors(name: &str) -> bool {
    is_safetensors(name) && !is_consolidated_safetensors(name)
}

fn is_pth(name: &str) -> bool {
    name.starts_with("consolidated") && name.ends_with(".pth")
}

fn is_bin(name: &str) -> bool {
    name.starts_with("pytorch_model") && name.ends_with(".bin")
}

/// The files of `dir` whose names `is_wanted` accepts, sorted.
fn files(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, ExportError> {
    let error = |source| ExportError::Read { path: dir.to_owned(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if !name(&path).starts_with('.') && is_wanted(name(&path)) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or_default()
}

fn non_empty(dir: &Path, paths: Vec<PathBuf>) -> Result<Vec<PathBuf>, ExportError> {
    if !paths.is_empty() {
        return Ok(paths);
    }
    let problem = "no weights in this folder: no *.safetensors, pytorch_model*.bin or \
                   consolidated.*.pth";
    Err(ExportError::BadFile { path: dir.to_owned(), problem: problem.to_owned() })
}

/// The first gap in the series `consolidated.00.pth`, `consolidated.01.pth`, … of `paths`.
fn numbered_from_zero(paths: &[PathBuf]) -> Option<String> {
    let number = |path: &PathBuf| {
        let (number, _) = name(path).strip_prefix("consolidated.")?.split_once('.')?;
        number.parse().ok()
    };
    let numbers: Option<Vec<usize>> = paths.iter().map(number).collect();
    let missing = numbers?.into_iter().zip(0..).find(|(found, wanted)| found != wanted)?.1;
    let extension = paths[0].extension().and_then(OsStr::to_str)?;
    Some(format!("consolidated.{missing:02}.{extension}"))
}

/// The first of `STEM-00001-of-0000N.EXTENSION` to `STEM-0000N-of-0000N.EXTENSION` that is not among `paths`, if the
/// first of `paths` has such a name.
fn numbered_of(paths: &[PathBuf]) -> Option<String> {
    let (stem, extension) = name(paths.first()?).rsplit_once('.')?;
    let (stem, n) = stem.rsplit_once("-of-")?;
    let (stem, _) = stem.rsplit_once('-')?;
    let n: usize = n.parse().ok().filter(|&n| n <= 9999)?;
    let mut wanted = (1..=n).map(|i| format!("{stem}-{i:05}-of-{n:05}.{extension}"));
    wanted.find(|wanted| !paths.iter().any(|path| name(path) == wanted))
}

fn expect_all(dir: &Path, missing: Option<String>) -> Result<(), ExportError> {
    let Some(missing) = missing else { return Ok(()) };
    let problem = format!("{missing} is not in this folder, though others of its series are");
    Err(ExportError::BadFile { path: dir.to_owned(), problem })
}

/// The files that an index names, each once.
fn shards(index: &Path) -> Result<Vec<PathBuf>, ExportError> {
    let bad = |problem: String| ExportError::BadFile { path: index.to_owned(), problem };
    let json = json::read(index, TENSORS_MAX)?;
    let Some(weight_map) = json.get("weight_map").and_then(Value::as_object) else {
        return Err(bad("weight_map is missing or no object".to_owned()));
    };
    let mut names: Vec<&str> = Vec::new();
    for (tensor, file) in weight_map {
        match file.as_str() {
            Some(name) if Path::new(name).file_name() == Some(OsStr::new(name)) => names.push(name),
            _ => {
                return Err(bad(format!(
                    "{} is in {}, wanted a file name",
                    excerpt(tensor),
                    excerpt(&file.to_string())
                )));
            }
        }
    }
    if names.is_empty() {
        return Err(bad("weight_map names no file".to_owned()));
    }
    names.sort_unstable();
    names.dedup();
    let mut paths = Vec::new();
    for name in names {
        let path = index.with_file_name(name);
        if !path.exists() {
            return Err(bad(format!("{} is not in this folder", excerpt(name))));
        }
        paths.push(path);
    }
    Ok(paths)
}
