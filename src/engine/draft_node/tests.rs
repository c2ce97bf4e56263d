//! A master and draft nodes on loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::error::DraftNodeError;
use super::master::{DraftPlace, NodeDrafter, check};
use super::node::{self, DraftNotice};
use super::vocabulary::Vocabulary;
use crate::channel::server::{self, Service};
use crate::channel::{Channel, ChannelError};
use crate::engine::drafts::{DRAFTS_MAX, DraftKind, Drafter};
use crate::engine::{Engine, ModelDrafter, Options};
use crate::format::tokenizer::{TokenKind, TokenizerFile, Vocab};
use crate::tokenizer::Tokenizer;
use crate::transport::place::HostPort;
use crate::wire::draft::{
    self, ANSWER_MAX, Answer, Ask, Draft, Ids, Node, Text, emit_draft, emit_text,
};
use crate::wire::frame::NodeLine;
use crate::wire::give::MESSAGE_MAX;
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

const KEY: [u8; 32] = [7; 32];
const CTX_LEN: usize = 128;
const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(&std::fs::read("models/demo.tokenizer.bin").unwrap(), None).unwrap()
}

fn engine(n_streams: usize) -> Engine {
    let options = Options {
        n_streams: Some(n_streams),
        ctx_len: Some(CTX_LEN),
        batch: Some(8),
        threads: Some(1),
        ..Options::default()
    };
    Engine::open(Path::new("models/demo-draft.bin"), &options).unwrap()
}

/// A node with streams for `n_streams` texts, and its notices.
fn node(n_streams: usize) -> (SocketAddr, Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let tell = Box::new(move |notice: &DraftNotice| {
        let _ = tell.send(match notice {
            DraftNotice::Begun { n_texts, .. } => format!("{n_texts} texts"),
            DraftNotice::Stranger { why, .. } => why.clone(),
        });
    });
    let of = (engine(n_streams), Arc::new(tokenizer()));
    (node::start(of, ANY, Key::new(KEY), tell).unwrap(), told)
}

fn place(at: SocketAddr) -> DraftPlace {
    DraftPlace { at: HostPort::new(&at.ip().to_string(), at.port()), key: Key::new(KEY) }
}

/// A drafter for `n_lanes` texts, and its reports about the node.
fn drafter(at: SocketAddr, n_lanes: usize) -> (NodeDrafter, Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let tell = Box::new(move |why: &DraftNodeError| {
        let _ = tell.send(why.to_string());
    });
    let sizes = (n_lanes, CTX_LEN);
    (NodeDrafter::start(place(at), &tokenizer(), sizes, (tell, false)).unwrap(), told)
}

/// Drafts after `ids`, if the model made them; otherwise none.
fn drafted(drafter: &mut dyn Drafter, lane: usize, ids: &[u32]) -> Vec<u32> {
    let mut drafts = Vec::with_capacity(DRAFTS_MAX);
    let worth = |kind| if kind == DraftKind::Model { DRAFTS_MAX } else { 0 };
    match drafter.draft(lane, ids, &worth, &mut drafts) {
        DraftKind::Model => drafts,
        DraftKind::Ngram | DraftKind::LongNgram => Vec::new(),
    }
}

/// At least `n` drafts after `ids`, once they have arrived. Panics after a minute, so that no test waits
/// forever.
fn drafted_in_time(drafter: &mut dyn Drafter, lane: usize, ids: &[u32], n: usize) -> Vec<u32> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let drafts = drafted(drafter, lane, ids);
        if drafts.len() >= n {
            return drafts;
        }
        assert!(Instant::now() < until, "{drafts:?} of {n} drafts in a minute");
        thread::sleep(Duration::from_millis(1));
    }
}

fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 53 + n) % 4000).collect()
}

