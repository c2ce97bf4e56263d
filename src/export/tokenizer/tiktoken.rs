//! tiktoken vocabularies, as Llama 3 ships them: lines of base64 bytes and a rank.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::draft::Draft;
use super::token::{Token, VOCAB_MAX};
use crate::format::tokenizer::{TokenKind, TokenizerFlags, TokenizerKind};

/// Number of ranks of Llama 3. The file says neither how text is cut nor which special tokens there are.
const RANKS_MAX: usize = 128_000;
/// Special tokens that follow the ranks.
const N_SPECIAL: usize = 256;
/// The first special tokens; reserved ones fill the rest.
const SPECIAL: [&str; 12] = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
];

/// Reads the ranks, and puts Llama 3's special tokens after them if `adds_special`: all 256,
/// or as many as the model has room for.
pub(super) fn parse(
    bytes: &[u8],
    vocab_size: Option<usize>,
    adds_special: bool,
) -> Result<Draft, String> {
    let mut tokens = parse_ranks(bytes)?;
    if tokens.len() > RANKS_MAX {
        return Err(format!(
            "{} ranks are not Llama 3's, which has {RANKS_MAX}: Llama 4's tokenizer and others cut text \
             otherwise and have other special tokens; use a folder with its tokenizer.json",
            tokens.len()
        ));
    }
    let room = match vocab_size {
        None => N_SPECIAL,
        Some(size) => size.saturating_sub(tokens.len()).min(N_SPECIAL),
    };
    if adds_special {
        tokens.extend((0..room).map(|index| Token {
            bytes: special_name(index).into_bytes(),
            score: 0.0,
            kind: TokenKind::Control,
        }));
    }
    let flags = TokenizerFlags { whole_pieces: true, ..TokenizerFlags::default() };
    let mut draft = Draft::new(TokenizerKind::ByteLevel, flags, tokens);
    draft.bos = draft.find("<|begin_of_text|>");
    draft.stop_ids.extend(draft.find("<|end_of_text|>"));
    Ok(draft)
}

fn special_name(index: usize) -> String {
    // Two of the reserved tokens are among the named ones.
    let reserved = || format!("<|reserved_special_token_{}|>", index + 2 - SPECIAL.len());
    SPECIAL.get(index).map_or_else(reserved, |&name| name.to_owned())
}

fn parse_ranks(bytes: &[u8]) -> Result<Vec<Token>, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| "neither a SentencePiece model nor a tiktoken vocabulary".to_owned())?;
    let mut ranked = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let entry = parse_line(line);
        ranked.push(entry.ok_or_else(|| format!("line {number} is not base64 and a rank"))?);
    }
    ranked.sort_unstable_by_key(|(rank, _)| *rank);
    if ranked.len() > VOCAB_MAX {
        return Err(format!("{} tokens are more than {VOCAB_MAX}", ranked.len()));
    }
    if let Some(missing) = (0..).zip(&ranked).find(|(want, (rank, _))| want != rank) {
        return Err(format!("rank {} is missing or there twice", missing.0));
    }
    let mut seen = HashSet::new();
    if let Some((rank, _)) = ranked.iter().find(|(_, bytes)| !seen.insert(bytes)) {
        return Err(format!("the bytes of rank {rank} have another rank too"));
    }
    let token = |(rank, bytes): (u32, Vec<u8>)| Token {
        bytes,
        score: -(rank as f32),
        kind: TokenKind::Normal,
    };
    Ok(ranked.into_iter().map(token).collect())
}

fn parse_line(line: &str) -> Option<(u32, Vec<u8>)> {
    let (base64, rank) = line.split_once(' ')?;
    let bytes = STANDARD.decode(base64).ok().filter(|bytes| !bytes.is_empty())?;
    Some((rank.trim().parse().ok()?, bytes))
}
