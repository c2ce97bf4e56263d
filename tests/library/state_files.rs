//! Models with recurrent layers: another process continues from states in files, with the same text.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::folder::Folder;
use crate::common::jobs::answers;
use crate::common::models::{export, export_to};
use crate::common::rings::Recipe;
use crate::common::sample;
use crate::recurrent::CHECKPOINTS;
use crate::scheduler::below;
use leap::engine::{Engine, Job, KvKind, KvMemory, Options};
use leap::format::model::Weights;
use leap::internals::model::Model;
use leap::sampler::Sampling;

const PLENTY: u64 = 1 << 30;

/// Number of tokens that prompts have in common: a system prompt, and the first turn behind it.
const SYSTEM: usize = 30;
const TURN: usize = 300;

/// An engine that keeps up to `limit` bytes in the folder, if there is one. Each stands for one after a restart:
/// dropping an engine completes its writing.
fn engine(
    model: &Arc<Model>,
    (kv_tokens, kv): (usize, KvKind),
    place: Option<(&Path, u64)>,
) -> Engine {
    let options = Options {
        n_streams: Some(3),
        batch: Some(100),
        ctx_len: Some(512),
        kv_memory: KvMemory::Tokens(kv_tokens),
        kv: Some(kv),
        threads: Some(2),
        ..Options::default()
    };
    let mut engine = Engine::new(Arc::clone(model), &options).unwrap();
    if let Some((folder, limit)) = place {
        engine.keep_prefixes(folder, limit).unwrap();
    }
    engine
}

fn job(prompt: &[u32]) -> Job {
    let sampling = Sampling { temperature: 0.8, seed: 5, ..Sampling::GREEDY };
    Job { n_predict: 12, sampling, stop_ids: vec![], ..Job::new(prompt.to_vec()) }
}

/// A prompt of `n` ids, the first `n_common` of them common to all prompts, the others of a kind. Turns end behind the
/// system prompt and the first turn.
fn prompt(model: &Model, n: usize, n_common: usize, kind: usize) -> Vec<u32> {
    let stop = model.header().stop_ids[0];
    let plain = |i: usize| (3 + if i < n_common { i * 5 % 97 } else { 100 + kind }) as u32;
    let id = |i: usize| match i + 1 {
        SYSTEM | TURN if i < n_common => stop,
        _ => Some(plain(i)).filter(|id| !model.header().stop_ids.contains(id)).unwrap_or(99),
    };
    (0..n).map(id).collect()
}

fn files(folder: &Folder) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn states(folder: &Folder) -> Vec<PathBuf> {
    let is_state = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "state");
    files(folder).into_iter().filter(is_state).collect()
}

fn bytes(folder: &Folder) -> u64 {
    files(folder).iter().map(|file| fs::metadata(file).unwrap().len()).sum()
}

/// The answers and the numbers of computed ids of a new engine.
fn answer(model: &Arc<Model>, job: &Job, place: Option<(&Path, u64)>) -> (Vec<u32>, usize) {
    answers(&mut engine(model, (512, KvKind::F16), place), std::slice::from_ref(job)).remove(0)
}

/// The answer to each job by an engine that knows nothing else.
fn fresh(model: &Arc<Model>, jobs: &[Job]) -> Vec<Vec<u32>> {
    jobs.iter().map(|job| answer(model, job, None).0).collect()
}

#[test]
fn a_prompt_goes_on_from_the_last_state_in_files() {
    for checkpoint in sample(CHECKPOINTS) {
        let (model, folder) = (export(checkpoint, Weights::Q8 { group: 64 }), Folder::new());
        let prompt = |n, n_common, kind| prompt(&model, n, n_common, kind);
        let longer = [prompt(420, TURN, 1), vec![9; 50]].concat();
        let prompts = [
            prompt(420, TURN, 1),
            prompt(400, TURN, 2),
            prompt(380, SYSTEM, 3),
            longer,
            prompt(300, TURN, 0),
        ];
        let jobs = prompts.map(|ids| job(&ids));
        let wanted = fresh(&model, &jobs);
        let goes_on = |job: usize, computed: usize, what: &str| {
            let found = answer(&model, &jobs[job], Some((folder.path(), PLENTY)));
            assert_eq!(found, (wanted[job].clone(), computed), "{checkpoint}: {what}");
        };
        goes_on(0, 420, "nothing is known");
        assert_eq!(states(&folder).len(), 3);
        // Each state has its page up to there, beside the six full ones.
        assert_eq!(files(&folder).len(), 3 + 3 + 6);
        goes_on(0, 1, "but for the last id all is in files");
        goes_on(1, 100, "another text with the same turn");
        goes_on(1, 100, "the rest is too short to be worth a file");
        goes_on(2, 350, "another text with the same system prompt");
        goes_on(2, 1, "that text is in files, too");
        goes_on(3, 51, "a longer text");
        goes_on(4, 270, "a text that ends with the turn, whose last id is computed");
        goes_on(0, 1, "the first text is in files still");
        // Another process writes the same files at the same time.
        let place = Some((folder.path(), PLENTY));
        let mut other = engine(&model, (1536, KvKind::F16), place);
        let found = answers(&mut engine(&model, (1536, KvKind::F16), place), &jobs);
        assert!(found.iter().map(|(ids, _)| ids).eq(&wanted), "{checkpoint}");
        let found = answers(&mut other, &jobs);
        assert!(found.iter().map(|(ids, _)| ids).eq(&wanted), "{checkpoint}");
        assert!(other.page_figures().read >= 419, "{}", other.page_figures().read);
    }
}

