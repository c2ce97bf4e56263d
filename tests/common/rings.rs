//! Rings of threads in this process, over sockets of the loopback interface.
#![allow(dead_code, reason = "every test crate compiles this module; not all start rings")]

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use leap::engine::ring::{
    Change, ChangesBy, Held, Limits, MachineReading, Misfits, OtherLayers, ResplitError,
    RingOptions, Setbacks,
};
use leap::engine::team::{MemberOptions, OtherTeam, TeamOptions};
use leap::engine::{Cache, DeviceOptions, Engine, Huge, KvMemory, Listener, Options, WeightsPlace};
use leap::internals::model::{KvKind, Model, Share};
use leap::internals::team::Mesh;
use leap::internals::transport::Endpoint;
use leap::internals::transport::link::LinkConfig;
use leap::internals::transport::options::CarrierOptions;
use leap::internals::transport::place::HostPort;
use leap::internals::transport::tcp::Tcp;
use leap::internals::transport::udp::Udp;
use leap::internals::wire::Dtype;
use leap::internals::wire::hello::{self, RingInfo};
use leap::internals::wire::seal::Key;

/// The parts of a ring.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub(crate) model: PathBuf,
    pub(crate) kv: KvKind,
    /// Layers at which the model is cut.
    pub(crate) cuts: Vec<usize>,
    pub(crate) is_tcp: bool,
    pub(crate) has_key: bool,
    pub(crate) wire: Dtype,
    pub(crate) batch: usize,
    pub(crate) n_streams: usize,
    pub(crate) max_logits: usize,
    /// Folder of a cache file for each node; `None` to pack nothing.
    pub(crate) cache: Option<PathBuf>,
    /// A node with a file of its own instead of the model's: its index, and the path.
    pub(crate) own_file: Option<(usize, PathBuf)>,
    /// Shares of the nodes of each place's team; none or one share if the place is no team.
    pub(crate) teams: Vec<Vec<u16>>,
    /// Tokens whose keys and values fit the memory of all streams together; `None`: whole contexts of all.
    pub(crate) kv_tokens: Option<usize>,
    /// Folder of the nodes' folders for beginnings of prompts; a node without a folder keeps none.
    pub(crate) prefixes: Option<PathBuf>,
    /// The master's device beside its CPU.
    pub(crate) device: DeviceOptions,
}

impl Recipe {
    /// The demo model cut at `cuts`, for one stream.
    pub(crate) fn demo(cuts: &[usize]) -> Recipe {
        Recipe {
            model: Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo.bin"),
            kv: KvKind::F16,
            cuts: cuts.to_vec(),
            is_tcp: false,
            has_key: false,
            wire: Dtype::F32,
            batch: 16,
            n_streams: 1,
            max_logits: 1,
            cache: None,
            own_file: None,
            teams: Vec::new(),
            kv_tokens: None,
            prefixes: None,
            device: DeviceOptions::default(),
        }
    }
}

/// The workers of a ring; dropping them ends them.
pub(crate) struct Workers {
    is_interrupted: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    told: Told,
    master: SocketAddr,
}

/// Notices to the workers' users: index of the worker, and the notice's debug text.
type Told = Arc<Mutex<Vec<(usize, String)>>>;

/// A worker, and the list of its notices.
pub(crate) struct Telling {
    pub(crate) index: usize,
    told: Told,
    /// Mesh and options of the team that it leads, if its place is a team.
    lead: Option<(Mesh, TeamOptions)>,
    /// Folder of its beginnings of prompts.
    prefixes: Option<PathBuf>,
}

impl Telling {
    fn tell(&self, what: String) {
        self.told.lock().unwrap().push((self.index, what));
    }
}

impl Workers {
    /// Address of the ring's master.
    pub(crate) fn master(&self) -> SocketAddr {
        self.master
    }

