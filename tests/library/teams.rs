//! Teams of boards that have rows of layers that are not alike: texts are those of one board.

use std::sync::Arc;
use std::sync::mpsc::channel;

use crate::common::folder::Folder;
use crate::common::jobs::{Heard, Listener, answers, finish};
use crate::common::models::export_to;
use crate::common::rings::{Recipe, assert_no_setbacks, assert_nothing_lost, lead_alone};
use crate::common::sample;
use crate::drafts::{counts, drafted, knowing};
use crate::recurrent::{CHECKPOINTS, Turn, fresh, jobs, turns};
use leap::engine::ring::Setbacks;
use leap::engine::{DraftMode, Drafter, Job, Scheduler};
use leap::format::model::Weights;
use leap::internals::model::{KvKind, Model};

/// Checkpoints whose layers have other heads, and inputs or layers beside their mixtures.
const UNLIKE: [&str; 2] = ["gemma4-tiny", "gemma4moe-tiny"];

/// A recipe for boards with a checkpoint, and the checkpoint as int8.
fn recipe(folder: &Folder, checkpoint: &str, teams: &[&[u16]]) -> (Recipe, Arc<Model>) {
    let path = export_to(folder, checkpoint, Weights::Q8 { group: 64 });
    let model = Arc::new(Model::open(&path).unwrap());
    let teams = teams.iter().map(|shares| shares.to_vec()).collect();
    let (n_streams, batch, max_logits) = (3, 24, 24);
    let recipe = Recipe { model: path, teams, n_streams, batch, max_logits, ..Recipe::demo(&[]) };
    (Recipe { kv_tokens: Some(768), ..recipe }, model)
}

#[test]
fn texts_of_a_team_share_states_and_pages() {
    for checkpoint in sample(CHECKPOINTS.into_iter().chain(UNLIKE)) {
        let folder = Folder::new();
        let (recipe, model) = recipe(&folder, checkpoint, &[&[2, 1, 1]]);
        let jobs = jobs(&model, 16, 2);
        let wanted = fresh(&model, &jobs);
        let mut engine = recipe.team_alone();
        let found = answers(&mut engine, &jobs);
        for (index, ((found, _), wanted)) in found.iter().zip(&wanted).enumerate() {
            assert_eq!(found, wanted, "{checkpoint}, job {index}");
        }
        let n_ids: usize = jobs.iter().map(|job| job.prompt.len()).sum();
        let computed: usize = found.iter().map(|(_, computed)| computed).sum();
        assert!(computed < n_ids, "{checkpoint}: {computed} of {n_ids}");
        assert_no_setbacks(&engine);
    }
}

/// Boards take rejected drafts back, each in its own copy of the states.
#[test]
fn drafts_of_a_team_change_nothing() {
    for checkpoint in sample(CHECKPOINTS.into_iter().chain(UNLIKE)) {
        let folder = Folder::new();
        let (recipe, model) = recipe(&folder, checkpoint, &[&[1, 2]]);
        let mut jobs = jobs(&model, 8, 3);
        jobs.iter_mut().for_each(|job| job.n_predict = 40);
        jobs.iter_mut().enumerate().for_each(|(index, job)| job.prompt.push(index as u32));
        let wanted = fresh(&model, &jobs);
        let heard = |ids: &Vec<u32>| Heard { ids: ids.clone(), ..Heard::default() };
        let heard: Vec<Heard> = wanted.iter().map(heard).collect();
        let drafter = knowing(&jobs, &heard) as Box<dyn Drafter>;
        let mut engine = recipe.team_alone();
        let found = drafted(&mut engine, None, &jobs, (drafter, DraftMode::Fixed(5)));
        let (tried, right) = counts(&found);
        assert!(right > 40 && tried > right, "{checkpoint}: {right} of {tried}");
        assert!(found.iter().zip(&wanted).all(|(found, wanted)| &found.ids == wanted));
        assert_no_setbacks(&engine);
    }
}

