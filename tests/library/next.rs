//! Drafts of the block behind the last layer change no text: alone, in company, with little memory, with prompts from
//! files; and checkpoints without the block, or with a part of it, run without.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leap::engine::{DraftMode, Drafter, Engine, Job, KvMemory, Model, NgramDrafter, Options};
use leap::export::{ExportOptions, ExportPlan};
use leap::format::model::Weights;
use leap::sampler::Sampling;
use serde_json::{Map, Value};

use crate::common::folder::Folder;
use crate::common::jobs::Heard;
use crate::common::models::{export, package};
use crate::drafts::{counts, drafted};
use crate::scheduler::below;

const CHECKPOINT: &str = "qwen35-tiny";
const OWN: &str = "model.language_model.";

/// Tensors of a safetensors file: names, shapes, and values in bf16.
struct Tensors(Vec<(String, Value, Vec<f32>)>);

impl Tensors {
    fn read() -> Tensors {
        let bytes = fs::read(package("tests/golden").join(CHECKPOINT).join("model.safetensors"));
        let bytes = bytes.unwrap();
        let (len, rest) = bytes.split_at(8);
        let (header, data) = rest.split_at(u64::from_le_bytes(len.try_into().unwrap()) as usize);
        let header: Map<String, Value> = serde_json::from_slice(header).unwrap();
        let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
        let tensors = tensors.map(|(name, about)| {
            assert_eq!(about["dtype"], "BF16", "{name}");
            let [from, to] = [0, 1].map(|i| about["data_offsets"][i].as_u64().unwrap() as usize);
            let values = data[from..to].as_chunks().0.iter();
            let values = values.map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16));
            (name, about["shape"].clone(), values.collect())
        });
        Tensors(tensors.collect())
    }

    fn get(&mut self, name: &str) -> &mut Vec<f32> {
        &mut self.0.iter_mut().find(|tensor| tensor.0 == name).unwrap().2
    }

    /// Writes the checkpoint with these tensors to `folder`.
    fn write(&self, folder: &Folder) {
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, shape, values) in &self.0 {
            let from = data.len();
            data.extend(values.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()));
            let offsets = [from, data.len()];
            let about =
                serde_json::json!({ "dtype": "BF16", "shape": shape, "data_offsets": offsets });
            header.insert(name.clone(), about);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let len = (header.len() as u64).to_le_bytes();
        folder.write("model.safetensors", [&len[..], &header, &data].concat());
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(package("tests/golden").join(CHECKPOINT).join(name), folder.join(name))
                .unwrap();
        }
    }
}

fn export_of(folder: &Folder) -> PathBuf {
    let options = ExportOptions { weights: Weights::Q8 { group: 64 }, ctx: None, verify: true };
    let plan = ExportPlan::open(folder.path(), &options).unwrap();
    let path = folder.join("model.bin");
    plan.write(&path, |_| ControlFlow::Continue(())).unwrap();
    path
}

/// A model whose layers change little, and whose block does not see the hidden states: many guesses are right.
fn guessable(folder: &Folder) -> PathBuf {
    let mut tensors = Tensors::read();
    for (name, _, values) in &mut tensors.0 {
        let adds = ["out_proj.weight", "o_proj.weight", "down_proj.weight"];
        if adds.iter().any(|end| name.ends_with(end)) {
            values.iter_mut().for_each(|x| *x *= 0.125);
        }
    }
    let dim = tensors.get("mtp.norm.weight").len();
    for (at, x) in tensors.get("mtp.fc.weight").iter_mut().enumerate() {
        *x = f32::from(u8::from(at / (2 * dim) == at % (2 * dim)));
    }
    tensors.get("mtp.pre_fc_norm_embedding.weight").fill(0.0);
    let norm = tensors.get(&format!("{OWN}norm.weight")).clone();
    *tensors.get("mtp.norm.weight") = norm;
    tensors.write(folder);
    export_of(folder)
}

fn options(n_streams: usize, kv_tokens: usize) -> Options {
    Options {
        n_streams: Some(n_streams),
        batch: Some(64),
        max_logits: Some(64),
        ctx_len: Some(512),
        threads: Some(2),
        kv_memory: KvMemory::Tokens(kv_tokens),
        ..Options::default()
    }
}

/// The model at `path`, without its block and with it.
fn both(path: &Path) -> [Arc<Model>; 2] {
    let model = Model::open(path).unwrap();
    let next = model.with_next().unwrap().expect("the file has the block");
    [model, next].map(Arc::new)
}

