//! Builds and reads cache files.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::error::CacheError;
use super::file::{self, ALIGN, CacheEntry, CacheIdentity, DATA_AT, MAGIC};
use crate::sys::file::{AtomicFile, lock_folder};
use crate::sys::map::Map;

/// A complete cache file, mapped read-only.
pub struct CacheFile {
    map: Map,
    entries: HashMap<u64, CacheEntry>,
}

/// A tensor that a cache file must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedEntry {
    /// Key of the tensor.
    pub key: u64,
    /// Length of the tensor in bytes.
    pub bytes: u64,
}

impl CacheFile {
    /// Maps the cache at `path` if it is complete and was built for `identity`.
    ///
    /// # Errors
    /// If the file does not exist, is damaged, or was built for another identity.
    pub fn open(path: &Path, identity: &CacheIdentity) -> Result<CacheFile, CacheError> {
        let io_error = |source| CacheError::Io { path: path.to_owned(), source };
        let mismatch = |what| CacheError::Mismatch { path: path.to_owned(), what };
        let map = Map::open(path).map_err(io_error)?;
        let summary = file::summary(map.as_bytes()).map_err(mismatch)?;
        if summary.identity != *identity {
            return Err(mismatch("model or kernel tier"));
        }
        let entries = summary.entries.iter().map(|entry| (entry.key, *entry)).collect();
        Ok(CacheFile { map, entries })
    }

    /// Maps the cache at `path`. If the file does not exist, does not match or lacks some of `wanted`, a new
    /// one replaces it: `build` takes over tensors of the old file, and packs the rest.
    ///
    /// Processes that want the same file wait for the first one to build it. Also returns whether this
    /// process built it.
    ///
    /// # Errors
    /// If the file cannot be written or is of another kind, or `build` fails. An existing file then stays, and
    /// nothing else is left behind.
    pub fn open_or_build<E: From<CacheError>>(
        path: &Path,
        identity: &CacheIdentity,
        wanted: &[WantedEntry],
        build: impl FnOnce(&mut CacheBuilder) -> Result<(), E>,
    ) -> Result<(CacheFile, bool), E> {
        let open = || CacheFile::open(path, identity);
        if let Some(cache) = open().ok().filter(|cache| cache.lacks(wanted) == 0) {
            return Ok((cache, false));
        }
        // Without locks in the file system the worst case is double work.
        let _lock = lock_folder(path).ok();
        let former = match open() {
            Ok(cache) if cache.lacks(wanted) == 0 => return Ok((cache, false)),
            Ok(cache) => Some(cache),
            Err(e) => {
                log::debug!("{e}");
                None
            }
        };
        if former.is_none() && !is_replaceable(path) {
            return Err(CacheError::Foreign { path: path.to_owned() }.into());
        }
        let mut builder = CacheBuilder::create(path, *identity, former)?;
        build(&mut builder)?;
        Ok((builder.finish()?, true))
    }

    /// Number of `wanted` tensors that the file does not hold.
    pub fn lacks(&self, wanted: &[WantedEntry]) -> usize {
        wanted.iter().filter(|wanted| self.find(wanted).is_none()).count()
    }

    /// The wanted tensor, if the file holds it.
    pub fn find(&self, wanted: &WantedEntry) -> Option<CacheEntry> {
        self.entries.get(&wanted.key).copied().filter(|entry| entry.bytes == wanted.bytes)
    }

