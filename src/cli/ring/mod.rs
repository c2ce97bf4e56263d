//! This board's part in a ring: what the flags and the ring file say.

pub(super) mod boards;
pub(super) mod carrier;
mod command;
mod control;
mod events;
pub(super) mod fetch;
mod flags;
mod give;
pub(super) mod join;
mod rows;
mod speeds;
mod status;
mod team;
mod tell;

use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::boards::failure as boards_failure;
use super::model_files::{self, Loaded};
use super::{Failure, options, power, readiness, warn};
use crate::engine::ring::{Heat, MachineReading, RingOptions};
use crate::engine::{Engine, JoinError, StepError, WeightsPlace};
use crate::fleet::boards::Boards;
use crate::fleet::interrupt::is_interrupted;
use crate::fleet::place::Seat;
use crate::fleet::settings::Settings;
use crate::format::model::Header;
use crate::model::{Model, Share};
use crate::ring::{Address, Notice};
use crate::sys::heat::Thermometer;
use crate::sys::power::Meter;
use crate::sys::{notify, random};
use crate::transport::Endpoint;
use crate::transport::link::LinkConfig;
use crate::transport::options::CarrierOptions;
use crate::transport::place::HostPort;
use crate::wire::hello::{self, RingInfo};

pub(super) use command::Ring;
pub(super) use control::Control;
pub(super) use flags::{
    RebalanceAfter, control as control_place, patience, rebalance_after, timeout, transport, wire,
    with_reasons,
};
pub(super) use rows::watch as watch_team;
pub(super) use team::control as team_control;
pub(super) use tell::tell;

/// Rows of a prompt that go round at once: small enough that all nodes have some.
pub(super) const BATCH: usize = 64;

/// A board that knows its place.
pub(super) struct Board<'a> {
    settings: &'a Settings,
    seat: Seat,
    share: Share,
}

