//! Connections of which each is slow, as on a network that loses much.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use super::*;

/// How a connection treats a request for a piece. The arguments are the connection's number, the number of connections
/// so far, and the number of the request on this connection.
type Manner = fn(n: usize, n_opened: usize, m: usize) -> Next;

enum Next {
    /// Answers after this time.
    Answer(Duration),
    /// Keeps the connection, and sends nothing more.
    StandStill,
    End,
}

/// A board that gives a file of its own making.
struct Slow {
    file: Vec<u8>,
    manner: Manner,
    /// Whether each connection was opened as a further one.
    opened: Arc<Mutex<Vec<bool>>>,
    n_sent: Arc<AtomicUsize>,
}

const FILE_BYTES: u64 = 24 * PIECE_BYTES + 7;

impl Service for Slow {
    fn talk(&self, mut channel: Channel<'_>, _: IpAddr) -> Result<(), ChannelError> {
        let mut bytes = [0; MESSAGE_MAX];
        let (mut n, mut m) = (0, 0);
        loop {
            let len = channel.receive(&mut bytes)?;
            match Question::parse(&bytes[..len]) {
                Ok(Question::Want { is_further, .. }) => {
                    let mut opened = self.opened.lock().unwrap();
                    n = opened.len();
                    opened.push(is_further);
                    let bytes = self.file.len() as u64;
                    channel.send(&Offer { layers: 2..6, bytes, fingerprint: 9, rows: 0 }.emit())?;
                }
                Ok(Question::Piece(index)) => {
                    let n_opened = self.opened.lock().unwrap().len();
                    match (self.manner)(n, n_opened, m) {
                        Next::Answer(after) => thread::sleep(after),
                        Next::End => return Ok(()),
                        Next::StandStill => loop {
                            channel.receive(&mut bytes)?;
                        },
                    }
                    m += 1;
                    self.n_sent.fetch_add(1, Ordering::Relaxed);
                    let start = (u64::from(index) * PIECE_BYTES) as usize;
                    let end = self.file.len().min(start + PIECE_BYTES as usize);
                    channel.send(&self.file[start..end])?;
                }
                _ => panic!("no other question makes sense"),
            }
        }
    }

    fn refuse(&self, from: IpAddr, why: &ChannelError) {
        panic!("{from}: {why}");
    }
}

/// Fetches from a slow board. Returns how each connection was opened, and how many pieces were sent.
fn fetched(name: &str, manner: Manner) -> (Vec<bool>, usize) {
    let file: Vec<u8> = (0..FILE_BYTES).map(|at| (at / 7 % 251) as u8 + 1).collect();
    let (opened, n_sent) = (Arc::default(), Arc::default());
    let (opened_there, n_sent_there) = (Arc::clone(&opened), Arc::clone(&n_sent));
    let slow = Slow { file: file.clone(), manner, opened: opened_there, n_sent: n_sent_there };
    let from = server::start(("leap-slow", Purpose::Layers), ANY, key(), slow).unwrap();
    let folder = Folder::new(name);
    let key = key();
    let mut last = 0;
    let told = taker::fetch(&order(&folder, &key, (2, None)), from, &mut |done, all| {
        assert!(last < done && done <= all, "{last} {done} {all}");
        last = done;
    });
    let fetched = told.unwrap();
    assert_eq!((last, fetched.sent, fetched.bytes), (FILE_BYTES, FILE_BYTES, FILE_BYTES));
    assert_eq!(fs::read(fetched.path).unwrap(), file);
    let opened = opened.lock().unwrap().clone();
    (opened, n_sent.load(Ordering::Relaxed))
}

#[test]
fn layers_come_over_more_connections_while_few_come() {
    let slowly = |_, _, _| Next::Answer(Duration::from_millis(500));
    let (opened, _) = fetched("slow", slowly);
    assert!((2..=LANES_MAX).contains(&opened.len()), "{opened:?}");
    // The first one is the board's, and the others are further ones.
    assert!(opened.iter().enumerate().all(|(n, is_further)| *is_further == (n > 0)), "{opened:?}");
}

#[test]
fn a_fast_network_needs_one_connection_and_sends_nothing_twice() {
    let begun = Instant::now();
    let (opened, n_sent) = fetched("fast", |_, _, _| Next::Answer(Duration::ZERO));
    // A machine that stood still meanwhile looks like a slow network.
    if begun.elapsed() < Duration::from_secs(1) {
        assert_eq!(n_sent as u64, FILE_BYTES.div_ceil(PIECE_BYTES));
        assert_eq!(opened, [false]);
    }
}

#[test]
fn a_connection_that_stands_still_holds_up_nothing() {
    let (opened, _) = fetched("still", |n, _, m| match (n, m) {
        (0, 2) => Next::StandStill,
        _ => Next::Answer(Duration::ZERO),
    });
    assert!(opened.len() >= 2, "{opened:?}");
}

#[test]
fn connections_that_are_lost_lose_no_piece() {
    let (opened, _) = fetched("losing", |n, n_opened, m| match (n, n_opened, m) {
        (0, 3.., _) | (1, _, 1) => Next::End,
        _ => Next::Answer(Duration::from_millis(500)),
    });
    assert!(opened.len() >= 3, "{opened:?}");
}

#[test]
fn a_further_connection_is_told_to_nobody() {
    let (from, told) = giver();
    let ask = |name: &str, is_further| {
        let key = key();
        let mut channel = Channel::connect(from, Purpose::Layers, &key, &|| false).unwrap();
        let name = crate::wire::hello::name(name);
        let (rows, mut bytes) = (None, [0; MESSAGE_MAX]);
        channel.send(&Question::Want { start: 2, end: 0, rows, name, is_further }.emit()).unwrap();
        channel.receive(&mut bytes).unwrap();
        channel.send(&Question::Piece(0).emit()).unwrap();
        channel.receive(&mut bytes).unwrap();
    };
    ask("further", true);
    ask("first", false);
    assert!(told.recv().unwrap().contains("\"first\""));
    assert!(told.try_recv().is_err());
}
