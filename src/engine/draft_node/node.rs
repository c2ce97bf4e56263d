//! A draft node: a board that drafts the next tokens of other boards' texts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::vocabulary::{self, Vocabulary};
use crate::channel::server::{self, Service};
use crate::channel::{Channel, ChannelError};
use crate::engine::stream::Stream;
use crate::engine::{Engine, StepError};
use crate::sampler::argmax;
use crate::tokenizer::Tokenizer;
use crate::wire::draft::{self, Answer, Ask, Draft, Ids, Node, TOKEN_MAX, Text};
use crate::wire::frame::NodeLine;
use crate::wire::give::MESSAGE_MAX;
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

/// Number of a text's ids that are read between two looks for a new message.
const READ_MAX: usize = 64;

/// An event at a draft node.
#[derive(Debug)]
pub enum DraftNotice {
    /// Drafting for a master has begun.
    Begun {
        /// Address of the master.
        from: IpAddr,
        /// Number of the master's texts.
        n_texts: usize,
    },
    /// A client was refused: it lacks the key, has another release, or sends malformed messages.
    Stranger {
        /// Address of the client.
        from: IpAddr,
        /// Cause of the failure.
        why: String,
    },
}

/// Callback for notices of the draft node.
pub type Tell = Box<dyn Fn(&DraftNotice) + Send + Sync>;

struct DraftNode {
    engine: Mutex<Engine>,
    tokenizer: Arc<Tokenizer>,
    about: Node,
    /// The node's description of itself, as a member of a master's group.
    line: NodeLine,
    tell: Tell,
}

/// Starts a draft node. `engine` drafts for each master that connects to `address` and has the key, until the
/// process ends. Returns the address that the node listens on.
///
/// # Errors
/// If the system refuses the address or a thread.
pub fn start(
    (engine, tokenizer): (Engine, Arc<Tokenizer>),
    address: SocketAddr,
    key: Key,
    tell: Tell,
) -> io::Result<SocketAddr> {
    let Vocabulary { len, hash } = Vocabulary::new(&tokenizer);
    let about = Node { n_texts: 0, vocab_len: len, ctx_len: engine.ctx_len() as u32, hash };
    let line = NodeLine {
        isa: heapless::String::try_from(engine.isa().name()).unwrap_or_default(),
        threads: engine.about().threads as u16,
        nodes: 1,
        ..NodeLine::default()
    };
    let node = DraftNode { engine: Mutex::new(engine), tokenizer, about, line, tell };
    server::start(("leap-draft", Purpose::Guesses), address, key, node)
}

/// A text of a master, and the tokens that the node's model expects after it.
struct Thought {
    stream: Stream,
    /// Ids of the text, then drafted ids, up to `[ctx_len]`.
    ids: Vec<u32>,
    n_text: usize,
    serial: u32,
    /// Number of drafts that the master wants after the text, and number of those that were sent.
    wanted: usize,
    n_sent: usize,
}

impl Service for DraftNode {
    /// Answers a master's messages, and drafts in between.
    fn talk(&self, mut channel: Channel<'_>, from: IpAddr) -> Result<(), ChannelError> {
        let (mut bytes, mut out) = (vec![0; MESSAGE_MAX], Vec::with_capacity(draft::ANSWER_MAX));
        let mut thoughts: Option<Vec<Thought>> = None;
        let mut turn = 0;
        loop {
            let all = thoughts.as_deref_mut().unwrap_or_default();
            let n = all.len();
            let next = (0..n).map(|at| (turn + at) % n).find(|at| all[*at].is_wanting());
            // A message from the master comes first: it may show that the drafts are useless.
            if let Some(index) = next
                && !channel.has_next()
            {
                turn = index + 1;
                all[index].think(self)?;
                if all[index].emit(index, &mut out) {
                    channel.send(&out)?;
                }
                continue;
            }
            let len = channel.receive(&mut bytes)?;
            let Some(all) = &mut thoughts else {
                thoughts = Some(self.open(&bytes[..len], (&mut channel, from), &mut out)?);
                continue;
            };
            match Ask::parse(&bytes[..len]).map_err(|_| broken("an ask without meaning"))? {
                Ask::Text(text) => {
                    let thought = all.get_mut(text.index as usize).ok_or(broken("no such text"))?;
                    thought.hear(&text, &self.about).ok_or(broken("a text that cannot be"))?;
                }
                ask => {
                    self.answer(&ask, &mut out)?;
                    channel.send(&out)?;
                }
            }
        }
    }

