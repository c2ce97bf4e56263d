//! Decides when to act on boards that are away or back, or have become slower. It is a state machine without a clock.

use std::time::Duration;

/// Shortest and longest interval between checks of the boards.
const LOOKED_EVERY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// Smallest gain that justifies another board or another split, as a ratio. Observations vary.
pub(super) const WORTH_IT: f64 = 1.1;
/// Times in a row that another split must be better.
pub(super) const OFTEN: u32 = 2;
/// Fewest tokens of a comparison.
pub(super) const TOKENS_MIN: u64 = 64;
/// Longest rest between two moves for speed.
const REST_MAX: Duration = Duration::from_secs(3600);
/// A board that is there and has no part is considered again after this many rest periods.
const AGAIN_AFTER: u32 = 2;
/// A speed observed with more layers stays valid for this many rest periods.
const KNOWN_FOR: u32 = 20;

/// An action on the boards.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing.
    Nothing,
    /// This node is away: plan without it.
    Without(String),
    /// This board has come, and has no part: plan with it.
    With(String),
    /// This board is there, and got no part when it was considered before: plan with it again.
    WithAgain(String),
}

/// State of a watch. Times count from its beginning.
pub(super) struct Watch {
    /// Time for which a board's state, or a better split, must last.
    after: Duration,
    /// Boards: name, whether it is there, and since when.
    boards: Vec<(String, bool, Duration)>,
    /// Boards that a plan has considered, and when.
    considered: Vec<(String, Duration)>,
    n_better: u32,
    /// Time before which layers do not move for speed.
    rests_until: Duration,
    /// Length of the rest after the next move.
    rest: Duration,
}

impl Watch {
    /// The watch over a ring or a team whose plan considered these boards.
    pub(super) fn new(after: Duration, considered: Vec<String>) -> Watch {
        Watch {
            after,
            boards: Vec::new(),
            considered: considered.into_iter().map(|name| (name, Duration::ZERO)).collect(),
            n_better: 0,
            rests_until: after,
            rest: after,
        }
    }

    /// Interval between checks of the boards.
    pub(super) fn period(&self) -> Duration {
        (self.after / 4).clamp(LOOKED_EVERY.0, LOOKED_EVERY.1)
    }

    /// Time for which a board's state must last before an action.
    pub(super) fn after(&self) -> Duration {
        self.after
    }

    /// At `now`, observations from before this time are outdated.
    pub(super) fn known_since(&self, now: Duration) -> Duration {
        now.saturating_sub(KNOWN_FOR * self.rest)
    }

