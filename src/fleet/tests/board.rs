//! A board that waits for calls and works for the master that calls it, on threads of this process.

use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::{free_port, local, speeds};
use crate::call::board::{self, Board, Order};
use crate::channel::server::{self, Service};
use crate::channel::{Channel, ChannelError};
use crate::engine::ring::{Held, Limits, MachineReading};
use crate::engine::{Cache, Engine, Huge, Options, WeightsPlace};
use crate::model::{Model, Share};
use crate::ring::{Address, Topology};
use crate::sys::random;
use crate::transport::Endpoint;
use crate::transport::link::LinkConfig;
use crate::transport::options::CarrierOptions;
use crate::transport::place::HostPort;
use crate::transport::udp::Udp;
use crate::wire::Dtype;
use crate::wire::call::{Figures, HeldState, ring_number};
use crate::wire::hello::{self, RingInfo};
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

const MODEL: &str = "models/demo.bin";

/// The whole model.
pub(super) fn model() -> Model {
    Model::open(MODEL.as_ref()).unwrap()
}

/// The model with these layers alone.
pub(super) fn narrow(model: Model, layers: &Range<usize>, has_ends: bool) -> Arc<Model> {
    Arc::new(model.with_share(Share { layers: layers.clone(), has_ends }).unwrap())
}

/// Place of the model's weights.
pub(super) fn place() -> WeightsPlace {
    WeightsPlace { model: Some(PathBuf::from(MODEL)), cache: Cache::Off, huge: Huge::Off }
}

/// The links of the board called `name` in a ring.
pub(super) fn endpoint(
    model: &Model,
    topology: &Topology,
    name: &str,
    key: &Key,
) -> Box<dyn Endpoint> {
    let members = topology.members();
    let own = members.iter().position(|member| member.name == name).unwrap();
    let header = model.header();
    let layers = |range: &Range<usize>| range.start as u32..range.end as u32;
    let node = RingInfo {
        model: model.fingerprint().unwrap(),
        dim: header.row_width() as u32,
        n_layers: header.n_layers as u32,
        kv_dim: header.kv_dim() as u32,
        vocab_size: header.vocab_size as u32,
        held: layers(&members[own].layers),
        wish: None,
        dtype: Dtype::F32,
        is_master: own == 0,
        name: hello::name(name),
        ..RingInfo::default()
    };
    let neighbour = |places: usize| &members[(own + places) % members.len()];
    let (prev, next) = (neighbour(members.len() - 1), neighbour(1));
    let config = LinkConfig {
        prev: Some(hello::name(&prev.name)),
        next: Some(hello::name(&next.name)),
        ..LinkConfig::new(node, Some(key.clone()), random::seed().unwrap())
    };
    let at = |address: &Address| HostPort::new(&address.host, address.port);
    let options = CarrierOptions::new(config, at(&members[own].address), Some(at(&next.address)));
    Box::new(Udp::open(options).unwrap())
}

/// State of a board: its orders, and whether it is there.
struct State {
    order: Mutex<Order>,
    /// True if the order is another one than the board works on.
    is_new: AtomicBool,
    is_ready: AtomicBool,
    is_away: AtomicBool,
    is_over: AtomicBool,
}

/// A board.
pub(super) struct Stand {
    state: Arc<State>,
    /// Where it is called.
    port: u16,
}