#[test]
fn a_program_starts_at_once_if_its_node_is_found_to_be_away() {
    // No node listens on this port.
    let (drafter, _told) = drafter(SocketAddr::new(ANY.ip(), 1), 1);
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        drafter.wait(Duration::from_secs(600));
        let _ = done.send(());
    });
    let waited = is_done.recv_timeout(Duration::from_secs(60));
    waited.expect("a wait for a node that refuses ends with its refusal");
}

#[test]
fn a_node_says_what_its_model_says() {
    let (at, told) = node(16);
    let (mut drafter, lost) = drafter(at, 2);
    let mut model = ModelDrafter::new(engine(2), false).unwrap();
    let mut wanted = |lane, ids: &[u32]| loop {
        // The model reads a prompt slice by slice.
        let drafts = drafted(&mut model, lane, ids);
        if !drafts.is_empty() {
            return drafts;
        }
    };
    for (lane, mut ids) in [(0, prompt(5)), (1, prompt(70)), (0, prompt(80))] {
        drafter.begin(lane, &ids);
        for (n_right, wrong) in [(3, None), (15, None), (0, Some(7)), (4, Some(9)), (0, None)] {
            let drafts = drafted_in_time(&mut drafter, lane, &ids, DRAFTS_MAX);
            assert_eq!(drafts, wanted(lane, &ids), "after {} ids", ids.len());
            ids.extend_from_slice(&drafts[..n_right]);
            // The tokens after these have arrived already.
            assert_eq!(
                drafted_in_time(&mut drafter, lane, &ids, 15 - n_right)[..15 - n_right],
                drafts[n_right..]
            );
            ids.extend(wrong.inspect(|wrong| assert_ne!(*wrong, drafts[n_right])));
        }
        // Returns to an earlier version of the text, and continues in another way.
        ids.truncate(ids.len() - 9);
        ids.push(11);
        let drafts = drafted_in_time(&mut drafter, lane, &ids, DRAFTS_MAX);
        assert_eq!(drafts, wanted(lane, &ids));
    }
    // A text as long as the node's context gets no drafts. A slightly shorter one gets those that fit.
    let ids = prompt(CTX_LEN as u32 - 3);
    assert_eq!(drafted_in_time(&mut drafter, 0, &ids, 3).len(), 3);
    let ids = prompt(CTX_LEN as u32);
    assert!((0..20).all(|_| drafted(&mut drafter, 0, &ids).is_empty()));
    assert_eq!(told.recv().unwrap(), "2 texts");
    assert!(lost.try_recv().is_err() && told.try_recv().is_err());
}

#[test]
fn a_node_has_room_for_its_streams_and_no_more() {
    let (at, _told) = node(2);
    let (mut first, _lost) = drafter(at, 3);
    let ids = prompt(5);
    let drafts = drafted_in_time(&mut first, 1, &ids, 15);
    // The third text gets no drafts, and neither does another master.
    assert!(drafted(&mut first, 2, &ids).is_empty());
    let (mut second, lost) = drafter(at, 1);
    assert!(lost.recv().unwrap().contains("it drafts for others"));
    assert!(drafted(&mut second, 0, &ids).is_empty());
    // The node is tried again, and has room once the other master has gone.
    drop(first);
    assert_eq!(drafted_in_time(&mut second, 0, &ids, 15), drafts);
    assert!(lost.try_recv().is_err());
}

