//! Drafts: guessed next tokens, which go through the model together with the text's last token. A draft is
//! accepted if it equals the token that would have been chosen anyway, so drafts never change the text.
//!
//! The best number of drafts depends on the cost of a batch by its rows and on the acceptance rate. Both are
//! measured.

use std::ops::Range;
use std::time::Instant;

use super::{Engine, StepError};

/// Most ids of a draft. With the token before them they fill a tile of 16 rows.
pub const DRAFTS_MAX: usize = 15;

/// Batch sizes, in rows, whose time is measured. Larger batches are taken to last as long as the last one.
const ROWS_KNOWN: usize = 64;
/// Rows that a batch may have at the cost of one more, assumed until times are known.
const ROWS_ASSUMED: f32 = 8.0;
/// Smoothing factors of batch times: upwards, because other work may have slowed the batch, and downwards.
const SLOWER_WEIGHT: f32 = 0.1;
const QUICKER_WEIGHT: f32 = 0.5;
/// Smoothing factor of the acceptance rate.
const HIT_WEIGHT: f32 = 0.125;
/// Acceptance rate that each kind of draft starts with.
const HITS_FIRST: [f32; 3] = [0.25, 0.25, 0.7];
/// Slower smoothing for a draft model, whose acceptance rate is noisy.
const MODEL_HIT_WEIGHT: f32 = 1.0 / 24.0;
/// Number of a model's drafts that weigh as much as its initial acceptance rate.
const N_FIRST: f32 = 4.0;
/// Tokens after which a draft model that brought nothing is tried again. The pause doubles at each failure.
const IDLE_FIRST: usize = 128;
/// Number of drafts when a draft model is tried again.
const N_TRIED_AGAIN: usize = 4;
/// Minimum gain of drafts: tokens per second with drafts, divided by those without.
const GAIN_MIN: f32 = 1.05;

/// Cost of a rejected speculative batch on nodes that would be idle, as a fraction of one node's time.
const IN_THE_WAY: f32 = 0.1;
/// Minimum acceptance rate of a speculative batch that may delay other batches.
const CHANCE_IN_THE_WAY: f32 = 0.5;

/// Drafts the next tokens of texts, each in its lane. Drafts may be wrong.
pub trait Drafter: Send {
    /// Takes the threads of `engine`, which runs the large model, if the drafter can use them; the next call
    /// gives them back. Between the two calls only drafts are asked for.
    fn trade_threads(&mut self, _engine: &mut Engine) {}

    /// A new text begins in `lane`, with the ids of `prompt`.
    fn begin(&mut self, lane: usize, prompt: &[u32]);

    /// Writes up to [`DRAFTS_MAX`] ids to `drafts` that may follow `ids`, the text of `lane`. The last of
    /// `ids` may be drafts themselves; later calls replace them if they were wrong. If drafting takes time,
    /// `worth` gives the number of drafts of a kind that pay off.
    fn draft(
        &mut self,
        lane: usize,
        ids: &[u32],
        worth: &dyn Fn(DraftKind) -> usize,
        drafts: &mut Vec<u32>,
    ) -> DraftKind;

    /// The text of `lane` has ended, and is `ids`.
    fn end(&mut self, lane: usize, ids: &[u32]);

    /// Whether requested drafts are still being made on another node.
    fn is_waiting(&self) -> bool {
        false
    }
}

/// Waits for drafts of another node while nodes of a ring are idle, but at most until the oldest results
/// arrive. True if drafts have come.
pub(super) fn wait(drafter: Option<&dyn Drafter>, engine: &mut Engine) -> Result<bool, StepError> {
    let is_waiting = || drafter.is_some_and(Drafter::is_waiting);
    if !engine.has_room() || !is_waiting() {
        return Ok(false);
    }
    engine.wait_while(&is_waiting)?;
    Ok(!is_waiting())
}

