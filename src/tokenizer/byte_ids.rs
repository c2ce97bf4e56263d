//! The tokens of single bytes. Vocabularies lack bytes that their training text lacked.

use super::error::TokenizerError;
use super::merge::Rules;
use crate::format::tokenizer::{TokenKind, Vocab, byte_piece, is_capital_piece};

/// The id that stands for no token.
pub(super) const NO_ID: u32 = u32::MAX;

/// The token of each byte in a byte-level vocabulary, or [`NO_ID`].
///
/// # Errors
///
/// If no byte has a token: no text could be encoded.
pub(super) fn of_tokens(rules: &Rules) -> Result<[u32; 256], TokenizerError> {
    let mut ids = [NO_ID; 256];
    for (byte, id) in (0u8..=255).zip(&mut ids) {
        *id = rules.token(&[byte]).unwrap_or(NO_ID);
    }
    match ids.iter().all(|&id| id == NO_ID) {
        true => Err(TokenizerError::NoBytes),
        false => Ok(ids),
    }
}

/// The byte piece of each byte in a SentencePiece vocabulary, or [`NO_ID`].
///
/// Pieces in capitals win over pieces in small letters. With `capitals` only the former count, as in Hugging Face's
/// tokenizers.
pub(super) fn of_pieces(vocab: &Vocab, capitals: bool) -> [u32; 256] {
    let mut ids = [NO_ID; 256];
    for (id, piece, _) in vocab.iter().filter(|(.., kind)| *kind == TokenKind::Byte) {
        let Some(byte) = byte_piece(piece) else { continue };
        let slot = &mut ids[usize::from(byte)];
        if is_capital_piece(piece) || (*slot == NO_ID && !capitals) {
            *slot = id;
        }
    }
    ids
}
