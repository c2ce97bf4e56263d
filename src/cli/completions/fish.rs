//! Completion for fish.

use std::fmt::Write;

use argh::{CommandInfoWithArgs, FlagInfo};

use super::super::help;
use super::values::{choices, explained, summaries, takes_files_too, takes_value};

pub(super) fn script(commands: &[CommandInfoWithArgs]) -> String {
    let mut text = String::from(
        "# fish completion for leap: leap completions fish | source\n\
         complete -c leap -n __fish_use_subcommand -f\n\
         complete -c leap -n __fish_use_subcommand -s h -l help -d 'lists the options of a command'\n\
         complete -c leap -n __fish_use_subcommand -s V -l version -d 'shows the version of the program'\n",
    );
    for (name, about) in summaries(commands) {
        let about = quoted(about);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "complete -c leap -n __fish_use_subcommand -a {name} -d {about}");
    }
    for (command, info) in help::typed(commands) {
        let begin = begin(command.shown());
        for flag in help::current(command, info) {
            let _ = writeln!(text, "{begin} {}", option(flag));
        }
        for positional in info.positionals {
            let choices = choices(positional.name, positional.description);
            if !choices.is_empty() {
                let _ = writeln!(text, "{begin} -f -a '{}'", choices.join(" "));
            }
        }
    }
    let _ = writeln!(text, "{} -f -a '{}'", begin("help"), explained(commands));
    text
}

fn begin(command: &str) -> String {
    format!("complete -c leap -n '__fish_seen_subcommand_from {command}'")
}

/// `-s k -l kind -x -a 'one two' -d 'what it is'`.
fn option(flag: &FlagInfo<'_>) -> String {
    let short = help::short(flag).map_or(String::new(), |short| format!("-s {short} "));
    let long = flag.long.trim_start_matches('-');
    let choices = choices(flag.long, flag.description).join(" ");
    let value = match (takes_value(flag), choices.is_empty(), takes_files_too(flag)) {
        (false, ..) => String::new(),
        (true, true, _) => " -r".to_owned(),
        (true, false, true) => format!(" -r -a '{choices}'"),
        (true, false, false) => format!(" -x -a '{choices}'"),
    };
    format!("{short}-l {long}{value} -d {}", quoted(flag.description))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'"))
}
