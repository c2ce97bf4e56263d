//! `leap bench --link`: frames to another node and back over each carrier, beside the same bytes over bare sockets.
//! Bare UDP sends them in one datagram, the lowest cost of a round trip where packets may be that long, and in
//! datagrams as long as a link's chunks, which fit Ethernet's packets. Both ends of every carrier write all the bytes
//! that they send each time, as real programs do.

mod bare;
mod ends;
mod server;
mod team;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub(super) use ends::{GatherFigures, LinkFigures, place};
pub(super) use server::serve;

use crate::cli::{Failure, note};
use crate::sys::cpu;
use crate::transport::Endpoint;
use crate::transport::kmod::Kmod;
use crate::transport::link::{LinkEvent, LinkIn, LinkOut, LinkState};
use crate::transport::place::HostPort;
use crate::wire::datagram::{CHUNK_BYTES, FRAME_MAX};
use crate::wire::hello::Refusal;
use crate::wire::seal::Key;
use bare::{bare_tcp, bare_udp};
use ends::{
    ECHO_FRAME, GIVE_UP, PATIENCE, PING_BYTES, PORT_FRAME, Ports, ROUNDS, SINK_FRAME, TEAM_FRAME,
    TURNS, WARM_UP, failed, figures, open, options, write,
};
use server::{pin, start_on_another_core};
use team::GatherRun;

/// Measures every carrier against the server at `server`; `self` starts one here. Returns the figures of links.
pub(super) fn measure(
    server: &HostPort,
    key: Option<&Key>,
    mut tell: impl FnMut(&LinkFigures) -> Result<(), Failure>,
) -> Result<Vec<LinkFigures>, Failure> {
    let ports = match server.host.as_str() {
        "self" => {
            let ports = start_on_another_core(key)?;
            pin(0);
            ports
        }
        _ => Ports::after(server.resolve(|_| true).map_err(|e| Failure::runtime(&e))?)?,
    };
    tell(&bare_udp("bare udp", ports.bare_udp, PING_BYTES)?)?;
    tell(&bare_udp("bare 1400 B", ports.bare_udp, CHUNK_BYTES)?)?;
    tell(&bare_tcp(ports.bare_tcp)?)?;
    let mut runs = vec![LinkRun::new("udp", ports.udp, key), LinkRun::new("tcp", ports.tcp, key)];
    if let Some(kernel) = ports.kernel.filter(|_| Kmod::is_available()) {
        let run = LinkRun::new("kernel", kernel, key);
        // The server may have no module.
        match run.open() {
            Ok(_) => runs.push(run),
            Err(Failure::Runtime(why)) => {
                note(&format!("leap: no link over the kernel module: {why}"));
            }
            Err(e) => return Err(e),
        }
    }
    for _ in 0..TURNS {
        runs.iter_mut().try_for_each(LinkRun::turn)?;
    }
    let told = runs.into_iter().map(|run| {
        let figures = run.finish()?;
        tell(&figures).map(|()| figures)
    });
    told.collect()
}

/// A link that is being measured. It is open only in its turns, because a node has one carrier: another open socket
/// that receives joined datagrams (GRO) makes the kernel look up a socket for each datagram.
struct LinkRun<'a> {
    carrier: &'static str,
    to: SocketAddr,
    key: Option<&'a Key>,
    samples: Vec<f64>,
    /// CPU time of this machine so far; `None` if it is unknown.
    busy: Option<Duration>,
    n_rounds: u32,
    gathers: [GatherRun; 4],
}

impl LinkRun<'_> {
    fn new<'a>(carrier: &'static str, to: SocketAddr, key: Option<&'a Key>) -> LinkRun<'a> {
        let samples = Vec::with_capacity(ROUNDS);
        let (busy, gathers) = (Some(Duration::ZERO), GatherRun::all());
        LinkRun { carrier, to, key, samples, busy, n_rounds: 0, gathers }
    }

    fn open(&self) -> Result<Box<dyn Endpoint>, Failure> {
        let any = if self.to.is_ipv4() { "0.0.0.0" } else { "::" };
        let next = HostPort::new(&self.to.ip().to_string(), self.to.port());
        let options = options(true, self.key, HostPort::new(any, 0), Some(next))?;
        let mut node = open(self.carrier, options)?;
        connect(node.as_mut())?;
        Ok(node)
    }

    /// Measures round trips, after some for warm-up, and gathers.
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
        send(node.as_mut(), 1, |frame| write(frame, TEAM_FRAME))?;
        team::turn(node, &mut self.gathers).map(drop)
    }

    /// Measures the throughput, and sums up.
    fn finish(self) -> Result<LinkFigures, Failure> {
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
        let gathers = self.gathers.into_iter().map(GatherRun::figures).collect();
        let figures = figures(&carrier, self.samples);
        Ok(LinkFigures { bytes_per_s, cpu_us, datagram_bytes, gathers, notices, ..figures })
    }
}

/// Services `node` until `done` returns a result.
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
        // The clock starts here because waiting frames are sent only by the first call.
        waiting_since.get_or_insert_with(Instant::now);
    }
}

/// Opens both directions: tells the server where to send answers.
fn connect(node: &mut dyn Endpoint) -> Result<(), Failure> {
    let port = node.local_address().port().to_le_bytes();
    until(node, |next, _| match next.next_event()? {
        LinkEvent::Up { .. } => Some(Ok(())),
        // The server has not yet forgotten the previous peer.
        LinkEvent::Refused(refused) if matches!(refused.refusal, Refusal::Busy { .. }) => None,
        LinkEvent::Unheard(unheard) => Some(Err(Failure::Runtime(unheard.to_string()))),
        LinkEvent::Refused(refused) => Some(Err(Failure::Runtime(refused.to_string()))),
        _ => None,
    })?;
    send(node, 3, |frame| frame.copy_from_slice(&[PORT_FRAME, port[0], port[1]]))?;
    until(node, |_, prev| {
        while prev.next_event().is_some() {}
        (*prev.state() == LinkState::Up).then_some(Ok(()))
    })
}

fn send(node: &mut dyn Endpoint, bytes: usize, write: impl Fn(&mut [u8])) -> Result<(), Failure> {
    until(node, |next, _| {
        write(&mut next.reserve()?[..bytes]);
        next.commit(bytes);
        Some(Ok(()))
    })
}

/// Sends one frame there and back.
fn echo(node: &mut dyn Endpoint) -> Result<(), Failure> {
    send(node, PING_BYTES, |frame| write(frame, ECHO_FRAME))?;
    receive(node, PING_BYTES)
}

/// Takes a frame that has come back.
fn receive(node: &mut dyn Endpoint, bytes: usize) -> Result<(), Failure> {
    until(node, |next, prev| {
        // Events are dropped: a link may seem lost while the machine stands still.
        while next.next_event().is_some() || prev.next_event().is_some() {}
        let is_whole = prev.front()?.len() == bytes;
        prev.release();
        let strange = || Failure::Runtime("the server answered something else".to_owned());
        Some(is_whole.then_some(()).ok_or_else(strange))
    })
}

/// Throughput with the longest frames, in bytes a second, all of them acknowledged.
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
