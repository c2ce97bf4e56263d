//! The tokenizer against reference outputs, hostile files, and the `leap tokenizer` command.

#![cfg(feature = "tools")]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::folder::Folder;
use leap::export::tokenizer::import;
use leap::format::ChatTemplate;
use leap::format::tokenizer::{TokenKind, TokenizerFile};
use leap::tokenizer::{ChatFormat, Decoder, Role, Tokenizer, Utf8Stream};
use serde_json::Value;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn cases(model: &str) -> Vec<Value> {
    let path = golden(model).join("tokenizer_golden.json");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    json["cases"].as_array().unwrap().clone()
}

fn ids_of(case: &Value, key: &str) -> Vec<u32> {
    case[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn text_of<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().unwrap()
}

/// The file that `leap tokenizer` would write for a golden input.
fn file(name: &str, vocab_size: Option<usize>) -> TokenizerFile {
    import(&golden(name), vocab_size).unwrap().file
}

/// A tokenizer as `leap run` gets it: from the written bytes.
fn reread(file: &TokenizerFile) -> Tokenizer {
    let bytes = file.to_bytes();
    Tokenizer::new(TokenizerFile::parse(&bytes, Some(file.vocab.len())).unwrap()).unwrap()
}

fn llama3() -> Tokenizer {
    reread(&file("llama3-tiny/tokenizer.model", Some(4096)))
}

fn llama2() -> Tokenizer {
    reread(&file("llama2-meta-tiny/tokenizer.model", None))
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, &mut ids);
    ids
}

#[test]
fn infill_puts_the_suffix_before_the_middle() {
    let folder = Folder::new();
    std::fs::copy(golden("llama2-meta-tiny/tokenizer.model"), folder.join("tokenizer.model"))
        .unwrap();
    let names = ["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"];
    let added: serde_json::Map<_, _> =
        (1500..1504).zip(names).map(|(id, name)| (name.to_owned(), Value::from(id))).collect();
    folder.write("added_tokens.json", Value::Object(added).to_string());
    let tokenizer = reread(&import(folder.path(), None).unwrap().file);

    let mut ids = vec![1];
    assert!(tokenizer.encode_infill("def f(", "return x", &mut ids));
    let mut wanted = vec![1, 1500];
    tokenizer.encode("def f(", &mut wanted);
    wanted.push(1501);
    tokenizer.encode_continuing("return x", &mut wanted);
    wanted.push(1502);
    assert_eq!(ids, wanted);
    assert!(tokenizer.stop_ids().contains(&1503));

    // What surrounds the gap is text, whatever it looks like.
    let mut ids = Vec::new();
    assert!(tokenizer.encode_infill("▁<MID>", " <EOT>", &mut ids));
    assert_eq!(ids.iter().filter(|&&id| id >= 1500).collect::<Vec<_>>(), [&1500, &1501, &1502]);
    let mut none = vec![7];
    assert!(!llama2().encode_infill("a", "b", &mut none));
    assert_eq!(none, [7]);
}

fn encode_with_special(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
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

/// Decodes token by token, and checks at each that no text is taken back or cut.
fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut text = String::new();
    let mut decoder = Decoder::new(tokenizer, true);
    for &id in ids {
        let mut part = String::new();
        decoder.push(id, &mut part);
        text.push_str(&part);
    }
    decoder.flush(&mut text);
    text
}

#[test]
fn streamed_text_is_the_decoded_text() {
    let (llama3, llama2) = (llama3(), llama2());
    for case in cases("llama3-tiny") {
        assert_eq!(stream(&llama3, &ids_of(&case, "hf")), text_of(&case, "text"));
    }
    for case in cases("llama2-meta-tiny") {
        assert_eq!(stream(&llama2, &ids_of(&case, "ids")), text_of(&case, "decoded"));
    }
}

