//! Layers on a GPU, or on a program that stands for one: the CPU's bits, whatever is computed where.
//!
//! The device is that of `LEAP_TEST_DEVICE`, or Mesa's llvmpipe if tests need not be quick. Where there is none, the
//! tests pass without having tried anything, but not in continuous integration.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leap::engine::{
    DeviceChoice, DeviceLine, DeviceOptions, Engine, EngineError, Job, KvKind, Options, devices,
};
use leap::format::model::{Header, Weights};
use leap::internals::model::{Model, Wants};
use leap::sampler::Sampling;

use crate::common::folder::Folder;
use crate::common::jobs::answers;
use crate::common::models::{CHECKPOINTS, FAMILIES, bits, demo, export};
use crate::common::quick;
use crate::common::rings::Recipe;

pub(crate) const INT8: Weights = Weights::Q8 { group: 32 };

/// The device to test, for one test at a time: it computes on all processors, and boards of a ring wait for it no longer
/// than for others.
pub(crate) struct Lent {
    choice: DeviceChoice,
    /// An engine that uses the device all the time, so that its driver compiles each shader once.
    _kept: MutexGuard<'static, Option<Engine>>,
}

impl Deref for Lent {
    type Target = DeviceChoice;

    fn deref(&self) -> &DeviceChoice {
        &self.choice
    }
}

/// The device to test; `None` if this machine has none.
pub(crate) fn device() -> Option<Lent> {
    static KEPT: Mutex<Option<Engine>> = Mutex::new(None);

    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let slow = || (!quick()).then(|| "llvmpipe".to_owned());
    let name = std::env::var("LEAP_TEST_DEVICE").ok().or_else(slow)?;
    let choice = DeviceChoice::Gpu { name: Some(name.clone()) };
    if kept.is_none() {
        let all = devices();
        let is_there = |line: &DeviceLine| line.name.contains(&name);
        let is_there = all.as_ref().is_ok_and(|all| all.iter().any(is_there));
        // A static program, as the tests for emulated processors are, can open no driver.
        let may_lack = cfg!(target_env = "musl") || std::env::var_os("CI").is_none();
        assert!(is_there || may_lack, "there is no {name}: {all:?}");
        *kept = is_there.then(|| engine(&demo(), &options(&choice, KvKind::F16)));
    }
    kept.is_some().then_some(Lent { choice, _kept: kept })
}

pub(crate) fn options(device: &DeviceChoice, kv: KvKind) -> Options {
    Options {
        ctx_len: Some(160),
        batch: Some(48),
        max_logits: Some(48),
        kv: Some(kv),
        threads: Some(1),
        device: DeviceOptions { choice: device.clone(), memory: None },
        ..Options::default()
    }
}

pub(crate) fn engine(model: &Arc<Model>, options: &Options) -> Engine {
    Engine::new(Arc::clone(model), options).unwrap()
}

/// Ids that cross blocks of positions and pages, and fill so many blocks that few rows attend to them in parts.
pub(crate) fn prompt(model: &Model) -> Vec<u32> {
    let vocab = model.header().vocab_size as u32;
    (0..150u32).map(|i| (i * i * 7 + i * 3 + 1) % vocab).collect()
}

/// Bits of all logits of the prompt, in batches of these sizes, one after the other.
pub(crate) fn logits(engine: &mut Engine, ids: &[u32], sizes: &[usize]) -> Vec<u32> {
    let mut stream = engine.stream().unwrap();
    let (mut rest, mut all) = (ids, Vec::new());
    for size in sizes.iter().cycle() {
        let (batch, others) = rest.split_at((*size).min(rest.len()));
        if batch.is_empty() {
            return all;
        }
        all.extend(bits(engine.push_batch(&mut stream, batch, Wants::All).unwrap()));
        rest = others;
    }
    all
}

pub(crate) fn gives_the_cpus_bits(
    model: &Arc<Model>,
    device: &DeviceChoice,
    kv: KvKind,
    sizes: &[usize],
) {
    let ids = prompt(model);
    let wanted = logits(&mut engine(model, &options(&DeviceChoice::Cpu, kv)), &ids, &[48]);
    let mut on_device = engine(model, &options(device, kv));
    assert_eq!(on_device.device().unwrap().1, model.header().n_layers);
    assert!(logits(&mut on_device, &ids, sizes) == wanted, "{:?}", model.header().weights);
}

