//! A bad network, from a seed: what happens to each datagram on its way.

use std::ops::Range;

use super::Micros;

/// How bad the network is. Chances are from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Chance that a datagram is lost.
    pub loss: f64,
    /// Chance that it comes twice.
    pub duplicate: f64,
    /// Chance that a bit of it is changed.
    pub corrupt: f64,
    /// How long it takes; those that take longer than later ones are overtaken.
    pub delay_us: Range<Micros>,
}

impl Faults {
    /// A network that only takes its time, always the same.
    pub const NONE: Faults = Faults { loss: 0.0, duplicate: 0.0, corrupt: 0.0, delay_us: 100..101 };

    /// Any network that loses so much at most, and where datagrams take from up to `start` microseconds on up to `span`.
    /// What takes longer than what follows is overtaken.
    #[cfg(test)]
    pub(crate) fn draw(dice: &mut Dice, loss: f64, (start, span): (u64, u64)) -> Faults {
        let part = |dice: &mut Dice, most: f64| match dice.below(3) {
            0 => 0.0,
            _ => most * dice.below(101) as f64 / 100.0,
        };
        let start = 20 + dice.below(start);
        Faults {
            loss: part(dice, loss),
            duplicate: part(dice, 0.05),
            corrupt: part(dice, 0.02),
            delay_us: start..start + 1 + dice.below(span),
        }
    }

    /// When copies of a datagram arrive, counted from now; none if it is lost. May damage it.
    pub fn fate(&self, dice: &mut Dice, bytes: &mut [u8]) -> heapless::Vec<Micros, 2> {
        let mut arrivals = heapless::Vec::new();
        if dice.chance(self.loss) {
            return arrivals;
        }
        if dice.chance(self.corrupt) && !bytes.is_empty() {
            let bit = dice.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let copies = 1 + usize::from(dice.chance(self.duplicate));
        for _ in 0..copies {
            let span = self.delay_us.end.saturating_sub(self.delay_us.start);
            // Two fit.
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
