//! Pages in which a simulated ring stores its texts, over its nodes' lives.

use std::ops::Range;

use super::{MasterNode, PAGE};
use crate::ring::PagesToRead;
use crate::transport::fault::Dice;
use crate::wire::frame::{FetchKind, FetchPage, FrameKeep, FramePage};

impl MasterNode {
    /// Has the nodes read what files have of a stream's text.
    pub(super) fn ask_files(&mut self, stream: usize) {
        let lane = &mut self.lanes[stream];
        lane.has_asked = true;
        let mut ids: Vec<u32> = lane.prompt.iter().chain(&lane.answer).copied().collect();
        let n = (ids.len() - 1) / PAGE;
        ids.truncate(n * PAGE);
        lane.pages.extend((0..n).filter_map(|_| self.free.pop()));
        let page = |(index, page): (usize, &u32)| FetchPage {
            index: index as u32,
            kind: FetchKind::Whole,
            page: *page,
        };
        let pages = lane.pages.iter().enumerate().map(page).collect();
        self.reading = Some(stream);
        self.master.submit_fetch(PagesToRead { is_long: false, ids, pages }, (&self.keeps, &[]));
        self.keeps.clear();
    }

    /// The text goes on from what all nodes have read.
    pub(super) fn go_on_from_files(&mut self) {
        let n = self.master.take_found();
        let Some(lane) = self.reading.take().map(|stream| &mut self.lanes[stream]) else { return };
        self.free.extend(lane.pages.drain(n..));
        lane.n_submitted = n * PAGE;
        self.n_read += n * PAGE;
    }

    /// Full pages are to be kept.
    pub(super) fn keep_pages(&mut self) {
        for (stream, lane) in self.lanes.iter_mut().enumerate() {
            while self.reading != Some(stream) && (lane.n_kept + 1) * PAGE <= lane.n_submitted {
                let text = lane.prompt.iter().chain(&lane.answer);
                let mut ids = [0; 64];
                let own = text.skip(lane.n_kept * PAGE).take(PAGE);
                own.zip(&mut ids).for_each(|(id, place)| *place = *id);
                self.keeps.push(FrameKeep {
                    stream: stream as u16,
                    is_long: false,
                    index: lane.n_kept as u32,
                    n_whole: 9,
                    at: (lane.pages[lane.n_kept], None),
                    state: None,
                    n_ids: PAGE as u8,
                    ids,
                });
                lane.n_kept += 1;
            }
        }
    }

    /// Gives a stream any pages for these positions, and now and then another page for earlier ones.
    pub(super) fn change_pages(
        &mut self,
        stream: usize,
        positions: Range<usize>,
    ) -> Vec<FramePage> {
        let (lane, mut changes) = (&mut self.lanes[stream], Vec::new());
        let stream = stream as u16;
        let told = |(index, to): (usize, &u32)| FramePage {
            stream,
            index: index as u32,
            to: (*to, None),
            from: None,
        };
        changes.extend(lane.pages.iter().enumerate().skip(lane.n_told).map(told));
        let take = |dice: &mut Dice, free: &mut Vec<u32>| {
            free.swap_remove(dice.below(free.len() as u64) as usize)
        };
        let is_inside = !positions.start.is_multiple_of(PAGE);
        if is_inside && self.dice.below(3) == 0 {
            let index = positions.start / PAGE;
            let (from, to) = (lane.pages[index], take(&mut self.dice, &mut self.free));
            (lane.pages[index], _) = (to, self.free.push(from));
            let (index, from) = (index as u32, Some((from, None)));
            changes.push(FramePage { stream, index, to: (to, None), from });
        }
        while lane.pages.len() * PAGE < positions.end {
            let (index, to) = (lane.pages.len() as u32, take(&mut self.dice, &mut self.free));
            lane.pages.push(to);
            changes.push(FramePage { stream, index, to: (to, None), from: None });
        }
        lane.n_told = lane.pages.len();
        changes
    }

    /// The nodes have forgotten everything.
    pub(super) fn begin_streams_anew(&mut self) {
        for lane in &mut self.lanes {
            (lane.n_submitted, lane.is_waiting) = (0, false);
            (lane.n_told, lane.n_kept, lane.has_asked) = (0, 0, self.shape.files.is_none());
            self.free.append(&mut lane.pages);
        }
        self.keeps.clear();
        self.reading = None;
    }
}
