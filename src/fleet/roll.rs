//! The boards that a master calls: those that are there, and their figures. Boards that cannot serve are left out.

use std::fs;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::{self, ScopedJoinHandle};
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
/// Longest wait for a turn to be measured, less than a board waits for its master.
const TURN: Duration = Duration::from_secs(5);
/// Interval between looks whether it is one's turn.
const TURN_EVERY: Duration = Duration::from_millis(20);

/// A model to divide among boards.
pub(crate) struct Divided<'a> {
    pub(crate) header: &'a Header,
    pub(crate) fingerprint: u64,
    /// The model's demand on boards.
    pub(crate) load: &'a Load,
    /// The kind of figures that applies to the model.
    pub(crate) kind: Kind,
    /// Path of the file that keeps the last split.
    pub(crate) kept_at: &'a Path,
}

/// This board and the boards that are there, the others' addresses, and whether all are on this machine and use its
/// loopback.
pub(super) type Known = (Vec<Board>, Vec<Address>, bool);

/// A board's figures, the link to it, and this board's address as the other one sees it.
type Talk = (Figures, Way, IpAddr);

/// Result of calling a board until it answers.
enum There<T> {
    /// The board answered, with this result.
    Talked(T),
    /// The board has been away for long enough, for this reason: the master goes on without it, if it has others.
    Away(String),
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
    /// The roll of the boards at `places`, by the wishes `wanted`; some may be in the split that the file `kept_at` keeps.
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
                let known = self.admit(talks, own, kind);
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

    /// Calls all boards at the same time, as a call may take long where a network loses much; returns the answers of those
    /// that are there, or come in time.
    fn talk_to_all(&mut self) -> Result<Vec<(Address, Talk)>, FleetError> {
        let patience = (Instant::now(), self.wanted.wishes.patience);
        let (roll, places, turn) = (&*self, self.places.clone(), Mutex::new(()));
        let talk = |place: &Address| {
            roll.until_there(place, patience, &mut |called| {
                let figures = called.ask()?;
                // Links are measured one at a time, because all share this board's network.
                let turn = in_turn(&turn);
                let way = called.measure()?;
                drop(turn);
                Ok((figures, way, called.local_ip()?))
            })
        };
        let talked: Vec<_> = thread::scope(|scope| {
            let calls: Vec<_> = places.iter().map(|place| scope.spawn(|| talk(place))).collect();
            calls.into_iter().map(ScopedJoinHandle::join).collect()
        });
        let (mut talks, mut away) = (Vec::with_capacity(places.len()), Vec::new());
        for (place, talked) in places.into_iter().zip(talked) {
            match talked.unwrap_or_else(|panic| resume_unwind(panic))? {
                There::Talked(talk) => talks.push((place, talk)),
                There::Away(why) => away.push((place, why)),
                There::Unfit(why) => self.leave_out(&place, None, why),
            }
        }
        // Without any board there is nothing to go on with: all of them are waited for.
        if !talks.is_empty() {
            away.iter().for_each(|(place, why)| self.left_out.tell_away(place, why));
        }
        Ok(talks)
    }

