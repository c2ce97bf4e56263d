//! The meeting point of threads that ask about a ring or a team with the thread that has the engine, between
//! two of its steps.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::seen::{Seen, TeamSeen};
use crate::control::server::Say;
use crate::control::{Refusal, WORD_EVERY};
use crate::engine::ring::{Change, ChangesBy, OtherLayers, OtherNodes, ResplitError, RingMaster};
use crate::engine::team::TeamLead;
use crate::engine::{Engine, StepError, WeightsPlace};
use crate::group::Notice;
use crate::ring::{Member, Misfits, Times};
use crate::wire::frame::NodeLine;

/// A node that is missing for this time is not about to come.
const MISSING_FOR: Duration = Duration::from_secs(10);
/// Number of times that a client is told to wait before its request is withdrawn, unless the engine has begun it.
const PATIENCE: usize = 10;

/// The mailbox.
pub(crate) struct Mailbox {
    /// Takes changes to the engine's thread.
    changes: Sender<Change>,
    /// Number of threads that prepare other nodes.
    n_coming: Arc<AtomicUsize>,
    /// True if a client asks for the state.
    is_asked: AtomicBool,
    /// Clients that ask for the state.
    asked: Mutex<Askers>,
    seen: Mutex<Seen>,
    missing: Mutex<Missing>,
}

/// A board that a team waits for.
pub(crate) struct Awaited {
    pub(crate) name: String,
    /// True if the board does not answer; else it may wait for another one.
    pub(crate) is_absent: bool,
    /// Reason why the board refuses its part, if it does.
    pub(crate) refusal: Option<String>,
}

impl Awaited {
    /// The entry for the board of this name; a new one if there is none.
    pub(super) fn of<'a>(all: &'a mut Vec<Awaited>, name: &str) -> &'a mut Awaited {
        let index = all.iter().position(|awaited| awaited.name == name).unwrap_or_else(|| {
            all.push(Awaited { name: name.to_owned(), is_absent: false, refusal: None });
            all.len() - 1
        });
        &mut all[index]
    }
}

/// Nodes without which the ring or the team is not complete.
#[derive(Default)]
struct Missing {
    /// Nodes that do not answer, and the beginning of their silence.
    silent: Vec<(String, Instant)>,
    /// Nodes that cannot take their part, and the reasons.
    unfit: Vec<(String, String)>,
}

impl Missing {
    /// Notes that these nodes do not answer, and that all others do.
    fn are(&mut self, names: &[String]) {
        self.silent.retain(|(name, _)| names.contains(name));
        for name in names {
            if self.silent.iter().all(|(known, _)| known != name) {
                self.silent.push((name.clone(), Instant::now()));
            }
        }
    }
}

