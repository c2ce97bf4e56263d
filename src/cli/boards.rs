//! The boards that a command line names: `--boards`, and the options of earlier versions that do so.

use std::path::{Path, PathBuf};

use super::Failure;
use super::checkpoint::load_failure;
use super::options::engine_failure;
use super::words::Line;
use super::{older, weights};
use crate::channel::PORT_DEFAULT;
use crate::fleet::boards::{Boards, Origin, Sought};
use crate::fleet::error::{Aim, PartError};
use crate::fleet::events::Shape;
use crate::fleet::settings::Settings;

/// A value of `--boards`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Boards that are called.
    Called(Sought),
    /// A file with a line for each board.
    File(PathBuf),
}

/// `--team auto`: the boards share every layer.
pub(super) struct Auto;

/// `auto` or `auto:PORT`; a file; else `HOST` or `HOST:PORT`, and more behind commas.
pub(super) fn parse(value: &str) -> Result<Value, String> {
    match is_file(value) {
        true => Ok(Value::File(PathBuf::from(value))),
        false => Sought::parse(value).map(Value::Called),
    }
}

/// `auto` alone: files of teams are values of `--boards`.
pub(super) fn team(value: &str) -> Result<Auto, String> {
    if value == "auto" { Ok(Auto) } else { Err("wanted auto, or a file".to_owned()) }
}

/// True if a value of `--boards` names a file. A path has a `/`, which no address has; a name without a `/` is a file if
/// it exists. The board of such a name can be called with its port.
fn is_file(value: &str) -> bool {
    value.contains('/') || Path::new(value).is_file()
}

/// Options of a command line that concern its boards.
pub(super) struct Said<'a> {
    pub(super) boards: Option<&'a Value>,
    /// True with `--team auto`.
    pub(super) is_team: bool,
    /// Command line with the options of earlier versions.
    pub(super) line: &'a Line,
    pub(super) is_master: bool,
    /// True if the board has its part of the model, or needs none.
    pub(super) has_model: bool,
    pub(super) has_key: bool,
}

/// The boards that a command line names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) boards: Boards,
    /// The option that names them.
    pub(super) by: &'static str,
    /// TCP port on which this board gives others their layers.
    pub(super) gives: Option<u16>,
    /// Source of this board's layers, if it has no model file.
    pub(super) gets: Option<Origin>,
    /// Name of the master, in a file of boards that calls the others.
    pub(super) master: Option<String>,
}

impl Named {
    fn new(boards: Boards, by: &'static str) -> Named {
        Named { boards, by, gives: None, gets: None, master: None }
    }

    /// True if there are other boards, or may be.
    #[cfg(any(feature = "serve", feature = "tools"))]
    pub(super) fn has_others(&self) -> bool {
        self.boards != Boards::Alone || self.gives.is_some() || self.gets.is_some()
    }

    /// A board's settings among these, the usual ones where these options say nothing.
    pub(super) fn settings(self, is_master: bool) -> Settings {
        let Named { boards, by, gives, gets, master } = self;
        Settings { named_by: by, node: master, gives, gets, ..Settings::new(boards, is_master) }
    }

    /// The boards that are named by `said`.
    pub(super) fn find(said: &Said<'_>) -> Result<Named, Failure> {
        let all = Value::Called(Sought::Auto(PORT_DEFAULT));
        let named = match (said.boards, said.is_team, said.line.older.boards(said.is_master)?) {
            (None, false, None) => Named::unsaid(said),
            (None, false, Some((boards, by))) => Named::new(boards, by),
            (boards, _, Some((_, by))) => {
                let newer = if boards.is_some() { "--boards" } else { "--team auto" };
                return Err(Failure::Usage(format!("{newer} names the boards: no {by} beside it")));
            }
            (boards, is_team, None) => match boards.unwrap_or(&all) {
                Value::Called(sought) => called_by(sought.clone(), is_team),
                Value::File(path) => file(path, is_team, said)?,
            },
        };
        let Named { gives, gets, .. } = &named;
        let gives = said.line.older.give.or(*gives);
        let gets = said.line.older.fetch.clone().or_else(|| gets.clone());
        let named = Named { gives, gets, ..named };
        named.check(said)?;
        named.check_wishes(said)?;
        Ok(named)
    }

