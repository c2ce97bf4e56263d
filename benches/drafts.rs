//! The gain of drafts for a made-up model that writes a given text. Drafts come from a smaller model of the same shape,
//! with a set acceptance rate, and from n-grams where the text repeats its prompt with edits: `cargo bench --bench
//! drafts -- [--shape tinyllama] [--version 2] [--layers N] [--draft-layers 3] [--threads 2] [--prompt 64] [--tokens
//! 160] [--right 0,0.5,0.7,0.9] [--rounds 5]`.
//!
//! Each round writes all texts in turn, each kind first without drafts. Gains are taken within a round; the bench
//! prints their medians and ranges.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use leap::engine::{
    DRAFTS_MAX, DraftKind, DraftMode, Drafter, Engine, Job, JobEvent, JobFigures, Listener,
    NgramDrafter, Options, Scheduler, Stream, TokenFilter, WeightsPlace,
};
use leap::format::model::{Ends, Header, Weights};
use leap::internals::model::{Model, Shape};

/// Ids of a document that is copied, and the distance between changed ids.
const DOCUMENT: usize = 256;
const EDIT_EVERY: usize = 24;

/// A filter that allows one text only.
#[derive(Clone, Debug)]
struct Script {
    text: Arc<Vec<u32>>,
    at: usize,
}

impl TokenFilter for Script {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let id = self.text[self.at] as usize;
        logits.fill(f32::NEG_INFINITY);
        logits[id] = 0.0;
        Ok(())
    }

    fn take(&mut self, _id: u32) -> Result<bool, String> {
        self.at += 1;
        Ok(self.at == self.text.len())
    }

    fn another(&self) -> Box<dyn TokenFilter> {
        Box::new(self.clone())
    }
}

/// Source of drafts.
#[derive(Clone)]
enum Guess {
    Nothing,
    /// A model with this acceptance rate, and the whole text.
    Model(f64, Vec<u32>),
    Ngrams,
}

/// A drafter that follows `guess`.
struct Guesser {
    guess: Arc<Mutex<Guess>>,
    engine: Engine,
    stream: Stream,
    ngrams: NgramDrafter,
    ctx_len: usize,
}

/// True if a drafter with the acceptance rate `part` is right at `pos` (SplitMix64).
fn is_right(part: f64, pos: usize) -> bool {
    let hash = (pos as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (((hash ^ (hash >> 31)) >> 11) as f64) < part * (1_u64 << 53) as f64
}

impl Drafter for Guesser {
    fn trade_threads(&mut self, engine: &mut Engine) {
        engine.trade_threads(&mut self.engine);
    }

    fn begin(&mut self, _lane: usize, _prompt: &[u32]) {
        self.ngrams = NgramDrafter::new(1, self.ctx_len);
    }

    fn draft(
        &mut self,
        lane: usize,
        ids: &[u32],
        worth: &dyn Fn(DraftKind) -> usize,
        drafts: &mut Vec<u32>,
    ) -> DraftKind {
        let (part, text) = match &*self.guess.lock().unwrap() {
            Guess::Nothing => return DraftKind::Ngram,
            Guess::Ngrams => return self.ngrams.draft(lane, ids, worth, drafts),
            Guess::Model(part, text) => (*part, text.clone()),
        };
        let n = worth(DraftKind::Model).min(text.len() - ids.len());
        if n > 0 {
            let kept = self.engine.rewind(&mut self.stream, ids);
            self.engine.push(&mut self.stream, &ids[kept..]).expect("ids of the vocabulary");
        }
        for (pos, id) in text.iter().enumerate().skip(ids.len()).take(n) {
            let id = id ^ u32::from(!is_right(part, pos));
            drafts.push(id);
            if drafts.len() < n {
                self.engine.push(&mut self.stream, &[id]).expect("ids of the vocabulary");
            }
        }
        DraftKind::Model
    }

    fn end(&mut self, _lane: usize, _ids: &[u32]) {}
}

/// The value behind `name` on the command line, else `default`.
fn value(name: &str, default: &str) -> String {
    let found = std::env::args().skip_while(|arg| arg != name).nth(1);
    found.unwrap_or_else(|| default.to_owned())
}

/// The number behind `name` on the command line, else `default`.
fn number(name: &str, default: usize) -> usize {
    let text = value(name, &default.to_string());
    text.parse().unwrap_or_else(|_| panic!("{name} {text}: no number"))
}

/// A made-up model of `layers` layers with its weights prepared.
fn engine(layers: Option<usize>, options: &Options) -> Engine {
    let name = value("--shape", "tinyllama");
    let shape = Shape::from_name(&name).unwrap_or_else(|| panic!("{name} is no shape"));
    let weights = match number("--version", 2) {
        2 => Weights::Q8 { group: 32 },
        3 => Weights::Q4 { group: 32, int8_embedding: true },
        4 => Weights::B2 { group: 32, ends: Ends::Int8 },
        other => panic!("--version {other}: there are 2, 3 and 4"),
    };
    let header = shape.header(weights);
    let header = Header { n_layers: layers.unwrap_or(header.n_layers), ..header };
    let model = Arc::new(Model::synthetic(&header).expect("memory for the model"));
    let mut engine = Engine::new(model, options).expect("an engine");
    let prepared = engine.prepare(&WeightsPlace::default(), Listener::NONE);
    prepared.expect("memory for packed weights");
    engine
}

/// Runs `job` to its end.
fn write(scheduler: &mut Scheduler<'_>, engine: &mut Engine, job: &Job) -> JobFigures {
    let mut figures = None;
    scheduler.submit(job.clone());
    while !scheduler.is_idle() {
        scheduler.step(engine, &mut |_, event| match event {
            JobEvent::Done { outcome, .. } => figures = Some(outcome.figures),
            JobEvent::Failed(error) => panic!("{error}"),
            _ => {}
        });
    }
    figures.expect("an end")
}

/// Median and range of `values`.
fn spread(mut values: Vec<f64>) -> (f64, Range<f64>) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0]..values[values.len() - 1])
}

