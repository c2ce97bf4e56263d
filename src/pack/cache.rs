//! Building and reading a cache file.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use super::Error;
use super::file::{self, ALIGN, DATA_AT, Entry, Identity};
use crate::sys::file::{AtomicFile, lock_folder};
use crate::sys::map::Map;

/// A complete cache file, mapped read-only.
pub struct Cache {
    map: Map,
    entries: HashMap<u64, Entry>,
}

impl Cache {
    /// Maps the cache at `path` if it is complete and was built for `identity`.
    ///
    /// # Errors
    /// If it is not there, damaged, or belongs to something else.
    pub fn open(path: &Path, identity: &Identity) -> Result<Cache, Error> {
        let io_error = |source| Error::Io { path: path.to_owned(), source };
        let mismatch = |what| Error::Mismatch { path: path.to_owned(), what };
        let map = Map::open(path).map_err(io_error)?;
        let summary = file::summary(map.as_bytes()).map_err(mismatch)?;
        if summary.identity != *identity {
            return Err(mismatch("model, layers or kernel tier"));
        }
        let entries = summary.entries.iter().map(|entry| (entry.key, *entry)).collect();
        Ok(Cache { map, entries })
    }

    /// Maps the cache at `path`, which `build` fills if it is not there or does not match.
    ///
    /// Processes that want the same file wait for the first to build it. Says whether this
    /// one did.
    ///
    /// # Errors
    /// If the file cannot be written, or `build` fails; nothing is left behind then.
    pub fn open_or_build<E: From<Error>>(
        path: &Path,
        identity: &Identity,
        build: impl FnOnce(&mut Builder) -> Result<(), E>,
    ) -> Result<(Cache, bool), E> {
        if let Ok(cache) = Cache::open(path, identity) {
            return Ok((cache, false));
        }
        // A file system without locks costs double work at worst.
        let _lock = lock_folder(path).ok();
        match Cache::open(path, identity) {
            Ok(cache) => return Ok((cache, false)),
            Err(e) => log::debug!("{e}"),
        }
        let mut builder = Builder::create(path, *identity)?;
        build(&mut builder)?;
        Ok((builder.finish()?, true))
    }

    /// The tensor stored under `key`.
    pub fn look_up(&self, key: u64) -> Option<Entry> {
        self.entries.get(&key).copied()
    }

    /// The bytes of an entry of this cache.
    ///
    /// # Panics
    /// If the entry is another cache's and lies outside this one.
    pub fn offset_to_addr(&self, entry: &Entry) -> &[u8] {
        let start = entry.offset as usize;
        &self.map.as_bytes()[start..start + entry.bytes as usize]
    }

    /// The whole file.
    pub fn file_bytes(&self) -> &[u8] {
        self.map.as_bytes()
    }
}

/// A cache file being built. Dropped before [`Builder::finish`], it leaves nothing behind.
pub struct Builder {
    path: PathBuf,
    identity: Identity,
    file: AtomicFile,
    entries: Vec<Entry>,
    /// Where the next tensor goes.
    end: u64,
    /// The tensor being packed: the only copy outside the file.
    space: Vec<u8>,
}

impl Builder {
    /// Begins the cache file `path`.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn create(path: &Path, identity: Identity) -> Result<Builder, Error> {
        let io_error = |source| Error::Io { path: path.to_owned(), source };
        let file = AtomicFile::create(path).map_err(io_error)?;
        Ok(Builder {
            path: path.to_owned(),
            identity,
            file,
            entries: Vec::new(),
            end: DATA_AT,
            space: Vec::new(),
        })
    }

    /// Makes sure that `bytes` more will fit on the disk.
    ///
    /// # Errors
    /// If they do not.
    pub fn reserve_disk(&self, bytes: u64) -> Result<(), Error> {
        self.file.reserve(self.end + bytes).map_err(|source| self.io_error(source))
    }

    /// The tensor stored under `key` so far.
    pub fn look_up(&self, key: u64) -> Option<Entry> {
        self.entries.iter().find(|entry| entry.key == key).copied()
    }

    /// Room for a tensor of `bytes`, to be filled completely and then inserted.
    pub fn reserve_space(&mut self, bytes: usize) -> &mut [u8] {
        self.space.resize(bytes, 0);
        &mut self.space
    }

    /// Stores the filled space under `key`, unless that key is taken.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn look_up_or_insert(&mut self, key: u64) -> Result<Entry, Error> {
        if let Some(entry) = self.look_up(key) {
            return Ok(entry);
        }
        let entry = Entry {
            key,
            offset: self.end,
            bytes: self.space.len() as u64,
            crc: crc32fast::hash(&self.space),
        };
        let written = self.file.write_all_at(&self.space, entry.offset);
        written.map_err(|source| self.io_error(source))?;
        self.end = (entry.offset + entry.bytes).next_multiple_of(ALIGN);
        self.entries.push(entry);
        Ok(entry)
    }

    /// Stores what `entry` holds under another key too.
    pub fn insert_same(&mut self, key: u64, entry: Entry) {
        if self.look_up(key).is_none() {
            self.entries.push(Entry { key, ..entry });
        }
    }

    /// Completes the file, gives it its name and maps it.
    ///
    /// # Errors
    /// If it cannot be written or does not read back.
    pub fn finish(mut self) -> Result<Cache, Error> {
        self.entries.sort_unstable_by_key(|entry| entry.key);
        let index = file::emit_index(&self.entries);
        let header = file::emit_header(&self.identity, self.end, &index);
        let written = self
            .file
            .set_len(self.end)
            .and_then(|()| self.file.write_all_at(&index, self.end))
            .and_then(|()| self.file.write_all_at(&header, 0));
        written.map_err(|source| self.io_error(source))?;
        let Builder { path, identity, file, .. } = self;
        file.commit().map_err(|source| Error::Io { path: path.clone(), source })?;
        Cache::open(&path, &identity)
    }

    fn io_error(&self, source: io::Error) -> Error {
        Error::Io { path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests;
