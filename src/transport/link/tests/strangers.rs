//! Datagrams of strangers: forged, recorded and repeated.

use super::*;

/// Datagrams of strangers to a node that waits for its ring, whose greeting they can read.
fn strange_words(hello: &[u8]) -> Vec<Vec<u8>> {
    let greeting = |config: LinkConfig| {
        let mut wire = Recorder::default();
        LinkOut::new(config, Mode::Datagrams, address(1), 0).transmit(0, &mut wire);
        wire.sent.remove(0)
    };
    let mut version = greeting(config(2..4, None, 3));
    version[HEADER_LEN] = 10;
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
        said.push(answer(DatagramKind::Refuse, &payload));
    }
    for (has_key, model) in [(false, 7), (true, 7), (true, 8), (false, 8)] {
        let node = RingInfo { model, ..node(2..4) };
        let (instance, nonce, tag) = (1, [2; 16], [3; 16]);
        let mut payload = [0; WELCOME_LEN];
        let answered = [4; MESSAGE_LEN];
        Welcome { has_key, n_banks: 4, instance, hello_nonce, nonce, node, answer: answered, tag }
            .emit(&mut payload);
        said.push(answer(DatagramKind::Welcome, &payload));
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
            let Some(hello) =
                wire.sent.iter().rfind(|d| d[5] == DatagramKind::Hello as u8).cloned()
            else {
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
            let LinkEvent::Refused(refused) = event else { panic!("{event:?}") };
            assert!(!refused.is_final(), "{refused}");
            assert_eq!(refused.from, address(5));
            assert!(!told[..i].contains(event), "told once: {refused}");
        }
        // The right neighbour is accepted as before. Without a key, a stranger's WELCOME looks like any other, and has
        // to time out.
        let mut right = Links { next: None, prev: Some(LinkIn::new(config(2..4, key, 0))) };
        for now in (60_000_000..64_000_000).step_by(1_000) {
            carry(&mut waiting, &mut right, [0, 1], now, &mut Vec::new());
            carry(&mut right, &mut waiting, [1, 0], now, &mut Vec::new());
        }
        assert_eq!(*waiting.next.as_ref().unwrap().state(), LinkState::Up);
    }
}

/// A datagram that no honest node sends.
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
        assert!(!next.contains(&LinkEvent::Reset) && !prev.contains(&LinkEvent::Reset));
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
        // One datagram of each kind except refusals.
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
            // From a stranger and from the neighbour's own address, to both nodes.
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
        assert!(!next.contains(&LinkEvent::Reset) && !prev.contains(&LinkEvent::Reset));
    }
}

#[test]
fn a_sealed_session_survives_strangers_with_its_number() {
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
                    // The numbers are near those of the expected frames.
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
        (DatagramKind::Pong, answer(0)),
        (DatagramKind::Ack, answer(3)),
        // An acknowledgement of frames that were never received would free them if it were believed.
        (DatagramKind::Ack, answer(5)),
        (DatagramKind::Ping, ping.to_vec()),
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
        let to = if kind == DatagramKind::Ping { 1 } else { 0 };
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
        config.reseed(Dice::new(run).roll().to_le_bytes().repeat(4).try_into().unwrap());
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
    assert_eq!(events[0], LinkEvent::Up { session: session.unwrap() });
    assert_eq!(events.len(), 2, "that the place is taken is told once: {events:?}");
}

#[test]
fn a_recorded_confirm_takes_no_session() {
    for key in [None, Some(9)] {
        let mut seen = recording(key);
        let mut links = Links { next: None, prev: Some(LinkIn::new(config(2..4, key, 0))) };
        let mut wire = Recorder::default();
        // By its seed this listener has the secrets of the recorded one: the first replay of the handshake works, and
        // no later one does.
        for (round, wanted) in [(0, true), (1, false)] {
            let greetings = seen.iter_mut().filter(|d| d[5] == 4 || d[5] == 6);
            for greeting in greetings {
                let now = 20_000 * round;
                links.on_datagram(now, address(0), &mut greeting.clone(), &mut wire).unwrap();
            }
            let prev = links.prev.as_mut().unwrap();
            let is_up =
                std::iter::from_fn(|| prev.next_event()).any(|e| matches!(e, LinkEvent::Up { .. }));
            assert_eq!(is_up, wanted);
        }
    }
}
