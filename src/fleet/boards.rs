//! The boards that this one works with, and how their parts are known.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use super::error::PartError;
use super::events::Shape;
use crate::format::text_without_mark;
use crate::ring::{Address, TeamNode, Topology};

/// Places in which a master looks for boards that wait to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    /// This machine's networks: boards that answer on this port.
    Auto(u16),
    /// These addresses.
    Named(Vec<Address>),
}

/// The boards that this one works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boards {
    /// None: this board is alone.
    Alone,
    /// Boards that the master calls, and among which it divides the model.
    Called(Sought, Shape),
    /// A ring: a file says which layers each board has.
    Layers(RingFile),
    /// A team: a file says which share of every layer each board has.
    Shares(PathBuf),
    /// A ring of which this board knows its own layers and the next board.
    Next {
        /// The first layer, and the one behind the last; `None` for all that follow.
        layers: (usize, Option<usize>),
        /// Address of the next board, if an option gives it.
        next: Option<Address>,
    },
    /// The boards of a master that will call this one on this TCP port.
    Waiting(u16),
}

impl Boards {
    /// True if the master decides the layers of each board.
    pub(crate) fn are_told(&self) -> bool {
        matches!(self, Boards::Layers(RingFile::Told(_)))
    }

    /// The boards of a ring and their layers, if a file says them.
    ///
    /// # Errors
    /// If there is such a file, and it cannot be read or is bad.
    pub(crate) fn topology(&self) -> Result<Option<Topology>, PartError> {
        match self {
            Boards::Layers(file) => file.read().map(Some),
            _ => Ok(None),
        }
    }

    /// Host of the board of this name, if a ring file gives it.
    pub(crate) fn host_of(&self, name: &str) -> Option<String> {
        let topology = self.topology().ok()??;
        let member = topology.members().iter().find(|member| member.name == name)?;
        Some(member.address.host.clone())
    }
}

/// A line for each node of a ring: its name, address and layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingFile {
    /// The lines are in this file.
    At(PathBuf),
    /// The lines are this text, which the master has made.
    Told(String),
}

impl RingFile {
    /// Reads the nodes of the ring.
    ///
    /// # Errors
    /// If it cannot be read, or is no ring file.
    pub(crate) fn read(&self) -> Result<Topology, PartError> {
        let text = match self {
            RingFile::At(path) => &read(path)?,
            RingFile::Told(text) => text,
        };
        Topology::parse(text_without_mark(text)).map_err(|e| self.is_bad(&e))
    }

    /// The error of a file with this defect.
    pub(super) fn is_bad(&self, what: &dyn fmt::Display) -> PartError {
        PartError::File { file: self.to_string(), what: what.to_string() }
    }
}

impl fmt::Display for RingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingFile::At(path) => write!(f, "{}", path.display()),
            RingFile::Told(_) => write!(f, "the master's ring"),
        }
    }
}

/// The boards of the team file at `path`, the lead first.
///
/// # Errors
/// If it cannot be read, or is no team file.
pub(super) fn team(path: &PathBuf) -> Result<Vec<TeamNode>, PartError> {
    let file = || path.display().to_string();
    TeamNode::parse_all(text_without_mark(&read(path)?))
        .map_err(|what| PartError::File { file: file(), what })
}

fn read(path: &PathBuf) -> Result<String, PartError> {
    fs::read_to_string(path).map_err(|e| PartError::Unreadable(path.clone(), e))
}

/// Source of the layers of a board without a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the first board of the ring file.
    Auto,
    /// From this board.
    At(Address),
}