#[test]
fn the_last_state_in_memory_or_files_is_taken() {
    for checkpoint in sample(CHECKPOINTS) {
        let (model, folder) = (export(checkpoint, Weights::Q8 { group: 64 }), Folder::new());
        let place = Some((folder.path(), PLENTY));
        let [long, short, turn] = [(420, TURN, 1), (200, SYSTEM, 2), (400, TURN, 3)]
            .map(|(n, n_common, kind)| job(&prompt(&model, n, n_common, kind)));
        let all = [long.clone(), short.clone(), turn.clone()];
        let wanted = fresh(&model, &all);
        answer(&model, &long, place);
        let mut engine = engine(&model, (1024, KvKind::F16), place);
        // Memory then has the state behind the system prompt, files have one behind the turn.
        for (index, computed) in [(1, 170), (2, 100), (1, 1), (0, 1), (2, 1)] {
            let found = answers(&mut engine, &all[index..=index]).remove(0);
            assert_eq!(found, (wanted[index].clone(), computed), "{checkpoint}, {index}");
        }
    }
}

#[test]
fn states_that_are_not_what_they_should_be_are_removed() {
    for checkpoint in sample(CHECKPOINTS) {
        let (model, folder) = (export(checkpoint, Weights::Q8 { group: 64 }), Folder::new());
        let place = Some((folder.path(), PLENTY));
        let jobs = [job(&prompt(&model, 420, TURN, 1))];
        let wanted = fresh(&model, &jobs);
        answer(&model, &jobs[0], place);
        let names = states(&folder);
        let whole: Vec<Vec<u8>> = names.iter().map(|name| fs::read(name).unwrap()).collect();
        let flipped = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[1000] ^= 1;
            bytes
        };
        for (at, name) in names.iter().enumerate() {
            let own = &whole[at];
            let shorter = own[..own.len() - 1].to_vec();
            let longer = [own, &b"!"[..]].concat();
            for bad in [shorter, longer, flipped(own), whole[(at + 1) % 3].clone(), vec![]] {
                fs::write(name, &bad).unwrap();
                let (found, computed) = answer(&model, &jobs[0], place);
                assert_eq!(found, wanted[0], "{checkpoint}");
                // States behind the first of them are of use.
                assert!([1, 120, 390, 420].contains(&computed), "{computed}");
                let is_there = fs::read(name).ok().as_ref() == Some(&bad);
                assert!(
                    is_there == (computed == 1),
                    "{checkpoint}: a bad file was used, or is there"
                );
                fs::write(name, own).unwrap();
            }
        }
        // Files of all states are bad.
        names.iter().zip(&whole).for_each(|(name, own)| fs::write(name, flipped(own)).unwrap());
        assert_eq!(answer(&model, &jobs[0], place), (wanted[0].clone(), 420), "{checkpoint}");
        assert_eq!(answer(&model, &jobs[0], place), (wanted[0].clone(), 1), "{checkpoint}");
        // A page before the last two states is missing.
        names.iter().zip(&whole).for_each(|(name, own)| fs::write(name, own).unwrap());
        let page =
            files(&folder).into_iter().find(|path| path.to_str().unwrap().ends_with("-2.kv"));
        fs::remove_file(page.unwrap()).unwrap();
        assert_eq!(answer(&model, &jobs[0], place), (wanted[0].clone(), 390), "{checkpoint}");
        assert_eq!(answer(&model, &jobs[0], place), (wanted[0].clone(), 1), "{checkpoint}");
    }
}

