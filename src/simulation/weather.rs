//! Groups that form and work on networks as bad as a radio's at the edge of its reach.

use super::{is_quick, ring, team};
use crate::transport::Micros;
use crate::transport::fault::Faults;

/// Groups of several sizes form on such a network, and give the right tokens; else this panics.
type Check = fn(u64, &Faults);

/// Rings may take this long, in simulated time, to form and to answer.
const RING_US: Micros = 120_000_000;

const RINGS: (u64, Check) = (12, |seed, faults| ring::check(seed, faults, RING_US));
const TEAMS: (u64, Check) = (6, team::check);

fn check((n_seeds, check): (u64, Check), faults: &Faults) {
    let n_seeds = if is_quick() { n_seeds / 6 } else { n_seeds };
    (0..n_seeds).for_each(|seed| check(seed, faults));
}

/// A tenth and a third of all datagrams are lost, one at a time and in bursts.
fn check_losses(kind: (u64, Check)) {
    for (loss, burst) in [(0.1, 1), (0.3, 1), (0.3, 10)] {
        check(kind, &Faults::losing(loss, burst));
    }
}

/// Datagrams take up to 200 ms, and some are lost.
fn check_delays(kind: (u64, Check)) {
    for faults in [Faults::NONE, Faults::losing(0.1, 1)] {
        check(kind, &Faults { delay_us: 0..200_000, ..faults });
    }
}

#[test]
fn rings_form_and_answer_where_a_tenth_or_a_third_of_all_datagrams_is_lost() {
    check_losses(RINGS);
}

#[test]
fn rings_form_and_answer_where_datagrams_take_up_to_200_ms_and_overtake_each_other() {
    check_delays(RINGS);
}

#[test]
fn teams_form_and_answer_where_a_tenth_or_a_third_of_all_datagrams_is_lost() {
    check_losses(TEAMS);
}

#[test]
fn teams_form_and_answer_where_datagrams_take_up_to_200_ms_and_overtake_each_other() {
    check_delays(TEAMS);
}
