//! Texts that grow beyond the length at which other RoPE factors apply (LongRoPE).

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::folder::Folder;
use crate::common::jobs::{Heard, Listener, finish};
use crate::common::models::{bits, package};
use crate::common::rings::{Recipe, assert_nothing_lost};
use leap::engine::{
    DraftMode, Drafter, Engine, Job, JobId, KvMemory, NgramDrafter, Options, Scheduler,
};
use leap::export::{ExportOptions, ExportPlan};
use leap::format::model::Weights;
use leap::sampler::argmax;
use serde_json::{Value, json};

/// Longest text in tokens that is not long.
const ORIGINAL: usize = 32;
const SHORT: [f64; 6] = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5];
const LONG: [f64; 6] = [1.5, 2.0, 3.0, 4.0, 5.0, 6.0];

/// Exports a small Phi 3 with these factors into `folder`.
fn model(folder: &Folder, name: &str, short: [f64; 6], long: [f64; 6]) -> PathBuf {
    model_from(ORIGINAL, folder, name, [short, long])
}

/// Exports a small Phi 3, for which texts of more than `original` tokens are long.
fn model_from(original: usize, folder: &Folder, name: &str, factors: [[f64; 6]; 2]) -> PathBuf {
    let [short, long] = factors;
    let golden = package("tests/golden/phi3-tiny");
    let checkpoint = folder.join(&format!("{name}-checkpoint"));
    fs::create_dir(&checkpoint).unwrap();
    let read = fs::read(golden.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&read).unwrap();
    config["rope_parameters"] = Value::Null;
    config["rope_theta"] = json!(10_000.0);
    config["rope_scaling"] =
        json!({ "type": "longrope", "short_factor": short, "long_factor": long });
    config["original_max_position_embeddings"] = json!(original);
    config["max_position_embeddings"] = json!(8 * original);
    fs::write(checkpoint.join("config.json"), config.to_string()).unwrap();
    fs::copy(golden.join("model.safetensors"), checkpoint.join("model.safetensors")).unwrap();
    let options = ExportOptions { weights: Weights::Q8 { group: 32 }, ctx: None, verify: false };
    let path = folder.join(&format!("{name}.bin"));
    let plan = ExportPlan::open(&checkpoint, &options).unwrap();
    plan.write(&path, |_| ControlFlow::Continue(())).unwrap();
    path
}

fn recipe(model: &Path, cuts: &[usize]) -> Recipe {
    let of_demo = Recipe::demo(cuts);
    Recipe { model: model.to_owned(), batch: 7, n_streams: 3, max_logits: 7, ..of_demo }
}

fn ids(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| i * 53 % 700 + 3).collect()
}

/// Logits after a text that is computed in these parts.
fn after(engine: &mut Engine, parts: &[&[u32]]) -> Vec<u32> {
    let mut stream = engine.stream().unwrap();
    let mut logits = Vec::new();
    for part in parts {
        logits = bits(engine.push(&mut stream, part).unwrap());
    }
    logits
}

#[test]
fn the_length_of_a_text_chooses_its_factors() {
    let folder = Folder::new();
    let mut both = recipe(&model(&folder, "both", SHORT, LONG), &[]).alone();
    let mut short = recipe(&model(&folder, "short", SHORT, SHORT), &[]).alone();
    let mut long = recipe(&model(&folder, "long", LONG, LONG), &[]).alone();
    for n in [5, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 60] {
        let ids = ids(n);
        let [found, short, long] =
            [&mut both, &mut short, &mut long].map(|engine| after(engine, &[&ids]));
        assert!(short != long, "{n}");
        assert!(found == if n > ORIGINAL { long } else { short }, "{n}");
    }
    let ids = ids(60);
    let wanted = after(&mut both, &[&ids]);
    for cuts in [[1, 59], [20, 40], [31, 32], [32, 33], [33, 34]] {
        let parts = [&ids[..cuts[0]], &ids[cuts[0]..cuts[1]], &ids[cuts[1]..]];
        assert!(after(&mut both, &parts) == wanted, "{cuts:?}");
    }
    // A text reuses stored keys and values of its own kind only.
    let short = after(&mut both, &[&ids[..20]]);
    let mut stream = both.stream().unwrap();
    both.push(&mut stream, &ids).unwrap();
    assert_eq!(both.rewind(&mut stream, &ids[..20]), 19);
    assert!(bits(both.push(&mut stream, &ids[19..20]).unwrap()) == short);
    assert_eq!(both.rewind(&mut stream, &ids), 59);
    assert!(bits(both.push(&mut stream, &ids[59..]).unwrap()) == wanted);
}

/// The most likely tokens after `prompt`; the whole text is computed again for each.
fn expected(engine: &mut Engine, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut ids = prompt.to_vec();
    for _ in 0..n {
        let mut stream = engine.stream().unwrap();
        ids.push(argmax(engine.push(&mut stream, &ids).unwrap()).unwrap());
    }
    ids.split_off(prompt.len())
}

