//! Rings of threads of this process, over sockets of the loopback interface.
#![allow(dead_code, reason = "every test crate compiles this module; not all start rings")]

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use leap::engine::ring::{Limits, RingOptions, run_worker};
use leap::engine::{Engine, Options};
use leap::internals::model::{KvType, Model, Share};
use leap::internals::transport::Endpoint;
use leap::internals::transport::link::LinkConfig;
use leap::internals::transport::options::{Options as LinkOptions, Place};
use leap::internals::transport::tcp::Tcp;
use leap::internals::transport::udp::Udp;
use leap::internals::wire::Dtype;
use leap::internals::wire::hello::{self, RingInfo};
use leap::internals::wire::seal::Key;

/// What a ring is made of.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub(crate) model: PathBuf,
    /// Where the layers are cut.
    pub(crate) cuts: Vec<usize>,
    pub(crate) is_tcp: bool,
    pub(crate) has_key: bool,
    pub(crate) wire: Dtype,
    pub(crate) batch: usize,
    pub(crate) n_streams: usize,
    pub(crate) max_logits: usize,
}

/// The workers of a ring; dropping them ends them.
pub(crate) struct Workers {
    is_wanted: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

impl Recipe {
    pub(crate) fn options(&self) -> Options {
        Options {
            ctx_len: Some(256),
            batch: Some(self.batch),
            n_streams: Some(self.n_streams),
            max_logits: Some(self.max_logits),
            kv: Some(KvType::F16),
            threads: Some(1),
            ..Options::default()
        }
    }

    /// One node with all layers.
    pub(crate) fn alone(&self) -> Engine {
        Engine::new(Arc::new(Model::open(&self.model).unwrap()), &self.options()).unwrap()
    }

    /// The master of a ring of threads.
    pub(crate) fn ring(&self) -> (Engine, Workers) {
        let n_layers = Model::open(&self.model).unwrap().header().n_layers;
        let starts = [0].into_iter().chain(self.cuts.iter().copied());
        let layers: Vec<Range<usize>> = starts
            .zip(self.cuts.iter().copied().chain([n_layers]))
            .map(|(start, end)| start..end)
            .collect();
        let shares: Vec<Model> = layers.iter().map(|layers| self.share(layers)).collect();
        let mut endpoints: Vec<Box<dyn Endpoint>> =
            shares.iter().enumerate().map(|(index, share)| self.endpoint(index, share)).collect();
        let addresses: Vec<_> = endpoints.iter().map(|e| e.local_address()).collect();
        for (index, endpoint) in endpoints.iter_mut().enumerate() {
            endpoint.set_next(addresses[(index + 1) % addresses.len()]);
        }
        let is_wanted = Arc::new(AtomicBool::new(true));
        let mut nodes = shares.into_iter().zip(endpoints);
        let (share, endpoint) = nodes.next().unwrap();
        let threads = nodes
            .enumerate()
            .map(|(index, (share, endpoint))| {
                let is_wanted = Arc::clone(&is_wanted);
                std::thread::spawn(move || work(index + 1, share, endpoint, &is_wanted))
            })
            .collect();
        let mut engine = Engine::new(Arc::new(share), &self.options()).unwrap();
        let options = RingOptions {
            name: "node0".to_owned(),
            n_nodes: layers.len(),
            members: Vec::new(),
            wire: self.wire,
            timeout: Some(Duration::from_secs(60)),
            epoch: 7,
            is_wanted: || true,
            tell: Box::new(|_, _| {}),
        };
        engine.join(endpoint, options).unwrap();
        (engine, Workers { is_wanted, threads })
    }

    fn share(&self, layers: &Range<usize>) -> Model {
        let share = Share { layers: layers.clone(), has_ends: layers.start == 0 };
        Model::open(&self.model).unwrap().with_share(share).unwrap()
    }

    fn endpoint(&self, index: usize, share: &Model) -> Box<dyn Endpoint> {
        let header = share.header();
        let node = RingInfo {
            model: share.fingerprint(),
            dim: header.dim as u32,
            n_layers: header.n_layers as u32,
            kv_dim: header.kv_dim() as u32,
            vocab_size: header.vocab_size as u32,
            first_layer: share.share().layers.start as u32,
            end_layer: share.share().layers.end as u32,
            dtype: self.wire,
            is_master: index == 0,
            name: hello::name(&format!("node{index}")),
        };
        let key = self.has_key.then(|| Key::new([5; 32]));
        let config = LinkConfig::new(node, key, [index as u8 + 1; 32]);
        let options = LinkOptions::new(config, Place::new("127.0.0.1", 0), None);
        match self.is_tcp {
            true => Box::new(Tcp::open(options).unwrap()),
            false => Box::new(Udp::open(options).unwrap()),
        }
    }
}

fn work(index: usize, share: Model, endpoint: Box<dyn Endpoint>, is_wanted: &AtomicBool) {
    let options =
        Options { ctx_len: Some(1), batch: Some(1), threads: Some(1), ..Options::default() };
    let mut engine = Engine::new(Arc::new(share), &options).unwrap();
    let limits = Limits { ctx_len: 256, n_streams: 4, max_batch: 64 };
    let is_wanted = || is_wanted.load(Ordering::Relaxed);
    let name = format!("node{index}");
    let transformer = engine.transformer_mut();
    run_worker(transformer, endpoint, &name, limits, &is_wanted, &mut |_| {}).unwrap();
}