#[test]
fn nodes_of_others_are_told_apart() {
    let (at, told) = node(1);
    let tokenizer = tokenizer();
    let check = |place: &DraftPlace, tokenizer: &Tokenizer| check(place, tokenizer, &|| false);
    check(&place(at), &tokenizer).unwrap();
    let other = DraftPlace { key: Key::new([8; 32]), ..place(at) };
    let why = check(&other, &tokenizer).unwrap_err();
    assert!(matches!(why, DraftNodeError::Channel(ChannelError::Key)), "{why}");
    assert_eq!(told.recv().unwrap(), "it has another key");
    let absent = DraftPlace { at: HostPort::new("127.9.9.9", at.port()), ..place(at) };
    assert!(!check(&absent, &tokenizer).unwrap_err().is_of_tokens());
    // A vocabulary of another size, and one in which a single token differs.
    let bytes = std::fs::read("models/demo.tokenizer.bin").unwrap();
    let is_refused = |id: u32| {
        let mut file = TokenizerFile::parse(&bytes, None).unwrap();
        let mut vocab = Vocab::default();
        for (other, bytes, kind) in file.vocab.iter() {
            let bytes = if other == id { b"<other>" } else { bytes };
            vocab.push(bytes, file.vocab.score(other).unwrap(), kind).unwrap();
        }
        file.vocab = vocab;
        let why = check(&place(at), &Tokenizer::new(file).unwrap()).unwrap_err();
        assert!(why.is_of_tokens(), "{why}");
        let word = String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap());
        let wanted = format!("token {id} is {word:?}, the model's \"<other>\"");
        assert!(why.to_string().starts_with(&wanted), "{why}");
    };
    // Control tokens do not consist of other tokens.
    let special = (0..4096).filter(|id| tokenizer.token_kind(*id) == Some(TokenKind::Control));
    let special: Vec<u32> = special.collect();
    special.iter().for_each(|id| is_refused(*id));
    assert!(special.len() > 1);
}

/// A node with the key that joins, and answers every text with `says`.
struct Hostile {
    vocabulary: Vocabulary,
    says: fn(&Text<'_>, &mut Channel<'_>) -> Result<(), ChannelError>,
}

impl Service for Hostile {
    fn talk(&self, mut channel: Channel<'_>, _: IpAddr) -> Result<(), ChannelError> {
        let (mut bytes, mut out) = (vec![0; MESSAGE_MAX], Vec::new());
        loop {
            let len = channel.receive(&mut bytes)?;
            if let Ok((epoch, n)) = draft::parse_open(&bytes[..len]) {
                draft::emit_reply(epoch, Ok(&NodeLine::default()), &mut out);
                channel.send(&out)?;
                let Vocabulary { len, hash } = self.vocabulary;
                let node = Node { n_texts: n as u32, vocab_len: len, ctx_len: 100, hash };
                Answer::Node(node).emit(&mut out);
                channel.send(&out)?;
            } else if let Ok(Ask::Text(text)) = Ask::parse(&bytes[..len]) {
                (self.says)(&text, &mut channel)?;
            }
        }
    }

    fn refuse(&self, _: IpAddr, _: &ChannelError) {}
}

/// Sends `ids` as drafts after `text`, from draft number `at` on.
fn say(
    channel: &mut Channel<'_>,
    text: &Text<'_>,
    at: u32,
    ids: &[u32],
) -> Result<(), ChannelError> {
    let mut out = Vec::with_capacity(ANSWER_MAX);
    let draft = Draft { index: text.index, serial: text.serial, at, ids: Ids::default() };
    emit_draft(&draft, ids.iter().copied(), &mut out);
    channel.send(&out)
}

#[test]
fn a_hostile_node_is_reported_once_and_does_no_harm() {
    type Says = fn(&Text<'_>, &mut Channel<'_>) -> Result<(), ChannelError>;
    let vocabulary = Vocabulary::new(&tokenizer());
    let all: [(Says, &str); 8] = [
        (|text, channel| say(channel, text, 0, &[4095, 4096]), "tokens that there are not"),
        (|text, channel| say(channel, text, 1, &[5]), "leave something out"),
        (|text, channel| say(channel, text, 31, &[5, 6]), "without meaning"),
        (|text, channel| say(channel, &Text { index: 9, ..*text }, 0, &[5]), "of no text"),
        (
            |text, channel| {
                let old = Text { serial: text.serial.wrapping_sub(1), ..*text };
                (0..1000).try_for_each(|_| say(channel, &old, 0, &[5]))
            },
            "not requested",
        ),
        (|_, channel| channel.send(&[0x55; 200]), "without meaning"),
        (|_, channel| channel.send(&[0; MESSAGE_MAX]), "a message that does not open"),
        (|_, channel| channel.send(&[20, 0, 0, 0]), "not requested"),
    ];
    thread::scope(|scope| {
        for (says, wanted) in all {
            scope.spawn(move || is_told_of_once(Hostile { vocabulary, says }, wanted));
        }
    });
}

