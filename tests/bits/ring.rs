//! Rings of nodes give the same bits as one node.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::common::distant::Distant;
use crate::common::folder::Folder;
use crate::common::models::{bits, package};
use crate::common::rings::{LIMITS, Recipe, work};
use leap::engine::ring::{
    Address, Change, ChangesBy, Held, MachineReading, MasterMeter, Member, Misfits, OtherNodes,
    RingOptions, WorkerOptions, run_worker,
};
use leap::engine::score;
use leap::engine::{Engine, KvKind, Options, Wants};
use leap::format::model::{FileShare, Header};
use leap::internals::wire::Dtype;
use leap::sampler::argmax;

/// Greedy tokens after a prompt with their logits.
fn run(engine: &mut Engine) -> (Vec<u32>, Vec<Vec<u32>>) {
    run_with(engine, |_, _| {})
}

#[test]
fn rings_give_the_bits_of_one_node() {
    let wanted = run(&mut Recipe::demo(&[]).alone());
    let all = [&[2][..], &[1, 4], &[1, 2, 3, 5]];
    for cuts in if crate::common::quick() { &all[1..2] } else { &all[..] } {
        for (is_tcp, has_key) in [(false, false), (false, true), (true, false), (true, true)] {
            let recipe = Recipe { is_tcp, has_key, ..Recipe::demo(cuts) };
            let (mut engine, workers) = recipe.ring();
            assert_eq!(engine.ring().unwrap().lines().len(), cuts.len() + 1);
            assert!(run(&mut engine) == wanted, "cuts {cuts:?}, tcp {is_tcp}, key {has_key}");
            drop((engine, workers));
        }
    }
}

/// The master tells all nodes the type of keys and values.
#[test]
fn a_ring_keeps_keys_and_values_as_its_master_does() {
    let mut answers = Vec::new();
    for kv in KvKind::ALL {
        let wanted = run(&mut Recipe { kv, ..Recipe::demo(&[]) }.alone());
        let (mut engine, _workers) = Recipe { kv, ..Recipe::demo(&[1, 4]) }.ring();
        assert!(run(&mut engine) == wanted, "{kv:?}");
        assert!(!answers.contains(&wanted), "{kv:?}");
        answers.push(wanted);
    }
}

/// A device with its own memory and byte order, between two CPU nodes.
#[test]
fn another_device_can_be_a_node() {
    let recipe = Recipe { n_streams: 2, ..Recipe::demo(&[1, 3]) };
    let (mut engine, _workers) =
        recipe.ring_of(|telling, (share, place), endpoint, is_interrupted| {
            if telling.index != 1 {
                return work(telling, (share, place), endpoint, is_interrupted);
            }
            let options = WorkerOptions {
                name: "far",
                wish: Some(share.share().layers.clone()),
                limits: LIMITS,
                prepare: &|_, _| Ok(None),
                elsewhere: &|_, _, _| None,
                prefixes: None,
                meter: &|_| MachineReading::default(),
                report: &|_| None,
                is_interrupted: &|| is_interrupted.load(Ordering::Relaxed),
            };
            let mut stage = Distant::new(Arc::new(share));
            run_worker(&mut stage, endpoint, &options, &mut Held::default(), &mut |_| {}).unwrap();
        });
    let names: Vec<&str> = engine.ring().unwrap().lines().iter().map(|line| &*line.isa).collect();
    assert_eq!(names, [names[0], "distant", names[0]]);
    let wanted = run(&mut recipe.alone());
    assert!(run(&mut engine) == wanted);
    engine.resplit(&[0..2, 2..5, 5..6], &recipe.place(0)).unwrap();
    assert!(run(&mut engine) == wanted);
}

#[test]
fn all_logits_of_a_batch_come_back() {
    let recipe = Recipe { max_logits: 16, ..Recipe::demo(&[3]) };
    let ids: Vec<u32> = (0..40).map(|i| (i * 17 % 4000) as u32).collect();
    let all = |engine: &mut Engine| -> Vec<u32> {
        let mut stream = engine.stream().unwrap();
        let batches = ids.chunks(16);
        batches
            .flat_map(|ids| bits(engine.push_batch(&mut stream, ids, Wants::All).unwrap()))
            .collect()
    };
    let (mut engine, _workers) = recipe.ring();
    assert!(all(&mut engine) == all(&mut recipe.alone()));
}

