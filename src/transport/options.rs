//! What carriers over sockets are opened with.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::link::LinkConfig;
use super::resolver::Resolver;
use super::{Error, Micros};

/// A host name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// IPv4 or IPv6 address, or a name.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Place {
    /// `host` and `port`.
    pub fn new(host: &str, port: u16) -> Place {
        Place { host: host.to_owned(), port }
    }

    /// Its address; of several the first that `wanted` likes. `localhost` is this machine, whether or not
    /// the system has a file that says so (RFC 6761, section 6.3).
    ///
    /// # Errors
    /// [`Error::Resolve`].
    pub fn resolve(&self, wanted: impl Fn(&SocketAddr) -> bool) -> Result<SocketAddr, Error> {
        self.resolve_by(by_system, wanted)
    }

    /// The same, where names are resolved by `resolve`.
    pub(super) fn resolve_by(
        &self,
        resolve: fn(&str, u16) -> io::Result<Vec<SocketAddr>>,
        wanted: impl Fn(&SocketAddr) -> bool,
    ) -> Result<SocketAddr, Error> {
        let fail = |source| Error::Resolve { host: self.host.clone(), source };
        let host = self.bare();
        if host.eq_ignore_ascii_case("localhost") {
            let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            let mut places = loopback.into_iter().map(|ip: IpAddr| SocketAddr::new(ip, self.port));
            return places.find(wanted).ok_or_else(|| fail(None));
        }
        if let Ok(ip) = host.parse::<IpAddr>() {
            let address = SocketAddr::new(ip, self.port);
            return if wanted(&address) { Ok(address) } else { Err(fail(None)) };
        }
        let found = resolve(host, self.port).map_err(|source| fail(Some(source)))?;
        found.into_iter().find(wanted).ok_or_else(|| fail(None))
    }

    /// Whether somebody has to be asked for its address.
    pub fn is_name(&self) -> bool {
        let host = self.bare();
        host.parse::<IpAddr>().is_err() && !host.eq_ignore_ascii_case("localhost")
    }

    fn bare(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// All addresses that the system knows for a name.
fn by_system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// What a node's carrier needs.
#[derive(Clone)]
pub struct Options {
    /// The node, and the ring's key.
    pub config: LinkConfig,
    /// Where the previous node reaches this one.
    pub listen: Place,
    /// The next node; none if it is not known yet. A name is resolved while links are serviced, and
    /// again when the node is missed.
    pub next: Option<Place>,
    /// What resolves names: the system, but in tests.
    pub resolve: fn(&str, u16) -> io::Result<Vec<SocketAddr>>,
    /// How long to look for datagrams before sleeping until one comes.
    pub spin: Duration,
    /// How long the kernel polls the network device before it sleeps, in microseconds; 0: not.
    pub busy_poll_us: u32,
}

impl Options {
    /// For `config`, listening at `listen`: spins for 50 microseconds.
    pub fn new(config: LinkConfig, listen: Place, next: Option<Place>) -> Options {
        let spin = Duration::from_micros(50);
        Options { config, listen, next, resolve: by_system, spin, busy_poll_us: 0 }
    }

    /// The address of this node, and where the next one is.
    pub(super) fn addresses(&self) -> Result<(SocketAddr, Resolver), Error> {
        let listen = self.listen.resolve_by(self.resolve, |_| true)?;
        Ok((listen, Resolver::new(self, listen)?))
    }
}

/// `address` as a socket of this node's family knows it: IPv6 ones write IPv4 in their own way.
pub(super) fn mapped(address: SocketAddr, is_v6: bool) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if is_v6 => SocketAddr::from((ip.to_ipv6_mapped(), address.port())),
        _ => address,
    }
}

/// Microseconds since the carrier was opened.
#[derive(Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Clock {
        Clock(Instant::now())
    }

    /// The time, which is never 0.
    pub(super) fn now(self) -> Micros {
        self.0.elapsed().as_micros() as Micros + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_the_loopback_of_the_family_that_is_wanted() {
        let localhost = Place::new("LocalHost", 9999);
        let address = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 9999);
        assert_eq!(localhost.resolve(|_| true).unwrap(), address("127.0.0.1"));
        assert_eq!(localhost.resolve(SocketAddr::is_ipv6).unwrap(), address("::1"));
    }
}
