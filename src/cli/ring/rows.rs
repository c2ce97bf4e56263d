//! `--team auto` with `--rebalance-after`: rows that move by themselves.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Receiver;

use super::control::Control;
use crate::cli::Failure;
use crate::engine::Engine;
use crate::engine::team::OtherTeam;
use crate::fleet::load;
use crate::fleet::rows::{self, Links, Team};
use crate::fleet::settings::Settings;

/// Shares the rows of the team that `engine` leads again among its boards, if the settings ask for it: the
/// engine takes changes from the returned receiver. Boards that get ready are counted in `n_coming`.
pub(in crate::cli) fn watch(
    settings: &Settings,
    engine: &Engine,
    control: &Control,
    (links, n_coming): (Links, Arc<AtomicUsize>),
) -> Result<Option<Receiver<OtherTeam>>, Failure> {
    let (Some(after), Some(fleet)) = (settings.wishes.patience, settings.fleet.clone()) else {
        return Ok(None);
    };
    let header = engine.header().clone();
    let load = load::load(&header, engine.plan()).map_err(|e| Failure::input(&e))?;
    let team = Team { fleet, header, load, links, n_coming, desk: control.desk() };
    let asked = rows::keep(team, after).map_err(|e| {
        Failure::Runtime(format!("cannot start the thread of --rebalance-after: {e}"))
    })?;
    Ok(Some(asked))
}
