//! The master that a board works for: while this master lives, no other one takes the board.
//!
//! A master holds a connection open to each of its boards. When it ends in any way, its system closes the connection,
//! and the board is free at once. If its machine or the network fails, nothing comes for [`SILENCE`], and then the
//! board is free. A master has [`GRACE`] between its order and that connection.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a master that holds a board may be silent.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// How long a master may take between an order to a board and its connection.
const GRACE: Duration = Duration::from_secs(10);

/// A master that calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// Random number of this run of the master.
    pub(super) run: u64,
    pub(super) name: String,
    pub(super) from: IpAddr,
    /// Whether the master takes boards from other masters.
    pub(super) is_taking: bool,
}

/// The master that has the board.
#[derive(Default)]
pub(super) struct Holders(Mutex<State>);

#[derive(Default)]
struct State {
    master: Option<Held>,
    next_lease: u64,
}

struct Held {
    by: Caller,
    /// Connections of the master that hold the board.
    leases: Vec<u64>,
    /// End of the hold if the master has no connection by then.
    until: Instant,
}

/// A connection that holds the board, until it is dropped.
pub(super) struct Lease<'a> {
    holders: &'a Holders,
    id: u64,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut state = self.holders.state();
        let Some(held) = &mut state.master else { return };
        // Another master may have the board by now.
        let Some(index) = held.leases.iter().position(|id| *id == self.id) else { return };
        held.leases.remove(index);
        if held.leases.is_empty() {
            held.until = Instant::now();
        }
    }
}

impl Lease<'_> {
    /// Why the board is not held any more, if another master took it.
    pub(super) fn lost(&self) -> Option<String> {
        let state = self.holders.state();
        let held = state.master.as_ref()?;
        (!held.leases.contains(&self.id)).then(|| held.words())
    }
}

impl Held {
    fn is_alive(&self, now: Instant) -> bool {
        !self.leases.is_empty() || now < self.until
    }

    fn words(&self) -> String {
        format!("it works for {} at {}", self.by.name, self.by.from)
    }

    /// Whether `other` is this master, or the same one after it has started again.
    fn is_of(&self, other: &Caller) -> bool {
        let is_again = (&self.by.name, self.by.from) == (&other.name, other.from);
        self.by.run == other.run || (is_again && self.leases.is_empty())
    }
}

impl Holders {
    /// Whether this master may talk to the board. The error names the master that the board works for.
    pub(super) fn admit(&self, caller: &Caller) -> Result<(), String> {
        let state = self.state();
        match &state.master {
            Some(held) if held.is_alive(Instant::now()) && !held.is_of(caller) => {
                match caller.is_taking {
                    true => Ok(()),
                    false => Err(format!("{}; --take takes it from there", held.words())),
                }
            }
            _ => Ok(()),
        }
    }

    /// Notes that this master has given the board an order.
    pub(super) fn take(&self, caller: &Caller) {
        let mut state = self.state();
        let until = Instant::now() + GRACE;
        match &mut state.master {
            Some(held) if held.by.run == caller.run => held.until = until,
            master => *master = Some(Held { by: caller.clone(), leases: Vec::new(), until }),
        }
    }

    /// Notes that the board has nothing to do for this master any more.
    pub(super) fn release(&self, caller: &Caller) {
        let mut state = self.state();
        state.master.take_if(|held| held.by.run == caller.run);
    }

    /// Notes that this master holds the board, until the lease is dropped.
    pub(super) fn hold(&self, caller: &Caller) -> Lease<'_> {
        let mut state = self.state();
        let id = state.next_lease;
        state.next_lease += 1;
        let until = Instant::now();
        match &mut state.master {
            Some(held) if held.by.run == caller.run => held.leases.push(id),
            master => *master = Some(Held { by: caller.clone(), leases: vec![id], until }),
        }
        Lease { holders: self, id }
    }

    /// Locks the state, which stays valid when a thread panics while it holds the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(run: u64, name: &str) -> Caller {
        let from = IpAddr::from([10, 0, 0, name.len() as u8]);
        Caller { run, name: name.to_owned(), from, is_taking: false }
    }

    #[test]
    fn a_board_works_for_one_master_while_that_lives() {
        let holders = Holders::default();
        let (desk, laptop) = (caller(1, "desk"), caller(2, "laptop"));
        assert!(holders.admit(&desk).is_ok());
        holders.take(&desk);
        let words = "it works for desk at 10.0.0.4; --take takes it from there";
        assert_eq!(holders.admit(&laptop), Err(words.to_owned()));
        let lease = holders.hold(&desk);
        assert_eq!(holders.admit(&laptop), Err(words.to_owned()));
        assert!(holders.admit(&desk).is_ok() && lease.lost().is_none());
        // The master ends, and with it its connection.
        drop(lease);
        assert!(holders.admit(&laptop).is_ok());
    }

    #[test]
    fn a_master_that_has_started_again_has_its_boards_at_once() {
        let holders = Holders::default();
        let (before, after) = (caller(1, "desk"), caller(2, "desk"));
        // The first run died before it held the board.
        holders.take(&before);
        assert!(holders.admit(&after).is_ok());
        // While the first run lives, a second one on the same machine counts as another master.
        let lease = holders.hold(&before);
        assert!(holders.admit(&after).is_err());
        drop(lease);
        assert!(holders.admit(&after).is_ok());
        holders.take(&after);
        assert!(holders.admit(&caller(3, "laptop")).is_err());
        holders.release(&before);
        assert!(holders.admit(&caller(3, "laptop")).is_err(), "it is not the one before's");
        holders.release(&after);
        assert!(holders.admit(&caller(3, "laptop")).is_ok());
    }

    #[test]
    fn the_former_master_hears_the_name_of_the_next() {
        let holders = Holders::default();
        let desk = caller(1, "desk");
        let laptop = Caller { is_taking: true, ..caller(2, "laptop") };
        holders.take(&desk);
        let lease = holders.hold(&desk);
        assert!(holders.admit(&laptop).is_ok());
        assert!(lease.lost().is_none(), "who asks has not taken");
        holders.take(&laptop);
        assert_eq!(lease.lost().unwrap(), "it works for laptop at 10.0.0.6");
        assert!(holders.admit(&desk).is_err());
        drop(lease);
        assert!(holders.admit(&desk).is_err(), "the other one's time is not over by that");
    }
}
