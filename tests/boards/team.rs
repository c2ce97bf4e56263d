//! Teams: nodes that share every layer by rows give the bits of one node that has all of it.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::common::folder::Folder;
use crate::common::models::{bits, demo, isas, package};
use leap::format::model::{
    DeltaRule, Extent, Header, LayerSet, Mixer, RecurrentLayers, Tensor, Weights,
};
use leap::internals::kernels::{Isa, Kernels};
use leap::internals::model::{
    Batch, ForwardError, Gather, KvKind, Model, Plan, Precision, Shape, Span, SpreadRows, Stage,
    Team, To, Transformer, Wants,
};
use leap::internals::pool::Pool;

const PLAN: Plan = Plan {
    ctx_len: 176,
    max_batch: 192,
    max_logits: 192,
    n_streams: 3,
    kv: KvKind::F16,
    kv_pages: None,
};

/// Rows of each node, if it has given them.
type Given = Vec<Option<Vec<u8>>>;

/// Nodes of one process that exchange their parts in memory.
struct Table {
    n_nodes: usize,
    start_max: usize,
    /// Inputs of nodes to unfinished gathers, by the gathers' numbers, and how many nodes have taken them.
    gathers: Mutex<BTreeMap<usize, (Given, usize)>>,
    changed: Condvar,
    /// Gathers that began while another gather was open.
    n_overlapped: AtomicUsize,
}

impl Table {
    fn new(n_nodes: usize) -> Table {
        let (gathers, changed) = (Mutex::default(), Condvar::new());
        let n_overlapped = AtomicUsize::new(0);
        Table { n_nodes, start_max: usize::MAX, gathers, changed, n_overlapped }
    }

    fn seat(&self, own: usize) -> Seat<'_> {
        Seat { table: self, own, n_begun: 0, n_done: 0 }
    }
}

struct Seat<'a> {
    table: &'a Table,
    own: usize,
    n_begun: usize,
    n_done: usize,
}

impl Seat<'_> {
    fn give(&mut self, rows: &SpreadRows<'_>) {
        assert!(rows.bytes.len().is_multiple_of(rows.row_bytes));
        let mut gathers = self.table.gathers.lock().unwrap();
        let n_nodes = self.table.n_nodes;
        let (given, _) = gathers.entry(self.n_begun).or_insert((vec![None; n_nodes], 0));
        given[self.own] = Some(rows.bytes.to_vec());
        self.n_begun += 1;
        self.table.changed.notify_all();
    }

    fn take(&mut self, rows: &mut SpreadRows<'_>) {
        let mut gathers = self.table.gathers.lock().unwrap();
        while gathers[&self.n_done].0.iter().any(Option::is_none) {
            gathers = self.table.changed.wait(gathers).unwrap();
        }
        let (given, n_taken) = gathers.get_mut(&self.n_done).unwrap();
        let takes = rows.to == To::All || self.own == 0;
        for (part, given) in rows.parts.iter().zip(given).filter(|_| takes) {
            let given = given.as_ref().unwrap().chunks_exact(rows.row_bytes);
            for (to, from) in rows.bytes.chunks_exact_mut(rows.row_bytes).zip(given) {
                let mut copy =
                    |of: &Range<usize>| to[of.clone()].copy_from_slice(&from[of.clone()]);
                part.iter().for_each(&mut copy);
            }
        }
        *n_taken += 1;
        if *n_taken == self.table.n_nodes {
            gathers.remove(&self.n_done);
        }
        self.n_done += 1;
    }
}

impl Gather for Seat<'_> {
    fn gather(&mut self, mut rows: SpreadRows<'_>) -> Result<(), ForwardError> {
        assert_eq!(self.n_begun, self.n_done);
        self.give(&rows);
        self.take(&mut rows);
        Ok(())
    }

    fn start_max(&self) -> usize {
        self.table.start_max
    }

    fn start(&mut self, rows: &mut [SpreadRows<'_>]) -> Result<(), ForwardError> {
        assert_eq!(rows.len(), self.n_begun - self.n_done + 1);
        self.table.n_overlapped.fetch_add(rows.len() - 1, Ordering::Relaxed);
        self.give(rows.last().unwrap());
        Ok(())
    }

    fn finish(&mut self, rows: &mut [SpreadRows<'_>]) -> Result<(), ForwardError> {
        assert_eq!(rows.len(), self.n_begun - self.n_done);
        self.take(&mut rows[0]);
        Ok(())
    }
}

/// Make-up of a team.
struct Setup<'a> {
    shares: &'a [u16],
    /// Instruction sets, given to nodes in turn.
    isas: &'a [Isa],
    is_packed: bool,
    kv: KvKind,
}

