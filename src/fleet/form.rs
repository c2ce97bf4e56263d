//! The start of a master without a ring file: it calls its boards, divides the model among them, and tells each its
//! part.

use super::admission;
use super::boards::Sought;
use super::caller::Caller;
use super::error::{FleetError, Obstacle};
use super::events::{Event, Shape};
use super::figures::Own;
use super::hold::Holds;
use super::members::{Fleet, LastLook, Search, Split};
use super::roll::{Divided, Known, Roll};
use super::wanted::Wanted;
use super::{search, shares, split};
use crate::call::master;
use crate::ring::plan::{Board, NoSplit, Objective, Task, solve};
use crate::ring::{Address, Topology};

/// Boards among which a model is divided.
pub(crate) struct Formed {
    pub(crate) fleet: Fleet,
    /// The ring file.
    pub(crate) file: String,
    /// True if there are boards to work with, now or later.
    pub(crate) has_others: bool,
}

/// Divides `model` among this board, with the figures `own`, and the `wanted` boards, for which it waits.
///
/// # Errors
/// If the boards that are there cannot have the model, and no more are to come.
pub(crate) fn form(
    wanted: &Wanted,
    caller: &Caller,
    model: &Divided<'_>,
    own: &Own,
) -> Result<Formed, FleetError> {
    admission::check_name(&wanted.name).map_err(FleetError::Name)?;
    let master = master::introduce(&wanted.name, wanted.wishes.is_taking);
    let places = match &wanted.sought {
        Sought::Named(boards) => boards.clone(),
        Sought::Auto(port) => search::boards(*port, caller, split::n_kept(model.kept_at))?,
    };
    let formed = form_of(wanted, caller, model, (own, &places));
    // Two masters with --take do not take boards from each other for ever.
    master.be_content();
    formed
}

/// Divides the model among this board and those at `places`.
fn form_of(
    wanted: &Wanted,
    caller: &Caller,
    model: &Divided<'_>,
    (own, places): (&Own, &[Address]),
) -> Result<Formed, FleetError> {
    let mut roll = Roll::new((wanted, caller), places, model.kept_at);
    let Told { known: (boards, called, is_near), nodes, file, are_told } = loop {
        if let Some(told) = try_once(&mut roll, own, model)? {
            break told;
        }
    };
    let has_others = wanted.shape == Shape::Team
        || nodes.len() > 1
        || called.len() < places.len()
        || (wanted.wishes.patience.is_some() && !places.is_empty());
    let fleet = Fleet {
        boards,
        called,
        nodes,
        search: Search { sought: wanted.sought.clone(), is_near },
        caller: caller.clone(),
        kind: model.kind,
        shape: wanted.shape,
        last: LastLook::default(),
        left_out: roll.left_out(),
        port: wanted.give,
        holds: Holds::new(caller.clone(), wanted.give),
        split: Split {
            model_line: split::model_line(model.fingerprint),
            kept_at: model.kept_at.to_owned(),
            untold: (!are_told).then(|| file.clone()),
        },
    };
    for board in fleet.boards.iter().filter(|board| !fleet.nodes.contains(&board.name)) {
        fleet.spare(&board.name, "it has no part: the split is as good without it");
    }
    fleet.keep_split(&file);
    Ok(Formed { fleet, file, has_others })
}

/// A ring or a team that its boards were told of.
struct Told {
    known: Known,
    /// Names of the boards with a part.
    nodes: Vec<String>,
    /// The ring file.
    file: String,
    /// True if all boards were there to be told.
    are_told: bool,
}

/// Divides a model among the boards of `roll`, and tells them. `None` if a board refuses: it is left out, and the caller
/// tries again.
fn try_once(
    roll: &mut Roll<'_>,
    own: &Own,
    model: &Divided<'_>,
) -> Result<Option<Told>, FleetError> {
    let (known, (nodes, file)) = match roll.wanted.shape {
        Shape::Ring => by_layers(roll, own, model)?,
        Shape::Team => by_rows(roll, own, model)?,
    };
    let (boards, called, _) = &known;
    let others = boards.iter().skip(1).zip(called);
    let others: Vec<_> =
        others.map(|(board, at)| (at, &*board.name, nodes.contains(&board.name))).collect();
    let told = roll.tell(&others, &file)?;
    Ok(told.map(|are_told| Told { known, nodes, file, are_told }))
}

