//! A simulated lead and members: the real ones, a stand-in for layers.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::shape::{Answer, Layer, Shape};

use crate::group::Notice;
use crate::simulation::mix;
use crate::simulation::world::Actor;
use crate::team::{
    FrameSpan, FrameWants, Gathered, Lead, LinkThread, Member, Mesh, NodeLine, Opening, Order,
    REORDER_US, Sizes, TeamError, To, Work,
};
use crate::transport::Endpoint;
use crate::transport::fault::Dice;
use crate::transport::link::LinkConfig;
use crate::wire::hello::{RingInfo, name};
use crate::wire::seal::Key;
use crate::wire::{Dtype, KvType};

/// A call of the layers to their node.
enum Call<'c, 'r> {
    Gather(Gathered<'r>),
    Start(&'c mut [Gathered<'r>]),
    Finish(&'c mut [Gathered<'r>]),
}

type Node<'n> = &'n mut dyn FnMut(Call<'_, '_>) -> Result<(), TeamError>;

/// Values that a node has computed.
#[derive(Default)]
struct Layers {
    /// Stored value of each layer and position.
    kv: Vec<Vec<u64>>,
    /// Rows to gather, of two halves of a batch.
    rows: [Vec<u8>; 2],
    x: Vec<u64>,
}

impl Layers {
    fn new(shape: &Shape) -> Layers {
        Layers { kv: vec![Vec::new(); shape.layers.len()], ..Layers::default() }
    }

    /// Runs the rows from position `pos` on, which `x` holds, as the node that has `own` columns of each layer.
    fn run(
        &mut self,
        shape: &Shape,
        own: Option<usize>,
        pos: usize,
        node: Node<'_>,
    ) -> Result<(), TeamError> {
        let halves = shape.halves(self.x.len());
        for index in 0..shape.layers.len() {
            // A gap is a token that was lost: the wrong value shows it.
            self.kv[index].truncate(pos);
            for half in 0..halves.len() {
                if index > 0 {
                    self.finish(&shape.layers[index - 1..=index], &halves, half, node)?;
                }
                let kv = &mut self.kv[index];
                for x in &mut self.x[halves[half].clone()] {
                    *x = mix(*x, kv.last().copied().unwrap_or(0));
                    kv.push(*x);
                }
                self.start(
                    &shape.layers[index.saturating_sub(1)..=index],
                    (own, &halves),
                    half,
                    node,
                )?;
            }
        }
        let last = &shape.layers[shape.layers.len() - 1..];
        (0..halves.len()).try_for_each(|half| self.finish(last, &halves, half, node))
    }

    /// Result of the last row; only the lead has all of it.
    fn last(
        &mut self,
        shape: &Shape,
        own: Option<usize>,
        node: Node<'_>,
    ) -> Result<u64, TeamError> {
        self.x.drain(..self.x.len() - 1);
        self.gather(&shape.head, own, node)?;
        Ok(self.x[0])
    }

    /// Shares this number of rows of the lead's `x` with all nodes.
    fn share(
        &mut self,
        (shape, own): (&Shape, usize),
        n: usize,
        node: Node<'_>,
    ) -> Result<(), TeamError> {
        let [rows, _] = &mut self.rows;
        rows.clear();
        if own == 0 {
            rows.extend(self.x.iter().flat_map(|x| x.to_le_bytes()));
        }
        rows.resize(8 * n, 0xee);
        let mut parts = vec![Vec::new(); shape.n_nodes];
        parts[0].push(0..8);
        node(Call::Gather(Gathered { bytes: rows, row_bytes: 8, parts: &parts, to: To::All }))?;
        self.x.clear();
        self.x.extend(rows.as_chunks().0.iter().map(|x| u64::from_le_bytes(*x)));
        Ok(())
    }

    fn embed(&mut self, tokens: &[u32]) {
        self.x.clear();
        self.x.extend(tokens.iter().map(|token| mix(77, u64::from(*token))));
    }

