//! Reads a template in Go's language.

/// Most levels of blocks, parentheses, fields and pipes.
const LEVELS_MAX: usize = 100;
/// White space that `{{-` and `-}}` trim.
const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// A part of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Text(String),
    Print(Pipe),
    Set(Pipe),
    If(Block),
    With(Block),
    Range {
        /// Names of the variables for index and element; the first is empty if only the element has one.
        names: Option<[String; 2]>,
        block: Block,
    },
    Break,
    Continue,
}

/// A condition or a value, and what is written if it is not empty or if it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Block {
    pub(super) of: Pipe,
    pub(super) then: Vec<Node>,
    pub(super) otherwise: Vec<Node>,
}

/// A value, which a variable may get.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pipe {
    /// Name of the variable, and whether it is a new one.
    pub(super) set: Option<(String, bool)>,
    pub(super) value: Expr,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    /// The current value.
    Dot,
    /// A variable; `$` has an empty name.
    Variable(String),
    Field(Box<Expr>, String),
    Text(String),
    /// A number, `true`, `false` or `nil`.
    Word(String),
    Call(String, Vec<Expr>),
}

impl Pipe {
    /// Whether the value is this field of the current value.
    pub(super) fn is_field(&self, name: &str) -> bool {
        let Expr::Field(of, field) = &self.value else { return false };
        self.set.is_none() && field == name && **of == Expr::Dot
    }
}

/// How a list of nodes ended.
#[derive(PartialEq)]
enum Stop {
    Text,
    End,
    /// `else`, and the keyword behind it.
    Else(Option<&'static str>),
}

struct Parser<'a> {
    rest: &'a str,
    /// Whether the last tag trims the text behind it.
    trims: bool,
    level: usize,
}

/// The parts of a template.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, String> {
    let mut parser = Parser { rest: text, trims: false, level: 0 };
    match parser.nodes()? {
        (nodes, Stop::Text) => Ok(nodes),
        (_, Stop::End) => Err("it has an {{end}} too many".to_owned()),
        (_, Stop::Else(_)) => Err("it has an {{else}} outside of a block".to_owned()),
    }
}

impl<'a> Parser<'a> {
    /// Parts up to the end of the text, or the tag that ends their block.
    fn nodes(&mut self) -> Result<(Vec<Node>, Stop), String> {
        self.enter()?;
        let mut nodes = Vec::new();
        let stop = loop {
            let (text, tag) = match self.rest.split_once("{{") {
                Some((text, tag)) => (text, Some(tag)),
                None => (self.rest, None),
            };
            let (trims, tag) = match tag {
                Some(tag) if tag.starts_with('-') && tag[1..].starts_with(SPACE) => {
                    (true, Some(&tag[1..]))
                }
                tag => (false, tag),
            };
            let text = if self.trims { text.trim_start_matches(SPACE) } else { text };
            let text = if trims { text.trim_end_matches(SPACE) } else { text };
            if !text.is_empty() {
                nodes.push(Node::Text(text.to_owned()));
            }
            let Some(tag) = tag else {
                self.rest = "";
                break Stop::Text;
            };
            self.rest = tag;
            if let Some(stop) = self.tag(&mut nodes)? {
                break stop;
            }
        };
        self.level -= 1;
        Ok((nodes, stop))
    }

    /// Reads a tag behind its `{{`; returns how it ends the list, if it does.
    fn tag(&mut self, nodes: &mut Vec<Node>) -> Result<Option<Stop>, String> {
        self.skip();
        if let Some(comment) = self.rest.strip_prefix("/*") {
            self.rest = comment.split_once("*/").ok_or("a comment has no end")?.1;
            self.close()?;
            return Ok(None);
        }
        let node = match self.keyword() {
            Some("end") => return self.close().map(|()| Some(Stop::End)),
            Some("else") => {
                self.skip();
                let inner = self.keyword().filter(|word| *word != "end");
                if inner.is_none() {
                    self.close()?;
                }
                return Ok(Some(Stop::Else(inner)));
            }
            Some(word @ ("break" | "continue")) => {
                self.close()?;
                if word == "break" { Node::Break } else { Node::Continue }
            }
            Some(word) => self.block(word)?,
            None => {
                let pipe = self.pipe()?;
                self.close()?;
                if pipe.set.is_some() { Node::Set(pipe) } else { Node::Print(pipe) }
            }
        };
        nodes.push(node);
        Ok(None)
    }