#[test]
fn a_stream_can_be_taken_back() {
    let recipe = Recipe::demo(&[2]);
    let ids: Vec<u32> = (0..50).map(|i| (i * 29 % 4000) as u32).collect();
    let (mut engine, _workers) = recipe.ring();
    let mut stream = engine.stream().unwrap();
    let first = bits(engine.push(&mut stream, &ids).unwrap());
    let mut other = ids[..30].to_vec();
    other.extend([5, 6, 7]);
    let kept = engine.rewind(&mut stream, &other);
    assert_eq!(kept, 30);
    engine.push(&mut stream, &other[kept..]).unwrap();
    let kept = engine.rewind(&mut stream, &ids);
    assert!(bits(engine.push(&mut stream, &ids[kept..]).unwrap()) == first);
}

#[test]
fn refused_batches_leave_the_ring_as_it_was() {
    let (mut engine, _workers) = Recipe::demo(&[2]).ring();
    let mut stream = engine.stream().unwrap();
    assert!(engine.push(&mut stream, &[u32::MAX]).is_err());
    assert!(engine.push(&mut stream, &[1; 300]).is_err());
    stream.clear();
    let logits = bits(engine.push(&mut stream, &[1, 2, 3]).unwrap());
    let mut alone = Recipe::demo(&[]).alone();
    let mut stream = alone.stream().unwrap();
    assert!(logits == bits(alone.push(&mut stream, &[1, 2, 3]).unwrap()));
}

/// Frames have 16 bits for the numbers of streams and rows; one node alone has no such limit.
#[test]
fn more_streams_or_rows_than_frames_can_number_are_refused() {
    let recipe = Recipe::demo(&[2]);
    for (n_streams, batch) in [(65_536, 1), (65_535, 65_536)] {
        let options = Options { ctx_len: Some(2), batch: Some(batch), ..recipe.options() };
        let options = Options { n_streams: Some(n_streams), ..options };
        let share = recipe.share(0, &(0..2));
        let endpoint = recipe.endpoint(0, &share);
        let mut engine = Engine::new(Arc::new(share), &options).unwrap();
        let error = engine.join(endpoint, recipe.ring_options()).unwrap_err().to_string();
        assert!(error.contains("65535"), "{error}");
    }
}

/// Layers with windows, rotations and experts of their own give the same bits on every node, with every split and all
/// weights.
#[cfg(feature = "pickle")]
#[test]
fn rings_of_other_families_give_the_bits_of_one_node() {
    use crate::common::models::{FAMILIES, cases, export_to};
    use leap::format::model::{Ends, Weights};

    let four_bits = Weights::Q4 { group: 64, int8_embedding: true };
    let two_levels = Weights::B2 { group: 64, ends: Ends::SixBits };
    crate::common::side_by_side(&FAMILIES, |checkpoint| {
        let ids = cases(checkpoint).pop().unwrap().prompt;
        let all = |engine: &mut Engine| -> Vec<u32> {
            let mut stream = engine.stream().unwrap();
            // Rows without wanted logits may lack some layers.
            let mut found = bits(engine.push_batch(&mut stream, &ids[..10], Wants::Last).unwrap());
            for ids in ids[10..40].chunks(16).chain(ids[40..43].chunks(1)) {
                found.extend(bits(engine.push_batch(&mut stream, ids, Wants::All).unwrap()));
            }
            found
        };
        for weights in [Weights::F32, Weights::Q8 { group: 64 }, four_bits, two_levels] {
            let folder = Folder::new();
            let model = export_to(&folder, checkpoint, weights);
            let recipe =
                |cuts| Recipe { model: model.clone(), max_logits: 16, ..Recipe::demo(cuts) };
            let mut alone = recipe(&[]).alone();
            let header = alone.header();
            let last = header.joined_from().min(header.n_layers - 1);
            let wanted = all(&mut alone);
            let all_cuts = [&[last][..], &[1, 2], &[1], &[last - 1, last]];
            for cuts in if crate::common::quick() { &all_cuts[..2] } else { &all_cuts[..] } {
                let (mut engine, _workers) = recipe(cuts).ring();
                let found = all(&mut engine);
                assert!(found == wanted, "{checkpoint}, {weights}, cuts {cuts:?}");
            }
        }
    });
}

