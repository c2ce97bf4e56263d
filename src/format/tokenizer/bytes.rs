//! Parses and emits tokenizers.

use super::file::{Merges, STOP_IDS_MAX, Splitter, TokenizerFile, TokenizerFlags, TokenizerKind};
use super::infer::infer;
use super::vocab::{TokenKind, Vocab};
use crate::format::cursor::Cursor;
use crate::format::model::MAGIC;
use crate::format::{
    ChatTemplate, ChatTexts, Date, FormatError, OwnText, SystemTexts, excerpt, filled,
};

const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"LEAT");
pub(super) const FOOTER_BYTES: usize = 12;
const TRAILER_VERSION: u32 = 1;
/// Version with the fields of [`put_extension`](TokenizerFile::put_extension); written only if one is needed.
const EXTENDED_VERSION: u32 = 2;
/// Version with two more lists of ids after these; written only if one of the lists is not empty.
const SIDES_VERSION: u32 = 3;
/// Version with a chat template after these; written only if there is one.
const OWN_VERSION: u32 = 4;
/// Version with one more chat template, for conversations with tools; written only if there is one.
const TOOLS_VERSION: u32 = 5;
const NO_ID: u32 = u32::MAX;

impl TokenizerFile {
    /// Reads a `tokenizer.bin`, with or without trailer.
    ///
    /// `vocab_size` is that of the model; without it, entries are read to the end of the file.
    ///
    /// # Errors
    ///
    /// The field that is cut off or impossible; or that the checksum or the size does not match.
    pub fn parse(bytes: &[u8], vocab_size: Option<usize>) -> Result<TokenizerFile, FormatError> {
        if bytes.starts_with(&MAGIC.to_le_bytes()) {
            return Err(FormatError::Unsupported(
                "this is a model file, not its tokenizer".to_owned(),
            ));
        }
        let file = match split_footer(bytes)? {
            Some((body, trailer)) => parse_trailer(trailer, body)?,
            None => infer(parse_entries(bytes, vocab_size)?)?,
        };
        match vocab_size {
            Some(wanted) if wanted != file.vocab.len() => Err(FormatError::Field {
                field: "n_vocab",
                value: file.vocab.len() as i64,
                wanted: format!("{wanted}, as the model has"),
            }),
            _ => Ok(file),
        }
    }

    /// Bytes of the file, with trailer.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.vocab.bytes.len() + self.vocab.len() * 8 + 4096);
        put_u32(&mut out, self.vocab.longest());
        for (id, bytes, _) in self.vocab.iter() {
            out.extend(self.vocab.score(id).unwrap_or_default().to_le_bytes());
            put_u32(&mut out, bytes.len());
            out.extend(bytes);
        }
        let body_bytes = out.len();
        self.put_trailer(&mut out);
        let trailer_bytes = out.len() - body_bytes;
        let crc = crc32fast::hash(&out);
        put_u32(&mut out, trailer_bytes);
        out.extend(crc.to_le_bytes());
        out.extend(FOOTER_MAGIC.to_le_bytes());
        out
    }

    fn put_trailer(&self, out: &mut Vec<u8>) {
        let is_extended = self.splitter != Splitter::default()
            || self.flags.nfc
            || self.flags.chat_without_bos
            || !self.strips_right.is_empty()
            || self.chat_texts != ChatTexts::default();
        let has_sides = !self.strips_left.is_empty() || !self.whole_words.is_empty();
        let own = self.chat_texts.own.as_ref();
        let tool_text = own.and_then(|own| own.tool_text.as_deref());
        let version = match (own, has_sides, is_extended) {
            _ if tool_text.is_some() => TOOLS_VERSION,
            (Some(_), ..) => OWN_VERSION,
            (_, true, _) => SIDES_VERSION,
            (.., true) => EXTENDED_VERSION,
            _ => TRAILER_VERSION,
        };
        out.extend(version.to_le_bytes());
        put_u32(out, self.vocab.len());
        out.extend([self.kind as u8, self.chat as u8, self.merges.rule(), 0]);
        out.extend(self.flags.to_bits().to_le_bytes());
        out.extend(self.bos.unwrap_or(NO_ID).to_le_bytes());
        put_u32(out, self.stop_ids.len());
        out.extend(self.stop_ids.iter().flat_map(|id| id.to_le_bytes()));
        let typed = || self.vocab.iter().filter(|(.., kind)| *kind != TokenKind::Normal);
        put_u32(out, typed().count());
        for (id, _, kind) in typed() {
            out.extend(id.to_le_bytes());
            out.push(kind as u8);
        }
        let merges = if let Merges::Listed(list) = &self.merges { list.as_slice() } else { &[] };
        put_u32(out, merges.len());
        for (left, right) in merges {
            out.extend(left.to_le_bytes());
            out.extend(right.to_le_bytes());
        }
        if version >= EXTENDED_VERSION {
            self.put_extension(out);
        }
        if version >= SIDES_VERSION {
            put_ids(out, &self.strips_left);
            put_ids(out, &self.whole_words);
        }
        if let Some(own) = own {
            [&own.text, &own.bos, &own.eos].into_iter().for_each(|text| put_text(out, text));
            tool_text.into_iter().for_each(|text| put_text(out, text));
        }
    }

    fn put_extension(&self, out: &mut Vec<u8>) {
        put_text(out, self.splitter.name());
        put_ids(out, &self.strips_right);
        for texts in [&self.chat_texts.thinking, &self.chat_texts.quiet] {
            put_text(out, &texts.head);
            out.push(u8::from(texts.default.is_some()) | u8::from(texts.skips_empty) << 1);
            put_text(out, texts.default.as_deref().unwrap_or_default());
            put_text(out, &texts.tail);
            put_text(out, &texts.prompt);
        }
    }
}

