//! The board that generates texts, and has another board draft for them.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::guesses::Guesses;
use super::vocabulary::{self, Vocabulary};
use crate::channel::{Channel, ChannelError};
use crate::engine::drafts::{DRAFTS_MAX, DraftKind, Drafter};
use crate::engine::ngrams::NgramDrafter;
use crate::group::{Every, Patience};
use crate::sys::net;
use crate::tokenizer::Tokenizer;
use crate::transport::TransportError;
use crate::transport::place::HostPort;
use crate::wire::draft::{
    self, ANSWER_MAX, Answer, Ask, Draft, IDS_MAX, Ids, Node, TEXTS_MAX, Text, emit_text,
};
use crate::wire::give::MESSAGE_MAX;
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

/// Number of drafts asked for after a prompt, while the acceptance rate is unknown.
const N_FIRST: usize = 4;
/// Period of pings.
const PING_EVERY: Duration = Duration::from_secs(5);
/// Deadline of the answer to a ping: the node may first have to read a slice of a prompt.
const PONG_WITHIN: Duration = Duration::from_secs(20);
/// First pause before a lost node is tried again.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest pause before a lost node is tried again.
const RETRY_LAST: Duration = Duration::from_secs(30);
/// Period of looks whether the node listens, at the start.
const LOOKED_EVERY: Duration = Duration::from_millis(1);
/// Time for which a node must have been connected for its next loss to be reported again.
const STEADY: Duration = Duration::from_secs(60);

/// Address and key of a draft node.
#[derive(Clone)]
pub struct DraftPlace {
    /// Address that the node listens on.
    pub at: HostPort,
    /// Key that both boards have.
    pub key: Key,
}

/// Why the draft node does not draft.
#[derive(Debug)]
pub enum DraftNodeError {
    /// The node's host name cannot be resolved.
    Place(TransportError),
    /// The connection ended, or could not be made.
    Channel(ChannelError),
    /// The node refuses, with this reason.
    Refused(String),
    /// The node's model has another number of tokens.
    Vocabulary {
        /// Number of tokens of the node's model.
        node: u32,
        /// Number of tokens of the own model.
        wanted: u32,
    },
    /// A token of the node's model differs.
    Token {
        /// Id of the token.
        id: u32,
        /// The token's bytes on the node, possibly truncated.
        node: Vec<u8>,
        /// The token's bytes in the own model.
        wanted: Vec<u8>,
    },
    /// Some tokens of the node's model differ.
    Tokens,
}

impl fmt::Display for DraftNodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = "wanted a model of the same tokenizer";
        match self {
            DraftNodeError::Place(e) => write!(f, "{e}"),
            DraftNodeError::Channel(ChannelError::Key) => {
                write!(f, "{}, or is no draft node", ChannelError::Key)
            }
            DraftNodeError::Channel(e) => write!(f, "{e}"),
            DraftNodeError::Refused(why) => f.write_str(why),
            DraftNodeError::Vocabulary { node, wanted } => {
                write!(f, "it knows {node} tokens, the model {wanted}; {same}")
            }
            DraftNodeError::Token { id, node, wanted } => {
                let [node, wanted] = [node, wanted].map(|bytes| String::from_utf8_lossy(bytes));
                write!(f, "token {id} is {node:?}, the model's {wanted:?}; {same}")
            }
            DraftNodeError::Tokens => write!(f, "its tokens are others; {same}"),
        }
    }
}

impl std::error::Error for DraftNodeError {}

impl From<ChannelError> for DraftNodeError {
    fn from(error: ChannelError) -> DraftNodeError {
        DraftNodeError::Channel(error)
    }
}

impl DraftNodeError {
    /// Whether the user ended the work.
    pub fn is_interruption(&self) -> bool {
        matches!(self, DraftNodeError::Channel(ChannelError::Interrupted))
    }