/// Other formats of keys and values, and other models, have files of their own in the same folder.
#[test]
fn states_of_other_models_are_let_alone() {
    let folder = Folder::new();
    let place = Some((folder.path(), PLENTY));
    let mut n_files = 0;
    for (checkpoint, weights) in [
        ("qwen35-tiny", Weights::Q8 { group: 64 }),
        ("qwen35-tiny", Weights::F32),
        ("granite4h-tiny", Weights::F32),
        ("lfm2-tiny", Weights::F32),
    ] {
        let model = export(checkpoint, weights);
        let jobs = [job(&prompt(&model, 420, TURN, 1))];
        for kv in KvKind::ALL {
            let wanted = answers(&mut engine(&model, (512, kv), None), &jobs).remove(0).0;
            for computed in [420, 1] {
                let mut engine = engine(&model, (512, kv), place);
                let found = answers(&mut engine, &jobs).remove(0);
                assert_eq!(found, (wanted.clone(), computed), "{checkpoint} {kv:?}");
            }
            n_files += 12;
            assert_eq!(files(&folder).len(), n_files);
        }
    }
    // A file of another model under the name of this one.
    let model = export("qwen35-tiny", Weights::F32);
    let jobs = [job(&prompt(&model, 420, TURN, 1))];
    let [own, others] = [Folder::new(), Folder::new()];
    let wanted = answer(&model, &jobs[0], Some((own.path(), PLENTY))).0;
    let other = export("qwen35-tiny", Weights::Q8 { group: 64 });
    answer(&other, &jobs[0], Some((others.path(), PLENTY)));
    for (name, other) in files(&own).iter().zip(files(&others)) {
        fs::copy(other, name).unwrap();
    }
    let found = answer(&model, &jobs[0], Some((own.path(), PLENTY)));
    assert_eq!(found, (wanted, 420));
}

#[test]
fn a_limit_for_one_conversation_holds_the_last_one() {
    for checkpoint in sample(CHECKPOINTS) {
        let (model, sizing, folder) =
            (export(checkpoint, Weights::Q8 { group: 64 }), Folder::new(), Folder::new());
        let jobs = [1, 2].map(|kind| job(&prompt(&model, 420, 0, kind)));
        let wanted = fresh(&model, &jobs);
        answer(&model, &jobs[0], Some((sizing.path(), PLENTY)));
        let limit = bytes(&sizing);
        for _ in 0..2 {
            for (job, wanted) in jobs.iter().zip(&wanted) {
                for computed in [420, 1, 1] {
                    let found = answer(&model, job, Some((folder.path(), limit)));
                    assert_eq!(found, (wanted.clone(), computed), "{checkpoint}");
                    assert!(bytes(&folder) <= limit, "{checkpoint}");
                }
            }
        }
        // The limit is too small for the last state, which would push out what it needs.
        let job = job(&prompt(&model, 420, TURN, 1));
        let (whole, less) = (Folder::new(), Folder::new());
        let wanted_then = answer(&model, &job, Some((whole.path(), PLENTY))).0;
        for computed in [420, 120, 120] {
            let found = answer(&model, &job, Some((less.path(), bytes(&whole) - 1)));
            assert_eq!(found, (wanted_then.clone(), computed), "{checkpoint}");
            assert_eq!(states(&less).len(), 2, "{checkpoint}");
        }
        // The limit is too small for a state: pages would be of no use.
        let none = Folder::new();
        let of_state = fs::metadata(&states(&sizing)[0]).unwrap().len();
        for _ in 0..2 {
            let found = answer(&model, &jobs[0], Some((none.path(), of_state - 1)));
            assert_eq!(found, (wanted[0].clone(), 420), "{checkpoint}");
        }
        assert!(files(&none).is_empty(), "{checkpoint}");
    }
}

/// A text that begins as others do.
fn any_text(model: &Model, state: &mut u64) -> Job {
    let (n_common, kind) = (below(400, state), 1 + below(3, state));
    let n_new = [1, 1, 30, 90][below(4, state)];
    job(&prompt(model, n_common + n_new, n_common, kind))
}

