//! Rust source as tokens, with comments kept apart and without the content of literals.

/// One line of a file.
#[derive(Default)]
pub(crate) struct Line {
    /// Code of the line without comments; every string or character literal is `""`.
    pub(crate) code: String,
    /// Comments of the line, without their slashes and stars.
    pub(crate) comment: String,
}

/// A word, `::`, or one character of punctuation.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// Index of the token's line, from 0.
    pub(crate) line: usize,
}

/// The tokens of `lines`.
pub(crate) fn tokens(lines: &[Line]) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (line, Line { code, .. }) in lines.iter().enumerate() {
        let mut rest = code.as_str();
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let len = match word {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                _ => word,
            };
            let (token, tail) = rest.split_at(len);
            if !first.is_whitespace() {
                tokens.push(Token { text: token.to_owned(), line });
            }
            rest = tail;
        }
    }
    tokens
}

/// Splits `text` into lines, and separates code from comments and literals.
pub(crate) fn lines(text: &str) -> Vec<Line> {
    let mut scanner =
        Scanner { chars: text.chars().collect(), at: 0, lines: vec![Line::default()] };
    while scanner.at < scanner.chars.len() {
        scanner.step();
    }
    scanner.lines
}

struct Scanner {
    chars: Vec<char>,
    at: usize,
    lines: Vec<Line>,
}

impl Scanner {
    fn step(&mut self) {
        match self.peek(0) {
            '/' if self.peek(1) == '/' => self.line_comment(),
            '/' if self.peek(1) == '*' => self.block_comment(),
            '"' => self.string(),
            '\'' => self.quote(),
            c if is_word(c) => self.word(),
            c => {
                self.code(c);
                self.advance();
            }
        }
    }

    fn line_comment(&mut self) {
        self.at += 2;
        while self.at < self.chars.len() && self.peek(0) != '\n' {
            self.comment();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => depth += 1,
                ('*', '/') => depth -= 1,
                _ => {
                    self.comment();
                    continue;
                }
            }
            self.at += 2;
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.literal();
        self.at += 1;
        while self.at < self.chars.len() {
            match self.advance() {
                '\\' => {
                    self.advance();
                }
                '"' => return,
                _ => {}
            }
        }
    }

    /// A character literal, or the quote of a lifetime.
    fn quote(&mut self) {
        let is_literal = self.peek(1) == '\\' || self.peek(2) == '\'';
        self.at += 1;
        if !is_literal {
            return self.code('\'');
        }
        self.literal();
        if self.advance() == '\\' {
            self.advance();
        }
        while self.at < self.chars.len() && self.advance() != '\'' {}
    }

    /// An identifier, keyword or number; `r`, `br` and `cr` may begin a raw string.
    fn word(&mut self) {
        let start = self.at;
        while is_word(self.peek(0)) {
            self.at += 1;
        }
        let word: String = self.chars[start..self.at].iter().collect();
        let hashes = (0..).take_while(|&i| self.peek(i) == '#').count();
        if matches!(word.as_str(), "r" | "br" | "cr") && self.peek(hashes) == '"' {
            return self.raw_string(hashes);
        }
        word.chars().for_each(|c| self.code(c));
    }

    fn raw_string(&mut self, hashes: usize) {
        self.literal();
        self.at += hashes + 1;
        while self.at < self.chars.len() {
            let closes = self.advance() == '"' && (0..hashes).all(|i| self.peek(i) == '#');
            if closes {
                self.at += hashes;
                return;
            }
        }
    }

    /// The character `ahead` places after the next one; NUL beyond the end.
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    /// Takes the next character, and counts lines.
    fn advance(&mut self) -> char {
        let next = self.peek(0);
        self.at += 1;
        if next == '\n' {
            self.lines.push(Line::default());
        }
        next
    }

    fn comment(&mut self) {
        let next = self.peek(0);
        self.line().comment.push(next);
        self.advance();
    }

    fn code(&mut self, c: char) {
        self.line().code.push(c);
    }

    fn literal(&mut self) {
        self.line().code.push_str("\"\"");
    }

    fn line(&mut self) -> &mut Line {
        self.lines.last_mut().expect("there is a line from the start")
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::{lines, tokens};

    fn words(text: &str) -> Vec<String> {
        tokens(&lines(text)).into_iter().map(|t| t.text).filter(|t| t != "\"").collect()
    }

    #[test]
    fn comments_are_kept_apart() {
        let lines = lines("a // SAFETY: one\n/* two /* three */ four */ b");
        assert_eq!(lines[0].comment, " SAFETY: one");
        assert_eq!(lines[1].comment, " two  three  four ");
        assert_eq!(words("a // x\n/* y /* z */ w */ b"), ["a", "b"]);
    }

    #[test]
    fn literals_hide_what_they_hold() {
        assert_eq!(
            words(r#"a("x // \" y", b"\\", 'c', '\'', '"', b'\n') z"#).join(""),
            "a(,b,,,,b)z"
        );
        assert_eq!(words("r#\"in \" side\"# br\"x\" cr##\"\"# y\"## z"), ["z"]);
        assert_eq!(words("r#type x"), ["r", "#", "type", "x"]);
        assert_eq!(words("fn f<'a>(x: &'a str)").join(" "), "fn f < ' a > ( x : & ' a str )");
    }

    #[test]
    fn lines_are_counted_inside_literals_too() {
        let tokens = tokens(&lines("\"a\nb\\\nc\"\nr\"\n\" d::e"));
        let d = tokens.iter().find(|t| t.text == "d").unwrap();
        assert_eq!(d.line, 4);
        assert_eq!(tokens.iter().filter(|t| t.text == "::").count(), 1);
    }
}