    /// The boards where the command line names none: a worker with a key alone waits for a master.
    fn unsaid(said: &Said<'_>) -> Named {
        let waits =
            !said.is_master && said.has_key && !said.has_model && said.line.older.fetch.is_none();
        match waits {
            true => Named::new(Boards::Waiting(PORT_DEFAULT), "--key"),
            false => Named::new(Boards::Alone, ""),
        }
    }

    /// Refuses wishes that these boards cannot fulfil.
    fn check_wishes(&self, said: &Said<'_>) -> Result<(), Failure> {
        let usage = |what: &str| Err(Failure::Usage(what.to_owned()));
        let is_team = matches!(self.boards, Boards::Shares(_) | Boards::Called(_, Shape::Team));
        if is_team && said.line.has("--prefix-cache") {
            return usage(
                "--prefix-cache is for one board or a ring; in a team no board has whole pages",
            );
        }
        let of_layers = ["--rebalance-after", "--objective"];
        let given = of_layers.into_iter().find(|option| said.line.has(option));
        if let (Boards::Shares(_), Some(option)) = (&self.boards, given) {
            return usage(&format!(
                "{option} is for boards that are called and for rings; shares stay as a team's file has them"
            ));
        }
        let is_fixed = !matches!(self.boards, Boards::Called(..) | Boards::Alone);
        match is_fixed && said.line.has("--take") {
            false => Ok(()),
            true => usage(&format!(
                "--take is for boards that are called, by --boards auto, --boards HOST,... or a file without \
                 layers and shares; {} says what each board has",
                self.by
            )),
        }
    }

    /// Refuses what contradicts these boards.
    fn check(&self, said: &Said<'_>) -> Result<(), Failure> {
        let usage = |what: String| Err(Failure::Usage(what));
        let by = self.by;
        let is_fixed = matches!(self.boards, Boards::Layers(_) | Boards::Next { .. });
        match &self.boards {
            Boards::Called(..) if !said.is_master && by != "--boards" => usage(format!(
                "{by} is the lead's; a worker that waits for it needs only --key"
            )),
            Boards::Called(..) if !said.is_master => usage(
                "--boards is no option of a worker without a file of layers or shares; it is for leap \
                 master; a worker that waits for a master needs only --key"
                    .to_owned(),
            ),
            Boards::Called(..) if !said.has_model => {
                usage(format!("{by} divides a model: name its file"))
            }
            Boards::Waiting(_) if said.has_model => {
                usage(format!("{by} gets the layers from the master; give no model file"))
            }
            Boards::Alone => Ok(()),
            _ if said.line.older.fetch.is_some() && !is_fixed => {
                usage(format!("{by} says where the layers come from; no --fetch beside it"))
            }
            Boards::Shares(_) if said.line.older.give.is_some() => {
                usage(format!("{by} is for boards that share every layer: leave out --give"))
            }
            _ => Ok(()),
        }
    }
}

/// The message for a board that needs others and names none, with the usual ways to name them. `has_both`: the
/// command line has a model file and a key.
pub(super) fn no_boards(is_master: bool, has_both: bool) -> &'static str {
    match (is_master, has_both) {
        (true, _) => {
            "a master needs boards: `leap master MODEL --boards auto --key ring.key` finds those on this \
             network that run `leap worker --key ring.key`; --boards HOST,... or --boards FILE names them"
        }
        (false, true) => {
            "a worker that waits for a master gets its layers from it: leave out the model file, as in `leap \
             worker --key ring.key`; or name the boards with --boards FILE --node NAME"
        }
        (false, false) => {
            "a worker needs the key of its boards: `leap worker --key ring.key` waits for a master with the \
             same key and --boards auto; --boards FILE --node NAME is for a file with the part of each board"
        }
    }
}

fn called_by(sought: Sought, is_team: bool) -> Named {
    match is_team {
        true => Named::new(Boards::Called(sought, Shape::Team), "--team auto"),
        false => Named::new(Boards::Called(sought, Shape::Ring), "--boards"),
    }
}

