//! How a master finds boards whose addresses nobody has written down.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::sys::{net, random};
use crate::wire::find::{self, FIND_LEN};
use crate::wire::seal::Key;

/// How long a master listens for answers.
const WINDOW: Duration = Duration::from_secs(2);
/// How often it asks meanwhile: datagrams are lost.
const ASKED_EVERY: Duration = Duration::from_millis(250);

/// Answers masters that ask on UDP `port`, for as long as the process lives.
///
/// # Errors
/// If the system refuses the port or a thread.
pub(crate) fn answer(port: u16, key: Key) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let seed = random::seed()?;
    let board = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at: usize| seed[at]));
    let answer = move || {
        let mut bytes = [0; FIND_LEN + 1];
        loop {
            // A socket that fails may work again, but not at once.
            let Ok((len, from)) = socket.recv_from(&mut bytes) else {
                thread::sleep(ASKED_EVERY);
                continue;
            };
            if let Some(answer) = find::answer(&key, &bytes[..len], board) {
                // Who gets none asks again.
                let _ = socket.send_to(&answer, from);
            }
        }
    };
    thread::Builder::new().name("leap-find".to_owned()).spawn(answer)?;
    Ok(())
}

/// Where boards with this key wait on `port`, of those that `networks`' broadcasts reach, each once, in the order of
/// their addresses.
///
/// # Errors
/// If the system has no socket for it.
pub(crate) fn seek(
    networks: &[Ipv4Addr],
    port: u16,
    key: &Key,
    is_interrupted: &dyn Fn() -> bool,
) -> io::Result<Vec<IpAddr>> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_broadcast(true)?;
    let seed = random::seed()?;
    let nonce = std::array::from_fn(|at| seed[at]);
    let question = find::question(key, &nonce);
    let mut found: Vec<(u64, IpAddr)> = Vec::new();
    let start = Instant::now();
    while start.elapsed() < WINDOW && !is_interrupted() {
        for network in networks {
            // A network that is down has no boards.
            let _ = socket.send_to(&question, SocketAddr::from((*network, port)));
        }
        listen(&socket, &mut |bytes, from| {
            let board = find::board(key, bytes, &nonce);
            let known = |board: &u64| found.iter().any(|(id, _)| id == board);
            found.extend(board.filter(|board| !known(board)).map(|board| (board, from)));
        })?;
    }
    let mut places: Vec<IpAddr> = found.into_iter().map(|(_, place)| place).collect();
    places.sort_unstable();
    Ok(places)
}

/// Gives `take` what comes until it is time to ask again.
fn listen(socket: &UdpSocket, take: &mut dyn FnMut(&[u8], IpAddr)) -> io::Result<()> {
    let until = Instant::now() + ASKED_EVERY;
    let mut bytes = [0; FIND_LEN + 1];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv_from(&mut bytes) {
            Ok((len, from)) => take(&bytes[..len], from.ip()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // What an address answered that has nobody, or a signal.
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The broadcast addresses of this machine's networks; the loopback's if it has no other.
pub(crate) fn networks() -> io::Result<Vec<Ipv4Addr>> {
    let networks = net::broadcasts()?;
    Ok(if networks.is_empty() { vec![Ipv4Addr::new(127, 255, 255, 255)] } else { networks })
}
