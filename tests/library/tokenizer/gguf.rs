//! Tokenizers in GGUF files.

use std::path::PathBuf;

use leap::export::tokenizer::import;
use leap::format::ChatTemplate;
use leap::format::tokenizer::{SPACE_MARK, Splitter, TokenKind, TokenizerFile};
use serde_json::Value;

use crate::common::folder::Folder;
use crate::tokenizer::families::{TEMPLATES, check_chat};
use crate::tokenizer::{cases, encode, encode_with_special, file, golden, ids_of, reread, text_of};

const LLAMA3_TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + \
    '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}\
    {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}";

/// The tokenizer of llama3-tiny in a GGUF file, with `changes` to its fields.
pub(crate) fn llama3_gguf(folder: &Folder, changes: &[(&str, &[u8])]) -> PathBuf {
    let template = text_value(LLAMA3_TEMPLATE);
    let (bos, eos) = (id_value(4064), id_value(4073));
    let own: [(&str, &[u8]); 3] = [
        ("tokenizer.ggml.bos_token_id", &bos),
        ("tokenizer.ggml.eos_token_id", &eos),
        ("tokenizer.chat_template", &template),
    ];
    byte_level_gguf(folder, "llama3-tiny", "llama-bpe", &[&own, changes].concat())
}

/// The byte-level tokenizer of the golden folder `model` in a GGUF file.
pub(crate) fn byte_level_gguf(
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
    // All tokens are normal, except those that stand for markers.
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
pub(crate) fn gguf(fields: Vec<(&str, Vec<u8>)>) -> Vec<u8> {
    let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 8]].concat();
    file.extend((fields.len() as u64).to_le_bytes());
    for (key, value) in fields {
        file.extend(string(key.as_bytes()));
        file.extend(value);
    }
    file
}

/// A string in a GGUF file.
pub(crate) fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// The value of a string field.
pub(crate) fn text_value(text: &str) -> Vec<u8> {
    [&8u32.to_le_bytes(), &string(text.as_bytes())[..]].concat()
}

/// The value of a field with a list of `len` values of type `kind`.
pub(crate) fn list(kind: u32, len: usize, bytes: &[u8]) -> Vec<u8> {
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
    assert_eq!(spm.chat, ChatTemplate::Own);
    let tokenizer = reread(&spm);
    for case in cases("llama2-meta-tiny") {
        let text = text_of(&case, "text");
        assert_eq!(encode(&tokenizer, text), ids_of(&case, "ids"), "{text:?}");
    }
}

/// Converters' names of the golden folders' splitters.
const SPLITTERS: [(&str, &str); 8] = [
    ("granite-tiny", "starcoder"),
    ("gptoss-tiny", "llama4"),
    ("qwen2-tiny", "qwen2"),
    ("qwen3-tiny", "qwen2"),
    ("smollm2-tokenizer", "smollm"),
    ("smollm3-tiny", "smaug-bpe"),
    ("granite-tiny", "refact"),
    ("gptoss-tiny", "gpt-4o"),
];

#[test]
fn gguf_names_of_splitters_lead_to_the_reference_ids() {
    for (model, splitter) in SPLITTERS {
        let folder = Folder::new();
        let file = import(&byte_level_gguf(&folder, model, splitter, &[]), None).unwrap().file;
        let tokenizer = reread(&file);
        for case in cases(model) {
            let text = text_of(&case, "text");
            assert_eq!(encode(&tokenizer, text), ids_of(&case, "plain"), "{model}: {text:?}");
        }
    }
}

/// The value of an id field.
pub(crate) fn id_value(id: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), id.to_le_bytes()].concat()
}

/// The value of a field that is false.
fn no_value() -> Vec<u8> {
    [&7u32.to_le_bytes()[..], &[0]].concat()
}

/// A byte-level tokenizer in the form of older converters: with its template, the single end token that the file has
/// room for (that of tokenizer_config.json), and a BOS without the statement whether texts start with it.
fn chat_gguf(folder: &Folder, model: &str, splitter: &str) -> PathBuf {
    let text = std::fs::read_to_string(golden(model).join("tokenizer_config.json")).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    let end = id_of(&file(model, None), text_of(&config, "eos_token")).unwrap();
    let mut fields = vec![
        ("tokenizer.ggml.eos_token_id", id_value(end)),
        ("tokenizer.chat_template", text_value(text_of(&config, "chat_template"))),
    ];
    fields.push(("tokenizer.ggml.bos_token_id", id_value(end)));
    let fields: Vec<(&str, &[u8])> = fields.iter().map(|(key, value)| (*key, &value[..])).collect();
    byte_level_gguf(folder, model, splitter, &fields)
}

