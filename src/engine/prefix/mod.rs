//! Stores beginnings of prompts in files, so that they need not be computed after a restart.
//!
//! A file holds one page of a node's layers ([`page_file`]). Its name holds the keys of the texts that end
//! before and after the page, so a list of a folder's files ([`shelf`]) shows the stored texts. A thread
//! writes pages of prompts ([`writer`]); they become pages of the KV cache again when a prompt has the same
//! beginning ([`load`]). On a ring each node has a folder of its own ([`store`]), and only pages that all
//! nodes have are used.

mod load;
mod page_file;
mod shelf;
mod store;
mod writer;

use super::stream::Stream;
use crate::model::KV_PAGE;

pub(super) use load::{Files, has_more, load};
pub(super) use store::{PAGES_MIN, PageToRead, PromptPage, Text};

pub use store::Store;

/// Progress of handing a prompt's pages to the prefix files.
#[derive(Debug, Default)]
pub(super) struct Kept {
    n_pages: usize,
}

impl Kept {
    /// The next page of `prompt`, if its stream has computed it.
    pub(super) fn next<'a>(&self, stream: &Stream, prompt: &'a [u32]) -> Option<PromptPage<'a>> {
        let (index, n_whole) = (self.n_pages, prompt.len() / KV_PAGE);
        let ids = prompt.get(index * KV_PAGE..).filter(|rest| !rest.is_empty())?;
        let ids = &ids[..ids.len().min(KV_PAGE)];
        let is_computed = match ids.len() {
            KV_PAGE => stream.shared_len() >= (index + 1) * KV_PAGE,
            _ => stream.pos() >= prompt.len(),
        };
        let at = stream.page(index).filter(|_| is_computed)?;
        let (stream, is_long) = (stream.index(), stream.is_of_long());
        Some(PromptPage { stream, is_long, index, n_whole, ids, at })
    }

    /// Counts the page that [`Kept::next`] returned, once it was handed to the files.
    pub(super) fn told(&mut self) {
        self.n_pages += 1;
    }
}

#[cfg(test)]
mod tests;
