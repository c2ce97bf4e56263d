//! The layers of a ring, as parts that the keeper moves.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::events::Shape;
use super::experience::Experience;
use super::keeper::{self, Better, Looked, Parts, Times};
use super::moves::Moves;
use super::replan;
use super::seen::Seen;
use super::watch::{OFTEN, TOKENS_MIN, WORTH_IT};
use crate::ring::Times as RingTimes;
use crate::ring::plan::{Board, Objective};

/// Moves the layers of a ring when a board has been away, back or slower for the time `after`. Runs as long as the
/// process.
///
/// # Errors
/// If the system refuses a thread.
pub(crate) fn keep(moves: Arc<Moves>, objective: Objective, after: Duration) -> io::Result<()> {
    let boards = moves.said().into_iter().map(|board| board.name);
    let considered = boards.chain(moves.nodes()).collect();
    let events = Arc::clone(&moves.events);
    let parts = RingParts {
        moves,
        objective,
        before: RingTimes::default(),
        experience: Experience::default(),
        drifted: Vec::new(),
    };
    keeper::start(parts, considered, after, events)
}

/// The layers of a ring.
struct RingParts {
    moves: Arc<Moves>,
    objective: Objective,
    /// Times at the start of the comparison.
    before: RingTimes,
    experience: Experience,
    /// Nodes whose speed differed from their own figures, and how many times in a row.
    drifted: Vec<(String, u32)>,
}

impl Parts for RingParts {
    type Plan = (Seen, replan::Better);

    const SHAPE: Shape = Shape::Ring;

    fn look(&mut self) -> Option<Looked> {
        self.moves.look()
    }

    fn nodes(&self) -> Vec<String> {
        self.moves.nodes()
    }

    fn is_known(&self) -> bool {
        !self.moves.mailbox.seen().lines.is_empty()
    }

    fn plan(&mut self, there: &[Board]) -> Better<Self::Plan> {
        let seen = self.moves.mailbox.seen();
        match self.moves.planner.plan_among(&seen, there, self.objective) {
            Ok(better) => Better { gain: better.gain, plan: Ok((seen, better)) },
            Err(refusal) => Better { gain: f64::INFINITY, plan: Err(refusal.why) },
        }
    }

    fn plan_again(&mut self, there: &[Board]) -> Better<Self::Plan> {
        let seen = self.moves.mailbox.seen();
        let known = (there, &self.experience);
        match self.moves.planner.plan_wider(&seen, known, self.objective) {
            Ok(better) => Better { gain: better.gain, plan: Ok((seen, better)) },
            Err(refusal) => Better { gain: f64::INFINITY, plan: Err(refusal.why) },
        }
    }

    /// Compares with other layers for the nodes, and for all boards that are `there`.
    fn compare(
        &mut self,
        there: &[Board],
        Times { now, known_since }: Times,
    ) -> Option<Better<Self::Plan>> {
        // The engine is idle or the ring waits: there is nothing to compare.
        let seen = self.moves.mailbox.ask(&mut |_| Err(io::ErrorKind::TimedOut.into())).ok()?;
        let Some(times) = seen.times.since(&self.before) else {
            self.before = seen.times;
            return None;
        };
        if times.batches < TOKENS_MIN {
            return None;
        }
        self.before = seen.times.clone();
        let seen = Seen { times, ..seen };
        self.experience.forget_before(known_since);
        let planner = &self.moves.planner;
        planner.note(&seen, now, &mut self.experience);
        let said = self.moves.said();
        let mut better = planner.plan(&seen, (&said, &self.experience), self.objective).ok();
        // Boards join the ring only if they add enough to what moving layers gains.
        if let Some(among_nodes) = &mut better
            && there.len() > seen.lines.len()
            && let Ok(wider) = planner.plan_wider(&seen, (there, &self.experience), self.objective)
            && wider.gain >= WORTH_IT * among_nodes.gain
        {
            *among_nodes = wider;
        }
        self.look_for_drift(&seen, &said);
        better.map(|better| Better { gain: better.gain, plan: Ok((seen, better)) })
    }

    fn take(&mut self, (seen, better): Self::Plan) -> Result<(), String> {
        let taken = self.moves.take(&seen, &better, &mut |_| Ok(()));
        taken.map(|_| ()).map_err(|refusal| refusal.why)
    }

    fn idle(&self, name: &str) -> Option<String> {
        self.moves.fleet()?.idle(name)
    }

    fn set_aside(&self, name: &str) {
        self.moves.fleet().iter().for_each(|fleet| fleet.set_aside(name));
    }

    fn spare(&self, name: &str, why: &str) {
        self.moves.fleet().iter().for_each(|fleet| fleet.spare(name, why));
    }

    fn rest(&self, name: &str) {
        self.moves.rest(name);
    }

    fn compare_from_now(&mut self) {
        self.before = RingTimes::default();
    }
}

impl RingParts {
    /// Makes nodes measure themselves at their next start if their speed differed from their own figures several times
    /// in a row.
    fn look_for_drift(&mut self, seen: &Seen, said: &[Board]) {
        let drifted = self.moves.planner.drifted(seen, said);
        let known = |name: &String| drifted.iter().any(|(drifted, _)| drifted == name);
        self.drifted.retain(|(name, times)| *times >= OFTEN || known(name));
        for (name, ratio) in &drifted {
            let times = match self.drifted.iter_mut().find(|(known, _)| known == name) {
                Some((_, times)) => {
                    *times += 1;
                    *times
                }
                None => {
                    self.drifted.push((name.clone(), 1));
                    1
                }
            };
            // The node is told only once.
            if times == OFTEN {
                log::info!(
                    "{name} is {ratio:.2} times as quick as its own figures: it has to measure again"
                );
                self.moves.forget(name);
            }
        }
    }
}
