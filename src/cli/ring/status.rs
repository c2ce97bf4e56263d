//! Text about a running ring.

use std::fmt::Write;

use super::events;
use crate::engine::ring::Setbacks;
use crate::fleet::admission::Entry;
use crate::fleet::seen::{Seen, Status, TeamNodeSeen, TeamSeen};
use crate::format::json::JsonObject;
use crate::wire::frame::NodeLine;

/// A line for each node, and for each board of those that are teams, and one for all.
pub(super) fn text(status: &Status) -> String {
    let Status { seen, tokens_per_s, left_out, .. } = status;
    let mut text = String::new();
    let names: Vec<String> = seen.lines.iter().map(name).collect();
    let boards = (0..names.len()).flat_map(|index| status.boards(index));
    let boards = boards.map(|(name, ..)| name.len() + 2);
    let width = names.iter().map(String::len).chain(boards).max().unwrap_or(0).max(4);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{:width$}  {:>9}  {:>10}  {:>7}  {:>11}  {:>10}  {:>8}  {:>4}",
        "node", "layers", "MB a token", "threads", "ms a token", "round trip", "watts", "°C"
    );
    for (index, line) in seen.lines.iter().enumerate() {
        let layers = format!("{}..{}", line.layers.start, line.layers.end);
        let number = |value: Option<f64>, digits: usize| match value {
            Some(value) => format!("{value:.digits$}"),
            None => "-".to_owned(),
        };
        let _ = writeln!(
            text,
            "{:width$}  {layers:>9}  {:>10.1}  {:>7}  {:>11}  {:>7} us  {:>8}  {:>4}",
            names[index],
            line.bytes_per_token as f64 / 1e6,
            line.threads,
            number(seen.compute_ms(index), 2),
            line.way.rtt_us,
            number(seen.watts(index), 1),
            number(seen.degrees(index), 0),
        );
        for (name, part, known) in status.boards(index) {
            let (name, part) = (format!("  {name}"), format!("{:.0} %", part * 1e2));
            let line = known.as_ref().map(|node| node.line);
            let mb = line.map(|line| line.bytes_per_token as f64 / 1e6);
            let threads = line.map_or("-".to_owned(), |line| line.threads.to_string());
            let way = line.map_or("-".to_owned(), |line| format!("{} us", line.way.rtt_us));
            let ms = number(known.as_ref().and_then(|node| node.compute_ms), 2);
            let _ = writeln!(
                text,
                "{name:width$}  {part:>9}  {:>10}  {threads:>7}  {ms:>11}  {way:>10}",
                number(mb, 1),
            );
        }
    }
    write_passes(&mut text, seen);
    for name in names.iter().enumerate().filter(|(index, _)| seen.is_slowed(*index) == Some(true)) {
        let _ = writeln!(text, "{} is too warm: its system slows it down", name.1);
    }
    write_left_out(&mut text, left_out);
    write_setbacks(&mut text, &seen.setbacks);
    let _ = write!(text, "{}: {tokens_per_s:.1} tokens/s now", seen.state());
    if let Some(rate) = seen.stream_tokens_per_s() {
        let _ = write!(text, ", {rate:.1} of one stream");
    }
    text + "\n"
}

/// A line for each board that was left out.
pub(super) fn write_left_out(text: &mut String, left_out: &[Entry]) {
    for entry in left_out {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "left out: {}: {}", label(entry), entry.why);
    }
}

/// A line of what failed and was lost since the start, if anything was.
pub(super) fn write_setbacks(text: &mut String, setbacks: &Setbacks) {
    let counts = setbacks.counts().into_iter().filter(|(_, n)| *n > 0);
    let words: Vec<String> =
        counts.map(|(name, n)| format!("{} {n}", name.replace('_', " "))).collect();
    if !words.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "since the start: {}", words.join(", "));
    }
}

/// The counts as an object.
pub(super) fn setbacks_object(setbacks: &Setbacks) -> JsonObject {
    let counts = setbacks.counts().into_iter();
    counts.fold(JsonObject::new(), |object, (name, n)| object.integer(name, n))
}

/// The board's name, if it is known, and its address.
fn label(Entry { at, name, .. }: &Entry) -> String {
    name.as_ref().map_or(at.to_string(), |name| format!("{} at {at}", events::shown(name)))
}

