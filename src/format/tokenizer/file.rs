//! The contents of `tokenizer.bin`.

use super::vocab::Vocab;
use crate::format::{ChatTemplate, ChatTexts};

/// Maximum number of stop ids in a model or tokenizer file.
pub const STOP_IDS_MAX: usize = 8;

/// Algorithm that turns text into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenizerKind {
    /// Bytes, merged within the pieces that a [`Splitter`] cuts.
    ByteLevel = 0,
    /// Characters of the whole text, merged like in SentencePiece BPE models.
    SentencePiece = 1,
    /// Words, cut into the longest tokens that there are: BERT.
    WordPiece = 2,
}

impl TokenizerKind {
    pub(super) fn from_id(id: u8) -> Option<TokenizerKind> {
        [TokenizerKind::ByteLevel, TokenizerKind::SentencePiece, TokenizerKind::WordPiece]
            .into_iter()
            .find(|&k| k as u8 == id)
    }
}

/// Rule by which byte-level tokenizers cut text into pieces; merges do not cross pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Splitter {
    /// Numbers in groups of three digits: Llama 3 and SmolLM3.
    #[default]
    Llama3,
    /// Llama 3's pattern, but numbers digit by digit: Qwen 2 to 3.
    Qwen2,
    /// Qwen 2's pattern with marks as letters: Qwen 3.5.
    Qwen35,
    /// Digits one by one, and GPT-2's pieces for the text in between: SmolLM2, StarCoder, Granite 3.
    Gpt2Digits,
    /// Words also end between small letters and capitals: GPT-4o, gpt-oss, Phi-4-mini.
    O200k,
    /// o200k without contractions, and numbers digit by digit: Mistral's Tekken.
    Tekken,
    /// Runs of punctuation, then GPT-2's pieces, then digits in groups of three: llama.cpp's default for
    /// files that name no splitter.
    GgufDefault,
}

impl Splitter {
    /// Every splitter.
    pub const ALL: [Splitter; 7] = [
        Splitter::Llama3,
        Splitter::Qwen2,
        Splitter::Qwen35,
        Splitter::Gpt2Digits,
        Splitter::O200k,
        Splitter::Tekken,
        Splitter::GgufDefault,
    ];

    /// Name in tokenizer files.
    pub fn name(self) -> &'static str {
        match self {
            Splitter::Llama3 => "llama3",
            Splitter::Qwen2 => "qwen2",
            Splitter::Qwen35 => "qwen35",
            Splitter::Gpt2Digits => "gpt2-digits",
            Splitter::O200k => "o200k",
            Splitter::Tekken => "tekken",
            Splitter::GgufDefault => "gguf-default",
        }
    }
}

/// Which neighbours merge, and in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merges {
    /// Two neighbours merge if together they are a token; highest score first, then leftmost.
    ByScore,
    /// Neighbours merge by score, then by the lowest id of the left neighbour, then leftmost.
    ByScoreThenLeft,
    /// Only these pairs of ids merge; earlier pairs first, then leftmost.
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

/// Details in which tokenizers of the same kind differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenizerFlags {
    /// A piece of text that is itself a token becomes that token, however merges would split it.
    pub whole_pieces: bool,
    /// SentencePiece: a space is added before the text.
    pub dummy_prefix: bool,
    /// SentencePiece: characters not in the vocabulary become byte tokens.
    pub byte_fallback: bool,
    /// SentencePiece: a run of spaces counts as one, and spaces at both ends are removed.
    pub remove_extra_spaces: bool,
    /// Text after a special token also gets the dummy prefix.
    pub prefix_every_segment: bool,
    /// Text that starts with a space gets no dummy prefix.
    pub prefix_unless_space: bool,
    /// User-defined tokens split the text like special tokens; otherwise they are part of it.
    pub split_at_user_defined: bool,
    /// Text is normalised to Unicode's NFC first.
    pub nfc: bool,
    /// Conversations do not begin with BOS, though other texts do.
    pub chat_without_bos: bool,
    /// Byte-level: a byte without a token separates its neighbours, as in llama.cpp. Otherwise it is removed
    /// before they merge, as in Hugging Face's tokenizers.
    pub missing_bytes_part: bool,
    /// SentencePiece: each unknown character becomes an unknown token; otherwise a run of them becomes one.
    pub separate_unknowns: bool,
    /// SentencePiece: no merge crosses the boundary before a space.
    pub cuts_at_spaces: bool,
    /// The system's text is part of a conversation's last user turn; otherwise of the first.
    pub system_in_last_turn: bool,
    /// WordPiece: capitals become small letters.
    pub lowercase: bool,
    /// WordPiece: letters lose their accents.
    pub strips_accents: bool,
}

impl TokenizerFlags {
    const COUNT: usize = 15;

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
            self.lowercase,
            self.strips_accents,
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
            lowercase: flag(13),
            strips_accents: flag(14),
        })
    }
}

/// Contents of a `tokenizer.bin`.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizerFile {
    /// Algorithm that turns text into tokens.
    pub kind: TokenizerKind,
    /// Rule for cutting text before merges, in byte-level tokenizers.
    pub splitter: Splitter,
    /// Details of the algorithm.
    pub flags: TokenizerFlags,
    /// Tokens of the vocabulary.
    pub vocab: Vocab,
    /// Neighbours that merge, and their order.
    pub merges: Merges,
    /// Token that every text begins with, if there is one.
    pub bos: Option<u32>,
    /// Tokens that end a text, at most [`STOP_IDS_MAX`]; the first is the end of sequence.
    pub stop_ids: Vec<u32>,
    /// Control and user-defined tokens, in ascending order, that absorb the white space to their right when a
    /// text contains them.
    pub strips_right: Vec<u32>,
    /// Tokens, in ascending order, that absorb the white space to their left.
    pub strips_left: Vec<u32>,
    /// Tokens, in ascending order, that match only as whole words.
    pub whole_words: Vec<u32>,
    /// Form of conversations.
    pub chat: ChatTemplate,
    /// Texts that the checkpoint's own template adds.
    pub chat_texts: ChatTexts,
}
