//! Friends, and crowds of strangers.

use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::time::Instant;

use super::super::guests::{UNPROVEN_MAX, UNPROVEN_MAX_EACH};
use super::*;
use crate::wire::noise::MESSAGE_LEN;
use crate::wire::opening::{DESTINATION_LEN, No, OPENING_LEN, PROLOGUE_LEN, opening, prologue};

const KEY: [u8; 32] = [7; 32];
/// Longest wait; far more than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends back what it receives.
struct Echo(Arc<Mutex<Vec<String>>>);

impl Service for Echo {
    fn talk(&self, mut channel: Channel<'_>, _: IpAddr) -> Result<(), ChannelError> {
        let mut bytes = [0; 64];
        loop {
            let len = channel.receive(&mut bytes)?;
            channel.send(&bytes[..len])?;
        }
    }

    fn refuse(&self, from: IpAddr, why: &ChannelError) {
        self.0.lock().unwrap().push(format!("{from}: {why}"));
    }
}

fn echo(purpose: Purpose) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let echo = Echo(Arc::clone(&told));
    (start(("leap-echo", purpose), any, Key::new(KEY), echo).unwrap(), told)
}

fn friend(at: SocketAddr, purpose: Purpose) -> Result<Channel<'static>, ChannelError> {
    Channel::connect(at, purpose, &Key::new(KEY), &|| false)
}

fn is_served(channel: &mut Channel<'_>) -> bool {
    let mut bytes = [0; 64];
    channel.send(b"hello").is_ok() && channel.receive(&mut bytes).is_ok_and(|len| len == 5)
}

/// Whether the other end has closed the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(n) => n == 0,
        Err(e) => e.kind() != ErrorKind::WouldBlock,
    }
}

fn wait_for(what: &str, is_so: &mut dyn FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn strangers_that_crowd_a_port_do_not_lock_a_friend_out() {
    let (at, told) = echo(Purpose::Orders);
    let mut early = friend(at, Purpose::Orders).unwrap();
    assert!(is_served(&mut early));
    // Twice as many strangers as there is room for. All stay and say nothing.
    let mut strangers: Vec<TcpStream> =
        (0..2 * UNPROVEN_MAX).map(|_| TcpStream::connect(at).unwrap()).collect();
    let mut n_open = || strangers.iter_mut().filter_map(|s| (!is_closed(s)).then_some(())).count();
    wait_for("the oldest to make way", &mut || n_open() <= UNPROVEN_MAX_EACH);
    assert!(is_served(&mut friend(at, Purpose::Orders).unwrap()), "a new connection");
    assert!(is_served(&mut early), "a connection that was there before");
    wait_for("a word", &mut || !told.lock().unwrap().is_empty());
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("127.0.0.1") && told[0].contains("proves no key"), "{told:?}");
}

#[test]
fn strangers_of_many_addresses_make_way_before_a_member_does() {
    let guests = Guests::default();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let mut ends = Vec::new();
    let mut admit = |from: [u8; 4]| {
        let mut near = TcpStream::connect(at).unwrap();
        let (id, is_crowd) = guests.admit(listener.accept().unwrap().0, IpAddr::from(from));
        near.write_all(b"x").unwrap();
        ends.push(near);
        (id, is_crowd)
    };
    let (member, _) = admit([10, 0, 0, 1]);
    guests.prove(member);
    // The member connects once more, before all others.
    admit([10, 0, 0, 1]);
    for i in 0..3 * UNPROVEN_MAX {
        assert!(!admit([10, 1, i as u8, 1]).1);
    }
    let is_open: Vec<bool> = ends.iter_mut().map(|end| !is_closed(end)).collect();
    assert!(is_open[0] && is_open[1], "the member's connections stay");
    // Open connections are the member's first one, and the largest number of unproven ones.
    assert_eq!(is_open.iter().filter(|is_open| **is_open).count(), 1 + UNPROVEN_MAX);
    assert!(is_open[2..3 * UNPROVEN_MAX - UNPROVEN_MAX].iter().all(|is_open| !is_open));
}

/// The first messages of a client with the key, and the answer of `at`.
fn recorded(at: SocketAddr, purpose: Purpose) -> (Vec<u8>, Vec<u8>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (prologue, ephemeral) = (prologue(purpose, at), [5; 32]);
    let greeting = Key::new(KEY).end(&ephemeral, &prologue).greeting();
    drop(listener);
    let sent = [&prologue[..], &greeting].concat();
    (sent.clone(), played(at, &sent))
}

