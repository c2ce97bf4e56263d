//! A folder for files of this process alone, removed when it ends.
//!
//! A killed process leaves its folder behind. The next process that makes a folder removes all whose lock is free.

use std::env;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, PoisonError};

/// Prefix of the folders' names.
const PREFIX: &str = "leap-once-";

/// The folder of this process, and the lock that marks it as used.
static OWN: Mutex<Option<(PathBuf, File)>> = Mutex::new(None);

/// The folder of this process in `$TMPDIR`, or `/tmp`.
///
/// # Errors
/// The system's, if it cannot be made.
pub(super) fn folder() -> io::Result<PathBuf> {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((path, _)) = &*own {
        return Ok(path.clone());
    }
    let base = env::temp_dir();
    remove_abandoned(&base);
    let path = base.join(format!("{PREFIX}{}", process::id()));
    DirBuilder::new().mode(0o700).create(&path)?;
    let lock = File::open(&path)?;
    lock.lock()?;
    *own = Some((path.clone(), lock));
    Ok(path)
}

/// Removes the folder of this process, if it has one. Files that are mapped stay readable.
pub(super) fn remove() {
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((path, _)) = own {
        let _ = fs::remove_dir_all(path);
    }
}

/// Removes folders of this user that killed processes left behind.
fn remove_abandoned(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let path = entry.path();
        if is_ours && is_abandoned(&path) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// True if `path` is a folder of this user whose lock is free.
fn is_abandoned(path: &Path) -> bool {
    let Ok(found) = fs::symlink_metadata(path) else { return false };
    let is_own = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == found.uid());
    let is_free = || File::open(path).is_ok_and(|folder| folder.try_lock().is_ok());
    found.is_dir() && is_own && is_free()
}