#[test]
fn layers_on_a_gpu_have_the_cpus_bits() {
    let Some(device) = device() else { return };
    let names = CHECKPOINTS.into_iter().chain(FAMILIES).filter(|name| !name.starts_with("gemma4"));
    let models = names.map(|name| export(name, INT8));
    for model in models.filter(|model| !model.header().has_state()) {
        gives_the_cpus_bits(&model, &device, KvKind::F16, &[1, 7, 48, 3]);
    }
}

#[test]
fn weights_of_every_encoding_have_the_cpus_bits_on_a_gpu() {
    use leap::format::model::Ends;

    let Some(device) = device() else { return };
    for weights in [
        Weights::F32,
        Weights::Q8 { group: 64 },
        Weights::Q4 { group: 32, int8_embedding: true },
        Weights::B2 { group: 32, ends: Ends::SixBits },
    ] {
        gives_the_cpus_bits(&export("llama3-tiny", weights), &device, KvKind::F32, &[48, 5]);
    }
    for weights in [Weights::F32, Weights::B2 { group: 32, ends: Ends::Int8 }] {
        gives_the_cpus_bits(&export("gptoss-tiny", weights), &device, KvKind::F16, &[48]);
    }
    gives_the_cpus_bits(&demo(), &device, KvKind::F16, &[2, 31]);
}

/// Heads of 16 to 320 columns, windows and sinks.
#[test]
fn keys_and_values_in_int8_have_the_cpus_bits_on_a_gpu() {
    let Some(device) = device() else { return };
    let sizes = [1, 7, 48, 3];
    for name in ["gptoss-tiny", "gemma3-tiny"] {
        gives_the_cpus_bits(&export(name, INT8), &device, KvKind::Int8, &sizes);
    }
    for head_dim in [24, 80, 136, 320] {
        let (n_heads, n_kv_heads, n_layers) = (8, 2, 1);
        let demo = demo().header().clone();
        let header = Header { head_dim, n_heads, n_kv_heads, n_layers, weights: INT8, ..demo };
        let made_up = Arc::new(Model::synthetic(&header).unwrap());
        gives_the_cpus_bits(&made_up, &device, KvKind::Int8, &sizes);
    }
}

/// Each number of layers is given the memory that has room for it.
#[test]
fn a_model_may_be_cut_at_any_layer() {
    let Some(device) = device() else { return };
    let model = export("qwen3-tiny", INT8);
    let ids = prompt(&model);
    let wanted =
        logits(&mut engine(&model, &options(&DeviceChoice::Cpu, KvKind::F16)), &ids, &[48]);
    let mut cuts = BTreeSet::new();
    for step in 1..100 {
        let mut options = options(&device, KvKind::F16);
        options.device.memory = Some(step * 32_768);
        match Engine::new(Arc::clone(&model), &options) {
            Err(EngineError::Device(why)) => {
                // The least that is needed is told, and is more than there was.
                let allowed = format!(
                    "{:.1} MB of the GPU's memory may be used",
                    (step * 32_768) as f64 / 1e6
                );
                assert!(why.contains(&allowed) && why.contains("one layer"), "{why}");
            }
            Err(error) => panic!("{error}"),
            Ok(mut engine) => {
                let (_, layers) = engine.device().unwrap();
                if cuts.insert(layers) {
                    assert!(logits(&mut engine, &ids, &[48, 1]) == wanted, "{layers} layers");
                }
                if layers == model.header().n_layers {
                    break;
                }
            }
        }
    }
    assert_eq!(cuts, (1..=model.header().n_layers).collect());
}