    /// This board and those of the answering boards that can be in one ring or team. Of two boards with the same name,
    /// the one in the last split can.
    fn admit(&mut self, talks: Vec<(Address, Talk)>, own: &Own, kind: Kind) -> Known {
        let is_near = self.is_near(&talks);
        let (near, far): (Vec<_>, Vec<_>) =
            talks.into_iter().enumerate().partition(|(_, (_, (.., local)))| local.is_loopback());
        let (mut talks, others) = if is_near { (near, far) } else { (far, near) };
        let this = self.this(&talks, own, kind);
        talks.sort_by_key(|(_, (place, (figures, ..)))| !self.was_in_split(place, figures));
        let mut boards = vec![this];
        let mut called: Vec<(usize, Address)> = Vec::with_capacity(talks.len());
        let mut seen: Vec<Figures> = Vec::with_capacity(talks.len());
        for (index, (place, (figures, way, local))) in talks.into_iter().chain(others) {
            // A board that is reached at two addresses sends the same bytes at both.
            if seen.contains(&figures) {
                self.places.retain(|other| *other != place);
                continue;
            }
            seen.push(figures.clone());
            let board = board(&place, &figures, way, kind);
            let checked = admission::check_figures(&figures)
                .and_then(|()| admission::check_reach(&place, local, is_near))
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
        ([this].into_iter().chain(others).collect(), called, is_near)
    }

    /// True if only boards of this machine, which use its loopback, can be in the ring: other machines do not reach
    /// them. If there are boards of both kinds, those on the network count, unless this board is bound to the loopback.
    fn is_near(&self, talks: &[(Address, Talk)]) -> bool {
        let host = self.wanted.host.as_ref().and_then(|host| host.parse::<IpAddr>().ok());
        host.is_some_and(|host| host.is_loopback())
            || talks.iter().all(|(_, (.., local))| local.is_loopback())
    }

    fn was_in_split(&self, place: &Address, figures: &Figures) -> bool {
        let is_it = |(name, address): &(String, Address)| {
            let at = (&*address.host, address.port);
            name == figures.name.as_str() && at == (&*place.host, figures.port)
        };
        self.before.iter().any(is_it)
    }

    /// This board as the others see it.
    fn this(&self, talks: &[(usize, (Address, Talk))], own: &Own, kind: Kind) -> Board {
        let seen_as = talks.last().map(|(_, (_, (.., local)))| local.to_string());
        let ways = talks.iter().map(|(_, (_, (_, way, _)))| way);
        let best_way = Way {
            round_trip_s: ways.clone().map(|way| way.round_trip_s).fold(f64::INFINITY, f64::min),
            bytes_per_s: ways.map(|way| way.bytes_per_s).fold(0.0, f64::max),
        };
        let Wanted { name, host, port, .. } = self.wanted;
        let host = host.clone().or(seen_as).unwrap_or_default();
        let address = Address { host, port: *port };
        let of_own = (&*own.speeds, own.memory);
        Board { wish: Wish::Always, ..known((name, address), of_own, best_way, kind) }
    }

    /// Tells each board (address, name, whether it has a part) its part of the ring, or that it has none. True if all
    /// were told; `None` if one refuses its part: it is left out.
    pub(super) fn tell(
        &mut self,
        others: &[(&Address, &str, bool)],
        ring: &str,
    ) -> Result<Option<bool>, FleetError> {
        // A board that goes away at this moment is informed or left out later.
        let patience = (Instant::now(), self.wanted.wishes.patience);
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
                There::Away(why) => {
                    self.left_out.tell_away(address, &why);
                    are_told = false;
                }
                There::Unfit(_) => are_told = false,
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
                return Ok(There::Away(why));
            }
            if told != why && !self.left_out.is_told(address, &why) {
                self.caller.tell(&Event::Waits { place: address, why: &why });
                told = why;
            }
            thread::sleep(RETRY);
        }
    }
}

