//! Constrains answers to a form: JSON, JSON of a schema, or tool calls.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};

use super::keywords::check_multiples;
use crate::engine::TokenFilter;
use crate::format::json;
use crate::tokenizer::{Tags, Tokenizer};

/// White space between the parts of JSON: enough to indent. Without a limit, small models write blanks for ever.
const WHITESPACE: &str = r"[ \t]{0,4}|\n[ \t]{0,40}";
/// Longest schema, as text.
const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// Stack for reading a grammar: schemas may be as deep as they are long.
const STACK_BYTES: usize = 256 << 20;
/// Most items of a grammar at one place in a text: about four for each optional key of an object.
const ROW_ITEMS_MAX: usize = 10_000;
/// Limit of a lexer's states: about 40 MB.
const LEXER_STATES_MAX: usize = 20_000;

/// Makes filters for one tokenizer.
pub(super) struct Grammars {
    factory: ParserFactory,
    tokenizer: Arc<Tokenizer>,
    /// Held while a grammar is compiled, so that only one takes memory for that at a time.
    reading: Mutex<()>,
}

impl Grammars {
    /// For a model of `vocab_size` ids, of which `stop_ids` end a text.
    ///
    /// # Errors
    /// If no id ends a text.
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        vocab_size: usize,
        stop_ids: &[u32],
    ) -> Result<Grammars, String> {
        let is_known = |id: &u32| (*id as usize) < vocab_size;
        let end = tokenizer.eos().filter(is_known).or(stop_ids.first().copied().filter(is_known));
        let end = end.ok_or("no token of this model ends a text")?;
        let marked = |name: &[u8]| [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat();
        let word = |id: u32| match tokenizer.text_bytes(id) {
            Some(bytes) => bytes,
            None => tokenizer.token_bytes(id).map_or_else(Vec::new, marked),
        };
        let words: Vec<Vec<u8>> = (0..vocab_size as u32).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab_size as u32, end), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|e| first_line(&e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            max_items_in_row: ROW_ITEMS_MAX,
            max_lexer_states: LEXER_STATES_MAX,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Grammars { factory, tokenizer, reading: Mutex::new(()) })
    }

    /// A filter for JSON of this schema, in a text that `stop_ids` end.
    ///
    /// # Errors
    /// If the schema is invalid, or not supported.
    pub(super) fn schema(&self, schema: &Value, stop_ids: &[u32]) -> Result<GrammarFilter, String> {
        check_len(schema)?;
        check_multiples([schema])?;
        let grammar = TopLevelGrammar::from_json_schema(with_options(schema.clone()));
        self.filter(grammar, None, stop_ids)
    }

    /// A filter for a `lark` grammar in llguidance's dialect. With `sign`, the grammar applies only to the text behind
    /// a sign outside of thoughts.
    ///
    /// # Errors
    /// If the grammar is invalid, or exceeds a limit.
    pub(super) fn lark(
        &self,
        lark: String,
        sign: Option<Sign>,
        stop_ids: &[u32],
    ) -> Result<GrammarFilter, String> {
        self.filter(TopLevelGrammar::from_lark(lark), sign, stop_ids)
    }

    fn filter(
        &self,
        grammar: TopLevelGrammar,
        sign: Option<Sign>,
        stop_ids: &[u32],
    ) -> Result<GrammarFilter, String> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let read = || {
            let mut matcher = Matcher::new(self.factory.create_parser(grammar));
            // Errors are reported here rather than in the middle of an answer.
            matcher.compute_mask().map(|_| matcher).map_err(|e| cause(&e.to_string()))
        };
        let matcher = thread::scope(|scope| {
            let reader = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, read);
            let reader = reader.map_err(|e| format!("no thread to read it: {e}"))?;
            reader.join().unwrap_or_else(|_| Err("it cannot be read".to_owned()))
        })?;
        Ok(GrammarFilter {
            current: sign.is_none().then(|| matcher.clone()),
            matcher,
            sign,
            stop_ids: stop_ids.into(),
            tokenizer: Arc::clone(&self.tokenizer),
        })
    }
}

impl GrammarFilter {
    /// The filter behind `text`, with which the answer has begun. A grammar that waits for its sign stays.
    ///
    /// # Errors
    /// If the text breaks the grammar.
    pub(super) fn behind(mut self, text: &str) -> Result<GrammarFilter, String> {
        if let Some(matcher) = &mut self.current {
            let mut ids = Vec::new();
            self.tokenizer.encode_continuing(text, &mut ids);
            let follows = ids.into_iter().all(|id| matcher.consume_token(id).is_ok());
            if !follows {
                return Err("the last message, which the answer goes on with, breaks it".to_owned());
            }
        }
        Ok(self)
    }
}

/// Refuses schemas that are too long.
pub(super) fn check_len(schema: &Value) -> Result<(), String> {
    match json::compact(schema).len() {
        0..=SCHEMA_BYTES_MAX => Ok(()),
        n => Err(format!("the schema has {n} bytes; the limit is {SCHEMA_BYTES_MAX}")),
    }
}

