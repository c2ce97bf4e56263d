//! The best split for any objective.

use std::ops::Range;

use super::energy;
use super::walk::walk;
use super::{Figures, NoSplit, Objective, Part, Task, Wish};

/// The best split for `objective` among those with at least so many tokens a second: of one stream, or of
/// many for throughput.
///
/// # Errors
/// [`NoSplit`].
pub(crate) fn solve(
    task: &Task<'_>,
    objective: Objective,
    min_tokens_per_s: Option<f64>,
) -> Result<Vec<Part>, NoSplit> {
    let boards: Vec<(Range<usize>, Wish)> = task
        .entries()
        .map(|entries| {
            let wish = task.boards[entries.start].wish;
            let wish = if entries.start == 0 { Wish::Always } else { wish };
            (entries, wish)
        })
        .collect();
    let n_forced = boards.iter().filter(|(_, wish)| *wish == Wish::Always).count();
    let most = (1..=task.n_layers()).filter(|end| task.is_end(*end)).count();
    if n_forced > most {
        return Err(NoSplit::Boards { boards: n_forced, most });
    }
    let limit_s = min_tokens_per_s.map(|rate| 1.0 / rate);
    if let Objective::Energy = objective
        && let Some(board) =
            task.boards.iter().find(|board| board.watts.is_none() && board.wish != Wish::Never)
    {
        return Err(NoSplit::Watts(board.name.clone()));
    }
    let ring = match objective {
        Objective::Energy => energy::ring(task, &boards, limit_s),
        _ => ring(task, objective, &boards, limit_s),
    };
    // The master alone sends nothing.
    let masters = if n_forced == 1 { boards[0].0.clone() } else { 0..0 };
    let alone = masters.map(|board| vec![Part { board, layers: 0..task.n_layers() }]);
    let fits = |parts: &Vec<Part>| {
        let Figures { fullest, .. } = task.figures(parts);
        fullest <= 1.0 && is_quick(&task.figures(parts), objective, limit_s)
    };
    let value = |parts: &Vec<Part>| task.figures(parts).value(objective);
    let found = ring.into_iter().chain(alone).filter(fits);
    found
        .min_by(|a, b| value(a).total_cmp(&value(b)))
        .ok_or_else(|| why_not(task, objective, limit_s))
}

fn is_quick(figures: &Figures, objective: Objective, limit_s: Option<f64>) -> bool {
    // Sums in another order may differ in their last bits.
    limit_s.is_none_or(|limit| figures.limited_s(objective) <= limit * (1.0 + 1e-9))
}

fn why_not(task: &Task<'_>, objective: Objective, limit_s: Option<f64>) -> NoSplit {
    if limit_s.is_some() {
        let quickest = match objective {
            Objective::Throughput => Objective::Throughput,
            _ => Objective::Latency,
        };
        return match solve(task, quickest, None) {
            Ok(parts) => {
                let best_s = task.figures(&parts).limited_s(objective);
                NoSplit::Slow { best_us: ((best_s * 1e6) as u64).max(1) }
            }
            Err(why) => why,
        };
    }
    let all_boards = task.entries().map(|entries| &task.boards[entries.start]);
    let usable = all_boards.filter(|board| board.wish != Wish::Never);
    let room = |memory: u64| memory.saturating_sub(task.load.every);
    let rooms =
        usable.map(|board| room(board.memory) + board.gpu.map_or(0, |gpu| room(gpu.memory)));
    let need = task.load.ends.memory + task.memory[task.n_layers()];
    NoSplit::Memory { need, have: rooms.sum() }
}

/// The best split over several boards.
fn ring(
    task: &Task<'_>,
    objective: Objective,
    boards: &[(Range<usize>, Wish)],
    limit_s: Option<f64>,
) -> Option<Vec<Part>> {
    let cost = |board: usize, layers: &Range<usize>| {
        let fullness = task.fullness(board, layers)?;
        let (sending, way) = task.hop(board);
        let own = task.seconds(board, layers);
        Some(match objective {
            Objective::Throughput => (own + sending, own + way),
            Objective::Memory => (fullness, own + way),
            Objective::Latency | Objective::Energy => (own + way, own + way),
        })
    };
    let sum: fn(f64, f64) -> f64 = |a, b| a + b;
    let join = match objective {
        Objective::Throughput | Objective::Memory => f64::max,
        Objective::Latency | Objective::Energy => sum,
    };
    // For throughput the limit would bound the slowest board's time, which is minimized anyway.
    let limit_s = limit_s.filter(|_| objective != Objective::Throughput);
    walk(task, boards, &cost, join, limit_s)
}
