//! Decides which of the boards that answer can be in a ring or a team. Any other board is left out: the log has its
//! name and the reason, and the master goes on.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::events::{Event, Shape, Teller};
use crate::ring::plan::Board;
use crate::ring::{Address, Topology};
use crate::wire::call::{Figures, Speed};

/// Valid range of a board's memory for a model, in bytes.
const MEMORY: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 50;
/// Valid range of the bytes of weights that a board reads in a second.
const READ: std::ops::RangeInclusive<u64> = 10_000..=100_000_000_000_000;
/// Limit on the threads that a board says it computes with.
const THREADS_MAX: u16 = 4096;
/// Limit on the milliwatts that a board says it takes.
const MILLIWATTS_MAX: u32 = 10_000_000;
/// Limit on the boards that are remembered as left out.
const LEFT_OUT_MAX: usize = 256;

/// A board that answered and did not serve gets no part for this time, or until it has been away: then it may have
/// been restarted.
const SET_ASIDE_FOR: Duration = Duration::from_secs(3600);

/// Boards that were left out, and the reasons. Each is reported once.
#[derive(Clone)]
pub(crate) struct LeftOut {
    entries: Arc<Mutex<Vec<Entry>>>,
    events: Teller,
}

/// A board that was left out, and the reason.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Address that the master calls.
    pub(crate) at: Address,
    /// Name of the board, if it gave one.
    pub(crate) name: Option<String>,
    pub(crate) why: String,
    kind: Kind,
}

/// State of a board that was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The board cannot be in the ring until its settings or files change.
    Unfit,
    /// The board had a part at this time, and did not serve. It gets none for [`SET_ASIDE_FOR`].
    SetAside(Instant),
    /// The board does not answer. It is taken in when it comes.
    Away,
    /// The board is there, and has no part so far.
    Spare,
}

impl LeftOut {
    /// No boards yet; `events` receives the reports.
    pub(super) fn new(events: Teller) -> LeftOut {
        LeftOut { entries: Arc::default(), events }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Boards that are left out at the moment.
    pub(crate) fn all(&self) -> Vec<Entry> {
        self.entries().clone()
    }

    /// Notes that the board at `place`, with its `name` if it gave one, cannot be in the ring.
    pub(super) fn tell(&self, place: &Address, name: Option<&str>, why: &str) {
        if self.put(Entry::new((place, name), why, Kind::Unfit)) {
            self.events.tell(&Event::LeftOut { place, name, why });
        }
    }

    /// Notes that the board at `place` does not answer.
    pub(super) fn tell_away(&self, place: &Address, why: &str) {
        if self.put(Entry::new((place, None), why, Kind::Away)) {
            self.events.tell(&Event::Absent { place, why });
        }
    }

    /// True if the board at `place` was left out for this reason: the user knows the reason then.
    pub(super) fn is_told(&self, place: &Address, why: &str) -> bool {
        self.entries().iter().any(|entry| entry.at == *place && entry.why == why)
    }

    /// Remembers a board; `false` if it is known already, with the same reason.
    fn put(&self, entry: Entry) -> bool {
        let mut entries = self.entries();
        let is_same = |other: &Entry| {
            (&other.at, &other.name, &other.why) == (&entry.at, &entry.name, &entry.why)
        };
        if entries.iter().any(is_same) {
            return false;
        }
        entries.retain(|other| other.at != entry.at);
        let has_room = entries.len() < LEFT_OUT_MAX;
        if has_room {
            entries.push(entry);
        }
        has_room
    }

    /// Leaves out the board of this name at `place`, which had a part. `why` says why it answered and did not serve;
    /// `None` if it did not answer. The caller tells the user.
    pub(super) fn set_aside(&self, place: &Address, name: &str, why: Option<&str>) {
        let mut entries = self.entries();
        entries.retain(|other| other.at != *place);
        if entries.len() < LEFT_OUT_MAX {
            let kind = why.map_or(Kind::Away, |_| Kind::SetAside(Instant::now()));
            let why = why.map_or(AWAY.to_owned(), |why| format!("it does not serve: {why}"));
            entries.push(Entry::new((place, Some(name)), &why, kind));
        }
    }

    /// Notes that the board of this name at `place` is there and has no part, for this reason.
    pub(super) fn spare(&self, place: &Address, name: &str, why: &str) {
        self.put(Entry::new((place, Some(name)), why, Kind::Spare));
    }

    /// Notes whether the board of this name at `place` answers, and whether it has a part. Returns whether it may have
    /// a part.
    pub(super) fn see(&self, place: &Address, name: &str, is_there: bool, has_part: bool) -> bool {
        let may_serve = self.see_known(place, is_there, has_part);
        let is_spare = may_serve && is_there && !has_part;
        if is_spare && !self.entries().iter().any(|entry| entry.at == *place) {
            self.spare(place, name, UNUSED);
        }
        may_serve
    }

    /// Notes whether a board that was left out answers, and whether it has a part.
    fn see_known(&self, place: &Address, is_there: bool, has_part: bool) -> bool {
        let mut entries = self.entries();
        let Some(index) = entries.iter().position(|other| other.at == *place) else { return true };
        let entry = &mut entries[index];
        match entry.kind {
            Kind::Unfit => {}
            Kind::Spare if is_there && !has_part => {}
            Kind::SetAside(_) if !is_there => {
                (entry.kind, entry.why) = (Kind::Away, AWAY.to_owned());
            }
            Kind::SetAside(since) if !has_part && since.elapsed() < SET_ASIDE_FOR => return false,
            Kind::Away if !is_there => {}
            Kind::SetAside(_) | Kind::Away | Kind::Spare => {
                entries.remove(index);
            }
        }
        true
    }

    /// Notes that the board at `place` can be in the ring.
    pub(super) fn admit(&self, place: &Address) {
        self.entries().retain(|other| other.at != *place || other.kind != Kind::Unfit);
    }
}

/// Reason for a board that answers, and that no plan has considered yet.
const UNUSED: &str = "it is there, and has no part yet";
/// Reason for a board that does not answer.
const AWAY: &str = "it does not answer";

impl Entry {
    fn new((at, name): (&Address, Option<&str>), why: &str, kind: Kind) -> Entry {
        Entry { at: at.clone(), name: name.map(str::to_owned), why: why.to_owned(), kind }
    }
}

/// True if a board's name can be part of a ring file, of a command of `leap ring` and of a page.
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
/// The fault, and the remedy.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    match name {
        "" => Err("it has no name: give it one with --node".to_owned()),
        _ if is_plain(name) => Ok(()),
        _ => Err(format!(
            "{name:?} is no name for a board: give it one of letters, digits, - and . with --node"
        )),
    }
}