/// Writes up to so many ids that the model's own block guesses behind a lane's text; `None` if it has none.
pub(super) type Guess<'a> = Option<&'a mut dyn FnMut(usize, &mut Vec<u32>)>;

/// How a draft is made. Each kind has its own acceptance rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftKind {
    /// Tokens that followed an earlier occurrence of the last few ids.
    #[default]
    Ngram,
    /// Tokens that followed an earlier occurrence of many of the last ids.
    LongNgram,
    /// Tokens that a smaller model or the model's own block chose, which takes time.
    Model,
}

/// How many drafts are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftMode {
    /// The number with the highest expected tokens per second.
    #[default]
    Auto,
    /// Up to this number, at any cost.
    Fixed(usize),
}

/// Learns the cost of a batch by its rows, and decides how many drafts are worth it.
pub(super) struct DraftControl {
    mode: DraftMode,
    /// Seconds of a batch with `index + 1` rows; 0 if unknown.
    seconds: [f32; ROWS_KNOWN],
    /// Seconds that a draft model takes for one draft; 0 if unknown.
    seconds_each: f32,
}

/// The drafts of a lane.
pub(super) struct LaneDrafts {
    /// Draft tokens of the next step.
    pub(super) ids: Vec<u32>,
    /// How many of `ids` go through the model.
    pub(super) n_sent: usize,
    /// Scratch: drafts to add after `ids`.
    next: Vec<u32>,
    kind: DraftKind,
    /// Acceptance rate of each kind of draft.
    hits: [f32; 3],
    /// Number of a model's drafts that were tested since the model was first tried, or tried again.
    n_tested: f32,
    /// Tokens since a model last drafted; and the number after which it is tried again.
    idle: usize,
    idle_max: usize,
}

/// The rest of a batch that a draft would be part of.
#[derive(Clone, Copy)]
pub(super) struct Beside {
    /// Rows of the other work.
    pub(super) rows: usize,
    /// Tokens that these rows yield.
    pub(super) tokens: usize,
    /// Seconds that drafting for these rows took.
    pub(super) seconds: f32,
    /// Nodes per text. With several, more drafts can follow before the first ones have passed all of them.
    pub(super) n_nodes: f32,
}

impl Beside {
    /// No other work, for a text that has `n_nodes` nodes.
    pub(super) fn none(n_nodes: usize) -> Beside {
        Beside { rows: 0, tokens: 0, seconds: 0.0, n_nodes: n_nodes as f32 }
    }
}

impl DraftControl {
    pub(super) fn new(mode: DraftMode) -> DraftControl {
        DraftControl { mode, seconds: [0.0; ROWS_KNOWN], seconds_each: 0.0 }
    }

    /// Notes the time of a batch with `rows` rows, none of them of a prompt.
    pub(super) fn saw(&mut self, rows: usize, seconds: f32) {
        follow(&mut self.seconds[rows.clamp(1, ROWS_KNOWN) - 1], seconds);
    }

    /// Expected time of a batch of `rows` rows. `None` if nothing is known.
    fn seconds(&self, rows: usize) -> Option<f32> {
        let at = rows.clamp(1, ROWS_KNOWN) - 1;
        let known = |range: Range<usize>| range.filter(|index| self.seconds[*index] > 0.0);
        let mut below = known(0..at + 1).rev();
        // No batch takes longer than a larger one. A time that says otherwise was disturbed.
        let above = known(at + 1..ROWS_KNOWN);
        let above = above.min_by(|a, b| self.seconds[*a].total_cmp(&self.seconds[*b]));
        let Some(last) = below.next() else { return above.map(|above| self.seconds[above]) };
        let begin = self.seconds[last];
        let Some(above) = above else {
            let assumed = begin / ROWS_ASSUMED;
            let found = |before: usize| (begin - self.seconds[before]) / (last - before) as f32;
            let each = below.next().map_or(assumed, |before| found(before).max(assumed));
            return Some(begin + (at - last) as f32 * each);
        };
        let end = self.seconds[above];
        let part = (at - last) as f32 / (above - last) as f32;
        Some((begin + part * (end - begin)).min(end))
    }

