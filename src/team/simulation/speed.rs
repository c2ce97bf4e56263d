//! What lost datagrams cost.

use super::scenario::Scenario;
use super::shape::{Layer, Shape};
use crate::team::exchange::To;
use crate::transport::Micros;
use crate::transport::fault::Faults;

/// How long three nodes need for some tokens of a model of 22 layers, of which each has 4 gathers, on a wire of 45 us
/// one way that loses so many datagrams.
fn time(loss: f64, seed: u64) -> Micros {
    let layer = |to| Layer::new(&[1000, 1500, 500], to);
    let mut layers = vec![layer(To::All); 88];
    layers.push(layer(To::Lead));
    let shape = Shape {
        seed,
        n_nodes: 3,
        layers,
        max_batch: 8,
        prompt: vec![1, 2, 3],
        n_predict: 20,
        // A small model on small boards: the less is computed, the more a loss counts.
        layer_us: 400,
        has_key: false,
    };
    Scenario::quiet(shape, Faults { loss, delay_us: 45..50, ..Faults::NONE }).run()
}

#[test]
fn losing_a_hundredth_of_the_datagrams_costs_a_team_a_quarter_at_most() {
    for seed in 0..4 {
        let (none, some) = (time(0.0, seed), time(0.01, seed));
        assert!(4 * some <= 5 * none, "{some} us instead of {none}");
    }
}
