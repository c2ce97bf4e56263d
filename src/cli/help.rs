//! The text of `--help`, from the table that options are parsed by.

use argh::{CommandInfoWithArgs, FlagInfo, FlagInfoKind, Optionality, PositionalInfo};

use super::groups::{self, Group};
use super::older::{self, Older, Setting};
use super::roles::{Role, roles};
use super::words::Command;

const WIDTH: usize = 100;
/// Column in which descriptions begin.
const COLUMN: usize = 26;
/// Column in which one-line descriptions begin, behind longer names.
const COLUMN_OF_GROUPS: usize = 36;

/// Last lines of commands' help, in the words of docs/run.md.
pub(super) const EXIT_CODES: &str = "0 done, 1 failed at run time, 2 bad usage, 3 bad input file, \
     4 ring lost; 129, 130 or 143: SIGHUP, SIGINT or SIGTERM cut something short";

/// The commands and their first sentences.
pub(super) fn overview(commands: &[CommandInfoWithArgs]) -> String {
    let mut text = String::from(
        "Runs language models on edge boards, alone or as a ring.\n\n\
         Usage: leap COMMAND [OPTION...]; leap alone goes on from a prompt with the demo model\n\n\
         Commands:\n",
    );
    for (command, info) in typed(commands) {
        entry(&mut text, command.shown(), first_sentence(about(command, info)));
    }
    text.push_str("\nOptions:\n");
    entry(&mut text, "-h, --help", "lists the options of a command, as does `leap help COMMAND`");
    entry(
        &mut text,
        "--help-all",
        "lists all of them; `leap help compatibility` those of earlier versions",
    );
    entry(&mut text, "-V, --version", "shows the version of the program");
    text.push_str("\nExit codes:\n");
    wrap(&mut text, 2, 2, EXIT_CODES);
    text
}

/// Usage of one command and its main options, or all of them if they are few.
pub(super) fn of(command: Command, commands: &[CommandInfoWithArgs]) -> String {
    let Some(info) = info(command, commands) else { return String::new() };
    match groups::of(command.name, command.role) {
        [] => all(command, info),
        groups => grouped(command, info, groups),
    }
}

/// Usage of one command and all its options except those under `leap help compatibility`.
pub(super) fn all_of(command: Command, commands: &[CommandInfoWithArgs]) -> String {
    info(command, commands).map_or(String::new(), |info| all(command, info))
}

fn info(command: Command, commands: &[CommandInfoWithArgs]) -> Option<&CommandInfoWithArgs> {
    commands.iter().find(|info| info.name == command.name)
}

fn grouped(command: Command, info: &CommandInfoWithArgs, groups: &[Group]) -> String {
    let name = command.shown();
    let mut text =
        format!("Usage: leap {name} [MODEL] [OPTION...]\n\n{}\n\n", about(command, info));
    brief_entry(&mut text, "MODEL", "file or folder of a model, or hf:ORG/REPO (the demo model)");
    for Group { title, options } in groups {
        text.push_str(&format!("{title}:\n"));
        for (long, brief) in *options {
            let mut known = flags(command, info);
            if let Some(flag) = known.find(|flag| flag.long == *long) {
                brief_entry(&mut text, &flag_name(flag), brief);
            }
        }
    }
    text.push_str(&format!(
        "\n`leap {name} --help-all` lists every option, `leap help compatibility` those of earlier versions.\n"
    ));
    text
}

/// Adds a name and its description in one line.
fn brief_entry(out: &mut String, name: &str, brief: &str) {
    out.push_str(&format!("  {name:width$}{brief}\n", width = COLUMN_OF_GROUPS - 2));
}

/// Older options with their successors, and variables that stand for options.
pub(super) fn older(commands: &[CommandInfoWithArgs]) -> String {
    let mut text = String::from("Options of earlier versions, which work as they did:\n");
    for Older { shown, instead, .. } in older::PLACES {
        brief_entry(&mut text, shown, instead);
    }
    text.push('\n');
    wrap(&mut text, 0, 0, older::BOARDS_FILE);
    text.push('\n');
    wrap(&mut text, 0, 0, &format!("{}:", older::MACHINE_SETTINGS));
    for Setting { option, variable, brief, .. } in older::SETTINGS {
        let name = format!("{option}, {variable}");
        text.push_str(&format!("  {name:width$}", width = COLUMN_OF_GROUPS - 2));
        let of = commands_of(option, commands);
        wrap(&mut text, 0, COLUMN_OF_GROUPS, &format!("{of}: {brief}"));
    }
    text
}