/// Checks that a master reports once that this node's drafts are `wanted`, and continues without it.
fn is_told_of_once(hostile: Hostile, wanted: &str) {
    let at = server::start(("leap-test", Purpose::Guesses), ANY, Key::new(KEY), hostile).unwrap();
    let (mut drafter, told) = drafter(at, 1);
    let mut ids = prompt(9);
    let until = Instant::now() + Duration::from_secs(60);
    let why = loop {
        ids.truncate(40);
        ids.push(ids.len() as u32);
        assert!(drafted(&mut drafter, 0, &ids).iter().all(|id| *id < 4096));
        if let Ok(why) = told.recv_timeout(Duration::from_millis(1)) {
            break why;
        }
        assert!(Instant::now() < until, "no notice of drafts {wanted}");
    };
    assert!(why.contains(wanted), "{why}, not {wanted}");
    // The node is tried again and is no better, which is not reported. N-grams are still drafted.
    thread::sleep(Duration::from_millis(700));
    let again = [1, 2, 3, 4, 1, 2, 3];
    drafter.begin(0, &again);
    let mut drafts = Vec::with_capacity(DRAFTS_MAX);
    drafter.draft(0, &again, &|_| DRAFTS_MAX, &mut drafts);
    assert!(told.try_recv().is_err() && drafts.len() == DRAFTS_MAX, "{drafts:?}");
}

#[test]
fn a_node_hangs_up_on_masters_that_make_no_sense() {
    let (at, told) = node(2);
    let connect = || Channel::connect(at, Purpose::Guesses, &Key::new(KEY), &|| false).unwrap();
    let (mut out, mut bytes) = (Vec::new(), [0; ANSWER_MAX]);
    let text = Text { index: 0, serial: 1, from: 0, wanted: 4, ids: Ids::default() };
    let beyond = Text { index: 1, ..text };
    let mut asks = vec![vec![0x55; 9], vec![0; 48]];
    let of_text = [
        (Text { index: 2, ..text }, vec![5]),
        (text, vec![]),
        (text, vec![4096]),
        (Text { from: 1, ..text }, vec![5]),
        (Text { from: u32::MAX, ..text }, vec![5]),
        (beyond, vec![5; CTX_LEN + 1]),
    ];
    for (text, ids) in of_text {
        emit_text(&text, ids.into_iter(), &mut out);
        asks.push(out.clone());
    }
    for ask in [Ask::Hash(4097), Ask::Token(4096)] {
        ask.emit(&mut out);
        asks.push(out.clone());
    }
    // It has joined.
    draft::emit_open(3, 1, &mut out);
    asks.push(out.clone());
    for ask in asks {
        let mut channel = connect();
        draft::emit_open(3, if ask[0] == 19 { 2 } else { 0 }, &mut out);
        channel.send(&out).unwrap();
        let len = channel.receive(&mut bytes).unwrap();
        assert!(draft::parse_reply(&bytes[..len], 3).unwrap().is_ok());
        channel.receive(&mut bytes).unwrap();
        channel.send(&ask).unwrap();
        assert!(channel.receive(&mut bytes).is_err(), "{ask:?}");
    }
    // A client that does not ask it to join.
    let mut channel = connect();
    Ask::Ping.emit(&mut out);
    channel.send(&out).unwrap();
    assert!(channel.receive(&mut bytes).is_err());
    // Other clients are served, and one line was logged for all of these.
    let (mut drafter, _lost) = drafter(at, 1);
    drafted_in_time(&mut drafter, 0, &prompt(5), 15);
    let told: Vec<String> = told.try_iter().filter(|what| !what.ends_with("texts")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
}
