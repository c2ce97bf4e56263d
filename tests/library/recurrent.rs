//! Models with recurrent layers: texts are the same however prompts are cut, drafted, interrupted and shared.

use std::sync::Arc;

use serde_json::Value;

use crate::common::folder::Folder;
use crate::common::jobs::{Heard, Listener, answers, finish};
use crate::common::models::{bits, cases, export, export_to, package};
use crate::common::rings::{Recipe, assert_nothing_lost};
use crate::common::sample;
use crate::drafts::{counts, drafted, knowing};
use crate::scheduler::{below, interrupted};
use leap::engine::{
    DraftKind, DraftMode, Drafter, Engine, Job, KvMemory, ModelDrafter, NgramDrafter, Options,
    Scheduler, Wants,
};
use leap::format::model::Weights;
use leap::internals::kernels::Kernels;
use leap::internals::model::{
    Batch, KvKind, KvPlace, Model, PiecePlace, Plan, Span, Stage, Transformer,
};
use leap::internals::pool::Pool;
use leap::sampler::{Sampling, argmax};

/// Checkpoints with each form of recurrent layers.
pub(crate) const CHECKPOINTS: [&str; 4] =
    ["lfm2-tiny", "qwen35-tiny", "qwen35moe-tiny", "granite4h-tiny"];

fn options(n_streams: usize, batch: usize) -> Options {
    Options {
        n_streams: Some(n_streams),
        batch: Some(batch),
        max_logits: Some(batch),
        ctx_len: Some(512),
        threads: Some(2),
        ..Options::default()
    }
}

fn engine(model: &Arc<Model>, n_streams: usize, batch: usize) -> Engine {
    Engine::new(Arc::clone(model), &options(n_streams, batch)).unwrap()
}

/// The longest prompt of a checkpoint's reference outputs.
fn long_prompt(checkpoint: &str) -> Vec<u32> {
    cases(checkpoint).into_iter().map(|case| case.prompt).max_by_key(Vec::len).unwrap()
}

fn int8(checkpoint: &str) -> Arc<Model> {
    export(checkpoint, Weights::Q8 { group: 64 })
}

#[test]
fn a_prompt_may_be_cut_anywhere() {
    for checkpoint in sample(CHECKPOINTS) {
        let (model, prompt) = (int8(checkpoint), long_prompt(checkpoint));
        let logits = |cuts: &mut dyn FnMut() -> usize| -> Vec<u32> {
            let mut engine = engine(&model, 1, 300);
            let mut stream = engine.stream().unwrap();
            let (mut rest, mut found) = (&prompt[..], Vec::new());
            while !rest.is_empty() {
                let (piece, later) = rest.split_at(cuts().clamp(1, rest.len()));
                let rows = engine.push_batch(&mut stream, piece, Wants::All).unwrap();
                found.extend(bits(rows));
                rest = later;
            }
            found
        };
        let wanted = logits(&mut || 300);
        for size in [1, 17, 63, 64, 65, 200] {
            assert!(logits(&mut || size) == wanted, "{checkpoint} by {size}");
        }
        let mut state = 7;
        for _ in 0..if crate::common::quick() { 1 } else { 10 } {
            assert!(logits(&mut || below(70, &mut state)) == wanted, "{checkpoint} at random");
        }
    }
}

/// A turn of a conversation of the reference.
pub(crate) struct Turn {
    /// Index of the turn that this one follows.
    pub(crate) from: Option<usize>,
    pub(crate) ids: Vec<u32>,
    pub(crate) answer: Vec<u32>,
}

pub(crate) fn turns(checkpoint: &str) -> Vec<Turn> {
    let path = package("tests/golden").join(checkpoint).join("golden-turns.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let turn = |turn: &Value| Turn {
        from: usize::try_from(turn["from"].as_i64().unwrap()).ok(),
        ids: ids(&turn["prompt_ids"]),
        answer: ids(&turn["greedy_ids"]),
    };
    golden["turns"].as_array().unwrap().iter().map(turn).collect()
}

