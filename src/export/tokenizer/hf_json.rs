//! Hugging Face `tokenizer.json`: byte-level BPE with one of the splitters that LEAP knows, and BPE
//! with byte fallback as converted from SentencePiece.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::added;
use super::draft::Draft;
use super::files::VALUES_MAX;
use super::steps::{is_true, steps};
use super::token::{Token, VOCAB_MAX};
use super::{around, wordpiece};
use crate::format::tokenizer::{
    Merges, SPACE_MARK, Splitter, TokenKind, TokenizerFlags, TokenizerKind, byte_piece,
};
use crate::format::{excerpt, json};

/// The splitters that are patterns.
const PATTERNS: [(&str, Splitter); 5] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Splitter::Llama3,
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Splitter::Qwen2,
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Splitter::Qwen35,
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Splitter::O200k,
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Splitter::Tekken,
    ),
];
/// Longest token: longer ones than any vocabulary has would only make the conversion slow.
const TOKEN_BYTES_MAX: usize = 4096;
/// Most merges: places up to here are exact as scores, which are `f32`.
const MERGES_MAX: usize = 1 << 23;

pub(super) fn parse(bytes: &[u8]) -> Result<Draft, String> {
    let json = json::parse(bytes, VALUES_MAX)?;
    let model = json.get("model").and_then(Value::as_object).ok_or("there is no model")?;
    if model.get("type") == Some(&Value::from("WordPiece")) {
        return wordpiece::from_json(&json, model);
    }
    check_model(model)?;
    let (kind, splitter, flags) = if has_byte_alphabet(&json) {
        let (splitter, nfc) = byte_level_steps(&json)?;
        let whole_pieces = is_true(model, "ignore_merges");
        let flags = TokenizerFlags { whole_pieces, nfc, ..TokenizerFlags::default() };
        (TokenizerKind::ByteLevel, splitter, flags)
    } else {
        let flags = sentencepiece_flags(&json, model)?;
        (TokenizerKind::SentencePiece, Splitter::default(), flags)
    };
    let tokens = parse_vocab(model, kind, bytes.len())?;
    let mut draft = Draft::new(kind, flags, tokens);
    draft.splitter = splitter;
    let added = added::parse(&json, model, &mut draft.notes)?;
    draft.add(&added);
    let lacks_bytes = !flags.byte_fallback || !draft.missing_bytes().is_empty();
    draft.flags.separate_unknowns =
        kind == TokenizerKind::SentencePiece && lacks_bytes && !is_true(model, "fuse_unk");
    take_merges(&mut draft, &last_of_each(parse_merges(model)?))?;
    let first = |names: [&str; 3]| names.into_iter().find_map(|name| draft.find(name));
    let bos = first(["<|begin_of_text|>", "<s>", "<bos>"]);
    let eos = first(["<|end_of_text|>", "</s>", "<eos>"]);
    draft.bos = bos;
    let is_sentencepiece = kind == TokenizerKind::SentencePiece;
    draft.writes_bos = is_sentencepiece || bos.is_some() || writes_special(&json);
    draft.stop_ids.extend(eos);
    draft.edges.around = around::parse(&json, &draft);
    Ok(draft)
}

/// Whether encoded texts are put behind a special token.
fn writes_special(json: &Value) -> bool {
    let rule = json.get("post_processor").unwrap_or(&Value::Null);
    let steps = rule.get("processors").and_then(Value::as_array);
    let steps = steps.map_or(std::slice::from_ref(rule), Vec::as_slice);
    steps.iter().any(|step| step.pointer("/single/0/SpecialToken").is_some())
}

/// Scores the tokens so that they merge in the list's order. Keeps the list if scores cannot express that order.
pub(super) fn take_merges(draft: &mut Draft, merges: &[(&str, &str)]) -> Result<(), String> {
    let merges = MergeList::new(draft, merges)?;
    merges.score(draft);
    draft.notes.extend(merges.note.clone());
    draft.merges = merges.rule(draft);
    Ok(())
}

/// Whether the key is absent, null, empty or 0.
fn is_unset(object: &Map<String, Value>, key: &str) -> bool {
    match object.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(value) => value.as_f64() == Some(0.0),
    }
}

fn check_model(model: &Map<String, Value>) -> Result<(), String> {
    // Old files leave the type out.
    let kind = model.get("type").and_then(Value::as_str).unwrap_or("BPE");
    if kind != "BPE" {
        return Err(format!("model type {:?} is not supported, only \"BPE\" is", excerpt(kind)));
    }
    for key in ["dropout", "continuing_subword_prefix", "end_of_word_suffix"] {
        if !is_unset(model, key) {
            return Err(format!("{key} is not supported"));
        }
    }
    Ok(())
}

