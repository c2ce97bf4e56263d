//! Models by name for `leap serve --models`: those on this machine, downloads and removals.

#[cfg(feature = "pull")]
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::{Failure, models, names};
#[cfg(feature = "pull")]
use crate::serve::Progress;
use crate::serve::{SourceError, TellProgress};
#[cfg(feature = "pull")]
use crate::store::PullEvent;
use crate::store::{self, FoundModel, ModelName, StoreError};

/// The names and paths of all models that names stand for on this machine. Those that clients `pulled` keep the names by
/// which they did so; if others have the same short name, they are called by the full one.
pub(super) fn on_disk(pulled: &[(String, PathBuf)]) -> Vec<(String, PathBuf)> {
    let all = store::all();
    let shorts: Vec<String> = all.iter().map(|model| model.name.short()).collect();
    let name = |(model, short): (&FoundModel, &String)| {
        let is_alone = all.iter().filter(|other| other.path == model.path).count() == 1;
        let means = |name: &str| is_alone || meant(name).is_ok_and(|meant| meant == model.name);
        let asked = pulled.iter().find(|(name, path)| *path == model.path && means(name));
        let asked = asked.map(|(name, _)| name);
        let is_only = shorts.iter().filter(|other| *other == short).count() == 1;
        let own = || if is_only { short.clone() } else { model.name.to_string() };
        (asked.cloned().unwrap_or_else(own), model.path.clone())
    };
    all.iter().zip(&shorts).map(name).collect()
}

/// The one of `listed` models, names and paths, that the full name `name` means.
pub(super) fn meant_of<'l>(
    name: &str,
    listed: &'l [(String, PathBuf)],
) -> Option<&'l (String, PathBuf)> {
    let found = names::find(&meant(name).ok()?).ok()??;
    let mut here = listed.iter().filter(|(_, path)| *path == found.path);
    let is_it = |(own, path): &&(String, PathBuf)| {
        at(own, path).is_some_and(|model| model.name == found.name)
    };
    here.clone().find(is_it).or_else(|| here.next())
}

/// The model at `path` that clients call `name`: several models may have the same file.
pub(super) fn at(name: &str, path: &Path) -> Option<FoundModel> {
    let mut here: Vec<FoundModel> =
        store::all().into_iter().filter(|model| model.path == path).collect();
    let meant = meant(name).ok();
    let by_full_name =
        |model: &FoundModel| meant.as_ref() == Some(&model.name) || model.name.to_string() == name;
    let index = here
        .iter()
        .position(by_full_name)
        .or_else(|| here.iter().position(|model| model.name.short() == name))
        .or_else(|| (here.len() == 1).then_some(0))?;
    Some(here.swap_remove(index))
}

/// The name that a client of Ollama's means: one of LEAP's, `hf.co/ORG/REPO[:QUANT]`, or a name of Ollama's registry.
fn meant(name: &str) -> Result<ModelName, SourceError> {
    let hub = ["hf.co/", "huggingface.co/"].iter().find_map(|host| name.strip_prefix(host));
    let parsed = ModelName::parse(name).unwrap_or_else(|| {
        let full = hub.map_or_else(|| format!("ollama:{name}"), |rest| format!("hf:{rest}"));
        ModelName::parse(&full).unwrap_or(Err(full))
    });
    parsed.map_err(SourceError::Refused)
}

/// Fetches the model of this name, unless it is here, and returns its path.
pub(super) fn pull(name: &str, tell: TellProgress<'_>) -> Result<PathBuf, SourceError> {
    let meant = meant(name)?;
    let found = || names::find(&meant).map_err(failed);
    if let Some(found) = found()? {
        return Ok(found.path);
    }
    fetch(&meant, tell)?;
    let lost =
        || SourceError::Failed(format!("{name} was fetched, but its files are no whole model"));
    found()?.map(|found| found.path).ok_or_else(lost)
}

#[cfg(feature = "pull")]
fn fetch(name: &ModelName, tell: TellProgress<'_>) -> Result<(), SourceError> {
    let mut is_told = false;
    let mut forward = |event: PullEvent<'_>| match event {
        PullEvent::Bytes { digest, done, total } if total > 0 => {
            let (digest, completed) = (digest.to_owned(), done);
            tell(Progress::Bytes { digest, total, completed })
        }
        PullEvent::Note(_) if !is_told => {
            is_told = true;
            tell(Progress::Step("pulling manifest"))
        }
        PullEvent::Note(_) | PullEvent::Bytes { .. } => ControlFlow::Continue(()),
    };
    let room = names::room().map_err(failed)?;
    store::pull(name, room, &mut forward).map_err(|error| match error {
        StoreError::Input(why) => SourceError::Unknown(why),
        other => SourceError::Failed(other.to_string()),
    })?;
    let _ = tell(Progress::Step("verifying sha256 digest"));
    Ok(())
}

#[cfg(not(feature = "pull"))]
fn fetch(name: &ModelName, _tell: TellProgress<'_>) -> Result<(), SourceError> {
    let why =
        format!("{name} is not on this machine, and this program was built without downloads");
    Err(SourceError::Unknown(why))
}

/// Removes the model at `path`, which clients call `name`, if `leap pull` or a client brought it.
pub(super) fn delete(name: &str, path: &Path) -> Result<(), SourceError> {
    let Some(model) = at(name, path) else {
        let path = path.display();
        return Err(SourceError::Refused(format!("{name} was not pulled: remove {path} yourself")));
    };
    models::remove(&model).map_err(|error| match error {
        StoreError::Input(why) => SourceError::Refused(why),
        other => SourceError::Failed(other.to_string()),
    })?;
    Ok(())
}

fn failed(why: Failure) -> SourceError {
    SourceError::Failed(why.message())
}
