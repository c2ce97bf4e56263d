//! Tokenizers in GGUF files.

use std::path::PathBuf;

use leap::export::tokenizer::import;
use leap::format::ChatTemplate;
use serde_json::Value;

use crate::common::folder::Folder;
use crate::{cases, encode, encode_with_special, file, golden, ids_of, reread, text_of};

/// The tokenizer of llama3-tiny as a GGUF file has it, with `changes` to its fields.
fn llama3_gguf(folder: &Folder, changes: &[(&str, &[u8])]) -> PathBuf {
    let path = golden("llama3-tiny/tokenizer.json");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut tokens = vec![String::new(); 4096];
    // Normal tokens, but for those that stand for markers.
    let mut kinds = vec![1u32; 4096];
    for (token, id) in json["model"]["vocab"].as_object().unwrap() {
        tokens[id.as_u64().unwrap() as usize] = token.clone();
    }
    for token in json["added_tokens"].as_array().unwrap() {
        let id = token["id"].as_u64().unwrap() as usize;
        tokens[id] = text_of(token, "content").to_owned();
        kinds[id] = 3;
    }
    let merges = json["model"]["merges"].as_array().unwrap();
    let merges = merges.iter().map(|merge| match merge {
        Value::String(merge) => merge.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    });
    let strings = |strings: Vec<String>| {
        let bytes: Vec<u8> = strings.iter().flat_map(|text| string(text.as_bytes())).collect();
        list(8, strings.len(), &bytes)
    };
    let text = |text: &str| [&8u32.to_le_bytes(), &string(text.as_bytes())[..]].concat();
    let id = |id: u32| [4u32.to_le_bytes(), id.to_le_bytes()].concat();
    let kind_bytes: Vec<u8> = kinds.iter().flat_map(|kind| kind.to_le_bytes()).collect();
    let template = "{{ '<|start_header_id|>' + message['role'] }}";
    let mut fields = vec![
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("llama-bpe")),
        ("tokenizer.ggml.tokens", strings(tokens)),
        ("tokenizer.ggml.token_type", list(5, kinds.len(), &kind_bytes)),
        ("tokenizer.ggml.merges", strings(merges.collect())),
        ("tokenizer.ggml.bos_token_id", id(4064)),
        ("tokenizer.ggml.eos_token_id", id(4073)),
        ("tokenizer.chat_template", text(template)),
    ];
    for (key, value) in changes {
        fields.retain(|(old, _)| old != key);
        fields.push((key, value.to_vec()));
    }
    let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 8]].concat();
    file.extend((fields.len() as u64).to_le_bytes());
    for (key, value) in fields {
        file.extend(string(key.as_bytes()));
        file.extend(value);
    }
    folder.write("tokenizer.gguf", file)
}

/// A string as GGUF files have them.
fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// A list of `len` values of type `kind`.
fn list(kind: u32, len: usize, bytes: &[u8]) -> Vec<u8> {
    [&9u32.to_le_bytes(), &kind.to_le_bytes(), &(len as u64).to_le_bytes()[..], bytes].concat()
}

#[test]
fn gguf_files_hold_the_same_tokenizers() {
    let folder = Folder::new();
    let bpe = import(&llama3_gguf(&folder, &[]), Some(4096)).unwrap().file;
    assert_eq!((bpe.bos, bpe.chat), (Some(4064), ChatTemplate::Llama3));
    assert!(bpe.stop_ids.contains(&4073) && bpe.stop_ids.contains(&4072), "{:?}", bpe.stop_ids);
    let tokenizer = reread(&bpe);
    for case in cases("llama3-tiny") {
        let text = text_of(&case, "text");
        assert_eq!(encode(&tokenizer, text), ids_of(&case, "tiktoken"), "{text:?}");
        assert_eq!(encode_with_special(&tokenizer, text), ids_of(&case, "hf"), "{text:?}");
    }
    let spm = file("gguf/spm.gguf", None);
    assert_eq!((spm.bos, &spm.stop_ids[..]), (Some(1), &[2][..]));
    assert_eq!(spm.chat, ChatTemplate::Llama2);
    let tokenizer = reread(&spm);
    for case in cases("llama2-meta-tiny") {
        let text = text_of(&case, "text");
        assert_eq!(encode(&tokenizer, text), ids_of(&case, "ids"), "{text:?}");
    }
}

#[test]
fn gguf_tokenizers_of_other_kinds_are_refused_by_name() {
    let folder = Folder::new();
    let text = |text: &str| [&8u32.to_le_bytes(), &string(text.as_bytes())[..]].concat();
    for (key, value, word) in [
        ("tokenizer.ggml.model", text("bert"), "bert"),
        ("tokenizer.ggml.pre", text("qwen2"), "qwen2"),
        ("tokenizer.ggml.tokens", list(4, 4096, &[0; 4 * 4096]), "token 0"),
        ("tokenizer.ggml.tokens", list(0, (1 << 20) + 1, &vec![0; (1 << 20) + 1]), "wanted 1 to"),
        ("tokenizer.ggml.tokens", list(8, 0, &[]), "0 tokens"),
        ("tokenizer.ggml.token_type", list(4, 4096, &[9; 4 * 4096]), "token 0 is of type"),
        ("tokenizer.ggml.token_type", list(4, 1, &[1, 0, 0, 0]), "1 values for 4096"),
        ("tokenizer.ggml.merges", list(8, 1, &string(b"ab")), "no pair"),
        ("tokenizer.ggml.merges", list(8, 1, &string(b"zq qz")), "not in the vocab"),
        ("tokenizer.ggml.eos_token_id", [4u32.to_le_bytes(), [9; 4]].concat(), "end token"),
        ("tokenizer.chat_template", [4u32.to_le_bytes(), [9; 4]].concat(), "chat_template"),
    ] {
        let path = llama3_gguf(&folder, &[(key, &value)]);
        let error = import(&path, Some(4096)).err().expect(word).to_string();
        assert!(error.contains(word) && error.contains("tokenizer.gguf"), "{error}");
    }
}
