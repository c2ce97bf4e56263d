//! Folders of the user's that LEAP keeps files in.

use std::env;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// `$XDG_CACHE_HOME/leap`: what can be made again. Made if it is not there; `None` if it cannot be.
pub fn cache() -> Option<PathBuf> {
    own("XDG_CACHE_HOME", ".cache", 0o777)
}

/// `$XDG_RUNTIME_DIR/leap`: what ends with the user's session; else as [`cache`].
pub fn runtime() -> Option<PathBuf> {
    let base = env::var_os("XDG_RUNTIME_DIR").filter(|base| !base.is_empty());
    base.and_then(|base| made(PathBuf::from(base), 0o700)).or_else(cache)
}

/// `$XDG_STATE_HOME/leap`: what is nobody else's business. As [`cache`].
#[cfg(feature = "tools")]
pub fn state() -> Option<PathBuf> {
    own("XDG_STATE_HOME", ".local/state", 0o700)
}

fn own(variable: &str, below_home: &str, mode: u32) -> Option<PathBuf> {
    let base = env::var_os(variable).filter(|base| !base.is_empty()).map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(below_home)))?;
    made(base, mode)
}

fn made(base: PathBuf, mode: u32) -> Option<PathBuf> {
    let folder = base.join("leap");
    DirBuilder::new().recursive(true).mode(mode).create(&folder).ok()?;
    Some(folder)
}
