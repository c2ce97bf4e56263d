//! Why a master has no boards to work with.

use std::fmt;
use std::io;

use crate::model::SharesError;
use crate::ring::plan::NoSplit;
use crate::ring::{Address, TopologyError};

/// Why a model could not be divided among boards.
#[derive(Debug)]
pub(crate) enum FleetError {
    /// The user ended it.
    Interrupted,
    /// This board's name cannot stand in a ring file.
    Name(String),
    /// Boards see this one at different places, one of them at this address.
    Places(Address),
    /// The networks cannot be searched.
    Search(io::Error),
    /// All boards were left out, the last one for this reason.
    NoneLeft(String),
    /// The boards cannot have the model.
    NoSplit(NoSplit),
    /// This board needs so many bytes for its rows, and has fewer.
    Memory { name: String, need: u64 },
    /// A team cannot have these boards.
    Shares(SharesError),
    /// The plan is no ring file.
    File(TopologyError),
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FleetError::Interrupted => write!(f, "interrupted"),
            FleetError::Name(why) => write!(f, "this board: {why}"),
            FleetError::Places(address) => write!(
                f,
                "{address} and other boards see this one at different addresses: name boards of this machine by \
                 an address that others reach, too"
            ),
            FleetError::Search(e) => write!(f, "cannot look for boards: {e}"),
            FleetError::NoneLeft(why) => write!(f, "no board is left: {why}"),
            FleetError::NoSplit(e) => write!(f, "{e}"),
            FleetError::Memory { name, need } => {
                let gb = *need as f64 / 1e9;
                write!(
                    f,
                    "the boards have too little memory for this model: {name} needs {gb:.2} GB for its part"
                )
            }
            FleetError::Shares(e) => write!(f, "{e}: name the boards that are to be in it"),
            FleetError::File(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for FleetError {}

/// Why there is no plan for the boards that are there.
pub(super) enum Obstacle {
    /// The boards have too little memory together; more boards would help.
    Memory(FleetError),
    /// The board at this index is in the way of the others.
    Board(usize, String),
    /// The master has to end.
    End(FleetError),
}
