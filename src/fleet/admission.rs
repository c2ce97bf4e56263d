//! Which of the boards that answer can be in a ring or a team. One that cannot is left out, with its name and the
//! reason in the log, and ends nothing.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use super::events::{Event, Shape, Teller};
use crate::ring::plan::Board;
use crate::ring::{Address, Topology};
use crate::wire::call::{Figures, Speed};

/// Bytes of memory for a model that a board may have.
const MEMORY: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 50;
/// Bytes of weights a second that it may read.
const READ: std::ops::RangeInclusive<u64> = 10_000..=100_000_000_000_000;
/// Most threads that it may compute with.
const THREADS_MAX: u16 = 4096;
/// Most milliwatts that it may take.
const MILLIWATTS_MAX: u32 = 10_000_000;
/// Boards left out that are remembered.
const LEFT_OUT_MAX: usize = 256;

/// Boards that were left out, and why: each is told of once.
#[derive(Clone)]
pub(super) struct LeftOut {
    told: Arc<Mutex<Vec<(Address, String)>>>,
    events: Teller,
}

impl LeftOut {
    /// No boards so far; `events` hear of them.
    pub(super) fn new(events: Teller) -> LeftOut {
        LeftOut { told: Arc::default(), events }
    }

    /// The board at `place`, which is called `name` if it said so, is left out.
    pub(super) fn tell(&self, place: &Address, name: Option<&str>, why: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let said = format!("{} {why}", name.unwrap_or_default());
        if told.iter().any(|(at, before)| at == place && *before == said) {
            return;
        }
        told.retain(|(at, _)| at != place);
        if told.len() < LEFT_OUT_MAX {
            told.push((place.clone(), said));
            self.events.tell(&Event::LeftOut { place, name, why });
        }
    }
}

/// Whether a board's name can stand in a ring file, in a command of `leap ring` and in a page.
pub(crate) fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| match c {
        '#' | '<' | '>' | '&' | '"' | '\'' | '`' | ',' | '=' | '\\' => false,
        c => c.is_ascii_graphic() || c.is_alphanumeric(),
    };
    !name.is_empty() && name != "team" && name.chars().all(is_plain)
}

/// Checks a board's name.
///
/// # Errors
/// The fault, and what to do about it.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    match name {
        "" => Err("it has no name: give it one with --node".to_owned()),
        _ if is_plain(name) => Ok(()),
        _ => Err(format!(
            "{name:?} is no name for a board: give it one of letters, digits, - and . with --node"
        )),
    }
}

/// Checks what a board says of itself.
///
/// # Errors
/// Refuses figures that make no sense.
pub(super) fn check_figures(figures: &Figures) -> Result<(), String> {
    check_name(&figures.name)?;
    if !MEMORY.contains(&figures.memory) {
        return Err(format!("it says that it has {} bytes of memory for a model", figures.memory));
    }
    let is_one = |speed: &Speed| {
        let watts = speed.milliwatts.is_none_or(|(_, busy)| busy <= MILLIWATTS_MAX);
        speed.threads <= THREADS_MAX && speed.read.iter().all(|read| READ.contains(read)) && watts
    };
    match figures.speeds.iter().find(|speed| !is_one(speed)) {
        None => Ok(()),
        Some(Speed { threads, read, .. }) => Err(format!(
            "it says that it reads {read:?} bytes a second with {threads} threads, which no board does"
        )),
    }
}

