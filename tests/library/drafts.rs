//! Texts are the same with any drafts as without.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::jobs::{Heard, Listener, alone, assert_same, finish, mixed, prompt};
use crate::common::models::package;
use crate::common::rings::Recipe;
use leap::engine::{
    DRAFTS_MAX, DraftKind, DraftMode, Drafter, Engine, Job, JobId, KvMemory, ModelDrafter,
    NgramDrafter, Options, Scheduler,
};
use leap::internals::model::Model;
use leap::tokenizer::Tokenizer;

fn tokenizer() -> Tokenizer {
    let bytes = std::fs::read(package("models/demo.tokenizer.bin")).unwrap();
    Tokenizer::from_bytes(&bytes, None).unwrap()
}

fn recipe(n_streams: usize, batch: usize) -> Recipe {
    Recipe { batch, n_streams, max_logits: n_streams + DRAFTS_MAX, ..Recipe::demo(&[]) }
}

/// A drafter that knows how texts go on, and sometimes drafts wrong ids.
pub(crate) struct Knowing {
    /// Whole texts by their first ids, which no two texts share.
    texts: BTreeMap<Vec<u32>, Vec<u32>>,
    state: u64,
}

impl Knowing {
    fn below(&mut self, n: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % n as u64) as usize
    }
}

impl Drafter for Knowing {
    fn begin(&mut self, _lane: usize, _prompt: &[u32]) {}

    fn draft(
        &mut self,
        _lane: usize,
        ids: &[u32],
        _worth: &dyn Fn(DraftKind) -> usize,
        drafts: &mut Vec<u32>,
    ) -> DraftKind {
        let n = self.below(DRAFTS_MAX + 1);
        let wrong = self.below(2 * DRAFTS_MAX);
        let known = self.texts.values().find(|text| text.starts_with(ids));
        let next = known.map_or(&[][..], |text| &text[ids.len()..]);
        drafts.extend(next.iter().copied().chain(std::iter::repeat(7)).take(n));
        if let Some(draft) = drafts.get_mut(wrong) {
            *draft ^= 1;
        }
        if n.is_multiple_of(2) { DraftKind::LongNgram } else { DraftKind::Ngram }
    }

    fn end(&mut self, _lane: usize, _ids: &[u32]) {}
}

/// A drafter that knows the results of `jobs`.
pub(crate) fn knowing(jobs: &[Job], heard: &[Heard]) -> Box<Knowing> {
    let texts = jobs.iter().zip(heard);
    let texts = texts.map(|(job, heard)| {
        let mut ids = job.prompt.clone();
        ids.extend_from_slice(&heard.ids);
        (ids.clone(), ids)
    });
    Box::new(Knowing { texts: texts.collect(), state: 88_172_645_463_325_252 })
}

/// Results of `jobs` on all streams of `engine`.
pub(crate) fn drafted(
    engine: &mut Engine,
    tokenizer: Option<&Tokenizer>,
    jobs: &[Job],
    (drafter, mode): (Box<dyn Drafter>, DraftMode),
) -> Vec<Heard> {
    let mut scheduler = Scheduler::new(engine, usize::MAX, tokenizer).unwrap();
    scheduler.draft(drafter, mode);
    let ids: Vec<JobId> = jobs.iter().map(|job| scheduler.submit(job.clone())).collect();
    let mut listener = Listener::default();
    finish(&mut scheduler, engine, &mut listener);
    ids.iter().map(|id| listener.0.remove(id).unwrap()).collect()
}

/// Drafts that were tried, and drafts that were right.
pub(crate) fn counts(heard: &[Heard]) -> (usize, usize) {
    let figures = heard.iter().map(|heard| heard.figures.unwrap());
    figures.fold((0, 0), |(tried, right), f| (tried + f.drafted, right + f.accepted()))
}

