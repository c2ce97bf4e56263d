//! The tokenizers of the families after Llama, against `tokenizers` and `sentencepiece`.

use leap::export::tokenizer::import;
use leap::tokenizer::Tokenizer;

use crate::{cases, encode, encode_with_special, golden, ids_of, reread, text_of};

/// The tokenizer in one of the golden folders, or in one of their files.
pub(crate) fn tokenizer(folder: &str) -> Tokenizer {
    reread(&import(&golden(folder), None).unwrap().file)
}

/// Whether the tokenizer has the reference's ids for all texts of `folder`, plain and with special
/// tokens, and the texts of the ids.
fn check(folder: &str, tokenizer: &Tokenizer) {
    for case in cases(folder) {
        let text = text_of(&case, "text");
        let plain = ids_of(&case, "plain");
        assert_eq!(encode(tokenizer, text), plain, "{folder}: {text:?}");
        let special = if case["special"].is_null() { &plain } else { &ids_of(&case, "special") };
        assert_eq!(&encode_with_special(tokenizer, text), special, "{folder}: {text:?}");
        let decoded = case["decoded"].as_str().unwrap_or(text);
        assert_eq!(tokenizer.decode(&plain, false), decoded, "{folder}");
    }
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
        check(folder, &tokenizer(folder));
    }
}

#[test]
fn sentencepiece_families_have_the_reference_ids() {
    for folder in ["gemma3-tiny", "phi3-tiny"] {
        check(folder, &tokenizer(folder));
        check(folder, &tokenizer(&format!("{folder}/tokenizer.json")));
    }
}

#[test]
fn gemmas_sentencepiece_model_has_the_ids_of_sentencepiece() {
    let tokenizer = tokenizer("gemma3-tiny/tokenizer.model");
    for case in cases("gemma3-tiny") {
        let key = if case["spm"].is_null() { "plain" } else { "spm" };
        let text = text_of(&case, "text");
        assert_eq!(encode(&tokenizer, text), ids_of(&case, key), "{text:?}");
    }
}