/// The boards that are there, and the names and the ring file of those that get a part.
type Planned = (Known, (Vec<String>, String));

fn by_layers(roll: &mut Roll<'_>, own: &Own, model: &Divided<'_>) -> Result<Planned, FleetError> {
    let objective = roll.wanted.wishes.objective;
    let best =
        |known: &[Board]| split::best(model, known, objective).map_err(|e| obstacle(e, known));
    let (known, best) = there(roll, (own, model), best)?;
    let choices = split::choices(&known.0, objective);
    let task = Task::new(model.load, &choices);
    let parts = split::kept(model.kept_at, &task, objective, &best).unwrap_or(best);
    let team_token_s = shares::hint(model, &known.0, task.figures(&parts).token_s);
    roll.caller.tell(&Event::Divided { task: &task, parts: &parts, team_token_s });
    let nodes = parts.iter().map(|part| choices[part.board].name.clone()).collect();
    let file = split::model_line(model.fingerprint) + &split::ring_lines(&task, &parts);
    Ok((known, (nodes, file)))
}

fn by_rows(roll: &mut Roll<'_>, own: &Own, model: &Divided<'_>) -> Result<Planned, FleetError> {
    let (known, ()) = there(roll, (own, model), |known| shares::check(model, known))?;
    let best = shares::best(model, &known.0)?;
    let plan = shares::kept(model, &known.0, best.token_s()).unwrap_or(best);
    let file = split::model_line(model.fingerprint) + &plan.ring_file(model.header.n_layers);
    Topology::parse(&file).map_err(FleetError::File)?;
    let task = Task::new(model.load, &known.0);
    let as_ring = solve(&task, Objective::Latency, None).ok();
    let ring_token_s = as_ring.map(|parts| task.figures(&parts).token_s);
    roll.caller.tell(&Event::Shared { plan: &plan, ring_token_s });
    let nodes = plan.nodes().map(|(board, _)| board.name.clone()).collect();
    Ok((known, (nodes, file)))
}

fn obstacle(why: NoSplit, known: &[Board]) -> Obstacle {
    let index = match &why {
        NoSplit::Watts(name) => known.iter().position(|b| b.name == *name).filter(|at| *at > 0),
        _ => None,
    };
    match (why, index) {
        (why, Some(index)) => Obstacle::Board(index, why.to_string()),
        (why @ NoSplit::Memory { .. }, None) => Obstacle::Memory(FleetError::NoSplit(why)),
        (why, None) => Obstacle::End(FleetError::NoSplit(why)),
    }
}

/// This board and those that are there, with the result of `plan`. While they have too little memory, absent
/// boards are waited for; a board without which the others have enough is left out.
fn there<T>(
    roll: &mut Roll<'_>,
    (own, model): (&Own, &Divided<'_>),
    plan: impl Fn(&[Board]) -> Result<T, Obstacle>,
) -> Result<(Known, T), FleetError> {
    let mut told = String::new();
    loop {
        let known = roll.fleet(own, model.kind)?;
        let (boards, called, _) = &known;
        match plan(boards) {
            Ok(plan) => return Ok((known, plan)),
            Err(Obstacle::Board(index, why)) => match called.get(index.wrapping_sub(1)) {
                Some(place) => roll.leave_out(place, Some(&boards[index].name), why),
                None => return Err(FleetError::NoneLeft(why)),
            },
            Err(Obstacle::Memory(why)) if called.len() < roll.n_places() => {
                let why = why.to_string();
                if told != why {
                    roll.caller.tell(&Event::TooFew { why: &why });
                    told = why;
                }
            }
            Err(Obstacle::Memory(why) | Obstacle::End(why)) => return Err(why),
        }
    }
}