/// The boards that were left out.
pub(super) fn left_out_objects(left_out: &[Entry]) -> impl Iterator<Item = JsonObject> + '_ {
    left_out.iter().map(|entry| {
        JsonObject::new()
            .string("name", entry.name.as_deref().unwrap_or_default())
            .string("address", &entry.at.to_string())
            .string("why", &entry.why)
    })
}

/// A line for each place that is a team and has reported its boards' times.
fn write_passes(text: &mut String, seen: &Seen) {
    for (index, line) in seen.lines.iter().enumerate() {
        let known = seen.place(index).and_then(|team| Some((team.nodes(), team.pass_ms()?)));
        let Some((nodes, (pass, gathers))) = known else { continue };
        let name = line.name.as_str();
        // Writing to a string cannot fail.
        let _ = write!(text, "{name}: {pass:.2} ms a pass, gathers {gathers:.2} ms of that");
        for (n, node) in nodes.iter().enumerate() {
            let (waits, name) = (if n == 0 { "; waiting: " } else { ", " }, &node.line.name);
            let _ = write!(text, "{waits}{name} {:.2} ms", node.waiting_ms.unwrap_or(0.0));
        }
        text.push('\n');
    }
}

/// Name of a node, and its number of boards.
fn name(line: &NodeLine) -> String {
    match line.nodes {
        0 | 1 => line.name.as_str().to_owned(),
        n => format!("{}, {n} boards", line.name),
    }
}

/// The state as one JSON object.
pub(super) fn json(status: &Status) -> String {
    let Status { seen, tokens_per_s, left_out, .. } = status;
    let team = |index: usize| -> Vec<JsonObject> {
        let boards = status.boards(index).into_iter();
        boards.map(|(name, part, known)| board_object(name, part, known.as_ref())).collect()
    };
    let nodes = seen.lines.iter().enumerate().map(|(index, line)| {
        let pass_ms = seen.place(index).and_then(TeamSeen::pass_ms);
        let (pass_ms, gather_ms) = pass_ms.unwrap_or((f64::NAN, f64::NAN));
        JsonObject::new()
            .string("name", line.name.as_str())
            .integer("first_layer", line.layers.start.into())
            .integer("end_layer", line.layers.end.into())
            .integer("bytes_per_token", line.bytes_per_token)
            .integer("boards", line.nodes.into())
            .string("isa", line.isa.as_str())
            .integer("threads", line.threads.into())
            .string("carrier", line.way.carrier.as_str())
            .integer("round_trip_us", line.way.rtt_us.into())
            .number("token_ms", seen.compute_ms(index).unwrap_or(f64::NAN))
            .number("watts", seen.watts(index).unwrap_or(f64::NAN))
            .number("degrees_celsius", seen.degrees(index).unwrap_or(f64::NAN))
            .boolean("throttled", seen.is_slowed(index))
            .objects("team", team(index).into_iter())
            .number("team_pass_ms", pass_ms)
            .number("team_gather_ms", gather_ms)
    });
    JsonObject::new()
        .integer("pid", std::process::id().into())
        .string("state", seen.state())
        .objects("nodes", nodes)
        .objects("left_out", left_out_objects(left_out))
        .object("setbacks", setbacks_object(&seen.setbacks))
        .integer("tokens", seen.times.tokens)
        .number("tokens_per_s", *tokens_per_s)
        .number("stream_tokens_per_s", seen.stream_tokens_per_s().unwrap_or(f64::NAN))
        .finish()
}

/// A board of a team with its part of the rows, and what is known of it.
pub(super) fn board_object(name: &str, part: f64, known: Option<&TeamNodeSeen<'_>>) -> JsonObject {
    let object = JsonObject::new().string("name", name).number("share", part);
    let Some(TeamNodeSeen { line, compute_ms, waiting_ms, .. }) = known else { return object };
    object
        .integer("bytes_per_token", line.bytes_per_token)
        .string("isa", line.isa.as_str())
        .integer("threads", line.threads.into())
        .integer("round_trip_us", line.way.rtt_us.into())
        .number("compute_ms", compute_ms.unwrap_or(f64::NAN))
        .number("waiting_ms", waiting_ms.unwrap_or(f64::NAN))
}
