//! A draft node's side of the protocol with one master. A state machine without sockets and threads: messages are
//! passed in, and go out over a [`Line`].

use super::caller::Line;
use crate::channel::ChannelError;
use crate::wire::draft::{self, ANSWER_MAX, Answer, Ask, Draft, Ids, Node, Text};
use crate::wire::frame::NodeLine;

/// The model that drafts.
pub(crate) trait DraftModel {
    /// A text's KV.
    type Stream;

    /// A stream for another text; `None` if there is no room for more.
    fn stream(&self) -> Option<Self::Stream>;

    /// Reads the ids that `stream` lacks of `ids`, or the first of them. `is_text` says that no drafts are among them.
    ///
    /// # Errors
    /// [`ChannelError::Interrupted`].
    fn read(
        &self,
        stream: &mut Self::Stream,
        ids: &[u32],
        is_text: bool,
    ) -> Result<Read, ChannelError>;
}

/// Outcome of [`DraftModel::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Some ids have still to be read.
    Part,
    /// All ids are read, and the model expects this one next.
    Next(u32),
    /// The model cannot say which id is next.
    Nothing,
}

/// A message that the session leaves to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing is left to do.
    Nothing,
    /// The node drafts for this number of texts from now on.
    Begun(usize),
    /// The master asks for the hash of this number of tokens.
    Hash(u32),
    /// The master asks for the bytes of this token.
    Token(u32),
}

/// A connection with a master.
pub(crate) struct Session<S> {
    about: Node,
    /// The texts; `None` until the master asks the node to join.
    thoughts: Option<Vec<Thought<S>>>,
    /// Index of the text that is drafted for next.
    turn: usize,
    /// Scratch: the message to send.
    out: Vec<u8>,
}

/// A text of a master, and the tokens that the node's model expects after it.
struct Thought<S> {
    stream: S,
    /// Ids of the text, then drafted ids, up to `[ctx_len]`.
    ids: Vec<u32>,
    n_text: usize,
    serial: u32,
    /// Number of drafts that the master wants after the text, and number of those that were sent.
    wanted: usize,
    n_sent: usize,
}

fn broken(what: &'static str) -> ChannelError {
    ChannelError::Broken(what)
}

impl<S> Session<S> {
    /// A session of a node that describes itself as `about`.
    pub(crate) fn new(about: Node) -> Session<S> {
        Session { about, thoughts: None, turn: 0, out: Vec::with_capacity(ANSWER_MAX) }
    }

    /// Index of the next text that wants more drafts than were sent.
    fn next(&self) -> Option<usize> {
        let all = self.thoughts.as_deref().unwrap_or_default();
        let n = all.len();
        (0..n).map(|at| (self.turn + at) % n).find(|at| all[*at].is_wanting())
    }

    /// Whether a text wants more drafts. Then [`Session::think`] is called while no message has come.
    pub(crate) fn is_wanting(&self) -> bool {
        self.next().is_some()
    }

    /// Reads a part of a text that wants drafts, or drafts one more id and sends it.
    ///
    /// # Errors
    /// If the connection fails, or the work is interrupted.
    pub(crate) fn think(
        &mut self,
        model: &impl DraftModel<Stream = S>,
        line: &mut impl Line,
    ) -> Result<(), ChannelError> {
        let Some(index) = self.next() else { return Ok(()) };
        self.turn = index + 1;
        let Some(thought) = self.thoughts.iter_mut().flatten().nth(index) else { return Ok(()) };
        thought.think(model)?;
        match thought.emit(index, &mut self.out) {
            true => line.send(&self.out),
            false => Ok(()),
        }
    }

    /// Takes a message of the master. The first one is an OPEN.
    ///
    /// # Errors
    /// If the connection fails, or the master breaks the protocol.
    pub(crate) fn hear(
        &mut self,
        bytes: &[u8],
        (model, own): (&impl DraftModel<Stream = S>, &NodeLine),
        line: &mut impl Line,
    ) -> Result<Heard, ChannelError> {
        let Some(all) = &mut self.thoughts else { return self.open(bytes, (model, own), line) };
        match Ask::parse(bytes).map_err(|_| broken("an ask without meaning"))? {
            Ask::Text(text) => {
                let thought = all.get_mut(text.index as usize).ok_or(broken("no such text"))?;
                thought.hear(&text, &self.about).ok_or(broken("a text that cannot be"))?;
            }
            Ask::Ping => {
                Answer::Pong.emit(&mut self.out);
                line.send(&self.out)?;
            }
            Ask::Hash(n) => return Ok(Heard::Hash(n)),
            Ask::Token(id) => return Ok(Heard::Token(id)),
        }
        Ok(Heard::Nothing)
    }

