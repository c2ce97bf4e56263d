//! What `--help` shows, from the same table that options are parsed by.

use argh::{CommandInfoWithArgs, FlagInfo, FlagInfoKind, Optionality, PositionalInfo};

use super::run::{Role, roles};
use super::words::Command;

const WIDTH: usize = 100;
/// Where descriptions begin.
const COLUMN: usize = 26;

/// What commands end with, in the words of docs/run.md.
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
    entry(&mut text, "-V, --version", "shows the version of the program");
    text.push_str("\nExit codes:\n");
    wrap(&mut text, 2, 2, EXIT_CODES);
    text
}

/// Usage and options of one command.
pub(super) fn of(command: Command, info: &CommandInfoWithArgs) -> String {
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
    for flag in flags(command, info) {
        entry(&mut text, &flag_name(flag), flag.description);
    }
    text
}

/// Every command as users call it, `master` and `worker` too, and what the table says of it.
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

/// What the command by this name is for.
pub(super) fn about(command: Command, info: &CommandInfoWithArgs) -> &'static str {
    match command.role {
        None => info.description,
        Some(Role::Master) => "Runs a ring's first board: takes prompts and shows text.",
        Some(_) => "Runs a further board of a ring, until a signal ends it.",
    }
}

/// What the command by this name takes. `leap run` shows the options of all roles.
pub(super) fn flags(
    command: Command,
    info: &CommandInfoWithArgs,
) -> impl Iterator<Item = &'static FlagInfo<'static>> {
    info.flags.iter().filter(move |flag| match command.role {
        Some(role) => flag.long != "--role" && roles(flag.long).contains(&role),
        None => !flag.hidden,
    })
}

/// The letter that stands for an option too.
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

/// A name, and what it is from [`COLUMN`] on.
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

/// Words in lines of up to [`WIDTH`]: `first` spaces before the first line, `others` before others.
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
            let text = of(Command { name: info.name, role: None }, info);
            for flag in info.flags {
                assert!(text.contains(flag.long), "{} {}", info.name, flag.long);
            }
            texts.push(text);
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
        let run = commands.iter().find(|info| info.name == "run").unwrap();
        let worker = of(Command { name: "run", role: Some(Role::Worker) }, run);
        assert!(worker.starts_with("Usage: leap worker [MODEL]"), "{worker}");
        assert!(worker.contains("--end ") && worker.contains("--ctx "), "{worker}");
        assert!(!worker.contains("--temp ") && !worker.contains("--ring-timeout"), "{worker}");
        assert!(!worker.contains("--role"), "{worker}");
    }
}
