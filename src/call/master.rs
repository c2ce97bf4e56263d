//! A master's calls to boards.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::channel::{Channel, ChannelError};
use crate::sys::random;
use crate::wire::call::{Call, FIGURES_LEN_MAX, Figures, HeldState, Reply, TEXT_MAX};
use crate::wire::give::REASON_MAX;
use crate::wire::hello::{self, Name};
use crate::wire::opening::Purpose;
use crate::wire::seal::Key;

/// Short calls. The quickest of them gives the round trip.
const TRIPS: usize = 10;
/// Long calls of the last and longest batch that measures the bandwidth: 2 MB.
const PROBES: usize = 64;
/// No further batch begins after this time, so that a slow way is measured by fewer calls.
const MEASURED_WITHIN: Duration = Duration::from_millis(250);

/// Why a call came to nothing.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The connection ended, or never was.
    Channel(ChannelError),
    /// The board refuses; its own words.
    Refused(String),
    /// The board works for another master; its own words.
    Busy(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Channel(ChannelError::Key) => {
                write!(f, "{}, or waits for no call", ChannelError::Key)
            }
            CallError::Channel(e) => write!(f, "{e}"),
            CallError::Refused(why) | CallError::Busy(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for CallError {}

impl From<ChannelError> for CallError {
    fn from(error: ChannelError) -> CallError {
        CallError::Channel(error)
    }
}

impl CallError {
    /// Whether the same call may work later without a change by the user.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, CallError::Channel(ChannelError::Io(_)) | CallError::Busy(_))
    }

    /// Whether the failure comes from the board, proven with the key. Any other may come from a stranger in its place.
    pub(crate) fn is_proven(&self) -> bool {
        matches!(self, CallError::Refused(_) | CallError::Busy(_))
    }

    /// Whether the user interrupted the call.
    pub(crate) fn is_interruption(&self) -> bool {
        matches!(self, CallError::Channel(ChannelError::Interrupted))
    }
}

/// Identity of one run of a master, as boards see it.
#[derive(Debug)]
pub(crate) struct Identity {
    run: u64,
    name: Name,
    is_taking: AtomicBool,
}

/// Identity of this process.
static SELF: OnceLock<Identity> = OnceLock::new();

impl Identity {
    /// A run of a master of this name, which takes boards that work for others if `is_taking`.
    pub(crate) fn new(name: &str, is_taking: bool) -> Identity {
        // Without randomness no connection comes about either.
        let seed = random::seed().unwrap_or_default();
        let run = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at: usize| seed[at]));
        Identity { run, name: hello::name(name), is_taking: AtomicBool::new(is_taking) }
    }

    /// From now on this master takes no boards that work for others.
    pub(crate) fn be_content(&self) {
        self.is_taking.store(false, Ordering::Relaxed);
    }
}

/// Names this process as a master, which takes boards that work for others if `is_taking`. The first name
/// stays.
pub(crate) fn introduce(name: &str, is_taking: bool) -> &'static Identity {
    SELF.get_or_init(|| Identity::new(name, is_taking))
}

/// Speed of the way to a board.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Way {
    /// Round trip in seconds.
    pub(crate) round_trip_s: f64,
    /// Bandwidth in bytes per second.
    pub(crate) bytes_per_s: f64,
}

/// A board that is called.
pub(crate) struct Called<'a>(Channel<'a>);

impl<'a> Called<'a> {
    /// Calls the board at `address`.
    ///
    /// # Errors
    /// If no board with this key is there.
    pub(crate) fn new(
        address: SocketAddr,
        key: &Key,
        is_interrupted: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Called<'a>, CallError> {
        Called::by(introduce("", false), address, key, is_interrupted)
    }

    /// Calls the board in the name of this master.
    ///
    /// # Errors
    /// If no board with this key is there, or it works for another master.
    pub(crate) fn by(
        master: &Identity,
        address: SocketAddr,
        key: &Key,
        is_interrupted: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Called<'a>, CallError> {
        let channel = Channel::connect(address, Purpose::Orders, key, is_interrupted)?;
        Called::over(master, channel)
    }

