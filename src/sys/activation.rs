//! Sockets that the service manager opened for this process: systemd's `sd_listen_fds(3)`.
//!
//! `LISTEN_FDS` is the number of sockets, from descriptor 3 on, and `LISTEN_PID` names the process that they are for.

use std::env;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{self, AddressFamily, SockType, SockaddrLike, SockaddrStorage, sockopt};

/// The first descriptor that a manager passes.
const FIRST: RawFd = 3;
/// Most sockets to take.
const SOCKETS_MAX: RawFd = 64;

/// Whether the sockets have been taken: each has one owner.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// A socket that clients connect to.
#[derive(Debug)]
pub enum Listener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// The sockets that were passed to this process. Empty if no manager passed any, or an earlier call returned them.
///
/// # Errors
/// If the environment names more sockets than there are, or a socket that no client can connect to.
pub fn listeners() -> io::Result<Vec<Listener>> {
    let n = passed(|name| env::var(name).ok()?.parse().ok());
    if n == 0 || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    (FIRST..FIRST + n.min(SOCKETS_MAX)).map(listener).collect()
}

/// Number of passed sockets, from the environment.
fn passed(variable: impl Fn(&str) -> Option<RawFd>) -> RawFd {
    let is_ours =
        variable("LISTEN_PID").and_then(|pid| u32::try_from(pid).ok()) == Some(std::process::id());
    variable("LISTEN_FDS").filter(|&n| is_ours && n > 0).unwrap_or(0)
}

fn listener(fd: RawFd) -> io::Result<Listener> {
    let bad = |what: &str| {
        let problem = format!("descriptor {fd}, of LISTEN_FDS, {what}");
        io::Error::new(io::ErrorKind::InvalidInput, problem)
    };
    // Programs that a listening process starts must not keep its sockets.
    // SAFETY: a descriptor's flags are set; one that is not open is an error.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(bad("is not open"));
    }
    if !is_listening(fd) {
        return Err(bad("is no socket that listens"));
    }
    // SAFETY: it is open and has no other owner: the manager passed it, `IS_TAKEN` was set once, and a socket of this
    // process's own that listens cannot be there, because its numbers follow those passed.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let kind = socket::getsockopt(&fd, sockopt::SockType)?;
    let address: SockaddrStorage = socket::getsockname(fd.as_raw_fd())?;
    let listener = match (kind, address.family()) {
        (SockType::Stream, Some(AddressFamily::Inet | AddressFamily::Inet6)) => {
            Listener::Tcp(fd.into())
        }
        (SockType::Stream, Some(AddressFamily::Unix)) => Listener::Unix(fd.into()),
        _ => return Err(bad("is no stream")),
    };
    match &listener {
        Listener::Tcp(listener) => listener.set_nonblocking(false)?,
        Listener::Unix(listener) => listener.set_nonblocking(false)?,
    }
    Ok(listener)
}

fn is_listening(fd: RawFd) -> bool {
    let (mut value, mut bytes): (libc::c_int, _) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `bytes` bytes to `value`, which has as many; a descriptor
    // that is no socket is an error.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ACCEPTCONN,
            (&raw mut value).cast(),
            &raw mut bytes,
        )
    };
    result == 0 && value == 1
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn sockets_count_for_this_process_only() {
        let own = std::process::id().cast_signed();
        let passed = |pid, fds| super::passed(|name| if name == "LISTEN_PID" { pid } else { fds });
        assert_eq!(passed(Some(own), Some(2)), 2);
        assert_eq!(passed(Some(own + 1), Some(2)), 0);
        assert_eq!(passed(None, Some(2)), 0);
        assert_eq!(passed(Some(own), Some(-1)), 0);
        assert_eq!(passed(Some(own), None), 0);
    }

    #[test]
    fn only_sockets_that_listen_are_taken() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        tcp.set_nonblocking(true).unwrap();
        let address = tcp.local_addr().unwrap();
        let Listener::Tcp(tcp) = listener(tcp.into_raw_fd()).unwrap() else { panic!("not TCP") };
        assert_eq!(tcp.local_addr().unwrap(), address);
        let client = std::net::TcpStream::connect(address).unwrap();
        // The socket waits for connections, although the file did not.
        assert!(tcp.accept().is_ok());
        let file = std::fs::File::open("/dev/null").unwrap();
        for (fd, wanted) in [
            (client.as_raw_fd(), "no socket that listens"),
            (file.as_raw_fd(), "no socket that listens"),
            (1 << 20, "not open"),
        ] {
            let error = listener(fd).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
