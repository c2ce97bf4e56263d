//! Where boards without a model or a ring file get them: the values of `--give`, `--fetch`, `--join`, `--boards` and `--team`.

use std::path::{Path, PathBuf};

use crate::channel::PORT_DEFAULT;
use crate::fleet::wanted::Boards;
use crate::ring::Address;

/// Where layers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Origin {
    /// The first board of the ring file.
    Auto,
    /// This board.
    At(Address),
}

/// `auto` or a port.
pub(in crate::cli) fn port(value: &str) -> Result<u16, String> {
    match (value, value.parse()) {
        ("auto", _) => Ok(PORT_DEFAULT),
        (_, Ok(port)) if port > 0 => Ok(port),
        _ => Err(format!("{value:?} is neither auto nor a port")),
    }
}

/// `auto` or `auto:PORT`; else `HOST` or `HOST:PORT`, and more behind commas.
pub(in crate::cli) fn boards(value: &str) -> Result<Boards, String> {
    match value.split_once(':') {
        None if value == "auto" => return Ok(Boards::Auto(PORT_DEFAULT)),
        Some(("auto", port)) => return self::port(port).map(Boards::Auto),
        _ => {}
    }
    let boards: Result<Vec<Address>, String> =
        value.split(',').map(|board| Address::parse(board.trim(), PORT_DEFAULT)).collect();
    let boards = boards?;
    match boards.iter().enumerate().find(|(index, board)| boards[..*index].contains(board)) {
        Some((_, twice)) => Err(format!("{twice} is named twice")),
        None => Ok(Boards::Named(boards)),
    }
}

/// The boards of a team, and their shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum TeamOrigin {
    /// Boards that are called, by how quick they are.
    Auto,
    /// Those of this file.
    File(PathBuf),
}

impl TeamOrigin {
    /// The file, if it is one.
    pub(in crate::cli) fn file(&self) -> Option<&Path> {
        match self {
            TeamOrigin::Auto => None,
            TeamOrigin::File(path) => Some(path),
        }
    }

    /// Which boards are called with `--boards` like this.
    pub(in crate::cli) fn boards(&self, said: Option<&Boards>) -> Option<Boards> {
        match (self, said) {
            (_, Some(boards)) => Some(boards.clone()),
            (TeamOrigin::Auto, None) => Some(Boards::Auto(PORT_DEFAULT)),
            (TeamOrigin::File(_), None) => None,
        }
    }
}

/// `auto` or a file.
pub(in crate::cli) fn team(value: &str) -> Result<TeamOrigin, String> {
    match value {
        "" => Err("wanted a file, or auto".to_owned()),
        "auto" => Ok(TeamOrigin::Auto),
        path => Ok(TeamOrigin::File(PathBuf::from(path))),
    }
}

/// `auto`, `HOST` or `HOST:PORT`.
pub(in crate::cli) fn from(value: &str) -> Result<Origin, String> {
    match value {
        "auto" => Ok(Origin::Auto),
        place => Address::parse(place, PORT_DEFAULT).map(Origin::At),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_ports_are_read() {
        let at = |host: &str, port| Ok(Origin::At(Address { host: host.to_owned(), port }));
        assert_eq!(from("auto"), Ok(Origin::Auto));
        assert_eq!(from("desk"), at("desk", 9998));
        assert_eq!(from("[fd00::3]:7000"), at("fd00::3", 7000));
        assert!(from("desk:0").is_err() && from("").is_err() && from(":7").is_err());
        assert_eq!((port("auto"), port("7000")), (Ok(9998), Ok(7000)));
        let Ok(Boards::Named(named)) = boards("desk, [fd00::3]:7000") else { panic!("no names") };
        assert_eq!((named.len(), named[1].port), (2, 7000));
        assert_eq!(boards("auto"), Ok(Boards::Auto(9998)));
        assert_eq!(boards("auto:7000"), Ok(Boards::Auto(7000)));
        assert!(boards("auto:0").is_err());
        assert!(boards("").is_err() && boards("a,").is_err() && boards("a,b,a:9998").is_err());
        assert!(port("0").is_err() && port("70000").is_err() && port("x").is_err());
    }
}