/// Texts with common beginnings, little memory, few files, and many restarts.
#[test]
fn any_texts_go_on_from_states_in_files() {
    for (checkpoint, seed) in sample(CHECKPOINTS.into_iter().zip([11, 12, 13, 14])) {
        let (model, mut state) = (export(checkpoint, Weights::Q8 { group: 64 }), seed);
        let (folder, sizing) = (Folder::new(), Folder::new());
        let n_jobs = if crate::common::quick() { 10 } else { 24 };
        let jobs: Vec<Job> = (0..n_jobs).map(|_| any_text(&model, &mut state)).collect();
        let wanted = fresh(&model, &jobs);
        answer(&model, &job(&prompt(&model, 420, TURN, 1)), Some((sizing.path(), PLENTY)));
        let bytes = bytes(&sizing);
        let (mut read, mut n) = (0, 0);
        while n < jobs.len() {
            let end = jobs.len().min(n + 1 + below(3, &mut state));
            let limit = [bytes, 2 * bytes, PLENTY][below(3, &mut state)];
            let kv_tokens = [512, 640, 1024][below(3, &mut state)];
            let place = Some((folder.path(), limit));
            let mut engine = engine(&model, (kv_tokens, KvKind::F16), place);
            let found = answers(&mut engine, &jobs[n..end]);
            let found = found.iter().map(|(ids, _)| ids);
            assert!(found.eq(&wanted[n..end]), "{checkpoint}, jobs {n}..{end}");
            read += engine.page_figures().read;
            n = end;
        }
        assert!(read > 0, "{checkpoint}");
    }
}

/// A file has only its own text, whatever else was in memory.
#[test]
fn a_state_file_holds_its_own_text_alone() {
    let model = export("granite4h-tiny", Weights::Q8 { group: 64 });
    let [old, new] = [9, 8].map(|kind| job(&prompt(&model, 420, 0, kind)));
    let [after, alone] = [(); 2].map(|()| Folder::new());
    answer(&model, &new, Some((alone.path(), PLENTY)));
    let mut engine = engine(&model, (512, KvKind::F16), Some((after.path(), PLENTY)));
    answers(&mut engine, &[old]);
    answers(&mut engine, &[new]);
    drop(engine);
    assert_eq!(files(&alone).len(), 8);
    for file in files(&alone) {
        let same = after.join(file.file_name().unwrap().to_str().unwrap());
        assert!(fs::read(same).unwrap() == fs::read(&file).unwrap(), "{}", file.display());
    }
}

/// Each board keeps its own layers' part of a state.
#[test]
fn rings_go_on_from_the_states_that_all_boards_have() {
    for checkpoint in sample(CHECKPOINTS) {
        let (folder, kept) = (Folder::new(), Folder::new());
        ["0", "1", "2"].iter().for_each(|board| fs::create_dir(kept.join(board)).unwrap());
        let path = export_to(&folder, checkpoint, Weights::Q8 { group: 64 });
        let model = Model::open(&path).unwrap();
        let recipe = Recipe {
            model: path,
            batch: 100,
            n_streams: 3,
            prefixes: Some(kept.path().to_owned()),
            ..Recipe::demo(&[1, 3])
        };
        let prompts = [(420, TURN, 1), (400, TURN, 2), (380, SYSTEM, 3)];
        let jobs = prompts.map(|(n, common, kind)| job(&prompt(&model, n, common, kind)));
        let wanted = answers(&mut recipe.alone(), &jobs);
        let goes_on = |index: usize, computed: usize, what: &str| {
            let (mut engine, _workers) = recipe.ring();
            let found = answers(&mut engine, &jobs[index..=index]).remove(0);
            assert_eq!(found, (wanted[index].0.clone(), computed), "{checkpoint}: {what}");
        };
        goes_on(0, 420, "nothing is known");
        goes_on(0, 1, "but for the last id all boards have all");
        goes_on(1, 100, "another text with the same turn");
        goes_on(2, 350, "another text with the same system prompt");
        goes_on(2, 1, "that text is in files, too");
        // The state at the end of the first text is damaged on one board.
        let of_board = |board: &str, ending: &str| {
            let files = fs::read_dir(kept.join(board)).unwrap().map(|entry| entry.unwrap().path());
            let own = files.filter(|path| path.to_str().unwrap().ends_with(ending));
            own.collect::<Vec<PathBuf>>()
        };
        let damaged = of_board("1", "-6.state").remove(0);
        let whole = fs::read(&damaged).unwrap();
        fs::write(&damaged, &whole[..whole.len() - 1]).unwrap();
        goes_on(0, 120, "an earlier state is taken");
        assert!(!damaged.exists(), "{checkpoint}");
        goes_on(0, 120, "the rest is too short to be worth a file");
        fs::write(&damaged, &whole).unwrap();
        // One board lacks a page before the last states.
        of_board("2", "-3.kv").iter().for_each(|page| fs::remove_file(page).unwrap());
        goes_on(0, 390, "the first state is behind no missing page");
        goes_on(0, 1, "the board has written the page again");
        fs::remove_dir_all(kept.join("1")).unwrap();
        fs::create_dir(kept.join("1")).unwrap();
        goes_on(0, 420, "a board has lost its storage");
        goes_on(0, 1, "it has all again");
    }
}

