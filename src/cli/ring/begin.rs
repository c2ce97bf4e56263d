//! The start of a master or a lead.

use std::path::Path;
use std::sync::Arc;

use super::control::Control;
use super::team;
use crate::cli::boards::failure;
use crate::cli::model_files::{self, Loaded};
use crate::cli::{Failure, power};
use crate::engine::{Engine, StepError, WeightsPlace};
use crate::fleet::error::PartError;
use crate::fleet::give;
use crate::fleet::ring_board::{RingBoard, Sensors};
use crate::fleet::settings::Settings;
use crate::fleet::team_board::TeamBoard;
use crate::sys::heat::Thermometer;
use crate::sys::notify;
use crate::sys::power::Meter;

/// The model of a master: its share, with the tokenizer; or the whole one in a ring of one. Other boards get their
/// layers from it, if the settings say so.
pub(in crate::cli) fn load<'a>(
    settings: &'a Settings,
    place: &WeightsPlace,
    tokenizer: Option<&Path>,
) -> Result<(Loaded, Option<RingBoard<'a>>), Failure> {
    let fail = |e| failure(settings.named_by, e);
    let mut board = None;
    let loaded = model_files::load_with(place.model.as_deref(), tokenizer, |model| {
        let part = RingBoard::new(settings, model.header()).map_err(fail)?;
        let model = match part.has_ring() {
            true => part.narrow(model, place).map_err(fail)?,
            false => model_files::whole(model)?,
        };
        board = Some(part);
        Ok(model)
    })?;
    if let (Some(port), Some(board)) = (settings.gives, &board) {
        let at = (board.host(), port);
        give::start(settings, at, place.model.as_deref(), &loaded.model).map_err(fail)?;
    }
    Ok((loaded, board.filter(RingBoard::has_ring)))
}

/// Makes `engine` the lead of `team`, the master of `board`'s ring, or both, calls `announce`, and waits
/// until all other boards are there. Returns the control by which it may be asked; `None` if there are none.
pub(in crate::cli) fn begin(
    engine: &mut Engine,
    (team, board): (Option<&TeamBoard<'_>>, Option<&RingBoard<'_>>),
    (settings, place): (&Settings, &WeightsPlace),
    meter: Option<Arc<Meter>>,
    announce: &dyn Fn(),
) -> Result<Option<Control>, Failure> {
    let fail = |e| failure(settings.named_by, e);
    match (team, board) {
        (None, None) => Ok(None),
        (Some(team), None) => {
            announce();
            let (control, mailbox) = team::control(settings, place)?;
            team.lead(engine, &mailbox).map_err(fail)?;
            Ok(Some(control))
        }
        (team, Some(board)) => {
            team.iter().try_for_each(|team| team.lead_place(engine)).map_err(fail)?;
            let endpoint = board.endpoint(engine.model()).map_err(fail)?;
            announce();
            team.iter().try_for_each(|team| team.assemble(engine)).map_err(fail)?;
            let tended = board.tend(engine, place).map_err(fail)?;
            let control = Control::start(settings, &tended)?;
            let sensors = Sensors { meter, heat: thermometer()? };
            board.join(endpoint, engine, tended, sensors).map_err(fail)?;
            team.iter().for_each(|team| team.describe(engine));
            Ok(Some(control))
        }
    }
}

/// The thermometer of this machine, if it has one.
pub(in crate::cli) fn thermometer() -> Result<Option<Thermometer>, Failure> {
    Thermometer::start(power::board()?).map_err(|e| Failure::runtime(&e))
}

/// Sorts what ends a ring under its exit code.
pub(in crate::cli) fn step_failure(error: StepError) -> Failure {
    failure("", PartError::Step(error, None))
}

/// Tells the service manager that this board is up. Services that depend on it may start: neighbours come in
/// their own time.
pub(in crate::cli) fn announce() {
    notify::start();
    notify::ready();
    notify::status("waiting for the ring");
}
