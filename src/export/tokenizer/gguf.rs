//! The tokenizer in a GGUF file: fields `tokenizer.ggml.*`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use super::draft::Draft;
use super::error::ImportError;
use super::gguf_names::{
    DEFAULT, LISTED_MODEL, MERGES, Named, SCORES, SPLITTERS, TOKENS, TYPES, listed_flags,
};
use super::hf_json::{self, split_at_space};
use super::sentencepiece;
use super::settings::Settings;
use super::token::{Token, VOCAB_MAX};
use super::wordpiece;
use crate::export::gguf::{Gguf, GgufList, GgufValue, MAGIC};
use crate::format::excerpt;
use crate::format::tokenizer::{SPACE_MARK, TokenKind, TokenizerFlags, TokenizerKind, byte_piece};
use crate::sys::map::Map;

const END_OF_TEXT: &str = "<|endoftext|>";

/// Whether the file at `path` is a GGUF file.
pub(super) fn is_gguf(path: &Path) -> bool {
    // Refuses pipes, which would wait for their writers.
    Map::open(path).is_ok_and(|map| map.as_bytes().starts_with(MAGIC))
}

/// Whether there is a tokenizer in the GGUF file at `path`.
pub(super) fn has_tokenizer(path: &Path) -> bool {
    // A file that cannot be read is reported by `read`.
    let Ok(map) = Map::open(path) else { return true };
    let Ok(gguf) = Gguf::parse(map.as_bytes()) else { return true };
    gguf.get(TOKENS).is_some()
}

/// The tokenizer of the GGUF file at `path`, and its settings.
pub(super) fn read(path: &Path) -> Result<(Draft, Settings), ImportError> {
    let map =
        Map::open(path).map_err(|source| ImportError::Io { path: path.to_path_buf(), source })?;
    parse(map.as_bytes()).map_err(|what| ImportError::Bad { path: path.to_path_buf(), what })
}

/// The tokenizer of the GGUF file `bytes`, and its settings.
pub(super) fn parse(bytes: &[u8]) -> Result<(Draft, Settings), String> {
    let gguf = Gguf::parse(bytes)?;
    let (mut draft, mut settings) = (draft(&gguf)?, settings(&gguf)?);
    for (at, end) in ["bos", "eos"].into_iter().enumerate() {
        let is_added = gguf.flag(&format!("tokenizer.ggml.add_{end}_token"))?;
        if draft.kind != TokenizerKind::WordPiece && is_added == Some(true) {
            draft.edges.around[at] = named_id(&gguf, end);
        }
    }
    // The file has room for one end of the text; the checkpoints of Qwen and gpt-oss list the first of these, too,
    // and those of Gemma 4 the others.
    for name in [END_OF_TEXT, "<turn|>", "<|tool_response>"] {
        let end = draft.find(name).filter(|&id| draft.is_control(id));
        settings.stop_ids.extend(end);
    }
    Ok((draft, settings))
}

fn draft(gguf: &Gguf<'_>) -> Result<Draft, String> {
    match gguf.text("tokenizer.ggml.model")? {
        Some("llama") => sentencepiece_draft(gguf),
        Some("gpt2") => byte_level_draft(gguf),
        Some(LISTED_MODEL) => gemma4_draft(gguf),
        Some("bert") => {
            let entries = entries(gguf)?;
            wordpiece::of_gguf(
                entries.into_iter().map(|entry| (entry.text.into_owned(), entry.kind)),
            )
        }
        Some(other) => {
            let known = "llama, gpt2, gemma4 and bert are";
            Err(format!("tokenizer model {} is not supported, {known}", excerpt(other)))
        }
        None => Err("tokenizer.ggml.model is missing".to_owned()),
    }
}

fn settings(gguf: &Gguf<'_>) -> Result<Settings, String> {
    let stop_ids = ["eos", "eot", "eom"].map(|name| named_id(gguf, name));
    Ok(Settings {
        bos_id: named_id(gguf, "bos"),
        writes_bos: gguf.flag("tokenizer.ggml.add_bos_token")?,
        stop_ids: stop_ids.into_iter().flatten().collect(),
        chat_template: gguf.text("tokenizer.chat_template")?.map(str::to_owned),
        tool_template: gguf.text("tokenizer.chat_template.tool_use")?.map(str::to_owned),
        // A converter writes the template if there is one.
        has_tokenizer_config: true,
        ..Settings::default()
    })
}

