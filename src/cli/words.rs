//! The words of a command line: which are commands and options, and which are values.

use std::path::Path;

use argh::{CommandInfoWithArgs, FlagInfo, FlagInfoKind};

use super::older::{self, SETTINGS};
use super::roles::{Role, roles};
use super::{Failure, pairs};

/// Request of a command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The version of the program.
    Version,
    /// Help for the program.
    Help,
    /// Help for one command: its main options, or all of them.
    HelpOf(Command),
    AllOf(Command),
    /// Successors of older options.
    Older,
    /// The manual page, for packages of the program and for systems without one.
    #[cfg(feature = "manual")]
    Manual,
    Run(Line),
}

/// A command line that is to be followed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The words that `argh` reads: a command, options and their values, each a word of its own.
    pub(super) words: Vec<String>,
    /// Role of this board, for the commands that have roles.
    pub(super) role: Role,
    /// Values of options of earlier versions.
    pub(super) older: older::Said,
    /// Options and positionals on the command line; settings of the environment are none of them.
    pub(super) given: Vec<&'static str>,
}

impl Line {
    /// Whether the command line has this option.
    pub(super) fn has(&self, long: &str) -> bool {
        self.given.contains(&long)
    }
}

/// A command as the user calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// Name by which `argh` knows the command.
    pub(super) name: &'static str,
    /// Role in a ring that the typed name stands for.
    pub(super) role: Option<Role>,
}

impl Command {
    /// The name that was typed, or could have been.
    pub(super) fn shown(self) -> &'static str {
        self.role.map_or(self.name, Role::name)
    }
}

/// Parses `argv`, the program's name first.
pub(super) fn read(argv: Vec<String>, commands: &[CommandInfoWithArgs]) -> Result<Asked, Failure> {
    let mut argv = argv.into_iter();
    let program = argv.next().unwrap_or_default();
    let name = Path::new(&program).file_name().and_then(|n| n.to_str()).unwrap_or("leap");
    let mut words = argv.peekable();
    let first = match applet(name) {
        Some(applet) => applet.to_owned(),
        None => words.next().unwrap_or_else(|| "run".to_owned()),
    };
    match first.as_str() {
        "--version" | "-V" => return Ok(Asked::Version),
        "--help" | "--help-all" | "-h" => return Ok(Asked::Help),
        "help" => {
            return match words.next() {
                #[cfg(feature = "manual")]
                Some(word) if word == "--man" => Ok(Asked::Manual),
                Some(word) if word == "compatibility" => Ok(Asked::Older),
                Some(word) => Ok(Asked::HelpOf(command(&word, commands)?.0)),
                None => Ok(Asked::Help),
            };
        }
        _ => {}
    }
    let (command, info) = command(&first, commands)?;
    options(command, info, words)
}

fn applet(name: &str) -> Option<&'static str> {
    ["inference", "run", "export", "master", "worker", "tokenizer"]
        .into_iter()
        .find(|&applet| applet == name)
}

fn command<'c>(
    word: &str,
    commands: &'c [CommandInfoWithArgs],
) -> Result<(Command, &'c CommandInfoWithArgs), Failure> {
    let (name, role) = match word {
        "inference" => ("run", None),
        "master" => ("run", Some(Role::Master)),
        "worker" => ("run", Some(Role::Worker)),
        other => (other, None),
    };
    if let Some(info) = commands.iter().find(|info| info.name == name) {
        return Ok((Command { name: info.name, role }, info));
    }
    let names = commands.iter().map(|info| info.name);
    let hint = match nearest(word, names.chain(["master", "worker", "help"])) {
        // A path is none of a command's misspellings.
        Some(name) if !word.contains('/') => format!("did you mean {name}?"),
        _ => "`leap run` runs a model".to_owned(),
    };
    Err(Failure::Usage(format!("{word:?} is no command; {hint} (leap --help lists all)")))
}

/// Options whose value is a text, which may be empty.
const TEXTS: [&str; 3] = ["--prompt", "--suffix", "--system"];

/// A command line while it is parsed.
struct Reader {
    command: Command,
    words: Vec<String>,
    older: older::Said,
    /// Options given so far.
    given: Vec<&'static str>,
}

