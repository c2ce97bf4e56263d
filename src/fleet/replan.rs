//! Better splits for a running ring.

use std::ops::Range;
use std::time::Duration;

use super::experience::Experience;
use super::prepare::threads_told;
use super::seen::Seen;
use crate::control::Refusal;
use crate::ring::plan::{
    Board, Load, Need, Objective, Other, Part, Task, Wish, solve, with_others,
};
use crate::ring::{Address, PORT_DEFAULT};
use crate::wire::frame::NodeLine;

/// Fewest tokens whose times count.
const TOKENS_MIN: u64 = 16;
/// Largest mean number of rows of a batch that still counts as a single row.
const ROWS_MAX: f64 = 1.2;
/// Ratio of a node's observed speed to its own figures, or the inverse, beyond which these figures are outdated.
const DRIFT: f64 = 1.3;
/// Bytes of memory, or a second, that stand for an unknown figure: enough for any plan.
const ENOUGH: u64 = 1 << 50;

/// A split and its gain.
#[derive(Debug)]
pub(crate) struct Better {
    /// Boards that could serve.
    pub(super) boards: Vec<Board>,
    /// Boards that serve, with their layers.
    pub(super) parts: Vec<Part>,
    /// Ratio of the current split's value to this one's: 2 is twice as good. Infinite if the current one is impossible.
    pub(crate) gain: f64,
}

impl Better {
    /// Layers of each node, if they are those of the ring, in its order.
    pub(super) fn layers(&self, lines: &[NodeLine]) -> Option<Vec<Range<usize>>> {
        let names = self.parts.iter().map(|part| self.boards[part.board].name.as_str());
        let is_same = names.eq(lines.iter().map(|line| line.name.as_str()));
        is_same.then(|| self.parts.iter().map(|part| part.layers.clone()).collect())
    }
}

/// Plans with observed times, or else with boards' own figures.
pub(super) struct Planner {
    /// The model.
    pub(super) load: Load,
}

impl Planner {
    /// The best split of the ring `seen`, with the same nodes in the same order. `said` are the boards' own figures, if
    /// they gave any; `experience` has the observed speeds.
    pub(super) fn plan(
        &self,
        seen: &Seen,
        (said, experience): (&[Board], &Experience),
        objective: Objective,
    ) -> Result<Better, Refusal> {
        if seen.lines.is_empty() {
            return Err(Refusal { code: 1, why: "the ring has not been open yet".to_owned() });
        }
        let what = match objective {
            Objective::Energy => "power; use leap plan",
            Objective::Memory => "memory",
            Objective::Latency | Objective::Throughput => "",
        };
        if !what.is_empty() && said.is_empty() {
            let why = format!("only boards called with --boards report their {what}");
            return Err(Refusal { code: 2, why });
        }
        let boards: Option<Vec<Board>> =
            seen.lines.iter().enumerate().map(|at| self.board(seen, said, at)).collect();
        let boards = boards.ok_or_else(|| Refusal {
            code: 1,
            why: "too few tokens have been written since the last split".to_owned(),
        })?;
        self.best_known(seen, boards, experience, objective)
    }

    /// The best split of the ring's nodes and the other boards that are `there`, the master first.
    pub(super) fn plan_wider(
        &self,
        seen: &Seen,
        (there, experience): (&[Board], &Experience),
        objective: Objective,
    ) -> Result<Better, Refusal> {
        self.best_known(seen, self.among(seen, there, objective), experience, objective)
    }

    /// The best split if a board that gets more layers may become as slow as it was with more.
    fn best_known(
        &self,
        seen: &Seen,
        boards: Vec<Board>,
        experience: &Experience,
        objective: Objective,
    ) -> Result<Better, Refusal> {
        let with_more = boards.iter().map(|board| {
            let least = experience.least(&board.name, n_layers(seen, board).max(1));
            Board { read: board.read.min(least.unwrap_or(f64::INFINITY)), ..board.clone() }
        });
        let with_more: Vec<Board> = with_more.collect();
        let now = self.best(seen, boards.clone(), objective)?;
        let then = self.best(seen, with_more.clone(), objective)?;
        let [now, then] =
            [now, then].map(|better| self.judge(seen, better, (&boards, &with_more), objective));
        Ok(if now.gain > then.gain { now } else { then })
    }

