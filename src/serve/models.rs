//! The models of a server: which are loaded, and who uses them.
//!
//! Each loaded model has an engine, a queue and a thread of its own; engines step by turns ([`turns`](super::turns)). A
//! request whose model is not loaded has it loaded by that thread, and waits; other models answer meanwhile.

use std::io;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::ending;
use super::error::ApiError;
use super::jobs::{Command, Commands, JobQueue, Refusal};
use super::keep_alive::KeepAlive;
use super::metrics::Metrics;
use super::runner::Runner;
use super::service::{House, ServedModel, Service, untagged};
use super::source::{DescribedModel, ListedModel, LoadedModel, Machine, ModelSource, SourceError};
use super::table::{Claim, Phase, Slot, Table, Wanted};
use super::turns::Turns;
use super::vectors::EmbedRunner;
use crate::engine::{Embedder, JobError, StepError};
use crate::sys::{heap, notify};

/// Interval between checks of a waiting client.
const LOOK: Duration = Duration::from_millis(100);
/// How long a request waits until there is memory for its model.
const ROOM_TIME: Duration = Duration::from_secs(120);
/// Interval between looks whether the loaded models' files are there.
const SOURCE_LOOK: Duration = Duration::from_secs(5);
/// How long the end of the server waits for a model that is being loaded.
const LOAD_END: Duration = Duration::from_secs(2);

/// Where the models of a server come from.
pub(super) struct Several {
    pub(super) source: Box<dyn ModelSource>,
    /// Memory for loaded models, in bytes.
    pub(super) budget: u64,
    /// Most answers of a model that wait for a stream.
    pub(super) queue: usize,
}

/// The models of a server: one that is always loaded, several that come and go, or both.
pub(super) struct Models {
    several: Option<Several>,
    table: Mutex<Table>,
    has_changed: Condvar,
    house: Arc<House>,
    turns: Arc<Turns>,
    /// Counts of requests.
    asked: Metrics,
}

/// A model that a request uses: it is not dropped until the lease ends.
pub(super) struct Lease<'m> {
    models: &'m Models,
    id: u64,
    service: Arc<Service>,
    /// How long the request waited for the model.
    pub(super) waited: Duration,
}

/// A loaded model, as it is shown.
pub(super) struct Shown {
    pub(super) service: Arc<Service>,
    /// Memory that it takes.
    pub(super) memory: u64,
    /// How long it stays, if no request comes; `None` for ever.
    pub(super) stays: Option<Duration>,
}

impl From<SourceError> for ApiError {
    fn from(error: SourceError) -> ApiError {
        match error {
            SourceError::Absent => ApiError::no_model("there is no such model here"),
            SourceError::Unknown(message) => ApiError::no_model(message),
            SourceError::Refused(message) => ApiError::new(400, message),
            SourceError::Failed(message) => ApiError::new(500, message),
        }
    }
}

impl Models {
    /// One model that is always loaded, and `several` others, none of which is loaded yet.
    pub(super) fn with_one(
        service: Service,
        several: Option<Several>,
        turns: Arc<Turns>,
    ) -> Models {
        let house = Arc::clone(&service.house);
        let models = Models::new(several, house, turns);
        models.table().add_fixed(Arc::new(service));
        models
    }

    /// Several models, none of which is loaded yet.
    pub(super) fn several(several: Several, house: Arc<House>, turns: Arc<Turns>) -> Models {
        Models::new(Some(several), house, turns)
    }

    fn new(several: Option<Several>, house: Arc<House>, turns: Arc<Turns>) -> Models {
        let budget = several.as_ref().map_or(u64::MAX, |several| several.budget);
        let (table, has_changed) = (Mutex::new(Table::new(budget)), Condvar::new());
        Models { several, table, has_changed, house, turns, asked: Metrics::default() }
    }

