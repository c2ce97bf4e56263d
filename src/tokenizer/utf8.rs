//! Turns bytes into text while they come.

/// How many replacement characters invalid UTF-8 becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replace {
    /// One replacement character for the longest start of a character, as in `String::from_utf8_lossy`.
    Sequence,
    /// One replacement character for every byte, as in SentencePiece.
    Byte,
}

/// Passes on whole characters and holds back the start of one that is not complete.
#[derive(Clone, Debug)]
pub struct Utf8Stream {
    held: [u8; 4],
    n_held: usize,
    replace: Replace,
}

impl Default for Utf8Stream {
    fn default() -> Self {
        Utf8Stream::new(Replace::Sequence)
    }
}

impl Utf8Stream {
    pub(super) fn new(replace: Replace) -> Utf8Stream {
        Utf8Stream { held: [0; 4], n_held: 0, replace }
    }

    /// Takes bytes, and appends to `out` the text that is complete with them.
    ///
    /// Bytes that cannot become a character give U+FFFD, at once.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        match std::str::from_utf8(bytes) {
            Ok(text) if self.n_held == 0 => out.push_str(text),
            _ => bytes.iter().for_each(|&byte| self.push_byte(byte, out)),
        }
    }

    /// Ends the text: a held-back start of a character gives U+FFFD.
    pub fn flush(&mut self, out: &mut String) {
        let n_marks = match self.replace {
            Replace::Sequence => self.n_held.min(1),
            Replace::Byte => self.n_held,
        };
        out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, n_marks));
        self.n_held = 0;
    }

    fn push_byte(&mut self, byte: u8, out: &mut String) {
        self.held[self.n_held] = byte;
        self.n_held += 1;
        while self.n_held > 0 {
            let taken = match std::str::from_utf8(&self.held[..self.n_held]) {
                Ok(text) => {
                    out.push_str(text);
                    self.n_held
                }
                // Four bytes are a character or an error, so there is room for the next byte.
                Err(e) if e.error_len().is_none() && e.valid_up_to() == 0 => return,
                Err(e) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    match self.replace {
                        Replace::Sequence => e.error_len().unwrap_or(1),
                        Replace::Byte => 1,
                    }
                }
            };
            self.held.copy_within(taken..self.n_held, 0);
            self.n_held -= taken;
        }
    }
}

/// A run of byte tokens, as the decoder `ByteFallback` of the library tokenizers treats it: text if all of it is UTF-8,
/// otherwise one U+FFFD for every byte.
#[derive(Clone, Debug, Default)]
pub(super) struct ByteRun {
    /// The characters so far. A stray byte would undo them, so they wait for the end of the run.
    text: String,
    /// The start of a character.
    held: [u8; 4],
    n_held: usize,
    has_stray: bool,
}

impl ByteRun {
    /// Takes the next byte of the run, and appends to `out` what no later byte can change.
    pub(super) fn push(&mut self, byte: u8, out: &mut String) {
        if self.has_stray {
            return out.push(char::REPLACEMENT_CHARACTER);
        }
        self.held[self.n_held] = byte;
        self.n_held += 1;
        match std::str::from_utf8(&self.held[..self.n_held]) {
            Ok(character) => {
                self.text.push_str(character);
                self.n_held = 0;
            }
            // Four bytes are a character or an error, so there is room for the next byte.
            Err(e) if e.error_len().is_none() => {}
            Err(_) => {
                self.replace(out);
                self.has_stray = true;
            }
        }
    }

    /// Ends the run, and appends what it held back to `out`.
    pub(super) fn end(&mut self, out: &mut String) {
        if self.n_held > 0 {
            self.replace(out);
        }
        out.push_str(&self.text);
        self.text.clear();
        self.has_stray = false;
    }

    /// Gives U+FFFD for every byte that waits.
    fn replace(&mut self, out: &mut String) {
        let n_marks = self.text.len() + self.n_held;
        out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, n_marks));
        self.text.clear();
        self.n_held = 0;
    }
}
