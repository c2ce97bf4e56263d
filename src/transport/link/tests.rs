//! Links over a bad network in virtual time. A failing seed is named, and runs alone with
//! `LEAP_SEED=… cargo test --lib transport::link`; `LEAP_SEEDS=10000` runs so many.

mod paths;

use std::net::SocketAddr;
use std::time::Duration;

use super::*;
use crate::transport::Endpoint;
use crate::transport::fault::{Dice, Faults};
use crate::transport::loopback::{Loopback, Network, address};
use crate::wire::datagram::{CHUNK_BYTES, FRAME_MAX, VERSION};
use crate::wire::hello::{self, Refusal, Refuse, WELCOME_LEN, Welcome, name};
use crate::wire::noise::MESSAGE_LEN;
use crate::wire::{Dtype, datagram};

fn node(layers: std::ops::Range<u32>) -> RingInfo {
    RingInfo {
        model: 7,
        dim: 64,
        n_layers: 4,
        kv_dim: 64,
        vocab_size: 512,
        first_layer: layers.start,
        end_layer: layers.end,
        dtype: Dtype::F32,
        is_master: layers.start == 0,
        name: name(&format!("n{}", layers.start)),
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
        duplicate: 0.05 * (dice.below(2) as f64),
        corrupt: 0.05 * (dice.below(2) as f64),
        delay_us: 20..20 + slow,
    }
}

/// Frame `number` of `run`: any length, contents that tell it from every other.
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

/// A sends frames to B; `run` tells A's lives apart.
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

    /// Services both nodes and moves time on.
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

    /// A sends what there is room for, up to `n_frames` in all.
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
        *self.next().state() == State::Up && *self.prev().state() == State::Up
    }

    fn events(&mut self) -> (Vec<Event>, Vec<Event>) {
        let next = std::iter::from_fn(|| self.next().next_event()).collect();
        (next, std::iter::from_fn(|| self.prev().next_event()).collect())
    }
}

#[test]
fn frames_arrive_once_and_in_order_over_a_bad_network() {
    for_seeds(300, |seed| {
        let mut sim = Sim::new(seed, None);
        sim.exchange(30);
        let in_flight = |sim: &mut Sim| sim.next().in_flight() == 0;
        sim.steps_until("the last acknowledgement", 20_000_000, in_flight);
    });
}

#[test]
fn a_partition_is_told_and_survived() {
    for_seeds(100, |seed| {
        let mut sim = Sim::new(seed, Some(Faults::NONE));
        sim.exchange(5);
        sim.events();
        let session = sim.next().session().unwrap();
        sim.send(8);
        sim.network.partition(0, 1, true);
        let length = 100_000 + sim.dice.below(5_000_000);
        let end = sim.network.now() + length;
        while sim.network.now() < end {
            sim.step();
        }
        let lost = length > LOST_US + PING_US + 1_000;
        assert!(!lost || *sim.next().state() == State::Lost);
        assert!(!lost || *sim.prev().state() == State::Lost);
        sim.network.partition(0, 1, false);
        sim.steps_until("the return", 1_100_000, |sim| sim.is_up());
        sim.exchange(12);
        let (next, prev) = sim.events();
        let wanted = [Event::Lost, Event::Up { session }];
        for events in [next, prev] {
            assert!(events == wanted || (events.is_empty() && length < 2 * LOST_US), "{events:?}");
        }
    });
}

#[test]
fn keys_change_while_frames_flow_over_a_bad_network() {
    for_seeds(10, |seed| {
        let mut sim = Sim::new(seed, None);
        sim.key = Some(9);
        sim.a = sim.network.restart(0, config(0..2, sim.key, 1), Some(1));
        sim.b = sim.network.restart(1, config(2..4, sim.key, 1), Some(0));
        let mut n_frames = 0;
        // By time, now and then with a neighbour that is away for longer than keys live.
        for round in 0..10 {
            n_frames += 3;
            sim.exchange(n_frames);
            sim.send(n_frames + 2);
            let is_cut = round % 4 == 3;
            sim.network.partition(0, 1, is_cut);
            let end = sim.network.now() + 150_000_000;
            sim.steps_until("time to pass", 160_000_000, |sim| sim.network.now() > end);
            sim.network.partition(0, 1, false);
        }
        sim.exchange(n_frames + 2);
        assert!((6..=13).contains(&sim.next().generation()), "{}", sim.next().generation());
        // By bytes.
        for i in 0..50 {
            sim.next().count_sealed(1 << 30);
            sim.exchange(n_frames + 3 + i);
        }
        assert!(sim.next().generation() > 20, "{}", sim.next().generation());
        let (next, prev) = sim.events();
        assert!(!next.contains(&Event::Reset) && !prev.contains(&Event::Reset));
    });
}