/// The boards of the file at `path`.
fn file(path: &Path, is_team: bool, said: &Said<'_>) -> Result<Named, Failure> {
    let (boards, master) = Boards::of_file(path).map_err(|e| failure("--boards", e))?;
    let what = match boards {
        Boards::Called(sought, _) => return Ok(Named { master, ..called_by(sought, is_team) }),
        Boards::Layers(_) if !is_team => {
            // Boards without a model file get their layers from the master.
            let gives = said.has_key && said.is_master && said.has_model;
            let gets = said.has_key && !said.is_master && !said.has_model;
            let (gives, gets) = (gives.then_some(PORT_DEFAULT), gets.then_some(Origin::Auto));
            return Ok(Named { gives, gets, ..Named::new(boards, "--boards") });
        }
        boards if !is_team => return Ok(Named::new(boards, "--boards")),
        Boards::Layers(_) => "layers",
        _ => "shares",
    };
    let shown = path.display();
    Err(Failure::Usage(format!("{shown} names the {what} of the boards: leave out --team auto")))
}

/// The failure, with its exit code, of a board that cannot do its part. The option `by` names the boards.
pub(super) fn failure(by: &str, error: PartError) -> Failure {
    match error {
        PartError::Interrupted => Failure::Interrupted,
        PartError::Unreadable(path, e) => Failure::unreadable(&path, &e),
        PartError::Open(e) => load_failure(&e),
        PartError::Engine(e) => engine_failure(e),
        PartError::Weights(model, e) => weights::failure(model.as_deref(), &e),
        e if e.is_of_settings() => Failure::Usage(usage(by, &e)),
        e if e.is_of_file() => Failure::input(&e),
        e if e.is_of_boards() => Failure::Ring(e.to_string()),
        e => Failure::runtime(&e),
    }
}

/// The message about settings that give a board no part, with the options that mend it.
fn usage(by: &str, error: &PartError) -> String {
    match error {
        PartError::NoName => format!("{by} needs --node NAME on a worker"),
        PartError::Beyond { layers, n_layers } => {
            format!("{by} gives layers {}..{} of 0..{n_layers}", layers.start, layers.end)
        }
        PartError::StaysPut(team) => {
            format!("--rebalance-after cannot move the layers of {team}, which is a team")
        }
        PartError::NoKey(Aim::Call) => format!("{by} needs --key: the key file of the boards"),
        PartError::TeamObjective => {
            "--objective is for rings: a team is as quick as it can be for one stream".to_owned()
        }
        PartError::NoWatts => {
            "--objective energy needs --watts IDLE,BUSY of this board, and of each worker without a sensor"
                .to_owned()
        }
        PartError::NoKey(Aim::Wait) => {
            "a worker without a model waits for a master: it needs --key".to_owned()
        }
        e => older::words(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_are_read() {
        let Ok(Value::Called(Sought::Named(named))) = parse("desk, [fd00::3]:7000") else {
            panic!("no names")
        };
        assert_eq!((named.len(), named[1].port), (2, 7000));
        let auto = |port| Ok(Value::Called(Sought::Auto(port)));
        assert_eq!((parse("auto"), parse("auto:7000")), (auto(9998), auto(7000)));
        assert_eq!(parse("./pi"), Ok(Value::File("./pi".into())));
        assert!(parse("auto:0").is_err());
        assert!(parse("").is_err() && parse("a,").is_err() && parse("a,b,a:9998").is_err());
    }

    #[test]
    fn a_thread_that_the_system_refuses_is_not_blamed_on_an_option_that_was_not_given() {
        let refused = std::io::Error::other("no threads");
        let Failure::Runtime(what) = failure("--boards", PartError::Watch(refused)) else {
            panic!("another kind of failure")
        };
        assert_eq!(what, "cannot start the thread that moves parts: no threads");
    }

    #[test]
    fn a_name_is_a_board_unless_a_file_has_it() {
        assert!(!is_file("pi") && !is_file("auto") && !is_file("10.0.0.2,10.0.0.3"));
        assert!(is_file("/no/boards") && is_file("Cargo.toml") && is_file("LICENSE-MIT"));
    }
}
