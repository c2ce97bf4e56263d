//! A board that waits to be called.

use std::io;
use std::net::{IpAddr, SocketAddr};

use std::thread;
use std::time::{Duration, Instant};

use super::holder::{self, Caller, Holders};
use crate::channel::server::{self, Service};
use crate::channel::{Channel, ChannelError};
use crate::wire::call::{Call, Figures, HeldState, Reply};
use crate::wire::give::MESSAGE_MAX;
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

/// An order of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The ring file, and the port on which the master gives layers.
    Ring { file: String, port: u16 },
    /// The board gets no place in the ring.
    Rest,
}

/// Handler of an order: keeps it, or returns why not.
pub(crate) type Take = Box<dyn Fn(Order) -> Result<(), String> + Send + Sync>;
/// Handler that gets the layers that a ring file gives the board, from a port of the master. Returns the percentage
/// that is there, or the reason why there are none.
pub(crate) type Prepare = Box<dyn Fn(&str, u16) -> Result<u32, String> + Send + Sync>;
/// Handler that forgets the board's measurements of itself.
pub(crate) type Forget = Box<dyn Fn() -> Result<(), String> + Send + Sync>;
/// The board's work for the master that holds it, or the reason why there is none.
pub(crate) type State = Box<dyn Fn() -> Result<HeldState, String> + Send + Sync>;
/// Handler of strangers.
pub(crate) type Refuse = Box<dyn Fn(IpAddr, &ChannelError) + Send + Sync>;

/// A board that waits for orders: its figures, and the handlers of calls.
pub(crate) struct Board {
    /// The board's speeds and memory.
    pub(crate) figures: Figures,
    pub(crate) take: Take,
    pub(crate) prepare: Prepare,
    /// Keeps an order without carrying it out, because the ring has changed so by itself.
    pub(crate) keep: Take,
    pub(crate) forget: Forget,
    pub(crate) state: State,
    pub(crate) refuse: Refuse,
}

/// How often a board checks whether another master has taken it.
const LOOKED_EVERY: Duration = Duration::from_millis(50);

/// A board, and the master that it works for.
struct Called {
    board: Board,
    holders: Holders,
}

/// Lets masters that have the key call `board` at `address`, for as long as the process lives. Returns the
/// address that it listens at.
///
/// # Errors
/// If the system refuses the address or a thread.
pub(crate) fn start(board: Board, address: SocketAddr, key: Key) -> io::Result<SocketAddr> {
    server::start(("leap-call", Purpose::Orders), address, key, service(board))
}

/// The service that answers masters for `board`.
pub(crate) fn service(board: Board) -> impl Service {
    Called { board, holders: Holders::default() }
}

impl Service for Called {
    fn talk(&self, mut channel: Channel<'_>, from: IpAddr) -> Result<(), ChannelError> {
        let mut bytes = vec![0; MESSAGE_MAX];
        let mut caller = None;
        loop {
            let len = channel.receive(&mut bytes)?;
            match (parse(&bytes[..len])?, &caller) {
                (Call::Master { run, name, is_taking }, _) => {
                    let name = name.as_str().to_owned();
                    let from = from.to_canonical();
                    let caller = caller.insert(Caller { run, name, from, is_taking });
                    let admitted = self.holders.admit(caller);
                    let reply = admitted.map_or_else(|why| Reply::busy(&why), |()| Reply::Done);
                    channel.send(&reply.emit())?;
                }
                (_, None) => {
                    return Err(ChannelError::Broken("a call before the master gave its name"));
                }
                (Call::Hold, Some(caller)) => return self.hold(channel, caller),
                (call, Some(caller)) => channel.send(&self.reply(call, caller).emit())?,
            }
        }
    }

    fn refuse(&self, from: IpAddr, why: &ChannelError) {
        (self.board.refuse)(from, why);
    }
}

fn parse(bytes: &[u8]) -> Result<Call<'_>, ChannelError> {
    Call::parse(bytes).map_err(|_| ChannelError::Broken("a call without meaning"))
}

impl Called {
    /// The board's answer to `call` of a master that may call it.
    fn reply(&self, call: Call<'_>, caller: &Caller) -> Reply {
        if let Err(why) = self.holders.admit(caller) {
            return Reply::busy(&why);
        }
        let (is_order, is_rest) = (matches!(call, Call::Ring { .. }), call == Call::Rest);
        let reply = self.board.reply(call);
        match reply {
            Reply::Done if is_order => self.holders.take(caller),
            Reply::Done if is_rest => self.holders.release(caller),
            _ => {}
        }
        reply
    }

    /// Works for `caller` as long as it repeats its call, and no other master takes the board.
    fn hold(&self, mut channel: Channel<'_>, caller: &Caller) -> Result<(), ChannelError> {
        if let Err(why) = self.holders.admit(caller) {
            return channel.send(&Reply::busy(&why).emit());
        }
        let held = || {
            let state = (self.board.state)();
            state.map_or_else(|why| Reply::refused(&why), Reply::Held).emit()
        };
        let lease = self.holders.hold(caller);
        let (mut heard, mut bytes) = (Instant::now(), vec![0; MESSAGE_MAX]);
        channel.send(&held())?;
        while heard.elapsed() < holder::SILENCE {
            if channel.has_next() {
                let len = channel.receive(&mut bytes)?;
                if parse(&bytes[..len])? != Call::Hold {
                    return Err(ChannelError::Broken("an order where it holds the board"));
                }
                heard = Instant::now();
                if let Some(why) = lease.lost() {
                    return channel.send(&Reply::busy(&why).emit());
                }
                channel.send(&held())?;
            }
            thread::sleep(LOOKED_EVERY);
        }
        Ok(())
    }
}

impl Board {
    fn reply(&self, call: Call<'_>) -> Reply {
        let ring = |file: &str, port| Order::Ring { file: file.to_owned(), port };
        let done = |()| Reply::Done;
        let reply = match call {
            Call::Ask => return Reply::Figures(self.figures.clone()),
            // A master that holds the board has called it before.
            Call::Probe(_) | Call::Master { .. } | Call::Hold => return Reply::Done,
            Call::Ring { port, file } => (self.take)(ring(file, port)).map(done),
            Call::Rest => (self.take)(Order::Rest).map(done),
            Call::Prepare { port, file } => (self.prepare)(file, port).map(Reply::Prepared),
            Call::Keep { port, file } => (self.keep)(ring(file, port)).map(done),
            Call::Forget => (self.forget)().map(done),
        };
        reply.unwrap_or_else(|why| Reply::refused(&why))
    }
}
