//! The start of a master with called boards: measures this board, forms the ring or team, and notes it in the settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::boards::{Boards, RingFile, Sought};
use super::caller::Caller;
use super::error::{Aim, PartError};
use super::events::{Event, Shape};
use super::figures::{self, Own};
use super::form::form;
use super::load;
use super::members::Kind;
use super::obtain;
use super::roll::Divided;
use super::settings::Settings;
use super::speeds;
use super::split::file_name;
use super::wanted::Wanted;
use crate::channel::PORT_DEFAULT as PORT_OF_LAYERS;
use crate::engine::{Cache, Options, WeightsPlace};
use crate::model::{Model, PlanError};
use crate::ring::PORT_DEFAULT;
use crate::ring::plan::Objective;
use crate::sys::notify;
use crate::sys::power::Meter;

/// Calls the boards that `settings` name, divides the model of `place` among them, and puts the resulting ring file in
/// their place; without such boards the settings stay unchanged. `options` are those of the master's engine: with their
/// threads this board is measured, and its power by `meter`.
///
/// # Errors
/// If the boards cannot have the model.
pub(crate) fn gather(
    settings: &mut Settings,
    place: &WeightsPlace,
    options: &Options,
    meter: Option<&Meter>,
) -> Result<(), PartError> {
    let (Boards::Called(sought, shape), Some(path)) = (settings.boards.clone(), &place.model)
    else {
        return Ok(());
    };
    check_watts(settings, meter.is_some() || settings.figures.milliwatts.is_some())?;
    let caller = caller(settings, shape)?;
    let model = Model::open(path).map_err(PartError::Open)?;
    if let Some(why) = model.header().why_whole() {
        return Err(PartError::Load(PlanError::Whole(why)));
    }
    let sizes = load::sizes(model.header(), options.into());
    let load = load::load(model.header(), &sizes).map_err(PartError::Load)?;
    let folder = folder(settings, &place.cache);
    notify::start();
    let own = measured(settings, (options, meter), &folder)?;
    let (header, kind, kept_at) = (model.header(), Kind::of(&model), folder.join(file_name(path)));
    let fingerprint = model.fingerprint().map_err(PartError::Model)?;
    let divided = Divided { header, fingerprint, load: &load, kind, kept_at: &kept_at };
    let wanted = wanted(settings, sought, shape);
    let formed = form(&wanted, &caller, &divided, &own).map_err(PartError::Fleet)?;
    settings.boards = Boards::Layers(RingFile::Told(formed.file));
    // A master that has the model alone until boards come, or until it is throttled, is a ring of one.
    if formed.has_others {
        (settings.gives, settings.fleet) = (Some(wanted.give), Some(formed.fleet));
    }
    Ok(())
}

/// The folder in which a master keeps its measurements and the split. If there is none, the master works and keeps
/// nothing.
fn folder(settings: &Settings, cache: &Cache) -> PathBuf {
    obtain::folder(cache).unwrap_or_else(|why| {
        settings.events.tell(&Event::KeepsNothing { why: &why });
        // No file can be made or read there.
        PathBuf::from("/dev/null")
    })
}

fn wanted(settings: &Settings, sought: Sought, shape: Shape) -> Wanted {
    Wanted {
        sought,
        shape,
        wishes: settings.wishes,
        name: settings.node.clone().unwrap_or_else(figures::name),
        host: settings.links.host.clone(),
        port: settings.links.port.unwrap_or(PORT_DEFAULT),
        give: settings.gives.unwrap_or(PORT_OF_LAYERS),
    }
}

/// The means to call boards, with the key that they share.
fn caller(settings: &Settings, shape: Shape) -> Result<Caller, PartError> {
    let is_for_rings = matches!(settings.wishes.objective, Objective::Energy | Objective::Memory);
    if shape == Shape::Team && is_for_rings {
        return Err(PartError::TeamObjective);
    }
    let key = settings.links.key.clone().ok_or(PartError::NoKey(Aim::Call))?;
    Ok(Caller { key, events: Arc::clone(&settings.events) })
}

/// Figures of this board, with its power if that counts.
fn measured(
    settings: &Settings,
    measured_by: (&Options, Option<&Meter>),
    folder: &Path,
) -> Result<Own, PartError> {
    let own = speeds::own(settings, measured_by, folder)?;
    // A sensor may not have answered.
    check_watts(settings, own.speeds.iter().any(|speed| speed.milliwatts.is_some()))?;
    Ok(own)
}

fn check_watts(settings: &Settings, are_known: bool) -> Result<(), PartError> {
    match settings.wishes.objective {
        Objective::Energy if !are_known => Err(PartError::NoWatts),
        _ => Ok(()),
    }
}