    /// Number of drafts to try, up to `n_max`, in a batch with `beside`. `hits` is the acceptance rate;
    /// `each` are the seconds to make one draft.
    fn worth(&self, (hits, each): (f32, f32), beside: Beside, n_max: usize) -> usize {
        if let DraftMode::Fixed(n) = self.mode {
            return n.min(n_max);
        }
        let Beside { rows, tokens: others, seconds: before, n_nodes } = beside;
        if self.seconds(rows + 1).is_none() {
            return 0;
        }
        let (mut own, mut chance) = (1.0, 1.0);
        let (mut best, mut best_rate) = (0, 0.0);
        for n in 0..=n_max {
            let seconds = self.seconds(rows + 1 + n).unwrap_or(f32::INFINITY);
            // If all drafts and the token after them are right, the same number follows one node's time
            // later.
            chance *= hits;
            let more = if n_nodes > 1.0 { chance } else { 0.0 };
            let own_seconds = seconds + more * (seconds / n_nodes + (n + 1) as f32 * each);
            let seconds = before + own_seconds + n as f32 * each;
            let rate = (others as f32 + own * (1.0 + more)) / seconds;
            if rate > best_rate {
                (best, best_rate) = (n, if n == 0 { GAIN_MIN * rate } else { rate });
            }
            own += chance;
        }
        best
    }

    /// Number of drafts to send behind drafts that are in flight and all accepted with probability `alive`.
    ///
    /// `n_nodes` is the length of the pipeline; `is_free` says whether the first node would be idle. Gain if
    /// accepted: one lap minus one stage. Loss if rejected: [`IN_THE_WAY`] of a stage, or a whole stage if
    /// the first node is busy.
    fn worth_ahead(
        &self,
        (alive, hits, each): (f32, f32, f32),
        (n_nodes, is_free): (usize, bool),
        n_max: usize,
    ) -> usize {
        if let DraftMode::Fixed(n) = self.mode {
            return n.min(n_max);
        }
        let chance = alive * hits;
        let is_worth = match is_free {
            true => (n_nodes - 1) as f32 * chance > IN_THE_WAY * (1.0 - chance),
            false => chance > CHANCE_IN_THE_WAY,
        };
        match n_max.checked_sub(1) {
            Some(n_max) if is_worth => 1 + self.worth((hits, each), Beside::none(n_nodes), n_max),
            _ => 0,
        }
    }
}

/// Moves the smoothed time `known` towards a new one; 0 means unknown.
fn follow(known: &mut f32, seconds: f32) {
    let weight = match *known {
        0.0 => 1.0,
        known if seconds > known => SLOWER_WEIGHT,
        _ => QUICKER_WEIGHT,
    };
    *known += weight * (seconds - *known);
}

/// Truncates a draft at the first id outside the vocabulary, and to [`DRAFTS_MAX`] ids.
fn cut(ids: &mut Vec<u32>, vocab_size: usize) {
    let unknown = ids.iter().position(|id| *id as usize >= vocab_size);
    ids.truncate(unknown.unwrap_or(DRAFTS_MAX).min(DRAFTS_MAX));
}

impl LaneDrafts {
    /// Drafts of a lane; up to `n_max` of them go through the model at the same time.
    pub(super) fn new(n_max: usize) -> LaneDrafts {
        LaneDrafts {
            ids: Vec::with_capacity(n_max + DRAFTS_MAX),
            n_sent: 0,
            next: Vec::with_capacity(DRAFTS_MAX),
            kind: DraftKind::Ngram,
            hits: HITS_FIRST,
            n_tested: 0.0,
            idle: 0,
            idle_max: IDLE_FIRST,
        }
    }

