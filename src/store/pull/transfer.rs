//! The download of one file, over four connections at most.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::client::{ATTEMPTS, Answer, Client, Trouble};
use super::disk::{O_NOFOLLOW, check_room};
use super::pieces::{Piece, Pieces, longer};
use super::shared::{Shared, TELL_PERIOD};
use crate::store::error::StoreError;

/// Most connections.
const CONNECTIONS: usize = 4;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Bytes of an answer that ended early, from which on another attempt is worth it.
const PROGRESS_BYTES: u64 = 4096;
/// Bytes after which the record of what arrived is brought up to date.
const NOTE_BYTES: u64 = 1 << 20;

/// The hash of a file's bytes, in hexadecimal digits.
pub(super) enum FileHash {
    Sha256(String),
    /// Git's SHA-1 of a blob, by which the hub names small files.
    Git(String),
}

/// A file that is to be fetched.
pub(super) struct WantedFile {
    pub(super) url: String,
    pub(super) bytes: u64,
    pub(super) hash: FileHash,
    /// Name of the content, as in `sha256:…`.
    pub(super) digest: String,
    /// Where it goes.
    pub(super) path: PathBuf,
}

impl WantedFile {
    /// Whether it is there.
    pub(super) fn is_there(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|file| file.is_file() && file.len() == self.bytes)
    }

    /// Bytes that are still to come.
    pub(super) fn missing_bytes(&self) -> u64 {
        match self.is_there() {
            true => 0,
            false => self.bytes - Pieces::arrived(&self.part(), self.bytes).min(self.bytes),
        }
    }

    fn part(&self) -> PathBuf {
        longer(&self.path, ".leap-part")
    }
}

/// Fetches `wanted` and compares its hash; only then it gets its name. The caller holds the lock of the file.
pub(super) fn fetch(
    client: &Arc<Client>,
    wanted: WantedFile,
    shared: &Arc<Shared>,
) -> Result<(), StoreError> {
    let wanted = Arc::new(wanted);
    let is_resumed = match fetch_once(client, &wanted, shared) {
        Err(Fault::Hash { is_resumed }) => is_resumed,
        Err(Fault::Other(error)) => return Err(error),
        Ok(()) => return Ok(()),
    };
    let result = match is_resumed {
        // Power that failed may have cost bytes of an earlier download.
        true => fetch_once(client, &wanted, shared),
        false => Err(Fault::Hash { is_resumed }),
    };
    result.map_err(|fault| match fault {
        Fault::Other(error) => error,
        Fault::Hash { .. } => StoreError::Runtime(format!(
            "{}: the bytes that {} sent have another hash than it names; nothing was kept",
            wanted.digest,
            client.host()
        )),
    })
}

enum Fault {
    /// The bytes have another hash.
    Hash {
        is_resumed: bool,
    },
    Other(StoreError),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Fault {
        Fault::Other(error)
    }
}

fn fetch_once(
    client: &Arc<Client>,
    wanted: &Arc<WantedFile>,
    shared: &Arc<Shared>,
) -> Result<(), Fault> {
    let part = wanted.part();
    let pieces =
        Pieces::open(&part, wanted.bytes).map_err(|e| StoreError::io("write", &part, &e))?;
    let resumed = pieces.resumed_bytes();
    if let Some(folder) = part.parent() {
        check_room(folder, wanted.bytes - resumed)?;
    }
    shared.begin(&wanted.digest, (resumed, wanted.bytes));
    let transfer = Arc::new(Transfer {
        client: Arc::clone(client),
        wanted: Arc::clone(wanted),
        pieces,
        shared: Arc::clone(shared),
        is_over: AtomicBool::new(false),
    });
    transfer.run()?;
    let Some(transfer) = Arc::into_inner(transfer) else {
        return Err(StoreError::Runtime("a connection is still open".to_owned()).into());
    };
    let pieces = transfer.pieces;
    if !pieces.are_complete().map_err(|e| StoreError::io("read", &part, &e))? {
        return Err(StoreError::Runtime(format!("{} did not arrive whole", wanted.digest)).into());
    }
    if !has_hash(&pieces, wanted, shared).map_err(|e| match e {
        HashTrouble::Io(e) => StoreError::io("read", &part, &e),
        HashTrouble::Left => StoreError::Interrupted,
    })? {
        pieces.discard();
        return Err(Fault::Hash { is_resumed: resumed > 0 });
    }
    Ok(pieces.commit(&wanted.path).map_err(|e| StoreError::io("write", &wanted.path, &e))?)
}

