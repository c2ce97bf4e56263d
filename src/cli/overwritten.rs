//! Detects changes to a model file in use. Its weights are mapped: results after a change may be wrong, and nothing
//! else would show it.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::warn;
use crate::fetch::giver::Content;
use crate::model::Model;
use crate::sys::notify;

/// Interval between checks of the file.
const LOOKED_EVERY: Duration = Duration::from_secs(2);

/// Warns once if the file at `path` is no longer the one that `model` was read from, as long as the model is in use. The
/// file is read again only if its length or the time of its last change differs.
pub(super) fn watch(path: Option<&Path>, model: &Arc<Model>) {
    let Some(path) = path else { return };
    let file = model.file();
    let fingerprint = file.known_fingerprint().unwrap_or_default();
    let nothing = |_: &_, _: &_| Err(String::new());
    let content = match Content::open(path, file.header(), fingerprint, nothing) {
        Ok(content) => content,
        Err(e) => return log::debug!("{} is not watched: {e}", path.display()),
    };
    let model = Arc::downgrade(model);
    let look = move || {
        loop {
            thread::sleep(LOOKED_EVERY);
            if model.strong_count() == 0 {
                return;
            }
            if let Err(why) = content.check_unchanged() {
                warn(&format!("{why}; its answers until then may be wrong"));
                notify::status(&why);
                return;
            }
        }
    };
    // If the thread cannot start, changes go unnoticed.
    let _ = thread::Builder::new().name("leap-model".to_owned()).spawn(look);
}
