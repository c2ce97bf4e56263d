//! Names that GGUF files have for parts of a tokenizer.

use crate::format::tokenizer::{Splitter, TokenizerFile, TokenizerFlags};

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";

/// The kind of tokenizer whose pieces merge in the order of a list, Gemma 4's.
pub(super) const LISTED_MODEL: &str = "gemma4";

/// Flags of such a tokenizer.
pub(super) fn listed_flags() -> TokenizerFlags {
    TokenizerFlags { byte_fallback: true, split_at_user_defined: true, ..TokenizerFlags::default() }
}

/// A splitter, its names in llama.cpp, and the settings that go with these names.
pub(super) struct Named {
    pub(super) names: &'static [&'static str],
    pub(super) splitter: Splitter,
    pub(super) whole_pieces: bool,
    pub(super) nfc: bool,
    /// Whether texts start with BOS if the file does not say.
    pub(super) writes_bos: bool,
}

const fn named(names: &'static [&'static str], splitter: Splitter) -> Named {
    Named { names, splitter, whole_pieces: false, nfc: false, writes_bos: false }
}

pub(super) const SPLITTERS: [Named; 10] = [
    Named {
        whole_pieces: true,
        writes_bos: true,
        ..named(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "lfm2",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "jina-v5-nano",
            ],
            Splitter::Llama3,
        )
    },
    // SmolLM3 uses the first name.
    Named { whole_pieces: true, ..named(&["smaug-bpe", "glm4", "glm5"], Splitter::Llama3) },
    // Granite 4 uses the first name.
    named(&["dbrx", "chatglm-bpe"], Splitter::Llama3),
    // The files do not say NFC; these models' own tokenizers have it.
    Named { nfc: true, ..named(&["qwen2", "deepseek-r1-qwen", "f2llmv2"], Splitter::Qwen2) },
    Named { nfc: true, ..named(&["qwen35"], Splitter::Qwen35) },
    named(&["stablelm2", "hunyuan", "solar-open", "kormo", "megrez", "grok-2"], Splitter::Qwen2),
    // Granite 3 uses the second name.
    named(
        &[
            "smollm",
            "refact",
            "starcoder",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        Splitter::Gpt2Digits,
    ),
    named(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], Splitter::O200k),
    Named { whole_pieces: true, writes_bos: true, ..named(&["tekken"], Splitter::Tekken) },
    named(&[DEFAULT], Splitter::GgufDefault),
];
/// The splitter of files that name none: Llama 3's of before May 2024.
pub(super) const DEFAULT: &str = "default";

/// The name of the splitter of a byte-level tokenizer, if llama.cpp has it with the same settings. NFC is left to the
/// models' own tokenizers where no name has it.
pub(super) fn splitter_of(file: &TokenizerFile) -> Option<&'static str> {
    let is_alike = |known: &&Named| {
        known.splitter == file.splitter && known.whole_pieces == file.flags.whole_pieces
    };
    let alike = || SPLITTERS.iter().filter(is_alike);
    let exact = alike().find(|known| known.nfc == file.flags.nfc);
    exact.or_else(|| alike().next()).and_then(|known| known.names.first().copied())
}
