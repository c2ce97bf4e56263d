//! Serves programs over HTTP, in OpenAI's and Ollama's protocols.
//!
//! One thread runs the engine of each loaded model ([`runner`]); each connection has a thread of its own ([`server`]),
//! which reads requests ([`http`]), finds their model ([`models`]), makes jobs of them ([`openai`], [`responses`],
//! [`ollama`]) and writes the answers ([`answer`]). Between them is a queue ([`jobs`]). The text of a job does not depend
//! on the rest of its batch, nor on other models: with any number of other clients, a client gets the text that `leap run`
//! gives.

mod access;
mod answer;
mod asked;
mod divide;
mod early;
mod embed_job;
mod embeddings;
mod ending;
mod error;
mod fields;
#[cfg(all(fuzzing, feature = "forms"))]
pub(crate) mod fuzz;
#[cfg(feature = "forms")]
mod grammar;
#[cfg(not(feature = "forms"))]
#[path = "no_grammar.rs"]
mod grammar;
mod http;
mod items;
mod jobs;
mod keep_alive;
mod keys;
mod keywords;
mod lobby;
mod lost;
mod messages;
mod metrics;
mod models;
mod neutral;
mod odds;
mod ollama;
mod openai;
mod origin;
mod own_messages;
mod page;
mod plain;
mod pull;
mod responses;
mod runner;
mod schema;
mod server;
mod service;
mod source;
mod table;
mod tools;
mod turns;
mod vectors;
mod wish;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Duration;

use crate::engine::{Embedder, Engine, Scheduler, StepError};
use crate::sys::power::Meter;

use http::{Budget, HttpLimits};
use jobs::JobQueue;
use lobby::Lobby;
use lost::{GivenUp, Lost};
use models::{Models, Several};
use runner::{Runner, Visit};
use server::Server;
use service::{House, Service};
use turns::Turns;
use vectors::EmbedRunner;

pub(crate) use access::AccessLog;
pub(crate) use keys::ApiKeys;
pub(crate) use server::ListenSocket;
pub(crate) use service::{ModelAbout, ServedModel, untagged};
pub(crate) use source::{
    DescribedModel, ListedModel, LoadedModel, Machine, ModelSource, Progress, SourceError,
    TellProgress,
};

/// Memory for the bodies of all requests.
const BODIES_BYTES: usize = 32 << 20;
/// Longest silence of a stream: proxies and clients give a connection up after 30 seconds or more.
const QUIET_TIME: Duration = Duration::from_secs(15);

/// Limits of what clients use.
pub(crate) struct ServeLimits {
    /// Most answers of a model that wait for a stream.
    pub(crate) queue: usize,
    /// Most connections.
    pub(crate) connections: usize,
    /// Longest body of a request, in bytes.
    pub(crate) body_max: usize,
    /// How long answers may take after a signal.
    pub(crate) drain: Duration,
}

/// Options of a server.
pub(crate) struct ServeOptions {
    /// Seed of the first answer whose request names none.
    pub(crate) seed: u64,
    /// Sockets that clients connect to.
    pub(crate) listeners: Vec<ListenSocket>,
    /// Keys of clients that may ask.
    pub(crate) keys: ApiKeys,
    /// Origins of web pages whose scripts may send requests; `*` stands for all.
    pub(crate) origins: Vec<String>,
    /// Limits of clients.
    pub(crate) limits: ServeLimits,
    /// Most tokens of a model's thoughts, where a request names no number.
    pub(crate) think_tokens: Option<usize>,
    /// Meter of the board's energy, if the board has a sensor.
    pub(crate) meter: Option<Arc<Meter>>,
    /// Log of requests.
    pub(crate) access_log: AccessLog,
    /// Tells why no answer is possible while boards are lost.
    pub(crate) lost: Lost,
}

/// Models that are loaded when requests name them, and the bytes of memory that those which are loaded may take.
pub(crate) type Others = (Box<dyn ModelSource>, u64);

