//! Links over a bad network in virtual time. A failing seed is printed, and runs alone with `LEAP_SEED=… cargo test
//! --lib transport::link`; `LEAP_SEEDS=10000` runs that many seeds.

mod frames;
mod paths;
mod reflection;
mod refusals;
mod sessions;
mod strangers;

use std::net::SocketAddr;
use std::time::Duration;

use super::times::{PING_US, without_pause};
use super::wire::send_control;
use super::*;
use crate::transport::Endpoint;
use crate::transport::fault::{Dice, Faults};
use crate::transport::loopback::{Loopback, Network, address};
use crate::wire::datagram::{CHUNK_BYTES, FRAME_MAX, HEADER_LEN, VERSION};
use crate::wire::hello::{self, Refusal, Refuse, RingInfo, WELCOME_LEN, Welcome, name};
use crate::wire::noise::MESSAGE_LEN;
use crate::wire::seal::Key;
use crate::wire::{Dtype, datagram};

fn node(layers: std::ops::Range<u32>) -> RingInfo {
    RingInfo {
        model: 7,
        dim: 64,
        n_layers: 4,
        kv_dim: 64,
        vocab_size: 512,
        held: 0..4,
        is_master: layers.start == 0,
        wish: Some(layers.clone()),
        dtype: Dtype::F32,
        name: name(&format!("n{}", layers.start)),
        ..RingInfo::default()
    }
}

fn config(layers: std::ops::Range<u32>, key: Option<u8>, run: u8) -> LinkConfig {
    let mut seed = [layers.start as u8; 32];
    seed[1] = run;
    let key = key.map(|byte| Key::new([byte; 32]));
    LinkConfig { n_banks: 4, ..LinkConfig::new(node(layers), key, seed) }
}

