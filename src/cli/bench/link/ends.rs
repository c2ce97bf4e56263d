//! Shared by both ends of the link bench: addresses, frames, and figures.

use std::net::SocketAddr;
use std::time::Duration;

use crate::cli::Failure;
use crate::ring::Address;
use crate::sys::random;
use crate::transport::Endpoint;
use crate::transport::kmod::Kmod;
use crate::transport::link::LinkConfig;
use crate::transport::options::CarrierOptions;
use crate::transport::place::HostPort;
use crate::transport::tcp::Tcp;
use crate::transport::udp::Udp;
use crate::wire::hello::{RingInfo, name};
use crate::wire::seal::Key;

/// Default port of the server's links. Its bare sockets use the next port, its kernel module's link the one after that.
pub(super) const PORT: u16 = 9999;
/// Bytes of a round trip, each way.
pub(super) const PING_BYTES: usize = 16 << 10;
pub(super) const WARM_UP: usize = 300;
pub(super) const ROUNDS: usize = 3000;
/// Turns of each link's round trips: links alternate, so that disturbances of the machine affect all alike.
pub(super) const TURNS: u32 = 5;
/// Longest time for a carrier's round trips, and for its throughput.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
pub(super) const GIVE_UP: Duration = Duration::from_secs(10);
/// How long an endpoint polls for datagrams before it sleeps.
pub(super) const SPIN: Duration = Duration::from_micros(50);

/// First byte of a frame. In order: the port to answer to follows; an echo is wanted; no answer is; gathers of a team
/// follow.
pub(super) const PORT_FRAME: u8 = 0;
pub(super) const ECHO_FRAME: u8 = 1;
pub(super) const SINK_FRAME: u8 = 2;
pub(super) const TEAM_FRAME: u8 = 3;

/// First bytes of a bare datagram that wants an answer, and of the answer. A server answers only requests, so two
/// servers never answer each other.
pub(super) const REQUEST: &[u8; 8] = b"LEAPping";
pub(super) const ANSWER: &[u8; 8] = b"LEAPpong";
/// Most bare streams that a server answers at a time.
pub(super) const STREAMS_MAX: usize = 16;

/// Figures of one carrier.
pub(in crate::cli::bench) struct LinkFigures {
    pub(in crate::cli::bench) carrier: String,
    /// Median and 99th percentile of round trips of [`PING_BYTES`], in microseconds.
    pub(in crate::cli::bench) p50_us: f64,
    pub(in crate::cli::bench) p99_us: f64,
    /// Throughput one way, in the longest frames; `None` for bare UDP, where nothing says what arrived.
    pub(in crate::cli::bench) bytes_per_s: Option<f64>,
    /// CPU time of this whole machine per round trip.
    pub(in crate::cli::bench) cpu_us: Option<f64>,
    /// Bytes of the longest datagram that the path carries, if frames travel in datagrams.
    pub(in crate::cli::bench) datagram_bytes: Option<u32>,
    /// Gathers of a team of both ends.
    pub(in crate::cli::bench) gathers: Vec<GatherFigures>,
    /// Notices of the carrier for the user.
    pub(in crate::cli::bench) notices: Vec<String>,
}

/// Gathers of one size.
pub(in crate::cli::bench) struct GatherFigures {
    /// Bytes that each of the two nodes sends to the other.
    pub(in crate::cli::bench) bytes: usize,
    /// Median and 99th percentile of a gather's time, in microseconds.
    pub(in crate::cli::bench) p50_us: f64,
    pub(in crate::cli::bench) p99_us: f64,
    /// CPU time of this whole machine per gather, with the start of the pass; `None` if it is unknown.
    pub(in crate::cli::bench) cpu_us: Option<f64>,
}

/// Addresses of a server's sockets.
#[derive(Clone, Copy)]
pub(super) struct Ports {
    pub(super) udp: SocketAddr,
    pub(super) tcp: SocketAddr,
    pub(super) bare_udp: SocketAddr,
    pub(super) bare_tcp: SocketAddr,
    /// Address of the kernel module's link; the server may lack the module.
    pub(super) kernel: Option<SocketAddr>,
}

impl Ports {
    pub(super) fn after(address: SocketAddr) -> Result<Ports, Failure> {
        let behind = |n: u16| {
            let port = address.port().checked_add(n);
            port.map(|port| SocketAddr::new(address.ip(), port))
                .ok_or_else(|| Failure::Usage("there is no port after 65535".to_owned()))
        };
        let (bare, kernel) = (behind(1)?, Some(behind(2)?));
        Ok(Ports { udp: address, tcp: address, bare_udp: bare, bare_tcp: bare, kernel })
    }
}

