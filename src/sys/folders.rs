//! Folders of the user's that LEAP keeps files in.

use std::env;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::file::is_writable;

/// `$XDG_CACHE_HOME/leap`, for files that can be made again. Created if it is missing; `None` if that fails.
pub fn cache() -> Option<PathBuf> {
    own("XDG_CACHE_HOME", ".cache", 0o777)
}

/// The [`cache`] folder, made and writable; else the reason why there is none.
///
/// # Errors
/// Names the variable that is missing, or the folder that cannot be made or written.
pub fn writable_cache() -> Result<PathBuf, String> {
    let Some(base) = base("XDG_CACHE_HOME", ".cache") else {
        return Err("HOME is not set".to_owned());
    };
    let folder = base.join("leap");
    let shown = folder.display();
    match make(&folder, 0o777) {
        Err(e) => Err(format!("{shown} cannot be made: {e}")),
        Ok(()) if !is_writable(&folder) => Err(format!("{shown} cannot be written")),
        Ok(()) => Ok(folder),
    }
}

/// `$XDG_RUNTIME_DIR/leap`, for files that end with the user's session; without that variable, the [`cache`] folder.
pub fn runtime() -> Option<PathBuf> {
    let base = env::var_os("XDG_RUNTIME_DIR").filter(|base| !base.is_empty());
    base.and_then(|base| made(PathBuf::from(base), 0o700)).or_else(cache)
}

/// `$XDG_STATE_HOME/leap`, for private files, which only the user can read. Created like [`cache`].
#[cfg(feature = "tools")]
pub fn state() -> Option<PathBuf> {
    own("XDG_STATE_HOME", ".local/state", 0o700)
}

fn own(variable: &str, below_home: &str, mode: u32) -> Option<PathBuf> {
    made(base(variable, below_home)?, mode)
}

/// The folder that `variable` names, or one in the user's home; `None` if the home is unknown, too.
fn base(variable: &str, below_home: &str) -> Option<PathBuf> {
    let of = |name: &str| env::var_os(name).filter(|base| !base.is_empty()).map(PathBuf::from);
    of(variable).or_else(|| Some(of("HOME")?.join(below_home)))
}

fn made(base: PathBuf, mode: u32) -> Option<PathBuf> {
    let folder = base.join("leap");
    make(&folder, mode).ok()?;
    Some(folder)
}

fn make(folder: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(folder)
}
