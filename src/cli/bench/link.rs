//! `leap bench --link`: frames to another node and back, over each carrier, beside the same bytes
//! over bare sockets: UDP in one datagram, which is the least that a round trip can cost where
//! packets may be so long, and in datagrams as long as a link's chunks, as programs send them
//! that have to fit Ethernet's packets. Either end of every carrier writes all the bytes that it
//! sends anew, as programs that have something to say do.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::Failure;
use crate::sys::{cpu, net, random, signal};
use crate::transport::Endpoint;
use crate::transport::kmod::Kmod;
use crate::transport::link::{Event, LinkConfig, LinkIn, LinkOut, State};
use crate::transport::options::{Options, Place};
use crate::transport::tcp::Tcp;
use crate::transport::udp::Udp;
use crate::wire::datagram::{CHUNK_BYTES, FRAME_MAX};
use crate::wire::hello::{Refusal, RingInfo, name};
use crate::wire::seal::Key;

/// Port of the server's links if none is given; its bare sockets have the next one, its link by
/// the kernel module the one after that.
pub(super) const PORT: u16 = 9999;
/// Bytes that go there and back.
const PING_BYTES: usize = 16 << 10;
const WARM_UP: usize = 300;
const ROUNDS: usize = 3000;
/// Links take as many turns at their round trips, so that what slows the machine for a while slows
/// them all.
const TURNS: u32 = 5;
/// A carrier gets no more time than this for its round trips, or for its throughput.
const PATIENCE: Duration = Duration::from_secs(2);
const GIVE_UP: Duration = Duration::from_secs(10);
/// As long as a link's endpoint looks for datagrams before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// First byte of a frame: the port to send back to, an echo is wanted, or nothing is.
const PORT_FRAME: u8 = 0;
const ECHO_FRAME: u8 = 1;
const SINK_FRAME: u8 = 2;

/// What a bare datagram begins with: one that wants an answer, or is one. A server answers nothing
/// else, so that two of them never answer each other.
const REQUEST: &[u8; 8] = b"LEAPping";
const ANSWER: &[u8; 8] = b"LEAPpong";
/// Bare streams that a server answers at the same time.
const STREAMS_MAX: usize = 16;

/// What one carrier did.
pub(super) struct Figures {
    pub(super) carrier: String,
    /// Round trips of [`PING_BYTES`], half and 99 of 100 are faster, in microseconds.
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// One way, in the longest frames; bare UDP has none, as nothing says what arrived.
    pub(super) bytes_per_s: Option<f64>,
    /// CPU time of this whole machine for a round trip.
    pub(super) cpu_us: Option<f64>,
    /// Bytes of the longest datagram that the path there takes, if frames travel in datagrams.
    pub(super) datagram_bytes: Option<u32>,
    /// What the user should know of the carrier.
    pub(super) notices: Vec<String>,
}

/// Where a server's sockets are.
#[derive(Clone, Copy)]
struct Ports {
    udp: SocketAddr,
    tcp: SocketAddr,
    bare_udp: SocketAddr,
    bare_tcp: SocketAddr,
    /// Where the server's module is; whether it has one is not known.
    kernel: Option<SocketAddr>,
}

impl Ports {
    fn after(address: SocketAddr) -> Result<Ports, Failure> {
        let behind = |n: u16| {
            let port = address.port().checked_add(n);
            port.map(|port| SocketAddr::new(address.ip(), port))
                .ok_or_else(|| Failure::Usage("there is no port after 65535".to_owned()))
        };
        let (bare, kernel) = (behind(1)?, Some(behind(2)?));
        Ok(Ports { udp: address, tcp: address, bare_udp: bare, bare_tcp: bare, kernel })
    }
}

/// A host with or without a port: `board`, `board:9999`, `10.0.0.2`, `[fe80::1]:9999`, `::1`.
pub(super) fn place(text: &str) -> Result<Place, String> {
    let is_bare_v6 = text.matches(':').count() > 1 && !text.starts_with('[');
    match text.rsplit_once(':') {
        Some((host, port)) if !is_bare_v6 && !text.ends_with(']') => {
            let port = port.parse().map_err(|_| format!("{port:?} is no port"))?;
            Ok(Place::new(host, port))
        }
        _ => Ok(Place::new(text, PORT)),
    }
}