/// Runs `test` for many seeds, or for the one that `LEAP_SEED` names.
fn for_seeds(n_seeds: u64, test: fn(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    if let Some(seed) = number("LEAP_SEED") {
        return test(seed);
    }
    let is_quick = std::env::var_os("LEAP_TEST_QUICK").is_some();
    let n_seeds = if is_quick { n_seeds.div_ceil(20) } else { n_seeds };
    for seed in 0..number("LEAP_SEEDS").unwrap_or(n_seeds) {
        let outcome = std::panic::catch_unwind(|| test(seed));
        assert!(outcome.is_ok(), "failed as told above; again with LEAP_SEED={seed}");
    }
}

fn faults(dice: &mut Dice) -> Faults {
    let slow = 1 + dice.below(2_000);
    Faults {
        loss: 0.2 * (dice.below(5) as f64) / 4.0,
        burst: 1,
        duplicate: 0.05 * (dice.below(2) as f64),
        corrupt: 0.05 * (dice.below(2) as f64),
        delay_us: 20..20 + slow,
    }
}

/// Content of frame `number` of `run`: any length, and different from every other frame.
fn content(run: u64, number: u64) -> Vec<u8> {
    let mut dice = Dice::new(run << 32 | number);
    let bytes = match dice.below(32) {
        0..4 => 1 + dice.below(16),
        4..8 => CHUNK_BYTES as u64 - 2 + dice.below(4),
        8 => 1 + dice.below(FRAME_MAX as u64),
        _ => 1 + dice.below(6_000),
    };
    let mut frame = vec![dice.roll() as u8; bytes as usize];
    frame[0] = number as u8;
    for chunk in frame.as_chunks_mut::<8>().0 {
        chunk.copy_from_slice(&dice.roll().to_le_bytes());
    }
    frame
}

/// A sends frames to B; `run` counts the restarts of A.
struct Sim {
    network: Network,
    a: Loopback,
    b: Loopback,
    dice: Dice,
    key: Option<u8>,
    run: u64,
    sent: u64,
    received: u64,
}

impl Sim {
    fn new(seed: u64, faults: Option<Faults>) -> Sim {
        let mut dice = Dice::new(seed);
        let key = (dice.below(2) == 1).then_some(9);
        let faults = faults.unwrap_or_else(|| self::faults(&mut dice));
        let network = Network::new(dice.roll(), faults);
        let a = network.endpoint(config(0..2, key, 0), Some(1));
        let b = network.endpoint(config(2..4, key, 0), Some(0));
        Sim { network, a, b, dice, key, run: 0, sent: 0, received: 0 }
    }

    fn next(&mut self) -> &mut LinkOut {
        self.a.links().next.as_mut().unwrap()
    }

    fn prev(&mut self) -> &mut LinkIn {
        self.b.links().prev.as_mut().unwrap()
    }

    /// Services both nodes and advances time.
    fn step(&mut self) {
        self.a.service(Duration::ZERO).unwrap();
        self.b.service(Duration::ZERO).unwrap();
        assert!(self.network.step(), "links always have a deadline");
    }

    fn steps_until(&mut self, what: &str, limit: Micros, is_done: impl Fn(&mut Sim) -> bool) {
        let end = self.network.now() + limit;
        while !is_done(self) {
            assert!(self.network.now() < end, "{what} takes more than {limit} us");
            self.step();
        }
    }

    /// A sends frames while there is room, up to `n_frames` in all.
    fn send(&mut self, n_frames: u64) {
        while self.sent < n_frames {
            let frame = content(self.run, self.sent);
            let Some(room) = self.next().reserve() else { return };
            assert_eq!(room.len(), FRAME_MAX);
            room[..frame.len()].copy_from_slice(&frame);
            self.next().commit(frame.len());
            self.sent += 1;
        }
    }

    /// B reads a few frames, which must be the next ones.
    fn receive(&mut self) {
        for _ in 0..self.dice.below(3) {
            let wanted = content(self.run, self.received);
            let Some(frame) = self.prev().front() else { return };
            assert!(frame == wanted, "frame {} is not the next one", self.received);
            self.prev().release();
            self.received += 1;
        }
    }

    fn exchange(&mut self, n_frames: u64) {
        let end = self.network.now() + 120_000_000;
        while self.received < n_frames {
            assert!(self.network.now() < end, "{} of {n_frames} frames in 120 s", self.received);
            self.send(n_frames);
            self.step();
            self.receive();
        }
        assert!(self.prev().front().is_none());
    }

    fn is_up(&mut self) -> bool {
        *self.next().state() == LinkState::Up && *self.prev().state() == LinkState::Up
    }

    fn events(&mut self) -> (Vec<LinkEvent>, Vec<LinkEvent>) {
        let next = std::iter::from_fn(|| self.next().next_event()).collect();
        (next, std::iter::from_fn(|| self.prev().next_event()).collect())
    }
}

/// Keeps what a link sends.
#[derive(Default)]
struct Recorder {
    sent: Vec<Vec<u8>>,
}

impl Wire for Recorder {
    fn burst(&mut self, _: SocketAddr, burst: &Burst<'_>) -> Sending {
        assert_eq!(burst.datagrams().count(), burst.len());
        self.sent.extend(burst.datagrams().map(|datagram| datagram.to_vec()));
        Sending::Gone
    }

    fn control(&mut self, _: SocketAddr, datagram: &[u8]) {
        self.sent.push(datagram.to_vec());
    }
}

fn fix_checksum(datagram: &mut [u8]) {
    let crc = datagram::checksum(&datagram[..28], &datagram[HEADER_LEN..]);
    datagram[28..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
}

/// Carries due datagrams of `a` to `b`, and the answers back.
fn carry(
    a: &mut Links,
    b: &mut Links,
    [from, to]: [usize; 2],
    now: Micros,
    seen: &mut Vec<Vec<u8>>,
) {
    let mut out = Recorder::default();
    a.transmit(now, &mut out);
    for mut datagram in out.sent {
        seen.push(datagram.clone());
        let mut back = Recorder::default();
        b.on_datagram(now, address(from), &mut datagram, &mut back).unwrap();
        for mut answer in back.sent {
            seen.push(answer.clone());
            a.on_datagram(now, address(to), &mut answer, &mut Recorder::default()).unwrap();
        }
    }
}

/// A pair of nodes after 400 ms, and everything that they sent each other.
fn pair(key: Option<u8>) -> (Links, Links, Vec<Vec<u8>>) {
    let mut a = Links {
        next: Some(LinkOut::new(config(0..2, key, 0), Mode::Datagrams, address(1), 0)),
        prev: None,
    };
    let mut b = Links { next: None, prev: Some(LinkIn::new(config(2..4, key, 0))) };
    let mut seen = Vec::new();
    for now in (0..400_000).step_by(1_000) {
        if let Some(next) = &mut a.next
            && next.reserve().is_some()
        {
            next.commit(3_000);
        }
        if let Some(prev) = &mut b.prev {
            prev.release();
        }
        carry(&mut a, &mut b, [0, 1], now, &mut seen);
        carry(&mut b, &mut a, [1, 0], now, &mut seen);
    }
    let next = a.next.as_ref().unwrap();
    assert_eq!(*next.state(), LinkState::Up);
    assert!(next.stats().frames > 50);
    (a, b, seen)
}

/// A control datagram of a session without keys, as a stranger may send it.
fn forged(id: (DatagramKind, u64, u64), payload: &[u8]) -> Vec<u8> {
    let mut wire = Recorder::default();
    send_control(&mut wire, address(0), id, None, payload);
    wire.sent.remove(0)
}
