//! Which boards of a fleet take which layers of a model.
//!
//! Time is that of a decoding pass of one row over a short text: a board reads its weights, or computes with
//! them if that takes longer, and sends a row on. A board's GPU has the last of its layers, as many as fit, and on the
//! master the classifier; processors and GPU compute in turn. Boards stand in the ring in the order of the fleet, the
//! master first; unused boards are switched off. [`solve`] finds the best split there is by dynamic
//! programming.

mod energy;
pub(crate) mod fleet;
mod solve;
pub(crate) mod team;
#[cfg(test)]
mod tests;
mod walk;

use std::fmt;
use std::ops::Range;

pub(crate) use fleet::{Board, Links, Other, Watts, Wish, with_others};
pub(crate) use solve::solve;

/// Demand of some layers on a board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Bytes that a pass reads.
    pub(crate) read: u64,
    /// Operations of a row; a multiplication and its addition are two.
    pub(crate) ops: u64,
}

/// A model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Each layer.
    pub(crate) layers: Vec<Need>,
    /// Embedding, final norm and classifier, which the master has.
    pub(crate) ends: Need,
    /// Bytes of memory that every board needs besides.
    pub(crate) every: u64,
    /// Bytes of a row between two boards.
    pub(crate) row_bytes: u64,
    /// The first of the layers that one board must have together, up to the last.
    pub(crate) joined_from: usize,
}

/// Goal of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Time of a token of one stream.
    Latency,
    /// Tokens a second of many streams, which the slowest board bounds.
    Throughput,
    /// Joules of a token of one stream.
    Energy,
    /// The fullest board's share of its memory.
    Memory,
}

/// Layers of a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which board of the fleet.
    pub(crate) board: usize,
    /// Layers of the board.
    pub(crate) layers: Range<usize>,
}

/// Predicted figures of a split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    /// Seconds of a token of one stream.
    pub(crate) token_s: f64,
    /// Seconds of a token of the board that takes longest, and which of the parts it is.
    pub(crate) slowest_s: (f64, usize),
    /// Joules of a token of one stream, if the watts of all boards are known.
    pub(crate) joules: Option<f64>,
    /// The fullest board's share of its memory.
    pub(crate) fullest: f64,
}

/// Why there is no split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSplit {
    /// The boards have too little memory: the model's need, and their sum. If the sum is enough, no split
    /// fits nevertheless.
    Memory { need: u64, have: u64 },
    /// More boards have to serve than can divide the layers.
    Boards { boards: usize, most: usize },
    /// The watts of this board are not known.
    Watts(String),
    /// No split is so quick: the best there is takes this many microseconds a token.
    Slow { best_us: u64 },
}

impl fmt::Display for NoSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoSplit::Memory { need, have } if need > have => write!(
                f,
                "the boards have too little memory: the model needs {:.2} GB, they have {:.2} GB",
                *need as f64 / 1e9,
                *have as f64 / 1e9
            ),
            NoSplit::Memory { .. } => write!(
                f,
                "no split fits: the boards have memory enough together, but not for whole layers each"
            ),
            NoSplit::Boards { boards, most } => {
                write!(
                    f,
                    "{boards} boards are always to serve, and at most {most} can divide the model"
                )
            }
            NoSplit::Watts(name) => write!(
                f,
                "energy needs the watts of {name}: watts=IDLE,BUSY in the file of boards, --watts of its \
                     worker"
            ),
            NoSplit::Slow { best_us } => {
                write!(f, "no split is so quick: at most {:.1} tokens/s", 1e6 / *best_us as f64)
            }
        }
    }
}

impl std::error::Error for NoSplit {}

/// A model on the boards of a fleet. A board with several numbers of threads is listed several times in a
/// row.
pub struct Task<'a> {
    load: &'a Load,
    boards: &'a [Board],
    /// The board of each entry.
    which: Vec<usize>,
    /// Memory of the first layers, so many of them.
    memory: Vec<u64>,
    /// Bytes that a pass over the first layers reads.
    read: Vec<u64>,
    /// Seconds of the first layers on each board's processors.
    seconds: Vec<Vec<f64>>,
}

