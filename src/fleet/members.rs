//! The boards that a master called: their names and addresses, which of them are there, and where their split
//! is kept.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use super::admission::{self, LeftOut};
use super::boards::Sought;
use super::caller::Caller;
use super::events::Shape;
use super::hold::Holds;
use super::interrupt::is_interrupted;
use super::mailbox::Mailbox;
use crate::call::find;
use crate::call::master::{Called, Way};
use crate::engine::is_small;
use crate::format::model::Weights;
use crate::model::Model;
use crate::ring::plan::{Board, Other, Watts, Wish};
use crate::ring::{Address, Topology};
use crate::sys::file::AtomicFile;
use crate::wire::call::{Figures, Speed};

/// A board's figures, the way there if it is a new one, and this board's address as that one sees it.
type Answer = (Figures, Option<Way>, IpAddr);

/// Boards that are called.
#[derive(Clone)]
pub(crate) struct Fleet {
    /// This board, then the others as they describe themselves, in the order of `called`.
    pub(super) boards: Vec<Board>,
    /// Addresses at which the others are called.
    pub(super) called: Vec<Address>,
    /// Names of the boards that have a part.
    pub(super) nodes: Vec<String>,
    pub(super) search: Search,
    /// Calls the boards.
    pub(super) caller: Caller,
    /// Figures of the boards that apply to the model.
    pub(super) kind: Kind,
    /// Kind of division of the model.
    pub(super) shape: Shape,
    /// Answers of the last look.
    pub(super) last: LastLook,
    /// Boards that cannot be in the ring.
    pub(crate) left_out: LeftOut,
    /// Port on which this board gives layers.
    pub(super) port: u16,
    /// Boards that work for this master alone.
    pub(crate) holds: Holds,
    pub(super) split: Split,
}

/// Boards that answered when they were looked for last.
#[derive(Clone, Default)]
pub(super) struct LastLook {
    /// Boards, and since when they have answered without a break.
    answering: Vec<(String, Instant)>,
    /// Nodes that did not serve, with the reasons.
    idle: Vec<(String, String)>,
}

/// Places of boards, and the kind of network on which they reach each other.
#[derive(Clone)]
pub(super) struct Search {
    /// Places in which boards are looked for.
    pub(super) sought: Sought,
    /// True if all boards are on this machine, and use its loopback.
    pub(super) is_near: bool,
}

/// File of the split, and the split that some boards do not know yet.
#[derive(Clone)]
pub(super) struct Split {
    /// The first line of its ring file, which names the model.
    pub(super) model_line: String,
    /// Path of the file that keeps the split.
    pub(super) kept_at: PathBuf,
    /// The ring as a file, if not all of its boards could be told of it.
    pub(super) untold: Option<String>,
}

impl Fleet {
    /// Keeps a split, as a ring file, and holds its boards. If the file cannot be written, the next start may divide
    /// the model otherwise.
    pub(super) fn keep_split(&self, ring: &str) {
        self.hold(ring);
        let path = &self.split.kept_at;
        let write = || {
            let mut file = AtomicFile::create(path)?;
            file.write_all(ring.as_bytes())?;
            file.commit()
        };
        write().unwrap_or_else(|e: io::Error| {
            log::debug!("the split is not kept in {}: {e}", path.display());
        });
    }

    /// Holds the boards of this ring file.
    fn hold(&self, ring: &str) {
        let Ok(topology) = Topology::parse(ring) else { return };
        let has_part = |name: &str| {
            topology.team(name).is_some() || topology.place(name).is_ok_and(|(_, first)| !first)
        };
        let called = self.boards.iter().skip(1).zip(&self.called);
        let named = called.map(|(board, at)| (board.name.clone(), at.clone()));
        self.holds.set(ring, named.filter(|(name, _)| has_part(name)));
    }

    /// Folder of this board's figures and splits.
    pub(super) fn folder(&self) -> &Path {
        self.split.kept_at.parent().unwrap_or(Path::new(""))
    }