    /// Whether the node's model can never be used: its tokens differ.
    pub fn is_of_tokens(&self) -> bool {
        matches!(self, DraftNodeError::Vocabulary { .. } | DraftNodeError::Token { .. })
    }
}

fn broken(what: &'static str) -> DraftNodeError {
    DraftNodeError::Channel(ChannelError::Broken(what))
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
    let mut line = Line::connect(place, is_interrupted)?;
    let (node, own) = (line.open(0, 0)?, Vocabulary::new(tokenizer));
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
        match line.hash(n)? == vocabulary::hash(tokenizer, n) {
            true => same = n,
            false => other = n,
        }
    }
    let wanted = tokenizer.token_bytes(same).unwrap_or_default().to_vec();
    Err(DraftNodeError::Token { id: same, node: line.token(same)?, wanted })
}

/// A connection to the node.
struct Line<'a> {
    channel: Channel<'a>,
    /// Scratch: the message to send, and the received one.
    out: Vec<u8>,
    bytes: [u8; ANSWER_MAX],
}

impl<'a> Line<'a> {
    fn connect(
        place: &DraftPlace,
        is_interrupted: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Line<'a>, DraftNodeError> {
        let address = place.at.resolve(|_| true).map_err(DraftNodeError::Place)?;
        let channel = Channel::connect(address, Purpose::Guesses, &place.key, is_interrupted)?;
        Ok(Line { channel, out: Vec::with_capacity(MESSAGE_MAX), bytes: [0; ANSWER_MAX] })
    }

    fn say(&mut self, ask: &Ask<'_>) -> Result<(), DraftNodeError> {
        ask.emit(&mut self.out);
        Ok(self.channel.send(&self.out)?)
    }

    fn hear(&mut self) -> Result<Answer<'_>, DraftNodeError> {
        let len = self.channel.receive(&mut self.bytes)?;
        let answer = Answer::parse(&self.bytes[..len]);
        answer.map_err(|_| broken("an answer without meaning"))
    }

    /// Has the node join the group in `epoch`, to draft for `n_texts` texts.
    fn open(&mut self, epoch: u32, n_texts: usize) -> Result<Node, DraftNodeError> {
        // No more than `TEXTS_MAX`.
        draft::emit_open(epoch, n_texts as u16, &mut self.out);
        self.channel.send(&self.out)?;
        let len = self.channel.receive(&mut self.bytes)?;
        let reply = draft::parse_reply(&self.bytes[..len], epoch);
        match reply.map_err(|_| broken("it does not say whether it is ready"))? {
            Ok(line) => log::debug!("the draft node has {} threads, {}", line.threads, line.isa),
            Err(why) => return Err(DraftNodeError::Refused(why.as_str().to_owned())),
        }
        match self.hear()? {
            Answer::Node(node) if node.n_texts as usize <= n_texts => Ok(node),
            _ => Err(broken("it does not say what it can do")),
        }
    }

    fn hash(&mut self, n: u32) -> Result<[u8; 32], DraftNodeError> {
        self.say(&Ask::Hash(n))?;
        match self.hear()? {
            Answer::Hash(hash) => Ok(hash),
            _ => Err(broken("no hash")),
        }
    }

    fn token(&mut self, id: u32) -> Result<Vec<u8>, DraftNodeError> {
        self.say(&Ask::Token(id))?;
        match self.hear()? {
            Answer::Token(bytes) => Ok(bytes.to_vec()),
            _ => Err(broken("no token")),
        }
    }
}

