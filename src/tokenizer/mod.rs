//! Text to token ids and back, and chat templates.
//!
//! A [`Tokenizer`] is built from a parsed `tokenizer.bin` alone. Two kinds share one merge
//! loop (`merge`), which takes the best pair from a priority queue, O(n log n) for a text
//! of n bytes:
//!
//! - byte-level: `split` cuts the text as the model's splitter does, `byte_level` merges each piece on
//!   its own;
//! - SentencePiece: `sentencepiece` normalises the text, which merges as a whole.
//!
//! BERT's kind has no merges: see `wordpiece`.
//!
//! [`Decoder`] turns ids into text as they come; [`ChatFormat`] writes conversations.

mod byte_ids;
mod byte_level;
mod canonical;
mod chat;
mod decode;
mod error;
mod families;
#[cfg(feature = "templates")]
pub(crate) mod jinja;
#[cfg(not(feature = "templates"))]
#[path = "no_jinja.rs"]
mod jinja;
mod matcher;
mod merge;
mod script;
mod sentencepiece;
mod split;
mod table;
mod thoughts;
mod utf8;
mod wordpiece;

pub use chat::{ChatFormat, ChatRole};
pub use decode::Decoder;
pub use error::TokenizerError;
pub use script::{ChatAnswer, ChatOptions, ChatScript, ChatTurn, TurnKind};
pub use thoughts::{Part, Tags, ThoughtFilter, Thoughts};
pub use utf8::Utf8Stream;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use unicode_normalization::{IsNormalized, is_nfc_quick};

use crate::format::tokenizer::{Splitter, TokenKind, TokenizerFile, TokenizerFlags, TokenizerKind};
use crate::format::{ChatTemplate, ChatTexts, OwnText};
use byte_ids::NO_ID;
use jinja::OwnTemplate;
use matcher::Matcher;
use merge::Rules;

/// CodeLlama's markers: before the prefix, the suffix and the middle, and the end of the middle.
pub const INFILL: [&str; 4] = ["\u{2581}<PRE>", "\u{2581}<SUF>", "\u{2581}<MID>", "\u{2581}<EOT>"];

/// Encodes and decodes with one vocabulary.
pub struct Tokenizer {
    kind: TokenizerKind,
    splitter: Splitter,
    flags: TokenizerFlags,
    bos: Option<u32>,
    stop_ids: Vec<u32>,
    edges: Edges,
    chats: Chats,
    /// Holds the vocabulary too.
    rules: Rules,
    /// The token of each byte, or [`NO_ID`]. If SentencePiece has no byte fallback, no byte has a token.
    byte_ids: [u32; 256],
    unknown: Option<u32>,
    /// Control, unknown and user-defined tokens.
    special: Matcher,
    user_defined: Matcher,
}

/// Tokens that treat the text beside them in a way of their own.
struct Edges {
    /// Ids of tokens in ascending order, as in the next two fields.
    strips_right: Vec<u32>,
    strips_left: Vec<u32>,
    whole_words: Vec<u32>,
}

type OwnSlot = OnceLock<Result<Arc<OwnTemplate>, String>>;

