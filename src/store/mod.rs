//! Models by name: those that Hugging Face's programs and Ollama keep on this machine, and (feature `pull`) downloads of
//! them.
//!
//! A model is named as in `hf:ORG/REPO:Q4_K_M` or `ollama:qwen3:0.6b` ([`ModelName`]). [`find`] looks for it in the
//! folders of those programs, whose layouts are followed so that they find LEAP's downloads as well. Files are
//! read where they lie. Names and manifests come from others: none may lead out of its folder.

mod choice;
mod error;
mod found;
mod hub;
mod name;
mod ollama;
mod parameters;
mod paths;
#[cfg(feature = "pull")]
mod pull;
mod remove;

pub(crate) use choice::MachineRoom;
pub(crate) use error::StoreError;
pub(crate) use found::FoundModel;
pub(crate) use name::ModelName;
#[cfg(feature = "pull")]
pub(crate) use pull::{PullEvent, pull};
pub(crate) use remove::{remove, remove_parts};

use hub::HubCache;
use ollama::OllamaStore;

/// The model that `name` names, if it is on this machine. If a repository has several and `name` names none of them, the
/// one that suits `room` best is taken.
///
/// # Errors
/// If a folder holds something else than the program that it belongs to writes, or nothing in it fits into the memory.
pub(crate) fn find(
    name: &ModelName,
    room: &dyn Fn() -> MachineRoom,
) -> Result<Option<FoundModel>, StoreError> {
    match name {
        ModelName::Hub(name) => match HubCache::of_user() {
            Some(cache) => cache.find(name, room),
            None => Ok(None),
        },
        ModelName::Ollama(name) => {
            for store in OllamaStore::all() {
                if let Some(found) = store.find(name)? {
                    return Ok(Some(found));
                }
            }
            Ok(None)
        }
    }
}

/// All models on this machine that LEAP's names can name. Folders that cannot be read are skipped.
pub(crate) fn all() -> Vec<FoundModel> {
    let mut all = HubCache::of_user().map_or_else(Vec::new, |cache| cache.all());
    all.extend(OllamaStore::all().iter().flat_map(OllamaStore::models));
    all
}
