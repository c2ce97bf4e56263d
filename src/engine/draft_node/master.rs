//! The board that generates texts, and has another board draft for them.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::caller::{Caller, PING_EVERY_US, TellLoss, read, read_node, read_reply};
use super::error::{DraftNodeError, broken};
use super::guesses::Guesses;
use super::vocabulary::{self, Vocabulary};
use crate::channel::{Channel, ChannelError};
use crate::engine::drafts::{DRAFTS_MAX, DraftKind, Drafter};
use crate::engine::ngrams::NgramDrafter;
use crate::sys::net;
use crate::tokenizer::Tokenizer;
use crate::transport::place::HostPort;
use crate::wire::draft::{self, ANSWER_MAX, Answer, Ask, Node, TEXTS_MAX};
use crate::wire::give::MESSAGE_MAX;
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

/// Number of drafts asked for after a prompt, while the acceptance rate is unknown.
const N_FIRST: usize = 4;
/// Period of looks whether the node listens, at the start.
const LOOKED_EVERY: Duration = Duration::from_millis(1);
/// Longest sleep while the node is connected.
const TURN_EVERY: Duration = Duration::from_micros(PING_EVERY_US);

/// Address and key of a draft node.
#[derive(Clone)]
pub struct DraftPlace {
    /// Address that the node listens on.
    pub at: HostPort,
    /// Key that both boards have.
    pub key: Key,
}

/// Checks whether the node at `place` has the tokens of `tokenizer`.
///
/// # Errors
/// The first token that differs; or why the check failed.
pub fn check(
    place: &DraftPlace,
    tokenizer: &Tokenizer,
    is_interrupted: &(dyn Fn() -> bool + Sync),
) -> Result<(), DraftNodeError> {
    let mut questions = Questions::connect(place, is_interrupted)?;
    let (node, own) = (questions.open()?, Vocabulary::new(tokenizer));
    if node.vocab_len != own.len {
        return Err(DraftNodeError::Vocabulary { node: node.vocab_len, wanted: own.len });
    }
    if node.hash == own.hash {
        return Ok(());
    }
    // A binary search: the first `same` tokens are equal, the first `other` are not.
    let (mut same, mut other) = (0, own.len);
    while other - same > 1 {
        let n = same + (other - same) / 2;
        match questions.hash(n)? == vocabulary::hash(tokenizer, n) {
            true => same = n,
            false => other = n,
        }
    }
    let wanted = tokenizer.token_bytes(same).unwrap_or_default().to_vec();
    Err(DraftNodeError::Token { id: same, node: questions.token(same)?, wanted })
}

/// Connects to the node at `place`.
fn connect<'a>(
    place: &DraftPlace,
    is_interrupted: &'a (dyn Fn() -> bool + Sync),
) -> Result<Channel<'a>, DraftNodeError> {
    let address = place.at.resolve(|_| true).map_err(DraftNodeError::Place)?;
    Ok(Channel::connect(address, Purpose::Guesses, &place.key, is_interrupted)?)
}

/// A connection for questions about the node's tokens.
struct Questions<'a> {
    channel: Channel<'a>,
    /// Scratch: the message to send, and the received one.
    out: Vec<u8>,
    bytes: [u8; ANSWER_MAX],
}

impl<'a> Questions<'a> {
    fn connect(
        place: &DraftPlace,
        is_interrupted: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Questions<'a>, DraftNodeError> {
        let channel = connect(place, is_interrupted)?;
        Ok(Questions { channel, out: Vec::with_capacity(MESSAGE_MAX), bytes: [0; ANSWER_MAX] })
    }

    fn receive(&mut self) -> Result<&[u8], DraftNodeError> {
        let len = self.channel.receive(&mut self.bytes)?;
        Ok(&self.bytes[..len])
    }

    /// Has the node join without texts.
    fn open(&mut self) -> Result<Node, DraftNodeError> {
        draft::emit_open(0, 0, &mut self.out);
        self.channel.send(&self.out)?;
        read_reply(self.receive()?, 0)?;
        read_node(self.receive()?, 0)
    }

    fn ask(&mut self, ask: &Ask<'_>) -> Result<Answer<'_>, DraftNodeError> {
        ask.emit(&mut self.out);
        self.channel.send(&self.out)?;
        read(self.receive()?)
    }

    fn hash(&mut self, n: u32) -> Result<[u8; 32], DraftNodeError> {
        match self.ask(&Ask::Hash(n))? {
            Answer::Hash(hash) => Ok(hash),
            _ => Err(broken("no hash")),
        }
    }

    fn token(&mut self, id: u32) -> Result<Vec<u8>, DraftNodeError> {
        match self.ask(&Ask::Token(id))? {
            Answer::Token(bytes) => Ok(bytes.to_vec()),
            _ => Err(broken("no token")),
        }
    }
}

/// Drafts by long n-grams, or else by another board. Drafts that come too late, or for another text, are
/// dropped. The engine never waits for them.
pub struct NodeDrafter {
    guesses: Arc<Guesses>,
    ngrams: NgramDrafter,
    /// Scratch: drafts from the node.
    said: Vec<u32>,
}

impl NodeDrafter {
    /// A drafter for `n_lanes` texts of up to `ctx_len` ids at a time. Texts after the first [`TEXTS_MAX`]
    /// get only n-grams. The node at `place` must have the tokens of `tokenizer`. `told` is a callback for
    /// losses of the node, and whether the first one was reported.
    ///
    /// # Errors
    /// If the system refuses a socket, or the thread that talks to the node.
    pub fn start(
        place: DraftPlace,
        tokenizer: &Tokenizer,
        (n_lanes, ctx_len): (usize, usize),
        told: (TellLoss, bool),
    ) -> io::Result<NodeDrafter> {
        let guesses = Arc::new(Guesses::new(n_lanes.min(TEXTS_MAX), ctx_len)?);
        let caller = Caller::new(Arc::clone(&guesses), Vocabulary::new(tokenizer), told);
        let to_caller = Arc::clone(&guesses);
        let named = thread::Builder::new().name("leap-draft".to_owned());
        named.spawn(move || call(caller, &to_caller, &place))?;
        Ok(NodeDrafter::over(guesses, (n_lanes, ctx_len)))
    }

