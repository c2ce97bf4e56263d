//! A master holds its boards: while it lives, they work for no other master. If another master took a board, this one
//! asks for the board until it is free, and then sends it the ring again. A board that cannot do its part gives the
//! reason, and gets the order again after some minutes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::caller::Caller;
use super::events::Event;
use super::interrupt::is_interrupted;
use crate::call::master::{CallError, Called};
use crate::ring::Address;
use crate::transport::place::HostPort;
use crate::wire::call::{Call, HeldState, ring_number};

/// Interval between two messages to a held board, and between two calls of a board that did not answer.
const SAID_EVERY: Duration = Duration::from_secs(1);

/// Interval after which a board that cannot do its order gets it again.
const TOLD_EVERY: Duration = Duration::from_secs(300);

/// Longest time that a board may prepare its part without progress.
const STANDSTILL: Duration = Duration::from_secs(60);

/// The boards that a master holds.
#[derive(Clone)]
pub(crate) struct Holds(Arc<Shared>);

struct Shared {
    caller: Caller,
    /// Port on which this board gives layers.
    port: u16,
    /// Longest time that a board may prepare its part without progress.
    standstill: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The ring file.
    file: String,
    /// Boards of the ring.
    boards: Vec<Board>,
    /// Addresses of boards that have a thread which holds them.
    held: Vec<Address>,
}

/// A board of the ring.
struct Board {
    name: String,
    /// Address at which the board is called.
    at: Address,
    /// Name of the other master that the board works for, if there is one.
    lost_to: Option<String>,
    /// Reason why the board does not do what it was told.
    unfit: Option<String>,
    /// True if the board's links are open; `None` until it has reported.
    is_ready: Option<bool>,
    /// Last count of the steps of its preparation, and when it changed.
    progress: Option<(u64, Instant)>,
}

impl Board {
    fn new(name: String, at: Address) -> Board {
        Board { name, at, lost_to: None, unfit: None, is_ready: None, progress: None }
    }

    /// Notes that the board cannot do its order, for this reason, which is returned if it is new.
    fn fail(&mut self, why: String) -> Option<&str> {
        self.is_ready = Some(false);
        let is_new = self.unfit.as_ref() != Some(&why);
        self.unfit = Some(why);
        self.unfit.as_deref().filter(|_| is_new)
    }

    /// Notes that the board is ready, or its progress towards that. A board without progress for `standstill` does not
    /// serve: returns this reason if it is new.
    fn advance(
        &mut self,
        (is_ready, progress): (bool, u64),
        now: Instant,
        standstill: Duration,
    ) -> Option<&str> {
        let since = match self.progress {
            Some((before, since)) if before == progress && !is_ready => since,
            _ => now,
        };
        self.progress = Some((progress, since));
        if now.duration_since(since) >= standstill {
            let seconds = standstill.as_secs();
            let why = "it prepares its part, without any progress for";
            return self.fail(format!("{why} {seconds} s"));
        }
        (self.is_ready, self.unfit) = (Some(is_ready), None);
        None
    }
}

impl Holds {
    /// Holds no boards so far.
    pub(super) fn new(caller: Caller, port: u16) -> Holds {
        Holds::with_standstill(caller, port, STANDSTILL)
    }

    /// Holds no boards so far, and gives up those without progress for `standstill`.
    fn with_standstill(caller: Caller, port: u16, standstill: Duration) -> Holds {
        Holds(Arc::new(Shared { caller, port, standstill, state: Mutex::default() }))
    }

    /// Makes `file` the ring from now on: holds these boards of it, and no others.
    pub(super) fn set(&self, file: &str, boards: impl Iterator<Item = (String, Address)>) {
        let mut state = self.0.state();
        file.clone_into(&mut state.file);
        let mut before = std::mem::take(&mut state.boards);
        state.boards = boards
            .map(|(name, at)| match before.iter().position(|other| other.at == at) {
                // The board now prepares another part.
                Some(known) => Board { name, progress: None, ..before.swap_remove(known) },
                None => Board::new(name, at),
            })
            .collect();
        let places: Vec<Address> = state.boards.iter().map(|board| board.at.clone()).collect();
        for at in places {
            if state.held.contains(&at) {
                continue;
            }
            let (shared, place) = (Arc::clone(&self.0), at.clone());
            let thread = thread::Builder::new().name("leap-hold".to_owned());
            // If the system refuses a thread, other masters may take the board.
            if thread.spawn(move || shared.hold(&place)).is_ok() {
                state.held.push(at);
            }
        }
    }

    /// Names the boards that other masters have; `None` if there are none.
    #[cfg(feature = "serve")]
    pub(crate) fn lost(&self) -> Option<String> {
        let state = self.0.state();
        let lost = state.boards.iter().filter_map(|Board { name, lost_to, .. }| {
            lost_to.as_ref().map(|lost_to| format!("another master took {name}: {lost_to}"))
        });
        let lost: Vec<String> = lost.collect();
        (!lost.is_empty()).then(|| lost.join("; "))
    }

