//! Incomplete files: the process that has one open holds its lock.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Extension of an incomplete file's name.
pub(super) const END: &str = "part";

/// Opens the incomplete file at `path` once no other process has it. Creates the file if it is missing.
pub(super) fn open(path: &Path) -> io::Result<File> {
    loop {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.lock()?;
        // The process that had it may have renamed or removed it.
        let (own, named) = (file.metadata()?, fs::metadata(path).ok());
        if named.is_some_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())) {
            return Ok(file);
        }
    }
}

/// Removes incomplete files of abandoned fetches from `folder`, except `own`.
pub(super) fn remove_others(folder: &Path, own: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    for path in paths.filter(|path| path.extension().is_some_and(|end| end == END)) {
        // A locked file is being written, here or by another program.
        let is_idle = File::open(&path).is_ok_and(|file| {
            let is_free = path != own && file.try_lock().is_ok();
            // Removed while the lock is held, so that no other process begins to write to it.
            is_free && fs::remove_file(&path).is_ok()
        });
        if is_idle {
            log::debug!("removed {}, left by an abandoned fetch", path.display());
        }
    }
}