/// Prompts, many of which begin alike.
fn jobs(model: &Model, n: usize, seed: u64) -> Vec<Job> {
    let (vocab, mut state) = (model.header().vocab_size, seed);
    let job = |_| {
        let (first, n) = (below(3, &mut state), below(180, &mut state));
        let mut ids: Vec<u32> = (0..n).map(|i| ((i * 37 + first) % vocab) as u32).collect();
        ids.extend((0..1 + below(40, &mut state)).map(|i| (i * 11 % vocab) as u32));
        let temperature = [0.0, 0.6][below(2, &mut state)];
        let sampling = Sampling { temperature, seed: 5, ..Sampling::GREEDY };
        let n_predict = 1 + below(60, &mut state);
        Job { n_predict, sampling, stop_ids: vec![], ..Job::new(ids) }
    };
    (0..n).map(job).collect()
}

fn guessed(engine: &mut Engine, jobs: &[Job], mode: DraftMode) -> Vec<Heard> {
    assert!(engine.guesses());
    let drafter = Box::new(NgramDrafter::new(32, engine.ctx_len())) as Box<dyn Drafter>;
    drafted(engine, None, jobs, (drafter, mode))
}

#[test]
fn guesses_change_no_text() {
    let folder = Folder::new();
    let [without, model] = both(&guessable(&folder));
    let jobs = jobs(&model, 24, 3);
    let wanted: Vec<Vec<u32>> = jobs
        .iter()
        .map(|job| {
            let mut engine = Engine::new(Arc::clone(&without), &options(1, 512)).unwrap();
            assert!(!engine.guesses());
            crate::common::jobs::answers(&mut engine, std::slice::from_ref(job)).remove(0).0
        })
        .collect();
    let mut all = (0, 0);
    let modes = [DraftMode::Fixed(1), DraftMode::Fixed(4), DraftMode::Fixed(15), DraftMode::Auto];
    for ((n_streams, kv_tokens), mode) in
        [(1, 512), (5, 512), (24, 4096), (3, 1024)].into_iter().zip(modes)
    {
        let options = options(n_streams, kv_tokens);
        let mut engine = Engine::new(Arc::clone(&model), &options).unwrap();
        let found = guessed(&mut engine, &jobs, mode);
        for (index, (heard, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert_eq!(&heard.ids, wanted, "{mode:?}, {n_streams} streams, job {index}");
        }
        let (tried, right) = counts(&found);
        all = (all.0 + tried, all.1 + right);
    }
    let (tried, right) = all;
    assert!(right > 400 && tried > right, "{right} of {tried}");
}

/// Prompts that were read from files bring what the block stored for them.
#[test]
fn guesses_go_on_behind_prompts_from_files() {
    let folder = Folder::new();
    let models = both(&guessable(&folder));
    let prompt: Vec<u32> = (0..300).map(|i| (i * 37 % 700) as u32).collect();
    let job = Job { n_predict: 60, stop_ids: vec![], ..Job::new(prompt) };
    let run = |prefixes: bool, next: bool| {
        let model = Arc::clone(&models[usize::from(next)]);
        let mut engine = Engine::new(model, &options(1, 512)).unwrap();
        if prefixes {
            engine.keep_prefixes(folder.path(), 1 << 30).unwrap();
        }
        let drafter = Box::new(NgramDrafter::new(1, 512)) as Box<dyn Drafter>;
        let jobs = std::slice::from_ref(&job);
        let heard = drafted(&mut engine, None, jobs, (drafter, DraftMode::Fixed(4))).remove(0);
        let figures = heard.figures.unwrap();
        (heard.ids.clone(), (figures.drafted, figures.accepted()), figures.prompt_tokens)
    };
    let alone = run(false, true);
    assert!(alone.1.1 > 10, "{:?}", alone.1);
    // Files of engines without the block lack its part, and are no files of an engine with it.
    for next in [false, true] {
        assert_eq!(run(true, next).0, alone.0);
        let (ids, drafts, computed) = run(true, next);
        assert_eq!(ids, alone.0);
        assert!(computed < 150, "{computed} ids were computed again");
        assert!(!next || drafts == alone.1, "{drafts:?}");
    }
}

#[test]
fn a_checkpoint_with_a_part_of_the_block_runs_without() {
    for lacks in ["mtp.fc.weight", "mtp.layers.0.self_attn.v_proj.weight", "mtp."] {
        let folder = Folder::new();
        let mut tensors = Tensors::read();
        tensors.0.retain(|(name, ..)| !name.starts_with(lacks));
        tensors.write(&folder);
        let path = export_of(&folder);
        let model = Arc::new(Model::open(&path).unwrap());
        assert!(model.header().next_layer().is_none() && model.with_next().unwrap().is_none());
        let engine = Engine::new(model, &options(1, 512)).unwrap();
        assert!(!engine.guesses(), "{lacks}");
    }
    let model = export(CHECKPOINT, Weights::F32);
    assert_eq!(model.header().next_layer(), Some(model.header().n_layers));
}