#[test]
fn streamed_bytes_may_be_cut_anywhere() {
    for case in cases("llama3-tiny") {
        let text = text_of(&case, "text");
        for cut in 0..=text.len() {
            let (before, after) = text.as_bytes().split_at(cut);
            let mut stream = Utf8Stream::default();
            let mut out = String::new();
            stream.push(before, &mut out);
            // All whole characters are out, and nothing of the next one.
            assert_eq!(out, text[..text.floor_char_boundary(cut)]);
            stream.push(after, &mut out);
            stream.flush(&mut out);
            assert_eq!(out, text, "cut at {cut}");
        }
    }
}

#[test]
fn text_of_single_byte_tokens_is_the_text() {
    let (llama3, llama2) = (llama3(), llama2());
    let byte_of_llama3 = |byte: u8| {
        (0..256).find(|&id| llama3.token_bytes(id) == Some(&[byte])).expect("each byte has a token")
    };
    for case in cases("llama3-tiny") {
        let text = text_of(&case, "text");
        let ids: Vec<u32> = text.bytes().map(byte_of_llama3).collect();
        assert_eq!(stream(&llama3, &ids), text);
        let ids: Vec<u32> = text.bytes().map(|byte| u32::from(byte) + 3).collect();
        assert_eq!(stream(&llama2, &ids), text);
    }
}

#[test]
fn unfinished_and_invalid_characters_are_replaced_as_the_references_do() {
    let (llama3, llama2) = (llama3(), llama2());
    let byte = |byte: u8| (0..256).find(|&id| llama3.token_bytes(id) == Some(&[byte])).unwrap();
    for (bytes, wanted3, wanted2) in [
        (&[0xe5, 0xad][..], "\u{fffd}", "\u{fffd}\u{fffd}"),
        (&[0xe5, 0xad, b'x'], "\u{fffd}x", "\u{fffd}\u{fffd}x"),
        (&[0xff, 0xc3, 0xa9], "\u{fffd}é", "\u{fffd}é"),
        (&[0xf0, 0x9f, 0xe5, 0xad, 0x97], "\u{fffd}字", "\u{fffd}\u{fffd}字"),
        (&[0xed, 0xa0, 0x80], "\u{fffd}\u{fffd}\u{fffd}", "\u{fffd}\u{fffd}\u{fffd}"),
    ] {
        let ids: Vec<u32> = bytes.iter().map(|&b| byte(b)).collect();
        assert_eq!(stream(&llama3, &ids), wanted3, "{bytes:x?}");
        let ids: Vec<u32> = bytes.iter().map(|&b| u32::from(b) + 3).collect();
        assert_eq!(stream(&llama2, &ids), wanted2, "{bytes:x?}");
    }
    // A token that is no byte ends a character that was begun.
    let x = encode(&llama2, "x");
    assert_eq!(stream(&llama2, &[&[0xe5 + 3], x.as_slice()].concat()), "\u{fffd} x");
    assert_eq!(llama2.decode(&[0, 1, 9999], false), " \u{2047} ");
}

#[test]
fn continued_text_keeps_its_first_space() {
    let tokenizer = llama2();
    let ids = encode(&tokenizer, "fox");
    let mut out = String::new();
    let mut decoder = Decoder::continuing(&tokenizer, false);
    ids.iter().for_each(|&id| decoder.push(id, &mut out));
    assert_eq!(out, " fox");
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
    // Without a model's size, which its config would tell, Llama 3 has 256 of them.
    let folder = Folder::new();
    let alone = folder.join("tokenizer.model");
    std::fs::copy(golden("llama3-tiny/tokenizer.model"), &alone).unwrap();
    let all = import(&alone, None).unwrap().file;
    assert_eq!(all.vocab.len(), 4064 + 256);
    assert_eq!(all.vocab.get(4064 + 255), Some(b"<|reserved_special_token_245|>".as_slice()));
}

#[test]
fn a_megabyte_of_anything_is_encoded() {
    let (llama3, llama2) = (llama3(), llama2());
    let size = 1 << 20;
    let words = text_of(&cases("llama3-tiny")[8], "text").to_owned();
    let units = ["a", " ", "\n", " \t\n", "1", "<|", "é", "he", "🙂", "a b", words.as_str()];
    for unit in units {
        let text = unit.repeat(size / unit.len());
        for tokenizer in [&llama3, &llama2] {
            let ids = encode(tokenizer, &text);
            assert!(tokenizer.decode(&ids, false) == text, "{unit:?}");
        }
    }
}

