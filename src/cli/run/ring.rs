//! This board's part in a ring: what the flags and the ring file say, and what the user is told.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::carrier::CarrierKind;
use super::flags::Run;
use super::roles::Role;
use crate::cli::model_files::{self, Loaded};
use crate::cli::{Failure, counted, key, note, options, warn, weights};
use crate::engine::ring::{Limits, RingOptions};
use crate::engine::{CTX_LEN_DEFAULT, Engine, JoinError, Options, StepError, WeightsPlace};
use crate::format::model::Header;
use crate::model::{Model, Share};
use crate::ring::{Address, Member, Notice, PORT_DEFAULT, Place, Topology, token_bytes};
use crate::sys::{notify, random, signal};
use crate::transport::kmod::Kmod;
use crate::transport::link::LinkConfig;
use crate::transport::options::CarrierOptions;
use crate::transport::place::HostPort;
use crate::transport::tcp::Tcp;
use crate::transport::udp::Udp;
use crate::transport::{Endpoint, TransportError};
use crate::wire::Dtype;
use crate::wire::frame::{NODES_MAX, NodeLine};
use crate::wire::hello::{self, RingInfo};

/// Rows of a prompt that go round at once: small enough that all nodes have some.
const BATCH: usize = 64;
/// The most that a worker is ready for without flags.
const BATCH_MAX: usize = 512;
const STREAMS_MAX: usize = 16;
/// Seconds that a master waits for progress.
const TIMEOUT_S: u64 = 120;
/// How often the name of this board is looked up until it has an address.
const NAME_EVERY: Duration = Duration::from_millis(500);

