//! The fields of a GGUF file that hold a tokenizer: those that [`super::gguf`] reads.

use std::collections::HashMap;

use super::gguf::is_run;
use super::gguf_names::{LISTED_MODEL, MERGES, SCORES, TOKENS, TYPES, listed_flags, splitter_of};
use super::hf_json::byte_of;
use super::wordpiece;
use crate::export::gguf::GgufHead;
use crate::format::model::{Architecture, Header};
use crate::format::tokenizer::{
    Merges, SPACE_MARK, TokenKind, TokenizerFile, TokenizerFlags, TokenizerKind, byte_piece,
};

/// Names of ids that end a text; a GGUF file has room for one of each.
const ENDS: [&str; 3] = ["eos", "eot", "eom"];

/// Adds the tokenizer `file` of the model of `header` to `head`. The ids that begin and end texts are those of the
/// tokenizer, then those of the model.
///
/// # Errors
/// Says what GGUF files cannot say.
pub(in crate::export) fn write(
    file: &TokenizerFile,
    header: &Header,
    head: &mut GgufHead,
) -> Result<(), String> {
    let is_listed = is_listed(file, header);
    match file.kind {
        TokenizerKind::ByteLevel => write_byte_level(file, head)?,
        TokenizerKind::SentencePiece if is_listed => write_listed(file, head)?,
        TokenizerKind::SentencePiece => write_sentencepiece(file, head),
        TokenizerKind::WordPiece => write_wordpiece(file, head)?,
    }
    let kind = |(_, text, kind): (u32, &[u8], TokenKind)| match is_listed && is_merged(text, kind) {
        true => number(text, TokenKind::Normal),
        false => number(text, kind),
    };
    head.numbers(TYPES, &file.vocab.iter().map(kind).collect::<Vec<i32>>());
    write_ends(file, header, head);
    let mut unknown = file.vocab.iter().filter(|(.., kind)| *kind == TokenKind::Unknown);
    if let Some((id, ..)) = unknown.next() {
        head.number(&key("unknown_token_id"), id);
    }
    if let Some(own) = &file.chat_texts.own {
        head.text("tokenizer.chat_template", &own.text);
        if let Some(tools) = &own.tool_text {
            head.text("tokenizer.chat_template.tool_use", tools);
        }
    }
    Ok(())
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

/// Adds the ids that begin and end texts, and whether they are put around them.
fn write_ends(file: &TokenizerFile, header: &Header, head: &mut GgufHead) {
    let [first, last] = header.embedding().map_or([None; 2], |model| [model.first, model.last]);
    // The template names a token, even if texts do not begin with it.
    let named = || file.vocab.find(file.chat_texts.own.as_ref()?.bos.as_bytes());
    if let Some(bos) = first.or(file.bos).or(header.bos).or_else(named) {
        head.number(&key("bos_token_id"), bos);
    }
    // Without the flags, llama.cpp puts both ids around the texts of a WordPiece tokenizer, as LEAP does.
    if file.kind != TokenizerKind::WordPiece {
        head.flag(&key("add_bos_token"), first.or(file.bos).is_some());
        if last.is_some() {
            head.flag(&key("add_eos_token"), true);
        }
    }
    let mut ends: Vec<u32> = Vec::new();
    for id in last.iter().chain(&file.stop_ids).chain(&header.stop_ids) {
        if !ends.contains(id) {
            ends.push(*id);
        }
    }
    for (name, id) in ENDS.into_iter().zip(ends) {
        head.number(&key(&format!("{name}_token_id")), id);
    }
}

/// The number of a token's type.
fn number(text: &[u8], kind: TokenKind) -> i32 {
    match kind {
        TokenKind::Normal => 1,
        TokenKind::Unknown => 2,
        TokenKind::Control => 3,
        TokenKind::UserDefined => 4,
        TokenKind::Unused => 5,
        TokenKind::Byte if byte_piece(text).is_some() => 6,
        // Only decoded.
        TokenKind::Byte => 5,
    }
}

/// Texts of all tokens as `text` writes them. Ids without a token get names as llama.cpp's converter gives them.
fn texts(file: &TokenizerFile, text: impl Fn(&[u8], TokenKind) -> Vec<u8>) -> Vec<Vec<u8>> {
    let token = |(id, bytes, kind): (u32, &[u8], TokenKind)| match bytes {
        [] => format!("[PAD{id}]").into_bytes(),
        bytes => text(bytes, kind),
    };
    file.vocab.iter().map(token).collect()
}

/// Whether the file has a list of merges in place of scores: where scores cannot say the same, and for Gemma 4, for
/// which llama.cpp has this kind.
fn is_listed(file: &TokenizerFile, header: &Header) -> bool {
    let is_of_gemma4 =
        header.architecture == Architecture::Gemma4 && flags_of_merging(file) == listed_flags();
    let is_list = matches!(file.merges, Merges::Listed(_)) || is_of_gemma4;
    file.kind == TokenizerKind::SentencePiece && is_list
}

/// The flags that decide which pieces a text becomes.
fn flags_of_merging(file: &TokenizerFile) -> TokenizerFlags {
    let (chat_without_bos, system_in_last_turn) = (false, false);
    TokenizerFlags { chat_without_bos, system_in_last_turn, separate_unknowns: false, ..file.flags }
}

/// Whether merges make a token: also runs of spaces and line breaks.
fn is_merged(text: &[u8], kind: TokenKind) -> bool {
    let is_run = || str::from_utf8(&marked(text)).is_ok_and(is_run);
    kind == TokenKind::Normal || (kind == TokenKind::UserDefined && is_run())
}

/// The text of a piece, with marks for spaces.
fn marked(text: &[u8]) -> Vec<u8> {
    match str::from_utf8(text) {
        Ok(text) => text.replace(' ', SPACE_MARK).into_bytes(),
        Err(_) => text.to_vec(),
    }
}

/// Adds pieces that merge in the order of a list, those of Gemma 4.
fn write_listed(file: &TokenizerFile, head: &mut GgufHead) -> Result<(), String> {
    if flags_of_merging(file) != listed_flags() {
        let what = "a GGUF file of pieces that merge in the order of a list, but not as Gemma 4's";
        return Err(what.to_owned());
    }
    head.text("tokenizer.ggml.model", LISTED_MODEL);
    head.texts(TOKENS, &texts(file, |text, _| marked(text)));
    let token = |id: u32| marked(file.vocab.get(id).unwrap_or_default());
    let pair = |(left, right): (u32, u32)| [token(left), vec![b' '], token(right)].concat();
    head.texts(MERGES, &merges(file, is_merged).into_iter().map(pair).collect::<Vec<_>>());
    head.flag("tokenizer.ggml.add_space_prefix", false);
    Ok(())
}

fn write_sentencepiece(file: &TokenizerFile, head: &mut GgufHead) {
    head.text("tokenizer.ggml.model", "llama");
    head.text("tokenizer.ggml.pre", "default");
    let text = |text: &[u8], kind| match kind {
        // Found in texts as they stand, before spaces get their marks.
        TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => text.to_vec(),
        _ => marked(text),
    };
    head.texts(TOKENS, &texts(file, text));
    let score = |(id, ..): (u32, &[u8], TokenKind)| file.vocab.score(id).unwrap_or_default();
    head.floats(SCORES, &file.vocab.iter().map(score).collect::<Vec<f32>>());
    head.flag("tokenizer.ggml.add_space_prefix", file.flags.dummy_prefix);
    head.flag("tokenizer.ggml.remove_extra_whitespaces", file.flags.remove_extra_spaces);
}

/// Adds a vocabulary of words and their ends. Where a word goes on, a token has no mark.
fn write_wordpiece(file: &TokenizerFile, head: &mut GgufHead) -> Result<(), String> {
    let TokenizerFlags { lowercase, strips_accents, .. } = file.flags;
    if wordpiece::is_lowercase(file.vocab.iter().map(|(_, text, kind)| (text, kind))) != lowercase
        || strips_accents != lowercase
    {
        let what = "a GGUF file of a WordPiece tokenizer whose capitals or accents are not those of its tokens";
        return Err(what.to_owned());
    }
    head.text("tokenizer.ggml.model", "bert");
    head.text("tokenizer.ggml.pre", "default");
    head.texts(TOKENS, &texts(file, wordpiece::to_gguf));
    // LEAP keeps one token type, the first: a text has no other.
    head.number(&key("token_type_count"), 1);
    head.flag(&key("normalizer.lowercase"), lowercase);
    for (name, text) in [("seperator", "[SEP]"), ("padding", "[PAD]"), ("mask", "[MASK]")] {
        if let Some(id) = file.vocab.find(text.as_bytes()) {
            head.number(&key(&format!("{name}_token_id")), id);
        }
    }
    Ok(())
}

fn write_byte_level(file: &TokenizerFile, head: &mut GgufHead) -> Result<(), String> {
    let splitter = splitter_of(file).ok_or_else(|| {
        format!("a GGUF file of a tokenizer with the splitter {}", file.splitter.name())
    })?;
    head.text("tokenizer.ggml.model", "gpt2");
    head.text("tokenizer.ggml.pre", splitter);
    let alphabet = alphabet();
    let written = |bytes: &[u8]| -> String {
        bytes.iter().map(|byte| alphabet[usize::from(*byte)]).collect()
    };
    let text = |bytes: &[u8], kind| match kind {
        TokenKind::Normal | TokenKind::Byte => written(bytes).into_bytes(),
        _ => bytes.to_vec(),
    };
    head.texts(TOKENS, &texts(file, text));
    let token = |id: u32| written(file.vocab.get(id).unwrap_or_default());
    let pair = |(left, right): (u32, u32)| format!("{} {}", token(left), token(right)).into_bytes();
    let is_normal = |_: &[u8], kind| kind == TokenKind::Normal;
    head.texts(MERGES, &merges(file, is_normal).into_iter().map(pair).collect::<Vec<_>>());
    Ok(())
}

/// The character of each byte in texts of byte-level tokens.
fn alphabet() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    for c in '!'..='\u{143}' {
        if let Some(byte) = byte_of(c) {
            alphabet[usize::from(byte)] = c;
        }
    }
    alphabet
}

/// The pairs that merge, in their order. Where scores decide, they are all pairs that together are a token; `is_merged`
/// says which tokens count.
fn merges(file: &TokenizerFile, is_merged: impl Fn(&[u8], TokenKind) -> bool) -> Vec<(u32, u32)> {
    if let Merges::Listed(pairs) = &file.merges {
        return pairs.clone();
    }
    let tokens = || file.vocab.iter().filter(|(_, text, kind)| is_merged(text, *kind));
    let ids: HashMap<&[u8], u32> = tokens().map(|(id, text, _)| (text, id)).collect();
    let mut made: Vec<(u32, &[u8])> = tokens().map(|(id, text, _)| (id, text)).collect();
    let score = |id: u32| file.vocab.score(id).unwrap_or_default();
    // Stable: equal scores stay in the order of ids.
    made.sort_by(|(one, _), (other, _)| score(*other).total_cmp(&score(*one)));
    let mut pairs = Vec::new();
    for (_, text) in made {
        let first = pairs.len();
        let halves = |at: usize| Some((*ids.get(&text[..at])?, *ids.get(&text[at..])?));
        pairs.extend((1..text.len()).filter_map(halves));
        pairs[first..].sort_unstable();
    }
    pairs
}