/// Clients that ask for the state, each by a number, and the last number.
#[derive(Default)]
struct Askers(u64, Vec<(u64, Sender<Seen>)>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Marks that nodes prepare: until this is dropped, the master does not give up absent nodes.
pub(crate) struct Coming(Arc<AtomicUsize>);

impl Coming {
    /// Counts one more in `n`, until this is dropped.
    pub(super) fn new(n: &Arc<AtomicUsize>) -> Coming {
        n.fetch_add(1, Ordering::AcqRel);
        Coming(Arc::clone(n))
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Mailbox {
    /// A mailbox, and the channel by which the master hears of changes. `place` says where the weights of other
    /// layers are kept, `misfits` the fate of nodes that do not fit.
    pub(crate) fn new(place: &WeightsPlace, misfits: Misfits) -> (Mailbox, ChangesBy) {
        let (changes, asked) = mpsc::channel();
        let n_coming = Arc::new(AtomicUsize::new(0));
        let n_coming_of = Arc::clone(&n_coming);
        let by = ChangesBy { asked, n_coming: n_coming_of, place: place.clone(), misfits };
        let mailbox = Mailbox {
            changes,
            n_coming,
            is_asked: AtomicBool::new(false),
            asked: Mutex::default(),
            seen: Mutex::default(),
            missing: Mutex::default(),
        };
        (mailbox, by)
    }

    /// Marks that other nodes prepare, until the result is dropped.
    pub(crate) fn expect_others(&self) -> Coming {
        Coming::new(&self.n_coming)
    }

    /// Gives the ring other nodes, and waits until it has them. The engine's thread calls `tell`, which tells the boards.
    pub(crate) fn change(
        &self,
        (members, next): (Vec<Member>, SocketAddr),
        tell: Box<dyn FnOnce() -> Result<(), String> + Send>,
        say: Say<'_>,
    ) -> Result<(), Refusal> {
        let (done, answer) = mpsc::channel();
        self.send(Change::Nodes(OtherNodes { members, next, tell, done }))?;
        loop {
            match answer.recv_timeout(WORD_EVERY) {
                Ok(told) => return told.map_err(|why| Refusal { code: 1, why }),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                // The change is made even if the client has gone.
                Err(RecvTimeoutError::Timeout) => {
                    let _ = say("waiting for the ring");
                }
            }
        }
    }

    /// Gives the nodes these layers, and waits until they have them. The request is withdrawn if the engine's
    /// thread does not begin.
    pub(crate) fn split(&self, layers: Vec<Range<usize>>, say: Say<'_>) -> Result<(), Refusal> {
        let (done, answer) = mpsc::channel();
        let is_settled = Arc::new(AtomicBool::new(false));
        let withdraw = Arc::clone(&is_settled);
        self.send(Change::Layers(OtherLayers { layers, is_settled, done }))?;
        match wait(&answer, say, || !withdraw.swap(true, Ordering::AcqRel)) {
            Some(result) => result.map_err(|e| Refusal { code: code(&e), why: e.to_string() }),
            None => Err(self.as_it_was()),
        }
    }

    fn send(&self, change: Change) -> Result<(), Refusal> {
        self.changes.send(change).map_err(|_| gone())
    }

    fn as_it_was(&self) -> Refusal {
        let why = match self.seen().trouble {
            Some(trouble) => format!("the ring is unchanged: {trouble}"),
            None => "the ring is unchanged: no answer is being written; ask again while one is"
                .to_owned(),
        };
        Refusal { code: 1, why }
    }

    /// Notes an event of the ring, which `words` describe.
    pub(crate) fn hear(&self, notice: &Notice, lines: &[NodeLine], words: &str) {
        let mut seen = lock(&self.seen);
        let are_others = |a: &NodeLine, b: &NodeLine| a.name != b.name || a.layers != b.layers;
        let is_other_ring = seen.lines.len() != lines.len()
            || seen.lines.iter().zip(lines).any(|(a, b)| are_others(a, b));
        // Times of other layers, or of other nodes, would count for the wrong ones.
        if is_other_ring {
            seen.times = Times::default();
        }
        seen.lines.clear();
        seen.lines.extend_from_slice(lines);
        let mut missing = lock(&self.missing);
        match notice {
            Notice::Opened { .. } => *missing = Missing::default(),
            Notice::Waiting { missing: names, .. } => missing.are(names),
            Notice::Unfit { name, why } => {
                // The last reason counts.
                missing.unfit.retain(|(known, _)| known != name);
                missing.unfit.push((name.clone(), why.clone()));
            }
            _ => {}
        }
        drop(missing);
        match notice {
            Notice::Opened { .. } | Notice::Back(_) | Notice::GoesOn => seen.trouble = None,
            Notice::Silent(_)
            | Notice::Reset(_)
            | Notice::Anew(_)
            | Notice::Waiting { .. }
            | Notice::Unfit { .. }
            | Notice::Stalled { .. } => {
                seen.trouble = Some(words.to_owned());
            }
            _ => {}
        }
    }

    /// Notes that a team waits for these boards; for none if it is complete.
    pub(crate) fn hear_of_team(&self, awaited: &[Awaited]) {
        let absent = awaited.iter().filter(|board| board.is_absent);
        let absent: Vec<String> = absent.map(|board| board.name.clone()).collect();
        let refusals = awaited.iter();
        let refusals =
            refusals.filter_map(|board| Some((board.name.clone(), board.refusal.clone()?)));
        let mut missing = lock(&self.missing);
        missing.are(&absent);
        missing.unfit = refusals.collect();
        drop(missing);
        let names: Vec<&str> = awaited.iter().map(|board| &*board.name).collect();
        let is_complete = names.is_empty();
        lock(&self.seen).trouble =
            (!is_complete).then(|| format!("waiting for {}", names.join(", ")));
    }

    /// Why the node of this name, which has answered calls since `answers`, is missing: it cannot take its part, or its
    /// links have been silent for some time all the same.
    pub(crate) fn why_missing(&self, name: &str, answers: Instant) -> Option<String> {
        let missing = lock(&self.missing);
        if let Some((_, why)) = missing.unfit.iter().find(|(known, _)| known == name) {
            return Some(why.clone());
        }
        let (_, since) = missing.silent.iter().find(|(known, _)| known == name)?;
        let silence = "nothing is heard on its links, though it answers calls";
        (answers.max(*since).elapsed() >= MISSING_FOR).then(|| silence.to_owned())
    }

    /// The last known state.
    pub(crate) fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }

    /// Asks the engine's thread for the state.
    pub(crate) fn ask(&self, say: Say<'_>) -> Result<Seen, Refusal> {
        let (done, answer) = mpsc::channel();
        let number = {
            let mut asked = lock(&self.asked);
            asked.0 += 1;
            let number = asked.0;
            asked.1.push((number, done));
            number
        };
        self.is_asked.store(true, Ordering::Release);
        let withdraw = || {
            lock(&self.asked).1.retain(|(other, _)| *other != number);
            true
        };
        wait(&answer, say, withdraw).ok_or_else(|| self.as_it_was())
    }

    /// Does what clients ask for. The engine's thread calls this between two steps of its work.
    pub(crate) fn visit(&self, engine: &mut Engine) {
        if let Err(e) = engine.look_for_changes() {
            // The next call for a token hears of it.
            log::debug!("a ring that changes: {e}");
        }
        if !self.is_asked.swap(false, Ordering::Acquire) {
            return;
        }
        // Taken out first: the lock is not held while the state is read.
        let askers = std::mem::take(&mut lock(&self.asked).1);
        for (_, asked) in askers {
            // The caller may be gone.
            let _ = asked.send(self.look(engine));
        }
    }

    fn look(&self, engine: &Engine) -> Seen {
        let mut seen = lock(&self.seen);
        if let Some(ring) = engine.ring() {
            seen.lines.clear();
            seen.lines.extend_from_slice(ring.lines());
            seen.times = ring.times().clone();
            let reports = ring.reports().iter();
            seen.places = reports.map(|of| (of.name.clone(), TeamSeen::of_report(of))).collect();
        }
        seen.team = engine.team().map(TeamSeen::of_lead);
        let setbacks = engine.ring().map(RingMaster::setbacks);
        let setbacks = setbacks.or_else(|| engine.team().map(TeamLead::setbacks));
        seen.setbacks = setbacks.copied().unwrap_or_default();
        seen.clone()
    }
}

fn gone() -> Refusal {
    Refusal { code: 1, why: "the master ends".to_owned() }
}

/// Waits for the answer of the engine's thread, and tells the client that it waits. After [`PATIENCE`] words, or if the
/// client is gone, `withdraw` takes the request back; it returns false if the thread has begun.
fn wait<T>(answer: &Receiver<T>, say: Say<'_>, withdraw: impl Fn() -> bool) -> Option<T> {
    for n in 1.. {
        match answer.recv_timeout(WORD_EVERY) {
            Ok(done) => return Some(done),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let is_gone = say("waiting for the ring").is_err();
        if (is_gone || n >= PATIENCE) && withdraw() {
            return None;
        }
    }
    None
}

fn code(error: &ResplitError) -> u8 {
    match error {
        ResplitError::Split(_) => 2,
        ResplitError::Step(StepError::Ring(e)) if e.is_lost() => 4,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Cache, Huge};

    fn mailbox() -> Mailbox {
        let place = WeightsPlace { model: None, cache: Cache::Off, huge: Huge::Off };
        Mailbox::new(&place, Misfits::LeaveOut).0
    }

    fn line(name: &str, layers: Range<u32>) -> NodeLine {
        NodeLine { name: name.try_into().unwrap(), layers, ..NodeLine::default() }
    }

    #[test]
    fn times_of_other_nodes_are_no_times_of_a_ring_that_changed() {
        let mailbox = mailbox();
        let three = [line("desk", 0..2), line("pi", 2..4), line("fig", 4..6)];
        let opened = Notice::Opened { again: true };
        mailbox.hear(&opened, &three, "");
        let times = Times { batches: 100, compute_us: vec![1, 2, 3], ..Times::default() };
        lock(&mailbox.seen).times = times;
        mailbox.hear(&opened, &three, "");
        assert_eq!(mailbox.seen().times.compute_us, [1, 2, 3]);
        // pi is left out: its times are not fig's.
        mailbox.hear(&opened, &[line("desk", 0..3), line("fig", 3..6)], "");
        assert_eq!(mailbox.seen().times.batches, 0);
    }

    #[test]
    fn a_board_that_was_started_just_now_has_time_to_open_its_links() {
        let mailbox = mailbox();
        let ago = |s| Instant::now().checked_sub(Duration::from_secs(s)).unwrap();
        lock(&mailbox.missing).silent.push(("pi".to_owned(), ago(60)));
        assert_eq!(mailbox.why_missing("pi", Instant::now()), None);
        assert!(mailbox.why_missing("pi", ago(30)).is_some());
    }
}
