//! A board's part in a ring: its layers, its links, and on the master the ring itself.

use std::ops::Range;
use std::sync::Arc;

use super::boards::Boards;
use super::error::PartError;
use super::events::{Event, Shape};
use super::interrupt::is_interrupted;
use super::mailbox::Mailbox;
use super::moves::Moves;
use super::place::Seat;
use super::settings::Settings;
use super::{layers, links, load};
use crate::engine::ring::{ChangesBy, Heat, MachineReading, RingOptions};
use crate::engine::{Engine, JoinError, StepError, WeightsPlace};
use crate::format::model::Header;
use crate::group::Notice;
use crate::model::{Model, Share};
use crate::ring::{Address, Misfits};
use crate::sys::cpu;
use crate::sys::heat::Thermometer;
use crate::sys::power::Meter;
use crate::transport::Endpoint;
use crate::transport::place::HostPort;
use crate::wire::hello::{self, RingInfo};

/// A board that knows its place in a ring.
pub(super) struct RingBoard<'a> {
    settings: &'a Settings,
    seat: Seat,
    share: Share,
}

/// A ring that can be asked and changed while it works.
pub(super) struct Tended {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) moves: Arc<Moves>,
    changes: ChangesBy,
}

/// Sensors of this machine; by default none.
#[derive(Default)]
pub struct Sensors {
    pub(crate) meter: Option<Arc<Meter>>,
    pub(crate) heat: Option<Thermometer>,
}

impl Sensors {
    /// The present readings; `is_computing` says whether the board's part computes just now.
    pub(super) fn read(&self, is_computing: bool) -> MachineReading {
        let heat = self.heat.as_ref().and_then(Thermometer::read);
        MachineReading {
            joules: self.meter.as_ref().and_then(|meter| meter.compute(is_computing)),
            heat: heat.map(|(degrees, is_slowed)| Heat { degrees, is_slowed }),
        }
    }
}

