//! `--team auto`: the boards of `--boards` share every layer by rows, each as much as it is quick.

use std::fs;
use std::time::Instant;

use super::figures::Own;
use super::flags::{RingFile, RingFlags};
use super::fleet::Fleet;
use super::hold::Holds;
use super::origin::Boards;
use super::roll::{Divided, Known, fleet, until_there};
use crate::channel;
use crate::cli::plan::team::TeamPlan;
use crate::cli::{Failure, note, warn};
use crate::format::model::Header;
use crate::ring::plan::{Board, Load, Objective, Task, solve};
use crate::ring::{Address, TeamPlace, Topology};
use crate::wire::call::Call;
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
    let Divided { header, load, .. } = model;
    let (boards, called) = known(flags, places, (own, &model), &key)?;
    let known = &*boards;
    let best = plan(&model, known)?;
    let plan = kept(&model, known, best.token_s()).unwrap_or(best);
    let file = plan.ring_file(header.n_layers);
    if let Err(e) = Topology::parse(&file) {
        let what =
            format!("{e}: boards of one machine need --port, as far apart as there are boards");
        return Err(Failure::Input(what));
    }
    if !flags.is_quiet {
        plan.table().lines().for_each(note);
        let task = Task::new(load, known);
        if let Ok(parts) = solve(&task, Objective::Latency, None) {
            let of_one = 1.0 / task.figures(&parts).token_s;
            note(&format!("as a ring, without --team auto: {of_one:.1} tokens/s of one stream"));
        }
    }
    let port = flags.give.unwrap_or(channel::PORT_DEFAULT);
    // One that goes away just now is told or left out later.
    let patience = (Instant::now(), flags.rebalance_after);
    let mut are_told = true;
    for address in &called {
        let call = Call::Ring { port, file: &file };
        let told = until_there(address, &key, patience, &mut |called| called.tell(&call))?;
        are_told &= told.is_some();
    }
    let nodes = plan.nodes().map(|(board, _)| board.name.clone()).collect();
    let fleet = Fleet {
        boards,
        called,
        nodes,
        kind: model.kind,
        sought,
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

/// Says what a team of the boards of a ring would give, if that is much.
pub(super) fn hint(header: &Header, load: &Load, known: &[Board], token_s: f64) {
    let Ok(team) = TeamPlan::new(header, load, known) else { return };
    if team.lacks().is_none() && WORTH_IT * team.token_s() < token_s {
        let of_one = 1.0 / team.token_s();
        note(&format!("as a team, with --team auto: {of_one:.1} tokens/s of one stream"));
    }
}

/// This board and those that are there, which have memory enough together. As long as they have not, those that are
/// away are waited for.
fn known(
    flags: &RingFlags,
    places: &[Address],
    (own, model): (&Own, &Divided<'_>),
    key: &Key,
) -> Result<Known, Failure> {
    loop {
        let (known, called) = fleet(flags, places, (own, model.kind), key)?;
        let Some((name, need)) = plan(model, &known)?.lacks().map(|(n, need)| (n.to_owned(), need))
        else {
            return Ok((known, called));
        };
        let need = need as f64 / 1e9;
        let what = format!(
            "the boards have too little memory for this model: {name} needs {need:.2} GB for its part"
        );
        if called.len() == places.len() {
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