    /// Bytes of an entry of this cache.
    ///
    /// # Panics
    /// If the entry belongs to another cache and lies outside this file.
    pub fn offset_to_addr(&self, entry: &CacheEntry) -> &[u8] {
        let start = entry.offset as usize;
        &self.map.as_bytes()[start..start + entry.bytes as usize]
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> &[u8] {
        self.map.as_bytes()
    }
}

/// Whether a cache may take the place of the file at `path`: it is absent, empty, or a cache by its name or its
/// first bytes.
fn is_replaceable(path: &Path) -> bool {
    if path.extension().is_some_and(|extension| extension == "leapw") {
        return true;
    }
    let mut magic = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4).read_to_end(&mut magic));
    match read {
        Ok(_) => magic.is_empty() || magic == MAGIC.to_le_bytes(),
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

/// A cache file that is being built. If dropped before [`CacheBuilder::finish`], it leaves nothing behind.
pub struct CacheBuilder {
    path: PathBuf,
    identity: CacheIdentity,
    file: AtomicFile,
    entries: Vec<CacheEntry>,
    /// The file to be replaced, if it has the same identity.
    former: Option<CacheFile>,
    /// Entries taken over from `former`, by their offsets there.
    taken: HashMap<u64, CacheEntry>,
    /// Offset of the next tensor.
    end: u64,
    /// The tensor that is being packed: the only copy outside the file.
    space: Vec<u8>,
}

impl CacheBuilder {
    /// Begins the cache file `path`, which will replace `former`.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn create(
        path: &Path,
        identity: CacheIdentity,
        former: Option<CacheFile>,
    ) -> Result<CacheBuilder, CacheError> {
        let io_error = |source| CacheError::Io { path: path.to_owned(), source };
        let file = AtomicFile::create(path).map_err(io_error)?;
        Ok(CacheBuilder {
            path: path.to_owned(),
            identity,
            file,
            entries: Vec::new(),
            former,
            taken: HashMap::new(),
            end: DATA_AT,
            space: Vec::new(),
        })
    }

    /// Reserves space on the disk for `wanted`. Returns the other tensors of the old file, which may be taken
    /// over; none if the disk has no room for them.
    ///
    /// # Errors
    /// If the disk has no room for `wanted`.
    pub fn reserve_disk(&mut self, wanted: &[WantedEntry]) -> Result<Vec<WantedEntry>, CacheError> {
        let padded = |entries: &[WantedEntry]| -> u64 {
            entries.iter().map(|entry| entry.bytes.next_multiple_of(ALIGN)).sum()
        };
        let is_other = |entry: &&CacheEntry| wanted.iter().all(|wanted| wanted.key != entry.key);
        let former = self.former.iter().flat_map(|former| former.entries.values());
        let mut others: Vec<WantedEntry> = former
            .filter(is_other)
            .map(|entry| WantedEntry { key: entry.key, bytes: entry.bytes })
            .collect();
        others.sort_unstable_by_key(|entry| entry.key);
        let (own, all) = (padded(wanted), padded(wanted) + padded(&others));
        match self.file.reserve(self.end + all) {
            Ok(()) => Ok(others),
            Err(source) if others.is_empty() => Err(self.io_error(source)),
            Err(_) => match self.file.reserve(self.end + own) {
                Ok(()) => Ok(Vec::new()),
                Err(source) => Err(self.io_error(source)),
            },
        }
    }

    /// Copies the old file's tensor with the key of `wanted`, if it has that length and is intact. Returns
    /// whether it did.
    ///
    /// # Errors
    /// If the tensor cannot be written.
    pub fn take_over(&mut self, wanted: &WantedEntry) -> Result<bool, CacheError> {
        let Some(former) = &self.former else { return Ok(false) };
        let Some(entry) = former.find(wanted) else { return Ok(false) };
        if let Some(same) = self.taken.get(&entry.offset).filter(|same| same.bytes == entry.bytes) {
            self.insert_same(wanted.key, *same);
            return Ok(true);
        }
        let bytes = former.offset_to_addr(&entry);
        if crc32fast::hash(bytes) != entry.crc {
            log::debug!("{}: a tensor is damaged", self.path.display());
            return Ok(false);
        }
        let stored = CacheEntry { offset: self.end, ..entry };
        self.file.write_all_at(bytes, stored.offset).map_err(|source| self.io_error(source))?;
        self.push(stored);
        self.taken.insert(entry.offset, stored);
        Ok(true)
    }

    /// The tensor stored under `key` so far.
    pub fn look_up(&self, key: u64) -> Option<CacheEntry> {
        self.entries.iter().find(|entry| entry.key == key).copied()
    }

    /// Room for a tensor of `bytes`. The caller must fill all of it, then insert it.
    pub fn reserve_space(&mut self, bytes: usize) -> &mut [u8] {
        self.space.resize(bytes, 0);
        &mut self.space
    }

    /// Stores the filled room under `key`, unless the key exists already.
    ///
    /// # Errors
    /// If the tensor cannot be written.
    pub fn look_up_or_insert(&mut self, key: u64) -> Result<CacheEntry, CacheError> {
        if let Some(entry) = self.look_up(key) {
            return Ok(entry);
        }
        let entry = CacheEntry {
            key,
            offset: self.end,
            bytes: self.space.len() as u64,
            crc: crc32fast::hash(&self.space),
        };
        let written = self.file.write_all_at(&self.space, entry.offset);
        written.map_err(|source| self.io_error(source))?;
        self.push(entry);
        Ok(entry)
    }

    /// Stores the tensor of `entry` under another key, too.
    pub fn insert_same(&mut self, key: u64, entry: CacheEntry) {
        if self.look_up(key).is_none() {
            self.entries.push(CacheEntry { key, ..entry });
        }
    }

    /// Completes the file, gives it its name and maps it.
    ///
    /// # Errors
    /// If the file cannot be written or does not read back.
    pub fn finish(mut self) -> Result<CacheFile, CacheError> {
        self.entries.sort_unstable_by_key(|entry| entry.key);
        let index = file::emit_index(&self.entries);
        let header = file::emit_header(&self.identity, self.end, &index);
        let written = self
            .file
            .set_len(self.end)
            .and_then(|()| self.file.write_all_at(&index, self.end))
            .and_then(|()| self.file.write_all_at(&header, 0));
        written.map_err(|source| self.io_error(source))?;
        let CacheBuilder { path, identity, file, .. } = self;
        file.commit().map_err(|source| CacheError::Io { path: path.clone(), source })?;
        CacheFile::open(&path, &identity)
    }

    fn push(&mut self, entry: CacheEntry) {
        self.end = (entry.offset + entry.bytes).next_multiple_of(ALIGN);
        self.entries.push(entry);
    }

    fn io_error(&self, source: io::Error) -> CacheError {
        CacheError::Io { path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests;