/// Adds options to a schema that has none: [`WHITESPACE`], and to read `oneOf` as `anyOf`.
pub(super) fn with_options(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        let options = json!({"whitespace_pattern": WHITESPACE, "coerce_one_of": true});
        object.entry("x-guidance").or_insert(options);
    }
    schema
}

/// A pattern of a schema as a `lark` grammar has it between slashes.
pub(super) fn pattern_of(pattern: &str) -> String {
    llguidance::regex_to_lark(pattern, "dw")
}

/// The message of a grammar's error, without position and context.
fn cause(text: &str) -> String {
    const WHAT: &str = "failed to compile JSON schema: ";
    let found = text.lines().find_map(|line| line.strip_prefix("error: "));
    let first = text.lines().next().unwrap_or_default();
    let first = first.split_once(WHAT).map_or(first, |(_, first)| first);
    found.unwrap_or(first).to_owned()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Searches a text for the sign behind which a grammar applies.
#[derive(Clone, Debug)]
pub(super) struct Sign {
    kind: SignKind,
    /// The tags around thoughts, if the model has thoughts.
    tags: Option<Tags>,
    phase: Phase,
    /// Last bytes of the text, at least as many as the longest sign has.
    tail: Vec<u8>,
    /// Length of the text in bytes.
    n_bytes: usize,
}

/// Progress of a text. Thoughts come first, as for [`ThoughtFilter`](crate::tokenizer::ThoughtFilter).
#[derive(Clone, Debug)]
enum Phase {
    /// The text so far, which may be part of the tag that begins thoughts.
    Start(Vec<u8>),
    Thoughts,
    Answer,
}

impl Phase {
    /// Updates the phase with `byte`, which is the last one of `tail`. Thoughts stand between `tags`.
    fn after(&mut self, byte: u8, tail: &[u8], tags: &Tags) {
        let [open, close] = [&tags.open, &tags.close].map(|tag| tag.as_bytes());
        match self {
            Phase::Start(head) if head.is_empty() && byte.is_ascii_whitespace() => {}
            Phase::Start(head) => {
                head.push(byte);
                if head == open {
                    *self = Phase::Thoughts;
                } else if !open.starts_with(head) {
                    *self = Phase::Answer;
                }
            }
            Phase::Thoughts if tail.ends_with(close) => *self = Phase::Start(Vec::new()),
            Phase::Thoughts | Phase::Answer => {}
        }
    }
}

#[derive(Clone, Debug)]
enum SignKind {
    /// A special token.
    Token(u32),
    /// A text at the start of the answer.
    Start(Arc<str>),
    /// A text anywhere outside of thoughts.
    Text(Arc<str>),
    /// A text in the header of a message. The tokens begin a header, or a part of it, and end it.
    Header(Arc<str>, [u32; 3]),
}

impl Sign {
    const TAIL_MAX: usize = 256;

    /// A sign in a text that may begin with thoughts between `tags`, or does so if it `is_thinking`.
    pub(super) fn new(sign: &str, tags: Option<&Tags>, is_thinking: bool) -> Sign {
        let mut sign = Sign::of(SignKind::Text(sign.into()));
        sign.tags = tags.cloned();
        if is_thinking {
            sign.phase = Phase::Thoughts;
        }
        sign
    }

    /// A sign that counts only at the start of the text.
    pub(super) fn at_start(sign: &str) -> Sign {
        Sign::of(SignKind::Start(sign.into()))
    }

    /// A special token that is a sign.
    pub(super) fn token(id: u32) -> Sign {
        Sign::of(SignKind::Token(id))
    }

    /// A sign in the header of a message, in which the answer begins. The first two tokens begin a header, or a part of
    /// it, and the last one ends it.
    pub(super) fn in_header(sign: &str, ids: [u32; 3]) -> Sign {
        Sign::of(SignKind::Header(sign.into(), ids))
    }

    fn of(kind: SignKind) -> Sign {
        let (tail, phase) = (Vec::with_capacity(2 * Sign::TAIL_MAX), Phase::Start(Vec::new()));
        Sign { kind, tags: None, phase, tail, n_bytes: 0 }
    }

    /// Takes a token of the text. If the sign ends in it, returns the token's bytes behind the sign.
    fn push(&mut self, id: u32, bytes: Option<&[u8]>) -> Option<Vec<u8>> {
        if let SignKind::Token(sign) = self.kind {
            return (sign == id).then(Vec::new);
        }
        if let SignKind::Header(_, [start, channel, message]) = self.kind {
            match id {
                id if id == message => self.phase = Phase::Thoughts,
                id if id == start || id == channel => {
                    self.phase = Phase::Answer;
                    self.tail.clear();
                }
                _ => {}
            }
        }
        let bytes = bytes?;
        let end = (1..=bytes.len()).find(|&end| self.ends_at(bytes[end - 1]))?;
        Some(bytes[end..].to_vec())
    }

    /// Takes a byte of the text. Returns whether the sign ends with it.
    fn ends_at(&mut self, byte: u8) -> bool {
        if self.tail.len() == 2 * Sign::TAIL_MAX {
            self.tail.drain(..Sign::TAIL_MAX);
        }
        self.tail.push(byte);
        self.n_bytes += 1;
        if let Some(tags) = &self.tags {
            self.phase.after(byte, &self.tail, tags);
        }
        match &self.kind {
            SignKind::Text(sign) | SignKind::Header(sign, _) => {
                !matches!(self.phase, Phase::Thoughts) && self.tail.ends_with(sign.as_bytes())
            }
            SignKind::Start(sign) => self.n_bytes == sign.len() && self.tail == sign.as_bytes(),
            SignKind::Token(_) => false,
        }
    }
}

/// Applies a grammar to one text.
#[derive(Clone)]
pub(super) struct GrammarFilter {
    /// The grammar's parser in its initial state.
    matcher: Matcher,
    /// The parser at the end of the text; `None` while the text is free.
    current: Option<Matcher>,
    sign: Option<Sign>,
    /// Ids that end the text.
    stop_ids: Arc<[u32]>,
    tokenizer: Arc<Tokenizer>,
}

impl fmt::Debug for GrammarFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarFilter").field("sign", &self.sign).finish_non_exhaustive()
    }
}

