//! The search for boards whose addresses are not configured.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::sys::{net, random};
use crate::wire::find::{self, FIND_LEN};
use crate::wire::seal::Key;

/// How long a master listens for answers.
const WINDOW: Duration = Duration::from_secs(2);
/// How often the master asks meanwhile, because datagrams are lost.
const ASKED_EVERY: Duration = Duration::from_millis(250);

/// Most addresses that are remembered.
const ADDRESSES_MAX: usize = 1024;
/// Most boards that one address may answer for while a master listens: a board restarts no more often.
const RESTARTS_MAX: usize = 3;

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
            // A master that gets no answer asks again.
            if let Some(nonce) = find::asked(&key, &bytes[..len])
                && let Ok(own) = address_towards(from)
            {
                let _ = socket.send_to(&find::answer(&key, &nonce, board, own), from);
            }
        }
    };
    thread::Builder::new().name("leap-find".to_owned()).spawn(answer)?;
    Ok(())
}

/// The address of this machine that datagrams to `to` come from.
fn address_towards(to: SocketAddr) -> io::Result<IpAddr> {
    let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    probe.connect(to)?;
    Ok(probe.local_addr()?.ip())
}

/// Boards that were found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Addresses at which the boards wait, in ascending order.
    pub(crate) places: Vec<IpAddr>,
    /// Addresses that answered for several boards, and for how many.
    pub(crate) crowded: Vec<(IpAddr, usize)>,
}

/// Answers of one address.
struct Answers {
    from: IpAddr,
    /// The board of the latest answer.
    board: u64,
    /// Number of different boards so far, one after the other.
    n_boards: usize,
}

/// Boards with this key that wait on `port` and are reached by the `networks`' broadcasts: each once, and one
/// at each address.
///
/// # Errors
/// If the system has no socket for it.
pub(crate) fn seek(
    networks: &[Ipv4Addr],
    port: u16,
    key: &Key,
    is_interrupted: &dyn Fn() -> bool,
) -> io::Result<Found> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_broadcast(true)?;
    let seed = random::seed()?;
    let nonce = std::array::from_fn(|at| seed[at]);
    let question = find::question(key, &nonce);
    let mut all: Vec<Answers> = Vec::new();
    let start = Instant::now();
    while start.elapsed() < WINDOW && !is_interrupted() {
        for network in networks {
            // A network that is down has no boards.
            let _ = socket.send_to(&question, SocketAddr::from((*network, port)));
        }
        listen(&socket, &mut |bytes, from| {
            if let Some(board) = find::board(key, bytes, &nonce, from) {
                hear(&mut all, board, from);
            }
        })?;
    }
    Ok(found(all))
}

/// Takes an answer. One address is one board: a restarted board answers with another number.
fn hear(all: &mut Vec<Answers>, board: u64, from: IpAddr) {
    let n_known = all.len();
    match all.iter_mut().find(|answers| answers.from == from) {
        Some(answers) if answers.board == board => {}
        Some(answers) => (answers.board, answers.n_boards) = (board, answers.n_boards + 1),
        None if n_known < ADDRESSES_MAX => all.push(Answers { from, board, n_boards: 1 }),
        None => {}
    }
}

/// Result of all answers. A board that answers from two addresses counts once.
fn found(mut all: Vec<Answers>) -> Found {
    let crowded = |answers: &Answers| {
        (answers.n_boards > RESTARTS_MAX).then_some((answers.from, answers.n_boards))
    };
    let crowded = all.iter().filter_map(crowded).collect();
    let mut boards = Vec::with_capacity(all.len());
    all.retain(|answers| {
        let is_new = !boards.contains(&answers.board);
        boards.push(answers.board);
        is_new
    });
    let mut places: Vec<IpAddr> = all.into_iter().map(|answers| answers.from).collect();
    places.sort_unstable();
    Found { places, crowded }
}

/// Passes what arrives to `take`, until it is time to ask again.
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
            // An error of an address without a board, or a signal.
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The broadcast addresses of this machine's networks; the loopback's if it has no other.
pub(crate) fn networks() -> io::Result<Vec<Ipv4Addr>> {
    let networks = net::broadcasts()?;
    Ok(if networks.is_empty() { vec![Ipv4Addr::new(127, 255, 255, 255)] } else { networks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_answers_from_one_address_are_one_board() {
        let [first, second, third] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut all = Vec::new();
        for board in 100..5100 {
            hear(&mut all, board, second);
        }
        // A board with two addresses, and one that was restarted.
        for (board, from) in [(7, third), (7, first), (8, first), (7, first), (7, third)] {
            hear(&mut all, board, from);
        }
        let found = found(all);
        assert_eq!(found.places, [second, third]);
        assert_eq!(found.crowded, [(second, 5000)]);
        // However many addresses there are, memory has a bound.
        let mut all = Vec::new();
        for n in 0..5000u32 {
            hear(&mut all, n.into(), IpAddr::from(n.to_be_bytes()));
        }
        assert_eq!(all.len(), ADDRESSES_MAX);
    }
}
