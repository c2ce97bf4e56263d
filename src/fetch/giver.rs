//! Gives the layers of a model file to boards that ask for them.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::channel::{Channel, ChannelError};
pub(crate) use super::content::Content;
use crate::wire::give::{self, Offer, PIECE_BYTES, QUESTION_LEN, Question};
use crate::wire::seal::Key;

/// Connections at the same time; others wait.
const CONNECTIONS_MAX: usize = 64;
/// Strangers that are remembered.
const STRANGERS_MAX: usize = 64;
/// How long the next one waits where the system has no room for it.
const RETRY: Duration = Duration::from_millis(500);

/// What there is to tell of it.
#[derive(Debug)]
pub(crate) enum Gift {
    /// A board begins to take these layers.
    Begun { name: String, from: IpAddr, layers: Range<u32> },
    /// A board cannot have what it wants.
    Refused { name: String, from: IpAddr, why: String },
    /// Somebody without the key, or of another release, has asked.
    Stranger { from: IpAddr, why: String },
}

/// Who is told of it.
pub(crate) type Tell = Box<dyn Fn(&Gift) + Send + Sync>;

struct Giver {
    content: Content,
    key: Key,
    tell: Tell,
    n_connections: AtomicUsize,
    /// Who has been told of as a stranger: each is once.
    strangers: Mutex<Vec<IpAddr>>,
}

/// Gives `content` to whoever has the key and connects to `address`, for as long as the process lives.
/// Returns where it listens.
///
/// # Errors
/// If the system refuses the address or a thread.
pub(crate) fn start(
    content: Content,
    address: SocketAddr,
    key: Key,
    tell: Tell,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    let (n_connections, strangers) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let giver = Arc::new(Giver { content, key, tell, n_connections, strangers });
    thread::Builder::new().name("leap-give".to_owned()).spawn(move || accept(&listener, &giver))?;
    Ok(bound)
}

fn accept(listener: &TcpListener, giver: &Arc<Giver>) {
    loop {
        if giver.n_connections.load(Ordering::Acquire) >= CONNECTIONS_MAX {
            thread::sleep(RETRY);
            continue;
        }
        let Ok((stream, from)) = listener.accept() else {
            thread::sleep(RETRY);
            continue;
        };
        giver.n_connections.fetch_add(1, Ordering::AcqRel);
        let served = Arc::clone(giver);
        let serve = move || {
            served.serve(stream, from.ip());
            served.n_connections.fetch_sub(1, Ordering::AcqRel);
        };
        if thread::Builder::new().name("leap-give".to_owned()).spawn(serve).is_err() {
            giver.n_connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Giver {
    fn serve(&self, stream: TcpStream, from: IpAddr) {
        let why = match self.talk(stream, from) {
            Ok(()) | Err(ChannelError::Io(_) | ChannelError::Interrupted) => return,
            Err(ChannelError::Key) => "it has another key".to_owned(),
            Err(ChannelError::Version(version)) => {
                format!("it is of another release of LEAP (protocol {version})")
            }
            Err(ChannelError::Broken(what)) => what.to_owned(),
        };
        if self.is_new(from) {
            (self.tell)(&Gift::Stranger { from, why });
        }
    }

    /// Whether nothing has been told yet of a stranger there.
    fn is_new(&self, from: IpAddr) -> bool {
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !strangers.contains(&from) && strangers.len() < STRANGERS_MAX;
        if is_new {
            strangers.push(from);
        }
        is_new
    }

    /// Answers what a board asks, until it goes.
    fn talk(&self, stream: TcpStream, from: IpAddr) -> Result<(), ChannelError> {
        let mut channel = Channel::accept(stream, &self.key, &|| false)?;
        let Question::Want { start, end, name } = question(&mut channel)? else {
            return Err(ChannelError::Broken("it asks for pieces of nothing"));
        };
        let end = if end == 0 { self.content.n_layers() } else { end as usize };
        let layers = start as usize..end;
        let name = name.as_str().to_owned();
        let part = match self.content.part(layers) {
            Ok(part) => part,
            Err(why) => {
                channel.send(&give::emit_reason(&why))?;
                (self.tell)(&Gift::Refused { name, from, why });
                return Ok(());
            }
        };
        let layers = start..end as u32;
        let fingerprint = self.content.fingerprint();
        let offer = Offer { layers: layers.clone(), bytes: part.len(), fingerprint };
        channel.send(&offer.emit())?;
        let (mut bytes, mut is_told) = (Vec::with_capacity(PIECE_BYTES as usize), false);
        loop {
            let (index, is_hash) = match question(&mut channel)? {
                Question::Hash(index) => (index, true),
                Question::Piece(index) => (index, false),
                Question::Want { .. } => return Err(ChannelError::Broken("it asks twice")),
            };
            part.piece(index, &mut bytes)?.ok_or(ChannelError::Broken("it asks beyond the end"))?;
            match is_hash {
                true => channel.send(&Sha256::digest(&bytes))?,
                false => channel.send(&bytes)?,
            }
            if !is_hash && !is_told {
                is_told = true;
                let (name, layers) = (name.clone(), layers.clone());
                (self.tell)(&Gift::Begun { name, from, layers });
            }
        }
    }
}

fn question(channel: &mut Channel<'_>) -> Result<Question, ChannelError> {
    let mut bytes = [0; QUESTION_LEN];
    let len = channel.receive(&mut bytes)?;
    Question::parse(&bytes[..len]).map_err(|_| ChannelError::Broken("a question without meaning"))
}