    /// Calls all boards, and returns which of them answer and can serve, this one first. New boards are added.
    pub(super) fn look(&mut self, mailbox: &Mailbox) -> Vec<bool> {
        let places = self.places();
        let fleet = &*self;
        let answers: Vec<_> = thread::scope(|scope| {
            let asked: Vec<_> =
                places.iter().map(|place| scope.spawn(move || fleet.ask(place))).collect();
            asked.into_iter().map(|asked| asked.join().ok().flatten()).collect()
        });
        let answers = places.into_iter().zip(answers);
        let answers = answers.filter_map(|(place, answer)| Some((place, answer?))).collect();
        let mut is_there = self.take(answers);
        self.note_answers(&is_there);
        let before = std::mem::take(&mut self.last.idle);
        let others = self.boards.iter().zip(&mut is_there).skip(1).zip(&self.called);
        for ((Board { name, .. }, is_there), place) in others {
            let is_node = self.nodes.contains(name);
            let may_serve = self.left_out.see(place, name, *is_there, is_node);
            let why = match (is_node, *is_there) {
                (true, true) => self.why_idle(name, mailbox),
                // A call that came too late does not undo the reason.
                (true, false) => {
                    before.iter().find(|(idle, _)| idle == name).map(|(_, why)| why.clone())
                }
                (false, _) => None,
            };
            *is_there &= may_serve && why.is_none();
            self.last.idle.extend(why.map(|why| (name.clone(), why)));
        }
        is_there
    }

    /// Notes which boards answered just now.
    fn note_answers(&mut self, is_there: &[bool]) {
        let before = std::mem::take(&mut self.last.answering);
        let there = self.boards.iter().zip(is_there).filter(|(_, is_there)| **is_there);
        self.last.answering = there
            .map(|(board, _)| match before.iter().find(|(name, _)| *name == board.name) {
                Some(known) => known.clone(),
                None => (board.name.clone(), Instant::now()),
            })
            .collect();
    }

    /// Why the node of this name, which answers calls, does not do its part.
    fn why_idle(&self, name: &str, mailbox: &Mailbox) -> Option<String> {
        // A board that was started just now needs some time to open its links.
        let since =
            self.last.answering.iter().find(|(known, _)| known == name).map(|(_, since)| *since);
        let missing = || mailbox.why_missing(name, since?).filter(|_| !self.holds.is_coming(name));
        self.holds.why_unfit(name).or_else(missing)
    }

    /// Why the node of this name did not serve when it answered last.
    pub(super) fn idle(&self, name: &str) -> Option<String> {
        self.last.idle.iter().find(|(idle, _)| idle == name).map(|(_, why)| why.clone())
    }

    /// Notes that the node of this name has no part any more.
    pub(super) fn set_aside(&self, name: &str) {
        if let Some(place) = self.address(name) {
            self.left_out.set_aside(place, name, self.idle(name).as_deref());
        }
    }

    /// Notes that the board of this name is there and has no part, and why.
    pub(super) fn spare(&self, name: &str, why: &str) {
        if let Some(place) = self.address(name) {
            self.left_out.spare(place, name, why);
        }
    }

