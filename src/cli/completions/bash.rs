//! Completion for bash, which needs nothing but bash.

use std::fmt::Write;

use argh::{CommandInfoWithArgs, FlagInfo};

use super::super::help;
use super::values::{choices, explained, summaries, takes_value};

/// If the script has no answer, `-o default` completes names of files.
const BEGIN: &str = r#"# bash completion for leap: source <(leap completions bash)
_leap() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words= IFS=$' \t\n'
    COMPREPLY=()
    # bash takes the = of --option=value for a word.
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = ]] && ((COMP_CWORD > 1)); then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    if ((COMP_CWORD == 1)); then
"#;

const END: &str = r#"        esac
    fi
    if [[ -n $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
    fi
}
complete -o bashdefault -o default -F _leap leap
"#;

pub(super) fn script(commands: &[CommandInfoWithArgs]) -> String {
    let mut text = BEGIN.to_owned();
    let names: Vec<&str> = summaries(commands).iter().map(|(name, _)| *name).collect();
    otherwise(&mut text, 8, "-h --help -V --version", &names.join(" "));
    text.push_str("    else\n        case ${COMP_WORDS[1]} in\n");
    for (command, info) in help::typed(commands) {
        let flags: Vec<_> = help::current(command, info).collect();
        line(&mut text, 8, &format!("{})", command.shown()));
        line(&mut text, 12, "case $prev in");
        values(&mut text, &flags);
        line(&mut text, 12, "*)");
        let spellings: Vec<String> = flags.iter().flat_map(|flag| spellings(flag)).collect();
        let positionals: Vec<&str> = info
            .positionals
            .iter()
            .flat_map(|positional| choices(positional.name, positional.description))
            .collect();
        otherwise(&mut text, 16, &spellings.join(" "), &positionals.join(" "));
        line(&mut text, 16, ";;");
        line(&mut text, 12, "esac");
        line(&mut text, 12, ";;");
    }
    line(&mut text, 8, &format!("help) words='{}' ;;", explained(commands)));
    text + END
}

/// Adds the words that may follow each option that takes a value: those of a list, or files.
fn values(text: &mut String, flags: &[&FlagInfo<'_>]) {
    let mut free = Vec::new();
    for flag in flags.iter().filter(|flag| takes_value(flag)) {
        let choices = choices(flag.long, flag.description);
        match choices.is_empty() {
            true => free.extend(spellings(flag)),
            false => {
                let pattern = spellings(flag).join(" | ");
                line(text, 12, &format!("{pattern}) words='{}' ;;", choices.join(" ")));
            }
        }
    }
    if !free.is_empty() {
        line(text, 12, &format!("{}) ;;", free.join(" | ")));
    }
}

/// Adds a choice: options if a word begins with `-`, otherwise `words`.
fn otherwise(text: &mut String, indent: usize, options: &str, words: &str) {
    line(text, indent, "if [[ $cur == -* ]]; then");
    line(text, indent + 4, &format!("words='{options}'"));
    if !words.is_empty() {
        line(text, indent, "else");
        line(text, indent + 4, &format!("words='{words}'"));
    }
    line(text, indent, "fi");
}

fn spellings(flag: &FlagInfo<'_>) -> Vec<String> {
    let short = help::short(flag).map(|short| format!("-{short}"));
    short.into_iter().chain([flag.long.to_owned()]).collect()
}

fn line(text: &mut String, indent: usize, content: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{:indent$}{content}", "");
}
