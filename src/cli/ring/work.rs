//! Messages of a board about its own part: links, layers, weights and orders.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::tell;
use crate::cli::progress::ProgressLine;
use crate::cli::weights::{self, Teller};
use crate::cli::{counted, note, warn};
use crate::engine::team::TeamLead;
use crate::fetch::giver::Gift;
use crate::fetch::taker::Fetched;
use crate::fleet::events::{Event, Shape};
use crate::group::Notice;
use crate::ring::Address;
use crate::sys::notify;

/// Progress lines of the work under way: layers that are fetched, weights that are packed.
#[derive(Default)]
pub(super) struct UnderWay {
    weights: Mutex<Option<Teller>>,
    layers: Mutex<Option<ProgressLine>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UnderWay {
    /// Shows the progress of layers and weights. Returns true if the event is about them.
    pub(super) fn show(&self, event: &Event<'_>, is_quiet: bool) -> bool {
        match event {
            Event::Fetches => {
                *lock(&self.layers) = Some(ProgressLine::new("fetching layers", is_quiet));
            }
            Event::Fetching { done, all } => {
                lock(&self.layers).iter_mut().for_each(|shown| shown.update(*done, *all));
            }
            Event::Prepares => *lock(&self.weights) = Some(Teller::new(weights::words(is_quiet))),
            Event::Weights(what) => {
                lock(&self.weights).iter().for_each(|teller| teller.tell(what));
            }
            Event::WaitsForLayers { .. } | Event::Fetched { .. } => {
                *lock(&self.layers) = None;
                return false;
            }
            _ => return false,
        }
        true
    }
}

/// Prints an event of this board; `is_quiet` leaves out those that are as expected.
pub(super) fn tell(event: &Event<'_>, is_quiet: bool) {
    match event {
        Event::RingOpened { .. } | Event::TeamOpened { .. } if is_quiet => {}
        Event::RingOpened { lines, dim, wire } => tell::describe(lines, *dim, *wire),
        Event::TeamOpened { team, layers } => describe(team, layers.as_ref()),
        Event::Ring { notice: Notice::Opened { .. }, is_worker: true } if is_quiet => {}
        Event::Ring { notice, .. } | Event::Team { notice } => say(&notice.to_string(), false),
        Event::Member { notice } => say(&notice.to_string(), is_quiet),
        Event::Linked { place, endpoint } if !is_quiet => tell::introduce(place, *endpoint),
        Event::WaitsForLayers { from, why } => {
            say(&format!("waiting for layers from {from}: {why}"), false);
        }
        Event::Up => notify::status("waiting for the ring"),
        Event::Rests => notify::status("waiting for a master"),
        event => match (warning(event), notice(event)) {
            (Some(words), _) => warn(&words),
            (None, Some(words)) if !is_quiet => note(&format!("leap: {words}")),
            _ => {}
        },
    }
}

/// Tells the user unless `is_quiet`, and the service manager.
fn say(words: &str, is_quiet: bool) {
    notify::status(words);
    if !is_quiet {
        note(&format!("leap: {words}"));
    }
}

fn warning(event: &Event<'_>) -> Option<String> {
    Some(match event {
        Event::Unsealed { at, shape } => {
            let what = if *shape == Shape::Ring { "ring" } else { "team" };
            format!("no --key: any machine that reaches {at} can join, disturb and read the {what}")
        }
        Event::TooManyThreads { told, cores } => {
            let cores = counted(*cores, "core");
            format!(
                "threads={told} in the ring file: there are {cores}, one thread for each is used"
            )
        }
        Event::Nameless { why } => format!("{why}, and goes on trying"),
        Event::Carrier(notice) => (*notice).to_owned(),
        Event::Gift(gift @ (Gift::Refused { .. } | Gift::Unkept { .. })) => gift_words(gift),
        Event::Damaged { why } => format!("{}; its layers are fetched again", why.chain()),
        Event::Unusable { why } => why.chain(),
        Event::NoPrefixes { folder, why } => {
            format!("prefixes are not kept in {}: {why}", folder.display())
        }
        Event::KeepsNothing { why } => {
            format!("{why}; this board's speed and the split are not kept")
        }
        Event::Unfindable { why } => format!("--boards auto will not find this board: {why}"),
        Event::Misnamed { why } => format!("masters will go on without this board: {why}"),
        Event::Ignores { from, why } => format!("ignores {from}: {why}"),
        Event::OrderFailed { why } => format!("{why}; waiting for a master"),
        _ => return None,
    })
}

fn notice(event: &Event<'_>) -> Option<String> {
    Some(match event {
        Event::WithoutKernel { why } => format!("using udp: {why}"),
        Event::Meshed { name, at: Address { host, port } } => {
            format!("{name} of the team listens on {host}, ports from {port} on")
        }
        Event::Gives { at } => format!("gives boards their layers on {at} (TCP)"),
        Event::Gift(gift) => gift_words(gift),
        Event::Fetched { fetched, from } => fetched_words(fetched, from),
        Event::WaitsForMaster { name, at } => format!("{name} waits for a master on {at} (TCP)"),
        _ => return None,
    })
}

fn gift_words(gift: &Gift) -> String {
    match gift {
        Gift::Begun { name, from, layers, has_all_rows } => {
            let rows = if *has_all_rows { "" } else { "its rows of " };
            format!("gives {rows}layers {}..{} to {name} at {from}", layers.start, layers.end)
        }
        Gift::Refused { name, from, why } => format!("gives nothing to {name} at {from}: {why}"),
        Gift::Unkept { name, from, why } => {
            format!("{name} at {from} cannot keep its layers: {why}")
        }
        Gift::Stranger { from, why } => format!("gives nothing to {from}: {why}"),
    }
}

fn fetched_words(fetched: &Fetched, from: &Address) -> String {
    let Fetched { path, layers, has_all_rows, bytes, sent } = fetched;
    let came = match sent {
        0 => "were here already".to_owned(),
        sent => {
            format!("came from {from}, {:.1} of {:.1} MB", *sent as f64 / 1e6, *bytes as f64 / 1e6)
        }
    };
    let rows = if *has_all_rows { "" } else { "rows of " };
    format!("{rows}layers {}..{} {came}: {}", layers.start, layers.end, path.display())
}

/// The team, a line a node.
fn describe(team: &TeamLead, layers: Option<&Range<usize>>) {
    let (n, shares) = (team.n_nodes(), team.shares());
    let total: f64 = shares.iter().copied().map(f64::from).sum();
    let what = match layers {
        Some(layers) => format!("layer of {}..{}", layers.start, layers.end),
        None => "layer".to_owned(),
    };
    note(&format!("team of {n} nodes, which share every {what}"));
    let width = team.lines().map(|line| line.name.len()).max().unwrap_or(0);
    for (line, share) in team.lines().zip(shares) {
        note(&format!(
            "  {:width$}  {:.0} % of the rows, {:.1} MB of weights per token, {}, {}{}",
            line.name.as_str(),
            f64::from(*share) / total * 1e2,
            line.bytes_per_token as f64 / 1e6,
            line.isa,
            counted(usize::from(line.threads), "thread"),
            match line.way.rtt_us {
                0 => String::new(),
                us => format!("; {us} us round trip"),
            },
        ));
    }
}
