//! Vocabularies in the forms of published files; expected results come from tokenizers 0.23 and llama.cpp.

use std::path::{Path, PathBuf};

use leap::export::tokenizer::import;
use leap::format::tokenizer::{SPACE_MARK, TokenKind};
use leap::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::common::folder::Folder;
use crate::tokenizer::gguf::{gguf, list, string, text_value};
use crate::tokenizer::{encode, reread};

/// Ids of the vocabulary of [`json_of`] if all bytes have pieces.
const SPACE: u32 = 259;
const A: u32 = 260;
const B: u32 = 261;
const SPACE_A: u32 = 262;
const AB: u32 = 263;
const X: u32 = 264;
const Y: u32 = 265;
const UNKNOWN: u32 = 0;

/// The id of the piece for a byte; that of `<0x00>` is 3.
fn byte(byte: u8) -> u32 {
    3 + u32::from(byte)
}

/// A `tokenizer.json` converted from SentencePiece, with the byte pieces that `byte_name` names.
fn json_of(byte_name: impl Fn(u8) -> Option<String>) -> Value {
    let mut names = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    names.extend((0..=255).filter_map(byte_name));
    names.extend(["▁", "a", "b", "▁a", "ab"].map(str::to_owned));
    let vocab: Map<String, Value> =
        (0..).zip(names).map(|(id, name): (u32, String)| (name, id.into())).collect();
    json!({
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab, "merges": ["▁ a", "a b"],
        },
    })
}

fn whole() -> Value {
    json_of(|byte| Some(format!("<0x{byte:02X}>")))
}

fn used(folder: &Folder, json: &Value) -> (Tokenizer, Vec<String>) {
    let imported = import(&folder.write("tokenizer.json", json.to_string()), None).unwrap();
    (reread(&imported.file), imported.notes)
}

fn ids(json: &Value, text: &str) -> Vec<u32> {
    encode(&used(&Folder::new(), json).0, text)
}

fn added(json: &mut Value, id: u32, name: &str, fields: Value) {
    let mut token = json!({"id": id, "content": name, "special": false});
    token.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json["added_tokens"].as_array_mut().unwrap().push(token);
}

#[test]
fn an_unknown_token_comes_after_bytes_that_follow_its_character() {
    let fused = json_of(|byte| (byte != 0xc3).then(|| format!("<0x{byte:02X}>")));
    let mut apart = fused.clone();
    apart["model"]["fuse_unk"] = false.into();
    // The vocabulary has one piece less than `whole` before these.
    let [space, b, space_a] = [SPACE - 1, B - 1, SPACE_A - 1];
    let lambda = [byte(0xce) - 1, byte(0xbb)];
    for (text, wanted, apart_ids) in [
        ("aéb", vec![space_a, UNKNOWN, b], 1),
        ("éé", vec![space, UNKNOWN], 2),
        ("aéλb", vec![space_a, lambda[0], lambda[1], UNKNOWN, b], 1),
        ("éλé a", vec![space, lambda[0], lambda[1], UNKNOWN, space_a], 2),
    ] {
        assert_eq!(ids(&fused, text), wanted, "{text}");
        let unknown = ids(&apart, text).into_iter().filter(|&id| id == UNKNOWN).count();
        assert_eq!(unknown, apart_ids, "{text}");
    }
    let mut without = json_of(|_| None);
    assert_eq!(ids(&without, "aéb"), [6, UNKNOWN, 5]);
    without["model"]["unk_token"] = Value::Null;
    without["model"]["merges"] = json!(["a b"]);
    // The character leaves nothing, so its neighbours merge.
    assert_eq!(ids(&without, "aéb"), [3, 7]);
}

