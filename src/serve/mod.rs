//! Serves programs over HTTP, in OpenAI's and Ollama's protocols.
//!
//! One thread runs the engine ([`runner`]); each connection has a thread of its own ([`server`]), which reads requests
//! ([`http`]), makes jobs of them ([`openai`], [`responses`], [`ollama`]) and writes the answers ([`answer`]). Between
//! them is a queue ([`jobs`]). The text of a job does not depend on the rest of its batch: with any number of other
//! clients, a client gets the text that `leap run` gives.

mod access;
mod answer;
mod divide;
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
mod keys;
mod keywords;
mod lobby;
mod lost;
mod messages;
mod metrics;
mod neutral;
mod odds;
mod ollama;
mod openai;
mod origin;
mod own_messages;
mod page;
mod plain;
mod responses;
mod runner;
mod schema;
mod server;
mod service;
mod tools;
mod wish;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::engine::{Engine, Scheduler, StepError};
use crate::sys::power::Meter;

use http::{Budget, HttpLimits};
use jobs::JobQueue;
use lobby::Lobby;
use lost::{GivenUp, Lost};
use runner::{Runner, Visit};
use server::Server;
use service::Service;

pub(crate) use access::AccessLog;
pub(crate) use keys::ApiKeys;
pub(crate) use server::ListenSocket;
pub(crate) use service::{ModelAbout, ServedModel};

/// Memory for the bodies of all requests.
const BODIES_BYTES: usize = 32 << 20;
/// Longest silence of a stream: proxies and clients give a connection up after 30 seconds or more.
const QUIET_TIME: Duration = Duration::from_secs(15);
/// How long clients may take to read complete answers when the program ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Limits of what clients use.
pub(crate) struct ServeLimits {
    /// Most answers that wait for a stream.
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
    /// The model that answers.
    pub(crate) model: ServedModel,
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
    /// Meter of the board's energy, if the board has a sensor.
    pub(crate) meter: Option<Arc<Meter>>,
    /// Log of requests.
    pub(crate) access_log: AccessLog,
    /// Called between two steps of the engine.
    pub(crate) visit: Visit,
    /// Tells why no answer is possible while boards are lost.
    pub(crate) lost: Lost,
}

/// Serves until a signal ends the program; returns when all answers have ended.
///
/// # Errors
/// If the engine cannot go on.
pub(crate) fn serve(
    engine: &mut Engine,
    scheduler: Scheduler<'_>,
    options: ServeOptions,
) -> Result<(), StepError> {
    let (queue, commands) =
        JobQueue::new(scheduler.n_streams().saturating_add(options.limits.queue));
    let service = Service {
        model: options.model,
        ctx_len: engine.ctx_len(),
        vocab_size: engine.header().vocab_size,
        grammars: OnceLock::new(),
        own_words: OnceLock::new(),
        queue,
        metrics: Arc::default(),
        meter: options.meter,
        started: service::now(),
        n_answers: AtomicU64::new(0),
        seed: options.seed,
    };
    let given_up = Arc::new(GivenUp::default());
    let metrics = Arc::clone(&service.metrics);
    let meter = service.meter.clone();
    let server = Arc::new(Server {
        service,
        keys: options.keys,
        access_log: options.access_log,
        lost: options.lost,
        given_up: Arc::clone(&given_up),
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
    for listener in options.listeners {
        let server = Arc::clone(&server);
        thread::spawn(move || server::accept(&server, &listener));
    }
    ending::set_drain(options.limits.drain);
    Runner::new(engine, scheduler, (metrics, meter), given_up).run(&commands, options.visit)?;
    drop(commands);
    // Clients still have to read the last answers.
    let end = Instant::now() + LAST_WORDS;
    while server.n_answering.load(Ordering::Relaxed) > 0 && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