/// Each turn computes no more than what is new since the end of the last prompt, although another turn came in between.
#[test]
fn conversations_that_go_back_are_as_the_reference_and_not_computed_again() {
    for checkpoint in sample(CHECKPOINTS) {
        let mut engine = engine(&export(checkpoint, Weights::F32), 1, 64);
        let turns = turns(checkpoint);
        let mut texts: Vec<Vec<u32>> = Vec::new();
        for (index, turn) in turns.iter().enumerate() {
            let before = turn.from.map_or(&[][..], |from| &texts[from]);
            let prompt = [before, &turn.ids].concat();
            let job = Job { n_predict: turn.answer.len(), ..Job::new(prompt.clone()) };
            let (answer, computed) = answers(&mut engine, &[job]).remove(0);
            assert_eq!(answer, turn.answer, "{checkpoint}, turn {index}");
            let last_answer = turn.from.map_or(0, |from| turns[from].answer.len());
            let most = turn.ids.len() + last_answer + 1;
            assert!(computed <= most, "{checkpoint}, turn {index}: {computed}, not {most}");
            texts.push([&prompt[..], &answer].concat());
        }
    }
}

/// Jobs whose prompts begin alike.
pub(crate) fn jobs(model: &Model, n: usize, seed: u64) -> Vec<Job> {
    let (vocab, mut state) = (model.header().vocab_size, seed);
    let stop = model.header().stop_ids.first().copied().unwrap_or(0);
    let job = |_| {
        let (first, n) = (below(3, &mut state), below(180, &mut state));
        let mut ids: Vec<u32> = (0..n).map(|i| ((i * 37 + first) % vocab) as u32).collect();
        // Turns end at some places.
        (30..n).step_by(50).for_each(|at| ids[at] = stop);
        ids.extend((0..1 + below(40, &mut state)).map(|i| (i * 11 % vocab) as u32));
        let temperature = [0.0, 0.8][below(2, &mut state)];
        let sampling = Sampling { temperature, seed: 5, ..Sampling::GREEDY };
        let stop_ids = vec![];
        Job { n_predict: 1 + below(30, &mut state), sampling, stop_ids, ..Job::new(ids) }
    };
    (0..n).map(job).collect()
}

/// The answers to `jobs`, each by an engine that has computed nothing else.
pub(crate) fn fresh(model: &Arc<Model>, jobs: &[Job]) -> Vec<Vec<u32>> {
    let alone =
        |job: &Job| answers(&mut engine(model, 1, 64), std::slice::from_ref(job)).remove(0).0;
    jobs.iter().map(alone).collect()
}

#[test]
fn texts_that_begin_alike_share_states() {
    for checkpoint in sample(CHECKPOINTS) {
        let model = int8(checkpoint);
        for seed in 1..if crate::common::quick() { 2 } else { 3 } {
            let jobs = jobs(&model, 24, seed);
            let wanted = fresh(&model, &jobs);
            let n_ids: usize = jobs.iter().map(|job| job.prompt.len()).sum();
            for (n_streams, batch, kv_tokens) in [(5, 24, 512), (32, 64, 2048), (2, 7, 1024)] {
                let kv_memory = KvMemory::Tokens(kv_tokens);
                let options = Options { kv_memory, ..options(n_streams, batch) };
                let mut engine = Engine::new(Arc::clone(&model), &options).unwrap();
                let found = answers(&mut engine, &jobs);
                let what = format!("{checkpoint}, {seed}: {n_streams} streams, {kv_tokens} tokens");
                for (index, ((found, _), wanted)) in found.iter().zip(&wanted).enumerate() {
                    assert_eq!(found, wanted, "{what}, job {index}");
                }
                let computed: usize = found.iter().map(|(_, computed)| computed).sum();
                assert!(computed < n_ids, "{what}: {computed} of {n_ids}");
            }
        }
    }
}

#[test]
fn logits_of_a_prompt_are_those_of_a_stream() {
    for checkpoint in sample(CHECKPOINTS) {
        let (model, prompt) = (int8(checkpoint), &long_prompt(checkpoint)[..70]);
        let mut alone = engine(&model, 1, 128);
        let mut stream = alone.stream().unwrap();
        let wanted = bits(alone.push_batch(&mut stream, prompt, Wants::All).unwrap());
        for batch in [7, 64, 128] {
            let job = Job { wants_logits: true, n_predict: 3, ..Job::new(prompt.to_vec()) };
            let mut engine = engine(&model, 2, batch);
            let mut scheduler = Scheduler::new(&mut engine, 2, None).unwrap();
            let id = scheduler.submit(job);
            let mut listener = Listener::default();
            finish(&mut scheduler, &mut engine, &mut listener);
            assert!(listener.0[&id].logits == wanted, "{checkpoint}, batches of {batch}");
        }
    }
}