    /// Where the models that come and go are from, if there are any.
    pub(super) fn source(&self) -> Option<&dyn ModelSource> {
        self.several.as_ref().map(|several| &*several.source)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No code panics while it holds the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table, and wakes all who wait for a change.
    fn change(&self, change: impl FnOnce(&mut Table)) {
        change(&mut self.table());
        self.has_changed.notify_all();
    }

    /// All models that requests may name.
    pub(super) fn list(&self) -> Vec<ListedModel> {
        let fixed = self.fixed();
        let others = self.source().map(|source| source.list()).unwrap_or_default();
        let is_other = |other: &ListedModel| {
            let own = fixed.as_ref().map(|fixed| untagged(&fixed.about.name));
            own != Some(untagged(&other.about.name))
        };
        let others: Vec<ListedModel> = others.into_iter().filter(is_other).collect();
        fixed.into_iter().chain(others).collect()
    }

    /// The model that is always loaded.
    fn fixed(&self) -> Option<ListedModel> {
        let service = Arc::clone(self.table().fixed()?);
        let Service { model, ctx_len, house, .. } = &*service;
        let (about, modified) = (model.about.clone(), house.started);
        Some(ListedModel { about, ctx_len: *ctx_len, modified, memory: 0 })
    }

    /// The model that is always loaded, if a request that names `name` means it. Without others it is meant by any name, for
    /// its endpoint to judge.
    fn fixed_for(&self, name: Option<&str>) -> Option<ListedModel> {
        let is_only = self.several.is_none();
        let is_own = |fixed: &ListedModel, name| untagged(name) == untagged(&fixed.about.name);
        self.fixed().filter(|fixed| is_only || name.is_none_or(|name| is_own(fixed, name)))
    }

    /// Whether a request for the model `name` needs the one that is always loaded.
    pub(super) fn needs_fixed(&self, name: Option<&str>) -> bool {
        self.fixed_for(name).is_some()
    }

    /// All loaded models.
    pub(super) fn shown(&self) -> Vec<Shown> {
        let shown = |slot: &Slot| {
            let Phase::Ready(service) = &slot.phase else { return None };
            let stays = match slot.keep {
                KeepAlive::Forever => None,
                KeepAlive::For(time) if slot.is_idle() => {
                    Some(time.saturating_sub(slot.idle.elapsed()))
                }
                KeepAlive::For(time) => Some(time),
            };
            // A model that stays takes none of the memory for those that come and go.
            let memory = if slot.is_fixed { service.model.about.memory } else { slot.memory };
            Some(Shown { service: Arc::clone(service), memory, stays })
        };
        self.table().slots().iter().filter_map(shown).collect()
    }

    /// The model that a request names; without a name, the one that is always loaded, or was asked last, else the first of
    /// all.
    pub(super) fn find(&self, name: Option<&str>) -> Result<ListedModel, ApiError> {
        if let Some(fixed) = self.fixed_for(name) {
            return Ok(fixed);
        }
        let Some(source) = self.source() else {
            return Err(ApiError::new(500, "there is no model"));
        };
        let Some(name) = name else {
            let latest = self.table().latest().map(|slot| slot.name.clone());
            // Its file may be gone.
            let latest = latest.and_then(|name| source.find(&name).ok());
            let first = latest.or_else(|| source.list().into_iter().next());
            return first.ok_or_else(|| ApiError::new(404, "there is no model here yet"));
        };
        let other = match untagged(name) {
            bare if bare == name => format!("{name}:latest"),
            bare => bare.to_owned(),
        };
        let found = match source.find(name) {
            Err(SourceError::Absent) => source.find(&other),
            found => found,
        };
        found.map_err(|error| match error {
            SourceError::Absent => self.unknown(name),
            error => error.into(),
        })
    }

    /// The error for a request for the model `asked`, which there is not.
    pub(super) fn unknown(&self, asked: &str) -> ApiError {
        let all = self.list();
        let names: Vec<&str> = all.iter().map(|model| model.about.name.as_str()).collect();
        ApiError::unknown_model(asked, &names)
    }

    /// The words of a model, which need not be loaded.
    pub(super) fn words_of(&self, name: Option<&str>) -> Result<Arc<Service>, ApiError> {
        let name = self.find(name)?.about.name;
        let loaded = self.shown().into_iter().find(|one| one.service.model.about.name == name);
        if let Some(Shown { service, .. }) = loaded {
            return Ok(service);
        }
        let Some(source) = self.source() else { return Err(Refusal::Ending.into()) };
        let DescribedModel { model, ctx_len, vocab_size } = source.describe(&name)?;
        // The queue takes no jobs: no engine would answer them.
        let (queue, _) = JobQueue::new(0);
        Ok(Arc::new(Service::new(model, (ctx_len, vocab_size), (queue, &self.house))))
    }

    /// The model `name`, for as long as the lease lasts. A model that is not loaded is loaded; other models may have to
    /// be dropped for it. `look_after` is called while this waits; `None` if it fails, because the client is gone.
    pub(super) fn lease<'m>(
        self: &'m Arc<Models>,
        (name, keep): (Option<&str>, Option<KeepAlive>),
        look_after: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<Option<Lease<'m>>, ApiError> {
        let ListedModel { about, memory, .. } = self.find(name)?;
        let model = Wanted { name: about.name, digest: about.digest, memory };
        if let Some(several) = self.several.as_ref().filter(|several| memory > several.budget) {
            let [memory, budget] = [memory, several.budget].map(|bytes| bytes as f64 / 1e6);
            let problem = format!(
                "{} takes {memory:.1} MB of memory, more than the {budget:.1} MB of this server's --memory",
                model.name
            );
            return Err(ApiError::new(500, problem));
        }
        let mut wait =
            Wait { models: self, model, seat: None, is_in_line: false, since: Instant::now() };
        loop {
            if let Some(service) = wait.go_on()? {
                let Some(id) = wait.seat.take() else { return Err(Refusal::Ending.into()) };
                if self.several.is_some() {
                    self.table().keep(id, keep.unwrap_or_default());
                }
                let waited = wait.since.elapsed();
                return Ok(Some(Lease { models: self, id, service, waited }));
            }
            if look_after().is_err() {
                return Ok(None);
            }
        }
    }

