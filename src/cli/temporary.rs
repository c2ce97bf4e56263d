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

/// Name of the folder for files, in the folder of this process. It is a folder of its own because the folder of this process
/// is locked until it ends, and building packed weights waits for the lock of the folder they are in.
const FILES: &str = "files";

/// A folder for files of this process, in its folder in `$TMPDIR`, or `/tmp`.
///
/// # Errors
/// The system's, if it cannot be made.
pub(super) fn folder() -> io::Result<PathBuf> {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((path, _)) = &*own {
        return Ok(path.join(FILES));
    }
    let base = env::temp_dir();
    remove_abandoned(&base);
    let path = base.join(format!("{PREFIX}{}", process::id()));
    DirBuilder::new().mode(0o700).create(&path)?;
    let lock = File::open(&path)?;
    lock.lock()?;
    let files = path.join(FILES);
    *own = Some((path, lock));
    fs::create_dir(&files)?;
    Ok(files)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Building packed weights waits for the lock of the folder they are in.
    #[test]
    fn weights_are_packed_beside_a_model_that_is_not_kept() {
        let files = folder().unwrap();
        assert_eq!(folder().unwrap(), files);
        File::open(&files).unwrap().try_lock().unwrap();
        let own = files.parent().unwrap().to_owned();
        assert!(!is_abandoned(&own));
        remove();
        assert!(!own.exists());
    }
}
