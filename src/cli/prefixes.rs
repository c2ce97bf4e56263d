//! `--prefix-cache`: keys and values of prompts' beginnings, kept in files.

use std::path::Path;

use super::{Failure, warn};
use crate::engine::Engine;

/// Default limit of the files in bytes: boards have this much storage to spare, and prompts of several programs fit.
const BYTES: u64 = 2 << 30;

/// Refuses a size without a folder.
pub(super) fn check(folder: Option<&Path>, size: Option<u64>) -> Result<(), Failure> {
    match size.is_some() && folder.is_none() {
        true => Err(Failure::Usage("--prefix-cache-size is for --prefix-cache DIR".to_owned())),
        false => Ok(()),
    }
}

/// Has `engine` keep prefixes in `folder`, if there is one. A folder that fails for now does not stop answers; one that
/// can never work is an error.
pub(super) fn keep(
    engine: &mut Engine,
    folder: Option<&Path>,
    size: Option<u64>,
) -> Result<(), Failure> {
    let Some(folder) = folder else { return Ok(()) };
    if engine.team().is_some() {
        warn("prefixes are not kept: in a team no board has whole pages");
        return Ok(());
    }
    let shown = folder.display();
    if folder.exists() && !folder.is_dir() {
        return Err(Failure::Usage(format!("--prefix-cache {shown} is not a folder")));
    }
    if let Err(e) = engine.keep_prefixes(folder, size.unwrap_or(BYTES)) {
        warn(&format!("prefixes are not kept in {shown}: {e}"));
    }
    Ok(())
}