impl Stand {
    /// A board of this name, which waits to be called.
    pub(super) fn new(name: &str, key: &Key) -> Stand {
        let state = Arc::new(State {
            order: Mutex::new(Order::Rest),
            is_new: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let gate = Gate { board: board::service(state.board(name)), state: Arc::clone(&state) };
        let (of, any) = (("leap-call", Purpose::Orders), "127.0.0.1:0".parse().unwrap());
        let port = server::start(of, any, key.clone(), gate).unwrap().port();
        let (worker, name, key) = (Arc::clone(&state), name.to_owned(), key.clone());
        thread::spawn(move || worker.work(&name, &key));
        Stand { state, port }
    }

    /// Where it is called.
    pub(super) fn called_at(&self) -> Address {
        local(self.port)
    }

    /// Switches its power off: it answers no calls, and forgets its orders.
    pub(super) fn go_away(&self) {
        let State { order, is_new, is_away, .. } = &*self.state;
        is_away.store(true, Ordering::SeqCst);
        *order.lock().unwrap() = Order::Rest;
        is_new.store(true, Ordering::SeqCst);
    }

    /// Switches the board's power on again.
    pub(super) fn come_back(&self) {
        self.state.is_away.store(false, Ordering::SeqCst);
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.go_away();
        self.state.is_over.store(true, Ordering::SeqCst);
    }
}

impl State {
    fn board(self: &Arc<State>, name: &str) -> Board {
        let [taking, keeping, held] = [(); 3].map(|()| Arc::clone(self));
        let take = move |order: Order| {
            let mut own = taking.order.lock().unwrap();
            if *own != order {
                *own = order;
                taking.is_ready.store(false, Ordering::SeqCst);
                taking.is_new.store(true, Ordering::SeqCst);
            }
            Ok(())
        };
        let keep = move |order: Order| {
            *keeping.order.lock().unwrap() = order;
            Ok(())
        };
        let state = move || {
            let ring = match &*held.order.lock().unwrap() {
                Order::Ring { file, .. } => ring_number(file),
                Order::Rest => 0,
            };
            Ok(HeldState { ring, is_ready: held.is_ready.load(Ordering::SeqCst), progress: 0 })
        };
        let speeds = speeds().into_iter().collect();
        Board {
            figures: Figures {
                port: free_port(),
                memory: 1 << 30,
                name: hello::name(name),
                speeds,
            },
            take: Box::new(take),
            // It has the whole model.
            prepare: Box::new(|_, _| Ok(100)),
            keep: Box::new(keep),
            forget: Box::new(|| Ok(())),
            state: Box::new(state),
            refuse: Box::new(|_, _| {}),
        }
    }

    /// Does what it is told until the test is over.
    fn work(&self, name: &str, key: &Key) {
        let mut held = Held::default();
        while !self.is_over.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(10));
            let order = {
                let order = self.order.lock().unwrap();
                self.is_new.swap(false, Ordering::SeqCst).then(|| order.clone())
            };
            if let Some(Order::Ring { file, .. }) = order {
                self.take_part(&Topology::parse(&file).unwrap(), (name, key), &mut held);
            }
        }
    }

    fn take_part(&self, topology: &Topology, (name, key): (&str, &Key), held: &mut Held) {
        let (own, _) = topology.place(name).unwrap();
        let endpoint = endpoint(&model(), topology, name, key);
        let one = Options { threads: Some(1), ..Options::default() };
        let options = Options { ctx_len: Some(1), batch: Some(1), ..one };
        let mut engine = Engine::new(narrow(model(), &own.layers, false), &options).unwrap();
        self.is_ready.store(true, Ordering::SeqCst);
        let limits = Limits { ctx_len: 256, n_streams: 1, max_batch: 16 };
        let other_file = |_: &Range<usize>| Some((model(), Path::new(MODEL).to_owned()));
        let is_ended = || self.is_new.load(Ordering::SeqCst) || self.is_over.load(Ordering::SeqCst);
        let meter = |_| MachineReading::default();
        let (of, ends) = ((name, limits, &meter as _), (&is_ended as _, &other_file as _));
        engine.work(endpoint, of, &place(), ends, held, &mut |_| {}).unwrap();
        self.is_ready.store(false, Ordering::SeqCst);
    }
}

/// Lets masters reach a board as long as it is not away.
struct Gate<S> {
    board: S,
    state: Arc<State>,
}

impl<S: Service> Service for Gate<S> {
    fn talk(&self, channel: Channel<'_>, from: IpAddr) -> Result<(), ChannelError> {
        match self.state.is_away.load(Ordering::SeqCst) {
            true => Err(io::Error::other("its power is off").into()),
            false => self.board.talk(channel, from),
        }
    }

    fn refuse(&self, from: IpAddr, why: &ChannelError) {
        self.board.refuse(from, why);
    }
}
