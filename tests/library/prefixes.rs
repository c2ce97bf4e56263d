//! Beginnings of prompts in files: another process continues from them, with the same text.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::folder::Folder;
use crate::common::jobs::answers;
use crate::common::models::package;
use crate::common::sample;
use leap::engine::{Engine, Job, KvKind, KvMemory, Options};
use leap::internals::model::Model;
use leap::sampler::Sampling;

const PLENTY: u64 = 1 << 30;

/// A model, the format of its keys and values, and the most rows of a batch.
struct Setup {
    model: Arc<Model>,
    kv: Option<KvKind>,
    batch: usize,
}

fn setup(model: &Arc<Model>, kv: Option<KvKind>) -> Setup {
    Setup { model: Arc::clone(model), kv, batch: 100 }
}

fn demo() -> Setup {
    setup(&Arc::new(Model::open(&package("models/demo.bin")).unwrap()), None)
}

/// An engine with memory for `kv_tokens` tokens that keeps up to `limit` bytes in the folder, if there is one.
fn engine(setup: &Setup, kv_tokens: usize, folder: Option<(&Path, u64)>) -> Engine {
    let Setup { model, kv, batch } = setup;
    let options = Options {
        n_streams: Some(3),
        batch: Some(*batch),
        ctx_len: Some(512),
        kv_memory: KvMemory::Tokens(kv_tokens),
        kv: *kv,
        threads: Some(1),
        ..Options::default()
    };
    let mut engine = Engine::new(Arc::clone(model), &options).unwrap();
    if let Some((folder, limit)) = folder {
        engine.keep_prefixes(folder, limit).unwrap();
    }
    engine
}

fn job(prompt: &[u32]) -> Job {
    let sampling = Sampling { temperature: 0.8, seed: 5, ..Sampling::GREEDY };
    Job { n_predict: 12, sampling, ..Job::new(prompt.to_vec()) }
}

/// A prompt of `n` ids, the first `n_common` of them common to all prompts, the others `kind`.
fn prompt(n: u32, n_common: u32, kind: u32) -> Vec<u32> {
    (0..n).map(|i| if i < n_common { i * 5 % 97 } else { kind }).collect()
}

fn files(folder: &Folder) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The answer to each job by a new engine.
fn fresh(model: &Setup, jobs: &[Job]) -> Vec<Vec<u32>> {
    let one =
        |job: &Job| answers(&mut engine(model, 512, None), std::slice::from_ref(job))[0].0.clone();
    jobs.iter().map(one).collect()
}

/// Each engine stands for one after a restart. Dropping an engine completes its writing.
fn goes_on_after_restarts(model: &Setup) {
    let folder = Folder::new();
    let place = Some((folder.path(), PLENTY));
    let prompts = [prompt(420, 300, 7), prompt(400, 300, 8), prompt(300, 300, 0)];
    let jobs = prompts.map(|ids| job(&ids));
    let wanted = fresh(model, &jobs);
    let answer = |job: usize| answers(&mut engine(model, 512, place), &jobs[job..=job])[0].clone();
    assert_eq!(answer(0), (wanted[0].clone(), 420));
    assert_eq!(answer(0), (wanted[0].clone(), 1), "but for the last id all is in files");
    // Another text with the same beginning, which ends inside a page.
    assert_eq!(answer(1), (wanted[1].clone(), 100));
    assert_eq!(answer(2), (wanted[2].clone(), 1));
    // The rest is too short to be worth a file.
    assert_eq!(answer(1), (wanted[1].clone(), 100));
    // Two contexts, and another process that writes the same files at the same time.
    let mut other = engine(model, 1024, place);
    let found = answers(&mut engine(model, 1024, place), &jobs);
    assert!(found.iter().map(|(ids, _)| ids).eq(&wanted));
    let found = answers(&mut other, &jobs);
    assert!(found.iter().map(|(ids, _)| ids).eq(&wanted));
    assert!(other.page_figures().read >= 420);
}

#[test]
fn a_prompt_goes_on_from_files() {
    for kv in KvKind::ALL {
        goes_on_after_restarts(&Setup { kv: Some(kv), ..demo() });
    }
}