/// A ring that is cut otherwise after a restart reads the states of layers that stayed with their board.
#[test]
fn rings_read_states_of_the_layers_that_they_have() {
    for checkpoint in sample(CHECKPOINTS) {
        let (folder, kept) = (Folder::new(), Folder::new());
        ["0", "1"].iter().for_each(|board| fs::create_dir(kept.join(board)).unwrap());
        let path = export_to(&folder, checkpoint, Weights::Q8 { group: 64 });
        let model = Model::open(&path).unwrap();
        let recipe = |cut: usize| Recipe {
            model: path.clone(),
            batch: 100,
            n_streams: 2,
            prefixes: Some(kept.path().to_owned()),
            ..Recipe::demo(&[cut])
        };
        let jobs = [job(&prompt(&model, 420, TURN, 1))];
        let wanted = answers(&mut recipe(2).alone(), &jobs).remove(0).0;
        // Fewest and most tokens from files. The last state of a prompt is written only if the disk is quick enough; the
        // one before it has 300 tokens.
        for (cut, read) in [(2, 0..=0), (1, 0..=0), (2, 300..=419), (1, 300..=419)] {
            let (mut engine, _workers) = recipe(cut).ring();
            let found = answers(&mut engine, &jobs).remove(0).0;
            assert_eq!(found, wanted, "{checkpoint}: cut at layer {cut}");
            let found = engine.page_figures().read;
            assert!(read.contains(&found), "{checkpoint}: cut at layer {cut}: {found} tokens");
        }
    }
}

/// An idle ring whose layers move goes on from the states in its memory.
#[test]
fn states_in_memory_move_with_the_layers_of_an_idle_ring() {
    for checkpoint in sample(CHECKPOINTS) {
        let folder = Folder::new();
        let path = export_to(&folder, checkpoint, Weights::Q8 { group: 64 });
        let model = Model::open(&path).unwrap();
        let n_layers = model.header().n_layers;
        let recipe = Recipe { model: path, batch: 100, n_streams: 2, ..Recipe::demo(&[2]) };
        let jobs = [job(&prompt(&model, 200, SYSTEM, 1))];
        let (mut engine, _workers) = recipe.ring();
        let wanted = (answers(&mut engine, &jobs).remove(0).0, 1);
        for cut in [1, n_layers - 1, 2] {
            engine.resplit(&[0..cut, cut..n_layers], &recipe.place(0)).unwrap();
            let found = answers(&mut engine, &jobs).remove(0);
            assert_eq!(found, wanted, "{checkpoint}: cut at layer {cut}");
        }
    }
}

/// Texts with common beginnings that several streams of a ring compute, over many restarts.
#[test]
fn any_texts_of_rings_go_on_from_states_in_files() {
    for (checkpoint, seed) in sample(CHECKPOINTS.into_iter().zip([21, 22, 23, 24])) {
        let (folder, kept, mut state) = (Folder::new(), Folder::new(), seed);
        ["0", "1", "2"].iter().for_each(|board| fs::create_dir(kept.join(board)).unwrap());
        let path = export_to(&folder, checkpoint, Weights::Q8 { group: 64 });
        let model = Model::open(&path).unwrap();
        let recipe = |batch: usize| Recipe {
            model: path.clone(),
            batch,
            n_streams: 3,
            max_logits: 3,
            kv_tokens: Some(1024),
            prefixes: Some(kept.path().to_owned()),
            ..Recipe::demo(&[1, 2])
        };
        let n_jobs = if crate::common::quick() { 8 } else { 20 };
        let jobs: Vec<Job> = (0..n_jobs).map(|_| any_text(&model, &mut state)).collect();
        let alone =
            |job: &Job| answers(&mut recipe(64).alone(), std::slice::from_ref(job)).remove(0);
        let wanted: Vec<Vec<u32>> = jobs.iter().map(|job| alone(job).0).collect();
        let (mut read, mut n) = (0, 0);
        while n < jobs.len() {
            let end = jobs.len().min(n + 1 + below(4, &mut state));
            let (mut engine, _workers) = recipe([24, 100][below(2, &mut state)]).ring();
            let found = answers(&mut engine, &jobs[n..end]);
            let found = found.iter().map(|(ids, _)| ids);
            assert!(found.eq(&wanted[n..end]), "{checkpoint}, jobs {n}..{end}");
            read += engine.page_figures().read;
            n = end;
        }
        assert!(read > 0, "{checkpoint}");
    }
}
