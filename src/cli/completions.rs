//! `leap completions`: scripts by which shells complete commands, options and some values.

mod bash;
mod fish;
#[cfg(test)]
mod tests;
mod values;
mod zsh;

use argh::{ArgsInfo, CommandInfoWithArgs, FromArgs};

use super::{Failure, print};
use values::Shell;

/// Prints a script by which a shell completes commands and options, as in
/// `source <(leap completions bash)`.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "completions")]
pub(super) struct Completions {
    /// bash, zsh or fish
    #[argh(positional, from_str_fn(shell))]
    shell: Shell,
}

fn shell(name: &str) -> Result<Shell, String> {
    let problem = || format!("{name:?} is none of bash, zsh and fish");
    Shell::ALL.into_iter().find(|shell| shell.name() == name).ok_or_else(problem)
}

impl Completions {
    pub(super) fn execute(self, commands: &[CommandInfoWithArgs]) -> Result<(), Failure> {
        print(&script(self.shell, commands))
    }
}

/// The script that makes `shell` complete these commands.
fn script(shell: Shell, commands: &[CommandInfoWithArgs]) -> String {
    match shell {
        Shell::Bash => bash::script(commands),
        Shell::Zsh => zsh::script(commands),
        Shell::Fish => fish::script(commands),
    }
}
