//! `--team auto`: the boards of `--boards` share every layer by rows, each as much as it is quick.

use std::fs;

use super::figures::Own;
use super::flags::{RingFile, RingFlags};
use super::fleet::Fleet;
use super::hold::Holds;
use super::origin::Boards;
use super::roll::{Divided, Known, Roll};
use crate::cli::plan::team::TeamPlan;
use crate::cli::{Failure, note, warn};
use crate::format::model::Header;
use crate::ring::plan::{Board, Load, Objective, Task, solve};
use crate::ring::{Address, TeamPlace, Topology};
use crate::wire::seal::Key;

/// How much quicker a new split of the rows has to be than the last one, whose rows each board has; and a team than a
/// ring, to be spoken of.
const WORTH_IT: f64 = 1.1;

/// Refuses what has no meaning for a team.
pub(super) fn check(flags: &RingFlags) -> Result<(), Failure> {
    match flags.objective {
        Objective::Latency | Objective::Throughput => Ok(()),
        Objective::Energy | Objective::Memory => Err(Failure::Usage(
            "--objective is for rings: a team is as quick as it can be for one stream".to_owned(),
        )),
    }
}

/// Shares a model among this board and those at `places`, who are `sought`, tells each its part, and gives `flags` the ring file of one
/// place that is their team.
pub(super) fn share(
    flags: &mut RingFlags,
    (sought, places): (Boards, &[Address]),
    (own, model): (&Own, Divided<'_>),
    key: Key,
) -> Result<(), Failure> {
    let mut roll = Roll::new((flags, &key), (&sought, places), model.kept_at);
    let Told { boards, called, nodes, file, are_told } = loop {
        if let Some(told) = share_once(&mut roll, own, &model)? {
            break told;
        }
    };
    let left_out = roll.left_out();
    let port = roll.give_port();
    let fleet = Fleet {
        boards,
        called,
        nodes,
        kind: model.kind,
        is_team: true,
        sought,
        left_out,
        holds: Holds::new(key.clone(), port),
        key,
        port,
        kept_at: model.kept_at.to_owned(),
        untold: (!are_told).then(|| file.clone()),
    };
    // Without it the next start may share the rows otherwise.
    let _ = fleet.keep_split(&file);
    (flags.file, flags.give, flags.fleet) = (Some(RingFile::Told(file)), Some(port), Some(fleet));
    Ok(())
}

/// A team that its boards were told of.
struct Told {
    boards: Vec<Board>,
    /// Where all but the first are called.
    called: Vec<Address>,
    /// Their names.
    nodes: Vec<String>,
    /// The ring file.
    file: String,
    /// Whether all were there to be told.
    are_told: bool,
}

/// Shares a model among the boards of `roll`, and tells them; `None` if one of them does not do it, and is left out.
fn share_once(
    roll: &mut Roll<'_>,
    own: &Own,
    model: &Divided<'_>,
) -> Result<Option<Told>, Failure> {
    let Divided { header, load, .. } = model;
    let (boards, called) = known(roll, (own, model))?;
    let best = plan(model, &boards)?;
    let plan = kept(model, &boards, best.token_s()).unwrap_or(best);
    let file = plan.ring_file(header.n_layers);
    Topology::parse(&file).map_err(|e| Failure::input(&e))?;
    if !roll.flags.is_quiet {
        plan.table().lines().for_each(note);
        let task = Task::new(load, &boards);
        if let Ok(parts) = solve(&task, Objective::Latency, None) {
            let of_one = 1.0 / task.figures(&parts).token_s;
            note(&format!("as a ring, without --team auto: {of_one:.1} tokens/s of one stream"));
        }
    }
    let nodes = plan.nodes().map(|(board, _)| board.name.clone()).collect();
    let others = boards.iter().skip(1).zip(&called);
    let others: Vec<_> = others.map(|(board, place)| (place, &*board.name, true)).collect();
    let told = roll.tell(&others, &file)?;
    Ok(told.map(|are_told| Told { boards, called, nodes, file, are_told }))
}

/// Says what a team of the boards of a ring would give, if that is much.
pub(super) fn hint(header: &Header, load: &Load, known: &[Board], token_s: f64) {
    let Ok(team) = TeamPlan::new(header, load, known) else { return };
    if team.lacks().is_none() && WORTH_IT * team.token_s() < token_s {
        let of_one = 1.0 / team.token_s();
        note(&format!("as a team, with --team auto: {of_one:.1} tokens/s of one stream"));
    }
}

/// This board and those that are there, which have memory enough together. As long as they have not, those that are
/// away are waited for. One that lacks memory where the others have enough is left out.
fn known(roll: &mut Roll<'_>, (own, model): (&Own, &Divided<'_>)) -> Result<Known, Failure> {
    loop {
        let (mut known, called) = roll.fleet(own, model.kind)?;
        let Some((name, need)) = plan(model, &known)?.lacks().map(|(n, need)| (n.to_owned(), need))
        else {
            return Ok((known, called));
        };
        let gb = need as f64 / 1e9;
        let index = known.iter().position(|board| board.name == name).unwrap_or(0);
        if index > 0 && known.len() > 2 {
            known.remove(index);
            if plan(model, &known)?.lacks().is_none() {
                let why = format!("it has too little memory: its part needs {gb:.2} GB");
                roll.leave_out(&called[index - 1], Some(&name), why);
                continue;
            }
        }
        let what = format!(
            "the boards have too little memory for this model: {name} needs {gb:.2} GB for its part"
        );
        if called.len() == roll.n_places() {
            return Err(Failure::Runtime(what));
        }
        warn(&format!("{what}; waiting for the others"));
    }
}

fn plan<'a>(model: &Divided<'_>, known: &'a [Board]) -> Result<TeamPlan<'a>, Failure> {
    let plan = TeamPlan::new(model.header, model.load, known);
    plan.map_err(|e| Failure::Input(format!("{e}: name the boards that are to be in it")))
}

/// The split that is kept, if it is one of these boards that does for a token not much longer than `best_s`.
fn kept<'a>(model: &Divided<'_>, known: &'a [Board], best_s: f64) -> Option<TeamPlan<'a>> {
    let topology = Topology::parse(&fs::read_to_string(model.kept_at).ok()?).ok()?;
    let TeamPlace { nodes, layers, .. } = topology.team(&known[0].name)?;
    let board = |(name, address): (&String, &Address)| {
        known.iter().find(|board| (&board.name, &board.address) == (name, address))
    };
    let boards: Vec<&Board> =
        nodes.iter().map(|node| board((&node.name, &node.address))).collect::<Option<_>>()?;
    let is_same = boards.len() == known.len()
        && boards[0].name == known[0].name
        && layers == (0..model.header.n_layers);
    let shares = nodes.iter().map(|node| node.share).collect();
    let plan = TeamPlan::with_shares(model.header, model.load, boards, shares).ok()?;
    let is_good = is_same && plan.lacks().is_none() && plan.token_s() <= WORTH_IT * best_s;
    is_good.then_some(plan)
}