    /// Drops the model `name` after its last answer, if it is loaded.
    pub(super) fn unload(&self, name: &str) {
        if self.several.is_none() {
            return;
        }
        self.change(|table| {
            let is_meant = |slot: &&Slot| slot.name == name;
            let ids: Vec<u64> = table.slots().iter().filter(is_meant).map(|slot| slot.id).collect();
            ids.into_iter().for_each(|id| table.keep(id, KeepAlive::For(Duration::ZERO)));
        });
    }

    /// Loads the model of slot `id` in this thread, and answers with it until it is dropped.
    fn run_model(&self, id: u64, name: &str) {
        let Some(several) = &self.several else { return };
        let loaded = several.source.load(name).and_then(|loaded| self.answer(id, several, loaded));
        heap::trim();
        match loaded {
            Ok(()) => self.change(|table| table.remove(id)),
            Err(error) => self.change(|table| table.set_failed(id, error.into())),
        }
    }

    fn answer(
        &self,
        id: u64,
        several: &Several,
        LoadedModel { machine, model }: LoadedModel,
    ) -> Result<(), SourceError> {
        let mut engine = match machine {
            Machine::Writes(engine) => engine,
            Machine::Embeds(embedder) => {
                self.embed(id, several, (*embedder, model));
                return Ok(());
            }
        };
        let (name, tokenizer) = (model.about.name.clone(), Arc::clone(&model.tokenizer));
        let scheduler = several.source.schedule(&mut engine, &tokenizer)?;
        let (queue, commands) = JobQueue::new(scheduler.n_streams().saturating_add(several.queue));
        let sizes = (engine.ctx_len(), engine.header().vocab_size);
        let service = Arc::new(Service::new(model, sizes, (queue, &self.house)));
        let shared = (Arc::clone(&service.metrics), Arc::clone(&self.turns));
        let runner = Runner::new(&mut engine, scheduler, shared, Arc::default());
        self.change(|table| table.set_ready(id, service));
        if let Err(error) = runner.run(&commands, Box::new(|_| {})) {
            log::warn!("{name} is dropped: {error}");
            self.change(|table| table.drop_model(id));
            fail_all(&commands, &error);
        }
        Ok(())
    }

    /// Answers with vectors.
    fn embed(&self, id: u64, several: &Several, (mut embedder, model): (Embedder, ServedModel)) {
        let (queue, commands) = JobQueue::new(several.queue.saturating_add(1));
        let sizes = (embedder.ctx_len(), embedder.header().vocab_size);
        let service = Arc::new(Service::new(model, sizes, (queue, &self.house)));
        self.change(|table| table.set_ready(id, service));
        let turns = Arc::clone(&self.turns);
        EmbedRunner { embedder: &mut embedder, turns }.run(&commands);
    }

    /// Drops models whose time is over, until a signal ends the server and all models have ended.
    pub(super) fn look_after(&self) {
        let mut end = None;
        let mut looked = Instant::now();
        loop {
            notify::alive();
            if looked.elapsed() > SOURCE_LOOK {
                looked = Instant::now();
                self.drop_absent();
            }
            let mut table = self.table();
            if ending::is_asked_for() {
                let end = *end.get_or_insert_with(|| {
                    notify::stopping();
                    Instant::now() + LOAD_END
                });
                let is_loading = |slot: &Slot| matches!(slot.phase, Phase::Loading);
                let mut left = table.slots().iter().filter(|slot| !slot.is_fixed);
                if left.all(|slot| is_loading(slot) && Instant::now() >= end) {
                    return;
                }
            } else {
                table.expire(Instant::now());
            }
            let patience = notify::period().map_or(LOOK, |period| period.min(LOOK));
            drop(self.has_changed.wait_timeout(table, patience));
        }
    }