/// Callback for the reason why the node does not draft. The node is tried again; further failures are not
/// reported for some time.
pub type TellLoss = Box<dyn Fn(&DraftNodeError) + Send>;

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
    /// get only n-grams. The node at `place` must have the tokens of `tokenizer`. `tell` reports losses of
    /// the node, without the first one if `is_told`.
    ///
    /// # Errors
    /// If the system refuses a socket, or the thread that talks to the node.
    pub fn start(
        place: DraftPlace,
        tokenizer: &Tokenizer,
        (n_lanes, ctx_len): (usize, usize),
        (tell, is_told): (TellLoss, bool),
    ) -> io::Result<NodeDrafter> {
        let guesses = Arc::new(Guesses::new(n_lanes.min(TEXTS_MAX), ctx_len)?);
        let vocabulary = Vocabulary::new(tokenizer);
        let (to_caller, epoch) = (Arc::clone(&guesses), 0);
        let caller = Caller { guesses: to_caller, place, vocabulary, epoch, tell, is_told };
        let named = thread::Builder::new().name("leap-draft".to_owned());
        named.spawn(move || caller.call())?;
        let ngrams = NgramDrafter::new(n_lanes, ctx_len);
        Ok(NodeDrafter { guesses, ngrams, said: Vec::with_capacity(DRAFTS_MAX) })
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

/// The thread that talks to the node.
struct Caller {
    guesses: Arc<Guesses>,
    place: DraftPlace,
    vocabulary: Vocabulary,
    /// Number of requests to the node to join.
    epoch: u32,
    tell: TellLoss,
    /// Whether the loss of the node has been reported.
    is_told: bool,
}

impl Caller {
    /// Talks to the node whenever it is reachable, until the drafter is dropped.
    fn call(mut self) {
        let mut pause = RETRY_FIRST;
        loop {
            let begun = Instant::now();
            self.epoch = self.epoch.wrapping_add(1);
            let Err(why) = self.talk();
            self.guesses.set_there(false);
            if self.guesses.is_over() {
                return;
            }
            if begun.elapsed() >= STEADY {
                (pause, self.is_told) = (RETRY_FIRST, false);
            }
            match std::mem::replace(&mut self.is_told, true) {
                false => (self.tell)(&why),
                true => log::debug!("draft node {}: {why}", self.place.at.host),
            }
            let until = Instant::now() + pause;
            while Instant::now() < until && !self.guesses.is_over() {
                self.guesses.silence();
                net::wait(
                    &[(self.guesses.bell(), false)],
                    until.saturating_duration_since(Instant::now()),
                );
            }
            pause = (2 * pause).min(RETRY_LAST);
        }
    }

    fn talk(&self) -> Result<Infallible, DraftNodeError> {
        let guesses = &*self.guesses;
        let is_over = || guesses.is_over();
        let mut line = Line::connect(&self.place, &is_over)?;
        let node = line.open(self.epoch, self.guesses.len())?;
        if (Vocabulary { len: node.vocab_len, hash: node.hash }) != self.vocabulary {
            return Err(DraftNodeError::Tokens);
        }
        let n_texts = node.n_texts as usize;
        log::debug!("draft node {}: it drafts for {n_texts} texts", self.place.at.host);
        let text = || Vec::with_capacity(self.guesses.ctx_len());
        let mut talk = Talk {
            guesses: &self.guesses,
            line,
            ctx_len: node.ctx_len as usize,
            vocab_len: node.vocab_len,
            texts: (0..n_texts).map(|_| Sent { ids: text(), n_requested: 0 }).collect(),
            scratch: text(),
            since: Instant::now(),
            pings: Every::default(),
            is_pinged: false,
            patience: Patience::new(Some(PONG_WITHIN.as_micros() as u64)),
        };
        talk.pings.said(0, PING_EVERY.as_micros() as u64);
        self.guesses.set_there(true);
        loop {
            talk.turn()?;
        }
    }
}

/// A text, in the version that the node knows.
struct Sent {
    /// Ids of the text, up to `[ctx_len]`.
    ids: Vec<u32>,
    /// Number of drafts that were requested and have not arrived.
    n_requested: u64,
}

/// A connection to a node that has joined.
struct Talk<'a> {
    guesses: &'a Guesses,
    line: Line<'a>,
    ctx_len: usize,
    vocab_len: u32,
    texts: Vec<Sent>,
    scratch: Vec<u32>,
    /// When the line was opened: the time below counts from then.
    since: Instant,
    /// When the node is pinged, unless something else is said.
    pings: Every,
    /// Whether the node has yet to answer a ping, and how long it may take.
    is_pinged: bool,
    patience: Patience,
}