/// Separates options from values. The word after an option that takes a value is its value, even if it looks like an
/// option.
fn options(
    command: Command,
    info: &CommandInfoWithArgs,
    mut rest: impl Iterator<Item = String>,
) -> Result<Asked, Failure> {
    let mut line = Reader::new(command);
    let mut names = info.positionals.iter().map(|positional| positional.name);
    while let Some(word) = rest.next() {
        if word == "--" {
            line.words.push(word);
            rest.by_ref().try_for_each(|word| line.positional(names.next(), word))?;
        } else if matches!(word.as_str(), "--help" | "-h" | "help") {
            return Ok(Asked::HelpOf(Command { role: line.role(), ..command }));
        } else if word == "--help-all" {
            return Ok(Asked::AllOf(Command { role: line.role(), ..command }));
        } else if !word.starts_with('-') {
            line.positional(names.next(), word)?;
        } else {
            let (option, value) = find(command, info, &word)?;
            let value = take_value(&option, value, &mut rest)?;
            line.option(option.long, value)?;
        }
    }
    line.complete(info).map(Asked::Run)
}

impl Reader {
    fn new(command: Command) -> Reader {
        let words = vec![command.name.to_owned()];
        Reader { command, words, older: older::Said::default(), given: Vec::new() }
    }

    /// Role of this board, if the command line gives it.
    fn role(&self) -> Option<Role> {
        self.command.role.or(self.older.role)
    }

    /// Notes a word that belongs to no option: the value of the positional called `name`, if there is one more.
    fn positional(&mut self, name: Option<&'static str>, word: String) -> Result<(), Failure> {
        if let Some(name) = name {
            check_value(&name.to_uppercase(), &word)?;
            self.given.push(name);
        }
        self.words.push(word);
        Ok(())
    }

    fn option(&mut self, long: &'static str, value: Option<String>) -> Result<(), Failure> {
        self.given.push(long);
        if let Some(value) = value.as_deref().filter(|_| !TEXTS.contains(&long)) {
            check_value(long, value)?;
        }
        if let Some(value) = &value
            && let Some(older) = older::find(self.command.name, long, Some(value))
        {
            return self.older.note(older, value);
        }
        self.words.push(long.to_owned());
        self.words.extend(value);
        Ok(())
    }

    /// Adds settings of the environment, and refuses options that this board's role does not have.
    fn complete(mut self, info: &CommandInfoWithArgs) -> Result<Line, Failure> {
        let Command { name, role } = self.command;
        if let (Some(role), Some(_)) = (role, self.older.role) {
            let name = role.name();
            return Err(Failure::Usage(format!("leap {name} is a {name}: leave out --role")));
        }
        let has_boards = ["--team", "--boards"].iter().any(|long| self.given.contains(long));
        let role = match self.role() {
            Some(role) => role,
            // The board that takes prompts leads the others.
            None if has_boards => Role::Master,
            None => Role::Single,
        };
        let given = self.given.clone();
        self.settings(info, role);
        if name == "run" {
            check_role(role, &self.given)?;
        }
        pairs::check(name, &given)?;
        Ok(Line { words: self.words, role, older: self.older, given })
    }

    /// Adds an option before all others, because a `--` may precede the last ones.
    fn before(&mut self, long: &'static str, value: &str) {
        self.given.push(long);
        self.words.splice(1..1, [long, value].map(str::to_owned));
    }

    /// Adds settings of the environment that the command line does not give.
    fn settings(&mut self, info: &CommandInfoWithArgs, role: Role) {
        let name = self.command.name;
        for setting in SETTINGS {
            let has_option = matches!(name, "run" | "serve")
                && info.flags.iter().any(|flag| flag.long == setting.option)
                && (name != "run" || roles(setting.option).contains(&role));
            let is_said =
                self.given.contains(&setting.option) || self.given.contains(&setting.rival);
            let value = std::env::var(setting.variable).ok().filter(|value| !value.is_empty());
            if let (true, false, Some(value)) = (has_option, is_said, value) {
                self.before(setting.option, &value);
            }
        }
    }
}

/// An option that a command has.
struct Known {
    long: &'static str,
    is_switch: bool,
    /// Description of the option; empty for an option of earlier versions.
    about: &'static str,
}

/// The option that `word` names, and the value behind its `=`.
fn find<'w>(
    command: Command,
    info: &CommandInfoWithArgs,
    word: &'w str,
) -> Result<(Known, Option<&'w str>), Failure> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) if name.starts_with("--") => (name, Some(value)),
        _ => (word, None),
    };
    let is_named = |flag: &&FlagInfo<'_>| {
        let short = name.strip_prefix('-').and_then(|short| {
            let mut chars = short.chars();
            chars.next().filter(|_| chars.next().is_none())
        });
        flag.long == name || (short.is_some() && flag.short == short)
    };
    if let Some(flag) = info.flags.iter().find(is_named) {
        let is_switch = matches!(flag.kind, FlagInfoKind::Switch);
        let about = flag.description;
        return Ok((Known { long: flag.long, is_switch, about }, value));
    }
    if let Some(older) = older::find(command.name, name, None) {
        return Ok((Known { long: older.option, is_switch: false, about: "" }, value));
    }
    let names = info.flags.iter().map(|flag| flag.long).chain(older::names(command.name));
    let hint = match nearest(name, names) {
        Some(long) => format!("; did you mean {long}?"),
        None => String::new(),
    };
    let command = command.shown();
    Err(Failure::Usage(format!(
        "leap {command} has no option {name}{hint} (leap {command} --help lists all)"
    )))
}

