//! A master holds its boards: as long as it lives, they work for nobody else. One that another master took it asks for
//! until it is free, and then tells it the ring again.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::interrupt::is_interrupted;
use crate::call::master::{CallError, Called};
use crate::cli::note;
use crate::ring::Address;
use crate::sys::notify;
use crate::transport::place::HostPort;
use crate::wire::call::{Call, ring_number};
use crate::wire::seal::Key;

/// How often a board hears that it is held, and how long a master waits before it calls one again.
const SAID_EVERY: Duration = Duration::from_secs(1);

/// The boards that a master holds.
#[derive(Clone)]
pub(in crate::cli) struct Holds(Arc<Shared>);

struct Shared {
    key: Key,
    /// Port on which this board gives layers.
    port: u16,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The ring file.
    file: String,
    /// Its boards, where they are called, and for whom they work if not for this master.
    boards: Vec<(String, Address, Option<String>)>,
    /// Where a thread holds the board.
    held: Vec<Address>,
}

impl Holds {
    /// Holds no boards so far.
    pub(super) fn new(key: Key, port: u16) -> Holds {
        Holds(Arc::new(Shared { key, port, state: Mutex::default() }))
    }

    /// The ring is this one from now on: holds these boards of it, and no others.
    pub(super) fn set(&self, file: &str, boards: impl Iterator<Item = (String, Address)>) {
        let mut state = self.0.state();
        file.clone_into(&mut state.file);
        let before = std::mem::take(&mut state.boards);
        state.boards = boards
            .map(|(name, at)| {
                let known = before.iter().find(|(_, other, _)| *other == at);
                let lost_to = known.and_then(|(.., lost_to)| lost_to.clone());
                (name, at, lost_to)
            })
            .collect();
        for (_, at, _) in state.boards.clone() {
            if state.held.contains(&at) {
                continue;
            }
            let (shared, place) = (Arc::clone(&self.0), at.clone());
            let thread = thread::Builder::new().name("leap-hold".to_owned());
            // Without a thread others may take the board.
            if thread.spawn(move || shared.hold(&place)).is_ok() {
                state.held.push(at);
            }
        }
    }

    /// Which boards other masters have, in words, if there are any.
    #[cfg(feature = "serve")]
    pub(in crate::cli) fn lost(&self) -> Option<String> {
        let state = self.0.state();
        let lost = state.boards.iter().filter_map(|(name, _, lost_to)| {
            lost_to.as_ref().map(|lost_to| format!("another master took {name}: {lost_to}"))
        });
        let lost: Vec<String> = lost.collect();
        (!lost.is_empty()).then(|| lost.join("; "))
    }
}

impl Shared {
    /// Locks the state, which stays valid when a thread panics while it holds the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the board at `place` until it is no board of the ring.
    fn hold(&self, place: &Address) {
        while self.is_wanted(place) {
            match self.attempt(place) {
                Err(CallError::Busy(why)) => self.lose(place, &why),
                Err(why) => log::debug!("{place} is not held: {why}"),
                Ok(()) => {}
            }
            thread::sleep(SAID_EVERY);
        }
    }

    /// Whether it is a board of the ring; if not, its thread is over.
    fn is_wanted(&self, place: &Address) -> bool {
        let mut state = self.state();
        let is_wanted = state.boards.iter().any(|(_, at, _)| at == place) && !is_interrupted();
        if !is_wanted {
            state.held.retain(|held| held != place);
        }
        is_wanted
    }

    fn attempt(&self, place: &Address) -> Result<(), CallError> {
        let Ok(at) = HostPort::new(&place.host, place.port).resolve(|_: &SocketAddr| true) else {
            return Ok(());
        };
        let is_interrupted: &dyn Fn() -> bool = &is_interrupted;
        let mut held = Called::new(at, &self.key, is_interrupted)?;
        let ring = held.hold()?;
        let file = self.state().file.clone();
        if ring != ring_number(&file) {
            // It did something else meanwhile, or is a new one in its place.
            Called::new(at, &self.key, is_interrupted)?
                .tell(&Call::Ring { port: self.port, file: &file })?;
        }
        self.find(place);
        while self.is_wanted(place) {
            thread::sleep(SAID_EVERY);
            held.hold()?;
        }
        Ok(())
    }

    /// The board works for another master.
    fn lose(&self, place: &Address, why: &str) {
        let why = why.split(';').next().unwrap_or(why);
        let mut state = self.state();
        let Some((name, _, lost_to)) = state.boards.iter_mut().find(|(_, at, _)| at == place)
        else {
            return;
        };
        if lost_to.as_deref() != Some(why) {
            *lost_to = Some(why.to_owned());
            let text = format!("another master took {name}: {why}");
            note(&format!("leap: {text}; asks for it until it is free"));
            notify::status(&text);
        }
    }

    /// It works for this one.
    fn find(&self, place: &Address) {
        let mut state = self.state();
        let Some((name, _, lost_to)) = state.boards.iter_mut().find(|(_, at, _)| at == place)
        else {
            return;
        };
        if lost_to.take().is_some() {
            note(&format!("leap: {name} works for this master again"));
        }
    }
}
