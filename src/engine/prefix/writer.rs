//! The thread that writes pages to files, so that no stream waits for the disk.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::page_file::{self, PageName};
use super::shelf::Shelf;
use crate::model::KvPart;
use crate::sys::cpu;
use crate::sys::file::AtomicFile;

/// Memory for pages that wait for the disk. There is room for two pages, however large they are.
const QUEUE_BYTES: usize = 32 << 20;
const QUEUE_PAGES: std::ops::RangeInclusive<usize> = 2..=16;

/// Pause after an error of the disk.
const PAUSE: Duration = Duration::from_secs(60);

/// Number of written files after which the folder is listed again: other servers may use it.
const LOOK_PERIOD: u32 = 64;

/// Hands pages to the writing thread. Dropping it waits until all pages are written.
pub(super) struct Writer {
    /// `None` once no more pages follow.
    pages: Option<Sender<FullPage>>,
    empty: Receiver<Vec<u8>>,
    give_back: Sender<Vec<u8>>,
    /// Number of pages that may wait, and number of buffers for them.
    n_max: usize,
    n_buffers: usize,
    /// An empty buffer, taken from the channel.
    spare: Option<Vec<u8>>,
    thread: Option<JoinHandle<()>>,
}

struct FullPage {
    name: PageName,
    file: Vec<u8>,
}

impl Writer {
    /// Starts the thread, which writes to `folder` up to `limit` bytes. `shelf` lists the pages there.
    pub(super) fn start(
        folder: PathBuf,
        shelf: Arc<Mutex<Shelf>>,
        limit: u64,
    ) -> io::Result<Writer> {
        let (pages, full) = channel();
        let (give_back, empty) = channel::<Vec<u8>>();
        let written = give_back.clone();
        let mut files = PageFiles { folder, shelf, limit, failed: None, said: None, n_written: 0 };
        let thread = thread::Builder::new().name("leap-prefixes".to_owned()).spawn(move || {
            cpu::unpin_current_thread();
            for FullPage { name, mut file } in full {
                files.take(&name, &mut file);
                // When the writer is dropped, the receiver is gone.
                let _ = written.send(file);
            }
        })?;
        let (pages, thread) = (Some(pages), Some(thread));
        Ok(Writer { pages, empty, give_back, n_max: 0, n_buffers: 0, spare: None, thread })
    }

    /// Provides buffers for files of up to `file_bytes` bytes.
    pub(super) fn make_room(&mut self, file_bytes: usize) {
        let n = QUEUE_BYTES / file_bytes;
        self.n_max = n.clamp(*QUEUE_PAGES.start(), *QUEUE_PAGES.end());
        while self.n_buffers < self.n_max {
            // The receiver exists.
            let _ = self.give_back.send(Vec::with_capacity(file_bytes));
            self.n_buffers += 1;
        }
    }

    /// Whether another page may wait.
    pub(super) fn has_room(&mut self) -> bool {
        while self.n_buffers > self.n_max && self.empty.try_recv().is_ok() {
            self.n_buffers -= 1;
        }
        self.spare = self.spare.take().or_else(|| self.empty.try_recv().ok());
        self.spare.is_some()
    }

    /// Queues the page `name` of `ids` for writing; `false` if the queue is full. `kv` has one `part` per
    /// layer.
    pub(super) fn offer(
        &mut self,
        name: PageName,
        ids: &[u32],
        (kv, part): (&[u8], &KvPart),
    ) -> bool {
        let Some((pages, mut file)) = self.pages.as_ref().zip(self.spare.take()) else {
            return false;
        };
        page_file::fill(&mut file, &name, ids, (kv, part));
        pages.send(FullPage { name, file }).is_ok()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.pages = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended the program.
            let _ = thread.join();
        }
    }
}

/// The folder of page files, from the writing thread's side.
struct PageFiles {
    folder: PathBuf,
    shelf: Arc<Mutex<Shelf>>,
    limit: u64,
    /// When writing last failed.
    failed: Option<Instant>,
    /// Reason of the failure that was reported last.
    said: Option<String>,
    n_written: u32,
}

impl PageFiles {
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

    /// Evicts the least recently used files until the rest fits the limit.
    fn make_way(&self) {
        while let Some(name) = self.with_shelf(|shelf| shelf.make_way(self.limit)) {
            // Another server may have removed the file.
            let _ = fs::remove_file(self.folder.join(name.to_string()));
        }
    }

    fn look_again(&mut self) {
        self.n_written += 1;
        if self.n_written.is_multiple_of(LOOK_PERIOD) {
            // An unreadable folder is reported when a file is written to it.
            let _ = self.with_shelf(|shelf| shelf.look_again(&self.folder));
        }
    }

    fn with_shelf<R>(&self, use_it: impl FnOnce(&mut Shelf) -> R) -> R {
        use_it(&mut self.shelf.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    // Reserving first makes a full disk show before anything is written.
    file.reserve(bytes.len() as u64)?;
    file.write_all(bytes)?;
    file.commit()
}
