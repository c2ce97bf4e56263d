//! Pages that all nodes read.

use super::{Master, MasterTask};
use crate::group::Broken;
use crate::ring::Link;
use crate::ring::fetch::PagesToRead;
use crate::wire::frame::{Fetch, FrameKeep, FramePage};

impl Master {
    /// Has all nodes read pages, in order with the batches: pages are kept and changed before as by
    /// [`Master::submit`]. [`Master::take_found`] returns the result.
    ///
    /// # Panics
    /// If there is no room, or it does not fit a frame.
    pub(crate) fn submit_fetch(&mut self, fetch: PagesToRead, pages: (&[FrameKeep], &[FramePage])) {
        assert!(
            self.course.n_submitted() < self.course.window()
                && fetch.fits(self.options.frame_bytes)
        );
        self.pages.found = None;
        if !self.is_lost {
            self.course.submit((&[], &[]), pages, Some(fetch));
        }
    }

    /// Pages that [`MasterStep::Fetch`](crate::ring::MasterStep) asks for.
    ///
    /// # Panics
    /// If it does not.
    pub(crate) fn fetch(&self) -> &PagesToRead {
        self.course.fetch().expect("it is asked for")
    }

    /// This node has read so many of its pages, the first.
    pub(crate) fn fetched(&mut self, n_found: usize) {
        self.traffic.work = MasterTask::Fetching(n_found);
    }

    /// Whether it is known how many all have read.
    pub(crate) fn has_found(&self) -> bool {
        self.pages.found.is_some()
    }

    /// How many that are.
    pub(crate) fn take_found(&mut self) -> usize {
        self.pages.found.take().unwrap_or(0)
    }

    /// Whether the caller waits for results of a batch, and has to take them first.
    pub(crate) fn is_awaited(&self) -> bool {
        self.course.is_done() || self.course.is_awaited()
    }

    pub(super) fn send_fetch(&mut self, n_found: usize, link: &mut impl Link) -> bool {
        let (Some(fetch), Some(sent)) = (self.course.fetch(), self.course.last_sent()) else {
            return true;
        };
        let is_last = self.nodes.lines.len() == 1;
        let result = fetch.send((self.group.epoch(), sent.number), (n_found, is_last), link);
        result.expect("it fits a frame")
    }

    /// All nodes have read what they could.
    pub(super) fn heard_found(&mut self, now: u64, fetch: &Fetch) -> Result<(), Broken> {
        match self.course.first_sent() {
            Some(sent) if sent.is_fetch && sent.number == fetch.batch => {
                let n_asked = self.course.n_asked();
                self.pages.found = Some(usize::from(fetch.n_found).min(n_asked));
                self.complete(now);
                Ok(())
            }
            _ => Err(Broken("pages that were not asked for")),
        }
    }
}
