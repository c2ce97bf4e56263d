//! Fills pages of the KV cache from files when a prompt begins like theirs.

use super::page_file::{Kind, PageName};
use super::store::{PageToRead, Store, Text};
use crate::engine::pages::{Held, Pages, WindowNeeded};
use crate::engine::stream::Places;
use crate::model::{KV_PAGE, PagePair};

/// Number of a text's first pages that one request to the nodes of a ring can name, however long the text is.
pub(super) const AT_ONCE: usize = 400;

/// The page files of all nodes that compute a text together.
pub(in crate::engine) trait Files {
    /// Page files of this node; `None` if it has none.
    fn own(&mut self) -> Option<&mut Store>;

    /// Has all nodes read pages of a text. Returns how many, from the first on, all nodes have read.
    fn read(&mut self, text: Text<'_>, pages: &[PageToRead]) -> usize;
}

/// Whether files have a full page of `ids` that the KV cache lacks.
pub(super) fn has_more(files: &mut dyn Files, places: &Places, (ids, is_long): Text<'_>) -> bool {
    let Some(store) = files.own() else { return false };
    let n_there = places.with_pages(|pages| pages.n_whole(ids, is_long));
    let names = store.names((&ids[..ids.len().min((n_there + 1) * KV_PAGE)], is_long));
    let is_in_reach = n_there < AT_ONCE && ids.len() >= (n_there + 1) * KV_PAGE;
    is_in_reach && names.get(n_there).is_some_and(|name| store.has(name))
}

/// Fills free pages with the beginning of `ids` from files. `is_long` tells whether the text is a long one.
pub(super) fn load(files: &mut dyn Files, places: &Places, (ids, is_long): Text<'_>) {
    let path = places.with_pages(|pages| pages.hold_path(ids, is_long));
    let mut loading = Loading { files, places, is_long, path };
    loading.whole_pages(ids);
    let mut text = ids[..loading.path.shared_len()].to_vec();
    loading.tail(ids, &mut text);
    loading.windows(&text);
    let Loading { mut path, .. } = loading;
    places.with_pages(|pages| pages.release(&mut path, &text));
}

/// A text whose beginning is being read.
pub(super) struct Loading<'a> {
    pub(super) files: &'a mut dyn Files,
    pub(super) places: &'a Places,
    pub(super) is_long: bool,
    /// Its pages in memory so far.
    pub(super) path: Held,
}

impl Loading<'_> {
    pub(super) fn with_pages<R>(&mut self, use_them: impl FnOnce(&mut Pages, &mut Held) -> R) -> R {
        let path = &mut self.path;
        self.places.with_pages(|pages| use_them(pages, path))
    }

    /// Has pages of a text read; returns how many were.
    pub(super) fn read(&mut self, ids: &[u32], pages: &[PageToRead]) -> usize {
        if pages.is_empty() { 0 } else { self.files.read((ids, self.is_long), pages) }
    }

    /// Adds full pages of `ids` from files to the path.
    pub(super) fn whole_pages(&mut self, ids: &[u32]) {
        let n_there = self.path.n_shared();
        let whole = &ids[..ids.len() / KV_PAGE * KV_PAGE];
        let Some(store) = self.files.own() else { return };
        let names = store.names((whole, self.is_long));
        let has = |(_, name): &(usize, &PageName)| store.has(name);
        let n_kept = names.iter().enumerate().skip(n_there).take_while(has).count();
        let mut wanted = Vec::new();
        for index in n_there..n_there + n_kept {
            let page = self.with_pages(|pages, path| pages.add_page(path));
            let Some(page) = page else { break };
            wanted.push(PageToRead { index, kind: Kind::Whole, page });
        }
        let n_wanted = wanted.len();
        let n_read = self.read(&whole[..(n_there + n_wanted) * KV_PAGE], &wanted);
        self.with_pages(|pages, path| {
            (n_read..n_wanted).for_each(|_| pages.drop_last(path));
            pages.end_page(path, &ids[..(n_there + n_read) * KV_PAGE]);
        });
        let Some(store) = self.files.own() else { return };
        if n_read < n_wanted && n_there + n_read < AT_ONCE {
            store.doubt(&names[n_there + n_read]);
        }
        store.n_read += (n_read * KV_PAGE) as u64;
    }

    /// Adds a last page to the path that continues `ids` further, if only for a part of the page. Also
    /// appends the page's ids to `text`, which holds those of the path.
    fn tail(&mut self, ids: &[u32], text: &mut Vec<u32>) {
        let rest = &ids[text.len()..];
        let n_there = self.with_pages(|pages, path| pages.n_after(path, rest));
        if n_there == rest.len().min(KV_PAGE) {
            return;
        }
        let Some(store) = self.files.own() else { return };
        let names = store.names((text, self.is_long));
        let parent = names.last().map_or(store.root(self.is_long), |name| name.own);
        let Some(tail) = store.best_tail(parent, rest, n_there) else { return };
        let added = self.with_pages(|pages, path| pages.add_last(path));
        let Some(PagePair { page, window }) = added else { return };
        let n = text.len();
        text.extend_from_slice(&tail);
        let index = n / KV_PAGE;
        let window = window.map(|page| PageToRead { index, kind: Kind::Windowed, page });
        let whole = PageToRead { index, kind: Kind::Whole, page };
        let wanted: Vec<PageToRead> = [whole].into_iter().chain(window).collect();
        if self.read(text, &wanted) == wanted.len() {
            self.files.own().into_iter().for_each(|store| store.n_read += tail.len() as u64);
        } else {
            self.with_pages(|pages, path| pages.drop_last(path));
            text.truncate(n);
        }
    }

    /// Fills the window pages of the path's end, the last ones first.
    fn windows(&mut self, text: &[u32]) {
        let mut all = Vec::new();
        self.with_pages(|pages, path| all.extend(std::iter::from_fn(|| pages.next_window(path))));
        let empty = |needed: &WindowNeeded| match *needed {
            WindowNeeded::There(_) => None,
            WindowNeeded::Empty(index, page) => {
                Some(PageToRead { index, kind: Kind::Windowed, page })
            }
        };
        let wanted: Vec<PageToRead> = all.iter().filter_map(empty).collect();
        let whole = self.path.shared_len().min(text.len());
        let n_read = self.read(&text[..whole], &wanted);
        let Some(missing) = wanted.get(n_read) else { return };
        // Window pages before the missing one are of no use either.
        for needed in all.iter().rev() {
            let is_empty = empty(needed).is_some();
            self.with_pages(|pages, path| pages.drop_window(path, is_empty));
            if empty(needed) == Some(*missing) {
                break;
            }
        }
    }
}
