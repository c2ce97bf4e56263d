//! Completion for zsh.

use std::fmt::Write;

use argh::{CommandInfoWithArgs, FlagInfo, FlagInfoKind, Optionality, PositionalInfo};

use super::super::help;
use super::values::{choices, explained, summaries, takes_files_too};

const BEGIN: &str = r#"#compdef leap
# zsh completion for leap: source <(leap completions zsh), or a file _leap in a folder of $fpath

_leap_words_or_files() {
    compadd -- "$@"
    _files
}

_leap() {
    local -a commands
    commands=(
"#;

const FIRST_WORD: &str = r#"    )
    if ((CURRENT == 2)) && [[ $words[2] != -* ]]; then
        _describe -t commands command commands
        return
    fi
    if ((CURRENT == 2)); then
        _arguments '(- *)'{-h,--help}'[lists the options of a command]' \
            '(- *)'{-V,--version}'[shows the version of the program]'
        return
    fi
    local command=$words[2]
    shift words
    ((CURRENT--))
    case $command in
"#;

const END: &str = r#"    *) _files ;;
    esac
}

if [[ $funcstack[1] == _leap ]]; then
    _leap "$@"
else
    compdef _leap leap
fi
"#;

pub(super) fn script(commands: &[CommandInfoWithArgs]) -> String {
    let mut text = BEGIN.to_owned();
    for (name, about) in summaries(commands) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "        {}", quoted(&format!("{name}:{about}")));
    }
    text.push_str(FIRST_WORD);
    for (command, info) in help::typed(commands) {
        let _ = write!(text, "    {})\n        _arguments", command.shown());
        for flag in help::current(command, info) {
            let _ = write!(text, " \\\n            {}", option(flag));
        }
        for positional in info.positionals {
            let _ = write!(text, " \\\n            {}", argument(positional));
        }
        text.push_str("\n        ;;\n");
    }
    let _ = writeln!(text, "    help) _arguments ':command:({})' ;;", explained(commands));
    text + END
}

/// `'(-k --kind)'{-k,--kind=}'[what it is]:kind:(one two)'`.
fn option(flag: &FlagInfo<'_>) -> String {
    let long = flag.long;
    let (equals, value) = match flag.kind {
        FlagInfoKind::Switch => ("", String::new()),
        FlagInfoKind::Option { arg_name } => {
            let choices = choices(long, flag.description);
            let values = values(&choices, takes_files_too(flag));
            ("=", format!(":{}:{values}", escaped(arg_name)))
        }
    };
    let meaning = quoted(&format!("[{}]{value}", escaped(flag.description)));
    match (help::short(flag), flag.optionality == Optionality::Repeating) {
        (Some(short), true) => format!("'*'{{-{short},{long}{equals}}}{meaning}"),
        (Some(short), false) => {
            let others =
                if long == "--help" { "- *".to_owned() } else { format!("-{short} {long}") };
            format!("'({others})'{{-{short},{long}{equals}}}{meaning}")
        }
        (None, true) => format!("'*'{long}{equals}{meaning}"),
        (None, false) => format!("{long}{equals}{meaning}"),
    }
}

fn argument(positional: &PositionalInfo<'_>) -> String {
    let optional = if positional.optionality == Optionality::Required { "" } else { ":" };
    let values = values(&choices(positional.name, positional.description), false);
    quoted(&format!(":{optional}{}:{values}", escaped(positional.name)))
}

fn values(choices: &[&str], or_files: bool) -> String {
    match (choices.join(" "), or_files) {
        (words, _) if words.is_empty() => "_files".to_owned(),
        (words, false) => format!("({words})"),
        // The space keeps zsh from adding words of its own to these.
        (words, true) => format!(" _leap_words_or_files {words}"),
    }
}

/// `text` with backslashes where `_arguments` gives brackets and colons a meaning.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if matches!(c, '[' | ']' | ':' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