/// The id of the token with this name.
fn id_of(file: &TokenizerFile, name: &str) -> Option<u32> {
    let is_it = |(_, bytes, _): &(u32, &[u8], TokenKind)| *bytes == name.as_bytes();
    file.vocab.iter().find(is_it).map(|(id, ..)| id)
}

/// The template and its texts must be those of the folder, and so must the ends of answers: a GGUF file names one end;
/// others that a checkpoint lists are in the vocabulary.
#[test]
fn gguf_files_of_families_chat_as_their_folders() {
    for (model, template) in TEMPLATES {
        let folder = Folder::new();
        let splitter = SPLITTERS.into_iter().find(|(known, _)| *known == model);
        let path = match (splitter, model) {
            (Some((_, splitter)), _) => chat_gguf(&folder, model, splitter),
            (None, "gemma3-tiny") => sentencepiece_gguf(&folder, model, &gemma_fields()),
            (None, _) => sentencepiece_gguf(&folder, model, &phi_fields()),
        };
        let [found, own] = [&path, &golden(model)].map(|path| import(path, None).unwrap().file);
        // A GGUF file gives the template all tokens that it has, a folder those that it names.
        let texts = |file: &TokenizerFile| {
            let mut texts = file.chat_texts.clone();
            let text = texts.own.take().map(|own| own.text);
            (texts, text)
        };
        assert_eq!(texts(&found), texts(&own), "{model}");
        assert_eq!((found.bos, found.stop_ids[0]), (own.bos, own.stop_ids[0]), "{model}");
        // Phi-3's generation_config.json also ends answers at the start of the next one.
        let [end, start] = ["<|endoftext|>", "<|assistant|>"].map(|name| id_of(&own, name));
        let found_ends = |id: &&u32| model != "phi3-tiny" || Some(**id) != start;
        let ends = own.stop_ids.iter().filter(found_ends).all(|id| found.stop_ids.contains(id));
        let is_listed = |id: &u32| own.stop_ids.contains(id) || Some(*id) == end;
        assert!(ends && found.stop_ids.iter().all(is_listed), "{model}: {:?}", found.stop_ids);
        check_chat(model, template, &reread(&found));
    }
}

/// The tokenizer.model of the golden folder `model` in the form of llama.cpp's converter: added tokens have the kinds
/// that tokenizer_config.json gives, a very low score, and spaces instead of marks.
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

