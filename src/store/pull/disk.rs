//! Folders and small files of a download.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::store::error::StoreError;
use crate::store::paths::lines_of;
use crate::sys::file;

/// A link is not followed: it would lead out of the folder.
pub(super) const O_NOFOLLOW: i32 = libc::O_NOFOLLOW;

/// Makes `folder` and those above it.
pub(super) fn make_folder(folder: &Path) -> Result<(), StoreError> {
    fs::create_dir_all(folder).map_err(|e| StoreError::io("make", folder, &e))
}

/// Refuses a download of `bytes` to `folder` if the disk has less room.
pub(super) fn check_room(folder: &Path, bytes: u64) -> Result<(), StoreError> {
    let free = file::free_bytes(folder).map_err(|e| StoreError::io("read", folder, &e))?;
    if bytes <= free {
        return Ok(());
    }
    let (folder, mb, free) = (folder.display(), bytes as f64 / 1e6, free as f64 / 1e6);
    Err(StoreError::Runtime(format!(
        "no room: {mb:.0} MB are to come, and {folder} has {free:.0} MB free"
    )))
}

/// Writes a small file whole or not at all.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    file::write_whole(path, bytes).map_err(|e| StoreError::io("write", path, &e))
}

/// Adds a line to the list at `path`, unless it has the line.
pub(super) fn add_line(path: &Path, line: &str) -> Result<(), StoreError> {
    if lines_of(path).contains(line) {
        return Ok(());
    }
    let mut open = OpenOptions::new();
    let open = open.append(true).create(true).custom_flags(O_NOFOLLOW).open(path);
    let written = open.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.map_err(|e| StoreError::io("write", path, &e))
}
