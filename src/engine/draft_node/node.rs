//! A draft node: a board that drafts the next tokens of other boards' texts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::session::{DraftModel, Heard, Read, Session};
use super::vocabulary::{self, Vocabulary};
use crate::channel::server::{self, Service};
use crate::channel::{Channel, ChannelError};
use crate::engine::stream::Stream;
use crate::engine::{Engine, StepError};
use crate::sampler::argmax;
use crate::tokenizer::Tokenizer;
use crate::wire::draft::{Answer, Node, TOKEN_MAX};
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

impl DraftModel for DraftNode {
    type Stream = Stream;

    fn stream(&self) -> Option<Stream> {
        self.engine().stream().ok()
    }

    fn read(&self, stream: &mut Stream, ids: &[u32], is_text: bool) -> Result<Read, ChannelError> {
        let mut engine = self.engine();
        engine.go_back(stream, ids);
        let rest = &ids[stream.pos()..];
        let slice = &rest[..rest.len().min(READ_MAX)];
        let is_all = slice.len() == rest.len();
        // Drafts behind the text may turn out to be wrong.
        let pushed = match is_all && is_text {
            true => engine.push_and_keep(stream, slice),
            false => engine.push(stream, slice),
        };
        match pushed {
            Ok(_) if !is_all => Ok(Read::Part),
            // There is no next id if the logits are NaN.
            Ok(logits) => Ok(argmax(logits).map_or(Read::Nothing, Read::Next)),
            Err(StepError::Interrupted) => Err(ChannelError::Interrupted),
            Err(e) => {
                log::debug!("no draft: {e}");
                // The reason may be memory that this text's KV occupies.
                stream.clear();
                Ok(Read::Nothing)
            }
        }
    }
}

impl Service for DraftNode {
    /// Answers a master's messages, and drafts in between.
    fn talk(&self, mut channel: Channel<'_>, from: IpAddr) -> Result<(), ChannelError> {
        let (mut bytes, mut session) = (vec![0; MESSAGE_MAX], Session::new(self.about));
        loop {
            // A message from the master comes first: it may show that the drafts are useless.
            if session.is_wanting() && !channel.has_next() {
                session.think(self, &mut channel)?;
                continue;
            }
            let len = channel.receive(&mut bytes)?;
            match session.hear(&bytes[..len], (self, &self.line), &mut channel)? {
                Heard::Begun(n_texts) if n_texts > 0 => {
                    (self.tell)(&DraftNotice::Begun { from, n_texts });
                }
                Heard::Begun(_) | Heard::Nothing => {}
                Heard::Hash(n) => channel.send(&self.hash(n)?)?,
                Heard::Token(id) => channel.send(&self.token(id)?)?,
            }
        }
    }

    fn refuse(&self, from: IpAddr, why: &ChannelError) {
        (self.tell)(&DraftNotice::Stranger { from, why: why.to_string() });
    }
}

impl DraftNode {
    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message with the hash of the first `n` tokens.
    fn hash(&self, n: u32) -> Result<Vec<u8>, ChannelError> {
        match n <= self.about.vocab_len {
            true => Ok(emitted(&Answer::Hash(vocabulary::hash(&self.tokenizer, n)))),
            false => Err(ChannelError::Broken("it asks what cannot be")),
        }
    }

    /// The message with the bytes of a token.
    fn token(&self, id: u32) -> Result<Vec<u8>, ChannelError> {
        let token = self.tokenizer.token_bytes(id);
        let token = token.ok_or(ChannelError::Broken("no such token"))?;
        Ok(emitted(&Answer::Token(&token[..token.len().min(TOKEN_MAX)])))
    }
}

fn emitted(answer: &Answer<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    answer.emit(&mut out);
    out
}