impl Talk<'_> {
    /// Waits for changes of texts or for a message of the node, and passes them on.
    fn turn(&mut self) -> Result<(), DraftNodeError> {
        net::wait(&[(self.guesses.bell(), false), (self.line.channel.as_fd(), false)], PING_EVERY);
        if self.guesses.is_over() {
            return Err(ChannelError::Interrupted.into());
        }
        self.guesses.silence();
        (0..self.texts.len()).try_for_each(|index| self.tell(index))?;
        if self.line.channel.has_next() {
            self.hear()?;
        }
        let now = self.now();
        if self.is_pinged && self.patience.overdue(now).is_some() {
            return Err(ChannelError::Io(io::ErrorKind::TimedOut.into()).into());
        }
        if !self.is_pinged && self.pings.is_due(now) {
            self.line.say(&Ask::Ping)?;
            self.is_pinged = true;
            self.patience.begins(now);
            self.pings.said(now, PING_EVERY.as_micros() as u64);
        }
        Ok(())
    }

    /// Microseconds since the line was opened.
    fn now(&self) -> u64 {
        self.since.elapsed().as_micros() as u64
    }

    /// Tells the node of a text if that has changed.
    fn tell(&mut self, index: usize) -> Result<(), DraftNodeError> {
        let Some(mut guess) = self.guesses.guess(index) else { return Ok(()) };
        let new = guess.take_new(&mut self.scratch);
        drop(guess);
        let Some((serial, wanted)) = new else { return Ok(()) };
        let wanted = wanted.min(self.ctx_len.saturating_sub(self.scratch.len()));
        if wanted == 0 {
            self.guesses.set_waiting(false);
            return Ok(());
        }
        let sent = &mut self.texts[index];
        std::mem::swap(&mut sent.ids, &mut self.scratch);
        let pairs = sent.ids.iter().zip(&self.scratch);
        let mut from = pairs.take_while(|(new, old)| new == old).count();
        sent.n_requested += wanted as u64;
        loop {
            let end = sent.ids.len().min(from + IDS_MAX);
            let is_whole = end == sent.ids.len();
            let text = Text {
                index: index as u32,
                serial,
                from: from as u32,
                wanted: if is_whole { wanted as u32 } else { 0 },
                ids: Ids::default(),
            };
            emit_text(&text, sent.ids[from..end].iter().copied(), &mut self.line.out);
            self.line.channel.send(&self.line.out)?;
            if is_whole {
                break;
            }
            from = end;
        }
        self.pings.said(self.now(), PING_EVERY.as_micros() as u64);
        Ok(())
    }

    /// Processes a message of the node.
    fn hear(&mut self) -> Result<(), DraftNodeError> {
        let now = self.now();
        match self.line.hear()? {
            Answer::Pong if self.is_pinged => {
                self.is_pinged = false;
                self.patience.answered(now);
                Ok(())
            }
            Answer::Draft(draft) => {
                let Draft { index, ids, .. } = draft;
                let sent = self.texts.get_mut(index as usize).ok_or(broken("drafts of no text"))?;
                let left = sent.n_requested.checked_sub(ids.len() as u64);
                sent.n_requested = left.ok_or(broken("drafts that were not requested"))?;
                if ids.iter().any(|id| id >= self.vocab_len) {
                    return Err(broken("drafts of tokens that there are not"));
                }
                let Some(mut guess) = self.guesses.guess(index as usize) else { return Ok(()) };
                guess.hear(&draft).ok_or(broken("drafts that leave something out"))?;
                if guess.has_enough() {
                    self.guesses.set_waiting(false);
                }
                Ok(())
            }
            _ => Err(broken("an answer that was not requested")),
        }
    }
}