#[cfg(feature = "pickle")]
#[test]
fn windows_are_in_files_too() {
    let all = ["gemma3-tiny", "gptoss-tiny", "mistral-tiny", "gemma4-tiny", "gemma4moe-tiny"];
    for checkpoint in sample(all) {
        let model = crate::common::models::export(checkpoint, leap::format::model::Weights::F32);
        assert!(model.header().sliding_window.is_some_and(|window| window < 60));
        for kv in [KvKind::F32, KvKind::Int8] {
            goes_on_after_restarts(&setup(&model, Some(kv)));
            // Windows and a batch take all pages of a context: layers with windows have no pages of their own.
            goes_on_after_restarts(&Setup { batch: 420, ..setup(&model, Some(kv)) });
        }
    }
}

#[test]
fn files_that_are_not_what_they_should_be_are_removed() {
    let (model, folder) = (demo(), Folder::new());
    let place = Some((folder.path(), PLENTY));
    let jobs = [job(&prompt(420, 300, 7))];
    let wanted = fresh(&model, &jobs);
    answers(&mut engine(&model, 512, place), &jobs);
    let names = files(&folder);
    // Six full pages, and the rest.
    assert_eq!(names.len(), 7);
    folder.write("notes.txt", "mine");
    let whole: Vec<Vec<u8>> = names.iter().map(|name| fs::read(name).unwrap()).collect();
    let shorter = |bytes: &[u8]| bytes[..bytes.len() - 1].to_vec();
    let flipped = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[1000] ^= 1;
        bytes
    };
    for at in if crate::common::quick() { vec![6] } else { vec![0, 4, 6] } {
        for bad in [shorter(&whole[at]), flipped(&whole[at]), whole[(at + 1) % 7].clone(), vec![]] {
            fs::write(&names[at], &bad).unwrap();
            let mut engine = engine(&model, 512, place);
            let found = answers(&mut engine, &jobs);
            assert_eq!(found[0].0, wanted[0]);
            assert!(found[0].1 > 1, "a bad file was used");
            drop(engine);
            assert_ne!(fs::read(&names[at]).ok(), Some(bad), "it is there still");
            fs::write(&names[at], &whole[at]).unwrap();
        }
    }
    assert_eq!(answers(&mut engine(&model, 512, place), &jobs)[0], (wanted[0].clone(), 1));
    assert_eq!(fs::read(folder.join("notes.txt")).unwrap(), b"mine");
}

/// A pseudo-random number below `n` (Xorshift).
fn below(n: u32, state: &mut u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state % n
}

/// Texts with common beginnings, little memory, few files, and many restarts.
fn any_texts(model: &Setup, state: &mut u32) {
    let (folder, sizing) = (Folder::new(), Folder::new());
    let jobs: Vec<Job> = (0..16)
        .map(|_| {
            let (n_common, kind) = (below(400, state), 1 + below(3, state));
            let n_new = [1, 1, 30, 90][below(4, state) as usize];
            job(&prompt(n_common + n_new, n_common, kind))
        })
        .collect();
    let wanted = fresh(model, &jobs);
    answers(&mut engine(model, 512, Some((sizing.path(), PLENTY))), &[job(&prompt(400, 400, 0))]);
    let bytes: u64 = files(&sizing).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    let (mut read, mut n) = (0, 0);
    while n < jobs.len() {
        let end = jobs.len().min(n + 1 + below(3, state) as usize);
        let limit = [bytes, 2 * bytes, PLENTY][below(3, state) as usize];
        let mut engine =
            engine(model, [512, 640, 1024][below(3, state) as usize], Some((folder.path(), limit)));
        let found = answers(&mut engine, &jobs[n..end]);
        assert!(found.iter().map(|(ids, _)| ids).eq(&wanted[n..end]), "jobs {n}..{end}");
        read += engine.page_figures().read;
        n = end;
    }
    assert!(read > 500, "{read}");
}

#[test]
fn any_texts_go_on_from_files() {
    any_texts(&demo(), &mut 11);
}