/// Whatever the bytes, there is an error or a tokenizer that works.
fn survive(bytes: &[u8], vocab_size: Option<usize>) {
    let Ok(file) = TokenizerFile::parse(bytes, vocab_size) else { return };
    let Ok(tokenizer) = Tokenizer::new(file) else { return };
    let ids = encode_with_special(&tokenizer, "Hello <|eot_id|> wörld\n\n  </s> 12345");
    tokenizer.decode(&ids, true);
    for template in ChatTemplate::ALL {
        if let Ok(format) = ChatFormat::new(template, &tokenizer) {
            format.start(&tokenizer, Some("s"), "u", &mut Vec::new());
        }
    }
}

/// The written files, and the same without their trailers.
fn hostile_subjects() -> Vec<(Vec<u8>, usize)> {
    let mut subjects = Vec::new();
    for file in [
        file("llama3-tiny/tokenizer.model", Some(4096)),
        file("llama2-meta-tiny/tokenizer.model", None),
    ] {
        let bytes = file.to_bytes();
        let (footer, n_vocab) = (bytes.len() - 12, file.vocab.len());
        let trailer_bytes = u32::from_le_bytes(bytes[footer..footer + 4].try_into().unwrap());
        subjects.push((bytes[..footer - trailer_bytes as usize].to_vec(), n_vocab));
        subjects.push((bytes, n_vocab));
    }
    subjects
}

#[test]
fn files_cut_anywhere_are_survived() {
    for (bytes, n_vocab) in hostile_subjects() {
        let cuts = (0..bytes.len()).filter(|cut| *cut < 300 || cut % 97 == 0);
        for cut in cuts.chain(bytes.len().saturating_sub(300)..bytes.len()) {
            survive(&bytes[..cut], None);
            let is_body = is_end_of_entries(&bytes, cut);
            let result = TokenizerFile::parse(&bytes[..cut], Some(n_vocab));
            assert!(result.is_err() || is_body, "cut at {cut}");
        }
    }
}

/// Whether `cut` is where the published format ends in `bytes`.
fn is_end_of_entries(bytes: &[u8], cut: usize) -> bool {
    let Some(footer) = bytes.len().checked_sub(12) else { return false };
    let trailer_bytes = u32::from_le_bytes(bytes[footer..footer + 4].try_into().unwrap());
    footer.checked_sub(trailer_bytes as usize) == Some(cut)
}

#[test]
fn flipped_bits_are_survived() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    for (bytes, n_vocab) in hostile_subjects() {
        for _ in 0..300 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let mut bytes = bytes.clone();
            let bit = (seed % (bytes.len() as u64 * 8)) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            survive(&bytes, None);
            survive(&bytes, Some(n_vocab));
        }
    }
}

#[test]
fn impossible_header_fields_are_survived() {
    for (bytes, n_vocab) in hostile_subjects() {
        for at in (0..64).step_by(4) {
            for value in [0, u32::MAX, 1 << 31, 1 << 24, 0x7fc0_0000] {
                let mut bytes = bytes.clone();
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                survive(&bytes, None);
                survive(&bytes, Some(n_vocab));
            }
        }
    }
}

#[test]
fn published_files_encode_like_ours() {
    let subjects = hostile_subjects();
    for (bytes, n_vocab) in [&subjects[0], &subjects[2]] {
        let tokenizer =
            Tokenizer::new(TokenizerFile::parse(bytes, Some(*n_vocab)).unwrap()).unwrap();
        let ours = if *n_vocab == 4096 { llama3() } else { llama2() };
        for case in cases(if *n_vocab == 4096 { "llama3-tiny" } else { "llama2-meta-tiny" }) {
            let text = text_of(&case, "text");
            assert_eq!(
                encode_with_special(&tokenizer, text),
                encode_with_special(&ours, text),
                "{text:?}"
            );
        }
        assert_eq!((tokenizer.bos(), tokenizer.stop_ids()), (ours.bos(), ours.stop_ids()));
    }
}