    /// Predicts the gain of `better`: a board that gains layers gets its speed from `with_more`, the others from `now`.
    fn judge(
        &self,
        seen: &Seen,
        better: Better,
        (now, with_more): (&[Board], &[Board]),
        objective: Objective,
    ) -> Better {
        let Some(before) = parts_now(seen, now) else { return better };
        let mut boards = now.to_vec();
        for Part { board, layers } in &better.parts {
            if layers.len() > n_layers(seen, &now[*board]) {
                boards[*board] = with_more[*board].clone();
            }
        }
        let value = |boards: &[Board], parts: &[Part]| {
            Task::new(&self.load, boards).figures(parts).value(objective)
        };
        let gain = value(now, &before) / value(&boards, &better.parts);
        Better { boards, gain, ..better }
    }

    /// Nodes whose speed differs from their own figures, with the ratio of the two.
    pub(super) fn drifted(&self, seen: &Seen, said: &[Board]) -> Vec<(String, f64)> {
        // The boards' own measurements are for passes of one row.
        if seen.times.tokens as f64 > ROWS_MAX * seen.times.batches as f64 {
            return Vec::new();
        }
        let drift = |(index, line): (usize, &NodeLine)| {
            let said = said.iter().find(|board| line.name == board.name.as_str())?;
            let with = threads_told(said, line);
            let other = said.others.iter().find(|other| Some(other.threads) == with);
            let ratio =
                self.bytes_per_s(seen, (index, line))? / other.map_or(said.read, |o| o.read);
            let is_drift = ratio.max(1.0 / ratio) >= DRIFT;
            is_drift.then(|| (said.name.clone(), ratio))
        };
        seen.lines.iter().enumerate().filter_map(drift).collect()
    }

    /// Notes the current speeds of the nodes.
    pub(super) fn note(&self, seen: &Seen, at: Duration, experience: &mut Experience) {
        for (index, line) in seen.lines.iter().enumerate() {
            if let Some(bytes_per_s) = self.bytes_per_s(seen, (index, line)) {
                experience.note(at, &line.name, layers(line).len(), bytes_per_s);
            }
        }
    }

    /// The best split among the boards that are there, the master first.
    pub(super) fn plan_among(
        &self,
        seen: &Seen,
        there: &[Board],
        objective: Objective,
    ) -> Result<Better, Refusal> {
        self.best(seen, self.among(seen, there, objective), objective)
    }

    /// The boards that are there, the master first, with observed speeds or else their own figures.
    fn among(&self, seen: &Seen, there: &[Board], objective: Objective) -> Vec<Board> {
        let slower = self.slower(seen, there);
        let board = |said: &Board| {
            let index = seen.lines.iter().position(|line| line.name == said.name.as_str());
            let known = index.and_then(|index| {
                let line = &seen.lines[index];
                self.bytes_per_s(seen, (index, line))?;
                self.board(seen, there, (index, line))
            });
            let Board { read, int8, .. } = *said;
            let as_slow = |other: &Other| Other { read: other.read / slower, ..other.clone() };
            let known = known.unwrap_or_else(|| Board {
                read: read / slower,
                int8: int8 / slower,
                others: said.others.iter().filter(|_| index.is_none()).map(as_slow).collect(),
                ..said.clone()
            });
            Board { wish: Wish::Any, ..known }
        };
        let mut boards: Vec<Board> = there.iter().map(board).collect();
        boards.iter_mut().take(1).for_each(|master| master.wish = Wish::Always);
        with_others(&boards, objective == Objective::Energy)
    }

    fn best(
        &self,
        seen: &Seen,
        boards: Vec<Board>,
        objective: Objective,
    ) -> Result<Better, Refusal> {
        let task = Task::new(&self.load, &boards);
        let best =
            solve(&task, objective, None).map_err(|e| Refusal { code: 1, why: e.to_string() })?;
        let value = |parts: &[Part]| task.figures(parts).value(objective);
        let now = parts_now(seen, &boards);
        let gain = now.map_or(f64::INFINITY, |now| value(&now) / value(&best));
        Ok(Better { parts: best, gain, boards })
    }

