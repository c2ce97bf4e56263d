//! The split that takes the least energy.
//!
//! A token takes `T = Σ t + Σ hops` seconds, and `Σ (busy - idle) t + T Σ idle` joules over the boards that
//! serve. For a given set of boards that is a sum over its boards, and [`walk`] finds the least. Sets are tried
//! in the order of a bound: each board at the price of its cheapest layer, the cheapest boards first, as far
//! as memory allows. A set whose bound is above what was found needs no trial.

use std::ops::Range;

use super::walk::walk;
use super::{Part, Task, Watts, Wish};

/// Sets of more boards than this are not all tried: those that may serve are then the first ones.
const CHOSEN_MAX: usize = 16;

/// The best split over several boards. All that may serve have watts.
pub(super) fn ring(task: &Task<'_>, wishes: &[Wish], limit_s: Option<f64>) -> Option<Vec<Part>> {
    let free: Vec<usize> = (0..wishes.len()).filter(|board| wishes[*board] == Wish::Any).collect();
    let free = &free[..free.len().min(CHOSEN_MAX)];
    let cheapest = Cheapest::new(task);
    let mut sets: Vec<(f64, Vec<usize>)> = (0..1u32 << free.len())
        .filter_map(|bits| {
            let is_in = |board: &usize| match free.iter().position(|free| free == board) {
                Some(index) => bits >> index & 1 == 1,
                None => wishes[*board] == Wish::Always,
            };
            let set: Vec<usize> = (0..wishes.len()).filter(is_in).collect();
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

/// What a second of a board's computing costs if all of `set` wait meanwhile.
fn price(task: &Task<'_>, board: usize, idle: f64) -> f64 {
    let own = watts(task, board);
    own.busy - own.idle + idle
}

fn idle_of(task: &Task<'_>, set: &[usize]) -> f64 {
    set.iter().map(|board| watts(task, *board).idle).sum()
}

/// The best split in which all of `set` serve and nobody else.
fn of_set(task: &Task<'_>, set: &[usize], limit_s: Option<f64>) -> Option<Vec<Part>> {
    let idle = idle_of(task, set);
    let wishes: Vec<Wish> = (0..task.boards.len())
        .map(|board| if set.contains(&board) { Wish::Always } else { Wish::Never })
        .collect();
    let cost = |board: usize, layers: &Range<usize>| {
        task.fullness(board, layers)?;
        let (own, way) = (task.seconds(board, layers), task.hop(board).1);
        Some((own * price(task, board, idle) + way * idle, own + way))
    };
    walk(task.n_layers(), &wishes, &cost, |a, b| a + b, limit_s)
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
            let layers = task.load.layers.iter().map(|layer| task.boards[board].seconds(layer));
            layers.fold(f64::INFINITY, f64::min)
        };
        let memory = task.load.layers.iter().map(|layer| layer.memory).min().unwrap_or(0);
        Cheapest { seconds: (0..task.boards.len()).map(of).collect(), memory }
    }

    /// Joules that `set` takes at least; `None` if it has not enough memory, or too many boards.
    fn bound(&self, task: &Task<'_>, set: &[usize]) -> Option<f64> {
        let idle = idle_of(task, set);
        let mut rest = task.n_layers().checked_sub(set.len())?;
        let mut joules = 0.0;
        let mut prices: Vec<(f64, usize)> = Vec::with_capacity(set.len());
        for board in set {
            let room = task.boards[*board].memory.checked_sub(task.memory(*board, &(0..0)))?;
            let most = (room / self.memory.max(1)) as usize;
            let of_layer = self.seconds[*board] * price(task, *board, idle);
            // Each has one layer at least.
            prices.push((of_layer, most.checked_sub(1)?));
            joules += of_layer + task.hop(*board).1 * idle;
        }
        joules += task.boards[0].seconds(&task.load.ends) * price(task, 0, idle);
        prices.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (of_layer, most) in prices {
            let n = rest.min(most);
            (rest, joules) = (rest - n, joules + n as f64 * of_layer);
        }
        // What is added up in another order may differ in its last bits.
        (rest == 0).then_some(joules * (1.0 - 1e-9))
    }
}
