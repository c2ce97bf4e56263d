//! One connection of a download.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::error::FetchError;
use super::here::{Found, Here};
use super::pieces::{AHEAD, Pieces};
use crate::channel::Channel;
use crate::wire::give::{HASH_LEN, Offer, PIECE_BYTES, Question};

/// Fewest pieces that are requested ahead.
const AHEAD_MIN: usize = 2;
/// Further pieces are requested ahead, as many as came in this time: a slow connection leaves the rest to faster ones.
const LATELY: Duration = Duration::from_secs(1);

/// The file that is being sent.
pub(super) struct Target<'a> {
    pub(super) file: &'a File,
    /// Path of the file, for messages.
    pub(super) path: PathBuf,
    pub(super) offer: &'a Offer,
    pub(super) here: Here<'a>,
}

impl Target<'_> {
    pub(super) fn failed(&self, error: io::Error) -> FetchError {
        FetchError::File(self.path.clone(), error)
    }
}

/// Events of a download's threads.
pub(super) enum News {
    /// A piece of `len` bytes is in the file, which was not before.
    There { len: u64, is_sent: bool, is_written: bool },
    /// A further connection is open.
    Open,
    /// A connection has ended early.
    Gone { was_open: bool, error: FetchError },
    /// Pieces before this one are safe on the disk, or why not.
    Safe(io::Result<()>, u64),
}

/// Requests pieces on one connection, and writes them.
pub(super) struct Lane<'a, 'd> {
    channel: Channel<'a>,
    target: &'d Target<'a>,
    pieces: &'d Pieces,
    tell: &'d Sender<News>,
    /// Requests on this connection, in the order of their answers.
    asked: VecDeque<Asked>,
    /// Arrival times of the latest pieces.
    came: VecDeque<Instant>,
}

/// A request for a piece, or for the hash of a piece that is found here.
struct Asked {
    index: u64,
    found: Option<Found>,
}

impl<'a, 'd> Lane<'a, 'd> {
    pub(super) fn new(
        channel: Channel<'a>,
        target: &'d Target<'a>,
        pieces: &'d Pieces,
        tell: &'d Sender<News>,
    ) -> Lane<'a, 'd> {
        Lane { channel, target, pieces, tell, asked: VecDeque::new(), came: VecDeque::new() }
    }

    /// Gets pieces until there are no more.
    pub(super) fn run(&mut self) -> Result<(), FetchError> {
        let result = self.get();
        self.asked.drain(..).for_each(|asked| self.pieces.give_back(asked.index));
        result
    }

    fn get(&mut self) -> Result<(), FetchError> {
        loop {
            while self.asked.len() < self.ahead()
                && let Some(index) = self.pieces.take(self.asked.is_empty())
            {
                self.ask(index, self.target.here.find(index))?;
            }
            if self.asked.is_empty() {
                return Ok(());
            }
            self.answer()?;
        }
    }

    /// How many pieces may be asked for now.
    fn ahead(&mut self) -> usize {
        while self.came.front().is_some_and(|came| came.elapsed() > LATELY) {
            self.came.pop_front();
        }
        (AHEAD_MIN + self.came.len()).min(AHEAD as usize)
    }

    /// Asks for a piece, or for its hash if it may be here.
    fn ask(&mut self, index: u64, found: Option<Found>) -> Result<(), FetchError> {
        let question = if found.is_some() { Question::Hash } else { Question::Piece };
        self.asked.push_back(Asked { index, found });
        Ok(self.channel.send(&question(index as u32).emit())?)
    }

    /// Takes the next answer.
    fn answer(&mut self) -> Result<(), FetchError> {
        let Some(Asked { index, found }) = self.asked.front_mut() else { return Ok(()) };
        let (index, found) = (*index, found.take());
        let is_sent = found.is_none();
        let Found { bytes, is_in_place } = match found {
            Some(found) => {
                let mut hash = [0; HASH_LEN];
                self.channel.receive_all(&mut hash)?;
                if Sha256::digest(&found.bytes)[..] != hash {
                    self.asked.pop_front();
                    return self.ask(index, None);
                }
                found
            }
            None => {
                let mut bytes = vec![0; piece_len(self.target.offer, index)];
                self.channel.receive_all(&mut bytes)?;
                Found { bytes, is_in_place: false }
            }
        };
        if !is_in_place {
            let written = self.target.file.write_all_at(&bytes, index * PIECE_BYTES);
            written.map_err(|e| self.target.failed(e))?;
        }
        self.asked.pop_front();
        self.came.push_back(Instant::now());
        if self.pieces.put(index) {
            let len = bytes.len() as u64;
            // The receiver may have ended.
            let _ = self.tell.send(News::There { len, is_sent, is_written: !is_in_place });
        }
        Ok(())
    }
}

/// Length of a piece.
fn piece_len(offer: &Offer, index: u64) -> usize {
    offer.bytes.saturating_sub(index * PIECE_BYTES).min(PIECE_BYTES) as usize
}