#[test]
fn jobs_say_the_same_with_drafts() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let wanted = alone(&mut recipe(1, 64).alone(), &tokenizer, &jobs);
    let all = [(1, 64, 15), (1, 3, 15), (3, 16, 4), (2, 32, 1), (5, 64, 9)];
    for (n_streams, batch, n) in if crate::common::quick() { &all[1..3] } else { &all[..] } {
        let drafter = (knowing(&jobs, &wanted) as Box<dyn Drafter>, DraftMode::Fixed(*n));
        let mut engine = recipe(*n_streams, *batch).alone();
        let found = drafted(&mut engine, Some(&tokenizer), &jobs, drafter);
        assert_same(&found, &wanted, &format!("{n_streams} streams, batches of {batch}, {n}"));
        let (tried, right) = counts(&found);
        assert!(right > 40 && tried > right, "{right} of {tried}");
    }
    let drafter = (knowing(&jobs, &wanted) as Box<dyn Drafter>, DraftMode::Auto);
    let found = drafted(&mut recipe(2, 64).alone(), Some(&tokenizer), &jobs, drafter);
    assert_same(&found, &wanted, "as many as are worth it");
}

#[test]
fn streams_that_share_memory_say_the_same_with_drafts() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let wanted = alone(&mut recipe(1, 64).alone(), &tokenizer, &jobs);
    for kv_tokens in [256, 400] {
        let recipe = recipe(3, 16);
        let options = Options { kv_memory: KvMemory::Tokens(kv_tokens), ..recipe.options() };
        let model = Arc::new(Model::open(&recipe.model).unwrap());
        let mut engine = Engine::new(model, &options).unwrap();
        let drafter = (knowing(&jobs, &wanted) as Box<dyn Drafter>, DraftMode::Fixed(15));
        let found = drafted(&mut engine, Some(&tokenizer), &jobs, drafter);
        assert_same(&found, &wanted, &format!("memory for {kv_tokens} tokens"));
        assert_eq!(engine.page_figures().n_used, 0);
    }
}

#[test]
fn a_ring_says_the_same_with_drafts() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let wanted = alone(&mut recipe(1, 64).alone(), &tokenizer, &jobs);
    let teams = [vec![1, 2], vec![2, 1]];
    for (cuts, n_streams, teams) in [(&[3][..], 1, &[][..]), (&[2, 4], 4, &[]), (&[3], 4, &teams)] {
        let recipe = recipe(n_streams, 32);
        let recipe = Recipe { cuts: cuts.to_vec(), teams: teams.to_vec(), ..recipe };
        let (mut engine, _workers) = recipe.ring();
        let drafter = (knowing(&jobs, &wanted) as Box<dyn Drafter>, DraftMode::Fixed(7));
        let found = drafted(&mut engine, Some(&tokenizer), &jobs, drafter);
        assert_same(&found, &wanted, &format!("{n_streams} streams, cuts {cuts:?}"));
        assert!(counts(&found).1 > 40, "{:?}", counts(&found));
    }
}

/// A drafter that knows how a text goes on, and records the longest run of drafts.
struct Sure {
    text: Vec<u32>,
    /// Ids of the text that were known not to be drafts, and most ids after them.
    known: Arc<[AtomicUsize; 2]>,
}

impl Drafter for Sure {
    fn begin(&mut self, _lane: usize, _prompt: &[u32]) {}

    fn draft(
        &mut self,
        _lane: usize,
        ids: &[u32],
        _worth: &dyn Fn(DraftKind) -> usize,
        drafts: &mut Vec<u32>,
    ) -> DraftKind {
        let [n_known, n_most] = &*self.known;
        n_most.fetch_max(ids.len() - n_known.load(Relaxed), Relaxed);
        drafts.extend(self.text[ids.len()..].iter().take(DRAFTS_MAX));
        DraftKind::Model
    }

    fn end(&mut self, _lane: usize, _ids: &[u32]) {}
}

