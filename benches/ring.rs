//! Drafts in a ring whose workers take given times, on any machine: one stream of the demo model, plain and with drafts
//! of given acceptance rates: `cargo bench --bench ring -- [--workers 4] [--times 1:10,2:10.5,…] [--tokens 200]
//! [--right 0.5,0.7,0.9,1] [--each 2]`.
//!
//! `--times` are milliseconds that a worker takes for batches by their rows; others are interpolated. The workers
//! compute the demo model's layers, then sleep for the rest of their time, so a machine with few cores can stand for a
//! ring of many boards. The master has layers, too, and takes only the time that it needs. `--each` are milliseconds
//! for making a draft: by the master, and by a board of its own, which drafts on until the text differs from its
//! drafts. Without it, drafts take no time.

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use common::jobs::{Listener, finish};
use common::models::package;
use common::rings::{LIMITS, Recipe, Telling};
use leap::engine::ring::{Held, MachineReading, WorkerOptions, run_worker};
use leap::engine::{
    DRAFTS_MAX, DeviceOptions, DraftKind, DraftMode, Drafter, Engine, Job, Scheduler, WeightsPlace,
};
use leap::internals::kernels::Kernels;
use leap::internals::model::{
    Batch, CheckError, ForwardError, KvKind, KvPlace, Model, PageChange, Plan, Precision, Share,
    Span, Stage, StageInfo, StartError, Transformer,
};
use leap::internals::pool::Pool;
use leap::internals::transport::Endpoint;
use leap::internals::wire::Dtype;

/// Milliseconds of a batch by its rows.
static TIMES: OnceLock<Vec<(usize, f64)>> = OnceLock::new();

/// How long a worker takes for `rows` rows.
fn time(rows: usize) -> Duration {
    let times = TIMES.get().unwrap();
    let above = times.partition_point(|(n, _)| *n < rows).clamp(1, times.len() - 1);
    let ((n, first), (n_above, last)) = (times[above - 1], times[above]);
    let part = (rows as f64 - n as f64) / (n_above - n) as f64;
    Duration::from_secs_f64((first + part * (last - first)) / 1e3)
}

/// A stage that sleeps for the rest of its time.
struct Slow(Transformer);

impl Stage for Slow {
    fn about(&self) -> StageInfo<'_> {
        self.0.about()
    }

    fn bytes_per_token(&self) -> u64 {
        self.0.bytes_per_token()
    }

    fn set_plan(&mut self, plan: Plan) -> Result<(), StartError> {
        self.0.set_plan(plan)
    }

    fn set_share(&mut self, share: Share, plan: Plan) -> Result<(), StartError> {
        self.0.set_share(share, plan)
    }

    fn check_weights(&self, is_interrupted: &dyn Fn() -> bool) -> Result<(), CheckError> {
        self.0.check_weights(is_interrupted)
    }

    fn interrupt_by(&mut self, is_interrupted: fn() -> bool) {
        self.0.interrupt_by(is_interrupted);
    }

    fn embed(&mut self, batch: &Batch) -> Result<(), ForwardError> {
        self.0.embed(batch)
    }

    fn run_layers(&mut self, spans: &[Span]) -> Result<(), ForwardError> {
        let begun = Instant::now();
        self.0.run_layers(spans)?;
        let rows = spans.iter().map(|span| span.n_rows).sum();
        std::thread::sleep(time(rows).saturating_sub(begun.elapsed()));
        Ok(())
    }

    fn put_rows(&mut self, first: usize, precision: Precision, bytes: &[u8]) {
        self.0.put_rows(first, precision, bytes);
    }

    fn get_row(&mut self, row: usize, precision: Precision, out: &mut [u8]) {
        self.0.get_row(row, precision, out);
    }

    fn change_page(&mut self, change: &PageChange) -> bool {
        self.0.change_page(change)
    }

    fn is_windowed(&self, layer: usize) -> bool {
        self.0.is_windowed(layer)
    }

    fn kv_part_bytes(&self, layer: usize) -> Option<usize> {
        self.0.kv_part_bytes(layer)
    }

    fn read_kv(&mut self, part: KvPlace, out: &mut [u8]) -> bool {
        self.0.read_kv(part, out)
    }

    fn write_kv(&mut self, part: KvPlace, first: usize, bytes: &[u8]) -> bool {
        self.0.write_kv(part, first, bytes)
    }

    fn classify(&mut self, precision: Precision, bytes: &[u8]) -> Result<&mut [f32], ForwardError> {
        self.0.classify(precision, bytes)
    }
}

