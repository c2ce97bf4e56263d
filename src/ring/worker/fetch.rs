//! Which pages streams have, and those that a worker keeps and reads.

use super::{Worker, WorkerTask};
use crate::group::Broken;
use crate::ring::fetch::PagesToRead;
use crate::ring::{Link, Reason, Rows};
use crate::wire::frame::{Fetch, Frame, KEEP_IDS, Sizes};

impl Worker {
    /// Pages that [`WorkerStep::Fetch`](super::WorkerStep) asks for, and how many of them, from the first,
    /// are of use.
    pub(crate) fn fetch(&self) -> (&PagesToRead, usize) {
        (&self.fetch.0, self.fetch.1)
    }

    /// Reports that the first `n_found` pages have been read.
    pub(crate) fn fetched(&mut self, n_found: usize) {
        self.fetch.1 = self.fetch.1.min(n_found);
        self.traffic.work = WorkerTask::SendingFetch;
    }

    /// FETCH has come.
    pub(super) fn take_fetch(&mut self, frame: &Frame<'_>, fetch: &Fetch) -> Result<(), Broken> {
        let Some((epoch, sizes)) = self.epoch.filter(|(epoch, _)| *epoch == fetch.epoch) else {
            // A frame of an epoch that is over.
            return Ok(());
        };
        // A page of a longer text may begin like the last one of this.
        let ids_max = sizes.ctx_len.saturating_add(KEEP_IDS as u32);
        if fetch.n_found > fetch.n_pages || fetch.n_ids > ids_max {
            return Err(Broken("pages of no text"));
        }
        self.fetch = (PagesToRead::of(frame, fetch), fetch.n_found.into());
        self.traffic.batch = (epoch, fetch.batch, sizes);
        self.traffic.work = WorkerTask::Fetching;
        Ok(())
    }

    /// Sends it on; `false` if it has to wait.
    pub(super) fn send_fetch(&mut self, link: &mut impl Link) -> bool {
        let ((epoch, batch, _), (pages, n_found)) = (self.traffic.batch, &self.fetch);
        match pages.send((epoch, batch), (*n_found, self.own.is_last), link) {
            Ok(is_sent) => is_sent,
            // Pages that came in a frame fit one.
            Err(_) => {
                self.give_up_epoch(Reason::Reset);
                true
            }
        }
    }

    /// Pages are to be kept, as a frame in `scratch` says.
    pub(super) fn keep_pages(
        &mut self,
        epoch: u32,
        len: usize,
        rows: &mut impl Rows,
    ) -> Result<(), Broken> {
        self.told_of_pages(epoch, len, |frame, sizes| {
            frame.keeps().all(|page| page.is_ok_and(|page| rows.keep(&page, sizes)))
        })
    }

    /// Streams have other pages, as a frame in `scratch` says.
    pub(super) fn change_pages(
        &mut self,
        epoch: u32,
        len: usize,
        rows: &mut impl Rows,
    ) -> Result<(), Broken> {
        self.told_of_pages(epoch, len, |frame, sizes| {
            frame.pages().all(|page| page.is_ok_and(|page| rows.set_page(&page, sizes)))
        })
    }

    /// Has `take` carry out a frame, unless its epoch is over; `take` says whether that was possible.
    fn told_of_pages(
        &self,
        epoch: u32,
        len: usize,
        take: impl FnOnce(&Frame<'_>, &Sizes) -> bool,
    ) -> Result<(), Broken> {
        let Some((_, sizes)) = self.epoch.filter(|(own, _)| *own == epoch) else { return Ok(()) };
        let frame = Frame::parse(&self.traffic.scratch[..len]).map_err(|_| Broken("pages"))?;
        if take(&frame, &sizes) { Ok(()) } else { Err(Broken("pages that there are not")) }
    }
}
