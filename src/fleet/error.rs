//! Why a master has no boards to work with, and a board no part among others.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use crate::engine::ring::NodeError;
use crate::engine::{EngineError, JoinError, LeadError, StepError};
use crate::fetch::taker::FetchError;
use crate::format::FormatError;
use crate::model::{CheckError, LoadError, PackError, PlanError, SharesError};
use crate::ring::plan::NoSplit;
use crate::ring::{Address, TopologyError};
use crate::transport::TransportError;

/// Why a model could not be divided among boards.
#[derive(Debug)]
pub enum FleetError {
    /// The user ended the start.
    Interrupted,
    /// This board's name cannot stand in a ring file.
    Name(String),
    /// The networks cannot be searched.
    Search(io::Error),
    /// The master left out every board, the last one for this reason.
    NoneLeft(String),
    /// The boards cannot have the model.
    NoSplit(NoSplit),
    /// The board of this name has less memory than its rows `need`, in bytes.
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

/// A board's aim that needs the key, or a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// To give other boards their layers.
    Give,
    /// To get its own layers.
    Get,
    /// To wait for a master.
    Wait,
    /// To call other boards.
    Call,
}

/// Why a board has no part among others, or cannot do it.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the text of a variant says what its fields are")]
pub enum PartError {
    /// Nothing says which boards there are.
    NoBoards,
    /// A file cannot be read.
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
    /// The board of this name is started in the wrong role: the board called `first` leads.
    OtherRole { name: String, role: &'static str, first: String, lead: &'static str, file: String },
    /// The board of this name is one of a team that another board leads.
    OfTeam { name: String, lead: String, file: String },
    /// The layers of this place, which is a team, cannot move.
    StaysPut(String),
    /// There is no key.
    NoKey(Aim),
    /// A team is planned for one stream alone, and not for energy or memory.
    TeamObjective,
    /// A plan for energy needs this board's watts, which nothing says.
    NoWatts,
    /// There are no boards to work with.
    Fleet(FleetError),
    /// There is no model file to give layers of.
    NoFile,
    /// There is no model file, and no built-in model.
    NoModel,
    /// There is no folder for layers, figures and orders.
    NoFolder(String),
    /// The folder cannot be made.
    Folder(PathBuf, io::Error),
    /// The model cannot be opened.
    Open(LoadError),
    /// The model cannot be read.
    Model(io::Error),
    /// The file has only some rows of its layers, and this board needs all.
    SomeRows(String),
    /// The file lacks layers that the board of this name has.
    Lacks { name: String, held: Range<usize>, wanted: Range<usize>, n_layers: usize },
    /// The file has only a part of the model.
    Partial(FormatError),
    /// The engine does not start.
    Engine(EngineError),
    /// The weights of the model at this path cannot be used.
    Weights(Option<PathBuf>, PackError),
    /// The links cannot be opened.
    Links(TransportError),
    /// The links of a team cannot be serviced.
    Mesh(io::Error),
    /// The system refuses this address.
    Listen { aim: Aim, address: SocketAddr, source: io::Error },
    /// The system has no random numbers.
    Random(io::Error),
    /// The model's demand on boards cannot be counted.
    Load(PlanError),
    /// The thread that looks after the boards cannot be started.
    Watch(io::Error),
    /// Layers do not come from this board.
    Layers(Address, FetchError),
    /// The ring was not joined.
    Join(JoinError),
    /// The team was not led.
    Lead(LeadError),
    /// The boards were lost; the text is their own reason, if they gave one.
    Step(StepError, Option<String>),
    /// This board cannot work.
    Node(NodeError),
    /// This board cannot be measured.
    Measure(String),
    /// A signal ended the work.
    Interrupted,
}

impl PartError {
    /// True if a file that the board was given, or has fetched, is bad.
    pub(crate) fn is_of_file(&self) -> bool {
        match self {
            PartError::Weights(_, PackError::Weights(e))
            | PartError::Node(NodeError::Weights(e)) => !matches!(e, CheckError::Interrupted),
            PartError::File { .. }
            | PartError::Open(_)
            | PartError::SomeRows(_)
            | PartError::Lacks { .. }
            | PartError::Partial(_)
            | PartError::Load(_) => true,
            PartError::Fleet(e) => {
                matches!(e, FleetError::Shares(_) | FleetError::File(_))
            }
            _ => false,
        }
    }

