//! Beginnings of prompts that all nodes keep.

use super::{Goal, RingMaster};
use crate::engine::prefix::{PAGES_MIN, PageToRead, PromptPage, Store, Text};
use crate::engine::ring::{frames, streams};
use crate::engine::seat::Seat;
use crate::model::Stage;
use crate::ring::PagesToRead;
use crate::wire::frame::NodeLine;

impl RingMaster {
    /// Whether all nodes keep them, as far as is known.
    pub(in crate::engine) fn keeps_prefixes(&self, seat: &Seat<'_>) -> bool {
        self.without(seat).is_none()
    }

    /// The first node that keeps none.
    fn without(&self, seat: &Seat<'_>) -> Option<&NodeLine> {
        let is_without = |(index, line): &(usize, &NodeLine)| match index {
            0 => seat.kv_part_bytes() == 0,
            _ => !line.keeps,
        };
        self.lines().iter().enumerate().find(is_without).map(|(_, line)| line)
    }

    /// Whether all keep them; tells once which node does not.
    fn may_keep(&mut self, seat: &Seat<'_>) -> bool {
        let without = self.without(seat);
        let Some((name, nodes)) = without.map(|line| (line.name.clone(), line.nodes)) else {
            self.unkept = None;
            return true;
        };
        if self.unkept.as_ref() != Some(&name) {
            let why = if nodes > 1 { "is a team" } else { "has no --prefix-cache" };
            log::warn!("prefixes are not kept: {name} {why}");
            self.unkept = Some(name);
        }
        false
    }

    /// A page of a prompt is computed by what has been submitted: ahead of the next batch all nodes keep it. `false` if that
    /// is to be tried again: they hear of all pages of a prompt, or of none.
    pub(in crate::engine) fn keep(&mut self, seat: &Seat<'_>, page: &PromptPage<'_>) -> bool {
        if page.n_whole < PAGES_MIN {
            return true;
        }
        let may_keep = self.may_keep(seat);
        if may_keep {
            self.keeps.push(frames::to_keep(page));
        }
        may_keep
    }

    /// Whether pages can be read now: nobody has to take results first.
    pub(in crate::engine) fn can_read(&mut self, seat: &Seat<'_>) -> bool {
        if std::mem::take(&mut self.is_taken) {
            self.master.finish();
        }
        !self.master.is_awaited() && self.may_keep(seat)
    }

    /// Has all nodes read pages of a text; returns how many, the first, all have. None if the ring is lost meanwhile.
    pub(in crate::engine) fn read_pages(
        &mut self,
        (seat, prefixes): (&mut Seat<'_>, &mut Store),
        text: Text<'_>,
        pages: &[PageToRead],
    ) -> usize {
        self.send_round(&mut seat.beside(prefixes), frames::to_read(text, pages))
    }

    /// Nothing more is submitted for now: nodes hear what they are to keep.
    pub(in crate::engine) fn send_kept(&mut self, seat: &mut Seat<'_>) {
        if !self.keeps.is_empty() {
            self.send_round(seat, PagesToRead::default());
            self.keeps.clear();
        }
    }

    fn send_round(&mut self, seat: &mut Seat<'_>, wanted: PagesToRead) -> usize {
        if self.drive(seat, Goal::Fetch).is_err() {
            return 0;
        }
        self.master.submit_fetch(wanted, (&self.keeps, &self.pages));
        self.keeps.clear();
        self.pages.clear();
        self.drive(seat, Goal::Fetched).map_or(0, |()| self.master.take_found())
    }

    /// Reads this node's part of them.
    pub(super) fn fetch(&mut self, seat: &mut Seat<'_>) {
        let (master, held, sizes) = (&self.master, &mut self.held, &self.sizes);
        let wanted = master.fetch();
        let (n_read, _) = self.node.compute(|| {
            let mut prefixes = seat.prefixes.take();
            let asked = (wanted, wanted.pages.len());
            let of = (master.epoch(), sizes);
            let n_read = streams::read(held, prefixes.as_deref_mut(), asked, of, seat);
            seat.prefixes = prefixes;
            n_read
        });
        self.master.fetched(n_read);
    }
}
