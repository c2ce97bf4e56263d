//! Dynamic programming over boards in their order, and the number of layers taken so far.

use std::ops::Range;

use super::{Part, Task, Wish};

/// A way to give the first layers to the first boards.
#[derive(Clone, Copy)]
struct Way {
    /// Cost and seconds of the way.
    cost: f64,
    seconds: f64,
    /// Last board of the way, and the first of that board's layers.
    board: usize,
    start: usize,
    /// The way before that board.
    before: Option<usize>,
}

/// Cost and seconds of layers on a board; `None` if they do not fit.
type Cost<'c> = dyn Fn(usize, &Range<usize>) -> Option<(f64, f64)> + 'c;

/// The cheapest way to give all layers of `task` to boards in their order, each by one of its entries and by its wish.
/// `join` adds up the cost of two parts. With a limit, the way takes no more seconds than that.
pub(super) fn walk(
    task: &Task<'_>,
    boards: &[(Range<usize>, Wish)],
    cost: &Cost<'_>,
    join: fn(f64, f64) -> f64,
    limit_s: Option<f64>,
) -> Option<Vec<Part>> {
    let n_layers = task.n_layers();
    let mut ways: Vec<Way> = Vec::new();
    // Those that lead to each number of layers; none leads to none but the beginning.
    let mut reached: Vec<Vec<usize>> = vec![Vec::new(); n_layers + 1];
    for (entries, wish) in boards {
        if *wish == Wish::Never {
            continue;
        }
        let mut next = match wish {
            Wish::Always => vec![Vec::new(); n_layers + 1],
            _ => reached.clone(),
        };
        for (start, there) in reached.iter().enumerate() {
            let before: Vec<Option<usize>> = match start {
                0 if entries.start == 0 => vec![None],
                _ => there.iter().map(|way| Some(*way)).collect(),
            };
            if before.is_empty() {
                continue;
            }
            for board in entries.clone() {
                let ends = next.iter_mut().enumerate().skip(start + 1);
                for (end, next) in ends.filter(|(end, _)| task.is_end(*end)) {
                    let Some((own, seconds)) = cost(board, &(start..end)) else { break };
                    for before in &before {
                        let (paid, taken) =
                            before.map_or((0.0, 0.0), |way| (ways[way].cost, ways[way].seconds));
                        let (cost, seconds) = (join(paid, own), taken + seconds);
                        let way = Way { cost, seconds, board, start, before: *before };
                        keep(&mut ways, next, way, limit_s);
                    }
                }
            }
        }
        reached = next;
    }
    let best = reached[n_layers].iter().min_by(|a, b| ways[**a].cost.total_cmp(&ways[**b].cost))?;
    Some(parts(&ways, *best, n_layers))
}

/// Keeps a way unless another one is at least as good; with a limit, quicker ones count too.
fn keep(ways: &mut Vec<Way>, there: &mut Vec<usize>, way: Way, limit_s: Option<f64>) {
    if limit_s.is_some_and(|limit| way.seconds > limit * (1.0 + 1e-9)) {
        return;
    }
    let is_limited = limit_s.is_some();
    let beats = |a: &Way, b: &Way| match is_limited {
        true => a.cost <= b.cost && a.seconds <= b.seconds,
        false => (a.cost, a.seconds) <= (b.cost, b.seconds),
    };
    if there.iter().any(|other| beats(&ways[*other], &way)) {
        return;
    }
    there.retain(|other| !beats(&way, &ways[*other]));
    there.push(ways.len());
    ways.push(way);
}

fn parts(ways: &[Way], last: usize, n_layers: usize) -> Vec<Part> {
    let (mut parts, mut end, mut at) = (Vec::new(), n_layers, Some(last));
    while let Some(Way { board, start, before, .. }) = at.map(|way| ways[way]) {
        parts.push(Part { board, layers: start..end });
        (end, at) = (start, before);
    }
    parts.reverse();
    parts
}
