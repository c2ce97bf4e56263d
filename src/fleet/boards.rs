//! The boards that this one works with, and how their parts are known.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::PartError;
use super::events::Shape;
use crate::channel::PORT_DEFAULT;
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

impl Sought {
    /// Parses `auto`, `auto:PORT`, or `HOST` or `HOST:PORT` and more behind commas.
    ///
    /// # Errors
    /// If it is none of these, or names a board twice.
    pub fn parse(value: &str) -> Result<Sought, String> {
        let port = |port: &str| match port.parse() {
            Ok(port) if port > 0 => Ok(Sought::Auto(port)),
            _ => Err(format!("{port:?} is no port")),
        };
        match value.split_once(':') {
            None if value == "auto" => return Ok(Sought::Auto(PORT_DEFAULT)),
            Some(("auto", number)) => return port(number),
            _ => {}
        }
        let boards: Result<Vec<Address>, String> =
            value.split(',').map(|board| Address::parse(board.trim(), PORT_DEFAULT)).collect();
        let boards = boards?;
        match boards.iter().enumerate().find(|(index, board)| boards[..*index].contains(board)) {
            Some((_, twice)) => Err(format!("{twice} is named twice")),
            None => Ok(Sought::Named(boards)),
        }
    }
}

impl Boards {
    /// The boards of the file at `path`, with a line for each, and the master's name if the file has it. Lines with layers
    /// are a ring file, lines with shares a team file; the boards of other lines are called.
    ///
    /// # Errors
    /// If it cannot be read, or is bad.
    pub fn of_file(path: &Path) -> Result<(Boards, Option<String>), PartError> {
        let text = read(path)?;
        let bad = |what| PartError::File { file: path.display().to_string(), what };
        Ok(match Lines::of(text_without_mark(&text)).map_err(bad)? {
            Lines::Layers => (Boards::Layers(RingFile::At(path.to_owned())), None),
            Lines::Shares => (Boards::Shares(path.to_owned()), None),
            Lines::Called { list, master } => {
                let sought = Sought::parse(&list).map_err(bad)?;
                (Boards::Called(sought, Shape::Ring), master)
            }
        })
    }

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
    /// The lines are this text.
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

/// Columns in the lines of a file of boards.
#[derive(Debug, PartialEq, Eq)]
enum Lines {
    Layers,
    Shares,
    /// Neither layers nor shares: a list of boards, and the name of the master if the file says it.
    Called {
        list: String,
        master: Option<String>,
    },
}

impl Lines {
    fn of(text: &str) -> Result<Lines, String> {
        let bare = text.lines().map(|line| line.split('#').next().unwrap_or("").split_whitespace());
        let lines: Vec<Vec<&str>> =
            bare.map(Iterator::collect).filter(|words: &Vec<&str>| !words.is_empty()).collect();
        // Numbers of any kind, so that the team's parser can say which are no shares.
        let is_number = |word: &str| word.trim_end_matches('%').parse::<f64>().is_ok();
        let is_share = |words: &[&str]| words.len() == 3 && is_number(words[2]);
        if lines.iter().any(|words| words.len() > 2 && !is_share(words)) {
            return Ok(Lines::Layers);
        }
        if lines.iter().any(|words| is_share(words)) {
            return Ok(Lines::Shares);
        }
        let n_names = lines.iter().filter(|words| words.len() == 2).count();
        let (master, called) = match lines.split_first() {
            Some((first, others)) if n_names == lines.len() => (Some(first[0].to_owned()), others),
            Some(_) if n_names == 0 => (None, &lines[..]),
            Some(_) => return Err("some lines have a name and others have none".to_owned()),
            None => (None, &[][..]),
        };
        let called: Vec<&str> = called.iter().filter_map(|words| words.last().copied()).collect();
        match called.is_empty() {
            true => Err("there is no board to call in it".to_owned()),
            false => Ok(Lines::Called { list: called.join(","), master }),
        }
    }
}

/// The boards of the team file at `path`, the lead first.
///
/// # Errors
/// If it cannot be read, or is no team file.
pub(super) fn team(path: &Path) -> Result<Vec<TeamNode>, PartError> {
    let file = || path.display().to_string();
    TeamNode::parse_all(text_without_mark(&read(path)?))
        .map_err(|what| PartError::File { file: file(), what })
}

fn read(path: &Path) -> Result<String, PartError> {
    fs::read_to_string(path).map_err(|e| PartError::Unreadable(path.to_owned(), e))
}

/// Source of the layers of a board without a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the first board of the ring file.
    Auto,
    /// From this board.
    At(Address),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_layers_shares_or_neither_are_told_apart() {
        let lines = Lines::of;
        assert_eq!(
            lines("# x\ndesk 10.0.0.1 0..6\npi 10.0.0.2 6..12 threads=2"),
            Ok(Lines::Layers)
        );
        let place = "desk 10.0.0.1 0..6\nteam desk 10.0.0.1 40\nteam pi 10.0.0.2";
        assert_eq!(lines(place), Ok(Lines::Layers));
        for share in ["40", "40%", "-1", "1.5"] {
            let file = format!("desk 10.0.0.1 {share}\npi 10.0.0.2");
            assert_eq!(lines(&file), Ok(Lines::Shares), "{share}");
        }
        let called = |list: &str, master: Option<&str>| {
            Ok(Lines::Called { list: list.to_owned(), master: master.map(str::to_owned) })
        };
        let names = "desk 10.0.0.1\npi 10.0.0.2 # in the cellar\n\nfig [fd00::3]:7000";
        assert_eq!(lines(names), called("10.0.0.2,[fd00::3]:7000", Some("desk")));
        assert_eq!(lines("pi.local\n10.0.0.3:7000\n"), called("pi.local,10.0.0.3:7000", None));
        for bad in ["", "# none", "desk 10.0.0.1", "desk 10.0.0.1\n10.0.0.2"] {
            assert!(lines(bad).is_err(), "{bad:?}");
        }
    }
}
