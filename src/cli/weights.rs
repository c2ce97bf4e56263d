//! Preparation of weights, as shown to the user.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::progress::ProgressLine;
use super::{Failure, note, warn};
use crate::engine::{
    Cache, Embedder, Engine, Huge, LargerThanMemory, Listener, Preparing, WeightsPlace,
};
use crate::model::{CheckError, PackError, PackReport};
use crate::sys::signal;

/// Parses `off`, `auto`, a file or a folder.
pub(super) fn cache(value: &str) -> Result<Cache, String> {
    match value {
        "" => Err("wants a file, a folder, auto or off".to_owned()),
        "off" => Ok(Cache::Off),
        "auto" => Ok(Cache::Auto),
        path => Ok(Cache::At(PathBuf::from(path))),
    }
}

/// Parses `auto`, `on` or `off`.
pub(super) fn huge(value: &str) -> Result<Huge, String> {
    match value {
        "auto" => Ok(Huge::Auto),
        "on" => Ok(Huge::On),
        "off" => Ok(Huge::Off),
        _ => Err(format!("{value:?} is none of auto, on and off")),
    }
}

/// Messages about the weights' preparation that the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// The result, and the progress of long work.
    All,
    /// The progress.
    Progress,
    /// Problems only.
    None,
}

/// How much is said while they are prepared for a text or an answer.
pub(super) fn words(is_quiet: bool) -> Words {
    if is_quiet { Words::None } else { Words::All }
}

/// Prepares the weights ([`Engine::prepare`]) and tells the user.
pub(super) fn prepare(
    engine: &mut Engine,
    place: &WeightsPlace,
    words: Words,
) -> Result<(), Failure> {
    let teller = Teller::new(words);
    let tell = |what: Preparing<'_>| teller.tell(&what);
    let prepared = engine.prepare(place, listener(&tell));
    prepared.map(|_| ()).map_err(|e| failure(place.model.as_deref(), &e))
}

/// Prepares the weights of a model of embeddings, and tells the user.
pub(super) fn prepare_embedder(
    embedder: &mut Embedder,
    place: &WeightsPlace,
    words: Words,
) -> Result<(), Failure> {
    let teller = Teller::new(words);
    let tell = |what: Preparing<'_>| teller.tell(&what);
    let prepared = embedder.prepare(place, listener(&tell));
    prepared.map(|_| ()).map_err(|e| failure(place.model.as_deref(), &e))
}

/// Packs the weights into a file ([`Engine::pack_into`]), and tells the user.
pub(super) fn pack_into(
    engine: &mut Engine,
    place: &WeightsPlace,
    path: &Path,
) -> Result<(), Failure> {
    let teller = Teller::new(Words::All);
    let tell = |what: Preparing<'_>| teller.tell(&what);
    let packed = engine.pack_into(place, path, listener(&tell));
    packed.map_err(|e| failure(place.model.as_deref(), &e))
}

/// A listener that calls `tell`, and that a signal interrupts.
pub(super) fn listener<'a>(tell: &'a dyn Fn(Preparing<'_>)) -> Listener<'a> {
    Listener { tell, is_interrupted: &|| signal::interrupted() != 0 }
}

/// Tells the user how the weights' preparation goes.
pub(super) struct Teller {
    start: Instant,
    words: Words,
    /// The progress; `None` when the work is done.
    progress: RefCell<Option<ProgressLine>>,
}

impl Teller {
    pub(super) fn new(words: Words) -> Teller {
        let progress = ProgressLine::new("packing weights", words == Words::None);
        Teller { start: Instant::now(), words, progress: RefCell::new(Some(progress)) }
    }

    /// Tells the user, if they want to know.
    pub(super) fn tell(&self, what: &Preparing<'_>) {
        match what {
            Preparing::Packing(done) => {
                if let Some(progress) = &mut *self.progress.borrow_mut() {
                    progress.update(done.done_bytes, done.total_bytes);
                }
            }
            Preparing::Packed(report, path) => {
                self.progress.take();
                if self.words == Words::All {
                    note(&describe(report, path, self.start.elapsed().as_secs_f64()));
                }
            }
            Preparing::Unpacked(why) => {
                self.progress.take();
                warn(&format!("{why}; weights are used unpacked, which is slower"));
            }
            Preparing::Larger(larger) => {
                self.progress.take();
                warn(&describe_larger(*larger));
            }
        }
    }
}

/// Sorts weights that cannot be used under their exit code.
pub(super) fn failure(model: Option<&Path>, error: &PackError) -> Failure {
    let model = model.unwrap_or(Path::new("built in")).display();
    match error {
        PackError::Weights(CheckError::Interrupted) => Failure::runtime(error),
        PackError::Weights(e) => {
            Failure::Input(format!("cannot use model {model}: {e}; copy or export it anew"))
        }
        e => Failure::runtime(e),
    }
}

fn describe_larger(LargerThanMemory { weights, free, per_token }: LargerThanMemory) -> String {
    let [weights, free, per_token] = [weights, free, per_token].map(|bytes| bytes as f64 / 1e6);
    format!(
        "{weights:.1} MB of weights are more than the {free:.1} MB of memory that are free: of the \
         {per_token:.1} MB that a token reads, what memory lacks comes from the disk"
    )
}

fn describe(report: &PackReport, path: &Path, seconds: f64) -> String {
    let (path, mb) = (path.display(), report.bytes as f64 / 1e6);
    match report.packed {
        0 => format!("leap: reused {} packed tensors ({mb:.1} MB): {path}", report.reused),
        n if report.reused > 0 => format!(
            "leap: packed {n} tensors in {seconds:.1} s, reused {} ({mb:.1} MB in all): {path}",
            report.reused
        ),
        n => format!("leap: packed {n} tensors ({mb:.1} MB) in {seconds:.1} s: {path}"),
    }
}
