//! Beginnings of prompts in files of a ring's nodes, each with the part of its own layers: beginnings that all nodes
//! have are not computed again.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::folder::Folder;
use crate::common::jobs::{Listener, answers};
use crate::common::rings::Recipe;
use leap::engine::{Job, JobId, KvKind, Scheduler};
use leap::sampler::Sampling;

/// A ring of three whose nodes keep their files in `folder`.
fn recipe(folder: &Folder) -> Recipe {
    for node in 0..3 {
        fs::create_dir_all(folder.join(&node.to_string())).unwrap();
    }
    let (kv_tokens, prefixes) = (Some(1024), Some(folder.path().to_owned()));
    Recipe { batch: 64, n_streams: 3, max_logits: 3, kv_tokens, prefixes, ..Recipe::demo(&[2, 4]) }
}

/// Answers `jobs` on a newly started ring. When the ring is dropped, it writes all prefixes.
fn restarted(recipe: &Recipe, jobs: &[Job]) -> Vec<(Vec<u32>, usize)> {
    let (mut engine, _workers) = recipe.ring();
    answers(&mut engine, jobs)
}

fn job(prompt: Vec<u32>) -> Job {
    let sampling = Sampling { temperature: 0.8, seed: 5, ..Sampling::GREEDY };
    Job { n_predict: 12, sampling, ..Job::new(prompt) }
}

/// A prompt of `n` ids, the first `n_common` of them common to all prompts, the others `kind`.
fn prompt(n: u32, n_common: u32, kind: u32) -> Vec<u32> {
    (0..n).map(|i| if i < n_common { i * 5 % 97 } else { kind }).collect()
}

