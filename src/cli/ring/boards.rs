//! `--boards`: a master without a ring file calls its boards, which share the model.

use std::path::Path;
use std::sync::Arc;

use super::events::Words;
use super::fetch;
use super::flags::{RingFile, RingFlags};
use super::speeds;
use crate::channel::PORT_DEFAULT as PORT_OF_LAYERS;
use crate::cli::{Failure, key, model_files, options};
use crate::engine::{Cache, Engine, Options};
use crate::fleet::caller::Caller;
use crate::fleet::error::FleetError;
use crate::fleet::events::{Shape, Teller};
use crate::fleet::figures::{self, Measuring, Own};
use crate::fleet::form::form;
use crate::fleet::load::{self, Asked};
use crate::fleet::members::Kind;
use crate::fleet::roll::Divided;
use crate::fleet::split::file_name;
use crate::fleet::wanted::{Boards, Wanted};
use crate::ring::PORT_DEFAULT;
use crate::ring::plan::Objective;
use crate::sys::notify;
use crate::sys::power::Meter;

/// Calls the boards that `flags` name, and adds the resulting ring file to the flags; without such boards the
/// flags stay unchanged.
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
    let caller = caller(flags)?;
    let model = model_files::open_whole(path)?;
    let sizes = load::sizes(model.header(), asked);
    let load = load::load(model.header(), &sizes).map_err(|e| Failure::input(&e))?;
    let folder = fetch::folder_of_master(cache);
    notify::start();
    let own = measured(flags, (options, meter), &folder)?;
    let (header, kind, kept_at) = (model.header(), Kind::of(&model), folder.join(file_name(path)));
    let divided = Divided { header, load: &load, kind, kept_at: &kept_at };
    let wanted = wanted(flags, boards);
    let formed = form(&wanted, &caller, &divided, &own).map_err(failure)?;
    flags.file = Some(RingFile::Told(formed.file));
    // A master that has the model alone until boards come, or until it is throttled, is a ring of one.
    if formed.has_others {
        (flags.give, flags.fleet) = (Some(wanted.give), Some(formed.fleet));
    }
    Ok(())
}

/// The words for what happens to the boards of `flags`.
pub(super) fn events(flags: &RingFlags) -> Teller {
    Arc::new(Words { is_quiet: flags.is_quiet })
}

fn wanted(flags: &RingFlags, sought: Boards) -> Wanted {
    Wanted {
        sought,
        shape: if flags.is_team { Shape::Team } else { Shape::Ring },
        objective: flags.objective,
        patience: flags.rebalance_after,
        is_taking: flags.is_taking,
        name: flags.node.clone().unwrap_or_else(figures::name),
        host: flags.host.clone(),
        port: flags.port.unwrap_or(PORT_DEFAULT),
        give: flags.give.unwrap_or(PORT_OF_LAYERS),
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
        FleetError::Places(_) | FleetError::Shares(_) | FleetError::File(_) => {
            Failure::Input(error.to_string())
        }
        FleetError::NoneLeft(_) => Failure::Ring(error.to_string()),
    }
}

/// The option that asks for boards.
fn asked_by(flags: &RingFlags) -> &'static str {
    if flags.is_team { "--team auto" } else { "--boards" }
}

/// How boards are called: with the key, which they have.
fn caller(flags: &RingFlags) -> Result<Caller, Failure> {
    let is_for_rings = matches!(flags.objective, Objective::Energy | Objective::Memory);
    if flags.is_team && is_for_rings {
        return Err(Failure::Usage(
            "--objective is for rings: a team is as quick as it can be for one stream".to_owned(),
        ));
    }
    let Some(key) = &flags.key else {
        let what = asked_by(flags);
        return Err(Failure::Usage(format!("{what} needs --key: the key file of the boards")));
    };
    Ok(Caller { key: key::read(key)?, events: events(flags) })
}

/// Figures of this board, with its power if that counts.
fn measured(
    flags: &RingFlags,
    measured_by: (&Options, Option<&Meter>),
    folder: &Path,
) -> Result<Own, Failure> {
    let own = own(flags, measured_by, folder)?;
    // A sensor may not have answered.
    check_watts(flags, own.speeds.iter().any(|speed| speed.milliwatts.is_some()))?;
    Ok(own)
}

/// Figures of this board with the threads that `options` ask for, and its power, measured by its meter or
/// stated by the user. Figures that `folder` keeps are not measured again.
pub(super) fn own(
    flags: &RingFlags,
    (options, meter): (&Options, Option<&Meter>),
    folder: &Path,
) -> Result<Own, Failure> {
    let kernels = Engine::kernels(None, options.isa).map_err(options::engine_failure)?;
    let meter = meter.filter(|_| flags.watts.is_none());
    let (cpus, sensor) = (options.cpus(), meter.map_or("no sensor", Meter::name));
    let wanted = options.threads.map_or("any", |_| "these");
    let machine = format!("{} {cpus:?} {wanted} {sensor}", kernels.isa().name());
    let milliwatts =
        flags.watts.map(|watts| ((watts.idle * 1e3) as u32, (watts.busy * 1e3) as u32));
    let measure = &mut || speeds::measure(options, meter);
    figures::own(folder, Measuring { machine: &machine, milliwatts, measure }, &*events(flags))
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