/// A job that continues `prompt` with `text`.
fn job(prompt: &[u32], text: &[u32]) -> Job {
    let filter = Script { text: Arc::new(text.to_vec()), at: 0 };
    Job { filter: Some(Box::new(filter)), n_predict: text.len(), ..Job::new(prompt.to_vec()) }
}

#[expect(clippy::print_stdout, reason = "a program that prints its figures")]
fn main() {
    let (n_prompt, n_text, rounds) =
        (number("--prompt", 64), number("--tokens", 160), number("--rounds", 5));
    let ctx_len = n_prompt.max(DOCUMENT) + n_text + DRAFTS_MAX + 1;
    let threads = Some(number("--threads", 2));
    let max_logits = Some(1 + DRAFTS_MAX);
    let options = Options { ctx_len: Some(ctx_len), threads, max_logits, ..Options::default() };
    let layers = value("--layers", "").parse().ok();
    let mut engine_of_all = engine(layers, &options);
    let options = Options { ctx_len: Some(ctx_len), threads: Some(1), ..Options::default() };
    let mut smaller = engine(Some(number("--draft-layers", 3)), &options);
    let [bytes, of_smaller] =
        [&engine_of_all, &smaller].map(|engine| engine.model().bytes_per_token());
    println!("a draft reads 1/{:.1} of what a token does", bytes as f64 / of_smaller as f64);

    let vocab_size = engine_of_all.header().vocab_size;
    let ids = |from: usize, n: usize| -> Vec<u32> {
        (from..from + n).map(|i| (i * 7919 % vocab_size) as u32 & !1).collect()
    };
    let (prompt, text) = (ids(1, n_prompt), ids(5000, n_text));
    let (document, mut copy) = (ids(20_000, DOCUMENT), ids(20_000, n_text));
    copy.iter_mut().skip(EDIT_EVERY - 1).step_by(EDIT_EVERY).for_each(|id| *id ^= 1);
    let all: Vec<u32> = prompt.iter().chain(&text).copied().collect();
    let mut kinds = vec![("plain".to_owned(), job(&prompt, &text), Guess::Nothing)];
    for right in value("--right", "0,0.5,0.7,0.9").split(',') {
        let guess = Guess::Model(right.parse().expect("--right PART,…"), all.clone());
        kinds.push((format!("model, {right} right"), job(&prompt, &text), guess));
    }
    kinds.push(("plain copy".to_owned(), job(&document, &copy), Guess::Nothing));
    kinds.push(("copy, n-grams".to_owned(), job(&document, &copy), Guess::Ngrams));

    let guess = Arc::new(Mutex::new(Guess::Nothing));
    let stream = smaller.stream().expect("a stream");
    let ngrams = NgramDrafter::new(1, ctx_len);
    let guesser = Guesser { guess: guess.clone(), engine: smaller, stream, ngrams, ctx_len };
    let mut scheduler = Scheduler::new(&mut engine_of_all, 1, None).expect("a stream");
    scheduler.draft(Box::new(guesser), DraftMode::Auto);
    let mut found = vec![Vec::new(); kinds.len()];
    for _ in 0..rounds {
        let mut plain = 0.0;
        for ((_, job, guesses), found) in kinds.iter().zip(&mut found) {
            *guess.lock().unwrap() = guesses.clone();
            let figures = write(&mut scheduler, &mut engine_of_all, job);
            let rate = figures.generated_tokens_per_s();
            if let Guess::Nothing = guesses {
                plain = rate;
            }
            found.push((rate, rate / plain, figures));
        }
    }
    for ((name, ..), found) in kinds.iter().zip(&found) {
        let (rate, _) = spread(found.iter().map(|found| found.0).collect());
        let (gain, gains) = spread(found.iter().map(|found| found.1).collect());
        let (per_pass, _) = spread(found.iter().map(|found| found.2.tokens_per_pass()).collect());
        let drafting = |figures: &JobFigures| figures.drafting.div_duration_f64(figures.decode);
        let (drafting, _) = spread(found.iter().map(|found| drafting(&found.2)).collect());
        println!(
            "{name}: {rate:.1} tokens/s, {gain:.2} times ({:.2}-{:.2}), {per_pass:.2} tokens a pass, \
             {:.0} % of the time for drafts",
            gains.start,
            gains.end,
            100.0 * drafting
        );
    }
}
