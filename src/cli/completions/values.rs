//! Values at each place of a command line, for all shells.

use argh::{CommandInfoWithArgs, FlagInfo, FlagInfoKind};

use super::super::help;
use crate::format::ChatTemplate;
use crate::kernels::Isa;
use crate::model::{KvKind, Shape};

/// A shell that completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    pub(super) const ALL: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

    pub(super) fn name(self) -> &'static str {
        match self {
            Shell::Bash => "bash",
            Shell::Zsh => "zsh",
            Shell::Fish => "fish",
        }
    }
}

/// Words that the value of an option or positional may be. They are looked up in its description because an option may
/// allow other words in another command.
pub(super) fn choices(name: &str, description: &str) -> Vec<&'static str> {
    let known = match name {
        "action" => vec!["status", "resize", "replan"],
        "--cache" | "--control" => vec!["auto", "off"],
        "--chat-template" => ChatTemplate::ALL.iter().map(|template| template.name()).collect(),
        "--embedding-bits" => vec!["8", "6"],
        "--boards" | "--team" => vec!["auto"],
        "--huge" => vec!["auto", "on", "off"],
        "--isa" => Isa::ALL.iter().map(|isa| isa.name()).collect(),
        "--device" => vec!["cpu", "gpu", "auto"],
        "--kv" => KvKind::ALL.iter().map(|kind| kind.name()).collect(),
        "--objective" => vec!["latency", "throughput", "energy", "memory"],
        "--shape" => Shape::ALL.iter().map(|shape| shape.name).collect(),
        "--think" => vec!["on", "off", "hide"],
        "--transport" => vec!["auto", "kernel", "udp", "tcp"],
        "--version" => vec!["1", "2", "3", "4", "5"],
        "--wire" => vec!["f16", "f32"],
        "shell" => Shell::ALL.map(Shell::name).to_vec(),
        _ => Vec::new(),
    };
    let is_part = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let is_named = |word: &&str| description.split(|c| !is_part(c)).any(|named| named == *word);
    known.into_iter().filter(is_named).collect()
}

/// Whether an option with [`choices`] may name a file as well.
pub(super) fn takes_files_too(flag: &FlagInfo<'_>) -> bool {
    ["--boards", "--cache", "--control"].contains(&flag.long)
}

pub(super) fn takes_value(flag: &FlagInfo<'_>) -> bool {
    matches!(flag.kind, FlagInfoKind::Option { .. })
}

/// Every command's name and first sentence.
pub(super) fn summaries(commands: &[CommandInfoWithArgs]) -> Vec<(&'static str, &'static str)> {
    let typed = help::typed(commands)
        .into_iter()
        .map(|(command, info)| (command.shown(), help::first_sentence(help::about(command, info))));
    typed.chain([("help", "Lists the commands, or the options of one.")]).collect()
}

/// Names of the commands that `leap help` explains.
pub(super) fn explained(commands: &[CommandInfoWithArgs]) -> String {
    let names: Vec<&str> =
        help::typed(commands).into_iter().map(|(command, _)| command.shown()).collect();
    names.join(" ") + " compatibility"
}
