//! `tokenizer.bin`: a vocabulary, and a trailer that says how to use it.
//!
//! ```text
//! u32 longest token in bytes
//! per id: f32 score, u32 length, bytes            (the published format ends here)
//! trailer:
//!   u32 version (1 to 5)  u32 n_vocab
//!   u8  kind             u8  chat template        u8 merge rule      u8 zero
//!   u32 flags            u32 bos id, or all ones
//!   u32 count (≤ 8), u32 stop ids
//!   u32 count, per token that is not a normal one: u32 id (ascending), u8 token kind
//!   u32 count, per listed merge, in the order of priority: u32 left id, u32 right id
//!   from version 2 on, which is written if one of these fields is needed:
//!   u32 length, name of the splitter
//!   u32 count, ids (ascending) of tokens that absorb the white space after them
//!   twice, first for a model that may think, then for one that must not: u32 length, text before the
//!     system's; u8 bits (1: there is a default, 2: an empty system text counts as missing), u32 length,
//!     default; u32 length, text after the system's; u32 length, start of an answer
//!   from version 3 on: two lists of u32 count, ids (ascending): tokens that absorb the white space before
//!     them, and tokens that match only as whole words
//!   from version 4 on: three times u32 length, text: the checkpoint's own chat template, and the tokens that
//!     it calls bos_token and eos_token
//!   only in version 5: u32 length, text: its chat template for conversations with tools
//! footer, the last 12 bytes of the file:
//!   u32 bytes of the trailer   u32 CRC32 of everything before the footer   u32 magic "LEAT"
//! ```
//!
//! A higher score merges first; byte-level vocabularies store the negated rank. Byte-level tokens are raw
//! bytes. SentencePiece tokens are text with spaces in place of the model's `▁`, and byte pieces are the text
//! `<0x0A>`.
//!
//! A file without the trailer has the published format. Its kind is inferred: if it begins with `<unk>`,
//! `<s>` and `</s>`, it is SentencePiece as in Llama 2, otherwise Llama 3.

mod bytes;
mod file;
mod infer;
mod vocab;

pub use bytes::fingerprint;
pub use file::{Merges, STOP_IDS_MAX, Splitter, TokenizerFile, TokenizerFlags, TokenizerKind};
pub use vocab::{SPACE_MARK, TokenKind, Vocab, byte_piece, is_capital_piece};

#[cfg(test)]
mod tests;