/// A board that had only some layers would lack what the others have stored, or what belongs to a token.
#[cfg(feature = "pickle")]
#[test]
fn models_that_cannot_be_divided_are_refused_by_name() {
    use crate::common::models::{export, package};
    use leap::export::{ExportOptions, ExportPlan};
    use leap::format::model::Weights;
    use leap::internals::model::{Share, Team};

    let whole = export("gemma4-tiny", Weights::F32);
    let error = |layers: std::ops::Range<usize>| {
        let has_ends = layers.start == 0;
        whole.with_share(Share { layers, has_ends }).err().map(|error| error.to_string())
    };
    assert_eq!(error(0..10), None);
    assert!([0..1, 1..3, 3..10].into_iter().all(|layers| error(layers).is_none()));
    for layers in [0..4, 0..5, 4..10, 5..10, 9..10] {
        assert!(error(layers).unwrap().contains("one board must have layers 3..10 together"));
    }
    let options = ExportOptions { weights: Weights::F32, ctx: None, verify: false };
    let mut plan = ExportPlan::open(&package("tests/golden/gemma4-tiny"), &options).unwrap();
    let error = std::error::Error::source(&plan.set_layers(0..5).unwrap_err()).unwrap().to_string();
    assert!(error.contains("a part of a model"), "{error}");
    let embedder = export("qwen3-embed-tiny", Weights::F32);
    let error = embedder.with_share(Share { layers: 0..1, has_ends: true }).err().unwrap();
    assert!(error.to_string().contains("must have all layers of this model: it computes emb"));
    let error = Team::new(embedder.header(), &[1, 1], 0);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no team can share this model's layers: it computes emb"), "{error}");
}

/// In windows, later positions replace earlier ones, and the pages travel with the layers.
#[cfg(feature = "pickle")]
#[test]
fn layers_with_windows_take_along_what_they_have_stored() {
    use crate::common::models::export_to;
    use leap::format::model::Weights;

    let all = ["mistral-tiny", "gemma3-tiny", "gptoss-tiny", "gemma4-tiny", "gemma4moe-tiny"];
    for checkpoint in all {
        let folder = Folder::new();
        let model = export_to(&folder, checkpoint, Weights::Q8 { group: 32 });
        for kv in [KvKind::F16, KvKind::Int8] {
            let recipe = |cuts| Recipe { model: model.clone(), kv, ..Recipe::demo(cuts) };
            let mut alone = recipe(&[]).alone();
            let (n_layers, vocab) = (alone.header().n_layers, alone.header().vocab_size as u32);
            assert!(alone.header().sliding_window.is_some_and(|window| window < 60));
            let last = alone.header().joined_from().min(n_layers - 1);
            let splits = [[0..last, last..n_layers], [0..1, 1..n_layers]];
            let ids: Vec<u32> = (0..200).map(|i| (i * 37 + 5) % vocab).collect();
            let all = |engine: &mut Engine, moves: &mut dyn FnMut(&mut Engine, usize)| {
                let mut stream = engine.stream().unwrap();
                let mut found = Vec::new();
                for (n, ids) in ids.chunks(13).enumerate() {
                    found.push(bits(engine.push(&mut stream, ids).unwrap()));
                    moves(engine, n);
                }
                found
            };
            let wanted = all(&mut alone, &mut |_, _| {});
            let ring = recipe(&[1]);
            let (computed, meter) = batches();
            let (mut engine, _workers) =
                ring.ring_with(work, RingOptions { meter, ..ring.ring_options() });
            let found = all(&mut engine, &mut |engine, n| {
                if n % 3 == 1 {
                    engine.resplit(&splits[n / 3 % 2], &ring.place(0)).unwrap();
                }
            });
            assert!(found == wanted, "{checkpoint}, {kv:?}");
            // Each batch once.
            let computed = computed.load(Ordering::Relaxed);
            assert_eq!(computed, ids.len().div_ceil(13), "{checkpoint}, {kv:?}");
        }
    }
}