/// How long a master waits for progress; `None` for ever.
fn ring_timeout(flags: &Run) -> Option<Duration> {
    let seconds = flags.ring_timeout.unwrap_or(TIMEOUT_S);
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// Whether a signal has ended the work. Asked at every turn of the loops, which a service manager may watch.
pub(super) fn is_interrupted() -> bool {
    notify::alive();
    signal::interrupted() != 0
}

/// A board that knows its place.
pub(super) struct Board {
    place: Place,
    share: Share,
    /// Nodes of the ring as far as they are known, the master first; all if there is a ring file.
    members: Vec<Member>,
    n_nodes: usize,
}

impl Board {
    /// What the flags say, for a model with this header.
    pub(super) fn new(flags: &Run, header: &Header) -> Result<Board, Failure> {
        let (place, members, n_nodes) = match &flags.ring {
            Some(path) => {
                let (place, members) = from_file(flags, path, header.n_layers)?;
                let n_nodes = members.len();
                (place, members, n_nodes)
            }
            None => {
                let place = from_flags(flags, header.n_layers)?;
                let members = neighbours(&place);
                (place, members, NODES_MAX)
            }
        };
        let share = Share { layers: place.layers.clone(), has_ends: flags.role == Role::Master };
        Ok(Board { place, share, members, n_nodes })
    }

    /// Whether there are other boards.
    pub(super) fn has_ring(&self) -> bool {
        self.place.next.is_some()
    }

    /// The model with this board's weights alone.
    pub(super) fn narrow(&self, model: Model, place: &WeightsPlace) -> Result<Model, Failure> {
        let (own, Range { start, end }) = (&model.share().layers, &self.share.layers);
        if !model.share().includes(&self.share) {
            return Err(Failure::Input(format!(
                "the file holds layers {}..{} of {}, and {} has {start}..{end}: give it the whole \
                 model, or what `leap export --layers {start}..{end}` writes",
                own.start,
                own.end,
                model.header().n_layers,
                self.place.name,
            )));
        }
        // All boards show the same fingerprint, which may have to be made from the whole file.
        place.recall(&model);
        model.with_share(self.share.clone()).map_err(unreadable)
    }

    fn endpoint(&self, flags: &Run, model: &Model) -> Result<Box<dyn Endpoint>, Failure> {
        let header = model.header();
        let node = RingInfo {
            model: model.fingerprint().map_err(unreadable)?,
            dim: header.dim as u32,
            n_layers: header.n_layers as u32,
            kv_dim: header.kv_dim() as u32,
            vocab_size: header.vocab_size as u32,
            held: wire_layers(&model.file().share().layers),
            wish: Some(wire_layers(&self.share.layers)),
            dtype: flags.wire,
            is_master: self.share.has_ends,
            name: hello::name(&self.place.name),
        };
        let key = flags.key.as_deref().map(key::read).transpose()?;
        let seed =
            random::seed().map_err(|e| Failure::Runtime(format!("no random numbers: {e}")))?;
        let listen = &self.place.listen;
        if key.is_none() && !is_loopback(&listen.host) {
            warn(&format!(
                "no --key: whoever reaches {listen} can join or disturb the ring, and read it"
            ));
        }
        let config = LinkConfig::new(node, key, seed);
        let place = |address: &Address| HostPort::new(&address.host, address.port);
        let next = self.place.next.as_ref().map(place);
        let mut options = CarrierOptions::new(config, place(listen), next);
        if let Some(us) = flags.busy_poll {
            (options.spin, options.busy_poll_us) = (Duration::from_micros(us.into()), us.into());
        }
        let patience = self.share.has_ends.then(|| ring_timeout(flags)).flatten();
        let endpoint = open_named(flags.transport, &options, flags.quiet, patience)?;
        endpoint.notices().iter().for_each(|notice| warn(notice));
        // Who starts boards in order needs to wait for no more: neighbours come when they come.
        notify::start();
        notify::ready();
        notify::status("waiting for the ring");
        if !flags.quiet {
            self.introduce(&*endpoint);
        }
        Ok(endpoint)
    }

    fn introduce(&self, endpoint: &dyn Endpoint) {
        let Place { name, layers, next, .. } = &self.place;
        let next = next.as_ref().map_or(String::new(), |next| format!(", next is {next}"));
        note(&format!(
            "leap: {name} has layers {}..{} and listens on {} ({}){next}",
            layers.start,
            layers.end,
            endpoint.local_address(),
            endpoint.carrier(),
        ));
    }

    /// Makes `engine` the master of the ring, and waits until that is complete.
    pub(super) fn join(&self, flags: &Run, engine: &mut Engine) -> Result<(), Failure> {
        let endpoint = self.endpoint(flags, engine.model())?;
        let (is_quiet, dim, wire) = (flags.quiet, engine.header().dim as u32, flags.wire);
        let options = RingOptions {
            name: self.place.name.clone(),
            n_nodes: self.n_nodes,
            members: self.members.clone(),
            wire,
            timeout: ring_timeout(flags),
            epoch: random_epoch()?,
            is_interrupted,
            tell: Box::new(move |notice, lines| match notice {
                Notice::Opened { again: false } if !is_quiet => describe(lines, dim, wire),
                Notice::Opened { again: false } => {}
                _ => tell(notice),
            }),
        };
        engine.join(endpoint, options).map_err(|e| match e {
            JoinError::Step(StepError::Interrupted) => Failure::Runtime("interrupted".to_owned()),
            JoinError::Step(e) => step_failure(&e),
            e => Failure::runtime(&e),
        })
    }
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
        _ => Failure::runtime(error),
    }
}

/// Runs a worker until a signal ends it.
pub(super) fn work(flags: &Run) -> Result<(), Failure> {
    let model = model_files::model(flags.model.as_deref())?;
    let board = Board::new(flags, model.header())?;
    let model = board.narrow(model, &flags.place())?;
    let header = model.header();
    let limits = Limits {
        ctx_len: flags.ctx.unwrap_or(header.max_seq_len.min(CTX_LEN_DEFAULT)),
        n_streams: flags.streams.unwrap_or(STREAMS_MAX),
        max_batch: flags.batch.unwrap_or(BATCH_MAX),
    };
    let options = Options {
        // The master says what is needed.
        ctx_len: Some(1),
        batch: Some(1),
        threads: flags.threads.map(options::useful_threads),
        cores: flags.cores.as_ref().map(|cores| cores.0.clone()),
        isa: options::isa_from_environment()?,
        ..Options::default()
    };
    let mut engine = Engine::new(model.into(), &options).map_err(options::engine_failure)?;
    weights::prepare(&mut engine, &flags.place(), flags.words())?;
    let endpoint = match board.endpoint(flags, engine.model()) {
        Err(_) if is_interrupted() => return Ok(()),
        endpoint => endpoint?,
    };
    engine.interrupt_by(is_interrupted);
    let mut tell = |notice: &Notice| match notice {
        Notice::Opened { .. } if flags.quiet => {}
        notice => tell(notice),
    };
    engine
        .work(endpoint, (&board.place.name, limits), &flags.place(), &is_interrupted, &mut tell)
        .map_err(|e| Failure::runtime(&e))
}

