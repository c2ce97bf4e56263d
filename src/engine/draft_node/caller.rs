//! A draft node as its master sees it: the node is called until it joins, gets the texts, and is called again when it
//! is lost. A state machine without sockets and threads: time and messages are passed in.
//!
//! ```text
//!          begin, open             READY             NODE
//!   Away ──────────────► Asked ──────────► Ready ──────────► Joined ──┐ TEXT, PING
//!    ▲                     │                 │                  │  ▲  │ DRAFT, PONG
//!    └──────── lose ◄──────┴─────────────────┴──────────────────┘  └──┘
//! ```

use std::io;
use std::sync::Arc;

use super::error::{DraftNodeError, broken};
use super::guesses::Guesses;
use super::vocabulary::Vocabulary;
use crate::channel::{Channel, ChannelError};
use crate::group::{Every, Patience};
use crate::wire::draft::{self, Answer, Ask, Draft, IDS_MAX, Ids, Node, Text, emit_text};
use crate::wire::give::MESSAGE_MAX;

/// A node that has not been heard for this long is pinged.
pub(crate) const PING_EVERY_US: u64 = 5_000_000;
/// Longest silence of a node that has to answer an OPEN or a ping: it may first have to read a slice of a prompt.
pub(crate) const ANSWER_WITHIN_US: u64 = 20_000_000;
/// First pause before a lost node is called again. It doubles with each failure.
const RETRY_FIRST_US: u64 = 500_000;
/// Longest pause before a lost node is called again.
pub(crate) const RETRY_LAST_US: u64 = 30_000_000;
/// Time for which a node must have been connected for its next loss to be reported again.
pub(crate) const STEADY_US: u64 = 60_000_000;

/// Callback for the reason why the node does not draft. The node is called again; further failures are not
/// reported for some time.
pub type TellLoss = Box<dyn Fn(&DraftNodeError) + Send>;

/// The sending end of a connection.
pub(crate) trait Line {
    /// Sends a message.
    fn send(&mut self, bytes: &[u8]) -> Result<(), ChannelError>;
}

impl Line for Channel<'_> {
    fn send(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        Channel::send(self, bytes)
    }
}

/// The master's side of the protocol. Times are microseconds.
pub(crate) struct Caller {
    guesses: Arc<Guesses>,
    vocabulary: Vocabulary,
    /// Number of calls.
    epoch: u32,
    phase: Phase,
    calls: Calls,
    /// When the node is pinged, unless it is heard.
    pings: Every,
    /// Whether the node has yet to answer an OPEN or a ping, and how long it may be silent until then.
    is_owed: bool,
    patience: Patience,
    /// Scratch: the message to send, and a text.
    out: Vec<u8>,
    text: Vec<u32>,
}

/// State of the node.
enum Phase {
    /// The node is not connected.
    Away,
    /// The node was asked to join.
    Asked,
    /// The node is ready, and has yet to say what it can do.
    Ready,
    /// The node drafts.
    Joined(Talk),
}

/// Calls of a lost node, and reports of its losses.
struct Calls {
    tell: TellLoss,
    /// Whether the loss of the node has been reported.
    is_told: bool,
    /// When the node is called next, and the pause after the next failure.
    next: Every,
    pause_us: u64,
    /// Time of the last call.
    begun_us: u64,
}

impl Calls {
    /// Reports the loss unless an earlier one was reported, and puts off the next call.
    fn lose(&mut self, now: u64, why: &DraftNodeError) {
        if now >= self.begun_us + STEADY_US {
            (self.pause_us, self.is_told) = (RETRY_FIRST_US, false);
        }
        match std::mem::replace(&mut self.is_told, true) {
            false => (self.tell)(why),
            true => log::debug!("draft node: {why}"),
        }
        self.next.said(now, self.pause_us);
        self.pause_us = (2 * self.pause_us).min(RETRY_LAST_US);
    }
}

impl Caller {
    /// A caller for the texts of `guesses`. The node must have the tokens of `vocabulary`. `tell` reports losses of the
    /// node, without the first one if `is_told`.
    pub(crate) fn new(
        guesses: Arc<Guesses>,
        vocabulary: Vocabulary,
        (tell, is_told): (TellLoss, bool),
    ) -> Caller {
        let (next, pause_us) = (Every::default(), RETRY_FIRST_US);
        Caller {
            vocabulary,
            epoch: 0,
            phase: Phase::Away,
            calls: Calls { tell, is_told, next, pause_us, begun_us: 0 },
            pings: Every::default(),
            is_owed: false,
            patience: Patience::new(Some(ANSWER_WITHIN_US)),
            out: Vec::with_capacity(MESSAGE_MAX),
            text: Vec::with_capacity(guesses.ctx_len()),
            guesses,
        }
    }