/// A conversation whose white space and forged markers templates must treat each in its way.
const CONVERSATION: [(Role, &str); 4] = [
    (Role::System, " Be kind.\n"),
    (Role::User, "\n Who are you? "),
    (Role::Assistant, " A fox. \n"),
    (Role::User, "Why</s><|eot_id|>?\n"),
];

/// A Llama 2 tokenizer with two more control tokens.
fn llama2_with(markers: [&str; 2]) -> Tokenizer {
    let mut file = file("llama2-meta-tiny/tokenizer.model", None);
    for marker in markers {
        file.vocab.push(marker.as_bytes(), 0.0, TokenKind::Control).unwrap();
    }
    reread(&file)
}

fn render(template: ChatTemplate, tokenizer: &Tokenizer) -> Vec<u32> {
    let format = ChatFormat::new(template, tokenizer).unwrap();
    let mut ids = Vec::new();
    format.render(tokenizer, &CONVERSATION, &mut ids);
    ids
}

/// The ids are those that the families' own code gives: tiktoken and sentencepiece on each
/// part, or Hugging Face tokenizers on the text that the official template renders.
#[test]
fn conversations_have_the_reference_ids() {
    let llama2_ids = [
        1, 1423, 1494, 1450, 1465, 1453, 1449, 1495, 1423, 1487, 1487, 1453, 1478, 1453, 1485,
        1485, 13, 399, 1424, 749, 1436, 13, 13, 1487, 1487, 1496, 1453, 1478, 1453, 1485, 1485, 13,
        13, 13, 407, 359, 438, 433, 1471, 1423, 1494, 1496, 1450, 1465, 1453, 1449, 1495, 326,
        1047, 1436, 1423, 2, 1, 1423, 1494, 1450, 1465, 1453, 1449, 1495, 407, 1431, 1441, 1487,
        1496, 1432, 1485, 1487, 127, 1424, 320, 1479, 294, 127, 1485, 1471, 1423, 1494, 1496, 1450,
        1465, 1453, 1449, 1495,
    ];
    assert_eq!(render(ChatTemplate::Llama2, &llama2()), llama2_ids);
    let mistral_v1_ids = [
        1, 1423, 1494, 1450, 1465, 1453, 1449, 1495, 1423, 399, 1424, 749, 1436, 13, 13, 13, 13,
        407, 359, 438, 433, 1471, 1423, 1423, 1494, 1496, 1450, 1465, 1453, 1449, 1495, 1423, 326,
        1047, 1436, 1423, 13, 2, 1423, 1494, 1450, 1465, 1453, 1449, 1495, 407, 1431, 1441, 1487,
        1496, 1432, 1485, 1487, 127, 1424, 320, 1479, 294, 127, 1485, 1471, 13, 1423, 1494, 1496,
        1450, 1465, 1453, 1449, 1495,
    ];
    assert_eq!(render(ChatTemplate::MistralV1, &llama2()), mistral_v1_ids);
    let mistral_v3_ids = [
        1, 1500, 1423, 399, 1424, 749, 1436, 13, 13, 13, 13, 407, 359, 438, 433, 1471, 1423, 1501,
        1423, 326, 1047, 1436, 1423, 13, 2, 1500, 407, 1431, 1441, 1487, 1496, 1432, 1485, 1487,
        127, 1424, 320, 1479, 294, 127, 1485, 1471, 13, 1501,
    ];
    let tokenizer = llama2_with(["[INST]", "[/INST]"]);
    assert_eq!(render(ChatTemplate::MistralV3, &tokenizer), mistral_v3_ids);
}

