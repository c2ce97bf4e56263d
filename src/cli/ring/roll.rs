//! The boards that a master calls: those that are there, and what they can do.

use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::figures::{self, Own};
use super::flags::RingFlags;
use super::fleet::{Failed, Kind, board, call, known};
use super::interrupt::is_interrupted;
use crate::call::master::{CallError, Called, Way};
use crate::cli::{Failure, note, warn};
use crate::format::model::Header;
use crate::ring::plan::{Board, Load, Wish};
use crate::ring::{Address, PORT_DEFAULT};
use crate::sys::notify;
use crate::wire::call::Figures;
use crate::wire::seal::Key;

/// How long a master waits before it calls a board again that was away.
const RETRY: Duration = Duration::from_secs(1);

/// A model that boards are to have.
pub(super) struct Divided<'a> {
    pub(super) header: &'a Header,
    /// What it asks of boards.
    pub(super) load: &'a Load,
    pub(super) kind: Kind,
    /// Where its last split is kept.
    pub(super) kept_at: &'a Path,
}

/// This board and those that are there, and where these are called.
pub(super) type Known = (Vec<Board>, Vec<Address>);

/// This board and those that are there, with what they can do, and where these are called.
pub(super) fn fleet(
    flags: &RingFlags,
    boards: &[Address],
    (own, kind): (&Own, Kind),
    key: &Key,
) -> Result<Known, Failure> {
    // Somebody has to say where this board is.
    let talks = loop {
        let talks = talk_to_all(flags, boards, key)?;
        if !talks.is_empty() {
            break talks;
        }
    };
    let mut fleet = Vec::with_capacity(1 + talks.len());
    let mut seen_as: Option<IpAddr> = None;
    let mut best_way = Way { round_trip_s: f64::INFINITY, bytes_per_s: 0.0 };
    for (address, (figures, way, local)) in &talks {
        if seen_as.is_some_and(|other| other.is_loopback() != local.is_loopback()) {
            return Err(Failure::Input(format!(
                "{address} and other boards see this one at different places: name boards of this machine by \
                 an address that others reach, too"
            )));
        }
        seen_as = Some(*local);
        best_way.round_trip_s = best_way.round_trip_s.min(way.round_trip_s);
        best_way.bytes_per_s = best_way.bytes_per_s.max(way.bytes_per_s);
        fleet.push(board(address, figures, *way, kind));
    }
    let host = flags.host.clone().or_else(|| Some(seen_as?.to_string())).unwrap_or_default();
    let name = flags.node.clone().unwrap_or_else(figures::name);
    let address = Address { host, port: flags.port.unwrap_or(PORT_DEFAULT) };
    let of_own = (&*own.speeds, own.memory);
    let this = Board { wish: Wish::Always, ..known((&name, address), of_own, best_way, kind) };
    fleet.insert(0, this);
    check_names(&fleet)?;
    Ok((fleet, talks.into_iter().map(|(address, _)| address).collect()))
}

/// What a board says of itself, the way there, and where it sees this one.
type Talk = (Figures, Way, IpAddr);

/// Talks with each of the boards that are there, or come in time.
fn talk_to_all(
    flags: &RingFlags,
    boards: &[Address],
    key: &Key,
) -> Result<Vec<(Address, Talk)>, Failure> {
    let patience = (Instant::now(), flags.rebalance_after);
    let mut talks = Vec::with_capacity(boards.len());
    for address in boards {
        let talked = until_there(address, key, patience, &mut |called| {
            Ok((called.ask()?, called.measure()?, called.local_ip()?))
        })?;
        talks.extend(talked.map(|talk| (address.clone(), talk)));
    }
    Ok(talks)
}

fn check_names(fleet: &[Board]) -> Result<(), Failure> {
    let twice = fleet
        .iter()
        .enumerate()
        .find(|(index, board)| fleet[..*index].iter().any(|other| other.name == board.name));
    twice.map_or(Ok(()), |(_, board)| {
        Err(Failure::Input(format!(
            "two boards are called {}, one of them at {}: give one another name with --node",
            board.name, board.address.host
        )))
    })
}

/// Calls the board at `address`, again and again until it is there, and talks with it. `None` if it may be left
/// out, and has been away since `start` for long enough.
pub(super) fn until_there<T>(
    address: &Address,
    key: &Key,
    (start, patience): (Instant, Option<Duration>),
    talk: &mut dyn FnMut(&mut Called<'_>) -> Result<T, CallError>,
) -> Result<Option<T>, Failure> {
    let mut told = String::new();
    loop {
        let Failed { may_pass, is_interruption, why } = match call(address, key, &mut *talk) {
            Ok(found) => return Ok(Some(found)),
            Err(failed) => failed,
        };
        if is_interruption || is_interrupted() {
            return Err(Failure::Runtime("interrupted".to_owned()));
        }
        if !may_pass {
            return Err(Failure::Ring(format!("{address}: {why}")));
        }
        if patience.is_some_and(|patience| start.elapsed() >= patience) {
            warn(&format!("goes on without the board at {address}: {why}"));
            return Ok(None);
        }
        let why = format!("waiting for {address}: {why}");
        if told != why {
            note(&format!("leap: {why}"));
            notify::status(&why);
            told = why;
        }
        thread::sleep(RETRY);
    }
}