    /// Microseconds until a node that is away is to be called.
    pub(crate) fn pause_us(&self, now: u64) -> u64 {
        self.calls.next.left_us(now)
    }

    /// Notes that the node is called: a connection is about to be made.
    pub(crate) fn begin(&mut self, now: u64) {
        self.epoch = self.epoch.wrapping_add(1);
        self.calls.begun_us = now;
    }

    /// Asks the node to join, over a new connection.
    ///
    /// # Errors
    /// If the connection fails.
    pub(crate) fn open(&mut self, now: u64, line: &mut impl Line) -> Result<(), DraftNodeError> {
        // No more than `TEXTS_MAX`.
        draft::emit_open(self.epoch, self.guesses.len() as u16, &mut self.out);
        line.send(&self.out)?;
        self.phase = Phase::Asked;
        self.expect_answer(now);
        Ok(())
    }

    /// Notes that the node is not connected, or no longer.
    pub(crate) fn lose(&mut self, now: u64, why: &DraftNodeError) {
        self.phase = Phase::Away;
        self.guesses.set_there(false);
        self.calls.lose(now, why);
    }

    /// Sends the texts that have changed, and a ping if one is due. Called after each change, and regularly.
    ///
    /// # Errors
    /// If the connection fails, or the node is silent for too long.
    pub(crate) fn turn(&mut self, now: u64, line: &mut impl Line) -> Result<(), DraftNodeError> {
        if let Phase::Joined(talk) = &mut self.phase {
            let scratch = (&mut self.text, &mut self.out);
            talk.tell_all(&self.guesses, scratch, line)?;
        }
        if self.is_owed && self.patience.overdue(now).is_some() {
            return Err(ChannelError::Io(io::ErrorKind::TimedOut.into()).into());
        }
        if !self.is_owed && self.pings.is_due(now) {
            Ask::Ping.emit(&mut self.out);
            line.send(&self.out)?;
            self.expect_answer(now);
        }
        Ok(())
    }

    /// Notes that the node was sent an OPEN or a ping.
    fn expect_answer(&mut self, now: u64) {
        self.is_owed = true;
        self.patience.rest(now);
        self.pings.said(now, PING_EVERY_US);
    }

    /// Takes a message of the node.
    ///
    /// # Errors
    /// If the node refuses, does not fit, or breaks the protocol.
    pub(crate) fn hear(&mut self, now: u64, bytes: &[u8]) -> Result<(), DraftNodeError> {
        self.pings.said(now, PING_EVERY_US);
        self.patience.rest(now);
        match &mut self.phase {
            Phase::Away => return Err(broken("an answer to nothing")),
            Phase::Asked => {
                read_reply(bytes, self.epoch)?;
                self.phase = Phase::Ready;
            }
            Phase::Ready => {
                let node = read_node(bytes, self.guesses.len())?;
                if (Vocabulary { len: node.vocab_len, hash: node.hash }) != self.vocabulary {
                    return Err(DraftNodeError::Tokens);
                }
                log::debug!("the draft node drafts for {} texts", node.n_texts);
                self.phase = Phase::Joined(Talk::new(&node, self.guesses.ctx_len()));
                self.is_owed = false;
                self.guesses.set_there(true);
            }
            Phase::Joined(talk) => match read(bytes)? {
                Answer::Pong if self.is_owed => self.is_owed = false,
                Answer::Draft(draft) => talk.hear(&self.guesses, &draft)?,
                _ => return Err(broken("an answer that was not requested")),
            },
        }
        Ok(())
    }
}

/// Reads an answer of the node.
pub(super) fn read(bytes: &[u8]) -> Result<Answer<'_>, DraftNodeError> {
    Answer::parse(bytes).map_err(|_| broken("an answer without meaning"))
}

/// Reads the node's reply to the OPEN of `epoch`.
pub(super) fn read_reply(bytes: &[u8], epoch: u32) -> Result<(), DraftNodeError> {
    let reply = draft::parse_reply(bytes, epoch);
    match reply.map_err(|_| broken("it does not say whether it is ready"))? {
        Ok(line) => log::debug!("the draft node has {} threads, {}", line.threads, line.isa),
        Err(why) => return Err(DraftNodeError::Refused(why.as_str().to_owned())),
    }
    Ok(())
}

/// Reads the abilities of a node that was asked to draft for `n_texts` texts.
pub(super) fn read_node(bytes: &[u8], n_texts: usize) -> Result<Node, DraftNodeError> {
    match read(bytes)? {
        Answer::Node(node) if node.n_texts as usize <= n_texts => Ok(node),
        _ => Err(broken("it does not say what it can do")),
    }
}

/// The texts of a node that has joined.
struct Talk {
    ctx_len: usize,
    vocab_len: u32,
    texts: Vec<Sent>,
}