    /// True if other boards are lost, or refuse.
    pub(crate) fn is_of_boards(&self) -> bool {
        match self {
            PartError::Step(e, _) => match e {
                StepError::Ring(e) => e.is_lost(),
                e => matches!(e, StepError::Team(_)),
            },
            PartError::Layers(_, e) => !matches!(e, FetchError::File(..) | FetchError::Full(..)),
            PartError::Fleet(FleetError::NoneLeft(_)) => true,
            _ => false,
        }
    }

    /// True if the board's settings give it no part.
    pub(crate) fn is_of_settings(&self) -> bool {
        matches!(
            self,
            PartError::NoBoards
                | PartError::NoName
                | PartError::NoNext
                | PartError::NoOrigin
                | PartError::Beyond { .. }
                | PartError::OtherRole { .. }
                | PartError::OfTeam { .. }
                | PartError::StaysPut(_)
                | PartError::NoKey(_)
                | PartError::TeamObjective
                | PartError::NoWatts
                | PartError::Fleet(FleetError::Name(_))
                | PartError::NoFile
                | PartError::NoModel
        )
    }

    /// The error and all its sources in one line.
    pub(crate) fn chain(&self) -> String {
        let mut words = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            words = format!("{words}: {error}");
            source = error.source();
        }
        words
    }
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
            PartError::NoKey(Aim::Give) => write!(f, "only boards with the key get layers"),
            PartError::NoKey(Aim::Get) => write!(f, "layers are given to boards with the key only"),
            PartError::NoKey(Aim::Wait) => {
                write!(f, "a worker without a model waits for a master: it needs the key")
            }
            PartError::NoKey(Aim::Call) => write!(f, "boards are called with their key only"),
            PartError::TeamObjective => {
                write!(
                    f,
                    "a team is as quick as it can be for one stream: it has no other objective"
                )
            }
            PartError::NoWatts => write!(f, "a plan for energy needs the watts of this board"),
            PartError::Fleet(e) => e.fmt(f),
            PartError::NoFile => write!(f, "layers are given of a model file only"),
            PartError::NoModel => write!(f, "name a model file; this program has none built in"),
            e => e.fmt_work(f),
        }
    }
}

impl PartError {
    fn fmt_work(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unfit = |unfit: &Option<String>| match unfit {
            Some(unfit) => format!("; {unfit}"),
            None => String::new(),
        };
        match self {
            PartError::NoFolder(why) => write!(
                f,
                "no folder for the layers: {why}; set XDG_CACHE_HOME, or name a folder with --cache"
            ),
            PartError::Folder(path, e) => write!(f, "cannot make {}: {e}", path.display()),
            PartError::Open(e) => fmt::Display::fmt(e, f),
            PartError::Model(e) => write!(f, "cannot read the model: {e}"),
            PartError::SomeRows(name) => {
                write!(f, "the file has only some rows of its layers, and {name} needs all")
            }
            PartError::Lacks { name, held, wanted: Range { start, end }, n_layers } => write!(
                f,
                "the file holds layers {}..{} of {n_layers}, and {name} has {start}..{end}: give it the whole \
                 model, or what `leap export --layers {start}..{end}` writes",
                held.start, held.end,
            ),
            PartError::Partial(e) => fmt::Display::fmt(e, f),
            PartError::Engine(e) => fmt::Display::fmt(e, f),
            PartError::Weights(_, e) => fmt::Display::fmt(e, f),
            PartError::Links(e) => fmt::Display::fmt(e, f),
            PartError::Mesh(e) => fmt::Display::fmt(e, f),
            PartError::Listen { aim: Aim::Give, address, source } => {
                write!(f, "cannot give layers on {address} (TCP): {source}")
            }
            PartError::Listen { address, source, .. } => {
                write!(f, "cannot wait on {address} (TCP): {source}")
            }
            PartError::Random(e) => write!(f, "no random numbers: {e}"),
            PartError::Load(e) => fmt::Display::fmt(e, f),
            PartError::Watch(e) => write!(f, "cannot start the thread that moves parts: {e}"),
            PartError::Layers(from, e) => write!(f, "no layers from {from}: {e}"),
            PartError::Join(e) => fmt::Display::fmt(e, f),
            PartError::Lead(e) => fmt::Display::fmt(e, f),
            PartError::Step(e, why) => write!(f, "{e}{}", unfit(why)),
            PartError::Node(e) => fmt::Display::fmt(e, f),
            PartError::Measure(why) => f.write_str(why),
            PartError::Interrupted => write!(f, "interrupted"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for PartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PartError::Open(e) => e.source(),
            PartError::Partial(e) => e.source(),
            PartError::Engine(e) => e.source(),
            PartError::Links(e) => e.source(),
            PartError::Load(e) => e.source(),
            _ => None,
        }
    }
}