/// A host with or without a port: `board`, `board:9999`, `10.0.0.2`, `[fe80::1]:9999`, `::1`. A number alone is a port
/// whose host was left out.
pub(in crate::cli::bench) fn place(text: &str) -> Result<HostPort, String> {
    let is_port = |host: &str| host.bytes().all(|byte| byte.is_ascii_digit());
    let wanted = |why: String| format!("{why}; wanted HOST or HOST:PORT, as in 10.0.0.2:9999");
    match Address::parse(text, PORT) {
        Ok(Address { host, .. }) if is_port(&host) => Err(wanted(format!("{host} is no host"))),
        Ok(Address { host, port }) => Ok(HostPort::new(&host, port)),
        Err(why) => Err(wanted(why)),
    }
}

/// Settings of one end of the bench. The client is the ring's master.
pub(super) fn config(is_client: bool, key: Option<&Key>) -> Result<LinkConfig, Failure> {
    let wish = Some(if is_client { 0..1 } else { 1..2 });
    let node = RingInfo {
        n_layers: 2,
        wish,
        is_master: is_client,
        name: name("bench"),
        ..RingInfo::default()
    };
    let seed = random::seed()
        .map_err(|e| Failure::Runtime(format!("the system gives no random numbers: {e}")))?;
    Ok(LinkConfig::new(node, key.cloned(), seed))
}

pub(super) fn options(
    is_client: bool,
    key: Option<&Key>,
    listen: HostPort,
    next: Option<HostPort>,
) -> Result<CarrierOptions, Failure> {
    Ok(CarrierOptions { spin: SPIN, ..CarrierOptions::new(config(is_client, key)?, listen, next) })
}

pub(super) fn open(carrier: &str, options: CarrierOptions) -> Result<Box<dyn Endpoint>, Failure> {
    match carrier {
        "kernel" => Ok(Box::new(Kmod::open(options).map_err(|e| Failure::runtime(&e))?)),
        "tcp" => Ok(Box::new(Tcp::open(options).map_err(|e| Failure::runtime(&e))?)),
        _ => Ok(Box::new(Udp::open(options).map_err(|e| Failure::runtime(&e))?)),
    }
}

/// Writes all bytes of a frame, as either end does before it sends over any carrier.
pub(super) fn write(frame: &mut [u8], kind: u8) {
    frame.fill(kind);
}

/// Writes all bytes of a bare datagram, which begins with `mark`.
pub(super) fn write_datagram(datagram: &mut [u8], mark: &[u8; 8]) {
    write(datagram, ECHO_FRAME);
    let len = datagram.len().min(mark.len());
    datagram[..len].copy_from_slice(&mark[..len]);
}

pub(super) fn failed(what: &str) -> impl Fn(std::io::Error) -> Failure {
    let what = what.to_owned();
    move |e| Failure::Runtime(format!("{what}: {e}"))
}

/// Median and 99th percentile.
pub(super) fn quantiles(mut samples: Vec<f64>) -> [f64; 2] {
    samples.sort_by(f64::total_cmp);
    [0.5, 0.99].map(|share| {
        let index = (samples.len() as f64 * share) as usize;
        samples.get(index.min(samples.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    })
}

pub(super) fn figures(carrier: &str, samples: Vec<f64>) -> LinkFigures {
    let [p50_us, p99_us] = quantiles(samples);
    LinkFigures {
        carrier: carrier.to_owned(),
        p50_us,
        p99_us,
        bytes_per_s: None,
        cpu_us: None,
        datagram_bytes: None,
        gathers: Vec::new(),
        notices: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_ports_or_not() {
        let parse = |text| place(text).map(|place| (place.host, place.port));
        assert_eq!(parse("board"), Ok(("board".to_owned(), PORT)));
        assert_eq!(parse("10.0.0.2:80"), Ok(("10.0.0.2".to_owned(), 80)));
        assert_eq!(parse("::1"), Ok(("::1".to_owned(), PORT)));
        assert_eq!(parse("[::1]"), Ok(("::1".to_owned(), PORT)));
        assert_eq!(parse("[::1]:80"), Ok(("::1".to_owned(), 80)));
        for bad in ["board:x", "board:99999", ":9999", "9999", "", "[::1"] {
            assert!(place(bad).is_err_and(|why| why.ends_with("as in 10.0.0.2:9999")), "{bad}");
        }
    }
}
