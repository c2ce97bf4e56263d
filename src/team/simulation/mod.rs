//! Whole teams in virtual time: leads and members of this module, each in a thread of its own, over the real link
//! protocol and a network as bad as a seed makes it. One thread runs at a time, and which one follows from the
//! time alone: a seed gives one course of events.
//!
//! Layers are a stand-in: what a node computes follows from every byte that all nodes gathered before, so that one
//! that is lost, stale or in another's place changes all tokens that follow.

mod nodes;
mod scenario;
mod shape;
mod speed;
mod weather;
mod world;
