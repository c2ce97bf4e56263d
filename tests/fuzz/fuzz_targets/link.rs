//! Two linked nodes, and any datagrams between them at any times. The first byte chooses a key or none; then follow
//! pieces: an action, and a datagram preceded by its length.
#![no_main]

use std::net::SocketAddr;

use leap::internals::transport::link::{
    Burst, LinkConfig, LinkIn, LinkOut, Links, Mode, Sending, LinkState, Wire,
};
use leap::internals::wire::datagram::{FRAME_MAX, HEADER_LEN, checksum};
use leap::internals::wire::hello::RingInfo;
use leap::internals::wire::seal::Key;
use libfuzzer_sys::fuzz_target;

#[derive(Default)]
struct Sent(Vec<Vec<u8>>);

impl Wire for Sent {
    fn burst(&mut self, _: SocketAddr, burst: &Burst<'_>) -> Sending {
        self.0.extend(burst.datagrams().map(|datagram| datagram.to_vec()));
        Sending::Gone
    }

    fn control(&mut self, _: SocketAddr, datagram: &[u8]) {
        self.0.push(datagram.to_vec());
    }
}

fn config(layers: std::ops::Range<u32>, key: Option<Key>) -> LinkConfig {
    let seed = [layers.start as u8; 32];
    let is_master = layers.start == 0;
    let node = RingInfo { n_layers: 2, wish: Some(layers), is_master, ..RingInfo::default() };
    LinkConfig { n_banks: 2, ..LinkConfig::new(node, key, seed) }
}

struct Pair {
    nodes: [Links; 2],
    now: u64,
}

impl Pair {
    fn address(index: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1 + index as u16))
    }

    fn new(key: Option<Key>) -> Pair {
        let out = LinkOut::new(config(0..1, key.clone()), Mode::Datagrams, Pair::address(1), 0);
        let a = Links { next: Some(out), prev: None };
        let b = Links { next: None, prev: Some(LinkIn::new(config(1..2, key))) };
        Pair { nodes: [a, b], now: 0 }
    }

    /// Delivers the due datagrams of `from` to the other node; half of the answers are lost.
    fn exchange(&mut self, from: usize) {
        let mut sent = Sent::default();
        self.nodes[from].transmit(self.now, &mut sent);
        for mut datagram in sent.0 {
            self.arrive(1 - from, &mut datagram);
        }
    }

    fn arrive(&mut self, to: usize, datagram: &mut [u8]) {
        let mut back = Sent::default();
        let from = Pair::address(1 - to);
        let _ = self.nodes[to].on_datagram(self.now, from, datagram, &mut back);
        for mut answer in back.0 {
            let from = Pair::address(to);
            let mut lost = Sent::default();
            let _ = self.nodes[1 - to].on_datagram(self.now, from, &mut answer, &mut lost);
        }
    }

    fn session(&self) -> u64 {
        self.nodes[1].prev.as_ref().and_then(LinkIn::session).unwrap_or(0)
    }

    fn act(&mut self, what: u8, datagram: &mut [u8]) {
        self.now += [0, 10, 3_000, 400_000][usize::from(what >> 6)];
        if what & 32 != 0 && datagram.len() >= HEADER_LEN {
            datagram[..5].copy_from_slice(b"LEP1\x01");
            datagram[8..16].copy_from_slice(&self.session().to_le_bytes());
            let crc = checksum(&datagram[..28], &datagram[HEADER_LEN..]);
            datagram[28..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
        }
        if !datagram.is_empty() {
            self.arrive(usize::from(what & 1), datagram);
        }
        if what & 2 != 0 {
            self.exchange(0);
        }
        if what & 4 != 0 {
            self.exchange(1);
        }
        if let Some(next) = self.nodes[0].next.as_mut().filter(|_| what & 8 != 0)
            && next.reserve().is_some()
        {
            next.commit(1 + usize::from(what) * 37);
        }
        if let Some(prev) = self.nodes[1].prev.as_mut().filter(|_| what & 16 != 0) {
            assert!(prev.front().is_none_or(|frame| frame.len() <= FRAME_MAX + 2048));
            prev.release();
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, mut rest)) = bytes.split_first() else { return };
    let mut pair = Pair::new((first & 1 == 1).then(|| Key::new([7; 32])));
    for _ in 0..4 {
        pair.exchange(0);
        pair.exchange(1);
        pair.now += 100;
    }
    assert!(pair.session() != 0);
    while let [what, len, tail @ ..] = rest {
        let len = (usize::from(*len) * if what & 1 == 0 { 1 } else { 6 }).min(tail.len());
        pair.act(*what, &mut tail[..len].to_vec());
        rest = &tail[len..];
    }
    // After any strange datagrams, the honest nodes must still connect.
    for _ in 0..400 {
        pair.now += 20_000;
        pair.exchange(0);
        pair.exchange(1);
        if let Some(prev) = &mut pair.nodes[1].prev {
            prev.release();
        }
    }
    assert_eq!(pair.nodes[0].next.as_ref().map(LinkOut::state), Some(&LinkState::Up));
});
