//! Number of prompt rows in batches with decoding streams, limited so that these are not delayed too long.
//!
//! The cost of a row is unknown beforehand: it depends on the board, its other work, and the length of the
//! texts. So the time between two tokens of a stream is measured, and the number of rows follows it.

use std::time::Duration;

/// Longest wait of a decoding stream for its next token while prompts are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StallLimit {
    /// No limit: prompts get whole batches, which gives the highest total throughput.
    #[default]
    None,
    /// Twice the time of a step without prompts.
    Doubled,
    /// This long, or the time of a batch with one prompt row if that is longer.
    Fixed(Duration),
}

/// Prompt rows of the first batch beside decoding streams.
const ROWS_FIRST: f32 = 16.0;
/// Prompt rows of a batch while other engines wait for the same cores: larger ones are hardly quicker.
const ROWS_SHARED: usize = 64;
/// Safety margin between target and limit, in mean deviations of a step's time. With 3, 99 % of steps stay
/// below the limit.
const DISTANCES: f32 = 3.0;
/// Smallest mean deviation that is assumed, relative to the step: the effect of one row more or less.
const DISTANCE_MIN: f32 = 0.02;
/// Minimum fraction of the limit's slack that prompts get, however noisy steps are.
const PART_MIN: f32 = 0.4;
/// Smoothing factor of step times.
const STEP_WEIGHT: f32 = 0.25;
/// Maximum growth of the number of prompt rows from one batch to the next.
const GROWTH_MAX: f32 = 1.25;
/// Number of batches with prompt rows after which one has none, to measure plain steps again: texts have
/// become longer.
const BATCHES_MAX: u32 = 64;

/// Observed times between two tokens of a stream.
pub(super) struct Pace {
    limit: StallLimit,
    /// Smoothed seconds of a step without prompts, by number of decoding streams; 0 if unknown.
    steps: Vec<f32>,
    rows: f32,
    /// Smoothed seconds of a step with prompts; 0 if unknown.
    with_prompts: f32,
    /// Mean deviation of steps with prompts, relative to `with_prompts`.
    distance: f32,
    /// Batches with prompts since the last one without.
    n_batches: u32,
    /// Whether other engines wait for the same cores.
    is_shared: bool,
}

/// The time between two tokens of a stream.
#[derive(Clone, Copy)]
pub(super) struct Gap {
    pub(super) seconds: f32,
    /// Number of streams that decoded.
    pub(super) n_decoding: usize,
    /// Prompt rows that were submitted in between.
    pub(super) prompt_rows: usize,
}

impl Pace {
    /// A pace for up to `n_streams` streams.
    pub(super) fn new(limit: StallLimit, n_streams: usize) -> Pace {
        Pace {
            limit,
            steps: vec![0.0; n_streams + 1],
            rows: ROWS_FIRST,
            with_prompts: 0.0,
            distance: 0.0,
            n_batches: 0,
            is_shared: false,
        }
    }

    /// Notes whether other engines wait for the same cores.
    #[cfg(feature = "serve")]
    pub(super) fn share(&mut self, is_shared: bool) {
        self.is_shared = is_shared;
    }

    /// Prompt rows that the next batch may have while `n_decoding` streams decode. 0 if a step without
    /// prompts has to be measured first.
    pub(super) fn prompt_rows(&self, n_decoding: usize) -> usize {
        match (n_decoding, self.limit) {
            (0, limit) if self.is_shared && limit != StallLimit::None => ROWS_SHARED,
            (0, _) | (_, StallLimit::None) => usize::MAX,
            _ if self.steps[n_decoding] == 0.0 || self.n_batches >= BATCHES_MAX => 0,
            _ => self.rows as usize,
        }
    }