/// The id of the special token `name`, such as `unk`, `bos` or `eos`.
///
/// If the file does not give it, SentencePiece vocabularies have the ids that llama.cpp assumes.
fn named_id(gguf: &Gguf<'_>, name: &str) -> Option<u32> {
    let is_sentencepiece = matches!(gguf.text("tokenizer.ggml.model"), Ok(Some("llama")));
    let key = if name == "unk" { "unknown" } else { name };
    match (gguf.get(&format!("tokenizer.ggml.{key}_token_id")), name) {
        // Some files have -1 for a token that they lack.
        (Some(id), _) => u32::try_from(id.unsigned()?).ok(),
        (None, "unk") if is_sentencepiece => Some(0),
        (None, "bos") if is_sentencepiece => Some(1),
        (None, "eos") if is_sentencepiece => Some(2),
        (None, _) => None,
    }
}

/// One token of the lists, in the order of ids.
struct Entry<'a> {
    text: Cow<'a, [u8]>,
    score: f32,
    kind: TokenKind,
}

fn entries<'a>(gguf: &Gguf<'a>) -> Result<Vec<Entry<'a>>, String> {
    let tokens = gguf.list(TOKENS)?.ok_or_else(|| format!("{TOKENS} is missing"))?;
    if !(1..=VOCAB_MAX as u64).contains(&tokens.len()) {
        return Err(format!("{} tokens, wanted 1 to {VOCAB_MAX}", tokens.len()));
    }
    let same_len = |key: &str| -> Result<Option<GgufList<'a>>, String> {
        let list = gguf.list(key)?;
        match list.filter(|list| list.len() < tokens.len()) {
            Some(list) => {
                Err(format!("{key} has {} values for {} tokens", list.len(), tokens.len()))
            }
            None => Ok(list),
        }
    };
    let mut scores = same_len(SCORES)?.map(|list| list.values());
    let mut kinds = same_len(TYPES)?.map(|list| list.values());
    let entry = |(id, token): (usize, GgufValue<'a>)| {
        let GgufValue::Text(text) = token else { return Err(format!("token {id} is no string")) };
        let score = match scores.as_mut().and_then(Iterator::next) {
            Some(score) => score.number().ok_or_else(|| format!("the score of {id} is {score}"))?,
            None => 0.0,
        };
        let kind = match kinds.as_mut().and_then(Iterator::next) {
            // Other numbers, and 0, are undefined: such tokens are ordinary text.
            Some(kind) => {
                let number = kind.unsigned();
                number.and_then(sentencepiece::token_kind).unwrap_or(TokenKind::Normal)
            }
            None => TokenKind::Normal,
        };
        Ok(Entry { text: text.into(), score: score as f32, kind })
    };
    tokens.values().enumerate().map(entry).collect()
}

/// SentencePiece pieces with their scores.
fn sentencepiece_draft(gguf: &Gguf<'_>) -> Result<Draft, String> {
    let mut entries = entries(gguf)?;
    mark_bytes(&mut entries);
    mark_raw_bytes(&mut entries);
    mark_markers(gguf, &mut entries);
    mark_twins(&mut entries);
    let token = |Entry { text, score, kind }| match kind {
        // Padding tokens, to which converters give numbered names.
        TokenKind::Unused => Token::unused(),
        _ => sentencepiece::token(&text, score, kind),
    };
    let tokens = entries.into_iter().map(token).collect();
    let flag = |name: &str| gguf.flag(&format!("tokenizer.ggml.{name}"));
    // Files of this family lack the flag; the value is that of the family's own tokenizer.
    let is_phi = gguf.text("general.architecture")? == Some("phi3");
    let flags = TokenizerFlags {
        split_at_user_defined: is_phi,
        dummy_prefix: flag("add_space_prefix")?.unwrap_or(true),
        remove_extra_spaces: flag("remove_extra_whitespaces")?.unwrap_or(false),
        byte_fallback: true,
        prefix_every_segment: true,
        ..TokenizerFlags::default()
    };
    let mut draft = Draft::new(TokenizerKind::SentencePiece, flags, tokens);
    let key = "tokenizer.ggml.precompiled_charsmap";
    if gguf.list(key)?.is_some_and(|rules| rules.len() > 0) {
        draft
            .notes
            .push(format!("{key} is not applied: vocabularies of this kind have no such rules"));
    }
    if is_phi {
        draft.strip_right_of_markers(&["<unk>", "<s>", END_OF_TEXT]);
    }
    Ok(draft)
}