#[test]
fn drafts_change_nothing() {
    for checkpoint in sample(CHECKPOINTS) {
        let model = int8(checkpoint);
        let mut jobs = jobs(&model, 12, 3);
        jobs.iter_mut().for_each(|job| job.n_predict = 40);
        // The drafter knows texts by their beginnings.
        jobs.iter_mut().enumerate().for_each(|(index, job)| job.prompt.push(index as u32));
        let said = fresh(&model, &jobs);
        let heard: Vec<Heard> =
            said.iter().map(|ids| Heard { ids: ids.clone(), ..Heard::default() }).collect();
        for (n_streams, batch, n) in [(1, 64, 15), (3, 16, 4), (2, 32, 1), (5, 64, 9)] {
            let drafter = knowing(&jobs, &heard) as Box<dyn Drafter>;
            let drafter = (drafter, DraftMode::Fixed(n));
            let found = drafted(&mut engine(&model, n_streams, batch), None, &jobs, drafter);
            let (tried, right) = counts(&found);
            assert!(right > 40 && tried > right, "{right} of {tried}");
            for (found, wanted) in found.iter().zip(&said) {
                assert_eq!(&found.ids, wanted, "{checkpoint}, {n_streams} streams, {n} drafts");
            }
        }
        let drafter = Box::new(NgramDrafter::new(2, 512)) as Box<dyn Drafter>;
        let drafter = (drafter, DraftMode::Auto);
        let found = drafted(&mut engine(&model, 2, 64), None, &jobs, drafter);
        assert!(found.iter().zip(&said).all(|(found, wanted)| &found.ids == wanted));
    }
}

#[test]
fn interrupted_batches_are_run_again() {
    for checkpoint in sample(CHECKPOINTS) {
        let model = int8(checkpoint);
        let jobs = jobs(&model, 16, 11);
        let wanted = fresh(&model, &jobs);
        for said in [&[][..], &wanted] {
            let mut engine = engine(&model, 3, 16);
            assert_eq!(interrupted(&mut engine, None, (&jobs, said), 3), wanted, "{checkpoint}");
        }
    }
}

#[test]
fn rings_go_on_after_interrupted_batches() {
    for checkpoint in sample(CHECKPOINTS.into_iter().chain(["llama3-tiny"])) {
        let folder = Folder::new();
        let path = export_to(&folder, checkpoint, Weights::Q8 { group: 64 });
        let model = Arc::new(Model::open(&path).unwrap());
        let jobs = jobs(&model, 8, 11);
        let wanted = fresh(&model, &jobs);
        let recipe = Recipe { model: path, n_streams: 3, max_logits: 16, ..Recipe::demo(&[2]) };
        let (mut engine, _workers) = recipe.ring();
        for (said, every) in [(&wanted[..], 2), (&[], 3)] {
            let found = interrupted(&mut engine, None, (&jobs, said), every);
            assert_eq!(found, wanted, "{checkpoint}, one of {every}");
        }
    }
}

