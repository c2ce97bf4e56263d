//! SentencePiece models: a protobuf message of pieces, trainer and normaliser settings.

use std::collections::HashSet;

use super::draft::Draft;
use super::token::{Token, VOCAB_MAX};
use crate::format::excerpt;
use crate::format::tokenizer::{SPACE_MARK, TokenKind, TokenizerFlags, TokenizerKind, byte_piece};

/// `TrainerSpec.ModelType.BPE`.
const MODEL_BPE: u64 = 2;

/// Reads a BPE model that changes nothing about the text but its spaces.
pub(super) fn parse(bytes: &[u8]) -> Result<Draft, String> {
    let mut tokens = Vec::new();
    let mut trainer = Trainer::default();
    let mut normaliser = Normaliser::default();
    for field in Fields(bytes) {
        match field? {
            (1, Field::Bytes(piece)) => tokens.push(parse_piece(piece, tokens.len())?),
            (2, Field::Bytes(spec)) => trainer = Trainer::parse(spec)?,
            (3, Field::Bytes(spec)) => normaliser = Normaliser::parse(spec)?,
            (5, Field::Bytes(spec)) => refuse_denormaliser(spec)?,
            _ => {}
        }
    }
    if trainer.model_type != MODEL_BPE {
        let name = match trainer.model_type {
            1 => "unigram",
            3 => "word",
            4 => "char",
            _ => "unknown",
        };
        return Err(format!("SentencePiece model type {name} is not supported, only BPE is"));
    }
    check_pieces(&tokens)?;
    let flags = TokenizerFlags {
        dummy_prefix: normaliser.dummy_prefix,
        remove_extra_spaces: normaliser.remove_extra_spaces,
        byte_fallback: trainer.byte_fallback,
        prefix_every_segment: true,
        ..TokenizerFlags::default()
    };
    let mut draft = Draft::new(TokenizerKind::SentencePiece, flags, tokens);
    let control = |name: &str| {
        let is_it = |t: &Token| t.kind == TokenKind::Control && t.bytes == name.as_bytes();
        draft.tokens.iter().position(is_it).and_then(|index| u32::try_from(index).ok())
    };
    (draft.bos, draft.stop_ids) =
        (control(&trainer.bos), control(&trainer.eos).into_iter().collect());
    Ok(draft)
}

fn parse_piece(message: &[u8], id: usize) -> Result<Token, String> {
    let (mut text, mut score, mut kind) = (&[][..], 0.0, 1);
    for field in Fields(message) {
        match field? {
            (1, Field::Bytes(bytes)) => text = bytes,
            (2, Field::Fixed32(bits)) => score = f32::from_bits(bits),
            (3, Field::Varint(value)) => kind = value,
            _ => {}
        }
    }
    let kind =
        token_kind(kind).ok_or_else(|| format!("piece {id} is of the unknown type {kind}"))?;
    if kind == TokenKind::Byte && byte_piece(text).is_none() {
        let text = String::from_utf8_lossy(text);
        return Err(format!("byte piece {id} is {:?}", excerpt(&text)));
    }
    Ok(token(text, score, kind))
}

/// The kind with this number in SentencePiece models, and in GGUF files.
pub(super) fn token_kind(number: u64) -> Option<TokenKind> {
    Some(match number {
        1 => TokenKind::Normal,
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        _ => return None,
    })
}

/// A piece as a token.
pub(super) fn token(text: &[u8], score: f32, kind: TokenKind) -> Token {
    // No text contains invalid UTF-8: such a piece is only ever decoded.
    let Ok(text) = std::str::from_utf8(text) else {
        return Token { bytes: text.to_vec(), score, kind };
    };
    let marked = || text.replace(SPACE_MARK, " ").into_bytes();
    match kind {
        // GGUF files have spaces in these pieces.
        TokenKind::UserDefined => Token { bytes: marked(), score, kind },
        // No text has a space when it is looked up: such a piece, too, is only decoded.
        TokenKind::Normal | TokenKind::Unused if text.contains(' ') => {
            Token { bytes: marked(), score, kind: TokenKind::Byte }
        }
        TokenKind::Normal | TokenKind::Unused => Token { bytes: marked(), score, kind },
        TokenKind::Byte if byte_piece(text.as_bytes()).is_none() => {
            Token { bytes: marked(), score, kind }
        }
        _ => Token { bytes: text.as_bytes().to_vec(), score, kind },
    }
}

