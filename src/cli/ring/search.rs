//! `--boards auto`: the boards that wait on this machine's networks.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::interrupt::is_interrupted;
use crate::call::find::{self, Found};
use crate::cli::{Failure, note, warn};
use crate::ring::Address;
use crate::sys::notify;
use crate::wire::seal::Key;

/// How long a master waits for as many boards as it had before: all may have been switched on together.
const PATIENCE: Duration = Duration::from_secs(60);

/// Those that answer on `port`: at least one, and if they come within a minute, as many as `wanted`.
pub(super) fn boards(port: u16, key: &Key, wanted: usize) -> Result<Vec<Address>, Failure> {
    let start = Instant::now();
    let (mut told, mut crowded) = (None, Vec::new());
    loop {
        let Found { places: found, crowded: now } = find::networks()
            .and_then(|networks| find::seek(&networks, port, key, &is_interrupted))
            .map_err(|e| Failure::Runtime(format!("cannot look for boards: {e}")))?;
        if is_interrupted() {
            return Err(Failure::Runtime("interrupted".to_owned()));
        }
        for (at, n) in now {
            if !crowded.contains(&at) {
                crowded.push(at);
                warn(&format!(
                    "{n} answers of as many boards came from {at}: it counts as one board"
                ));
            }
        }
        let is_enough = found.len() >= wanted.max(1);
        if is_enough || (!found.is_empty() && start.elapsed() >= PATIENCE) {
            let address = |host: IpAddr| Address { host: host.to_string(), port };
            return Ok(found.into_iter().map(address).collect());
        }
        let n_found = Some(found.len());
        if told != n_found {
            let why = waiting_for(found.len(), wanted, port);
            note(&format!("leap: {why}"));
            notify::status(&why);
            told = n_found;
        }
    }
}

fn waiting_for(found: usize, wanted: usize, port: u16) -> String {
    match found {
        0 => format!("waiting for boards: none with this key answers on UDP port {port}"),
        found => format!("waiting for boards: {found} of the {wanted} that it had before answer"),
    }
}