/// Which end of the bench this node is. The client is the ring's master.
fn config(is_client: bool, key: Option<&Key>) -> Result<LinkConfig, Failure> {
    let (first_layer, end_layer) = if is_client { (0, 1) } else { (1, 2) };
    let node = RingInfo {
        n_layers: 2,
        first_layer,
        end_layer,
        is_master: is_client,
        name: name("bench"),
        ..RingInfo::default()
    };
    let seed = random::seed()
        .map_err(|e| Failure::Runtime(format!("the system gives no random numbers: {e}")))?;
    Ok(LinkConfig::new(node, key.cloned(), seed))
}

fn options(
    is_client: bool,
    key: Option<&Key>,
    listen: Place,
    next: Option<Place>,
) -> Result<Options, Failure> {
    Ok(Options { spin: SPIN, ..Options::new(config(is_client, key)?, listen, next) })
}

fn open(carrier: &str, options: Options) -> Result<Box<dyn Endpoint>, Failure> {
    match carrier {
        "kernel" => Ok(Box::new(Kmod::open(options).map_err(|e| Failure::runtime(&e))?)),
        "tcp" => Ok(Box::new(Tcp::open(options).map_err(|e| Failure::runtime(&e))?)),
        _ => Ok(Box::new(Udp::open(options).map_err(|e| Failure::runtime(&e))?)),
    }
}

/// What either end does before it sends, whatever the carrier: writes a frame of this kind.
fn write(frame: &mut [u8], kind: u8) {
    frame.fill(kind);
}

