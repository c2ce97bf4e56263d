//! Deadlines of a wait for parts: when to request retransmission, and when to sleep.

use crate::transport::Micros;

/// Time beyond the usual one after which a part is requested.
const ASK_US: Micros = 100;
/// Time to poll for frames without sleeping, after the last one that came.
const SPIN_US: Micros = 200;
/// An interruption ends a wait in which nothing has come for this long. Until then the others compute: a batch that ends
/// keeps what is stored, which one that is given up loses.
pub(super) const SILENT_US: Micros = 2_000_000;

/// Durations in which nothing came, now and usually.
pub(super) struct Patience {
    /// Time to spin now: shorter after a spin in vain.
    spin_us: Micros,
    /// The longest time in this wait in which nothing came.
    longest_us: Micros,
    /// The longest time in which nothing came, of late.
    usual_us: Micros,
    /// Time of the last arrival, or of the wait's begin.
    since: Micros,
    n_asked: u32,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { spin_us: SPIN_US, longest_us: 0, usual_us: 0, since: 0, n_asked: 0 }
    }
}

impl Patience {
    /// Notes that a wait begins.
    pub(super) fn begin(&mut self, now: Micros) {
        self.longest_us = 0;
        self.restart(now);
    }

    fn restart(&mut self, now: Micros) {
        (self.since, self.n_asked) = (now, 0);
    }

    /// Notes that the wait is over.
    pub(super) fn end(&mut self) {
        let in_vain = self.longest_us > SPIN_US;
        self.spin_us = if in_vain { self.spin_us / 2 } else { SPIN_US };
    }

    /// Whether to look for more rather than to sleep.
    pub(super) fn spins(&self, now: Micros) -> bool {
        self.idle_us(now) < self.spin_us
    }

    /// Notes an arrival.
    pub(super) fn on_come(&mut self, now: Micros) {
        self.longest_us = self.longest_us.max(self.idle_us(now));
        // A retransmitted part takes longer than usual, and must not count in full; a slower node is known
        // after a few parts.
        let idle_us = self.idle_us(now).min(self.ask_us());
        self.usual_us = idle_us.max(self.usual_us - self.usual_us / 32);
        self.restart(now);
    }

    /// Time in which nothing has come.
    fn idle_us(&self, now: Micros) -> Micros {
        now.saturating_sub(self.since)
    }

    /// Whether nothing has come for so long that an interruption ends the wait.
    pub(super) fn is_silent(&self, now: Micros) -> bool {
        self.idle_us(now) >= SILENT_US
    }

    /// Whether to ask for what is missing: once it takes too long, and then ever more rarely.
    pub(super) fn asks(&mut self, now: Micros) -> bool {
        let is_due = self.idle_us(now) >= self.ask_us() << self.n_asked.min(16);
        self.n_asked += u32::from(is_due);
        is_due
    }

    fn ask_us(&self) -> Micros {
        2 * self.usual_us + ASK_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of the requests in 10 ms in which nothing comes.
    fn asked(patience: &mut Patience) -> Vec<Micros> {
        patience.begin(0);
        (0..10_000).filter(|now| patience.asks(*now)).collect()
    }

    #[test]
    fn what_takes_longer_than_usual_is_asked_for() {
        let mut patience = Patience::default();
        assert_eq!(asked(&mut patience), [100, 200, 400, 800, 1600, 3200, 6400]);
        for _ in 0..10 {
            patience.begin(0);
            patience.on_come(1_000);
        }
        assert_eq!(asked(&mut patience), [2_100, 4_200, 8_400]);
        for _ in 0..200 {
            patience.begin(0);
            patience.on_come(10);
        }
        assert!(asked(&mut patience)[0] < 200, "it is quicker again");
    }

    /// Length of the spin after a wait of `us`.
    fn spun(patience: &mut Patience, us: Micros) -> Micros {
        patience.begin(0);
        patience.on_come(us);
        patience.end();
        patience.begin(0);
        (0..10_000).find(|now| !patience.spins(*now)).unwrap()
    }

    #[test]
    fn a_spin_in_vain_shortens_the_next_one_until_it_is_too_short() {
        let mut patience = Patience::default();
        let spans = [1_000, 150, 1_000, 1_000, 1_000].map(|us| spun(&mut patience, us));
        assert_eq!(spans, [100, 200, 100, 50, 25]);
        (0..10).for_each(|_| _ = spun(&mut patience, 300));
        assert_eq!([300, 10].map(|us| spun(&mut patience, us)), [0, 200]);
    }
}
