//! Finds the next node's address, if it has a name: on a thread of its own, because the system may take long, and again
//! when the node is missing, because it may have moved.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::thread::{self, JoinHandle};

use super::place::{HostPort, Resolve};
use super::{Micros, TransportError};
use crate::sys::cpu;

/// Time after which a missing neighbour may have moved.
const MISSED_US: Micros = 2_000_000;
/// Pause between an answer and the next look-up.
const AGAIN_US: Micros = 3_000_000;

type Resolved = Result<SocketAddr, TransportError>;

/// Look-up of the next node's address.
pub(super) struct Resolver {
    /// Name and port of the next node; `None` if it has only an address.
    place: Option<HostPort>,
    listen: SocketAddr,
    resolve: Resolve,
    address: Option<SocketAddr>,
    asked: Option<JoinHandle<Resolved>>,
    ask_at: Micros,
    missed_since: Option<Micros>,
}

impl Resolver {
    /// A resolver for a node that listens at `listen`. A next node without a name has its address at once.
    ///
    /// # Errors
    /// [`TransportError::Resolve`] if the next node has an address that a socket here does not reach.
    pub(super) fn new(
        next: Option<HostPort>,
        resolve: Resolve,
        listen: SocketAddr,
    ) -> Result<Resolver, TransportError> {
        let mut resolver = Resolver {
            place: next,
            listen,
            resolve,
            address: None,
            asked: None,
            ask_at: 0,
            missed_since: None,
        };
        if let Some(place) = resolver.place.take_if(|place| !place.is_name()) {
            let reaches = |next: &SocketAddr| is_reached(listen, next);
            resolver.address = Some(place.resolve_by(resolve, reaches)?);
        }
        Ok(resolver)
    }

    /// The address that was found last.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Forgets the name, because another next node is set by its address.
    pub(super) fn forget(&mut self) {
        (self.place, self.asked) = (None, None);
    }

    /// Takes an answer, and asks again if the neighbour is missing. Returns a changed address, or the reason why there
    /// is none.
    pub(super) fn turn(&mut self, now: Micros, is_missed: bool) -> Option<Resolved> {
        let place = self.place.as_ref()?;
        if let Some(asked) = self.asked.take_if(|asked| asked.is_finished()) {
            let answer = asked.join().ok();
            self.ask_at = now + AGAIN_US;
            if let Some(Ok(address)) = answer
                && self.address.replace(address) == Some(address)
            {
                return None;
            }
            return answer;
        }
        if self.asked.is_some() {
            return None;
        }
        if !is_missed {
            self.missed_since = None;
            return None;
        }
        let since = *self.missed_since.get_or_insert(now);
        let is_long = self.address.is_none() || now >= since + MISSED_US;
        if is_long && now >= self.ask_at {
            self.asked = ask(place.clone(), self.resolve, self.listen);
            self.ask_at = now + AGAIN_US;
        }
        None
    }
}

/// Notice about a name without an address.
pub(super) fn unresolved(error: &TransportError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}, and goes on trying: {source}"),
        None => format!("{error} at an address that is reached from here, and goes on trying"),
    }
}

/// Starts a look-up on another thread. If no thread starts, it is tried again later.
fn ask(place: HostPort, resolve: Resolve, listen: SocketAddr) -> Option<JoinHandle<Resolved>> {
    let work = move || {
        cpu::unpin_current_thread();
        place.resolve_by(resolve, |next| is_reached(listen, next))
    };
    thread::Builder::new().name("leap-names".to_owned()).spawn(work).ok()
}

/// Whether a socket that listens at `listen` reaches `next`.
fn is_reached(listen: SocketAddr, next: &SocketAddr) -> bool {
    let takes_both = listen.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    takes_both || listen.is_ipv4() == next.is_ipv4()
}
