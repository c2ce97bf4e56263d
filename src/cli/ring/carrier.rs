//! Opens the links of a board.

use std::thread;
use std::time::{Duration, Instant};

use crate::cli::{Failure, note, warn};
use crate::fleet::interrupt::is_interrupted;
use crate::sys::tensor::OpenError;
use crate::transport::carrier::Carrier;
use crate::transport::options::CarrierOptions;
use crate::transport::{Endpoint, TransportError};

/// How often the name of this board is looked up until it has an address.
const NAME_EVERY: Duration = Duration::from_millis(500);

/// Opens the links. If the name of this board has no address yet, as may be when boards start, waits for one.
pub(in crate::cli) fn open(
    carrier: Carrier,
    options: &CarrierOptions,
    is_quiet: bool,
    patience: Option<Duration>,
) -> Result<Box<dyn Endpoint>, Failure> {
    let (start, mut is_told) = (Instant::now(), false);
    loop {
        let without_kernel = &mut |why: &OpenError| {
            if !is_quiet && !is_told {
                note(&format!("leap: using udp: {why}"));
            }
        };
        let error = match carrier.open(options.clone(), without_kernel) {
            Err(error @ TransportError::Resolve { .. }) if options.listen.is_name() => error,
            result => return result.map_err(|e| Failure::runtime(&e)),
        };
        let is_over = patience.is_some_and(|patience| start.elapsed() > patience);
        if is_over || is_interrupted() {
            return Err(Failure::runtime(&error));
        }
        if !std::mem::replace(&mut is_told, true) {
            warn(&format!("{error}, and goes on trying"));
        }
        thread::sleep(NAME_EVERY);
    }
}