fn take_value(
    Known { long, is_switch, about }: &Known,
    value: Option<&str>,
    rest: &mut impl Iterator<Item = String>,
) -> Result<Option<String>, Failure> {
    match (is_switch, value) {
        (true, None) => Ok(None),
        (true, Some(_)) => Err(Failure::Usage(format!("{long} takes no value"))),
        (false, Some(value)) => Ok(Some(value.to_owned())),
        (false, None) => {
            let about = if about.is_empty() { "" } else { &format!(": {about}") };
            let problem = || Failure::Usage(format!("{long} needs a value{about}"));
            rest.next().map(Some).ok_or_else(problem)
        }
    }
}

/// Refuses an empty value: it names nothing, and messages about it would have a hole.
fn check_value(name: &str, value: &str) -> Result<(), Failure> {
    match value.trim().is_empty() {
        true => Err(Failure::Usage(format!(
            "{name} {value:?}: the value is empty, as if by a variable that is not set; give one, or leave \
             {name} out"
        ))),
        false => Ok(()),
    }
}

/// The roles that have this option of `leap run`, of this version or of earlier ones.
fn roles_of(option: &str) -> &'static [Role] {
    older::find("run", option, None).map_or_else(|| roles(option), |older| older.roles)
}

/// Refuses options of `leap run` that this role does not have.
fn check_role(role: Role, given: &[&str]) -> Result<(), Failure> {
    let Some(option) = given.iter().find(|option| !roles_of(option).contains(&role)) else {
        return Ok(());
    };
    let command = match role {
        Role::Single => "leap run without boards",
        role => role.command(),
    };
    let owners: Vec<&str> = roles_of(option).iter().map(|role| role.command()).collect();
    Err(Failure::Usage(format!(
        "{option} is no option of {command}; it is for {}",
        owners.join(" and ")
    )))
}

