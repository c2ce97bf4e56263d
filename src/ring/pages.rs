//! The streams' pages of keys and values, as the master tells the other nodes.
//!
//! Nodes mirror the streams' tables: changes go round before the batch that needs them. Links keep that
//! order, and within an epoch nothing is sent twice. When layers have moved, the whole tables go round, as
//! nodes may be new.

use super::{Link, Sizes};
use crate::wire::frame::{self, FrameKeep, FramePage, FramePair};

/// Pages that there are and that change at a time, where texts are short.
pub(super) const PAGES_OFTEN: usize = 8;

/// The pages that a master knows of.
pub(super) struct PageBook {
    pub(super) tables: Tables,
    pub(super) out: PagesOut,
    /// Number of the requested pages that all nodes have read.
    pub(super) found: Option<usize>,
}

impl PageBook {
    /// None yet.
    pub(super) fn new(sizes: &Sizes) -> PageBook {
        PageBook { tables: Tables::new(sizes), out: PagesOut::new(), found: None }
    }

    /// Bytes that it keeps on the heap.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.tables.heap_bytes() + self.out.heap_bytes()
    }
}

/// The streams' tables, as the batches begun so far have them.
pub(super) struct Tables {
    /// Table of each stream.
    streams: Vec<Vec<FramePair>>,
}

impl Tables {
    pub(super) fn new(sizes: &Sizes) -> Tables {
        let table = |_| Vec::with_capacity(PAGES_OFTEN);
        Tables { streams: (0..sizes.n_streams).map(table).collect() }
    }

    /// Empties the tables of all streams.
    pub(super) fn clear(&mut self) {
        self.streams.iter_mut().for_each(Vec::clear);
    }

    /// A change of a page is followed by changes of all later ones.
    pub(super) fn apply(&mut self, page: &FramePage) {
        let table = &mut self.streams[usize::from(page.stream)];
        table.truncate(page.index as usize);
        table.push(page.to);
    }

    /// All pages, in the order of the text: of layers with a window, a later page may replace an earlier one.
    pub(super) fn all(&self) -> impl Iterator<Item = FramePage> {
        let of_stream = |(stream, table): (usize, &Vec<FramePair>)| {
            let pages = table.clone().into_iter().enumerate();
            pages.map(move |(index, to)| FramePage {
                stream: stream as u16,
                index: index as u32,
                to,
                from: None,
            })
        };
        self.streams.iter().enumerate().flat_map(of_stream)
    }

    /// Bytes that it keeps on the heap.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.streams.iter().map(|table| table.capacity() * size_of::<FramePair>()).sum()
    }
}

/// Pages on their way out: those of streams, and those that are to be kept.
pub(super) struct PagesOut {
    pages: Vec<FramePage>,
    n_sent: usize,
    keeps: Vec<FrameKeep>,
    n_kept: usize,
}

impl PagesOut {
    /// None yet.
    pub(super) fn new() -> PagesOut {
        let pages = Vec::with_capacity(PAGES_OFTEN);
        PagesOut { pages, n_sent: 0, keeps: Vec::new(), n_kept: 0 }
    }

    /// Drops what has not been sent.
    pub(super) fn clear(&mut self) {
        self.pages.clear();
        self.keeps.clear();
        (self.n_sent, self.n_kept) = (0, 0);
    }

    /// Whether one that is copied has not been sent: whole tables do not say that.
    pub(super) fn has_copies(&self) -> bool {
        self.pages[self.n_sent..].iter().any(|page| page.from.is_some())
    }

    /// Has these sent, too.
    pub(super) fn add(&mut self, pages: impl IntoIterator<Item = FramePage>) {
        self.pages.extend(pages);
    }

    /// Queues pages to keep. They go first, as their memory may be reused by others.
    pub(super) fn keep(&mut self, pages: &[FrameKeep]) {
        self.keeps.extend_from_slice(pages);
    }

    /// Sends what the link takes now; says whether everything is on its way.
    pub(super) fn send(&mut self, epoch: u32, link: &mut impl Link) -> bool {
        while self.n_kept < self.keeps.len() {
            let Some(out) = link.reserve() else { return false };
            let sent = frame::emit_keeps(epoch, &self.keeps[self.n_kept..], out);
            let (bytes, n) = sent.expect("a page fits a frame");
            link.commit(bytes);
            self.n_kept += n;
        }
        while self.n_sent < self.pages.len() {
            let Some(out) = link.reserve() else { return false };
            let sent = frame::emit_pages(epoch, &self.pages[self.n_sent..], out);
            let (bytes, n) = sent.expect("a page fits a frame");
            link.commit(bytes);
            self.n_sent += n;
        }
        self.clear();
        true
    }

    /// Bytes that it keeps on the heap.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<FramePage>()
            + self.keeps.capacity() * size_of::<FrameKeep>()
    }
}
