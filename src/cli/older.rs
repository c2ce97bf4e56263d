//! Options with a newer form. They work as before; `leap help compatibility` lists them, and `--help` does
//! not.

use std::path::PathBuf;

use super::Failure;
use super::options::port;
use super::roles::Role;
use crate::channel::PORT_DEFAULT;
use crate::fleet::boards::{Boards, Origin, RingFile};
use crate::fleet::error::{Aim, PartError};
use crate::ring::{Address, PORT_DEFAULT as LINKS_PORT};

/// An option of earlier versions: no help of a command shows it, and it does what its successor does.
pub(super) struct Older {
    pub(super) option: &'static str,
    /// The option as the list shows it: with its value, if with another value it is an option of today.
    pub(super) shown: &'static str,
    /// Successor of the option.
    pub(super) instead: &'static str,
    /// The roles of `leap run` that have it.
    pub(super) roles: &'static [Role],
    is_of_serve: bool,
    /// Notes the option's value.
    note: fn(&mut Said, &str) -> Result<(), String>,
}

const BOTH: &[Role] = &[Role::Master, Role::Worker];
const MASTER: &[Role] = &[Role::Master];
const WORKER: &[Role] = &[Role::Worker];

const fn older(
    option: &'static str,
    roles: &'static [Role],
    is_of_serve: bool,
    instead: &'static str,
    note: fn(&mut Said, &str) -> Result<(), String>,
) -> Older {
    Older { option, shown: option, instead, roles, is_of_serve, note }
}

/// Older options that name boards, with their successors.
pub(super) const PLACES: &[Older] = &[
    older("--role", &Role::ALL, false, "leap master, leap worker", |said, value| {
        set(&mut said.role, Role::parse(value))
    }),
    older("--ring", BOTH, true, "--boards FILE, whose lines have layers", |said, value| {
        set(&mut said.ring, Ok(PathBuf::from(value)))
    }),
    older("--split", BOTH, false, "--boards FILE --node NAME", |said, value| {
        set(&mut said.split, number(value))
    }),
    older("--end", WORKER, false, "--boards FILE --node NAME", |said, value| {
        set(&mut said.end, number(value))
    }),
    older("--next-host", BOTH, false, "--boards FILE --node NAME", |said, value| {
        set(&mut said.next_host, Ok(value.to_owned()))
    }),
    older("--next-port", BOTH, false, "--boards FILE --node NAME", |said, value| {
        set(&mut said.next_port, value.parse().map_err(|_| "no port".to_owned()))
    }),
    older(
        "--give",
        MASTER,
        true,
        "--boards, which gives layers to boards without a model file",
        |said, value| set(&mut said.give, port(value)),
    ),
    older(
        "--fetch",
        WORKER,
        false,
        "--boards FILE --node NAME --key KEY, without a model file",
        |said, value| set(&mut said.fetch, origin(value)),
    ),
    older("--join", WORKER, false, "leap worker --key KEY", |said, value| {
        set(&mut said.join, port(value))
    }),
    Older {
        shown: "--team FILE",
        ..older("--team", BOTH, true, "--boards FILE, whose lines have shares", |said, value| {
            let is_path = !value.is_empty();
            let path = is_path.then(|| PathBuf::from(value));
            set(&mut said.team, path.ok_or_else(|| "wanted a file, or auto".to_owned()))
        })
    },
];

/// Values of the options of earlier versions on a command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) role: Option<Role>,
    ring: Option<PathBuf>,
    team: Option<PathBuf>,
    /// Layers of the master; first layer of a worker.
    split: Option<usize>,
    /// The layer behind a worker's last.
    end: Option<usize>,
    next_host: Option<String>,
    next_port: Option<u16>,
    /// TCP port on which this board gives others their layers.
    pub(super) give: Option<u16>,
    /// Source of a worker's layers.
    pub(super) fetch: Option<Origin>,
    /// TCP port on which a worker waits.
    join: Option<u16>,
}

/// The older option of this name, if the command has it; `None` if its value belongs to today's option of that name.
pub(super) fn find(command: &str, option: &str, value: Option<&str>) -> Option<&'static Older> {
    let has = |older: &&Older| command == "run" || (command == "serve" && older.is_of_serve);
    let older = PLACES.iter().filter(has).find(|older| older.option == option)?;
    (older.option == older.shown || value.is_some_and(|value| value != "auto")).then_some(older)
}

