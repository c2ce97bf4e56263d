//! Whole groups in virtual time: the real machines of masters, workers, leads and members, over the real link
//! protocol and a network with faults from a seed. A seed gives one course of events. Layers are a stand-in whose
//! result depends on all that came before, so that a lost, repeated, stale or misplaced part changes all tokens
//! that follow.
//!
//! - [`incidents`]: faults and changes of a group, drawn from a seed, and the run in which they happen.
//! - [`weather`]: networks that are as bad as a radio's at the edge of its reach.
//! - [`world`]: virtual time for nodes that are threads.
//! - [`ring`] and [`team`]: what the two kinds of group add: how a batch passes through, the changes that
//!   only a ring has, and speeds.
//! - [`draft`]: a master with a draft node.

mod draft;
mod incidents;
mod ring;
mod team;
mod weather;
mod world;

/// A number that follows from both of these.
fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Whether tests are to be quick.
fn is_quick() -> bool {
    std::env::var("LEAP_TEST_QUICK").is_ok_and(|value| value == "1")
}