    /// Takes these answers, and returns which boards are there. If two boards have one name, the one at the known address
    /// counts.
    fn take(&mut self, answers: Vec<(Address, Answer)>) -> Vec<bool> {
        let mut is_there = vec![false; self.boards.len()];
        is_there[0] = true;
        let is_at = |fleet: &Fleet, (place, (figures, ..)): &(Address, Answer)| {
            let name = figures.name.as_str();
            let known = fleet.boards.iter().skip(1).position(|board| board.name == name);
            known.filter(|index| fleet.called[*index] == *place)
        };
        let (stayed, mut others): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answer| is_at(self, answer).is_some());
        // Boards that the others do not reach come last.
        others.sort_by_key(|(_, (.., local))| local.is_loopback() != self.search.is_near);
        let mut seen: Vec<Figures> = Vec::new();
        for (place, (figures, way, local)) in stayed.into_iter().chain(others) {
            // A board that is reached at two addresses says the same at both, to the byte.
            if seen.contains(&figures) {
                continue;
            }
            seen.push(figures.clone());
            let known = self.boards.iter().position(|board| board.name == figures.name.as_str());
            // The board is at its known address, or has moved.
            let known = known.filter(|index| !is_there[*index]);
            let checked = admission::check_reach(&place, local, self.search.is_near)
                .and_then(|()| self.check(&is_there, &place, &figures));
            if checked.is_ok() {
                self.left_out.admit(&place);
            }
            match checked {
                Err(why) => self.left_out.tell(&place, Some(&figures.name), &why),
                Ok(()) => match (known, way) {
                    (Some(index), _) => {
                        let port = figures.port;
                        self.boards[index].address = Address { host: place.host.clone(), port };
                        self.called[index - 1] = place;
                        is_there[index] = true;
                    }
                    (None, Some(way)) => {
                        self.boards.push(board(&place, &figures, way, self.kind));
                        self.called.push(place);
                        is_there.push(true);
                    }
                    // The known board has another name now: the next look measures the way to it.
                    (None, None) => {}
                },
            }
        }
        is_there
    }

    /// Checks that a board can be in a ring or team with those that are there.
    fn check(&self, is_there: &[bool], place: &Address, figures: &Figures) -> Result<(), String> {
        admission::check_figures(figures)?;
        let others = self.boards.iter().zip(is_there).filter(|(_, is_there)| **is_there);
        let others: Vec<Board> = others.map(|(board, _)| board.clone()).collect();
        // The check does not use the way to the board.
        let way = Way { round_trip_s: 0.0, bytes_per_s: 1.0 };
        admission::check_beside(&others, &board(place, figures, way, self.kind), self.shape)
    }

    /// Addresses at which boards may be.
    fn places(&self) -> Vec<Address> {
        let Sought::Auto(port) = self.search.sought else {
            let Sought::Named(named) = &self.search.sought else { return Vec::new() };
            return named.clone();
        };
        let found = find::networks()
            .and_then(|networks| find::seek(&networks, port, &self.caller.key, &is_interrupted));
        let found = found.unwrap_or_default().places.into_iter();
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

    /// The answer of the board at `place`.
    fn ask(&self, place: &Address) -> Option<Answer> {
        let talk = |called: &mut Called<'_>| {
            let figures = called.ask()?;
            let is_known = self.boards.iter().any(|board| board.name == figures.name.as_str());
            let way = if is_known { None } else { Some(called.measure()?) };
            Ok((figures, way, called.local_ip()?))
        };
        self.caller.call(place, talk).ok()
    }
}

/// Boards that are there.
pub(super) fn only(boards: Vec<Board>, is_there: &[bool]) -> Vec<Board> {
    let there = boards.into_iter().zip(is_there).filter(|(_, is_there)| **is_there);
    there.map(|(board, _)| board).collect()
}

/// Selects the figures of a board that apply to a model.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Kind of the model's weights, as an index into [`Speed::read`].
    weights: usize,
    /// True if the model is as large as those that boards measure with. A small model is run by one thread, from its
    /// caches.
    pub(super) is_large: bool,
}

impl Kind {
    /// The kind of a large model with these weights, in the order of [`Speed::read`].
    #[cfg(test)]
    pub(super) fn of_weights(weights: usize) -> Kind {
        Kind { weights, is_large: true }
    }

    /// The kind of this model.
    pub(crate) fn of(model: &Model) -> Kind {
        Kind::of_file(model.header().weights, !is_small(model))
    }