    /// Begins to gather a half's rows of the last of `layers`. The second half's gather of a layer follows
    /// the first half's, which follows the second half's of the layer before.
    fn start(
        &mut self,
        layers: &[Layer],
        (own, halves): (Option<usize>, &[Range<usize>]),
        half: usize,
        node: Node<'_>,
    ) -> Result<(), TeamError> {
        let (layer, before) = (&layers[layers.len() - 1], &layers[0]);
        self.put(layer, own, halves[half].clone(), half);
        let [first, second] = &mut self.rows;
        match (halves.len(), half) {
            (1, _) => Ok(()),
            (_, 0) if layers.len() == 1 => node(Call::Start(&mut [gathered(layer, first)])),
            (_, 0) => node(Call::Start(&mut [gathered(before, second), gathered(layer, first)])),
            _ => node(Call::Start(&mut [gathered(layer, first), gathered(layer, second)])),
        }
    }

    /// Ends the gather of a half's rows of the first of `layers`; when the second half's ends, the first
    /// half's rows of the next layer, if there is one, are under way.
    fn finish(
        &mut self,
        layers: &[Layer],
        halves: &[Range<usize>],
        half: usize,
        node: Node<'_>,
    ) -> Result<(), TeamError> {
        let layer = &layers[0];
        let [first, second] = &mut self.rows;
        match (halves.len(), half) {
            (1, _) => node(Call::Gather(gathered(layer, first)))?,
            (_, 0) => node(Call::Finish(&mut [gathered(layer, first), gathered(layer, second)]))?,
            _ => match layers.get(1) {
                Some(next) => {
                    node(Call::Finish(&mut [gathered(layer, second), gathered(next, first)]))?
                }
                None => node(Call::Finish(&mut [gathered(layer, second)]))?,
            },
        }
        self.fold(layer, halves[half].clone(), half);
        Ok(())
    }

    /// Gathers rows: each node computes its columns from `x`, and the new `x` follows from all of them.
    fn gather(
        &mut self,
        layer: &Layer,
        own: Option<usize>,
        node: Node<'_>,
    ) -> Result<(), TeamError> {
        let all = 0..self.x.len();
        self.put(layer, own, all.clone(), 0);
        node(Call::Gather(gathered(layer, &mut self.rows[0])))?;
        self.fold(layer, all, 0);
        Ok(())
    }

    /// Writes the columns of rows that this node computes.
    fn put(&mut self, layer: &Layer, own: Option<usize>, of: Range<usize>, half: usize) {
        let (x, rows) = (&self.x[of], &mut self.rows[half]);
        rows.clear();
        rows.resize(layer.row_bytes * x.len(), 0xee);
        for (x, row) in x.iter().zip(rows.chunks_exact_mut(layer.row_bytes)) {
            let columns = layer.parts.iter().enumerate();
            for (node, part) in columns.filter(|(node, _)| own.is_none_or(|own| own == *node)) {
                let mut dice = Dice::new(mix(*x, node as u64));
                part.iter().flat_map(Clone::clone).for_each(|at| row[at] = dice.roll() as u8);
            }
        }
    }

    /// Has `x` follow from what was gathered.
    fn fold(&mut self, layer: &Layer, of: Range<usize>, half: usize) {
        let rows = self.rows[half].chunks_exact(layer.row_bytes);
        for (x, row) in self.x[of].iter_mut().zip(rows) {
            *x = row.iter().fold(*x, |sum, byte| mix(sum, u64::from(*byte)));
        }
    }
}

/// Rows of a layer.
fn gathered<'a>(layer: &'a Layer, bytes: &'a mut [u8]) -> Gathered<'a> {
    Gathered { bytes, row_bytes: layer.row_bytes, parts: &layer.parts, to: layer.to }
}

fn choose(value: u64) -> u32 {
    (value % 1000) as u32
}

/// The tokens that a node that has all columns gives.
pub(super) fn reference(shape: &Shape) -> Vec<u32> {
    let (mut layers, mut tokens) = (Layers::new(shape), shape.prompt.clone());
    for _ in 0..shape.n_predict {
        let pos = layers.kv.first().map_or(0, Vec::len);
        layers.embed(&tokens[pos..]);
        layers.run(shape, None, pos, &mut |_| Ok(())).unwrap();
        tokens.push(choose(layers.last(shape, None, &mut |_| Ok(())).unwrap()));
    }
    tokens.split_off(shape.prompt.len())
}

