//! Decides when to act on boards that are away or back, or have become slower. A state machine without a
//! clock.

use std::time::Duration;

/// How often boards are looked after, at least and at most.
const LOOKED_EVERY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// Smallest gain that justifies another board or another split, as a ratio. Observations vary.
pub(super) const WORTH_IT: f64 = 1.1;
/// How often in a row another split has to be better.
pub(super) const OFTEN: u32 = 2;
/// Tokens of a comparison.
pub(super) const TOKENS_MIN: u64 = 64;
/// Longest time between two moves for speed.
const REST_MAX: Duration = Duration::from_secs(3600);
/// A speed observed with more layers stays valid for this many rest periods.
const KNOWN_FOR: u32 = 20;

/// An action on the boards.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing.
    Nothing,
    /// This node is away.
    Without(String),
    /// This board is there, and is no node.
    With(String),
}

/// Memory of a watch. Times are those since it began.
pub(super) struct Watch {
    /// How long a board has to be as it is, or a split the better one.
    after: Duration,
    /// Boards, whether they are there, and since when.
    boards: Vec<(String, bool, Duration)>,
    /// Boards that a plan has considered.
    considered: Vec<String>,
    n_better: u32,
    /// Layers do not move for speed before.
    rests_until: Duration,
    /// How long they rest after the next move.
    rest: Duration,
}

impl Watch {
    /// The watch over a ring or a team that was planned with these boards.
    pub(super) fn new(after: Duration, considered: Vec<String>) -> Watch {
        Watch {
            after,
            boards: Vec::new(),
            considered,
            n_better: 0,
            rests_until: after,
            rest: after,
        }
    }

    /// How often boards are looked after.
    pub(super) fn period(&self) -> Duration {
        (self.after / 4).clamp(LOOKED_EVERY.0, LOOKED_EVERY.1)
    }

    /// How long a board has to be as it is before something is done about that.
    pub(super) fn after(&self) -> Duration {
        self.after
    }

    /// Since when counts at `now` what a node showed.
    pub(super) fn known_since(&self, now: Duration) -> Duration {
        now.saturating_sub(KNOWN_FOR * self.rest)
    }

    /// Which boards are there, and which are nodes of the ring.
    pub(super) fn see(&mut self, now: Duration, boards: &[(&str, bool)], nodes: &[String]) -> Act {
        for (name, is_there) in boards {
            match self.boards.iter_mut().find(|(known, ..)| known == name) {
                Some((_, was_there, _)) if was_there == is_there => {}
                Some((_, was_there, since)) => (*was_there, *since) = (*is_there, now),
                None => self.boards.push(((*name).to_owned(), *is_there, now)),
            }
        }
        let is_long = |since: &Duration| now >= *since + self.after;
        let away = |name: &String| {
            let board = self.boards.iter().find(|(known, ..)| known == name);
            board.is_some_and(|(_, is_there, since)| !is_there && is_long(since))
        };
        self.considered.retain(|name| nodes.contains(name) || !away(name));
        if let Some(name) = nodes.iter().find(|name| away(name)) {
            return Act::Without(name.clone());
        }
        let come = self.boards.iter().find(|(name, is_there, since)| {
            let is_known = nodes.contains(name) || self.considered.contains(name);
            *is_there && is_long(since) && !is_known
        });
        match come {
            Some((name, ..)) => {
                self.considered.push(name.clone());
                Act::With(name.clone())
            }
            None => Act::Nothing,
        }
    }

    /// A plan is yet to consider this board.
    pub(super) fn forget(&mut self, name: &str) {
        self.considered.retain(|known| known != name);
    }

    /// Another split is so many times as good: whether it is to be taken.
    pub(super) fn compare(&mut self, now: Duration, gain: f64) -> bool {
        if now < self.rests_until {
            return false;
        }
        self.n_better = if gain >= WORTH_IT { self.n_better + 1 } else { 0 };
        // While the speed that drove the layers away still counts, a quiet time says nothing.
        if self.n_better == 0 && now >= self.rests_until + (KNOWN_FOR + 4) * self.rest {
            self.rest = self.after;
        }
        self.n_better >= OFTEN
    }

    /// Notes that layers have moved for speed: they do so again only after some rest, and a longer one each
    /// time.
    pub(super) fn moved(&mut self, now: Duration) {
        self.n_better = 0;
        self.rest = (2 * self.rest).min(REST_MAX);
        self.rests_until = now + self.rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn nodes(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_board_away_for_long_is_left_out_and_taken_in_again() {
        let ring = nodes(&["desk", "pi", "orange"]);
        let mut watch = Watch::new(s(60), ring.clone());
        let there = [("desk", true), ("pi", true), ("orange", true)];
        let away = [("desk", true), ("pi", false), ("orange", true)];
        assert_eq!(watch.see(s(0), &there, &ring), Act::Nothing);
        assert_eq!(watch.see(s(10), &away, &ring), Act::Nothing);
        // Back for a moment.
        assert_eq!(watch.see(s(60), &there, &ring), Act::Nothing);
        assert_eq!(watch.see(s(70), &away, &ring), Act::Nothing);
        assert_eq!(watch.see(s(129), &away, &ring), Act::Nothing);
        let without = Act::Without("pi".to_owned());
        assert_eq!(watch.see(s(130), &away, &ring), without);
        // It could not be done.
        assert_eq!(watch.see(s(140), &away, &ring), without);
        let rest = nodes(&["desk", "orange"]);
        assert_eq!(watch.see(s(150), &away, &rest), Act::Nothing);
        assert_eq!(watch.see(s(160), &there, &rest), Act::Nothing);
        assert_eq!(watch.see(s(219), &there, &rest), Act::Nothing);
        assert_eq!(watch.see(s(220), &there, &rest), Act::With("pi".to_owned()));
        // The plan has no use for it.
        assert_eq!(watch.see(s(230), &there, &rest), Act::Nothing);
        assert_eq!(watch.see(s(240), &away, &rest), Act::Nothing);
        assert_eq!(watch.see(s(300), &away, &rest), Act::Nothing);
        assert_eq!(watch.see(s(310), &there, &rest), Act::Nothing);
        assert_eq!(watch.see(s(370), &there, &rest), Act::With("pi".to_owned()));
    }

    #[test]
    fn layers_move_for_speed_more_and_more_seldom() {
        let mut watch = Watch::new(s(60), Vec::new());
        // Two looks a minute apart; every other split turns out to be the better one.
        let moves: Vec<u64> = (0..600)
            .map(|minute| minute * 60)
            .filter(|&now| {
                let is_due = watch.compare(s(now), 1.5);
                if is_due {
                    watch.moved(s(now));
                }
                is_due
            })
            .collect();
        let gaps: Vec<u64> = moves.windows(2).map(|pair| (pair[1] - pair[0]) / 60).collect();
        assert_eq!(moves[0], 120);
        assert_eq!(gaps[..6], [3, 5, 9, 17, 33, 61]);
        assert!(gaps[6..].iter().all(|gap| *gap == 61), "{gaps:?}");
        // After a long time in which nothing was better it is as at first.
        let calm =
            (0..1600).map(|minute| 36000 + minute * 60).filter(|&now| watch.compare(s(now), 1.05));
        assert_eq!(calm.count(), 0);
        assert_eq!(watch.rest, s(60));
        assert!(!watch.compare(s(150_000), 1.2) && watch.compare(s(150_060), 1.2));
    }
}