    /// Notes which boards are there and which are nodes of the ring, and returns the action that is due.
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
        self.considered.retain(|(name, _)| nodes.contains(name) || !away(name));
        if let Some(name) = nodes.iter().find(|name| away(name)) {
            return Act::Without(name.clone());
        }
        let is_long =
            |(_, is_there, since): &&(String, bool, Duration)| *is_there && is_long(since);
        let spare = self.boards.iter().filter(is_long).map(|(name, ..)| name);
        for name in spare.filter(|name| !nodes.contains(name)) {
            match self.considered.iter_mut().find(|(known, _)| known == name) {
                None => {
                    self.considered.push((name.clone(), now));
                    return Act::With(name.clone());
                }
                // Times and figures may have been others then.
                Some((_, at)) if now >= self.rests_until.max(*at + AGAIN_AFTER * self.rest) => {
                    *at = now;
                    return Act::WithAgain(name.clone());
                }
                Some(_) => {}
            }
        }
        Act::Nothing
    }

    /// Notes that no plan has considered this board.
    pub(super) fn forget(&mut self, name: &str) {
        self.considered.retain(|(known, _)| known != name);
    }

    /// Notes that another split is `gain` times as good; true if the watch accepts it.
    pub(super) fn compare(&mut self, now: Duration, gain: f64) -> bool {
        if now < self.rests_until {
            return false;
        }
        self.n_better = if gain >= WORTH_IT { self.n_better + 1 } else { 0 };
        // A quiet time proves nothing as long as the speed counts that drove the layers away.
        if self.n_better == 0 && now >= self.rests_until + (KNOWN_FOR + 4) * self.rest {
            self.rest = self.after;
        }
        self.n_better >= OFTEN
    }

    /// Notes that layers have moved for speed. The next move comes only after a rest, which is longer each time.
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
        // The board is back for a moment.
        assert_eq!(watch.see(s(60), &there, &ring), Act::Nothing);
        assert_eq!(watch.see(s(70), &away, &ring), Act::Nothing);
        assert_eq!(watch.see(s(129), &away, &ring), Act::Nothing);
        let without = Act::Without("pi".to_owned());
        assert_eq!(watch.see(s(130), &away, &ring), without);
        // The action failed.
        assert_eq!(watch.see(s(140), &away, &ring), without);
        let rest = nodes(&["desk", "orange"]);
        assert_eq!(watch.see(s(150), &away, &rest), Act::Nothing);
        assert_eq!(watch.see(s(160), &there, &rest), Act::Nothing);
        assert_eq!(watch.see(s(219), &there, &rest), Act::Nothing);
        assert_eq!(watch.see(s(220), &there, &rest), Act::With("pi".to_owned()));
        // The plan has no use for the board.
        assert_eq!(watch.see(s(230), &there, &rest), Act::Nothing);
        assert_eq!(watch.see(s(240), &away, &rest), Act::Nothing);
        assert_eq!(watch.see(s(300), &away, &rest), Act::Nothing);
        assert_eq!(watch.see(s(310), &there, &rest), Act::Nothing);
        assert_eq!(watch.see(s(370), &there, &rest), Act::With("pi".to_owned()));
    }

    #[test]
    fn a_board_back_while_the_others_take_its_layers_is_taken_in_again() {
        let ring = nodes(&["desk", "pi"]);
        let mut watch = Watch::new(s(8), ring.clone());
        let (there, away) = ([("desk", true), ("pi", true)], [("desk", true), ("pi", false)]);
        assert_eq!(watch.see(s(0), &away, &ring), Act::Nothing);
        assert_eq!(watch.see(s(8), &away, &ring), Act::Without("pi".to_owned()));
        // The change takes some time on a busy machine; the board is back before the next look.
        watch.forget("pi");
        let rest = nodes(&["desk"]);
        assert_eq!(watch.see(s(12), &there, &rest), Act::Nothing);
        assert_eq!(watch.see(s(20), &there, &rest), Act::With("pi".to_owned()));
    }

    #[test]
    fn a_board_that_was_of_no_use_is_considered_again() {
        let ring = nodes(&["desk"]);
        let mut watch = Watch::new(s(8), ring.clone());
        let there = [("desk", true), ("pi", true)];
        assert_eq!(watch.see(s(0), &there, &ring), Act::Nothing);
        assert_eq!(watch.see(s(8), &there, &ring), Act::With("pi".to_owned()));
        assert_eq!(watch.see(s(23), &there, &ring), Act::Nothing);
        assert_eq!(watch.see(s(24), &there, &ring), Act::WithAgain("pi".to_owned()));
        assert_eq!(watch.see(s(39), &there, &ring), Act::Nothing);
        // Boards that come and go for speed do so more and more seldom.
        watch.moved(s(40));
        assert_eq!(watch.see(s(55), &there, &ring), Act::Nothing);
        assert_eq!(watch.see(s(56), &there, &ring), Act::WithAgain("pi".to_owned()));
        assert_eq!(watch.see(s(87), &there, &ring), Act::Nothing);
        assert_eq!(watch.see(s(88), &there, &ring), Act::WithAgain("pi".to_owned()));
    }

    #[test]
    fn layers_move_for_speed_more_and_more_seldom() {
        let mut watch = Watch::new(s(60), Vec::new());
        // Two looks are a minute apart; every other split turns out to be better.
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
        // After a long time in which nothing was better, rests are short again.
        let calm =
            (0..1600).map(|minute| 36000 + minute * 60).filter(|&now| watch.compare(s(now), 1.05));
        assert_eq!(calm.count(), 0);
        assert_eq!(watch.rest, s(60));
        assert!(!watch.compare(s(150_000), 1.2) && watch.compare(s(150_060), 1.2));
    }
}
