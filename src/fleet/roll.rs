//! The boards that a master calls: those that are there, and their figures. Boards that cannot serve are left out.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::admission::{self, LeftOut};
use super::boards::Sought;
use super::caller::{Caller, Failed};
use super::error::FleetError;
use super::events::Event;
use super::figures::Own;
use super::interrupt::is_interrupted;
use super::members::{Kind, board, known};
use super::search;
use super::wanted::Wanted;
use crate::call::master::{CallError, Called, Way};
use crate::format::model::Header;
use crate::ring::plan::{Board, Load, Wish};
use crate::ring::{Address, Topology};
use crate::wire::call::{Call, Figures};

/// Pause before a master calls a board again that was away.
const RETRY: Duration = Duration::from_secs(1);

/// A model to divide among boards.
pub(crate) struct Divided<'a> {
    pub(crate) header: &'a Header,
    /// The model's demand on boards.
    pub(crate) load: &'a Load,
    /// The kind of figures that applies to the model.
    pub(crate) kind: Kind,
    /// Path of the file that keeps the last split.
    pub(crate) kept_at: &'a Path,
}

/// This board and the boards that are there, and the others' addresses.
pub(super) type Known = (Vec<Board>, Vec<Address>);

/// A board's figures, the link to it, and this board's address as the other one sees it.
type Talk = (Figures, Way, IpAddr);

/// Result of calling a board until it answers.
enum There<T> {
    /// The board answered, with this result.
    Talked(T),
    /// The board has been away for long enough: the master goes on without it.
    Away,
    /// The board refuses, or cannot serve, for this reason.
    Unfit(String),
}

/// The boards that a master calls at its start.
pub(super) struct Roll<'a> {
    pub(super) wanted: &'a Wanted,
    pub(super) caller: &'a Caller,
    /// Addresses to call, without boards that were left out.
    places: Vec<Address>,
    /// Names of the boards of the last split, and addresses of their links.
    before: Vec<(String, Address)>,
    left_out: LeftOut,
    /// Reason for the board that was left out last.
    why: Option<String>,
}

