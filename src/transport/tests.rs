//! Carriers over real sockets on this machine: a ring of two that sends frames around.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::link::{LinkConfig, LinkEvent, LinkState};
use super::options::CarrierOptions;
use super::place::HostPort;
use super::tcp::Tcp;
use super::udp::Udp;
use super::{Endpoint, TransportError};
use crate::wire::Dtype;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::hello::{Refusal, RingInfo, name};
use crate::wire::seal::Key;

fn config(layers: std::ops::Range<u32>, key: Option<u8>) -> LinkConfig {
    let node = RingInfo {
        model: 7,
        dim: 64,
        n_layers: 4,
        kv_dim: 64,
        vocab_size: 512,
        held: 0..4,
        is_master: layers.start == 0,
        wish: Some(layers.clone()),
        dtype: Dtype::F32,
        name: name("test"),
        ..RingInfo::default()
    };
    let key = key.map(|byte| Key::new([byte; 32]));
    LinkConfig::new(node, key, [layers.start as u8 + 1; 32])
}

type Open = fn(CarrierOptions) -> Result<Box<dyn Endpoint>, TransportError>;

const CARRIERS: [Open; 2] =
    [|options| Ok(Box::new(Udp::open(options)?)), |options| Ok(Box::new(Tcp::open(options)?))];

/// Two nodes, each the other's next. The second listens on `port`.
fn pair(open: Open, host: &str, port: u16, key: Option<u8>) -> [Box<dyn Endpoint>; 2] {
    let a = CarrierOptions::new(config(0..2, key), HostPort::new(host, 0), None);
    let mut a = open(a).unwrap();
    let to_a = Some(HostPort::new(host, a.local_address().port()));
    let b = CarrierOptions::new(config(2..4, key), HostPort::new(host, port), to_a);
    let b = open(b).unwrap();
    a.set_next(b.local_address());
    [a, b]
}

fn is_up(node: &mut dyn Endpoint) -> bool {
    let links = node.links();
    let next = links.next.as_ref().is_some_and(|link| *link.state() == LinkState::Up);
    next && links.prev.as_ref().is_some_and(|link| *link.state() == LinkState::Up)
}

fn service(nodes: &mut [Box<dyn Endpoint>]) {
    for node in nodes {
        node.service(Duration::from_micros(200)).unwrap();
    }
}

fn until(
    nodes: &mut [Box<dyn Endpoint>],
    what: &str,
    is_done: fn(&mut [Box<dyn Endpoint>]) -> bool,
) {
    let start = Instant::now();
    while !is_done(nodes) {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} takes more than 20 s");
        service(nodes);
        for node in nodes.iter_mut() {
            let links = node.links();
            while links.next.as_mut().is_some_and(|link| link.next_event().is_some()) {}
            while links.prev.as_mut().is_some_and(|link| link.next_event().is_some()) {}
        }
    }
}

fn connect(nodes: &mut [Box<dyn Endpoint>]) {
    until(nodes, "connecting", |nodes| nodes.iter_mut().all(|node| is_up(node.as_mut())));
}

/// Takes the oldest frame of `node`, if there is one.
fn take(node: &mut dyn Endpoint) -> Option<Vec<u8>> {
    let prev = node.links().prev.as_mut()?;
    let frame = prev.front()?.to_vec();
    prev.release();
    Some(frame)
}

/// Gives `node` a frame to send, if there is room.
fn give(node: &mut dyn Endpoint, frame: &[u8]) -> bool {
    let Some(next) = &mut node.links().next else { return false };
    let Some(room) = next.reserve() else { return false };
    room[..frame.len()].copy_from_slice(frame);
    next.commit(frame.len());
    true
}

#[test]
fn frames_go_round_over_every_carrier() {
    for open in CARRIERS {
        for (host, key) in [("127.0.0.1", None), ("::1", Some(1)), ("localhost", Some(2))] {
            let mut nodes = pair(open, host, 0, key);
            connect(&mut nodes);
            let frame = |n: usize| vec![n as u8; [1, 4096, 16_384, FRAME_MAX][n % 4]];
            let (mut sent, mut echoed, mut returned) = (0, 0, 0);
            let start = Instant::now();
            while returned < 60 {
                assert!(start.elapsed() < Duration::from_secs(20), "{returned} of 60 in 20 s");
                while sent < 60 && give(nodes[0].as_mut(), &frame(sent)) {
                    sent += 1;
                }
                service(&mut nodes);
                if echoed == returned
                    && let Some(got) = take(nodes[1].as_mut())
                {
                    assert!(got == frame(echoed));
                    assert!(give(nodes[1].as_mut(), &got));
                    echoed += 1;
                }
                if let Some(got) = take(nodes[0].as_mut()) {
                    assert!(got == frame(returned));
                    returned += 1;
                }
            }
        }
    }
}

