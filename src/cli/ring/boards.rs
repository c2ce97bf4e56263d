//! `--boards`: a master without a ring file calls its boards, divides the model among them, and tells each.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::admission;
use super::fetch;
use super::figures::{self, Own};
use super::flags::{RingFile, RingFlags};
use super::fleet::{Fleet, Kind};
use super::hold::Holds;
use super::origin::Boards;
use super::roll::{Divided, Known, Roll};
use super::rows;
use super::search;
use crate::call::master;
use crate::cli::plan::load::{self, Asked};
use crate::cli::plan::report;
use crate::cli::{Failure, key, model_files, note, warn};
use crate::engine::{Cache, Options};
use crate::ring::plan::{Board, Load, NoSplit, Objective, Part, Task, solve, with_others};
use crate::ring::{Address, Topology};
use crate::sys::notify;
use crate::sys::power::Meter;
use crate::wire::seal::Key;

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
        return Err(Failure::Usage(format!("{} divides a model: name its file", asked_by(flags))));
    };
    check_watts(flags, meter.is_some() || flags.watts.is_some())?;
    let key = checked(flags)?;
    let model = model_files::open_whole(path)?;
    let sizes = load::sizes(model.header(), asked);
    let load = load::load(model.header(), &sizes).map_err(|e| Failure::input(&e))?;
    let folder = fetch::folder_of_master(cache);
    notify::start();
    let own = measured(flags, (options, meter), &folder)?;
    let kind = Kind::of(&model);
    let kept_at = folder.join(file_name(path));
    let name = flags.node.clone().unwrap_or_else(figures::name);
    admission::check_name(&name).map_err(|why| Failure::Usage(format!("this board: {why}")))?;
    let master = master::introduce(&name, flags.is_taking);
    let places = match &boards {
        Boards::Named(boards) => boards.clone(),
        Boards::Auto(port) => search::boards(*port, &key, n_kept(&kept_at))?,
    };
    let model = Divided { header: model.header(), load: &load, kind, kept_at: &kept_at };
    let result = match flags.is_team {
        true => rows::share(flags, (boards, &places), (&own, model), key),
        false => divide(flags, (boards, &places), (&own, model), key),
    };
    // Two masters with --take do not take boards from each other for ever.
    master.be_content();
    result
}

/// Divides a model among this board and those at `places`, who are `sought`, by layers.
fn divide(
    flags: &mut RingFlags,
    (sought, places): (Boards, &[Address]),
    (own, model): (&Own, Divided<'_>),
    key: Key,
) -> Result<(), Failure> {
    let mut roll = Roll::new((flags, &key), (&sought, places), model.kept_at);
    let Told { known, called, nodes, ring, are_told } = loop {
        if let Some(told) = divide_once(&mut roll, own, &model)? {
            break told;
        }
    };
    let left_out = roll.left_out();
    let port = roll.give_port();
    let (has_all, is_ring) = (called.len() == places.len(), nodes.len() > 1);
    let fleet = Fleet {
        boards: known,
        called,
        nodes,
        kind: model.kind,
        is_team: false,
        sought,
        left_out,
        holds: Holds::new(key.clone(), port),
        key,
        port,
        kept_at: model.kept_at.to_owned(),
        untold: (!are_told).then(|| ring.clone()),
    };
    // Without it the next start may divide the model otherwise.
    let _ = fleet.keep_split(&ring);
    flags.file = Some(RingFile::Told(ring));
    // Who has the model alone until boards come, or until it is throttled, is a ring of one.
    let may_change = flags.rebalance_after.is_some() && !places.is_empty();
    if is_ring || !has_all || may_change {
        flags.give = Some(port);
        flags.fleet = Some(fleet);
    }
    Ok(())
}

/// A ring that its boards were told of.
struct Told {
    known: Vec<Board>,
    /// Where all but the first are called.
    called: Vec<Address>,
    /// Names of those with a part.
    nodes: Vec<String>,
    /// The ring file.
    ring: String,
    /// Whether all were there to be told.
    are_told: bool,
}

/// Divides a model among the boards of `roll`, and tells them; `None` if one of them does not do it, and is left out.
fn divide_once(
    roll: &mut Roll<'_>,
    own: &Own,
    model: &Divided<'_>,
) -> Result<Option<Told>, Failure> {
    let Divided { header, load, kind, kept_at } = *model;
    let flags = roll.flags;
    let ((known, called), best) = planned(roll, (own, kind, load))?;
    let choices = with_others(&known, flags.objective == Objective::Energy);
    let task = Task::new(load, &choices);
    let parts = kept(kept_at, &task, flags, &best).unwrap_or(best);
    let ring = report::ring_lines(&task, &parts);
    if !flags.is_quiet {
        report::table(&task, &parts).lines().for_each(note);
        rows::hint(header, load, &known, task.figures(&parts).token_s);
    }
    let nodes: Vec<String> = parts.iter().map(|part| choices[part.board].name.clone()).collect();
    let others = known.iter().skip(1).zip(&called);
    let others: Vec<_> =
        others.map(|(board, at)| (at, &*board.name, nodes.contains(&board.name))).collect();
    let told = roll.tell(&others, &ring)?;
    Ok(told.map(|are_told| Told { known, called, nodes, ring, are_told }))
}

/// The option that asks for boards.
fn asked_by(flags: &RingFlags) -> &'static str {
    if flags.is_team { "--team auto" } else { "--boards" }
}

/// The key, which they need.
fn checked(flags: &RingFlags) -> Result<Key, Failure> {
    if flags.is_team {
        rows::check(flags)?;
    }
    let Some(key) = &flags.key else {
        let what = asked_by(flags);
        return Err(Failure::Usage(format!("{what} needs --key, as the boards have")));
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

/// The boards of `roll` that are there, and the best split among them. As long as there is none,
/// those that are away are waited for.
fn planned(
    roll: &mut Roll<'_>,
    (own, kind, load): (&Own, Kind, &Load),
) -> Result<(Known, Vec<Part>), Failure> {
    let objective = roll.flags.objective;
    loop {
        let (known, called) = roll.fleet(own, kind)?;
        let choices = with_others(&known, objective == Objective::Energy);
        match solve(&Task::new(load, &choices), objective, None) {
            Ok(best) => return Ok(((known, called), best)),
            Err(e @ NoSplit::Memory { .. }) if called.len() < roll.n_places() => {
                warn(&format!("{e}; waiting for the others"));
            }
            Err(NoSplit::Watts(name)) if name != known[0].name => {
                let index = known.iter().position(|board| board.name == name).unwrap_or(0);
                let Some(place) = called.get(index.wrapping_sub(1)) else {
                    return Err(Failure::runtime(&NoSplit::Watts(name)));
                };
                let why = NoSplit::Watts(name.clone()).to_string();
                roll.leave_out(place, Some(&name), why);
            }
            Err(e) => return Err(Failure::runtime(&e)),
        }
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
    topology.map_or(0, |topology| topology.n_boards() - 1)
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