#[test]
fn an_added_token_has_the_id_that_tokenizers_gives_it() {
    let mut json = whole();
    added(&mut json, 5, "<x>", json!({}));
    let (tokenizer, notes) = used(&Folder::new(), &json);
    assert_eq!(encode(&tokenizer, "a<x>b"), [SPACE_A, X, SPACE, B]);
    assert!(notes.iter().any(|note| note.contains("\"<x>\": 264 instead of 5")), "{notes:?}");
    let mut json = whole();
    added(&mut json, 900, "ab", json!({}));
    assert_eq!(ids(&json, "a ab"), [SPACE_A, SPACE, AB]);
    let mut json = whole();
    added(&mut json, 300, "<x>", json!({"special": true}));
    added(&mut json, 290, "<y>", json!({}));
    let (tokenizer, _) = used(&Folder::new(), &json);
    assert_eq!(encode(&tokenizer, "a<y>"), [SPACE_A, Y]);
    assert_eq!(tokenizer.special("<x>"), Some(X));
}

#[test]
fn an_added_token_takes_in_white_space_on_the_side_that_it_says() {
    let mut json = whole();
    added(&mut json, X, "<x>", json!({"lstrip": true}));
    for (text, wanted) in [
        ("a  <x> b", vec![SPACE_A, X, SPACE, SPACE, B]),
        ("a <x><x>", vec![SPACE_A, X, X]),
        (" <x>", vec![X]),
        ("a\n\t<x>b", vec![SPACE_A, X, SPACE, B]),
    ] {
        assert_eq!(ids(&json, text), wanted, "{text}");
    }
    let mut json = whole();
    added(&mut json, X, "<x>", json!({"rstrip": true}));
    added(&mut json, Y, "<y>", json!({"lstrip": true}));
    let wanted = [SPACE_A, SPACE, X, Y, SPACE, SPACE, B];
    assert_eq!(ids(&json, "a <x> <y> b"), wanted);
    let mut json = whole();
    added(&mut json, X, "<x>", json!({"lstrip": true, "special": true}));
    let mut special = Vec::new();
    used(&Folder::new(), &json).0.encode_with_special("a  <x>", &mut special);
    assert_eq!(special, [SPACE_A, X]);
}

#[test]
fn an_added_token_that_is_a_whole_word_is_found_only_as_one() {
    let mut json = whole();
    added(&mut json, X, "ba", json!({"single_word": true}));
    let spelt = [B, A];
    for (text, wanted) in [
        ("a ba b", vec![SPACE_A, SPACE, X, SPACE, SPACE, B]),
        ("ba", vec![X]),
        ("ba.", vec![X, SPACE, byte(b'.')]),
        ("-ba-", vec![SPACE, byte(b'-'), X, SPACE, byte(b'-')]),
        ("baa", vec![SPACE, spelt[0], spelt[1], A]),
        ("_ba", vec![SPACE, byte(b'_'), spelt[0], spelt[1]]),
        ("éba", vec![SPACE, byte(0xc3), byte(0xa9), spelt[0], spelt[1]]),
    ] {
        assert_eq!(ids(&json, text), wanted, "{text}");
    }
}

#[test]
fn byte_pieces_in_small_letters_are_decoded_and_never_written_from_a_folder() {
    let json = json_of(|byte| Some(format!("<0x{byte:02x}>")));
    let (tokenizer, notes) = used(&Folder::new(), &json);
    assert_eq!(encode(&tokenizer, "é"), [SPACE, UNKNOWN]);
    assert_eq!(tokenizer.decode(&[byte(0xc3), byte(0xa9)], false), "é");
    assert!(notes.iter().any(|note| note.contains("the bytes 0a 0b")), "{notes:?}");
}

