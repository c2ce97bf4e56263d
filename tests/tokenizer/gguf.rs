//! Tokenizers in GGUF files.

use std::path::PathBuf;

use leap::export::tokenizer::import;
use leap::format::ChatTemplate;
use leap::format::tokenizer::{SPACE_MARK, TokenKind};
use serde_json::Value;

use crate::common::folder::Folder;
use crate::{cases, encode, encode_with_special, file, golden, ids_of, reread, text_of};

/// The tokenizer of llama3-tiny as a GGUF file has it, with `changes` to its fields.
fn llama3_gguf(folder: &Folder, changes: &[(&str, &[u8])]) -> PathBuf {
    let id = |id: u32| [4u32.to_le_bytes(), id.to_le_bytes()].concat();
    let template = text_value("{{ '<|start_header_id|>' + message['role'] }}");
    let (bos, eos) = (id(4064), id(4073));
    let own: [(&str, &[u8]); 3] = [
        ("tokenizer.ggml.bos_token_id", &bos),
        ("tokenizer.ggml.eos_token_id", &eos),
        ("tokenizer.chat_template", &template),
    ];
    byte_level_gguf(folder, "llama3-tiny", "llama-bpe", &[&own, changes].concat())
}

/// The byte-level tokenizer in the golden folder `model` as a GGUF file has it.
fn byte_level_gguf(
    folder: &Folder,
    model: &str,
    splitter: &str,
    changes: &[(&str, &[u8])],
) -> PathBuf {
    let path = golden(model).join("tokenizer.json");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (vocab, added) =
        (json["model"]["vocab"].as_object().unwrap(), json["added_tokens"].as_array().unwrap());
    let ids = vocab.values().chain(added.iter().map(|token| &token["id"]));
    let n_vocab = ids.map(|id| id.as_u64().unwrap() as usize).max().unwrap() + 1;
    let mut tokens = vec![String::new(); n_vocab];
    // Normal tokens, but for those that stand for markers.
    let mut kinds = vec![1u32; n_vocab];
    for (token, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = token.clone();
    }
    for token in added {
        let id = token["id"].as_u64().unwrap() as usize;
        tokens[id] = text_of(token, "content").to_owned();
        kinds[id] = if token["special"] == true { 3 } else { 4 };
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
    let kind_bytes: Vec<u8> = kinds.iter().flat_map(|kind| kind.to_le_bytes()).collect();
    let mut fields = vec![
        ("tokenizer.ggml.model", text_value("gpt2")),
        ("tokenizer.ggml.pre", text_value(splitter)),
        ("tokenizer.ggml.tokens", strings(tokens)),
        ("tokenizer.ggml.token_type", list(5, kinds.len(), &kind_bytes)),
        ("tokenizer.ggml.merges", strings(merges.collect())),
    ];
    for (key, value) in changes {
        fields.retain(|(old, _)| old != key);
        fields.push((key, value.to_vec()));
    }
    folder.write("tokenizer.gguf", gguf(fields))
}

/// A file with these fields and no tensors.
fn gguf(fields: Vec<(&str, Vec<u8>)>) -> Vec<u8> {
    let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 8]].concat();
    file.extend((fields.len() as u64).to_le_bytes());
    for (key, value) in fields {
        file.extend(string(key.as_bytes()));
        file.extend(value);
    }
    file
}

