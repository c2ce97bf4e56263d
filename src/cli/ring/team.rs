//! Text about a running team without a ring.

use std::fmt::Write;

use super::status;
use crate::fleet::seen::{Status, TeamSeen};
use crate::format::json::JsonObject;

/// A line for each node, and one for all.
pub(super) fn text(Status { seen, tokens_per_s, left_out, .. }: &Status) -> String {
    let mut text = String::new();
    let nodes = seen.team_nodes();
    let width = nodes.iter().map(|node| node.line.name.len()).max().unwrap_or(0).max(4);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{:width$}  {:>5}  {:>10}  {:>7}  {:>9}  {:>8}  {:>10}",
        "node", "rows", "MB a token", "threads", "ms a pass", "ms waits", "round trip"
    );
    for node in &nodes {
        let rows = format!("{:.0} %", node.share * 1e2);
        let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.2}"));
        let _ = writeln!(
            text,
            "{:width$}  {rows:>5}  {:>10.1}  {:>7}  {:>9}  {:>8}  {:>7} us",
            node.line.name.as_str(),
            node.line.bytes_per_token as f64 / 1e6,
            node.line.threads,
            ms(node.compute_ms),
            ms(node.waiting_ms),
            node.line.way.rtt_us,
        );
    }
    status::write_left_out(&mut text, left_out);
    status::write_setbacks(&mut text, &seen.setbacks);
    let _ = write!(text, "{}: {tokens_per_s:.1} tokens/s now", seen.team_state());
    if let Some((pass_ms, gather_ms)) = seen.team.as_ref().and_then(TeamSeen::pass_ms) {
        let _ = write!(text, ", {pass_ms:.2} ms a pass, gathers {gather_ms:.2} ms of that");
    }
    text + "\n"
}

/// The state as one JSON object.
pub(super) fn json(Status { seen, tokens_per_s, left_out, .. }: &Status) -> String {
    let nodes = seen.team_nodes();
    let nodes =
        nodes.iter().map(|node| status::board_object(&node.line.name, node.share, Some(node)));
    let (pass_ms, gather_ms) =
        seen.team.as_ref().and_then(TeamSeen::pass_ms).unwrap_or((f64::NAN, f64::NAN));
    JsonObject::new()
        .integer("pid", std::process::id().into())
        .string("state", seen.team_state())
        .objects("nodes", nodes)
        .objects("left_out", status::left_out_objects(left_out))
        .object("setbacks", status::setbacks_object(&seen.setbacks))
        .integer("tokens", seen.team_tokens())
        .number("tokens_per_s", *tokens_per_s)
        .number("team_pass_ms", pass_ms)
        .number("team_gather_ms", gather_ms)
        .finish()
}