/// Recorded handshakes of a key that was stolen since tell nothing of the session's keys: they depend
/// on what each end had alone.
#[test]
fn the_same_handshake_with_other_ephemeral_keys_gives_other_session_keys() {
    let sealed = |run: u8| {
        let (mut a, mut b) = (config(0..2, Some(9), 0), config(2..4, Some(9), 0));
        a.seed[2] = run;
        b.seed[2] = run;
        let network = Network::new(1, Faults::NONE);
        let (mut a, mut b) = (network.endpoint(a, Some(1)), network.endpoint(b, None));
        while a.links().next.as_ref().unwrap().session().is_none() {
            a.service(Duration::ZERO).unwrap();
            b.service(Duration::ZERO).unwrap();
            network.step();
        }
        let next = a.links().next.as_mut().unwrap();
        next.reserve().unwrap()[..100].fill(0);
        next.commit(100);
        let mut wire = Recorder::default();
        next.transmit(network.now(), &mut wire);
        wire.sent.retain(|d| d[5] == Kind::Data as u8);
        wire.sent[0][HEADER_LEN..].to_vec()
    };
    assert_eq!(sealed(0), sealed(0));
    assert_ne!(sealed(0), sealed(1));
}

#[test]
fn restarts_begin_a_new_session_on_both_sides() {
    for_seeds(150, |seed| {
        let mut sim = Sim::new(seed, None);
        for run in 1..4 {
            sim.exchange(6);
            sim.send(9);
            (0..sim.dice.below(40)).for_each(|_| sim.step());
            (sim.sent, sim.received, sim.run) = (0, 0, run);
            let restarts_b = sim.dice.below(2) == 0;
            sim.events();
            if restarts_b {
                let config = config(2..4, sim.key, run as u8);
                sim.b = sim.network.restart(1, config, Some(0));
            } else {
                let config = config(0..2, sim.key, run as u8);
                sim.a = sim.network.restart(0, config, Some(1));
            }
            let mut survivor = Vec::new();
            let end = sim.network.now() + 60_000_000;
            while !survivor.contains(&Event::Reset) {
                assert!(sim.network.now() < end, "no reset in 60 s");
                sim.step();
                let (next, prev) = sim.events();
                survivor.extend(if restarts_b { next } else { prev });
            }
            sim.steps_until("the new session", 60_000_000, |sim| sim.is_up());
        }
        sim.exchange(6);
    });
}

#[test]
fn a_neighbour_that_restarts_is_back_within_two_seconds() {
    for_seeds(20, |seed| {
        let mut sim = Sim::new(seed, Some(Faults::NONE));
        sim.exchange(3);
        let config = config(2..4, sim.key, 1);
        sim.b = sim.network.restart(1, config, None);
        sim.events();
        sim.steps_until("the new session", 2_000_000, |sim| {
            sim.next().next_event() == Some(Event::Reset)
        });
    });
}

#[test]
fn a_slow_reader_bounds_what_is_on_the_way() {
    let mut sim = Sim::new(3, Some(Faults::NONE));
    sim.steps_until("the session", 1_000_000, Sim::is_up);
    for _ in 0..2_000 {
        sim.send(100);
        sim.step();
    }
    // Four banks there, four here.
    assert_eq!(sim.sent, 8);
    let chunks = sim.next().stats().datagrams;
    let wasted = sim.next().stats().retransmits;
    assert!(wasted < chunks / 2, "{wasted} of {chunks} chunks were sent again");
    sim.exchange(100);
}

#[test]
fn nothing_is_sent_twice_over_a_good_network() {
    for_seeds(20, |seed| {
        let mut sim = Sim::new(seed, Some(Faults::NONE));
        sim.exchange(50);
        assert_eq!(sim.next().stats().retransmits, 0);
        assert_eq!(sim.prev().stats().duplicates, 0);
        let srtt_us = sim.next().stats().srtt_us;
        assert!((150..2_000).contains(&srtt_us), "{srtt_us}");
    });
}

