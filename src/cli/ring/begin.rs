//! The start of a master or a lead.

use std::path::Path;
use std::sync::Arc;

use super::control::Control;
use crate::cli::boards::failure;
use crate::cli::model_files::{self, Loaded};
use crate::cli::{Failure, power};
use crate::engine::{Engine, StepError, WeightsPlace};
use crate::fleet::error::PartError;
use crate::fleet::master::Master;
use crate::fleet::ring_board::Sensors;
use crate::fleet::settings::Settings;
use crate::sys::heat::Thermometer;
use crate::sys::power::Meter;

/// A master, and its part of the model, with the tokenizer.
pub(in crate::cli) fn load<'a>(
    settings: &'a Settings,
    place: &'a WeightsPlace,
    tokenizer: Option<&Path>,
) -> Result<(Master<'a>, Loaded), Failure> {
    model_files::load_with(place.model.as_deref(), tokenizer, |model| {
        Master::new(settings, model, place).map_err(|e| failure(settings.named_by, e))
    })
}

/// Makes `engine` lead the boards of `master`, calls `announce`, and waits until all are there. Returns the control by
/// which it may be asked; `None` if there are no others.
pub(in crate::cli) fn begin(
    engine: &mut Engine,
    (master, settings): (&Master<'_>, &Settings),
    meter: Option<Arc<Meter>>,
    announce: &dyn Fn(),
) -> Result<Option<Control>, Failure> {
    let fail = |e| failure(settings.named_by, e);
    let Some(opened) = master.open(engine).map_err(fail)? else { return Ok(None) };
    announce();
    let control = Control::start(settings, &opened.led)?;
    let sensors = Sensors { meter, heat: thermometer()? };
    master.join(engine, opened, sensors).map_err(fail)?;
    Ok(Some(control))
}

/// The thermometer of this machine, if it has one.
pub(in crate::cli) fn thermometer() -> Result<Option<Thermometer>, Failure> {
    Thermometer::start(power::board()?).map_err(|e| Failure::runtime(&e))
}

/// Sorts what ends a ring under its exit code.
pub(in crate::cli) fn step_failure(error: StepError) -> Failure {
    failure("", PartError::Step(error, None))
}
