//! A connection of two boards that have the same key: [`Channel`]. [`server`] accepts such connections.

mod destination;
mod guests;
pub(crate) mod server;

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::sys::{net, random};
use crate::wire::give::MESSAGE_MAX;
use crate::wire::noise::MESSAGE_LEN;
use crate::wire::opening::{
    self, DESTINATION_LEN, No, OPENING_LEN, Opening, PROLOGUE_LEN, Purpose, VERSION,
};
use crate::wire::seal::Key;
use crate::wire::talk::{SEAL_BYTES, Talk};

/// TCP port on which boards answer each other, unless the user names one.
pub(crate) const PORT_DEFAULT: u16 = 9998;
/// How long the other end may be silent.
const SILENCE: Duration = Duration::from_secs(20);
/// Longest time for a message whose bytes keep coming: a radio that loses most packets is slow.
const MESSAGE: Duration = Duration::from_secs(120);
/// Longest wait until a connection is established.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the other end may take to prove that it has the key.
const PROOF: Duration = Duration::from_secs(5);
/// How often a wait checks whether the user interrupts it.
const ASKED_EVERY: Duration = Duration::from_millis(200);

/// Why a connection ends.
#[derive(Debug)]
pub enum ChannelError {
    /// The system's error, or the other end has gone. A later attempt may succeed.
    Io(io::Error),
    /// The other end broke the protocol.
    Broken(&'static str),
    /// The other end has another key.
    Key,
    /// The other end speaks another version.
    Version(u32),
    /// The other end serves another purpose.
    Purpose,
    /// The greeting was meant for another board, and a stranger carried it here.
    Destination,
    /// The user interrupted it.
    Interrupted,
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChannelError::Io(e) => write!(f, "{e}"),
            ChannelError::Broken(what) => write!(f, "it does not talk as a board does: {what}"),
            ChannelError::Key => write!(f, "it has another key"),
            ChannelError::Version(version) => {
                write!(f, "it is of another release of LEAP (protocol {version}, here {VERSION})")
            }
            ChannelError::Purpose => write!(f, "that port is there for something else"),
            ChannelError::Destination => write!(
                f,
                "what it sends was meant for another address; a tunnel has to keep the port"
            ),
            ChannelError::Interrupted => write!(f, "interrupted"),
        }
    }
}

impl std::error::Error for ChannelError {}

impl From<io::Error> for ChannelError {
    fn from(error: io::Error) -> ChannelError {
        ChannelError::Io(error)
    }
}

/// An end of a connection of two boards that have the same key.
pub(crate) struct Channel<'a> {
    stream: TcpStream,
    talk: Talk,
    is_interrupted: &'a (dyn Fn() -> bool + Sync),
    /// Called once the other end has proved the key; a replayed greeting does not count.
    on_proof: Option<&'a (dyn Fn() + Sync)>,
    /// A length and a sealed message.
    sealed: Box<[u8; 2 + MESSAGE_MAX + SEAL_BYTES]>,
}

impl<'a> Channel<'a> {
    /// The calling end of a connection to `address`.
    pub(crate) fn connect(
        address: SocketAddr,
        purpose: Purpose,
        key: &Key,
        is_interrupted: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Channel<'a>, ChannelError> {
        Channel::connect_as(address, address, purpose, key, is_interrupted)
    }

    /// The calling end of a connection to `destination` over `address`, which forwards everything.
    pub(crate) fn connect_as(
        address: SocketAddr,
        destination: SocketAddr,
        purpose: Purpose,
        key: &Key,
        is_interrupted: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Channel<'a>, ChannelError> {
        let mut stream = TcpStream::connect_timeout(&address, CONNECT)?;
        set_up(&stream)?;
        let (ephemeral, prologue) = (random::seed()?, opening::prologue(purpose, destination));
        let end = key.end(&ephemeral, &prologue);
        let greeting = end.greeting();
        destination::remember(&greeting);
        write(&mut stream, &[&prologue[..], &greeting].concat(), is_interrupted)?;
        check_opening(&mut stream, purpose, is_interrupted)?;
        let mut answer = [0; MESSAGE_LEN];
        read_all(&mut stream, &mut answer, PROOF, is_interrupted)?;
        match No::parse(&answer) {
            Some(No::Key) => return Err(ChannelError::Key),
            Some(No::Destination) => return Err(ChannelError::Destination),
            None => {}
        }
        let talk = end.conclude(&answer).ok_or(ChannelError::Key)?;
        Ok(Channel::new(stream, talk, is_interrupted))
    }

