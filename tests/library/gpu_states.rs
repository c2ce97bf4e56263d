//! Recurrent layers on a GPU: the CPU's bits, also of states that leave the GPU and come to it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::common::folder::Folder;
use crate::common::jobs::{Heard, Listener, answers};
use crate::common::models::{demo, export, export_to};
use crate::common::rings::{Recipe, assert_nothing_lost};
use crate::drafts::{counts, drafted, knowing};
use crate::gpu::{INT8, device, engine, gives_the_cpus_bits, logits, options, prompt};
use crate::recurrent::{fresh, jobs};
use crate::scheduler::interrupted;
use leap::engine::{
    DeviceChoice, DeviceOptions, DraftMode, Drafter, Engine, EngineError, Job, KvKind,
    NgramDrafter, Options, Scheduler,
};
use leap::format::model::{
    DeltaRule, Ends, Features, Header, LayerSet, Mixer, RecurrentLayers, StateSpace, Weights,
};
use leap::internals::model::Model;

/// Checkpoints with each form of recurrent layers, dense ones and mixtures.
const CHECKPOINTS: [&str; 5] =
    ["qwen35-tiny", "qwen35moe-tiny", "lfm2-tiny", "lfm2moe-tiny", "granite4h-tiny"];

/// One for each form of recurrent layers.
const FORMS: [&str; 3] = ["qwen35moe-tiny", "lfm2-tiny", "granite4h-tiny"];

#[test]
fn recurrent_layers_on_a_gpu_have_the_cpus_bits() {
    let Some(device) = device() else { return };
    for name in CHECKPOINTS {
        gives_the_cpus_bits(&export(name, INT8), &device, KvKind::F16, &[1, 7, 48, 3]);
    }
}

#[test]
fn recurrent_layers_of_every_encoding_have_the_cpus_bits_on_a_gpu() {
    let Some(device) = device() else { return };
    for (name, weights) in [
        ("qwen35-tiny", Weights::F32),
        ("qwen35moe-tiny", Weights::B2 { group: 32, ends: Ends::SixBits }),
        ("granite4h-tiny", Weights::Q4 { group: 32, int8_embedding: true }),
    ] {
        gives_the_cpus_bits(&export(name, weights), &device, KvKind::Int8, &[5, 48]);
    }
}

/// Heads of real models, and others: wide ones, several values for a key in both orders, units of 16 columns, groups.
#[test]
fn states_of_any_size_have_the_cpus_bits_on_a_gpu() {
    let Some(device) = device() else { return };
    let rule = DeltaRule {
        taps: 4,
        key_heads: 2,
        value_heads: 4,
        key_dim: 128,
        value_dim: 128,
        is_tiled: false,
    };
    let space = StateSpace { taps: 4, heads: 4, groups: 1, head_dim: 64, state_dim: 128 };
    let mixers = [
        Mixer::DeltaRule(rule),
        Mixer::DeltaRule(DeltaRule { is_tiled: true, taps: 2, value_dim: 48, ..rule }),
        Mixer::DeltaRule(DeltaRule { key_heads: 1, key_dim: 512, value_dim: 16, ..rule }),
        Mixer::StateSpace(space),
        Mixer::StateSpace(StateSpace { taps: 3, groups: 2, head_dim: 48, state_dim: 16, ..space }),
        Mixer::ShortConv { taps: 3 },
        Mixer::ShortConv { taps: 8 },
    ];
    for mixer in mixers {
        let recurrent = Some(RecurrentLayers { layers: LayerSet::new(0..2).unwrap(), mixer });
        let features = Features { recurrent, output_gate: true, ..Features::default() };
        let demo = demo().header().clone();
        let header = Header { n_layers: 3, features, weights: INT8, ..demo };
        let model = Arc::new(Model::synthetic(&header).unwrap());
        gives_the_cpus_bits(&model, &device, KvKind::F16, &[1, 48, 2, 1]);
    }
}

/// A stream's slots have states of another text, and a first batch that may be taken back.
#[test]
fn a_text_begins_without_the_last_ones_state_on_a_gpu() {
    let Some(device) = device() else { return };
    for name in FORMS {
        let model = export(name, INT8);
        let cpu = options(&DeviceChoice::Cpu, KvKind::F16);
        let ids = prompt(&model);
        let wanted = logits(&mut engine(&model, &cpu), &ids, &[48]);
        let mut engine = engine(&model, &options(&device, KvKind::F16));
        for sizes in [[48, 1], [5, 48], [1, 48]] {
            assert!(logits(&mut engine, &ids, &sizes) == wanted, "{name} by {sizes:?}");
        }
    }
}