#[test]
fn a_ring_is_full_of_drafts() {
    let job = Job { n_predict: 120, ..Job::new(vec![1, 403, 284]) };
    let jobs = std::slice::from_ref(&job);
    let plain = || (Box::new(NgramDrafter::new(1, 256)) as Box<dyn Drafter>, DraftMode::Fixed(0));
    let wanted = drafted(&mut recipe(1, 64).alone(), None, jobs, plain());
    let text: Vec<u32> = job.prompt.iter().chain(&wanted[0].ids).copied().collect();
    let (mut engine, _workers) = Recipe { cuts: vec![2, 4], ..recipe(1, 32) }.ring();
    let mut scheduler = Scheduler::new(&mut engine, 1, None).unwrap();
    let known = Arc::new([AtomicUsize::new(job.prompt.len()), AtomicUsize::new(0)]);
    let sure = Sure { text, known: Arc::clone(&known) };
    scheduler.draft(Box::new(sure), DraftMode::Fixed(4));
    let id = scheduler.submit(job.clone());
    let mut listener = Listener::default();
    while !scheduler.is_idle() {
        let n_told = scheduler.running().map(|figures| figures.generated_tokens).sum::<usize>();
        known[0].store(job.prompt.len() + n_told, Relaxed);
        scheduler.step(&mut engine, &mut |id, event| listener.hear(id, event));
    }
    assert_same(&[listener.0.remove(&id).unwrap()], &wanted, "a ring full of drafts");
    // Two nodes have these drafts while the third gets more.
    assert!(known[1].load(Relaxed) >= 8, "{known:?}");
}

/// A drafter that knows how a text goes on, and answers a little late, like another machine.
struct Late {
    text: Vec<u32>,
    /// Number of ids when it was last asked.
    asked: usize,
    /// Number of checks for its answer since then.
    n_looks: AtomicUsize,
}

impl Drafter for Late {
    fn begin(&mut self, _lane: usize, _prompt: &[u32]) {}

    fn draft(
        &mut self,
        _lane: usize,
        ids: &[u32],
        _worth: &dyn Fn(DraftKind) -> usize,
        drafts: &mut Vec<u32>,
    ) -> DraftKind {
        if ids.len() != self.asked {
            self.asked = ids.len();
            self.n_looks.store(0, Relaxed);
        }
        if !self.is_waiting() {
            drafts.extend(self.text[ids.len()..].iter().take(DRAFTS_MAX));
        }
        DraftKind::Model
    }

    fn end(&mut self, _lane: usize, _ids: &[u32]) {}

    fn is_waiting(&self) -> bool {
        self.n_looks.fetch_add(1, Relaxed) < 3
    }
}

#[test]
fn drafts_that_come_late_follow_what_a_ring_has() {
    let job = Job { n_predict: 80, ..Job::new(vec![1, 403, 284]) };
    let jobs = std::slice::from_ref(&job);
    let plain = || (Box::new(NgramDrafter::new(1, 256)) as Box<dyn Drafter>, DraftMode::Fixed(0));
    let wanted = drafted(&mut recipe(1, 64).alone(), None, jobs, plain());
    let text: Vec<u32> = job.prompt.iter().chain(&wanted[0].ids).copied().collect();
    let late = || {
        let late = Late { text: text.clone(), asked: 0, n_looks: AtomicUsize::new(0) };
        (Box::new(late) as Box<dyn Drafter>, DraftMode::Fixed(4))
    };
    let alone = drafted(&mut recipe(1, 64).alone(), None, jobs, late());
    let (mut engine, _workers) = Recipe { cuts: vec![2, 4], ..recipe(1, 32) }.ring();
    let ring = drafted(&mut engine, None, jobs, late());
    assert_same(&[&alone[..], &ring].concat(), &[&wanted[..], &wanted].concat(), "late drafts");
    // A board alone does not wait for drafts.
    assert_eq!(counts(&alone).1, 0);
    assert!(counts(&ring).1 > 20, "{:?}", counts(&ring));
}

#[cfg(feature = "pickle")]
#[test]
fn texts_with_windows_are_the_same_with_drafts() {
    use leap::format::model::Weights;

    for checkpoint in ["mistral-tiny", "gemma3-tiny", "gptoss-tiny"] {
        let model = crate::common::models::export(checkpoint, Weights::Q8 { group: 32 });
        let vocab = model.header().vocab_size as u32;
        assert!(model.header().sliding_window.is_some_and(|window| window < 60));
        let options = |n_streams| Options {
            n_streams: Some(n_streams),
            batch: Some(24),
            max_logits: Some(n_streams + DRAFTS_MAX),
            ctx_len: Some(256),
            ..Options::default()
        };
        let prompt = |n: u32| -> Vec<u32> { (0..n).map(|i| (i * 37 + n) % vocab).collect() };
        let jobs = [3, 70, 150].map(|n| Job { n_predict: 90, ..Job::new(prompt(n)) });
        let mut alone = Engine::new(Arc::clone(&model), &options(1)).unwrap();
        let plain = (Box::new(NgramDrafter::new(1, 256)) as Box<dyn Drafter>, DraftMode::Fixed(0));
        let wanted = drafted(&mut alone, None, &jobs, plain);
        for n_streams in [1, 2] {
            let mut engine = Engine::new(Arc::clone(&model), &options(n_streams)).unwrap();
            let drafter = (knowing(&jobs, &wanted) as Box<dyn Drafter>, DraftMode::Fixed(15));
            let found = drafted(&mut engine, None, &jobs, drafter);
            assert_same(&found, &wanted, &format!("{checkpoint}, {n_streams} streams"));
            assert!(counts(&found).1 > 100, "{:?}", counts(&found));
        }
    }
}

