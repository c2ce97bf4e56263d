//! Pages that all nodes are to read from their files, on their way round.

use super::Link;
use crate::group::Broken;
use crate::wire::frame::{self, Fetch, FetchPage, Frame};

/// Pages of a text's beginning that are to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PagesToRead {
    /// Whether the text is a long one.
    pub(crate) is_long: bool,
    /// Ids of the text, up to the end of the last page.
    pub(crate) ids: Vec<u32>,
    /// The pages, in the order in which they are of use.
    pub(crate) pages: Vec<FetchPage>,
}

impl PagesToRead {
    /// Pages of a FETCH; no more than its frame holds.
    pub(super) fn of(frame: &Frame<'_>, fetch: &Fetch) -> PagesToRead {
        let (pages, ids) = frame.fetch();
        PagesToRead { is_long: fetch.is_long, ids: ids.collect(), pages: pages.collect() }
    }

    /// Whether the request fits a frame of `frame_bytes`.
    pub(crate) fn fits(&self, frame_bytes: usize) -> bool {
        self.counted().is_some_and(|fetch| fetch.bytes() <= frame_bytes)
    }

    /// Bytes that it keeps on the heap.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.ids.capacity() * 4 + self.pages.capacity() * size_of::<FetchPage>()
    }

    fn counted(&self) -> Option<Fetch> {
        Some(Fetch {
            is_long: self.is_long,
            n_pages: self.pages.len().try_into().ok()?,
            n_ids: self.ids.len().try_into().ok()?,
            ..Fetch::default()
        })
    }

    /// Sends the pages on, of which `n_found` have been read here, or only that number if they go back to the
    /// master; `false` if it has to wait.
    pub(super) fn send(
        &self,
        (epoch, batch): (u32, u32),
        (n_found, is_last): (usize, bool),
        link: &mut impl Link,
    ) -> Result<bool, Broken> {
        let Some(out) = link.reserve() else { return Ok(false) };
        let nothing = PagesToRead::default();
        let told = if is_last { &nothing } else { self };
        let counted = told.counted().ok_or(Broken("more pages than a frame holds"))?;
        let n_found = n_found.min(self.pages.len()) as u16;
        let fetch = Fetch { epoch, batch, n_found, ..counted };
        let bytes = frame::emit_fetch(&fetch, &told.pages, &told.ids, out);
        link.commit(bytes.ok_or(Broken("more pages than a frame holds"))?);
        Ok(true)
    }
}