/// The same for the bare datagram whose mark is `mark`.
fn write_datagram(datagram: &mut [u8], mark: &[u8; 8]) {
    write(datagram, ECHO_FRAME);
    let len = datagram.len().min(mark.len());
    datagram[..len].copy_from_slice(&mark[..len]);
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> Failure {
    let what = what.to_owned();
    move |e| Failure::Runtime(format!("{what}: {e}"))
}

// The server

/// Starts the threads that answer clients, which run as long as the process. Returns where they
/// listen and what the user should know.
fn start_server(listen: &Place, key: Option<&Key>) -> Result<(Ports, Vec<String>), Failure> {
    let any = |address: SocketAddr| match listen.port {
        0 => Ok(SocketAddr::new(address.ip(), 0)),
        _ => Ports::after(address).map(|ports| ports.bare_udp),
    };
    let mut opened = Vec::new();
    for carrier in ["udp", "tcp"] {
        opened.push(open(carrier, options(false, key, listen.clone(), None)?)?);
    }
    let [udp, tcp] = [opened[0].local_address(), opened[1].local_address()];
    let at = match listen.port {
        0 => listen.clone(),
        _ => Place { port: listen.port.saturating_add(2), ..listen.clone() },
    };
    let module = Kmod::open(options(false, key, at, None)?).ok();
    let kernel = module.as_ref().map(Endpoint::local_address);
    opened.extend(module.map(|module| Box::new(module) as _));
    let bare = any(udp)?;
    let bare_udp = UdpSocket::bind(bare).map_err(failed("cannot listen"))?;
    let bare_tcp = TcpListener::bind(bare).map_err(failed("cannot listen"))?;
    let local = failed("cannot listen");
    let ports = Ports {
        udp,
        tcp,
        bare_udp: bare_udp.local_addr().map_err(&local)?,
        bare_tcp: bare_tcp.local_addr().map_err(&local)?,
        kernel,
    };
    let notices = opened.iter().flat_map(|node| node.notices().to_vec()).collect();
    for node in opened {
        start(move || serve_links(node))?;
    }
    start(move || echo_datagrams(&bare_udp))?;
    start(move || echo_streams(&bare_tcp))?;
    Ok((ports, notices))
}

/// A thread that runs as long as it likes.
fn start(work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = thread::Builder::new().spawn(work).map_err(failed("cannot start a thread"))?;
    // It goes on by itself.
    drop(started);
    Ok(())
}

/// A server in this process. Client and server have a core each: on one, either would spin
/// while the other has something to do. Threads inherit the core of the one that starts them.
fn start_on_another_core(key: Option<&Key>) -> Result<Ports, Failure> {
    thread::scope(|scope| {
        let serve = || {
            pin(1);
            start_server(&Place::new("127.0.0.1", 0), key)
        };
        let server = thread::Builder::new().spawn_scoped(scope, serve);
        let started = server.map_err(failed("cannot start a thread"))?.join();
        let (ports, _) = started.map_err(|_| Failure::Runtime("no server".to_owned()))??;
        Ok(ports)
    })
}

/// Keeps this thread on the core with this index, the fastest first, if there is one.
fn pin(index: usize) {
    if let Some(core) = cpu::cores().get(index) {
        cpu::pin_current_thread(core.cpu);
    }
}

/// Answers clients until the program is interrupted.
pub(super) fn serve(listen: &Place, key: Option<&Key>, note: fn(&str)) -> Result<(), Failure> {
    signal::install().map_err(failed("cannot handle signals"))?;
    let (ports, notices) = start_server(listen, key)?;
    notices.iter().for_each(|notice| note(notice));
    note(&format!("links at {}, bare sockets at {}", ports.udp, ports.bare_udp));
    while signal::interrupted() == 0 {
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn serve_links(mut node: Box<dyn Endpoint>) {
    loop {
        if node.service(Duration::from_secs(1)).is_err() {
            return;
        }
        let links = node.links();
        while links.prev.as_mut().is_some_and(|link| link.next_event().is_some()) {}
        while links.next.as_mut().is_some_and(|link| link.next_event().is_some()) {}
        if let Some(address) = answer(links.next.as_mut(), links.prev.as_mut()) {
            node.set_next(address);
        }
    }
}

/// Answers frames with as long ones while there is room. Returns where a new client wants them.
fn answer(mut next: Option<&mut LinkOut>, prev: Option<&mut LinkIn>) -> Option<SocketAddr> {
    let prev = prev?;
    while let Some(frame) = prev.front() {
        match *frame {
            [PORT_FRAME, low, high, ..] => {
                let client = prev.address()?;
                prev.release();
                return Some(SocketAddr::new(client.ip(), u16::from_le_bytes([low, high])));
            }
            [ECHO_FRAME, ..] => {
                let bytes = frame.len();
                let link = next.as_deref_mut()?;
                write(&mut link.reserve()?[..bytes], ECHO_FRAME);
                link.commit(bytes);
            }
            _ => {}
        }
        prev.release();
    }
    None
}

fn echo_datagrams(socket: &UdpSocket) {
    if socket.set_nonblocking(true).is_err() {
        return;
    }
    // What is longer than a request is cut here, and then not one.
    let (mut answer, mut received) = (vec![0; PING_BYTES], vec![0; PING_BYTES + 1]);
    loop {
        match spin(|| socket.recv_from(&mut received), socket) {
            Ok((n, from)) if n <= PING_BYTES && received[..n].starts_with(REQUEST) => {
                write_datagram(&mut answer[..n], ANSWER);
                // A lost answer is the client's to notice.
                let _ = socket.send_to(&answer[..n], from);
            }
            _ => {}
        }
    }
}

fn echo_streams(listener: &TcpListener) {
    let clients = Arc::new(());
    for stream in listener.incoming().flatten() {
        if Arc::strong_count(&clients) > STREAMS_MAX {
            continue;
        }
        let client = Arc::clone(&clients);
        // A client that no thread is left for finds its stream closed.
        let _ = start(move || {
            let _client = client;
            let mut bytes = vec![0; PING_BYTES];
            let is_tuned = tune(&stream).is_ok();
            while is_tuned && exchange(&stream, &mut bytes, false).is_ok() {}
        });
    }
}

// The client

/// Measures every carrier against the server at `server`; `self` starts one here.
pub(super) fn measure(
    server: &Place,
    key: Option<&Key>,
    mut tell: impl FnMut(Figures) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let ports = match server.host.as_str() {
        "self" => {
            let ports = start_on_another_core(key)?;
            pin(0);
            ports
        }
        _ => Ports::after(server.resolve(|_| true).map_err(|e| Failure::runtime(&e))?)?,
    };
    tell(bare_udp("bare udp", ports.bare_udp, PING_BYTES)?)?;
    tell(bare_udp("bare 1400 B", ports.bare_udp, CHUNK_BYTES)?)?;
    tell(bare_tcp(ports.bare_tcp)?)?;
    let mut runs = vec![Run::new("udp", ports.udp, key), Run::new("tcp", ports.tcp, key)];
    if let Some(kernel) = ports.kernel.filter(|_| Kmod::is_available()) {
        runs.push(Run::new("kernel", kernel, key));
    }
    for _ in 0..TURNS {
        runs.iter_mut().try_for_each(Run::turn)?;
    }
    runs.into_iter().try_for_each(|run| tell(run.finish()?))
}

/// A link that is being measured. It is open in its turns only, as a node has one carrier: a socket
/// that wants datagrams joined makes the kernel look for it whenever one comes.
struct Run<'a> {
    carrier: &'static str,
    to: SocketAddr,
    key: Option<&'a Key>,
    samples: Vec<f64>,
    /// CPU time of this machine so far; none if it cannot be known.
    busy: Option<Duration>,
    n_rounds: u32,
}

impl Run<'_> {
    fn new<'a>(carrier: &'static str, to: SocketAddr, key: Option<&'a Key>) -> Run<'a> {
        let samples = Vec::with_capacity(ROUNDS);
        Run { carrier, to, key, samples, busy: Some(Duration::ZERO), n_rounds: 0 }
    }

    fn open(&self) -> Result<Box<dyn Endpoint>, Failure> {
        let any = if self.to.is_ipv4() { "0.0.0.0" } else { "::" };
        let next = Place::new(&self.to.ip().to_string(), self.to.port());
        let options = options(true, self.key, Place::new(any, 0), Some(next))?;
        let mut node = open(self.carrier, options)?;
        connect(node.as_mut())?;
        Ok(node)
    }

    /// Round trips, the first of which are not told.
    fn turn(&mut self) -> Result<(), Failure> {
        let mut node = self.open()?;
        let turns = TURNS as usize;
        let (start, busy) = (Instant::now(), cpu::busy_time());
        for round in 0..(WARM_UP + ROUNDS) / turns {
            let begin = Instant::now();
            echo(node.as_mut())?;
            self.n_rounds += 1;
            if round >= WARM_UP / turns || start.elapsed() > PATIENCE / TURNS / 4 {
                self.samples.push(begin.elapsed().as_secs_f64() * 1e6);
            }
            if start.elapsed() > PATIENCE / TURNS && !self.samples.is_empty() {
                break;
            }
        }
        let spent = cpu::busy_time().zip(busy).map(|(after, before)| after.saturating_sub(before));
        self.busy = self.busy.zip(spent).map(|(sum, spent)| sum + spent);
        Ok(())
    }

    /// Measures the throughput, and sums up.
    fn finish(self) -> Result<Figures, Failure> {
        let mut node = self.open()?;
        let bytes_per_s = Some(throughput(node.as_mut())?);
        let cpu_us = self.busy.map(|busy| busy.as_secs_f64() * 1e6 / f64::from(self.n_rounds));
        let notices = node.notices().to_vec();
        let longest = node.links().next.as_ref().map_or(0, |next| next.stats().datagram_bytes);
        let datagram_bytes = Some(longest).filter(|&bytes| bytes > 0);
        let carrier = match self.key {
            Some(_) => format!("{}, sealed", self.carrier),
            None => self.carrier.to_owned(),
        };
        let figures = figures(&carrier, self.samples);
        Ok(Figures { bytes_per_s, cpu_us, datagram_bytes, notices, ..figures })
    }
}

/// Services `node` until `done` gives something.
fn until<T>(
    node: &mut dyn Endpoint,
    mut done: impl FnMut(&mut LinkOut, &mut LinkIn) -> Option<Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut waiting_since: Option<Instant> = None;
    loop {
        let links = node.links();
        if let (Some(next), Some(prev)) = (&mut links.next, &mut links.prev)
            && let Some(result) = done(next, prev)
        {
            return result;
        }
        if waiting_since.is_some_and(|since| since.elapsed() > GIVE_UP) {
            return Err(Failure::Runtime("the server does not answer".to_owned()));
        }
        node.service(Duration::from_millis(100)).map_err(failed("the carrier failed"))?;
        // Not before: frames wait to be sent.
        waiting_since.get_or_insert_with(Instant::now);
    }
}

/// Opens both directions: the server is told where to send back to.
fn connect(node: &mut dyn Endpoint) -> Result<(), Failure> {
    let port = node.local_address().port().to_le_bytes();
    until(node, |next, _| match next.next_event()? {
        Event::Up { .. } => Some(Ok(())),
        // Whoever was here before is being forgotten.
        Event::Refused(refused) if matches!(refused.refusal, Refusal::Busy { .. }) => None,
        Event::Unheard(unheard) => Some(Err(Failure::Runtime(unheard.to_string()))),
        Event::Refused(refused) => Some(Err(Failure::Runtime(refused.to_string()))),
        _ => None,
    })?;
    send(node, 3, |frame| frame.copy_from_slice(&[PORT_FRAME, port[0], port[1]]))?;
    until(node, |_, prev| {
        while prev.next_event().is_some() {}
        (*prev.state() == State::Up).then_some(Ok(()))
    })
}

fn send(node: &mut dyn Endpoint, bytes: usize, write: impl Fn(&mut [u8])) -> Result<(), Failure> {
    until(node, |next, _| {
        write(&mut next.reserve()?[..bytes]);
        next.commit(bytes);
        Some(Ok(()))
    })
}

/// One frame there and back.
fn echo(node: &mut dyn Endpoint) -> Result<(), Failure> {
    send(node, PING_BYTES, |frame| write(frame, ECHO_FRAME))?;
    until(node, |next, prev| {
        // A link may seem lost while the machine stands still.
        while next.next_event().is_some() || prev.next_event().is_some() {}
        let is_whole = prev.front()?.len() == PING_BYTES;
        prev.release();
        let strange = || Failure::Runtime("the server answered something else".to_owned());
        Some(is_whole.then_some(()).ok_or_else(strange))
    })
}

/// Bytes a second of the longest frames, all of them acknowledged.
fn throughput(node: &mut dyn Endpoint) -> Result<f64, Failure> {
    let start = Instant::now();
    let mut bytes = 0;
    while start.elapsed() < PATIENCE / 2 {
        send(node, FRAME_MAX, |frame| write(frame, SINK_FRAME))?;
        bytes += FRAME_MAX;
    }
    until(node, |next, _| (next.in_flight() == 0).then_some(Ok(())))?;
    Ok(bytes as f64 / start.elapsed().as_secs_f64())
}

// Bare sockets

/// Tries `io` until it has something: for a while at once, then as the socket wakes this thread.
fn spin<T>(mut io: impl FnMut() -> std::io::Result<T>, socket: &impl AsFd) -> std::io::Result<T> {
    let start = Instant::now();
    loop {
        match io() {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            other => return other,
        }
        if start.elapsed() > GIVE_UP {
            return Err(ErrorKind::TimedOut.into());
        }
        if start.elapsed() > SPIN {
            net::wait(&[(socket.as_fd(), false)], Duration::from_secs(1));
        }
    }
}

/// In datagrams of at most `datagram_bytes`. One that does not fit the network's packets is cut by
/// the kernel, and lost if a piece is.
fn bare_udp(carrier: &str, to: SocketAddr, datagram_bytes: usize) -> Result<Figures, Failure> {
    let any = SocketAddr::new(if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() }, 0);
    let fail = failed("bare UDP");
    let socket = UdpSocket::bind(any).map_err(&fail)?;
    socket.connect(to).map_err(&fail)?;
    socket.set_nonblocking(true).map_err(&fail)?;
    let (mut sent, mut received) = (vec![0; PING_BYTES], vec![0; PING_BYTES]);
    round_trips(carrier, || {
        for datagram in sent.chunks_mut(datagram_bytes) {
            write_datagram(datagram, REQUEST);
            socket.send(datagram)?;
        }
        let mut n = 0;
        while n < PING_BYTES {
            let datagram = spin(|| socket.recv(&mut received), &socket)?;
            n += if received[..datagram].starts_with(ANSWER) { datagram } else { 0 };
        }
        Ok(())
    })
}

