//! Beginnings of prompts in files, so that they need not be computed after a restart.
//!
//! A file holds a page ([`page_file`]); its name holds the keys of the texts before and after it, so that a
//! list of a folder's files ([`shelf`]) tells what is there. Pages of a prompt go to a thread that writes them
//! ([`writer`]), and become pages of the KV cache again when a prompt begins like theirs.

mod page_file;
mod shelf;
mod writer;

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::pages::{Held, Pages, WindowNeeded};
use super::stream::Stream;
use crate::model::{KV_PAGE, KvKind, PagePair, Stage, Transformer};
use page_file::{Fault, HEAD_BYTES, Key, PageFile, PageName};
use shelf::Shelf;
use writer::Writer;

/// Pages of a prompt that have to be missing so that they are written: to compute fewer takes little, and
/// storage of boards wears out.
const PAGES_MIN: usize = 4;

/// Files that follow the same text, of which the one is looked for that has most in common with a prompt.
const TAILS_MAX: usize = 16;

/// Pages in a folder.
pub(super) struct PrefixCache {
    folder: PathBuf,
    shelf: Arc<Mutex<Shelf>>,
    writer: Writer,
    /// Keys of the empty text, and of the empty one that is to be a long one.
    roots: [Key; 2],
    /// Most bytes of all files.
    limit: u64,
    /// Ids of pages that were read.
    n_read: u64,
}

/// How much of a prompt is in files, or on its way there.
#[derive(Debug, Default)]
pub(super) struct Kept {
    n_pages: usize,
    /// Of the text up to there, and whether it is a long one.
    key: Option<(Key, bool)>,
    /// Whether enough is missing.
    is_worth_it: bool,
    is_done: bool,
}

impl PrefixCache {
    /// Pages of `kv`'s model in `folder`, which may hold others, of up to `limit` bytes together.
    pub(super) fn open(folder: &Path, limit: u64, kv: &Transformer) -> io::Result<PrefixCache> {
        // What people asked is in there.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        shelf::remove_leftovers(folder)?;
        let (plan, header) = (kv.about().plan, kv.model().header());
        let [page_bytes, window_bytes] = kv.kv_page_bytes();
        let fingerprint = kv.model().fingerprint()?;
        let window = plan.kv_plan(header).window.map_or(0, |window| window.window);
        let root = |is_long: bool| {
            let kind = [kv_code(plan.kv), usize::from(is_long), KV_PAGE, page_bytes, window_bytes];
            let shape = [header.n_layers, header.n_kv_heads, header.head_dim, window];
            let parts = kind.into_iter().chain(shape).map(|n| n as u64);
            Key::root(&[fingerprint].into_iter().chain(parts).collect::<Vec<u64>>())
        };
        let shelf = Arc::new(Mutex::new(Shelf::list(folder)?));
        let pages = (page_bytes.max(window_bytes), plan.kv_part(header));
        let writer = Writer::start(folder.to_owned(), Arc::clone(&shelf), limit, pages)?;
        let (folder, roots) = (folder.to_owned(), [false, true].map(root));
        Ok(PrefixCache { folder, shelf, writer, roots, limit, n_read: 0 })
    }

    /// Ids of pages that were read.
    pub(super) fn n_read(&self) -> u64 {
        self.n_read
    }

    /// Hands those pages of `prompt` over that its stream has computed and no file has. Where the disk is
    /// slow, the rest has to be handed over later.
    pub(super) fn keep(
        &self,
        kv: &mut Transformer,
        (stream, kept): (&Stream, &mut Kept),
        prompt: &[u32],
    ) {
        let n_whole = prompt.len() / KV_PAGE;
        while !kept.is_done && kept.n_pages < n_whole {
            let ids = &prompt[kept.n_pages * KV_PAGE..][..KV_PAGE];
            let is_computed = stream.shared_len() >= (kept.n_pages + 1) * KV_PAGE;
            if !is_computed || !self.keep_page(kv, (stream, kept), ids, n_whole) {
                return;
            }
        }
        let tail = &prompt[n_whole * KV_PAGE..];
        if !kept.is_done && stream.pos() >= prompt.len() {
            let is_new = kept.is_worth_it && !tail.is_empty();
            kept.is_done = !is_new || self.keep_page(kv, (stream, kept), tail, n_whole);
        }
    }

    /// Hands over the next page of a prompt of `n_whole` full ones, if no file has it; `false` if it could
    /// not be.
    fn keep_page(
        &self,
        kv: &mut Transformer,
        (stream, kept): (&Stream, &mut Kept),
        ids: &[u32],
        n_whole: usize,
    ) -> bool {
        let index = kept.n_pages;
        let is_long = stream.is_of_long();
        let (parent, was_long) = kept.key.unwrap_or((self.roots[usize::from(is_long)], is_long));
        if was_long != is_long {
            // Its text has become long, and all was computed anew.
            kept.is_done = true;
            return false;
        }
        let name = PageName::new(parent, index, ids);
        let Some(PagePair { page, window }) = stream.page(index) else { return false };
        let window = window.map(|window| (name.windowed(), window));
        for (name, page) in [(name, page)].into_iter().chain(window) {
            if self.shelf().has(&name) {
                continue;
            }
            if !kept.is_worth_it && n_whole - index < PAGES_MIN {
                kept.is_done = true;
                return false;
            }
            kept.is_worth_it = true;
            if !self.write(name, ids, kv.kv_page(page, name.is_windowed)) {
                return false;
            }
        }
        (kept.n_pages, kept.key) = (index + 1, Some((name.own, is_long)));
        true
    }

