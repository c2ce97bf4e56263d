//! A team's shares: how much of every layer each board computes.

use std::fs;

use super::error::{FleetError, Obstacle};
use super::roll::Divided;
use super::team_plan::TeamPlan;
use crate::ring::plan::Board;
use crate::ring::{Address, TeamPlace, Topology};

/// Smallest ratio by which new shares must be faster than the last ones, whose rows the boards have. Also the smallest
/// ratio by which a team must be faster than a ring to be mentioned.
const WORTH_IT: f64 = 1.1;

/// Seconds per token as a team of these boards, if that is much less than `token_s` as a ring.
pub(super) fn hint(model: &Divided<'_>, known: &[Board], token_s: f64) -> Option<f64> {
    let team = TeamPlan::new(model.header, model.load, known).ok()?;
    let is_much = team.lacks().is_none() && WORTH_IT * team.token_s() < token_s;
    is_much.then(|| team.token_s())
}

/// Checks that each board has memory for its part. If the others have enough without one board, that board is the
/// obstacle.
pub(super) fn check(model: &Divided<'_>, known: &[Board]) -> Result<(), Obstacle> {
    let plan = best(model, known).map_err(Obstacle::End)?;
    let Some((name, need)) = plan.lacks() else { return Ok(()) };
    let index = known.iter().position(|board| board.name == name).unwrap_or(0);
    if index > 0 && known.len() > 2 {
        let mut others = known.to_vec();
        others.remove(index);
        if best(model, &others).map_err(Obstacle::End)?.lacks().is_none() {
            let gb = need as f64 / 1e9;
            let why = format!("it has too little memory: its part needs {gb:.2} GB");
            return Err(Obstacle::Board(index, why));
        }
    }
    Err(Obstacle::Memory(FleetError::Memory { name: name.to_owned(), need }))
}

/// The best shares for these boards.
pub(super) fn best<'a>(
    model: &Divided<'_>,
    known: &'a [Board],
) -> Result<TeamPlan<'a>, FleetError> {
    TeamPlan::new(model.header, model.load, known).map_err(FleetError::Shares)
}

/// The shares in the file, if they are for these boards and not much slower than `best_s` per token.
pub(super) fn kept<'a>(
    model: &Divided<'_>,
    known: &'a [Board],
    best_s: f64,
) -> Option<TeamPlan<'a>> {
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