/// Fingerprint of a `tokenizer.bin`: FNV-1a over 64-bit words.
///
/// The length goes in first, and the last word is padded with zeros. A model file stores the fingerprint to
/// recognise the tokenizer that it was exported with; it does not protect against forgery.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(PRIME);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let start = mix(0xcbf2_9ce4_8422_2325, bytes.len() as u64);
    let hash = words.iter().fold(start, |hash, &word| mix(hash, u64::from_le_bytes(word)));
    mix(hash, u64::from_le_bytes(last))
}

/// Writes a length, which comes from a [`Vocab`] of less than 4 GiB.
fn put_u32(out: &mut Vec<u8>, value: usize) {
    out.extend(u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_ids(out: &mut Vec<u8>, ids: &[u32]) {
    put_u32(out, ids.len());
    out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_u32(out, text.len());
    out.extend(text.as_bytes());
}

/// Bytes of the entries, and bytes of the trailer.
type BodyAndTrailer<'a> = (&'a [u8], &'a [u8]);

/// Splits a file into entries and trailer; `None` if it has no footer.
fn split_footer(bytes: &[u8]) -> Result<Option<BodyAndTrailer<'_>>, FormatError> {
    let Some(footer_at) = bytes.len().checked_sub(FOOTER_BYTES) else { return Ok(None) };
    let (before, footer) = bytes.split_at(footer_at);
    let mut r = Cursor::new(footer);
    let trailer_bytes = r.u32("trailer length")?;
    let crc = r.u32("checksum")?;
    if r.u32("trailer magic")? != FOOTER_MAGIC {
        return Ok(None);
    }
    if crc32fast::hash(before) != crc {
        return Err(FormatError::Checksum { what: "tokenizer file".to_owned() });
    }
    let split = before.len().checked_sub(trailer_bytes as usize);
    split.map(|at| Some(before.split_at(at))).ok_or_else(|| FormatError::Truncated {
        what: "trailer".to_owned(),
        need: u64::from(trailer_bytes) + FOOTER_BYTES as u64,
        have: bytes.len() as u64,
    })
}

/// Reads exactly `count` entries, or all there are. Nothing may follow.
fn parse_entries(bytes: &[u8], count: Option<usize>) -> Result<Vocab, FormatError> {
    let mut r = Cursor::new(bytes);
    let longest = r.u32("max_token_bytes")?;
    // The capacity is limited by the file's length, whatever `count` is.
    let mut vocab = Vocab::with_capacity(count.unwrap_or(0).min(bytes.len() / 8), bytes.len());
    while count.map_or(r.pos() < bytes.len(), |n| vocab.len() < n) {
        let score = r.f32("token score")?;
        let len = r.u32("token length")?;
        vocab.push(r.take("token bytes", len as usize)?, score, TokenKind::Normal)?;
    }
    if r.pos() < bytes.len() {
        return Err(FormatError::TrailingBytes { end: r.pos() as u64, have: bytes.len() as u64 });
    }
    if vocab.is_empty() || (longest as usize) < vocab.longest() || longest as usize > bytes.len() {
        return Err(FormatError::Field {
            field: "max_token_bytes",
            value: i64::from(longest),
            wanted: format!("{}, the longest of {} tokens", vocab.longest(), vocab.len()),
        });
    }
    Ok(vocab)
}

fn parse_trailer(trailer: &[u8], body: &[u8]) -> Result<TokenizerFile, FormatError> {
    let mut r = Cursor::new(trailer);
    let version = r.u32("trailer version")?;
    if !(TRAILER_VERSION..=TOOLS_VERSION).contains(&version) {
        return Err(FormatError::Unsupported(format!("tokenizer trailer version {version}")));
    }
    let n_vocab = r.u32("n_vocab")?;
    let mut vocab = parse_entries(body, Some(n_vocab as usize))?;
    let unknown = |what: &str, id: u32| FormatError::Unsupported(format!("tokenizer {what} {id}"));
    let kind = r.u8("kind")?;
    let kind = TokenizerKind::from_id(kind).ok_or_else(|| unknown("kind", kind.into()))?;
    let chat = r.u8("chat template")?;
    let chat = ChatTemplate::from_id(chat).ok_or_else(|| unknown("chat template", chat.into()))?;
    let rule = r.u8("merge rule")?;
    r.u8("reserved byte")?;
    let flags = r.u32("flags")?;
    let flags = TokenizerFlags::from_bits(flags).ok_or_else(|| unknown("flags", flags))?;
    let bos = Some(r.u32("bos id")?).filter(|&id| id != NO_ID);
    let bos = bos.map(|id| check_id("bos id", id, n_vocab)).transpose()?;
    let stop_ids = parse_stop_ids(&mut r, n_vocab)?;
    parse_kinds(&mut r, &mut vocab, n_vocab)?;
    let listed = parse_merges(&mut r, n_vocab)?;
    let merges = match rule {
        0 => Merges::ByScore,
        1 => Merges::ByScoreThenLeft,
        2 => Merges::Listed(listed),
        _ => return Err(unknown("merge rule", rule.into())),
    };
    let (splitter, [strips_right, strips_left, whole_words], chat_texts) =
        parse_extension(&mut r, version, n_vocab)?;
    if r.pos() < trailer.len() {
        let (end, have) = (body.len() + r.pos(), body.len() + trailer.len());
        return Err(FormatError::TrailingBytes { end: end as u64, have: have as u64 });
    }
    Ok(TokenizerFile {
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
    })
}

/// Parses the fields after the merges, which later versions have.
fn parse_extension(
    r: &mut Cursor<'_>,
    version: u32,
    n_vocab: u32,
) -> Result<(Splitter, [Vec<u32>; 3], ChatTexts), FormatError> {
    if version < EXTENDED_VERSION {
        return Ok(Default::default());
    }
    let splitter = parse_splitter(r)?;
    let strips_right = parse_ids(r, "stripping token", n_vocab)?;
    let mut texts = ChatTexts { thinking: parse_texts(r)?, quiet: parse_texts(r)?, own: None };
    if version < SIDES_VERSION {
        return Ok((splitter, [strips_right, Vec::new(), Vec::new()], texts));
    }
    let strips_left = parse_ids(r, "left-stripping token", n_vocab)?;
    let whole_words = parse_ids(r, "whole-word token", n_vocab)?;
    if version >= OWN_VERSION {
        let mut text = |what| parse_text(r, what).map(str::to_owned);
        let (template, bos, eos) = (text("chat template")?, text("bos name")?, text("eos name")?);
        let tool_text = match version {
            TOOLS_VERSION.. => Some(text("chat template for tools")?),
            _ => None,
        };
        texts.own = Some(OwnText { text: template, tool_text, bos, eos });
    }
    Ok((splitter, [strips_right, strips_left, whole_words], texts))
}

fn parse_splitter(r: &mut Cursor<'_>) -> Result<Splitter, FormatError> {
    let name = parse_text(r, "splitter")?;
    Splitter::ALL.into_iter().find(|splitter| splitter.name() == name).ok_or_else(|| {
        let known = Splitter::ALL.map(Splitter::name).join(", ");
        let name = excerpt(name);
        FormatError::Unsupported(format!("the splitter {name:?} is not known, only {known} are"))
    })
}

/// Reads a list of ids in ascending order.
fn parse_ids(
    r: &mut Cursor<'_>,
    field: &'static str,
    n_vocab: u32,
) -> Result<Vec<u32>, FormatError> {
    let mut ids = Vec::new();
    for _ in 0..r.u32(field)? {
        let id = check_id(field, r.u32(field)?, n_vocab)?;
        if ids.last().is_some_and(|&last| id <= last) {
            let wanted = "ascending ids".to_owned();
            return Err(FormatError::Field { field, value: id.into(), wanted });
        }
        ids.push(id);
    }
    Ok(ids)
}

fn parse_texts(r: &mut Cursor<'_>) -> Result<SystemTexts, FormatError> {
    let text = |r: &mut Cursor<'_>, what| {
        let text = parse_text(r, what)?;
        let today = Date::new(2000, 1, 1).and_then(|today| filled(text, today, ""));
        today.is_some().then(|| text.to_owned()).ok_or_else(|| {
            FormatError::Unsupported(format!("{what} {:?} with what is filled in", excerpt(text)))
        })
    };
    let head = text(r, "chat text before the system's")?;
    let bits = r.u8("chat bits")?;
    if bits > 3 {
        return Err(FormatError::Unsupported(format!("chat bits {bits:#04x}")));
    }
    let default = Some(text(r, "chat default")?).filter(|_| bits & 1 != 0);
    let tail = text(r, "chat text after the system's")?;
    let prompt = text(r, "chat prompt")?;
    Ok(SystemTexts { head, default, skips_empty: bits & 2 != 0, tail, prompt })
}

