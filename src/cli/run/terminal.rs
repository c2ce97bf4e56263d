//! Lines that a person writes on a terminal: edited where the program has an editor.

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
    /// With `has_history`, what was written in earlier conversations can be recalled.
    pub(super) fn new(has_history: bool) -> Terminal {
        Terminal { editor: Editor::new(has_history) }
    }

    /// The next line, behind `prompt`.
    pub(super) fn line(&mut self, prompt: &str) -> Result<Typed, Failure> {
        match &mut self.editor {
            Some(editor) => editor.line(prompt),
            None => plain(prompt),
        }
    }

    /// Lets `text` be recalled.
    pub(super) fn remember(&mut self, text: &str) {
        if let Some(editor) = &mut self.editor {
            editor.remember(text);
        }
    }
}

#[cfg(not(feature = "tools"))]
impl Terminal {
    /// Nothing is recalled: this program has no editor.
    pub(super) fn new(_has_history: bool) -> Terminal {
        Terminal {}
    }

    /// The next line, behind `prompt`.
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