/// Pieces of states as boards send them, in frames of any size; wrong ones are refused.
#[test]
fn pieces_of_states_are_written_as_they_were_read() {
    for checkpoint in sample(CHECKPOINTS) {
        let model = int8(checkpoint);
        let vocab = model.header().vocab_size;
        let made = || {
            let kv_pages = None;
            let (ctx_len, max_batch, max_logits, n_streams, kv) = (128, 16, 1, 2, KvKind::F16);
            let plan = Plan { ctx_len, max_batch, max_logits, n_streams, kv, kv_pages };
            let pool = Pool::new(&[]).unwrap();
            Transformer::new(Arc::clone(&model), Kernels::best(), pool, plan).unwrap()
        };
        let push = |to: &mut Transformer, pos: usize| -> Vec<u32> {
            let mut batch = Batch::with_capacity(16);
            let ids: Vec<u32> = (pos..pos + 9).map(|i| (i * 37 % vocab) as u32).collect();
            let (stream, n_rows, wants) = (1, 9, Wants::Last);
            batch.push(Span { stream, pos, n_rows, wants, ..Span::EMPTY }, &ids);
            bits(to.forward(&batch).unwrap())
        };
        let (mut first, mut second) = (made(), made());
        push(&mut first, 0);
        let n_layers = model.header().n_layers;
        let mut buffer = vec![0; first.state_piece_bytes()];
        let mut n_read = 0;
        for layer in 0..n_layers {
            for piece in 0..first.n_state_pieces() {
                let place = PiecePlace { layer, piece };
                if first.read_state_piece(place, &mut buffer) {
                    n_read += 1;
                    for (at, bytes) in (0..).step_by(1001).zip(buffer.chunks(1001)) {
                        assert!(second.write_state_piece(place, at, bytes));
                    }
                }
            }
            let mut part = vec![0; first.kv_part_bytes(layer).unwrap()];
            for page in 0..4 {
                let place = KvPlace { layer, page };
                if first.read_kv(place, &mut part) {
                    assert!(second.write_kv(place, 0, &part));
                }
            }
        }
        let n_recurrent = (0..n_layers).filter(|layer| model.header().mixer(*layer).is_some());
        assert_eq!(n_read, n_recurrent.count(), "{checkpoint}: one slot of one stream");
        assert!(push(&mut first, 9) == push(&mut second, 9), "{checkpoint}");

        let place = PiecePlace { layer: 0, piece: 5 };
        let journal = [&[2, 0, 0, 0, 1, 0, 0, 0][..], &[0; 4]].concat();
        assert!(!second.write_state_piece(place, 0, &journal), "a third slot");
        let journal = [&[1, 0, 0, 0, 17, 0, 0, 0][..], &[0; 4]].concat();
        assert!(!second.write_state_piece(place, 0, &journal), "too many rows");
        for (piece, first, len) in
            [(0, 0, 7), (0, 4, 8), (0, buffer.len() - 3, 4), (u32::MAX, 0, 8)]
        {
            let place = PiecePlace { layer: 0, piece };
            assert!(
                !second.write_state_piece(place, first, &vec![0; len]),
                "{piece} {first} {len}"
            );
        }
    }
}

/// States move with their layers, also while drafts are being verified: no text is computed again.
#[test]
fn states_move_with_their_layers_amid_answers() {
    for checkpoint in sample(CHECKPOINTS) {
        let folder = Folder::new();
        let path = export_to(&folder, checkpoint, Weights::Q8 { group: 64 });
        let model = Arc::new(Model::open(&path).unwrap());
        let jobs = jobs(&model, 8, 11);
        let wanted = fresh(&model, &jobs);
        let recipe = Recipe { model: path, n_streams: 3, max_logits: 16, ..Recipe::demo(&[2]) };
        let n_layers = model.header().n_layers;
        // All layers of a board, and those that are not recurrent, change places too.
        let cuts = [1, n_layers - 1, 2];
        let (mut engine, _workers) = recipe.ring();
        let mut scheduler = Scheduler::new(&mut engine, usize::MAX, None).unwrap();
        let mut drafter = NgramDrafter::new(scheduler.n_streams(), engine.ctx_len());
        for (job, answer) in jobs.iter().zip(&wanted) {
            // Some drafts are wrong, so that states are taken back.
            let wrong = answer.iter().enumerate().map(|(at, id)| if at % 7 == 4 { 1 } else { *id });
            drafter.end(0, &[&job.prompt[..], &wrong.collect::<Vec<u32>>()].concat());
        }
        scheduler.draft(Box::new(drafter), DraftMode::Fixed(6));
        let ids: Vec<_> = jobs.iter().map(|job| scheduler.submit(job.clone())).collect();
        let mut listener = Listener::default();
        let (mut n_steps, mut n_moves) = (0, 0);
        while !scheduler.is_idle() {
            scheduler.step(&mut engine, &mut |id, event| listener.hear(id, event));
            n_steps += 1;
            if n_steps % 2 == 0 {
                let cut = cuts[n_moves % cuts.len()];
                engine.resplit(&[0..cut, cut..n_layers], &recipe.place(0)).unwrap();
                n_moves += 1;
            }
        }
        let heard: Vec<Heard> = ids.iter().map(|id| listener.0.remove(id).unwrap()).collect();
        let (tried, right) = counts(&heard);
        assert!(right > 10 && tried > right, "{checkpoint}: {right} of {tried}");
        assert!(n_moves > 5, "{checkpoint}: {n_moves} moves");
        for (index, (heard, wanted)) in heard.iter().zip(&wanted).enumerate() {
            assert_eq!(&heard.ids, wanted, "{checkpoint}, job {index}");
        }
        assert_nothing_lost(&engine);
    }
}