fn parse_text<'a>(r: &mut Cursor<'a>, what: &'static str) -> Result<&'a str, FormatError> {
    let len = r.u32(what)?;
    let text = std::str::from_utf8(r.take(what, len as usize)?);
    text.map_err(|_| FormatError::Unsupported(format!("{what} that is not UTF-8")))
}

fn check_id(field: &'static str, id: u32, n_vocab: u32) -> Result<u32, FormatError> {
    if id < n_vocab {
        return Ok(id);
    }
    Err(FormatError::Field { field, value: i64::from(id), wanted: format!("less than {n_vocab}") })
}

fn parse_stop_ids(r: &mut Cursor<'_>, n_vocab: u32) -> Result<Vec<u32>, FormatError> {
    let count = r.u32("stop id count")?;
    if count as usize > STOP_IDS_MAX {
        let wanted = format!("at most {STOP_IDS_MAX}");
        return Err(FormatError::Field { field: "stop id count", value: count.into(), wanted });
    }
    (0..count).map(|_| check_id("stop id", r.u32("stop id")?, n_vocab)).collect()
}

fn parse_kinds(r: &mut Cursor<'_>, vocab: &mut Vocab, n_vocab: u32) -> Result<(), FormatError> {
    let mut next = 0;
    for _ in 0..r.u32("typed token count")? {
        let id = check_id("typed token id", r.u32("typed token id")?, n_vocab)?;
        let kind = r.u8("token kind")?;
        let kind = TokenKind::from_id(kind)
            .ok_or_else(|| FormatError::Unsupported(format!("kind {kind} of token {id}")))?;
        if id < next {
            let wanted = format!("at least {next}, in ascending order");
            return Err(FormatError::Field { field: "typed token id", value: id.into(), wanted });
        }
        vocab.set_kind(id, kind);
        next = id + 1;
    }
    Ok(())
}

fn parse_merges(r: &mut Cursor<'_>, n_vocab: u32) -> Result<Vec<(u32, u32)>, FormatError> {
    let mut merges = Vec::new();
    for _ in 0..r.u32("merge count")? {
        let left = check_id("merge left id", r.u32("merge left id")?, n_vocab)?;
        let right = check_id("merge right id", r.u32("merge right id")?, n_vocab)?;
        merges.push((left, right));
    }
    Ok(merges)
}