    /// The reason why the board of this name, if it is in the ring, cannot do what it was told.
    pub(super) fn why_unfit(&self, name: &str) -> Option<String> {
        let state = self.0.state();
        state.boards.iter().find(|board| board.name == name)?.unfit.clone()
    }

    /// True if the board of this name reports that it prepares: it fetches or packs its layers.
    pub(super) fn is_coming(&self, name: &str) -> bool {
        let state = self.0.state();
        let is_coming = |board: &Board| board.unfit.is_none() && board.is_ready == Some(false);
        state.boards.iter().any(|board| board.name == name && is_coming(board))
    }

    /// Names the boards that cannot do what they were told, with the reasons; `None` if there are none.
    pub(crate) fn unfit(&self) -> Option<String> {
        let state = self.0.state();
        let unfit = state.boards.iter().filter_map(|Board { name, unfit, .. }| {
            unfit.as_ref().map(|why| format!("{name} does not serve: {why}"))
        });
        let unfit: Vec<String> = unfit.collect();
        (!unfit.is_empty()).then(|| unfit.join("; "))
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
                Err(CallError::Busy(why)) => self.mark_taken(place, &why),
                Err(why) => {
                    log::debug!("{place} is not held: {why}");
                    // A board that is started again opens its links anew.
                    let unknown =
                        |board: &mut Board| (board.is_ready, board.progress) = (None, None);
                    self.update(place, unknown);
                }
                Ok(()) => {}
            }
            thread::sleep(SAID_EVERY);
        }
    }

    /// True if the board at `place` is in the ring; if not, forgets the thread that held it, which then ends.
    fn is_wanted(&self, place: &Address) -> bool {
        let mut state = self.state();
        let is_wanted = state.boards.iter().any(|board| board.at == *place) && !is_interrupted();
        if !is_wanted {
            state.held.retain(|held| held != place);
        }
        is_wanted
    }

    fn attempt(&self, place: &Address) -> Result<(), CallError> {
        let Ok(at) = HostPort::new(&place.host, place.port).resolve(|_: &SocketAddr| true) else {
            return Ok(());
        };
        let is_interrupted: &(dyn Fn() -> bool + Sync) = &is_interrupted;
        let tell = || {
            let file = self.state().file.clone();
            let call = Call::Ring { port: self.port, file: &file };
            Called::new(at, &self.caller.key, is_interrupted)?.tell(&call)
        };
        let mut held = Called::new(at, &self.caller.key, is_interrupted)?;
        let mut told: Option<Instant> = None;
        loop {
            match held.hold() {
                Ok(HeldState { ring, is_ready, progress }) => {
                    // The board did something else meanwhile, or another one has its address.
                    if told.is_none() && ring != ring_number(&self.state().file) {
                        tell()?;
                    }
                    self.find(place, is_ready, progress);
                }
                Err(CallError::Refused(why)) => {
                    self.hear_why(place, why);
                    if told.is_some_and(|told| told.elapsed() >= TOLD_EVERY) {
                        told = None;
                        tell()?;
                    }
                }
                Err(why) => return Err(why),
            }
            told.get_or_insert_with(Instant::now);
            if !self.is_wanted(place) {
                return Ok(());
            }
            thread::sleep(SAID_EVERY);
        }
    }

    /// Changes the state of the board at `place`, and returns its name and the result; `None` if it is no board of the
    /// ring. Events are told afterwards, without the lock: a listener may be slow.
    fn update<T>(
        &self,
        place: &Address,
        change: impl FnOnce(&mut Board) -> T,
    ) -> Option<(String, T)> {
        let mut state = self.state();
        let board = state.boards.iter_mut().find(|board| board.at == *place)?;
        let result = change(board);
        Some((board.name.clone(), result))
    }

    /// Notes that the board at `place` cannot do what it was told, and tells of a new reason.
    fn hear_why(&self, place: &Address, why: String) {
        let new = self.update(place, |board| board.fail(why).map(str::to_owned));
        if let Some((name, Some(why))) = new {
            self.caller.tell(&Event::Unfit { name: &name, why: &why });
        }
    }

    /// Notes that the board at `place` works for another master, and tells of it once.
    fn mark_taken(&self, place: &Address, why: &str) {
        let why = why.split(';').next().unwrap_or(why);
        let is_new =
            |board: &mut Board| board.lost_to.replace(why.to_owned()).as_deref() != Some(why);
        if let Some((name, true)) = self.update(place, is_new) {
            self.caller.tell(&Event::Taken { name: &name, why });
        }
    }

    /// Notes that the board at `place` works for this master: its links are open if it `is_ready`, else `progress`
    /// counts its steps towards that.
    fn find(&self, place: &Address, is_ready: bool, progress: u64) {
        let found = self.update(place, |board| {
            let why = board.advance((is_ready, progress), Instant::now(), self.standstill);
            (why.map(str::to_owned), board.lost_to.take().is_some())
        });
        let Some((name, (why, is_regained))) = found else { return };
        if let Some(why) = &why {
            self.caller.tell(&Event::Unfit { name: &name, why });
        }
        if is_regained {
            self.caller.tell(&Event::Regained { name: &name });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::events::Deaf;
    use super::*;
    use crate::call::board;
    use crate::wire::call::Figures;
    use crate::wire::hello;
    use crate::wire::seal::Key;

    const RING: &str = "desk 127.0.0.1:1 0..3\nfig 127.0.0.1:2 3..6\n";

    /// A board that says that it gets ready, for ever, and how far it is.
    fn never_ready(key: &Key, progress: Arc<AtomicU64>) -> Address {
        let state = move || {
            let progress = progress.load(Ordering::Relaxed);
            Ok(HeldState { ring: ring_number(RING), is_ready: false, progress })
        };
        let speeds = heapless::Vec::new();
        let board = board::Board {
            figures: Figures { port: 2, memory: 1 << 30, name: hello::name("fig"), speeds },
            take: Box::new(|_| Ok(())),
            prepare: Box::new(|_, _| Ok(100)),
            keep: Box::new(|_| Ok(())),
            forget: Box::new(|| Ok(())),
            state: Box::new(state),
            refuse: Box::new(|_, _| {}),
        };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let at = board::start(board, any, key.clone()).unwrap();
        Address { host: at.ip().to_string(), port: at.port() }
    }

    /// Waits until `is_so`, which is said by `what`.
    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(120), "never: {what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_board_that_gets_ready_for_ever_does_not_serve_and_one_that_gets_further_does() {
        let (key, progress) = (Key::new([7; 32]), Arc::new(AtomicU64::new(0)));
        let at = never_ready(&key, Arc::clone(&progress));
        let caller = Caller { key, events: Arc::new(Deaf) };
        let holds = Holds::with_standstill(caller, 9998, Duration::from_secs(2));
        holds.set(RING, [("fig".to_owned(), at)].into_iter());
        until("fig is said to get ready", || holds.is_coming("fig"));
        until("fig is given up", || holds.why_unfit("fig").is_some());
        assert!(!holds.is_coming("fig"), "no master waits for it");
        let why = holds.why_unfit("fig").unwrap();
        assert_eq!(why, "it prepares its part, without any progress for 2 s");
        assert_eq!(holds.unfit().unwrap(), format!("fig does not serve: {why}"));
        progress.store(1, Ordering::Relaxed);
        until("fig, which got further, is waited for again", || holds.is_coming("fig"));
        assert_eq!(holds.why_unfit("fig"), None);
    }

    /// Asks what is held while it hears of an event, as a server's page may do.
    #[derive(Default)]
    struct Asks {
        holds: std::sync::OnceLock<Holds>,
        heard: Mutex<Option<String>>,
    }

    impl super::super::events::Events for Asks {
        fn tell(&self, event: &Event<'_>) {
            if let (Event::Unfit { .. }, Some(holds)) = (event, self.holds.get()) {
                let unfit = holds.unfit();
                *self.heard.lock().unwrap() = unfit;
            }
        }
    }

    #[test]
    fn an_event_of_a_board_is_told_without_the_lock_on_all_boards() {
        let (key, progress) = (Key::new([8; 32]), Arc::new(AtomicU64::new(0)));
        let at = never_ready(&key, progress);
        let asks = Arc::new(Asks::default());
        let caller = Caller { key, events: asks.clone() };
        let holds = Holds::with_standstill(caller, 9998, Duration::from_secs(1));
        assert!(asks.holds.set(holds.clone()).is_ok());
        holds.set(RING, [("fig".to_owned(), at)].into_iter());
        until("the listener of the event gets an answer", || asks.heard.lock().unwrap().is_some());
    }

    #[test]
    fn a_board_that_gets_further_is_waited_for_however_long_it_takes() {
        let mut board = Board::new("fig".to_owned(), Address { host: String::new(), port: 2 });
        let (start, minute) = (Instant::now(), Duration::from_secs(60));
        for step in 0..100 {
            board.advance((false, step), start + 50 * (step as u32) * minute / 60, minute);
            assert_eq!(board.unfit, None, "{step}");
        }
        // Open links are never too old.
        for hour in 100..110 {
            board.advance((true, 99), start + hour * 60 * minute, minute);
            assert_eq!((board.is_ready, &board.unfit), (Some(true), &None));
        }
    }
}
