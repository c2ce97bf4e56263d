//! Opens the links of a board.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::error::PartError;
use super::events::{Event, Shape};
use super::interrupt::is_interrupted;
use super::settings::Settings;
use crate::model::Model;
use crate::sys::random;
use crate::sys::tensor::OpenError;
use crate::transport::link::LinkConfig;
use crate::transport::options::CarrierOptions;
use crate::transport::place::HostPort;
use crate::transport::{Endpoint, TransportError};
use crate::wire::hello::{self, RingInfo};

/// Interval between look-ups of this board's name until it has an address.
const NAME_EVERY: Duration = Duration::from_millis(500);

/// Identity of the node called `name` with `model`, for the others: a worker that holds all layers, and wishes for none.
pub(super) fn info(settings: &Settings, model: &Model, name: &str) -> Result<RingInfo, PartError> {
    let header = model.header();
    Ok(RingInfo {
        model: model.fingerprint().map_err(PartError::Model)?,
        dim: header.row_width() as u32,
        n_layers: header.n_layers as u32,
        kv_dim: header.kv_dim() as u32,
        vocab_size: header.vocab_size as u32,
        held: 0..header.n_layers as u32,
        wish: None,
        dtype: settings.links.wire,
        is_master: false,
        name: hello::name(name),
        ..RingInfo::default()
    })
}

/// A link's identity and key; a new seed makes its sessions.
pub(super) fn config(settings: &Settings, node: RingInfo) -> Result<LinkConfig, PartError> {
    let seed = random::seed().map_err(PartError::Random)?;
    Ok(LinkConfig::new(node, settings.links.key.clone(), seed))
}

/// Number of an epoch that no earlier one has.
pub(super) fn random_epoch() -> Result<u32, PartError> {
    let seed = random::seed().map_err(PartError::Random)?;
    Ok(u32::from_le_bytes([seed[0], seed[1], seed[2], seed[3]]))
}

/// Warns of links without a key that other machines reach at `host`.
pub(super) fn warn_of_strangers(settings: &Settings, host: &str, at: &str, shape: Shape) {
    if settings.links.key.is_none() && !is_loopback(host) {
        settings.events.tell(&Event::Unsealed { at, shape });
    }
}

/// Opens the links. If this board's name has no address yet, which happens while boards start, waits for one.
/// `is_first`: tells the carrier's events, which are equal for all links of a board.
pub(super) fn open(
    settings: &Settings,
    config: LinkConfig,
    (listen, next): (HostPort, Option<HostPort>),
    is_first: bool,
) -> Result<Box<dyn Endpoint>, PartError> {
    let mut options = CarrierOptions::new(config, listen, next);
    if let Some(us) = settings.links.busy_poll {
        (options.spin, options.busy_poll_us) = (Duration::from_micros(us.into()), us.into());
    }
    let patience = settings.is_master.then_some(settings.links.timeout).flatten();
    let (start, mut is_told) = (Instant::now(), false);
    loop {
        let without_kernel = &mut |why: &OpenError| {
            if is_first && !is_told {
                settings.events.tell(&Event::WithoutKernel { why });
            }
        };
        let error = match settings.links.carrier.open(options.clone(), without_kernel) {
            Err(error @ TransportError::Resolve { .. }) if options.listen.is_name() => error,
            Err(error) => return Err(PartError::Links(error)),
            Ok(endpoint) => {
                let notices = endpoint.notices().iter().filter(|_| is_first);
                notices.for_each(|notice| settings.events.tell(&Event::Carrier(notice)));
                return Ok(endpoint);
            }
        };
        let is_over = patience.is_some_and(|patience| start.elapsed() > patience);
        if is_over || is_interrupted() {
            return Err(PartError::Links(error));
        }
        if !std::mem::replace(&mut is_told, true) {
            settings.events.tell(&Event::Nameless { why: &error });
        }
        thread::sleep(NAME_EVERY);
    }
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_recognised() {
        assert!(is_loopback("localhost") && is_loopback("127.0.0.9") && is_loopback("::1"));
        assert!(!is_loopback("0.0.0.0") && !is_loopback("10.0.0.1") && !is_loopback("pi.local"));
    }
}