    /// Drops the drafts.
    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.n_sent = 0;
    }

    /// Resets all statistics for a new text.
    pub(super) fn begin(&mut self) {
        self.clear();
        (self.hits, self.n_tested) = (HITS_FIRST, 0.0);
        (self.idle, self.idle_max) = (0, IDLE_FIRST);
    }

    /// Asks `drafter` for ids after `ids`, the text of `lane`, keeps those in the vocabulary, and chooses up
    /// to `n_max` of them for a batch with `beside`. `guess` writes up to so many ids that the model's own block guesses;
    /// they are taken where the drafter has no long n-gram. Returns the seconds of drafting.
    pub(super) fn ask(
        &mut self,
        (drafter, guess): (&mut dyn Drafter, Guess<'_>),
        control: &mut DraftControl,
        (lane, ids, vocab_size): (usize, &[u32], usize),
        (beside, n_max): (Beside, usize),
    ) -> f32 {
        self.clear();
        let (hits, is_tried_again) = (self.hits, self.idle >= self.idle_max);
        let worth = |kind: DraftKind| {
            let each = if kind == DraftKind::Model { control.seconds_each } else { 0.0 };
            match control.worth((hits[kind as usize], each), beside, n_max) {
                0 if is_tried_again => N_TRIED_AGAIN.min(n_max),
                n => n,
            }
        };
        let begun = Instant::now();
        self.kind = drafter.draft(lane, ids, &worth, &mut self.ids);
        if let Some(guess) = guess
            && (self.kind != DraftKind::LongNgram || worth(self.kind) == 0)
        {
            let n = worth(DraftKind::Model);
            self.next.clear();
            guess(n, &mut self.next);
            if !self.next.is_empty() {
                self.kind = DraftKind::Model;
                std::mem::swap(&mut self.ids, &mut self.next);
            }
        }
        let seconds = begun.elapsed().as_secs_f32();
        self.idle += 1;
        if self.kind == DraftKind::Model && !self.ids.is_empty() {
            follow(&mut control.seconds_each, seconds / self.ids.len() as f32);
            self.idle = 0;
            if is_tried_again {
                self.idle_max <<= 1;
                self.n_tested = 0.0;
            }
        }
        cut(&mut self.ids, vocab_size);
        let n_max = n_max.min(self.ids.len());
        self.n_sent = control.worth((hits[self.kind as usize], 0.0), beside, n_max);
        seconds
    }

    /// Asks `drafter` for ids after `ids`, which is the text of `lane` and its drafts in flight. Chooses up
    /// to `n_max` of them for another batch. Returns their number and the seconds of drafting.
    pub(super) fn ask_ahead(
        &mut self,
        drafter: &mut dyn Drafter,
        control: &mut DraftControl,
        (lane, ids, vocab_size): (usize, &[u32], usize),
        (nodes, n_max): ((usize, bool), usize),
    ) -> (usize, f32) {
        self.ids.truncate(self.n_sent);
        self.next.clear();
        let (hits, alive) = (self.hits, self.hits[self.kind as usize].powi(self.n_sent as i32));
        let worth = |kind: DraftKind| {
            let each = if kind == DraftKind::Model { control.seconds_each } else { 0.0 };
            control.worth_ahead((alive, hits[kind as usize], each), nodes, n_max)
        };
        let begun = Instant::now();
        let kind = drafter.draft(lane, ids, &worth, &mut self.next);
        let seconds = begun.elapsed().as_secs_f32();
        cut(&mut self.next, vocab_size);
        let n = worth(kind).min(self.next.len());
        if n > 0 {
            self.kind = kind;
            self.ids.extend_from_slice(&self.next[..n]);
            self.n_sent += n;
        }
        (n, seconds)
    }

    /// Removes the first `n` drafts, which were accepted; those after them are in flight.
    pub(super) fn go_on(&mut self, n: usize) {
        self.ids.drain(..n);
        self.n_sent -= n;
    }

    /// Compares the draft at `index` with the chosen token `id`. True if they are equal and the draft went
    /// through the model: then the next token is known or in flight. Drafts that were not sent are compared
    /// too, which costs nothing.
    pub(super) fn test(&mut self, index: usize, id: u32) -> bool {
        let Some(&draft) = self.ids.get(index) else { return false };
        let is_hit = draft == id;
        let mut weight = HIT_WEIGHT;
        if self.kind == DraftKind::Model {
            self.n_tested += 1.0;
            weight = MODEL_HIT_WEIGHT.max(1.0 / (N_FIRST + self.n_tested));
        }
        let hits = &mut self.hits[self.kind as usize];
        *hits += weight * (f32::from(u8::from(is_hit)) - *hits);
        is_hit && index < self.n_sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A board where each row beyond a batch's fourth takes a sixteenth of a pass.
    fn seconds(rows: usize) -> f32 {
        0.1 * (1.0 + rows.saturating_sub(4) as f32 / 16.0)
    }

    /// Tries drafts of which about `tenths` in ten are right; returns the speed relative to that without
    /// drafts.
    fn gain(tenths: usize, disturbance: impl Fn(usize) -> f32) -> f32 {
        let mut control = DraftControl::new(DraftMode::Auto);
        let mut drafts = LaneDrafts::new(DRAFTS_MAX);
        let (mut time, mut tokens, mut draw) = (0.0, 0, 0);
        for step in 0..400 {
            drafts.clear();
            drafts.ids.extend([1; DRAFTS_MAX]);
            drafts.n_sent = control.worth((drafts.hits[0], 0.0), Beside::none(1), DRAFTS_MAX);
            let took = seconds(1 + drafts.n_sent) * disturbance(step);
            control.saw(1 + drafts.n_sent, took);
            time += took;
            for index in 0.. {
                tokens += 1;
                draw = (draw * 7 + 3) % 101;
                if !drafts.test(index, u32::from(draw % 10 < tenths)) {
                    break;
                }
            }
        }
        tokens as f32 * seconds(1) / time
    }

    #[test]
    fn as_many_are_tried_as_are_worth_it() {
        assert!(gain(0, |_| 1.0) > 0.97, "{}", gain(0, |_| 1.0));
        assert!(gain(5, |_| 1.0) > 1.5, "{}", gain(5, |_| 1.0));
        assert!(gain(10, |_| 1.0) > 7.0, "{}", gain(10, |_| 1.0));
        // A batch that now and then takes three times as long changes little.
        let disturbed = |step: usize| if step.is_multiple_of(9) { 3.0 } else { 1.0 };
        assert!(gain(10, disturbed) > 5.0, "{}", gain(10, disturbed));
    }

    #[test]
    fn drafts_make_way_for_texts_that_have_to_go_through_the_model() {
        let mut control = DraftControl::new(DraftMode::Auto);
        assert_eq!(control.worth((0.7, 0.0), Beside::none(1), 15), 0, "nothing is known yet");
        // A board whose batches take longer from eight rows on.
        (1..=40).for_each(|rows| control.saw(rows, 0.1 * (rows as f32 / 8.0).max(1.0)));
        assert!(control.worth((0.7, 0.0), Beside::none(1), 15) >= 7);
        assert_eq!(control.worth((0.7, 0.0), Beside::none(1), 4), 4);
        let beside = Beside { rows: 8, tokens: 8, ..Beside::none(1) };
        assert_eq!(control.worth((0.7, 0.0), beside, 15), 0);
        let fixed = DraftControl::new(DraftMode::Fixed(5));
        assert_eq!(fixed.worth((0.7, 0.0), beside, 15), 5);
    }

    #[test]
    fn a_ring_goes_on_after_drafts_that_may_be_right() {
        let mut control = DraftControl::new(DraftMode::Auto);
        (1..=40).for_each(|rows| control.saw(rows, 0.1 * rows as f32));
        // Every row costs as much as the first, so one draft at a time is best.
        let worth =
            |alive, hits, nodes, n_max| control.worth_ahead((alive, hits, 0.0), nodes, n_max);
        assert_eq!(worth(1.0, 0.7, (4, true), 15), 1);
        assert_eq!(worth(0.3, 0.7, (2, true), 15), 1);
        assert_eq!(worth(0.1, 0.7, (4, true), 15), 1);
        assert_eq!(worth(0.02, 0.7, (4, true), 15), 0);
        assert_eq!(worth(1.0, 1.0, (4, true), 0), 0);
        // The first node is busy: a rejected draft delays other work.
        assert_eq!(worth(0.7, 0.7, (4, false), 15), 0);
        assert_eq!(worth(1.0, 0.9, (4, false), 15), 1);
        let mut control = DraftControl::new(DraftMode::Auto);
        (1..=40).for_each(|rows| control.saw(rows, 0.1 * (rows as f32 / 8.0).max(1.0)));
        assert!(control.worth_ahead((1.0, 0.9, 0.0), (4, true), 15) >= 5);
    }

    #[test]
    fn drafts_that_take_time_are_fewer() {
        let mut control = DraftControl::new(DraftMode::Auto);
        (1..=40).for_each(|rows| control.saw(rows, 0.1 * (rows as f32 / 8.0).max(1.0)));
        let of_each =
            [0.0, 0.02, 0.05, 0.2].map(|each| control.worth((0.7, each), Beside::none(1), 15));
        assert!(of_each.is_sorted_by(|a, b| a > b), "{of_each:?}");
        assert!(of_each[1] >= 3 && of_each[3] == 0, "{of_each:?}");
    }

    /// Always drafts the same id, as often as it pays off.
    struct Stubborn(usize);

    impl Drafter for Stubborn {
        fn begin(&mut self, _lane: usize, _prompt: &[u32]) {}

        fn draft(
            &mut self,
            _lane: usize,
            _ids: &[u32],
            worth: &dyn Fn(DraftKind) -> usize,
            drafts: &mut Vec<u32>,
        ) -> DraftKind {
            let n = worth(DraftKind::Model);
            self.0 += n;
            drafts.extend(std::iter::repeat_n(1, n));
            DraftKind::Model
        }

        fn end(&mut self, _lane: usize, _ids: &[u32]) {}
    }

    #[test]
    fn a_model_that_is_of_no_use_is_asked_less_and_less() {
        let (mut control, mut drafts) =
            (DraftControl::new(DraftMode::Auto), LaneDrafts::new(DRAFTS_MAX));
        let mut drafter = Stubborn(0);
        let mut asked = [0; 2];
        (1..=40).for_each(|rows| control.saw(rows, 0.1 * (rows as f32 / 8.0).max(1.0)));
        for (half, asked) in asked.iter_mut().enumerate() {
            for _ in 0..1000 {
                control.seconds_each = 0.02;
                drafts.ask(
                    (&mut drafter, None),
                    &mut control,
                    (0, &[5], 100),
                    (Beside::none(1), DRAFTS_MAX),
                );
                drafts.test(0, 2);
            }
            *asked = std::mem::take(&mut drafter.0);
            assert!(*asked > 0 && *asked <= 40 - 30 * half, "{asked}");
        }
        // A text that the model drafts well.
        let mut n_right = 0;
        for _ in 0..3000 {
            control.seconds_each = 0.02;
            drafts.ask(
                (&mut drafter, None),
                &mut control,
                (0, &[5], 100),
                (Beside::none(1), DRAFTS_MAX),
            );
            n_right += (0..DRAFTS_MAX).take_while(|index| drafts.test(*index, 1)).count();
        }
        assert!(n_right > 3000, "{n_right}");
    }
}
