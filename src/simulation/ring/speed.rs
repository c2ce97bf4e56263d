//! The gain of pipelining, by a model of computing time: four equal nodes against one.

use super::{Cost, Ring, Shape};
use crate::transport::Micros;
use crate::transport::fault::Faults;

/// Layers of the model, shared equally.
const LAYERS: u32 = 32;
/// A small board: a token reads the weights in 80 ms, and twenty rows take as long to compute.
const COST: Cost = Cost { weights_us: 2_500, row_us: 125 };

fn shape(n_nodes: usize, n_streams: usize, prompt: usize, n_predict: usize) -> Shape {
    Shape {
        seed: 1,
        layers: vec![LAYERS / n_nodes as u32; n_nodes],
        // The width of an 8B model, in f16.
        dim: 2_048,
        ctx_len: 1_024,
        max_batch: 64,
        prompts: (0..n_streams).map(|i| vec![i as u32; prompt]).collect(),
        n_predict,
        cost: COST,
        packing_us: 0,
        has_key: false,
        files: None,
    }
}

/// Runs it on a network with a round trip of 0.4 ms; returns the time from the first batch.
fn time(shape: Shape) -> (Micros, Vec<(usize, u32, Micros, Micros)>) {
    let mut ring = Ring::new(shape, Faults { delay_us: 200..201, ..Faults::NONE });
    let answers = ring.run_to(Micros::MAX / 2);
    assert_eq!(answers, Some(ring.wanted()));
    let log = ring.log();
    let start = log.iter().map(|(_, _, begin, _)| *begin).min().unwrap_or(0);
    (ring.now() - start, log)
}

/// Time of one node alone for a prompt in batches and `n_predict` tokens of each of `n_streams`, one stream
/// after the other.
fn alone(prompt: usize, n_predict: usize) -> Micros {
    let layers = u64::from(LAYERS);
    let batches = prompt.div_ceil(64) as u64;
    batches * COST.of(layers, 64) + (n_predict as u64 - 1) * COST.of(layers, 1)
}

#[test]
fn a_prompt_is_pipelined() {
    let (ring, log) = time(shape(4, 1, 512, 1));
    let gain = alone(512, 1) as f64 / ring as f64;
    assert!(gain >= 2.5, "{gain:.2} x one node");
    // The order of events: the last node begins the first batch before the master ends the
    // fifth, and no node computes two batches at a time.
    let begun = |node: usize, pos: u32| log.iter().find(|l| l.0 == node && l.1 == pos).unwrap().2;
    assert!(begun(3, 0) < begun(0, 4 * 64));
    for node in 0..4 {
        let mut times: Vec<(Micros, Micros)> =
            log.iter().filter(|l| l.0 == node).map(|l| (l.2, l.3)).collect();
        times.sort_unstable();
        assert_eq!(times.len(), 8);
        assert!(times.windows(2).all(|pair| pair[0].1 <= pair[1].0), "node {node}");
    }
}

#[test]
fn streams_fill_the_ring() {
    let tokens = 40;
    let (one, _) = time(shape(4, 1, 4, tokens));
    let (four, _) = time(shape(4, 4, 4, tokens));
    let gain = 4.0 * one as f64 / four as f64;
    assert!(gain >= 3.0, "{gain:.2} x the tokens per second of one");
}
