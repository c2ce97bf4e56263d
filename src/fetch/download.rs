//! Gets the pieces of a file, and makes them safe on the disk.
//!
//! One connection is as fast as the network and the disks, unless the network loses much: then each TCP connection
//! stands still most of the time. So further connections are opened while few pieces come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use super::error::FetchError;
use super::lane::{Lane, News, Target};
use super::pieces::{AHEAD, Pieces};
use crate::channel::{Channel, ChannelError};

/// Most connections at the same time.
pub(super) const LANES_MAX: usize = 8;
/// Most connections that are being opened at a time: the giver takes many without a proven key for a crowd of
/// strangers.
const OPENING_MAX: usize = 2;
/// How often the speed is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Fewest pieces between two looks, 256 KiB: with fewer, further connections are opened.
const FEW: u64 = 8;
/// How often the download checks whether the user interrupts it.
const ASKED_EVERY: Duration = Duration::from_millis(200);
/// Fewest pieces that are synced to the disk at once, while others come.
const SAFE_AT_ONCE: u64 = AHEAD / 2;

/// A file that is being sent.
pub(super) struct Download<'a> {
    pub(super) target: Target<'a>,
    /// Opens a further connection on which the same file is offered.
    pub(super) open: &'a (dyn Fn() -> Result<Channel<'a>, FetchError> + Sync),
    pub(super) is_interrupted: &'a (dyn Fn() -> bool + Sync),
    /// Tells connections to end.
    pub(super) is_over: &'a AtomicBool,
}

impl<'a> Download<'a> {
    /// Gets all pieces, over `first` and further connections, and returns how many bytes were sent. `progress` gets the
    /// bytes that are there, and the bytes of the whole file.
    pub(super) fn run(
        &self,
        first: Channel<'a>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64, FetchError> {
        let (tell, told) = mpsc::channel();
        let pieces = Pieces::new(self.target.offer.n_pieces());
        thread::scope(|scope| {
            let mut crew = Crew {
                download: self,
                scope,
                pieces: &pieces,
                tell,
                n_lanes: 0,
                n_opening: 0,
                n_lanes_max: LANES_MAX,
                is_keeping: false,
                n_written: 0,
            };
            let result = crew.begin(Some(first)).and_then(|()| crew.work(&told, progress));
            self.is_over.store(true, Ordering::Relaxed);
            pieces.close();
            result
        })
    }
}

/// The threads of a download.
struct Crew<'scope, 'env, 'a> {
    download: &'env Download<'a>,
    scope: &'scope Scope<'scope, 'env>,
    pieces: &'env Pieces,
    tell: Sender<News>,
    /// Connections, including those that are being opened.
    n_lanes: usize,
    n_opening: usize,
    /// Most connections at a time.
    n_lanes_max: usize,
    /// Whether a thread is syncing the file.
    is_keeping: bool,
    /// Pieces written since the last sync began.
    n_written: u64,
}

impl<'a> Crew<'_, '_, 'a> {
    /// Follows the threads until all pieces are there.
    fn work(
        &mut self,
        told: &Receiver<News>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64, FetchError> {
        let bytes = self.download.target.offer.bytes;
        let (mut n_there, mut there, mut sent) = (0, 0, 0);
        let (mut looked, mut n_before) = (Instant::now(), 0);
        while n_there < self.download.target.offer.n_pieces() {
            if (self.download.is_interrupted)() {
                return Err(ChannelError::Interrupted.into());
            }
            match told.recv_timeout(ASKED_EVERY) {
                Ok(News::There { len, is_sent, is_written }) => {
                    (n_there, there) = (n_there + 1, there + len);
                    sent += if is_sent { len } else { 0 };
                    self.n_written += u64::from(is_written);
                    progress(there, bytes);
                }
                Ok(News::Open) => self.n_opening -= 1,
                Ok(News::Gone { was_open, error }) => self.lose(was_open, error)?,
                Ok(News::Safe(done, end)) => {
                    done.map_err(|e| self.download.target.failed(e))?;
                    self.is_keeping = false;
                    self.pieces.keep(end);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            self.keep()?;
            if looked.elapsed() >= LOOK_EVERY {
                let is_slow = n_there - n_before < FEW;
                (looked, n_before) = (Instant::now(), n_there);
                // The giver takes long to compute the first piece of some rows.
                let may_help = n_there > 0 || self.download.target.offer.rows == 0;
                while is_slow && may_help && self.has_place() && self.pieces.has_more() {
                    self.begin(None)?;
                }
            }
        }
        Ok(sent)
    }

    fn has_place(&self) -> bool {
        self.n_opening < OPENING_MAX && self.n_lanes < self.n_lanes_max
    }

    /// Begins to get pieces over `channel`, or over one that is opened first.
    fn begin(&mut self, channel: Option<Channel<'a>>) -> Result<(), FetchError> {
        self.n_lanes += 1;
        self.n_opening += usize::from(channel.is_none());
        let (tell, pieces, download) = (self.tell.clone(), self.pieces, self.download);
        let work = move || {
            let mut was_open = channel.is_some();
            let opened = channel.map_or_else(download.open, Ok);
            let result = opened.and_then(|channel| {
                // The receiver may have ended.
                let _ = if was_open { Ok(()) } else { tell.send(News::Open) };
                was_open = true;
                let mut lane = Lane::new(channel, &download.target, pieces, &tell);
                lane.run()
            });
            if let Err(error) = result {
                let _ = tell.send(News::Gone { was_open, error });
            }
        };
        let thread = thread::Builder::new().name("leap-fetch".to_owned());
        let begun = thread.spawn_scoped(self.scope, work);
        begun.map(|_| ()).map_err(|e| FetchError::Channel(ChannelError::Io(e)))
    }

    /// Notes that a connection has ended. Returns its error if that ends the download.
    fn lose(&mut self, was_open: bool, error: FetchError) -> Result<(), FetchError> {
        self.n_lanes -= 1;
        match was_open {
            // Other boards may need the connection's place.
            true => self.n_lanes_max = (self.n_lanes_max - 1).max(1),
            false => self.n_opening -= 1,
        }
        if error.may_pass() && self.n_lanes > 0 { Ok(()) } else { Err(error) }
    }

    /// Starts to sync the file, if enough pieces are written and no thread is syncing.
    fn keep(&mut self) -> Result<(), FetchError> {
        let pieces = self.pieces.unsafe_pieces();
        if self.is_keeping || pieces.end - pieces.start < SAFE_AT_ONCE {
            return Ok(());
        }
        if std::mem::take(&mut self.n_written) == 0 {
            self.pieces.keep(pieces.end);
            return Ok(());
        }
        let (file, tell) = (self.download.target.file, self.tell.clone());
        let thread = thread::Builder::new().name("leap-keep".to_owned());
        let keep = move || {
            let _ = tell.send(News::Safe(file.sync_data(), pieces.end));
        };
        thread.spawn_scoped(self.scope, keep).map_err(|e| self.download.target.failed(e))?;
        self.is_keeping = true;
        Ok(())
    }
}