/// A string as GGUF files have them.
fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// A field's value that is a string.
fn text_value(text: &str) -> Vec<u8> {
    [&8u32.to_le_bytes(), &string(text.as_bytes())[..]].concat()
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
fn gguf_names_of_splitters_lead_to_the_reference_ids() {
    for (model, splitter) in [
        ("qwen2-tiny", "qwen2"),
        ("qwen3-tiny", "qwen2"),
        ("smollm2-tokenizer", "smollm"),
        ("smollm3-tiny", "smaug-bpe"),
        ("granite-tiny", "refact"),
        ("gptoss-tiny", "gpt-4o"),
    ] {
        let folder = Folder::new();
        let file = import(&byte_level_gguf(&folder, model, splitter, &[]), None).unwrap().file;
        let tokenizer = reread(&file);
        for case in cases(model) {
            let text = text_of(&case, "text");
            assert_eq!(encode(&tokenizer, text), ids_of(&case, "plain"), "{model}: {text:?}");
        }
    }
}

/// GGUF files name one end of each kind; what a checkpoint lists beside it is in the vocabulary.
#[test]
fn answers_end_where_those_of_the_checkpoint_do() {
    for (model, splitter) in
        [("qwen2-tiny", "qwen2"), ("qwen3-tiny", "qwen2"), ("gptoss-tiny", "gpt-4o")]
    {
        let config = |name: &str| -> Value {
            let text = std::fs::read_to_string(golden(model).join(name)).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        let template = text_value(text_of(&config("tokenizer_config.json"), "chat_template"));
        let wanted = ids_of(&config("generation_config.json"), "eos_token_id");
        let eos = [4u32.to_le_bytes(), wanted[0].to_le_bytes()].concat();
        let changes: [(&str, &[u8]); 2] =
            [("tokenizer.ggml.eos_token_id", &eos), ("tokenizer.chat_template", &template)];
        let folder = Folder::new();
        let file = import(&byte_level_gguf(&folder, model, splitter, &changes), None).unwrap().file;
        assert_eq!(file.stop_ids, wanted, "{model}");
    }
}

/// The tokenizer.model in the golden folder `model` as llama.cpp's converter writes it: added tokens
/// have the kinds that tokenizer_config.json says, a score far below, and spaces instead of marks.
fn sentencepiece_gguf(folder: &Folder, model: &str, more: &[(&str, Vec<u8>)]) -> PathBuf {
    let file = file(&format!("{model}/tokenizer.model"), None);
    let mut pieces: Vec<(String, f32, u32)> = Vec::new();
    for (id, bytes, kind) in file.vocab.iter() {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (text, number) = match kind {
            TokenKind::Normal | TokenKind::UserDefined => (text.replace(' ', SPACE_MARK), 1),
            TokenKind::Unknown => (text, 2),
            TokenKind::Control => (text, 3),
            TokenKind::Unused => (text, 5),
            TokenKind::Byte => (text, 6),
        };
        pieces.push((text, file.vocab.score(id).unwrap(), number));
    }
    let path = golden(model).join("tokenizer_config.json");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for (id, token) in json["added_tokens_decoder"].as_object().unwrap() {
        let (id, name) = (id.parse::<usize>().unwrap(), text_of(token, "content"));
        let looks_special = name.starts_with("<|") || name.starts_with("<unused");
        let is_control = token["special"] == true || looks_special;
        pieces.resize(pieces.len().max(id + 1), (String::new(), 0.0, 5));
        pieces[id] = match is_control {
            true => (name.to_owned(), -1000.0, 3),
            false => (name.replace(SPACE_MARK, " "), -1000.0, 4),
        };
    }
    let n = pieces.len();
    let texts: Vec<u8> = pieces.iter().flat_map(|piece| string(piece.0.as_bytes())).collect();
    let scores: Vec<u8> = pieces.iter().flat_map(|piece| piece.1.to_le_bytes()).collect();
    let kinds: Vec<u8> = pieces.iter().flat_map(|piece| piece.2.to_le_bytes()).collect();
    let template = text_value(json["chat_template"].as_str().unwrap());
    let mut fields = vec![
        ("tokenizer.ggml.model", text_value("llama")),
        ("tokenizer.ggml.pre", text_value("default")),
        ("tokenizer.ggml.tokens", list(8, n, &texts)),
        ("tokenizer.ggml.scores", list(6, n, &scores)),
        ("tokenizer.ggml.token_type", list(5, n, &kinds)),
        ("tokenizer.chat_template", template),
    ];
    fields.extend(more.iter().cloned());
    folder.write("tokenizer.gguf", gguf(fields))
}

#[test]
fn gguf_files_of_sentencepiece_families_lead_to_the_reference_ids() {
    let folder = Folder::new();
    let id = |id: u32| [4u32.to_le_bytes(), id.to_le_bytes()].concat();
    let no_prefix = [&7u32.to_le_bytes()[..], &[0]].concat();
    let gemma = [
        ("general.architecture", text_value("gemma3")),
        ("tokenizer.ggml.add_space_prefix", no_prefix),
        ("tokenizer.ggml.bos_token_id", id(2)),
        ("tokenizer.ggml.eos_token_id", id(1)),
    ];
    let imported = import(&sentencepiece_gguf(&folder, "gemma3-tiny", &gemma), None).unwrap().file;
    assert_eq!((imported.bos, imported.chat), (Some(2), ChatTemplate::Gemma));
    let tokenizer = reread(&imported);
    for case in cases("gemma3-tiny") {
        let text = text_of(&case, "text");
        let key = if case["spm"].is_null() { "plain" } else { "spm" };
        // Converters make control tokens of these, which text does not become.
        if !text.contains("<unused") {
            assert_eq!(encode(&tokenizer, text), ids_of(&case, key), "{text:?}");
        }
    }
    let phi = [
        ("general.architecture", text_value("phi3")),
        ("tokenizer.ggml.bos_token_id", id(1)),
        ("tokenizer.ggml.eos_token_id", id(749)),
    ];
    let imported = import(&sentencepiece_gguf(&folder, "phi3-tiny", &phi), None).unwrap().file;
    assert_eq!(imported.chat, ChatTemplate::Phi3);
    let tokenizer = reread(&imported);
    for case in cases("phi3-tiny") {
        let text = text_of(&case, "text");
        assert_eq!(encode(&tokenizer, text), ids_of(&case, "plain"), "{text:?}");
        let special = if case["special"].is_null() { "plain" } else { "special" };
        assert_eq!(encode_with_special(&tokenizer, text), ids_of(&case, special), "{text:?}");
    }
}

#[test]
fn gguf_tokenizers_of_other_kinds_are_refused_by_name() {
    let folder = Folder::new();
    for (key, value, word) in [
        ("tokenizer.ggml.model", text_value("bert"), "bert"),
        ("tokenizer.ggml.pre", text_value("viking"), "the splitter viking"),
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