    /// Mean ratio of the nodes' time for a layer to the time by their own figures. Nodes that are much slower or faster
    /// than their figures are left out: they have reasons of their own.
    fn slower(&self, seen: &Seen, said: &[Board]) -> f64 {
        let rows = seen.times.tokens as f64 / seen.times.batches.max(1) as f64;
        let need = self.load.layers.first().copied().unwrap_or_default();
        let of_rows = Need { ops: (need.ops as f64 * rows.max(1.0)) as u64, ..need };
        let slower = |(index, line): (usize, &NodeLine)| {
            let said = said.iter().find(|board| line.name == board.name.as_str())?;
            let took = need.read as f64 / self.bytes_per_s(seen, (index, line))?;
            let slower = took / said.seconds(&of_rows);
            (slower.max(1.0 / slower) < DRIFT).then_some(slower)
        };
        let all: Vec<f64> = seen.lines.iter().enumerate().filter_map(slower).collect();
        if all.is_empty() { 1.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
    }

    /// A node as a board that must serve; `None` if its speed is unknown.
    fn board(
        &self,
        seen: &Seen,
        said: &[Board],
        (index, line): (usize, &NodeLine),
    ) -> Option<Board> {
        let said = said.iter().find(|board| board.name == line.name.as_str());
        let mut board = match (said, self.bytes_per_s(seen, (index, line))) {
            (None, None) => return None,
            (Some(said), None) => said.clone(),
            (said, Some(read)) => {
                let unknown = Board {
                    name: line.name.as_str().to_owned(),
                    address: Address { host: String::new(), port: PORT_DEFAULT },
                    threads: None,
                    read,
                    int8: ENOUGH as f64,
                    memory: ENOUGH,
                    round_trip_s: f64::from(line.way.rtt_us) / 1e6,
                    wire: ENOUGH as f64,
                    kernel: None,
                    gpu: None,
                    layer_s: 0.0,
                    watts: None,
                    wish: Wish::Always,
                    others: Vec::new(),
                };
                // The observed speed includes every bound of the board.
                said.map_or(unknown, |said| Board { read, int8: ENOUGH as f64, ..said.clone() })
            }
        };
        // A running node keeps its number of threads.
        board.threads = threads_told(&board, line);
        if let Some(as_told) =
            board.others.iter().find(|other| Some(other.threads) == board.threads)
        {
            board.watts = as_told.watts;
        }
        board.others.clear();
        board.wish = Wish::Always;
        Some(board)
    }

    /// Bytes of weights that a node reads in a second.
    fn bytes_per_s(&self, seen: &Seen, (index, line): (usize, &NodeLine)) -> Option<f64> {
        let times = &seen.times;
        // Measured and unmeasured nodes are not mixed: observed speeds count only if every node has one.
        let is_known = times.batches >= TOKENS_MIN
            && (0..seen.lines.len())
                .all(|node| times.compute_us.get(node).is_some_and(|us| *us > 0));
        let us = times.compute_us.get(index).filter(|_| is_known)?;
        let read: u64 =
            self.load.layers.get(layers(line))?.iter().map(|need: &Need| need.read).sum();
        Some(read as f64 * times.batches as f64 / (*us as f64 / 1e6))
    }
}

/// The current split among `boards`; `None` if there is none, or a board that is not among them has layers.
fn parts_now(seen: &Seen, boards: &[Board]) -> Option<Vec<Part>> {
    let part = |line: &NodeLine| {
        let board = boards.iter().position(|board| line.name == board.name.as_str())?;
        Some(Part { board, layers: layers(line) })
    };
    let parts: Option<Vec<Part>> = seen.lines.iter().map(part).collect();
    parts.filter(|parts| !parts.is_empty())
}

/// Number of layers of a board.
fn n_layers(seen: &Seen, board: &Board) -> usize {
    let line = seen.lines.iter().find(|line| line.name == board.name.as_str());
    line.map_or(0, |line| layers(line).len())
}

fn layers(line: &NodeLine) -> Range<usize> {
    line.layers.start as usize..line.layers.end as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Times;

    fn line(name: &str, layers: Range<u32>) -> NodeLine {
        NodeLine {
            name: name.try_into().unwrap(),
            isa: heapless::String::new(),
            held: layers.clone(),
            layers,
            bytes_per_token: 0,
            nodes: 1,
            threads: 1,
            streams: crate::wire::frame::Streams::Empty,
            ..NodeLine::default()
        }
    }

    fn seen(layers: [Range<u32>; 2], batches: u64, compute_us: [u64; 2]) -> Seen {
        let [desk, pi] = layers;
        let lines = vec![line("desk", desk), line("pi", pi)];
        let compute_us = compute_us.to_vec();
        let times = Times { batches, compute_us, ..Times::default() };
        Seen { lines, times, ..Seen::default() }
    }

    fn planner() -> Planner {
        let need = Need { memory: 10, read: 1000, ops: 2000 };
        let load = Load {
            layers: vec![need; 12],
            ends: Need::default(),
            every: 0,
            row_bytes: 4,
            joined_from: 12,
        };
        Planner { load }
    }

    fn plan(seen: &Seen, objective: Objective) -> Result<Better, Refusal> {
        planner().plan(seen, (&[], &Experience::default()), objective)
    }

    #[test]
    fn times_that_were_observed_decide() {
        // Both nodes have six layers; the second node takes twice as long.
        let seen = seen([0..6, 6..12], 100, [60_000, 120_000]);
        let better = plan(&seen, Objective::Throughput).unwrap();
        assert_eq!(better.layers(&seen.lines).unwrap(), [0..8, 8..12]);
        assert!((better.gain - 1.5).abs() < 1e-3, "{better:?}");
        let better = plan(&seen, Objective::Latency).unwrap();
        assert_eq!(better.layers(&seen.lines).unwrap(), [0..11, 11..12]);
    }

    #[test]
    fn a_board_slow_with_many_layers_does_not_get_them_back_at_once() {
        let mut experience = Experience::default();
        let at = Duration::from_secs;
        // The second node is throttled, yet fast with two layers.
        let slow = seen([0..6, 6..12], 100, [60_000, 240_000]);
        planner().note(&slow, at(10), &mut experience);
        let few = seen([0..10, 10..12], 100, [100_000, 20_000]);
        planner().note(&few, at(20), &mut experience);
        assert!((plan(&few, Objective::Throughput).unwrap().gain - 1.66).abs() < 0.02);
        let known = (&[][..], &experience);
        let better = planner().plan(&few, known, Objective::Throughput).unwrap();
        assert_eq!(better.gain, 1.0, "{better:?}");
        experience.forget_before(at(11));
        let known = (&[][..], &experience);
        assert!(planner().plan(&few, known, Objective::Throughput).unwrap().gain > 1.6);
    }

    /// A board that says that it reads this many bytes a second.
    fn said(name: &str, read: f64) -> Board {
        let seen = seen([0..6, 6..12], 100, [60_000, 120_000]);
        let known = planner().board(&seen, &[], (0, &line("desk", 0..6))).unwrap();
        Board { name: name.to_owned(), read, wish: Wish::Any, ..known }
    }

    #[test]
    fn a_throttled_master_gives_layers_to_a_rested_board() {
        let there = [said("desk", 12e6), said("pi", 6e6)];
        let alone = |pass_us: u64| Seen {
            lines: vec![line("desk", 0..12)],
            times: Times {
                batches: 100,
                tokens: 100,
                compute_us: vec![100 * pass_us],
                ..Times::default()
            },
            ..Seen::default()
        };
        let wider = |seen: &Seen, experience: &Experience| {
            planner().plan_wider(seen, (&there, experience), Objective::Latency).unwrap()
        };
        // The master is as fast as its figures: no other board would help.
        let quick = alone(1_000);
        assert_eq!(wider(&quick, &Experience::default()).gain, 1.0);
        // The master runs at a quarter, which says nothing of the other board.
        let slow = alone(4_000);
        let mut experience = Experience::default();
        planner().note(&slow, Duration::from_secs(1), &mut experience);
        let better = wider(&slow, &experience);
        assert_eq!(better.parts.len(), 2, "{better:?}");
        assert_eq!(better.parts[1].layers, 1..12);
        assert!(better.gain > 1.8, "{better:?}");
        // If the other board has been as slow, the split stays.
        experience.note(Duration::from_secs(2), "pi", 11, 3e6);
        assert_eq!(wider(&slow, &experience).gain, 1.0);
    }

    #[test]
    fn a_board_that_differs_from_its_figures_is_named() {
        let mut seen = seen([0..6, 6..12], 100, [60_000, 120_000]);
        seen.times.tokens = 100;
        let lines = seen.lines.iter().enumerate();
        let mut said: Vec<Board> =
            lines.map(|at| planner().board(&seen, &[], at).unwrap()).collect();
        said[1].read *= 1.2;
        assert_eq!(planner().drifted(&seen, &said), []);
        said[1].read *= 1.2;
        let drifted = planner().drifted(&seen, &said);
        assert!(matches!(&drifted[..], [(name, ratio)] if name == "pi" && *ratio < 0.7));
        // With its assigned number of threads, the board matches its figures.
        let other = Other { threads: 1, read: said[1].read / 1.44, watts: None };
        said[1].others.push(other);
        assert_eq!(planner().drifted(&seen, &said), []);
        said[1].others.clear();
        seen.times.tokens = 300;
        assert_eq!(planner().drifted(&seen, &said), []);
    }

    #[test]
    fn what_is_not_known_is_not_planned_by() {
        let few = seen([0..6, 6..12], TOKENS_MIN - 1, [60_000, 120_000]);
        assert_eq!(plan(&few, Objective::Latency).unwrap_err().code, 1);
        let all = seen([0..6, 6..12], 100, [60_000, 120_000]);
        for objective in [Objective::Energy, Objective::Memory] {
            assert_eq!(plan(&all, objective).unwrap_err().code, 2);
        }
        let closed = Seen::default();
        assert!(plan(&closed, Objective::Latency).unwrap_err().why.contains("open"));
    }
}
