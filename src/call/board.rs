//! A board that waits to be called.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::channel::server::{self, Service};
use crate::channel::{Channel, ChannelError};
use crate::wire::call::{Call, Figures, Reply};
use crate::wire::give::MESSAGE_MAX;
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

/// What a master told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The ring file, and the port on which the master gives layers.
    Ring { file: String, port: u16 },
    /// There is no place in the ring.
    Rest,
}

/// Who takes it: keeps it, or says why not.
pub(crate) type Take = Box<dyn Fn(Order) -> Result<(), String> + Send + Sync>;
/// Who gets the layers that the board has in a ring file from a port of the master: says how many percent are
/// there, or why there are none.
pub(crate) type Prepare = Box<dyn Fn(&str, u16) -> Result<u32, String> + Send + Sync>;
/// Who forgets what the board has measured of itself.
pub(crate) type Forget = Box<dyn Fn() -> Result<(), String> + Send + Sync>;
/// Who hears of strangers.
pub(crate) type Refuse = Box<dyn Fn(IpAddr, &ChannelError) + Send + Sync>;

/// What a board that waits says and does.
pub(crate) struct Board {
    /// What it can do.
    pub(crate) figures: Figures,
    pub(crate) take: Take,
    pub(crate) prepare: Prepare,
    /// Keeps an order without doing it: the ring has become so by itself.
    pub(crate) keep: Take,
    pub(crate) forget: Forget,
    pub(crate) refuse: Refuse,
}

/// Lets masters that have the key call `board` at `address`, for as long as the process lives. Returns where
/// it listens.
///
/// # Errors
/// If the system refuses the address or a thread.
pub(crate) fn start(board: Board, address: SocketAddr, key: Key) -> io::Result<SocketAddr> {
    server::start(("leap-call", Purpose::Orders), address, key, board)
}

impl Service for Board {
    fn talk(&self, mut channel: Channel<'_>, _: IpAddr) -> Result<(), ChannelError> {
        let mut bytes = vec![0; MESSAGE_MAX];
        loop {
            let len = channel.receive(&mut bytes)?;
            let call = Call::parse(&bytes[..len]);
            let call = call.map_err(|_| ChannelError::Broken("a call without meaning"))?;
            channel.send(&self.reply(call).emit())?;
        }
    }

    fn refuse(&self, from: IpAddr, why: &ChannelError) {
        (self.refuse)(from, why);
    }
}

impl Board {
    fn reply(&self, call: Call<'_>) -> Reply {
        let ring = |file: &str, port| Order::Ring { file: file.to_owned(), port };
        let done = |()| Reply::Done;
        let reply = match call {
            Call::Ask => return Reply::Figures(self.figures.clone()),
            Call::Probe(_) => return Reply::Done,
            Call::Ring { port, file } => (self.take)(ring(file, port)).map(done),
            Call::Rest => (self.take)(Order::Rest).map(done),
            Call::Prepare { port, file } => (self.prepare)(file, port).map(Reply::Prepared),
            Call::Keep { port, file } => (self.keep)(ring(file, port)).map(done),
            Call::Forget => (self.forget)().map(done),
        };
        reply.unwrap_or_else(|why| Reply::refused(&why))
    }
}