#[test]
fn what_has_been_said_is_drafted() {
    let tokenizer = tokenizer();
    let mut engine = recipe(1, 64).alone();
    let job = Job { n_predict: 100, ..Job::new(prompt(&tokenizer, "Once upon a time")) };
    let drafter =
        (Box::new(NgramDrafter::new(1, 256)) as Box<dyn Drafter>, DraftMode::Fixed(DRAFTS_MAX));
    let jobs = [job.clone(), job];
    let heard = drafted(&mut engine, Some(&tokenizer), &jobs, drafter);
    assert_eq!(heard[0].text, heard[1].text);
    let [first, again] = [0, 1].map(|index| heard[index].figures.unwrap());
    assert_eq!(first.generated_tokens, first.passes + first.accepted());
    // The second time the text is known, except where its first words had another continuation.
    assert!(again.passes < 20, "{again:?}");
}

#[test]
fn what_a_smaller_model_says_is_drafted() {
    let tokenizer = tokenizer();
    let jobs = mixed(&tokenizer);
    let wanted = alone(&mut recipe(1, 64).alone(), &tokenizer, &jobs);
    // The model drafts for itself, which gives the best drafts.
    for n_streams in [1, 3] {
        let options = Options { n_streams: Some(n_streams), ..recipe(n_streams, 64).options() };
        let model = Arc::new(Model::open(&package("models/demo.bin")).unwrap());
        let drafter = ModelDrafter::new(Engine::new(model, &options).unwrap(), true).unwrap();
        let drafter = (Box::new(drafter) as Box<dyn Drafter>, DraftMode::Fixed(4));
        let mut engine = recipe(n_streams, 64).alone();
        let found = drafted(&mut engine, Some(&tokenizer), &jobs, drafter);
        assert_same(&found, &wanted, &format!("{n_streams} streams"));
        // Long prompts are read a few ids at a time.
        let greedy = found.iter().zip(&jobs);
        let greedy =
            greedy.filter(|(_, job)| job.sampling.temperature == 0.0 && job.prompt.len() < 30);
        for figures in greedy.map(|(heard, _)| heard.figures.unwrap()) {
            assert!(figures.tokens_per_pass() > 2.0 || figures.generated_tokens < 5, "{figures:?}");
        }
    }
}

#[test]
fn the_demo_model_has_a_draft_model() {
    let tokenizer = tokenizer();
    let open = |name| Arc::new(Model::open(&package(name)).unwrap());
    let (model, demo) = (open("models/demo-draft.bin"), open("models/demo.bin"));
    assert_eq!(model.header().tokenizer_hash, demo.header().tokenizer_hash);
    let engine = Engine::new(model, &recipe(1, 64).options()).unwrap();
    let drafter = Box::new(ModelDrafter::new(engine, false).unwrap()) as Box<dyn Drafter>;
    let jobs = [Job { n_predict: 100, ..Job::new(prompt(&tokenizer, "Once upon a time")) }];
    let wanted = alone(&mut recipe(1, 64).alone(), &tokenizer, &jobs);
    let mut engine = recipe(1, 64).alone();
    let found = drafted(&mut engine, Some(&tokenizer), &jobs, (drafter, DraftMode::Fixed(4)));
    assert_same(&found, &wanted, "a smaller model drafts");
    assert!(found[0].figures.unwrap().tokens_per_pass() > 2.5, "{:?}", found[0].figures);
}