/// The work of a worker with a [`Slow`] stage.
fn work(
    telling: Telling,
    (share, _): (Model, WeightsPlace),
    endpoint: Box<dyn Endpoint>,
    is_interrupted: &AtomicBool,
) {
    let plan = Plan {
        ctx_len: 1,
        max_batch: 1,
        max_logits: 1,
        n_streams: 1,
        kv: KvKind::F16,
        kv_pages: None,
    };
    let pool = Pool::new(&[]).unwrap();
    let mut stage = Slow(Transformer::new(Arc::new(share), Kernels::best(), pool, plan).unwrap());
    let options = WorkerOptions {
        name: &format!("node{}", telling.index),
        wish: Some(stage.about().share.layers.clone()),
        limits: LIMITS,
        prepare: &|_, _| Ok(None),
        elsewhere: &|_, _, _| None,
        prefixes: None,
        meter: &|_| MachineReading::default(),
        report: &|_| None,
        is_interrupted: &|| is_interrupted.load(Ordering::Relaxed),
    };
    run_worker(&mut stage, endpoint, &options, &mut Held::default(), &mut |_| {}).unwrap();
}

/// A drafter that knows the text, and is wrong at some positions.
struct Forced {
    text: Vec<u32>,
    /// Part of the positions where it is right.
    right: f64,
    maker: Maker,
}

/// The maker of drafts.
#[derive(Clone, Copy)]
enum Maker {
    /// Drafts take no time.
    Free,
    /// The master makes drafts, at this time for each.
    Master(Duration),
    /// A board of its own makes drafts, at this time for each.
    Node(Duration, Thought),
}

/// State of a draft node's made-up model.
#[derive(Clone, Copy)]
struct Thought {
    /// Start of the drafts that follow the first `first` ids.
    begun: Instant,
    first: usize,
    /// Ids of the latest request, and the number of drafts that suffice for it.
    n_ids: usize,
    n_enough: usize,
}

impl Thought {
    /// Position after the last draft that exists.
    fn end(&self, each: Duration) -> usize {
        self.first + self.begun.elapsed().div_duration_f64(each) as usize
    }
}