/// Gemma 4: pieces that merge in the order of a list, as in the family's `tokenizer.json`.
fn gemma4_draft(gguf: &Gguf<'_>) -> Result<Draft, String> {
    let merges = merges(gguf)?;
    let mut entries = entries(gguf)?;
    mark_bytes(&mut entries);
    mark_unmerged(&mut entries, &merges);
    mark_markers(gguf, &mut entries);
    let token = |Entry { text, score, kind }| match kind {
        TokenKind::Unused => Token::unused(),
        _ => sentencepiece::token(&text, score, kind),
    };
    let tokens = entries.into_iter().map(token).collect();
    let dummy_prefix = gguf.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(false);
    let flags = TokenizerFlags { dummy_prefix, ..listed_flags() };
    let mut draft = Draft::new(TokenizerKind::SentencePiece, flags, tokens);
    hf_json::take_merges(&mut draft, &merges)?;
    draft.stop_ids.extend(draft.find("<eos>"));
    draft.bos = draft.find("<bos>");
    Ok(draft)
}

/// Marks what no merge makes: markers, and the tokens that the family's `tokenizer.json` adds. Runs of line breaks,
/// tabs and spaces are such tokens, though merges make them. Converters call most of them ordinary text.
fn mark_unmerged(entries: &mut [Entry<'_>], merges: &[(&str, &str)]) {
    let made: HashSet<String> =
        merges.iter().map(|(left, right)| [*left, *right].concat()).collect();
    for entry in entries {
        let Ok(text) = str::from_utf8(&entry.text) else { continue };
        if !matches!(entry.kind, TokenKind::Normal | TokenKind::UserDefined) {
            continue;
        }
        if is_run(text) {
            entry.kind = TokenKind::UserDefined;
        } else if text.chars().nth(1).is_some() && !made.contains(text) {
            let is_marker = text.starts_with("<|") || text.ends_with("|>");
            entry.kind = if is_marker { TokenKind::Control } else { TokenKind::UserDefined };
        }
    }
}

/// Whether a token is a run of line breaks, of tabs, or of several spaces.
pub(super) fn is_run(text: &str) -> bool {
    let is_run = |unit: &str| !text.is_empty() && text.replace(unit, "").is_empty();
    is_run("\n") || is_run("\t") || (is_run(SPACE_MARK) && text != SPACE_MARK)
}

/// Marks raw bytes. A byte without a piece such as `<0x0A>` may be a piece itself, which llama.cpp looks for next.
fn mark_raw_bytes(entries: &mut [Entry<'_>]) {
    let mut has_piece = [false; 256];
    let named = entries.iter().filter(|entry| entry.kind == TokenKind::Byte);
    for byte in named.filter_map(|entry| byte_piece(&entry.text)) {
        has_piece[usize::from(byte)] = true;
    }
    for entry in entries {
        if entry.kind == TokenKind::Byte && byte_piece(&entry.text).is_none() {
            // llama.cpp finds this token by its text, whatever its type.
            entry.kind = TokenKind::Normal;
        }
        let &[byte] = &entry.text[..] else { continue };
        // ASCII is text, which becomes the piece anyway.
        if !byte.is_ascii() && !std::mem::replace(&mut has_piece[usize::from(byte)], true) {
            entry.text = format!("<0x{byte:02X}>").into_bytes().into();
            entry.kind = TokenKind::Byte;
        }
    }
}

/// Marks special tokens by their ids, for files without types, or with one type for all tokens.
fn mark_markers(gguf: &Gguf<'_>, entries: &mut [Entry<'_>]) {
    let has_unknown = entries.iter().any(|entry| entry.kind == TokenKind::Unknown);
    let names = [
        ("unk", TokenKind::Unknown),
        ("bos", TokenKind::Control),
        ("eos", TokenKind::Control),
        ("eot", TokenKind::Control),
        ("eom", TokenKind::Control),
    ];
    for (name, kind) in names {
        let id = named_id(gguf, name).and_then(|id| usize::try_from(id).ok());
        let Some(entry) = id.and_then(|id| entries.get_mut(id)) else { continue };
        let is_text = entry.kind == TokenKind::Normal && looks_like_marker(&entry.text);
        let is_unknown = entry.kind == TokenKind::Control && kind == TokenKind::Unknown;
        if is_text || (is_unknown && !has_unknown && entry.text.starts_with(b"<unk")) {
            entry.kind = kind;
        }
    }
}

/// Whether a token has a name such as `<s>` or `[UNK]`, and not that of a piece of text.
fn looks_like_marker(text: &[u8]) -> bool {
    text.len() > 2
        && matches!(
            (text.first(), text.last()),
            (Some(b'<'), Some(b'>')) | (Some(b'['), Some(b']'))
        )
}

/// Marks equal pieces: llama.cpp finds the last of them; the others are only decoded.
fn mark_twins(entries: &mut [Entry<'_>]) {
    let mut seen = HashSet::new();
    let normal = entries.iter_mut().rev().filter(|entry| entry.kind == TokenKind::Normal);
    for entry in normal {
        if !seen.insert(entry.text.clone()) {
            entry.kind = TokenKind::Byte;
        }
    }
}

/// Marks byte pieces that a file has as other ones; llama.cpp finds them by name.
fn mark_bytes(entries: &mut [Entry<'_>]) {
    let mut has_piece = [false; 256];
    for kind in [TokenKind::Byte, TokenKind::Normal, TokenKind::UserDefined] {
        for entry in entries.iter_mut().filter(|entry| entry.kind == kind) {
            let byte = byte_piece(&entry.text).map(usize::from);
            if let Some(byte) = byte.filter(|&byte| !has_piece[byte]) {
                has_piece[byte] = true;
                entry.kind = TokenKind::Byte;
            }
        }
    }
}

/// The list of merges, without repetitions.
fn merges<'a>(gguf: &Gguf<'a>) -> Result<Vec<(&'a str, &'a str)>, String> {
    let list = gguf.list(MERGES)?.ok_or_else(|| format!("{MERGES} is missing"))?;
    // An entry that is no pair never applies, like a pair of unknown tokens.
    let pair = |merge: GgufValue<'a>| merge.text().and_then(split_at_space);
    let mut pairs: Vec<(&str, &str)> =
        list.values().map(|merge| pair(merge).unwrap_or_default()).collect();
    // llama.cpp takes the first of two equal merges.
    let mut seen = HashSet::new();
    pairs.retain(|pair| seen.insert(*pair));
    Ok(pairs)
}

/// Tokens in the byte-level alphabet, and a list of merges.
fn byte_level_draft(gguf: &Gguf<'_>) -> Result<Draft, String> {
    let named_so = gguf.text("tokenizer.ggml.pre")?.filter(|name| !name.is_empty());
    let name = named_so.unwrap_or(DEFAULT);
    let Some(named) = SPLITTERS.iter().find(|known| known.names.contains(&name)) else {
        let known = SPLITTERS.map(|known| known.names.join(", ")).join(", ");
        return Err(format!("the splitter {} is not supported, only {known} are", excerpt(name)));
    };
    let token = |entry: Entry<'_>| {
        match (entry.kind, std::str::from_utf8(&entry.text)) {
            (TokenKind::Normal | TokenKind::Byte, Ok(text)) => hf_json::byte_level_token(text),
            (TokenKind::Unused, _) => Token::unused(),
            // No text becomes this token.
            (_, Err(_)) => {
                Token { bytes: entry.text.to_vec(), score: 0.0, kind: TokenKind::Unused }
            }
            (kind, Ok(text)) => Token { bytes: text.into(), score: 0.0, kind },
        }
    };
    let tokens: Vec<Token> = entries(gguf)?.into_iter().map(token).collect();
    let pairs = merges(gguf)?;
    let Named { splitter, whole_pieces, nfc, writes_bos, .. } = *named;
    let flags = TokenizerFlags { whole_pieces, nfc, ..TokenizerFlags::default() };
    let mut draft = Draft::new(TokenizerKind::ByteLevel, flags, tokens);
    (draft.splitter, draft.writes_bos) = (splitter, writes_bos);
    if named_so.is_none() {
        draft.notes.push(
            "the file does not say how text is cut: LEAP cuts it as llama.cpp does then, but most models were trained with \
             another way; a newer GGUF file of the model names it"
                .to_owned(),
        );
    }
    hf_json::take_merges(&mut draft, &pairs)?;
    draft.flags.missing_bytes_part = !draft.missing_bytes().is_empty();
    // Defaults for files that do not name these tokens.
    draft.bos = draft.find("<|begin_of_text|>");
    draft.stop_ids.extend(draft.find("<|end_of_text|>"));
    Ok(draft)
}