/// The text of each job on one board alone.
fn wanted(recipe: &Recipe, jobs: &[Job]) -> Vec<Vec<u32>> {
    let one = |job: &Job| answers(&mut recipe.alone(), std::slice::from_ref(job)).remove(0).0;
    jobs.iter().map(one).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn goes_on_after_restarts(recipe: &Recipe) {
    let prompts = [prompt(420, 300, 7), prompt(400, 300, 8), prompt(300, 300, 0)];
    let jobs = prompts.map(job);
    let wanted = wanted(recipe, &jobs);
    let answer = |job: usize| restarted(recipe, &jobs[job..=job]).remove(0);
    assert_eq!(answer(0), (wanted[0].clone(), 420));
    assert_eq!(answer(0), (wanted[0].clone(), 1), "but for the last id all is in files");
    // Another text with the same beginning, which ends inside a page.
    assert_eq!(answer(1), (wanted[1].clone(), 100));
    assert_eq!(answer(2), (wanted[2].clone(), 1));
    // Other streams decode while the beginning is read.
    let found = restarted(recipe, &jobs);
    assert!(found.iter().map(|(ids, _)| ids).eq(&wanted));
    assert!(found.iter().map(|(_, computed)| computed).sum::<usize>() <= 420);
}

#[test]
fn a_prompt_goes_on_from_files_of_all_nodes() {
    for (kv, is_tcp) in [(KvKind::F16, false), (KvKind::Int8, true)] {
        let folder = Folder::new();
        goes_on_after_restarts(&Recipe { kv, is_tcp, ..recipe(&folder) });
        let counts = ["0", "1", "2"].map(|node| files(&folder.join(node)).len());
        assert!(counts[0] >= 7 && counts == [counts[0]; 3], "{counts:?}");
    }
}

/// Covers nodes that have only layers with windows.
#[cfg(feature = "pickle")]
#[test]
fn windows_are_in_files_of_all_nodes_too() {
    use leap::format::model::Weights;

    let all = ["gemma3-tiny", "mistral-tiny", "gptoss-tiny", "gemma4-tiny", "gemma4moe-tiny"];
    for checkpoint in crate::common::sample(all) {
        let folder = Folder::new();
        let model = crate::common::models::export_to(&folder, checkpoint, Weights::F32);
        let recipe = Recipe { model, cuts: vec![1], ..recipe(&folder) };
        assert!(recipe.alone().header().sliding_window.is_some_and(|window| window < 60));
        goes_on_after_restarts(&recipe);
    }
}

#[test]
fn what_a_node_lacks_is_computed_and_kept_again() {
    let folder = Folder::new();
    let recipe = recipe(&folder);
    let jobs = [job(prompt(420, 300, 7))];
    let wanted = wanted(&recipe, &jobs).remove(0);
    let again = |computed: usize| {
        assert_eq!(restarted(&recipe, &jobs), [(wanted.clone(), computed)]);
    };
    again(420);
    for node in ["0", "1", "2"] {
        files(&folder.join(node)).iter().for_each(|file| fs::remove_file(file).unwrap());
        again(420);
        again(1);
        // A page is damaged, which also invalidates those behind it.
        let page = files(&folder.join(node))
            .into_iter()
            .find(|file| file.to_str().is_some_and(|name| name.ends_with("-2.kv")));
        let page = page.unwrap();
        let mut bytes = fs::read(&page).unwrap();
        bytes[1000] ^= 1;
        fs::write(&page, bytes).unwrap();
        again(420 - 128);
        again(1);
    }
    // If one node has no folder, no node keeps anything.
    for node in ["0", "1"] {
        files(&folder.join(node)).iter().for_each(|file| fs::remove_file(file).unwrap());
    }
    fs::rename(folder.join("2"), folder.join("away")).unwrap();
    again(420);
    again(420);
    assert!(files(&folder.join("0")).is_empty() && files(&folder.join("1")).is_empty());
    fs::rename(folder.join("away"), folder.join("2")).unwrap();
    again(420);
    again(1);
}

#[test]
fn files_of_other_layers_are_let_alone() {
    let folder = Folder::new();
    let recipe = recipe(&folder);
    let jobs = [job(prompt(420, 300, 7))];
    let wanted = wanted(&recipe, &jobs).remove(0);
    for (cuts, computed) in [([2, 4], 420), ([1, 4], 420), ([1, 5], 420), ([2, 4], 1), ([1, 5], 1)]
    {
        let recipe = Recipe { cuts: cuts.to_vec(), ..recipe.clone() };
        assert_eq!(restarted(&recipe, &jobs), [(wanted.clone(), computed)], "{cuts:?}");
    }
    // Layers that move while a ring runs take along keys and values read from files.
    let (mut engine, _workers) = recipe.ring();
    assert_eq!(answers(&mut engine, &jobs), [(wanted.clone(), 1)]);
    let other = job(prompt(440, 310, 9));
    let said = self::wanted(&recipe, std::slice::from_ref(&other)).remove(0);
    engine.resplit(&[0..3, 3..4, 4..6], &recipe.place(0)).unwrap();
    assert_eq!(answers(&mut engine, &jobs), [(wanted.clone(), 1)]);
    let found = answers(&mut engine, &[other]).remove(0);
    assert_eq!(found, (said, 440 - 300));
}

/// A pseudo-random number below `n` (Xorshift).
fn below(n: u32, state: &mut u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state % n
}

/// Texts with common beginnings, little memory, moving layers, and many restarts.
#[test]
fn any_texts_go_on_from_files_of_all_nodes() {
    let (folder, mut state) = (Folder::new(), 11);
    let recipe = recipe(&folder);
    let jobs: Vec<Job> = (0..24)
        .map(|_| {
            let (n_common, kind) = (below(400, &mut state), 1 + below(3, &mut state));
            let n_new = [1, 1, 30, 90][below(4, &mut state) as usize];
            job(prompt(n_common + n_new, n_common, kind))
        })
        .collect();
    let wanted = wanted(&recipe, &jobs);
    let (mut read, mut n) = (0, 0);
    while n < jobs.len() {
        let end = jobs.len().min(n + 1 + below(6, &mut state) as usize);
        let kv_tokens = Some([512, 640, 1024][below(3, &mut state) as usize]);
        let recipe = Recipe { kv_tokens, ..recipe.clone() };
        let (mut engine, _workers, mut mover) = recipe.moving_ring();
        let mut scheduler = Scheduler::new(&mut engine, usize::MAX, None).unwrap();
        let ids: Vec<JobId> =
            jobs[n..end].iter().map(|job| scheduler.submit(job.clone())).collect();
        let (mut listener, moves) = (Listener::default(), below(2, &mut state) == 0);
        let mut n_steps = 0;
        while !scheduler.is_idle() {
            n_steps += 1;
            if moves && n_steps % 9 == 0 {
                let cut = 1 + below(2, &mut state) as usize;
                mover.ask(&[0..cut, cut..cut + 2, cut + 2..6]);
            }
            scheduler.step(&mut engine, &mut |id, event| listener.hear(id, event));
        }
        let found = ids.iter().map(|id| &listener.0[id].ids);
        assert!(found.eq(&wanted[n..end]), "jobs {n}..{end}");
        let figures = engine.page_figures();
        assert_eq!(figures.n_used, 0);
        read += figures.read;
        n = end;
    }
    assert!(read > 500, "{read}");
}
