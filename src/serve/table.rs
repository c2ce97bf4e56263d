//! Loaded models, the memory that they take, and the models that requests wait for.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::ApiError;
use super::keep_alive::KeepAlive;
use super::metrics::Metrics;
use super::service::Service;

/// How long a model may be kept from being loaded by new requests for others. After that, those in its way end the
/// answers that they have, and get no more.
const PATIENCE: Duration = Duration::from_secs(1);

/// A model's name, the state of its file, and the memory that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) name: String,
    /// Changes with the file.
    pub(super) digest: String,
    pub(super) memory: u64,
}

/// All models that take memory.
pub(super) struct Table {
    slots: Vec<Slot>,
    /// Models that requests wait for, in the order in which they are loaded.
    line: VecDeque<Waiting>,
    /// Bytes for all models together.
    budget: u64,
    next_id: u64,
    counts: BTreeMap<String, Counts>,
    /// Figures of models that are no longer loaded.
    past: Metrics,
}

/// A model that takes memory.
pub(super) struct Slot {
    pub(super) id: u64,
    pub(super) name: String,
    /// State of the file that it is loaded from.
    digest: String,
    /// Bytes that the model takes, or will take when it is loaded.
    pub(super) memory: u64,
    pub(super) phase: Phase,
    pub(super) keep: KeepAlive,
    /// Whether the model was there before the server, and stays until its end.
    pub(super) is_fixed: bool,
    /// When the last answer ended.
    pub(super) idle: Instant,
    /// Requests that use the model, or wait until it is loaded.
    n_users: usize,
    /// When the last request began to use the model.
    asked: Instant,
    metrics: Option<Arc<Metrics>>,
}

/// State of a model that takes memory.
pub(super) enum Phase {
    Loading,
    Ready(Arc<Service>),
    /// The model could not be loaded; those who waited for it have yet to see this.
    Failed(ApiError),
    /// No request uses the model; its memory is about to be free.
    Ending,
}

struct Waiting {
    model: Wanted,
    n_requests: usize,
    since: Instant,
}

/// How often a model was loaded and dropped.
#[derive(Clone, Copy, Default)]
struct Counts {
    loads: u64,
    drops: u64,
}

/// The result of a request's attempt to use a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The request uses the slot with this id.
    Seat(u64),
    /// So it does, and has to have the model loaded.
    Load(u64),
    /// There is no room yet, or it is another model's turn.
    Wait,
}

impl Slot {
    pub(super) fn is_idle(&self) -> bool {
        self.is_ready() && self.n_users == 0
    }

    fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready(_))
    }

    fn may_go(&self) -> bool {
        self.is_ready() && !self.is_fixed
    }

    fn seat(&mut self, now: Instant) -> u64 {
        self.n_users += 1;
        self.asked = now;
        self.id
    }
}

impl Table {
    /// An empty table for models that take up to `budget` bytes together.
    pub(super) fn new(budget: u64) -> Table {
        Table {
            slots: Vec::new(),
            line: VecDeque::new(),
            budget,
            next_id: 0,
            counts: BTreeMap::new(),
            past: Metrics::default(),
        }
    }