/// Names of the older options that the command has.
pub(super) fn names(command: &str) -> impl Iterator<Item = &'static str> {
    let found = |older: &&Older| find(command, older.option, None).is_some();
    PLACES.iter().filter(found).map(|older| older.option)
}

impl Said {
    /// Notes the value of an older option.
    pub(super) fn note(&mut self, older: &Older, value: &str) -> Result<(), Failure> {
        let option = older.option;
        (older.note)(self, value).map_err(|why| Failure::Usage(format!("{option} {value}: {why}")))
    }

    /// The boards that older options name, and the option that names them.
    pub(super) fn boards(
        &self,
        is_master: bool,
    ) -> Result<Option<(Boards, &'static str)>, Failure> {
        let layers = |path: &PathBuf| Boards::Layers(RingFile::At(path.clone()));
        let named = [
            (self.ring.as_ref().map(layers), "--ring"),
            (self.next(is_master), "--split"),
            (self.team.clone().map(Boards::Shares), "--team"),
            (self.join.map(Boards::Waiting), "--join"),
        ];
        let mut named = named.into_iter().filter_map(|(boards, by)| Some((boards?, by)));
        match (named.next(), named.next()) {
            (Some((_, by)), Some((_, other))) => {
                Err(Failure::Usage(format!("{by} names the boards: no {other} beside it")))
            }
            (only, _) => Ok(only),
        }
    }

    fn next(&self, is_master: bool) -> Option<Boards> {
        let split = self.split?;
        let layers = if is_master { (0, Some(split)) } else { (split, self.end) };
        let port = self.next_port.unwrap_or(LINKS_PORT);
        let next = self.next_host.clone().map(|host| Address { host, port });
        Some(Boards::Next { layers, next })
    }
}

/// Sets what is not set yet.
fn set<T>(slot: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    match slot.replace(value?) {
        None => Ok(()),
        Some(_) => Err("the option is given twice".to_owned()),
    }
}

fn number(value: &str) -> Result<usize, String> {
    value.parse().map_err(|_| "wanted a number of layers".to_owned())
}

/// `auto`, `HOST` or `HOST:PORT`.
fn origin(value: &str) -> Result<Origin, String> {
    match value {
        "auto" => Ok(Origin::Auto),
        place => Address::parse(place, PORT_DEFAULT).map(Origin::At),
    }
}

/// The message about an option that is missing beside options of earlier versions.
pub(super) fn words(error: &PartError) -> String {
    match error {
        PartError::NoNext => "--split needs --next-host".to_owned(),
        PartError::NoKey(Aim::Give) => {
            "--give needs --key: only boards with the key get the model".to_owned()
        }
        PartError::NoKey(Aim::Get) => {
            "--fetch needs --key: the key file of the board that gives".to_owned()
        }
        PartError::NoFile => {
            "--give needs a model file; the built-in model is part of the program".to_owned()
        }
        PartError::NoOrigin => {
            "--fetch auto needs --boards FILE or --ring FILE; else name the board".to_owned()
        }
        e => e.to_string(),
    }
}

/// An option that is a setting of the machine: a variable of the environment says it once for all runs.
pub(super) struct Setting {
    pub(super) option: &'static str,
    pub(super) variable: &'static str,
    /// Meaning of the option in a few words.
    pub(super) brief: &'static str,
    /// An option that sets the same in another way, or excludes it: if it is given, the variable does not
    /// count.
    pub(super) rival: &'static str,
}

const fn setting(
    (option, variable): (&'static str, &'static str),
    rival: &'static str,
    brief: &'static str,
) -> Setting {
    Setting { option, variable, brief, rival }
}

/// Help text before the list of [`SETTINGS`].
pub(super) const MACHINE_SETTINGS: &str = "Options that are set once for a machine, by a variable of the environment. \
     /etc/leap/leap.conf, with the names without LEAP_, is read by the services leap-worker, leap-master and leap-serve \
     alone";

