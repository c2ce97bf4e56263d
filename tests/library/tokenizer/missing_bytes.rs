//! Vocabularies that lack bytes or byte pieces absent from their training text.

use std::path::{Path, PathBuf};

use leap::export::tokenizer::import;
use leap::format::tokenizer::{SPACE_MARK, TokenKind};
use leap::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::common::folder::Folder;
use crate::tokenizer::gguf::{gguf, list, string, text_value};
use crate::tokenizer::{encode, golden, reread};

/// A folder whose byte-level vocabulary has `!!`, and no token for the byte 4.
fn byte_level_folder(folder: &Folder) -> PathBuf {
    let path = golden("llama3-tiny").join("tokenizer.json");
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    let id = vocab.remove("\u{104}").unwrap();
    vocab.insert("!!".to_owned(), id);
    json["model"]["merges"].as_array_mut().unwrap().insert(0, json!(["!", "!"]));
    folder.write("tokenizer.json", json.to_string())
}

/// The tokenizer of [`byte_level_folder`] in a GGUF file.
fn byte_level_gguf(folder: &Folder) -> PathBuf {
    let path = byte_level_folder(folder);
    let json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut tokens = vec![String::new(); 4096];
    for (token, id) in json["model"]["vocab"].as_object().unwrap() {
        tokens[id.as_u64().unwrap() as usize] = token.clone();
    }
    let merges = json["model"]["merges"].as_array().unwrap().iter().map(|merge| match merge {
        Value::String(merge) => merge.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    });
    let strings = |strings: Vec<String>| {
        let bytes: Vec<u8> = strings.iter().flat_map(|text| string(text.as_bytes())).collect();
        list(8, strings.len(), &bytes)
    };
    let fields = vec![
        ("tokenizer.ggml.model", text_value("gpt2")),
        ("tokenizer.ggml.pre", text_value("llama-bpe")),
        ("tokenizer.ggml.tokens", strings(tokens)),
        ("tokenizer.ggml.merges", strings(merges.collect())),
    ];
    folder.write("tokenizer.gguf", gguf(fields))
}

/// A GGUF file of a SentencePiece model with these pieces, scores and types.
fn sentencepiece_gguf(folder: &Folder, pieces: &[(String, f32, u32)]) -> PathBuf {
    let texts: Vec<u8> = pieces.iter().flat_map(|piece| string(piece.0.as_bytes())).collect();
    let scores: Vec<u8> = pieces.iter().flat_map(|piece| piece.1.to_le_bytes()).collect();
    let kinds: Vec<u8> = pieces.iter().flat_map(|piece| piece.2.to_le_bytes()).collect();
    let n = pieces.len();
    let fields = vec![
        ("tokenizer.ggml.model", text_value("llama")),
        ("tokenizer.ggml.tokens", list(8, n, &texts)),
        ("tokenizer.ggml.scores", list(6, n, &scores)),
        ("tokenizer.ggml.token_type", list(5, n, &kinds)),
    ];
    folder.write("pieces.gguf", gguf(fields))
}

const NORMAL: u32 = 1;
const BYTE: u32 = 6;

/// A few pieces, and the bytes that `has` accepts as pieces of type `kind`.
fn pieces(kind: u32, has: impl Fn(u8) -> bool) -> Vec<(String, f32, u32)> {
    let markers = [("<unk>", 2), ("<s>", 3), ("</s>", 3)];
    let words = [format!("{SPACE_MARK}a"), SPACE_MARK.to_owned(), "a".to_owned(), "b".to_owned()];
    let bytes = (0..=255).filter(|&byte| has(byte)).map(|byte| format!("<0x{byte:02X}>"));
    let markers = markers.map(|(name, kind)| (name.to_owned(), 0.0, kind));
    let words = (1u8..).zip(words).map(|(rank, word)| (word, -f32::from(rank), NORMAL));
    markers.into_iter().chain(bytes.map(|name| (name, 0.0, kind))).chain(words).collect()
}

fn used(path: &Path) -> (Tokenizer, Vec<String>) {
    let imported = import(path, None).unwrap();
    (reread(&imported.file), imported.notes)
}