/// Whether the vocabulary is byte-level. `byte_fallback` does not tell, because older files lack it.
fn has_byte_alphabet(json: &Value) -> bool {
    let steps = steps(json.get("pre_tokenizer"), "pretokenizers");
    steps.iter().any(|step| step.get("type") == Some(&Value::from("ByteLevel")))
}

/// The splitter, and whether text is first normalised to NFC.
fn byte_level_steps(json: &Value) -> Result<(Splitter, bool), String> {
    let normalizer = steps(json.get("normalizer"), "normalizers");
    let is_nfc = |step: &&Value| has(step, &serde_json::json!({"type": "NFC"}));
    if !normalizer.iter().all(is_nfc) {
        return Err("a normalizer other than NFC is not supported".to_owned());
    }
    let nfc = !normalizer.is_empty();
    let [split, bytes] = steps(json.get("pre_tokenizer"), "pretokenizers")[..] else {
        return Err("the pre_tokenizer is not a splitter, then ByteLevel".to_owned());
    };
    let plain_bytes = |use_regex: bool| {
        has(bytes, &serde_json::json!({"type": "ByteLevel", "add_prefix_space": false}))
            && bytes.get("use_regex").is_none_or(|value| value == &Value::Bool(true)) == use_regex
    };
    if has(split, &serde_json::json!({"type": "Digits", "individual_digits": true}))
        && plain_bytes(true)
    {
        return Ok((Splitter::Gpt2Digits, nfc));
    }
    let pattern = split.pointer("/pattern/Regex").and_then(Value::as_str);
    let Some(pattern) = pattern else {
        return Err("the pre_tokenizer is none that LEAP knows".to_owned());
    };
    let Some((_, splitter)) = PATTERNS.into_iter().find(|(known, _)| *known == pattern) else {
        return Err(format!("the splitter is none that LEAP knows but {}", excerpt(pattern)));
    };
    // The pattern covers the text, so that nothing remains between its matches.
    let cuts = [("Isolated", false), ("Removed", true)].into_iter().any(|(behavior, invert)| {
        has(split, &serde_json::json!({"type": "Split", "behavior": behavior, "invert": invert}))
    });
    let is_known = cuts && plain_bytes(false);
    is_known
        .then_some((splitter, nfc))
        .ok_or("the pre_tokenizer is none that LEAP knows".to_owned())
}

/// Whether `value` has all fields of `wanted`, an object.
fn has(value: &Value, wanted: &Value) -> bool {
    let mut fields = wanted.as_object().into_iter().flatten();
    fields.all(|(key, field)| value.get(key) == Some(field))
}

/// How the text is prepared, from the normalizer or the Metaspace pre-tokenizer.
fn sentencepiece_flags(json: &Value, model: &Map<String, Value>) -> Result<TokenizerFlags, String> {
    if is_true(model, "ignore_merges") {
        return Err("ignore_merges is not supported with byte fallback".to_owned());
    }
    let base = TokenizerFlags {
        byte_fallback: is_true(model, "byte_fallback"),
        split_at_user_defined: true,
        ..TokenizerFlags::default()
    };
    let normalizer = steps(json.get("normalizer"), "normalizers");
    let pre_tokenizer = steps(json.get("pre_tokenizer"), "pretokenizers");
    let replace =
        serde_json::json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK});
    let prepend = serde_json::json!({"type": "Prepend", "prepend": SPACE_MARK});
    // This step finds nothing, because the normalizer leaves no space.
    let idle = serde_json::json!({"type": "Split", "pattern": {"String": " "}});
    match (&normalizer[..], &pre_tokenizer[..]) {
        ([first, second], []) if has(first, &prepend) && has(second, &replace) => {
            Ok(TokenizerFlags { dummy_prefix: true, prefix_every_segment: true, ..base })
        }
        ([only], []) if has(only, &replace) => Ok(base),
        ([only], [split]) if has(only, &replace) && has(split, &idle) => Ok(base),
        ([], [metaspace]) => metaspace_flags(metaspace, base),
        _ => Err("the normalizer and pre_tokenizer are none that LEAP knows".to_owned()),
    }
}

