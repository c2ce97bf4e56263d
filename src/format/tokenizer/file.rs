//! The contents of `tokenizer.bin`.

use super::vocab::Vocab;
use crate::format::{ChatTemplate, ChatTexts};

/// Most stop ids a model or tokenizer file holds.
pub const STOP_IDS_MAX: usize = 8;

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenizerKind {
    /// Bytes, merged inside the pieces that a [`Splitter`] cuts.
    ByteLevel = 0,
    /// Characters of the whole text, merged as SentencePiece BPE models are.
    SentencePiece = 1,
}

impl TokenizerKind {
    pub(super) fn from_id(id: u8) -> Option<TokenizerKind> {
        [TokenizerKind::ByteLevel, TokenizerKind::SentencePiece]
            .into_iter()
            .find(|&k| k as u8 == id)
    }
}

/// How byte-level tokenizers cut text into the pieces that merging stays inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Splitter {
    /// Numbers by threes: Llama 3 and SmolLM3.
    #[default]
    Llama3,
    /// The pattern of Llama 3 with numbers digit by digit: Qwen 2 to 3.
    Qwen2,
    /// Digits one by one, then GPT-2's pieces of what is between: SmolLM2, StarCoder, Granite 3.
    Gpt2Digits,
    /// Words end where small letters are followed by capitals: GPT-4o, gpt-oss, Phi-4-mini.
    O200k,
    /// Runs of punctuation, then GPT-2's pieces, then digits by threes: llama.cpp's for files that name none.
    GgufDefault,
}

impl Splitter {
    /// Every splitter.
    pub const ALL: [Splitter; 5] = [
        Splitter::Llama3,
        Splitter::Qwen2,
        Splitter::Gpt2Digits,
        Splitter::O200k,
        Splitter::GgufDefault,
    ];

    /// The name that tokenizer files hold.
    pub fn name(self) -> &'static str {
        match self {
            Splitter::Llama3 => "llama3",
            Splitter::Qwen2 => "qwen2",
            Splitter::Gpt2Digits => "gpt2-digits",
            Splitter::O200k => "o200k",
            Splitter::GgufDefault => "gguf-default",
        }
    }
}

/// Which neighbours merge, and in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merges {
    /// Two neighbours merge if together they are a token; highest score first, then leftmost.
    ByScore,
    /// Neighbours merge by score; equal scores go by the left neighbour's id, then by its place.
    ByScoreThenLeft,
    /// Only these pairs of ids merge, earlier ones first, then leftmost.
    Listed(Vec<(u32, u32)>),
}

impl Merges {
    pub(super) fn rule(&self) -> u8 {
        match self {
            Merges::ByScore => 0,
            Merges::ByScoreThenLeft => 1,
            Merges::Listed(_) => 2,
        }
    }
}

/// Details in which tokenizers of one kind differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenizerFlags {
    /// A piece of text that is a token is taken whole, however merging would split it.
    pub whole_pieces: bool,
    /// SentencePiece: a space is put before the text.
    pub dummy_prefix: bool,
    /// SentencePiece: characters not in the vocabulary become byte tokens.
    pub byte_fallback: bool,
    /// SentencePiece: runs of spaces count as one, and none stand at the ends.
    pub remove_extra_spaces: bool,
    /// Text after a special token gets the dummy prefix too.
    pub prefix_every_segment: bool,
    /// Text that starts with a space gets no dummy prefix.
    pub prefix_unless_space: bool,
    /// User-defined tokens split the text as special tokens do, instead of standing in it.
    pub split_at_user_defined: bool,
    /// Text is brought to Unicode's form NFC first.
    pub nfc: bool,
    /// Conversations start without the BOS that other texts start with.
    pub chat_without_bos: bool,
    /// Byte-level: a byte without a token parts its neighbours, as in llama.cpp; otherwise it is
    /// left out before they merge, as in Hugging Face's tokenizers.
    pub missing_bytes_part: bool,
    /// SentencePiece: each unknown character is an unknown token of its own, instead of one for a run.
    pub separate_unknowns: bool,
    /// SentencePiece: no merge crosses the left side of a space.
    pub cuts_at_spaces: bool,
    /// The last user turn of a conversation carries the system's text, where others' first one does.
    pub system_in_last_turn: bool,
}

impl TokenizerFlags {
    const COUNT: usize = 13;

    fn to_bools(self) -> [bool; Self::COUNT] {
        [
            self.whole_pieces,
            self.dummy_prefix,
            self.byte_fallback,
            self.remove_extra_spaces,
            self.prefix_every_segment,
            self.prefix_unless_space,
            self.split_at_user_defined,
            self.nfc,
            self.chat_without_bos,
            self.missing_bytes_part,
            self.separate_unknowns,
            self.cuts_at_spaces,
            self.system_in_last_turn,
        ]
    }

    pub(super) fn to_bits(self) -> u32 {
        self.to_bools().iter().rev().fold(0, |bits, &flag| bits << 1 | u32::from(flag))
    }

    pub(super) fn from_bits(bits: u32) -> Option<TokenizerFlags> {
        let flag = |n: usize| bits >> n & 1 == 1;
        (bits >> Self::COUNT == 0).then(|| TokenizerFlags {
            whole_pieces: flag(0),
            dummy_prefix: flag(1),
            byte_fallback: flag(2),
            remove_extra_spaces: flag(3),
            prefix_every_segment: flag(4),
            prefix_unless_space: flag(5),
            split_at_user_defined: flag(6),
            nfc: flag(7),
            chat_without_bos: flag(8),
            missing_bytes_part: flag(9),
            separate_unknowns: flag(10),
            cuts_at_spaces: flag(11),
            system_in_last_turn: flag(12),
        })
    }
}

/// Everything `tokenizer.bin` says.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizerFile {
    /// How text becomes tokens.
    pub kind: TokenizerKind,
    /// How text is cut before it merges, in byte-level tokenizers.
    pub splitter: Splitter,
    /// Details of that.
    pub flags: TokenizerFlags,
    /// The tokens.
    pub vocab: Vocab,
    /// Which neighbours merge.
    pub merges: Merges,
    /// The token every text starts with, if there is one.
    pub bos: Option<u32>,
    /// Tokens that end the text, at most [`STOP_IDS_MAX`]; the first is the end of sequence.
    pub stop_ids: Vec<u32>,
    /// Control and user-defined tokens, in ascending order, that take in the white space to their
    /// right wherever a text names them.
    pub strips_right: Vec<u32>,
    /// Tokens that take in the white space to their left, in ascending order.
    pub strips_left: Vec<u32>,
    /// Tokens that are found only where no word goes on at either side, in ascending order.
    pub whole_words: Vec<u32>,
    /// How conversations are written.
    pub chat: ChatTemplate,
    /// Texts that the template of the checkpoint adds.
    pub chat_texts: ChatTexts,
}