/// Length of a window of tokens; the next one starts with an empty context.
const WINDOW: usize = 128;

/// Mean negative log-likelihood of `ids`, each given those before it in its window.
fn nll(engine: &mut Engine, ids: &[u32]) -> f64 {
    let vocab_size = engine.header().vocab_size;
    let batch = engine.max_batch();
    let mut stream = engine.stream().unwrap();
    let mut sum = 0.0;
    for (inputs, targets) in ids.chunks(WINDOW).zip(ids[1..].chunks(WINDOW)) {
        stream.clear();
        for (inputs, targets) in inputs.chunks(batch).zip(targets.chunks(batch)) {
            let logits = engine.push_batch(&mut stream, inputs, Wants::All).unwrap();
            let rows = logits.chunks_exact(vocab_size).zip(targets);
            sum += rows.map(|(logits, &id)| score::nll(logits, id)).sum::<f64>();
        }
    }
    sum / (ids.len() - 1) as f64
}

/// Token ids of texts that the demo model was not trained on.
fn validation_ids() -> Vec<u32> {
    let json = std::fs::read_to_string(package("tests/golden/demo-validation-ids.json")).unwrap();
    let numbers = json.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
    numbers.map(|number| number.parse().unwrap()).collect()
}

#[test]
fn half_precision_on_the_wire_does_not_move_perplexity() {
    let mut ids = validation_ids();
    if crate::common::quick() {
        ids.truncate(WINDOW + 1);
    }
    // One hop each way, also between teams; and the widest spread of the model's layers.
    let teams = [vec![1, 1], vec![1, 1]];
    for (cuts, teams) in [(&[3][..], &[][..]), (&[3], &teams), (&[1, 2, 3, 4, 5], &[])] {
        let recipe = Recipe { max_logits: 16, teams: teams.to_vec(), ..Recipe::demo(cuts) };
        let (mut engine, _workers) = recipe.ring();
        let wanted = nll(&mut engine, &ids);
        let (mut engine, _workers) = Recipe { wire: Dtype::F16, ..recipe }.ring();
        let found = nll(&mut engine, &ids);
        let moved = (found - wanted).exp() - 1.0;
        let [found, wanted] = [found.exp(), wanted.exp()];
        assert!(
            moved.abs() < 1e-3,
            "{cuts:?}, {teams:?}: {wanted} in f32, {found} in f16, {moved:+.1e}"
        );
    }
}

/// Greedy tokens after a prompt with their logits; calls `change` before each token.
fn run_with(
    engine: &mut Engine,
    mut change: impl FnMut(&mut Engine, usize),
) -> (Vec<u32>, Vec<Vec<u32>>) {
    let n_ids = engine.header().vocab_size.min(4000);
    let mut ids: Vec<u32> = (0..70).map(|i| (i * 53 % n_ids) as u32).collect();
    let mut stream = engine.stream().unwrap();
    let (mut tokens, mut all) = (Vec::new(), Vec::new());
    for step in 0..12 {
        change(engine, step);
        let logits = engine.push(&mut stream, &ids).unwrap();
        all.push(bits(logits));
        ids = vec![argmax(logits).unwrap()];
        tokens.push(ids[0]);
    }
    (tokens, all)
}