/// Index of node `own`'s endpoint for node `peer`.
pub(super) fn endpoint(shape: &Shape, own: usize, peer: usize) -> usize {
    own * shape.n_nodes + peer
}

pub(super) fn config(shape: &Shape, own: usize, seed: u64) -> LinkConfig {
    let node =
        RingInfo { is_master: own == 0, name: name(&format!("node{own}")), ..RingInfo::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = LinkConfig::new(node, shape.has_key.then(|| Key::new([9; 32])), bytes);
    LinkConfig { reorder_us: REORDER_US, n_banks: shape.n_banks, ..config }
}

/// A node's links in its `life`-th life.
fn mesh(actor: &Actor, shape: &Shape, own: usize, life: u64) -> Mesh {
    let seed = |peer: usize| mix(mix(shape.seed, life), endpoint(shape, own, peer) as u64);
    let open = |peer: usize| -> Box<dyn Endpoint> {
        let config = config(shape, own, seed(peer));
        actor.endpoint(endpoint(shape, own, peer), config, endpoint(shape, peer, own))
    };
    let endpoints = (0..shape.n_nodes).map(|peer| (peer != own).then(|| open(peer)));
    Mesh::without_link_thread(endpoints.collect(), Arc::new(actor.clone())).unwrap()
}

/// Begins life `life` of node `own`; returns its threads. The lead puts its answer into `answer`.
pub(super) fn start(
    actor: &Actor,
    shape: &Shape,
    (own, life): (usize, u64),
    answer: &Arc<Mutex<Option<Answer>>>,
) -> [usize; 2] {
    let (shape, answer) = (shape.clone(), Arc::clone(answer));
    // The thread that looks after the endpoints is told of them by the one that opens them.
    let given: Arc<Mutex<Option<LinkThread>>> = Arc::default();
    let link_thread = Arc::clone(&given);
    let node = actor.spawn(move |actor| {
        let mesh = mesh(actor, &shape, own, life);
        *given.lock().unwrap() = Some(mesh.link_thread());
        let dice = Dice::new(mix(shape.seed ^ life, own as u64));
        match own {
            0 => {
                let ended = lead(actor, &shape, Lead::new(mesh, life as u32 * 1000), dice);
                *answer.lock().unwrap() = Some(ended);
            }
            _ => serve(actor, &shape, (own, Member::new(mesh, &format!("member{own}"))), dice),
        }
    });
    let link_thread = actor.spawn(move |actor| {
        let link_thread = link_thread.lock().unwrap().take().expect("its thread came first");
        loop {
            actor.sleep(actor.now() + link_thread.rest().as_micros() as u64);
            link_thread.turn();
        }
    });
    [node, link_thread]
}

fn opening(shape: &Shape) -> Opening {
    let sizes = Sizes {
        ctx_len: 4096,
        n_streams: 1,
        n_pages: 9,
        max_batch: shape.max_batch as u16,
        max_logits: 1,
        kv: KvType::F16,
        wire: Dtype::F32,
        dim: 0,
    };
    Opening {
        sizes,
        layers: 0..shape.layers.len() as u32,
        has_ends: true,
        shares: (0..shape.n_nodes as u16).map(|node| node + 1).collect(),
        node: 0,
        lead: name("lead"),
    }
}

/// Computes what is gathered next.
fn compute(actor: &Actor, shape: &Shape, dice: &mut Dice, call: &Call<'_, '_>) {
    if !matches!(call, Call::Finish(_)) {
        actor.work(dice.below(shape.layer_us));
    }
}

fn by_lead(lead: &mut Lead, call: Call<'_, '_>) -> Result<(), TeamError> {
    match call {
        Call::Gather(rows) => lead.gather(rows),
        Call::Start(rows) => lead.start_gather(rows),
        Call::Finish(rows) => lead.finish_gather(rows),
    }
}

fn by_member(member: &mut Member, call: Call<'_, '_>) -> Result<(), TeamError> {
    match call {
        Call::Gather(rows) => member.gather(rows),
        Call::Start(rows) => member.start_gather(rows),
        Call::Finish(rows) => member.finish_gather(rows),
    }
}

/// Opens the team, and again whenever a node is lost, until all tokens are there.
fn lead(actor: &Actor, shape: &Shape, mut lead: Lead, mut dice: Dice) -> Answer {
    let (mut layers, mut tokens) = (Layers::new(shape), shape.prompt.clone());
    let (n_prompt, n_all) = (shape.prompt.len(), shape.prompt.len() + shape.n_predict);
    let (mut ignore, mut began) = (|_: &Notice| {}, None);
    'epoch: loop {
        lead.open(&opening(shape), &|| false, &mut ignore, None).unwrap();
        let began = *began.get_or_insert(actor.now());
        let mut pos = 0;
        while tokens.len() < n_all {
            let end = tokens.len().min(pos + shape.max_batch);
            let (n_rows, batch) = ((end - pos) as u16, &tokens[pos..end]);
            let span = FrameSpan {
                stream: 0,
                wants: FrameWants::Last,
                pos: pos as u32,
                n_rows,
                is_long: false,
                state: [None; 2],
            };
            layers.embed(batch);
            let (work, ids) = match dice.below(2) {
                0 => (Work::Ids, batch),
                _ => (Work::Rows, &[][..]),
            };
            let wants = end == tokens.len();
            let mut run = || {
                lead.start(work, &[span], ids)?;
                let mut gather = |call: Call<'_, '_>| {
                    compute(actor, shape, &mut dice, &call);
                    by_lead(&mut lead, call)
                };
                if work == Work::Rows {
                    layers.share((shape, 0), batch.len(), &mut gather)?;
                }
                layers.run(shape, Some(0), pos, &mut gather)?;
                if shape.is_whole {
                    return layers.last(shape, Some(0), &mut gather);
                }
                if !wants {
                    return Ok(0);
                }
                layers.x.drain(..batch.len() - 1);
                lead.start(Work::Logits(1), &[], &[])?;
                let mut gather = |call: Call<'_, '_>| by_lead(&mut lead, call);
                layers.share((shape, 0), 1, &mut gather)?;
                layers.last(shape, Some(0), &mut gather)
            };
            match run() {
                Ok(last) if wants => tokens.push(choose(last)),
                Ok(_) => {}
                Err(TeamError::Lost { .. }) => continue 'epoch,
                Err(error) => panic!("{error}"),
            }
            pos = end;
        }
        let us = actor.now() - began;
        lead.close();
        return Answer { tokens: tokens.split_off(n_prompt), us };
    }
}