    /// Whether the page will be written, or never can be.
    fn write(&self, name: PageName, ids: &[u32], kv: &[u8]) -> bool {
        let bytes = (HEAD_BYTES + kv.len()) as u64;
        // The thread may be done with it before anything else happens here.
        self.shelf().promise(name, bytes);
        let is_taken = bytes <= self.limit && self.writer.offer(name, ids, kv);
        if !is_taken {
            self.shelf().remove(&name);
        }
        is_taken || bytes > self.limit
    }

    /// Fills pages with what files have of the beginning of `ids`, a long text or not, as far as there are
    /// free ones.
    pub(super) fn load(
        &mut self,
        (kv, pages): (&mut Transformer, &mut Pages),
        (ids, is_long): (&[u32], bool),
    ) {
        self.shelf().begin_prompt();
        let ids = &ids[..ids.len().saturating_sub(1)];
        let mut path = pages.hold_path(ids, is_long);
        let mut names = Vec::new();
        let mut key = self.roots[usize::from(is_long)];
        for (index, page) in ids.chunks_exact(KV_PAGE).enumerate() {
            let name = PageName::new(key, index, page);
            let end = (index + 1) * KV_PAGE;
            if index >= path.n_shared()
                && !self.load_page(kv, pages, &mut path, (&name, &ids[..end]))
            {
                break;
            }
            names.push(name);
            key = name.own;
        }
        let mut text = ids[..path.n_shared() * KV_PAGE].to_vec();
        self.load_tail((kv, pages), &mut path, key, (ids, &mut text));
        while let Some(needed) = pages.next_window(&mut path) {
            if let WindowNeeded::Empty(index, window) = needed
                && !self.read(&names[index].windowed(), kv.kv_page(window, true))
            {
                pages.drop_window(&mut path);
                break;
            }
        }
        pages.release(&mut path, &text);
    }

    /// Adds the page `name` to a path, which has `ids` then; `false` if that cannot be.
    fn load_page(
        &mut self,
        kv: &mut Transformer,
        pages: &mut Pages,
        path: &mut Held,
        (name, ids): (&PageName, &[u32]),
    ) -> bool {
        if !self.shelf().has_written(name) {
            return false;
        }
        let Some(page) = pages.add_page(path) else { return false };
        if !self.read(name, kv.kv_page(page, false)) {
            pages.drop_last(path);
            return false;
        }
        pages.end_page(path, ids);
        self.n_read += KV_PAGE as u64;
        true
    }

    /// Adds a page to a path, after the text of that key, that has more of `ids` than there is, if only
    /// its beginning; `text` has its ids then too.
    fn load_tail(
        &mut self,
        (kv, pages): (&mut Transformer, &mut Pages),
        path: &mut Held,
        key: Key,
        (ids, text): (&[u32], &mut Vec<u32>),
    ) {
        let rest = &ids[text.len()..];
        let n_there = pages.n_after(path, rest);
        if n_there == rest.len().min(KV_PAGE) {
            return;
        }
        let names = self.shelf().after(key, TAILS_MAX);
        let common = |name: &PageName| {
            let page = self.find(name)?;
            Some(page.ids().zip(rest).take_while(|(a, b)| a == *b).count())
        };
        let best = names.iter().filter_map(|name| Some((common(name)?, name))).max();
        let Some((_, name)) = best.filter(|(common, _)| *common > n_there) else { return };
        let Some(file) = self.find(name) else { return };
        let Some(PagePair { page, window }) = pages.add_last(path) else { return };
        let tail: Vec<u32> = file.ids().collect();
        let is_read = self.judge(name, file.read(kv.kv_page(page, false))).is_some()
            && window.is_none_or(|window| self.read(&name.windowed(), kv.kv_page(window, true)));
        match is_read {
            true => {
                text.extend_from_slice(&tail);
                self.n_read += tail.len() as u64;
            }
            false => pages.drop_last(path),
        }
    }

    /// Reads the page `name`; `false` if there is none that is whole.
    fn read(&self, name: &PageName, kv: &mut [u8]) -> bool {
        self.shelf().has_written(name)
            && self.find(name).is_some_and(|file| self.judge(name, file.read(kv)).is_some())
    }

    fn find(&self, name: &PageName) -> Option<PageFile> {
        self.judge(name, PageFile::open(&self.folder, name))
    }

    /// A file that is not what it should be is told of, and removed.
    fn judge<T>(&self, name: &PageName, found: Result<T, Fault>) -> Option<T> {
        let fault = match found {
            Ok(found) => return Some(found),
            Err(fault) => fault,
        };
        self.shelf().remove(name);
        let path = self.folder.join(name.to_string());
        match fault {
            Fault::Gone => {}
            Fault::Io(e) => log::warn!("cannot read {}: {e}", path.display()),
            Fault::Damaged(what) => {
                log::warn!("{} is not used, and removed: {what}", path.display());
                // Where that cannot be it is found again after the next start.
                let _ = fs::remove_file(path);
            }
        }
        None
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands for how keys and values are kept in keys of texts.
fn kv_code(kind: KvKind) -> usize {
    match kind {
        KvKind::F16 => 2,
        KvKind::F32 => 4,
        KvKind::Int8 => 1,
    }
}

#[cfg(test)]
mod tests;