#[test]
fn a_ring_goes_on_with_other_layers_and_packs_only_what_is_new() {
    let folder = Folder::new();
    let recipe = Recipe { cache: Some(folder.path().to_owned()), ..Recipe::demo(&[2, 4]) };
    let wanted = run_with(&mut recipe.alone(), |_, _| {});
    let (mut engine, workers) = recipe.ring();
    let is_packed = engine.packed_bytes().is_some();
    let place = recipe.place(0);
    let found = run_with(&mut engine, |engine, step| {
        // Matrices packed and reused: a layer has 7, and the master also has the classifier.
        let (split, own, others) = match step {
            4 => ([0..1, 1..5, 5..6], (0, 8), [Some((14, 14)), Some((0, 7))]),
            8 => ([0..4, 4..5, 5..6], (14, 15), [Some((0, 7)), None]),
            _ => return,
        };
        let report = engine.resplit(&split, &place).unwrap();
        let lines = engine.ring().unwrap().lines().iter();
        let layers = lines.map(|line| line.layers.start as usize..line.layers.end as usize);
        assert_eq!(layers.collect::<Vec<_>>(), split);
        if !is_packed {
            return;
        }
        let report = report.unwrap();
        assert_eq!((report.packed, report.reused), own, "step {step}");
        for (index, took) in others.into_iter().enumerate() {
            let layers = &split[index + 1];
            let wanted = took.map(|(packed, reused)| {
                format!("Took {{ layers: {layers:?}, packed: {packed}, reused: {reused} }}")
            });
            let told = workers.told(index + 1);
            let took = told.into_iter().find(|what| what.starts_with("Took"));
            assert_eq!(took, wanted, "step {step}, node {}", index + 1);
        }
    });
    assert!(found == wanted);
}

/// Batches that workers of the next test have computed.
static COMPUTED: AtomicUsize = AtomicUsize::new(0);

#[test]
fn what_was_stored_moves_with_the_layers_and_nothing_is_computed_again() {
    for kv in KvKind::ALL {
        let recipe = Recipe { kv, has_key: kv == KvKind::F32, ..Recipe::demo(&[2, 4]) };
        let wanted = run_with(&mut recipe.alone(), |_, _| {});
        let (mut engine, _workers) =
            recipe.ring_of(|telling, (share, _), endpoint, is_interrupted| {
                let count = |is_computing| {
                    COMPUTED.fetch_add(usize::from(is_computing), Ordering::Relaxed);
                    MachineReading::default()
                };
                let options = WorkerOptions {
                    name: &format!("node{}", telling.index),
                    wish: Some(share.share().layers.clone()),
                    limits: LIMITS,
                    prepare: &|_, _| Ok(None),
                    elsewhere: &|_, _, _| None,
                    prefixes: None,
                    meter: &count,
                    report: &|_| None,
                    is_interrupted: &|| is_interrupted.load(Ordering::Relaxed),
                };
                let mut stage = Distant::new(Arc::new(share));
                run_worker(&mut stage, endpoint, &options, &mut Held::default(), &mut |_| {})
                    .unwrap();
            });
        let before = COMPUTED.load(Ordering::Relaxed);
        let found = run_with(&mut engine, |engine, step| {
            // Layers move to the previous node, to the next one, and through the master.
            let splits: &[_] = match step {
                3 => &[[0..3, 3..4, 4..6]],
                5 => &[[0..1, 1..2, 2..6]],
                8 => &[[0..4, 4..5, 5..6], [0..1, 1..5, 5..6]],
                _ => return,
            };
            for split in splits {
                engine.resplit(split, &recipe.place(0)).unwrap();
            }
        });
        assert!(found == wanted, "{kv:?}");
        // Two workers; the prompt of 70 in five batches, and eleven tokens.
        assert_eq!(COMPUTED.load(Ordering::Relaxed) - before, 2 * (5 + 11), "{kv:?}");
    }
}

/// Counts the batches that a master computes.
fn batches() -> (Arc<AtomicUsize>, MasterMeter) {
    let computed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&computed);
    let meter = move |is_computing| {
        counted.fetch_add(usize::from(is_computing), Ordering::Relaxed);
        MachineReading::default()
    };
    (computed, Box::new(meter))
}

#[test]
fn nodes_that_leave_hand_over_what_they_have_stored() {
    hand_over_what_they_have_stored(&Recipe { has_key: true, ..Recipe::demo(&[2, 4]) });
}

/// Layers that store nothing of their own, and layers whose parts of a page differ in size.
#[cfg(feature = "pickle")]
#[test]
fn nodes_that_leave_hand_over_unlike_layers() {
    use crate::common::models::export_to;
    use leap::format::model::Weights;

    for (checkpoint, kv) in [("gemma4-tiny", KvKind::F16), ("gemma4moe-tiny", KvKind::Int8)] {
        let folder = Folder::new();
        let model = export_to(&folder, checkpoint, Weights::Q8 { group: 32 });
        hand_over_what_they_have_stored(&Recipe { model, kv, ..Recipe::demo(&[1, 3]) });
    }
}

