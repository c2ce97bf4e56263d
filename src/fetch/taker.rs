//! Gets the layers of a board from one that gives them.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use super::content::Cut;
use super::download::Download;
pub(crate) use super::error::FetchError;
use super::error::broken;
use super::here::Here;
use super::kept::Kept;
use super::lane::Target;
use super::partial;
use crate::channel::Channel;
use crate::sys::file::free_bytes;
use crate::wire::give::{self, Offer, Question, REASON_MAX, Rows};
use crate::wire::hello;
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

/// A board's request for layers.
pub(crate) struct Order<'a> {
    /// Name of the board.
    pub(crate) name: &'a str,
    /// The board's layers; without an end, all from the first one on.
    pub(crate) layers: (usize, Option<usize>),
    /// The rows that the board wants of each layer, if not all.
    pub(crate) rows: Option<&'a Rows>,
    /// Computes these rows for a model.
    pub(crate) cut: Cut,
    /// The key of the ring.
    pub(crate) key: &'a Key,
    /// Existing folder in which the board keeps the file.
    pub(crate) folder: &'a Path,
    /// Called again and again: whether to end the work.
    pub(crate) is_interrupted: &'a (dyn Fn() -> bool + Sync),
}

/// A file with the layers.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// The layers.
    pub(crate) layers: Range<u32>,
    /// Whether the file has all rows of these layers.
    pub(crate) has_all_rows: bool,
    /// Length of the file.
    pub(crate) bytes: u64,
    /// Bytes that this call received.
    pub(crate) sent: u64,
}

/// Gets the layers of `order` from the board at `address`; `progress` gets the bytes so far, and the bytes of the whole
/// file. A file that is there already stays, and the bytes of an interrupted call are used.
///
/// # Errors
/// [`FetchError`]. Bytes that have come stay for the next call.
pub(crate) fn fetch(
    order: &Order<'_>,
    address: SocketAddr,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Fetched, FetchError> {
    let result = get(order, address, progress);
    if let Err(why @ (FetchError::File(..) | FetchError::Full(..))) = &result
        && let Err(e) = tell_giver(order, address, &why.to_string())
    {
        log::debug!("{address} does not hear why its layers are not kept: {e}");
    }
    result
}

/// Tells the board at `address` why this one cannot keep the layers: the other board's user waits for it.
fn tell_giver(order: &Order<'_>, address: SocketAddr, why: &str) -> Result<(), FetchError> {
    let mut channel = Channel::connect(address, Purpose::Layers, order.key, order.is_interrupted)?;
    ask(&mut channel, order, true)?;
    channel.send(&Question::Cannot.emit())?;
    Ok(channel.send(&give::emit_reason(why))?)
}

fn get(
    order: &Order<'_>,
    address: SocketAddr,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Fetched, FetchError> {
    let is_over = AtomicBool::new(false);
    let is_interrupted = || is_over.load(Ordering::Relaxed) || (order.is_interrupted)();
    let is_interrupted: &(dyn Fn() -> bool + Sync) = &is_interrupted;
    let connect = || Channel::connect(address, Purpose::Layers, order.key, is_interrupted);
    let mut channel = connect()?;
    let offer = ask(&mut channel, order, false)?;
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
    let here = Here::new(&file, &offer, kept).map_err(failed)?;
    check_room(order.folder, &partial, here.missing().map_err(failed)?)?;
    let open = || {
        let mut channel = connect()?;
        let is_same = ask(&mut channel, order, true)? == offer;
        if is_same { Ok(channel) } else { Err(broken("an offer of another file")) }
    };
    let target = Target { file: &file, path: partial.clone(), offer: &offer, here };
    let download = Download { target, open: &open, is_interrupted, is_over: &is_over };
    let sent = download.run(channel, progress)?;
    file.sync_all().map_err(failed)?;
    fs::rename(&partial, &path).map_err(failed)?;
    // The name is on the disk once the folder is; some file systems refuse.
    let _ = File::open(order.folder).and_then(|folder| folder.sync_all());
    partial::remove_others(order.folder, &partial);
    Ok(fetched(sent))
}

/// Fails if `folder` has no room for `missing` bytes, even after files of abandoned fetches are removed.
fn check_room(folder: &Path, partial: &Path, missing: u64) -> Result<(), FetchError> {
    let free = || free_bytes(folder).unwrap_or(u64::MAX);
    if free() < missing {
        partial::remove_others(folder, partial);
    }
    match missing.saturating_sub(free()) {
        0 => Ok(()),
        lacking => Err(FetchError::Full(folder.to_owned(), lacking)),
    }
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

/// Asks for what `order` says; `is_further` says whether another connection is there for it already.
fn ask(
    channel: &mut Channel<'_>,
    order: &Order<'_>,
    is_further: bool,
) -> Result<Offer, FetchError> {
    let (start, end) = order.layers;
    let name = hello::name(order.name);
    let end = end.map_or(0, |end| end as u32);
    let rows = order.rows.cloned();
    channel.send(&Question::Want { start: start as u32, end, rows, name, is_further }.emit())?;
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
