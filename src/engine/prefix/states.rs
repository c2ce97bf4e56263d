//! Fills pages and a checkpoint from files when a prompt of a model with recurrent layers begins like theirs.
//!
//! A text can be continued only where a state is, so nothing behind the last state is read.

use super::load::{AT_ONCE, Files, Loading};
use super::page_file::Kind;
use super::store::{PageToRead, Text};
use crate::engine::stream::Places;
use crate::model::KV_PAGE;

/// Number of ids before the last state in files that `text` can continue from, if that is longer than what memory has.
pub(super) fn last(
    files: &mut dyn Files,
    places: &Places,
    (ids, is_long): Text<'_>,
) -> Option<usize> {
    let (n_whole, pos) = places
        .with_pages(|pages| (pages.n_whole(ids, is_long), pages.n_before_checkpoint(ids, is_long)));
    let last = files.own()?.last_state((ids, is_long), n_whole);
    last.filter(|last| *last > pos)
}

/// Fills free pages and a checkpoint with the beginning of a text, up to the last state in files. If that cannot be read,
/// an earlier one is taken.
pub(super) fn load(files: &mut dyn Files, places: &Places, (ids, is_long): Text<'_>) {
    let mut ids = ids;
    while let Some(pos) = last(files, places, (ids, is_long)) {
        let path = places.with_pages(|pages| pages.hold_path(&ids[..pos], is_long));
        let mut loading = Loading { files: &mut *files, places, is_long, path };
        if loading.state(&ids[..pos]) {
            return;
        }
        ids = &ids[..pos - 1];
    }
}

impl Loading<'_> {
    /// Reads the state behind `ids` and the pages before it that are missing; `false` if it cannot be used.
    fn state(&mut self, ids: &[u32]) -> bool {
        self.whole_pages(ids);
        let n_whole = ids.len() / KV_PAGE;
        let mut n_ids = self.path.shared_len();
        let mut is_there = self.path.n_shared() == n_whole;
        let rest = &ids[n_whole * KV_PAGE..];
        if is_there && self.with_pages(|pages, path| pages.n_after(path, rest)) < rest.len() {
            is_there = self.last_page(ids);
            n_ids = if is_there { ids.len() } else { n_ids };
        }
        let is_there = is_there && self.checkpoint(ids);
        self.with_pages(|pages, path| pages.release(path, &ids[..n_ids]));
        is_there
    }

    /// Reads the page before a state behind `ids`, which is not full.
    fn last_page(&mut self, ids: &[u32]) -> bool {
        let added = self.with_pages(|pages, path| pages.add_page(path));
        let Some(page) = added else { return false };
        let index = ids.len() / KV_PAGE;
        let is_read = self.read(ids, &[PageToRead { index, kind: Kind::Whole, page }]) == 1;
        match is_read {
            true => self.count_read(ids.len() % KV_PAGE),
            false => {
                self.with_pages(|pages, path| pages.drop_last(path));
                self.doubt(ids, Kind::Whole);
            }
        }
        is_read
    }

    /// Reads the state behind `ids`, whose pages are there.
    fn checkpoint(&mut self, ids: &[u32]) -> bool {
        let taken = self.with_pages(|pages, _| pages.take_checkpoint());
        let Some(page) = taken else { return false };
        let index = (ids.len() - 1) / KV_PAGE;
        let is_read = self.read(ids, &[PageToRead { index, kind: Kind::State, page }]) == 1;
        match is_read {
            true => self.with_pages(|pages, path| pages.end_loaded(path, ids, page)),
            false => {
                self.with_pages(|pages, _| pages.drop_checkpoint(page));
                self.doubt(ids, Kind::State);
            }
        }
        is_read
    }

    fn count_read(&mut self, n: usize) {
        self.files.own().into_iter().for_each(|store| store.n_read += n as u64);
    }

    /// Forgets the file of the last page of `ids`, or of the state behind them, which a node lacks.
    fn doubt(&mut self, ids: &[u32], kind: Kind) {
        let is_long = self.is_long;
        let Some(store) = self.files.own() else { return };
        if let Some(name) = store.names((ids, is_long)).last()
            && ids.len() <= AT_ONCE * KV_PAGE
        {
            store.doubt(&name.of_kind(kind));
        }
    }
}