/// Serves one model, and `others` beside it, until a signal ends the program; returns when all answers have ended. `visit`
/// is called between two steps of the engine.
///
/// # Errors
/// If the engine cannot go on.
pub(crate) fn serve(
    engine: &mut Engine,
    scheduler: Scheduler<'_>,
    (model, visit): (ServedModel, Visit),
    others: Option<Others>,
    options: ServeOptions,
) -> Result<(), StepError> {
    let (queue, commands) =
        JobQueue::new(scheduler.n_streams().saturating_add(options.limits.queue));
    let sizes = (engine.ctx_len(), engine.header().vocab_size);
    let house = House { has_several: others.is_some(), ..house(&options) };
    let service = Service::new(model, sizes, (queue, &Arc::new(house)));
    let metrics = Arc::clone(&service.metrics);
    let turns = Arc::new(Turns::new(options.meter.clone()));
    let given_up = Arc::new(GivenUp::default());
    let several = others.map(|others| several(others, &options));
    let has_others = several.is_some();
    let models = Models::with_one(service, several, Arc::clone(&turns));
    let server = listen(models, Arc::clone(&given_up), options);
    let others = has_others.then(|| {
        let models = Arc::clone(&server.models);
        thread::spawn(move || models.look_after())
    });
    Runner::new(engine, scheduler, (metrics, turns), given_up).run(&commands, visit)?;
    drop(commands);
    // A panic has been told already.
    others.into_iter().for_each(|others| drop(others.join()));
    server.let_clients_read();
    Ok(())
}

/// Serves one model of embeddings until a signal ends the program; returns when all requests are answered.
pub(crate) fn serve_embeddings(embedder: &mut Embedder, model: ServedModel, options: ServeOptions) {
    let (queue, commands) = JobQueue::new(options.limits.queue.saturating_add(1));
    let sizes = (embedder.ctx_len(), embedder.header().vocab_size);
    let service = Service::new(model, sizes, (queue, &Arc::new(house(&options))));
    let turns = Arc::new(Turns::new(options.meter.clone()));
    let models = Models::with_one(service, None, Arc::clone(&turns));
    let server = listen(models, Arc::default(), options);
    EmbedRunner { embedder, turns }.run(&commands);
    drop(commands);
    server.let_clients_read();
}

/// Serves several models, none of which is loaded yet, until a signal ends the program; returns when all answers have ended.
pub(crate) fn serve_several(models: Others, options: ServeOptions) {
    let several = several(models, &options);
    let turns = Arc::new(Turns::new(options.meter.clone()));
    let house = House { has_several: true, ..house(&options) };
    let models = Models::several(several, Arc::new(house), turns);
    let server = listen(models, Arc::default(), options);
    server.models.look_after();
    server.let_clients_read();
}

fn several((source, budget): Others, options: &ServeOptions) -> Several {
    Several { source, budget, queue: options.limits.queue }
}

fn house(options: &ServeOptions) -> House {
    House { think_tokens: options.think_tokens, ..House::new(options.seed) }
}

/// Begins to accept connections.
fn listen(models: Models, given_up: Arc<GivenUp>, options: ServeOptions) -> Arc<Server> {
    let server = Arc::new(Server {
        models: Arc::new(models),
        keys: options.keys,
        access_log: options.access_log,
        lost: options.lost,
        given_up,
        limits: HttpLimits {
            body_max: options.limits.body_max,
            budget: Budget::new(BODIES_BYTES.max(options.limits.body_max)),
            request_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(60),
            quiet_time: QUIET_TIME,
            origins: options.origins,
        },
        lobby: Lobby::new(options.limits.connections),
        n_answering: AtomicUsize::new(0),
    });
    ending::set_drain(options.limits.drain);
    for listener in options.listeners {
        let server = Arc::clone(&server);
        thread::spawn(move || server::accept(&server, &listener));
    }
    server
}