fn metaspace_flags(metaspace: &Value, base: TokenizerFlags) -> Result<TokenizerFlags, String> {
    let wanted = serde_json::json!({"type": "Metaspace", "replacement": SPACE_MARK});
    if !has(metaspace, &wanted) {
        return Err("the pre_tokenizer is not supported".to_owned());
    }
    let (dummy_prefix, prefix_every_segment) = match metaspace
        .get("prepend_scheme")
        .and_then(Value::as_str)
    {
        Some("first") => (true, false),
        Some("always") | None => (true, true),
        Some("never") => (false, false),
        Some(other) => return Err(format!("prepend_scheme {:?} is not supported", excerpt(other))),
    };
    Ok(TokenizerFlags {
        dummy_prefix,
        prefix_every_segment,
        prefix_unless_space: true,
        cuts_at_spaces: metaspace.get("split") != Some(&Value::Bool(false)),
        ..base
    })
}

fn parse_vocab(
    model: &Map<String, Value>,
    kind: TokenizerKind,
    file_bytes: usize,
) -> Result<Vec<Token>, String> {
    let vocab = model.get("vocab").and_then(Value::as_object).ok_or("there is no vocab")?;
    let unknown = model.get("unk_token").and_then(Value::as_str);
    let mut tokens: Vec<Token> = Vec::new();
    // Every token takes some bytes of the file, so a larger id is a fault.
    let limit = file_bytes.min(VOCAB_MAX);
    for (text, id) in vocab {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        let Some(id) = id.filter(|&id| id < limit) else {
            return Err(format!("the id of {:?} is not a number below {limit}", excerpt(text)));
        };
        if id >= tokens.len() {
            tokens.resize_with(id + 1, Token::unused);
        }
        // No text becomes this token.
        if text.is_empty() {
            continue;
        }
        if !tokens[id].bytes.is_empty() || text.len() > TOKEN_BYTES_MAX {
            return Err(format!("token {id} is too long, or there twice"));
        }
        tokens[id] = match kind {
            TokenizerKind::ByteLevel => byte_level_token(text),
            TokenizerKind::SentencePiece | TokenizerKind::WordPiece => {
                piece(text, Some(text.as_str()) == unknown)
            }
        };
    }
    Ok(tokens)
}

fn piece(text: &str, is_unknown: bool) -> Token {
    let (kind, bytes) = if is_unknown {
        (TokenKind::Unknown, text.to_owned())
    } else if byte_piece(text.as_bytes()).is_some() {
        (TokenKind::Byte, text.to_owned())
    } else if text.contains(' ') {
        // No text has a space when it is looked up: the piece is only decoded.
        (TokenKind::Byte, text.replace(SPACE_MARK, " "))
    } else {
        (TokenKind::Normal, text.replace(SPACE_MARK, " "))
    };
    Token { bytes: bytes.into_bytes(), score: 0.0, kind }
}

pub(super) fn byte_level_token(text: &str) -> Token {
    // Added tokens may stand among the others, in plain text.
    let (bytes, kind) = match byte_level_bytes(text) {
        Some(bytes) => (bytes, TokenKind::Normal),
        None => (text.as_bytes().to_vec(), TokenKind::Unused),
    };
    Token { bytes, score: 0.0, kind }
}

fn byte_level_bytes(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}

/// The byte that a character of the byte-level alphabet stands for: visible ones of Latin-1
/// for themselves, U+0100 and on for the others in turn.
pub(super) fn byte_of(c: char) -> Option<u8> {
    const CONTROL_END: u32 = 0x100 + 0x21;
    const LATIN_CONTROL_END: u32 = CONTROL_END + 0x22;
    let byte = match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => code,
        code @ 0x100..CONTROL_END => code - 0x100,
        code @ CONTROL_END..LATIN_CONTROL_END => code - CONTROL_END + 0x7f,
        LATIN_CONTROL_END => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// Pairs of token texts; older files join them with a space.
fn parse_merges(model: &Map<String, Value>) -> Result<Vec<(&str, &str)>, String> {
    let merges = model.get("merges").and_then(Value::as_array).ok_or("there are no merges")?;
    (0..)
        .zip(merges)
        .map(|(index, merge)| split_merge(merge).ok_or_else(|| format!("merge {index} is no pair")))
        .collect()
}

/// Keeps the last of equal merges, like the library tokenizers.
fn last_of_each<'a>(merges: Vec<(&'a str, &'a str)>) -> Vec<(&'a str, &'a str)> {
    let mut seen = HashSet::new();
    let mut kept: Vec<(&str, &str)> =
        merges.into_iter().rev().filter(|merge| seen.insert(*merge)).collect();
    kept.reverse();
    kept
}

/// The two tokens of a merge in one string.
pub(super) fn split_at_space(merge: &str) -> Option<(&str, &str)> {
    merge.split_once(' ')
}

