//! Paths of the masters' sockets: `ring-PID.sock` in a folder of the user's, unless the user names a path.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::sys::{folders, net};

const BEGIN: &str = "ring-";
const END: &str = ".sock";
/// Folder of the sockets of services that `leap-node` starts.
const SERVICES: &str = "/run/leap";

/// A socket's file, which is removed when this is dropped.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another program may have removed it.
        let _ = fs::remove_file(&self.0);
    }
}

/// Path at which this process listens unless the user names another one. Sockets of dead masters are removed from its
/// folder. `None` if there is no folder.
pub(crate) fn own() -> Option<PathBuf> {
    let folder = folders::runtime()?;
    for path in sockets(&folder) {
        if is_dead(&path) {
            // Another master may have removed it just now.
            let _ = fs::remove_file(path);
        }
    }
    Some(folder.join(format!("{BEGIN}{}{END}", std::process::id())))
}

/// The sockets of masters that run: this user's, and services.
pub(crate) fn running() -> Vec<PathBuf> {
    let folders = folders::runtime().into_iter().chain([PathBuf::from(SERVICES)]);
    folders.flat_map(|folder| sockets(&folder)).filter(|path| !is_dead(path)).collect()
}

/// Listens at `path`, for this user alone. A socket left there by a dead process is removed.
///
/// # Errors
/// The system's, or if another process listens there.
pub(crate) fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() || !is_dead(path) => {
            return Err(ErrorKind::AddrInUse.into());
        }
        _ => {}
    }
    // Others find the socket only once the program listens.
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = net::listen_privately(&new)?;
    let file = SocketFile(new.clone());
    fs::rename(&new, path)?;
    drop(file);
    Ok((listener, SocketFile(path.to_owned())))
}

fn is_dead(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

fn sockets(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_one = |name: &str| name.starts_with(BEGIN) && name.ends_with(END);
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_one))
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}
