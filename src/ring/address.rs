//! The address of a node.

use std::fmt;

/// Host and port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Name, IPv4 or IPv6 address.
    pub host: String,
    /// UDP and TCP port.
    pub port: u16,
}

impl Address {
    /// `HOST`, `HOST:PORT`, `[IPV6]:PORT` or a bare IPv6 address; `port` is used if the text has none.
    ///
    /// # Errors
    /// The defect, in words.
    pub(crate) fn parse(text: &str, port: u16) -> Result<Address, String> {
        let bad_port = |port: &str| format!("{port:?} is no port");
        let named = |port: &str| match port.parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(bad_port(port)),
        };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or(format!("{text:?} lacks a ]"))?;
                match rest.strip_prefix(':') {
                    Some(rest) => (host, named(rest)?),
                    None if rest.is_empty() => (host, port),
                    None => return Err(bad_port(rest)),
                }
            }
            None => match text.split_once(':') {
                Some((_, rest)) if rest.contains(':') => (text, port),
                Some((host, rest)) => (host, named(rest)?),
                None => (text, port),
            },
        };
        match host.is_empty() {
            true => Err(format!("{text:?} names no host")),
            false => Ok(Address { host: host.to_owned(), port }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}