    /// Notices of the worker at `index` since the last call.
    pub(crate) fn told(&self, index: usize) -> Vec<String> {
        let mut told = self.told.lock().unwrap();
        let (own, others) = told.drain(..).partition(|(by, _)| *by == index);
        *told = others;
        let own: Vec<(usize, String)> = own;
        own.into_iter().map(|(_, what)| what).collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.is_interrupted.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Checks that a ring computed no batch again and waited for nothing, unless a link failed, as on a machine that stood
/// still.
pub(crate) fn assert_nothing_lost(engine: &Engine) {
    let setbacks = engine.ring().unwrap().setbacks();
    assert!(setbacks.failures > 0 || *setbacks == Setbacks::default(), "{setbacks:?}");
}

/// Checks that a team without a ring computed no batch again and waited for nothing.
pub(crate) fn assert_no_setbacks(engine: &Engine) {
    assert_eq!(engine.team().unwrap().setbacks(), &Setbacks::default());
}

/// The team of a lead alone; the outcome of the change to it goes to `done`.
pub(crate) fn lead_alone(done: Sender<Result<(), String>>) -> OtherTeam {
    OtherTeam {
        shares: vec![1],
        tell: Box::new(|| Ok(())),
        link: Box::new(|| Ok(Mesh::alone())),
        notices: Box::new(|_| {}),
        done,
    }
}

/// Moves layers of a ring's nodes, one move at a time.
pub(crate) struct Mover {
    changes: Sender<Change>,
    answer: Option<Receiver<Result<(), ResplitError>>>,
    /// Moves that are done.
    pub(crate) n_moves: usize,
}

impl Mover {
    /// Asks for another split, unless the last one is not done yet.
    pub(crate) fn ask(&mut self, layers: &[Range<usize>]) {
        match self.answer.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return,
            Some(answer) => {
                answer.unwrap().unwrap();
                self.n_moves += 1;
            }
            None => {}
        }
        let (done, answer) = channel();
        let (layers, is_settled) = (layers.to_vec(), Arc::default());
        self.changes.send(Change::Layers(OtherLayers { layers, is_settled, done })).unwrap();
        self.answer = Some(answer);
    }
}

impl Recipe {
    /// The master of a ring of threads, whose layers may move.
    pub(crate) fn moving_ring(&self) -> (Engine, Workers, Mover) {
        let (changes, asked) = channel();
        let by = ChangesBy {
            asked,
            n_coming: Arc::default(),
            place: self.place(0),
            misfits: Misfits::End,
        };
        let options = RingOptions { changes: Some(by), ..self.ring_options() };
        let (engine, workers) = self.ring_with(work, options);
        (engine, workers, Mover { changes, answer: None, n_moves: 0 })
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            ctx_len: Some(if self.prefixes.is_some() { 512 } else { 256 }),
            batch: Some(self.batch),
            n_streams: Some(self.n_streams),
            max_logits: Some(self.max_logits),
            kv: Some(self.kv),
            kv_memory: self.kv_tokens.map_or(KvMemory::Whole, KvMemory::Tokens),
            threads: Some(1),
            device: self.device.clone(),
            ..Options::default()
        }
    }

    /// One node with all layers.
    pub(crate) fn alone(&self) -> Engine {
        Engine::new(Arc::new(Model::open(&self.model).unwrap()), &self.options()).unwrap()
    }

    /// The lead of a team that has all layers, made of the first place's nodes.
    pub(crate) fn team_alone(&self) -> Engine {
        let mut engine = self.alone();
        let (mesh, options) = self.team(0, &Model::open(&self.model).unwrap()).unwrap();
        engine.lead_alone(mesh, options).unwrap();
        engine
    }

    /// The lead of a team like [`Recipe::team_alone`]'s, which changes to each team that is sent.
    pub(crate) fn changing_team(&self) -> (Engine, Sender<OtherTeam>) {
        let (changes, asked) = channel();
        let mut engine = self.alone();
        let (mesh, options) = self.team(0, &Model::open(&self.model).unwrap()).unwrap();
        engine.lead_alone(mesh, TeamOptions { changes: Some(asked), ..options }).unwrap();
        (engine, changes)
    }

    /// The lead of a team that changes to each team that is sent. Its members end once `is_over`, and the lead then waits
    /// no longer than `timeout` for them.
    pub(crate) fn ending_team(
        &self,
        is_over: fn() -> bool,
        timeout: Duration,
    ) -> (Engine, Sender<OtherTeam>) {
        let (changes, asked) = channel();
        let mut engine = self.alone();
        let model = Model::open(&self.model).unwrap();
        let (mesh, options) = self.team_until(0, &model, is_over).unwrap();
        let options = TeamOptions { changes: Some(asked), timeout: Some(timeout), ..options };
        engine.lead_alone(mesh, options).unwrap();
        (engine, changes)
    }

    /// The master of a ring of threads.
    pub(crate) fn ring(&self) -> (Engine, Workers) {
        self.ring_of(work)
    }

    /// The master of a ring of threads whose workers do `work`.
    pub(crate) fn ring_of(&self, work: Work) -> (Engine, Workers) {
        self.ring_with(work, self.ring_options())
    }

