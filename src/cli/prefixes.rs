//! `--prefix-cache`: keys and values of prompts' beginnings, kept in files.

use std::path::Path;

use super::Failure;
#[cfg(feature = "serve")]
use super::warn;
#[cfg(feature = "serve")]
use crate::engine::Engine;

/// Default limit of the files in bytes: boards have this much storage to spare, and prompts of several programs fit.
pub(super) const BYTES: u64 = 2 << 30;

/// Refuses a folder that can never be one.
pub(super) fn check(folder: Option<&Path>) -> Result<(), Failure> {
    match folder {
        Some(folder) if folder.exists() && !folder.is_dir() => {
            Err(Failure::Usage(format!("--prefix-cache {} is not a folder", folder.display())))
        }
        _ => Ok(()),
    }
}

/// Has `engine` keep prefixes in `folder`, if there is one. A folder that fails for now does not stop answers.
#[cfg(feature = "serve")]
pub(super) fn keep(engine: &mut Engine, folder: Option<&Path>, size: Option<u64>) {
    let Some(folder) = folder else { return };
    if engine.team().is_some() {
        warn("prefixes are not kept: in a team no board has whole pages");
        return;
    }
    let shown = folder.display();
    if let Err(e) = engine.keep_prefixes(folder, size.unwrap_or(BYTES)) {
        warn(&format!("prefixes are not kept in {shown}: {e}"));
    }
}
