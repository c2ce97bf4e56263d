//! Where nodes are: hosts, ports and their addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use super::TransportError;

/// Resolver of a name and a port.
pub(super) type Resolve = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// A host name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// IPv4 or IPv6 address, or a name.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl HostPort {
    /// `host` and `port`.
    pub fn new(host: &str, port: u16) -> HostPort {
        HostPort { host: host.to_owned(), port }
    }

    /// Resolves the host: the first of its addresses that `wanted` accepts. `localhost` is this machine, even without a
    /// file that says so (RFC 6761, section 6.3).
    ///
    /// # Errors
    /// [`TransportError::Resolve`].
    pub fn resolve(
        &self,
        wanted: impl Fn(&SocketAddr) -> bool,
    ) -> Result<SocketAddr, TransportError> {
        self.resolve_by(by_system, wanted)
    }

    /// Resolves the address with `resolve` in place of the system.
    pub(super) fn resolve_by(
        &self,
        resolve: Resolve,
        wanted: impl Fn(&SocketAddr) -> bool,
    ) -> Result<SocketAddr, TransportError> {
        let fail = |source| TransportError::Resolve { host: self.host.clone(), source };
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

    /// The address to listen at. Many systems give their own name an address of the loopback (Debian: `127.0.1.1` in
    /// `/etc/hosts`), where no other machine reaches it. Another address of the name is preferred. If it has none, all of
    /// the machine's addresses are listened at, unless `is_near` says that only this machine has to reach it.
    ///
    /// # Errors
    /// [`TransportError::Resolve`].
    pub fn resolve_to_listen(
        &self,
        is_near: impl FnOnce() -> bool,
    ) -> Result<SocketAddr, TransportError> {
        self.resolve_to_listen_by(by_system, is_near)
    }

    /// Resolves the address to listen at with `resolve` in place of the system.
    pub(super) fn resolve_to_listen_by(
        &self,
        resolve: Resolve,
        is_near: impl FnOnce() -> bool,
    ) -> Result<SocketAddr, TransportError> {
        let first = self.resolve_by(resolve, |_| true)?;
        if !self.is_name() || !first.ip().is_loopback() {
            return Ok(first);
        }
        let reached = self.resolve_by(resolve, |address| !address.ip().is_loopback());
        Ok(match (reached, first) {
            (Ok(reached), _) => reached,
            (Err(_), _) if is_near() => first,
            (Err(_), SocketAddr::V4(_)) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, self.port)),
            (Err(_), SocketAddr::V6(_)) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, self.port)),
        })
    }

    /// Whether the host is a name that has to be looked up.
    pub fn is_name(&self) -> bool {
        let host = self.bare();
        host.parse::<IpAddr>().is_err() && !host.eq_ignore_ascii_case("localhost")
    }

    fn bare(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// All addresses that the system knows for a name.
pub(super) fn by_system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// `address` in the form for a socket of this node's family: IPv6 sockets take IPv4 addresses as mapped ones.
pub(super) fn mapped(address: SocketAddr, is_v6: bool) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if is_v6 => SocketAddr::from((ip.to_ipv6_mapped(), address.port())),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_the_loopback_of_the_family_that_is_wanted() {
        let localhost = HostPort::new("LocalHost", 9999);
        let address = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 9999);
        assert_eq!(localhost.resolve(|_| true).unwrap(), address("127.0.0.1"));
        assert_eq!(localhost.resolve(SocketAddr::is_ipv6).unwrap(), address("::1"));
    }

    fn from_hosts(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let ips: &[&str] = match host {
            "debian" => &["127.0.1.1"],
            "fedora" => &["::1", "127.0.0.1"],
            "found" => &["127.0.1.1", "10.0.0.1"],
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect())
    }

    #[test]
    fn other_machines_reach_a_board_whose_own_name_is_on_the_loopback() {
        for (host, is_near, wanted) in [
            ("debian", false, "0.0.0.0"),
            ("debian", true, "127.0.1.1"),
            ("fedora", false, "::"),
            ("fedora", true, "::1"),
            ("found", false, "10.0.0.1"),
            ("found", true, "10.0.0.1"),
            // These addresses were written as such.
            ("127.0.1.1", false, "127.0.1.1"),
            ("localhost", false, "127.0.0.1"),
            ("10.0.0.9", false, "10.0.0.9"),
        ] {
            let place = HostPort::new(host, 9999);
            let address = place.resolve_to_listen_by(from_hosts, || is_near).unwrap();
            assert_eq!(address, SocketAddr::new(wanted.parse().unwrap(), 9999), "{host}");
        }
        let unknown = HostPort::new("unknown", 9999);
        assert!(unknown.resolve_to_listen_by(from_hosts, || false).is_err());
    }
}