/// tokenizers drops a byte without a token before its neighbours merge.
#[test]
fn a_folders_text_loses_bytes_without_a_token_before_merging() {
    let folder = Folder::new();
    let (tokenizer, notes) = used(&byte_level_folder(&folder));
    assert_eq!(encode(&tokenizer, "!\u{4}!"), encode(&tokenizer, "!!"));
    assert_eq!(encode(&tokenizer, "!!").len(), 1);
    assert!(encode(&tokenizer, "\u{4}").is_empty());
    assert!(notes.iter().any(|note| note.contains("the bytes 04 are left out")), "{notes:?}");
}

/// llama.cpp drops a byte without a token after its neighbours merge.
#[test]
fn a_gguf_files_text_loses_bytes_without_a_token_after_merging() {
    let folder = Folder::new();
    let (tokenizer, notes) = used(&byte_level_gguf(&folder));
    let mark = encode(&tokenizer, "!");
    assert_eq!(encode(&tokenizer, "!\u{4}!"), [mark[0], mark[0]]);
    assert_eq!(encode(&tokenizer, "!!").len(), 1);
    assert_eq!(encode(&tokenizer, "\u{4}a\u{4}"), encode(&tokenizer, "a"));
    assert!(notes.iter().any(|note| note.contains("the bytes 04")), "{notes:?}");
}

#[test]
fn characters_whose_bytes_have_no_pieces_are_one_unknown_token() {
    let folder = Folder::new();
    let unknown = 0;
    let (all, notes) = used(&sentencepiece_gguf(&folder, &pieces(BYTE, |_| true)));
    assert!(notes.is_empty(), "{notes:?}");
    let (some, notes) = used(&sentencepiece_gguf(&folder, &pieces(BYTE, |byte| byte != 0x84)));
    assert!(notes[0].contains("the bytes 84"), "{notes:?}");
    let (none, notes) = used(&sentencepiece_gguf(&folder, &pieces(BYTE, |_| false)));
    assert!(notes[0].contains("no byte tokens"), "{notes:?}");
    // U+0104 ends with the byte 84, U+0105 does not.
    let parts = |tokenizer: &Tokenizer, text: &str| encode(tokenizer, text).split_off(1);
    assert_eq!(parts(&all, "b\u{104}").len(), 3);
    assert_eq!(parts(&some, "b\u{105}").len(), 3);
    assert_eq!(parts(&some, "b\u{104}")[1..], [unknown]);
    assert_eq!(parts(&some, "b\u{104}\u{105}\u{104}\u{104}").len(), 1 + 1 + 2 + 1);
    assert_eq!(parts(&none, "b\u{104}\u{105}a\u{104}")[1], unknown);
    assert_eq!(parts(&none, "b\u{104}\u{105}a\u{104}").len(), 4);
}

#[test]
fn byte_pieces_of_the_normal_type_are_bytes_all_the_same() {
    let folder = Folder::new();
    let [(all, _), (normal, notes)] = [BYTE, NORMAL].map(|kind| {
        let path = sentencepiece_gguf(&folder, &pieces(kind, |_| true));
        used(&path)
    });
    assert!(notes.is_empty(), "{notes:?}");
    let text = "a \u{104}b\n";
    let ids = encode(&normal, text);
    assert_eq!(ids, encode(&all, text));
    assert_eq!(normal.decode(&ids, false), text);
    assert_eq!(normal.token_kind(3), Some(TokenKind::Byte));
}

#[test]
fn a_vocabulary_that_no_text_could_be_written_with_is_refused() {
    let folder = Folder::new();
    let path = golden("llama3-tiny").join("tokenizer.json");
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    json["model"]["vocab"].as_object_mut().unwrap().retain(|token, _| token.chars().count() > 1);
    json["model"]["merges"] = json!([]);
    let path = folder.write("tokenizer.json", json.to_string());
    let error = import(&path, None).err().expect("no bytes").to_string();
    assert!(error.contains("tokenizer.json") && error.contains("any byte"), "{error}");
}