impl<'a> Board<'a> {
    /// The board by its settings, for a model with this header.
    pub(super) fn new(settings: &'a Settings, header: &Header) -> Result<Board<'a>, Failure> {
        let seat = Seat::find(settings, header.n_layers)
            .map_err(|e| boards_failure(settings.named_by, &e))?;
        let share = Share { layers: seat.place.layers.clone(), has_ends: settings.is_master };
        Ok(Board { settings, seat, share })
    }

    /// Whether there are other boards.
    pub(super) fn has_ring(&self) -> bool {
        self.seat.place.next.is_some()
    }

    /// The model with this board's weights alone.
    pub(super) fn narrow(&self, model: Model, place: &WeightsPlace) -> Result<Model, Failure> {
        if model.header().slice().is_some() {
            let what = format!(
                "the file has only some rows of its layers, and {} needs all",
                self.seat.place.name
            );
            return Err(Failure::Input(what));
        }
        narrow(model, &self.share, &self.seat.place.name, place)
    }

    /// How many threads it is told to use, if it is.
    pub(super) fn threads(&self) -> Option<usize> {
        self.seat.place.threads.map(|threads| options::useful_threads(threads.into()))
    }

    /// Name of the board.
    pub(super) fn name(&self) -> &str {
        &self.seat.place.name
    }

    /// Opens the links of `model`'s share to the neighbours.
    pub(super) fn endpoint(&self, model: &Model) -> Result<Box<dyn Endpoint>, Failure> {
        let settings = self.settings;
        let header = model.header();
        let node = RingInfo {
            model: model.fingerprint().map_err(unreadable)?,
            dim: header.dim as u32,
            n_layers: header.n_layers as u32,
            kv_dim: header.kv_dim() as u32,
            vocab_size: header.vocab_size as u32,
            held: wire_layers(&model.file().share().layers),
            // Layers that the master gives may be others by now.
            wish: (!settings.boards.are_told()).then(|| wire_layers(&self.share.layers)),
            dtype: settings.links.wire,
            is_master: self.share.has_ends,
            name: hello::name(&self.seat.place.name),
            ..RingInfo::default()
        };
        let key = settings.links.key.clone();
        let seed =
            random::seed().map_err(|e| Failure::Runtime(format!("no random numbers: {e}")))?;
        let listen = &self.seat.place.listen;
        if key.is_none() && !is_loopback(&listen.host) {
            warn(&format!(
                "no --key: any machine that reaches {listen} can join, disturb and read the ring"
            ));
        }
        let mut config = LinkConfig::new(node, key, seed);
        // Boards that another master told, or this one before, may still be at work.
        config.prev = if settings.boards.are_told() { self.neighbour(-1) } else { None };
        let are_known = matches!(settings.boards, Boards::Layers(_));
        config.next = if are_known { self.neighbour(1) } else { None };
        let place = |address: &Address| HostPort::new(&address.host, address.port);
        let next = self.seat.place.next.as_ref().map(place);
        let mut options = CarrierOptions::new(config, place(listen), next);
        if let Some(us) = settings.links.busy_poll {
            (options.spin, options.busy_poll_us) = (Duration::from_micros(us.into()), us.into());
        }
        let patience = self.share.has_ends.then_some(settings.links.timeout).flatten();
        let endpoint =
            carrier::open(settings.links.carrier, &options, settings.is_quiet, patience)?;
        endpoint.notices().iter().for_each(|notice| warn(notice));
        if !settings.is_quiet {
            tell::introduce(&self.seat.place, &*endpoint);
        }
        Ok(endpoint)
    }

    /// Name of the node so many places behind this one in the ring, if it is known.
    fn neighbour(&self, places: isize) -> Option<hello::Name> {
        let own =
            self.seat.members.iter().position(|member| member.name == self.seat.place.name)?;
        let (own, n) = (own as isize, self.seat.members.len() as isize);
        let member = self.seat.members.get((own + places).rem_euclid(n) as usize)?;
        Some(hello::name(&member.name))
    }

    /// Makes `engine` the master of the ring over `endpoint`, and waits until that is complete. `weights`
    /// says where these are kept, `meter` measures this board's energy. Returns the control socket's server.
    pub(super) fn join(
        &self,
        endpoint: Box<dyn Endpoint>,
        engine: &mut Engine,
        weights: &WeightsPlace,
        meter: Option<Arc<Meter>>,
    ) -> Result<Control, Failure> {
        let settings = self.settings;
        let (control, changes) = Control::start(settings, engine, weights)?;
        let heat = thermometer()?;
        let hear = control.ear();
        let (is_quiet, dim, wire) =
            (settings.is_quiet, engine.header().dim as u32, settings.links.wire);
        let options = RingOptions {
            name: self.seat.place.name.clone(),
            n_nodes: self.seat.n_nodes,
            members: self.seat.members.clone(),
            wire,
            timeout: settings.links.timeout,
            epoch: random_epoch()?,
            is_interrupted,
            tell: Box::new(move |notice, lines| {
                hear(notice, lines);
                match notice {
                    Notice::Opened { again: false } if !is_quiet => {
                        tell::describe(lines, dim, wire);
                    }
                    Notice::Opened { again: false } => {}
                    _ => tell(notice),
                }
            }),
            meter: Box::new(move |is_computing| MachineReading {
                joules: meter.as_ref().and_then(|meter| meter.compute(is_computing)),
                heat: heat.as_ref().and_then(heat_of),
            }),
            changes: Some(changes),
        };
        engine.join(endpoint, options).map_err(|e| match e {
            JoinError::Step(StepError::Interrupted) => Failure::Runtime("interrupted".to_owned()),
            JoinError::Step(e) => flags::with_reasons(settings, step_failure(&e)),
            e => Failure::runtime(&e),
        })?;
        Ok(control)
    }
}

/// The model with the weights of `share` alone, which the board called `name` has.
pub(super) fn narrow(
    model: Model,
    share: &Share,
    name: &str,
    place: &WeightsPlace,
) -> Result<Model, Failure> {
    let (own, Range { start, end }) = (&model.share().layers, &share.layers);
    if !model.share().includes(share) {
        return Err(Failure::Input(format!(
            "the file holds layers {}..{} of {}, and {name} has {start}..{end}: give it the whole \
             model, or what `leap export --layers {start}..{end}` writes",
            own.start,
            own.end,
            model.header().n_layers,
        )));
    }
    // All boards show the same fingerprint, which may have to be made from the whole file.
    place.recall(&model);
    model.with_share(share.clone()).map_err(unreadable)
}

/// The reading of a thermometer.
pub(super) fn heat_of(thermometer: &Thermometer) -> Option<Heat> {
    thermometer.read().map(|(degrees, is_slowed)| Heat { degrees, is_slowed })
}

/// The thermometer of this machine, if it has one.
pub(super) fn thermometer() -> Result<Option<Thermometer>, Failure> {
    Thermometer::start(power::board()?).map_err(|e| Failure::runtime(&e))
}

fn wire_layers(layers: &Range<usize>) -> Range<u32> {
    layers.start as u32..layers.end as u32
}

fn unreadable(error: io::Error) -> Failure {
    Failure::Runtime(format!("cannot read the model: {error}"))
}

/// Sorts what ends a ring under its exit code.
pub(super) fn step_failure(error: &StepError) -> Failure {
    match error {
        StepError::Ring(e) if e.is_lost() => Failure::Ring(e.to_string()),
        StepError::Team(e) => Failure::Ring(e.to_string()),
        _ => Failure::runtime(error),
    }
}

/// The model of a master: its share, with the tokenizer; or the whole one in a ring of one.
pub(super) fn load<'a>(
    settings: &'a Settings,
    place: &WeightsPlace,
    tokenizer: Option<&Path>,
) -> Result<(Loaded, Board<'a>), Failure> {
    let mut board = None;
    let loaded = model_files::load_with(place.model.as_deref(), tokenizer, |model| {
        let part = Board::new(settings, model.header())?;
        let model = match part.has_ring() {
            true => part.narrow(model, place)?,
            false => model_files::whole(model)?,
        };
        board = Some(part);
        Ok(model)
    })?;
    let board = board.ok_or_else(|| Failure::Runtime("no place in the ring".to_owned()))?;
    if let Some(port) = settings.gives {
        give::start((settings, &board.seat.place), port, place.model.as_deref(), &loaded.model)?;
    }
    Ok((loaded, board))
}

/// Tells the service manager that this board is up. Services that depend on it may start: neighbours come in
/// their own time.
pub(super) fn announce() {
    readiness::ready();
    notify::start();
    notify::ready();
    notify::status("waiting for the ring");
}

pub(super) fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

pub(super) fn random_epoch() -> Result<u32, Failure> {
    let seed = random::seed().map_err(|e| Failure::Runtime(format!("no random numbers: {e}")))?;
    Ok(u32::from_le_bytes([seed[0], seed[1], seed[2], seed[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_recognised() {
        assert!(is_loopback("localhost") && is_loopback("127.0.0.9") && is_loopback("::1"));
        assert!(!is_loopback("0.0.0.0") && !is_loopback("10.0.0.1") && !is_loopback("pi.local"));
    }
}