/// Does what leads say, for ever.
fn serve(actor: &Actor, shape: &Shape, (own, mut member): (usize, Member), mut dice: Dice) {
    let mut layers = Layers::new(shape);
    while let Ok(order) = member.next(&|| false, &mut |_| {}) {
        match order {
            Order::Open(_) => {
                actor.work(dice.below(shape.layer_us * 10));
                member.ready(NodeLine::default());
            }
            Order::Pass(work) => {
                let span = member.spans().first().copied();
                layers.embed(member.tokens());
                let mut gather = |call: Call<'_, '_>| {
                    compute(actor, shape, &mut dice, &call);
                    by_member(&mut member, call)
                };
                let own_layers = (shape, own);
                let ran = match (work, span) {
                    (Work::Logits(n), _) => layers
                        .share(own_layers, n.into(), &mut gather)
                        .and_then(|()| layers.last(shape, Some(own), &mut gather)),
                    (_, None) => panic!("a batch without a span"),
                    (work, Some(FrameSpan { pos, n_rows, .. })) => {
                        let mut run = || {
                            if work == Work::Rows {
                                layers.share(own_layers, n_rows.into(), &mut gather)?;
                            }
                            layers.run(shape, Some(own), pos as usize, &mut gather)?;
                            match shape.is_whole {
                                true => layers.last(shape, Some(own), &mut gather),
                                false => Ok(0),
                            }
                        };
                        run()
                    }
                };
                if ran.is_err() {
                    member.fail();
                }
            }
            // The lead changes none.
            Order::Pages | Order::Close => {}
        }
    }
}
