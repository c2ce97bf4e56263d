//! Cost and gain of drafts: passes of few rows of a stream, after each of which a token is chosen, and texts
//! written with drafts that are as often right as they should be.

use std::time::Instant;

use super::machine::RUNS;
use super::text::{ids, push};
use crate::cli::Failure;
use crate::engine::{
    DRAFTS_MAX, DraftKind, DraftMode, Drafter, Engine, Job, JobEvent, JobFigures, Scheduler, Wants,
};

/// Most rows of a pass: a token and its drafts.
pub(super) const ROWS_MAX: usize = 1 + DRAFTS_MAX;

/// Passes of each number of rows, in turn; the best counts, as others are slowed by something else.
const ROUNDS: usize = 5;

/// Tokens of a text.
const WRITTEN: usize = 96;

/// Parts of the drafts that are right.
const HITS: [f64; 3] = [0.5, 0.7, 0.9];

/// With this seed the parts of right drafts are exact within 0.02, and a pass without a bound gives
/// the expected number of tokens within 3 %.
const SEED: u64 = 136_000;

/// The context that measuring takes after `depth` tokens.
pub(super) fn ctx_len(depth: usize) -> usize {
    depth.max(1).saturating_add(WRITTEN)
}

/// Cost of passes of few rows.
pub(super) struct RowsFigure {
    /// The context before them.
    pub(super) depth: usize,
    /// Seconds of a pass of `index + 1` rows.
    pub(super) seconds: [f64; ROWS_MAX],
}

/// Gain of drafts that cost nothing to make.
pub(super) struct DraftsFigure {
    /// The context before the text.
    pub(super) depth: usize,
    /// Part of the drafts that are right.
    pub(super) hits: f64,
    pub(super) tokens_per_s: f64,
    pub(super) tokens_per_pass: f64,
    /// Without drafts.
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

/// Measures a text after a context of `depth` tokens without drafts, and with drafts that are often, more
/// often and mostly right, in turn.
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

/// Has `job` done.
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

/// A drafter that knows the continuation of an earlier text, and is wrong at some places. Of texts that begin
/// one after the other it drafts nothing for the first, and for the others right tokens at each rate of
/// [`HITS`].
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

/// A number from 0 to 1 for the token at `place` (SplitMix64).
fn chance(place: usize) -> f64 {
    let x = SEED.wrapping_add(place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}