/// Names of the commands that have this setting.
pub(super) fn commands_of(option: &str, commands: &[CommandInfoWithArgs]) -> String {
    let has = |(command, info): &(Command, &CommandInfoWithArgs)| {
        let is_there = info.flags.iter().any(|flag| flag.long == option);
        is_there
            && older::is_setting(command.name, option)
            && (command.name != "run"
                || roles(option).contains(&command.role.unwrap_or(Role::Single)))
    };
    let found = typed(commands).into_iter().filter(has);
    let names: Vec<&str> = found.map(|(command, _)| command.shown()).collect();
    names.join(", ")
}

fn all(command: Command, info: &CommandInfoWithArgs) -> String {
    let name = command.shown();
    let mut text = format!("Usage: leap {name}");
    for positional in info.positionals {
        text.push_str(&format!(" {}", positional_name(positional)));
    }
    text.push_str(" [OPTION...]\n\n");
    wrap(&mut text, 0, 0, about(command, info));
    text.push('\n');
    for positional in info.positionals {
        entry(&mut text, &value_name(positional.name), positional.description);
    }
    text.push_str("\nOptions:\n");
    for flag in current(command, info) {
        entry(&mut text, &flag_name(flag), flag.description);
    }
    text
}

/// Every command as users call it, `master` and `worker` too, with its entry in the table.
pub(super) fn typed(commands: &[CommandInfoWithArgs]) -> Vec<(Command, &CommandInfoWithArgs)> {
    let mut typed = Vec::new();
    for info in commands {
        typed.push((Command { name: info.name, role: None }, info));
        if info.name == "run" {
            let parts = [Role::Master, Role::Worker];
            typed.extend(parts.map(|role| (Command { name: info.name, role: Some(role) }, info)));
        }
    }
    typed
}

/// Purpose of a command.
pub(super) fn about(command: Command, info: &CommandInfoWithArgs) -> &'static str {
    match command.role {
        None => info.description,
        Some(Role::Master) => "Runs a ring's first board: takes prompts and shows text.",
        Some(_) => "Runs a further board of a ring, until a signal ends it.",
    }
}

/// Options of a command. `leap run` has the options of all roles.
pub(super) fn flags(
    command: Command,
    info: &CommandInfoWithArgs,
) -> impl Iterator<Item = &'static FlagInfo<'static>> {
    info.flags.iter().filter(move |flag| match command.role {
        Some(role) => roles(flag.long).contains(&role),
        None => !flag.hidden,
    })
}

/// Options of the command without those under `leap help compatibility`.
pub(super) fn current(
    command: Command,
    info: &CommandInfoWithArgs,
) -> impl Iterator<Item = &'static FlagInfo<'static>> {
    let name = command.name;
    flags(command, info).filter(move |flag| !older::is_setting(name, flag.long))
}

/// The option's one-letter form.
pub(super) fn short(flag: &FlagInfo<'_>) -> Option<char> {
    flag.short.or_else(|| (flag.long == "--help").then_some('h'))
}

pub(super) fn positional_name(positional: &PositionalInfo<'_>) -> String {
    let name = value_name(positional.name);
    match positional.optionality {
        Optionality::Required => name,
        _ => format!("[{name}]"),
    }
}

/// `-t, --tokenizer FILE`.
fn flag_name(flag: &FlagInfo<'_>) -> String {
    let short = short(flag).map_or("    ".to_owned(), |short| format!("-{short}, "));
    match flag.kind {
        FlagInfoKind::Switch => format!("{short}{}", flag.long),
        FlagInfoKind::Option { arg_name } => {
            format!("{short}{} {}", flag.long, value_name(arg_name))
        }
    }
}

