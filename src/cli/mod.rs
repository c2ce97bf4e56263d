//! The commands. This layer alone prints and decides the exit code.
//!
//! Text goes to stdout, everything else to stderr.

mod bench;
mod boards;
mod checkpoint;
#[cfg(feature = "manual")]
mod completions;
#[cfg(feature = "tools")]
mod convert;
mod doctor;
mod draft;
mod draft_node;
mod embed;
#[cfg(feature = "tools")]
mod eval;
#[cfg(feature = "tools")]
mod export;
mod failure;
mod groups;
mod help;
mod info;
#[cfg(feature = "tools")]
mod json;
mod key;
mod logger;
#[cfg(feature = "manual")]
mod manual;
mod model_files;
#[cfg(feature = "tools")]
mod models;
#[cfg(feature = "tools")]
mod names;
mod older;
mod options;
mod output;
mod overwritten;
mod pack;
#[cfg(feature = "tools")]
mod packing;
mod pairs;
mod plan;
mod power;
mod prefixes;
mod progress;
#[cfg(feature = "pull")]
mod pull;
mod reads;
mod ring;
mod roles;
mod run;
mod self_check;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "serve")]
mod served_models;
#[cfg(all(feature = "serve", feature = "tools"))]
mod served_names;
#[cfg(feature = "tools")]
mod temporary;
#[cfg(feature = "tools")]
mod tokenizer;
mod weights;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use argh::{ArgsInfo, CommandInfoWithArgs, FromArgs};

pub(in crate::cli) use failure::Failure;
pub(in crate::cli) use output::{counted, note, print, stdout_failure, warn};
use words::{Asked, Line};

use crate::sys::{memory, signal};

/// Runs language models on edge boards.
#[derive(ArgsInfo, FromArgs)]
struct Leap {
    #[argh(subcommand)]
    command: AnyCommand,
}

#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of it, in a box")]
enum AnyCommand {
    Run(run::Run),
    #[cfg(feature = "serve")]
    Serve(serve::Serve),
    Embed(embed::Embed),
    #[cfg(feature = "tools")]
    Export(export::Export),
    #[cfg(feature = "pull")]
    Pull(pull::Pull),
    #[cfg(feature = "tools")]
    Models(models::Models),
    #[cfg(feature = "tools")]
    Remove(models::Remove),
    Info(info::Info),
    Bench(bench::Bench),
    Pack(pack::Pack),
    Plan(plan::Plan),
    Doctor(doctor::Doctor),
    SelfCheck(self_check::SelfCheck),
    Ring(ring::Ring),
    #[cfg(feature = "tools")]
    Tokenizer(tokenizer::Tokenizer),
    #[cfg(feature = "tools")]
    Eval(eval::Eval),
    #[cfg(feature = "manual")]
    Completions(completions::Completions),
}

impl AnyCommand {
    /// Executes the command of `line`.
    fn execute(self, line: &Line) -> Result<(), Failure> {
        match self {
            #[cfg(feature = "tools")]
            AnyCommand::Export(export) => export.execute(),
            AnyCommand::Run(run) => run.execute(line),
            AnyCommand::Embed(embed) => embed.execute(),
            #[cfg(feature = "serve")]
            AnyCommand::Serve(serve) => serve.execute(line),
            #[cfg(feature = "pull")]
            AnyCommand::Pull(pull) => pull.execute(),
            #[cfg(feature = "tools")]
            AnyCommand::Models(models) => models.execute(),
            #[cfg(feature = "tools")]
            AnyCommand::Remove(remove) => remove.execute(),
            AnyCommand::Info(info) => info.execute(),
            AnyCommand::Bench(bench) => bench.execute(),
            AnyCommand::Pack(pack) => pack.execute(),
            AnyCommand::Plan(plan) => plan.execute(),
            AnyCommand::Doctor(doctor) => doctor.execute(),
            AnyCommand::SelfCheck(self_check) => self_check.execute(),
            AnyCommand::Ring(ring) => ring.execute(),
            #[cfg(feature = "manual")]
            AnyCommand::Completions(completions) => completions.execute(&commands()),
            #[cfg(feature = "tools")]
            AnyCommand::Tokenizer(tokenizer) => tokenizer.execute(),
            #[cfg(feature = "tools")]
            AnyCommand::Eval(eval) => eval.execute(),
        }
    }
}

/// Message about a mapped file whose bytes are gone.
const UNREADABLE_FILE: &str =
    "leap: a file in use could not be read: its disk failed, or another program shortened it\n";