/// Checks that `board` can be in one ring, or in one team, with `others`, the master first.
///
/// # Errors
/// Why not, and what to do.
pub(super) fn check_beside(others: &[Board], board: &Board, shape: Shape) -> Result<(), String> {
    if let Some(other) = others.iter().find(|other| other.name == board.name) {
        return Err(format!(
            "two boards are called {}, the other one is at {}: give one another name with --node",
            board.name, other.address.host
        ));
    }
    if let Some(other) = others.iter().find(|other| other.address == board.address) {
        return Err(format!(
            "its links have the address of {}'s, {}: give it another --port",
            other.name, other.address
        ));
    }
    let all = || others.iter().chain([board]);
    let mut file = String::new();
    for (index, Board { name, address, .. }) in all().enumerate() {
        // Writing to a string cannot fail.
        let _ = match (shape, index) {
            (Shape::Team, 0) => writeln!(file, "{name} {address} 0..1\nteam {name} {address}"),
            (Shape::Team, _) => writeln!(file, "team {name} {address}"),
            (Shape::Ring, _) => writeln!(file, "{name} {address} {index}..{}", index + 1),
        };
    }
    let topology = Topology::parse(&file).map_err(|e| e.to_string())?;
    match all().all(|board| topology.knows(&board.name)) {
        true => Ok(()),
        false => Err(format!("{:?} is no name for a board", board.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::members::{Kind, board};
    use super::*;
    use crate::call::master::Way;
    use crate::wire::hello::name;

    fn figures(of: &str) -> Figures {
        let speed = Speed { threads: 4, read: [1 << 33; 4], milliwatts: Some((2000, 8000)) };
        let speeds = [speed].into_iter().collect();
        Figures { port: 9999, memory: 1 << 32, name: name(of), speeds }
    }

    fn at(host: &str, figures: &Figures) -> Board {
        let place = Address { host: host.to_owned(), port: 9998 };
        let way = Way { round_trip_s: 1e-3, bytes_per_s: 1e8 };
        board(&place, figures, way, Kind::of_weights(2))
    }

    #[test]
    fn names_that_would_break_a_ring_file_or_a_page_are_none() {
        for good in ["w1", "raspberrypi", "pi-4.local", "böard", "板", "10.0.0.1:7"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in
            ["", " ", "# x", "a b", "a\tb", "team", "<b>", "a\u{200b}", "a\u{202e}b", "x=1", "a,b"]
        {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn figures_that_no_board_has_are_named() {
        let with = |change: &dyn Fn(&mut Figures)| {
            let mut figures = figures("pi");
            change(&mut figures);
            check_figures(&figures)
        };
        assert_eq!(with(&|_| {}), Ok(()));
        for memory in [0, 1, u64::MAX] {
            let why = with(&|figures| figures.memory = memory).unwrap_err();
            assert!(why.contains("bytes of memory"), "{why}");
        }
        for read in [1, u64::MAX] {
            let why = with(&|figures| figures.speeds[0].read[3] = read).unwrap_err();
            assert!(why.contains("which no board does"), "{why}");
        }
        assert!(with(&|figures| figures.speeds[0].threads = u16::MAX).is_err());
        assert!(with(&|figures| figures.speeds[0].milliwatts = Some((0, u32::MAX))).is_err());
        assert!(with(&|figures| figures.name = name("")).is_err());
    }

    #[test]
    fn a_board_that_would_break_the_ring_file_is_left_out_and_not_the_ring() {
        let desk = at("10.0.0.1", &figures("desk"));
        let pi = at("10.0.0.2", &figures("pi"));
        let ring = [desk, pi];
        for shape in [Shape::Ring, Shape::Team] {
            let check =
                |host: &str, figures: &Figures| check_beside(&ring, &at(host, figures), shape);
            assert_eq!(check("10.0.0.3", &figures("fig")), Ok(()));
            let why = check("10.0.0.3", &figures("pi")).unwrap_err();
            assert!(
                why.starts_with("two boards are called pi, the other one is at 10.0.0.2"),
                "{why}"
            );
            assert!(check("10.0.0.3", &figures("desk")).is_err());
            let why = check("10.0.0.2", &figures("fig")).unwrap_err();
            assert!(why.contains("of pi's, 10.0.0.2:9999: give it another --port"), "{why}");
            assert!(check("10.0.0.3", &figures("# fig")).is_err());
        }
        // A team's boards need some ports each.
        let near = Figures { port: 10_000, ..figures("fig") };
        let last = Figures { port: u16::MAX, ..figures("fig") };
        for figures in [near, last] {
            assert!(check_beside(&ring, &at("10.0.0.2", &figures), Shape::Team).is_err());
            assert!(check_beside(&ring, &at("10.0.0.2", &figures), Shape::Ring).is_ok());
        }
        let many: Vec<Board> =
            (0..64).map(|n| at(&format!("10.0.1.{n}"), &figures(&format!("n{n}")))).collect();
        assert!(check_beside(&many, &ring[1], Shape::Ring).unwrap_err().contains("at most 64"));
        assert!(
            check_beside(&many[..16], &ring[1], Shape::Team).unwrap_err().contains("at most 16")
        );
    }
}