pub(super) fn value_name(name: &str) -> String {
    name.to_uppercase()
}

pub(super) fn first_sentence(text: &str) -> &str {
    let end = text.find(". ").map(|end| end + 1).or_else(|| text.find(": "));
    &text[..end.unwrap_or(text.len())]
}

/// Adds a name, and its description from [`COLUMN`] on.
fn entry(out: &mut String, name: &str, description: &str) {
    out.push_str("  ");
    out.push_str(name);
    let used = 2 + name.chars().count();
    if used + 2 > COLUMN {
        out.push('\n');
        wrap(out, COLUMN, COLUMN, description);
    } else {
        wrap(out, COLUMN - used, COLUMN, description);
    }
}

/// Adds words in lines of up to [`WIDTH`], with `first` spaces before the first line and `others` before the rest.
fn wrap(out: &mut String, first: usize, others: usize, text: &str) {
    out.push_str(&" ".repeat(first));
    let mut at = others;
    for (index, word) in text.split_whitespace().enumerate() {
        let len = word.chars().count();
        if index > 0 && at + 1 + len > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(others));
            at = others;
        } else if index > 0 {
            out.push(' ');
            at += 1;
        }
        out.push_str(word);
        at += len;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands;

    #[test]
    fn lines_fit_and_name_everything() {
        let commands = commands();
        let mut texts = vec![overview(&commands)];
        for info in &commands {
            let command = Command { name: info.name, role: None };
            let text = all_of(command, &commands);
            for flag in info.flags {
                let is_there = text.contains(&format!("{} ", flag.long))
                    || text.contains(&format!("{}\n", flag.long));
                let is_current = !older::is_setting(info.name, flag.long);
                assert!(is_there || !is_current, "{} {}", info.name, flag.long);
                assert!(is_current || older(&commands).contains(flag.long), "{}", flag.long);
            }
            texts.extend([text, of(command, &commands), older(&commands)]);
        }
        for text in &texts {
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        }
        for name in ["run", "master", "worker", "doctor"] {
            assert!(texts[0].contains(&format!("\n  {name} ")), "{}", texts[0]);
        }
    }

    #[test]
    fn roles_show_their_own_options() {
        let commands = commands();
        let worker = all_of(Command { name: "run", role: Some(Role::Worker) }, &commands);
        assert!(worker.starts_with("Usage: leap worker [MODEL]"), "{worker}");
        assert!(worker.contains("--port ") && worker.contains("--ctx "), "{worker}");
        assert!(!worker.contains("--temp ") && !worker.contains("--ring-timeout"), "{worker}");
        assert!(!worker.contains("--role"), "{worker}");
    }

    #[test]
    fn the_help_of_commands_that_run_models_fits_a_screen() {
        let commands = commands();
        for (name, role) in [
            ("run", None),
            ("run", Some(Role::Master)),
            ("run", Some(Role::Worker)),
            ("serve", None),
        ] {
            if commands.iter().all(|info| info.name != name) {
                continue;
            }
            let text = of(Command { name, role }, &commands);
            assert!(text.lines().count() <= 40, "{} lines:\n{text}", text.lines().count());
            let n = text.lines().filter(|line| line.contains(" --") && line.starts_with("  "));
            assert!((10..=30).contains(&n.count()), "{text}");
            assert!(text.contains("--boards BOARDS") && text.contains("--help-all"), "{text}");
            for older in ["--ring ", "--split ", "--give ", "--busy-poll"] {
                assert!(!text.contains(older), "{text}");
            }
        }
    }

    #[test]
    fn groups_name_options_that_there_are() {
        let commands = commands();
        for (name, role) in [("run", None), ("run", Some(Role::Worker)), ("serve", None)] {
            let Some(info) = commands.iter().find(|info| info.name == name) else { continue };
            for (long, _) in groups::of(name, role).iter().flat_map(|group| group.options) {
                let is_known = info.flags.iter().any(|flag| flag.long == *long);
                // The converter's options and `--json` are not in every build and command.
                assert!(is_known || ["--version", "--json"].contains(long), "{name} {long}");
            }
        }
    }
}
