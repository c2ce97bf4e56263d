//! Options that have an effect only beside others, or only without them.

use super::{Failure, older};

/// A rule about options of a command.
struct Rule {
    command: &'static str,
    options: &'static [&'static str],
    kind: Kind,
    /// Purpose of the options, or the reason of the rule; may be empty.
    why: &'static str,
}

enum Kind {
    /// The options have an effect only beside one of these.
    Needs(&'static [&'static str]),
    /// The options have no effect beside any of these.
    Without(&'static [&'static str]),
    /// Beside each of the options, all others but these have no effect.
    Only(&'static [&'static str]),
}

const fn needs(
    command: &'static str,
    options: &'static [&'static str],
    others: &'static [&'static str],
    why: &'static str,
) -> Rule {
    Rule { command, options, kind: Kind::Needs(others), why }
}

const fn without(
    command: &'static str,
    options: &'static [&'static str],
    others: &'static [&'static str],
    why: &'static str,
) -> Rule {
    Rule { command, options, kind: Kind::Without(others), why }
}

const fn only(
    command: &'static str,
    options: &'static [&'static str],
    others: &'static [&'static str],
    why: &'static str,
) -> Rule {
    Rule { command, options, kind: Kind::Only(others), why }
}

/// The model file, which is no option.
const MODEL: &str = "model";
/// Options that name other boards.
const BOARDS: &[&str] = &["--boards", "--team", "--ring"];

const OF_BOARDS: &str = "it is for a ring or a team";
const OF_DEVICES: &str = "it is for GPUs";
const OF_RINGS: &str = "boards of rings may have a GPU, not those of teams";
const OF_CHAT: &str = "it is for conversations";
const OF_SHAPE: &str = "it is for made-up models";
const OF_ENERGY: &str = "it is for measurements of energy";
const OF_MODEL: &str = "it is for measurements of a model";
const NO_LAYERS: &str = "a board that guesses has no layers";

/// The rules. What depends on values or files is checked where these are read.
const RULES: &[Rule] = &[
    needs(
        "run",
        &["--system", "--think", "--think-tokens", "--no-history", "--chat-template"],
        &["--chat"],
        OF_CHAT,
    ),
    without("run", &["--suffix"], &["--chat", "--streams"], "it is for one prompt"),
    needs("run", &["--prefix-cache-size"], &["--prefix-cache"], ""),
    without(
        "run",
        &["--node", "--transport", "--wire", "--busy-poll", "--power-cmd", "--watts"],
        &["--draft-model"],
        NO_LAYERS,
    ),
    needs("run", &["--gpu-memory"], &["--device"], OF_DEVICES),
    without("run", &["--device"], &["--team", "--draft-model"], OF_RINGS),
    needs("serve", &["--gpu-memory"], &["--device"], OF_DEVICES),
    without("serve", &["--device"], &["--team"], OF_RINGS),
    needs("bench", &["--gpu-memory"], &["--device"], OF_DEVICES),
    needs("eval", &["--gpu-memory"], &["--device"], OF_DEVICES),
    needs("run", &["--end", "--next-host"], &["--split"], ""),
    needs("run", &["--next-port"], &["--next-host"], ""),
    needs(
        "serve",
        &[
            "--take",
            "--objective",
            "--node",
            "--host",
            "--port",
            "--transport",
            "--wire",
            "--control",
            "--rebalance-after",
            "--ring-timeout",
            "--give",
        ],
        BOARDS,
        OF_BOARDS,
    ),
    needs("serve", &["--key"], &["--boards", "--team", "--ring", "--draft-node"], ""),
    needs("serve", &["--prefix-cache-size"], &["--prefix-cache"], ""),
    without("serve", &["--no-auth"], &["--api-key-file"], "keys are asked for"),
    without("serve", &["--log-prompts"], &["--quiet"], "nothing is logged"),
    only("bench", &["--link"], &["--key", "--json", "--link-server"], "no model is measured"),
    only("bench", &["--link-server"], &["--key", "--link"], "it measures nothing itself"),
    needs("bench", &["--key"], &["--link", "--link-server"], "it is for links"),
    needs("bench", &["--layers", "--version", "--embedding-bits"], &["--shape"], OF_SHAPE),
    needs(
        "bench",
        &["--depth", "--prompt", "--draft", "--energy", "--kv", "--huge", "--device"],
        &[MODEL, "--shape"],
        OF_MODEL,
    ),
    needs("bench", &["--cache"], &[MODEL], "it is for the packed weights of a file"),
    needs("bench", &["--sweep", "--power-cmd", "--watts"], &["--energy"], OF_ENERGY),
    needs("bench", &["--min-tokens-per-s"], &["--sweep"], ""),
    without("bench", &["--prompt", "--draft"], &["--sweep"], "decoding alone is measured"),
    needs("eval", &["--window", "--skip", "--against"], &["--text", "--ids"], ""),
    needs("eval", &["--tokenizer"], &["--text"], "ids need none"),
    needs("eval", &["--greedy"], &["--cases"], ""),
    needs("eval", &["--max-drift", "--min-top1"], &["--cases", "--against"], ""),
    needs("plan", &["--version", "--embedding-bits"], &["--shape"], "a file has its version"),
    without("plan", &["--explain"], &["--json"], "the object has no explanation"),
    without(
        "tokenizer",
        &["--output"],
        &["--encode", "--decode", "--chat"],
        "it is for a tokenizer that is converted",
    ),
    needs("tokenizer", &["--special"], &["--encode", "--decode"], ""),
    needs("tokenizer", &["--chat-template"], &["--chat"], OF_CHAT),
    needs("doctor", &["--port"], &["--ring"], "it is for a board of a ring"),
    needs("doctor", &["--ctx", "--cache"], &[MODEL], "it is for a model that shall run here"),
    only("doctor", &["--undo"], &["--fix"], "it does nothing else"),
];

/// Refuses an option that has no effect among those that are `given`.
pub(super) fn check(command: &str, given: &[&str]) -> Result<(), Failure> {
    let of_command = RULES.iter().filter(|rule| rule.command == command);
    match of_command.filter_map(|rule| rule.problem(given)).next() {
        Some(problem) => Err(Failure::Usage(problem)),
        None => Ok(()),
    }
}

impl Rule {
    /// The message if the rule is broken.
    fn problem(&self, given: &[&str]) -> Option<String> {
        let has = |name: &&&str| given.contains(*name);
        let option = self.options.iter().find(has)?;
        let why = if self.why.is_empty() { "" } else { &format!(": {}", self.why) };
        match self.kind {
            Kind::Needs(others) if others.iter().any(|name| given.contains(name)) => None,
            Kind::Needs(others) => {
                // An option of earlier versions is no advice, except to its like.
                let is_older = |name: &str| older::find(self.command, name, None).is_some();
                let is_new = |name: &&&str| is_older(option) || !is_older(name);
                let others: Vec<&str> = others.iter().filter(is_new).map(shown).collect();
                Some(format!("{option} needs {}{why}", others.join(" or ")))
            }
            Kind::Without(others) => {
                let other = others.iter().find(has)?;
                Some(format!("{option} has no effect with {other}{why}"))
            }
            Kind::Only(others) => {
                let is_other = |name: &&&str| *name != option && !others.contains(name);
                let other = given.iter().find(is_other)?;
                Some(format!("{} has no effect with {option}{why}", shown(other)))
            }
        }
    }
}

fn shown<'n>(name: &&'n str) -> &'n str {
    if *name == MODEL { "a model file" } else { name }
}
