//! Stores beginnings of prompts in files, so that they need not be computed after a restart.
//!
//! A file holds one page of a node's layers, or one state of its recurrent layers ([`page_file`]). Its name holds the keys of the texts that end
//! before and after the page, so a list of a folder's files ([`shelf`]) shows the stored texts. A thread
//! writes pages of prompts ([`writer`]); they become pages of the KV cache again when a prompt has the same
//! beginning ([`load`], and [`states`] in models with recurrent layers). On a ring each node has a folder of its own ([`store`]), and only pages that all
//! nodes have are used.

mod load;
mod page_file;
mod shelf;
mod states;
mod store;
mod writer;

use super::forks::Forks;
use super::stream::{Places, Stream};
use crate::model::{KV_PAGE, Stage, StageInfo};

pub(super) use load::Files;
pub(super) use page_file::Kind;
pub(super) use store::{PAGES_MIN, PageToRead, PromptPage, Text};

pub use store::Store;

/// Whether files have more of a text than memory that it can continue from: full pages, or a later state.
pub(super) fn has_more(files: &mut dyn Files, places: &Places, text: Text<'_>) -> bool {
    let text = without_last(text);
    match places.with_pages(|pages| pages.has_checkpoints()) {
        true => states::last(files, places, text).is_some(),
        false => load::has_more(files, places, text),
    }
}

/// Fills free pages, and a checkpoint if the model has recurrent layers, with the beginning of a text from files.
pub(super) fn load(files: &mut dyn Files, places: &Places, text: Text<'_>) {
    let Some(store) = files.own() else { return };
    store.begin_text();
    let text = without_last(text);
    match places.with_pages(|pages| pages.has_checkpoints()) {
        true => states::load(files, places, text),
        false => load::load(files, places, text),
    }
}

/// A text without its last id, which is computed for its logits.
fn without_last((ids, is_long): Text<'_>) -> Text<'_> {
    (&ids[..ids.len().saturating_sub(1)], is_long)
}

/// Progress of handing a prompt's pages to the prefix files.
#[derive(Debug, Default)]
pub(super) struct Kept {
    n_pages: usize,
    /// Number of the prompt's forks whose states were handed over, or do not exist.
    n_states: usize,
}

/// Whether files can hold all that prompts leave in `stage`.
pub(super) fn can_keep<S: Stage + ?Sized>(stage: &S) -> bool {
    let StageInfo { header, share, .. } = stage.about();
    share.layers.clone().all(|layer| stage.kv_part_bytes(layer).is_some())
        && (stage.state_bytes() > 0 || !header.has_state())
}

impl Kept {
    /// The next page of `prompt`, or the next state at one of its `forks`, if its stream has computed it.
    pub(super) fn next<'a>(
        &mut self,
        stream: &Stream,
        prompt: &'a [u32],
        forks: Option<&Forks>,
    ) -> Option<PromptPage<'a>> {
        let Some(forks) = forks else { return self.next_page(stream, prompt) };
        while let Some(fork) = forks.at(self.n_states)
            && self.is_due(fork, prompt.len())
            && stream.pos() >= fork
        {
            let state = self.state_at(fork, stream, prompt);
            if state.is_some() {
                return state;
            }
            self.n_states += 1;
        }
        // Keys and values behind the last state are of no use.
        self.next_page(stream, prompt).filter(|page| page.ids.len() == KV_PAGE)
    }

    /// Whether the page of a fork was handed over, or is the last one of a prompt of `len` ids and not full.
    fn is_due(&self, fork: usize, len: usize) -> bool {
        let index = (fork - 1) / KV_PAGE;
        self.n_pages > index || self.n_pages == index && index == len / KV_PAGE
    }

    /// The state at a fork, if there is a checkpoint.
    fn state_at<'a>(
        &self,
        fork: usize,
        stream: &Stream,
        prompt: &'a [u32],
    ) -> Option<PromptPage<'a>> {
        let (index, n_whole) = ((fork - 1) / KV_PAGE, prompt.len() / KV_PAGE);
        let ids = prompt.get(index * KV_PAGE..fork)?;
        let (at, state) = (stream.page(index)?, Some(stream.checkpoint(fork)?));
        let (stream, is_long) = (stream.index(), stream.is_of_long());
        Some(PromptPage { stream, is_long, index, n_whole, ids, at, state })
    }

    /// The next page of `prompt`, if its stream has computed it.
    fn next_page<'a>(&self, stream: &Stream, prompt: &'a [u32]) -> Option<PromptPage<'a>> {
        let (index, n_whole) = (self.n_pages, prompt.len() / KV_PAGE);
        let ids = prompt.get(index * KV_PAGE..).filter(|rest| !rest.is_empty())?;
        let ids = &ids[..ids.len().min(KV_PAGE)];
        let is_computed = match ids.len() {
            KV_PAGE => stream.shared_len() >= (index + 1) * KV_PAGE,
            _ => stream.pos() >= prompt.len(),
        };
        let at = stream.page(index).filter(|_| is_computed)?;
        let (stream, is_long) = (stream.index(), stream.is_of_long());
        Some(PromptPage { stream, is_long, index, n_whole, ids, at, state: None })
    }

    /// Counts the page or state that [`Kept::next`] returned, once it was handed to the files.
    pub(super) fn told(&mut self, is_state: bool) {
        match is_state {
            true => self.n_states += 1,
            false => self.n_pages += 1,
        }
    }
}

#[cfg(test)]
mod tests;