/// The name most similar to `word`, if one is similar enough.
fn nearest<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let bare = |name: &'n str| name.trim_start_matches('-');
    let word = word.trim_start_matches('-');
    let begins = |a: &str, b: &str| b.len() >= 3 && a.starts_with(b);
    let rated = names.filter_map(|name| {
        let distance = match bare(name) {
            name if begins(word, name) || begins(name, word) => 1,
            name => distance(word, name),
        };
        // A third of the letters may be wrong.
        (distance <= word.chars().count().max(3) / 3).then_some((distance, name))
    });
    rated.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Edit distance: letters to add, drop, change or swap with the next one to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > b.len() {
        return usize::MAX;
    }
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let changed = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = changed.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands;

    fn asked(argv: &[&str]) -> Asked {
        let argv = argv.iter().map(|&word| word.to_owned()).collect();
        match read(argv, &commands()) {
            Ok(asked) => asked,
            Err(Failure::Usage(problem)) => panic!("{problem}"),
            Err(_) => panic!(),
        }
    }

    fn line(argv: &[&str]) -> Line {
        match asked(argv) {
            Asked::Run(line) => line,
            other => panic!("{other:?}"),
        }
    }

    fn words(argv: &[&str]) -> Vec<String> {
        line(argv).words
    }

    fn problem(argv: &[&str]) -> String {
        let argv = argv.iter().map(|&word| word.to_owned()).collect();
        match read(argv, &commands()) {
            Err(Failure::Usage(problem)) => problem,
            _ => panic!("no problem"),
        }
    }

    #[test]
    fn program_name_selects_the_applet() {
        assert_eq!(words(&["/usr/bin/leap"]), ["run"]);
        assert_eq!(words(&["./inference", "m.bin"]), ["run", "m.bin"]);
        assert_eq!(words(&["leap", "inference"]), ["run"]);
        let Line { words, role, .. } = line(&["leap", "worker", "m.bin"]);
        assert_eq!((words, role), (vec!["run".to_owned(), "m.bin".to_owned()], Role::Worker));
        assert_eq!(line(&["/bin/master"]).role, Role::Master);
    }

    #[test]
    fn assignments_are_split_where_an_option_stands() {
        assert_eq!(words(&["leap", "run", "--temp=0", "a=b"]), ["run", "--temp", "0", "a=b"]);
        assert_eq!(words(&["leap", "run", "--prompt=--a=b"]), ["run", "--prompt", "--a=b"]);
        assert_eq!(words(&["leap", "run", "--", "--a=b"]), ["run", "--", "--a=b"]);
        assert_eq!(problem(&["leap", "run", "--chat=yes"]), "--chat takes no value");
    }

    #[test]
    fn values_may_look_like_options() {
        for value in ["--a=--json", "--help", "-h", "-5 degrees", "--", "--json", "help"] {
            let wanted = ["run", "--prompt", value, "--quiet"];
            assert_eq!(words(&["leap", "run", "-p", value, "-q"]), wanted);
        }
        let problem = problem(&["leap", "run", "-p"]);
        assert_eq!(problem, "--prompt needs a value: text to go on from; - reads it from stdin");
    }

    #[test]
    fn help_is_found_wherever_it_stands() {
        let of = |name, role| Asked::HelpOf(Command { name, role });
        for argv in [["leap", "--help"], ["leap", "--help-all"], ["leap", "-h"], ["leap", "help"]] {
            assert_eq!(asked(&argv), Asked::Help);
        }
        assert_eq!(asked(&["leap", "help", "info"]), of("info", None));
        assert_eq!(asked(&["leap", "run", "-q", "-h"]), of("run", None));
        assert_eq!(asked(&["leap", "worker", "--help"]), of("run", Some(Role::Worker)));
        assert_eq!(asked(&["worker", "-h"]), of("run", Some(Role::Worker)));
        assert_eq!(asked(&["leap", "-V"]), Asked::Version);
        #[cfg(feature = "manual")]
        assert_eq!(asked(&["leap", "help", "--man"]), Asked::Manual);
    }

    #[test]
    fn the_board_that_runs_a_model_in_a_team_leads_it() {
        let led = line(&["leap", "run", "m.bin", "--team", "t", "--", "x"]);
        assert_eq!(
            (&led.words[..], led.role),
            (&["run", "m.bin", "--", "x"].map(str::to_owned)[..], Role::Master)
        );
        let called = line(&["leap", "run", "--boards", "auto"]);
        assert_eq!((called.words.len(), called.role), (3, Role::Master));
        assert_eq!(line(&["leap", "worker", "--team", "t"]).role, Role::Worker);
        let told = line(&["leap", "run", "--role", "worker", "--team", "t"]);
        assert_eq!((told.words, told.role), (vec!["run".to_owned()], Role::Worker));
        assert!(problem(&["leap", "worker", "--role", "master"]).contains("leave out --role"));
        let problem = problem(&["leap", "run", "--role", "single", "--team", "t"]);
        assert!(problem.starts_with("--team is no option of leap run without boards"), "{problem}");
    }

    #[test]
    fn misspelt_names_get_a_suggestion() {
        for (argv, meant) in [
            (&["leap", "rnu"][..], "did you mean run?"),
            (&["leap", "benhc"], "did you mean bench?"),
            (&["leap", "wroker"], "did you mean worker?"),
            (&["leap", "run", "--tmep", "0"], "did you mean --temp?"),
            (&["leap", "run", "--temperature=0"], "did you mean --temp?"),
            (&["leap", "run", "--n-predcit", "0"], "did you mean --n-predict?"),
            (&["leap", "info", "--verfy"], "did you mean --verify?"),
            (&["leap", "worker", "--next-hots", "pi"], "did you mean --next-host?"),
        ] {
            assert!(problem(argv).contains(meant), "{}", problem(argv));
        }
        for argv in
            [&["leap", "frobnicate"][..], &["leap", "run", "--frobnicate"], &["leap", "run", "-5"]]
        {
            assert!(!problem(argv).contains("did you mean"), "{}", problem(argv));
        }
    }

    #[test]
    fn every_option_of_a_ring_is_refused_without_one() {
        let run = commands().into_iter().find(|info| info.name == "run").unwrap();
        for flag in run.flags.iter().filter(|flag| flag.description.starts_with("ring")) {
            assert!(!roles(flag.long).contains(&Role::Single), "{}", flag.long);
        }
        for option in ["--temp", "--stop", "--suffix", "--json", "--chat", "--prompt", "--seed"] {
            let problem = problem(&[
                "leap",
                "worker",
                &format!("{option}=1").replace("--json=1", "--json").replace("--chat=1", "--chat"),
            ]);
            assert!(
                problem.starts_with(&format!("{option} is no option of leap worker")),
                "{problem}"
            );
        }
        assert_eq!(words(&["leap", "worker", "--ctx", "9"]), ["run", "--ctx", "9"]);
        let problem = problem(&["leap", "run", "--role", "worker", "--ring-timeout", "1"]);
        assert!(problem.ends_with("it is for leap master"), "{problem}");
    }
}
