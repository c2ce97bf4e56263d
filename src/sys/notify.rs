//! Reports a service's state to the service manager: systemd's notification protocol (`sd_notify(3)`).
//!
//! A datagram of `NAME=value` lines goes to the socket that `NOTIFY_SOCKET` names. Without a manager nothing happens: a
//! service runs the same from a terminal or a SysV script.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Longest status that is sent.
const STATUS_MAX: usize = 200;

/// Notifier of this process; empty until [`start`] is called.
static MANAGER: OnceLock<Mutex<Notifier>> = OnceLock::new();

/// Finds the service manager of this process from its environment.
///
/// A socket that cannot be reached is only logged: the manager ends a service that does not report.
pub fn start() {
    MANAGER.get_or_init(|| Mutex::new(Notifier::from_environment()));
}

/// Reports that the service has started.
pub fn ready() {
    with(Notifier::ready);
}

/// Reports what the service does, in one line for people.
pub fn status(text: &str) {
    with(|notifier| notifier.status(text));
}

/// Reports that the service is about to end.
pub fn stopping() {
    with(|notifier| notifier.send("STOPPING=1"));
}

/// Reports that the service is alive, if a sign is due. Cheap enough for every turn of a loop, also on many threads,
/// and without allocation. Only a loop that makes progress, or has a reason to wait, may call it.
pub fn alive() {
    // If another thread is reporting, that is enough.
    if let Some(manager) = MANAGER.get()
        && let Ok(mut notifier) = manager.try_lock()
    {
        notifier.alive();
    }
}

/// How long a loop may sleep between two calls of [`alive`]; `None` if there is no watchdog.
pub fn period() -> Option<Duration> {
    MANAGER.get()?.lock().ok()?.period
}

fn with(report: impl FnOnce(&mut Notifier)) {
    if let Some(manager) = MANAGER.get()
        && let Ok(mut notifier) = manager.lock()
    {
        report(&mut notifier);
    }
}

/// The connection to the service manager, and the clock of its watchdog.
#[derive(Debug)]
struct Notifier {
    /// `None` if no manager listens.
    socket: Option<UnixDatagram>,
    /// Interval between signs of life.
    period: Option<Duration>,
    last_sign: Option<Instant>,
}

impl Notifier {
    fn from_environment() -> Notifier {
        let socket = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let socket = socket.and_then(|name| match connect(&name.into_vec()) {
            Ok(socket) => Some(socket),
            Err(e) => {
                log::warn!("cannot reach the service manager at NOTIFY_SOCKET: {e}");
                None
            }
        });
        let period = watchdog_period(|name| env::var(name).ok()?.parse().ok());
        Notifier { socket, period, last_sign: None }
    }

    fn ready(&mut self) {
        self.send("READY=1");
        self.alive();
    }

    fn status(&self, text: &str) {
        // A line break would begin another assignment.
        let line: String = text.chars().filter(|c| !c.is_control()).take(STATUS_MAX).collect();
        self.send(&format!("STATUS={line}"));
    }

    fn alive(&mut self) {
        let Some(period) = self.period else { return };
        let now = Instant::now();
        if self.last_sign.is_none_or(|last| now.duration_since(last) >= period) {
            self.send("WATCHDOG=1");
            self.last_sign = Some(now);
        }
    }

    fn send(&self, text: &str) {
        // A manager that went away or is slow is no reason to stop.
        if let Some(socket) = &self.socket
            && let Err(e) = socket.send(text.as_bytes())
        {
            log::debug!("cannot notify the service manager: {e}");
        }
    }
}

/// Connects to a path, or to a name in the abstract namespace with `@` in front.
fn connect(name: &[u8]) -> io::Result<UnixDatagram> {
    let address = match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
        _ => return Err(io::Error::from(io::ErrorKind::InvalidInput)),
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A third of the watchdog's timeout; `None` if there is no watchdog, or it watches another process.
fn watchdog_period(variable: impl Fn(&str) -> Option<u64>) -> Option<Duration> {
    if variable("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id())) {
        return None;
    }
    let patience_us = variable("WATCHDOG_USEC").filter(|&us| us > 0)?;
    Some(Duration::from_micros(patience_us / 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(name: &str) -> (UnixDatagram, Vec<u8>) {
        let name = format!("leap-notify-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_nonblocking(true).unwrap();
        (socket, format!("@{name}").into_bytes())
    }

    fn heard(manager: &UnixDatagram) -> Option<String> {
        let mut buffer = [0; 1024];
        let bytes = manager.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..bytes]).into_owned())
    }

    #[test]
    fn manager_hears_of_start_state_and_life() {
        let (manager, name) = manager("all");
        let period = Some(Duration::ZERO);
        let mut notifier = Notifier { socket: connect(&name).ok(), period, last_sign: None };
        notifier.ready();
        assert_eq!(heard(&manager).as_deref(), Some("READY=1"));
        assert_eq!(heard(&manager).as_deref(), Some("WATCHDOG=1"));
        notifier.status("a\nREADY=1");
        assert_eq!(heard(&manager).as_deref(), Some("STATUS=aREADY=1"));
        notifier.status(&"é".repeat(1000));
        assert_eq!(heard(&manager).map(|s| s.chars().count()), Some(7 + STATUS_MAX));
        notifier.alive();
        assert_eq!(heard(&manager).as_deref(), Some("WATCHDOG=1"));
    }

    #[test]
    fn signs_of_life_keep_to_the_period() {
        let (manager, name) = manager("period");
        let period = Some(Duration::from_secs(3600));
        let mut notifier = Notifier { socket: connect(&name).ok(), period, last_sign: None };
        for _ in 0..1000 {
            notifier.alive();
        }
        assert!(heard(&manager).is_some());
        assert_eq!(heard(&manager), None);
    }

    #[test]
    fn a_manager_that_does_not_read_blocks_no_thread() {
        let (_manager, name) = manager("full");
        let notifier = Notifier { socket: connect(&name).ok(), period: None, last_sign: None };
        for _ in 0..10_000 {
            notifier.status("still here");
        }
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        start();
        ready();
        alive();
        status("fine");
        stopping();
    }

    #[test]
    fn addresses_that_are_none_are_refused() {
        let long = vec![b'/'; 300];
        for name in [&b""[..], b"relative", b"/no/such/socket", b"@no-such-name", &long] {
            assert!(connect(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn watchdog_counts_for_this_process_only() {
        let own = u64::from(std::process::id());
        let period =
            |usec, pid| watchdog_period(|name| if name == "WATCHDOG_USEC" { usec } else { pid });
        assert_eq!(period(Some(30_000_000), None), Some(Duration::from_secs(10)));
        assert_eq!(period(Some(30_000_000), Some(own)), Some(Duration::from_secs(10)));
        assert_eq!(period(Some(30_000_000), Some(own + 1)), None);
        assert_eq!(period(Some(0), None), None);
        assert_eq!(period(None, None), None);
    }
}