    /// Adapts to the measured `gap`.
    pub(super) fn saw(&mut self, gap: Gap) {
        let step = &mut self.steps[gap.n_decoding];
        if gap.prompt_rows == 0 {
            let weight = if *step == 0.0 { 1.0 } else { STEP_WEIGHT };
            *step += weight * (gap.seconds - *step);
            self.n_batches = 0;
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
        self.n_batches += 1;
        // The end of a prompt says little about the time of a whole slice.
        let is_whole = gap.prompt_rows as f32 >= self.rows / 2.0;
        if is_whole {
            let is_first = self.with_prompts == 0.0;
            let expected = if is_first { gap.seconds } else { self.with_prompts };
            let distance = (gap.seconds - expected).abs() / expected;
            self.distance += STEP_WEIGHT * (distance - self.distance);
            self.with_prompts = expected + STEP_WEIGHT * (gap.seconds - expected);
        }
        let aim = limit / (1.0 + DISTANCES * self.distance.max(DISTANCE_MIN));
        // Seconds that prompts may add to a step, and the ratio to those that they added.
        let may_add = (aim - step).max(PART_MIN * (limit - step)).max(0.0);
        let ratio = may_add / (gap.seconds - step).max(f32::MIN_POSITIVE);
        // A single step counts little, unless it exceeded the limit.
        let ratio = if gap.seconds > limit { ratio } else { ratio.powf(STEP_WEIGHT) };
        let growth_max = if is_whole { GROWTH_MAX } else { 1.0 };
        // The upper bound fits a usize.
        self.rows = (self.rows * ratio.clamp(0.5, growth_max)).clamp(1.0, 1e6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A board where a step of 7 streams takes 80 ms, and each row of a batch beyond the 20th adds 3 ms.
    fn seconds(prompt_rows: usize) -> f32 {
        0.08 + 0.003 * (7 + prompt_rows).saturating_sub(20) as f32
    }

    fn gap(prompt_rows: usize, slowness: f32) -> Gap {
        Gap { seconds: slowness * seconds(prompt_rows), n_decoding: 7, prompt_rows }
    }

    /// The gaps of `n` batches, each with as many prompt rows as allowed.
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
            for (n, slowness) in [(0, 1.0), (40, 1.0), (60, 1.3)] {
                let gaps = gaps(&mut pace, n, slowness);
                // On a slower board steps take longer, as a step without prompts shows.
                let max = if limit == fixed { 0.16 } else { 0.16 * slowness };
                for late in gaps.iter().skip(20).filter(|gap| gap.prompt_rows > 0) {
                    assert!(late.seconds <= max, "{} s with {limit:?}", late.seconds);
                    assert!(late.seconds >= 0.12, "{} rows with {limit:?}", late.prompt_rows);
                }
            }
        }
    }

    #[test]
    fn a_batch_without_prompts_tells_how_long_steps_have_become() {
        let mut pace = Pace::new(StallLimit::Doubled, 8);
        pace.saw(gap(0, 1.0));
        let all = gaps(&mut pace, 500, 3.0);
        assert!(all.iter().filter(|gap| gap.prompt_rows == 0).count() >= 500 / 66);
        // With the old measurement nothing would be left for prompts.
        assert!(all.last().unwrap().prompt_rows > 30, "{} rows", all.last().unwrap().prompt_rows);
    }

    #[test]
    fn steps_that_are_not_equally_long_are_seldom_too_long() {
        for slower in [0.0, 0.1] {
            let mut pace = Pace::new(StallLimit::Doubled, 8);
            (0..40).for_each(|_| pace.saw(gap(0, 1.0)));
            let (mut late, mut rows) = (0, 0);
            for step in 0..1000 {
                let n = pace.prompt_rows(7);
                // Values spread evenly from -1 to 1, in an order without a pattern.
                let random = 2.0 * (step as f32 * 0.618_034).fract() - 1.0;
                let gap = gap(n, 1.0 + slower * random);
                pace.saw(gap);
                late += u32::from(gap.seconds > 0.16);
                rows += n;
            }
            assert!(late <= 10, "{late} of 1000 steps were too long");
            // The limit leaves 39 rows.
            let wanted = if slower == 0.0 { 33_000 } else { 24_000 };
            assert!(rows > wanted, "{rows} rows in 1000 steps");
        }
    }

    #[test]
    fn a_prompt_always_goes_on() {
        let mut pace = Pace::new(StallLimit::Fixed(Duration::from_millis(1)), 8);
        pace.saw(gap(0, 1.0));
        assert!(gaps(&mut pace, 50, 1.0).iter().all(|gap| gap.prompt_rows >= 1));
        assert_eq!(pace.prompt_rows(7), 1);
        assert_eq!(pace.prompt_rows(0), usize::MAX, "no stream has to wait");
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
