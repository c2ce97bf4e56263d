//! The boards of `--boards`: who they are, who of them is there, and where their split is kept.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;

use super::interrupt::is_interrupted;
use super::origin::Boards;
use crate::call::find;
use crate::call::master::{CallError, Called, Way};
use crate::ring::Address;
use crate::ring::plan::{Board, Watts, Wish};
use crate::sys::file::AtomicFile;
use crate::transport::place::HostPort;
use crate::wire::call::Figures;
use crate::wire::seal::Key;

/// Boards that are called.
#[derive(Clone)]
pub(in crate::cli) struct Fleet {
    /// This one, and what the others said of themselves, in the same order as `called`.
    pub(super) boards: Vec<Board>,
    /// Where the others are called.
    pub(super) called: Vec<Address>,
    /// Names of those that have a part of the ring.
    pub(super) nodes: Vec<String>,
    /// Where boards are looked for.
    pub(super) sought: Boards,
    pub(super) key: Key,
    /// Port on which this board gives layers.
    pub(super) port: u16,
    /// Where the split is kept.
    pub(super) kept_at: PathBuf,
    /// The ring as a file, if not all of its boards could be told of it.
    pub(super) untold: Option<String>,
}

impl Fleet {
    /// Keeps a split, as a ring file.
    pub(super) fn keep_split(&self, ring: &str) -> io::Result<()> {
        let mut file = AtomicFile::create(&self.kept_at)?;
        file.write_all(ring.as_bytes())?;
        file.commit()
    }

    /// Which of the boards answer, this one first. Those that have come are known from now on.
    pub(super) fn look(&mut self) -> Vec<bool> {
        let places = self.places();
        let fleet = &*self;
        let answers: Vec<_> = thread::scope(|scope| {
            let asked: Vec<_> =
                places.iter().map(|place| scope.spawn(move || fleet.ask(place))).collect();
            asked.into_iter().map(|asked| asked.join().ok().flatten()).collect()
        });
        let mut is_there = vec![false; self.boards.len()];
        is_there[0] = true;
        for (place, answer) in places.into_iter().zip(answers) {
            let Some((figures, way)) = answer else { continue };
            let known = self.boards.iter().position(|board| board.name == figures.name.as_str());
            match (known, way) {
                // Another one by this board's own name cannot be told apart.
                (Some(0), _) | (None, None) => {}
                (Some(index), _) => {
                    let port = figures.port;
                    self.boards[index].address = Address { host: place.host.clone(), port };
                    self.called[index - 1] = place;
                    is_there[index] = true;
                }
                (None, Some(way)) => {
                    self.boards.push(board(&place, &figures, way));
                    self.called.push(place);
                    is_there.push(true);
                }
            }
        }
        is_there
    }

    /// Where boards may be.
    fn places(&self) -> Vec<Address> {
        let Boards::Auto(port) = self.sought else {
            let Boards::Named(named) = &self.sought else { return Vec::new() };
            return named.clone();
        };
        let found = find::networks()
            .and_then(|networks| find::seek(&networks, port, &self.key, &is_interrupted));
        let found = found.unwrap_or_default().into_iter();
        let mut places = self.called.clone();
        places.extend(found.map(|host| Address { host: host.to_string(), port }));
        let mut seen = Vec::with_capacity(places.len());
        places.retain(|place| {
            let is_new = !seen.contains(place);
            seen.push(place.clone());
            is_new
        });
        places
    }

    /// What the board there says of itself, and the way to one that is not known.
    fn ask(&self, place: &Address) -> Option<(Figures, Option<Way>)> {
        let talk = |called: &mut Called<'_>| {
            let figures = called.ask()?;
            let is_known = self.boards.iter().any(|board| board.name == figures.name.as_str());
            let way = if is_known { None } else { Some(called.measure()?) };
            Ok((figures, way))
        };
        call(place, &self.key, talk).ok()
    }
}

/// A board that said this of itself.
pub(super) fn board(called: &Address, figures: &Figures, way: Way) -> Board {
    Board {
        name: figures.name.as_str().to_owned(),
        address: Address { host: called.host.clone(), port: figures.port },
        threads: None,
        read: figures.read as f64,
        int8: figures.int8 as f64,
        memory: figures.memory,
        round_trip_s: way.round_trip_s,
        wire: way.bytes_per_s,
        watts: figures
            .milliwatts
            .map(|(idle, busy)| Watts { idle: f64::from(idle) / 1e3, busy: f64::from(busy) / 1e3 }),
        wish: Wish::Any,
    }
}

/// Why a board does not do what it is told.
pub(super) struct Failed {
    /// Whether it may do so later.
    pub(super) may_pass: bool,
    /// Whether the user ended it.
    pub(super) is_interruption: bool,
    pub(super) why: String,
}

/// Calls the board at `place`, and talks with it.
pub(super) fn call<T>(
    place: &Address,
    key: &Key,
    talk: impl FnOnce(&mut Called<'_>) -> Result<T, CallError>,
) -> Result<T, Failed> {
    let at = HostPort::new(&place.host, place.port).resolve(|_: &SocketAddr| true);
    let at =
        at.map_err(|e| Failed { may_pass: true, is_interruption: false, why: e.to_string() })?;
    let called = Called::new(at, key, &is_interrupted);
    called.and_then(|mut called| talk(&mut called)).map_err(|e| Failed {
        may_pass: e.may_pass(),
        is_interruption: e.is_interruption(),
        why: e.to_string(),
    })
}