impl<'a> Task<'a> {
    pub(crate) fn new(load: &'a Load, boards: &'a [Board]) -> Task<'a> {
        let sums = |of: &dyn Fn(&Need) -> f64| {
            let mut sum = 0.0;
            let rest = load.layers.iter().map(|layer| {
                sum += of(layer);
                sum
            });
            std::iter::once(0.0).chain(rest).collect::<Vec<f64>>()
        };
        let bytes = |of: &dyn Fn(&Need) -> u64| {
            let mut sum = 0;
            let rest = load.layers.iter().map(|layer| {
                sum += of(layer);
                sum
            });
            std::iter::once(0).chain(rest).collect::<Vec<u64>>()
        };
        let (memory, read) = (bytes(&|layer| layer.memory), bytes(&|layer| layer.read));
        let seconds = |board: &Board| sums(&|layer| board.seconds(layer) + board.layer_s);
        let seconds = boards.iter().map(seconds).collect();
        let groups = boards.chunk_by(|a, b| a.is_same(b)).enumerate();
        let which = groups.flat_map(|(index, same)| same.iter().map(move |_| index)).collect();
        Task { load, boards, which, memory, read, seconds }
    }

    /// Whether this entry is the master.
    pub(super) fn is_master(&self, board: usize) -> bool {
        self.which[board] == 0
    }

    /// The entries of each board.
    pub(super) fn entries(&self) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.which.chunk_by(|a, b| a == b).map(move |same| {
            let first = start;
            start += same.len();
            first..start
        })
    }

    pub(crate) fn load(&self) -> &'a Load {
        self.load
    }

    pub(crate) fn boards(&self) -> &'a [Board] {
        self.boards
    }

    pub(super) fn n_layers(&self) -> usize {
        self.load.layers.len()
    }

    /// Whether a board's layers may end before layer `at`, or at the last.
    pub(super) fn is_end(&self, at: usize) -> bool {
        at <= self.load.joined_from || at == self.n_layers()
    }

    /// First of these layers of a board that its GPU has, and whether it has the classifier too; the layers' end if it
    /// has none.
    pub(crate) fn on_gpu(&self, board: usize, layers: &Range<usize>) -> (usize, bool) {
        let none = (layers.end, false);
        let Some(gpu) = self.boards[board].gpu else { return none };
        let Some(mut left) = gpu.memory.checked_sub(self.load.every) else { return none };
        let without_ends =
            left.checked_sub(self.load.ends.memory).filter(|_| self.is_master(board));
        left = without_ends.unwrap_or(left);
        let fits = |start: &usize| self.memory[layers.end] - self.memory[*start] <= left;
        match layers.clone().find(fits) {
            Some(start) => (start, without_ends.is_some()),
            None => none,
        }
    }

    /// Seconds that a board computes with these layers.
    pub(crate) fn seconds(&self, board: usize, layers: &Range<usize>) -> f64 {
        let (start, has_ends) = self.on_gpu(board, layers);
        let by_gpu = self.read[layers.end] - self.read[start];
        let by_gpu = by_gpu + if has_ends { self.load.ends.read } else { 0 };
        let by_gpu = self.boards[board].gpu.map_or(0.0, |gpu| by_gpu as f64 / gpu.read);
        let ends = match self.is_master(board) && !has_ends {
            true => self.boards[board].seconds(&self.load.ends),
            false => 0.0,
        };
        ends + by_gpu + self.seconds[board][start] - self.seconds[board][layers.start]
    }

    /// Bytes of memory that it needs for them beside its GPU. The embedding stays there.
    pub(crate) fn memory(&self, board: usize, layers: &Range<usize>) -> u64 {
        let ends = if self.is_master(board) { self.load.ends.memory } else { 0 };
        let (start, _) = self.on_gpu(board, layers);
        self.load.every + ends + self.memory[start] - self.memory[layers.start]
    }

    /// Used share of the board's memory, if that is enough.
    pub(super) fn fullness(&self, board: usize, layers: &Range<usize>) -> Option<f64> {
        let (need, have) = (self.memory(board, layers), self.boards[board].memory);
        (need <= have).then(|| need as f64 / have.max(1) as f64)
    }

    /// Seconds that sending a row keeps a board, and that it is under way.
    pub(super) fn hop(&self, board: usize) -> (f64, f64) {
        let Board { round_trip_s, wire, .. } = self.boards[board];
        let sending = self.load.row_bytes as f64 / wire;
        (sending, sending + round_trip_s / 2.0)
    }

    /// Predicts the figures of a split.
    pub(crate) fn figures(&self, parts: &[Part]) -> Figures {
        let is_ring = parts.len() > 1;
        let (mut token_s, mut slowest_s, mut fullest) = (0.0, (0.0, 0), 0.0f64);
        let mut busy_s = Vec::with_capacity(parts.len());
        for (index, Part { board, layers }) in parts.iter().enumerate() {
            let own = self.seconds(*board, layers);
            let (sending, way) = if is_ring { self.hop(*board) } else { (0.0, 0.0) };
            token_s += own + way;
            if own + sending > slowest_s.0 {
                slowest_s = (own + sending, index);
            }
            let need = self.memory(*board, layers) as f64;
            fullest = fullest.max(need / self.boards[*board].memory.max(1) as f64);
            busy_s.push((*board, own));
        }
        let joules = busy_s.into_iter().map(|(board, own)| {
            let Watts { idle, busy } = self.boards[board].watts?;
            Some(idle * token_s + (busy - idle) * own)
        });
        Figures { token_s, slowest_s, joules: joules.sum(), fullest }
    }
}

impl Figures {
    /// The figure that an objective minimizes.
    pub(crate) fn value(&self, objective: Objective) -> f64 {
        match objective {
            Objective::Latency => self.token_s,
            Objective::Throughput => self.slowest_s.0,
            Objective::Energy => self.joules.unwrap_or(f64::INFINITY),
            Objective::Memory => self.fullest,
        }
    }

    /// Seconds of a token that are to be short enough for a number of tokens a second.
    pub(super) fn limited_s(&self, objective: Objective) -> f64 {
        match objective {
            Objective::Throughput => self.slowest_s.0,
            _ => self.token_s,
        }
    }
}
