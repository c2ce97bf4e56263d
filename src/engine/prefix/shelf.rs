//! The pages in a folder, and the order of their eviction.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, Metadata};
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::page_file::{Key, Kind, PageName};

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

    /// Gives each page the latest use of the pages and states that follow it, because a prompt uses all pages before
    /// its last one.
    fn use_beginnings(&mut self) {
        let mut names: Vec<PageName> = self.entries.keys().copied().collect();
        names.sort_unstable_by_key(|name| Reverse((name.index, name.kind)));
        let mut used: HashMap<Key, u64> = HashMap::new();
        for name in names {
            if let Some(entry) = self.entries.get_mut(&name) {
                entry.used = entry.used.max(used.get(&name.own).copied().unwrap_or(0));
                let before = [Some(name.parent), (name.kind == Kind::State).then_some(name.own)];
                for key in before.into_iter().flatten() {
                    let before = used.entry(key).or_default();
                    *before = entry.used.max(*before);
                }
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
        let written = self.all_after(parent, Kind::Whole).filter(|(_, entry)| !entry.is_pending);
        written.map(|(name, _)| *name).take(n).collect()
    }

    /// Everything of a kind that follows the text `parent`.
    fn all_after(&self, parent: Key, kind: Kind) -> impl Iterator<Item = (&PageName, &Entry)> {
        let first = PageName { parent, own: Key::FIRST, kind: Kind::Whole, index: 0 };
        let names = self.entries.range(first..).take_while(move |(name, _)| name.parent == parent);
        names.filter(move |(name, _)| name.kind == kind)
    }

    /// Whether a page can be read. Does not count as a use.
    pub(super) fn is_written(&self, name: &PageName) -> bool {
        self.entries.get(name).is_some_and(|entry| !entry.is_pending)
    }

    /// The states after `parent` and the beginnings of `ids`, which come after `index` pages: the longest one first.
    pub(super) fn states(&self, parent: Key, index: usize, ids: &[u32]) -> Vec<(usize, PageName)> {
        let all: Vec<&PageName> =
            self.all_after(parent, Kind::State).map(|(name, _)| name).collect();
        let state = |len: usize| {
            // A text's key takes time.
            let name = PageName::new(parent, index, &ids[..len]).of_kind(Kind::State);
            all.contains(&&name).then_some((len, name))
        };
        let lens = if all.is_empty() { 0 } else { ids.len() };
        (1..=lens).rev().filter_map(state).collect()
    }

    /// Counts a use of the states after `parent` and the beginnings of `ids`, and of their pages. Returns the number of ids
    /// before the last state that has a page.
    pub(super) fn use_states(&mut self, parent: Key, index: usize, ids: &[u32]) -> Option<usize> {
        let mut last = None;
        for (len, name) in self.states(parent, index, ids) {
            let is_there = self.has(&name) & self.has(&name.of_kind(Kind::Whole));
            last = last.or(is_there.then_some(len));
        }
        last
    }

    /// Bytes of what the current prompt has used.
    pub(super) fn bytes_in_use(&self) -> u64 {
        let used = self.entries.values().filter(|entry| entry.used == self.now);
        used.map(|entry| entry.bytes).sum()
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
    /// and returns it. Of equally old pages, the last one of a text goes first, a state before its page.
    pub(super) fn make_way(&mut self, limit: u64) -> Option<PageName> {
        if self.bytes <= limit {
            return None;
        }
        let written = self.entries.iter().filter(|(_, entry)| !entry.is_pending);
        let oldest = written
            .min_by_key(|(name, entry)| (entry.used, Reverse(name.index), Reverse(name.kind)));
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
