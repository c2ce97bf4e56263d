//! Text of a plan.

use std::fmt::Write;

use crate::fleet::split::ring_lines;
use crate::format::json::JsonObject;
use crate::ring::plan::{Board, Figures, Objective, Part, Task, Wish, solve};

/// A line for each board, and one of figures.
pub(in crate::cli) fn table(task: &Task<'_>, parts: &[Part]) -> String {
    let mut text = String::new();
    let width = parts.iter().map(|part| label(task, part).len()).max().unwrap_or(0).max(5);
    // Writing to a string cannot fail.
    let _ =
        writeln!(text, "{:width$}  {:>9}  {:>16}  {:>12}", "board", "layers", "memory", "a token");
    for part in parts {
        let layers = format!("{}..{}", part.layers.start, part.layers.end);
        let (need, have) = memory(task, part);
        let memory = format!("{need:.2} of {have:.2} GB");
        let ms = task.seconds(part.board, &part.layers) * 1e3;
        let _ =
            writeln!(text, "{:width$}  {layers:>9}  {memory:>16}  {ms:>9.2} ms", label(task, part));
    }
    for part in parts {
        let (start, has_ends) = task.on_gpu(part.board, &part.layers);
        if start < part.layers.end {
            let ends = if has_ends { " and the classifier" } else { "" };
            let (name, end) = (name(task, part), part.layers.end);
            let _ = writeln!(text, "{name}: layers {start}..{end}{ends} on its GPU");
        }
    }
    let unused: Vec<&str> = unused(task, parts).map(|board| board.name.as_str()).collect();
    if !unused.is_empty() {
        let _ = writeln!(text, "not used: {}", unused.join(", "));
    }
    text + &figures(&task.figures(parts)) + "\n"
}

/// A line for each team whose boards all have the kernel module.
pub(super) fn gathers(task: &Task<'_>, parts: &[Part], by_kernel: &[bool]) -> String {
    let teams = parts.iter().filter(|part| by_kernel[part.board]);
    teams.map(|part| format!("{} gathers over the kernel module\n", name(task, part))).collect()
}

fn figures(figures: &Figures) -> String {
    let Figures { token_s, slowest_s, joules, .. } = figures;
    let joules = joules.map_or(String::new(), |joules| format!("; {joules:.3} J a token"));
    format!("{:.1} tokens/s of one stream, {:.1} of many{joules}", 1.0 / token_s, 1.0 / slowest_s.0)
}

fn name<'t>(task: &'t Task<'_>, part: &Part) -> &'t str {
    &task.boards()[part.board].name
}

/// Name of a board, and its number of threads if there was a choice.
fn label(task: &Task<'_>, part: &Part) -> String {
    let Board { name, threads, .. } = &task.boards()[part.board];
    match threads {
        Some(1) => format!("{name} (1 thread)"),
        Some(n) => format!("{name} ({n} threads)"),
        None => name.clone(),
    }
}

fn memory(task: &Task<'_>, part: &Part) -> (f64, f64) {
    let have = task.boards()[part.board].memory;
    (task.memory(part.board, &part.layers) as f64 / 1e9, have as f64 / 1e9)
}

fn unused<'t>(task: &'t Task<'_>, parts: &[Part]) -> impl Iterator<Item = &'t Board> {
    let used: Vec<&str> = parts.iter().map(|part| name(task, part)).collect();
    let boards = task.boards().chunk_by(|a, b| a.name == b.name).map(|same| &same[0]);
    boards.filter(move |board| !used.contains(&&*board.name))
}

/// The bottleneck of the ring, and the results of other fleets.
pub(super) fn explain(
    task: &Task<'_>,
    parts: &[Part],
    objective: Objective,
    min_tokens_per_s: Option<f64>,
) -> String {
    let own = task.figures(parts);
    let mut text = String::new();
    let slowest = &parts[own.slowest_s.1];
    let computing: f64 = parts.iter().map(|part| task.seconds(part.board, &part.layers)).sum();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "\n{} takes longest, {:.2} ms of {:.2} ms; links take {:.2} ms",
        name(task, slowest),
        own.slowest_s.0 * 1e3,
        own.token_s * 1e3,
        (own.token_s - computing) * 1e3,
    );
    let other = |boards: &[Board]| {
        let task = Task::new(task.load(), boards);
        let parts = solve(&task, objective, min_tokens_per_s);
        parts.map(|parts| figures(&task.figures(&parts))).unwrap_or_else(|why| why.to_string())
    };
    for part in &parts[1..] {
        let mut boards = task.boards().to_vec();
        let same = boards.iter_mut().filter(|board| board.name == name(task, part));
        same.for_each(|board| board.wish = Wish::Never);
        let _ = writeln!(text, "without {}: {}", name(task, part), other(&boards));
    }
    for part in parts {
        let mut boards = task.boards().to_vec();
        let another = format!("another {}", name(task, part));
        boards.push(Board { name: another, wish: Wish::Any, ..boards[part.board].clone() });
        let _ = writeln!(text, "with another {}: {}", name(task, part), other(&boards));
    }
    text
}

/// The ring file of a split, with what is expected of it.
pub(super) fn ring_file(task: &Task<'_>, parts: &[Part]) -> String {
    format!("# {}\n{}", figures(&task.figures(parts)), ring_lines(task, parts))
}

/// The plan as JSON. `by_kernel` says for each place whether it gathers over the kernel module; `None` if places are
/// no teams.
pub(super) fn json(task: &Task<'_>, parts: &[Part], by_kernel: Option<&[bool]>) -> String {
    let boards = parts.iter().map(|part| {
        let object = JsonObject::new().string("name", name(task, part));
        let object = match by_kernel {
            Some(places) => object.boolean("is_by_kernel", Some(places[part.board])),
            None => object,
        };
        let object = match task.boards()[part.board].threads {
            Some(threads) => object.integer("threads", threads.into()),
            None => object,
        };
        match task.on_gpu(part.board, &part.layers).0 {
            start if start < part.layers.end => object.integer("first_gpu_layer", start as u64),
            _ => object,
        }
        .integer("first_layer", part.layers.start as u64)
        .integer("end_layer", part.layers.end as u64)
        .integer("memory_bytes", task.memory(part.board, &part.layers))
        .number("token_ms", task.seconds(part.board, &part.layers) * 1e3)
    });
    let Figures { token_s, slowest_s, joules, fullest } = task.figures(parts);
    let unused = unused(task, parts).map(|board| JsonObject::new().string("name", &board.name));
    let object = JsonObject::new()
        .objects("boards", boards)
        .objects("unused", unused)
        .number("stream_tokens_per_s", 1.0 / token_s)
        .number("tokens_per_s", 1.0 / slowest_s.0)
        .string("slowest", name(task, &parts[slowest_s.1]))
        .number("fullest", fullest);
    match joules {
        Some(joules) => object.number("joules_per_token", joules),
        None => object,
    }
    .finish()
}