/// The whole answer of `at` to these bytes.
fn played(at: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; OPENING_LEN + MESSAGE_LEN];
    let mut n = 0;
    while n < answer.len() {
        match stream.read(&mut answer[n..]) {
            Ok(0) | Err(_) => break,
            Ok(more) => n += more,
        }
    }
    answer.truncate(n);
    answer
}

#[test]
fn a_greeting_that_is_played_elsewhere_opens_nothing() {
    let (orders, told) = echo(Purpose::Orders);
    let (other, _) = echo(Purpose::Orders);
    let (layers, _) = echo(Purpose::Layers);
    let (sent, answer) = recorded(orders, Purpose::Orders);
    assert_eq!(answer.len(), OPENING_LEN + MESSAGE_LEN, "where it was meant for it is answered");
    // Played to another board of the same purpose.
    let refused = [&opening(Purpose::Orders)[..], &No::Destination.emit()].concat();
    assert_eq!(played(other, &sent), refused);
    // Played to a port of another purpose, unchanged and made to look like a greeting for it.
    assert_eq!(played(layers, &sent), opening(Purpose::Layers));
    let mut changed = sent.clone();
    changed[..OPENING_LEN].copy_from_slice(&opening(Purpose::Layers));
    let refused = [&opening(Purpose::Layers)[..], &No::Key.emit()].concat();
    assert_eq!(played(layers, &changed), refused);
    // Played with another destination.
    let mut moved = sent.clone();
    let end = OPENING_LEN + DESTINATION_LEN;
    moved[..end].copy_from_slice(&prologue(Purpose::Orders, other));
    let refused = [&opening(Purpose::Orders)[..], &No::Key.emit()].concat();
    assert_eq!(played(other, &moved), refused);
    // Played back to its own sender, the greeting is no answer.
    let key = Key::new(KEY);
    let greeting = sent[PROLOGUE_LEN..].first_chunk().unwrap();
    assert!(key.end(&[5; 32], &sent[..PROLOGUE_LEN]).conclude(greeting).is_none());
    // A greeting of an earlier connection is answered, under keys that the player lacks, and proves nothing.
    let again = played(orders, &sent);
    assert_ne!(again, answer);
    // The answer of an earlier connection does not fit a later greeting.
    let later = [6; 32];
    let earlier = answer[OPENING_LEN..].first_chunk().unwrap();
    assert!(key.end(&later, &sent[..PROLOGUE_LEN]).conclude(earlier).is_none());
    assert!(told.lock().unwrap().is_empty(), "who is told of is who was meant");
}

#[test]
fn a_connection_that_is_led_back_to_its_own_board_ends() {
    let (at, _) = echo(Purpose::Layers);
    // A router on the way redirects connections to its address to this board's own port.
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 9), 0)).unwrap();
    let elsewhere = listener.local_addr().unwrap();
    let carry = thread::spawn(move || {
        let mut from = listener.accept().unwrap().0;
        let mut to = TcpStream::connect(at).unwrap();
        let (mut back, mut forth) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let forward = thread::spawn(move || std::io::copy(&mut back, &mut forth));
        let _ = std::io::copy(&mut to, &mut from);
        let _ = from.shutdown(std::net::Shutdown::Both);
        let _ = forward.join();
    });
    let why = friend(elsewhere, Purpose::Layers).map(drop).unwrap_err();
    assert!(matches!(why, ChannelError::Destination), "{why}");
    carry.join().unwrap();
}

#[test]
fn a_port_for_something_else_says_so() {
    let (at, _) = echo(Purpose::Layers);
    let why = friend(at, Purpose::Guesses).map(drop).unwrap_err();
    assert!(matches!(why, ChannelError::Purpose), "{why}");
}

#[test]
fn an_end_that_is_silent_is_a_timeout_in_words() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (_silent, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let read = super::super::read_all(&mut stream, &mut [0], Duration::from_secs(1), &|| false);
    assert_eq!(read.unwrap_err().to_string(), "timed out after 1 s");
    // The other end reads nothing either, so the buffers fill up.
    stream.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
    let error = loop {
        let second = Duration::from_secs(1);
        if let Err(e) = super::super::write_within(&mut stream, &[0; 1 << 16], second, &|| false) {
            break e;
        }
    };
    assert_eq!(error.to_string(), "timed out after 1 s");
    let error = super::super::write(&mut stream, &[0; 1 << 16], &|| true).unwrap_err();
    assert!(matches!(error, ChannelError::Interrupted), "{error}");
}
