//! The tokenizer against reference outputs, hostile files, and the `leap tokenizer` command.

mod chat;
mod command;
mod decode;
mod families;
mod gguf;
mod hostile;
mod missing_bytes;
mod published;

use std::path::{Path, PathBuf};

use crate::common::folder::Folder;
use leap::export::tokenizer::import;
use leap::format::ChatTemplate;
use leap::format::tokenizer::{TokenKind, TokenizerFile};
use leap::tokenizer::Tokenizer;
use serde_json::Value;

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

pub(crate) fn cases(model: &str) -> Vec<Value> {
    cases_in(&golden(model).join("tokenizer_golden.json"))
}

pub(crate) fn chat_cases(model: &str) -> Vec<Value> {
    cases_in(&golden(model).join("chat_golden.json"))
}

fn cases_in(path: &Path) -> Vec<Value> {
    let json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    json["cases"].as_array().unwrap().clone()
}

pub(crate) fn ids_of(case: &Value, key: &str) -> Vec<u32> {
    case[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

pub(crate) fn text_of<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().unwrap()
}

/// The file that `leap tokenizer` would write for a golden input.
pub(crate) fn file(name: &str, vocab_size: Option<usize>) -> TokenizerFile {
    import(&golden(name), vocab_size).unwrap().file
}

/// A tokenizer parsed from the written bytes, like that of `leap run`.
pub(crate) fn reread(file: &TokenizerFile) -> Tokenizer {
    let bytes = file.to_bytes();
    Tokenizer::new(TokenizerFile::parse(&bytes, Some(file.vocab.len())).unwrap()).unwrap()
}

pub(crate) fn llama3() -> Tokenizer {
    reread(&file("llama3-tiny/tokenizer.model", Some(4096)))
}

pub(crate) fn llama2() -> Tokenizer {
    reread(&file("llama2-meta-tiny/tokenizer.model", None))
}

pub(crate) fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, &mut ids);
    ids
}

pub(crate) fn encode_with_special(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode_with_special(text, &mut ids);
    ids
}

#[test]
fn llama3_cases_are_those_of_tiktoken_and_hugging_face() {
    let model = file("llama3-tiny/tokenizer.model", Some(4096));
    let json = file("llama3-tiny/tokenizer.json", Some(4096));
    let tokenizers = [
        reread(&model),
        reread(&json),
        Tokenizer::new(model).unwrap(),
        Tokenizer::new(json).unwrap(),
    ];
    for tokenizer in &tokenizers {
        for case in cases("llama3-tiny") {
            let text = text_of(&case, "text");
            assert_eq!(encode(tokenizer, text), ids_of(&case, "tiktoken"), "{text:?}");
            let special = encode_with_special(tokenizer, text);
            assert_eq!(special, ids_of(&case, "tiktoken_special"), "{text:?}");
            assert_eq!(special, ids_of(&case, "hf"), "{text:?}");
            assert_eq!(tokenizer.decode(&ids_of(&case, "tiktoken"), false), text);
            assert_eq!(tokenizer.decode(&special, true), text);
        }
    }
}

#[test]
fn llama2_cases_are_those_of_sentencepiece() {
    let file = file("llama2-meta-tiny/tokenizer.model", None);
    for tokenizer in [reread(&file), Tokenizer::new(file).unwrap()] {
        for case in cases("llama2-meta-tiny") {
            let text = text_of(&case, "text");
            assert_eq!(encode(&tokenizer, text), ids_of(&case, "ids"), "{text:?}");
            let decoded = tokenizer.decode(&ids_of(&case, "ids"), false);
            assert_eq!(decoded, text_of(&case, "decoded"), "{text:?}");
        }
    }
}

#[test]
fn plain_text_never_becomes_a_control_token() {
    for tokenizer in [llama3(), llama2()] {
        let names: Vec<String> = (0..tokenizer.vocab_len() as u32)
            .filter(|&id| tokenizer.token_kind(id) == Some(TokenKind::Control))
            .map(|id| String::from_utf8(tokenizer.token_bytes(id).unwrap().to_vec()).unwrap())
            .collect();
        assert!(names.len() >= 2);
        for name in &names {
            let ids = encode(&tokenizer, name);
            assert!(ids.iter().all(|&id| tokenizer.token_kind(id) != Some(TokenKind::Control)));
            let id = tokenizer.special(name);
            assert_eq!(encode_with_special(&tokenizer, name), id.into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn standard_special_tokens_follow_the_ranks() {
    let tokenizer = llama3();
    assert_eq!(tokenizer.bos(), Some(4064));
    assert_eq!(tokenizer.stop_ids(), [4065, 4072, 4073]);
    assert_eq!(tokenizer.chat_template(), ChatTemplate::Llama3);
    assert_eq!(tokenizer.special("<|reserved_special_token_21|>"), Some(4095));
    assert_eq!(tokenizer.special("<|reserved_special_token_22|>"), None);
    // If the model's size is unknown, Llama 3 has 256 of them.
    let folder = Folder::new();
    let alone = folder.join("tokenizer.model");
    std::fs::copy(golden("llama3-tiny/tokenizer.model"), &alone).unwrap();
    let all = import(&alone, None).unwrap().file;
    assert_eq!(all.vocab.len(), 4064 + 256);
    assert_eq!(all.vocab.get(4064 + 255), Some(b"<|reserved_special_token_245|>".as_slice()));
}

#[test]
fn a_megabyte_of_anything_is_encoded() {
    let families = ["qwen2-tiny", "granite-tiny", "gptoss-tiny"].map(families::tokenizer);
    let tokenizers = [llama3(), llama2()].into_iter().chain(families).collect::<Vec<_>>();
    let size = 1 << 20;
    let words = text_of(&cases("llama3-tiny")[8], "text").to_owned();
    let units = [
        "a",
        " ",
        "\n",
        " \t\n",
        "1",
        "<|",
        "é",
        "he",
        "🙂",
        "a b",
        "A",
        "日",
        "日A",
        "\u{301}",
        "ªa'",
        words.as_str(),
    ];
    for unit in units {
        let text = unit.repeat(size / unit.len());
        for tokenizer in &tokenizers {
            let ids = encode(tokenizer, &text);
            assert!(tokenizer.decode(&ids, false) == text, "{unit:?}");
        }
    }
}