#[test]
fn a_node_that_returns_is_linked_again() {
    // No other program gets the node's port while it is away: this process has an address of its own, and the
    // system gives out higher ports only.
    let [.., high, low] = std::process::id().to_be_bytes();
    let (host, port) = (format!("127.77.{high}.{low}"), 9999);
    for open in CARRIERS {
        let mut nodes = pair(open, &host, port, None);
        connect(&mut nodes);
        let [mut a, b] = nodes;
        drop(b);
        let start = Instant::now();
        while is_up(a.as_mut()) {
            assert!(start.elapsed() < Duration::from_secs(20));
            a.service(Duration::from_millis(5)).unwrap();
        }
        let to_a = Some(HostPort::new(&host, a.local_address().port()));
        let mut options = CarrierOptions::new(config(2..4, None), HostPort::new(&host, port), to_a);
        options.config.reseed([77; 32]);
        let b = open(options).unwrap();
        let mut nodes = [a, b];
        connect(&mut nodes);
        assert!(give(nodes[0].as_mut(), b"hello"));
        let start = Instant::now();
        while take(nodes[1].as_mut()).is_none_or(|frame| frame != b"hello") {
            assert!(start.elapsed() < Duration::from_secs(20));
            service(&mut nodes);
        }
    }
}

#[test]
fn a_second_node_of_the_same_place_leaves_a_running_link_alone() {
    for open in CARRIERS {
        for key in [None, Some(3)] {
            let mut nodes = pair(open, "127.0.0.1", 0, key);
            connect(&mut nodes);
            let session = nodes[1].links().prev.as_ref().unwrap().session();
            let to = Some(HostPort::new("127.0.0.1", nodes[1].local_address().port()));
            let mut options =
                CarrierOptions::new(config(0..2, key), HostPort::new("127.0.0.1", 0), to);
            options.config.reseed([77; 32]);
            let mut second = open(options).unwrap();
            let start = Instant::now();
            let (mut refusals, mut n_frames) = (Vec::new(), 0);
            while start.elapsed() < Duration::from_secs(4) || refusals.is_empty() {
                assert!(start.elapsed() < Duration::from_secs(60), "nothing is said");
                second.service(Duration::from_millis(1)).unwrap();
                n_frames += 1;
                pass(&mut nodes, &[n_frames as u8; 3000]);
                let next = second.links().next.as_mut().unwrap();
                refusals.extend(std::iter::from_fn(|| next.next_event()));
            }
            let [LinkEvent::Refused(refused)] = &refusals[..] else { panic!("{refusals:?}") };
            assert_eq!(refused.refusal, Refusal::Busy { with: name("test") });
            assert!(!refused.is_final());
            assert_eq!(nodes[1].links().prev.as_ref().unwrap().session(), session);
            // The first one is gone; as soon as that shows the second has its place.
            nodes[0] = second;
            until(&mut nodes, "the second node's turn", |nodes| {
                *nodes[0].links().next.as_ref().unwrap().state() == LinkState::Up
            });
        }
    }
}

/// Sends a frame from the first node to the second and waits for it.
fn pass(nodes: &mut [Box<dyn Endpoint>], frame: &[u8]) {
    let start = Instant::now();
    let mut is_given = false;
    while take(nodes[1].as_mut()).is_none_or(|got| got != frame) {
        is_given = is_given || give(nodes[0].as_mut(), frame);
        assert!(start.elapsed() < Duration::from_secs(60), "no frame in 60 s");
        service(nodes);
    }
}

#[test]
fn thousands_of_half_open_connections_leave_a_link_alone() {
    let mut nodes = pair(CARRIERS[1], "127.0.0.1", 0, None);
    connect(&mut nodes);
    let to = nodes[1].local_address();
    let session = |nodes: &mut [Box<dyn Endpoint>]| nodes[1].links().prev.as_ref()?.session();
    let before = session(&mut nodes);
    let hello = [&100u32.to_le_bytes()[..], b"LEP1\x01\x04"].concat();
    let strangers: [&[u8]; 4] = [b"", &[0xff; 64], &[0; 4], &hello];
    let n = if std::env::var_os("LEAP_TEST_QUICK").is_some() { 200 } else { 3_000 };
    let mut open = std::collections::VecDeque::new();
    for i in 0..n {
        let stream = TcpStream::connect(to).unwrap();
        // Connections that sent nonsense may have been closed already.
        let _ = (&stream).write(strangers[i % strangers.len()]);
        open.push_back(stream);
        // More than the node keeps, and fewer than a process may open.
        if open.len() > 300 {
            open.pop_front();
        }
        if i % 8 == 0 {
            service(&mut nodes);
        }
        if i % 500 == 0 {
            pass(&mut nodes, &[i as u8; 4096]);
        }
    }
    pass(&mut nodes, b"still here");
    assert_eq!(session(&mut nodes), before);
    // The node closed all but the latest.
    let is_closed = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        !matches!(stream.read(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock)
    };
    let n_closed = open.iter().filter(|stream| is_closed(stream)).count();
    assert!(open.len() - n_closed <= 64, "{n_closed} of {} are closed", open.len());
}

