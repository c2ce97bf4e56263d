//! Prompt beginnings that all nodes keep in files.

use super::{Goal, RingMaster};
use crate::engine::own_stage::OwnStage;
use crate::engine::prefix;
use crate::engine::ring::streams;
use crate::ring::PagesToRead;
use crate::wire::frame::NodeLine;

impl RingMaster {
    /// Whether all known nodes keep prompt beginnings.
    pub(super) fn keeps_prefixes(&self, stage: &OwnStage) -> bool {
        self.without(stage).is_none()
    }

    /// The first node that keeps no prompt beginnings.
    fn without(&self, stage: &OwnStage) -> Option<&NodeLine> {
        let is_without = |(index, line): &(usize, &NodeLine)| match index {
            0 => !prefix::can_keep(stage),
            _ => !line.keeps,
        };
        self.lines().iter().enumerate().find(is_without).map(|(_, line)| line)
    }

    /// Whether all nodes keep prompt beginnings. Logs once which node does not.
    pub(super) fn may_keep(&mut self, stage: &OwnStage) -> bool {
        let without = self.without(stage);
        let Some((name, nodes)) = without.map(|line| (line.name.clone(), line.nodes)) else {
            self.next.unkept = None;
            return true;
        };
        if self.next.unkept.as_ref() != Some(&name) {
            let why = if nodes > 1 { "is a team" } else { "has no --prefix-cache" };
            log::warn!("prefixes are not kept: {name} {why}");
            self.next.unkept = Some(name);
        }
        false
    }

    /// Has all nodes read pages. Returns how many, from the first on, all nodes have; 0 if the ring is lost
    /// meanwhile.
    pub(super) fn send_round(&mut self, stage: &mut OwnStage, wanted: PagesToRead) -> usize {
        if self.drive(stage, Goal::Fetch).is_err() {
            return 0;
        }
        self.master.submit_fetch(wanted, (&self.next.keeps, &self.next.pages));
        self.next.keeps.clear();
        self.next.pages.clear();
        self.drive(stage, Goal::Fetched).map_or(0, |()| self.master.take_found())
    }

    /// Reads this node's part of the pages.
    pub(super) fn fetch(&mut self, stage: &mut OwnStage) {
        let (master, held, sizes) = (&self.master, &mut self.held, &self.sizes);
        let wanted = master.fetch();
        let (n_read, _) = self.node.compute(|| {
            let mut prefixes = stage.prefixes.take();
            let asked = (wanted, wanted.pages.len());
            let of = (master.epoch(), sizes);
            let n_read = streams::read(held, prefixes.as_mut(), asked, of, stage);
            stage.prefixes = prefixes;
            n_read
        });
        self.master.fetched(n_read);
    }
}
