//! Connections to a port, and which one is closed when there are too many.
//!
//! A peer that has not proved the key may be a stranger. The number of such connections is bounded, in all and for each
//! address; beyond that the oldest is closed for the next. Connections from addresses where the key was proved before
//! are closed last.

use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most connections at a time that have not proved the key.
pub(super) const UNPROVEN_MAX: usize = 64;
/// Most unproven connections from one address.
pub(super) const UNPROVEN_MAX_EACH: usize = 16;
/// Most connections at a time that have proved the key.
pub(super) const PROVEN_MAX: usize = 256;
/// Most addresses that are remembered because the key was proved from there.
const MEMBERS_MAX: usize = 256;

/// The connections of a port.
#[derive(Default)]
pub(super) struct Guests(Mutex<List>);

#[derive(Default)]
struct List {
    next_id: u64,
    /// In the order in which they came.
    guests: Vec<Guest>,
    /// Addresses from which the key was proved, the latest one last.
    members: Vec<IpAddr>,
}

struct Guest {
    id: u64,
    from: IpAddr,
    is_proven: bool,
    /// Handle to close the connection.
    stream: TcpStream,
}

impl Guests {
    /// Takes in a connection. Returns its number, and whether another one of its address was closed for it.
    pub(super) fn admit(&self, stream: TcpStream, from: IpAddr) -> (u64, bool) {
        let mut list = self.list();
        let is_crowd = list.n_unproven(|guest| guest.from == from) >= UNPROVEN_MAX_EACH;
        if is_crowd {
            list.dismiss(|guest| !guest.is_proven && guest.from == from);
        } else if list.n_unproven(|_| true) >= UNPROVEN_MAX {
            list.dismiss_stranger();
        }
        let id = list.next_id;
        list.next_id += 1;
        list.guests.push(Guest { id, from, is_proven: false, stream });
        (id, is_crowd)
    }

    /// Notes that this connection has proved the key. Beyond [`PROVEN_MAX`] such connections the oldest is closed: its
    /// board may be gone.
    pub(super) fn prove(&self, id: u64) {
        let mut list = self.list();
        if list.guests.iter().filter(|guest| guest.is_proven).count() >= PROVEN_MAX {
            list.dismiss(|guest| guest.is_proven);
        }
        let Some(guest) = list.guests.iter_mut().find(|guest| guest.id == id) else { return };
        guest.is_proven = true;
        let from = guest.from;
        list.members.retain(|member| *member != from);
        if list.members.len() == MEMBERS_MAX {
            list.members.remove(0);
        }
        list.members.push(from);
    }

    /// Removes a connection that has ended.
    pub(super) fn forget(&self, id: u64) {
        self.list().guests.retain(|guest| guest.id != id);
    }

    /// Closes the oldest connection that has not proved the key. Returns whether there was one.
    pub(super) fn dismiss_oldest(&self) -> bool {
        self.list().dismiss_stranger()
    }

    /// Locks the list, which is sound even after a panic.
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    fn n_unproven(&self, is_one: impl Fn(&Guest) -> bool) -> usize {
        self.guests.iter().filter(|guest| !guest.is_proven && is_one(guest)).count()
    }

    /// Closes the oldest unproven connection, preferably one from an address where the key was never proved.
    fn dismiss_stranger(&mut self) -> bool {
        let members = std::mem::take(&mut self.members);
        let is_dismissed = self.dismiss(|guest| !guest.is_proven && !members.contains(&guest.from))
            || self.dismiss(|guest| !guest.is_proven);
        self.members = members;
        is_dismissed
    }

    fn dismiss(&mut self, is_one: impl Fn(&Guest) -> bool) -> bool {
        let Some(oldest) = self.guests.iter().position(is_one) else { return false };
        // The connection's thread reads the end of the stream, and ends.
        let _ = self.guests.remove(oldest).stream.shutdown(Shutdown::Both);
        true
    }
}
