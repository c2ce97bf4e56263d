//! Layers that boards fetch while the ring runs, and what boards are told when it has become another one.

use std::net::SocketAddr;
use std::ops::Range;
use std::thread;
use std::time::Instant;

use super::fleet::Fleet;
use super::interrupt::is_interrupted;
use crate::call::master::{CallError, Called};
use crate::cli::warn;
use crate::control::server::Say;
use crate::control::{Refusal, WORD_EVERY};
use crate::ring::Address;
use crate::transport::place::HostPort;
use crate::wire::call::Call;
use crate::wire::frame::NodeLine;

/// How many seconds a board may be away.
const AWAY_S: u64 = 30;

impl Fleet {
    /// The ring file in which the nodes have these layers.
    pub(super) fn ring_file(&self, lines: &[NodeLine], layers: &[Range<usize>]) -> String {
        let parts = lines.iter().zip(layers).filter_map(|(line, layers)| {
            let board = self.boards.iter().find(|board| board.name == line.name.as_str())?;
            Some(format!("{} {} {}..{}\n", board.name, board.address, layers.start, layers.end))
        });
        parts.collect()
    }

    /// Where a board is called.
    fn address(&self, name: &str) -> Option<&Address> {
        let index = self.boards.iter().position(|board| board.name == name)?;
        self.called.get(index.checked_sub(1)?)
    }

    fn call<T>(
        &self,
        name: &str,
        talk: impl FnOnce(&mut Called<'_>) -> Result<T, CallError>,
    ) -> Result<T, Failed> {
        let fails =
            |may_pass, why: &dyn std::fmt::Display| Failed { may_pass, why: why.to_string() };
        let address = self.address(name).ok_or_else(|| fails(false, &"it was not called"))?;
        let place = HostPort::new(&address.host, address.port).resolve(|_: &SocketAddr| true);
        let place = place.map_err(|e| fails(true, &e))?;
        let called = Called::new(place, &self.key, &is_interrupted);
        called.and_then(|mut called| talk(&mut called)).map_err(|e| fails(e.may_pass(), &e))
    }

    /// Waits until the boards of these names have their layers of the ring file.
    pub(super) fn prepare(
        &self,
        mut names: Vec<&str>,
        file: &str,
        say: Say<'_>,
    ) -> Result<(), Refusal> {
        let refused = |name: &str, why: &str| Refusal { code: 1, why: format!("{name}: {why}") };
        let mut heard = Instant::now();
        loop {
            let (mut words, mut waiting) = (Vec::new(), Vec::new());
            for name in names {
                match self.call(name, |called| called.prepare(self.port, file)) {
                    Ok(100) => continue,
                    Ok(percent) => {
                        heard = Instant::now();
                        words.push(format!("{name} has {percent} % of its layers"));
                    }
                    Err(Failed { may_pass: true, why }) if heard.elapsed().as_secs() < AWAY_S => {
                        words.push(format!("waiting for {name}: {why}"));
                    }
                    Err(Failed { why, .. }) => return Err(refused(name, &why)),
                }
                waiting.push(name);
            }
            let Some(name) = waiting.first() else { return Ok(()) };
            // What has come stays on the boards, whoever waits for it.
            say(&words.join(", ")).map_err(|e| refused(name, &e.to_string()))?;
            names = waiting;
            thread::sleep(WORD_EVERY / 2);
        }
    }

    /// Tells the workers that the ring has become this one, and keeps that.
    pub(super) fn keep(&self, lines: &[NodeLine], file: &str) {
        // Without it the next start may divide the model otherwise.
        let _ = self.keep_split(file);
        let call = Call::Keep { port: self.port, file };
        for line in lines.iter().skip(1) {
            if let Err(Failed { why, .. }) = self.call(&line.name, |called| called.tell(&call)) {
                warn(&format!("{} does not know of its layers after a restart: {why}", line.name));
            }
        }
    }
}

/// Why a board does not do what it is told.
struct Failed {
    /// Whether it may do so later.
    may_pass: bool,
    why: String,
}