/// A small model with recurrent layers goes back to the last text that it has read when its drafts are rejected: it
/// has drafts at once, and the ones that it has for the text alone.
#[test]
fn a_draft_model_follows_rejected_drafts_back() {
    for checkpoint in sample(CHECKPOINTS) {
        let model = int8(checkpoint);
        let mut drafter = ModelDrafter::new(engine(&model, 2, 64), false).unwrap();
        let stops = &model.header().stop_ids;
        let plain = |id: u32| id % 97 + 3 + u32::from(stops.contains(&(id % 97 + 3)));
        let mut texts = [150, 90].map(|n| (0..n).map(|i| plain(i * 7 + n)).collect::<Vec<u32>>());
        let mut drafts = Vec::new();
        let mut state = 77;
        let mut n_rejected = 0;
        for round in 0..60 {
            let lane = round % 2;
            let ids = &mut texts[lane];
            // Prompts are read in parts, without drafts.
            for part in 0..if round < 2 { 5 } else { 1 } {
                drafts.clear();
                let worth = |kind| if kind == DraftKind::Model { 6 } else { 0 };
                let kind = drafter.draft(lane, ids, &worth, &mut drafts);
                if kind == DraftKind::Model {
                    break;
                }
                assert!(round < 2 && part < 4, "{checkpoint}, round {round}: no drafts");
            }
            let mut alone = engine(&model, 1, 64);
            let mut stream = alone.stream().unwrap();
            let mut next = argmax(alone.push(&mut stream, ids).unwrap());
            for (at, draft) in drafts.iter().enumerate() {
                assert_eq!(next, Some(*draft), "{checkpoint}, round {round}, draft {at}");
                next = argmax(alone.push(&mut stream, &[*draft]).unwrap());
            }
            assert_eq!(drafts.len(), 6, "{checkpoint}, round {round}");
            // Some drafts are right, and another id follows.
            let n_right = below(7, &mut state);
            n_rejected += 6 - n_right;
            ids.extend_from_slice(&drafts[..n_right]);
            ids.push(plain(below(90, &mut state) as u32));
        }
        assert!(n_rejected > 60);
    }
}

#[test]
fn texts_are_the_same_with_drafts_of_a_recurrent_model() {
    for checkpoint in sample(CHECKPOINTS) {
        let model = int8(checkpoint);
        let jobs = jobs(&model, 6, 23);
        let wanted = fresh(&model, &jobs);
        let drafter = ModelDrafter::new(engine(&model, 3, 64), true).unwrap();
        let drafter = (Box::new(drafter) as Box<dyn Drafter>, DraftMode::Fixed(4));
        let found = drafted(&mut engine(&model, 3, 64), None, &jobs, drafter);
        let (tried, right) = counts(&found);
        assert!(right > 10 && tried > right, "{checkpoint}: {right} of {tried}");
        for (index, (heard, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert_eq!(&heard.ids, wanted, "{checkpoint}, job {index}");
        }
    }
}

#[test]
fn rings_say_the_same_also_after_their_layers_have_moved() {
    for checkpoint in sample(CHECKPOINTS) {
        let folder = Folder::new();
        let path = export_to(&folder, checkpoint, Weights::Q8 { group: 64 });
        let model = Arc::new(Model::open(&path).unwrap());
        let jobs: Vec<Job> = jobs(&model, 10, 5);
        let jobs: Vec<Job> = jobs.into_iter().filter(|job| job.prompt.len() < 220).collect();
        let recipe = |cuts: &[usize]| Recipe {
            model: path.clone(),
            n_streams: 3,
            max_logits: 16,
            ..Recipe::demo(cuts)
        };
        let wanted = answers(&mut recipe(&[]).alone(), &jobs);
        let said = |found: &[(Vec<u32>, usize)]| -> Vec<Vec<u32>> {
            found.iter().map(|(ids, _)| ids.clone()).collect()
        };
        let recipe = recipe(&[2]);
        let (mut engine, _workers) = recipe.ring();
        assert_eq!(said(&answers(&mut engine, &jobs)), said(&wanted), "{checkpoint}");
        let n_layers = model.header().n_layers;
        engine.resplit(&[0..1, 1..n_layers], &recipe.place(0)).unwrap();
        assert_eq!(said(&answers(&mut engine, &jobs)), said(&wanted), "{checkpoint}, moved");
    }
}