fn node(model: &Arc<Model>, isa: Isa, is_packed: bool, plan: Plan) -> Transformer {
    let kernels = Kernels::for_isa(isa).unwrap();
    let mut node = Transformer::new(model.clone(), kernels, Pool::new(&[]).unwrap(), plan).unwrap();
    if is_packed {
        node.pack_in_memory(&|| false).unwrap();
    }
    node
}

/// A gather that exchanges nothing, and counts the bytes of rows that it is given.
struct Scales(usize);

impl Gather for Scales {
    fn gather(&mut self, rows: SpreadRows<'_>) -> Result<(), ForwardError> {
        let of_parts: usize = rows.parts.iter().flatten().map(Range::len).sum();
        assert_eq!(of_parts, rows.row_bytes);
        self.0 += if rows.to == To::All { rows.row_bytes } else { 0 };
        Ok(())
    }

    fn start_max(&self) -> usize {
        0
    }

    fn start(&mut self, _: &mut [SpreadRows<'_>]) -> Result<(), ForwardError> {
        unreachable!("nothing is started")
    }

    fn finish(&mut self, _: &mut [SpreadRows<'_>]) -> Result<(), ForwardError> {
        unreachable!("nothing is started")
    }
}

/// Runs `batch` on a node, and returns its logits.
fn run(node: &mut Transformer, batch: &Batch, gather: &mut dyn Gather) -> Vec<u32> {
    node.embed(batch).unwrap();
    node.run_layers_in_team(batch.spans(), gather).unwrap();
    bits(node.logits_in_team(batch.spans(), gather).unwrap())
}

/// The logits of `batches` by a team, as its lead has them.
fn by_team(model: &Arc<Model>, setup: &Setup<'_>, batches: &[Batch]) -> Vec<Vec<u32>> {
    by_team_over(model, setup, (Precision::F32, usize::MAX), batches)
}

/// The logits of `batches` by a team with this precision of gathers, and parts of at most `start_max` bytes.
fn by_team_over(
    model: &Arc<Model>,
    setup: &Setup<'_>,
    (wire, start_max): (Precision, usize),
    batches: &[Batch],
) -> Vec<Vec<u32>> {
    let n = setup.shares.len();
    let table = Table { start_max, ..Table::new(n) };
    let plan = Plan { kv: setup.kv, ..PLAN };
    let run = |own: usize| {
        let isa = setup.isas[own % setup.isas.len()];
        let mut node = node(model, isa, setup.is_packed, plan);
        let team = Team::new(model.header(), setup.shares, own).unwrap().with_wire(wire);
        node.set_team(Some(team), plan).unwrap();
        let mut seat = table.seat(own);
        let run = |batch| run(&mut node, batch, &mut seat);
        batches.iter().map(run).collect()
    };
    thread::scope(|scope| {
        let nodes: Vec<_> = (0..n).map(|own| scope.spawn(move || run(own))).collect();
        let mut found = nodes.into_iter().map(|node| node.join().unwrap());
        let lead = found.next().unwrap();
        found.for_each(drop);
        let n_overlapped = table.n_overlapped.load(Ordering::Relaxed);
        let header = model.header();
        let more = &header.features.more;
        let has_halves = more.parallel_ffn.is_none() && more.layer_input_dim == 0;
        assert_eq!(n_overlapped > 0, n > 1 && has_halves, "a long batch goes in halves");
        lead
    })
}

/// Batches of prompts and of single tokens of three streams. Two go in halves, of which each has some rows of one
/// stream: in the second of ten rows, of which six are kept.
fn batches(vocab_size: usize) -> Vec<Batch> {
    let places: [&[(usize, Range<usize>)]; 10] = [
        &[(0, 0..21), (1, 0..7)],
        &[(0, 21..22)],
        &[(1, 7..12)],
        &[(0, 22..23), (1, 12..13)],
        &[(1, 13..14)],
        &[(0, 23..55)],
        &[(0, 55..170), (1, 14..80)],
        &[(1, 80..81), (0, 170..171)],
        &[(2, 0..90), (1, 81..91), (0, 0..60)],
        &[(1, 87..90), (2, 90..91)],
    ];
    let token = |stream, pos| ((pos * 131 + stream * 17 + 3) % vocab_size) as u32;
    let batch = |spans: &&[(usize, Range<usize>)]| {
        let mut batch = Batch::with_capacity(PLAN.max_batch);
        for (stream, positions) in spans.iter().cloned() {
            let (pos, n_rows) = (positions.start, positions.len());
            let wants = if n_rows == 21 { Wants::None } else { Wants::All };
            let tokens: Vec<u32> = positions.map(|pos| token(stream, pos)).collect();
            batch.push(Span { stream, pos, n_rows, wants, ..Span::EMPTY }, &tokens);
        }
        batch
    };
    places.iter().map(batch).collect()
}

fn check(model: &Arc<Model>, setup: &Setup<'_>, name: &str) {
    let batches = batches(model.header().vocab_size);
    let plan = Plan { kv: setup.kv, ..PLAN };
    let mut alone = node(model, setup.isas[0], setup.is_packed, plan);
    let wanted: Vec<_> = batches.iter().map(|b| bits(alone.forward(b).unwrap())).collect();
    let found = by_team(model, setup, &batches);
    for (index, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
        assert!(wanted == found, "{name}, shares {:?}, batch {index}", setup.shares);
    }
}

/// A file in `folder` with the rows of node `own` of the model at `path`.
fn rows_of(folder: &Folder, path: &Path, shares: &[u16], own: usize) -> Arc<Model> {
    let whole = fs::read(path).unwrap();
    let header = Header::parse(&whole).unwrap();
    let slice = Team::new(&header, shares, own).unwrap().own().clone();
    let part = header.part(0..header.n_layers, Some(slice), header.fingerprint(&whole)).unwrap();
    let mut file = part.header.emit();
    file.resize(part.len_bytes() as usize, 0);
    for Extent { at, from, bytes } in part.extents {
        let [at, from, bytes] = [at, from, bytes].map(|n| n as usize);
        file[at..at + bytes].copy_from_slice(&whole[from..from + bytes]);
    }
    let end = part.header.tensors_end() as usize;
    let of = |t: Tensor| crc32fast::hash(&file[t.offset as usize..(t.offset + t.bytes) as usize]);
    let crcs: Vec<u8> = part.header.tensors().flat_map(|t| of(t).to_le_bytes()).collect();
    file[end..].copy_from_slice(&crcs);
    assert!(own == 0 || file.len() < whole.len());
    let path = folder.write(&format!("rows-{own}.bin"), file);
    assert!(Model::open(&path).is_err(), "a part is no model");
    Arc::new(Model::open_part(&path).unwrap())
}

/// Checks like [`check`]; members have only their own rows.
fn check_parts(path: &Path, setup: &Setup<'_>, name: &str) {
    let (folder, model) = (Folder::new(), Arc::new(Model::open(path).unwrap()));
    let batches = batches(model.header().vocab_size);
    let plan = Plan { kv: setup.kv, ..PLAN };
    let mut alone = node(&model, setup.isas[0], setup.is_packed, plan);
    let wanted: Vec<_> = batches.iter().map(|b| bits(alone.forward(b).unwrap())).collect();
    let n = setup.shares.len();
    let table = Table::new(n);
    let run = |own: usize| {
        let rows = |own| rows_of(&folder, path, setup.shares, own);
        let model = if own == 0 { Arc::clone(&model) } else { rows(own) };
        let mut node = node(&model, setup.isas[own % setup.isas.len()], setup.is_packed, plan);
        let team = Team::new(model.header(), setup.shares, own).unwrap();
        let all = team.part_of(Model::open(path).unwrap().bytes_per_token());
        node.set_team(Some(team), plan).unwrap();
        node.check_weights(&|| false).unwrap();
        assert!(node.bytes_per_token() < 2 * all + (1 << 20), "{name}, node {own}");
        let mut seat = table.seat(own);
        let run = |batch: &Batch| {
            let n_rows = batch.tokens().len();
            if own == 0 {
                node.embed(batch).unwrap();
            }
            node.share_rows(n_rows, &mut seat).unwrap();
            node.run_layers_in_team(batch.spans(), &mut seat).unwrap();
            bits(node.logits_in_team(batch.spans(), &mut seat).unwrap())
        };
        batches.iter().map(run).collect::<Vec<_>>()
    };
    let found = thread::scope(|scope| {
        let nodes: Vec<_> = (0..n).map(|own| scope.spawn(move || run(own))).collect();
        let mut found: Vec<_> = nodes.into_iter().map(|node| node.join().unwrap()).collect();
        found.swap_remove(0)
    });
    for (index, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
        assert!(wanted == found, "{name}, rows of {:?}, batch {index}", setup.shares);
    }
}

#[test]
fn nodes_that_have_their_rows_alone_give_the_same_bits() {
    let demo = package("models/demo.bin");
    for shares in [&[1, 1][..], &[5, 2, 3], &[100, 1, 40, 7, 2, 60]] {
        for is_packed in [false, true] {
            let setup = Setup { shares, isas: &[best()], is_packed, kv: KvKind::F16 };
            check_parts(&demo, &setup, "demo");
        }
    }
}

fn best() -> Isa {
    isas().last().unwrap()
}

#[test]
fn the_demo_is_the_same_in_teams_of_all_sizes() {
    let shares: [&[u16]; 6] =
        [&[1], &[1, 1], &[3, 1], &[5, 2, 3], &[1, 1, 1, 1, 1], &[100, 1, 40, 7, 2, 60]];
    for shares in shares {
        for is_packed in [false, true] {
            let setup = Setup { shares, isas: &[best()], is_packed, kv: KvKind::F16 };
            check(&demo(), &setup, "demo");
        }
    }
}

#[test]
fn keys_and_values_of_all_kinds_are_shared() {
    for kv in KvKind::ALL {
        let setup = Setup { shares: &[2, 3, 1], isas: &[best()], is_packed: true, kv };
        check(&demo(), &setup, kv.name());
    }
}

#[test]
fn nodes_of_other_kinds_give_the_same_bits() {
    let isas: Vec<Isa> = isas().collect();
    let weights = [Weights::Q4 { group: 64, int8_embedding: true }, demo().header().weights];
    for weights in weights {
        let header = Header { weights, ..demo().header().clone() };
        let model = Arc::new(Model::synthetic(&header).unwrap());
        let setup = Setup { shares: &[1, 1, 2], isas: &isas, is_packed: true, kv: KvKind::F16 };
        check(&model, &setup, "mixed");
    }
}

#[test]
fn inputs_of_int8_are_gathered_as_int8() {
    let Header { dim, ffn_dim, n_layers, .. } = *demo().header();
    let gathered = |weights| {
        let header = Header { weights, ..demo().header().clone() };
        let model = Arc::new(Model::synthetic(&header).unwrap());
        let mut node = node(&model, best(), false, PLAN);
        node.set_team(Some(Team::new(model.header(), &[1, 1], 0).unwrap()), PLAN).unwrap();
        let mut scales = Scales(0);
        run(&mut node, &batches(model.header().vocab_size)[1], &mut scales);
        scales.0
    };
    let (f32, int8) = (gathered(Weights::F32), gathered(Weights::Q8 { group: 32 }));
    assert_eq!(f32, n_layers * 4 * (3 * dim + ffn_dim));
    assert_eq!(int8, n_layers * (2 * 4 * dim + (dim + ffn_dim) * (32 + 4) / 32));
}

/// A team gathers only the inputs of a recurrent layer's output projection. Each node keeps the states of its own heads.
#[test]
fn heads_of_recurrent_layers_stay_on_their_node() {
    let mut shape = Shape::from_name("qwen3.5-0.8b").unwrap().header(Weights::Q8 { group: 64 });
    (shape.n_layers, shape.vocab_size, shape.ffn_dim) = (3, 256, 256);
    shape.features.recurrent.as_mut().unwrap().layers = LayerSet::new(0..3).unwrap();
    let model = Arc::new(Model::synthetic(&shape).unwrap());
    let Header { dim, ffn_dim, .. } = *model.header();
    let Some(Mixer::DeltaRule(rule)) = model.header().mixer(0) else {
        panic!("no recurrent layer")
    };
    let mut node = node(&model, best(), false, PLAN);
    let alone = node.state_bytes();
    node.set_team(Some(Team::new(model.header(), &[3, 1], 1).unwrap()), PLAN).unwrap();
    assert_eq!(node.state_bytes(), alone / 4);
    let mut bytes = Scales(0);
    run(&mut node, &batches(256)[0], &mut Scales(0));
    run(&mut node, &batches(256)[1], &mut bytes);
    assert_eq!(bytes.0, 3 * (2 * 4 * dim + (rule.values() + ffn_dim) * (64 + 4) / 64));
}

#[test]
fn teams_of_all_sizes_round_alike() {
    round_alike(&demo());
}

/// With f16, texts may differ from those of one board, and are the same in all teams.
fn round_alike(model: &Arc<Model>) {
    let batches = batches(model.header().vocab_size);
    let by = |shares: &[u16], wire| {
        let setup = Setup { shares, isas: &[best()], is_packed: true, kv: KvKind::F16 };
        by_team_over(model, &setup, (wire, usize::MAX), &batches)
    };
    let wanted = by(&[1, 1], Precision::F16);
    assert!(wanted != by(&[1, 1], Precision::F32));
    for shares in [&[1][..], &[3, 1], &[5, 2, 3], &[1, 1, 1, 1, 1]] {
        assert!(by(shares, Precision::F16) == wanted, "{shares:?}");
    }
}

/// Halves are no longer than a link's buffer.
#[test]
fn a_batch_may_go_in_several_pairs_of_halves() {
    let model = demo();
    let batches = batches(model.header().vocab_size);
    let setup = Setup { shares: &[1, 1], isas: &[best()], is_packed: true, kv: KvKind::F16 };
    let wanted = by_team(&model, &setup, &batches);
    // A row's part of the sum that is added to the residual stream.
    let part_bytes = 4 * model.header().dim / 2;
    let halves = (Precision::F32, 64 * part_bytes);
    assert!(by_team_over(&model, &setup, halves, &batches) == wanted);
}

#[cfg(feature = "pickle")]
mod families {
    use leap::format::model::Ends;

    use super::*;
    use crate::common::models::{CHECKPOINTS, FAMILIES, export, export_to};
    use crate::common::{leap, quick};

    #[test]
    fn every_family_is_the_same_in_a_team() {
        let step = if quick() { 3 } else { 1 };
        for checkpoint in CHECKPOINTS.into_iter().chain(FAMILIES).step_by(step) {
            let int8 = Weights::Q8 { group: 32 };
            for weights in [Weights::F32, int8, Weights::B2 { group: 32, ends: Ends::SixBits }] {
                let model = export(checkpoint, weights);
                for shares in [&[1, 1][..], &[2, 1, 3]] {
                    let is_packed = weights != Weights::F32;
                    let setup = Setup { shares, isas: &[best()], is_packed, kv: KvKind::F32 };
                    check(&model, &setup, &format!("{checkpoint}, {weights:?}"));
                }
            }
        }
    }

    #[test]
    fn layers_that_differ_are_rounded_alike() {
        for checkpoint in ["qwen35moe-tiny", "gemma4-tiny", "gemma4moe-tiny"] {
            round_alike(&export(checkpoint, Weights::Q8 { group: 32 }));
        }
    }

    /// Each matrix in blocks of a type of its own, as in mixtures of types that people publish.
    #[test]
    fn weights_in_blocks_are_the_same_in_a_team() {
        let folder = Folder::new();
        let path = export_to(&folder, "gguf/model.gguf", Weights::Ggml);
        for is_packed in [false, true] {
            let (shares, isas) = (&[2, 1, 3][..], &[best()]);
            let setup = Setup { shares, isas, is_packed, kv: KvKind::F16 };
            check_parts(&path, &setup, "blocks");
        }
    }

    /// GGUF files have the first value head of each key head, then the second of each.
    #[test]
    fn value_heads_in_the_order_of_gguf_files_go_with_their_keys() {
        let (folder, file) = (Folder::new(), "qwen35moe-tiny/qwen35moe-tiny-bf16.gguf");
        for weights in [Weights::F32, Weights::Q8 { group: 32 }] {
            let path = export_to(&folder, file, weights);
            let model = Arc::new(Model::open(&path).unwrap());
            let Some(Mixer::DeltaRule(rule)) = model.header().mixer(0) else { panic!("no heads") };
            assert!(rule.is_tiled && rule.value_heads == 2 * rule.key_heads);
            for (shares, is_packed) in [(&[1, 1][..], true), (&[2, 1, 3], false)] {
                let setup = Setup { shares, isas: &[best()], is_packed, kv: KvKind::F16 };
                let name = format!("{weights:?}");
                check(&model, &setup, &name);
                check_parts(&path, &setup, &name);
            }
        }
    }

    #[test]
    fn every_family_is_the_same_by_nodes_with_rows_alone() {
        let step = if quick() { 3 } else { 1 };
        let shares = &[2, 1, 3][..];
        for checkpoint in CHECKPOINTS.into_iter().chain(FAMILIES).step_by(step) {
            let int8 = Weights::Q8 { group: 32 };
            let four = Weights::Q4 { group: 32, int8_embedding: true };
            let six = Weights::B2 { group: 32, ends: Ends::SixBits };
            for weights in [Weights::F32, int8, four, six] {
                let (folder, name) = (Folder::new(), format!("{checkpoint}, {weights:?}"));
                let path = export_to(&folder, checkpoint, weights);
                let is_packed = weights != Weights::F32;
                let setup = Setup { shares, isas: &[best()], is_packed, kv: KvKind::F32 };
                check_parts(&path, &setup, &name);
            }
        }
    }

    #[test]
    fn rows_of_packed_files_are_whole_panels() {
        for checkpoint in ["llama3-tiny", "qwen3moe-tiny", "qwen35moe-tiny"] {
            for version in ["2", "3", "4"] {
                let (folder, mut export) = (Folder::new(), leap());
                let path = folder.join("packed.bin");
                export.arg("export").arg(&path);
                export.arg("--meta-llama").arg(package("tests/golden").join(checkpoint));
                export.args(["--version", version, "--isa", best().name()]);
                assert!(export.output().unwrap().status.success());
                let setup = Setup {
                    shares: &[2, 1, 3],
                    isas: &[best()],
                    is_packed: false,
                    kv: KvKind::F16,
                };
                check_parts(&path, &setup, &format!("{checkpoint}, version {version}"));
            }
        }
    }
}

/// A model with two recurrent layers of this form.
fn recurrent(rule: DeltaRule) -> Header {
    let mut header = Shape::from_name("qwen3.5-0.8b").unwrap().header(Weights::Q8 { group: 64 });
    (header.n_layers, header.vocab_size, header.ffn_dim) = (2, 256, 256);
    let layers = LayerSet::new(0..2).unwrap();
    header.features.recurrent = Some(RecurrentLayers { layers, mixer: Mixer::DeltaRule(rule) });
    header
}

const ODD: DeltaRule =
    DeltaRule { taps: 4, key_heads: 3, value_heads: 6, key_dim: 16, value_dim: 32, is_tiled: true };

/// Rows of keys end within a panel of packed rows, so one node has all heads, and the others have none.
#[test]
fn heads_that_are_no_whole_panels_stay_together() {
    let model = Arc::new(Model::synthetic(&recurrent(ODD)).unwrap());
    for (shares, is_packed) in [(&[1, 3][..], true), (&[3, 1, 1], false)] {
        let setup = Setup { shares, isas: &[best()], is_packed, kv: KvKind::F16 };
        check(&model, &setup, "odd heads");
    }
}

#[test]
fn shares_that_cannot_be_had_are_refused() {
    let many = recurrent(DeltaRule { key_heads: 2, value_heads: 32, key_dim: 32, ..ODD });
    let why = Team::new(&many, &[1, 1], 0).unwrap_err().to_string();
    assert!(why.contains("too many value heads"), "{why}");
    let model = demo();
    assert!(Team::new(model.header(), &[], 0).is_err());
    assert!(Team::new(model.header(), &[1; 17], 0).is_err());
    assert!(Team::new(model.header(), &[1, 1], 2).is_err());
    assert!(Team::new(model.header(), &[1, 0], 0).is_err());
}

/// Teams of processes.
mod processes {
    use std::fs;
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;
    use crate::common::folder::Folder;
    use crate::common::running::Running;
    use crate::common::{leap, own_host};

    fn worker(folder: &Folder, node: &str) -> Running {
        let mut worker = leap();
        worker.args(["worker", "models/demo.bin", "--threads", "1", "--transport", "udp"]);
        worker.args(["--node", node, "--team"]).arg(folder.join("team.txt"));
        Running(worker.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// A prompt that is long enough to go in halves, also when lost rows are computed again.
    fn prompt(command: &mut Command) -> &mut Command {
        command.args(["-p", &"Once upon a time there was a board. ".repeat(30)]);
        let words = ["-n", "200", "--temp", "0.8", "--seed", "7"];
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped())
    }

    /// A lead's run, which takes a while.
    fn lead(folder: &Folder) -> Command {
        let mut lead = leap();
        // `leap run` is a lead, too.
        lead.args(["run", "models/demo.bin", "--threads", "1", "--transport", "udp", "--team"]);
        prompt(lead.arg(folder.join("team.txt")));
        lead
    }

    #[test]
    fn a_team_outlives_the_death_of_each_node() {
        let folder = Folder::new();
        let host = own_host();
        let team: String = [("desk", 2), ("pi", 3), ("orange", 1)]
            .iter()
            .enumerate()
            .map(|(i, (name, share))| format!("{name} {host}:{} {share}\n", 9000 + i * 20))
            .collect();
        fs::write(folder.join("team.txt"), team).unwrap();
        let wanted = prompt(leap().args(["run", "models/demo.bin"])).output().unwrap().stdout;
        assert!(wanted.len() > 200);

        let _pi = worker(&folder, "pi");
        let orange = worker(&folder, "orange");
        // The lead dies in the middle of a text, and another lead replaces it.
        let first = Running(lead(&folder).stderr(Stdio::null()).spawn().unwrap());
        thread::sleep(Duration::from_millis(300));
        drop(first);
        // A member dies, and comes back.
        let second = lead(&folder).stderr(Stdio::piped()).spawn().unwrap();
        thread::sleep(Duration::from_millis(300));
        drop(orange);
        thread::sleep(Duration::from_millis(200));
        let _orange = worker(&folder, "orange");
        let ended = second.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{said}");
        assert!(said.contains(" ms a pass: gathers "), "{said}");
        assert!(said.contains("; orange computing "), "{said}");
        assert_eq!(String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&wanted));
    }

    /// A board is away when the conversation goes on after a long pause. A team counts its wait from its beginning, not
    /// from the last answer.
    #[test]
    fn a_conversation_that_rested_for_longer_than_the_timeout_outlives_a_lost_board() {
        let folder = Folder::new();
        let host = own_host();
        let line = |i: usize, name: &str| format!("{name} {host}:{} 1\n", 9000 + i * 20);
        fs::write(folder.join("team.txt"), line(0, "desk") + &line(1, "pi")).unwrap();
        let chat = |options: &[&str]| {
            let mut command = leap();
            command.args(["run", "models/demo.bin", "--threads", "1", "--chat", "-n", "30"]);
            command.args(["--temp", "0"]).args(options);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let said = ["Tell me of a fox.\n", "And then?\n"];
        let mut alone = chat(&[]);
        alone.stdin.take().unwrap().write_all(said.concat().as_bytes()).unwrap();
        let wanted = alone.wait_with_output().unwrap().stdout;

        let pi = worker(&folder, "pi");
        let file = folder.join("team.txt");
        let file = file.to_str().unwrap();
        let mut lead = chat(&["--transport", "udp", "--ring-timeout", "4", "--team", file]);
        let mut words = lead.stdin.take().unwrap();
        words.write_all(said[0].as_bytes()).unwrap();
        // This pause is longer than the timeout.
        thread::sleep(Duration::from_secs(6));
        let pid = Pid::from_raw(pi.0.id() as i32);
        kill(pid, Signal::SIGSTOP).unwrap();
        words.write_all(said[1].as_bytes()).unwrap();
        thread::sleep(Duration::from_secs(2));
        kill(pid, Signal::SIGCONT).unwrap();
        drop(words);
        let ended = lead.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{told}");
        assert_eq!(String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&wanted));
    }
}
