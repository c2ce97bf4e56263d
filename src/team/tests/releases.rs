//! Nodes of another release, which speak another version of the protocol.

use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};

use super::*;
use crate::wire::datagram::{Datagram, DatagramHeader, DatagramKind, HEADER_LEN};
use crate::wire::hello::{
    HELLO_LEN, Hello, PROTOCOL, REFUSE_FIXED, REFUSE_LEN, Refusal, Refuse, RingInfo,
};
use crate::wire::noise::MESSAGE_LEN;

/// The version before this one.
const OLDER: u16 = PROTOCOL - 1;

/// A message of a node of the release before.
#[derive(Clone, Copy)]
enum Says {
    /// It asks for a link.
    Hello,
    /// It refuses the link that it is asked for.
    Refuse,
    /// Both, as nodes do.
    Both,
}

fn datagram(kind: DatagramKind, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; HEADER_LEN];
    DatagramHeader::control(kind, 0, 1, payload.len()).emit_for(&mut header, payload);
    [&header[..], payload].concat()
}

/// The greeting of a node of the release before.
fn older_hello() -> Vec<u8> {
    let node = RingInfo { name: name("older"), ..RingInfo::default() };
    let mut bytes = [0; HELLO_LEN];
    let (protocol, has_key, greeting) = (OLDER, false, [0; MESSAGE_LEN]);
    Hello {
        protocol,
        has_key,
        instance: 9,
        nonce: [4; 16],
        resume: 0,
        node,
        to: Default::default(),
        greeting,
    }
    .emit(&mut bytes);
    datagram(DatagramKind::Hello, &bytes)
}

/// Refusal of a greeting of this release.
fn older_refuse(hello: &[u8]) -> Option<Vec<u8>> {
    let greeted = Datagram::new_checked(hello).ok()?;
    let hello = Hello::parse(greeted.payload()).ok()?;
    let refusal = Refusal::Version { prev: PROTOCOL, next: OLDER };
    let refuse =
        Refuse { hello_nonce: hello.nonce, refusal, name: name("older"), tag: Default::default() };
    let mut bytes = [0; REFUSE_LEN];
    refuse.emit(&mut bytes);
    Some(datagram(DatagramKind::Refuse, &bytes[..REFUSE_FIXED]))
}

/// A node of the release before in place of `own`, which sends `says` to `peer` until `is_over`.
fn older_node(places: &Places, (own, peer): (usize, usize), says: Says, is_over: &AtomicBool) {
    let socket = UdpSocket::bind((Places::host(), places.port(own, peer))).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let to = (Places::host(), places.port(peer, own));
    let mut room = [0; 2048];
    while !is_over.load(Ordering::Relaxed) {
        if let Says::Hello | Says::Both = says {
            // The peer may not be up yet.
            let _ = socket.send_to(&older_hello(), (&*to.0, to.1));
        }
        let Ok((bytes, from)) = socket.recv_from(&mut room) else { continue };
        if let Says::Refuse | Says::Both = says
            && let Some(refuse) = older_refuse(&room[..bytes])
        {
            socket.send_to(&refuse, from).unwrap();
        }
    }
}

/// Notices of releases during `wait` beside an older node in place of `older`, until a second one or for half
/// a second more.
fn told(
    places: &Places,
    (older, own): (usize, usize),
    says: Says,
    wait: impl FnOnce(&dyn Fn() -> bool, &mut dyn FnMut(&Notice)),
) -> Vec<String> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| older_node(places, (older, own), says, &is_over));
        let (mut told, end) = (Vec::new(), Cell::new(None));
        let start = Instant::now();
        wait(&|| Instant::now() > end.get().unwrap_or(start + Duration::from_secs(60)), &mut |n| {
            let words = n.to_string();
            if words.contains("protocol") {
                end.set(Some(Instant::now() + Duration::from_millis(500)));
                told.push(words);
            }
        });
        told
    })
}

/// Checks the notice of node `own` beside an older one in place of `older`.
fn check((older, own): (usize, usize), says: Says) {
    let places = Places::new(3);
    let host = Places::host();
    let at = SocketAddr::new(host.parse().unwrap(), places.port(older, own));
    let wanted = format!(
        "{} at {at} speaks protocol {OLDER}, this node protocol {PROTOCOL}; \
         install the same release on both",
        named(older)
    );
    let told = told(&places, (older, own), says, |is_over, tell| {
        let ended = match own {
            0 => places.lead(5).open(&opening(3), is_over, tell, None),
            _ => places.member(own).next(is_over, tell).map(drop),
        };
        assert_eq!(ended, Err(TeamError::Interrupted));
    });
    assert_eq!(told, [wanted], "once");
}

#[test]
fn a_node_of_another_release_is_named_with_its_place_and_both_versions() {
    thread::scope(|scope| {
        for says in [Says::Hello, Says::Refuse, Says::Both] {
            for nodes in [(1, 0), (0, 1), (2, 1)] {
                scope.spawn(move || check(nodes, says));
            }
        }
    });
}
