//! `--boards`: a master without a ring file calls its boards, divides the model among them, and tells each.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::fetch;
use super::figures::{self, Own};
use super::flags::{RingFile, RingFlags};
use super::fleet::{Failed, Fleet, Kind, board, call, known};
use super::interrupt::is_interrupted;
use super::origin::Boards;
use super::search;
use crate::call::master::{CallError, Called, Way};
use crate::channel;
use crate::cli::plan::load::{self, Asked};
use crate::cli::plan::report;
use crate::cli::{Failure, key, model_files, note, warn};
use crate::engine::{Cache, Options};
use crate::ring::plan::{Board, Load, NoSplit, Objective, Part, Task, Wish, solve, with_others};
use crate::ring::{Address, PORT_DEFAULT, Topology};
use crate::sys::notify;
use crate::sys::power::Meter;
use crate::wire::call::{Call, Figures};
use crate::wire::seal::Key;

/// How long a master waits before it calls a board again that was away.
const RETRY: Duration = Duration::from_secs(1);
/// How much better than the last split a new one has to be: figures of the ways between boards vary, and each
/// board has the layers of the last one.
const WORTH_IT: f64 = 1.1;

/// Calls the boards that `flags` name, and gives these the ring file that comes of it; without such boards
/// they stay as they are.
pub(in crate::cli) fn gather(
    flags: &mut RingFlags,
    model: Option<&Path>,
    asked: Asked,
    cache: &Cache,
    (options, meter): (&Options, Option<&Meter>),
) -> Result<(), Failure> {
    let Some(boards) = flags.boards.clone() else { return Ok(()) };
    let Some(path) = model else {
        return Err(Failure::Usage("--boards divides a model: name its file".to_owned()));
    };
    check_watts(flags, meter.is_some() || flags.watts.is_some())?;
    let key = checked(flags)?;
    let model = model_files::open_whole(path)?;
    let sizes = load::sizes(model.header(), asked);
    let load = load::load(model.header(), &sizes).map_err(|e| Failure::input(&e))?;
    let folder = fetch::folder(cache)?;
    notify::start();
    let own = measured(flags, (options, meter), &folder)?;
    let kind = Kind::of(&model);
    let kept_at = folder.join(file_name(path));
    let places = match &boards {
        Boards::Named(boards) => boards.clone(),
        Boards::Auto(port) => search::boards(*port, &key, n_kept(&kept_at))?,
    };
    let ((known, called), best) = planned(flags, &places, (&own, kind, &load), &key)?;
    let has_all = called.len() == places.len();
    let choices = with_others(&known, flags.objective == Objective::Energy);
    let task = Task::new(&load, &choices);
    let parts = kept(&kept_at, &task, flags, &best).unwrap_or(best);
    let ring = report::ring_lines(&task, &parts);
    let port = flags.give.unwrap_or(channel::PORT_DEFAULT);
    if !flags.is_quiet {
        report::table(&task, &parts).lines().for_each(note);
    }
    let nodes: Vec<String> = parts.iter().map(|part| choices[part.board].name.clone()).collect();
    let others = known.iter().skip(1).zip(&called);
    let others = others.map(|(board, called)| (called, nodes.contains(&board.name)));
    let are_told = tell(flags, &others.collect::<Vec<_>>(), (&ring, port), &key)?;
    let fleet = Fleet {
        boards: known,
        called,
        nodes,
        kind,
        sought: boards,
        key,
        port,
        kept_at,
        untold: (!are_told).then(|| ring.clone()),
    };
    // Without it the next start may divide the model otherwise.
    let _ = fleet.keep_split(&ring);
    flags.file = Some(RingFile::Told(ring));
    // Who waits for boards to come, and has the model alone until then, is a ring of one.
    if parts.len() > 1 || !has_all {
        flags.give = Some(port);
        flags.fleet = Some(fleet);
    }
    Ok(())
}

/// The key, which `--boards` needs.
fn checked(flags: &RingFlags) -> Result<Key, Failure> {
    let Some(key) = &flags.key else {
        return Err(Failure::Usage("--boards needs --key, as the boards have".to_owned()));
    };
    key::read(key)
}

