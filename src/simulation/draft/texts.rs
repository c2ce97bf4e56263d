//! Texts that the master generates, with drafts of its node.

use std::sync::Arc;

use super::models::{VOCAB_LEN, choice, draft};
use crate::engine::draft_node::guesses::Guesses;
use crate::engine::draft_node::master::NodeDrafter;
use crate::engine::{DRAFTS_MAX, DraftKind, Drafter};
use crate::transport::Micros;
use crate::transport::fault::Dice;

/// How many times a step is put off while drafts are made, each by a quarter of a step.
const WAITS_MAX: u32 = 4;
/// Longest pause before the next text.
const REST_US: Micros = 30_000_000;

/// Sizes and costs that stay the same during a run, and the node that is started next.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) seed: u64,
    /// Texts at the same time, and in all one after the other in each lane.
    pub(super) n_lanes: usize,
    pub(super) n_texts: usize,
    pub(super) ctx_len: usize,
    /// Longest text of the node.
    pub(super) node_ctx_len: u32,
    /// Streams of the node.
    pub(super) n_streams: usize,
    /// Time of the large model for a step, and of the small one for a token.
    pub(super) step_us: Micros,
    pub(super) token_us: Micros,
    /// Whether the next node to be started has other tokens.
    pub(super) is_other: bool,
}

impl Shape {
    /// Time that all texts may take.
    pub(super) fn patience_us(&self) -> Micros {
        let steps = (self.n_texts * self.ctx_len) as u64;
        steps * 2 * self.step_us + (self.n_texts as u64 + 1) * REST_US
    }
}

/// A lane: one text after the other.
struct Lane {
    ids: Vec<u32>,
    n_prompt: usize,
    /// Length of the text in the end.
    end: usize,
    n_left: usize,
    n_waits: u32,
    next_us: Micros,
}

/// The texts of all lanes.
pub(super) struct Texts {
    drafter: NodeDrafter,
    lanes: Vec<Lane>,
    ctx_len: usize,
    step_us: Micros,
    dice: Dice,
    /// Number of drafts of the small model that were right.
    pub(super) n_right: usize,
}

impl Texts {
    pub(super) fn new(shape: &Shape, guesses: Arc<Guesses>, now: Micros) -> Texts {
        let drafter = NodeDrafter::over(guesses, (shape.n_lanes, shape.ctx_len));
        let mut texts = Texts {
            drafter,
            lanes: Vec::new(),
            ctx_len: shape.ctx_len,
            step_us: shape.step_us,
            dice: Dice::new(shape.seed ^ 0x7e87),
            n_right: 0,
        };
        for _ in 0..shape.n_lanes {
            let next_us = now + texts.dice.below(REST_US);
            let ids = Vec::with_capacity(shape.ctx_len);
            let n_left = shape.n_texts;
            texts.lanes.push(Lane { ids, n_prompt: 0, end: 0, n_left, n_waits: 0, next_us });
        }
        texts
    }

    pub(super) fn are_done(&self) -> bool {
        self.lanes.iter().all(|lane| lane.n_left == 0)
    }

    /// Time of the next step of any lane.
    pub(super) fn next_us(&self) -> Micros {
        let running = self.lanes.iter().filter(|lane| lane.n_left > 0);
        running.map(|lane| lane.next_us).min().unwrap_or(Micros::MAX)
    }

    /// Has all lanes go on whose time it is. Returns whether there were some.
    pub(super) fn go_on(&mut self, now: Micros) -> bool {
        let is_due = |lane: &Lane| lane.n_left > 0 && lane.next_us <= now;
        let due: Vec<usize> =
            (0..self.lanes.len()).filter(|index| is_due(&self.lanes[*index])).collect();
        due.iter().for_each(|index| self.step(*index, now));
        !due.is_empty()
    }

    fn step(&mut self, index: usize, now: Micros) {
        let lane = &mut self.lanes[index];
        if lane.ids.is_empty() {
            let half = self.ctx_len as u64 / 2;
            lane.n_prompt = 1 + self.dice.below(half) as usize;
            lane.end = lane.n_prompt + 1 + self.dice.below(half) as usize;
            let dice = &mut self.dice;
            let prompt = (0..lane.n_prompt).map(|_| dice.below(u64::from(VOCAB_LEN)) as u32);
            lane.ids.extend(prompt);
            self.drafter.begin(index, &lane.ids);
            lane.next_us = now + self.step_us;
            return;
        }
        if self.drafter.is_waiting() && lane.n_waits < WAITS_MAX {
            lane.n_waits += 1;
            lane.next_us = now + self.step_us / u64::from(WAITS_MAX);
            return;
        }
        (lane.n_waits, lane.next_us) = (0, now + self.step_us);
        let (mut drafts, n) = (Vec::new(), 1 + self.dice.below(DRAFTS_MAX as u64) as usize);
        let worth = |kind| if kind == DraftKind::Model { n } else { 0 };
        let kind = self.drafter.draft(index, &lane.ids, &worth, &mut drafts);
        assert!(drafts.iter().all(|id| *id < VOCAB_LEN), "{drafts:?}");
        for id in drafts {
            if kind == DraftKind::Model {
                assert_eq!(draft(&lane.ids), Some(id), "a draft of another text, or another node");
            }
            let chosen = choice(&lane.ids);
            if chosen != id {
                break;
            }
            lane.ids.push(chosen);
            self.n_right += usize::from(kind == DraftKind::Model);
        }
        lane.ids.push(choice(&lane.ids));
        if lane.ids.len() >= lane.end {
            self.end(index, now);
        }
    }

    /// The text of a lane ends: it is the one that the large model gives alone.
    fn end(&mut self, index: usize, now: Micros) {
        let lane = &mut self.lanes[index];
        lane.ids.truncate(lane.end);
        let mut alone = lane.ids[..lane.n_prompt].to_vec();
        while alone.len() < lane.end {
            alone.push(choice(&alone));
        }
        assert_eq!(lane.ids, alone, "another text than without drafts");
        self.drafter.end(index, &lane.ids);
        lane.ids.clear();
        lane.n_left -= 1;
        lane.next_us = now + self.dice.below(REST_US);
    }
}