impl<'a> RingBoard<'a> {
    /// The board by its settings, for a model with this header.
    ///
    /// # Errors
    /// If they give it no place.
    pub(super) fn new(settings: &'a Settings, header: &Header) -> Result<RingBoard<'a>, PartError> {
        let seat = Seat::find(settings, header.n_layers)?;
        let share = Share { layers: seat.place.layers.clone(), has_ends: settings.is_master };
        Ok(RingBoard { settings, seat, share })
    }

    /// True if there are other boards, now or later.
    pub(super) fn has_others(&self) -> bool {
        self.seat.place.next.is_some()
    }

    /// The model with this board's weights alone.
    ///
    /// # Errors
    /// If the file has not all of them.
    pub(super) fn narrow(&self, model: Model, place: &WeightsPlace) -> Result<Model, PartError> {
        if model.header().slice().is_some() {
            return Err(PartError::SomeRows(self.seat.place.name.clone()));
        }
        narrow(model, &self.share, &self.seat.place.name, place)
    }

    /// Number of threads that the ring file gives this board, if it does; no more than there are cores, because a thread
    /// without a core delays the rest. The user hears of a limit.
    pub(super) fn threads(&self) -> Option<usize> {
        let told = usize::from(self.seat.place.threads?);
        let cores = cpu::cores().len();
        if told > cores {
            self.settings.events.tell(&Event::TooManyThreads { told, cores });
        }
        Some(told.min(cores))
    }

    /// Name of the board.
    pub(super) fn name(&self) -> &str {
        &self.seat.place.name
    }

    /// Host at which this board listens.
    pub(super) fn host(&self) -> &str {
        &self.seat.place.listen.host
    }

    /// Opens the links of `model`'s share to the neighbours.
    ///
    /// # Errors
    /// If the system refuses them.
    pub(super) fn endpoint(&self, model: &Model) -> Result<Box<dyn Endpoint>, PartError> {
        let (settings, place) = (self.settings, &self.seat.place);
        let node = RingInfo {
            held: wire_layers(&model.file().share().layers),
            // Layers that the master gives may be others by now.
            wish: (!settings.boards.are_told()).then(|| wire_layers(&self.share.layers)),
            is_master: self.share.has_ends,
            ..links::info(settings, model, &place.name)?
        };
        let listen = &place.listen;
        links::warn_of_strangers(settings, &listen.host, &listen.to_string(), Shape::Ring);
        let mut config = links::config(settings, node)?;
        // Boards that another master told, or this one before, may still be at work.
        config.prev = if settings.boards.are_told() { self.neighbour(-1) } else { None };
        let are_known = matches!(settings.boards, Boards::Layers(_));
        config.next = if are_known { self.neighbour(1) } else { None };
        let at = |address: &Address| HostPort::new(&address.host, address.port);
        let ends = (at(listen), place.next.as_ref().map(at));
        let endpoint = links::open(settings, config, ends, true)?;
        settings.events.tell(&Event::Linked { place, endpoint: &*endpoint });
        Ok(endpoint)
    }

    /// Name of the node that is this number of `places` behind this one in the ring, if it is known.
    fn neighbour(&self, places: isize) -> Option<hello::Name> {
        let members = &self.seat.members;
        let own = members.iter().position(|member| member.name == self.seat.place.name)?;
        let (own, n) = (own as isize, members.len() as isize);
        let member = members.get((own + places).rem_euclid(n) as usize)?;
        Some(hello::name(&member.name))
    }

    /// Makes the ring that `engine` is to lead one that can be asked and changed. Its layers move by themselves if the
    /// settings ask for it. `weights` is the place of the weights.
    ///
    /// # Errors
    /// If the model is too large to count, or the system refuses a thread.
    pub(super) fn tend(
        &self,
        engine: &Engine,
        weights: &WeightsPlace,
    ) -> Result<Tended, PartError> {
        let settings = self.settings;
        let patience = settings.wishes.patience;
        let misfits = match (&settings.fleet, patience) {
            (None, _) => Misfits::End,
            (Some(_), None) => Misfits::Wait,
            (Some(_), Some(_)) => Misfits::LeaveOut,
        };
        let (mailbox, changes) = Mailbox::new(weights, misfits);
        let mailbox = Arc::new(mailbox);
        let load = load::load(engine.header(), engine.plan()).map_err(PartError::Load)?;
        let weights = (weights.clone(), engine.about().isa);
        let (fleet, events) = (settings.fleet.clone(), Arc::clone(&settings.events));
        let moves = Arc::new(Moves::new(Arc::clone(&mailbox), load, weights, fleet, events));
        if let Some(after) = patience {
            layers::keep(Arc::clone(&moves), settings.wishes.objective, after)
                .map_err(PartError::Watch)?;
        }
        Ok(Tended { mailbox, moves, changes })
    }

    /// Makes `engine` the master of the ring over `endpoint`, and waits until the ring is complete. `sensors` measure this
    /// board.
    ///
    /// # Errors
    /// If the ring cannot be completed.
    pub(super) fn join(
        &self,
        endpoint: Box<dyn Endpoint>,
        engine: &mut Engine,
        Tended { mailbox, changes, .. }: Tended,
        sensors: Sensors,
    ) -> Result<(), PartError> {
        let settings = self.settings;
        let (dim, wire) = (engine.header().row_width() as u32, settings.links.wire);
        let events = Arc::clone(&settings.events);
        let options = RingOptions {
            name: self.seat.place.name.clone(),
            n_nodes: self.seat.n_nodes,
            members: self.seat.members.clone(),
            wire,
            timeout: settings.links.timeout,
            epoch: links::random_epoch()?,
            is_interrupted,
            tell: Box::new(move |notice, lines| {
                mailbox.hear(notice, lines, &notice.to_string());
                events.tell(&match notice {
                    Notice::Opened { again: false } => Event::RingOpened { lines, dim, wire },
                    notice => Event::Ring { notice, is_worker: false },
                });
            }),
            meter: Box::new(move |is_computing| sensors.read(is_computing)),
            changes: Some(changes),
        };
        engine.join(endpoint, options).map_err(|e| match e {
            JoinError::Step(e) => self.settings.lost(e),
            e => PartError::Join(e),
        })
    }
}

impl Settings {
    /// The error of boards that were lost, with their own reasons, if they gave some.
    pub(super) fn lost(&self, error: StepError) -> PartError {
        let unfit = self.fleet.as_ref().and_then(|fleet| fleet.holds.unfit());
        PartError::Step(error, unfit)
    }
}

/// The model with the weights of `share` alone, which the board called `name` has.
pub(super) fn narrow(
    model: Model,
    share: &Share,
    name: &str,
    place: &WeightsPlace,
) -> Result<Model, PartError> {
    if !model.share().includes(share) {
        return Err(PartError::Lacks {
            name: name.to_owned(),
            held: model.share().layers.clone(),
            wanted: share.layers.clone(),
            n_layers: model.header().n_layers,
        });
    }
    // The fingerprint, which all boards must share, may have to be computed from the whole file.
    place.recall(&model);
    model.with_share(share.clone()).map_err(PartError::Model)
}

fn wire_layers(layers: &Range<usize>) -> Range<u32> {
    layers.start as u32..layers.end as u32
}