    /// The master, with these options, of a ring of threads whose workers do `work`.
    pub(crate) fn ring_with(&self, work: Work, options: RingOptions) -> (Engine, Workers) {
        let n_layers = Model::open(&self.model).unwrap().header().n_layers;
        let starts = [0].into_iter().chain(self.cuts.iter().copied());
        let layers: Vec<Range<usize>> = starts
            .zip(self.cuts.iter().copied().chain([n_layers]))
            .map(|(start, end)| start..end)
            .collect();
        let shares: Vec<Model> =
            layers.iter().enumerate().map(|(index, layers)| self.share(index, layers)).collect();
        let mut endpoints: Vec<Box<dyn Endpoint>> =
            shares.iter().enumerate().map(|(index, share)| self.endpoint(index, share)).collect();
        let addresses: Vec<_> = endpoints.iter().map(|e| e.local_address()).collect();
        for (index, endpoint) in endpoints.iter_mut().enumerate() {
            endpoint.set_next(addresses[(index + 1) % addresses.len()]);
        }
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let told = Told::default();
        let mut nodes = shares.into_iter().zip(endpoints);
        let (share, endpoint) = nodes.next().unwrap();
        let threads = nodes
            .enumerate()
            .map(|(index, (share, endpoint))| {
                let is_interrupted = Arc::clone(&is_interrupted);
                let lead = self.team(index + 1, &share);
                let prefixes = self.prefixes(index + 1);
                let told = Telling { index: index + 1, told: Arc::clone(&told), lead, prefixes };
                let place = self.place(index + 1);
                std::thread::spawn(move || work(told, (share, place), endpoint, &is_interrupted))
            })
            .collect();
        let lead = self.team(0, &share);
        let mut engine = Engine::new(Arc::new(share), &self.options()).unwrap();
        engine.prepare(&self.place(0), Listener::NONE).unwrap();
        if let Some((mesh, options)) = lead {
            engine.lead(mesh, options).unwrap();
        }
        engine.join(endpoint, options).unwrap();
        keep_prefixes(&mut engine, self.prefixes(0));
        (engine, Workers { is_interrupted, threads, told, master: addresses[0] })
    }

    /// Starts the members of the team of the place at `index`, if it is one; returns mesh and options of its lead. The
    /// members run as long as the process.
    fn team(&self, index: usize, share: &Model) -> Option<(Mesh, TeamOptions)> {
        self.team_until(index, share, || false)
    }

    /// The team of the place at `index`, whose members end once `is_interrupted`.
    fn team_until(
        &self,
        index: usize,
        share: &Model,
        is_interrupted: fn() -> bool,
    ) -> Option<(Mesh, TeamOptions)> {
        let shares = self.teams.get(index).filter(|shares| shares.len() > 1)?.clone();
        let mut meshes = meshes(shares.len(), share).into_iter().enumerate();
        let (_, lead) = meshes.next()?;
        let layers = share.share().layers.clone();
        for (own, mesh) in meshes {
            let (share, place) = (self.share(index, &layers), self.place(index));
            std::thread::spawn(move || {
                let mut engine = worker(share, &place);
                let name = format!("member{own}");
                let options = MemberOptions { name: &name, limits: LIMITS, is_interrupted };
                let followed = engine.follow(mesh, &options, &mut |_| {});
                assert!(followed.is_ok() || is_interrupted());
            });
        }
        let options = TeamOptions {
            name: format!("node{index}"),
            shares,
            wire: self.wire,
            timeout: Some(Duration::from_secs(60)),
            is_coming: Box::new(|| false),
            epoch: 1,
            is_interrupted: || false,
            tell: Box::new(|_| {}),
            changes: None,
        };
        Some((lead, options))
    }

    /// Location of the packed weights of the node at `index`.
    pub(crate) fn place(&self, index: usize) -> WeightsPlace {
        let file = |folder: &PathBuf| Cache::At(folder.join(format!("{index}.leapw")));
        let cache = self.cache.as_ref().map_or(Cache::Off, file);
        WeightsPlace { model: None, cache, huge: Huge::Off }
    }

    /// Folder of the beginnings of prompts of the node at `index`.
    fn prefixes(&self, index: usize) -> Option<PathBuf> {
        self.prefixes.as_ref().map(|folder| folder.join(index.to_string()))
    }

    /// The master's options.
    pub(crate) fn ring_options(&self) -> RingOptions {
        RingOptions {
            name: "node0".to_owned(),
            n_nodes: self.cuts.len() + 1,
            members: Vec::new(),
            wire: self.wire,
            timeout: Some(Duration::from_secs(60)),
            epoch: 7,
            is_interrupted: || false,
            tell: Box::new(|_, _| {}),
            meter: Box::new(|_| MachineReading::default()),
            changes: None,
        }
    }

    pub(crate) fn share(&self, index: usize, layers: &Range<usize>) -> Model {
        let share = Share { layers: layers.clone(), has_ends: layers.start == 0 };
        let file = match &self.own_file {
            Some((own, file)) if *own == index => file,
            _ => &self.model,
        };
        Model::open_part(file).unwrap().with_share(share).unwrap()
    }