/// Checks the figures that a board gives of itself.
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

/// Checks that the board called at `place`, to which this board has the address `local`, and the others reach each
/// other: `is_near` says that all boards are on this machine and use its loopback, else none may use it.
///
/// # Errors
/// Why they do not, and what to do.
pub(super) fn check_reach(place: &Address, local: IpAddr, is_near: bool) -> Result<(), String> {
    match (is_near, local.is_loopback()) {
        (false, true) => Err(format!(
            "only this machine reaches it at {}: name it by an address that the other boards reach, too",
            place.host
        )),
        (true, false) => Err("it is on another machine, and reaches none of the others, which are on this one's loopback: \
             give --host and --boards addresses that all reach"
            .to_owned()),
        (true, true) | (false, false) => Ok(()),
    }
}

/// Checks that `board` can be in one ring, or in one team, with `others`, the master first.
///
/// # Errors
/// The reason why it cannot, and the remedy.
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
    use super::super::events::Deaf;
    use super::super::members::{self, board};
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
        board(&place, figures, way, members::Kind::of_weights(2))
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
    fn a_board_that_did_not_serve_has_no_part_until_it_was_away() {
        let (left_out, fig) =
            (LeftOut::new(Arc::new(Deaf)), Address { host: "fig".to_owned(), port: 9998 });
        let whys = || left_out.all().into_iter().map(|entry| entry.why).collect::<Vec<_>>();
        assert!(left_out.see(&fig, "fig", true, true));
        left_out.set_aside(&fig, "fig", Some("its links do not answer"));
        assert!(!left_out.see(&fig, "fig", true, false));
        assert_eq!(whys(), ["it does not serve: its links do not answer"]);
        assert_eq!(left_out.all()[0].name.as_deref(), Some("fig"));
        assert!(left_out.see(&fig, "fig", false, false));
        assert_eq!(whys(), [AWAY]);
        assert!(left_out.see(&fig, "fig", true, false), "it was started again");
        // It is ready, and the user sees that it has no part.
        assert_eq!(whys(), [UNUSED]);
        left_out.spare(&fig, "fig", "it would bring nothing");
        assert!(left_out.see(&fig, "fig", true, false));
        assert_eq!(whys(), ["it would bring nothing"]);
        assert!(left_out.see(&fig, "fig", true, true));
        assert!(whys().is_empty());
        // A board that cannot be in the ring stays left out until it can.
        left_out.tell(&fig, Some("fig"), "two boards are called fig");
        assert!(left_out.see(&fig, "fig", true, false));
        assert_eq!(whys(), ["two boards are called fig"]);
        left_out.admit(&fig);
        assert!(whys().is_empty());
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
        // A board of a team needs some ports of its own.
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
