//! A tokenizer under construction: read from a file of any kind, completed with the files beside it.

use std::collections::BTreeSet;

use super::settings::{Case, Settings};
use super::template;
use super::token::{AddedToken, Token, VOCAB_MAX};
use crate::format::tokenizer::{
    Merges, SPACE_MARK, STOP_IDS_MAX, Splitter, TokenKind, TokenizerFile, TokenizerFlags,
    TokenizerKind, Vocab, byte_piece, is_capital_piece,
};
use crate::format::{ChatTemplate, ChatTexts, OwnText, excerpt};
use crate::tokenizer::{ChatScript, INFILL};

/// A tokenizer under construction.
pub(super) struct Draft {
    pub(super) kind: TokenizerKind,
    pub(super) splitter: Splitter,
    pub(super) flags: TokenizerFlags,
    pub(super) tokens: Vec<Token>,
    pub(super) merges: Merges,
    pub(super) bos: Option<u32>,
    /// Whether texts start with `bos`, unless settings decide.
    pub(super) writes_bos: bool,
    pub(super) stop_ids: Vec<u32>,
    pub(super) edges: DraftEdges,
    chat: ChatTemplate,
    chat_texts: ChatTexts,
    pub(super) notes: Vec<String>,
}

/// Tokens that treat the text beside them in a way of their own.
pub(super) struct DraftEdges {
    strips_right: BTreeSet<u32>,
    strips_left: BTreeSet<u32>,
    whole_words: BTreeSet<u32>,
    /// Ids that the tokenizer puts before and behind a text.
    pub(super) around: [Option<u32>; 2],
}

impl Draft {
    pub(super) fn new(kind: TokenizerKind, flags: TokenizerFlags, tokens: Vec<Token>) -> Draft {
        Draft {
            kind,
            splitter: Splitter::default(),
            flags,
            tokens,
            merges: Merges::ByScore,
            bos: None,
            writes_bos: true,
            stop_ids: Vec::new(),
            edges: DraftEdges {
                strips_right: BTreeSet::new(),
                strips_left: BTreeSet::new(),
                whole_words: BTreeSet::new(),
                around: [None; 2],
            },
            chat: ChatTemplate::None,
            chat_texts: ChatTexts::default(),
            notes: Vec::new(),
        }
    }

