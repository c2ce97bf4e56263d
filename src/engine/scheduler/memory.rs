//! Distribution of KV memory, which streams share, to the lanes.

use super::Scheduler;
use crate::engine::Engine;
use crate::engine::drafts::DRAFTS_MAX;
use crate::engine::lane::Lane;
use crate::model::KV_PAGE;

impl Scheduler<'_> {
    /// Lets preempted lanes continue while there is memory for them. True if all do.
    pub(super) fn resume(&mut self, engine: &mut Engine) -> bool {
        self.sort_by_age(|lane| lane.is_parked);
        for at in 0..self.scratch.order.len() {
            let lane = &self.lanes[self.scratch.order[at].1];
            let is_told_all = lane.work.as_ref().is_none_or(|work| !work.wants_logits);
            let ids: &[u32] = if is_told_all { &lane.ids } else { &[] };
            if !self.may_begin(ids, lane.ids.len()) {
                return false;
            }
            let lane = &mut self.lanes[self.scratch.order[at].1];
            let is_awaited = !self.under_way.is_empty();
            self.is_held = is_awaited && is_told_all && engine.has_to_read(&lane.stream, &lane.ids);
            if self.is_held {
                return false;
            }
            engine.rewind(&mut lane.stream, if is_told_all { &lane.ids } else { &[] });
            lane.go_on();
        }
        true
    }

    /// Whether there is room for a job with a prompt of `len` ids, which may continue stored pages of `ids`.
    /// False also while another lane is computing a beginning that the job could share.
    pub(super) fn may_begin(&self, ids: &[u32], len: usize) -> bool {
        let is_computed = !ids.is_empty() && self.lanes.iter().any(|lane| lane.computes_for(ids));
        !is_computed && self.has_room_for(ids, len)
    }

    /// Whether there is room for a text of `len` ids and one page more. A text alone always has room.
    fn has_room_for(&self, ids: &[u32], len: usize) -> bool {
        let len = (len + KV_PAGE).min(self.ctx_len);
        self.lanes.first().is_some_and(|lane| lane.stream.has_room_for(ids, len))
    }

    /// Lists in `order` the lanes with work for which `is_meant` is true, the oldest job first.
    fn sort_by_age(&mut self, is_meant: impl Fn(&Lane<'_>) -> bool) {
        self.scratch.order.clear();
        for (index, lane) in self.lanes.iter().enumerate() {
            if let Some(work) = lane.work.as_ref().filter(|_| is_meant(lane)) {
                self.scratch.order.push((work.id, index));
            }
        }
        self.scratch.order.sort_unstable();
    }

    /// Gives each lane memory for its next row, and for more if there is some. If memory is short, the
    /// youngest jobs are preempted, so that the oldest can always finish.
    pub(super) fn make_room(&mut self, engine: &mut Engine) {
        self.sort_by_age(|lane| lane.is_ready());
        let mut at = 0;
        while at < self.scratch.order.len() {
            let lane = &mut self.lanes[self.scratch.order[at].1];
            lane.grow();
            let pos = lane.stream.pos();
            lane.reserve(engine, pos + 1);
            if lane.room > pos {
                at += 1;
            } else if let Some((_, youngest)) = self.scratch.order.pop() {
                self.lanes[youngest].park();
            }
        }
        let n_drafts = if self.drafting.drafter.is_some() { DRAFTS_MAX } else { 0 };
        for (_, index) in &self.scratch.order {
            let lane = &mut self.lanes[*index];
            let n_drafts = if lane.is_decoding() { n_drafts } else { 0 };
            let end = (lane.ids.len() + n_drafts).min(lane.stream.pos() + engine.max_batch());
            lane.reserve(engine, end.min(self.ctx_len));
        }
    }

    /// After the loss of all KV and of the batches in flight, makes every job recompute its own, the oldest
    /// jobs first.
    pub(super) fn recompute_all(&mut self) {
        self.lanes.iter_mut().for_each(Lane::forget_kv);
        self.under_way.clear();
    }
}
