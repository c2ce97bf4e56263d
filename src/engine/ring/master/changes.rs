//! Changes to a master's ring while it runs.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Change, Goal, Means, OtherLayers, OtherNodes, RingMaster};
use crate::engine::own_stage::OwnStage;
use crate::engine::ring::link::line;
use crate::engine::ring::resplit::left_by;
use crate::engine::weights::{Listener, WeightsPlace};
use crate::model::{Stage, Transformer};
use crate::ring::Member;
use crate::wire::hello;

/// Longest wait for leaving nodes to hand over their KV. During it the remaining nodes prepare their layers,
/// which saves that time later.
const HAND_OVER: Duration = Duration::from_secs(30);

impl RingMaster {
    /// Applies a requested change to the ring, if there is one and no batch is in flight. True if a change
    /// was applied.
    pub(super) fn look_for_changes(&mut self, stage: &mut OwnStage) -> bool {
        // No further change is applied during this one.
        let Some(by) = self.changes.by.take() else { return false };
        if by.n_coming.load(Ordering::Acquire) > 0 {
            self.master.be_patient();
        }
        self.changes.waiting = self.changes.waiting.take().or_else(|| by.asked.try_recv().ok());
        let is_due = self.changes.waiting.is_some() && self.master.hold();
        if is_due && let Some(change) = self.changes.waiting.take() {
            match change {
                Change::Nodes(others) => self.take_others(stage, others, &by.place),
                Change::Layers(others) => self.take_other_layers(stage, others, &by.place),
            }
        }
        self.changes.by = Some(by);
        is_due
    }

    fn take_other_layers(
        &mut self,
        stage: &mut OwnStage,
        OtherLayers { layers, is_settled, done }: OtherLayers,
        place: &WeightsPlace,
    ) {
        self.master.go_on();
        if is_settled.swap(true, Ordering::AcqRel) {
            return;
        }
        let prepare =
            |stage: &mut Transformer, listener: Listener<'_>| place.prepare(stage, listener);
        let result = self.resplit(stage, &layers, &prepare);
        // The caller may be gone.
        let _ = done.send(result.map(|_| ()));
    }

    fn take_others(
        &mut self,
        stage: &mut OwnStage,
        OtherNodes { members, next, tell, done }: OtherNodes,
        place: &WeightsPlace,
    ) {
        let before = stage.about().share.layers.clone();
        let assigned = self.master.assigned().to_vec();
        let prepare =
            |stage: &mut Transformer, listener: Listener<'_>| place.prepare(stage, listener);
        let is_interrupted = self.user.is_interrupted;
        self.hand_over(stage, &members, (&prepare, &is_interrupted));
        let took = self.take_layers(stage, &members[0].layers, (&prepare, &is_interrupted));
        let told = match took {
            Ok((_, line)) => {
                // If a board could not be told, the caller can tell it again; the others have followed the
                // change already.
                let told = tell();
                let mut endpoint = self.node.lock();
                let name = members.get(1).or(members.first()).map(|next| hello::name(&next.name));
                endpoint.expect_next(name);
                endpoint.set_next(next);
                if let (Some(prev), Some(last)) = (&mut endpoint.links().prev, members.last()) {
                    prev.expect(hello::name(&last.name));
                }
                drop(endpoint);
                self.master.rejoin(line, members);
                self.start_times();
                told
            }
            Err(e) => {
                let back = self.take_layers(stage, &before, (&prepare, &|| false));
                let (back, line) = match back {
                    Ok((_, line)) => (None, line),
                    Err(e) => (Some(e), line(stage, &self.user.name)),
                };
                self.master.assign(line, assigned);
                Err(back.unwrap_or(e).to_string())
            }
        };
        // The caller may be gone.
        let _ = done.send(told);
    }

    /// Has leaving nodes send the KV of their layers to the `members` that get those layers, while they are
    /// still in the ring. KV that is not sent is recomputed.
    fn hand_over(&mut self, stage: &mut OwnStage, members: &[Member], means: Means<'_>) {
        if std::mem::take(&mut self.results.is_taken) {
            self.master.finish();
        }
        let Some(layers) = left_by(self.lines(), members).filter(|_| self.master.is_quiet()) else {
            return;
        };
        let begun = Instant::now();
        let result = self.take_layers(stage, &layers[0], means).map(|(_, line)| {
            let assigned = layers.iter().map(|layers| layers.start as u32..layers.end as u32);
            self.master.hand_over(line, assigned.collect());
            self.drive(stage, Goal::HandedOver(Instant::now() + HAND_OVER))
        });
        match result {
            Ok(Ok(())) => log::debug!("nodes that leave took {} ms", begun.elapsed().as_millis()),
            Ok(Err(e)) => log::debug!("nodes that leave: {e}"),
            Err(e) => log::debug!("nodes that leave: {e}"),
        }
    }
}
