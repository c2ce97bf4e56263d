//! Datagrams that go a way that loses some, doubles some and lets some overtake others.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use super::*;
use crate::transport::fault::Dice;

/// Proxy for every port of a team: links connect to the port behind the one that they are for.
struct Way {
    socket: UdpSocket,
    to: SocketAddr,
    /// The peer that sends to that port, and is answered.
    from: Option<SocketAddr>,
    held: Option<(SocketAddr, Vec<u8>)>,
}

/// Ways to all ports of a team at `places`, with a detour of 300 ports.
fn ways(places: &Places) -> Vec<Way> {
    let mut ways = Vec::new();
    for own in 0..places.n_nodes {
        for peer in (0..places.n_nodes).filter(|peer| *peer != own) {
            let port = places.port(own, peer);
            let socket = UdpSocket::bind((Places::host(), port + 300)).unwrap();
            socket.set_nonblocking(true).unwrap();
            let to = format!("{}:{port}", Places::host()).parse().unwrap();
            ways.push(Way { socket, to, from: None, held: None });
        }
    }
    ways
}

impl Way {
    /// Passes on what has come; says whether anything has.
    fn carry(&mut self, dice: &mut Dice, n: &mut BTreeMap<&'static str, u32>) -> bool {
        let mut room = [0; 65_536];
        let mut has_come = false;
        loop {
            let (bytes, from) = match self.socket.recv_from(&mut room) {
                Ok(received) => received,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return has_come,
                // The peer is not up yet.
                Err(_) => continue,
            };
            has_come = true;
            let to = match from == self.to {
                true => self.from,
                false => {
                    self.from = Some(from);
                    Some(self.to)
                }
            };
            let Some(to) = to else { continue };
            if dice.chance(0.03) {
                *n.entry("lost").or_default() += 1;
                continue;
            }
            let held = self.held.take();
            if held.is_none() && dice.chance(0.02) {
                *n.entry("overtaken").or_default() += 1;
                self.held = Some((to, room[..bytes].to_vec()));
                continue;
            }
            let times = if dice.chance(0.01) { 2 } else { 1 };
            for _ in 0..times {
                // A full buffer loses one more.
                let _ = self.socket.send_to(&room[..bytes], to);
            }
            if let Some((to, held)) = held {
                let _ = self.socket.send_to(&held, to);
            }
        }
    }
}

#[test]
fn a_bad_network_changes_nothing() {
    let places = Places { detour: 300, key: Some(3), ..Places::new(3) };
    let mut ways = ways(&places);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let carrier = scope.spawn(|| {
            let (mut dice, mut n) = (Dice::new(11), BTreeMap::new());
            while !is_over.load(Ordering::Relaxed) {
                let mut has_come = false;
                for way in &mut ways {
                    has_come |= way.carry(&mut dice, &mut n);
                }
                if !has_come {
                    thread::sleep(Duration::from_micros(100));
                }
            }
            n
        });
        let cases = [
            Case::new(1, &[2000, 3000, 5], To::All),
            Case::new(8, &[0, 30_000, 1000], To::All),
            Case::new(1, &[9, 10_000, 10_000], To::Lead),
        ];
        check(places, &cases, 20);
        is_over.store(true, Ordering::Relaxed);
        let n = carrier.join().unwrap();
        assert!(n["lost"] > 20 && n["overtaken"] > 5, "{n:?}");
    });
}