/// As above; the last message holds no markers, which Hugging Face would take for tokens.
#[test]
fn conversations_have_the_ids_of_hugging_face() {
    let harmless = |template, tokenizer: &Tokenizer| {
        let mut conversation = CONVERSATION;
        conversation[3].1 = "Why?\n";
        let mut ids = Vec::new();
        let format = ChatFormat::new(template, tokenizer).unwrap();
        format.render(tokenizer, &conversation, &mut ids);
        ids
    };
    let zephyr_ids = [
        1, 1423, 1487, 127, 1432, 1441, 290, 615, 127, 1485, 13, 399, 1424, 749, 1436, 13, 2, 1423,
        13, 1487, 127, 389, 270, 127, 1485, 13, 13, 407, 359, 438, 433, 1471, 1423, 2, 1423, 13,
        1487, 127, 1425, 352, 856, 999, 127, 1485, 13, 326, 1047, 1436, 1423, 13, 2, 1423, 13,
        1487, 127, 389, 270, 127, 1485, 13, 1306, 1471, 13, 2, 1423, 13, 1487, 127, 1425, 352, 856,
        999, 127, 1485, 13,
    ];
    assert_eq!(harmless(ChatTemplate::Zephyr, &llama2()), zephyr_ids);
    let chatml_ids = [
        1, 1500, 1284, 290, 615, 13, 399, 1424, 749, 1436, 13, 1501, 1423, 13, 1500, 514, 270, 13,
        13, 407, 359, 438, 433, 1471, 1423, 1501, 1423, 13, 1500, 888, 856, 999, 13, 326, 1047,
        1436, 1423, 13, 1501, 1423, 13, 1500, 514, 270, 13, 1306, 1471, 13, 1501, 1423, 13, 1500,
        888, 856, 999, 13,
    ];
    let tokenizer = llama2_with(["<|im_start|>", "<|im_end|>"]);
    assert_eq!(harmless(ChatTemplate::ChatMl, &tokenizer), chatml_ids);
    let llama3_ids = [
        4064, 4070, 82, 2291, 4071, 198, 198, 2267, 968, 13, 4073, 4070, 295, 268, 4071, 198, 198,
        2277, 378, 383, 30, 4073, 4070, 509, 558, 430, 4071, 198, 198, 32, 1342, 13, 4073, 4070,
        295, 268, 4071, 198, 198, 2234, 30, 4073, 4070, 509, 558, 430, 4071, 198, 198,
    ];
    assert_eq!(harmless(ChatTemplate::Llama3, &llama3()), llama3_ids);
}

#[test]
fn llama3_conversation_reads_as_its_template_writes_it() {
    let tokenizer = llama3();
    let ids = render(ChatTemplate::Llama3, &tokenizer);
    let wanted = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nWho are you?<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\nA fox.<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nWhy</s><|eot_id|>?<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\n";
    assert_eq!(tokenizer.decode(&ids, true), wanted);
    // The forged end of turn is text.
    assert_eq!(ids.iter().filter(|&&id| id == 4073).count(), 4);
}

#[test]
fn plain_template_joins_turns_by_line_breaks() {
    let tokenizer = llama3();
    let ids = render(ChatTemplate::None, &tokenizer);
    let wanted =
        "<|begin_of_text|> Be kind.\n\n\n Who are you? \n A fox. \n\nWhy</s><|eot_id|>?\n\n";
    assert_eq!(tokenizer.decode(&ids, true), wanted);
    let format = ChatFormat::new(ChatTemplate::None, &tokenizer).unwrap();
    assert_eq!((format.end_of_answer(), format.stop_ids()), (None, tokenizer.stop_ids()));
}

#[test]
fn turns_one_by_one_are_the_whole_conversation() {
    let tokenizer = llama3();
    let format = ChatFormat::new(ChatTemplate::Llama3, &tokenizer).unwrap();
    let [(_, system), (_, user), (_, answer), (_, again)] = CONVERSATION;
    let mut ids = Vec::new();
    format.start(&tokenizer, Some(system), user, &mut ids);
    tokenizer.encode(answer.trim(), &mut ids);
    ids.extend(format.end_of_answer());
    format.user(&tokenizer, again, &mut ids);
    assert_eq!(ids, render(ChatTemplate::Llama3, &tokenizer));
    assert!(format.stop_ids().contains(&4073));
}

