//! Teams that form and work on networks as bad as a radio's at the edge of its reach.

use super::scenario::Scenario;
use super::shape::{Layer, Shape};
use crate::team::banks;
use crate::team::parts::To;
use crate::transport::fault::Faults;

/// Forms teams of several sizes on such a network, and checks their tokens; a run that takes too long panics.
fn check(faults: &Faults) {
    let is_quick = std::env::var("LEAP_TEST_QUICK").is_ok_and(|value| value == "1");
    for seed in 0..if is_quick { 1 } else { 6 } {
        let n_nodes = 2 + seed as usize % 3;
        let bytes = [1000, 1500, 500, 700];
        let layer = |to| Layer::new(&bytes[..n_nodes], to);
        let shape = Shape {
            seed,
            n_nodes,
            layers: vec![layer(To::All); 4],
            head: layer(To::Lead),
            is_whole: true,
            max_batch: 8,
            prompt: vec![1, 2, 3],
            n_predict: 4,
            layer_us: 400,
            n_banks: banks(n_nodes),
            has_halves: false,
            has_key: seed % 2 == 0,
        };
        Scenario::quiet(shape, faults.clone()).run();
    }
}

#[test]
fn teams_form_and_answer_where_a_tenth_or_a_third_of_all_datagrams_is_lost() {
    check(&Faults::losing(0.1, 1));
    check(&Faults::losing(0.3, 1));
    check(&Faults::losing(0.3, 10));
}

#[test]
fn teams_form_and_answer_where_datagrams_take_up_to_200_ms_and_overtake_each_other() {
    check(&Faults { delay_us: 0..200_000, ..Faults::NONE });
    check(&Faults { delay_us: 0..200_000, ..Faults::losing(0.1, 1) });
}