impl TokenFilter for GrammarFilter {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let Some(matcher) = &mut self.current else { return Ok(()) };
        let text = |e: &dyn fmt::Display| first_line(&e.to_string());
        let mask: SimpleVob = matcher.compute_mask_or_eos().map_err(|e| text(&e))?;
        let may_end = matcher.is_stopped() || matcher.is_accepting().map_err(|e| text(&e))?;
        let n = mask.len().min(logits.len());
        let (known, unknown) = logits.split_at_mut(n);
        let forbid = |id: usize, logit: &mut f32| {
            if !(may_end && self.stop_ids.contains(&(id as u32))) {
                *logit = f32::NEG_INFINITY;
            }
        };
        mask.iter_unset_entries(|id| {
            if let Some(logit) = known.get_mut(id) {
                forbid(id, logit);
            }
        });
        unknown.fill(f32::NEG_INFINITY);
        Ok(())
    }

    fn take(&mut self, id: u32) -> Result<bool, String> {
        if self.stop_ids.contains(&id) {
            return Ok(true);
        }
        if let Some(matcher) = &mut self.current {
            matcher.consume_token(id).map_err(|e| first_line(&e.to_string()))?;
            return Ok(matcher.is_stopped());
        }
        let Some(sign) = &mut self.sign else { return Ok(false) };
        // A sign may name special tokens.
        let name = || self.tokenizer.token_bytes(id).map(<[u8]>::to_vec);
        let bytes = self.tokenizer.text_bytes(id).or_else(name);
        if let Some(rest) = sign.push(id, bytes.as_deref()) {
            let mut matcher = self.matcher.clone();
            let mut ids = Vec::new();
            if let Ok(rest) = str::from_utf8(&rest) {
                self.tokenizer.encode_continuing(rest, &mut ids);
            }
            // If the bytes behind the sign already break the grammar, the text stays free.
            let follows = ids.iter().all(|&id| matcher.consume_token(id).is_ok());
            if follows && (rest.is_empty() || !ids.is_empty()) {
                self.current = Some(matcher);
            }
        }
        Ok(false)
    }

    fn another(&self) -> Box<dyn TokenFilter> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text after the sign, in a text that comes in pieces of `step` bytes.
    fn behind(mut sign: Sign, text: &str, step: usize) -> Option<String> {
        let mut pieces = text.as_bytes().chunks(step);
        let mut rest = pieces.find_map(|piece| sign.push(0, Some(piece)))?;
        rest.extend(pieces.flatten());
        String::from_utf8(rest).ok()
    }

    #[test]
    fn a_sign_counts_outside_of_thoughts_and_behind_an_answer_that_speaks_of_them() {
        let sign = |is_thinking| Sign::new("<call>", Some(&Tags::THINK), is_thinking);
        for step in [1, 2, 3, 5, 100] {
            let thoughts = "a <call> b</think>\n\n<call>rest";
            assert_eq!(behind(sign(true), thoughts, step).as_deref(), Some("rest"));
            let thoughts = format!("\n<think>{thoughts}");
            assert_eq!(behind(sign(false), &thoughts, step).as_deref(), Some("rest"));
            let answer = format!("A tag <think> begins thoughts.{}<call>x", " ".repeat(300));
            assert_eq!(behind(sign(false), &answer, step).as_deref(), Some("x"), "{step}");
            assert_eq!(behind(sign(false), "<think><call>", step), None);
            let start = Sign::at_start("{\"name\":");
            assert_eq!(behind(start.clone(), "{\"name\": 1", step).as_deref(), Some(" 1"));
            assert_eq!(behind(start, " {\"name\": 1", step), None);
        }
    }
}
