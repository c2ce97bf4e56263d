//! A ring's split into ranges of layers, and the file that keeps it from one start to the next.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::roll::Divided;
use crate::ring::plan::{Board, Figures, NoSplit, Objective, Part, Task, solve, with_others};
use crate::ring::{Member, Topology};

/// Smallest ratio by which a new split must be better than the last one: measurements of links vary, and each board has
/// the layers of the last split.
const WORTH_IT: f64 = 1.1;

/// A line of a ring file that tells boards another model with the same split from the one that they have.
pub(super) fn model_line(fingerprint: u64) -> String {
    format!("# model {fingerprint:016x}\n")
}

/// A line for each node of a ring file.
pub(crate) fn ring_lines(task: &Task<'_>, parts: &[Part]) -> String {
    let line = |part: &Part| {
        let Board { name, address, threads, .. } = &task.boards()[part.board];
        let threads = threads.map_or(String::new(), |threads| format!(" threads={threads}"));
        format!("{name} {address} {}..{}{threads}\n", part.layers.start, part.layers.end)
    };
    parts.iter().map(line).collect()
}

/// Name of the file that keeps the last split of the model at this path.
pub(crate) fn file_name(model: &Path) -> PathBuf {
    let model = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    let hash = Sha256::digest(model.as_os_str().as_encoded_bytes());
    let hex: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    PathBuf::from(format!("split-{hex}"))
}

/// Number of boards in the split that is kept at `path`, without this one.
pub(super) fn n_kept(path: &Path) -> usize {
    let topology = fs::read_to_string(path).ok().and_then(|text| Topology::parse(&text).ok());
    topology.map_or(0, |topology| topology.n_boards() - 1)
}

/// The boards for the solver; if energy counts, each also with its other numbers of threads.
pub(super) fn choices(known: &[Board], objective: Objective) -> Vec<Board> {
    with_others(known, objective == Objective::Energy)
}

/// The best split of a model among these boards.
pub(super) fn best(
    model: &Divided<'_>,
    known: &[Board],
    objective: Objective,
) -> Result<Vec<Part>, NoSplit> {
    solve(&Task::new(model.load, &choices(known, objective)), objective, None)
}

/// The split in the file at `path`, if it is for these boards and not much worse than `best`.
pub(super) fn kept(
    path: &Path,
    task: &Task<'_>,
    objective: Objective,
    best: &[Part],
) -> Option<Vec<Part>> {
    let topology = Topology::parse(&fs::read_to_string(path).ok()?).ok()?;
    topology.check(task.load().layers.len()).ok()?;
    let part = |member: &Member| {
        let is_it = |board: &Board| {
            let Board { name, address, threads, .. } = board;
            (name, address, threads) == (&member.name, &member.address, &member.threads)
        };
        let board = task.boards().iter().position(is_it)?;
        Some(Part { board, layers: member.layers.clone() })
    };
    let parts: Vec<Part> = topology.members().iter().map(part).collect::<Option<_>>()?;
    let (now, then) = (task.figures(best), task.figures(&parts));
    let value = |figures: &Figures| figures.value(objective);
    let is_good = task.boards()[parts[0].board].name == task.boards()[0].name
        && then.fullest <= 1.0
        && value(&then) <= WORTH_IT * value(&now);
    is_good.then_some(parts)
}
