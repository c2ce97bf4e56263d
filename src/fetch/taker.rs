//! Gets the layers of a board from one that gives them.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::{self, Scope, ScopedJoinHandle};

use sha2::{Digest, Sha256};

pub(crate) use super::content::Cut;
use super::kept::Kept;
use super::partial;
use crate::channel::{Channel, ChannelError};
use crate::sys::file::free_bytes;
use crate::wire::give::{self, HASH_LEN, Offer, PIECE_BYTES, Question, REASON_MAX, Rows};
use crate::wire::hello;
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

/// Most pieces that are requested and not yet safe on the disk, a MiB: a power cut may lose these.
const AHEAD: usize = 4;
/// Fewest pieces that are made safe at once, while the others come.
const SAFE_AT_ONCE: usize = AHEAD / 2;

/// A board's request for layers.
pub(crate) struct Order<'a> {
    /// Name of the board.
    pub(crate) name: &'a str,
    /// Its layers; all from the first on if there is no end.
    pub(crate) layers: (usize, Option<usize>),
    /// Which rows of them, if not all.
    pub(crate) rows: Option<&'a Rows>,
    /// Says which rows these are.
    pub(crate) cut: Cut,
    /// The key of the ring.
    pub(crate) key: &'a Key,
    /// Where it keeps the file. The folder is there.
    pub(crate) folder: &'a Path,
    /// Asked again and again whether to end the work.
    pub(crate) is_interrupted: &'a dyn Fn() -> bool,
}

/// A file with the layers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fetched {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// The layers.
    pub(crate) layers: Range<u32>,
    /// Whether it has all of their rows.
    pub(crate) has_all_rows: bool,
    /// Bytes of it.
    pub(crate) bytes: u64,
    /// Bytes that were sent now.
    pub(crate) sent: u64,
}

/// Why a board does not get its layers.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// The connection ended, or never was.
    Channel(ChannelError),
    /// The other board does not have these layers, in its own words.
    Refused(String),
    /// The file cannot be written.
    File(PathBuf, io::Error),
    /// The disk has no room for the rest of it: bytes that are missing.
    Full(PathBuf, u64),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Channel(ChannelError::Key) => {
                write!(f, "{}, or gives nothing", ChannelError::Key)
            }
            FetchError::Channel(e) => write!(f, "{e}"),
            FetchError::Refused(why) => f.write_str(why),
            FetchError::File(path, e) => write!(f, "cannot write {}: {e}", path.display()),
            FetchError::Full(folder, bytes) => write!(
                f,
                "{} has too little room: {:.1} MB are missing",
                folder.display(),
                *bytes as f64 / 1e6
            ),
        }
    }
}

impl std::error::Error for FetchError {}

impl From<ChannelError> for FetchError {
    fn from(error: ChannelError) -> FetchError {
        FetchError::Channel(error)
    }
}

impl FetchError {
    /// Whether the same call may work later without a change by the user.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, FetchError::Channel(ChannelError::Io(_)))
    }

    /// Whether the user ended it.
    pub(crate) fn is_interruption(&self) -> bool {
        matches!(self, FetchError::Channel(ChannelError::Interrupted))
    }
}

fn broken(what: &'static str) -> FetchError {
    FetchError::Channel(ChannelError::Broken(what))
}

