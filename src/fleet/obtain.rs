//! A worker without a model file gets its layers from another board.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::boards::Origin;
use super::error::{Aim, PartError};
use super::events::Event;
use super::give::cut;
use super::interrupt::{Stop, is_interrupted};
use super::place::{self, WantedPart};
use super::readiness::Readiness;
use super::settings::Settings;
use crate::channel::ChannelError;
use crate::engine::Cache;
use crate::fetch::taker::{self, FetchError, Fetched, Order};
use crate::format::model::Header;
use crate::ring::Address;
use crate::sys::map::Map;
use crate::sys::{folders, notify};
use crate::transport::place::HostPort;

/// Pause before a board asks again for layers, if the giver was away.
const RETRY: Duration = Duration::from_secs(1);

/// Gets this worker's layers into `folder`, and returns the file with them; `None` if the user ends it. Waits for a
/// board that is away.
pub(super) fn obtain(
    settings: &Settings,
    origin: &Origin,
    folder: &Path,
    (readiness, stop): (&Readiness, &Stop),
) -> Result<Option<Fetched>, PartError> {
    let key = &settings.links.key.clone().ok_or(PartError::NoKey(Aim::Get))?;
    let WantedPart { name, layers, rows, from } = place::wanted(settings, origin)?;
    // The fetch asks this on other threads too, so the stop is captured here.
    let is_over = || is_interrupted() || stop.is_set();
    let is_interrupted: &(dyn Fn() -> bool + Sync) = &is_over;
    let order =
        Order { name: &name, layers, rows: rows.as_ref(), cut, key, folder, is_interrupted };
    // The board is up, whether or not the other one is.
    notify::start();
    notify::ready();
    let mut told = String::new();
    loop {
        match attempt(&order, &from, settings, readiness) {
            Ok(fetched) => {
                settings.events.tell(&Event::Fetched { fetched: &fetched, from: &from });
                return Ok(Some(fetched));
            }
            Err(e) if e.is_interruption() => return Ok(None),
            Err(e) if e.may_pass() => {
                let why = format!("waiting for layers from {from}: {e}");
                readiness.wait(&why);
                if told != why {
                    settings.events.tell(&Event::WaitsForLayers { from: &from, why: &e });
                    told = why;
                }
                thread::sleep(RETRY);
            }
            Err(e) => return Err(PartError::Layers(from, e)),
        }
        if is_over() {
            return Ok(None);
        }
    }
}

fn attempt(
    order: &Order<'_>,
    from: &Address,
    settings: &Settings,
    readiness: &Readiness,
) -> Result<Fetched, FetchError> {
    let unknown = |e: &dyn std::fmt::Display| {
        FetchError::from(ChannelError::Io(std::io::Error::other(e.to_string())))
    };
    let address = HostPort::new(&from.host, from.port).resolve(|_: &SocketAddr| true);
    let address = address.map_err(|e| unknown(&e))?;
    settings.events.tell(&Event::Fetches);
    taker::fetch(order, address, &mut |done, all| {
        notify::alive();
        readiness.go_on();
        settings.events.tell(&Event::Fetching { done, all });
    })
}

/// The folder in which boards keep layers, figures and orders.
///
/// # Errors
/// If there is none.
pub(crate) fn folder(cache: &Cache) -> Result<PathBuf, PartError> {
    let named = match cache {
        Cache::At(folder) if folder.is_dir() => Some(folder.clone()),
        _ => folders::cache(),
    };
    let no_folder = || PartError::NoFolder(folders::writable_cache().err().unwrap_or_default());
    let folder = named.ok_or_else(no_folder)?.join("layers");
    match fs::create_dir_all(&folder) {
        Ok(()) => Ok(folder),
        Err(e) => Err(PartError::Folder(folder, e)),
    }
}

/// Removes the model files in `folder` that do not match their checksums, perhaps damaged by the disk;
/// returns their number.
pub(super) fn remove_damaged(folder: &Path) -> usize {
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_part = |path: &PathBuf| path.extension().is_some_and(|end| end == "bin");
    paths.filter(is_part).filter(|path| is_damaged(path) && fs::remove_file(path).is_ok()).count()
}

fn is_damaged(path: &Path) -> bool {
    let verified = |bytes: &[u8]| Header::parse(bytes).and_then(|header| header.verify(bytes));
    Map::open(path).is_ok_and(|map| verified(map.as_bytes()).is_err())
}