/// All nodes but the master leave while a text is computed.
fn hand_over_what_they_have_stored(recipe: &Recipe) {
    let mut alone = recipe.alone();
    let n_layers = alone.header().n_layers;
    let wanted = run_with(&mut alone, |_, _| {});
    let (changes, asked) = mpsc::channel();
    let (computed, meter) = batches();
    let by = ChangesBy {
        asked,
        n_coming: Arc::default(),
        place: recipe.place(0),
        misfits: Misfits::End,
    };
    let options = RingOptions { changes: Some(by), meter, ..recipe.ring_options() };
    let (mut engine, workers) = recipe.ring_with(work, options);
    let (next, mut workers) = (workers.master(), Some(workers));
    let found = run_with(&mut engine, |engine, step| {
        if step != 4 {
            return;
        }
        // The master alone is the ring from here on.
        let address = Address { host: next.ip().to_string(), port: next.port() };
        let name = "node0".to_owned();
        let members = vec![Member { name, address, layers: 0..n_layers, threads: None }];
        let (done, answer) = mpsc::channel();
        // The other nodes end when they are told.
        let leaving = workers.take();
        let tell = Box::new(move || {
            drop(leaving);
            Ok(())
        });
        changes.send(Change::Nodes(OtherNodes { members, next, tell, done })).unwrap();
        engine.look_for_changes().unwrap();
        answer.recv().unwrap().unwrap();
        assert_eq!(engine.ring().unwrap().lines().len(), 1);
    });
    assert!(found == wanted);
    // The prompt of 70 in five batches, and eleven tokens.
    assert_eq!(computed.load(Ordering::Relaxed), 5 + 11);
}

/// The demo model's layers `layers` in a file, for one node of a ring.
fn part(folder: &Folder, layers: std::ops::Range<usize>) -> std::path::PathBuf {
    let whole = std::fs::read(package("models/demo.bin")).unwrap();
    let header = Header::parse(&whole).unwrap();
    let fingerprint = header.fingerprint(&whole);
    let share = FileShare { layers, has_ends: false, fingerprint, slice: None };
    let part = Header { share: Some(share), ..header.clone() };
    let mut file = part.emit().to_vec();
    let mut crcs = Vec::new();
    for tensor in part.tensors() {
        let from = header.tensors().find(|from| from.id == tensor.id).unwrap();
        let bytes = &whole[from.offset as usize..][..from.bytes as usize];
        crcs.extend(crc32fast::hash(bytes).to_le_bytes());
        file.extend_from_slice(bytes);
    }
    file.extend(crcs);
    folder.write("part.bin", file)
}

#[test]
fn a_node_that_lacks_layers_is_named_and_the_ring_goes_on_as_before() {
    let folder = Folder::new();
    let own_file = Some((1, part(&folder, 1..4)));
    let recipe = Recipe { own_file, ..Recipe::demo(&[2, 4]) };
    let wanted = run_with(&mut recipe.alone(), |_, _| {});
    let (mut engine, workers) = recipe.ring();
    let place = recipe.place(0);
    let found = run_with(&mut engine, |engine, step| {
        let refused = match step {
            3 => [0..1, 1..5, 5..6],
            5 => [0..1, 1..4, 4..7],
            // A node can take all layers that its file has.
            7 => {
                engine.resplit(&[0..1, 1..4, 4..6], &place).unwrap();
                return;
            }
            _ => return,
        };
        let error = engine.resplit(&refused, &place).unwrap_err().to_string();
        let wanted = match step {
            3 => "node1 is to have layers 1..5, and its file holds 1..4; give it the whole model",
            _ => "layers 0..1, 1..4, 4..7 are no split of 0..6 over 3 nodes",
        };
        assert!(error.contains(wanted), "{error}");
        if step == 3 {
            let told = workers.told(1);
            assert!(told.iter().any(|what| what.contains(wanted)), "{told:?}");
        }
    });
    assert!(found == wanted);
}
