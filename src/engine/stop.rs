//! Stop strings end an answer at a text, wherever token boundaries cut it.

/// Bytes of text per call for which memory is reserved; few tokens are longer.
const TOKEN_BYTES: usize = 512;

/// Watches a text for stop strings and holds back what could be the start of one.
pub(super) struct StopStrings {
    strings: Vec<String>,
    /// Text that has not been shown yet.
    held: String,
}

/// Result of [`StopStrings::push`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// Bytes at the start of [`StopStrings::held`] that may be shown.
    pub(super) len: usize,
    /// Whether a stop string follows them.
    pub(super) is_stop: bool,
}

impl StopStrings {
    /// Stops at any of `strings`; empty ones never match.
    pub(super) fn new(strings: Vec<String>) -> StopStrings {
        let strings: Vec<String> = strings.into_iter().filter(|s| !s.is_empty()).collect();
        let longest = strings.iter().map(String::len).max().unwrap_or(0);
        StopStrings { strings, held: String::with_capacity(longest + TOKEN_BYTES) }
    }

    /// Appends text, and tells how much of [`StopStrings::held`] may be shown.
    pub(super) fn push(&mut self, text: &str) -> Shown {
        self.held.push_str(text);
        let first = self.strings.iter().filter_map(|s| self.held.find(s.as_str())).min();
        match first {
            Some(len) => Shown { len, is_stop: true },
            None => Shown { len: self.held.len() - self.longest_start(), is_stop: false },
        }
    }

    /// The held text.
    pub(super) fn held(&self) -> &str {
        &self.held
    }

    /// Drops the first `len` bytes of the held text, which have been shown.
    pub(super) fn consume(&mut self, len: usize) {
        self.held.drain(..len);
    }

    /// Length of the longest end of the held text with which a stop string begins.
    fn longest_start(&self) -> usize {
        let starts = self.strings.iter().map(|s| {
            let longest = s.len().min(self.held.len());
            let begins = |&len: &usize| {
                s.as_bytes().starts_with(&self.held.as_bytes()[self.held.len() - len..])
            };
            (1..=longest).rev().find(begins).unwrap_or(0)
        });
        starts.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `text` in pieces of `size` characters. Returns the shown text, and whether a stop string was
    /// found.
    fn run(stops: &[&str], text: &str, size: usize) -> (String, bool) {
        let mut stop = StopStrings::new(stops.iter().map(|s| s.to_string()).collect());
        let mut shown = String::new();
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(size) {
            let result = stop.push(&piece.iter().collect::<String>());
            shown.push_str(&stop.held()[..result.len]);
            stop.consume(result.len);
            if result.is_stop {
                return (shown, true);
            }
        }
        shown.push_str(stop.held());
        (shown, false)
    }

    #[test]
    fn stop_strings_are_found_wherever_the_text_is_cut() {
        for size in 1..12 {
            let got = run(&["</end>", "\n\nUser"], "one </ende> two\n\nUsers", size);
            assert_eq!(got, ("one </ende> two".to_owned(), true), "pieces of {size}");
            let got = run(&["</end>"], "é </en é</e", size);
            assert_eq!(got, ("é </en é</e".to_owned(), false), "pieces of {size}");
        }
    }

    #[test]
    fn a_repeated_start_does_not_hide_the_string() {
        for size in 1..6 {
            assert_eq!(run(&["aab"], "aaab", size), ("a".to_owned(), true));
        }
    }

    #[test]
    fn nothing_is_held_without_stop_strings() {
        let mut stop = StopStrings::new(vec![String::new()]);
        assert_eq!(stop.push("text"), Shown { len: 4, is_stop: false });
    }
}