fn bare_tcp(to: SocketAddr) -> Result<Figures, Failure> {
    let fail = failed("bare TCP");
    let stream = TcpStream::connect_timeout(&to, GIVE_UP).map_err(&fail)?;
    tune(&stream).map_err(&fail)?;
    let mut bytes = vec![0; PING_BYTES];
    round_trips("bare tcp", || exchange(&stream, &mut bytes, true))
}

/// Sends as many bytes as there are in `bytes` and reads as many, or the other way round.
fn exchange(stream: &TcpStream, bytes: &mut [u8], is_first: bool) -> std::io::Result<()> {
    if is_first {
        write(bytes, ECHO_FRAME);
        write_all(stream, bytes)?;
    }
    let (mut reader, mut n) = (stream, 0);
    while n < bytes.len() {
        n += match spin(|| reader.read(&mut bytes[n..]), stream)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => n,
        };
    }
    if !is_first {
        write(bytes, ECHO_FRAME);
        write_all(stream, bytes)?;
    }
    Ok(())
}

fn write_all(mut stream: &TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Makes a stream as quick as the links' own.
fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

fn round_trips(
    carrier: &str,
    mut round: impl FnMut() -> std::io::Result<()>,
) -> Result<Figures, Failure> {
    let mut samples = Vec::with_capacity(ROUNDS);
    let start = Instant::now();
    for n in 0..WARM_UP + ROUNDS {
        let begin = Instant::now();
        round().map_err(failed(carrier))?;
        if n >= WARM_UP || start.elapsed() > PATIENCE / 4 {
            samples.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        if start.elapsed() > PATIENCE && !samples.is_empty() {
            break;
        }
    }
    Ok(figures(carrier, samples))
}

fn figures(carrier: &str, mut samples: Vec<f64>) -> Figures {
    samples.sort_by(f64::total_cmp);
    let quantile = |share: f64| {
        let index = (samples.len() as f64 * share) as usize;
        samples.get(index.min(samples.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    };
    Figures {
        carrier: carrier.to_owned(),
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        bytes_per_s: None,
        cpu_us: None,
        datagram_bytes: None,
        notices: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_answers_requests_alone() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(GIVE_UP)).unwrap();
        // The thread waits for datagrams as long as the process lives.
        thread::spawn(move || echo_datagrams(&server));
        for (len, mark) in [(100, ANSWER), (PING_BYTES + 1, REQUEST), (7, REQUEST), (64, REQUEST)] {
            let mut datagram = vec![0; len];
            write_datagram(&mut datagram, mark);
            client.send(&datagram).unwrap();
        }
        client.send(b"anything").unwrap();
        let mut received = [0; 1 << 16];
        // Datagrams to one's own machine arrive in order, so what comes first is the only answer.
        assert_eq!(client.recv(&mut received).unwrap(), 64);
        assert!(received.starts_with(ANSWER));
        let mut last = vec![0; 9];
        write_datagram(&mut last, REQUEST);
        client.send(&last).unwrap();
        assert_eq!(client.recv(&mut received).unwrap(), 9);
    }

    #[test]
    fn places_have_ports_or_not() {
        let parse = |text| place(text).map(|place| (place.host, place.port));
        assert_eq!(parse("board"), Ok(("board".to_owned(), PORT)));
        assert_eq!(parse("10.0.0.2:80"), Ok(("10.0.0.2".to_owned(), 80)));
        assert_eq!(parse("::1"), Ok(("::1".to_owned(), PORT)));
        assert_eq!(parse("[::1]"), Ok(("[::1]".to_owned(), PORT)));
        assert_eq!(parse("[::1]:80"), Ok(("[::1]".to_owned(), 80)));
        assert!(place("board:x").is_err());
    }
}
