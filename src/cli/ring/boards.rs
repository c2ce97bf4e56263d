//! A master calls its boards, which share the model.

use std::path::Path;
use std::sync::Arc;

use super::events::Words;
use super::fetch;
use super::speeds;
use crate::channel::PORT_DEFAULT as PORT_OF_LAYERS;
use crate::cli::{Failure, model_files, options};
use crate::engine::{Cache, Engine, Options};
use crate::fleet::boards::{Boards, RingFile, Sought};
use crate::fleet::caller::Caller;
use crate::fleet::error::FleetError;
use crate::fleet::events::{Shape, Teller};
use crate::fleet::figures::{self, Measuring, Own};
use crate::fleet::form::form;
use crate::fleet::load::{self, Asked};
use crate::fleet::members::Kind;
use crate::fleet::roll::Divided;
use crate::fleet::settings::Settings;
use crate::fleet::split::file_name;
use crate::fleet::wanted::Wanted;
use crate::ring::PORT_DEFAULT;
use crate::ring::plan::Objective;
use crate::sys::notify;
use crate::sys::power::Meter;

/// Calls the boards that `settings` name, and puts the resulting ring file in their place; without such boards the
/// settings stay unchanged.
pub(in crate::cli) fn gather(
    settings: &mut Settings,
    model: Option<&Path>,
    asked: Asked,
    cache: &Cache,
    (options, meter): (&Options, Option<&Meter>),
) -> Result<(), Failure> {
    let (Boards::Called(sought, shape), Some(path)) = (settings.boards.clone(), model) else {
        return Ok(());
    };
    check_watts(settings, meter.is_some() || settings.milliwatts.is_some())?;
    let caller = caller(settings, shape)?;
    let model = model_files::open_whole(path)?;
    let sizes = load::sizes(model.header(), asked);
    let load = load::load(model.header(), &sizes).map_err(|e| Failure::input(&e))?;
    let folder = fetch::folder_of_master(cache);
    notify::start();
    let own = measured(settings, (options, meter), &folder)?;
    let (header, kind, kept_at) = (model.header(), Kind::of(&model), folder.join(file_name(path)));
    let divided = Divided { header, load: &load, kind, kept_at: &kept_at };
    let wanted = wanted(settings, sought, shape);
    let formed = form(&wanted, &caller, &divided, &own).map_err(failure)?;
    settings.boards = Boards::Layers(RingFile::Told(formed.file));
    // A master that has the model alone until boards come, or until it is throttled, is a ring of one.
    if formed.has_others {
        (settings.gives, settings.fleet) = (Some(wanted.give), Some(formed.fleet));
    }
    Ok(())
}

/// The words for what happens to the boards of `settings`.
pub(super) fn events(settings: &Settings) -> Teller {
    Arc::new(Words { is_quiet: settings.is_quiet })
}

fn wanted(settings: &Settings, sought: Sought, shape: Shape) -> Wanted {
    Wanted {
        sought,
        shape,
        objective: settings.wishes.objective,
        patience: settings.wishes.patience,
        is_taking: settings.wishes.is_taking,
        name: settings.node.clone().unwrap_or_else(figures::name),
        host: settings.links.host.clone(),
        port: settings.links.port.unwrap_or(PORT_DEFAULT),
        give: settings.gives.unwrap_or(PORT_OF_LAYERS),
    }
}

/// Sorts what ends a fleet under its exit code.
fn failure(error: FleetError) -> Failure {
    match &error {
        FleetError::Interrupted
        | FleetError::Search(_)
        | FleetError::NoSplit(_)
        | FleetError::Memory { .. } => Failure::runtime(&error),
        FleetError::Name(_) => Failure::Usage(error.to_string()),
        FleetError::Shares(_) | FleetError::File(_) => Failure::Input(error.to_string()),
        FleetError::NoneLeft(_) => Failure::Ring(error.to_string()),
    }
}

/// How boards are called: with the key, which they have.
fn caller(settings: &Settings, shape: Shape) -> Result<Caller, Failure> {
    let is_for_rings = matches!(settings.wishes.objective, Objective::Energy | Objective::Memory);
    if shape == Shape::Team && is_for_rings {
        return Err(Failure::Usage(
            "--objective is for rings: a team is as quick as it can be for one stream".to_owned(),
        ));
    }
    let Some(key) = settings.links.key.clone() else {
        let what = settings.named_by;
        return Err(Failure::Usage(format!("{what} needs --key: the key file of the boards")));
    };
    Ok(Caller { key, events: events(settings) })
}

/// Figures of this board, with its power if that counts.
fn measured(
    settings: &Settings,
    measured_by: (&Options, Option<&Meter>),
    folder: &Path,
) -> Result<Own, Failure> {
    let own = own(settings, measured_by, folder)?;
    // A sensor may not have answered.
    check_watts(settings, own.speeds.iter().any(|speed| speed.milliwatts.is_some()))?;
    Ok(own)
}

/// Figures of this board with the threads that `options` ask for, and its power, measured by its meter or
/// stated by the user. Figures that `folder` keeps are not measured again.
pub(super) fn own(
    settings: &Settings,
    (options, meter): (&Options, Option<&Meter>),
    folder: &Path,
) -> Result<Own, Failure> {
    let kernels = Engine::kernels(None, options.isa).map_err(options::engine_failure)?;
    let meter = meter.filter(|_| settings.milliwatts.is_none());
    let (cpus, sensor) = (options.cpus(), meter.map_or("no sensor", Meter::name));
    let wanted = options.threads.map_or("any", |_| "these");
    let machine = format!("{} {cpus:?} {wanted} {sensor}", kernels.isa().name());
    let milliwatts = settings.milliwatts;
    let measure = &mut || speeds::measure(options, meter);
    figures::own(folder, Measuring { machine: &machine, milliwatts, measure }, &*events(settings))
}

fn check_watts(settings: &Settings, are_known: bool) -> Result<(), Failure> {
    match settings.wishes.objective {
        Objective::Energy if !are_known => Err(Failure::Usage(
            "--objective energy needs --watts IDLE,BUSY of this board, and of each worker without a sensor"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}
