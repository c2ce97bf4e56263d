//! Why a master has no boards to work with, and a board no part among others.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use crate::model::SharesError;
use crate::ring::TopologyError;
use crate::ring::plan::NoSplit;

/// Why a model could not be divided among boards.
#[derive(Debug)]
pub(crate) enum FleetError {
    /// The user ended it.
    Interrupted,
    /// This board's name cannot stand in a ring file.
    Name(String),
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

/// Why a board has no part among others.
#[derive(Debug)]
#[non_exhaustive]
pub(crate) enum PartError {
    /// Nothing says which boards there are.
    NoBoards,
    /// A file of boards cannot be read.
    Unreadable(PathBuf, io::Error),
    /// A file of boards has this defect.
    File { file: String, what: String },
    /// Nothing says which of the boards this one is.
    NoName,
    /// Nothing says which board is the next one.
    NoNext,
    /// Nothing says where the layers come from.
    NoOrigin,
    /// The layers are not in the model.
    Beyond { layers: Range<usize>, n_layers: usize },
    /// The board of this name is not what it is started as: the board called `first` leads.
    OtherRole { name: String, role: &'static str, first: String, lead: &'static str, file: String },
    /// The board of this name is one of a team that another board leads.
    OfTeam { name: String, lead: String, file: String },
    /// The layers of this place, which is a team, cannot move.
    StaysPut(String),
}

impl fmt::Display for PartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartError::NoBoards => write!(f, "nothing says which boards there are"),
            PartError::Unreadable(path, e) => write!(f, "cannot read {}: {e}", path.display()),
            PartError::File { file, what } => write!(f, "{file}: {what}"),
            PartError::NoName => write!(f, "nothing says which of the boards this one is"),
            PartError::NoNext => write!(f, "nothing says which board is the next one"),
            PartError::NoOrigin => write!(f, "nothing says which board gives the layers"),
            PartError::Beyond { layers: Range { start, end }, n_layers } => {
                write!(f, "layers {start}..{end} are not in 0..{n_layers}")
            }
            PartError::OtherRole { name, role, first, lead, file } => {
                write!(
                    f,
                    "{name} is not the {role} in {file}: the first node, {first}, is the {lead}"
                )
            }
            PartError::OfTeam { name, lead, file } => {
                write!(f, "{name} is a board of {lead}'s team in {file}: start it as a worker")
            }
            PartError::StaysPut(team) => write!(f, "the layers of {team}, a team, cannot move"),
        }
    }
}

impl std::error::Error for PartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PartError::Unreadable(_, e) => Some(e),
            _ => None,
        }
    }
}
