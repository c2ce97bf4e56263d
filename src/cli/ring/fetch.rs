//! A worker without a model file gets its layers from another board.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::give::cut;
use crate::channel::ChannelError;
use crate::cli::boards::failure as boards_failure;
use crate::cli::progress::ProgressLine;
use crate::cli::{Failure, note, readiness, warn};
use crate::engine::Cache;
use crate::fetch::taker::{self, FetchError, Fetched, Order};
use crate::fleet::boards::Origin;
use crate::fleet::interrupt::is_interrupted;
use crate::fleet::place::{self, Wanted};
use crate::fleet::settings::Settings;
use crate::format::model::Header;
use crate::ring::Address;
use crate::sys::map::Map;
use crate::sys::{folders, notify};
use crate::transport::place::HostPort;

/// How long a board waits before it asks again one that was away.
const RETRY: Duration = Duration::from_secs(1);

/// Gets this worker's layers, and returns the file with them; `None` if the user ends it. Waits for a
/// board that is away.
pub(in crate::cli) fn fetch(
    settings: &Settings,
    origin: &Origin,
    cache: &Cache,
) -> Result<Option<Fetched>, Failure> {
    let Some(key) = settings.links.key.clone() else {
        return Err(Failure::Usage(
            "--fetch needs --key: the key file of the board that gives".to_owned(),
        ));
    };
    let wanted = place::wanted(settings, origin);
    let Wanted { name, layers, rows, from } =
        wanted.map_err(|e| boards_failure(settings.named_by, &e))?;
    let folder = folder(cache)?;
    let is_interrupted: &(dyn Fn() -> bool + Sync) = &is_interrupted;
    let rows = rows.as_ref();
    let (key, folder) = (&key, &*folder);
    let order = Order { name: &name, layers, rows, cut, key, folder, is_interrupted };
    // The board is up, whether or not the other one is.
    notify::start();
    notify::ready();
    let mut told = String::new();
    loop {
        match attempt(&order, &from, settings.is_quiet) {
            Ok(fetched) => {
                if !settings.is_quiet {
                    note(&format!("leap: {}", words(&fetched, &from)));
                }
                return Ok(Some(fetched));
            }
            Err(e) if e.is_interruption() => return Ok(None),
            Err(e) if e.may_pass() => {
                let why = format!("waiting for layers from {from}: {e}");
                readiness::wait(&why);
                if told != why {
                    note(&format!("leap: {why}"));
                    notify::status(&why);
                    told = why;
                }
                thread::sleep(RETRY);
            }
            Err(e) => return Err(failure(&e, &from)),
        }
        if is_interrupted() {
            return Ok(None);
        }
    }
}

fn attempt(order: &Order<'_>, from: &Address, is_quiet: bool) -> Result<Fetched, FetchError> {
    let unknown = |e: &dyn std::fmt::Display| {
        FetchError::from(ChannelError::Io(std::io::Error::other(e.to_string())))
    };
    let address = HostPort::new(&from.host, from.port).resolve(|_: &SocketAddr| true);
    let address = address.map_err(|e| unknown(&e))?;
    let mut shown = ProgressLine::new("fetching layers", is_quiet);
    taker::fetch(order, address, &mut |done, all| {
        notify::alive();
        readiness::go_on();
        shown.update(done, all);
    })
}

fn words(fetched: &Fetched, from: &Address) -> String {
    let Fetched { path, layers, has_all_rows, bytes, sent } = fetched;
    let came = match sent {
        0 => "were here already".to_owned(),
        sent => {
            format!("came from {from}, {:.1} of {:.1} MB", *sent as f64 / 1e6, *bytes as f64 / 1e6)
        }
    };
    let rows = if *has_all_rows { "" } else { "rows of " };
    format!("{rows}layers {}..{} {came}: {}", layers.start, layers.end, path.display())
}

fn failure(error: &FetchError, from: &Address) -> Failure {
    let what = format!("no layers from {from}: {error}");
    match error {
        FetchError::File(..) | FetchError::Full(..) => Failure::Runtime(what),
        _ => Failure::Ring(what),
    }
}

/// The folder that such files are kept in.
pub(in crate::cli) fn folder(cache: &Cache) -> Result<PathBuf, Failure> {
    let named = match cache {
        Cache::At(folder) if folder.is_dir() => Some(folder.clone()),
        _ => folders::cache(),
    };
    let Some(base) = named else {
        return Err(Failure::Runtime(
            "no folder for the layers: set XDG_CACHE_HOME, or name a folder with --cache"
                .to_owned(),
        ));
    };
    let folder = base.join("layers");
    fs::create_dir_all(&folder)
        .map_err(|e| Failure::Runtime(format!("cannot make {}: {e}", folder.display())))?;
    Ok(folder)
}

/// The folder in which a master keeps its measurements and the split. Without one it continues, and keeps
/// nothing.
pub(in crate::cli) fn folder_of_master(cache: &Cache) -> PathBuf {
    folder(cache).unwrap_or_else(|why| {
        let why = why.message().unwrap_or_default().to_owned();
        warn(&format!("{why}; this board's speed and the split are not kept"));
        // No file can be made or read there.
        PathBuf::from("/dev/null")
    })
}

/// Removes the model files in `folder` that do not match their checksums, perhaps damaged by the disk;
/// returns their number.
pub(in crate::cli) fn remove_damaged(folder: &Path) -> usize {
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_part = |path: &PathBuf| path.extension().is_some_and(|end| end == "bin");
    paths.filter(is_part).filter(|path| is_damaged(path) && fs::remove_file(path).is_ok()).count()
}

fn is_damaged(path: &Path) -> bool {
    let verified = |bytes: &[u8]| Header::parse(bytes).and_then(|header| header.verify(bytes));
    Map::open(path).is_ok_and(|map| verified(map.as_bytes()).is_err())
}
