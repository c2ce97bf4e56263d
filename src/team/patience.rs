//! How long a node waits for what others send before it asks for it.

use crate::transport::Micros;

/// How much longer than it usually takes.
const ASK_US: Micros = 100;

/// For how long nothing has come, now and usually.
#[derive(Default)]
pub(super) struct Patience {
    /// The longest time in which nothing came, of late.
    usual_us: Micros,
    /// Something came then, or the wait began.
    since: Micros,
    n_asked: u32,
}

impl Patience {
    /// A wait begins.
    pub(super) fn begin(&mut self, now: Micros) {
        (self.since, self.n_asked) = (now, 0);
    }

    /// Something has come.
    pub(super) fn on_come(&mut self, now: Micros) {
        // What was lost takes longer than is usual, and a node that has become slower is known after a few.
        let idle_us = self.idle_us(now).min(self.ask_us());
        self.usual_us = idle_us.max(self.usual_us - self.usual_us / 32);
        self.begin(now);
    }

    /// For how long nothing has come.
    pub(super) fn idle_us(&self, now: Micros) -> Micros {
        now.saturating_sub(self.since)
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

    /// When it asks, in 10 ms in which nothing comes.
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
}