/// Fields that converters write for Gemma 3 beside its pieces.
fn gemma_fields() -> [(&'static str, Vec<u8>); 4] {
    [
        ("general.architecture", text_value("gemma3")),
        ("tokenizer.ggml.add_space_prefix", no_value()),
        ("tokenizer.ggml.bos_token_id", id_value(2)),
        ("tokenizer.ggml.eos_token_id", id_value(1)),
    ]
}

/// Fields that converters write for Phi 3.
fn phi_fields() -> [(&'static str, Vec<u8>); 4] {
    [
        ("tokenizer.ggml.add_bos_token", no_value()),
        ("general.architecture", text_value("phi3")),
        ("tokenizer.ggml.bos_token_id", id_value(1)),
        ("tokenizer.ggml.eos_token_id", id_value(749)),
    ]
}

#[test]
fn gguf_files_of_sentencepiece_families_lead_to_the_reference_ids() {
    let folder = Folder::new();
    let imported =
        import(&sentencepiece_gguf(&folder, "gemma3-tiny", &gemma_fields()), None).unwrap().file;
    assert_eq!((imported.bos, imported.chat), (Some(2), ChatTemplate::Gemma));
    let tokenizer = reread(&imported);
    for case in cases("gemma3-tiny") {
        let text = text_of(&case, "text");
        let key = if case["spm"].is_null() { "plain" } else { "spm" };
        // Converters make control tokens of these, which text never becomes.
        if !text.contains("<unused") {
            assert_eq!(encode(&tokenizer, text), ids_of(&case, key), "{text:?}");
        }
    }
    let imported =
        import(&sentencepiece_gguf(&folder, "phi3-tiny", &phi_fields()), None).unwrap().file;
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
        ("tokenizer.ggml.model", text_value("rwkv"), "rwkv"),
        ("tokenizer.ggml.pre", text_value("viking"), "the splitter viking"),
        ("tokenizer.ggml.tokens", list(4, 4096, &[0; 4 * 4096]), "token 0"),
        ("tokenizer.ggml.tokens", list(0, (1 << 20) + 1, &vec![0; (1 << 20) + 1]), "wanted 1 to"),
        ("tokenizer.ggml.tokens", list(8, 0, &[]), "0 tokens"),
        ("tokenizer.ggml.token_type", list(4, 1, &[1, 0, 0, 0]), "1 values for 4096"),
        ("tokenizer.chat_template", [4u32.to_le_bytes(), [9; 4]].concat(), "chat_template"),
    ] {
        let path = llama3_gguf(&folder, &[(key, &value)]);
        let error = import(&path, Some(4096)).err().expect(word).to_string();
        assert!(error.contains(word) && error.contains("tokenizer.gguf"), "{error}");
    }
}

#[test]
fn gguf_names_of_llama3s_splitter_are_known() {
    let folder = Folder::new();
    for (name, whole_pieces) in [("lfm2", true), ("falcon3", true), ("dbrx", false)] {
        let path = byte_level_gguf(&folder, "llama3-tiny", name, &[]);
        let file = import(&path, Some(4096)).unwrap().file;
        assert_eq!(file.splitter, Splitter::Llama3, "{name}");
        assert_eq!(file.flags.whole_pieces, whole_pieces, "{name}");
    }
}

/// Files from before May 2024, the first ones of Llama 3 among them.
#[test]
fn a_gguf_file_that_names_no_splitter_is_cut_as_llama_cpp_does_and_says_so() {
    let folder = Folder::new();
    for name in ["", "default"] {
        let named = text_value(name);
        let path = llama3_gguf(&folder, &[("tokenizer.ggml.pre", &named)]);
        let imported = import(&path, Some(4096)).unwrap();
        assert_eq!(imported.file.splitter, Splitter::GgufDefault);
        let is_noted =
            imported.notes.iter().any(|note| note.contains("does not say how text is cut"));
        assert_eq!(is_noted, name.is_empty(), "{:?}", imported.notes);
        let tokenizer = reread(&imported.file);
        for text in ["I'm here,  12345 (x)", " \n\n a\t", "日本、é`"] {
            assert_eq!(tokenizer.decode(&encode(&tokenizer, text), false), text);
        }
        // Llama 3's own splitter separates white space and a parenthesis differently.
        let own = reread(&import(&llama3_gguf(&folder, &[]), Some(4096)).unwrap().file);
        assert_ne!(encode(&tokenizer, "I'm (a)"), encode(&own, "I'm (a)"));
    }
}

/// Harmless defects give a note: an end beyond the vocabulary, a merge that cannot happen, a type that no converter
/// writes.
#[test]
fn gguf_fields_that_do_no_harm_do_not_refuse_the_file() {
    let folder = Folder::new();
    let plain = import(&llama3_gguf(&folder, &[]), Some(4096)).unwrap();
    assert!(plain.notes.is_empty(), "{:?}", plain.notes);
    let far = [4u32.to_le_bytes(), [9; 4]].concat();
    for (key, value, word) in [
        ("tokenizer.ggml.eos_token_id", far.clone(), "end token 151587081"),
        ("tokenizer.ggml.bos_token_id", far, "first token 151587081"),
        ("tokenizer.ggml.merges", list(8, 1, &string(b"ab")), "1 merges cannot happen"),
        ("tokenizer.ggml.merges", list(8, 1, &string(b"zq qz")), "1 merges cannot happen"),
        ("tokenizer.ggml.token_type", list(4, 4096, &[9; 4 * 4096]), ""),
        ("tokenizer.ggml.token_type", list(4, 4097, &[1; 4 * 4097]), ""),
        ("tokenizer.ggml.bos_token_id", [5u32.to_le_bytes(), [255; 4]].concat(), ""),
    ] {
        let imported = import(&llama3_gguf(&folder, &[(key, &value)]), Some(4096)).unwrap();
        let is_noted = imported.notes.iter().any(|note| note.contains(word));
        assert!(word.is_empty() || is_noted, "{key}: {:?}", imported.notes);
        reread(&imported.file);
    }
}