fn split_merge(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(text) => split_at_space(text),
        Value::Array(pair) => match pair.as_slice() {
            [left, right] => Some((left.as_str()?, right.as_str()?)),
            _ => None,
        },
        _ => None,
    }
}

/// The merges as ids, in their order.
struct MergeList {
    pairs: Vec<(u32, u32)>,
    /// Token that each pair merges into.
    results: Vec<u32>,
    /// Note about merges that are left out, because they join or give what is no token.
    note: Option<String>,
}

impl MergeList {
    fn new(draft: &Draft, merges: &[(&str, &str)]) -> Result<MergeList, String> {
        let ids = ids_by_bytes(draft);
        let bytes = |text: &str| match draft.kind {
            TokenizerKind::ByteLevel => byte_level_bytes(text),
            TokenizerKind::SentencePiece | TokenizerKind::WordPiece => {
                Some(text.replace(SPACE_MARK, " ").into_bytes())
            }
        };
        let (mut pairs, mut results, mut impossible) = (Vec::new(), Vec::new(), Vec::new());
        for &(left, right) in merges {
            let join = || {
                let (left, right) = (bytes(left)?, bytes(right)?);
                let result = *ids.get([left.as_slice(), &right].concat().as_slice())?;
                Some(((*ids.get(left.as_slice())?, *ids.get(right.as_slice())?), result))
            };
            match join() {
                Some((pair, result)) => {
                    pairs.push(pair);
                    results.push(result);
                }
                None => impossible.push((left, right)),
            }
        }
        let distinct: HashSet<_> = pairs.iter().collect();
        if distinct.len() < pairs.len() || pairs.len() > MERGES_MAX {
            return Err(format!("{} merges are too many, or some are there twice", pairs.len()));
        }
        let note = impossible.first().map(|(left, right)| {
            let (count, left, right) = (impossible.len(), excerpt(left), excerpt(right));
            format!("{count} merges cannot happen, the first of {left:?} and {right:?}: left out")
        });
        Ok(MergeList { pairs, results, note })
    }

    /// Scores the tokens: minus the id in byte-level vocabularies, where ids are ranks as a
    /// rule, otherwise minus the place of the first merge that makes the token.
    fn score(&self, draft: &mut Draft) {
        match draft.kind {
            TokenizerKind::ByteLevel => {
                for (id, token) in draft.tokens.iter_mut().enumerate() {
                    token.score = -(id as f32);
                }
            }
            TokenizerKind::SentencePiece | TokenizerKind::WordPiece => {
                for (place, &id) in self.results.iter().enumerate().rev() {
                    draft.tokens[id as usize].score = -(place as f32);
                }
            }
        }
    }

    /// The shortest form of this list: none, if the scores lead to the same merges.
    fn rule(self, draft: &Draft) -> Merges {
        let score = |id: &u32| draft.tokens[*id as usize].score;
        let follows_scores = self.results.is_sorted_by(|a, b| score(a) >= score(b));
        if !follows_scores || self.pairs.len() != count_splits(draft) {
            return Merges::Listed(self.pairs);
        }
        let mut ties = self.results.windows(2).zip(self.pairs.windows(2));
        let mut ties = ties.by_ref().filter(|(results, _)| results[0] == results[1]).peekable();
        if ties.peek().is_none() {
            Merges::ByScore
        } else if ties.all(|(_, pairs)| pairs[0].0 < pairs[1].0) {
            Merges::ByScoreThenLeft
        } else {
            Merges::Listed(self.pairs)
        }
    }
}

fn ids_by_bytes(draft: &Draft) -> HashMap<&[u8], u32> {
    // Gemma's runs of spaces are both user-defined and reached by merging.
    let is_reachable = |kind| match draft.kind {
        TokenizerKind::ByteLevel | TokenizerKind::WordPiece => kind == TokenKind::Normal,
        TokenizerKind::SentencePiece => matches!(kind, TokenKind::Normal | TokenKind::UserDefined),
    };
    let reachable = (0u32..).zip(&draft.tokens).filter(|(_, t)| is_reachable(t.kind));
    reachable.map(|(id, token)| (token.bytes.as_slice(), id)).collect()
}

/// Number of ways in which tokens divide into two other tokens. Each merge is one of them, so a list of that many
/// merges has them all.
fn count_splits(draft: &Draft) -> usize {
    let ids = ids_by_bytes(draft);
    let splits = |bytes: &&[u8]| {
        let halves = |&at: &usize| ids.contains_key(&bytes[..at]) && ids.contains_key(&bytes[at..]);
        (1..bytes.len()).filter(halves).count()
    };
    ids.keys().map(splits).sum()
}
