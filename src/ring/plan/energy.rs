//! The split that takes the least energy.
//!
//! A token takes `T = Σ t + Σ hops` seconds, and `Σ (busy - idle) t + T Σ idle` joules over the boards that
//! serve. For a given set of boards that is a sum over its boards, and [`walk`] finds the least. Sets are tried
//! in the order of a bound: each board at the price of its cheapest layer, the cheapest boards first, as far
//! as memory allows. A set whose bound is above what was found needs no trial.

use std::ops::Range;

use super::walk::walk;
use super::{Part, Task, Watts, Wish};

/// Most boards of which all sets are tried: of more, only the first ones may serve.
const CHOSEN_MAX: usize = 16;

/// A board: its entries, and whether it is to serve.
type Choice = (Range<usize>, Wish);

/// The best split over several boards. All that may serve have watts.
pub(super) fn ring(task: &Task<'_>, boards: &[Choice], limit_s: Option<f64>) -> Option<Vec<Part>> {
    let free: Vec<usize> =
        (0..boards.len()).filter(|board| boards[*board].1 == Wish::Any).collect();
    let free = &free[..free.len().min(CHOSEN_MAX)];
    let cheapest = Cheapest::new(task);
    let mut sets: Vec<(f64, Vec<Choice>)> = (0..1u32 << free.len())
        .filter_map(|bits| {
            let is_in = |board: &usize| match free.iter().position(|free| free == board) {
                Some(index) => bits >> index & 1 == 1,
                None => boards[*board].1 == Wish::Always,
            };
            let set: Vec<Choice> = (0..boards.len())
                .filter(is_in)
                .map(|board| (boards[board].0.clone(), Wish::Always))
                .collect();
            Some((cheapest.bound(task, &set)?, set))
        })
        .collect();
    sets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut best: Option<(f64, Vec<Part>)> = None;
    for (bound, set) in sets {
        if best.as_ref().is_some_and(|(joules, _)| bound >= *joules) {
            break;
        }
        let Some(parts) = of_set(task, &set, limit_s) else { continue };
        let joules = task.figures(&parts).joules.unwrap_or(f64::INFINITY);
        if best.as_ref().is_none_or(|(least, _)| joules < *least) {
            best = Some((joules, parts));
        }
    }
    best.map(|(_, parts)| parts)
}

fn watts(task: &Task<'_>, board: usize) -> Watts {
    task.boards[board].watts.unwrap_or(Watts { idle: 0.0, busy: 0.0 })
}

/// Joules of a second in which `board` computes and all others of `set` idle.
fn price(task: &Task<'_>, board: usize, idle: f64) -> f64 {
    let own = watts(task, board);
    own.busy - own.idle + idle
}

fn idle_of(task: &Task<'_>, set: &[Choice]) -> f64 {
    set.iter().map(|(entries, _)| watts(task, entries.start).idle).sum()
}

/// The best split in which exactly the boards of `set` serve.
fn of_set(task: &Task<'_>, set: &[Choice], limit_s: Option<f64>) -> Option<Vec<Part>> {
    let idle = idle_of(task, set);
    let cost = |board: usize, layers: &Range<usize>| {
        task.fullness(board, layers)?;
        let (own, way) = (task.seconds(board, layers), task.hop(board).1);
        Some((own * price(task, board, idle) + way * idle, own + way))
    };
    walk(task, set, &cost, |a, b| a + b, limit_s)
}

/// The least that a layer takes.
struct Cheapest {
    /// Seconds on each board.
    seconds: Vec<f64>,
    /// Bytes of memory.
    memory: u64,
}

impl Cheapest {
    fn new(task: &Task<'_>) -> Cheapest {
        let of = |board: usize| {
            let layers =
                task.load.layers.iter().map(|layer| task.boards[board].least_seconds(layer));
            layers.fold(f64::INFINITY, f64::min)
        };
        let memory = task.load.layers.iter().map(|layer| layer.memory).min().unwrap_or(0);
        Cheapest { seconds: (0..task.boards.len()).map(of).collect(), memory }
    }

    /// Least joules of `set`; `None` if it has not enough memory, or too many boards.
    fn bound(&self, task: &Task<'_>, set: &[Choice]) -> Option<f64> {
        let idle = idle_of(task, set);
        let mut rest = task.n_layers().checked_sub(set.len())?;
        let mut joules = 0.0;
        let mut prices: Vec<(f64, usize)> = Vec::with_capacity(set.len());
        let least = |entries: &Range<usize>, seconds: &dyn Fn(usize) -> f64| {
            let prices = entries.clone().map(|board| seconds(board) * price(task, board, idle));
            prices.fold(f64::INFINITY, f64::min)
        };
        for (entries, _) in set {
            let room =
                |board: usize| task.boards[board].memory.checked_sub(task.memory(board, &(0..0)));
            let of_gpu = |board: usize| task.boards[board].gpu.map_or(0, |gpu| gpu.memory);
            let room = |board: usize| Some(room(board)?.saturating_add(of_gpu(board)));
            let room = entries.clone().filter_map(room).max()?;
            let most = (room / self.memory.max(1)) as usize;
            let of_layer = least(entries, &|board| self.seconds[board]);
            // Each has one layer at least.
            prices.push((of_layer, most.checked_sub(1)?));
            let way = entries.clone().map(|board| task.hop(board).1).fold(f64::INFINITY, f64::min);
            joules += of_layer + way * idle;
            if entries.start == 0 {
                joules +=
                    least(entries, &|board| task.boards[board].least_seconds(&task.load.ends));
            }
        }
        prices.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (of_layer, most) in prices {
            let n = rest.min(most);
            (rest, joules) = (rest - n, joules + n as f64 * of_layer);
        }
        // Sums in another order may differ in their last bits.
        (rest == 0).then_some(joules * (1.0 - 1e-9))
    }
}
