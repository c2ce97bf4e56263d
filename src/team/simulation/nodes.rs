//! A simulated lead and members: the real ones, a stand-in for layers.

use std::sync::{Arc, Mutex};

use super::shape::{Answer, Layer, Shape};
use super::world::Actor;
use crate::team::exchange::{Gathered, To};
use crate::team::mesh::{Mesh, Minder};
use crate::team::{
    BANKS, FrameSpan, FrameWants, Lead, Member, Opening, Order, REORDER_US, TeamError, TeamLine,
    TeamNotice, Work,
};
use crate::transport::Endpoint;
use crate::transport::fault::Dice;
use crate::transport::link::LinkConfig;
use crate::wire::hello::{RingInfo, name};
use crate::wire::seal::Key;
use crate::wire::{Dtype, KvType};

fn mix(a: u64, b: u64) -> u64 {
    Dice::new(a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).roll()
}

/// What a node has computed.
#[derive(Default)]
struct Layers {
    /// What each layer holds of each position.
    kv: Vec<Vec<u64>>,
    rows: Vec<u8>,
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
        gather: &mut dyn FnMut(Gathered<'_>) -> Result<(), TeamError>,
    ) -> Result<(), TeamError> {
        let mut kv = std::mem::take(&mut self.kv);
        let ran = shape.layers.iter().zip(&mut kv).try_for_each(|(layer, kv)| {
            // A gap is a token that was lost: the wrong value shows it.
            kv.truncate(pos);
            for x in &mut self.x {
                *x = mix(*x, kv.last().copied().unwrap_or(0));
                kv.push(*x);
            }
            self.gather(layer, own, gather)
        });
        self.kv = kv;
        ran
    }