    /// The first id of the token called `name`.
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        let index = self.tokens.iter().position(|token| token.bytes == name.as_bytes())?;
        u32::try_from(index).ok()
    }

    /// Adds what the files beside the tokenizer say.
    pub(super) fn apply(&mut self, settings: &Settings) {
        self.add(&settings.added);
        self.take_case(settings.case);
        if !settings.writes_bos.unwrap_or(self.writes_bos) {
            self.bos = None;
        } else {
            let named = settings.bos.as_ref().and_then(|name| self.find(name));
            self.bos = named.or(settings.bos_id).or(self.bos);
        }
        let eos = settings.eos.as_ref().and_then(|name| self.find(name));
        let mut stop_ids: Vec<u32> = eos.into_iter().chain(settings.stop_ids.clone()).collect();
        if stop_ids.is_empty() {
            stop_ids.append(&mut self.stop_ids);
        }
        self.stop_ids = stop_ids;
        self.mark_infill_tokens();
        self.choose_template(settings);
    }

    /// Takes over what the files beside the tokenizer say about small letters and accents.
    fn take_case(&mut self, case: Case) {
        let is_bert = self.kind == TokenizerKind::WordPiece;
        if is_bert && case.goes_first {
            if let Some(lowercase) = case.lowercase.filter(|is| *is != self.flags.lowercase) {
                (self.flags.lowercase, self.flags.strips_accents) = (lowercase, lowercase);
            }
            self.flags.strips_accents = case.strips_accents.unwrap_or(self.flags.strips_accents);
        }
        match (case.before, is_bert) {
            (true, true) => self.flags.lowercase = true,
            (true, false) => self.notes.push(
                "sentence_bert_config.json wants texts in small letters (do_lower_case): give them so"
                    .to_owned(),
            ),
            (false, _) => {}
        }
    }

    /// Whether token `id` is a special one.
    pub(super) fn is_control(&self, id: u32) -> bool {
        self.tokens.get(id as usize).is_some_and(|token| token.kind == TokenKind::Control)
    }

    /// Adds tokens, or sets the kinds of existing ones.
    ///
    /// An id that belongs to another piece of the vocabulary goes to the added token, as in transformers.
    pub(super) fn add(&mut self, added: &[AddedToken]) {
        for token in added {
            let AddedToken { id, name, is_special, .. } = token;
            let index = *id as usize;
            if index >= VOCAB_MAX {
                let name = excerpt(name);
                self.notes.push(format!("the added token {name:?} has the id {id}: left out"));
                continue;
            }
            if index >= self.tokens.len() {
                self.tokens.resize_with(index + 1, Token::unused);
            }
            self.take_sides(token);
            let token = &mut self.tokens[index];
            let is_marker = matches!(token.kind, TokenKind::Unknown | TokenKind::Control);
            let is_known = shown(&token.bytes) == shown(name.as_bytes());
            let is_byte = token.kind == TokenKind::Byte && byte_piece(&token.bytes).is_some();
            if is_known && (is_marker || is_byte) {
                continue;
            }
            if !is_known && !token.bytes.is_empty() && !is_marker {
                let found = String::from_utf8_lossy(&token.bytes);
                let (found, name) = (excerpt(&found), excerpt(name));
                self.notes.push(format!(
                    "token {id} is {found:?}, but the added token {name:?} takes its id"
                ));
            }
            let kind = if *is_special { TokenKind::Control } else { TokenKind::UserDefined };
            let is_spaces =
                kind == TokenKind::UserDefined && name.replace(SPACE_MARK, "").is_empty();
            // Tokens of spaces are reached by merging: they keep their score, and the spaces that their marks stand
            // for.
            *token = match is_spaces {
                true => {
                    let bytes = name.replace(SPACE_MARK, " ").into_bytes();
                    Token { bytes, score: token.score, kind }
                }
                false => Token { bytes: name.clone().into_bytes(), score: 0.0, kind },
            };
        }
    }

    /// Notes which white space an added token strips, and whether it must be a whole word.
    fn take_sides(&mut self, added: &AddedToken) {
        let sides = [
            (added.strips_right, &mut self.edges.strips_right),
            (added.strips_left, &mut self.edges.strips_left),
            (added.is_whole_word, &mut self.edges.whole_words),
        ];
        for (_, ids) in sides.into_iter().filter(|(is_so, _)| *is_so) {
            ids.insert(added.id);
        }
    }

    /// Lets all markers except `others` strip white space to their right.
    pub(super) fn strip_right_of_markers(&mut self, others: &[&str]) {
        let is_marker =
            |token: &Token| matches!(token.kind, TokenKind::Control | TokenKind::UserDefined);
        let is_other = |token: &Token| others.iter().any(|name| name.as_bytes() == token.bytes);
        let ids = (0u32..).zip(&self.tokens);
        let ids = ids.filter(|(_, token)| is_marker(token) && !is_other(token));
        self.edges.strips_right.extend(ids.map(|(id, _)| id));
    }

    /// CodeLlama's model has the markers around what is to be filled in as ordinary pieces, which user text could
    /// become. Hugging Face's folders declare them special.
    fn mark_infill_tokens(&mut self) {
        let pieces = INFILL
            .map(|name| self.find(name).or_else(|| self.find(&name.replace(SPACE_MARK, " "))));
        let [Some(prefix), Some(suffix), Some(middle), Some(end)] = pieces else { return };
        for (id, name) in [prefix, suffix, middle, end].into_iter().zip(INFILL) {
            let token = &mut self.tokens[id as usize];
            (token.bytes, token.kind) = (name.as_bytes().to_vec(), TokenKind::Control);
        }
        self.stop_ids.push(end);
    }

    /// Recognises the checkpoint's template, and keeps the texts that it adds, and the template itself.
    fn recognise(&mut self, jinja: &str, settings: &Settings) -> ChatTemplate {
        let bos = self.bos.and_then(|id| self.tokens.get(id as usize));
        let bos =
            bos.map_or(String::new(), |token| String::from_utf8_lossy(&token.bytes).into_owned());
        if !template::is_harmless(jinja, &bos) {
            let note =
                "the chat template takes too much memory or time; name one with --chat-template";
            self.notes.push(note.to_owned());
            return ChatTemplate::Own;
        }
        let own = template::check(jinja).map(|()| self.own_text(jinja, settings));
        if let Some(known) = template::recognise(jinja, &bos) {
            self.flags.chat_without_bos = !bos.is_empty() && !known.writes_bos;
            self.chat_texts = ChatTexts { own: own.ok(), ..known.texts };
            return known.template;
        }
        let older = template::alike(jinja, self.find("[INST]").is_some());
        match own {
            Ok(own) => self.chat_texts.own = Some(own),
            Err(what) if older.is_none() => self.notes.push(format!(
                "the chat template is no program that LEAP can run ({what}); name one with --chat-template"
            )),
            Err(_) => {}
        }
        let Some(older) = older else { return ChatTemplate::Own };
        self.flags.system_in_last_turn = older.tells_last;
        older.template
    }

    /// The checkpoint's template, with the names of the tokens that it gets.
    fn own_text(&mut self, jinja: &str, settings: &Settings) -> OwnText {
        let Settings { bos, eos, .. } = settings;
        let tool_text = settings.tool_template.as_ref().filter(|text| *text != jinja);
        let tool_text = tool_text.filter(|text| match template::check(text) {
            Ok(()) => true,
            Err(what) => {
                let note = "the chat template for tools is no program that LEAP can run";
                self.notes.push(format!("{note} ({what}); the other one stands in for it"));
                false
            }
        });
        let name = |id: Option<u32>| {
            let token = id.and_then(|id| self.tokens.get(id as usize));
            token.map_or(String::new(), |token| String::from_utf8_lossy(&token.bytes).into_owned())
        };
        // GGUF files have ids alone. A folder that names one of the tokens has no other.
        let [bos, eos] = match (bos, eos) {
            (None, None) => {
                [name(settings.bos_id.or(self.bos)), name(self.stop_ids.first().copied())]
            }
            names => [names.0.clone(), names.1.clone()].map(Option::unwrap_or_default),
        };
        OwnText { text: jinja.to_owned(), tool_text: tool_text.cloned(), bos, eos }
    }

    /// Makes control tokens of those that the checkpoint's own template names between contents, even if the file calls
    /// them plain: user text must not forge them.
    fn mark_own_markers(&mut self) {
        let Some(own) = &self.chat_texts.own else { return };
        let plain = self.tokens.iter_mut().filter(|token| token.kind == TokenKind::UserDefined);
        for token in plain {
            let name = str::from_utf8(&token.bytes).unwrap_or_default();
            if ["<|", "<｜"].iter().any(|start| name.starts_with(start)) && own.names(name) {
                token.kind = TokenKind::Control;
            }
        }
    }

    fn choose_template(&mut self, settings: &Settings) {
        let has_marker = |name: &str| self.find(name).is_some();
        self.chat = match &settings.chat_template {
            Some(text) => self.recognise(text, settings),
            // A base model's folder has this file, without a template in it.
            None if settings.has_tokenizer_config => ChatTemplate::None,
            None => template::implied(has_marker),
        };
        for name in ChatScript::markers(self.chat) {
            // User text must not forge these tokens, even if the file calls them plain.
            if let Some(id) = self.find(name) {
                self.tokens[id as usize].kind = TokenKind::Control;
            }
        }
        self.mark_own_markers();
        let stops = ChatScript::stops(self.chat).iter().filter_map(|name| self.find(name));
        let stops: Vec<u32> = stops.collect();
        self.stop_ids.extend(stops);
    }

    /// Makes the vocabulary as long as the model's.
    pub(super) fn fit(&mut self, vocab_size: Option<usize>) -> Result<(), String> {
        let have = self.tokens.len();
        let size = vocab_size.unwrap_or(have);
        if size > VOCAB_MAX || have > VOCAB_MAX {
            return Err(format!("{} tokens are more than {VOCAB_MAX}", size.max(have)));
        }
        if let Some(surplus) = self.tokens.get(size..) {
            let is_added = |t: &Token| {
                matches!(t.kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unused)
            };
            if !surplus.iter().all(is_added) {
                return Err(format!("the vocabulary has {have} tokens, the model only {size}"));
            }
            if have > size {
                let note = format!("{} added tokens are beyond the model's {size}", have - size);
                self.notes.push(note);
            }
        }
        self.tokens.resize_with(size, Token::unused);
        self.bos = self.bos.filter(|&id| self.has_id("the first token", id, size));
        let mut stop_ids = BTreeSet::new();
        let ids = std::mem::take(&mut self.stop_ids);
        self.stop_ids = ids
            .into_iter()
            .filter(|&id| stop_ids.insert(id) && self.has_id("the end token", id, size))
            .collect();
        if let Some(surplus) = self.stop_ids.get(STOP_IDS_MAX..).filter(|ids| !ids.is_empty()) {
            let note = format!("only {STOP_IDS_MAX} end tokens are kept, without {surplus:?}");
            self.notes.push(note);
            self.stop_ids.truncate(STOP_IDS_MAX);
        }
        Ok(())
    }

    /// Whether `id` is in the vocabulary of `size`; if not, adds a note.
    fn has_id(&mut self, what: &str, id: u32, size: usize) -> bool {
        let is_there = (id as usize) < size;
        if !is_there {
            self.notes.push(format!("{what} {id} is not in the vocabulary of {size}: left out"));
        }
        is_there
    }

    /// The bytes of UTF-8 without a token: a vocabulary lacks bytes that its training text lacked.
    pub(super) fn missing_bytes(&self) -> Vec<u8> {
        let mut is_there = [false; 256];
        let only_capitals = self.flags.split_at_user_defined;
        for token in &self.tokens {
            let byte = match (self.kind, token.kind, token.bytes.as_slice()) {
                (TokenizerKind::ByteLevel, TokenKind::Normal, &[byte]) => Some(byte),
                (TokenizerKind::SentencePiece, TokenKind::Byte, piece) => {
                    let is_written = |piece: &[u8]| !only_capitals || is_capital_piece(piece);
                    byte_piece(piece).filter(|_| is_written(piece))
                }
                _ => None,
            };
            if let Some(byte) = byte {
                is_there[usize::from(byte)] = true;
            }
        }
        // These bytes occur in no text.
        let is_utf8 = |byte: &u8| !matches!(byte, 0xc0 | 0xc1 | 0xf5..);
        (0..=255).filter(is_utf8).filter(|&byte| !is_there[usize::from(byte)]).collect()
    }

    /// Notes which text the vocabulary cannot write.
    pub(super) fn note_missing_bytes(&mut self) {
        let missing = self.missing_bytes();
        let effect = match self.kind {
            TokenizerKind::ByteLevel => "are left out of texts",
            TokenizerKind::WordPiece => return,
            TokenizerKind::SentencePiece if !self.flags.byte_fallback => return,
            TokenizerKind::SentencePiece => {
                "have no token, and characters that need them are unknown"
            }
        };
        if missing.len() == 256 - 13 && self.kind == TokenizerKind::SentencePiece {
            self.notes.push("there are no byte tokens: other characters are unknown".to_owned());
        } else if !missing.is_empty() {
            let bytes: Vec<String> = missing.iter().map(|byte| format!("{byte:02x}")).collect();
            self.notes.push(format!("the bytes {} {effect}", bytes.join(" ")));
        }
    }

    /// The contents of `tokenizer.bin`.
    pub(super) fn finish(self) -> Result<TokenizerFile, String> {
        let n_vocab = self.tokens.len();
        let mut vocab = Vocab::default();
        for token in &self.tokens {
            vocab.push(&token.bytes, token.score, token.kind).map_err(|e| e.to_string())?;
        }
        let ids =
            |ids: BTreeSet<u32>| ids.into_iter().filter(|&id| (id as usize) < n_vocab).collect();
        Ok(TokenizerFile {
            kind: self.kind,
            splitter: self.splitter,
            flags: self.flags,
            vocab,
            merges: self.merges,
            bos: self.bos,
            stop_ids: self.stop_ids,
            strips_right: ids(self.edges.strips_right),
            strips_left: ids(self.edges.strips_left),
            whole_words: ids(self.edges.whole_words),
            chat: self.chat,
            chat_texts: self.chat_texts,
        })
    }
}

/// A token with `▁` read as the space that it stands for.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(SPACE_MARK, " ")
}
