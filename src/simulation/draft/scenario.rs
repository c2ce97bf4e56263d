//! Faults of a draft node, drawn from a seed.

use super::boards::Boards;
use super::texts::Shape;
use crate::simulation::incidents::{self, FIRST_US, Group, Incident, Later, Odds, run_seeds};
use crate::transport::Micros;
use crate::transport::fault::{Dice, Faults};

/// Most time between two changes.
const GAP_US: Micros = 40_000_000;

/// A change that only a draft node has.
#[derive(Clone, Debug)]
pub(super) enum DraftChange {
    /// The connection ends, with both boards alive.
    HangUp,
    /// The node takes so long for a token from its next start on.
    Speed(Micros),
    /// From its next start on the node has another vocabulary, or again the right one.
    Vocabulary,
}

/// A master, its draft node, and what happens when.
#[derive(Clone, Debug)]
struct Scenario {
    shape: Shape,
    faults: Faults,
    incidents: Vec<Later<Incident<DraftChange>>>,
}

fn faults(dice: &mut Dice) -> Faults {
    Faults::draw(dice, 0.2, (20_000, 300_000))
}

fn token_us(dice: &mut Dice) -> Micros {
    // Now and then a node that is far too slow.
    let most = if dice.below(4) == 0 { 1_000_000 } else { 30_000 };
    1_000 + dice.below(most)
}

impl Scenario {
    fn from_seed(seed: u64) -> Scenario {
        let mut dice = Dice::new(seed);
        let n_lanes = 1 + dice.below(3) as usize;
        let shape = Shape {
            seed,
            n_lanes,
            n_texts: 4 + dice.below(6) as usize,
            ctx_len: 160,
            node_ctx_len: 40 + dice.below(160) as u32,
            n_streams: 1 + dice.below(n_lanes as u64 + 1) as usize,
            step_us: 20_000 + dice.below(400_000),
            token_us: token_us(&mut dice),
            is_other: false,
        };
        let odds = Odds {
            gap_us: GAP_US,
            down_us: 60_000_000,
            mortals: 1..2,
            n_nodes: 2,
            is_round: true,
            faults: self::faults,
        };
        let (faults, mut incidents) = (faults(&mut dice), odds.draw(&mut dice));
        let mut at = FIRST_US;
        for _ in 0..dice.below(5) {
            at += dice.below(GAP_US);
            let change = match dice.below(4) {
                0 | 1 => DraftChange::HangUp,
                2 => DraftChange::Speed(token_us(&mut dice)),
                _ => DraftChange::Vocabulary,
            };
            incidents.push((at, Incident::Change(change)));
        }
        Scenario { shape, faults, incidents }
    }

    /// Runs it; returns how many drafts of the node were right.
    ///
    /// # Panics
    /// If a text is not as without drafts, takes too long, or the node is not used as it should be.
    fn run(&self) -> usize {
        let mut boards = Boards::new(self.shape.clone(), self.faults.clone());
        let ended = incidents::run(&mut boards, &self.incidents, self.shape.patience_us());
        assert!(ended.is_some(), "texts hang, after {:?}: {self:?}", boards.told());
        boards.heal();
        boards.texts.n_right
    }
}

impl Group for Boards {
    type Change = DraftChange;
    type Answer = ();

    fn now(&self) -> Micros {
        self.now
    }

    fn set_faults(&mut self, faults: Faults) {
        self.cable.faults = faults;
    }

    fn kill(&mut self, _: usize) -> bool {
        Boards::kill(self)
    }

    fn start(&mut self, _: usize, _: u64) -> Option<Later<DraftChange>> {
        Boards::start(self);
        None
    }

    fn cut(&mut self, _: [usize; 2], is_cut: bool) {
        Boards::cut(self, is_cut);
    }

    fn change(&mut self, change: DraftChange, _: u64) {
        match change {
            DraftChange::HangUp => self.hang_up(),
            DraftChange::Speed(token_us) => self.shape.token_us = token_us,
            DraftChange::Vocabulary => self.shape.is_other = !self.shape.is_other,
        }
    }

    fn run_to(&mut self, until: Micros) -> Option<()> {
        self.run_until_done(until).then_some(())
    }
}

#[test]
fn texts_are_the_same_whatever_happens_to_the_draft_node() {
    let n_right = run_seeds("texts_are_the_same", 1000, |seed| Scenario::from_seed(seed).run());
    assert!(n_right.is_none_or(|n_right| n_right > 40_000), "few drafts are right: {n_right:?}");
}