    /// The keyword with which the text goes on, if there is one.
    fn keyword(&mut self) -> Option<&'static str> {
        const WORDS: [&str; 10] = [
            "if", "range", "with", "else", "end", "break", "continue", "define", "template",
            "block",
        ];
        let len = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (word, rest) = self.rest.split_at(len.unwrap_or(self.rest.len()));
        let known = WORDS.into_iter().find(|known| *known == word)?;
        self.rest = rest;
        Some(known)
    }

    /// A block behind its keyword, with its end.
    fn block(&mut self, word: &'static str) -> Result<Node, String> {
        if !matches!(word, "if" | "range" | "with") {
            return Err(format!("it has a {{{{{word}}}}}"));
        }
        self.enter()?;
        self.skip();
        let names = if word == "range" { self.range_names()? } else { None };
        let of = self.pipe()?;
        self.close()?;
        let (then, stop) = self.nodes()?;
        let otherwise = match stop {
            Stop::End => Vec::new(),
            Stop::Text => return Err(format!("a {{{{{word}}}}} has no end")),
            // The inner block takes the end of both.
            Stop::Else(Some(inner)) => vec![self.block(inner)?],
            Stop::Else(None) => match self.nodes()? {
                (nodes, Stop::End) => nodes,
                _ => return Err(format!("the else of a {{{{{word}}}}} has no end")),
            },
        };
        self.level -= 1;
        let block = Block { of, then, otherwise };
        Ok(match word {
            "if" => Node::If(block),
            "with" => Node::With(block),
            _ => Node::Range { names, block },
        })
    }

    /// The variables of a `range`, with the sign behind them.
    fn range_names(&mut self) -> Result<Option<[String; 2]>, String> {
        let before = self.rest;
        let mut names = Vec::new();
        while self.rest.starts_with('$') {
            names.push(self.variable());
            self.skip();
            match self.rest.strip_prefix(',') {
                Some(rest) => self.rest = rest,
                None => break,
            }
            self.skip();
        }
        let Some(rest) = self.rest.strip_prefix(":=").filter(|_| !names.is_empty()) else {
            self.rest = before;
            return Ok(None);
        };
        self.rest = rest;
        match names.as_slice() {
            [one] => Ok(Some([String::new(), one.clone()])),
            [index, element] => Ok(Some([index.clone(), element.clone()])),
            _ => Err("a {{range}} has three variables".to_owned()),
        }
    }

    /// A value, and the variable that gets it.
    fn pipe(&mut self) -> Result<Pipe, String> {
        self.skip();
        let before = self.rest;
        let mut set = None;
        if self.rest.starts_with('$') {
            let name = self.variable();
            self.skip();
            let signs = [(":=", true), ("=", false)];
            let sign = signs.into_iter().find(|(sign, _)| self.rest.starts_with(sign));
            match sign.filter(|_| !name.is_empty()) {
                Some((sign, is_new)) => {
                    self.rest = &self.rest[sign.len()..];
                    set = Some((name, is_new));
                }
                None => self.rest = before,
            }
        }
        Ok(Pipe { set, value: self.piped()? })
    }

    /// Commands, of which each gets the value of the one before as its last argument.
    fn piped(&mut self) -> Result<Expr, String> {
        let level = self.level;
        self.enter()?;
        let mut value = self.command()?;
        loop {
            self.skip();
            let Some(rest) = self.rest.strip_prefix('|') else { break };
            self.rest = rest;
            self.enter()?;
            value = match self.command()? {
                Expr::Call(name, mut args) => {
                    args.push(value);
                    Expr::Call(name, args)
                }
                _ => return Err("a value that is no function follows a |".to_owned()),
            };
        }
        self.level = level;
        Ok(value)
    }

    fn command(&mut self) -> Result<Expr, String> {
        self.skip();
        let len = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (word, rest) = self.rest.split_at(len.unwrap_or(self.rest.len()));
        let is_name = word.starts_with(|c: char| c.is_ascii_alphabetic());
        if !is_name || matches!(word, "true" | "false" | "nil") {
            let value = self.operand()?;
            self.skip();
            return match self.is_at_end() || self.rest.starts_with('|') {
                true => Ok(value),
                false => Err(format!("{:?} follows a value", excerpt(self.rest))),
            };
        }
        self.rest = rest;
        let mut args = Vec::new();
        loop {
            self.skip();
            if self.is_at_end() || self.rest.starts_with('|') {
                return Ok(Expr::Call(word.to_owned(), args));
            }
            args.push(self.operand()?);
        }
    }

    fn is_at_end(&self) -> bool {
        self.rest.is_empty() || [")", "}}", "-}}"].iter().any(|end| self.rest.starts_with(end))
    }

    /// A value without arguments, and the fields of it that are named.
    fn operand(&mut self) -> Result<Expr, String> {
        let mut value = match self.rest.chars().next() {
            Some('(') => {
                self.rest = &self.rest[1..];
                let inner = self.piped()?;
                self.rest = self.rest.strip_prefix(')').ok_or("a parenthesis is not closed")?;
                inner
            }
            Some('$') => Expr::Variable(self.variable()),
            Some('.') => {
                let has_name = self.rest[1..].starts_with(|c: char| c.is_ascii_alphabetic());
                self.rest = if has_name { self.rest } else { &self.rest[1..] };
                Expr::Dot
            }
            Some('"' | '`') => Expr::Text(self.string()?),
            Some(c) if c.is_ascii_digit() || c == '-' => Expr::Word(self.word()),
            Some(c) if c.is_ascii_alphabetic() => match self.word() {
                word if matches!(&*word, "true" | "false" | "nil") => Expr::Word(word),
                function => Expr::Call(function, Vec::new()),
            },
            _ => return Err(format!("{:?} is no value", excerpt(self.rest))),
        };
        let level = self.level;
        while self.rest.starts_with('.') {
            self.enter()?;
            self.rest = &self.rest[1..];
            let name = self.word();
            if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
                return Err("a field has no name".to_owned());
            }
            value = Expr::Field(Box::new(value), name);
        }
        self.level = level;
        Ok(value)
    }

    /// A variable's name, behind the `$`.
    fn variable(&mut self) -> String {
        self.rest = &self.rest[1..];
        self.word()
    }

    /// Letters and digits, behind a sign.
    fn word(&mut self) -> String {
        let sign = usize::from(self.rest.starts_with('-'));
        let len = self.rest[sign..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (word, rest) = self.rest.split_at(len.map_or(self.rest.len(), |len| sign + len));
        self.rest = rest;
        word.to_owned()
    }

    /// A text in quotation marks, or as it is between backticks.
    fn string(&mut self) -> Result<String, String> {
        let open = "a text in a tag has no end";
        if let Some(raw) = self.rest.strip_prefix('`') {
            let (text, rest) = raw.split_once('`').ok_or(open)?;
            self.rest = rest;
            return Ok(text.to_owned());
        }
        let mut chars = self.rest.char_indices().skip(1);
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                '\n' => break,
                '\\' => text.push(match chars.next().map(|(_, c)| c) {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some('r') => '\r',
                    Some(c @ ('"' | '\\' | '\'')) => c,
                    _ => return Err("a text in a tag has an escape that is not known".to_owned()),
                }),
                c => text.push(c),
            }
        }
        Err(open.to_owned())
    }

    /// Goes one level deeper.
    fn enter(&mut self) -> Result<(), String> {
        self.level += 1;
        match self.level > LEVELS_MAX {
            true => Err("its blocks and values nest too deeply".to_owned()),
            false => Ok(()),
        }
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start_matches(SPACE);
    }

    /// The end of a tag.
    fn close(&mut self) -> Result<(), String> {
        self.skip();
        for (end, trims) in [("-}}", true), ("}}", false)] {
            if let Some(rest) = self.rest.strip_prefix(end) {
                (self.rest, self.trims) = (rest, trims);
                return Ok(());
            }
        }
        Err(format!("{:?} stands where a tag should end", excerpt(self.rest)))
    }
}

/// The beginning of a text, for errors.
fn excerpt(text: &str) -> String {
    text.chars().take(20).collect()
}
