//! The tokenizers of the families after Llama, against `tokenizers` and `sentencepiece`.

use leap::export::tokenizer::import;
use leap::tokenizer::Tokenizer;

use crate::{cases, encode, encode_with_special, golden, ids_of, reread, text_of};

/// The tokenizer in one of the golden folders.
pub(crate) fn tokenizer(folder: &str) -> Tokenizer {
    reread(&import(&golden(folder), None).unwrap().file)
}

#[test]
fn byte_level_families_have_the_reference_ids() {
    for folder in [
        "qwen2-tiny",
        "qwen3-tiny",
        "smollm2-tokenizer",
        "smollm3-tiny",
        "granite-tiny",
        "gptoss-tiny",
    ] {
        let tokenizer = tokenizer(folder);
        for case in cases(folder) {
            let text = text_of(&case, "text");
            let plain = ids_of(&case, "plain");
            assert_eq!(encode(&tokenizer, text), plain, "{folder}: {text:?}");
            let special =
                if case["special"].is_null() { &plain } else { &ids_of(&case, "special") };
            assert_eq!(&encode_with_special(&tokenizer, text), special, "{folder}: {text:?}");
            let decoded = case["decoded"].as_str().unwrap_or(text);
            assert_eq!(tokenizer.decode(&plain, false), decoded, "{folder}");
        }
    }
}