    /// Takes an OPEN: is ready for as many texts as there are streams, or refuses.
    fn open(
        &mut self,
        bytes: &[u8],
        (model, own): (&impl DraftModel<Stream = S>, &NodeLine),
        line: &mut impl Line,
    ) -> Result<Heard, ChannelError> {
        let opened = draft::parse_open(bytes);
        let (epoch, n) = opened.map_err(|_| broken("it does not open with what it wants"))?;
        let streams = (0..n).map_while(|_| model.stream());
        let ctx_len = self.about.ctx_len as usize;
        let thoughts: Vec<_> = streams.map(|stream| Thought::new(stream, ctx_len)).collect();
        let n_texts = thoughts.len();
        self.thoughts = Some(thoughts);
        if n_texts == 0 && n > 0 {
            let why = "it drafts for others, and has no room for more";
            draft::emit_reply(epoch, Err(why), &mut self.out);
            line.send(&self.out)?;
            return Ok(Heard::Nothing);
        }
        draft::emit_reply(epoch, Ok(own), &mut self.out);
        line.send(&self.out)?;
        Answer::Node(Node { n_texts: n_texts as u32, ..self.about }).emit(&mut self.out);
        line.send(&self.out)?;
        Ok(Heard::Begun(n_texts))
    }
}

impl<S> Thought<S> {
    fn new(stream: S, ctx_len: usize) -> Thought<S> {
        let ids = Vec::with_capacity(ctx_len);
        Thought { stream, ids, n_text: 0, serial: 0, wanted: 0, n_sent: 0 }
    }

    /// Applies a master's message about its text; `None` if the message is invalid.
    fn hear(&mut self, text: &Text<'_>, about: &Node) -> Option<()> {
        let (from, n) = (text.from as usize, text.ids.len());
        let is_known = text.ids.iter().all(|id| id < about.vocab_len);
        if from > self.n_text || from + n > about.ctx_len as usize || !is_known {
            return None;
        }
        // Keeps drafts that agree with the new text: they may still be right.
        let follows = self.ids[from..].iter().copied();
        if from + n > self.ids.len() || !follows.take(n).eq(text.ids.iter()) {
            self.ids.truncate(from);
            self.ids.extend(text.ids.iter());
        }
        self.n_text = from + n;
        self.serial = text.serial;
        let room = about.ctx_len as usize - self.n_text;
        (self.wanted, self.n_sent) = ((text.wanted as usize).min(room), 0);
        (self.n_text > 0 || self.wanted == 0).then_some(())
    }

    /// Whether more drafts are wanted than were sent.
    fn is_wanting(&self) -> bool {
        self.n_sent < self.wanted
    }

    /// Reads a part of the text; if all of it is read, drafts one more id.
    fn think(&mut self, model: &impl DraftModel<Stream = S>) -> Result<(), ChannelError> {
        if self.ids.len() > self.n_text + self.n_sent {
            return Ok(());
        }
        let is_text = self.ids.len() == self.n_text;
        match model.read(&mut self.stream, &self.ids, is_text)? {
            Read::Next(id) => self.ids.push(id),
            Read::Nothing => self.wanted = 0,
            Read::Part => {}
        }
        Ok(())
    }

    /// Writes the drafts to send to `out`, for the text number `index`; `false` if there are none.
    fn emit(&mut self, index: usize, out: &mut Vec<u8>) -> bool {
        let end = self.ids.len().min(self.n_text + self.wanted);
        let ids = self.ids.get(self.n_text + self.n_sent..end).unwrap_or_default();
        if ids.is_empty() {
            return false;
        }
        let (serial, at) = (self.serial, self.n_sent as u32);
        let draft = Draft { index: index as u32, serial, at, ids: Ids::default() };
        draft::emit_draft(&draft, ids.iter().copied(), out);
        self.n_sent += ids.len();
        true
    }
}
