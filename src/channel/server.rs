//! Takes connections of other boards, each on a thread of its own.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::guests::Guests;
use super::{Channel, ChannelError};
use crate::sys::net;
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

/// Most strangers that are remembered.
const STRANGERS_MAX: usize = 64;
/// Pause after a failed accept, for example when file descriptors run out.
const RETRY: Duration = Duration::from_millis(100);

/// Handler of connections.
pub(crate) trait Service: Send + Sync + 'static {
    /// Talks with the board at `from`, which has the key.
    ///
    /// # Errors
    /// Why the connection ends early.
    fn talk(&self, channel: Channel<'_>, from: IpAddr) -> Result<(), ChannelError>;

    /// Called for a client without the key, of another release, or with malformed messages; once for each address.
    fn refuse(&self, from: IpAddr, why: &ChannelError);
}

struct Server<S> {
    service: S,
    purpose: Purpose,
    key: Key,
    guests: Guests,
    /// Addresses that were reported as strangers.
    strangers: Mutex<Vec<IpAddr>>,
}

/// Lets `service` talk with every client that has the key and connects to `address` for `purpose`, for as
/// long as the process lives. Threads are called `name`. Returns the address that it listens at.
///
/// # Errors
/// If the system refuses the address or a thread.
pub(crate) fn start<S: Service>(
    (name, purpose): (&'static str, Purpose),
    address: SocketAddr,
    key: Key,
    service: S,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    let (guests, strangers) = (Guests::default(), Mutex::new(Vec::new()));
    let server = Arc::new(Server { service, purpose, key, guests, strangers });
    let accept = move || accept(name, &listener, &server);
    thread::Builder::new().name(name.to_owned()).spawn(accept)?;
    Ok(bound)
}

fn accept<S: Service>(name: &str, listener: &TcpListener, server: &Arc<Server<S>>) {
    loop {
        match listener.accept() {
            Ok((stream, from)) => admit(name, (stream, from.ip()), server),
            Err(e) if net::is_out_of_files(&e) && server.guests.dismiss_oldest() => {}
            Err(_) => thread::sleep(RETRY),
        }
    }
}

fn admit<S: Service>(name: &str, (stream, from): (TcpStream, IpAddr), server: &Arc<Server<S>>) {
    // Without a second handle the connection could not be ended from here.
    let Ok(handle) = stream.try_clone() else {
        server.guests.dismiss_oldest();
        return;
    };
    let (id, is_crowd) = server.guests.admit(handle, from.to_canonical());
    if is_crowd {
        let crowd = "it opens one connection after the other and proves no key";
        server.refuse(from, &ChannelError::Broken(crowd));
    }
    let served = Arc::clone(server);
    let serve = move || {
        served.serve(stream, from, id);
        served.guests.forget(id);
    };
    if thread::Builder::new().name(name.to_owned()).spawn(serve).is_err() {
        server.guests.forget(id);
        server.guests.dismiss_oldest();
    }
}

impl<S: Service> Server<S> {
    fn serve(&self, stream: TcpStream, from: IpAddr, id: u64) {
        let on_proof = || self.guests.prove(id);
        let channel = Channel::accept(stream, self.purpose, &self.key, &|| false, &on_proof);
        match channel.and_then(|channel| self.service.talk(channel, from)) {
            Ok(()) | Err(ChannelError::Io(_) | ChannelError::Interrupted) => {}
            Err(why) => self.refuse(from, &why),
        }
    }

    fn refuse(&self, from: IpAddr, why: &ChannelError) {
        if self.is_new(from) {
            self.service.refuse(from, why);
        }
    }

    /// Whether no stranger at this address was reported so far. Then this one counts as reported.
    fn is_new(&self, from: IpAddr) -> bool {
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !strangers.contains(&from) && strangers.len() < STRANGERS_MAX;
        if is_new {
            strangers.push(from);
        }
        is_new
    }
}

#[cfg(test)]
mod tests;
