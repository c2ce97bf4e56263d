//! A better split for a ring that runs.

use std::ops::Range;

use super::desk::Seen;
use crate::control::Refusal;
use crate::ring::plan::{Board, Load, Need, Objective, Part, Task, Wish, solve};
use crate::ring::{Address, PORT_DEFAULT};
use crate::wire::frame::NodeLine;

/// Tokens after which times are believed.
const TOKENS_MIN: u64 = 16;
/// Memory and bytes a second of what nobody has measured: enough.
const ENOUGH: u64 = 1 << 50;

/// What plans are made of.
pub(super) struct Planner {
    /// The model.
    pub(super) load: Load,
    /// What boards said of themselves, if they did.
    pub(super) boards: Vec<Board>,
}

/// A split, and what comes of it.
#[derive(Debug)]
pub(super) struct Better {
    /// Layers of each node.
    pub(super) layers: Vec<Range<usize>>,
    /// How many times as good as the split there is.
    pub(super) gain: f64,
}

impl Planner {
    /// The best split of the ring that is seen, whose nodes and their order stay: by the times that were
    /// observed, else by what the boards said of themselves.
    pub(super) fn plan(&self, seen: &Seen, objective: Objective) -> Result<Better, Refusal> {
        let refused = |code, why: String| Refusal { code, why };
        if seen.lines.is_empty() {
            return Err(refused(1, "the ring has not been open yet".to_owned()));
        }
        if objective == Objective::Energy {
            let why = "boards do not say what watts they take: for energy, use leap plan";
            return Err(refused(2, why.to_owned()));
        }
        if objective == Objective::Memory && self.boards.is_empty() {
            let why = "only boards of --boards say what memory they have";
            return Err(refused(2, why.to_owned()));
        }
        let boards: Option<Vec<Board>> =
            seen.lines.iter().enumerate().map(|at| self.board(seen, at)).collect();
        let boards = boards.ok_or_else(|| {
            refused(1, "too few tokens have been written since the last split".to_owned())
        })?;
        let task = Task::new(&self.load, &boards);
        let best = solve(&task, objective, None).map_err(|e| refused(1, e.to_string()))?;
        let now = seen.lines.iter().enumerate();
        let now: Vec<Part> =
            now.map(|(board, line)| Part { board, layers: layers(line) }).collect();
        let value = |parts: &[Part]| task.figures(parts).value(objective);
        let gain = value(&now) / value(&best);
        Ok(Better { layers: best.into_iter().map(|part| part.layers).collect(), gain })
    }

    /// A node as a board that has to serve; `None` if nothing is known of its speed.
    fn board(&self, seen: &Seen, (index, line): (usize, &NodeLine)) -> Option<Board> {
        let said = self.boards.iter().find(|board| board.name == line.name.as_str());
        let mut board = match (said, self.bytes_per_s(seen, (index, line))) {
            (None, None) => return None,
            (Some(said), None) => said.clone(),
            (said, Some(read)) => {
                let unknown = Board {
                    name: line.name.as_str().to_owned(),
                    address: Address { host: String::new(), port: PORT_DEFAULT },
                    read,
                    int8: ENOUGH as f64,
                    memory: ENOUGH,
                    round_trip_s: f64::from(line.rtt_us) / 1e6,
                    wire: ENOUGH as f64,
                    watts: None,
                    wish: Wish::Always,
                };
                // Whatever bounds the board is in what was observed.
                said.map_or(unknown, |said| Board { read, int8: ENOUGH as f64, ..said.clone() })
            }
        };
        board.wish = Wish::Always;
        Some(board)
    }

    /// Bytes of weights that a node goes through in a second.
    fn bytes_per_s(&self, seen: &Seen, (index, line): (usize, &NodeLine)) -> Option<f64> {
        let times = &seen.times;
        // Who is not measured yet is to be compared with none that is.
        let is_known = times.batches >= TOKENS_MIN
            && (0..seen.lines.len())
                .all(|node| times.compute_us.get(node).is_some_and(|us| *us > 0));
        let us = times.compute_us.get(index).filter(|_| is_known)?;
        let read: u64 =
            self.load.layers.get(layers(line))?.iter().map(|need: &Need| need.read).sum();
        Some(read as f64 * times.batches as f64 / (*us as f64 / 1e6))
    }
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
            rtt_us: 0,
            datagram_bytes: 0,
            threads: 1,
            carrier: heapless::String::new(),
            status: crate::wire::frame::Status::Ready,
        }
    }

    fn seen(layers: [Range<u32>; 2], batches: u64, compute_us: [u64; 2]) -> Seen {
        let [desk, pi] = layers;
        let lines = vec![line("desk", desk), line("pi", pi)];
        let compute_us = compute_us.to_vec();
        Seen { lines, times: Times { batches, compute_us, ..Times::default() }, trouble: None }
    }

    fn planner() -> Planner {
        let need = Need { memory: 10, read: 1000, ops: 2000 };
        let load = Load { layers: vec![need; 12], ends: Need::default(), every: 0, row_bytes: 4 };
        Planner { load, boards: Vec::new() }
    }

    #[test]
    fn times_that_were_observed_decide() {
        // Six layers each, of which the second node's take twice as long.
        let seen = seen([0..6, 6..12], 100, [60_000, 120_000]);
        let better = planner().plan(&seen, Objective::Throughput).unwrap();
        assert_eq!(better.layers, [0..8, 8..12]);
        assert!((better.gain - 1.5).abs() < 1e-3, "{better:?}");
        let better = planner().plan(&seen, Objective::Latency).unwrap();
        assert_eq!(better.layers, [0..11, 11..12]);
    }

    #[test]
    fn what_is_not_known_is_not_planned_by() {
        let few = seen([0..6, 6..12], TOKENS_MIN - 1, [60_000, 120_000]);
        assert_eq!(planner().plan(&few, Objective::Latency).unwrap_err().code, 1);
        let all = seen([0..6, 6..12], 100, [60_000, 120_000]);
        for objective in [Objective::Energy, Objective::Memory] {
            assert_eq!(planner().plan(&all, objective).unwrap_err().code, 2);
        }
        let closed = Seen::default();
        assert!(planner().plan(&closed, Objective::Latency).unwrap_err().why.contains("open"));
    }
}