/// Metaspace splits at spaces unless its settings say otherwise.
#[test]
fn words_merge_apart_where_the_folder_says_so() {
    let mut json = whole();
    json["normalizer"] = json!({"type": "Sequence", "normalizers": []});
    json["model"]["merges"] = json!(["▁ a", "a b", "▁ ▁", "a ▁"]);
    for (id, name) in [(X, "▁▁"), (Y, "a▁")] {
        json["model"]["vocab"][name] = id.into();
    }
    for fields in [json!({}), json!({"split": true}), json!({"add_prefix_space": true})] {
        json["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "▁"});
        let metaspace = json["pre_tokenizer"].as_object_mut().unwrap();
        metaspace.extend(fields.as_object().unwrap().clone());
        assert_eq!(ids(&json, "a  b"), [SPACE_A, SPACE, SPACE, B], "{fields}");
        assert_eq!(ids(&json, " a"), [SPACE_A], "{fields}");
    }
    json["pre_tokenizer"]["split"] = false.into();
    assert_eq!(ids(&json, "a  b"), [SPACE_A, X, B]);
}

#[test]
fn a_folder_without_byte_fallback_writes_what_it_has_pieces_for() {
    let mut json = json_of(|_| None);
    json["model"]["byte_fallback"] = false.into();
    assert_eq!(ids(&json, " é é"), [3, 3, UNKNOWN, 3, UNKNOWN]);
    json["model"].as_object_mut().unwrap().remove("byte_fallback");
    assert_eq!(ids(&json, "ab"), [6, 5]);
}

#[test]
fn a_piece_with_a_space_is_decoded_and_never_written() {
    let mut json = whole();
    json["model"]["vocab"]["a b"] = X.into();
    let (tokenizer, _) = used(&Folder::new(), &json);
    assert_eq!(encode(&tokenizer, "a b"), [SPACE_A, SPACE, B]);
    assert_eq!(tokenizer.decode(&[X], false), "a b");
    let folder = Folder::new();
    let path = untyped(&folder, &[("a b", 0.0)], &[]);
    let tokenizer = reread(&import(&path, None).unwrap().file);
    assert_eq!(encode(&tokenizer, "a b"), [SPACE_A, SPACE, B]);
    assert_eq!(tokenizer.decode(&[X], false), "a b");
}

/// A SentencePiece vocabulary in a GGUF file without types: that of [`whole`], and `more`.
fn untyped(folder: &Folder, more: &[(&str, f32)], keys: &[(&'static str, u32)]) -> PathBuf {
    let bytes = (0..=255).map(|byte: u8| (format!("<0x{byte:02X}>"), 0.0));
    let names = ["<unk>", "<s>", "</s>"].map(|name| (name.to_owned(), 0.0));
    let words = [SPACE_MARK, "a", "b", "▁a", "ab"];
    let words = (1u8..).zip(words).map(|(rank, word)| (word.to_owned(), -f32::from(rank)));
    let pieces: Vec<(String, f32)> = names.into_iter().chain(bytes).chain(words).collect();
    let more = more.iter().map(|&(name, score)| (name.to_owned(), score));
    let pieces: Vec<(String, f32)> = pieces.into_iter().chain(more).collect();
    let texts: Vec<u8> = pieces.iter().flat_map(|piece| string(piece.0.as_bytes())).collect();
    let scores: Vec<u8> = pieces.iter().flat_map(|piece| piece.1.to_le_bytes()).collect();
    let mut fields = vec![
        ("tokenizer.ggml.model", text_value("llama")),
        ("tokenizer.ggml.tokens", list(8, pieces.len(), &texts)),
        ("tokenizer.ggml.scores", list(6, pieces.len(), &scores)),
    ];
    fields.extend(
        keys.iter().map(|&(key, id)| (key, [4u32.to_le_bytes(), id.to_le_bytes()].concat())),
    );
    folder.write("untyped.gguf", gguf(fields))
}

#[test]
fn a_gguf_file_without_types_and_ids_has_llama_cpps() {
    let folder = Folder::new();
    let read = |path: &Path| reread(&import(path, None).unwrap().file);
    let tokenizer = read(&untyped(&folder, &[], &[]));
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    let kinds = [0, 1, 2, 3, A].map(|id| tokenizer.token_kind(id));
    let wanted = [
        TokenKind::Unknown,
        TokenKind::Control,
        TokenKind::Control,
        TokenKind::Byte,
        TokenKind::Normal,
    ];
    assert_eq!(kinds, wanted.map(Some));
    assert_eq!(encode(&tokenizer, "a é"), [SPACE_A, SPACE, byte(0xc3), byte(0xa9)]);
    // A text cannot spell the tokens that begin and end it.
    assert!(!encode(&tokenizer, "<s></s>").iter().any(|id| [1, 2].contains(id)));
    let keys = [("tokenizer.ggml.bos_token_id", X), ("tokenizer.ggml.eos_token_id", Y)];
    let tokenizer = read(&untyped(&folder, &[("<b>", 0.0), ("<e>", 0.0)], &keys));
    assert_eq!((tokenizer.bos(), tokenizer.stop_ids()), (Some(X), [Y].as_slice()));
    assert_eq!(tokenizer.token_kind(X), Some(TokenKind::Control));
    // Of equal pieces, the last one counts.
    let tokenizer = read(&untyped(&folder, &[("ab", 9.0)], &[]));
    assert_eq!(encode(&tokenizer, "bab"), [SPACE, B, X]);
}

/// A GGUF file of SentencePiece's kind, with three markers and these typed pieces.
fn typed(folder: &Folder, pieces: &[(&[u8], u32)], more: Vec<(&'static str, Vec<u8>)>) -> PathBuf {
    let markers: [(&[u8], u32); 3] = [(b"<unk>", 2), (b"<s>", 3), (b"</s>", 3)];
    let pieces: Vec<(&[u8], u32)> = markers.iter().chain(pieces).copied().collect();
    let texts: Vec<u8> = pieces.iter().flat_map(|piece| string(piece.0)).collect();
    let scores: Vec<u8> = (0..pieces.len()).flat_map(|id| (-(id as f32)).to_le_bytes()).collect();
    let kinds: Vec<u8> = pieces.iter().flat_map(|piece| piece.1.to_le_bytes()).collect();
    let mut fields = vec![
        ("tokenizer.ggml.model", text_value("llama")),
        ("tokenizer.ggml.tokens", list(8, pieces.len(), &texts)),
        ("tokenizer.ggml.scores", list(6, pieces.len(), &scores)),
        ("tokenizer.ggml.token_type", list(5, pieces.len(), &kinds)),
    ];
    fields.extend(more);
    folder.write("typed.gguf", gguf(fields))
}

#[test]
fn bytes_that_stand_for_themselves_in_a_gguf_file_write_characters_without_a_piece() {
    let folder = Folder::new();
    // Text pieces and byte pieces. The second 0xc3 is a duplicate.
    let pieces: [(&[u8], u32); 6] =
        [("▁".as_bytes(), 1), (b"a", 1), (b"\xc3", 1), (b"\xa9", 6), (b"\xc3", 1), (b"<0xE2>", 6)];
    let tokenizer = reread(&import(&typed(&folder, &pieces, Vec::new()), None).unwrap().file);
    assert_eq!(encode(&tokenizer, "aé"), [3, 4, 5, 6]);
    assert_eq!(tokenizer.decode(&[4, 5, 6], false), "aé");
    let kinds = [5, 6, 8].map(|id| tokenizer.token_kind(id));
    assert_eq!(kinds, [Some(TokenKind::Byte); 3]);
}

#[test]
fn text_pieces_of_a_gguf_file_that_have_the_type_of_bytes_are_text() {
    let folder = Folder::new();
    let pieces: [(&[u8], u32); 5] =
        [("▁".as_bytes(), 6), (b"a", 6), (b"b", 1), (b"ab", 6), (b"<0x63>", 6)];
    let tokenizer = reread(&import(&typed(&folder, &pieces, Vec::new()), None).unwrap().file);
    assert_eq!(encode(&tokenizer, "abc"), [3, 6, 7]);
    assert_eq!(tokenizer.decode(&[6, 7], false), "abc");
}

#[test]
fn rules_of_normalisation_in_a_gguf_file_are_told_of_and_not_applied() {
    let folder = Folder::new();
    let pieces: [(&[u8], u32); 2] = [("▁".as_bytes(), 1), (b"a", 1)];
    let key = "tokenizer.ggml.precompiled_charsmap";
    for (rules, is_noted) in [(list(0, 4, &[1, 2, 3, 4]), true), (list(0, 0, &[]), false)] {
        let imported = import(&typed(&folder, &pieces, vec![(key, rules)]), None).unwrap();
        let found = imported.notes.iter().any(|note| note.contains(key));
        assert_eq!(found, is_noted, "{:?}", imported.notes);
        assert_eq!(encode(&reread(&imported.file), "a"), [3, 4]);
    }
}