/// Conversations of the model.
struct Chats {
    chat: ChatTemplate,
    chat_texts: ChatTexts,
    /// The checkpoint's own template, once it was needed.
    own: OwnSlot,
    /// Its template for conversations with tools, if there is another one.
    own_for_tools: OwnSlot,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.bin`.
    ///
    /// `vocab_size` is the model's, if known; published files do not say it themselves.
    ///
    /// # Errors
    ///
    /// If the bytes are no tokenizer, or none that this version can use.
    pub fn from_bytes(
        bytes: &[u8],
        vocab_size: Option<usize>,
    ) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::new(TokenizerFile::parse(bytes, vocab_size)?)
    }

    /// Prepares the vocabulary of a parsed `tokenizer.bin`.
    ///
    /// # Errors
    ///
    /// If no text could be encoded, or a merge makes something that is no token.
    pub fn new(file: TokenizerFile) -> Result<Tokenizer, TokenizerError> {
        let TokenizerFile {
            kind,
            splitter,
            flags,
            vocab,
            merges,
            bos,
            stop_ids,
            strips_right,
            strips_left,
            whole_words,
            chat,
            chat_texts,
        } = file;
        let rules = Rules::new(kind, vocab, merges)?;
        let vocab = &rules.vocab;
        let byte_ids = match kind {
            TokenizerKind::ByteLevel => byte_ids::of_tokens(&rules)?,
            TokenizerKind::SentencePiece if flags.byte_fallback => {
                byte_ids::of_pieces(vocab, flags.split_at_user_defined)
            }
            TokenizerKind::SentencePiece | TokenizerKind::WordPiece => [NO_ID; 256],
        };
        let unknown = vocab.iter().find(|(.., k)| *k == TokenKind::Unknown).map(|(id, ..)| id);
        let marks = flags.split_at_user_defined;
        let user_defined = Matcher::new(vocab, marks, |k| k == TokenKind::UserDefined);
        let special = Matcher::new(vocab, marks, is_special);
        Ok(Tokenizer {
            kind,
            splitter,
            flags,
            bos,
            stop_ids,
            edges: Edges { strips_right, strips_left, whole_words },
            chats: Chats { chat, chat_texts, own: OnceLock::new(), own_for_tools: OnceLock::new() },
            rules,
            byte_ids,
            unknown,
            special,
            user_defined,
        })
    }

    /// Appends the ids of `text` to `out`.
    ///
    /// The text never becomes a control token. No BOS is added.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        self.encode_segment(text, true, out);
    }

    /// Encodes text that follows other tokens: SentencePiece puts
    /// a space before it only if the tokenizer does so after special tokens too.
    pub fn encode_after_special(&self, text: &str, out: &mut Vec<u32>) {
        self.encode_segment(text, self.flags.prefix_every_segment, out);
    }

    /// Encodes text that goes on without a break: no space is put
    /// before it.
    pub fn encode_continuing(&self, text: &str, out: &mut Vec<u32>) {
        self.encode_segment(text, false, out);
    }

    /// Appends what makes a model write the text between `prefix` and `suffix`, and returns
    /// whether the vocabulary has the tokens for that ([`INFILL`]); if not, `out` stays as it is.
    ///
    /// The order is prefix, suffix, middle (arXiv:2207.14255, section 3). No BOS is added.
    pub fn encode_infill(&self, prefix: &str, suffix: &str, out: &mut Vec<u32>) -> bool {
        let [Some(before), Some(after), Some(middle), Some(_)] =
            INFILL.map(|name| self.special(name))
        else {
            return false;
        };
        out.push(before);
        self.encode(prefix, out);
        out.push(after);
        self.encode_continuing(suffix, out);
        out.push(middle);
        true
    }

    /// Whether the vocabulary has the tokens of [`Tokenizer::encode_infill`].
    pub fn can_infill(&self) -> bool {
        INFILL.iter().all(|name| self.special(name).is_some())
    }

    /// Appends the ids of `text` to `out`. Names of special tokens become these tokens.
    ///
    /// At each place the longest name wins. No BOS is added.
    pub fn encode_with_special(&self, text: &str, out: &mut Vec<u32>) {
        // User-defined tokens are found by `encode`, unless a longer special token starts there.
        let is_user_defined = |id| self.token_kind(id) == Some(TokenKind::UserDefined);
        let mut rest = 0;
        let mut at = 0;
        while at < text.len() {
            match self.special.longest_at(text.as_bytes(), at) {
                None => at += 1,
                Some((id, end)) if is_user_defined(id) => at = end,
                Some((id, end)) if !self.may_stand(id, text, at..end) => at = end,
                Some((id, end)) => {
                    self.encode_part(
                        &text[rest..self.start_of(id, text, rest..at)],
                        rest == 0,
                        out,
                    );
                    out.push(id);
                    rest = self.end_of(id, text, end);
                    at = rest;
                }
            }
        }
        self.encode_part(&text[rest..], rest == 0, out);
    }

    fn encode_part(&self, text: &str, is_first: bool, out: &mut Vec<u32>) {
        let has_prefix = is_first || self.flags.prefix_every_segment;
        self.encode_segment(text, has_prefix, out);
    }

    /// `has_prefix` allows the dummy prefix, if the tokenizer has one at all.
    fn encode_segment(&self, text: &str, has_prefix: bool, out: &mut Vec<u32>) {
        let splits = self.kind == TokenizerKind::ByteLevel || self.flags.split_at_user_defined;
        if !splits || self.user_defined.is_empty() {
            return self.encode_unsplit(text, has_prefix, out);
        }
        let (mut rest, mut at) = (0, 0);
        let prefix_of = |rest| if rest == 0 { has_prefix } else { self.flags.prefix_every_segment };
        while at < text.len() {
            let Some((id, end)) = self.user_defined.longest_at(text.as_bytes(), at) else {
                at += 1;
                continue;
            };
            if !self.may_stand(id, text, at..end) {
                at = end;
                continue;
            }
            let start = self.start_of(id, text, rest..at);
            self.encode_unsplit(&text[rest..start], prefix_of(rest), out);
            out.push(id);
            rest = self.end_of(id, text, end);
            at = rest;
        }
        self.encode_unsplit(&text[rest..], prefix_of(rest), out);
    }

    /// Whether the token `id` may stand at `name` in `text`: some tokens have to be whole words.
    fn may_stand(&self, id: u32, text: &str, name: Range<usize>) -> bool {
        let goes_on = |next: Option<char>| next.is_some_and(is_word);
        let is_part = || {
            goes_on(text[..name.start].chars().next_back())
                || goes_on(text[name.end..].chars().next())
        };
        self.edges.whole_words.binary_search(&id).is_err() || !is_part()
    }

    /// Where the text `before` the name of the token `id` ends: some tokens strip white space before them.
    fn start_of(&self, id: u32, text: &str, before: Range<usize>) -> usize {
        match self.edges.strips_left.binary_search(&id) {
            Ok(_) => before.start + text[before].trim_end().len(),
            Err(_) => before.end,
        }
    }

    /// Where the text goes on after the token `id`, whose name ends at `end`: some tokens strip white space after them.
    fn end_of(&self, id: u32, text: &str, end: usize) -> usize {
        match self.strips_right(id) {
            true => text.len() - text[end..].trim_start().len(),
            false => end,
        }
    }

    /// Whether white space after this token belongs to it.
    fn strips_right(&self, id: u32) -> bool {
        self.edges.strips_right.binary_search(&id).is_ok()
    }

    /// The special tokens that `text` names, except user-defined ones: where each name stands, and its id.
    pub(crate) fn controls(&self, text: &str) -> Vec<(Range<usize>, u32)> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at < text.len() {
            match self.control_at(text, at) {
                Some((id, end)) => {
                    found.push((at..end, id));
                    at = end;
                }
                None => at += 1,
            }
        }
        found
    }

    /// Id and end of the special token whose name is in `text` at `at`, except user-defined tokens.
    fn control_at(&self, text: &str, at: usize) -> Option<(u32, usize)> {
        let found = self.special.longest_at(text.as_bytes(), at);
        found.filter(|&(id, _)| self.token_kind(id) != Some(TokenKind::UserDefined))
    }

    fn encode_unsplit(&self, text: &str, has_prefix: bool, out: &mut Vec<u32>) {
        match self.kind {
            TokenizerKind::ByteLevel
                if self.flags.nfc && is_nfc_quick(text.chars()) != IsNormalized::Yes =>
            {
                self.encode_bytes(&canonical::nfc(text), out);
            }
            TokenizerKind::ByteLevel => self.encode_bytes(text, out),
            TokenizerKind::SentencePiece => self.encode_sentencepiece(text, has_prefix, out),
            TokenizerKind::WordPiece => self.encode_words(text, out),
        }
    }

    /// The token that a text starts with, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-sequence token: the first stop id.
    pub fn eos(&self) -> Option<u32> {
        self.stop_ids.first().copied()
    }

    /// Tokens that end the model's text.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The chat template stored with the vocabulary.
    pub fn chat_template(&self) -> ChatTemplate {
        self.chats.chat
    }

    /// Texts that the template of the checkpoint adds.
    pub fn chat_texts(&self) -> &ChatTexts {
        &self.chats.chat_texts
    }

    /// Makes `text`, a program in Jinja's language, the checkpoint's own template, with tools and without.
    ///
    /// # Errors
    ///
    /// If it is no such program, or this build runs none.
    pub fn set_template(&mut self, text: String) -> Result<(), TokenizerError> {
        let name = |id: Option<u32>| {
            let bytes = id.and_then(|id| self.token_bytes(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let names =
            || OwnText { bos: name(self.bos()), eos: name(self.eos()), ..OwnText::default() };
        let own = self.chats.chat_texts.own.clone().unwrap_or_else(names);
        self.chats.chat_texts.own = Some(OwnText { text, tool_text: None, ..own });
        self.chats.own = OnceLock::new();
        self.own_template(false).map(drop)
    }

    /// The checkpoint's own template, for conversations with tools or without.
    fn own_template(&self, has_tools: bool) -> Result<&Arc<OwnTemplate>, TokenizerError> {
        let Some(own) = &self.chats.chat_texts.own else { return Err(TokenizerError::NoTemplate) };
        let (text, slot) = match own.tool_text.as_ref().filter(|_| has_tools) {
            Some(text) => (text, &self.chats.own_for_tools),
            None => (&own.text, &self.chats.own),
        };
        let name_at = |text: &str, at: usize| self.control_at(text, at).map(|(_, end)| end);
        let names = || [own.bos.clone(), own.eos.clone()];
        let compiled = || OwnTemplate::new(text, names(), &name_at).map(Arc::new);
        let template = slot.get_or_init(compiled).as_ref();
        template.map_err(|what| TokenizerError::Template(what.clone()))
    }

    /// How text becomes tokens.
    pub fn kind(&self) -> TokenizerKind {
        self.kind
    }

    /// Number of ids.
    pub fn vocab_len(&self) -> usize {
        self.rules.vocab.len()
    }

    /// The bytes of a token as `tokenizer.bin` holds them, or `None` if there is no such id.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.rules.vocab.get(id)
    }

    /// Purpose of a token, or `None` if there is no such id.
    pub fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.rules.vocab.kind(id)
    }

    /// The control, unknown or user-defined token called `name`.
    pub fn special(&self, name: &str) -> Option<u32> {
        let found = self.special.longest_at(name.as_bytes(), 0);
        found.filter(|&(_, end)| end == name.len()).map(|(id, _)| id)
    }
}

/// Whether `\w` of regular expressions matches `c`; combining marks are left out.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_special(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined)
}
