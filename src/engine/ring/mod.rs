//! The work of a node of a ring: connects the model's stages, the ring's state machines and a link.

mod error;
pub(super) mod frames;
mod link;
mod master;
mod node;
mod resplit;
mod returned;
mod streams;
mod worker;

pub use crate::ring::{Address, Held, Member, Misfits, Setbacks};
pub use crate::wire::frame::{Heat, MachineReading};
pub use error::NodeError;
pub use master::{
    Change, ChangesBy, MasterMeter, OtherLayers, OtherNodes, RingMaster, RingOptions, Tell,
};
pub use resplit::{Prepare, ResplitError};
pub(crate) use resplit::{check_fixed, check_split};
pub use worker::{Elsewhere, Limits, NodeMeter, WorkerOptions, run_worker};