/// What this board can do, and takes if that counts.
fn measured(
    flags: &RingFlags,
    (options, meter): (&Options, Option<&Meter>),
    folder: &Path,
) -> Result<Own, Failure> {
    let own = figures::own(options, (meter, flags.watts), (folder, flags.is_quiet))?;
    // A sensor may not have answered.
    check_watts(flags, own.speeds.iter().any(|speed| speed.milliwatts.is_some()))?;
    Ok(own)
}

fn check_watts(flags: &RingFlags, are_known: bool) -> Result<(), Failure> {
    match flags.objective {
        Objective::Energy if !are_known => Err(Failure::Usage(
            "--objective energy needs --watts IDLE,BUSY of this board, and of each worker without a sensor"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Tells each board its part of the ring if it has one, or that it has none; whether all were told.
fn tell(
    flags: &RingFlags,
    others: &[(&Address, bool)],
    (ring, port): (&str, u16),
    key: &Key,
) -> Result<bool, Failure> {
    // One that goes away just now is told or left out later.
    let patience = (Instant::now(), flags.rebalance_after);
    let mut are_told = true;
    for &(address, has_part) in others {
        let call = if has_part { Call::Ring { port, file: ring } } else { Call::Rest };
        let told = until_there(address, key, patience, &mut |called| called.tell(&call))?;
        are_told &= told.is_some();
    }
    Ok(are_told)
}

/// This board and those that are there, and where these are called.
type Known = (Vec<Board>, Vec<Address>);

/// The same, and the best split among them. As long as there is none,
/// those that are away are waited for.
fn planned(
    flags: &RingFlags,
    places: &[Address],
    (own, kind, load): (&Own, Kind, &Load),
    key: &Key,
) -> Result<(Known, Vec<Part>), Failure> {
    loop {
        let (known, called) = fleet(flags, places, (own, kind), key)?;
        let choices = with_others(&known, flags.objective == Objective::Energy);
        match solve(&Task::new(load, &choices), flags.objective, None) {
            Ok(best) => return Ok(((known, called), best)),
            Err(e @ NoSplit::Memory { .. }) if called.len() < places.len() => {
                warn(&format!("{e}; waiting for the others"));
            }
            Err(e) => return Err(Failure::runtime(&e)),
        }
    }
}

/// This board and those that are there, with what they can do, and where these are called.
fn fleet(
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
fn until_there<T>(
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

/// Where the last split of this model is kept.
fn file_name(model: &Path) -> PathBuf {
    let model = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    let hash = Sha256::digest(model.as_os_str().as_encoded_bytes());
    let hex: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    PathBuf::from(format!("split-{hex}"))
}

/// How many boards the split that is kept there has, beside this one.
fn n_kept(path: &Path) -> usize {
    let topology = fs::read_to_string(path).ok().and_then(|text| Topology::parse(&text).ok());
    topology.map_or(0, |topology| topology.members().len() - 1)
}

/// The split that is kept there, if it is one of these boards and not much worse than the best.
fn kept(path: &Path, task: &Task<'_>, flags: &RingFlags, best: &[Part]) -> Option<Vec<Part>> {
    let topology = Topology::parse(&fs::read_to_string(path).ok()?).ok()?;
    topology.check(task.load().layers.len()).ok()?;
    let part = |member: &crate::ring::Member| {
        let is_it = |board: &Board| {
            let Board { name, address, threads, .. } = board;
            (name, address, threads) == (&member.name, &member.address, &member.threads)
        };
        let board = task.boards().iter().position(is_it)?;
        Some(Part { board, layers: member.layers.clone() })
    };
    let parts: Vec<Part> = topology.members().iter().map(part).collect::<Option<_>>()?;
    let (now, then) = (task.figures(best), task.figures(&parts));
    let value = |figures: &crate::ring::plan::Figures| figures.value(flags.objective);
    let is_good = task.boards()[parts[0].board].name == task.boards()[0].name
        && then.fullest <= 1.0
        && value(&then) <= WORTH_IT * value(&now);
    is_good.then_some(parts)
}