enum HashTrouble {
    Io(std::io::Error),
    Left,
}

fn has_hash(pieces: &Pieces, wanted: &WantedFile, shared: &Shared) -> Result<bool, HashTrouble> {
    match &wanted.hash {
        FileHash::Sha256(digits) => has_digest(pieces, (wanted, Sha256::new(), digits), shared),
        FileHash::Git(digits) => {
            let head = format!("blob {}\0", wanted.bytes);
            let hash = Sha1::new_with_prefix(head);
            has_digest(pieces, (wanted, hash, digits), shared)
        }
    }
}

fn has_digest<H: Digest>(
    pieces: &Pieces,
    (wanted, mut hash, wanted_digits): (&WantedFile, H, &str),
    shared: &Shared,
) -> Result<bool, HashTrouble> {
    let mut buffer = vec![0; READ_BYTES];
    let mut at = 0;
    while at < wanted.bytes {
        shared.check().map_err(|_| HashTrouble::Left)?;
        let n = usize::try_from(wanted.bytes - at).unwrap_or(usize::MAX).min(READ_BYTES);
        pieces.read(&mut buffer[..n], at).map_err(HashTrouble::Io)?;
        hash.update(&buffer[..n]);
        at += n as u64;
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(digits.eq_ignore_ascii_case(wanted_digits))
}

/// State that the connections of a download share.
struct Transfer {
    client: Arc<Client>,
    wanted: Arc<WantedFile>,
    pieces: Pieces,
    shared: Arc<Shared>,
    /// Set by a connection that failed, or that fetches the whole file: the others end.
    is_over: AtomicBool,
}

impl Transfer {
    /// Fetches all pieces. The first failure ends all connections.
    fn run(self: &Arc<Transfer>) -> Result<(), StoreError> {
        let n = self.pieces.count().min(CONNECTIONS);
        let connect = |_| {
            let own = Arc::clone(self);
            let thread = thread::Builder::new().name("pull-file".to_owned());
            thread.spawn(move || own.fetch_pieces())
        };
        let threads: Vec<_> = (1..n).filter_map(|i| connect(i).ok()).collect();
        let mut result = self.fetch_pieces();
        for thread in threads {
            let other = thread.join().unwrap_or(Err(StoreError::Interrupted));
            result = match result {
                Ok(()) => other,
                Err(error) => Err(error),
            };
        }
        result
    }

    fn fetch_pieces(&self) -> Result<(), StoreError> {
        let result = self.try_pieces();
        if result.is_err() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        result
    }

    fn try_pieces(&self) -> Result<(), StoreError> {
        while let Some(mut piece) = self.pieces.take() {
            let mut n_failed = 0;
            while piece.at < piece.end && !self.is_over.load(Ordering::Relaxed) {
                self.shared.check()?;
                let before = piece.at;
                let trouble = match self.fetch_some(&mut piece) {
                    Err(trouble) => trouble,
                    Ok(()) if piece.at == piece.end => break,
                    Ok(()) => Trouble::Connection(Trouble::ENDED.to_owned()),
                };
                if piece.at - before >= PROGRESS_BYTES {
                    n_failed = 0;
                    continue;
                }
                n_failed += 1;
                if !trouble.may_pass() || n_failed >= ATTEMPTS {
                    return Err(trouble.explain(self.client.host()));
                }
                let pause = trouble.pause(n_failed - 1);
                self.shared.wait_for(trouble.explain(self.client.host()), pause)?;
            }
        }
        Ok(())
    }

    /// Fetches the rest of `piece`, or as much as one answer holds.
    fn fetch_some(&self, piece: &mut Piece) -> Result<(), Trouble> {
        let total = self.pieces.total();
        let is_whole = piece.at == 0 && piece.end == total;
        let range = format!("bytes={}-{}", piece.at, piece.end - 1);
        let fields = [("accept-encoding", "identity"), ("range", &*range)];
        let answer = self.client.get(&self.wanted.url, &fields[..if is_whole { 1 } else { 2 }])?;
        let answer = answer.wanted(&[200, 206])?;
        if answer.status == 206 {
            let wanted = format!("bytes {}-{}/{total}", piece.at, piece.end - 1);
            let range = answer.field("content-range").unwrap_or_default();
            if range != wanted {
                let host = self.client.host();
                let why =
                    format!("{host} sends {range:?} of a file where {wanted:?} was asked for");
                return Err(StoreError::Runtime(why).into());
            }
            return self.receive(answer.into_reader(), piece);
        }
        self.check_length(&answer)?;
        match is_whole {
            true => self.receive(answer.into_reader(), piece),
            false => self.receive_all(answer.into_reader(), piece),
        }
    }

    /// Refuses a whole file of another length.
    fn check_length(&self, answer: &Answer) -> Result<(), StoreError> {
        let total = self.pieces.total();
        let length = answer.field("content-length").and_then(|length| length.parse::<u64>().ok());
        match length {
            Some(length) if length != total => Err(StoreError::Runtime(format!(
                "{} sends {length} bytes of a file of {total} bytes",
                self.client.host()
            ))),
            _ => Ok(()),
        }
    }

    /// Receives the whole file from a server that sends no parts. `piece` was asked for.
    fn receive_all(&self, mut body: impl Read, piece: &mut Piece) -> Result<(), Trouble> {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.shared.begin(&self.wanted.digest, (0, self.pieces.total()));
        let mut all = self.pieces.take_all().into_iter();
        let result = all.try_for_each(|mut one| self.receive(&mut body, &mut one));
        match result {
            Ok(()) => piece.at = piece.end,
            // The next attempt is this connection's, too.
            Err(_) => self.is_over.store(false, Ordering::Relaxed),
        }
        result
    }

    fn receive(&self, mut body: impl Read, piece: &mut Piece) -> Result<(), Trouble> {
        let unwritable = |e: std::io::Error| StoreError::io("write", &self.wanted.part(), &e);
        let mut buffer = vec![0; READ_BYTES];
        let mut noted = piece.at;
        let result = loop {
            if piece.at == piece.end {
                break Ok(());
            }
            self.shared.check()?;
            let n = usize::try_from(piece.end - piece.at).unwrap_or(usize::MAX).min(READ_BYTES);
            let n_read = match body.read(&mut buffer[..n]) {
                Ok(0) => break Err(Trouble::Connection(Trouble::ENDED.to_owned())),
                Ok(n_read) => n_read,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => break Err(Trouble::of_read(&e)),
            };
            self.pieces.write(piece, &buffer[..n_read]).map_err(unwritable)?;
            self.shared.done.fetch_add(n_read as u64, Ordering::Relaxed);
            if piece.at - noted >= NOTE_BYTES {
                self.pieces.note(piece).map_err(unwritable)?;
                noted = piece.at;
            }
        };
        self.pieces.note(piece).map_err(unwritable)?;
        result
    }
}

/// Holds the lock at `path` for as long as the result lives: other processes fetch the same file no second time.
pub(super) fn lock(path: &Path, shared: &Shared) -> Result<Option<fs::File>, StoreError> {
    let mut open = fs::OpenOptions::new();
    let open = open.write(true).create(true).truncate(false).custom_flags(O_NOFOLLOW).mode(0o664);
    let file = open.open(path);
    let file = file.map_err(|e| StoreError::io("write", path, &e))?;
    let mut is_told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            // A file system without locks: the worst case is a download that is done twice.
            Err(fs::TryLockError::Error(_)) => return Ok(None),
            Err(fs::TryLockError::WouldBlock) if is_told => {}
            Err(fs::TryLockError::WouldBlock) => {
                shared.note("waiting for another program, which fetches too".to_owned());
                is_told = true;
            }
        }
        shared.wait(TELL_PERIOD)?;
    }
}