/// Several streams share pages, and go on from them on their own.
#[test]
fn streams_that_begin_alike_share_pages_on_a_gpu() {
    let Some(device) = device() else { return };
    let model = export("gemma3-tiny", INT8);
    let ids = prompt(&model);
    let jobs: Vec<Job> = (0..6)
        .map(|i| {
            let sampling = Sampling { temperature: 0.8, seed: i as u64, ..Sampling::GREEDY };
            Job { n_predict: 20, sampling, ..Job::new(ids[..100 + 4 * i].to_vec()) }
        })
        .collect();
    let run = |device: &DeviceChoice| {
        let options = Options { n_streams: Some(3), ..options(device, KvKind::F16) };
        answers(&mut engine(&model, &options), &jobs)
    };
    assert_eq!(run(&device), run(&DeviceChoice::Cpu));
}

/// A prompt's pages in files: the CPU reads what the device wrote, and the device what the CPU wrote.
#[test]
fn pages_pass_between_cpu_and_gpu() {
    let Some(device) = device() else { return };
    let model = export("qwen3-tiny", INT8);
    let ids = prompt(&model).repeat(2);
    let job = Job { n_predict: 12, ..Job::new(ids) };
    let run = |device: &DeviceChoice, kv: KvKind, folder: Option<&Path>| {
        let mut options = options(device, kv);
        options.ctx_len = Some(512);
        let mut engine = engine(&model, &options);
        if let Some(folder) = folder {
            engine.keep_prefixes(folder, 1 << 30).unwrap();
        }
        let texts = answers(&mut engine, std::slice::from_ref(&job))[0].0.clone();
        (texts, engine.page_figures().read)
    };
    for kv in [KvKind::F16, KvKind::Int8] {
        let (wanted, _) = run(&DeviceChoice::Cpu, kv, None);
        for [writer, reader] in [[&device, &DeviceChoice::Cpu], [&DeviceChoice::Cpu, &device]] {
            let folder = Folder::new();
            assert_eq!(run(writer, kv, Some(folder.path())), (wanted.clone(), 0));
            let (texts, read) = run(reader, kv, Some(folder.path()));
            assert_eq!(texts, wanted);
            assert!(read >= 192, "{read} tokens were read");
        }
    }
}

/// The master of a ring, whose layers move to its device and away from it.
#[test]
fn a_board_of_a_ring_may_have_a_gpu() {
    let Some(device) = device() else { return };
    let recipe = |cuts: &[usize], choice: DeviceChoice| Recipe {
        n_streams: 2,
        device: DeviceOptions { choice, memory: None },
        ..Recipe::demo(cuts)
    };
    let jobs: Vec<Job> =
        [30, 90].map(|n| Job { n_predict: 8, ..Job::new(prompt(&demo())[..n].to_vec()) }).into();
    let said = |engine: &mut Engine| -> Vec<Vec<u32>> {
        answers(engine, &jobs).into_iter().map(|(ids, _)| ids).collect()
    };
    let wanted = said(&mut recipe(&[], DeviceChoice::Cpu).alone());
    let recipe = recipe(&[2], device.clone());
    let (mut engine, _workers) = recipe.ring();
    for layers in [2, 5, 1] {
        if layers != 2 {
            engine.resplit(&[0..layers, layers..6], &recipe.place(0)).unwrap();
        }
        assert_eq!(engine.device().unwrap().1, layers);
        assert_eq!(said(&mut engine), wanted, "{layers} layers");
    }
}

#[test]
fn what_a_gpu_cannot_compute_is_refused_by_name() {
    let Some(device) = device() else { return };
    let refused =
        |model: &Arc<Model>, options: &Options| match Engine::new(Arc::clone(model), options) {
            Err(EngineError::Device(why)) => why,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("not refused"),
        };
    let why = refused(&export("gemma4moe-tiny", INT8), &options(&device, KvKind::F16));
    assert!(why.contains("differ"), "{why}");
    let absent = DeviceChoice::Gpu { name: Some("Voodoo".to_owned()) };
    let why = refused(&demo(), &options(&absent, KvKind::F16));
    assert!(why.contains("Voodoo") && why.contains("there is"), "{why}");
    // Programs on the CPU are used only by name.
    let auto = engine(&demo(), &options(&DeviceChoice::Auto, KvKind::F16));
    assert!(auto.device().is_none_or(|(name, _)| !name.contains("llvmpipe")));
}
