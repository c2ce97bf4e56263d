//! State that the engine's thread shares with the thread that talks to the draft node.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::wire::draft::{Draft, WANTED_MAX};

/// The texts of an engine, and drafts from the node.
pub(crate) struct Guesses {
    guesses: Vec<Mutex<Guess>>,
    ctx_len: usize,
    /// Whether the node listens; and whether this is known yet.
    is_there: AtomicBool,
    is_known: AtomicBool,
    /// Whether the node has still to answer the last request.
    is_waiting: AtomicBool,
    is_over: AtomicBool,
    /// A pair of sockets: a byte written to the first end wakes the thread that waits at the second.
    bell: [UnixStream; 2],
}

/// A text, and drafts after it.
#[derive(Debug, Default)]
pub(super) struct Guess {
    /// Ids of the text, then drafted ids, `[n_text + up to WANTED_MAX]`.
    known: Vec<u32>,
    n_text: usize,
    /// Serial number of the text, which tells its drafts from those of its former versions.
    serial: u32,
    /// Number of drafts that are wanted, and number that is enough to continue.
    wanted: usize,
    n_enough: usize,
    /// Whether the node has still to be told of the text.
    is_new: bool,
}

impl Guesses {
    /// State for `n` texts of up to `ctx_len` ids.
    pub(crate) fn new(n: usize, ctx_len: usize) -> io::Result<Guesses> {
        let (a, b) = UnixStream::pair()?;
        a.set_nonblocking(true)?;
        b.set_nonblocking(true)?;
        Ok(Guesses {
            guesses: (0..n).map(|_| Mutex::new(Guess::with_capacity(ctx_len))).collect(),
            ctx_len,
            is_there: AtomicBool::new(false),
            is_known: AtomicBool::new(false),
            is_waiting: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            bell: [a, b],
        })
    }

    pub(super) fn len(&self) -> usize {
        self.guesses.len()
    }

    /// Maximum length of a text in ids.
    pub(super) fn ctx_len(&self) -> usize {
        self.ctx_len
    }

    /// Locks the drafts of a text, if the node drafts for it. For the thread that talks to the node.
    pub(super) fn guess(&self, index: usize) -> Option<MutexGuard<'_, Guess>> {
        let guess = self.guesses.get(index)?;
        Some(guess.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the drafts of a text for the engine; `None` at once if the other thread holds the lock.
    pub(super) fn try_guess(&self, index: usize) -> Option<MutexGuard<'_, Guess>> {
        match self.guesses.get(index)?.try_lock() {
            Ok(guess) => Some(guess),
            Err(TryLockError::Poisoned(guess)) => Some(guess.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Wakes the other thread, so that it tells the node of changes.
    pub(super) fn ring(&self) {
        // If the socket's buffer is full, the other thread is being woken already.
        let _ = (&self.bell[0]).write(&[1]);
    }

    /// Descriptor that becomes readable when [`Guesses::ring`] is called.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell[1].as_fd()
    }

    /// Reads all bytes out of the socket, so that it becomes readable again with the next one.
    pub(super) fn silence(&self) {
        while (&self.bell[1]).read(&mut [0; 64]).is_ok_and(|n| n == 64) {}
    }

    /// Notes whether the node listens. If it does, it has still to be told of every text.
    pub(super) fn set_there(&self, is_there: bool) {
        for index in 0..self.len() {
            if let Some(mut guess) = self.guess(index) {
                guess.is_new = is_there && guess.n_text > 0;
            }
        }
        self.is_there.store(is_there, Ordering::Release);
        self.is_known.store(true, Ordering::Release);
    }

    /// Whether the first attempt to reach the node has ended.
    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    pub(crate) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    /// Notes whether the node has still to answer the last request.
    pub(super) fn set_waiting(&self, is_waiting: bool) {
        self.is_waiting.store(is_waiting, Ordering::Release);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Acquire) && self.is_there()
    }

    /// Ends the other thread: no more drafts are wanted.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.ring();
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Guess {
    fn with_capacity(ctx_len: usize) -> Guess {
        Guess { known: Vec::with_capacity(ctx_len + 2 * WANTED_MAX), ..Guess::default() }
    }

    /// Drafts after `ids`; none if the known text differs.
    pub(super) fn after(&self, ids: &[u32]) -> &[u32] {
        self.known.strip_prefix(ids).unwrap_or_default()
    }

    /// Requests `wanted` drafts after `ids`, of which `n_enough` are enough to continue. True if this is a
    /// new request.
    pub(super) fn ask(&mut self, ids: &[u32], (n_enough, wanted): (usize, usize)) -> bool {
        let wanted = wanted.min(WANTED_MAX);
        self.n_enough = n_enough.min(wanted);
        let goes_on = self.known.starts_with(ids);
        if goes_on && ids.len() == self.n_text && wanted <= self.wanted {
            return false;
        }
        match goes_on {
            // The text agrees with the known ids, so the others may still be right.
            true => self.known.truncate(ids.len() + WANTED_MAX),
            false => {
                self.known.clear();
                self.known.extend_from_slice(ids);
            }
        }
        (self.n_text, self.wanted) = (ids.len(), wanted);
        self.serial = self.serial.wrapping_add(1);
        self.is_new = true;
        true
    }

    /// Whether there are enough drafts to continue.
    pub(super) fn has_enough(&self) -> bool {
        self.known.len() >= self.n_text + self.n_enough
    }

    /// If the node has still to be told of the text, copies it to `text`, and returns its serial number and
    /// the number of wanted drafts.
    pub(super) fn take_new(&mut self, text: &mut Vec<u32>) -> Option<(u32, usize)> {
        if !std::mem::take(&mut self.is_new) {
            return None;
        }
        text.clear();
        text.extend_from_slice(&self.known[..self.n_text]);
        Some((self.serial, self.wanted))
    }

    /// Takes a part of a draft. `None` if an earlier part is missing. Drafts for an older version of the text
    /// are dropped.
    pub(super) fn hear(&mut self, draft: &Draft<'_>) -> Option<()> {
        if draft.serial != self.serial {
            return Some(());
        }
        let at = self.n_text + draft.at as usize;
        if at > self.known.len() {
            return None;
        }
        self.known.truncate(at);
        self.known.extend(draft.ids.iter());
        Some(())
    }
}
