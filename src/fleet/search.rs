//! The boards that wait on this machine's networks.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::caller::Caller;
use super::error::FleetError;
use super::events::Event;
use super::interrupt::is_interrupted;
use crate::call::find::{self, Found};
use crate::ring::Address;

/// Time for which a master waits for as many boards as the last split had: all may have been switched on together.
const PATIENCE: Duration = Duration::from_secs(60);

/// Boards that answer on `port`: at least one, and up to `wanted` if they come within a minute.
pub(super) fn boards(
    port: u16,
    caller: &Caller,
    wanted: usize,
) -> Result<Vec<Address>, FleetError> {
    let start = Instant::now();
    let (mut told, mut crowded) = (None, Vec::new());
    loop {
        let Found { places: found, crowded: now } = find::networks()
            .and_then(|networks| find::seek(&networks, port, &caller.key, &is_interrupted))
            .map_err(FleetError::Search)?;
        if is_interrupted() {
            return Err(FleetError::Interrupted);
        }
        for (at, n) in now {
            if !crowded.contains(&at) {
                crowded.push(at);
                caller.tell(&Event::Crowd { at, answers: n });
            }
        }
        let is_enough = found.len() >= wanted.max(1);
        if is_enough || (!found.is_empty() && start.elapsed() >= PATIENCE) {
            let address = |host: IpAddr| Address { host: host.to_string(), port };
            return Ok(found.into_iter().map(address).collect());
        }
        let n_found = Some(found.len());
        if told != n_found {
            caller.tell(&Event::Searches { found: found.len(), wanted, port });
            told = n_found;
        }
    }
}