/// Gets the layers of `order` from the board at `address`; `progress` gets the bytes so far, and those of
/// all. A file that is there already stays, and the bytes of an interrupted call are used.
///
/// # Errors
/// [`FetchError`]. Bytes that have come stay for the next call.
pub(crate) fn fetch(
    order: &Order<'_>,
    address: SocketAddr,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Fetched, FetchError> {
    let mut channel = Channel::connect(address, Purpose::Layers, order.key, order.is_interrupted)?;
    let offer = ask(&mut channel, order)?;
    let Offer { layers, bytes, fingerprint, rows } = offer.clone();
    let has_all_rows = order.rows.is_none();
    let rows = if has_all_rows { String::new() } else { format!("-{rows:016x}") };
    let name = format!("{fingerprint:016x}-{}-{}{rows}.bin", layers.start, layers.end);
    let path = order.folder.join(name);
    let fetched =
        |sent| Fetched { path: path.clone(), layers: layers.clone(), has_all_rows, bytes, sent };
    if is_whole(&path, bytes) {
        return Ok(fetched(0));
    }
    let wanted = layers.start as usize..layers.end as usize;
    if let Some(larger) = holding(order.folder, fingerprint, &wanted).filter(|_| has_all_rows) {
        return Ok(Fetched { path: larger, ..fetched(0) });
    }
    let partial = path.with_extension("bin.part");
    let failed = |e| FetchError::File(partial.clone(), e);
    let file = partial::open(&partial).map_err(failed)?;
    if is_whole(&path, bytes) {
        return Ok(fetched(0));
    }
    let kept = Kept::find(order.folder, &offer, order.rows, order.cut);
    let mut download = Download { channel, file, offer, kept, partial: partial.clone() };
    let n_there = download.there(progress)?;
    let there = (n_there * PIECE_BYTES).min(bytes);
    let missing = bytes - there;
    let free = || free_bytes(order.folder).unwrap_or(u64::MAX);
    if free() < missing {
        partial::remove_others(order.folder, &partial);
    }
    let free = free();
    if free < missing {
        return Err(FetchError::Full(order.folder.to_owned(), missing - free));
    }
    let sent = download.rest(n_there, progress)?;
    let Download { file, .. } = download;
    file.sync_all().map_err(failed)?;
    fs::rename(&partial, &path).map_err(failed)?;
    // The name is on the disk once the folder is; some file systems refuse.
    let _ = File::open(order.folder).and_then(|folder| folder.sync_all());
    partial::remove_others(order.folder, &partial);
    Ok(fetched(sent))
}

/// The smallest file in `folder` that holds these layers of the model with this fingerprint, if there is one.
pub(crate) fn holding(folder: &Path, fingerprint: u64, layers: &Range<usize>) -> Option<PathBuf> {
    let begin = format!("{fingerprint:016x}-");
    let held = |path: &Path| -> Option<Range<usize>> {
        let name = path.file_name()?.to_str()?;
        let (start, end) = name.strip_prefix(&*begin)?.strip_suffix(".bin")?.split_once('-')?;
        Some(start.parse().ok()?..end.parse().ok()?)
    };
    let paths = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let found = paths.filter_map(|path| Some((held(&path)?, path)));
    let fitting = found.filter(|(held, _)| held.start <= layers.start && layers.end <= held.end);
    fitting.min_by_key(|(held, _)| (held.len(), held.start)).map(|(_, path)| path)
}

fn is_whole(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == bytes)
}

fn ask(channel: &mut Channel<'_>, order: &Order<'_>) -> Result<Offer, FetchError> {
    let (start, end) = order.layers;
    let name = hello::name(order.name);
    let end = end.map_or(0, |end| end as u32);
    let rows = order.rows.cloned();
    channel.send(&Question::Want { start: start as u32, end, rows, name }.emit())?;
    let mut bytes = [0; 4 + REASON_MAX];
    let len = channel.receive(&mut bytes)?;
    let answer = give::parse_answer(&bytes[..len]);
    let answer = answer.map_err(|_| broken("an offer without meaning"))?;
    let offer = answer.map_err(|why| FetchError::Refused(why.as_str().to_owned()))?;
    let is_asked = offer.layers.start == start as u32
        && (end == 0 || offer.layers.end == end)
        && (offer.rows == 0) == order.rows.is_none();
    if is_asked { Ok(offer) } else { Err(broken("an offer of other layers")) }
}

/// A file that is being sent.
struct Download<'a> {
    channel: Channel<'a>,
    file: File,
    offer: Offer,
    /// Its pieces in other files.
    kept: Option<Kept>,
    partial: PathBuf,
}

/// A piece that is asked for, or the hash of one that another file has.
struct Asked {
    index: u64,
    kept: Option<Vec<u8>>,
}