    fn of_file(weights: Weights, is_large: bool) -> Kind {
        let weights = match weights {
            Weights::F32 => 0,
            Weights::Q8 { .. } => 1,
            Weights::Q4 { .. } => 2,
            // Blocks of GGUF files take about as many bits and instructions, and boards do not measure them.
            Weights::B2 { .. } | Weights::Ggml => 3,
        };
        Kind { weights, is_large }
    }
}

/// A board with these figures, which it gave itself.
pub(super) fn board(called: &Address, figures: &Figures, way: Way, kind: Kind) -> Board {
    let address = Address { host: called.host.clone(), port: figures.port };
    known((figures.name.as_str(), address), (&figures.speeds, figures.memory), way, kind)
}

/// A board of this name and address, with its known speeds and memory.
pub(super) fn known(
    (name, address): (&str, Address),
    (speeds, memory): (&[Speed], u64),
    way: Way,
    kind: Kind,
) -> Board {
    let speed = |speed: &Speed| Other {
        threads: speed.threads,
        read: speed.read[kind.weights] as f64,
        watts: speed
            .milliwatts
            .map(|(idle, busy)| Watts { idle: f64::from(idle) / 1e3, busy: f64::from(busy) / 1e3 }),
    };
    let mut speeds = speeds.iter().map(speed);
    let all = speeds.next();
    Board {
        name: name.to_owned(),
        address,
        threads: None,
        read: all.as_ref().map_or(1.0, |all| all.read),
        // The measured `read` includes computing.
        int8: f64::INFINITY,
        memory,
        round_trip_s: way.round_trip_s,
        wire: way.bytes_per_s,
        // Calls do not go through it.
        kernel: None,
        gpu: None,
        layer_s: 0.0,
        watts: all.and_then(|all| all.watts),
        wish: Wish::Any,
        others: speeds.filter(|_| kind.is_large).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fleet::events::Deaf;
    use crate::format::model::Ends;
    use crate::wire::seal::Key;

    fn figures(of: &str, memory: u64) -> Figures {
        let speed = Speed { threads: 4, read: [1 << 33; 4], milliwatts: None };
        let speeds = [speed].into_iter().collect();
        Figures { port: 9999, memory, name: crate::wire::hello::name(of), speeds }
    }

    #[test]
    fn boards_have_a_speed_for_each_version_of_model_files() {
        let versions = [
            Weights::F32,
            Weights::Q8 { group: 32 },
            Weights::Q4 { group: 32, int8_embedding: true },
            Weights::B2 { group: 32, ends: Ends::Int8 },
            Weights::Ggml,
        ];
        let speed = &figures("pi", 0).speeds[0];
        let kinds = versions.map(|weights| Kind::of_file(weights, true).weights);
        assert_eq!(kinds, [0, 1, 2, 3, 3]);
        assert!(kinds.iter().all(|kind| speed.read.get(*kind).is_some()));
    }

    fn at(host: &str) -> Address {
        Address { host: host.to_owned(), port: 9998 }
    }

    const WAY: Way = Way { round_trip_s: 1e-4, bytes_per_s: 1e8 };

    /// Returns the `hello` of the board of this name at `host`, with so much memory.
    fn answer(host: &str, name: &str, memory: u64, way: Option<Way>) -> (Address, Answer) {
        let local = if host.starts_with("127.") { [127, 0, 0, 1] } else { [10, 0, 0, 1] };
        (at(host), (figures(name, memory), way, local.into()))
    }

    fn pi() -> (Address, Answer) {
        answer("10.0.0.2", "pi", 1 << 30, None)
    }

    /// The fleet of desk, 10.0.0.1, and pi.
    fn fleet() -> Fleet {
        let kind = Kind::of_weights(1);
        let said = |host, name| board(&at(host), &figures(name, 1 << 30), WAY, kind);
        let caller = Caller { key: Key::new([7; 32]), events: Arc::new(Deaf) };
        Fleet {
            boards: vec![said("10.0.0.1", "desk"), said("10.0.0.2", "pi")],
            called: vec![at("10.0.0.2")],
            nodes: vec!["desk".to_owned(), "pi".to_owned()],
            kind,
            shape: Shape::Ring,
            search: Search { sought: Sought::Auto(9998), is_near: false },
            last: LastLook::default(),
            left_out: LeftOut::new(Arc::clone(&caller.events)),
            holds: Holds::new(caller.clone(), 9998),
            caller,
            port: 9998,
            split: Split { model_line: String::new(), kept_at: PathBuf::new(), untold: None },
        }
    }

    #[test]
    fn a_stray_board_takes_no_place_in_a_ring_that_runs() {
        let mut fleet = fleet();
        // Another board by its name, this one's and none; the same board at another address; nonsense.
        let strays = vec![
            answer("10.0.0.3", "pi", 1 << 31, None),
            answer("10.0.0.4", "desk", 1 << 31, None),
            answer("10.0.0.5", "", 1 << 31, Some(WAY)),
            answer("10.0.0.6", "# x", 1 << 31, Some(WAY)),
            answer("10.0.0.7", "fig", 0, Some(WAY)),
            answer("10.0.0.8", "pi", 1 << 30, None),
            pi(),
        ];
        assert_eq!(fleet.take(strays), [true, true]);
        assert_eq!(fleet.called, [at("10.0.0.2")]);
        assert_eq!(fleet.boards[1].address.host, "10.0.0.2");
        // It has got another address.
        assert_eq!(fleet.take(vec![answer("10.0.0.9", "pi", 1 << 30, None)]), [true, true]);
        assert_eq!(
            (&fleet.called[0], &*fleet.boards[1].address.host),
            (&at("10.0.0.9"), "10.0.0.9")
        );
        // Another board at the address of one that is gone.
        let fig = answer("10.0.0.9", "fig", 1 << 30, Some(WAY));
        assert_eq!(fleet.take(vec![fig]), [true, false, true]);
    }

    #[test]
    fn a_board_that_others_do_not_reach_gets_no_place_in_a_ring_that_runs() {
        let mut fleet = fleet();
        // A board of this machine at its loopback, where no other reaches it, and one that is found there, too.
        let near = vec![
            answer("127.0.0.1", "kiwi", 1 << 32, Some(WAY)),
            answer("127.0.0.2", "pi", 1 << 30, None),
            pi(),
        ];
        assert_eq!(fleet.take(near), [true, true]);
        let left_out = fleet.left_out.all();
        let kiwi = left_out.iter().find(|entry| entry.name.as_deref() == Some("kiwi")).unwrap();
        assert!(kiwi.why.contains("only this machine reaches it at 127.0.0.1"), "{}", kiwi.why);
        assert!(!left_out.iter().any(|entry| entry.at == at("127.0.0.2")), "{left_out:?}");
    }

    #[test]
    fn what_counts_of_a_boards_figures_are_the_models_kind_and_size() {
        let all = Speed { threads: 4, read: [1, 20, 30, 40], milliwatts: Some((2000, 8000)) };
        let two = Speed { threads: 2, read: [1, 19, 25, 28], milliwatts: Some((2000, 5000)) };
        let way = Way { round_trip_s: 1e-4, bytes_per_s: 1e8 };
        let of = |weights, is_large| {
            let address = Address { host: "pi".to_owned(), port: 9999 };
            let speeds = &[all.clone(), two.clone()][..];
            known(("pi", address), (speeds, 99), way, Kind { weights, is_large })
        };
        let pi = of(2, true);
        let watts = Some(Watts { idle: 2.0, busy: 5.0 });
        assert_eq!((pi.read, pi.threads, pi.memory), (30.0, None, 99));
        assert_eq!(pi.others, [Other { threads: 2, read: 25.0, watts }]);
        let small = of(1, false);
        assert_eq!((small.read, small.others), (20.0, Vec::new()));
    }
}
