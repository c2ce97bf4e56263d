//! The cores, which the engines of all loaded models share: one engine steps at a time, in the order in which they ask.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::sys::power::Meter;

/// Turns at the cores, and the meter of their energy.
#[derive(Default)]
pub(super) struct Turns {
    queue: Mutex<Queue>,
    has_changed: Condvar,
    /// Meter of the board's energy, if there is one.
    meter: Option<Arc<Meter>>,
    /// Engines that have something to compute.
    n_working: Mutex<usize>,
}

/// Numbers of turns. They are given in the order in which engines ask.
#[derive(Default)]
struct Queue {
    next: u64,
    current: u64,
}

/// The right to step; it goes to the next engine when this is dropped.
pub(super) struct Turn<'t>(&'t Turns);

impl Turns {
    pub(super) fn new(meter: Option<Arc<Meter>>) -> Turns {
        Turns { meter, ..Turns::default() }
    }

    /// Waits until all engines that asked earlier have stepped.
    pub(super) fn take(&self) -> Turn<'_> {
        let mut queue = lock(&self.queue);
        let own = queue.next;
        queue.next += 1;
        let is_early = |queue: &mut Queue| queue.current != own;
        drop(self.has_changed.wait_while(queue, is_early).unwrap_or_else(PoisonError::into_inner));
        Turn(self)
    }

    /// Notes that an engine begins to work, or has nothing more to do.
    pub(super) fn set_working(&self, is_working: bool) {
        let mut n = lock(&self.n_working);
        let before = *n;
        *n = if is_working { before + 1 } else { before.saturating_sub(1) };
        if (before == 0) != (*n == 0) {
            self.meter.iter().for_each(|meter| meter.set_working(is_working));
        }
    }

    /// Meter of the board's energy.
    pub(super) fn meter(&self) -> Option<&Meter> {
        self.meter.as_deref()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.queue).current += 1;
        self.0.has_changed.notify_all();
    }
}

/// Locks a number or two. No code panics while it holds the lock.
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
                for _ in 0..200 {
                    let _turn = turns.take();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
                200
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(step)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(steps, [200; 3]);
    }
}