    fn refuse(&self, from: IpAddr, why: &ChannelError) {
        (self.tell)(&DraftNotice::Stranger { from, why: why.to_string() });
    }
}

fn broken(what: &'static str) -> ChannelError {
    ChannelError::Broken(what)
}

impl DraftNode {
    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the first message, an OPEN: returns the texts that the node is ready for, none if it refuses.
    fn open(
        &self,
        bytes: &[u8],
        (channel, from): (&mut Channel<'_>, IpAddr),
        out: &mut Vec<u8>,
    ) -> Result<Vec<Thought>, ChannelError> {
        let opened = draft::parse_open(bytes);
        let (epoch, n) = opened.map_err(|_| broken("it does not open with what it wants"))?;
        let begun = self.begin(n);
        let n_texts = begun.len();
        if n_texts == 0 && n > 0 {
            draft::emit_reply(epoch, Err("it drafts for others, and has no room for more"), out);
            channel.send(out)?;
            return Ok(begun);
        }
        draft::emit_reply(epoch, Ok(&self.line), out);
        channel.send(out)?;
        Answer::Node(Node { n_texts: n_texts as u32, ..self.about }).emit(out);
        channel.send(out)?;
        if n_texts > 0 {
            (self.tell)(&DraftNotice::Begun { from, n_texts });
        }
        Ok(begun)
    }

    /// Streams for up to `n` texts; fewer if the engine has no more.
    fn begin(&self, n: usize) -> Vec<Thought> {
        let mut engine = self.engine();
        let ctx_len = engine.ctx_len();
        let streams = (0..n).map_while(|_| engine.stream().ok());
        streams.map(|stream| Thought::new(stream, ctx_len)).collect()
    }

    /// Answers a ping, or a question about the vocabulary.
    fn answer(&self, ask: &Ask<'_>, out: &mut Vec<u8>) -> Result<(), ChannelError> {
        match ask {
            Ask::Ping => Answer::Pong.emit(out),
            Ask::Hash(n) if *n <= self.about.vocab_len => {
                Answer::Hash(vocabulary::hash(&self.tokenizer, *n)).emit(out);
            }
            Ask::Token(id) => {
                let token = self.tokenizer.token_bytes(*id).ok_or(broken("no such token"))?;
                Answer::Token(&token[..token.len().min(TOKEN_MAX)]).emit(out);
            }
            _ => return Err(broken("it asks what cannot be")),
        }
        Ok(())
    }
}

impl Thought {
    fn new(stream: Stream, ctx_len: usize) -> Thought {
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
    fn think(&mut self, node: &DraftNode) -> Result<(), ChannelError> {
        if self.ids.len() > self.n_text + self.n_sent {
            return Ok(());
        }
        let mut engine = node.engine();
        engine.go_back(&mut self.stream, &self.ids);
        let rest = &self.ids[self.stream.pos()..];
        let slice = &rest[..rest.len().min(READ_MAX)];
        let is_all = slice.len() == rest.len();
        // Drafts behind the text may turn out to be wrong.
        let pushed = match is_all && self.ids.len() == self.n_text {
            true => engine.push_and_keep(&mut self.stream, slice),
            false => engine.push(&mut self.stream, slice),
        };
        match pushed {
            Ok(logits) => match argmax(logits).filter(|_| is_all) {
                Some(id) => self.ids.push(id),
                // The logits are NaN: there is no draft.
                None if is_all => self.wanted = 0,
                None => {}
            },
            Err(StepError::Interrupted) => return Err(ChannelError::Interrupted),
            Err(e) => {
                log::debug!("no draft: {e}");
                // The reason may be memory that this text's KV occupies.
                self.stream.clear();
                self.wanted = 0;
            }
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
