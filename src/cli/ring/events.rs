//! Messages about boards: those that are called, and this one.

use std::ops::Range;
use std::sync::Arc;

use super::work::{self, UnderWay};
use crate::cli::plan::{report, team};
use crate::cli::{note, warn};
use crate::fleet::admission;
use crate::fleet::events::{Event, Events, Shape, Teller};
use crate::sys::notify;

/// Prints events on stderr, and tells a service manager what the master waits for.
struct Words {
    /// True if plans, measurements and events as expected are not printed.
    is_quiet: bool,
    under_way: UnderWay,
}

/// A listener that prints events; `is_quiet` leaves out those that are as expected.
pub(in crate::cli) fn events(is_quiet: bool) -> Teller {
    Arc::new(Words { is_quiet, under_way: UnderWay::default() })
}

impl Events for Words {
    fn tell(&self, event: &Event<'_>) {
        match event {
            Event::Measures | Event::Divided { .. } | Event::Shared { .. } if self.is_quiet => {}
            Event::Divided { task, parts, team_token_s } => {
                report::table(task, parts).lines().for_each(note);
                let hint = team_token_s.map(|s| stream("as a team, with --team auto", s));
                hint.iter().for_each(|hint| note(hint));
            }
            Event::Shared { plan, ring_token_s } => {
                team::table(plan).lines().for_each(note);
                let hint = ring_token_s.map(|s| stream("as a ring, without --team auto", s));
                hint.iter().for_each(|hint| note(hint));
            }
            event if self.under_way.show(event, self.is_quiet) => {}
            event if is_warning(event) => warn(&words(event)),
            event if words(event).is_empty() => work::tell(event, self.is_quiet),
            event => {
                note(&format!("leap: {}", words(event)));
                status(event);
            }
        }
    }
}

/// Tells the service manager what the master waits for.
fn status(event: &Event<'_>) {
    match event {
        Event::Searches { .. } | Event::Waits { .. } => notify::status(&words(event)),
        Event::Taken { name, why } => notify::status(&taken(name, why)),
        _ => {}
    }
}

fn stream(what: &str, token_s: f64) -> String {
    format!("{what}: {:.1} tokens/s of one stream", 1.0 / token_s)
}

fn is_warning(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::Crowd { .. }
            | Event::Absent { .. }
            | Event::LeftOut { .. }
            | Event::TooFew { .. }
            | Event::Unfit { .. }
            | Event::Forgetful { .. }
            | Event::Stays { .. }
    )
}

/// The event in one line. Plans have tables instead.
fn words(event: &Event<'_>) -> String {
    match event {
        Event::Divided { .. } | Event::Shared { .. } => String::new(),
        Event::Measures => "measures this board's speed once, which takes some seconds".to_owned(),
        Event::Searches { found: 0, port, .. } => {
            format!("waiting for boards: none with this key answers on UDP port {port}")
        }
        Event::Searches { found, wanted, .. } => {
            format!("waiting for boards: {found} of the {wanted} of the last split answer")
        }
        Event::Crowd { at, answers } => {
            format!("{answers} boards answer from the one address {at}: they count as one board")
        }
        Event::Waits { place, why } => format!("waiting for {place}: {why}"),
        Event::Absent { place, why } => format!("goes on without the board at {place}: {why}"),
        Event::LeftOut { place, name, why } => {
            let name = name.map_or(String::new(), |name| format!("{} at ", shown(name)));
            format!("goes on without {name}{place}: {why}")
        }
        Event::TooFew { why } => format!("{why}; waiting for the others"),
        Event::Unfit { name, why } => format!("{name} does not serve: {why}"),
        Event::Taken { name, why } => {
            format!("{}; asks for it until it is free", taken(name, why))
        }
        Event::Regained { name } => format!("{name} works for this master again"),
        Event::Forgetful { name, why } => {
            format!("{name} does not know of its layers after a restart: {why}")
        }
        event => moved(event),
    }
}

/// A change of boards' parts, in one line.
fn moved(event: &Event<'_>) -> String {
    match event {
        Event::Gone { name, idle, shape } => {
            let parts = if *shape == Shape::Ring { "layers" } else { "rows" };
            match idle {
                None => format!("{name} is away: the others take its {parts}"),
                Some(why) => format!("{name} does not serve, the others take its {parts}: {why}"),
            }
        }
        Event::Came { name, shape: Shape::Ring } => {
            format!("{name} is there, and makes the ring better")
        }
        Event::Came { name, shape: Shape::Team } => format!("{name} is there, and gets rows"),
        Event::Better { gain, shape: Shape::Ring } => {
            format!("layers move: {:.0} % better", (gain - 1.0) * 1e2)
        }
        Event::Better { gain, shape: Shape::Team } => {
            format!("rows are shared anew: {:.0} % better", (gain - 1.0) * 1e2)
        }
        Event::Moved { nodes } => format!("layers have moved: {}", layers(nodes)),
        Event::OtherRing { nodes } => format!("the ring has changed: {}", layers(nodes)),
        Event::OtherTeam { nodes } => format!("the team has changed: {}", nodes.join(", ")),
        Event::Stays { why, shape: Shape::Ring } => format!("layers do not move: {why}"),
        Event::Stays { why, shape: Shape::Team } => format!("rows stay as they are: {why}"),
        _ => String::new(),
    }
}

fn taken(name: &str, why: &str) -> String {
    format!("another master took {name}: {why}")
}

/// A name for messages: in quotes unless it is plain.
pub(super) fn shown(name: &str) -> String {
    if admission::is_plain(name) { name.to_owned() } else { format!("{name:?}") }
}

/// The nodes and their layers, as in `desk 0..10, pi 10..22`.
pub(super) fn layers(nodes: &[(String, Range<usize>)]) -> String {
    let node = |(name, layers): &(String, Range<usize>)| {
        format!("{name} {}..{}", layers.start, layers.end)
    };
    nodes.iter().map(node).collect::<Vec<String>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Address;

    #[test]
    fn a_board_that_is_left_out_is_named_in_quotes_unless_its_name_is_plain() {
        let place = Address { host: "10.0.0.7".to_owned(), port: 9998 };
        let out = |name| words(&Event::LeftOut { place: &place, name, why: "no" });
        assert_eq!(out(Some("pi")), "goes on without pi at 10.0.0.7:9998: no");
        assert_eq!(out(Some("# x")), "goes on without \"# x\" at 10.0.0.7:9998: no");
        assert_eq!(out(None), "goes on without 10.0.0.7:9998: no");
    }

    #[test]
    fn each_shape_has_its_own_words_for_what_moves() {
        for (shape, word) in [(Shape::Ring, "layers"), (Shape::Team, "rows")] {
            for event in [
                Event::Gone { name: "pi", idle: None, shape },
                Event::Gone { name: "pi", idle: Some("its disk is full"), shape },
                Event::Better { gain: 1.5, shape },
                Event::Stays { why: "pi refuses", shape },
            ] {
                assert!(words(&event).contains(word), "{}", words(&event));
            }
        }
    }
}