    /// A drafter for `n_lanes` texts of up to `ctx_len` ids, for which a [`Caller`] fills `guesses`.
    pub(crate) fn over(guesses: Arc<Guesses>, (n_lanes, ctx_len): (usize, usize)) -> NodeDrafter {
        let ngrams = NgramDrafter::new(n_lanes, ctx_len);
        NodeDrafter { guesses, ngrams, said: Vec::with_capacity(DRAFTS_MAX) }
    }

    /// Waits until the node listens or was found to be away, but no longer than `within`. A node that listens gets
    /// the first prompt, too.
    pub fn wait(&self, within: Duration) {
        let until = Instant::now() + within;
        while !self.guesses.is_known() && Instant::now() < until {
            thread::sleep(LOOKED_EVERY);
        }
    }

    /// Copies up to [`DRAFTS_MAX`] drafts after `ids` to `said`, and requests more: `n` for the next batch,
    /// and as many for the batch after it, if all drafts and the token after them are right.
    fn ask(&mut self, lane: usize, ids: &[u32], n: usize) {
        self.said.clear();
        if !self.guesses.is_there() {
            return;
        }
        let Some(mut guess) = self.guesses.try_guess(lane) else { return };
        self.said.extend(guess.after(ids).iter().take(DRAFTS_MAX));
        let is_new = guess.ask(ids, (n, 2 * (n + 1)));
        if is_new {
            self.guesses.set_waiting(!guess.has_enough());
        }
        drop(guess);
        if is_new {
            self.guesses.ring();
        }
    }
}

impl Drop for NodeDrafter {
    fn drop(&mut self) {
        self.guesses.end();
    }
}

impl Drafter for NodeDrafter {
    fn begin(&mut self, lane: usize, prompt: &[u32]) {
        self.ngrams.begin(lane, prompt);
        // The node reads the prompt while the engine does.
        self.ask(lane, prompt, N_FIRST);
    }

    fn draft(
        &mut self,
        lane: usize,
        ids: &[u32],
        worth: &dyn Fn(DraftKind) -> usize,
        drafts: &mut Vec<u32>,
    ) -> DraftKind {
        let kind = self.ngrams.draft(lane, ids, worth, drafts);
        let n = worth(DraftKind::Model);
        if n == 0 {
            return kind;
        }
        self.ask(lane, ids, n);
        if self.said.is_empty() || kind == DraftKind::LongNgram && worth(kind) > 0 {
            return kind;
        }
        drafts.clear();
        drafts.extend_from_slice(&self.said);
        DraftKind::Model
    }

    fn end(&mut self, lane: usize, ids: &[u32]) {
        self.ngrams.end(lane, ids);
    }

    fn is_waiting(&self) -> bool {
        self.guesses.is_waiting()
    }
}

/// Talks to the node whenever it is reachable, until the drafter is dropped.
fn call(mut caller: Caller, guesses: &Guesses, place: &DraftPlace) {
    let origin = Instant::now();
    let now = || origin.elapsed().as_micros() as u64;
    loop {
        let Err(why) = talk(&mut caller, (guesses, place), &now);
        if guesses.is_over() {
            return;
        }
        caller.lose(now(), &why);
        while caller.pause_us(now()) > 0 {
            let pause = Duration::from_micros(caller.pause_us(now()));
            net::wait(&[(guesses.bell(), false)], pause);
            if guesses.is_over() {
                return;
            }
            guesses.silence();
        }
    }
}

fn talk(
    caller: &mut Caller,
    (guesses, place): (&Guesses, &DraftPlace),
    now: &dyn Fn() -> u64,
) -> Result<Infallible, DraftNodeError> {
    caller.begin(now());
    let is_over = || guesses.is_over();
    let mut channel = connect(place, &is_over)?;
    caller.open(now(), &mut channel)?;
    let mut bytes = [0; ANSWER_MAX];
    loop {
        net::wait(&[(guesses.bell(), false), (channel.as_fd(), false)], TURN_EVERY);
        if guesses.is_over() {
            return Err(ChannelError::Interrupted.into());
        }
        guesses.silence();
        if channel.has_next() {
            let len = channel.receive(&mut bytes)?;
            caller.hear(now(), &bytes[..len])?;
        }
        caller.turn(now(), &mut channel)?;
    }
}
