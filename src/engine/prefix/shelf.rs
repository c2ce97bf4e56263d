//! The pages in a folder, and the order of their eviction.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, Metadata};
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::page_file::{Key, PageName};

/// Age after which an unfinished file counts as left over by a writer that died.
const LEFT_OVER: Duration = Duration::from_secs(3600);

/// The pages in a folder, of all models.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    entries: BTreeMap<PageName, Entry>,
    bytes: u64,
    /// Logical clock: counts prompts, beginning with the time of the youngest file in Unix seconds.
    now: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    /// Time of the last use, on the shelf's clock.
    used: u64,
    /// Whether the file is still to be written.
    is_pending: bool,
}

impl Shelf {
    /// Lists the files of `folder` without opening them.
    pub(super) fn list(folder: &Path) -> io::Result<Shelf> {
        let mut shelf = Shelf::default();
        for (name, file) in files(folder)? {
            let time = file.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let used = time.map_or(0, |time| time.as_secs());
            shelf.now = shelf.now.max(used);
            shelf.put(name, Entry { bytes: file.len(), used, is_pending: false });
        }
        shelf.use_beginnings();
        Ok(shelf)
    }

    /// Gives each page the latest use of the pages that follow it, because a prompt uses all pages before its
    /// last one.
    fn use_beginnings(&mut self) {
        let mut names: Vec<PageName> = self.entries.keys().copied().collect();
        names.sort_unstable_by_key(|name| std::cmp::Reverse(name.index));
        let mut used: HashMap<Key, u64> = HashMap::new();
        for name in names {
            if let Some(entry) = self.entries.get_mut(&name) {
                entry.used = entry.used.max(used.get(&name.own).copied().unwrap_or(0));
                let parent = used.entry(name.parent).or_default();
                *parent = entry.used.max(*parent);
            }
        }
    }

    /// Lists `folder` again, because other processes may have added or removed files.
    pub(super) fn look_again(&mut self, folder: &Path) -> io::Result<()> {
        let found: BTreeMap<PageName, Metadata> = files(folder)?.into_iter().collect();
        let is_gone =
            |(name, entry): &(&PageName, &Entry)| !entry.is_pending && !found.contains_key(name);
        let gone: Vec<PageName> = self.entries.iter().filter(is_gone).map(|(n, _)| *n).collect();
        gone.iter().for_each(|name| self.remove(name));
        for (name, file) in found {
            if !self.entries.contains_key(&name) {
                let entry = Entry { bytes: file.len(), used: self.now, is_pending: false };
                self.put(name, entry);
            }
        }
        Ok(())
    }

    /// Advances the clock: what a new prompt uses counts as used later than all before.
    pub(super) fn begin_prompt(&mut self) {
        self.now += 1;
    }

    /// Whether a page is in the folder or will be written. Counts as a use.
    pub(super) fn has(&mut self, name: &PageName) -> bool {
        let entry = self.entries.get_mut(name);
        entry.map(|entry| entry.used = self.now).is_some()
    }

    /// Whether a page can be read. Counts as a use.
    pub(super) fn has_written(&mut self, name: &PageName) -> bool {
        self.has(name) && !self.entries[name].is_pending
    }

    /// Up to `n` pages that follow the text `parent`.
    pub(super) fn after(&self, parent: Key, n: usize) -> Vec<PageName> {
        let first = PageName { parent, own: Key::FIRST, is_windowed: false, index: 0 };
        let names = self.entries.range(first..).take_while(|(name, _)| name.parent == parent);
        let written = names.filter(|(name, entry)| !name.is_windowed && !entry.is_pending);
        written.map(|(name, _)| *name).take(n).collect()
    }

    /// Notes a page of `bytes` that is going to be written.
    pub(super) fn promise(&mut self, name: PageName, bytes: u64) {
        self.put(name, Entry { bytes, used: self.now, is_pending: true });
    }

    /// Notes that the promised page has been written.
    pub(super) fn keep_promise(&mut self, name: &PageName) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.is_pending = false;
        }
    }

    fn put(&mut self, name: PageName, entry: Entry) {
        self.remove(&name);
        self.bytes += entry.bytes;
        self.entries.insert(name, entry);
    }

    pub(super) fn remove(&mut self, name: &PageName) {
        if let Some(entry) = self.entries.remove(name) {
            self.bytes -= entry.bytes;
        }
    }

    /// If all pages together have more than `limit` bytes, removes the least recently used one from the list
    /// and returns it. Of equally old pages, the last one of a text goes first.
    pub(super) fn make_way(&mut self, limit: u64) -> Option<PageName> {
        if self.bytes <= limit {
            return None;
        }
        let written = self.entries.iter().filter(|(_, entry)| !entry.is_pending);
        let oldest = written.min_by_key(|(name, entry)| (entry.used, u32::MAX - name.index));
        let name = *oldest?.0;
        self.remove(&name);
        Some(name)
    }
}

/// Removes unfinished files of killed processes. Only file systems without `O_TMPFILE` have any.
pub(super) fn remove_leftovers(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let page = |name: &str| {
            let (page, _) = name.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit_once('.')?;
            PageName::parse(page)
        };
        let is_ours = entry.file_name().to_str().and_then(page).is_some();
        let time = entry.metadata().and_then(|file| file.modified());
        if is_ours && time.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > LEFT_OVER)) {
            // Another server may have removed the file.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// The page files in `folder`.
fn files(folder: &Path) -> io::Result<Vec<(PageName, Metadata)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Another process may remove a file at any time.
        if let Some(name) = entry.file_name().to_str().and_then(PageName::parse)
            && let Ok(file) = entry.metadata()
            && file.is_file()
        {
            files.push((name, file));
        }
    }
    Ok(files)
}