#[test]
fn lone_frames_are_not_asked_for_before_their_acknowledgement_is_late() {
    for rtt_us in [100, 1_000, 1_600, 2_000, 5_000, 20_000] {
        let way_us = rtt_us / 2;
        let mut sim = Sim::new(1, Some(Faults { delay_us: way_us..way_us + 1, ..Faults::NONE }));
        sim.steps_until("the session", 1_000_000, Sim::is_up);
        let settled = sim.network.now() + 5_000_000;
        sim.steps_until("pings", 10_000_000, |sim| sim.network.now() > settled);
        for n_frames in 1..=50 {
            sim.exchange(n_frames);
            sim.steps_until("the acknowledgement", 100_000, |sim| sim.next().in_flight() == 0);
        }
        let duplicates = sim.prev().stats().duplicates;
        assert_eq!(duplicates, 0, "{rtt_us} us there and back");
    }
}

#[test]
fn one_lost_datagram_costs_milliseconds() {
    for chunk in 0..3 {
        let mut sim = Sim::new(1, Some(Faults::NONE));
        sim.exchange(3);
        let mut wire = Recorder::default();
        let room = sim.next().reserve().unwrap();
        room[..3000].fill(1);
        sim.next().commit(3000);
        let now = sim.network.now();
        sim.next().transmit(now, &mut wire);
        wire.sent.retain(|d| d[5] == 0);
        wire.sent.remove(chunk);
        for datagram in &wire.sent {
            sim.network.inject(address(0), 1, datagram);
        }
        sim.steps_until("repair", 6_000, |sim| sim.prev().front().is_some());
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

// Who may talk to whom

fn refusal(a: LinkConfig, b: LinkConfig, has_same_key: bool) -> Refusal {
    let network = Network::new(1, Faults::NONE);
    let mut a = network.endpoint(a, Some(1));
    let mut b = network.endpoint(b, None);
    for _ in 0..20 {
        a.service(Duration::ZERO).unwrap();
        b.service(Duration::ZERO).unwrap();
        network.step();
    }
    let next = a.links().next.as_mut().unwrap();
    let prev = b.links().prev.as_mut().unwrap();
    let State::Refused(there) = next.state().clone() else { panic!("{:?}", next.state()) };
    assert_eq!(next.next_event(), Some(Event::Refused(there.clone())));
    assert_eq!(next.next_event(), None, "told once");
    let Some(Event::Refused(here)) = prev.next_event() else { panic!("told on both ends") };
    assert_eq!(prev.next_event(), None, "told once");
    assert_eq!((next.session(), prev.session()), (None, None));
    assert_eq!(here.refusal, there.refusal);
    assert_eq!((here.name.as_str(), here.from), ("n0", address(0)));
    assert_eq!((there.name.as_str(), there.from), ("n2", address(1)));
    assert!((there.is_next, there.by_peer) == (true, true) && !here.is_next && !here.by_peer);
    // Only who has the same key, and answers this very HELLO, makes trying on a vain thing.
    assert!(!here.is_final());
    assert_eq!(there.is_final(), has_same_key);
    there.refusal
}

#[test]
fn nodes_that_do_not_fit_are_refused_on_both_ends() {
    for key in [None, Some(1)] {
        let change = |change: fn(&mut RingInfo)| {
            let mut config = config(2..4, key, 0);
            change(&mut config.node);
            refusal(self::config(0..2, key, 0), config, key.is_some())
        };
        assert_eq!(change(|n| n.model = 8), Refusal::Model { prev: 7, next: 8 });
        assert!(matches!(change(|n| n.vocab_size = 8), Refusal::Dims { .. }));
        assert!(matches!(change(|n| n.dtype = Dtype::F16), Refusal::Dtype { .. }));
        assert_eq!(change(|n| n.first_layer = 3), Refusal::Layers { prev: 0..2, next: 3..4 });
        assert_eq!(change(|n| n.first_layer = 1), Refusal::Layers { prev: 0..2, next: 1..4 });
    }
}

#[test]
fn a_refusal_names_the_node_its_place_and_what_to_do() {
    let mut refused = Refused {
        refusal: Refusal::Dtype { prev: Dtype::F16, next: Dtype::F32 },
        is_next: true,
        by_peer: true,
        name: name("pi"),
        from: "[::ffff:10.0.0.2]:9999".parse().unwrap(),
        is_proven: false,
    };
    assert_eq!(
        refused.to_string(),
        "pi at 10.0.0.2:9999 refuses this node: activations are f16 on this node, f32 on pi; give \
         all nodes the same --wire"
    );
    (refused.is_next, refused.by_peer) = (false, false);
    refused.refusal = Refusal::Busy { with: name("desk") };
    assert_eq!(
        refused.to_string(),
        "pi at 10.0.0.2:9999 is refused: the node before this node is desk, which answers; end \
         that one first"
    );
}

#[test]
fn keys_must_be_the_same() {
    let with = |a, b| refusal(config(0..2, a, 0), config(2..4, b, 0), false);
    assert_eq!(with(None, Some(1)), Refusal::KeyNeeded);
    assert_eq!(with(Some(1), None), Refusal::KeyUnwanted);
    assert_eq!(with(Some(1), Some(2)), Refusal::KeyDiffers);
}

#[test]
fn another_protocol_version_is_refused() {
    let mut next = LinkOut::new(config(0..2, None, 0), Mode::Datagrams, address(1), 0);
    let mut wire = Recorder::default();
    next.transmit(0, &mut wire);
    let mut hello = wire.sent.pop().unwrap();
    hello[HEADER_LEN] = 9;
    let mut links = Links { next: None, prev: Some(LinkIn::new(config(2..4, None, 0))) };
    fix_checksum(&mut hello);
    links.on_datagram(0, address(0), &mut hello, &mut wire).unwrap();
    let refuse = Refuse::parse(&wire.sent[0][HEADER_LEN..]).unwrap();
    let wanted = Refusal::Version { prev: 9, next: hello::PROTOCOL };
    assert_eq!(refuse.refusal, wanted);
    assert_eq!(wire.sent[0].len(), HEADER_LEN + hello::REFUSE_FIXED, "what all versions read");
    let mut answer = wire.sent.remove(0);
    let mut links = Links { next: Some(next), prev: None };
    links.on_datagram(0, address(1), &mut answer, &mut wire).unwrap();
    let next = links.next.unwrap();
    assert!(matches!(next.state(), State::Refused(refused) if refused.refusal == wanted));
}

#[test]
fn a_second_neighbour_is_told_that_the_place_is_taken() {
    // Another place of the ring, and the same one: a second master, or a worker of the same name.
    for other in [node(1..2), node(0..2)] {
        let mut sim = Sim::new(2, Some(Faults::NONE));
        sim.exchange(2);
        sim.events();
        let session = sim.prev().session();
        let other = LinkConfig { node: other, ..config(0..2, sim.key, 5) };
        let mut other = sim.network.endpoint(other, Some(1));
        let (mut n_frames, end) = (2, sim.network.now() + 30_000_000);
        while sim.network.now() < end {
            other.service(Duration::ZERO).unwrap();
            n_frames += 1;
            sim.exchange(n_frames);
        }
        let next = other.links().next.as_mut().unwrap();
        let State::Refused(refused) = next.state() else { panic!("{:?}", next.state()) };
        assert_eq!(refused.refusal, Refusal::Busy { with: name("n0") });
        assert!(!refused.is_final());
        assert!(next.next_event().is_some() && next.next_event().is_none(), "told once");
        let (events, told) = sim.events();
        assert_eq!((events, told.len()), (vec![], 1), "the session goes on, and it is told once");
        assert_eq!(sim.prev().session(), session);
        // Once the first one is gone, the second takes its place.
        sim.network.stop(0);
        let is_up = |sim: &mut Sim| {
            other.service(Duration::ZERO).unwrap();
            sim.b.service(Duration::ZERO).unwrap();
            sim.network.step();
            sim.prev().session() != session
        };
        let end = sim.network.now() + 2_000_000;
        let mut is_up = is_up;
        while !is_up(&mut sim) {
            assert!(sim.network.now() < end, "the place is not given up");
        }
    }
}

#[test]
fn who_died_is_replaced_at_once() {
    for key in [None, Some(9)] {
        let mut sim = Sim::new(2, Some(Faults::NONE));
        sim.key = key;
        sim.a = sim.network.restart(0, config(0..2, key, 1), Some(1));
        sim.b = sim.network.restart(1, config(2..4, key, 1), Some(0));
        sim.exchange(2);
        let session = sim.prev().session();
        sim.a = sim.network.restart(0, config(0..2, key, 2), Some(1));
        (sim.sent, sim.received, sim.run) = (0, 0, 1);
        sim.steps_until("the next life", 10_000, |sim| sim.prev().session() != session);
    }
}

// Strangers

fn fix_checksum(datagram: &mut [u8]) {
    let crc = datagram::checksum(&datagram[..28], &datagram[HEADER_LEN..]);
    datagram[28..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
}

/// What strangers say to a node that waits for its ring: what it greets with is theirs to read.
fn strange_words(hello: &[u8]) -> Vec<Vec<u8>> {
    let greeting = |config: LinkConfig| {
        let mut wire = Recorder::default();
        LinkOut::new(config, Mode::Datagrams, address(1), 0).transmit(0, &mut wire);
        wire.sent.remove(0)
    };
    let mut version = greeting(config(2..4, None, 3));
    version[HEADER_LEN] = 9;
    fix_checksum(&mut version);
    let model = |key| {
        let mut config = config(2..4, key, 3);
        config.node.model = 8;
        greeting(config)
    };
    let mut said = vec![
        greeting(config(2..4, None, 3)),
        greeting(config(2..4, Some(8), 3)),
        version,
        model(None),
        model(Some(9)),
    ];
    let hello_nonce = hello[HEADER_LEN + 16..HEADER_LEN + 32].try_into().unwrap();
    let answer = |kind, payload: &[u8]| forged((kind, 5, 0), payload);
    for refusal in [
        Refusal::Version { prev: 1, next: 1 },
        Refusal::KeyNeeded,
        Refusal::KeyUnwanted,
        Refusal::KeyDiffers,
        Refusal::Model { prev: 7, next: 9 },
        Refusal::Layers { prev: 0..2, next: 3..4 },
        Refusal::Busy { with: name("n9") },
        Refusal::Other(99),
    ] {
        let mut payload = [0; hello::REFUSE_LEN];
        Refuse { hello_nonce, refusal, name: name("n2"), tag: [1; 16] }.emit(&mut payload);
        said.push(answer(Kind::Refuse, &payload));
    }
    for (has_key, model) in [(false, 7), (true, 7), (true, 8), (false, 8)] {
        let node = RingInfo { model, ..node(2..4) };
        let (instance, nonce, tag) = (1, [2; 16], [3; 16]);
        let mut payload = [0; WELCOME_LEN];
        let answered = [4; MESSAGE_LEN];
        Welcome { has_key, n_banks: 4, instance, hello_nonce, nonce, node, answer: answered, tag }
            .emit(&mut payload);
        said.push(answer(Kind::Welcome, &payload));
    }
    said
}

#[test]
fn nothing_that_strangers_say_to_a_waiting_node_is_final() {
    for key in [None, Some(9)] {
        let mut wire = Recorder::default();
        let out = LinkOut::new(config(0..2, key, 0), Mode::Datagrams, address(1), 0);
        let prev = LinkIn::new(config(0..2, key, 0));
        let mut waiting = Links { next: Some(out), prev: Some(prev) };
        let mut told = Vec::new();
        for now in (0..60_000_000).step_by(500_000) {
            waiting.transmit(now, &mut wire);
            let Some(hello) = wire.sent.iter().rfind(|d| d[5] == Kind::Hello as u8).cloned() else {
                continue;
            };
            for mut said in strange_words(&hello) {
                let _ = waiting.on_datagram(now, address(5), &mut said, &mut wire);
            }
            let next = waiting.next.as_mut().unwrap();
            told.extend(std::iter::from_fn(|| next.next_event()));
            let prev = waiting.prev.as_mut().unwrap();
            told.extend(std::iter::from_fn(|| prev.next_event()));
        }
        assert!(told.len() > 3, "{told:?}");
        for (i, event) in told.iter().enumerate() {
            let Event::Refused(refused) = event else { panic!("{event:?}") };
            assert!(!refused.is_final(), "{refused}");
            assert_eq!(refused.from, address(5));
            assert!(!told[..i].contains(event), "told once: {refused}");
        }
        // The right neighbour is as welcome as before. Without a key a stranger's WELCOME is as good
        // as any, and has to time out.
        let mut right = Links { next: None, prev: Some(LinkIn::new(config(2..4, key, 0))) };
        for now in (60_000_000..64_000_000).step_by(1_000) {
            carry(&mut waiting, &mut right, [0, 1], now, &mut Vec::new());
            carry(&mut right, &mut waiting, [1, 0], now, &mut Vec::new());
        }
        assert_eq!(*waiting.next.as_ref().unwrap().state(), State::Up);
    }
}

/// A datagram that nobody honest sends.
fn hostile(dice: &mut Dice, recorded: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = match recorded.len() {
        0 => Vec::new(),
        n => recorded[dice.below(n as u64) as usize].clone(),
    };
    match dice.below(4) {
        // Sent again as it was.
        0 => return bytes,
        1 => {
            bytes = (0..dice.below(1_500)).map(|_| dice.roll() as u8).collect();
            if bytes.len() > 6 && dice.below(2) == 0 {
                bytes[..4].copy_from_slice(b"LEP1");
                (bytes[4], bytes[5]) = (VERSION, dice.below(9) as u8);
            }
        }
        2 => {
            // Any field but the session, which outsiders do not know.
            for _ in 0..1 + dice.below(3) {
                let at = dice.below(bytes.len().min(64) as u64 + 1) as usize;
                if let Some(byte) = bytes.get_mut(at).filter(|_| !(8..16).contains(&at)) {
                    *byte = [0, 1, 0x7f, 0x80, 0xff, dice.roll() as u8][dice.below(6) as usize];
                }
            }
        }
        _ => bytes.truncate(dice.below(bytes.len() as u64 + 1) as usize),
    }
    if bytes.len() >= HEADER_LEN {
        fix_checksum(&mut bytes);
    }
    bytes
}

/// Brings what is due at `a` to `b`, and the answers back.
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
    assert_eq!(*next.state(), State::Up);
    assert!(next.stats().frames > 50);
    (a, b, seen)
}

/// Everything that a pair of nodes sent each other in an earlier session.
fn recording(key: Option<u8>) -> Vec<Vec<u8>> {
    pair(key).2
}

#[test]
fn strangers_and_replays_of_old_sessions_change_nothing() {
    for_seeds(60, |seed| {
        let mut sim = Sim::new(seed, Some(Faults::NONE));
        let recorded = recording(sim.key);
        // Another run than the recorded one, from which its messages may be replayed.
        let (a, b) = (config(0..2, sim.key, 1), config(2..4, sim.key, 1));
        sim.a = sim.network.restart(0, a, Some(1));
        sim.b = sim.network.restart(1, b, Some(0));
        sim.exchange(2);
        let session = sim.prev().session();
        for round in 0..20 {
            for _ in 0..40 {
                let bytes = hostile(&mut sim.dice, &recorded);
                let to = sim.dice.below(2) as usize;
                let from = sim.dice.below(4) as usize;
                sim.network.inject(address(from), to, &bytes);
            }
            sim.exchange(3 + round);
        }
        assert_eq!(sim.prev().session(), session, "the session goes on");
        let (next, prev) = sim.events();
        assert!(!next.contains(&Event::Reset) && !prev.contains(&Event::Reset));
    });
}

/// Where each field of a header lies, and its bytes.
const FIELDS: [(usize, usize); 9] =
    [(0, 4), (4, 1), (5, 1), (6, 2), (8, 8), (16, 4), (20, 2), (22, 2), (24, 4)];

/// `datagram` with each field of its header replaced by each absurd value, checksums right.
fn forgeries(datagram: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let values = [0, 1, 2, 0x7f, 0xff, 0xffff, 0x7fff_ffff, u64::MAX, 1 << 63, 92, 93, 1401];
    let all = FIELDS.iter().flat_map(move |field| values.map(|value| (field, value)));
    all.map(|(&(at, bytes), value): (_, u64)| {
        let mut forged = datagram.to_vec();
        forged[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        fix_checksum(&mut forged);
        forged
    })
}

#[test]
fn every_forged_header_field_leaves_the_session_alone() {
    for key in [None, Some(9)] {
        let mut recorded = recording(key);
        // One of each kind, and all kinds there are but refusals.
        recorded.sort_by_key(|datagram| datagram[5]);
        recorded.dedup_by_key(|datagram| datagram[5]);
        assert_eq!(recorded.len(), 7);
        let mut sim = Sim::new(1, Some(Faults::NONE));
        sim.key = key;
        sim.a = sim.network.restart(0, config(0..2, key, 1), Some(1));
        sim.b = sim.network.restart(1, config(2..4, key, 1), Some(0));
        sim.exchange(2);
        let session = sim.prev().session();
        let mut n_frames = 2;
        for (i, forged) in recorded.iter().flat_map(|bytes| forgeries(bytes)).enumerate() {
            // From a stranger and from the neighbour's own address, to both.
            for from in [address(2), address(1), address(0)] {
                sim.network.inject(from, 0, &forged);
                sim.network.inject(from, 1, &forged);
            }
            if i % 16 == 0 {
                n_frames += 1;
                sim.exchange(n_frames);
            }
        }
        sim.exchange(n_frames + 5);
        assert_eq!(sim.prev().session(), session);
        let (next, prev) = sim.events();
        assert!(!next.contains(&Event::Reset) && !prev.contains(&Event::Reset));
    }
}

#[test]
fn a_sealed_session_survives_who_knows_its_number() {
    for_seeds(40, |seed| {
        let mut sim = Sim::new(seed * 2 + 1, Some(Faults::NONE));
        sim.key = Some(9);
        sim.a = sim.network.restart(0, config(0..2, sim.key, 1), Some(1));
        sim.b = sim.network.restart(1, config(2..4, sim.key, 1), Some(0));
        sim.exchange(2);
        let session = sim.prev().session().unwrap();
        let recorded = recording(sim.key);
        for round in 0..20 {
            for _ in 0..40 {
                let mut bytes = hostile(&mut sim.dice, &recorded);
                if bytes.len() >= HEADER_LEN {
                    bytes[8..16].copy_from_slice(&session.to_le_bytes());
                    // Near the frames that are expected.
                    bytes[16..20].copy_from_slice(&(round as u32 + 3).to_le_bytes());
                    fix_checksum(&mut bytes);
                }
                let to = sim.dice.below(2) as usize;
                sim.network.inject(address(1 - to), to, &bytes);
            }
            sim.exchange(3 + round);
        }
        assert_eq!(sim.prev().session(), Some(session));
    });
}

#[test]
fn an_open_session_with_forged_data_never_panics_or_hangs() {
    for_seeds(100, |seed| {
        let mut sim = Sim::new(seed, Some(Faults::NONE));
        sim.key = None;
        sim.a = sim.network.restart(0, config(0..2, None, 1), Some(1));
        sim.b = sim.network.restart(1, config(2..4, None, 1), Some(0));
        sim.steps_until("the session", 1_000_000, Sim::is_up);
        let session = sim.prev().session().unwrap();
        let recorded = recording(None);
        for _ in 0..400 {
            let mut bytes = hostile(&mut sim.dice, &recorded);
            if bytes.len() >= HEADER_LEN {
                bytes[8..16].copy_from_slice(&session.to_le_bytes());
                fix_checksum(&mut bytes);
            }
            let to = sim.dice.below(2) as usize;
            sim.network.inject(address(1 - to), to, &bytes);
            sim.send(u64::MAX);
            sim.step();
            while sim.prev().front().is_some_and(|frame| frame.len() <= datagram::SLOTS_BYTES) {
                sim.prev().release();
            }
        }
    });
}

/// A control datagram of a session without keys, as anybody may send it.
fn forged(id: (Kind, u64, u64), payload: &[u8]) -> Vec<u8> {
    let mut wire = Recorder::default();
    send_control(&mut wire, address(0), id, None, payload);
    wire.sent.remove(0)
}

#[test]
fn no_single_forged_datagram_ends_a_link_without_a_key() {
    const LAST: u64 = (1 << 48) - 1;
    let answer = |next| {
        let mut bytes = [0; crate::wire::control::ACK_MAX];
        let ack = crate::wire::control::Ack { next, window_end: 64, ..Default::default() };
        let len = ack.emit(&mut bytes);
        bytes[..len].to_vec()
    };
    let mut ping = [0; crate::wire::control::PING_LEN];
    crate::wire::control::Ping { name: 9, next: 0, srtt_us: 0 }.emit(&mut ping);
    for (kind, payload) in [
        (Kind::Pong, answer(0)),
        (Kind::Ack, answer(3)),
        // What was never received, if it is believed.
        (Kind::Ack, answer(5)),
        (Kind::Ping, ping.to_vec()),
    ] {
        let mut sim = Sim::new(1, Some(Faults::NONE));
        sim.key = None;
        sim.a = sim.network.restart(0, config(0..2, None, 1), Some(1));
        sim.b = sim.network.restart(1, config(2..4, None, 1), Some(0));
        sim.exchange(3);
        let session = sim.prev().session().unwrap();
        // Two frames under way, which a forged acknowledgement may claim to have arrived.
        sim.network.partition(0, 1, true);
        sim.send(5);
        sim.step();
        let to = if kind == Kind::Ping { 1 } else { 0 };
        let bytes = forged((kind, session, LAST), &payload);
        sim.network.inject(address(1 - to), to, &bytes);
        sim.a.service(Duration::ZERO).unwrap();
        sim.b.service(Duration::ZERO).unwrap();
        sim.network.partition(0, 1, false);
        let end = sim.network.now() + 20_000_000;
        sim.steps_until("time to pass", 21_000_000, |sim| sim.network.now() > end);
        assert!(sim.is_up(), "{kind:?}: {:?}", sim.next().state());
        assert_eq!(sim.next().in_flight(), 0, "{kind:?}");
        // Frames go on, in this session or the next.
        while sim.prev().front().is_some() {
            sim.prev().release();
        }
        (sim.run, sim.sent, sim.received) = (7, 0, 0);
        sim.exchange(10);
    }
}

#[test]
fn floods_of_greetings_leave_the_session_alone() {
    let mut sim = Sim::new(8, Some(Faults::NONE));
    sim.exchange(1);
    let session = sim.prev().session();
    let key = sim.key;
    let greeting = |run: u64| {
        let mut config = config(0..2, key, 0);
        config.seed = Dice::new(run).roll().to_le_bytes().repeat(4).try_into().unwrap();
        let mut stranger = LinkOut::new(config, Mode::Datagrams, address(1), 0);
        let mut wire = Recorder::default();
        stranger.transmit(0, &mut wire);
        wire.sent.remove(0)
    };
    for round in 0..200 {
        for stranger in 0..100 {
            sim.network.inject(address(2 + stranger), 1, &greeting(round * 100 + stranger as u64));
        }
        sim.exchange(2 + round);
    }
    assert_eq!(sim.prev().session(), session);
    let events = sim.events().1;
    assert_eq!(events[0], Event::Up { session: session.unwrap() });
    assert_eq!(events.len(), 2, "that the place is taken is told once: {events:?}");
}

#[test]
fn a_recorded_confirm_takes_no_session() {
    for key in [None, Some(9)] {
        let mut seen = recording(key);
        let mut links = Links { next: None, prev: Some(LinkIn::new(config(2..4, key, 0))) };
        let mut wire = Recorder::default();
        // The same seed gives this listener the recorded one's secrets: the first replay of the
        // handshake is as good as the original, and the last that is.
        for (round, wanted) in [(0, true), (1, false)] {
            let greetings = seen.iter_mut().filter(|d| d[5] == 4 || d[5] == 6);
            for greeting in greetings {
                let now = 20_000 * round;
                links.on_datagram(now, address(0), &mut greeting.clone(), &mut wire).unwrap();
            }
            let prev = links.prev.as_mut().unwrap();
            let is_up =
                std::iter::from_fn(|| prev.next_event()).any(|e| matches!(e, Event::Up { .. }));
            assert_eq!(is_up, wanted);
        }
    }
}

#[test]
fn a_node_that_was_stopped_itself_does_not_call_its_neighbours_lost() {
    let heard_at = 5_000_000;
    assert_eq!(without_pause(heard_at, 5_100_000, 5_200_000), heard_at);
    assert_eq!(without_pause(heard_at, 5_100_000, 9_100_000), 9_000_000);
    assert_eq!(without_pause(heard_at, 0, 5_000_001), 5_000_001);
}