#[cfg(feature = "pickle")]
#[test]
fn any_texts_with_windows_go_on_from_files() {
    let all = [("gemma3-tiny", 3), ("mistral-tiny", 4), ("gemma4-tiny", 5), ("gemma4moe-tiny", 6)];
    for (checkpoint, seed) in sample(all) {
        let model = crate::common::models::export(checkpoint, leap::format::model::Weights::F32);
        any_texts(&setup(&model, None), &mut { seed });
        any_texts(&setup(&model, Some(KvKind::Int8)), &mut { seed });
    }
}

/// Other formats of keys and values, and other models, have pages of their own in the same folder.
#[test]
fn pages_of_other_models_are_let_alone() {
    let (model, folder) = (demo(), Folder::new());
    let jobs = [job(&prompt(420, 300, 7))];
    answers(&mut engine(&model, 512, Some((folder.path(), PLENTY))), &jobs);
    for kv in sample([KvKind::F32, KvKind::Int8]) {
        let n_files = files(&folder).len();
        let other = setup(&model.model, Some(kv));
        let wanted = answers(&mut engine(&other, 512, None), &jobs);
        for computed in [420, 1] {
            let mut other = engine(&other, 512, Some((folder.path(), PLENTY)));
            assert_eq!(answers(&mut other, &jobs)[0], (wanted[0].0.clone(), computed));
        }
        assert_eq!(files(&folder).len(), n_files + 7);
    }
}

/// A file has only its own text, whatever else was in memory.
fn holds_its_own_text_alone(model: &Setup) {
    let [old, new] = [prompt(500, 0, 9), prompt(300, 0, 8)].map(|ids| job(&ids));
    let [after, alone] = [(); 2].map(|()| Folder::new());
    answers(&mut engine(model, 512, Some((alone.path(), PLENTY))), std::slice::from_ref(&new));
    let mut engine = engine(model, 512, Some((after.path(), PLENTY)));
    answers(&mut engine, &[old]);
    answers(&mut engine, &[new]);
    drop(engine);
    assert_eq!(files(&alone).len(), 5);
    for file in files(&alone) {
        let same = after.join(file.file_name().unwrap().to_str().unwrap());
        assert!(fs::read(same).unwrap() == fs::read(&file).unwrap(), "{}", file.display());
    }
}

#[test]
fn a_file_holds_its_own_text_alone() {
    holds_its_own_text_alone(&demo());
}

/// Positions behind a text are cleared in parts of each size.
#[cfg(feature = "pickle")]
#[test]
fn a_file_of_unlike_parts_holds_its_own_text_alone() {
    let model = crate::common::models::export("gemma4-tiny", leap::format::model::Weights::F32);
    for kv in KvKind::ALL {
        holds_its_own_text_alone(&Setup { batch: 420, ..setup(&model, Some(kv)) });
    }
}

#[test]
fn all_files_have_no_more_than_may_be() {
    let (model, folder) = (demo(), Folder::new());
    let jobs: Vec<Job> = (1..6).map(|kind| job(&prompt(420, 130, kind))).collect();
    let wanted = fresh(&model, &jobs);
    answers(&mut engine(&model, 512, Some((folder.path(), PLENTY))), &jobs[..1]);
    let of_page = fs::metadata(&files(&folder)[0]).unwrap().len();
    let place = Some((folder.path(), 10 * of_page));
    for _ in 0..2 {
        for (job, wanted) in jobs.iter().zip(&wanted) {
            let mut engine = engine(&model, 512, place);
            let (found, computed) = answers(&mut engine, std::slice::from_ref(job)).remove(0);
            assert_eq!(&found, wanted);
            // Pages of the common beginning are used by all, and stay.
            assert!(computed <= 420 - 128, "{computed}");
            drop(engine);
            assert!(files(&folder).len() <= 10);
        }
    }
    // The limit is too small for a page.
    let none = Folder::new();
    for _ in 0..2 {
        let found = answers(&mut engine(&model, 512, Some((none.path(), 100))), &jobs[..1]);
        assert_eq!(found[0], (wanted[0].clone(), 420));
    }
    assert!(files(&none).is_empty());
}