    /// Drops idle models whose files are gone: no request can name them any more.
    fn drop_absent(&self) {
        let Some(source) = self.source() else { return };
        let idle = |slot: &&Slot| slot.is_idle() && !slot.is_fixed;
        let idle: Vec<(u64, String)> =
            self.table().slots().iter().filter(idle).map(|s| (s.id, s.name.clone())).collect();
        for (id, name) in idle {
            if source.find(&name).is_err_and(|error| error == SourceError::Absent) {
                self.change(|table| table.drop_model(id));
            }
        }
    }

    pub(super) fn count_request(&self, status: u16) {
        self.asked.count_request(status);
    }

    /// All metrics in the text format.
    pub(super) fn metrics(&self) -> String {
        let table = self.table();
        let sum = table.metrics();
        sum.add(&self.asked);
        let mut text = sum.text(self.turns.meter());
        if self.several.is_some() {
            table.add_counts(&mut text);
        }
        text
    }
}

/// Fails all jobs that come, until all senders are dropped.
fn fail_all(commands: &Commands, error: &StepError) {
    for command in &commands.receiver {
        if let Command::Submit(_, answers, index) = command {
            answers.end(index, Err(JobError::Step(error.clone())));
        }
    }
}

/// A request that waits for its model.
struct Wait<'m> {
    models: &'m Arc<Models>,
    model: Wanted,
    /// The slot that the request uses, once there is one.
    seat: Option<u64>,
    is_in_line: bool,
    since: Instant,
}

impl Wait<'_> {
    /// Goes on as far as possible, and waits a moment if that is not far enough.
    fn go_on(&mut self) -> Result<Option<Arc<Service>>, ApiError> {
        let models = self.models;
        if models.several.is_some() && ending::is_asked_for() {
            return Err(Refusal::Ending.into());
        }
        let mut table = models.table();
        if self.seat.is_none() {
            match table.claim(&self.model, Instant::now()) {
                Claim::Seat(id) => self.sit(&mut table, id),
                Claim::Load(id) => {
                    self.sit(&mut table, id);
                    self.load(&mut table, id);
                }
                Claim::Wait => self.stand(&mut table)?,
            }
        }
        if let Some(id) = self.seat {
            match table.slot(id).map(|slot| &slot.phase) {
                Some(Phase::Ready(service)) => return Ok(Some(Arc::clone(service))),
                Some(Phase::Failed(error)) => return Err(error.clone()),
                Some(Phase::Loading) => {}
                Some(Phase::Ending) | None => return Err(Refusal::Ending.into()),
            }
        }
        drop(models.has_changed.wait_timeout(table, LOOK));
        Ok(None)
    }

    fn sit(&mut self, table: &mut Table, id: u64) {
        self.seat = Some(id);
        if std::mem::take(&mut self.is_in_line) {
            table.leave_line(&self.model.name);
        }
        // Those who wait for the same model can sit down, too.
        self.models.has_changed.notify_all();
    }

    fn stand(&mut self, table: &mut Table) -> Result<(), ApiError> {
        if !self.is_in_line {
            self.is_in_line = true;
            table.join_line(&self.model, Instant::now());
        }
        match self.since.elapsed() > ROOM_TIME {
            false => Ok(()),
            true => {
                let problem =
                    "other models answer, and leave no memory for this one: try again later";
                Err(ApiError::new(503, problem))
            }
        }
    }

    /// Has a thread load the model.
    fn load(&self, table: &mut Table, id: u64) {
        let (models, name) = (Arc::clone(self.models), self.model.name.clone());
        let thread = thread::Builder::new().name("leap-model".to_owned());
        if let Err(e) = thread.spawn(move || models.run_model(id, &name)) {
            table.set_failed(id, ApiError::new(503, format!("no thread can be started: {e}")));
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.is_in_line || self.seat.is_some() {
            self.models.change(|table| {
                if self.is_in_line {
                    table.leave_line(&self.model.name);
                }
                self.seat.into_iter().for_each(|id| table.release(id));
            });
        }
    }
}

impl Deref for Lease<'_> {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.service
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.models.change(|table| table.release(self.id));
    }
}
