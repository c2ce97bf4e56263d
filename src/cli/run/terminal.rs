//! Lines that a person types on a terminal, with an editor if the program has one.

use std::io::{self, Write};

use super::input::{self, Typed};
use crate::cli::Failure;

#[cfg(feature = "tools")]
use super::editor::Editor;

/// The terminal on stdin.
pub(super) struct Terminal {
    /// `None` where the terminal cannot move its cursor.
    #[cfg(feature = "tools")]
    editor: Option<Editor>,
}

#[cfg(feature = "tools")]
impl Terminal {
    /// With `has_history`, lines of earlier conversations can be recalled.
    pub(super) fn new(has_history: bool) -> Terminal {
        Terminal { editor: Editor::new(has_history) }
    }

    /// Reads the next line, behind `prompt`.
    pub(super) fn line(&mut self, prompt: &str) -> Result<Typed, Failure> {
        match &mut self.editor {
            Some(editor) => editor.line(prompt),
            None => plain(prompt),
        }
    }

    /// Adds `text` to the history.
    pub(super) fn remember(&mut self, text: &str) {
        if let Some(editor) = &mut self.editor {
            editor.remember(text);
        }
    }
}

#[cfg(not(feature = "tools"))]
impl Terminal {
    /// This program has no editor, and no history.
    pub(super) fn new(_has_history: bool) -> Terminal {
        Terminal {}
    }

    /// Reads the next line, behind `prompt`.
    pub(super) fn line(&mut self, prompt: &str) -> Result<Typed, Failure> {
        plain(prompt)
    }

    /// Does nothing.
    pub(super) fn remember(&mut self, _text: &str) {}
}

fn plain(prompt: &str) -> Result<Typed, Failure> {
    let mut stderr = io::stderr().lock();
    // A prompt that cannot be shown is no loss.
    let _ = stderr.write_all(prompt.as_bytes()).and_then(|()| stderr.flush());
    Ok(input::line()?.map_or(Typed::End, Typed::Text))
}