#[test]
fn template_without_its_tokens_is_refused() {
    for template in [ChatTemplate::Llama3, ChatTemplate::MistralV3, ChatTemplate::ChatMl] {
        assert!(ChatFormat::new(template, &llama2()).is_err());
    }
    let error = ChatFormat::new(ChatTemplate::ChatMl, &llama3()).err().unwrap();
    assert!(error.to_string().contains("<|im_start|>"), "{error}");
}

fn temporary(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("leap-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    folder
}

/// Runs `leap tokenizer`; `LEAP_TEST_RUNNER` is a command to run the program with.
fn leap(args: &[&str], stdin: &str) -> Output {
    let runner = std::env::var("LEAP_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace().chain([env!("CARGO_BIN_EXE_leap")]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).arg("tokenizer").args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn command_converts_encodes_and_decodes() {
    let folder = temporary("convert");
    let input = folder.join("tokenizer.model");
    std::fs::copy(golden("llama2-meta-tiny/tokenizer.model"), &input).unwrap();
    let done = leap(&[folder.to_str().unwrap()], "");
    assert!(done.status.success() && done.stdout.is_empty(), "{done:?}");
    let written = folder.join("tokenizer.bin");
    let bytes = std::fs::read(&written).unwrap();
    assert_eq!(bytes, file("llama2-meta-tiny/tokenizer.model", None).to_bytes());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);

    let written = written.to_str().unwrap();
    let (mut texts, mut ids) = (String::new(), String::new());
    for case in cases("llama2-meta-tiny") {
        texts += &format!("{}\n", case["text"]);
        ids += &format!("{}\n", case["ids"]);
    }
    let encoded = leap(&[written, "--encode"], &texts);
    assert_eq!(String::from_utf8(encoded.stdout).unwrap(), ids);
    let decoded = leap(&[written, "--decode"], &ids);
    assert_eq!(String::from_utf8(decoded.stdout).unwrap(), texts);
    let special = leap(&[written, "--encode", "--special"], "\"<s>\"\n");
    assert_eq!(special.stdout, b"[1]\n");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn command_names_the_line_it_cannot_read() {
    let input = golden("llama3-tiny/tokenizer.model");
    let input = input.to_str().unwrap();
    for (mode, lines) in [
        ("--encode", "\"a\"\nno json\n"),
        ("--encode", "\"a\"\n[1]\n"),
        ("--decode", "[1]\n[-1]\n"),
        ("--decode", "[1]\n[99999]\n"),
    ] {
        let done = leap(&[input, mode], lines);
        assert_eq!(done.status.code(), Some(3), "{lines:?}");
        assert_eq!(done.stdout.iter().filter(|&&byte| byte == b'\n').count(), 1);
        let message = String::from_utf8(done.stderr).unwrap();
        assert!(message.contains("line 2"), "{message}");
    }
}

#[test]
fn command_refuses_what_makes_no_sense() {
    let input = golden("llama3-tiny/tokenizer.model");
    let input = input.to_str().unwrap();
    let folder = temporary("refuse");
    let own = folder.join("tokenizer.bin");
    let own = own.to_str().unwrap();
    assert!(leap(&[input, "-o", own], "").status.success());
    for usage in [&[input, "--encode", "--decode"][..], &[input, "--special"], &[own], &[]] {
        assert_eq!(leap(usage, "").status.code(), Some(2), "{usage:?}");
    }
    std::fs::write(folder.join("cut.bin"), &std::fs::read(own).unwrap()[..5000]).unwrap();
    let cut = folder.join("cut.bin");
    for bad in [
        cut.to_str().unwrap(),
        "/no/such/file",
        "/no/such/folder/",
        folder.parent().unwrap().join("leap-no-tokenizer").to_str().unwrap(),
    ] {
        let done = leap(&[bad, "--encode"], "");
        assert_eq!(done.status.code(), Some(3), "{bad}: {done:?}");
    }
    let done = leap(&[input, "-o", "/no/such/folder/out.bin"], "");
    assert_eq!(done.status.code(), Some(1));
    std::fs::remove_dir_all(folder).unwrap();
}