/// No board of a team has whole pages.
#[test]
fn a_team_keeps_no_pages_in_files() {
    let (folder, kept) = (Folder::new(), Folder::new());
    let (recipe, model) = recipe(&folder, "llama3-tiny", &[&[2, 1]]);
    let recipe = Recipe { prefixes: Some(kept.path().to_owned()), ..recipe };
    let job = Job { n_predict: 8, ..Job::new((0..300).map(|i| i * 7 % 97 + 3).collect()) };
    let wanted = (fresh(&model, std::slice::from_ref(&job)).remove(0), 300);
    for _ in 0..2 {
        let mut engine = recipe.team_alone();
        engine.keep_prefixes(kept.path(), 1 << 30).unwrap();
        let names = kept.names();
        assert_eq!(answers(&mut engine, std::slice::from_ref(&job)).remove(0), wanted);
        drop(engine);
        assert_eq!(kept.names(), names);
    }
}

/// A team computes no more than what is new since the last turn's prompt.
#[test]
fn conversations_of_a_team_go_back_to_states() {
    for checkpoint in sample(CHECKPOINTS) {
        let folder = Folder::new();
        let (recipe, _) = recipe(&folder, checkpoint, &[&[1, 1]]);
        let path = export_to(&folder, checkpoint, Weights::F32);
        let recipe = Recipe { model: path, n_streams: 1, kv: KvKind::F32, ..recipe };
        let mut engine = recipe.team_alone();
        let turns = turns(checkpoint);
        let mut texts: Vec<Vec<u32>> = Vec::new();
        for (index, Turn { from, ids, answer }) in turns.iter().enumerate() {
            let prompt = [from.map_or(&[][..], |from| &texts[from]), ids].concat();
            let job = Job { n_predict: answer.len(), ..Job::new(prompt.clone()) };
            let (found, computed) = answers(&mut engine, &[job]).remove(0);
            assert_eq!(&found, answer, "{checkpoint}, turn {index}");
            let most = ids.len() + from.map_or(0, |from| turns[from].answer.len()) + 1;
            assert!(computed <= most, "{checkpoint}, turn {index}: {computed}, not {most}");
            texts.push([prompt, found].concat());
        }
    }
}

/// The lead goes on alone with whole rows, and computes states again that were kept for the team.
#[test]
fn a_team_that_changes_keeps_texts_with_states() {
    for checkpoint in sample(CHECKPOINTS) {
        let folder = Folder::new();
        let (recipe, model) = recipe(&folder, checkpoint, &[&[1, 1]]);
        let jobs = jobs(&model, 8, 11);
        let wanted = fresh(&model, &jobs);
        let (mut engine, changes) = recipe.changing_team();
        let mut scheduler = Scheduler::new(&mut engine, usize::MAX, None).unwrap();
        let ids: Vec<_> = jobs.iter().map(|job| scheduler.submit(job.clone())).collect();
        let mut listener = Listener::default();
        for _ in 0..12 {
            scheduler.step(&mut engine, &mut |id, event| listener.hear(id, event));
        }
        let (done, is_done) = channel();
        changes.send(lead_alone(done)).unwrap();
        engine.look_for_changes().unwrap();
        finish(&mut scheduler, &mut engine, &mut listener);
        assert_eq!(is_done.try_recv(), Ok(Ok(())), "{checkpoint}");
        for (id, wanted) in ids.iter().zip(&wanted) {
            assert_eq!(&listener.0[id].ids, wanted, "{checkpoint}");
        }
        let setbacks = engine.team().unwrap().setbacks();
        assert_eq!(*setbacks, Setbacks { streams_lost: 1, ..Setbacks::default() }, "{checkpoint}");
    }
}

#[test]
fn places_of_a_ring_that_are_teams_have_states() {
    for checkpoint in sample(CHECKPOINTS) {
        let folder = Folder::new();
        let (recipe, model) = recipe(&folder, checkpoint, &[&[1, 2], &[1], &[2, 1]]);
        let jobs = jobs(&model, 8, 5);
        let wanted = fresh(&model, &jobs);
        let n_layers = model.header().n_layers;
        let (mut engine, _workers) = Recipe { cuts: vec![1, n_layers - 1], ..recipe }.ring();
        let found = answers(&mut engine, &jobs);
        for (index, ((found, _), wanted)) in found.iter().zip(&wanted).enumerate() {
            assert_eq!(found, wanted, "{checkpoint}, job {index}");
        }
        assert_nothing_lost(&engine);
    }
}