/// Lengths of prompts whose texts become long at different times.
const PROMPTS: [usize; 5] = [29, 20, 40, 32, 3];

/// Answers jobs with these prompts; calls `each_step` with the engine in each step. If `said` has the answers, they are
/// drafted.
fn answers(
    engine: &mut Engine,
    said: &[Vec<u32>],
    mut each_step: impl FnMut(&mut Engine, usize),
) -> Vec<Heard> {
    let mut scheduler = Scheduler::new(engine, usize::MAX, None).unwrap();
    let mut drafter = NgramDrafter::new(scheduler.n_streams(), engine.ctx_len());
    for (n, answer) in PROMPTS.into_iter().zip(said) {
        drafter.end(0, &[&ids(n)[..], answer].concat());
    }
    scheduler.draft(Box::new(drafter), DraftMode::Fixed(4));
    let jobs = PROMPTS.map(|n| Job { n_predict: 14, wants_logits: n == 29, ..Job::new(ids(n)) });
    let jobs: Vec<JobId> = jobs.map(|job| scheduler.submit(job)).into();
    let mut listener = Listener::default();
    let mut n_steps = 0;
    while !scheduler.is_idle() {
        scheduler.step(engine, &mut |id, event| listener.hear(id, event));
        n_steps += 1;
        each_step(engine, n_steps);
    }
    finish(&mut scheduler, engine, &mut listener);
    jobs.iter().map(|job| listener.0.remove(job).unwrap()).collect()
}

#[test]
fn streams_grow_long_alone_together_and_in_a_ring() {
    let folder = Folder::new();
    let path = model(&folder, "both", SHORT, LONG);
    let mut alone = recipe(&path, &[]).alone();
    let wanted = PROMPTS.map(|n| expected(&mut alone, &ids(n), 14));
    for said in [&[][..], &wanted] {
        let found = answers(&mut alone, said, |_, _| {});
        let texts: Vec<&[u32]> = found.iter().map(|heard| &*heard.ids).collect();
        assert!(texts == wanted);
        // The logits of the prompt, which is not long, come once.
        assert_eq!(found[0].logits.len(), 29 * 768);
        let n_right: usize = found.iter().map(|heard| heard.figures.unwrap().accepted()).sum();
        assert!(n_right > 20 || said.is_empty(), "{n_right}");
    }

    let ring = recipe(&path, &[2]);
    let (mut engine, _workers) = ring.ring();
    let mut n_opened = 0;
    let found = answers(&mut engine, &wanted, |engine, n_steps| {
        // The ring opens again, and the master sends it the streams' state again.
        if n_steps % 8 == 0 {
            let cut = 1 + n_steps / 8 % 3;
            engine.resplit(&[0..cut, cut..5], &ring.place(0)).unwrap();
            n_opened += 1;
        }
    });
    let texts: Vec<&[u32]> = found.iter().map(|heard| &*heard.ids).collect();
    assert!(texts == wanted);
    assert!(n_opened > 2, "{n_opened}");
    assert_nothing_lost(&engine);
}

/// Some texts are long, some are not, and some become long while they are written.
#[test]
fn files_have_pages_of_long_texts_and_others() {
    let (folder, kept, crossing) = (Folder::new(), Folder::new(), Folder::new());
    let recipe = recipe(&model_from(300, &folder, "both", [SHORT, LONG]), &[]);
    let new = |kept: Option<&Folder>| {
        let kv_memory = KvMemory::Tokens(1024);
        let options =
            Options { ctx_len: Some(512), batch: Some(90), kv_memory, ..recipe.options() };
        let mut engine = Engine::open(&recipe.model, &options).unwrap();
        if let Some(kept) = kept {
            engine.keep_prefixes(kept.path(), 1 << 30).unwrap();
        }
        engine
    };
    let answer = |n: usize, kept: Option<&Folder>| {
        let mut engine = new(kept);
        let mut scheduler = Scheduler::new(&mut engine, 1, None).unwrap();
        let job = scheduler.submit(Job { n_predict: 12, ..Job::new(ids(n)) });
        let mut listener = Listener::default();
        finish(&mut scheduler, &mut engine, &mut listener);
        let heard = listener.0.remove(&job).unwrap();
        (heard.ids, heard.figures.unwrap().prompt_tokens)
    };
    for (n, computed) in [(295, 295), (310, 310), (295, 1), (300, 5), (310, 1), (330, 20)] {
        let found = answer(n, Some(&kept));
        assert_eq!(found, (answer(n, None).0, computed), "{n}");
    }
    // This text becomes long before its last page is kept.
    for computed in [300, 44] {
        let found = answer(300, Some(&crossing));
        assert_eq!(found, (answer(300, None).0, computed));
    }
}