    /// The model that was there before the server.
    pub(super) fn fixed(&self) -> Option<&Arc<Service>> {
        self.slots.iter().filter(|slot| slot.is_fixed).find_map(|slot| match &slot.phase {
            Phase::Ready(service) => Some(service),
            _ => None,
        })
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(super) fn slot(&self, id: u64) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.id == id)
    }

    /// The loaded model that was asked last.
    pub(super) fn latest(&self) -> Option<&Slot> {
        self.slots.iter().filter(|slot| slot.is_ready()).max_by_key(|slot| slot.asked)
    }

    fn slot_mut(&mut self, id: u64) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.id == id)
    }

    /// Lets a request use `model`, if it may at `now`. Drops idle models if that makes room for it.
    pub(super) fn claim(&mut self, model: &Wanted, now: Instant) -> Claim {
        let is_first = self.line.front().is_none_or(|first| first.model.name == model.name);
        let doomed = if is_first { Vec::new() } else { self.in_the_way(now) };
        let is_own =
            |slot: &&mut Slot| slot.name == model.name && !matches!(slot.phase, Phase::Failed(_));
        let is_old = |slot: &&Slot| {
            slot.name == model.name && slot.is_ready() && slot.digest != model.digest
        };
        if let Some(old) = self.slots.iter().find(is_old).map(|slot| slot.id) {
            // The file is another one now. Running answers go on with the one that they began with.
            self.drop_model(old);
            return Claim::Wait;
        }
        if let Some(slot) = self.slots.iter_mut().find(is_own) {
            return match slot.phase {
                Phase::Loading => Claim::Seat(slot.seat(now)),
                Phase::Ready(_) if !doomed.contains(&slot.id) => Claim::Seat(slot.seat(now)),
                _ => Claim::Wait,
            };
        }
        let may_load = match is_first {
            true => self.make_room(model.memory),
            false => self.fits_beside_first(model.memory),
        };
        match may_load {
            true => Claim::Load(self.begin(model, now)),
            false => Claim::Wait,
        }
    }

    /// A slot for `model`, which one request uses already.
    fn begin(&mut self, model: &Wanted, now: Instant) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.slots.push(Slot {
            id,
            name: model.name.clone(),
            digest: model.digest.clone(),
            memory: model.memory,
            phase: Phase::Loading,
            keep: KeepAlive::default(),
            is_fixed: false,
            idle: now,
            n_users: 1,
            asked: now,
            metrics: None,
        });
        id
    }

    /// Adds a model that is loaded already, and stays.
    pub(super) fn add_fixed(&mut self, service: Arc<Service>) {
        let (name, digest) = (service.model.about.name.clone(), service.model.about.digest.clone());
        let id = self.begin(&Wanted { name, digest, memory: 0 }, Instant::now());
        if let Some(slot) = self.slot_mut(id) {
            (slot.keep, slot.is_fixed, slot.n_users) = (KeepAlive::Forever, true, 0);
            slot.metrics = Some(Arc::clone(&service.metrics));
            slot.phase = Phase::Ready(service);
        }
    }

    /// Bytes that are lacking for `memory` more, after those that are about to be free.
    fn lacking(&self, memory: u64) -> u64 {
        let stays = self.slots.iter().filter(|slot| !matches!(slot.phase, Phase::Ending));
        let used: u64 = stays.map(|slot| slot.memory).fold(memory, u64::saturating_add);
        used.saturating_sub(self.budget)
    }

    /// Whether there is room for `memory` more bytes now. Otherwise drops the idle models that were asked longest ago,
    /// if that makes room.
    fn make_room(&mut self, memory: u64) -> bool {
        let used = self.slots.iter().map(|slot| slot.memory).fold(memory, u64::saturating_add);
        if used <= self.budget {
            return true;
        }
        let may_go = |slot: &Slot| slot.may_go() && slot.is_idle();
        let idle = self.longest_unused(self.lacking(memory), may_go);
        for id in idle.unwrap_or_default() {
            self.drop_model(id);
        }
        false
    }

    /// Whether there is room for `memory` more bytes now, and also once the first model of the line is loaded.
    fn fits_beside_first(&self, memory: u64) -> bool {
        let used = self.slots.iter().map(|slot| slot.memory).fold(memory, u64::saturating_add);
        let first = self.line.front().map_or(0, |first| first.model.memory);
        used <= self.budget && first.saturating_add(memory) <= self.budget
    }

    /// Ids of loaded models with `bytes` bytes in all, those first that were asked longest ago; `None` if they have less.
    fn longest_unused(&self, bytes: u64, may_go: impl Fn(&Slot) -> bool) -> Option<Vec<u64>> {
        let mut slots: Vec<&Slot> = self.slots.iter().filter(|slot| may_go(slot)).collect();
        slots.sort_by_key(|slot| slot.asked);
        let mut left = bytes;
        let is_needed = |slot: &&&Slot| {
            let is_needed = left > 0;
            left = left.saturating_sub(slot.memory);
            is_needed
        };
        let ids = slots.iter().take_while(is_needed).map(|slot| slot.id).collect();
        (left == 0).then_some(ids)
    }

    /// Ids of the models that get no more requests, because another one has waited for their memory for too long.
    fn in_the_way(&self, now: Instant) -> Vec<u64> {
        let is_late = |first: &&Waiting| now.saturating_duration_since(first.since) > PATIENCE;
        let Some(first) = self.line.front().filter(is_late) else { return Vec::new() };
        let name = &first.model.name;
        if self.slots.iter().any(|slot| slot.name == *name && !matches!(slot.phase, Phase::Ending))
        {
            return Vec::new();
        }
        self.longest_unused(self.lacking(first.model.memory), Slot::may_go).unwrap_or_default()
    }

    /// Notes that a request waits for `model`.
    pub(super) fn join_line(&mut self, model: &Wanted, now: Instant) {
        match self.line.iter_mut().find(|waiting| waiting.model.name == model.name) {
            Some(waiting) => waiting.n_requests += 1,
            None => {
                let model = model.clone();
                self.line.push_back(Waiting { model, n_requests: 1, since: now });
            }
        }
    }

    /// Notes that a request no longer waits for the model `name`.
    pub(super) fn leave_line(&mut self, name: &str) {
        let Some(at) = self.line.iter().position(|waiting| waiting.model.name == name) else {
            return;
        };
        self.line[at].n_requests -= 1;
        if self.line[at].n_requests == 0 {
            self.line.remove(at);
        }
    }

    /// Notes that the model of slot `id` is loaded.
    pub(super) fn set_ready(&mut self, id: u64, service: Arc<Service>) {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) else { return };
        self.counts.entry(slot.name.clone()).or_default().loads += 1;
        slot.idle = Instant::now();
        slot.metrics = Some(Arc::clone(&service.metrics));
        slot.phase = Phase::Ready(service);
    }

    /// Notes that the model of slot `id` could not be loaded.
    pub(super) fn set_failed(&mut self, id: u64, error: ApiError) {
        if let Some(slot) = self.slot_mut(id) {
            (slot.phase, slot.memory) = (Phase::Failed(error), 0);
        }
        self.slots.retain(|slot| slot.n_users > 0 || !matches!(slot.phase, Phase::Failed(_)));
    }

    /// Ends the model of slot `id`. Requests that use it keep it until their answers have ended.
    pub(super) fn drop_model(&mut self, id: u64) {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) else { return };
        if slot.may_go() {
            slot.phase = Phase::Ending;
            self.counts.entry(slot.name.clone()).or_default().drops += 1;
        }
    }

    /// Notes that the memory of slot `id` is free.
    pub(super) fn remove(&mut self, id: u64) {
        let Some(at) = self.slots.iter().position(|slot| slot.id == id) else { return };
        let slot = self.slots.remove(at);
        slot.metrics.iter().for_each(|metrics| self.past.add(metrics));
    }

    /// Notes that a request no longer uses slot `id`.
    pub(super) fn release(&mut self, id: u64) {
        if let Some(slot) = self.slot_mut(id) {
            slot.n_users = slot.n_users.saturating_sub(1);
            slot.idle = Instant::now();
        }
        self.slots.retain(|slot| slot.n_users > 0 || !matches!(slot.phase, Phase::Failed(_)));
    }

    /// Sets how long the model of slot `id` stays loaded after its last answer.
    pub(super) fn keep(&mut self, id: u64, keep: KeepAlive) {
        if let Some(slot) = self.slot_mut(id).filter(|slot| !slot.is_fixed) {
            slot.keep = keep;
        }
    }

    /// Drops models whose time is over.
    pub(super) fn expire(&mut self, now: Instant) {
        let is_over = |slot: &&Slot| match slot.keep {
            KeepAlive::For(time) => {
                slot.is_idle() && now.saturating_duration_since(slot.idle) >= time
            }
            KeepAlive::Forever => false,
        };
        let ids: Vec<u64> = self.slots.iter().filter(is_over).map(|slot| slot.id).collect();
        ids.into_iter().for_each(|id| self.drop_model(id));
    }

    /// Figures of all models since the server's start.
    pub(super) fn metrics(&self) -> Metrics {
        let sum = Metrics::default();
        sum.add(&self.past);
        self.slots.iter().filter_map(|slot| slot.metrics.as_ref()).for_each(|one| sum.add(one));
        sum
    }

    /// Adds the metrics of loads and drops.
    pub(super) fn add_counts(&self, text: &mut String) {
        let n_loaded = self.slots.iter().filter(|slot| slot.is_ready()).count();
        let memory: u64 = self.slots.iter().map(|slot| slot.memory).sum();
        for (name, help, value) in [
            ("leap_models_loaded", "Models that can answer at once", n_loaded as u64),
            ("leap_models_bytes", "Memory of models that are loaded, come or go", memory),
        ] {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        }
        let of = |read: fn(&Counts) -> u64| {
            move |(model, counts): (&String, &Counts)| (model.clone(), read(counts))
        };
        for (name, help, all) in [
            ("leap_model_loads_total", "Loads of a model", of(|counts| counts.loads)),
            ("leap_model_drops_total", "Drops of a loaded model", of(|counts| counts.drops)),
        ] {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
            for (model, n) in self.counts.iter().map(all) {
                let model = label(&model);
                let _ = writeln!(text, "{name}{{model=\"{model}\"}} {n}");
            }
        }
    }
}

/// `value` as the value of a metric's label.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
