//! Whole teams in virtual time: leads and members of this module, each in a thread of its own, over the real
//! link protocol and a network with faults from a seed. One thread runs at a time, and the time alone decides
//! which: a seed gives one course of events.
//!
//! Layers are a stand-in: a node's results follow from every byte that all nodes gathered before, so that a
//! lost, stale or misplaced one changes all tokens that follow.

mod nodes;
mod scenario;
mod shape;
mod speed;
mod weather;
mod world;