/// The token at position `pos` of `text` that a model with the acceptance rate `right` says.
fn says(text: &[u32], right: f64, pos: usize) -> u32 {
    let hash = (pos as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let is_right = ((hash >> 11) as f64) < right * (1u64 << 53) as f64;
    text[pos] ^ u32::from(!is_right)
}

impl Drafter for Forced {
    fn begin(&mut self, _lane: usize, _prompt: &[u32]) {}

    fn draft(
        &mut self,
        _lane: usize,
        ids: &[u32],
        worth: &dyn Fn(DraftKind) -> usize,
        drafts: &mut Vec<u32>,
    ) -> DraftKind {
        let n = worth(DraftKind::Model);
        let (kind, n) = match &mut self.maker {
            Maker::Free => (DraftKind::Ngram, DRAFTS_MAX),
            Maker::Master(each) => {
                std::thread::sleep(*each * n as u32);
                (DraftKind::Model, n)
            }
            Maker::Node(each, thought) => {
                let Thought { first, .. } = *thought;
                let is_thought = |pos: usize| says(&self.text, self.right, pos) == ids[pos];
                if first > ids.len() || !(first..ids.len()).all(is_thought) {
                    (thought.begun, thought.first) = (Instant::now(), ids.len());
                }
                (thought.n_ids, thought.n_enough) = (ids.len(), n);
                (DraftKind::Model, thought.end(*each).saturating_sub(ids.len()).min(DRAFTS_MAX))
            }
        };
        let places = (ids.len()..self.text.len()).take(n);
        drafts.extend(places.map(|pos| says(&self.text, self.right, pos)));
        kind
    }

    fn end(&mut self, _lane: usize, _ids: &[u32]) {}

    fn is_waiting(&self) -> bool {
        match &self.maker {
            Maker::Free | Maker::Master(_) => false,
            Maker::Node(each, thought) => {
                thought.end(*each) < (thought.n_ids + thought.n_enough).min(self.text.len())
            }
        }
    }
}

/// The text that `engine` writes, and tokens a second.
fn run(engine: &mut Engine, job: &Job, drafter: Option<Forced>) -> (Vec<u32>, f64) {
    let mut scheduler = Scheduler::new(engine, 1, None).unwrap();
    if let Some(drafter) = drafter {
        scheduler.draft(Box::new(drafter), DraftMode::Auto);
    }
    let id = scheduler.submit(job.clone());
    let mut listener = Listener::default();
    finish(&mut scheduler, engine, &mut listener);
    let heard = listener.0.remove(&id).unwrap();
    (heard.ids, heard.figures.unwrap().generated_tokens_per_s())
}

/// The value behind `name` on the command line, else `default`.
fn value(name: &str, default: &str) -> String {
    let found = std::env::args().skip_while(|arg| arg != name).nth(1);
    found.unwrap_or_else(|| default.to_owned())
}

#[expect(clippy::print_stdout, reason = "a program that prints its figures")]
fn main() {
    let pair = |pair: &str| {
        let (rows, ms) = pair.split_once(':').expect("--times ROWS:MS,ROWS:MS,…");
        (rows.parse().expect("rows"), ms.parse().expect("milliseconds"))
    };
    let times = value("--times", "1:10,2:10.5,4:11,8:12,16:14");
    TIMES.set(times.split(',').map(pair).collect()).unwrap();
    let n_workers: usize = value("--workers", "4").parse().expect("--workers N");
    let n_predict: usize = value("--tokens", "200").parse().expect("--tokens N");
    let recipe = Recipe {
        model: package("models/demo.bin"),
        kv: KvKind::F16,
        // The workers have the last layers, one each.
        cuts: (6 - n_workers..6).collect(),
        is_tcp: false,
        has_key: false,
        wire: Dtype::F32,
        batch: 32,
        n_streams: 1,
        max_logits: 1 + DRAFTS_MAX,
        cache: None,
        own_file: None,
        teams: Vec::new(),
        kv_tokens: None,
        prefixes: None,
        device: DeviceOptions::default(),
    };
    let (mut engine, _workers) = recipe.ring_of(work);
    let job = Job { n_predict, ..Job::new(vec![1, 403, 284]) };
    let (wanted, plain) = run(&mut engine, &job, None);
    println!("{n_workers} workers, {times}: plain {plain:.1} tokens/s");
    let each = value("--each", "0").parse::<f64>().expect("--each MS") / 1e3;
    let each = Duration::from_secs_f64(each);
    let thought = Thought { begun: Instant::now(), first: 0, n_ids: 0, n_enough: 0 };
    let makers = match each.is_zero() {
        true => vec![("at once", Maker::Free)],
        false => {
            vec![("by the master", Maker::Master(each)), ("by a node", Maker::Node(each, thought))]
        }
    };
    for right in value("--right", "0.5,0.7,0.9,1").split(',') {
        for (name, maker) in &makers {
            let text = job.prompt.iter().chain(&wanted).copied().collect();
            let right = right.parse().expect("--right PART,…");
            let drafter = Forced { text, right, maker: *maker };
            let (ids, rate) = run(&mut engine, &job, Some(drafter));
            assert_eq!(ids, wanted, "another text");
            let gain = rate / plain;
            println!("right {right}, drafts {name}: {rate:.1} tokens/s, {gain:.2} times");
        }
    }
}
