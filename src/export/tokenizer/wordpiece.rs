//! BERT's vocabularies: `tokenizer.json` of the kind WordPiece, `vocab.txt`, and what GGUF files hold.

use serde_json::{Map, Value};

use super::draft::Draft;
use super::settings::Settings;
use super::steps::{is_true, steps};
use super::token::{Token, VOCAB_MAX};
use super::{added, around};
use crate::format::excerpt;
use crate::format::tokenizer::{SPACE_MARK, TokenKind, TokenizerFlags, TokenizerKind};

/// Longest token: longer ones than any vocabulary has would only make the conversion slow.
const TOKEN_BYTES_MAX: usize = 4096;
/// Names of tokens that no text becomes.
const MARKERS: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// The tokenizer of a `tokenizer.json` of this kind.
pub(super) fn from_json(json: &Value, model: &Map<String, Value>) -> Result<Draft, String> {
    let expect = |name: &str, wanted: &Value| match model.get(name) {
        Some(found) if found != wanted && !found.is_null() => {
            Err(format!("{name} {} is not supported", excerpt(&found.to_string())))
        }
        _ => Ok(()),
    };
    expect("continuing_subword_prefix", &Value::from("##"))?;
    expect("max_input_chars_per_word", &Value::from(100))?;
    expect("unk_token", &Value::from("[UNK]"))?;
    let flags = flags(json)?;
    let vocab = model.get("vocab").and_then(Value::as_object).ok_or("there is no vocab")?;
    let mut tokens: Vec<Token> = Vec::new();
    for (text, id) in vocab {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        let id = id.filter(|&id| id < VOCAB_MAX.min(8 * (vocab.len() + 1)));
        let Some(id) = id else {
            return Err(format!("the id of {:?} is not a number of a token", excerpt(text)));
        };
        if id >= tokens.len() {
            tokens.resize_with(id + 1, Token::unused);
        }
        if !tokens[id].bytes.is_empty() || text.len() > TOKEN_BYTES_MAX {
            return Err(format!("token {id} is too long, or there twice"));
        }
        tokens[id] = token(text.as_bytes().to_vec());
    }
    let mut draft = draft(flags, tokens)?;
    let added = added::parse(json, model, &mut draft.notes)?;
    draft.add(&added);
    let found = around::parse(json, &draft);
    if found != [None; 2] {
        draft.edges.around = found;
    }
    Ok(draft)
}

/// How texts are normalised: by BertNormalizer alone, and cut by BertPreTokenizer.
fn flags(json: &Value) -> Result<TokenizerFlags, String> {
    let of = |name: &str, list: &str| steps(json.get(name), list);
    let is = |step: &Value, kind: &str| step.get("type") == Some(&Value::from(kind));
    let ([normalizer], [cutter]) =
        (&of("normalizer", "normalizers")[..], &of("pre_tokenizer", "pretokenizers")[..])
    else {
        return Err("the normalizer or pre_tokenizer is not BERT's".to_owned());
    };
    if !is(normalizer, "BertNormalizer") || !is(cutter, "BertPreTokenizer") {
        return Err("the normalizer or pre_tokenizer is not BERT's".to_owned());
    }
    let empty = Map::new();
    let fields = normalizer.as_object().unwrap_or(&empty);
    if !is_true(fields, "clean_text") || !is_true(fields, "handle_chinese_chars") {
        return Err("a BertNormalizer without clean_text or handle_chinese_chars".to_owned());
    }
    let lowercase = is_true(fields, "lowercase");
    let strips_accents = match fields.get("strip_accents") {
        None | Some(Value::Null) => lowercase,
        Some(value) => value == &Value::Bool(true),
    };
    Ok(TokenizerFlags { lowercase, strips_accents, ..TokenizerFlags::default() })
}

/// The tokenizer of a `vocab.txt`: a token a line.
pub(super) fn parse(bytes: &[u8], settings: &Settings) -> Result<Draft, String> {
    let text = str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > VOCAB_MAX || lines.iter().any(|line| line.len() > TOKEN_BYTES_MAX) {
        return Err("more or longer tokens than any vocabulary has".to_owned());
    }
    let lowercase = settings.case.lowercase.unwrap_or(true);
    let strips_accents = settings.case.strips_accents.unwrap_or(lowercase);
    let flags = TokenizerFlags { lowercase, strips_accents, ..TokenizerFlags::default() };
    draft(flags, lines.into_iter().map(|line| token(line.as_bytes().to_vec())).collect())
}

/// The tokenizer of a GGUF file, whose tokens have a mark where a word begins, and none where it goes on.
pub(super) fn of_gguf(texts: impl Iterator<Item = (Vec<u8>, TokenKind)>) -> Result<Draft, String> {
    let mark = SPACE_MARK.as_bytes();
    let own = |(text, kind): (Vec<u8>, TokenKind)| match (kind, text.strip_prefix(mark)) {
        (TokenKind::Normal, Some(word)) => token(word.to_vec()),
        (TokenKind::Normal, None) if !is_marker(&text) => token([b"##", &text[..]].concat()),
        (TokenKind::Unused, _) => Token::unused(),
        _ => token(text),
    };
    let tokens: Vec<Token> = texts.map(own).collect();
    let lowercase = is_lowercase(tokens.iter().map(|token| (&token.bytes[..], token.kind)));
    let flags =
        TokenizerFlags { lowercase, strips_accents: lowercase, ..TokenizerFlags::default() };
    draft(flags, tokens)
}

/// Whether no token has a capital. GGUF files do not say so otherwise.
pub(super) fn is_lowercase<'a>(tokens: impl Iterator<Item = (&'a [u8], TokenKind)>) -> bool {
    let is_capital = |(text, kind): (&[u8], TokenKind)| {
        kind == TokenKind::Normal && text.iter().any(u8::is_ascii_uppercase)
    };
    !tokens.into_iter().any(is_capital)
}

/// The text in a GGUF file of a token.
pub(super) fn to_gguf(text: &[u8], kind: TokenKind) -> Vec<u8> {
    match (kind, text.strip_prefix(b"##")) {
        (TokenKind::Normal, Some(rest)) => rest.to_vec(),
        (TokenKind::Normal, None) => [SPACE_MARK.as_bytes(), text].concat(),
        _ => text.to_vec(),
    }
}

fn is_marker(text: &[u8]) -> bool {
    MARKERS.iter().any(|marker| marker.as_bytes() == text)
        || (text.starts_with(b"[unused") && text.ends_with(b"]"))
}

fn token(bytes: Vec<u8>) -> Token {
    let kind = match &bytes[..] {
        b"" => TokenKind::Unused,
        b"[UNK]" => TokenKind::Unknown,
        text if MARKERS.iter().any(|marker| marker.as_bytes() == text) => TokenKind::Control,
        _ => TokenKind::Normal,
    };
    Token { bytes, score: 0.0, kind }
}

fn draft(flags: TokenizerFlags, tokens: Vec<Token>) -> Result<Draft, String> {
    let mut draft = Draft::new(TokenizerKind::WordPiece, flags, tokens);
    draft.writes_bos = false;
    draft.edges.around = [draft.find("[CLS]"), draft.find("[SEP]")];
    match draft.find("[UNK]") {
        Some(_) => Ok(draft),
        None => Err("there is no token [UNK]".to_owned()),
    }
}
