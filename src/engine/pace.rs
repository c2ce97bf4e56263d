//! How many rows of prompts a batch may have beside streams that decode, so that those are not kept waiting.
//!
//! What rows cost is not known beforehand: it depends on the board, on what else it does, and on how far
//! texts have come. So the time between two tokens of a stream is watched, and the number of rows follows.

use std::time::Duration;

/// How long a stream that decodes may wait for its next token while prompts are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StallLimit {
    /// As long as it takes: quickest for all together.
    #[default]
    None,
    /// Twice as long as without a prompt.
    Doubled,
    /// This long, or as long as a batch with one row of a prompt takes.
    Fixed(Duration),
}

/// Rows that the first batch of a prompt has beside streams that decode.
const ROWS_FIRST: f32 = 16.0;
/// Steps are not equally long: by so many times their usual distance from what was expected they may end later than what is
/// aimed at, without being too late. Of a normal distribution 99 of 100 do.
const DISTANCES: f32 = 3.0;
/// Part of what the limit leaves to prompts that they get however unequal steps are.
const PART_MIN: f32 = 0.4;
/// How fast what is known of steps follows new times.
const STEP_WEIGHT: f32 = 0.25;
/// How many times as many rows as the last batch one has, at most.
const GROWTH_MAX: f32 = 1.25;

/// What has been seen of the time between two tokens of a stream.
pub(super) struct Pace {
    limit: StallLimit,
    /// Seconds without prompts, by the number of streams that decode; 0 if unknown.
    steps: Vec<f32>,
    rows: f32,
    /// Seconds that a row of a prompt adds; 0 if unknown.
    row: f32,
    /// How far the time between two tokens is from what is expected, usually, as a part of it.
    distance: f32,
}

/// The time between two tokens of a stream.
#[derive(Clone, Copy)]
pub(super) struct Gap {
    pub(super) seconds: f32,
    /// Streams that decoded.
    pub(super) n_decoding: usize,
    /// Rows of prompts that were submitted meanwhile.
    pub(super) prompt_rows: usize,
}

impl Pace {
    /// For up to `n_streams` streams.
    pub(super) fn new(limit: StallLimit, n_streams: usize) -> Pace {
        Pace { limit, steps: vec![0.0; n_streams + 1], rows: ROWS_FIRST, row: 0.0, distance: 0.0 }
    }

    /// Rows of prompts that the next batch may have while `n_decoding` streams decode. None if it has to be
    /// seen first how long they take without.
    pub(super) fn prompt_rows(&self, n_decoding: usize) -> usize {
        match (n_decoding, self.limit) {
            (0, _) | (_, StallLimit::None) => usize::MAX,
            _ if self.steps[n_decoding] == 0.0 => 0,
            _ => self.rows as usize,
        }
    }