impl<'a> Roll<'a> {
    /// The roll of the boards at `places`, of which the `wanted` ones must come; some may be in the split at `kept_at`.
    pub(super) fn new(
        (wanted, caller): (&'a Wanted, &'a Caller),
        places: &[Address],
        kept_at: &Path,
    ) -> Roll<'a> {
        let kept = fs::read_to_string(kept_at).ok();
        let kept = kept.and_then(|text| Topology::parse(&text).ok());
        let before = kept.map_or(Vec::new(), |topology| {
            let teams = topology.teams().flat_map(|(_, nodes)| nodes);
            let boards = topology.members().iter().map(|member| (&member.name, &member.address));
            let boards = boards.chain(teams.map(|node| (&node.name, &node.address)));
            boards.map(|(name, address)| (name.clone(), address.clone())).collect()
        });
        let left_out = LeftOut::new(Arc::clone(&caller.events));
        Roll { wanted, caller, places: places.to_vec(), before, left_out, why: None }
    }

    /// Boards that were left out.
    pub(super) fn left_out(&self) -> LeftOut {
        self.left_out.clone()
    }

    /// Number of boards to call.
    pub(super) fn n_places(&self) -> usize {
        self.places.len()
    }

    /// Leaves out the board at `place`, which cannot serve.
    pub(super) fn leave_out(&mut self, place: &Address, name: Option<&str>, why: String) {
        self.left_out.tell(place, name, &why);
        self.places.retain(|other| other != place);
        self.why = Some(format!("{place}: {why}"));
    }

    /// This board and the boards that are there with their figures, and the others' addresses.
    pub(super) fn fleet(&mut self, own: &Own, kind: Kind) -> Result<Known, FleetError> {
        loop {
            let talks = self.talk_to_all()?;
            // Another board must tell this board's address.
            if !talks.is_empty() {
                let known = self.admit(talks, own, kind)?;
                if !known.1.is_empty() {
                    return Ok(known);
                }
            }
            if self.places.is_empty() {
                self.places = match &self.wanted.sought {
                    Sought::Auto(port) => search::boards(*port, self.caller, 1)?,
                    Sought::Named(_) => {
                        let why = self.why.take().unwrap_or_default();
                        return Err(FleetError::NoneLeft(why));
                    }
                };
            }
        }
    }

    /// Calls each board; returns the answers of those that are there, or come in time.
    fn talk_to_all(&mut self) -> Result<Vec<(Address, Talk)>, FleetError> {
        let patience = (Instant::now(), self.wanted.patience);
        let mut talks = Vec::with_capacity(self.places.len());
        for place in self.places.clone() {
            let talked = self.until_there(&place, patience, &mut |called| {
                Ok((called.ask()?, called.measure()?, called.local_ip()?))
            })?;
            match talked {
                There::Talked(talk) => talks.push((place, talk)),
                There::Away => {}
                There::Unfit(why) => self.leave_out(&place, None, why),
            }
        }
        Ok(talks)
    }

    /// This board and those of the answering boards that can be in one ring or team. Of two boards with the same name,
    /// the one in the last split can.
    fn admit(
        &mut self,
        talks: Vec<(Address, Talk)>,
        own: &Own,
        kind: Kind,
    ) -> Result<Known, FleetError> {
        let this = self.this(&talks, own, kind)?;
        let mut talks: Vec<(usize, (Address, Talk))> = talks.into_iter().enumerate().collect();
        talks.sort_by_key(|(_, (place, (figures, ..)))| !self.was_in_split(place, figures));
        let mut boards = vec![this];
        let mut called: Vec<(usize, Address)> = Vec::with_capacity(talks.len());
        let mut seen: Vec<Figures> = Vec::with_capacity(talks.len());
        for (index, (place, (figures, way, _))) in talks {
            // A board that is reached at two addresses sends the same bytes at both.
            if seen.contains(&figures) {
                self.places.retain(|other| *other != place);
                continue;
            }
            seen.push(figures.clone());
            let board = board(&place, &figures, way, kind);
            let checked = admission::check_figures(&figures)
                .and_then(|()| admission::check_beside(&boards, &board, self.wanted.shape));
            match checked {
                Err(why) => self.leave_out(&place, Some(&figures.name), why),
                Ok(()) => {
                    boards.push(board);
                    called.push((index, place));
                }
            }
        }
        // Restores the order of calls.
        let this = boards.remove(0);
        let mut others: Vec<((usize, Address), Board)> = called.into_iter().zip(boards).collect();
        others.sort_by_key(|((index, _), _)| *index);
        let (called, others): (Vec<Address>, Vec<Board>) =
            others.into_iter().map(|((_, place), board)| (place, board)).unzip();
        Ok(([this].into_iter().chain(others).collect(), called))
    }

    fn was_in_split(&self, place: &Address, figures: &Figures) -> bool {
        let is_it = |(name, address): &(String, Address)| {
            let at = (&*address.host, address.port);
            name == figures.name.as_str() && at == (&*place.host, figures.port)
        };
        self.before.iter().any(is_it)
    }

    /// This board as the others see it.
    fn this(&self, talks: &[(Address, Talk)], own: &Own, kind: Kind) -> Result<Board, FleetError> {
        let mut seen_as: Option<IpAddr> = None;
        let mut best_way = Way { round_trip_s: f64::INFINITY, bytes_per_s: 0.0 };
        for (address, (_, way, local)) in talks {
            if seen_as.is_some_and(|other| other.is_loopback() != local.is_loopback()) {
                return Err(FleetError::Places(address.clone()));
            }
            seen_as = Some(*local);
            best_way.round_trip_s = best_way.round_trip_s.min(way.round_trip_s);
            best_way.bytes_per_s = best_way.bytes_per_s.max(way.bytes_per_s);
        }
        let Wanted { name, host, port, .. } = self.wanted;
        let host = host.clone().or_else(|| Some(seen_as?.to_string())).unwrap_or_default();
        let address = Address { host, port: *port };
        let of_own = (&*own.speeds, own.memory);
        Ok(Board { wish: Wish::Always, ..known((name, address), of_own, best_way, kind) })
    }

    /// Tells each board (address, name, whether it has a part) its part of the ring, or that it has none. True if all
    /// were told; `None` if one refuses its part: it is left out.
    pub(super) fn tell(
        &mut self,
        others: &[(&Address, &str, bool)],
        ring: &str,
    ) -> Result<Option<bool>, FleetError> {
        // A board that goes away at this moment is informed or left out later.
        let patience = (Instant::now(), self.wanted.patience);
        let port = self.wanted.give;
        let mut are_told = true;
        for &(address, name, has_part) in others {
            let call = if has_part { Call::Ring { port, file: ring } } else { Call::Rest };
            match self.until_there(address, patience, &mut |called| called.tell(&call))? {
                There::Talked(()) => {}
                There::Unfit(why) if has_part => {
                    self.leave_out(address, Some(name), why);
                    return Ok(None);
                }
                There::Away | There::Unfit(_) => are_told = false,
            }
        }
        Ok(Some(are_told))
    }

    /// Calls the board at `address` until it is there, and talks with it. The board may be away for the time `patience`
    /// from `start` on, or for ever.
    fn until_there<T>(
        &self,
        address: &Address,
        (start, patience): (Instant, Option<Duration>),
        talk: &mut dyn FnMut(&mut Called<'_>) -> Result<T, CallError>,
    ) -> Result<There<T>, FleetError> {
        let mut told = String::new();
        loop {
            let Failed { may_pass, is_interruption, why } =
                match self.caller.call(address, &mut *talk) {
                    Ok(found) => return Ok(There::Talked(found)),
                    Err(failed) => failed,
                };
            if is_interruption || is_interrupted() {
                return Err(FleetError::Interrupted);
            }
            // A board that the user names and insists on is waited for until the user has repaired it.
            let is_wanted = patience.is_none() && matches!(self.wanted.sought, Sought::Named(_));
            if !may_pass && !is_wanted {
                return Ok(There::Unfit(why));
            }
            if patience.is_some_and(|patience| start.elapsed() >= patience) {
                self.left_out.tell_away(address, &why);
                return Ok(There::Away);
            }
            if told != why {
                self.caller.tell(&Event::Waits { place: address, why: &why });
                told = why;
            }
            thread::sleep(RETRY);
        }
    }
}