    /// What the last row comes to, of which only the lead has all.
    fn last(
        &mut self,
        shape: &Shape,
        own: Option<usize>,
        gather: &mut dyn FnMut(Gathered<'_>) -> Result<(), TeamError>,
    ) -> Result<u64, TeamError> {
        self.x.drain(..self.x.len() - 1);
        self.gather(&shape.head, own, gather)?;
        Ok(self.x[0])
    }

    /// All nodes get the lead's `x`, of so many rows.
    fn share(
        &mut self,
        (shape, own): (&Shape, usize),
        n: usize,
        gather: &mut dyn FnMut(Gathered<'_>) -> Result<(), TeamError>,
    ) -> Result<(), TeamError> {
        self.rows.clear();
        if own == 0 {
            self.rows.extend(self.x.iter().flat_map(|x| x.to_le_bytes()));
        }
        self.rows.resize(8 * n, 0xee);
        let mut parts = vec![[8..8, 0..0]; shape.n_nodes];
        parts[0] = [0..8, 0..0];
        gather(Gathered { bytes: &mut self.rows, row_bytes: 8, parts: &parts, to: To::All })?;
        self.x.clear();
        self.x.extend(self.rows.as_chunks().0.iter().map(|x| u64::from_le_bytes(*x)));
        Ok(())
    }

    fn embed(&mut self, tokens: &[u32]) {
        self.x.clear();
        self.x.extend(tokens.iter().map(|token| mix(77, u64::from(*token))));
    }

    /// Each node computes its columns of rows that follow from `x`, and `x` then follows from all.
    fn gather(
        &mut self,
        layer: &Layer,
        own: Option<usize>,
        gather: &mut dyn FnMut(Gathered<'_>) -> Result<(), TeamError>,
    ) -> Result<(), TeamError> {
        self.rows.clear();
        self.rows.resize(layer.row_bytes * self.x.len(), 0xee);
        for (x, row) in self.x.iter().zip(self.rows.chunks_exact_mut(layer.row_bytes)) {
            let columns = layer.parts.iter().enumerate();
            for (node, part) in columns.filter(|(node, _)| own.is_none_or(|own| own == *node)) {
                let mut dice = Dice::new(mix(*x, node as u64));
                part.iter().flat_map(Clone::clone).for_each(|at| row[at] = dice.roll() as u8);
            }
        }
        let (row_bytes, parts, to) = (layer.row_bytes, &layer.parts[..], layer.to);
        gather(Gathered { bytes: &mut self.rows, row_bytes, parts, to })?;
        for (x, row) in self.x.iter_mut().zip(self.rows.chunks_exact(row_bytes)) {
            *x = row.iter().fold(*x, |sum, byte| mix(sum, u64::from(*byte)));
        }
        Ok(())
    }
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
    LinkConfig { reorder_us: REORDER_US, n_banks: BANKS, ..config }
}

/// A node's links in its `life`-th life.
fn mesh(actor: &Actor, shape: &Shape, own: usize, life: u64) -> Mesh {
    let seed = |peer: usize| mix(mix(shape.seed, life), endpoint(shape, own, peer) as u64);
    let open = |peer: usize| -> Box<dyn Endpoint> {
        let config = config(shape, own, seed(peer));
        actor.endpoint(endpoint(shape, own, peer), config, endpoint(shape, peer, own))
    };
    let endpoints = (0..shape.n_nodes).map(|peer| (peer != own).then(|| open(peer)));
    Mesh::without_minder(endpoints.collect(), Arc::new(actor.clone())).unwrap()
}

/// Begins node `own`'s `life`-th life; returns its threads. The lead puts its answer where it is told to.
pub(super) fn start(
    actor: &Actor,
    shape: &Shape,
    (own, life): (usize, u64),
    answer: &Arc<Mutex<Option<Answer>>>,
) -> [usize; 2] {
    let (shape, answer) = (shape.clone(), Arc::clone(answer));
    // The thread that looks after the endpoints is told of them by the one that opens them.
    let given: Arc<Mutex<Option<Minder>>> = Arc::default();
    let minder = Arc::clone(&given);
    let node = actor.spawn(move |actor| {
        let mesh = mesh(actor, &shape, own, life);
        *given.lock().unwrap() = Some(mesh.minder());
        let dice = Dice::new(mix(shape.seed ^ life, own as u64));
        match own {
            0 => {
                let ended = lead(actor, &shape, Lead::new(mesh, life as u32 * 1000), dice);
                *answer.lock().unwrap() = Some(ended);
            }
            _ => serve(actor, &shape, (own, Member::new(mesh, &format!("member{own}"))), dice),
        }
    });
    let minder = actor.spawn(move |actor| {
        let minder = minder.lock().unwrap().take().expect("its thread came first");
        loop {
            actor.sleep(actor.now() + minder.rest().as_micros() as u64);
            minder.turn();
        }
    });
    [node, minder]
}

fn opening(shape: &Shape) -> Opening {
    Opening {
        ctx_len: 4096,
        n_streams: 1,
        n_pages: 9,
        max_batch: shape.max_batch as u16,
        max_logits: 1,
        kv: KvType::F16,
        wire: Dtype::F32,
        layers: 0..shape.layers.len() as u32,
        has_ends: true,
        shares: (0..shape.n_nodes as u16).map(|node| node + 1).collect(),
        node: 0,
        lead: name("lead"),
    }
}

/// Opens the team, and again whenever a node is lost, until all tokens are there.
fn lead(actor: &Actor, shape: &Shape, mut lead: Lead, mut dice: Dice) -> Answer {
    let (mut layers, mut tokens) = (Layers::new(shape), shape.prompt.clone());
    let (n_prompt, n_all) = (shape.prompt.len(), shape.prompt.len() + shape.n_predict);
    let (mut ignore, mut began) = (|_: &TeamNotice| {}, None);
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
            };
            layers.embed(batch);
            let (work, ids) = match dice.below(2) {
                0 => (Work::Ids, batch),
                _ => (Work::Rows, &[][..]),
            };
            let wants = end == tokens.len();
            let mut run = || {
                lead.start(work, &[span], ids)?;
                let mut gather = |rows: Gathered<'_>| {
                    actor.work(dice.below(shape.layer_us));
                    lead.gather(rows)
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
                let mut gather = |rows: Gathered<'_>| lead.gather(rows);
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
                member.ready(TeamLine::default());
            }
            Order::Pass(work) => {
                let span = member.spans().first().copied();
                layers.embed(member.tokens());
                let mut gather = |rows: Gathered<'_>| {
                    actor.work(dice.below(shape.layer_us));
                    member.gather(rows)
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
            Order::Close => {}
        }
    }
}
