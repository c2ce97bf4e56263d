//! Settings for files in the published format, which has no trailer.

use super::file::{Merges, Splitter, TokenizerFile, TokenizerFlags, TokenizerKind};
use super::vocab::{TokenKind, Vocab, byte_piece};
use crate::format::{ChatTemplate, ChatTexts, FormatError};

/// The tokenizer for a vocabulary in the published format.
pub(super) fn infer(vocab: Vocab) -> Result<TokenizerFile, FormatError> {
    let starts_with = |wanted: [&[u8]; 3]| {
        wanted.iter().zip(0u32..).all(|(&bytes, id)| vocab.get(id) == Some(bytes))
    };
    // Some exporters put line breaks around the two control tokens.
    if starts_with([b"<unk>", b"<s>", b"</s>"]) || starts_with([b"<unk>", b"\n<s>\n", b"\n</s>\n"])
    {
        infer_llama2(&vocab)
    } else {
        infer_llama3(&vocab)
    }
}

fn infer_llama2(published: &Vocab) -> Result<TokenizerFile, FormatError> {
    let mut vocab = Vocab::default();
    let mut n_bytes = 0;
    for (id, bytes, _) in published.iter() {
        let (bytes, kind) = match id {
            0 => (bytes, TokenKind::Unknown),
            1 => (b"<s>".as_slice(), TokenKind::Control),
            2 => (b"</s>".as_slice(), TokenKind::Control),
            3..259 if byte_piece(bytes) == u8::try_from(id - 3).ok() => {
                n_bytes += 1;
                (bytes, TokenKind::Byte)
            }
            _ => (bytes, TokenKind::Normal),
        };
        vocab.push(bytes, published.score(id).unwrap_or_default(), kind)?;
    }
    let flags = TokenizerFlags {
        dummy_prefix: true,
        byte_fallback: n_bytes == 256,
        prefix_every_segment: true,
        ..TokenizerFlags::default()
    };
    Ok(TokenizerFile {
        kind: TokenizerKind::SentencePiece,
        splitter: Splitter::default(),
        flags,
        vocab,
        merges: Merges::ByScore,
        bos: Some(1),
        stop_ids: vec![2],
        strips_right: Vec::new(),
        strips_left: Vec::new(),
        whole_words: Vec::new(),
        chat: ChatTemplate::None,
        chat_texts: ChatTexts::default(),
    })
}

/// Published files use the id or its negative as a token's score. In both cases the id is the rank.
fn infer_llama3(published: &Vocab) -> Result<TokenizerFile, FormatError> {
    let bos = published.find(b"<|begin_of_text|>");
    let mut vocab = Vocab::default();
    for (id, bytes, _) in published.iter() {
        let is_special = bos.is_some_and(|bos| id >= bos);
        let kind = if is_special { TokenKind::Control } else { TokenKind::Normal };
        vocab.push(bytes, -(id as f32), kind)?;
    }
    let stops: [&[u8]; 3] = [b"<|end_of_text|>", b"<|eom_id|>", b"<|eot_id|>"];
    let stop_ids: Vec<u32> = stops.iter().filter_map(|name| vocab.find(name)).collect();
    let has_headers = vocab.find(b"<|start_header_id|>").is_some();
    Ok(TokenizerFile {
        kind: TokenizerKind::ByteLevel,
        splitter: Splitter::Llama3,
        flags: TokenizerFlags { whole_pieces: true, ..TokenizerFlags::default() },
        vocab,
        merges: Merges::ByScore,
        bos,
        stop_ids,
        strips_right: Vec::new(),
        strips_left: Vec::new(),
        whole_words: Vec::new(),
        chat: if has_headers { ChatTemplate::Llama3 } else { ChatTemplate::None },
        chat_texts: ChatTexts::default(),
    })
}