/// Tries each number of layers between those that are computed on the device with two amounts of memory: `probe` gives
/// the number for an amount.
fn try_between(low: (u64, usize), high: (u64, usize), probe: &mut impl FnMut(u64) -> usize) {
    if high.1 - low.1 > 1 {
        let memory = u64::midpoint(low.0, high.0);
        assert!(memory > low.0, "there is no cut between {low:?} and {high:?}");
        let middle = (memory, probe(memory));
        try_between(low, middle, probe);
        try_between(middle, high, probe);
    }
}

#[test]
fn a_recurrent_model_may_be_cut_at_any_layer() {
    let Some(device) = device() else { return };
    for name in ["qwen35moe-tiny", "granite4h-tiny"] {
        let model = export(name, INT8);
        let ids = prompt(&model);
        let cpu = options(&DeviceChoice::Cpu, KvKind::F16);
        let wanted = logits(&mut engine(&model, &cpu), &ids, &[48]);
        let mut cuts = BTreeSet::new();
        let mut probe = |memory: u64| {
            let mut options = options(&device, KvKind::F16);
            options.device.memory = Some(memory);
            match Engine::new(Arc::clone(&model), &options) {
                Err(EngineError::Device(why)) if why.contains("memory may be used") => 0,
                Err(error) => panic!("{error}"),
                Ok(mut engine) => {
                    let (_, layers) = engine.device().unwrap();
                    if cuts.insert(layers) {
                        let found = logits(&mut engine, &ids, &[48, 1]);
                        assert!(found == wanted, "{name}, {layers} layers");
                    }
                    layers
                }
            }
        };
        let most = 8 << 20;
        let n_layers = probe(most);
        try_between((0, 0), (most, n_layers), &mut probe);
        assert_eq!(cuts, (1..=model.header().n_layers).collect(), "{name}");
    }
}

/// Options for several streams.
fn for_streams(device: &DeviceChoice, n_streams: usize, batch: usize) -> Options {
    Options {
        n_streams: Some(n_streams),
        batch: Some(batch),
        max_logits: Some(batch),
        ctx_len: Some(512),
        ..options(device, KvKind::F16)
    }
}

/// Accepted and rejected drafts of several streams, whose prompts begin alike and continue from checkpoints.
#[test]
fn drafts_change_nothing_on_a_gpu() {
    let Some(device) = device() else { return };
    for name in FORMS {
        let model = export(name, INT8);
        let mut jobs = jobs(&model, 5, 3);
        jobs.iter_mut().for_each(|job| job.n_predict = 20);
        // The drafter knows texts by their beginnings.
        jobs.iter_mut().enumerate().for_each(|(index, job)| job.prompt.push(index as u32));
        // Some texts come again: they continue from checkpoints with one id and its drafts.
        jobs.extend_from_within(..2);
        let said = fresh(&model, &jobs);
        let heard: Vec<Heard> =
            said.iter().map(|ids| Heard { ids: ids.clone(), ..Heard::default() }).collect();
        let (mut tried, mut right) = (0, 0);
        for (n_streams, batch, n) in [(1, 48, 15), (3, 16, 4)] {
            let drafter = (knowing(&jobs, &heard) as Box<dyn Drafter>, DraftMode::Fixed(n));
            let mut engine = engine(&model, &for_streams(&device, n_streams, batch));
            let found = drafted(&mut engine, None, &jobs, drafter);
            let (of_these, right_ones) = counts(&found);
            (tried, right) = (tried + of_these, right + right_ones);
            for (found, wanted) in found.iter().zip(&said) {
                assert_eq!(&found.ids, wanted, "{name}, {n_streams} streams, {n} drafts");
            }
        }
        assert!(right > 60 && tried > right, "{name}: {right} of {tried}");
    }
}

#[test]
fn interrupted_batches_are_run_again_on_a_gpu() {
    let Some(device) = device() else { return };
    for name in ["qwen35moe-tiny", "granite4h-tiny"] {
        let model = export(name, INT8);
        let jobs = jobs(&model, 8, 11);
        let wanted = fresh(&model, &jobs);
        let mut engine = engine(&model, &for_streams(&device, 3, 16));
        assert_eq!(interrupted(&mut engine, None, (&jobs, &wanted), 3), wanted, "{name}");
    }
}

/// Files of an engine that has answered a job: their names and bytes.
type Files = BTreeMap<OsString, Vec<u8>>;

fn files(folder: &Path) -> Files {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap())).collect()
}

