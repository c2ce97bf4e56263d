//! Paths that other programs name, kept within their folders.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::choice::RepoFile;
use super::error::StoreError;

/// Folders within folders that a repository may have.
const DEPTH_MAX: usize = 6;
/// Files of a repository that are looked at.
const FILES_MAX: usize = 20_000;

/// Longest name of a file, in bytes: what is put behind it has to fit, too.
#[cfg(any(feature = "pull", test))]
const NAME_MAX: usize = 255;

/// Whether `path` is a plain relative path: nothing in it leads out of the folder that it is joined to.
#[cfg(any(feature = "pull", test))]
pub(super) fn is_inner(path: &str) -> bool {
    let is_part = |part: &str| {
        let is_plain = |c: char| !c.is_control() && c != '\\';
        let is_step = part.is_empty() || part == "." || part == "..";
        !is_step && part.len() <= NAME_MAX && part.chars().all(is_plain)
    };
    path.len() <= 1024 && path.matches('/').count() <= DEPTH_MAX && path.split('/').all(is_part)
}

/// Whether `text` is `n` hexadecimal digits as hashes are written: small letters.
pub(super) fn is_hash(text: &str, n: usize) -> bool {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == n && text.bytes().all(is_digit)
}

/// Refuses `path` if links lead from it out of all `folders`. These may be links themselves: a user may have put one of
/// them on another disk.
pub(super) fn check_inside(path: &Path, folders: &[&Path]) -> Result<(), StoreError> {
    let real = path.canonicalize().map_err(|e| StoreError::io("read", path, &e))?;
    let is_in = |folder: &&Path| folder.canonicalize().is_ok_and(|folder| real.starts_with(folder));
    match folders.iter().any(is_in) {
        true => Ok(()),
        false => Err(StoreError::refused(path, "is a link that leads out of its folder")),
    }
}

/// The folder that the environment variable `name` names. As in a shell, `~` is the user's home.
pub(super) fn folder_of(name: &str) -> Option<PathBuf> {
    let value = env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)?;
    match value.strip_prefix("~") {
        Ok(rest) => Some(home()?.join(rest)),
        Err(_) => Some(value),
    }
}

/// The user's home.
pub(super) fn home() -> Option<PathBuf> {
    env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

/// The files below `folder`; links to files count, links to folders and to nothing do not.
pub(super) fn files_below(folder: &Path) -> Vec<RepoFile> {
    let mut found = Vec::new();
    collect(folder, "", DEPTH_MAX, &mut found);
    found
}

fn collect(folder: &Path, prefix: &str, depth: usize, found: &mut Vec<RepoFile>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|_| found.len() < FILES_MAX) else { continue };
        let path = format!("{prefix}{name}");
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && depth > 0 {
            collect(&entry.path(), &format!("{path}/"), depth - 1, found);
        } else if let Ok(file) = fs::metadata(entry.path()).map(|file| (file.is_file(), file.len()))
            && file.0
        {
            found.push(RepoFile { path, bytes: file.1 });
        }
    }
}

/// Longest file of a model: 64 TiB.
pub(super) const FILE_MAX: u64 = 1 << 46;

/// Longest list of what was pulled.
const LIST_BYTES: u64 = 16 << 20;

/// The lines of the list at `path`; none if it cannot be read.
pub(super) fn lines_of(path: &Path) -> BTreeSet<String> {
    let bytes = small_file(path, LIST_BYTES).ok().flatten().unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The names in `folder`, sorted.
pub(super) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The bytes of a small file; none if there is no file.
///
/// # Errors
/// If it cannot be read, or is longer than `bytes_max`.
pub(super) fn small_file(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let unreadable = |e: std::io::Error| StoreError::io("read", path, &e);
    match fs::metadata(path) {
        Ok(file) if !file.is_file() => return Err(StoreError::refused(path, "is no file")),
        Ok(_) => {}
        Err(_) => return Ok(None),
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    match bytes.len() as u64 <= bytes_max {
        true => Ok(Some(bytes)),
        false => Err(StoreError::refused(path, &format!("is longer than {bytes_max} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_their_folder_are_seen() {
        for path in ["a", "a/b.gguf", "..a/b", "ü"] {
            assert!(is_inner(path), "{path}");
        }
        for path in ["", "/a", "a/../b", "..", "./a", "a//b", "a/", "a\\b", "a\0", "a\nb"] {
            assert!(!is_inner(path), "{path:?}");
        }
    }
}
