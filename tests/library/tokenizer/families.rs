//! The tokenizers of the families after Llama, against `tokenizers` and `sentencepiece`.

use leap::export::tokenizer::import;
use leap::format::tokenizer::TokenKind;
use leap::format::{ChatTemplate, Date};
use leap::tokenizer::Tokenizer;
use leap::tokenizer::{ChatFormat, ChatOptions, ChatRole};

use serde_json::{Value, json};

use crate::common::folder::Folder;
use crate::tokenizer::{
    cases, chat_cases, encode, encode_with_special, golden, ids_of, reread, text_of,
};

/// The tokenizer in one of the golden folders, or in one of their files.
pub(crate) fn tokenizer(folder: &str) -> Tokenizer {
    reread(&import(&golden(folder), None).unwrap().file)
}

/// Checks that the tokenizer has the reference's ids for all texts of `folder`, plain and with special tokens, and the
/// texts of these ids.
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
fn folders_with_a_gguf_file_have_the_reference_ids_in_both() {
    for folder in [
        "qwen35-tiny",
        "lfm2-tiny",
        "granite4-tiny",
        "ministral3-tiny",
        "gemma4-tiny",
        "gemma4moe-tiny",
    ] {
        check(folder, &tokenizer(folder));
        check_gguf(folder);
    }
}

/// Checks the GGUF file in `folder` but for texts with tokens that the file calls control tokens and the folder does
/// not: text never becomes them.
fn check_gguf(folder: &str) {
    let [own, gguf] =
        [folder.to_owned(), format!("{folder}/{folder}-bf16.gguf")].map(|path| tokenizer(&path));
    let is_control =
        |tokenizer: &Tokenizer, id: &u32| tokenizer.token_kind(*id) == Some(TokenKind::Control);
    let hidden = |id: &u32| is_control(&gguf, id) && !is_control(&own, id);
    let mut n_checked = 0;
    for case in cases(folder) {
        let (text, plain) = (text_of(&case, "text"), ids_of(&case, "plain"));
        if !plain.iter().any(hidden) {
            assert_eq!(encode(&gguf, text), plain, "{folder}: {text:?}");
            n_checked += 1;
        }
        let special = if case["special"].is_null() { &plain } else { &ids_of(&case, "special") };
        assert_eq!(&encode_with_special(&gguf, text), special, "{folder}: {text:?}");
    }
    assert!(n_checked > 90, "{folder}: {n_checked}");
}

#[test]
fn gemma_4s_gguf_file_has_the_ends_and_markers_of_the_folder() {
    let [folder, gguf] = ["gemma4-tiny", "gemma4-tiny/gemma4-tiny-bf16.gguf"].map(tokenizer);
    assert_eq!((gguf.bos(), gguf.stop_ids()), (Some(2), [1, 6, 14].as_slice()));
    for id in 0..gguf.vocab_len() as u32 {
        assert_eq!(gguf.token_kind(id), folder.token_kind(id), "{id}");
        assert_eq!(gguf.token_bytes(id), folder.token_bytes(id), "{id}");
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

pub(crate) const TEMPLATES: [(&str, ChatTemplate); 8] = [
    ("qwen2-tiny", ChatTemplate::ChatMl),
    ("qwen3-tiny", ChatTemplate::Qwen3),
    ("smollm2-tokenizer", ChatTemplate::ChatMl),
    ("smollm3-tiny", ChatTemplate::SmolLm3),
    ("granite-tiny", ChatTemplate::Granite),
    ("gemma3-tiny", ChatTemplate::Gemma),
    ("phi3-tiny", ChatTemplate::Phi3),
    ("gptoss-tiny", ChatTemplate::Harmony),
];

/// Options for the template of a golden conversation.
fn options(case: &Value) -> ChatOptions {
    let mut options = ChatOptions::new(Date::new(2026, 3, 9).unwrap());
    options.thinks = case["options"]["enable_thinking"].as_bool();
    let effort = case["options"]["reasoning_effort"].as_str().unwrap_or("medium");
    options.effort = ChatOptions::EFFORTS.into_iter().find(|known| *known == effort);
    options
}

fn messages(case: &Value) -> Vec<(ChatRole, &str)> {
    let role = |message: &Value| match text_of(message, "role") {
        "system" => ChatRole::System,
        "user" => ChatRole::User,
        _ => ChatRole::Assistant,
    };
    let list = case["messages"].as_array().unwrap();
    list.iter().map(|message| (role(message), text_of(message, "content"))).collect()
}

/// Checks that `tokenizer` has this template, and writes the conversations of `folder` like the reference.
pub(crate) fn check_chat(folder: &str, template: ChatTemplate, tokenizer: &Tokenizer) {
    assert_eq!(tokenizer.chat_template(), template, "{folder}");
    for case in chat_cases(folder) {
        let format = ChatFormat::new(template, tokenizer, options(&case)).unwrap();
        let mut ids = Vec::new();
        format.render(tokenizer, &messages(&case), &mut ids).unwrap();
        if case["lookalike"] == true {
            // Text that spells a special token is text. Phi-3's tokens absorb line breaks, and the dummy prefix after
            // the first token is a space if special tokens are shown.
            let bare = |text: &str| text.replace('\n', "").replace("<|user|> ", "<|user|>");
            assert_eq!(bare(&tokenizer.decode(&ids, true)), bare(text_of(&case, "text")));
            assert!(ids.len() > ids_of(&case, "ids").len());
            // This is the only difference from transformers.
            let special = encode_with_special(tokenizer, text_of(&case, "text"));
            assert_eq!(special, ids_of(&case, "ids"), "{folder}");
        } else {
            assert_eq!(ids, ids_of(&case, "ids"), "{folder}: {}", case["messages"]);
        }
    }
}

#[test]
fn conversations_have_the_ids_of_the_published_templates() {
    for (folder, template) in TEMPLATES {
        check_chat(folder, template, &tokenizer(folder));
    }
}

/// The published files of SmolLM2 and gpt-oss name a BOS, and do not say that texts do not start with it.
#[test]
fn byte_level_texts_start_with_bos_only_if_that_is_said() {
    for (model, template) in TEMPLATES {
        let [config, mut file] = ["tokenizer_config.json", "tokenizer.json"].map(|name| -> Value {
            let text = std::fs::read_to_string(golden(model).join(name)).unwrap();
            serde_json::from_str(&text).unwrap()
        });
        let Some(name) =
            config["bos_token"].as_str().filter(|name| !["<s>", "<bos>"].contains(name))
        else {
            continue;
        };
        let mut config = config.clone();
        config.as_object_mut().unwrap().remove("add_bos_token");
        let folder = Folder::new();
        folder.write("tokenizer_config.json", config.to_string());
        folder.write("tokenizer.json", file.to_string());
        let tokenizer = reread(&import(folder.path(), None).unwrap().file);
        assert_eq!(tokenizer.bos(), None, "{model}");
        check_chat(model, template, &tokenizer);

        let first = json!({"SpecialToken": {"id": name, "type_id": 0}});
        let rule =
            json!({"type": "TemplateProcessing", "single": [first, {"Sequence": {"id": "A"}}]});
        file["post_processor"] = json!({"type": "Sequence", "processors": [rule]});
        folder.write("tokenizer.json", file.to_string());
        let bos = import(folder.path(), None).unwrap().file.bos;
        assert_eq!(bos, tokenizer.special(name), "{model}");
        assert!(bos.is_some());
    }
}