    /// The listener's end of a connection for `purpose`. `on_proof` is called when the other end has sent
    /// something under the exchanged keys: a greeting alone may be a recorded one.
    fn accept(
        mut stream: TcpStream,
        purpose: Purpose,
        key: &Key,
        is_interrupted: &'a (dyn Fn() -> bool + Sync),
        on_proof: &'a (dyn Fn() + Sync),
    ) -> Result<Channel<'a>, ChannelError> {
        set_up(&stream)?;
        let mut prologue = [0; PROLOGUE_LEN];
        let (opened, destination) = prologue.split_at_mut(OPENING_LEN);
        read_all(&mut stream, opened, PROOF, is_interrupted)?;
        let checked = check(opened, purpose);
        if !matches!(checked, Err(ChannelError::Broken(_))) {
            write(&mut stream, &opening::opening(purpose), is_interrupted)?;
        }
        checked?;
        read_all(&mut stream, destination, PROOF, is_interrupted)?;
        let to: [u8; DESTINATION_LEN] = destination.try_into().unwrap_or([0; DESTINATION_LEN]);
        let mut greeting = [0; MESSAGE_LEN];
        read_all(&mut stream, &mut greeting, PROOF, is_interrupted)?;
        let ephemeral = random::seed()?;
        let accepted = key.end(&ephemeral, &prologue).accept(&greeting);
        let Some((answer, talk)) = accepted else {
            write(&mut stream, &No::Key.emit(), is_interrupted)?;
            return Err(ChannelError::Key);
        };
        let (to, at) = (opening::destination(&to), stream.local_addr()?);
        if !destination::is_meant(&greeting, to, at) {
            write(&mut stream, &No::Destination.emit(), is_interrupted)?;
            return Err(ChannelError::Destination);
        }
        write(&mut stream, &answer, is_interrupted)?;
        let channel = Channel::new(stream, talk, is_interrupted);
        Ok(Channel { on_proof: Some(on_proof), ..channel })
    }

    fn new(
        stream: TcpStream,
        talk: Talk,
        is_interrupted: &'a (dyn Fn() -> bool + Sync),
    ) -> Channel<'a> {
        let sealed = Box::new([0; 2 + MESSAGE_MAX + SEAL_BYTES]);
        Channel { stream, talk, is_interrupted, on_proof: None, sealed }
    }

    /// Address at which the other end reaches this one.
    pub(crate) fn local_ip(&self) -> io::Result<IpAddr> {
        Ok(self.stream.local_addr()?.ip())
    }

    /// Whether the next message has begun to come, or the other end has gone.
    pub(crate) fn has_next(&self) -> bool {
        net::is_readable(self.stream.as_fd())
    }

    /// The connection's file, to wait for the next message.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Sends `bytes` as messages of up to [`MESSAGE_MAX`].
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        for message in bytes.chunks(MESSAGE_MAX) {
            let len = self.talk.seal(message, &mut self.sealed[2..]);
            self.sealed[..2].copy_from_slice(&(len as u16).to_le_bytes());
            write(&mut self.stream, &self.sealed[..2 + len], self.is_interrupted)?;
        }
        Ok(())
    }

    /// Takes the next message into `out`, and returns its length.
    pub(crate) fn receive(&mut self, out: &mut [u8]) -> Result<usize, ChannelError> {
        let mut len = [0; 2];
        let within = Within { silence: SILENCE, all: MESSAGE };
        read_within(&mut self.stream, &mut len, within, self.is_interrupted)?;
        let len = usize::from(u16::from_le_bytes(len));
        let sealed = self.sealed.get_mut(..len).ok_or(ChannelError::Broken("a long message"))?;
        read_within(&mut self.stream, sealed, within, self.is_interrupted)?;
        let opened = self.talk.open(sealed, out);
        let len = opened.ok_or(ChannelError::Broken("a message that does not open"))?;
        if let Some(on_proof) = self.on_proof.take() {
            on_proof();
        }
        Ok(len)
    }

    /// Fills `out` with messages as [`send`](Self::send) cuts them.
    pub(crate) fn receive_all(&mut self, out: &mut [u8]) -> Result<(), ChannelError> {
        for message in out.chunks_mut(MESSAGE_MAX) {
            if self.receive(message)? != message.len() {
                return Err(ChannelError::Broken("a short message"));
            }
        }
        Ok(())
    }
}

fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    net::repeat_soon(stream);
    stream.set_read_timeout(Some(ASKED_EVERY))?;
    stream.set_write_timeout(Some(ASKED_EVERY))
}

/// Reads and checks the other end's opening of the connection.
fn check_opening(
    stream: &mut TcpStream,
    purpose: Purpose,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<(), ChannelError> {
    let mut bytes = [0; OPENING_LEN];
    read_all(stream, &mut bytes, PROOF, is_interrupted)?;
    check(&bytes, purpose)
}

/// Whether an opening is of this version and for this purpose.
fn check(bytes: &[u8], purpose: Purpose) -> Result<(), ChannelError> {
    let opened = bytes.first_chunk().map(Opening::parse);
    match opened {
        Some(Ok(Opening { version, .. })) if version != VERSION => {
            Err(ChannelError::Version(version))
        }
        Some(Ok(opened)) if opened.purpose == Some(purpose) => Ok(()),
        Some(Ok(_)) => Err(ChannelError::Purpose),
        _ => Err(ChannelError::Broken("it is no board")),
    }
}

/// Writes all of `bytes`. Times out if the other end takes nothing for [`SILENCE`].
fn write(
    stream: &mut TcpStream,
    bytes: &[u8],
    is_interrupted: &dyn Fn() -> bool,
) -> Result<(), ChannelError> {
    write_within(stream, bytes, SILENCE, is_interrupted)
}

fn write_within(
    stream: &mut TcpStream,
    mut bytes: &[u8],
    silence: Duration,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<(), ChannelError> {
    let mut taken = Instant::now();
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero).into()),
            Ok(n) => (bytes, taken) = (&bytes[n..], Instant::now()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if is_interrupted() {
                    return Err(ChannelError::Interrupted);
                }
                if taken.elapsed() >= silence {
                    return Err(net::timed_out(silence).into());
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Limits for the time of reading.
#[derive(Clone, Copy)]
struct Within {
    /// Longest time without new bytes.
    silence: Duration,
    all: Duration,
}

/// Fills `out` within the time `all`.
fn read_all(
    stream: &mut TcpStream,
    out: &mut [u8],
    all: Duration,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<(), ChannelError> {
    read_within(stream, out, Within { silence: all, all }, is_interrupted)
}

fn read_within(
    stream: &mut TcpStream,
    mut out: &mut [u8],
    within: Within,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<(), ChannelError> {
    let start = Instant::now();
    let mut heard = start;
    // The limit that is exceeded.
    let late_after = |heard: Instant| match () {
        () if start.elapsed() >= within.all => Some(within.all),
        () if heard.elapsed() >= within.silence => Some(within.silence),
        () => None,
    };
    while !out.is_empty() {
        if is_interrupted() {
            return Err(ChannelError::Interrupted);
        }
        match stream.read(out) {
            Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(n) => {
                if let Some(after) = late_after(heard) {
                    return Err(net::timed_out(after).into());
                }
                (out, heard) = (&mut out[n..], Instant::now());
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if let Some(after) = late_after(heard) {
                    return Err(net::timed_out(after).into());
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    #[test]
    fn a_message_that_comes_slowly_is_waited_for_and_one_that_stands_still_is_not() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let sender = thread::spawn(move || {
            let (mut to, _) = listener.accept().unwrap();
            for byte in 0..8u8 {
                thread::sleep(Duration::from_millis(400));
                to.write_all(&[byte]).unwrap();
            }
            to
        });
        let mut from = TcpStream::connect(address).unwrap();
        set_up(&from).unwrap();
        // The whole message takes longer than the allowed silence.
        let within = |all| Within { silence: Duration::from_secs(2), all };
        let mut bytes = [0; 8];
        let whole = read_within(&mut from, &mut bytes, within(MESSAGE), &|| false);
        assert!(whole.is_ok() && bytes == [0, 1, 2, 3, 4, 5, 6, 7], "{whole:?}");
        let _open = sender.join().unwrap();
        let more = read_within(&mut from, &mut bytes, within(MESSAGE), &|| false);
        assert!(matches!(more, Err(ChannelError::Io(e)) if e.kind() == ErrorKind::TimedOut));
    }
}