#[test]
fn a_neighbour_that_does_not_read_delays_no_other() {
    for open in CARRIERS {
        let mut nodes = pair(open, "127.0.0.1", 0, None);
        connect(&mut nodes);
        let frame = |n: usize| vec![n as u8; FRAME_MAX];
        let mut sent = 0;
        // The second node keeps itself alive, but takes no frame.
        for _ in 0..200 {
            while give(nodes[0].as_mut(), &frame(sent)) {
                sent += 1;
            }
            service(&mut nodes);
        }
        // Each end has 16 banks.
        assert!((16..=32).contains(&sent), "{sent}");
        let start = Instant::now();
        for n in 0..sent {
            let got = loop {
                assert!(start.elapsed() < Duration::from_secs(60), "{n} of {sent} in 60 s");
                service(&mut nodes);
                if let Some(got) = take(nodes[1].as_mut()) {
                    break got;
                }
            };
            assert!(got == frame(n), "{n}");
        }
    }
}

#[test]
fn hosts_and_addresses_that_do_not_exist_are_told() {
    for open in CARRIERS {
        let options = |host: &str, next: Option<HostPort>| {
            CarrierOptions::new(config(0..2, None), HostPort::new(host, 0), next)
        };
        let fail = |options| open(options).err().unwrap().to_string();
        assert!(fail(options("192.0.2.1", None)).starts_with("cannot listen on 192.0.2.1"));
        assert_eq!(
            fail(options("no.such.host.invalid", None)),
            "cannot find the host no.such.host.invalid"
        );
        let other_family = Some(HostPort::new("::1", 1));
        assert_eq!(fail(options("127.0.0.1", other_family)), "cannot find the host ::1");
    }
}

/// Addresses behind the names of a test.
static HOSTS: Mutex<BTreeMap<String, SocketAddr>> = Mutex::new(BTreeMap::new());

fn from_hosts(host: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
    let hosts = HOSTS.lock().unwrap();
    Ok(vec![*hosts.get(host).ok_or(io::Error::from(ErrorKind::NotFound))?])
}

#[test]
fn a_name_is_waited_for_and_followed() {
    // Addresses of this process alone, as above.
    let [.., high, low] = std::process::id().to_be_bytes();
    for (index, open) in CARRIERS.into_iter().enumerate() {
        let name = format!("next-{index}.test");
        let to_name = Some(HostPort::new(&name, 9999));
        let mut options =
            CarrierOptions::new(config(0..2, None), HostPort::new("127.0.0.1", 0), to_name);
        options.resolve = from_hosts;
        let mut a = Some(open(options).unwrap());
        let start = Instant::now();
        let told = format!("cannot find the host {name}, and goes on trying: ");
        while !a.as_ref().unwrap().notices().iter().any(|notice| notice.starts_with(&told)) {
            assert!(start.elapsed() < Duration::from_secs(20));
            a.as_mut().unwrap().service(Duration::from_millis(5)).unwrap();
        }
        // The name gets an address, then another one.
        for (life, net) in [(11, 78), (12, 79)] {
            let node = a.take().unwrap();
            let to_a = Some(HostPort::new("127.0.0.1", node.local_address().port()));
            let host = format!("127.{net}.{high}.{low}");
            let mut options =
                CarrierOptions::new(config(2..4, None), HostPort::new(&host, 0), to_a);
            options.config.reseed([life; 32]);
            let b = open(options).unwrap();
            HOSTS.lock().unwrap().insert(name.clone(), b.local_address());
            let mut nodes = [node, b];
            connect(&mut nodes);
            let frame = [life; 9];
            pass(&mut nodes, &frame);
            let [node, b] = nodes;
            drop(b);
            a = Some(node);
            let start = Instant::now();
            while is_up(a.as_mut().unwrap().as_mut()) {
                assert!(start.elapsed() < Duration::from_secs(20));
                a.as_mut().unwrap().service(Duration::from_millis(5)).unwrap();
            }
        }
    }
}
