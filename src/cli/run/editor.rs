//! Edits a line on the terminal, and recalls earlier ones.

use std::env;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use rustyline::config::{Behavior, BellStyle};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor as LineEditor};

use super::input::Typed;
use crate::cli::{Failure, warn};
use crate::sys::{folders, notify, signal};

/// Limit on the texts that are kept. With [`HISTORY_TEXT_BYTES`] the file stays below 4 MiB.
const HISTORY_LEN: usize = 1000;
/// Limit on the bytes of a text that is kept.
const HISTORY_TEXT_BYTES: usize = 4096;

/// Terminals that cannot move their cursor.
const PLAIN_TERMINALS: [&str; 3] = ["dumb", "emacs", "cons25"];

/// A line editor.
pub(super) struct Editor {
    editor: LineEditor<(), FileHistory>,
    /// File of the history; `None` if none is kept.
    history: Option<PathBuf>,
}

impl Editor {
    /// `None` if the terminal cannot move its cursor, or if a service manager expects signs of life, which an editor
    /// does not send.
    pub(super) fn new(has_history: bool) -> Option<Editor> {
        let is_plain = env::var("TERM").is_ok_and(|term| PLAIN_TERMINALS.contains(&&*term));
        if is_plain || notify::period().is_some() {
            return None;
        }
        // The prompt is no part of the text: if stdout is a file, the prompt is not written to it.
        let is_seen = io::stdout().is_terminal();
        let config = Config::builder()
            .max_history_size(HISTORY_LEN)
            .ok()?
            .history_ignore_dups(true)
            .ok()?
            .bell_style(BellStyle::None)
            .behavior(if is_seen { Behavior::Stdio } else { Behavior::PreferTerm })
            .build();
        let history = FileHistory::with_config(&config);
        let editor = LineEditor::with_history(config, history).ok()?;
        let mut editor = Editor { editor, history: None };
        if has_history {
            editor.recall();
        }
        Some(editor)
    }

    /// Reads the history of earlier conversations. If that fails, this conversation has a history of its own.
    fn recall(&mut self) {
        let Some(path) = folders::state().map(|folder| folder.join("chat-history")) else { return };
        match self.editor.load_history(&path) {
            Ok(()) => {}
            Err(ReadlineError::Io(e)) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                log::debug!("{}: {e}; it is begun anew", path.display());
                let _ = fs::remove_file(&path);
            }
        }
        self.history = Some(path);
    }

    /// Reads the next line, behind `prompt`.
    pub(super) fn line(&mut self, prompt: &str) -> Result<Typed, Failure> {
        let reading = signal::interrupt_reading();
        let result = self.editor.readline(prompt);
        drop(reading);
        match result {
            _ if signal::interrupted() > 0 => Ok(Typed::End),
            Ok(text) => Ok(Typed::Text(text)),
            Err(ReadlineError::Interrupted) => Ok(Typed::Interrupted),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(ReadlineError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
                warn("that was not UTF-8");
                Ok(Typed::Interrupted)
            }
            // The terminal is gone.
            Err(ReadlineError::Io(e)) if e.raw_os_error() == Some(libc::EIO) => Ok(Typed::End),
            Err(e) => Err(Failure::Runtime(format!("cannot read the terminal: {e}"))),
        }
    }

    /// Adds `text` to the history, for later conversations too.
    pub(super) fn remember(&mut self, text: &str) {
        let is_kept = text.len() <= HISTORY_TEXT_BYTES && !text.trim().is_empty();
        if !is_kept || !self.editor.add_history_entry(text).is_ok_and(|is_new| is_new) {
            return;
        }
        if let Some(path) = &self.history
            && let Err(e) = self.editor.append_history(path)
        {
            log::debug!("{}: {e}", path.display());
        }
    }
}
