//! Rings that form and work on networks as bad as a radio's at the edge of its reach.

use super::Ring;
use super::scenario::Scenario;
use crate::transport::Micros;
use crate::transport::fault::Faults;

/// Simulated time that a ring may take to form, or to answer.
const MOST_US: Micros = 120_000_000;

/// Rings of several sizes form, and give the right tokens, on such a network.
fn check(what: &str, faults: &Faults) {
    let is_quick = std::env::var("LEAP_TEST_QUICK").is_ok_and(|value| value == "1");
    for seed in 0..if is_quick { 2 } else { 12 } {
        let mut shape = Scenario::quiet(2 + seed as usize % 4).shape;
        (shape.seed, shape.has_key) = (seed, seed % 2 == 0);
        let mut ring = Ring::new(shape, faults.clone());
        let begun = ring.now();
        let answers = ring.run_to(begun + MOST_US);
        let told = ring.told_last();
        assert_eq!(answers, Some(ring.wanted()), "{what}, seed {seed}, after {told:?}");
    }
}

#[test]
fn rings_form_and_answer_where_a_tenth_or_a_third_of_all_datagrams_is_lost() {
    check("10 % single losses", &Faults::losing(0.1, 1));
    check("30 % single losses", &Faults::losing(0.3, 1));
    check("30 % losses in bursts of 10", &Faults::losing(0.3, 10));
}

#[test]
fn rings_form_and_answer_where_datagrams_take_up_to_200_ms_and_overtake_each_other() {
    check("200 ms of jitter", &Faults { delay_us: 0..200_000, ..Faults::NONE });
    check(
        "200 ms of jitter, 10 % losses",
        &Faults { delay_us: 0..200_000, ..Faults::losing(0.1, 1) },
    );
}
