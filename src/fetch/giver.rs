//! Gives the layers of a model file to boards that ask for them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

pub(crate) use super::content::Content;
use crate::channel::server::{self, Service};
use crate::channel::{Channel, ChannelError};
use crate::wire::give::{self, Offer, PIECE_BYTES, QUESTION_LEN, Question, REASON_MAX};
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

/// An event of giving.
#[derive(Debug)]
pub enum Gift {
    /// A board begins to take these layers, or some rows of them.
    Begun { name: String, from: IpAddr, layers: Range<u32>, has_all_rows: bool },
    /// A board cannot have what it wants.
    Refused { name: String, from: IpAddr, why: String },
    /// A board cannot keep what it was to get.
    Unkept { name: String, from: IpAddr, why: String },
    /// A client without the key, or of another release, has asked.
    Stranger { from: IpAddr, why: String },
}

/// Receiver of events.
pub(crate) type Tell = Box<dyn Fn(&Gift) + Send + Sync>;

/// How many pieces this process has given.
static PIECES: AtomicU64 = AtomicU64::new(0);

/// Number of pieces that this process has given: it grows while a board makes progress.
pub(crate) fn n_pieces() -> u64 {
    PIECES.load(Ordering::Relaxed)
}

struct Giver {
    content: Content,
    tell: Tell,
}

/// Gives `content` to every client that has the key and connects to `address`, for as long as the process
/// lives. Returns the address that it listens at.
///
/// # Errors
/// If the system refuses the address or a thread.
pub(crate) fn start(
    content: Content,
    address: SocketAddr,
    key: Key,
    tell: Tell,
) -> io::Result<SocketAddr> {
    server::start(("leap-give", Purpose::Layers), address, key, Giver { content, tell })
}

impl Service for Giver {
    /// Answers a board's questions until the connection ends.
    fn talk(&self, mut channel: Channel<'_>, from: IpAddr) -> Result<(), ChannelError> {
        let Question::Want { start, end, rows, name, is_further } = question(&mut channel)? else {
            return Err(ChannelError::Broken("it asks for pieces of nothing"));
        };
        let end = if end == 0 { self.content.n_layers() } else { end as usize };
        let layers = start as usize..end;
        let name = name.as_str().to_owned();
        let part = match self.content.part(layers, rows.as_ref()) {
            Ok(part) => part,
            Err(why) => {
                channel.send(&give::emit_reason(&why))?;
                if !is_further {
                    (self.tell)(&Gift::Refused { name, from, why });
                }
                return Ok(());
            }
        };
        let layers = start..end as u32;
        let fingerprint = self.content.fingerprint();
        let (bytes, has_all_rows) = (part.len(), rows.is_none());
        let offer = Offer { layers: layers.clone(), bytes, fingerprint, rows: part.rows() };
        channel.send(&offer.emit())?;
        let (mut bytes, mut is_told) = (Vec::with_capacity(PIECE_BYTES as usize), is_further);
        loop {
            let (index, is_hash) = match question(&mut channel)? {
                Question::Hash(index) => (index, true),
                Question::Piece(index) => (index, false),
                Question::Cannot => {
                    let why = reason(&mut channel)?;
                    (self.tell)(&Gift::Unkept { name, from, why });
                    return Ok(());
                }
                Question::Want { .. } => return Err(ChannelError::Broken("it asks twice")),
            };
            // The board then asks for its layers again, and gets the reason.
            if let Err(why) = self.content.check_unchanged() {
                if !is_further {
                    (self.tell)(&Gift::Refused { name, from, why });
                }
                return Ok(());
            }
            part.piece(index, &mut bytes)?.ok_or(ChannelError::Broken("it asks beyond the end"))?;
            match is_hash {
                true => channel.send(&Sha256::digest(&bytes))?,
                false => channel.send(&bytes)?,
            }
            PIECES.fetch_add(1, Ordering::Relaxed);
            if !is_hash && !is_told {
                is_told = true;
                let (name, layers) = (name.clone(), layers.clone());
                (self.tell)(&Gift::Begun { name, from, layers, has_all_rows });
            }
        }
    }

    fn refuse(&self, from: IpAddr, why: &ChannelError) {
        (self.tell)(&Gift::Stranger { from, why: why.to_string() });
    }
}

fn question(channel: &mut Channel<'_>) -> Result<Question, ChannelError> {
    let mut bytes = [0; QUESTION_LEN];
    let len = channel.receive(&mut bytes)?;
    Question::parse(&bytes[..len]).map_err(|_| ChannelError::Broken("a question without meaning"))
}

fn reason(channel: &mut Channel<'_>) -> Result<String, ChannelError> {
    let mut bytes = [0; 4 + REASON_MAX];
    let len = channel.receive(&mut bytes)?;
    match give::parse_answer(&bytes[..len]) {
        Ok(Err(why)) => Ok(why.as_str().to_owned()),
        Ok(Ok(_)) | Err(_) => Err(ChannelError::Broken("a reason without meaning")),
    }
}