impl Download<'_> {
    /// Number of correct pieces at the file's start. The rest of the file is cut off.
    fn there(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<u64, FetchError> {
        let failed = |e| FetchError::File(self.partial.clone(), e);
        let len = self.file.metadata().map_err(failed)?.len().min(self.offer.bytes);
        let mut bytes = vec![0; PIECE_BYTES as usize];
        let (mut n, mut hash) = (0, [0; HASH_LEN]);
        while let Some(piece) = self.piece_len(n).filter(|piece| n * PIECE_BYTES + piece <= len) {
            let bytes = &mut bytes[..piece as usize];
            self.file.read_exact_at(bytes, n * PIECE_BYTES).map_err(failed)?;
            self.channel.send(&Question::Hash(n as u32).emit())?;
            self.channel.receive_all(&mut hash)?;
            if Sha256::digest(bytes)[..] != hash {
                break;
            }
            n += 1;
            progress(n * PIECE_BYTES, self.offer.bytes);
        }
        self.file.set_len((n * PIECE_BYTES).min(self.offer.bytes)).map_err(failed)?;
        Ok(n)
    }

    /// Bytes of a piece, if there is such a piece.
    fn piece_len(&self, index: u64) -> Option<u64> {
        let rest = self.offer.bytes.checked_sub(index * PIECE_BYTES)?;
        (rest > 0).then(|| rest.min(PIECE_BYTES))
    }

    /// Gets all pieces behind the first `n_there`, and returns the bytes that were sent. They are made safe
    /// while others come.
    fn rest(
        &mut self,
        n_there: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64, FetchError> {
        let path = self.partial.clone();
        let failed = |e| FetchError::File(path.clone(), e);
        let file = self.file.try_clone().map_err(failed)?;
        thread::scope(|scope| {
            let mut keeper = Keeper { scope, file: &file, at_work: None, n_unsafe: 0 };
            let mut wanted = n_there..self.offer.n_pieces();
            let mut asked = VecDeque::with_capacity(AHEAD);
            let (mut done, mut sent) = (n_there * PIECE_BYTES, 0);
            while !(asked.is_empty() && wanted.is_empty()) {
                keeper.turn(asked.is_empty() && keeper.n_unsafe == AHEAD).map_err(failed)?;
                while asked.len() + keeper.n_unsafe < AHEAD
                    && let Some(index) = wanted.next()
                {
                    asked.push_back(self.ask(index)?);
                }
                let Some(Asked { index, kept }) = asked.pop_front() else { continue };
                let len = self.piece_len(index).unwrap_or_default();
                let is_kept = kept.is_some();
                let Some(piece) = self.answer(kept, len)? else {
                    asked.push_back(self.ask_for_bytes(index)?);
                    continue;
                };
                self.file.write_all_at(&piece, index * PIECE_BYTES).map_err(failed)?;
                keeper.n_unsafe += 1;
                (done, sent) = (done + len, sent + if is_kept { 0 } else { len });
                progress(done, self.offer.bytes);
            }
            Ok(sent)
        })
    }

    /// Asks for a piece, or for its hash if it may be here.
    fn ask(&mut self, index: u64) -> Result<Asked, FetchError> {
        let Some(bytes) = self.kept.as_ref().and_then(|kept| kept.piece(index)) else {
            return self.ask_for_bytes(index);
        };
        self.channel.send(&Question::Hash(index as u32).emit())?;
        Ok(Asked { index, kept: Some(bytes) })
    }

    fn ask_for_bytes(&mut self, index: u64) -> Result<Asked, FetchError> {
        self.channel.send(&Question::Piece(index as u32).emit())?;
        Ok(Asked { index, kept: None })
    }

    /// The oldest requested piece, of `len` bytes; `None` if the `kept` one has another hash.
    fn answer(&mut self, kept: Option<Vec<u8>>, len: u64) -> Result<Option<Vec<u8>>, FetchError> {
        let Some(bytes) = kept else {
            let mut bytes = vec![0; len as usize];
            self.channel.receive_all(&mut bytes)?;
            return Ok(Some(bytes));
        };
        let mut hash = [0; HASH_LEN];
        self.channel.receive_all(&mut hash)?;
        Ok((Sha256::digest(&bytes)[..] == hash).then_some(bytes))
    }
}

/// Makes what is written safe on the disk.
struct Keeper<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    file: &'env File,
    /// The thread that writes, and how many pieces it writes.
    at_work: Option<(ScopedJoinHandle<'scope, io::Result<()>>, usize)>,
    /// Pieces that are written and not safe.
    n_unsafe: usize,
}

impl Keeper<'_, '_> {
    /// Hears that some are safe, or waits for it, and goes on with those that follow.
    fn turn(&mut self, is_waiting: bool) -> io::Result<()> {
        if let Some((thread, n)) =
            self.at_work.take_if(|(thread, _)| is_waiting || thread.is_finished())
        {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread is gone")))?;
            self.n_unsafe -= n;
        }
        if self.at_work.is_none() && self.n_unsafe >= SAFE_AT_ONCE {
            let file = self.file;
            let thread = thread::Builder::new().name("leap-keep".to_owned());
            let thread = thread.spawn_scoped(self.scope, || file.sync_data())?;
            self.at_work = Some((thread, self.n_unsafe));
        }
        Ok(())
    }
}
