//! Text of a team's plan.

use std::fmt::Write;

use crate::fleet::team_plan::TeamPlan;
use crate::format::json::JsonObject;
use crate::ring::plan::team::TeamFigures;

/// Time of a token and its parts.
pub(super) fn words(plan: &TeamPlan<'_>) -> String {
    let TeamFigures { weights_s, gathers_s, latency_s, is_by_kernel } = plan.figures();
    let links = if *is_by_kernel { ", over the kernel module" } else { "" };
    format!(
        "{:.1} tokens/s of one stream: weights {:.2} ms, gathers {:.2} ms, their latency {:.2} ms{links}",
        1.0 / plan.token_s(),
        weights_s.0 * 1e3,
        gathers_s * 1e3,
        latency_s * 1e3,
    )
}

/// A line for each board, and one of figures.
pub(in crate::cli) fn table(plan: &TeamPlan<'_>) -> String {
    let mut text = String::new();
    let width = plan.nodes().map(|(board, _)| board.name.len()).max().unwrap_or(0).max(5);
    // Writing to a string cannot fail.
    let _ =
        writeln!(text, "{:width$}  {:>5}  {:>16}  {:>12}", "board", "share", "memory", "weights");
    for (node, (board, share)) in plan.nodes().enumerate() {
        let need = plan.memory(node) as f64 / 1e9;
        let memory = format!("{need:.2} of {:.2} GB", board.memory as f64 / 1e9);
        let ms = plan.weights_s(node) * 1e3;
        let _ = writeln!(text, "{:width$}  {share:>5}  {memory:>16}  {ms:>9.2} ms", board.name);
    }
    text + &words(plan) + "\n"
}

/// The team file, with what is expected of it.
pub(super) fn file(plan: &TeamPlan<'_>, port: u16) -> String {
    format!("# {}\n{}", words(plan), plan.lines(port))
}

/// The plan as one JSON object.
pub(super) fn json(plan: &TeamPlan<'_>) -> String {
    let boards = plan.nodes().enumerate().map(|(node, (board, share))| {
        JsonObject::new()
            .string("name", &board.name)
            .integer("share", share.into())
            .integer("memory_bytes", plan.memory(node))
            .number("weights_ms", plan.weights_s(node) * 1e3)
    });
    let TeamFigures { weights_s, gathers_s, latency_s, is_by_kernel } = plan.figures();
    let slowest = plan.nodes().nth(weights_s.1).map_or("", |(board, _)| &board.name);
    JsonObject::new()
        .objects("boards", boards)
        .number("stream_tokens_per_s", 1.0 / plan.token_s())
        .number("weights_ms", weights_s.0 * 1e3)
        .string("slowest", slowest)
        .number("gathers_ms", gathers_s * 1e3)
        .number("latency_ms", latency_s * 1e3)
        .boolean("is_by_kernel", Some(*is_by_kernel))
        .finish()
}
