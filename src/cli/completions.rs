//! `leap completions`: scripts by which shells complete commands, options and some values.

mod bash;
mod fish;
#[cfg(test)]
mod tests;
mod zsh;

use argh::{ArgsInfo, CommandInfoWithArgs, FlagInfo, FlagInfoKind, FromArgs};

use super::{Failure, help, print};
use crate::format::ChatTemplate;
use crate::kernels::Isa;
use crate::model::Shape;

/// Prints a script by which a shell completes commands and options, as in
/// `source <(leap completions bash)`.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "completions")]
pub(super) struct Completions {
    /// bash, zsh or fish
    #[argh(positional, from_str_fn(shell))]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    const ALL: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

    fn name(self) -> &'static str {
        match self {
            Shell::Bash => "bash",
            Shell::Zsh => "zsh",
            Shell::Fish => "fish",
        }
    }

    fn script(self, commands: &[CommandInfoWithArgs]) -> String {
        match self {
            Shell::Bash => bash::script(commands),
            Shell::Zsh => zsh::script(commands),
            Shell::Fish => fish::script(commands),
        }
    }
}

fn shell(name: &str) -> Result<Shell, String> {
    let problem = || format!("{name:?} is none of bash, zsh and fish");
    Shell::ALL.into_iter().find(|shell| shell.name() == name).ok_or_else(problem)
}

impl Completions {
    pub(super) fn execute(self) -> Result<(), Failure> {
        print(&self.shell.script(&super::commands()))
    }
}

/// The words that the value of an option or positional may be, of those that its description names:
/// the same option of two commands need not allow the same.
fn choices(name: &str, description: &str) -> Vec<&'static str> {
    let known = match name {
        "--cache" => vec!["auto", "off"],
        "--chat-template" => ChatTemplate::ALL.iter().map(|template| template.name()).collect(),
        "--huge" => vec!["auto", "on", "off"],
        "--isa" => Isa::ALL.iter().map(|isa| isa.name()).collect(),
        "--kv" | "--wire" => vec!["f16", "f32"],
        "--role" => vec!["single", "master", "worker"],
        "--shape" => Shape::ALL.iter().map(|shape| shape.name).collect(),
        "--transport" => vec!["auto", "kernel", "udp", "tcp"],
        "--version" => vec!["1", "2", "3"],
        "shell" => Shell::ALL.map(Shell::name).to_vec(),
        _ => Vec::new(),
    };
    let is_part = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let is_named = |word: &&str| description.split(|c| !is_part(c)).any(|named| named == *word);
    known.into_iter().filter(is_named).collect()
}

/// Whether an option with [`choices`] may name a file as well.
fn takes_files_too(flag: &FlagInfo<'_>) -> bool {
    flag.long == "--cache"
}

fn takes_value(flag: &FlagInfo<'_>) -> bool {
    matches!(flag.kind, FlagInfoKind::Option { .. })
}

/// Every command by its name, and its first sentence.
fn summaries(commands: &[CommandInfoWithArgs]) -> Vec<(&'static str, &'static str)> {
    let typed = help::typed(commands)
        .into_iter()
        .map(|(command, info)| (command.shown(), help::first_sentence(help::about(command, info))));
    typed.chain([("help", "Lists the commands, or the options of one.")]).collect()
}

/// Names of the commands that `leap help` explains.
fn explained(commands: &[CommandInfoWithArgs]) -> String {
    let names: Vec<&str> =
        help::typed(commands).into_iter().map(|(command, _)| command.shown()).collect();
    names.join(" ")
}