/// Files of states and pages have the CPU's bytes. The CPU goes on from what the device wrote, and the device from what
/// the CPU wrote.
#[test]
fn states_pass_between_cpu_and_gpu() {
    let Some(device) = device() else { return };
    for name in FORMS {
        let model = export(name, INT8);
        let stops = &model.header().stop_ids;
        let plain = |id: u32| if stops.contains(&id) { 99 } else { id };
        // A turn ends in the middle of a page.
        let id = |i: usize| if i == 299 { stops[0] } else { plain((3 + i * 5 % 97) as u32) };
        let job = |n: usize, last: u32| {
            let ids: Vec<u32> = (0..n).map(id).chain([last]).collect();
            Job { n_predict: 12, stop_ids: vec![], ..Job::new(ids) }
        };
        let (job, other) = (job(400, 7), job(300, 8));
        let run = |choice: &DeviceChoice, job: &Job, folder: &Path| {
            let mut engine = engine(&model, &for_streams(choice, 2, 48));
            engine.keep_prefixes(folder, 1 << 30).unwrap();
            answers(&mut engine, std::slice::from_ref(job)).remove(0)
        };
        let wanted = fresh(&model, &[job.clone(), other.clone()]);
        let mut first: Option<Files> = None;
        for [writer, reader] in [[&device, &DeviceChoice::Cpu], [&DeviceChoice::Cpu, &device]] {
            let folder = Folder::new();
            assert_eq!(run(writer, &job, folder.path()), (wanted[0].clone(), 401), "{name}");
            let written = files(folder.path());
            assert!(
                written.keys().filter(|name| name.to_str().unwrap().ends_with(".state")).count()
                    > 1
            );
            assert!(first.get_or_insert(written.clone()) == &written, "{name}: other bytes");
            assert_eq!(run(reader, &other, folder.path()), (wanted[1].clone(), 1), "{name}");
            assert_eq!(run(reader, &job, folder.path()), (wanted[0].clone(), 1), "{name}");
        }
    }
}

/// Layers with their states move to the master's device and away from it, also while drafts are being verified.
#[test]
fn states_move_between_boards_and_a_gpu() {
    let Some(device) = device() else { return };
    for name in ["qwen35moe-tiny", "granite4h-tiny"] {
        let folder = Folder::new();
        let path = export_to(&folder, name, INT8);
        let model = Arc::new(Model::open(&path).unwrap());
        let jobs = jobs(&model, 6, 11);
        let wanted = fresh(&model, &jobs);
        let device = DeviceOptions { choice: device.clone(), memory: None };
        let recipe =
            Recipe { model: path, n_streams: 3, max_logits: 16, device, ..Recipe::demo(&[2]) };
        let n_layers = model.header().n_layers;
        let cuts = [1, n_layers - 1, 2];
        let (mut engine, _workers) = recipe.ring();
        let mut scheduler = Scheduler::new(&mut engine, usize::MAX, None).unwrap();
        let mut drafter = NgramDrafter::new(scheduler.n_streams(), engine.ctx_len());
        for (job, answer) in jobs.iter().zip(&wanted) {
            // Some drafts are wrong, so that states are taken back.
            let wrong = answer.iter().enumerate().map(|(at, id)| if at % 5 == 4 { 1 } else { *id });
            drafter.end(0, &[&job.prompt[..], &wrong.collect::<Vec<u32>>()].concat());
        }
        scheduler.draft(Box::new(drafter), DraftMode::Fixed(6));
        let ids: Vec<_> = jobs.iter().map(|job| scheduler.submit(job.clone())).collect();
        let mut listener = Listener::default();
        let (mut n_steps, mut n_moves) = (0, 0);
        while !scheduler.is_idle() {
            scheduler.step(&mut engine, &mut |id, event| listener.hear(id, event));
            n_steps += 1;
            if n_steps % 3 == 0 && n_moves < 9 {
                let cut = cuts[n_moves % cuts.len()];
                engine.resplit(&[0..cut, cut..n_layers], &recipe.place(0)).unwrap();
                assert_eq!(engine.device().unwrap().1, cut);
                n_moves += 1;
            }
        }
        let heard: Vec<Heard> = ids.iter().map(|id| listener.0.remove(id).unwrap()).collect();
        let (tried, right) = counts(&heard);
        assert!(right > 10 && tried > right, "{name}: {right} of {tried}");
        assert!(n_moves > 3, "{name}: {n_moves} moves");
        for (index, (heard, wanted)) in heard.iter().zip(&wanted).enumerate() {
            assert_eq!(&heard.ids, wanted, "{name}, job {index}");
        }
        assert_nothing_lost(&engine);
    }
}