    pub(crate) fn endpoint(&self, index: usize, share: &Model) -> Box<dyn Endpoint> {
        let (header, layers) = (share.header(), &share.share().layers);
        let node = RingInfo {
            model: share.fingerprint().unwrap(),
            dim: header.dim as u32,
            n_layers: header.n_layers as u32,
            kv_dim: header.kv_dim() as u32,
            vocab_size: header.vocab_size as u32,
            held: 0..header.n_layers as u32,
            // The master may be alone later, so it wishes no range.
            wish: (index > 0).then_some(layers.start as u32..layers.end as u32),
            dtype: self.wire,
            is_master: index == 0,
            name: hello::name(&format!("node{index}")),
            ..RingInfo::default()
        };
        let key = self.has_key.then(|| Key::new([5; 32]));
        let mut config = LinkConfig::new(node, key, [index as u8 + 1; 32]);
        if layers.len() == header.n_layers {
            config.next = Some(config.node.name.clone());
        }
        let options = CarrierOptions::new(config, HostPort::new("127.0.0.1", 0), None);
        match self.is_tcp {
            true => Box::new(Tcp::open(options).unwrap()),
            false => Box::new(Udp::open(options).unwrap()),
        }
    }
}

/// A worker's work. Arguments: its identity and notices, its share and the location of its weights, its links, and the
/// flag that ends it.
pub(crate) type Work = fn(Telling, (Model, WeightsPlace), Box<dyn Endpoint>, &AtomicBool);

/// A mesh for each of the `n` nodes of a team, the lead's first.
fn meshes(n: usize, share: &Model) -> Vec<Mesh> {
    let node = RingInfo { model: share.fingerprint().unwrap(), ..RingInfo::default() };
    let open = |own: usize| -> Box<dyn Endpoint> {
        let config = LinkConfig::new(node.clone(), None, [own as u8; 32]);
        let listen = HostPort::new("127.0.0.1", 0);
        Box::new(Udp::open(CarrierOptions::new(config, listen, None)).unwrap())
    };
    let mut all: Vec<Vec<Option<Box<dyn Endpoint>>>> =
        (0..n).map(|own| (0..n).map(|peer| (peer != own).then(|| open(own))).collect()).collect();
    let address = |endpoint: &Option<Box<dyn Endpoint>>| Some(endpoint.as_ref()?.local_address());
    let addresses: Vec<Vec<_>> = all.iter().map(|row| row.iter().map(address).collect()).collect();
    for (own, endpoints) in all.iter_mut().enumerate() {
        for (peer, endpoint) in endpoints.iter_mut().enumerate() {
            if let (Some(endpoint), Some(address)) = (endpoint, addresses[peer][own]) {
                endpoint.set_next(address);
            }
        }
    }
    all.into_iter().map(|endpoints| Mesh::new(endpoints).unwrap()).collect()
}

/// A worker's engine; the ring's settings come later.
pub(crate) fn worker(share: Model, place: &WeightsPlace) -> Engine {
    let options =
        Options { ctx_len: Some(1), batch: Some(1), threads: Some(1), ..Options::default() };
    let mut engine = Engine::new(Arc::new(share), &options).unwrap();
    engine.prepare(place, Listener::NONE).unwrap();
    engine
}

fn keep_prefixes(engine: &mut Engine, folder: Option<PathBuf>) {
    if let Some(folder) = folder.filter(|folder| folder.is_dir()) {
        engine.keep_prefixes(&folder, 1 << 30).unwrap();
    }
}

/// Largest settings that workers accept.
pub(crate) const LIMITS: Limits = Limits { ctx_len: 512, n_streams: 8, max_batch: 160 };

/// Runs layers on this machine's CPUs.
pub(crate) fn work(
    telling: Telling,
    (share, place): (Model, WeightsPlace),
    endpoint: Box<dyn Endpoint>,
    is_interrupted: &AtomicBool,
) {
    work_with(worker(share, &place), telling, place, endpoint, is_interrupted);
}

/// Works with this engine.
pub(crate) fn work_with(
    mut engine: Engine,
    mut telling: Telling,
    place: WeightsPlace,
    endpoint: Box<dyn Endpoint>,
    is_interrupted: &AtomicBool,
) {
    if let Some((mesh, options)) = telling.lead.take() {
        engine.lead(mesh, options).unwrap();
    }
    keep_prefixes(&mut engine, telling.prefixes.take());
    let is_interrupted = || is_interrupted.load(Ordering::Relaxed);
    let name = format!("node{}", telling.index);
    let mut tell = |notice: &_| telling.tell(format!("{notice:?}"));
    engine
        .work(
            endpoint,
            (&name, LIMITS, &|_| MachineReading::default()),
            &place,
            (&is_interrupted, &|_| None),
            &mut Held::default(),
            &mut tell,
        )
        .unwrap();
}
