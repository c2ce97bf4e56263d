//! A ring in one process: `cargo run --example ring`. A thread is a worker with the last layers of the demo model; the
//! main thread is the master with the first ones. Their frames go over UDP on the loopback interface.
//!
//! The text is that of one node. The parts of a node (`leap::internals`) change without notice: programs that
//! serve rings start `leap worker` and `leap master`.

use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leap::engine::ring::{Held, Limits, MachineReading, RingOptions};
use leap::engine::{
    Cache, Engine, Huge, Job, JobEvent, Listener, Options, Scheduler, WeightsPlace,
};
use leap::internals::model::{Model, Share};
use leap::internals::transport::Endpoint;
use leap::internals::transport::link::LinkConfig;
use leap::internals::transport::options::CarrierOptions;
use leap::internals::transport::place::HostPort;
use leap::internals::transport::udp::Udp;
use leap::internals::wire::Dtype;
use leap::internals::wire::hello::{self, RingInfo};
use leap::tokenizer::Tokenizer;

type Failure = Box<dyn Error + Send + Sync>;

/// Layers of the master; the worker has the others.
const CUT: usize = 2;

fn main() -> Result<(), Failure> {
    let model = Path::new("models/demo.bin");
    let n_layers = Model::open(model)?.header().n_layers;
    let (first, last) = (share(model, 0..CUT)?, share(model, CUT..n_layers)?);
    let (mut to_worker, mut to_master) = (endpoint(&first, true)?, endpoint(&last, false)?);
    to_worker.set_next(to_master.local_address());
    to_master.set_next(to_worker.local_address());

    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(last, to_master, &is_over));
        let told = lead(first, to_worker);
        is_over.store(true, Ordering::Relaxed);
        let ended = worker.join().map_err(|_| "the worker panicked")?;
        told.and(ended)
    })
}

/// The master: opens the ring, and answers a prompt over it.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints its text")]
fn lead(share: Model, endpoint: Box<dyn Endpoint>) -> Result<(), Failure> {
    let tokenizer = Tokenizer::from_bytes(&std::fs::read("models/demo.tokenizer.bin")?, None)?;
    let options = Options { threads: Some(1), ctx_len: Some(256), ..Options::default() };
    let mut engine = Engine::new(Arc::new(share), &options)?;
    engine.prepare(&place(), Listener::NONE)?;
    let ring = RingOptions {
        name: "master".to_owned(),
        n_nodes: 2,
        members: Vec::new(),
        wire: Dtype::F32,
        timeout: Some(Duration::from_secs(60)),
        epoch: 1,
        is_interrupted: || false,
        tell: Box::new(|notice, _| eprintln!("ring: {notice:?}")),
        meter: Box::new(|_| MachineReading::default()),
        changes: None,
    };
    engine.join(endpoint, ring)?;

    let mut scheduler = Scheduler::new(&mut engine, 1, Some(&tokenizer))?;
    let mut prompt: Vec<u32> = tokenizer.bos().into_iter().collect();
    tokenizer.encode("Once upon a time", &mut prompt);
    scheduler.submit(Job { n_predict: 20, ..Job::new(prompt) });
    print!("Once upon a time");
    let mut failure = None;
    while !scheduler.is_idle() {
        scheduler.step(&mut engine, &mut |_, event| match event {
            JobEvent::Text(part) => print!("{part}"),
            JobEvent::Failed(error) => failure = Some(error),
            _ => {}
        });
    }
    println!();
    failure.map_or(Ok(()), |error| Err(error.into()))
}

/// The worker: computes its layers for the master until it is over.
fn work(share: Model, endpoint: Box<dyn Endpoint>, is_over: &AtomicBool) -> Result<(), Failure> {
    let options = Options { threads: Some(1), ctx_len: Some(1), ..Options::default() };
    let mut engine = Engine::new(Arc::new(share), &options)?;
    engine.prepare(&place(), Listener::NONE)?;
    let limits = Limits { ctx_len: 256, n_streams: 1, max_batch: 512 };
    engine.work(
        endpoint,
        ("worker", limits, &|_| MachineReading::default()),
        &place(),
        (&|| is_over.load(Ordering::Relaxed), &|_| None),
        &mut Held::default(),
        &mut |_| {},
    )?;
    Ok(())
}

/// Weights are used as they are in the model's file.
fn place() -> WeightsPlace {
    WeightsPlace { model: None, cache: Cache::Off, huge: Huge::Off }
}

/// The model's `layers`; the embedding and the classifier go with the first.
fn share(model: &Path, layers: Range<usize>) -> Result<Model, Failure> {
    let has_ends = layers.start == 0;
    Ok(Model::open_part(model)?.with_share(Share { layers, has_ends })?)
}

/// A node's links, over UDP at a port that the system chooses.
fn endpoint(share: &Model, is_master: bool) -> Result<Box<dyn Endpoint>, Failure> {
    let (header, layers) = (share.header(), &share.share().layers);
    let node = RingInfo {
        model: share.fingerprint()?,
        dim: header.dim as u32,
        n_layers: header.n_layers as u32,
        kv_dim: header.kv_dim() as u32,
        vocab_size: header.vocab_size as u32,
        held: 0..header.n_layers as u32,
        wish: (!is_master).then_some(layers.start as u32..layers.end as u32),
        dtype: Dtype::F32,
        is_master,
        name: hello::name(if is_master { "master" } else { "worker" }),
        ..RingInfo::default()
    };
    // A run of a node has a number of its own, drawn at random where nodes can restart.
    let config = LinkConfig::new(node, None, [u8::from(is_master); 32]);
    let options = CarrierOptions::new(config, HostPort::new("127.0.0.1", 0), None);
    Ok(Box::new(Udp::open(options)?))
}
