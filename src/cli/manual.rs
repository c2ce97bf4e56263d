//! The manual page leap(1), from the same table as `--help`: `leap help --man`.

use argh::{CommandInfoWithArgs, FlagInfo, FlagInfoKind};

use super::help;
use super::older::{self, Older, Setting};
use super::words::Command;

const BEGIN: &str = r#"leap \- run language models on small computers, alone or as a ring
.SH SYNOPSIS
.B leap
.I COMMAND
.RI [ OPTION ...]
.SH DESCRIPTION
Runs Llama\-architecture language models on ARM boards and x86 computers. Without a command it runs the demo model, if the
program has one built in. Text goes to stdout, everything else to stderr.
.PP
.BI "leap help " COMMAND
lists the options of a command too.
.SH COMMANDS
"#;

const END: &str = r#".SH ENVIRONMENT
.TP
.B LEAP_LOG
how much is told on stderr: off, error, warn (default), info, debug or trace
.TP
.B LEAP_ISA
the instruction set whose kernels are used, instead of the best that the CPU has
.TP
.B LEAP_DRAFTS
how many tokens are guessed at a time, whatever that costs: 1 to 15
.TP
.B LEAP_SYSFS
a folder that is searched instead of / for sensors of power and for the findings of doctor
.TP
.B XDG_CACHE_HOME
converted models, and packed weights that cannot lie beside their model, are kept in its folder
.I leap
(by default
.IR ~/.cache/leap )
.TP
.B XDG_RUNTIME_DIR
the socket of a master that
.B leap ring
asks is in its folder
.I leap
.TP
.B XDG_STATE_HOME
the history of conversations is kept in its folder
.I leap
(by default
.IR ~/.local/state/leap )
.SH FILES
.TP
.I /etc/leap/leap.conf
this board's role, read by the services leap\-worker, leap\-master and leap\-serve alone
.TP
.I /etc/leap/ring.conf
the boards of the ring and their layers
.TP
.I /var/lib/leap
models
.TP
.I /var/cache/leap
packed weights; may be deleted at any time
.SH SEE ALSO
.BR leap\-tune (8),
.I /usr/share/doc/leap/README.md
"#;

/// The page in the format of man(7).
pub(super) fn page(commands: &[CommandInfoWithArgs]) -> String {
    let mut text = format!(".TH LEAP 1 \"\" \"leap {}\"\n.SH NAME\n", env!("CARGO_PKG_VERSION"));
    text.push_str(BEGIN);
    for (command, info) in help::typed(commands) {
        section(&mut text, command, info);
    }
    older(&mut text, commands);
    let codes = prose(help::EXIT_CODES);
    text.push_str(&format!(".SH EXIT STATUS\n{codes}.\n"));
    text + END
}

fn section(text: &mut String, command: Command, info: &CommandInfoWithArgs) {
    let mut usage = format!(".SS leap {}", command.shown());
    for positional in info.positionals {
        usage.push_str(&format!(" {}", prose(&help::positional_name(positional))));
    }
    text.push_str(&format!("{usage} [OPTION...]\n{}\n", prose(help::about(command, info))));
    for positional in info.positionals {
        let name = prose(&help::value_name(positional.name));
        text.push_str(&format!(".TP\n\\fI{name}\\fR\n{}\n", prose(positional.description)));
    }
    match command.role {
        None => help::current(command, info).for_each(|flag| option(text, flag)),
        // A role has some of the options of `run`, where they are explained.
        Some(_) => {
            let names: Vec<String> =
                help::current(command, info).map(|flag| bold(flag.long)).collect();
            text.push_str(&format!(".PP\nOptions, as of leap run: {}\n", names.join(", ")));
        }
    }
}

/// Adds older options, and the variables that stand for options.
fn older(text: &mut String, commands: &[CommandInfoWithArgs]) {
    let about = prose(older::BOARDS_FILE);
    text.push_str(&format!(
        ".SH COMPATIBILITY\nThese options of earlier versions work as they did. {about}\n"
    ));
    for Older { shown, instead, .. } in older::PLACES {
        text.push_str(&format!(".TP\n{}\n{}\n", bold(shown), prose(instead)));
    }
    text.push_str(&format!(".PP\n{}:\n", prose(older::MACHINE_SETTINGS)));
    for Setting { option, variable, brief, .. } in older::SETTINGS {
        let names = format!("{}, {}", bold(option), bold(variable));
        let of = prose(&help::commands_of(option, commands));
        text.push_str(&format!(".TP\n{names}\n{of}: {}\n", prose(brief)));
    }
}

fn option(text: &mut String, flag: &FlagInfo<'_>) {
    let short = help::short(flag).map(|short| bold(&format!("-{short}")) + ", ");
    let value = match flag.kind {
        FlagInfoKind::Switch => String::new(),
        FlagInfoKind::Option { arg_name } => {
            format!(" \\fI{}\\fR", prose(&help::value_name(arg_name)))
        }
    };
    let (short, long) = (short.unwrap_or_default(), bold(flag.long));
    text.push_str(&format!(".TP\n{short}{long}{value}\n{}\n", prose(flag.description)));
}

fn bold(text: &str) -> String {
    format!("\\fB{}\\fR", prose(text))
}

/// `text` as one line that begins no request, with backquoted parts in bold.
fn prose(text: &str) -> String {
    let mut out = String::new();
    if text.starts_with(['.', '\'']) {
        out.push_str("\\&");
    }
    let mut is_bold = false;
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '`' => {
                is_bold = !is_bold;
                out.push_str(if is_bold { "\\fB" } else { "\\fR" });
            }
            c if c.is_whitespace() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::process::{Command as Program, Stdio};

    use super::*;
    use crate::cli::commands;

    #[test]
    fn page_names_every_command_and_option() {
        let commands = commands();
        let page = page(&commands);
        for (command, info) in help::typed(&commands) {
            let begin = format!(".SS leap {} ", command.shown());
            let (_, section) = page.split_once(&begin).expect(&begin);
            let section = section.split("\n.S").next().unwrap();
            for flag in help::current(command, info) {
                assert!(section.contains(&bold(flag.long)), "{begin}: {}", flag.long);
            }
        }
        for section in ["NAME", "COMPATIBILITY", "EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"]
        {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{section}");
        }
        assert!(page.contains(&prose(help::EXIT_CODES)));
    }

    #[test]
    fn prose_is_no_request() {
        assert_eq!(prose(".so x"), "\\&.so x");
        assert_eq!(prose("a\n.b\\c --d"), "a .b\\ec \\-\\-d");
        assert_eq!(prose("see `leap run`."), "see \\fBleap run\\fR.");
    }

    #[test]
    fn formatter_has_nothing_to_say() {
        let path = std::env::temp_dir().join(format!("leap-page-{}.1", std::process::id()));
        std::fs::write(&path, page(&commands())).unwrap();
        let groff = Program::new("groff")
            .args(["-man", "-ww", "-z", "-Tutf8"])
            .arg(&path)
            .stdin(Stdio::null())
            .output();
        std::fs::remove_file(&path).unwrap();
        // If groff is not installed, the other tests must do.
        if let Ok(output) = groff {
            assert!(output.status.success(), "{output:?}");
            assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        }
    }
}
