//! The thread that writes pages to files, so that nobody waits for the disk.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::page_file::{self, HEAD_BYTES, PageName};
use super::shelf::Shelf;
use crate::model::KvPart;
use crate::sys::cpu;
use crate::sys::file::AtomicFile;

/// Memory for pages that wait for the disk; there is room for two, however large they are.
const QUEUE_BYTES: usize = 32 << 20;
const QUEUE_PAGES: std::ops::RangeInclusive<usize> = 2..=16;

/// How long a disk is left alone that took nothing.
const PAUSE: Duration = Duration::from_secs(60);

/// Files written until the folder is looked at again: other servers may use it.
const LOOK_PERIOD: u32 = 64;

/// Hands pages to the thread. When it is dropped, those are written still.
pub(super) struct Writer {
    /// `None` once there are no more.
    pages: Option<Sender<FullPage>>,
    empty: Receiver<Vec<u8>>,
    /// What layers have in a page.
    part: KvPart,
    thread: Option<JoinHandle<()>>,
}

struct FullPage {
    name: PageName,
    file: Vec<u8>,
}

impl Writer {
    /// Writes to `folder`, whose pages are on `shelf`, as long as they have up to `limit` bytes. Pages have
    /// `page_bytes` of keys and values at most, of which layers have `part`.
    pub(super) fn start(
        folder: PathBuf,
        shelf: Arc<Mutex<Shelf>>,
        limit: u64,
        (page_bytes, part): (usize, KvPart),
    ) -> io::Result<Writer> {
        let (pages, full) = channel();
        let (give_back, empty) = channel();
        let file_bytes = HEAD_BYTES + page_bytes;
        let n = (QUEUE_BYTES / file_bytes).clamp(*QUEUE_PAGES.start(), *QUEUE_PAGES.end());
        for _ in 0..n {
            // The receiver is there.
            let _ = give_back.send(Vec::with_capacity(file_bytes));
        }
        let mut desk = Desk { folder, shelf, limit, failed: None, said: None, n_written: 0 };
        let thread = thread::Builder::new().name("leap-prefixes".to_owned()).spawn(move || {
            cpu::unpin_current_thread();
            for FullPage { name, mut file } in full {
                desk.take(&name, &mut file);
                // Nobody wants it back at the end.
                let _ = give_back.send(file);
            }
        })?;
        Ok(Writer { pages: Some(pages), empty, part, thread: Some(thread) })
    }

    /// Has the page `name` of `ids` written; `false` if too many wait.
    pub(super) fn offer(&self, name: PageName, ids: &[u32], kv: &[u8]) -> bool {
        let Some((pages, mut file)) = self.pages.as_ref().zip(self.empty.try_recv().ok()) else {
            return false;
        };
        page_file::fill(&mut file, &name, ids, (kv, &self.part));
        pages.send(FullPage { name, file }).is_ok()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.pages = None;
        if let Some(thread) = self.thread.take() {
            // If it has panicked, so has the program.
            let _ = thread.join();
        }
    }
}

/// What the thread knows.
struct Desk {
    folder: PathBuf,
    shelf: Arc<Mutex<Shelf>>,
    limit: u64,
    /// When the disk last took nothing.
    failed: Option<Instant>,
    /// Why, as was said then.
    said: Option<String>,
    n_written: u32,
}

impl Desk {
    fn take(&mut self, name: &PageName, file: &mut [u8]) {
        if self.failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return self.with_shelf(|shelf| shelf.remove(name));
        }
        self.failed = None;
        self.make_way();
        page_file::seal(file);
        match write(&self.folder.join(name.to_string()), file) {
            Ok(()) => {
                self.said = None;
                self.with_shelf(|shelf| shelf.keep_promise(name));
                self.look_again();
            }
            Err(error) => self.fail(name, &error),
        }
    }

    fn fail(&mut self, name: &PageName, error: &io::Error) {
        self.failed = Some(Instant::now());
        self.with_shelf(|shelf| shelf.remove(name));
        let why = error.to_string();
        if self.said.as_ref() != Some(&why) {
            log::warn!("prefixes are not kept in {}: {why}", self.folder.display());
            self.said = Some(why);
        }
    }

    /// What was unused longest makes way until all have room.
    fn make_way(&self) {
        while let Some(name) = self.with_shelf(|shelf| shelf.make_way(self.limit)) {
            // Another server may have removed it.
            let _ = fs::remove_file(self.folder.join(name.to_string()));
        }
    }

    fn look_again(&mut self) {
        self.n_written += 1;
        if self.n_written.is_multiple_of(LOOK_PERIOD) {
            // A folder that cannot be read is told of when something is written to it.
            let _ = self.with_shelf(|shelf| shelf.look_again(&self.folder));
        }
    }

    fn with_shelf<R>(&self, use_it: impl FnOnce(&mut Shelf) -> R) -> R {
        use_it(&mut self.shelf.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    // A full disk shows before it is fuller still.
    file.reserve(bytes.len() as u64)?;
    file.write_all(bytes)?;
    file.commit()
}