    /// Calls a board over a channel in the name of this master.
    ///
    /// # Errors
    /// If the board works for another master, or is gone.
    pub(super) fn over(master: &Identity, channel: Channel<'a>) -> Result<Called<'a>, CallError> {
        let mut called = Called(channel);
        let Identity { run, name, is_taking } = master;
        let is_taking = is_taking.load(Ordering::Relaxed);
        called.done(&Call::Master { run: *run, name: name.clone(), is_taking })?;
        Ok(called)
    }

    /// Makes the board work for this master alone, until the connection ends or is silent for some seconds. Returns the
    /// board's state.
    ///
    /// # Errors
    /// [`CallError`]. A board that refuses cannot carry out its order, but is held nevertheless.
    pub(crate) fn hold(&mut self) -> Result<HeldState, CallError> {
        match self.say(&Call::Hold)? {
            Reply::Held(state) => Ok(state),
            _ => Err(ChannelError::Broken("no word of its ring").into()),
        }
    }

    /// Address at which the board reaches this master.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn local_ip(&self) -> Result<IpAddr, CallError> {
        Ok(self.0.local_ip().map_err(ChannelError::from)?)
    }

    /// Asks for the board's speeds and memory.
    ///
    /// # Errors
    /// [`CallError`].
    pub(crate) fn ask(&mut self) -> Result<Figures, CallError> {
        match self.say(&Call::Ask)? {
            Reply::Figures(figures) => Ok(figures),
            _ => Err(ChannelError::Broken("no figures").into()),
        }
    }

    /// Measures the way to the board.
    ///
    /// # Errors
    /// [`CallError`].
    pub(crate) fn measure(&mut self) -> Result<Way, CallError> {
        let mut round_trip_s = f64::INFINITY;
        let began = Instant::now();
        for trip in 0..TRIPS {
            if trip > 0 && began.elapsed() >= MEASURED_WITHIN {
                break;
            }
            let start = Instant::now();
            self.done(&Call::Probe(&[]))?;
            round_trip_s = round_trip_s.min(start.elapsed().as_secs_f64());
        }
        let probe = Call::Probe(&[0; TEXT_MAX]).emit();
        let (began, mut n) = (Instant::now(), 1);
        loop {
            let start = Instant::now();
            for _ in 0..n {
                self.0.send(&probe)?;
            }
            for _ in 0..n {
                self.hear_done()?;
            }
            let bytes_per_s = (n * probe.len()) as f64 / start.elapsed().as_secs_f64();
            if n >= PROBES || began.elapsed() >= MEASURED_WITHIN {
                return Ok(Way { round_trip_s, bytes_per_s });
            }
            n *= 2;
        }
    }

    /// Tells the board the ring, or that the board has no place in it.
    ///
    /// # Errors
    /// [`CallError`].
    pub(crate) fn tell(&mut self, call: &Call<'_>) -> Result<(), CallError> {
        self.done(call)
    }

    /// Makes the board get its layers of another ring file while it works. Returns the percentage that is there.
    ///
    /// # Errors
    /// [`CallError`].
    pub(crate) fn prepare(&mut self, port: u16, file: &str) -> Result<u32, CallError> {
        match self.say(&Call::Prepare { port, file })? {
            Reply::Prepared(percent) => Ok(percent),
            _ => Err(ChannelError::Broken("no percentage").into()),
        }
    }

    fn done(&mut self, call: &Call<'_>) -> Result<(), CallError> {
        self.0.send(&call.emit())?;
        self.hear_done()
    }

    fn say(&mut self, call: &Call<'_>) -> Result<Reply, CallError> {
        self.0.send(&call.emit())?;
        self.hear()
    }

    fn hear_done(&mut self) -> Result<(), CallError> {
        match self.hear()? {
            Reply::Done => Ok(()),
            _ => Err(ChannelError::Broken("figures that were not requested").into()),
        }
    }

    fn hear(&mut self) -> Result<Reply, CallError> {
        let mut bytes =
            [0; if FIGURES_LEN_MAX > 4 + REASON_MAX { FIGURES_LEN_MAX } else { 4 + REASON_MAX }];
        let len = self.0.receive(&mut bytes)?;
        match Reply::parse(&bytes[..len]) {
            Ok(Reply::Busy(with)) => Err(CallError::Busy(with.as_str().to_owned())),
            Ok(Reply::Refused(why)) => Err(CallError::Refused(why.as_str().to_owned())),
            Ok(reply) => Ok(reply),
            Err(_) => Err(ChannelError::Broken("a reply without meaning").into()),
        }
    }
}