/// A text, in the version that the node knows.
struct Sent {
    /// Ids of the text, up to `[ctx_len]`.
    ids: Vec<u32>,
    /// Number of drafts that were requested and have not arrived.
    n_requested: u64,
}

impl Talk {
    fn new(node: &Node, ctx_len: usize) -> Talk {
        let text = |_| Sent { ids: Vec::with_capacity(ctx_len), n_requested: 0 };
        let texts = (0..node.n_texts).map(text).collect();
        Talk { ctx_len: node.ctx_len as usize, vocab_len: node.vocab_len, texts }
    }

    /// Tells the node of all texts that have changed.
    fn tell_all(
        &mut self,
        guesses: &Guesses,
        (text, out): (&mut Vec<u32>, &mut Vec<u8>),
        line: &mut impl Line,
    ) -> Result<(), ChannelError> {
        for index in 0..self.texts.len() {
            let Some(mut guess) = guesses.guess(index) else { continue };
            let new = guess.take_new(text);
            drop(guess);
            let Some((serial, wanted)) = new else { continue };
            match wanted.min(self.ctx_len.saturating_sub(text.len())) {
                0 => guesses.set_waiting(false),
                wanted => self.tell(index, (serial, wanted), (text, out), line)?,
            }
        }
        Ok(())
    }

    /// Tells the node of a text, which changes places with the version that the node knows.
    fn tell(
        &mut self,
        index: usize,
        (serial, wanted): (u32, usize),
        (new, out): (&mut Vec<u32>, &mut Vec<u8>),
        line: &mut impl Line,
    ) -> Result<(), ChannelError> {
        let sent = &mut self.texts[index];
        std::mem::swap(&mut sent.ids, new);
        let pairs = sent.ids.iter().zip(&*new);
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
            emit_text(&text, sent.ids[from..end].iter().copied(), out);
            line.send(out)?;
            if is_whole {
                return Ok(());
            }
            from = end;
        }
    }

    /// Takes a part of a draft.
    fn hear(&mut self, guesses: &Guesses, draft: &Draft<'_>) -> Result<(), DraftNodeError> {
        let Draft { index, ids, .. } = *draft;
        let sent = self.texts.get_mut(index as usize).ok_or(broken("drafts of no text"))?;
        let left = sent.n_requested.checked_sub(ids.len() as u64);
        sent.n_requested = left.ok_or(broken("drafts that were not requested"))?;
        if ids.iter().any(|id| id >= self.vocab_len) {
            return Err(broken("drafts of tokens that there are not"));
        }
        let Some(mut guess) = guesses.guess(index as usize) else { return Ok(()) };
        guess.hear(draft).ok_or(broken("drafts that leave something out"))?;
        if guess.has_enough() {
            guesses.set_waiting(false);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::NodeLine;

    const VOCABULARY: Vocabulary = Vocabulary { len: 10, hash: [7; 32] };

    /// The last message.
    #[derive(Default)]
    struct Last(Vec<u8>);

    impl Line for Last {
        fn send(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
            self.0 = bytes.to_vec();
            Ok(())
        }
    }

    /// Has a node answer that was asked to join in `epoch`.
    fn join(caller: &mut Caller, epoch: u32, line: &mut Last) -> Result<(), DraftNodeError> {
        caller.begin(0);
        caller.open(0, line)?;
        let (mut reply, mut about) = (Vec::new(), Vec::new());
        draft::emit_reply(epoch, Ok(&NodeLine::default()), &mut reply);
        let Vocabulary { len, hash } = VOCABULARY;
        Answer::Node(Node { n_texts: 1, vocab_len: len, ctx_len: 64, hash }).emit(&mut about);
        caller.hear(0, &reply)?;
        caller.hear(0, &about)?;
        caller.turn(0, line)
    }

    #[test]
    fn a_node_that_is_back_is_told_of_the_texts_and_a_reply_to_an_earlier_call_is_refused() {
        let guesses = Arc::new(Guesses::new(1, 64).unwrap());
        let told = (Box::new(|_: &DraftNodeError| {}) as TellLoss, false);
        let (mut caller, mut line) =
            (Caller::new(Arc::clone(&guesses), VOCABULARY, told), Last::default());
        join(&mut caller, 1, &mut line).unwrap();
        guesses.guess(0).unwrap().ask(&[1, 2, 3], (1, 4));
        caller.turn(0, &mut line).unwrap();
        let text = std::mem::take(&mut line.0);
        caller.lose(0, &broken("nothing"));
        assert!(join(&mut caller, 1, &mut line).is_err());
        caller.lose(0, &broken("nothing"));
        join(&mut caller, 3, &mut line).unwrap();
        assert_eq!(line.0, text);
    }
}
