//! Takes connections of other boards, each on a thread of its own.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Channel, ChannelError};
use crate::wire::seal::Key;

/// Connections at the same time; others wait.
const CONNECTIONS_MAX: usize = 64;
/// Strangers that are remembered.
const STRANGERS_MAX: usize = 64;
/// How long the next one waits where the system has no room for it.
const RETRY: Duration = Duration::from_millis(500);

/// What becomes of connections.
pub(crate) trait Service: Send + Sync + 'static {
    /// Talks with the board at `from`, which has the key.
    ///
    /// # Errors
    /// Why the connection ends before its time.
    fn talk(&self, channel: Channel<'_>, from: IpAddr) -> Result<(), ChannelError>;

    /// Hears of somebody without the key, of another release, or who makes no sense; once of each.
    fn refuse(&self, from: IpAddr, why: &ChannelError);
}

struct Server<S> {
    service: S,
    key: Key,
    n_connections: AtomicUsize,
    /// Who has been told of as a stranger.
    strangers: Mutex<Vec<IpAddr>>,
}

/// Lets `service` talk with whoever has the key and connects to `address`, for as long as the process
/// lives. Threads are called `name`. Returns where it listens.
///
/// # Errors
/// If the system refuses the address or a thread.
pub(crate) fn start<S: Service>(
    name: &'static str,
    address: SocketAddr,
    key: Key,
    service: S,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    let (n_connections, strangers) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let server = Arc::new(Server { service, key, n_connections, strangers });
    let accept = move || accept(name, &listener, &server);
    thread::Builder::new().name(name.to_owned()).spawn(accept)?;
    Ok(bound)
}

fn accept<S: Service>(name: &str, listener: &TcpListener, server: &Arc<Server<S>>) {
    loop {
        if server.n_connections.load(Ordering::Acquire) >= CONNECTIONS_MAX {
            thread::sleep(RETRY);
            continue;
        }
        let Ok((stream, from)) = listener.accept() else {
            thread::sleep(RETRY);
            continue;
        };
        server.n_connections.fetch_add(1, Ordering::AcqRel);
        let served = Arc::clone(server);
        let serve = move || {
            served.serve(stream, from.ip());
            served.n_connections.fetch_sub(1, Ordering::AcqRel);
        };
        if thread::Builder::new().name(name.to_owned()).spawn(serve).is_err() {
            server.n_connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl<S: Service> Server<S> {
    fn serve(&self, stream: TcpStream, from: IpAddr) {
        let channel = Channel::accept(stream, &self.key, &|| false);
        match channel.and_then(|channel| self.service.talk(channel, from)) {
            Ok(()) | Err(ChannelError::Io(_) | ChannelError::Interrupted) => {}
            Err(why) if self.is_new(from) => self.service.refuse(from, &why),
            Err(_) => {}
        }
    }

    /// Whether nothing has been told yet of a stranger there.
    fn is_new(&self, from: IpAddr) -> bool {
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !strangers.contains(&from) && strangers.len() < STRANGERS_MAX;
        if is_new {
            strangers.push(from);
        }
        is_new
    }
}