    /// Takes note of `gap`.
    pub(super) fn saw(&mut self, gap: Gap) {
        let step = &mut self.steps[gap.n_decoding];
        if gap.prompt_rows == 0 {
            let weight = if *step == 0.0 { 1.0 } else { STEP_WEIGHT };
            *step += weight * (gap.seconds - *step);
            return;
        }
        let step = *step;
        let limit = match self.limit {
            StallLimit::None => return,
            StallLimit::Doubled => 2.0 * step,
            StallLimit::Fixed(limit) => limit.as_secs_f32(),
        };
        if step == 0.0 {
            return;
        }
        let rows = gap.prompt_rows as f32;
        let added = (gap.seconds - step).max(f32::MIN_POSITIVE) / rows;
        // The end of a prompt says little of what a whole slice takes.
        let is_whole = rows >= self.rows / 2.0;
        if self.row == 0.0 {
            self.row = added;
        } else if is_whole {
            let expected = step + rows * self.row;
            let distance = (gap.seconds - expected).abs() / expected;
            self.distance += STEP_WEIGHT * (distance - self.distance);
            self.row += STEP_WEIGHT * (added - self.row);
        }
        let aim = limit / (1.0 + DISTANCES * self.distance);
        let may_add = (aim - step).max(PART_MIN * (limit - step)).max(0.0);
        let growth_max = if is_whole { GROWTH_MAX } else { 1.0 };
        let wanted = may_add / self.row;
        // No number of rows is worth more than a usize can hold.
        self.rows = wanted.clamp(0.5 * self.rows, growth_max * self.rows).clamp(1.0, 1e6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A board where 7 streams take 80 ms, and rows beyond the 20th of a batch 3 ms each.
    fn seconds(prompt_rows: usize) -> f32 {
        0.08 + 0.003 * (7 + prompt_rows).saturating_sub(20) as f32
    }

    fn gap(prompt_rows: usize, slowness: f32) -> Gap {
        Gap { seconds: slowness * seconds(prompt_rows), n_decoding: 7, prompt_rows }
    }

    /// The gaps of `n` batches with as many rows of prompts as may be.
    fn gaps(pace: &mut Pace, n: usize, slowness: f32) -> Vec<Gap> {
        let batch = |_| {
            let gap = gap(pace.prompt_rows(7).min(256), slowness);
            pace.saw(gap);
            gap
        };
        (0..n).map(batch).collect()
    }

    #[test]
    fn prompts_get_what_the_limit_leaves_and_follow_the_boards_speed() {
        let fixed = StallLimit::Fixed(Duration::from_millis(160));
        for limit in [StallLimit::Doubled, fixed] {
            let mut pace = Pace::new(limit, 8);
            assert_eq!(pace.prompt_rows(7), 0, "nothing is known yet");
            pace.saw(gap(0, 1.0));
            for (n, slowness) in [(0, 1.0), (40, 1.0), (60, 1.3), (40, 1.0)] {
                let gaps = gaps(&mut pace, n, slowness);
                for late in gaps.iter().skip(10) {
                    assert!(late.seconds <= 0.16, "{} s with {limit:?}", late.seconds);
                    assert!(late.seconds >= 0.12, "{} rows with {limit:?}", late.prompt_rows);
                }
            }
        }
    }

    #[test]
    fn steps_that_are_not_equally_long_are_seldom_too_long() {
        for slower in [0.0, 0.1] {
            let mut pace = Pace::new(StallLimit::Doubled, 8);
            (0..40).for_each(|_| pace.saw(gap(0, 1.0)));
            let (mut late, mut rows) = (0, 0);
            for step in 0..1000 {
                let n = pace.prompt_rows(7);
                // Evenly from -1 to 1, in an order without a pattern.
                let random = 2.0 * (step as f32 * 0.618_034).fract() - 1.0;
                let gap = gap(n, 1.0 + slower * random);
                pace.saw(gap);
                late += u32::from(gap.seconds > 0.16);
                rows += n;
            }
            assert!(late <= 10, "{late} of 1000 steps were too long");
            // The limit leaves 39 rows.
            let wanted = if slower == 0.0 { 36_000 } else { 24_000 };
            assert!(rows > wanted, "{rows} rows in 1000 steps");
        }
    }

    #[test]
    fn a_prompt_always_goes_on() {
        let mut pace = Pace::new(StallLimit::Fixed(Duration::from_millis(1)), 8);
        pace.saw(gap(0, 1.0));
        assert!(gaps(&mut pace, 50, 1.0).iter().all(|gap| gap.prompt_rows >= 1));
        assert_eq!(pace.prompt_rows(7), 1);
        assert_eq!(pace.prompt_rows(0), usize::MAX, "nobody is kept waiting");
        assert_eq!(Pace::new(StallLimit::None, 8).prompt_rows(7), usize::MAX);
    }

    #[test]
    fn the_end_of_a_prompt_says_nothing_of_a_slice() {
        let mut pace = Pace::new(StallLimit::Doubled, 8);
        pace.saw(gap(0, 1.0));
        gaps(&mut pace, 40, 1.0);
        let rows = pace.prompt_rows(7);
        pace.saw(gap(1, 1.0));
        assert_eq!(pace.prompt_rows(7), rows);
    }
}