/// Options of `run` and `serve` that are settings.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        ("--busy-poll", "LEAP_BUSY_POLL"),
        "",
        "microseconds to look for datagrams before sleeping (50)",
    ),
    setting(("--drain-s", "LEAP_DRAIN_S"), "", "seconds for answers under way when it ends"),
    setting(("--huge", "LEAP_HUGE"), "", "weights in huge pages: auto, on or off"),
    setting(
        ("--objective", "LEAP_OBJECTIVE"),
        "--team",
        "latency, throughput, energy or memory (with --boards)",
    ),
    setting(
        ("--power-cmd", "LEAP_POWER_CMD"),
        "--watts",
        "command that prints the watts taken, a line each",
    ),
    setting(
        ("--ring-timeout", "LEAP_RING_TIMEOUT"),
        "",
        "seconds without progress of a ring (120; 0: any)",
    ),
    setting(("--stall-ms", "LEAP_STALL_MS"), "", "longest that a prompt holds up other answers"),
    setting(
        ("--watts", "LEAP_WATTS"),
        "--power-cmd",
        "IDLE,BUSY: what the machine takes, unmeasured",
    ),
];

/// True if the help of this command leaves the option out.
pub(super) fn is_setting(command: &str, option: &str) -> bool {
    matches!(command, "run" | "serve") && SETTINGS.iter().any(|setting| setting.option == option)
}

/// Help text about the format of a file of boards.
pub(super) const BOARDS_FILE: &str = "A file of --boards has a line for each board, this one's master first: a name, an \
     address, and layers (`pi 10.0.0.2 6..12`: a ring), or a share (`pi 10.0.0.2 20`: a team), or neither \
     (`pi 10.0.0.2`: the boards are called, and the master finds out). A file's name has a / or a dot in it.";

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[(&str, &str)]) -> Said {
        let mut said = Said::default();
        for (option, value) in words {
            let older = find("run", option, Some(value)).unwrap();
            said.note(older, value).ok().unwrap();
        }
        said
    }

    fn boards(words: &[(&str, &str)], is_master: bool) -> Option<(Boards, &'static str)> {
        said(words).boards(is_master).ok().unwrap()
    }

    #[test]
    fn each_older_option_says_what_its_successor_says() {
        let at = |host: &str, port| Address { host: host.to_owned(), port };
        let ring = Boards::Layers(RingFile::At("r".into()));
        assert_eq!(boards(&[("--ring", "r")], true), Some((ring, "--ring")));
        let team = Some((Boards::Shares("t".into()), "--team"));
        assert_eq!(boards(&[("--team", "t")], false), team);
        assert_eq!(boards(&[("--join", "7")], false), Some((Boards::Waiting(7), "--join")));
        let alone = [("--split", "2"), ("--next-host", "pi")];
        let next = |layers| Some((Boards::Next { layers, next: Some(at("pi", 9999)) }, "--split"));
        assert_eq!(boards(&alone, true), next((0, Some(2))));
        assert_eq!(boards(&alone, false), next((2, None)));
        assert_eq!(boards(&[alone[0], alone[1], ("--end", "5")], false), next((2, Some(5))));
        assert_eq!(said(&[("--role", "worker")]).role, Some(Role::Worker));
        assert_eq!(said(&[("--give", "auto")]).give, Some(9998));
        let from = |value| said(&[("--fetch", value)]).fetch.unwrap();
        assert_eq!((from("auto"), from("pi")), (Origin::Auto, Origin::At(at("pi", 9998))));
        assert_eq!(from("[fd00::3]:7000"), Origin::At(at("fd00::3", 7000)));
    }

    #[test]
    fn older_options_that_contradict_each_other_are_both_named() {
        for (words, wanted) in [
            (&[("--ring", "r"), ("--split", "2")][..], "--ring names the boards: no --split"),
            (&[("--ring", "r"), ("--join", "auto")], "--ring names the boards: no --join"),
        ] {
            let Err(Failure::Usage(what)) = said(words).boards(false) else { panic!("{words:?}") };
            assert!(what.starts_with(wanted), "{what}");
        }
        for (option, bad) in [("--give", "0"), ("--fetch", ":"), ("--split", "x"), ("--team", "")] {
            let older = find("run", option, Some(bad)).unwrap();
            let Err(Failure::Usage(what)) = Said::default().note(older, bad) else { panic!() };
            assert!(what.starts_with(&format!("{option} {bad}: ")), "{what}");
        }
        let older = find("run", "--ring", Some("r")).unwrap();
        assert!(said(&[("--ring", "r")]).note(older, "r").is_err());
    }

    #[test]
    fn commands_have_their_own_older_options() {
        assert!(find("serve", "--give", Some("auto")).is_some());
        assert!(find("serve", "--split", Some("1")).is_none());
        assert!(find("bench", "--ring", Some("r")).is_none());
        assert!(find("run", "--team", Some("auto")).is_none());
    }
}
