//! The cost of lost datagrams.

use super::scenario::Scenario;
use super::shape::{Layer, Shape};
use crate::team::{To, banks};
use crate::transport::Micros;
use crate::transport::fault::Faults;

/// Time of three nodes for 20 tokens of so many gathers, with at most so much computing before each, on a
/// wire of 45 us one way with such a loss.
fn time((n_gathers, layer_us): (usize, Micros), loss: f64, seed: u64) -> Micros {
    let layer = |to| Layer::new(&[1000, 1500, 500], to);
    let shape = Shape {
        seed,
        n_nodes: 3,
        layers: vec![layer(To::All); n_gathers],
        head: layer(To::Lead),
        is_whole: true,
        max_batch: 8,
        prompt: vec![1, 2, 3],
        n_predict: 20,
        layer_us,
        n_banks: banks(3),
        has_halves: false,
        has_key: false,
    };
    Scenario::quiet(shape, Faults { loss, delay_us: 45..50, ..Faults::NONE }).run()
}

/// Factor by which all runs take longer where a hundredth of the datagrams is lost.
fn ratio(shape: (usize, Micros), seeds: u64) -> f64 {
    let sum = |loss| (0..seeds).map(|seed| time(shape, loss, seed)).sum::<Micros>() as f64;
    sum(0.01) / sum(0.0)
}

#[test]
fn losing_a_hundredth_of_the_datagrams_costs_a_team_little() {
    // A small model on small boards, and the demo model: the less computing, the more a loss costs.
    for (shape, seeds, most) in [((88, 400), 3, 1.15), ((24, 100), 8, 1.3)] {
        let ratio = ratio(shape, seeds);
        assert!(ratio <= most, "{ratio:.2} times as long");
    }
}
