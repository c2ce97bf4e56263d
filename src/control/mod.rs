//! Status requests and orders to a running master, over a Unix socket that only its user may open.
//!
//! ```text
//! request   one line of up to 4 KiB
//! answer    lines that begin with `#`: what is being done, at least one every other second
//!           one line: a digit, the exit code for the client
//!           the rest, up to 256 KiB: the result; or one line with the reason why there is none
//! ```
//!
//! - [`place`] knows where such sockets are.
//! - [`server`] answers, on a thread for each client.
//! - [`client`] asks.

pub(crate) mod client;
pub(crate) mod place;
pub(crate) mod server;
#[cfg(test)]
mod tests;

use std::time::Duration;

/// Bytes of the longest request.
const REQUEST_MAX: usize = 4096;
/// Bytes of the longest answer.
const ANSWER_MAX: usize = 256 << 10;
/// Interval at which a waiting client hears what is being done.
pub(crate) const WORD_EVERY: Duration = Duration::from_secs(1);
/// How long the other end may be silent.
const SILENCE: Duration = Duration::from_secs(10);

/// Why a request is not carried out, and the exit code for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: u8,
    pub(crate) why: String,
}
