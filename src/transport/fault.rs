//! A bad network, from a seed: what happens to each datagram on its way.

use std::ops::Range;

use super::Micros;

/// How bad the network is. Chances are from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Chance that a datagram is lost.
    pub loss: f64,
    /// Losses in a row on one way; 1 if each datagram is lost by itself.
    pub burst: u32,
    /// Chance that a datagram comes twice.
    pub duplicate: f64,
    /// Chance that a bit of a datagram is changed.
    pub corrupt: f64,
    /// Delay of a datagram. A datagram with a long delay is overtaken by later ones.
    pub delay_us: Range<Micros>,
}

impl Faults {
    /// A network without faults, whose delay is constant.
    pub const NONE: Faults =
        Faults { loss: 0.0, burst: 1, duplicate: 0.0, corrupt: 0.0, delay_us: 100..101 };

    /// A random network with at most this loss, whose delays begin at up to `start` microseconds and vary by
    /// up to `span`. A datagram may be overtaken by later ones.
    #[cfg(test)]
    pub(crate) fn draw(dice: &mut Dice, loss: f64, (start, span): (u64, u64)) -> Faults {
        let part = |dice: &mut Dice, most: f64| match dice.below(3) {
            0 => 0.0,
            _ => most * dice.below(101) as f64 / 100.0,
        };
        let start = 20 + dice.below(start);
        Faults {
            loss: part(dice, loss),
            burst: 1,
            duplicate: part(dice, 0.05),
            corrupt: part(dice, 0.02),
            delay_us: start..start + 1 + dice.below(span),
        }
    }

    /// A network that loses the fraction `loss` of all datagrams, `burst` in a row.
    #[cfg(test)]
    pub(crate) fn losing(loss: f64, burst: u32) -> Faults {
        Faults { loss, burst, ..Faults::NONE }
    }

    /// Whether a burst of losses takes this datagram; `left` counts the losses to come on its way.
    pub(super) fn is_in_burst(&self, dice: &mut Dice, left: &mut u32) -> bool {
        if *left == 0 && self.burst > 1 {
            let (loss, burst) = (self.loss, f64::from(self.burst));
            // With this chance the bursts add up to the fraction `loss` of all datagrams.
            let begins = loss / (burst * (1.0 - loss) + loss);
            *left = if dice.chance(begins) { self.burst } else { 0 };
        }
        let is_lost = *left > 0;
        *left = left.saturating_sub(1);
        is_lost
    }

    /// Delays after which the copies of a datagram arrive; none if it is lost. May damage `bytes`.
    pub fn fate(&self, dice: &mut Dice, bytes: &mut [u8]) -> heapless::Vec<Micros, 2> {
        let mut arrivals = heapless::Vec::new();
        if self.burst <= 1 && dice.chance(self.loss) {
            return arrivals;
        }
        if dice.chance(self.corrupt) && !bytes.is_empty() {
            let bit = dice.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let copies = 1 + usize::from(dice.chance(self.duplicate));
        for _ in 0..copies {
            let span = self.delay_us.end.saturating_sub(self.delay_us.start);
            // There is room for two.
            let _ = arrivals.push(self.delay_us.start + dice.below(span.max(1)));
        }
        arrivals
    }
}

/// A sequence of random numbers (SplitMix64), the same for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    /// True with probability `chance`.
    pub fn chance(&mut self, chance: f64) -> bool {
        ((self.roll() >> 11) as f64) < chance * (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_lose_as_much_as_single_losses_and_in_a_row() {
        let (mut dice, mut left, n) = (Dice::new(1), 0, 100_000);
        let faults = Faults::losing(0.3, 10);
        let lost: Vec<bool> = (0..n).map(|_| faults.is_in_burst(&mut dice, &mut left)).collect();
        let n_lost = lost.iter().filter(|lost| **lost).count();
        assert!((29_000..31_000).contains(&n_lost), "{n_lost}");
        let mut runs: Vec<&[bool]> = lost.chunk_by(|a, b| a == b).collect();
        // The last run is cut off.
        runs.pop();
        assert!(runs.iter().filter(|run| run[0]).all(|run| run.len() % 10 == 0));
    }
}
