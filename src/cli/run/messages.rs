//! Messages of a conversation: their sources, and the commands that LEAP answers itself.

use std::io::{self, IsTerminal};

use super::input::{self, Typed};
use super::session::Session;
use super::terminal::Terminal;
use crate::cli::{Failure, note};

/// Shown at the start of a conversation on a terminal.
const GREETING: &str = "Ctrl-D or /exit leaves, Ctrl-C ends an answer, /help says more";

/// The user's next input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// A message to answer.
    Message(String),
    /// A command to LEAP itself.
    Command(ChatCommand),
}

/// A command to LEAP itself, typed on a terminal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChatCommand {
    Help,
    Exit,
    /// Start again.
    Clear,
    /// Start again with these instructions; `None` shows the current ones.
    System(Option<String>),
    /// An unknown command.
    Unknown(String),
}

/// Lists the commands.
pub(super) const HELP: &str = "\
/exit         leaves; so does Ctrl-D
/clear        forgets the conversation; the instructions stay
/system TEXT  begins anew with TEXT as instructions; without TEXT shows those there are
/help         shows this
//TEXT        sends a message that begins with a slash
A line that ends in \\ goes on in the next, and so does all between \"\"\" and \"\"\".
Ctrl-C ends an answer, or drops the line that is being typed.";

/// The user's messages: the one on the command line, then those of a terminal, or the lines of stdin.
pub(super) struct Messages {
    first: Option<String>,
    source: MessageSource,
}

enum MessageSource {
    /// End of the messages.
    None,
    /// stdin, a message a line.
    Lines,
    Terminal(Box<Terminal>),
}

impl Messages {
    pub(super) fn new(session: &Session<'_>) -> Result<Messages, Failure> {
        let flags = session.flags;
        let is_given = flags.prompt.is_some() || flags.prompt_file.is_some();
        let first = if is_given { Some(input::prompt(flags)?) } else { None };
        // A script that gives a message wants only its answer; a person wants to go on.
        let source = match (io::stdin().is_terminal(), is_given) {
            (true, _) => MessageSource::Terminal(Box::new(Terminal::new(!flags.no_history))),
            (false, true) => MessageSource::None,
            (false, false) => MessageSource::Lines,
        };
        if matches!(source, MessageSource::Terminal(_)) && !flags.quiet && !flags.json {
            note(GREETING);
        }
        Ok(Messages { first, source })
    }

    /// The next message or command; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Wish>, Failure> {
        if let Some(first) = self.first.take() {
            return Ok(Some(Wish::Message(first)));
        }
        loop {
            let wish = match &mut self.source {
                MessageSource::None => return Ok(None),
                MessageSource::Lines => input::line()?.map(Wish::Message),
                MessageSource::Terminal(terminal) => written(terminal)?.map(wish),
            };
            match wish {
                Some(Wish::Message(message)) if message.trim().is_empty() => {}
                wish => return Ok(wish),
            }
        }
    }
}

/// Reads a message from the terminal, in one line or several.
fn written(terminal: &mut Terminal) -> Result<Option<String>, Failure> {
    let mut parts = LineParts::default();
    loop {
        match terminal.line(if parts.is_open { ". " } else { "> " })? {
            Typed::Text(line) => {
                if let Some(text) = parts.push(&line) {
                    terminal.remember(&text);
                    return Ok(Some(text));
                }
            }
            #[cfg(feature = "tools")]
            Typed::Interrupted => {
                parts = LineParts::default();
                note("Ctrl-D or /exit leaves");
            }
            Typed::End => return Ok(None),
        }
    }
}

/// Interprets a text. A slash followed by letters alone is a command, so paths are none.
fn wish(text: String) -> Wish {
    let Some(rest) = text.strip_prefix('/') else { return Wish::Message(text) };
    if rest.starts_with('/') {
        return Wish::Message(rest.to_owned());
    }
    let (word, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if word.is_empty() || !word.chars().all(char::is_alphabetic) {
        return Wish::Message(text);
    }
    Wish::Command(match word {
        "help" => ChatCommand::Help,
        "exit" | "quit" | "bye" => ChatCommand::Exit,
        "clear" => ChatCommand::Clear,
        "system" => ChatCommand::System(Some(argument.trim().to_owned()).filter(|s| !s.is_empty())),
        _ => ChatCommand::Unknown(word.to_owned()),
    })
}

/// Lines that become one text.
#[derive(Default)]
struct LineParts {
    text: String,
    /// True if more lines belong to the text.
    is_open: bool,
    /// True if the text goes on to the closing `"""`.
    is_quoted: bool,
}

impl LineParts {
    /// Adds a line; returns the text if this was its last line.
    fn push(&mut self, line: &str) -> Option<String> {
        let mut line = line;
        if let (false, Some(rest)) = (self.is_open, line.strip_prefix(QUOTES)) {
            (self.is_quoted, line) = (true, rest);
        }
        let (line, is_last) = match self.is_quoted {
            true => line.trim_end().strip_suffix(QUOTES).map_or((line, false), |line| (line, true)),
            false => line.strip_suffix('\\').map_or((line, true), |line| (line, false)),
        };
        self.text.push_str(line);
        self.is_open = !is_last;
        if self.is_open {
            self.text.push('\n');
            return None;
        }
        let text = std::mem::take(self).text;
        Some(text.trim_matches('\n').to_owned())
    }
}

/// Mark around a text of several lines.
const QUOTES: &str = "\"\"\"";

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[&str]) -> Vec<String> {
        let mut parts = LineParts::default();
        lines.iter().filter_map(|line| parts.push(line)).collect()
    }

    #[test]
    fn backslash_and_quotes_join_lines() {
        assert_eq!(texts(&["a", "b"]), ["a", "b"]);
        assert_eq!(texts(&["a\\", "b\\", "c", "d"]), ["a\nb\nc", "d"]);
        assert_eq!(texts(&["\"\"\"a", "", "b\\", "c\"\"\" ", "d"]), ["a\n\nb\\\nc", "d"]);
        assert_eq!(texts(&["\"\"\"", "a", "\"\"\""]), ["a"]);
        assert_eq!(texts(&["\"\"\"a\"\"\"", "say \"\"\"", "b"]), ["a", "say \"\"\"", "b"]);
        assert_eq!(texts(&["\"\"\"\"\"\""]), [""]);
        // A pasted paragraph is one line; backslashes within it are text.
        assert_eq!(texts(&["make \\\n  all\n"]), ["make \\\n  all"]);
    }

    #[test]
    fn commands_are_a_slash_and_letters() {
        let command = |text: &str| match wish(text.to_owned()) {
            Wish::Command(command) => command,
            Wish::Message(message) => panic!("{message:?} is a message"),
        };
        assert_eq!(command("/help"), ChatCommand::Help);
        assert_eq!(command("/bye "), ChatCommand::Exit);
        assert_eq!(command("/clear"), ChatCommand::Clear);
        assert_eq!(command("/system"), ChatCommand::System(None));
        assert_eq!(
            command("/system  Be\nbrief. "),
            ChatCommand::System(Some("Be\nbrief.".to_owned()))
        );
        assert_eq!(command("/Exit now"), ChatCommand::Unknown("Exit".to_owned()));
    }

    #[test]
    fn other_slashes_are_messages() {
        let message = |text: &str, wanted: &str| {
            assert_eq!(wish(text.to_owned()), Wish::Message(wanted.to_owned()));
        };
        message("//help", "/help");
        message("/etc/passwd holds users", "/etc/passwd holds users");
        for same in ["/", "/ help", "/2 of them", "what does /help do?", " /help"] {
            message(same, same);
        }
    }
}