/// Waits for a turn. A board that stops while it is measured keeps its turn: then the others, which hang up on a silent
/// master, are measured beside it.
fn in_turn(turn: &Mutex<()>) -> Option<MutexGuard<'_, ()>> {
    let start = Instant::now();
    while start.elapsed() < TURN {
        match turn.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => thread::sleep(TURN_EVERY),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::events::{Deaf, Shape};
    use crate::fleet::settings::Wishes;
    use crate::ring::plan::Objective;
    use crate::wire::call::Speed;
    use crate::wire::hello::name;
    use crate::wire::seal::Key;

    fn at(host: &str) -> Address {
        Address { host: host.to_owned(), port: 9998 }
    }

    /// A board of this name, called at `host`, to which this one is at `local`.
    fn talk(host: &str, local: &str, of: &str) -> (Address, Talk) {
        let speed = Speed { threads: 4, read: [1 << 33; 4], milliwatts: None };
        let speeds = [speed].into_iter().collect();
        let figures = Figures { port: 9999, memory: 1 << 32, name: name(of), speeds };
        let way = Way { round_trip_s: 1e-3, bytes_per_s: 1e8 };
        (at(host), (figures, way, local.parse().unwrap()))
    }

    /// Where this board is, where the admitted ones are called, and those that are left out, with the reasons.
    fn admitted(
        host: Option<&str>,
        talks: Vec<(Address, Talk)>,
    ) -> (String, Vec<String>, Vec<(String, String)>) {
        let wanted = Wanted {
            sought: Sought::Named(talks.iter().map(|(at, _)| at.clone()).collect()),
            shape: Shape::Ring,
            wishes: Wishes { objective: Objective::Latency, patience: None, is_taking: false },
            name: "desk".to_owned(),
            host: host.map(str::to_owned),
            port: 9000,
            give: 9998,
        };
        let caller = Caller { key: Key::new([7; 32]), events: Arc::new(Deaf) };
        let places: Vec<Address> = talks.iter().map(|(at, _)| at.clone()).collect();
        let mut roll = Roll::new((&wanted, &caller), &places, Path::new("/nowhere"));
        let own = Own { speeds: Vec::new(), memory: 1 << 32 };
        let (boards, called, _) = roll.admit(talks, &own, Kind::of_weights(2));
        assert_eq!(boards.len(), called.len() + 1);
        let called = called.into_iter().map(|at| at.host).collect();
        let left_out = roll.left_out().all().into_iter();
        let left_out = left_out.map(|entry| (entry.name.unwrap(), entry.why)).collect();
        (boards[0].address.host.clone(), called, left_out)
    }

    #[test]
    fn boards_that_are_half_seen_by_the_loopback_end_no_master() {
        let fig = || talk("10.0.0.2", "10.0.0.1", "fig");
        // A board of this machine is found at the loopback, and at the address that the others reach.
        for first in [0, 1, 2] {
            let mut talks = vec![
                talk("127.0.0.1", "127.0.0.1", "pi"),
                fig(),
                talk("10.0.0.1", "10.0.0.1", "pi"),
            ];
            talks.rotate_left(first);
            let (own, mut called, left_out) = admitted(None, talks);
            called.sort_unstable();
            assert_eq!(
                (&*own, &called[..]),
                ("10.0.0.1", &["10.0.0.1", "10.0.0.2"].map(str::to_owned)[..])
            );
            assert_eq!(left_out, []);
        }
        // Another one is found at the loopback alone.
        let talks = vec![talk("127.0.0.9", "127.0.0.1", "pi"), fig()];
        let (own, called, left_out) = admitted(None, talks);
        assert_eq!((&*own, &called[..]), ("10.0.0.1", &["10.0.0.2".to_owned()][..]));
        let (name, why) = &left_out[0];
        assert_eq!((left_out.len(), &**name), (1, "pi"));
        assert!(why.starts_with("only this machine reaches it at 127.0.0.9: name it by"), "{why}");
        // This board's links are on the loopback, because its user wants that.
        let talks = vec![fig(), talk("127.0.0.9", "127.0.0.1", "pi")];
        let (own, called, left_out) = admitted(Some("127.0.0.1"), talks);
        assert_eq!((&*own, &called[..]), ("127.0.0.1", &["127.0.0.9".to_owned()][..]));
        assert!(left_out[0].1.starts_with("it is on another machine"), "{left_out:?}");
        // All are on this machine.
        let talks =
            vec![talk("127.0.0.9", "127.0.0.9", "pi"), talk("127.0.0.1", "127.0.0.1", "fig")];
        assert_eq!(admitted(None, talks).1.len(), 2);
    }
}