fn check_pieces(tokens: &[Token]) -> Result<(), String> {
    if tokens.is_empty() || tokens.len() > VOCAB_MAX {
        return Err(format!("{} pieces, wanted 1 to {VOCAB_MAX}", tokens.len()));
    }
    let mut seen = HashSet::new();
    for (id, token) in tokens.iter().enumerate() {
        let is_apart = [TokenKind::Control, TokenKind::Byte].contains(&token.kind);
        if token.bytes.is_empty() || !seen.insert((&token.bytes, is_apart)) {
            return Err(format!("piece {id} is empty or there twice"));
        }
    }
    Ok(())
}

struct Trainer {
    model_type: u64,
    byte_fallback: bool,
    bos: String,
    eos: String,
}

impl Default for Trainer {
    fn default() -> Self {
        let (bos, eos) = ("<s>".to_owned(), "</s>".to_owned());
        Trainer { model_type: 1, byte_fallback: false, bos, eos }
    }
}

impl Trainer {
    fn parse(message: &[u8]) -> Result<Trainer, String> {
        let mut trainer = Trainer::default();
        let name = |bytes| String::from_utf8_lossy(bytes).into_owned();
        for field in Fields(message) {
            match field? {
                (3, Field::Varint(value)) => trainer.model_type = value,
                (24, Field::Varint(1..)) => {
                    return Err("white space as suffix is not supported".to_owned());
                }
                (35, Field::Varint(value)) => trainer.byte_fallback = value != 0,
                (46, Field::Bytes(bytes)) => trainer.bos = name(bytes),
                (47, Field::Bytes(bytes)) => trainer.eos = name(bytes),
                _ => {}
            }
        }
        Ok(trainer)
    }
}

struct Normaliser {
    dummy_prefix: bool,
    remove_extra_spaces: bool,
}

impl Default for Normaliser {
    fn default() -> Self {
        Normaliser { dummy_prefix: true, remove_extra_spaces: true }
    }
}

impl Normaliser {
    fn parse(message: &[u8]) -> Result<Normaliser, String> {
        let mut normaliser = Normaliser::default();
        let mut name = String::new();
        let mut has_rules = false;
        for field in Fields(message) {
            match field? {
                (1, Field::Bytes(bytes)) => name = String::from_utf8_lossy(bytes).into_owned(),
                (2, Field::Bytes(rules)) => has_rules = !rules.is_empty(),
                (3, Field::Varint(value)) => normaliser.dummy_prefix = value != 0,
                (4, Field::Varint(value)) => normaliser.remove_extra_spaces = value != 0,
                (5, Field::Varint(0)) => {
                    return Err("unescaped white space is not supported".to_owned());
                }
                _ => {}
            }
        }
        if has_rules {
            return Err(format!(
                "normalisation {:?} is not supported, only \"identity\" is",
                excerpt(&name)
            ));
        }
        Ok(normaliser)
    }
}

fn refuse_denormaliser(message: &[u8]) -> Result<(), String> {
    for field in Fields(message) {
        if matches!(field?, (2, Field::Bytes(rules)) if !rules.is_empty()) {
            return Err("denormalisation rules are not supported".to_owned());
        }
    }
    Ok(())
}

/// The value of one protobuf field.
#[derive(Debug, PartialEq)]
enum Field<'a> {
    Varint(u64),
    Fixed64,
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a protobuf message, with their numbers; it ends after an error.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| "not a SentencePiece model, or damaged".to_owned()))
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Option<(u64, Field<'a>)> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed64)?,
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.take(len)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, field))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
}
