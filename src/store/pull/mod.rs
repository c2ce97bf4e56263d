//! Downloads of models: from Hugging Face's hub ([`hub`]) and from Ollama's registry ([`registry`]).
//!
//! A thread of its own downloads. The caller's thread shows progress, and may leave at any time: what has arrived stays
//! on the disk, and the next download goes on from there.

mod client;
mod hub;
mod pieces;
mod registry;
mod transfer;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{MachineRoom, ModelName, StoreError};
use crate::sys::file;

/// Interval between two calls that tell of progress.
const TELL_PERIOD: Duration = Duration::from_millis(100);

/// News of a download.
#[derive(Debug)]
pub(crate) enum PullEvent<'a> {
    /// A decision, or the reason of a wait, in words.
    Note(&'a str),
    /// Bytes of the file with the hash `digest` that are there.
    Bytes { digest: &'a str, done: u64, total: u64 },
}

/// State that the threads of a download share.
#[derive(Default)]
struct Shared {
    is_ended: AtomicBool,
    done: AtomicU64,
    /// Bytes of the file that is being fetched.
    total: AtomicU64,
    /// The file's hash, and notes that the caller has not seen.
    words: Mutex<(String, Vec<String>)>,
}

impl Shared {
    /// Refuses to go on once the caller has left.
    fn check(&self) -> Result<(), StoreError> {
        match self.is_ended.load(Ordering::Relaxed) {
            true => Err(StoreError::Interrupted),
            false => Ok(()),
        }
    }

    /// Waits for `time`, at most until the caller leaves.
    fn wait(&self, time: Duration) -> Result<(), StoreError> {
        let steps = time.as_millis().div_ceil(TELL_PERIOD.as_millis());
        for _ in 0..steps {
            self.check()?;
            thread::sleep(TELL_PERIOD);
        }
        self.check()
    }

    fn note(&self, note: String) {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).1.push(note);
    }

    /// Begins to tell of the file with the hash `digest`, of which `done` bytes are there.
    fn begin(&self, digest: &str, (done, total): (u64, u64)) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        digest.clone_into(&mut words.0);
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    fn tell(&self, tell: &mut dyn FnMut(PullEvent<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        let (digest, notes) = {
            let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
            (words.0.clone(), std::mem::take(&mut words.1))
        };
        for note in &notes {
            tell(PullEvent::Note(note))?;
        }
        let total = self.total.load(Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed).min(total);
        tell(PullEvent::Bytes { digest: &digest, done, total })
    }
}

/// Fetches the model that `name` names, into the folder of the program that it is named after. If a repository has several
/// models and `name` names none of them, the one that suits `room` best is fetched.
///
/// `tell` is called ten times a second, and ends the download by [`ControlFlow::Break`].
///
/// # Errors
/// The reason in one sentence. What has arrived is kept for the next call.
pub(crate) fn pull(
    name: &ModelName,
    room: MachineRoom,
    tell: &mut dyn FnMut(PullEvent<'_>) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let shared = Arc::new(Shared::default());
    let (sender, result) = channel();
    let (name, own) = (name.clone(), Arc::clone(&shared));
    let fetch = move || {
        let pulled = match &name {
            ModelName::Hub(name) => hub::pull(name, &room, &own),
            ModelName::Ollama(name) => registry::pull(name, &own),
        };
        // If the caller has left, nobody wants the result.
        let _ = sender.send(pulled);
    };
    let thread = thread::Builder::new().name("pull".to_owned());
    thread.spawn(fetch).map_err(|e| StoreError::Runtime(format!("no thread can start: {e}")))?;
    loop {
        let pulled = result.recv_timeout(TELL_PERIOD);
        if shared.tell(tell).is_break() {
            shared.is_ended.store(true, Ordering::Relaxed);
            return Err(StoreError::Interrupted);
        }
        match pulled {
            Ok(pulled) => return pulled,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(StoreError::Runtime("the download's thread ended".to_owned()));
            }
        }
    }
}

/// Makes `folder` and those above it.
fn make_folder(folder: &Path) -> Result<(), StoreError> {
    fs::create_dir_all(folder).map_err(|e| StoreError::io("make", folder, &e))
}

/// Refuses a download of `bytes` to `folder` if the disk has less room.
fn check_room(folder: &Path, bytes: u64) -> Result<(), StoreError> {
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
fn write_file(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let written = file::AtomicFile::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.commit()
    });
    written.map_err(|e| StoreError::io("write", path, &e))
}

/// Adds a line to the list at `path`.
fn add_line(path: &Path, line: &str) -> Result<(), StoreError> {
    let open = OpenOptions::new().append(true).create(true).open(path);
    let written = open.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.map_err(|e| StoreError::io("write", path, &e))
}
