//! Connections, and which of them makes way when no place is left.
//!
//! A connection waits until its client has sent a request that may be answered. While connections wait there is always
//! room for one more: the longest waiting one is closed. Strangers, which have sent no such request yet, are closed
//! first. Strangers of one address hold at most a quarter of all places.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::http::Socket;

/// Most clients at a time that are told that there is no place.
const REFUSED_MAX: usize = 64;
/// Strangers of one address hold at most one in this many places.
const STRANGERS_PART: usize = 4;

/// The connections of a server.
pub(super) struct Lobby {
    list: Mutex<List>,
    places: usize,
}

#[derive(Default)]
struct List {
    next_id: u64,
    /// Connections. Waiting ones are in the order in which they began to wait.
    guests: Vec<Guest>,
}

struct Guest {
    id: u64,
    /// `None` for programs of this machine that use a Unix socket.
    from: Option<IpAddr>,
    stage: Stage,
    socket: Arc<Socket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The client waits, and has sent no request yet that was admitted.
    Stranger,
    /// The client waits for its next request.
    Known,
    /// Its request is being answered.
    Working,
    /// The client is told that there is no place.
    Refused,
}

/// The fate of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The connection has a place, under this id.
    Place(u64),
    /// No place is left. The client has to be told so; its connection has this id.
    NoPlace(u64),
    /// [`REFUSED_MAX`] clients are being told so already: the connection is closed.
    Closed,
}

impl Lobby {
    /// A lobby with this many places.
    pub(super) fn new(places: usize) -> Lobby {
        Lobby { list: Mutex::default(), places }
    }

    /// Takes in a new connection; another one may make way for it.
    pub(super) fn admit(&self, socket: &Arc<Socket>) -> Admission {
        let from = socket.address();
        let mut list = self.list();
        let each = (self.places / STRANGERS_PART).max(1);
        let is_own = |guest: &Guest| guest.stage == Stage::Stranger && guest.from == from;
        let is_crowd = from.is_some() && list.count(is_own) >= each;
        let is_full = list.count(|guest| guest.stage != Stage::Refused) >= self.places;
        let has_room = match (is_crowd, is_full) {
            (true, _) => list.dismiss(is_own),
            (false, true) => list.dismiss_longest_waiting(),
            (false, false) => true,
        };
        let n_refused = list.count(|guest| guest.stage == Stage::Refused);
        if !has_room && n_refused >= REFUSED_MAX {
            return Admission::Closed;
        }
        let id = list.next_id;
        list.next_id += 1;
        let stage = if has_room { Stage::Stranger } else { Stage::Refused };
        list.guests.push(Guest { id, from, stage, socket: Arc::clone(socket) });
        if has_room { Admission::Place(id) } else { Admission::NoPlace(id) }
    }

    /// Notes that the request of this connection is about to be answered: the connection keeps its place meanwhile.
    /// Returns `false` if it was closed already.
    pub(super) fn begin_work(&self, id: u64) -> bool {
        self.list().set_stage(id, Stage::Working)
    }

    /// Notes that the request is answered: the connection waits again.
    pub(super) fn end_work(&self, id: u64) {
        let mut list = self.list();
        if list.stage(id) == Some(Stage::Working) {
            list.set_stage(id, Stage::Known);
        }
    }

    /// Removes a connection that has ended.
    pub(super) fn forget(&self, id: u64) {
        self.list().guests.retain(|guest| guest.id != id);
    }

    /// Closes the connection that waits longest. Returns whether there was one.
    pub(super) fn dismiss_longest_waiting(&self) -> bool {
        self.list().dismiss_longest_waiting()
    }

    /// Locks the list. No code panics while it holds the lock, and a list is sound anyway.
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    fn count(&self, is_one: impl Fn(&Guest) -> bool) -> usize {
        self.guests.iter().filter(|guest| is_one(guest)).count()
    }

    fn stage(&self, id: u64) -> Option<Stage> {
        self.guests.iter().find(|guest| guest.id == id).map(|guest| guest.stage)
    }

    /// Sets a connection's stage, and moves it to the end of the list. Returns whether it is still there.
    fn set_stage(&mut self, id: u64, stage: Stage) -> bool {
        let Some(at) = self.guests.iter().position(|guest| guest.id == id) else { return false };
        let guest = self.guests.remove(at);
        self.guests.push(Guest { stage, ..guest });
        true
    }

    fn dismiss_longest_waiting(&mut self) -> bool {
        self.dismiss(|guest| guest.stage == Stage::Stranger)
            || self.dismiss(|guest| guest.stage == Stage::Known)
    }

    fn dismiss(&mut self, is_one: impl Fn(&Guest) -> bool) -> bool {
        let Some(longest) = self.guests.iter().position(is_one) else { return false };
        // The connection's thread reads the end of the stream, and ends.
        self.guests.remove(longest).socket.close();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    /// A connection of a Unix socket, and its client.
    fn local() -> (Arc<Socket>, UnixStream) {
        let (client, server) = UnixStream::pair().unwrap();
        (Arc::new(Socket::Unix(server)), client)
    }

    fn place(lobby: &Lobby, socket: &Arc<Socket>) -> u64 {
        match lobby.admit(socket) {
            Admission::Place(id) => id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_longest_waiting_client_makes_way_and_a_working_one_stays() {
        let lobby = Lobby::new(3);
        let sockets: Vec<_> = (0..6).map(|_| local()).collect();
        let ids: Vec<u64> = sockets[..3].iter().map(|(socket, _)| place(&lobby, socket)).collect();
        assert!(lobby.begin_work(ids[0]));
        // The second connection waits longest, so it is closed.
        let fourth = place(&lobby, &sockets[3].0);
        assert!(!lobby.begin_work(ids[1]) && lobby.begin_work(ids[2]));
        // A stranger makes way before a client that was answered and has waited for longer.
        lobby.end_work(ids[0]);
        assert!(lobby.list().stage(ids[0]) == Some(Stage::Known));
        let fifth = place(&lobby, &sockets[4].0);
        assert!(!lobby.begin_work(fourth) && lobby.begin_work(fifth) && lobby.begin_work(ids[0]));
        // When all are answered, there is no place, until one of them is over.
        assert!(matches!(lobby.admit(&sockets[5].0), Admission::NoPlace(_)));
        lobby.forget(fifth);
        place(&lobby, &sockets[5].0);
    }

    #[test]
    fn strangers_of_one_address_displace_each_other_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        let mut connect = || {
            clients.push(TcpStream::connect(address).unwrap());
            Arc::new(Socket::Tcp(listener.accept().unwrap().0))
        };
        let lobby = Lobby::new(8);
        let (other, _client) = local();
        let other = place(&lobby, &other);
        let ids: Vec<u64> = (0..9).map(|_| place(&lobby, &connect())).collect();
        assert!(lobby.begin_work(other), "another address made way");
        let kept: Vec<bool> = ids.iter().map(|id| lobby.list().stage(*id).is_some()).collect();
        assert_eq!(kept.iter().filter(|is_kept| **is_kept).count(), 2, "{kept:?}");
        assert!(kept.ends_with(&[true, true]));
    }

    #[test]
    fn refusals_have_a_bound_too() {
        let lobby = Lobby::new(1);
        let (socket, _client) = local();
        let id = place(&lobby, &socket);
        assert!(lobby.begin_work(id));
        for _ in 0..REFUSED_MAX {
            assert!(matches!(lobby.admit(&socket), Admission::NoPlace(_)));
        }
        assert_eq!(lobby.admit(&socket), Admission::Closed);
    }
}