/// Message when the system refuses memory that the program cannot go on without.
pub const OUT_OF_MEMORY: &str = "leap: out of memory, or of what `ulimit -v` allows: a smaller --ctx, \
     --batch or --streams needs less\n";

/// Parses `args` (program name first), runs the command and returns its exit code:
/// 0 done, 1 failed at run time, 2 bad usage, 3 bad input file, 4 ring lost; 128 and its number if
/// a signal cut something short.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    if let Err(bytes) = memory::ensure_stack() {
        let kib = bytes >> 10;
        let what = format!("the stack is limited to {kib} KiB: `ulimit -s 1024` gives enough");
        return Failure::Runtime(what).report();
    }
    // If the system refuses the handler, an unreadable mapped file still ends the program, but without a message.
    let _ = signal::explain_bus_errors(UNREADABLE_FILE, 1);
    let result = start_log().and_then(|()| parse(args)).and_then(|parsed| match parsed {
        Parsed::Help(text) => print(&text),
        Parsed::Command { command, line } => command.execute(&line),
    });
    #[cfg(feature = "tools")]
    temporary::remove();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Log lines go to stderr; `LEAP_LOG=debug` shows more of them.
fn start_log() -> Result<(), Failure> {
    let level = match std::env::var_os("LEAP_LOG").filter(|level| !level.is_empty()) {
        None => log::LevelFilter::Warn,
        Some(level) => level.to_str().and_then(|level| level.parse().ok()).ok_or_else(|| {
            let known: Vec<String> =
                log::LevelFilter::iter().map(|level| level.as_str().to_lowercase()).collect();
            Failure::Usage(format!("LEAP_LOG is {level:?}, wanted one of {}", known.join(", ")))
        })?,
    };
    logger::start(level);
    Ok(())
}

enum Parsed {
    Command { command: Box<AnyCommand>, line: Line },
    Help(String),
}

fn parse(args: impl Iterator<Item = OsString>) -> Result<Parsed, Failure> {
    let mut words = Vec::new();
    for arg in args {
        words.push(
            arg.into_string()
                .map_err(|arg| Failure::Usage(format!("argument {arg:?} is not valid UTF-8")))?,
        );
    }
    let commands = commands();
    let line = match words::read(words, &commands)? {
        Asked::Version => {
            return Ok(Parsed::Help(concat!("leap ", env!("CARGO_PKG_VERSION"), "\n").to_owned()));
        }
        Asked::Help => return Ok(Parsed::Help(help::overview(&commands))),
        #[cfg(feature = "manual")]
        Asked::Manual => return Ok(Parsed::Help(manual::page(&commands))),
        Asked::HelpOf(command) => return Ok(Parsed::Help(help::of(command, &commands))),
        Asked::AllOf(command) => return Ok(Parsed::Help(help::all_of(command, &commands))),
        Asked::Older => return Ok(Parsed::Help(help::older(&commands))),
        Asked::Run(line) => line,
    };
    let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
    match Leap::from_args(&["leap"], &words) {
        Ok(leap) => Ok(Parsed::Command { command: Box::new(leap.command), line }),
        Err(exit) if exit.status.is_ok() => Ok(Parsed::Help(exit.output)),
        Err(exit) => {
            let problem = in_words(&exit.output);
            Err(Failure::Usage(format!("{problem} (leap --help shows commands and options)")))
        }
    }
}

/// A problem that `argh` found, worded as other problems are.
fn in_words(problem: &str) -> String {
    // It lists names on lines of their own.
    let problem = &problem.split_whitespace().collect::<Vec<&str>>().join(" ");
    let value = || {
        let (option, rest) =
            problem.strip_prefix("Error parsing option '")?.split_once("' with value '")?;
        // The value may contain the separator too; no reason does.
        let (value, reason) = rest.rsplit_once("': ")?;
        let reason = match reason {
            "invalid digit found in string" | "cannot parse integer from empty string" => {
                "wanted a whole number"
            }
            "invalid float literal" | "cannot parse float from empty string" => "wanted a number",
            "number too large to fit in target type" => "the number is too large",
            reason => reason,
        };
        Some(match reason {
            "duplicate values provided" => format!("{option} is given twice"),
            _ => format!("{option} {value:?}: {reason}"),
        })
    };
    value().unwrap_or_else(|| problem.to_owned())
}

/// All commands with their options.
fn commands() -> Vec<CommandInfoWithArgs> {
    Leap::get_args_info().commands.into_iter().map(|command| command.command).collect()
}
