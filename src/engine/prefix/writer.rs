//! The thread that writes pages and states to files, so that no stream waits for the disk.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::page_file::{self, Kind, PageName};
use super::shelf::Shelf;
use crate::model::KvPart;
use crate::sys::cpu;
use crate::sys::file::AtomicFile;

/// Memory for pages that wait for the disk. There is room for two pages, however large they are.
const QUEUE_BYTES: usize = 32 << 20;
const QUEUE_PAGES: std::ops::RangeInclusive<usize> = 2..=16;

/// Room for states that wait for the disk, beside the pages: a state may be as large as many pages.
const QUEUE_STATES: usize = 2;

/// Pause after an error of the disk.
const PAUSE: Duration = Duration::from_secs(60);

/// Number of written files after which the folder is listed again: other servers may use it.
const LOOK_PERIOD: u32 = 64;

/// Hands pages to the writing thread. Dropping it waits until all pages are written.
pub(super) struct Writer {
    /// `None` once no more pages follow.
    pages: Option<Sender<FullPage>>,
    /// Buffers for pages, and for states.
    rooms: [Room; 2],
    thread: Option<JoinHandle<()>>,
}

/// Buffers for files that wait for the disk.
struct Room {
    empty: Receiver<Vec<u8>>,
    give_back: Sender<Vec<u8>>,
    /// Number of files that may wait, and number of buffers for them.
    n_max: usize,
    n_buffers: usize,
    /// An empty buffer, taken from the channel.
    spare: Option<Vec<u8>>,
}

struct FullPage {
    name: PageName,
    file: Vec<u8>,
}

impl Room {
    fn new() -> Room {
        let (give_back, empty) = channel();
        Room { empty, give_back, n_max: 0, n_buffers: 0, spare: None }
    }

    /// Provides `n` buffers for files of up to `file_bytes` bytes.
    fn make(&mut self, n: usize, file_bytes: usize) {
        self.n_max = n;
        while self.n_buffers < self.n_max {
            // The receiver exists.
            let _ = self.give_back.send(Vec::with_capacity(file_bytes));
            self.n_buffers += 1;
        }
    }

    /// Whether another file may wait.
    fn is_there(&mut self) -> bool {
        while self.n_buffers > self.n_max && self.empty.try_recv().is_ok() {
            self.n_buffers -= 1;
        }
        self.spare = self.spare.take().or_else(|| self.empty.try_recv().ok());
        self.spare.is_some()
    }
}

/// Which of a writer's rooms is for files of this kind.
fn room_for(kind: Kind) -> usize {
    usize::from(kind == Kind::State)
}

impl Writer {
    /// Starts the thread, which writes to `folder` up to `limit` bytes. `shelf` lists the pages there.
    pub(super) fn start(
        folder: PathBuf,
        shelf: Arc<Mutex<Shelf>>,
        limit: u64,
    ) -> io::Result<Writer> {
        let (pages, full) = channel();
        let rooms = [Room::new(), Room::new()];
        let written = rooms.each_ref().map(|room| room.give_back.clone());
        let mut files = PageFiles { folder, shelf, limit, failed: None, said: None, n_written: 0 };
        let thread = thread::Builder::new().name("leap-prefixes".to_owned()).spawn(move || {
            cpu::unpin_current_thread();
            for FullPage { name, mut file } in full {
                files.take(&name, &mut file);
                // When the writer is dropped, the receiver is gone.
                let _ = written[room_for(name.kind)].send(file);
            }
        })?;
        let (pages, thread) = (Some(pages), Some(thread));
        Ok(Writer { pages, rooms, thread })
    }

    /// Provides buffers for pages' files of up to `page_bytes` bytes, and for states' of `state_bytes` if there are any.
    pub(super) fn make_room(&mut self, page_bytes: usize, state_bytes: Option<usize>) {
        let [pages, states] = &mut self.rooms;
        let n = QUEUE_BYTES / page_bytes;
        pages.make(n.clamp(*QUEUE_PAGES.start(), *QUEUE_PAGES.end()), page_bytes);
        if let Some(bytes) = state_bytes {
            let n = (QUEUE_BYTES / bytes).clamp(QUEUE_STATES, *QUEUE_PAGES.end());
            states.make(n, bytes);
        }
    }

    /// Whether another file of this kind may wait.
    pub(super) fn has_room(&mut self, kind: Kind) -> bool {
        self.rooms[room_for(kind)].is_there()
    }

    /// Queues the file `name` of `ids` for writing; `false` if the queue is full. The body of a page consists of these
    /// parts.
    pub(super) fn offer(&mut self, name: PageName, ids: &[u32], body: (&[u8], &[KvPart])) -> bool {
        let spare = self.rooms[room_for(name.kind)].spare.take();
        let Some((pages, mut file)) = self.pages.as_ref().zip(spare) else { return false };
        page_file::fill(&mut file, &name, ids, body);
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
