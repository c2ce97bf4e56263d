//! Cost and gain of drafts: passes of few rows, after each of which a token is chosen, and texts with drafts of a set
//! acceptance rate.

use std::time::Instant;

use super::machine::RUNS;
use super::text::{ids, push};
use crate::cli::Failure;
use crate::engine::{
    DRAFTS_MAX, DraftKind, DraftMode, Drafter, Engine, Job, JobEvent, JobFigures, Scheduler, Wants,
};

/// Most rows of a pass: a token and its drafts.
pub(super) const ROWS_MAX: usize = 1 + DRAFTS_MAX;

/// Passes for each number of rows, in turn. The fastest counts, because other work slows the rest.
const ROUNDS: usize = 5;

/// Tokens generated per text.
const WRITTEN: usize = 96;

/// Acceptance rates of drafts to measure.
const HITS: [f64; 3] = [0.5, 0.7, 0.9];

/// Seed with which the acceptance rates are exact within 0.02, and the tokens of a pass without a bound within 3 % of
/// the expected number.
const SEED: u64 = 136_000;

/// Context length that measuring after `depth` tokens takes.
pub(super) fn ctx_len(depth: usize) -> usize {
    depth.max(1).saturating_add(WRITTEN)
}

/// Cost of passes of few rows.
pub(super) struct RowsFigure {
    /// Tokens of context before the passes.
    pub(super) depth: usize,
    /// Seconds of a pass of `index + 1` rows.
    pub(super) seconds: [f64; ROWS_MAX],
}

/// Gain of drafts that cost nothing to make.
pub(super) struct DraftsFigure {
    /// Tokens of context before the text.
    pub(super) depth: usize,
    /// Acceptance rate of the drafts.
    pub(super) hits: f64,
    pub(super) tokens_per_s: f64,
    pub(super) tokens_per_pass: f64,
    /// Speed without drafts.
    pub(super) plain_tokens_per_s: f64,
}

/// Measures passes of 1 to [`ROWS_MAX`] rows after a context of `depth` tokens.
pub(super) fn rows(engine: &mut Engine, depth: usize) -> Result<RowsFigure, Failure> {
    let mut stream = engine.stream().map_err(|e| Failure::runtime(&e))?;
    let ids = ids(engine, 0..depth + ROWS_MAX);
    let mut seconds = [f64::INFINITY; ROWS_MAX];
    for _ in 0..ROUNDS {
        for (rows, best) in (1..).zip(&mut seconds) {
            let kept = engine.rewind(&mut stream, &ids[..=depth]);
            push(engine, &mut stream, depth - kept)?;
            let start = Instant::now();
            let pass = engine.push_batch(&mut stream, &ids[depth..depth + rows], Wants::All);
            pass.map_err(|e| Failure::runtime(&e))?;
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    Ok(RowsFigure { depth, seconds })
}

/// Measures texts after a context of `depth` tokens: without drafts, and with each acceptance rate of [`HITS`], in
/// turn.
pub(super) fn texts(engine: &mut Engine, depth: usize) -> Result<Vec<DraftsFigure>, Failure> {
    let mut scheduler = Scheduler::new(engine, 1, None).map_err(|e| Failure::runtime(&e))?;
    let prompt = ids(engine, 0..depth.max(1));
    scheduler.draft(Box::new(Knowing::new(prompt.len())), DraftMode::Auto);
    let job = Job { n_predict: WRITTEN, ..Job::new(prompt) };
    let mut best = [(0.0, 0.0); 1 + HITS.len()];
    for _ in 0..RUNS {
        for best in &mut best {
            let figures = write(&mut scheduler, engine, &job)?;
            let tokens_per_s = figures.generated_tokens_per_s();
            if tokens_per_s > best.0 {
                *best = (tokens_per_s, figures.tokens_per_pass());
            }
        }
    }
    let [(plain_tokens_per_s, _), drafted @ ..] = best;
    let figures = HITS.iter().zip(drafted).map(|(&hits, (tokens_per_s, tokens_per_pass))| {
        DraftsFigure { depth, hits, tokens_per_s, tokens_per_pass, plain_tokens_per_s }
    });
    Ok(figures.collect())
}

/// Runs `job` to its end.
fn write(
    scheduler: &mut Scheduler<'_>,
    engine: &mut Engine,
    job: &Job,
) -> Result<JobFigures, Failure> {
    let mut end = None;
    scheduler.submit(job.clone());
    while !scheduler.is_idle() {
        scheduler.step(engine, &mut |_, event| match event {
            JobEvent::Done { outcome, .. } => end = Some(Ok(outcome.figures)),
            JobEvent::Failed(error) => end = Some(Err(Failure::runtime(&error))),
            _ => {}
        });
    }
    end.unwrap_or_else(|| Err(Failure::Runtime("a text has no end".to_owned())))
}

/// A drafter that knows the text from an earlier run, and drafts wrong tokens at chosen positions. It drafts nothing
/// for the first text and right tokens at one rate of [`HITS`] for each of the next; then again from the start.
struct Knowing {
    prompt_len: usize,
    text: Vec<u32>,
    /// Texts that have begun.
    n_begun: usize,
}

impl Knowing {
    fn new(prompt_len: usize) -> Knowing {
        Knowing { prompt_len, text: Vec::new(), n_begun: 0 }
    }
}

impl Drafter for Knowing {
    fn begin(&mut self, _lane: usize, _prompt: &[u32]) {
        self.n_begun += 1;
    }

    fn draft(
        &mut self,
        _lane: usize,
        ids: &[u32],
        _worth: &dyn Fn(DraftKind) -> usize,
        drafts: &mut Vec<u32>,
    ) -> DraftKind {
        let hits = (self.n_begun - 1) % (1 + HITS.len());
        if let Some(hits) = hits.checked_sub(1).map(|index| HITS[index]) {
            let next = self.text.iter().enumerate().skip(ids.len()).take(DRAFTS_MAX);
            drafts.extend(
                next.map(|(pos, id)| id ^ u32::from(chance(pos - self.prompt_len) >= hits)),
            );
        }
        DraftKind::LongNgram
    }

    fn end(&mut self, _lane: usize, ids: &[u32]) {
        ids.clone_into(&mut self.text);
    }
}

/// Pseudorandom number from 0 to 1 for the token at `place` (SplitMix64).
fn chance(place: usize) -> f64 {
    let x = SEED.wrapping_add(place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}