/// The model of a master: its share, with the tokenizer; or the whole one in a ring of one.
pub(super) fn load(flags: &Run) -> Result<(Loaded, Board), Failure> {
    let mut board = None;
    let loaded =
        model_files::load_with(flags.model.as_deref(), flags.tokenizer.as_deref(), |model| {
            let part = Board::new(flags, model.header())?;
            let model = match part.has_ring() {
                true => part.narrow(model, &flags.place())?,
                false => model_files::whole(model)?,
            };
            board = Some(part);
            Ok(model)
        })?;
    let board = board.ok_or_else(|| Failure::Runtime("no place in the ring".to_owned()))?;
    Ok((loaded, board))
}

/// Rows of a batch on a ring. An expert of a mixture gets few of them: there it counts more that its weights
/// are read once than that all nodes have some.
pub(super) fn batch(flags: &Run, header: &Header) -> usize {
    let of_mixture = header.features.experts.map(|_| BATCH_MAX);
    flags.batch.or(of_mixture).unwrap_or(BATCH)
}

fn from_file(flags: &Run, path: &Path, n_layers: usize) -> Result<(Place, Vec<Member>), Failure> {
    let bad = |what: &dyn std::fmt::Display| Failure::Input(format!("{}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|e| Failure::unreadable(path, &e))?;
    let topology = Topology::parse(&text).map_err(|e| bad(&e))?;
    topology.check(n_layers).map_err(|e| bad(&e))?;
    let name = match (&flags.node, flags.role) {
        (Some(name), _) => name.clone(),
        (None, Role::Master) => topology.members()[0].name.clone(),
        (None, _) => {
            return Err(Failure::Usage("--ring needs --node NAME on a worker".to_owned()));
        }
    };
    let (mut place, is_master) = topology.place(&name).map_err(|e| bad(&e))?;
    if is_master != (flags.role == Role::Master) {
        let first = &topology.members()[0].name;
        return Err(Failure::Usage(format!(
            "{name} is not the {} in {}: the first node, {first}, is the master",
            if is_master { "worker" } else { "master" },
            path.display(),
        )));
    }
    if let Some(host) = &flags.host {
        place.listen.host.clone_from(host);
    }
    place.listen.port = flags.port.unwrap_or(place.listen.port);
    Ok((place, topology.members().to_vec()))
}

/// A node and the next one, of a ring of which no more is known.
fn neighbours(place: &Place) -> Vec<Member> {
    let member = |name: &str, address: &Address| Member {
        name: name.to_owned(),
        address: address.clone(),
        layers: place.layers.clone(),
    };
    let next = place.next.iter().map(|next| member("the next node", next));
    std::iter::once(member(&place.name, &place.listen)).chain(next).collect()
}

fn from_flags(flags: &Run, n_layers: usize) -> Result<Place, Failure> {
    let usage = |what: String| Err(Failure::Usage(what));
    let Some(split) = flags.split else {
        return usage("a ring needs --ring FILE, or --split with --next-host".to_owned());
    };
    let (name, layers) = match flags.role {
        Role::Worker => {
            let end = flags.end.unwrap_or(n_layers);
            (format!("worker-{split}"), split..end)
        }
        _ => ("master".to_owned(), 0..split),
    };
    if layers.is_empty() || layers.end > n_layers {
        let (start, end) = (layers.start, layers.end);
        return usage(format!("--split and --end give layers {start}..{end} of 0..{n_layers}"));
    }
    let Some(next_host) = &flags.next_host else {
        return usage("--split needs --next-host".to_owned());
    };
    // Without a key only this machine is trusted.
    let any = if flags.key.is_some() { "0.0.0.0" } else { "127.0.0.1" };
    Ok(Place {
        name: flags.node.clone().unwrap_or(name),
        layers,
        listen: Address {
            host: flags.host.clone().unwrap_or_else(|| any.to_owned()),
            port: flags.port.unwrap_or(PORT_DEFAULT),
        },
        next: Some(Address {
            host: next_host.clone(),
            port: flags.next_port.unwrap_or(PORT_DEFAULT),
        }),
    })
}

/// Opens the links. If this board has a name that nobody knows yet, as may be when boards start, waits
/// for that.
fn open_named(
    carrier: CarrierKind,
    options: &CarrierOptions,
    is_quiet: bool,
    patience: Option<Duration>,
) -> Result<Box<dyn Endpoint>, Failure> {
    let (start, mut is_told) = (Instant::now(), false);
    loop {
        let error = match open(carrier, options.clone(), is_quiet || is_told) {
            Err(error @ TransportError::Resolve { .. }) if options.listen.is_name() => error,
            result => return result.map_err(|e| Failure::runtime(&e)),
        };
        let is_over = patience.is_some_and(|patience| start.elapsed() > patience);
        if is_over || is_interrupted() {
            return Err(Failure::runtime(&error));
        }
        if !std::mem::replace(&mut is_told, true) {
            warn(&format!("{error}, and goes on trying"));
        }
        thread::sleep(NAME_EVERY);
    }
}

fn open(
    carrier: CarrierKind,
    options: CarrierOptions,
    is_quiet: bool,
) -> Result<Box<dyn Endpoint>, TransportError> {
    match carrier {
        CarrierKind::Tcp => Tcp::open(options).map(|tcp| Box::new(tcp) as _),
        CarrierKind::Udp => Udp::open(options).map(|udp| Box::new(udp) as _),
        CarrierKind::Kernel => Kmod::open(options).map(|kmod| Box::new(kmod) as _),
        CarrierKind::Auto => match Kmod::open(options.clone()) {
            Err(TransportError::Kernel { source }) => {
                if !is_quiet {
                    note(&format!("leap: using udp: {source}"));
                }
                Udp::open(options).map(|udp| Box::new(udp) as _)
            }
            other => other.map(|kmod| Box::new(kmod) as _),
        },
    }
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn random_epoch() -> Result<u32, Failure> {
    let seed = random::seed().map_err(|e| Failure::Runtime(format!("no random numbers: {e}")))?;
    Ok(u32::from_le_bytes([seed[0], seed[1], seed[2], seed[3]]))
}

/// The ring, a line a node.
fn describe(lines: &[NodeLine], dim: u32, wire: Dtype) {
    note(&format!(
        "ring of {} nodes, {} activations, {} bytes per token on each link",
        lines.len(),
        wire.name(),
        token_bytes(dim, wire),
    ));
    let width = lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
    for line in lines {
        note(&format!(
            "  {:width$}  layers {}..{}, {:.1} MB of weights per token, {}, {}; {} to the next, {} us round trip{}",
            line.name.as_str(),
            line.layers.start,
            line.layers.end,
            line.bytes_per_token as f64 / 1e6,
            line.isa,
            counted(usize::from(line.threads), "thread"),
            line.carrier,
            line.rtt_us,
            datagrams(line.datagram_bytes),
        ));
    }
}

fn datagrams(bytes: u32) -> String {
    if bytes > 0 { format!(", datagrams of {bytes} bytes") } else { String::new() }
}

/// Says what happened to the ring.
fn tell(notice: &Notice) {
    let text = match notice {
        Notice::Opened { again: false } => "a master opened the ring".to_owned(),
        Notice::Opened { again: true } => "the ring is complete again".to_owned(),
        Notice::Silent(name) => format!("nothing is heard of {name}; waiting"),
        Notice::Back(name) => format!("{name} is heard again"),
        Notice::Reset(name) => format!("the link to {name} began anew"),
        Notice::Took { layers, packed, reused } => format!(
            "took layers {}..{}: {} packed, {reused} reused",
            layers.start,
            layers.end,
            counted(*packed, "tensor"),
        ),
        Notice::MasterLeft => "the master left; waiting for the next one".to_owned(),
        Notice::Broken(what) => format!("a neighbour sent {what}"),
        Notice::Refused(what) => what.clone(),
        Notice::Waiting(what) | Notice::Carrier(what) => what.clone(),
        Notice::Stalled { seconds, what } => format!("no progress for {seconds} s: {what}"),
        Notice::GoesOn => "the ring goes on".to_owned(),
    };
    notify::status(&text);
    note(&format!("leap: {text}"));
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
