//! The cores, which the engines of all loaded models share: one engine steps at a time. Turns are given by time, since a
//! step that reads a prompt takes as long as many that write: the engine that has used the cores least is the next.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::power::Meter;

/// How long an engine that has work may take from one step to its next turn, before others are let pass.
const GRACE: Duration = Duration::from_millis(20);

/// Turns at the cores, and the meter of their energy.
#[derive(Default)]
pub(super) struct Turns {
    queue: Mutex<Queue>,
    has_changed: Condvar,
    /// Meter of the board's energy, if there is one.
    meter: Option<Arc<Meter>>,
}

/// Engines that have something to compute.
#[derive(Default)]
struct Queue {
    working: Vec<Working>,
    is_busy: bool,
    next_id: u64,
    /// Time of the cores that the engine with the last turn had used. Engines that come begin with it: rest is no credit.
    used: Duration,
}

struct Working {
    id: u64,
    /// Time of the cores that it has used.
    used: Duration,
    is_waiting: bool,
    /// When it last had the cores, or came.
    since: Instant,
}

/// The right to step; it goes to the next engine when this is dropped.
pub(super) struct Turn<'t> {
    turns: &'t Turns,
    id: u64,
    start: Instant,
}

impl Turns {
    pub(super) fn new(meter: Option<Arc<Meter>>) -> Turns {
        Turns { meter, ..Turns::default() }
    }

    /// Notes that an engine begins to work; the result names it.
    pub(super) fn begin(&self) -> u64 {
        let mut queue = lock(&self.queue);
        if queue.working.is_empty() {
            self.meter.iter().for_each(|meter| meter.set_working(true));
        }
        queue.begin(Instant::now())
    }

    /// Notes that engine `id` has nothing more to do.
    pub(super) fn end(&self, id: u64) {
        let mut queue = lock(&self.queue);
        queue.working.retain(|engine| engine.id != id);
        if queue.working.is_empty() {
            self.meter.iter().for_each(|meter| meter.set_working(false));
        }
        drop(queue);
        self.has_changed.notify_all();
    }

    /// Whether several engines have something to compute.
    pub(super) fn are_shared(&self) -> bool {
        lock(&self.queue).working.len() > 1
    }

    /// Waits until it is the turn of engine `id`.
    pub(super) fn take(&self, id: u64) -> Turn<'_> {
        let mut queue = lock(&self.queue);
        queue.set_waiting(id, true);
        while !queue.may_step(id, Instant::now()) {
            let woken = self.has_changed.wait_timeout(queue, GRACE);
            queue = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.set_waiting(id, false);
        queue.is_busy = true;
        Turn { turns: self, id, start: Instant::now() }
    }

    /// Meter of the board's energy.
    pub(super) fn meter(&self) -> Option<&Meter> {
        self.meter.as_deref()
    }
}

impl Queue {
    fn begin(&mut self, now: Instant) -> u64 {
        let (id, used) = (self.next_id, self.used);
        self.next_id += 1;
        self.working.push(Working { id, used, is_waiting: false, since: now });
        id
    }

    fn set_waiting(&mut self, id: u64, is_waiting: bool) {
        let mut own = self.working.iter_mut().filter(|engine| engine.id == id);
        own.by_ref().for_each(|engine| engine.is_waiting = is_waiting);
    }

    /// Whether no engine steps, and none that has used the cores less wants to.
    fn may_step(&self, id: u64, now: Instant) -> bool {
        let Some(own) = self.working.iter().find(|engine| engine.id == id) else {
            return !self.is_busy;
        };
        let is_before = |other: &&Working| (other.used, other.id) < (own.used, own.id);
        let wants = |other: &Working| other.is_waiting || now < other.since + GRACE;
        !self.is_busy && !self.working.iter().filter(is_before).any(wants)
    }

    /// Notes that engine `id` had the cores for `time`.
    fn charge(&mut self, id: u64, time: Duration, now: Instant) {
        self.is_busy = false;
        if let Some(engine) = self.working.iter_mut().find(|engine| engine.id == id) {
            self.used = self.used.max(engine.used);
            engine.used += time;
            engine.since = now;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.turns.queue).charge(self.id, self.start.elapsed(), Instant::now());
        self.turns.has_changed.notify_all();
    }
}

/// Locks numbers. No code panics while it holds the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn one_steps_at_a_time_and_none_is_left_out() {
        let (turns, inside) = (Turns::default(), AtomicUsize::new(0));
        let steps: Vec<usize> = thread::scope(|scope| {
            let step = || {
                let id = turns.begin();
                for _ in 0..200 {
                    let _turn = turns.take(id);
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
                turns.end(id);
                200
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(step)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(steps, [200; 3]);
    }

    /// A model that reads a long prompt takes long steps, one that writes short ones.
    #[test]
    fn engine_with_long_steps_waits_for_one_with_short_steps() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let (reader, writer) = (queue.begin(now), queue.begin(now));
        queue.set_waiting(reader, true);
        queue.charge(reader, Duration::from_millis(1000), now);
        queue.charge(writer, Duration::from_millis(10), now);
        assert!(!queue.may_step(reader, now), "the writer comes back at once");
        assert!(queue.may_step(writer, now));
        assert!(queue.may_step(reader, now + 2 * GRACE), "the writer stays away");
        queue.set_waiting(writer, true);
        assert!(!queue.may_step(reader, now + 2 * GRACE));
        queue.charge(writer, Duration::from_millis(1000), now);
        assert!(queue.may_step(reader, now + 2 * GRACE));
        // An engine that comes has no credit for its rest.
        let late = queue.begin(now);
        queue.set_waiting(late, true);
        queue.charge(late, Duration::from_millis(991), now);
        assert!(queue.may_step(reader, now), "{:?}", queue.used);
    }
}
