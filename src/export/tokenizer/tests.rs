mod pieces;
mod published;

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use serde_json::{Value, json};

use super::token::VOCAB_MAX;
use super::*;
use crate::format::ChatTemplate;
use crate::format::tokenizer::{Merges, TokenKind};

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(files: &[(&str, &[u8])]) -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leap-import-{}-{number}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        let _ = fs::remove_dir_all(&folder.0);
        fs::create_dir(&folder.0).unwrap();
        for (name, bytes) in files {
            fs::write(folder.0.join(name), bytes).unwrap();
        }
        folder
    }

    fn import(&self) -> Result<ImportedTokenizer, ImportError> {
        import(&self.0, None)
    }

    fn error(&self) -> String {
        self.import().err().expect("this must be refused").to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A protobuf field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let mut message = field(1, text.as_bytes());
    message.push(2 << 3 | 5);
    message.extend(score.to_le_bytes());
    message.extend([3 << 3, kind]);
    field(1, &message)
}

/// A small SentencePiece BPE model with the given settings.
fn model(trainer: &[u8], normaliser: &[u8]) -> Vec<u8> {
    let mut bytes = [piece("<unk>", 0., 2), piece("<s>", 0., 3), piece("</s>", 0., 3)].concat();
    bytes.extend([piece("▁", -1., 1), piece("a", -2., 1), piece("▁a", -0.5, 1)].concat());
    bytes.extend(field(2, trainer));
    bytes.extend(field(3, normaliser));
    bytes
}

const BPE: [u8; 2] = [3 << 3, 2];

const TIKTOKEN: &[u8] = b"YQ== 0\nYg== 1\nYWI= 2\n";

fn byte_level_json() -> Value {
    json!({
        "added_tokens": [{"id": 3, "content": "<|begin_of_text|>", "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "model": {"type": "BPE", "ignore_merges": true, "vocab": {"a": 0, "Ġ": 1, "Ġa": 2}, "merges": [["Ġ", "a"]]},
    })
}

fn json_error(change: impl Fn(&mut Value)) -> String {
    let mut json = byte_level_json();
    change(&mut json);
    Folder::new(&[("tokenizer.json", json.to_string().as_bytes())]).error()
}

#[test]
fn byte_level_json_is_read() {
    let folder = Folder::new(&[("tokenizer.json", byte_level_json().to_string().as_bytes())]);
    let file = folder.import().unwrap().file;
    assert_eq!(file.vocab.get(2), Some(b" a".as_slice()));
    assert_eq!(file.merges, Merges::ByScore);
    assert!(file.flags.whole_pieces);
    assert_eq!(file.bos, Some(3));
    assert_eq!(file.vocab.kind(3), Some(TokenKind::Control));
}

#[test]
fn every_byte_has_its_own_character_in_the_byte_level_alphabet() {
    let letters = (0..0x200).filter_map(char::from_u32);
    let mut bytes: Vec<u8> = letters.filter_map(hf_json::byte_of).collect();
    assert_eq!((hf_json::byte_of('Ġ'), hf_json::byte_of('Ċ')), (Some(b' '), Some(b'\n')));
    assert_eq!((hf_json::byte_of('ġ'), hf_json::byte_of('Ń')), (Some(0x7f), Some(0xad)));
    bytes.sort_unstable();
    assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
}

#[test]
fn merges_are_listed_only_where_scores_do_not_give_them() {
    let rule = |vocab: Value, merges: Value| {
        let mut json = byte_level_json();
        json["added_tokens"] = json!([]);
        json["model"]["vocab"] = vocab;
        json["model"]["merges"] = merges;
        let folder = Folder::new(&[("tokenizer.json", json.to_string().as_bytes())]);
        folder.import().unwrap().file.merges
    };
    let abc = json!({"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5});
    let in_order = json!(["a b", "b c", "a bc", "ab c"]);
    assert_eq!(rule(abc.clone(), in_order), Merges::ByScoreThenLeft);
    let ties_by_right = json!(["a b", "b c", "ab c", "a bc"]);
    assert!(matches!(rule(abc.clone(), ties_by_right), Merges::Listed(_)));
    let one_way_missing = json!(["a b", "b c", "ab c"]);
    assert!(matches!(rule(abc.clone(), one_way_missing), Merges::Listed(_)));
    let not_by_id = rule(abc, json!(["b c", "a b", "a bc", "ab c"]));
    assert_eq!(not_by_id, Merges::Listed(vec![(1, 2), (0, 1), (0, 4), (3, 2)]));
    assert_eq!(rule(json!({"a": 0, "b": 1, "ab": 2}), json!(["a b"])), Merges::ByScore);
}

#[test]
fn json_of_other_kinds_is_refused_by_name() {
    let unigram = json_error(|json| json["model"]["type"] = "Unigram".into());
    assert!(unigram.contains("Unigram"), "{unigram}");
    let pattern = json_error(|json| {
        json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\d+".into();
    });
    assert!(pattern.contains("\\d+"), "{pattern}");
    json_error(|json| json["pre_tokenizer"] = json!({"type": "ByteLevel"}));
    json_error(|json| json["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true.into());
    json_error(|json| json["normalizer"] = json!({"type": "NFKC"}));
    json_error(|json| json["model"]["dropout"] = 0.1.into());
}

#[test]
fn impossible_json_is_refused() {
    json_error(|json| json["model"]["vocab"]["b"] = 4_000_000_000_u64.into());
    json_error(|json| json["model"]["vocab"]["b"] = (-1).into());
    json_error(|json| json["model"]["vocab"]["b"] = 0.into());
    json_error(|json| json["model"]["merges"] = json!([1]));
    json_error(|json| json["added_tokens"][0]["id"] = "one".into());
    for bytes in [b"{".as_slice(), b"{}", b"", b" \n", &[b'['; 1 << 16]] {
        Folder::new(&[("tokenizer.json", bytes)]).error();
    }
}

/// Each gives only a note, and texts are written all the same.
#[test]
fn what_does_no_harm_in_a_vocabulary_does_not_refuse_it() {
    let imported = |change: fn(&mut Value)| {
        let mut json = byte_level_json();
        change(&mut json);
        let folder = Folder::new(&[("tokenizer.json", json.to_string().as_bytes())]);
        folder.import().unwrap()
    };
    let merges = |notes: &[String]| notes.iter().any(|note| note.contains("merges cannot happen"));
    let plain = imported(|_| {});
    assert!(!merges(&plain.notes), "{:?}", plain.notes);
    let more = imported(|json| json["model"]["merges"] = json!([["a", "x"], ["Ġ", "a"]]));
    assert!(merges(&more.notes), "{:?}", more.notes);
    assert_eq!(more.file, plain.file);
    let twice = imported(|json| json["model"]["merges"] = json!([["Ġ", "a"], ["Ġ", "a"]]));
    assert_eq!(twice.file, plain.file);
    let beyond = imported(|json| {
        let far = json!({"id": u32::MAX, "content": "<far>", "special": true});
        json["added_tokens"].as_array_mut().unwrap().push(far);
    });
    // The library tokenizers gives it the next id.
    assert_eq!(beyond.file.vocab.get(4), Some(b"<far>".as_slice()));
    assert!(beyond.notes.iter().any(|note| note.contains("<far>")), "{:?}", beyond.notes);
}

#[test]
fn ends_that_are_no_tokens_are_left_out_with_a_note() {
    let imported = |config: &[u8]| {
        // Without a template, which would bring ends of its own.
        let plain = ("tokenizer_config.json", b"{}".as_slice());
        let files = [("tokenizer.model", TIKTOKEN), plain, ("config.json", config)];
        Folder::new(&files).import().unwrap()
    };
    let beyond = imported(br#"{"eos_token_id": [900, 1]}"#);
    assert_eq!(beyond.file.stop_ids, [1]);
    assert!(beyond.notes.iter().any(|note| note.contains("end token 900")), "{:?}", beyond.notes);
    assert_eq!(imported(br#"{"eos_token_id": [-1, 2]}"#).file.stop_ids, [2]);
    let many = imported(br#"{"eos_token_id": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1]}"#);
    assert_eq!(many.file.stop_ids.len(), 8);
    assert!(many.notes.iter().any(|note| note.contains("[9, 10]")), "{:?}", many.notes);
}

#[test]
fn llama4s_vocabulary_is_not_taken_for_llama3s() {
    let ranks = |n: u32| {
        let line = |rank: u32| {
            let bytes = match u8::try_from(rank) {
                Ok(byte) => vec![byte],
                Err(_) => rank.to_be_bytes().to_vec(),
            };
            format!("{} {rank}\n", base64::engine::general_purpose::STANDARD.encode(bytes))
        };
        (0..n).map(line).collect::<String>()
    };
    let error = Folder::new(&[("tokenizer.model", ranks(200_000).as_bytes())]).error();
    assert!(error.contains("200000 ranks") && error.contains("tokenizer.json"), "{error}");
    let llama3 = Folder::new(&[("tokenizer.model", ranks(128_000).as_bytes())]);
    assert_eq!(llama3.import().unwrap().file.vocab.len(), 128_256);
}

#[test]
fn damaged_tiktoken_lines_are_named() {
    let error = Folder::new(&[("tokenizer.model", b"YQ== 0\nYg==\n")]).error();
    assert!(error.contains("line 2"), "{error}");
    for bytes in [
        b"YQ== 0\nYg== 2\n".as_slice(),
        b"YQ== 0\nYg== 0\n",
        b"YQ== 0\nYQ== 1\n",
        b"YQ== -1\n",
        b"=a 0\n",
        b"\xff\xfe",
    ] {
        Folder::new(&[("tokenizer.model", bytes)]).error();
    }
}

#[test]
fn code_llamas_infill_pieces_become_special() {
    let pieces = ["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"];
    let mut bytes = model(&BPE, &[]);
    for name in pieces {
        bytes.extend(piece(name, -9., 1));
    }
    let added = json!({ "added_tokens_decoder":
        (6..10).zip(pieces).map(|(id, name)| (id.to_string(), json!({ "content": name, "special": true })))
            .collect::<serde_json::Map<_, _>>() });
    let alone = Folder::new(&[("tokenizer.model", &bytes)]);
    let config = added.to_string();
    let declared =
        Folder::new(&[("tokenizer.model", &bytes), ("tokenizer_config.json", config.as_bytes())]);
    for folder in [alone, declared] {
        let file = folder.import().unwrap().file;
        for (id, name) in (6..10).zip(pieces) {
            assert_eq!(file.vocab.get(id), Some(name.as_bytes()));
            assert_eq!(file.vocab.kind(id), Some(TokenKind::Control));
        }
        assert_eq!(file.stop_ids, [2, 9]);
    }
    // Three of the four pieces make no infill tokens.
    let some =
        Folder::new(&[("tokenizer.model", &bytes[..bytes.len() - piece(pieces[3], 0., 1).len()])]);
    assert_eq!(some.import().unwrap().file.vocab.kind(6), Some(TokenKind::Normal));
}

#[test]
fn metas_tokenizer_may_lie_beside_the_models_folder() {
    let download = Folder::new(&[("tokenizer.model", &model(&BPE, &[]))]);
    let folder = download.0.join("llama-2-7b");
    fs::create_dir(&folder).unwrap();
    assert!(!is_in(&folder));
    fs::write(folder.join("params.json"), "{}").unwrap();
    assert!(is_in(&folder));
    let found = import(&folder, Some(8)).unwrap();
    assert_eq!((found.file.vocab.len(), found.source.is_file()), (8, true));
    // The folder's own tokenizer takes precedence.
    fs::write(folder.join("tokenizer.model"), TIKTOKEN).unwrap();
    assert_eq!(import(&folder, None).unwrap().file.kind, TokenizerKind::ByteLevel);
}

#[test]
fn sentencepiece_models_of_other_kinds_are_refused_by_name() {
    let error = |trainer: &[u8], normaliser: &[u8]| {
        Folder::new(&[("tokenizer.model", &model(trainer, normaliser))]).error()
    };
    assert!(error(&[3 << 3, 1], &[]).contains("unigram"));
    assert!(error(&[], &[]).contains("unigram"));
    let rules = [field(1, b"nmt_nfkc"), field(2, b"\x01\x02")].concat();
    assert!(error(&BPE, &rules).contains("nmt_nfkc"));
    error(&BPE, &[5 << 3, 0]);
    // Field 24 needs a tag of two bytes.
    error(&[&BPE[..], &[0xc0, 0x01, 1]].concat(), &[]);
}

#[test]
fn damaged_sentencepiece_models_are_refused_or_read_but_never_panic() {
    let bytes = model(&BPE, &[]);
    for len in 1..bytes.len() {
        let result = sentencepiece::parse(&bytes[..len]);
        // Without its last field, which is empty, the model is whole.
        assert_eq!(result.is_ok(), len == bytes.len() - 2, "cut at {len}");
        let mut flipped = bytes.clone();
        flipped[len] ^= 0x80;
        let _ = sentencepiece::parse(&flipped);
    }
    let with = |piece: Vec<u8>| sentencepiece::parse(&[bytes.clone(), piece].concat()).err();
    assert!(with(piece("a", 0., 1)).is_some());
    assert!(with(piece("", 0., 1)).is_some());
    assert!(with(piece("b", 0., 9)).is_some());
    assert!(with(piece("b", 0., 6)).is_some());
    assert!(with(piece("b", 0., 1)).is_none());
    assert!(with(piece("b c", 0., 1)).is_none());
}

#[test]
fn files_beside_the_tokenizer_tell_its_special_tokens() {
    let config = json!({
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "added_tokens_decoder": {
            "4": {"content": "</s>", "special": true},
            "3": {"content": "<s>", "special": true},
            "6": {"content": "<|im_start|>", "special": false},
            "7": {"content": "<|im_end|>", "special": true},
            "8": {"content": "<tool>", "special": false},
        },
        "chat_template": [
            {"name": "tool_use", "template": "[INST]"},
            {"name": "default", "template": chatml("")},
        ],
    });
    let folder = Folder::new(&[
        ("tokenizer.model", TIKTOKEN),
        ("tokenizer_config.json", config.to_string().as_bytes()),
        ("generation_config.json", br#"{"eos_token_id": [7, 5]}"#),
        ("config.json", br#"{"vocab_size": 12, "eos_token_id": 1}"#),
    ]);
    let file = folder.import().unwrap().file;
    assert_eq!(file.vocab.len(), 12);
    assert_eq!((file.bos, file.stop_ids), (Some(3), vec![4, 7, 5]));
    assert_eq!(file.chat, ChatTemplate::ChatMl);
    let own = file.chat_texts.own.unwrap();
    assert_eq!((own.text, own.tool_text), (chatml(""), Some("[INST]".to_owned())));
    let kinds: Vec<_> = (3..10).map(|id| file.vocab.kind(id).unwrap()).collect();
    use TokenKind::{Control, Unused, UserDefined};
    // The template's markers are control tokens, whatever the file says.
    assert_eq!(kinds, [Control, Control, Unused, Control, Control, UserDefined, Unused]);
}

#[test]
fn conversion_beside_a_model_tells_where_spaces_are_put() {
    let prefix_of = |files: &[(&str, &[u8])]| {
        let model = model(&BPE, &[]);
        let folder = Folder::new(&[&[("tokenizer.model", model.as_slice())], files].concat());
        folder.import().unwrap().file.flags.prefix_every_segment
    };
    let prepend = br#"{"normalizer": {"normalizers": [{"type": "Prepend"}]}}"#.as_slice();
    let first = br#"{"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}}"#;
    let legacy = br#"{"legacy": false}"#;
    assert!(prefix_of(&[]));
    assert!(!prefix_of(&[("tokenizer_config.json", legacy)]));
    assert!(!prefix_of(&[("tokenizer.json", first)]));
    assert!(prefix_of(&[("tokenizer_config.json", legacy), ("tokenizer.json", prepend)]));
}

#[test]
fn template_file_goes_before_the_config() {
    let folder = Folder::new(&[
        ("tokenizer.model", TIKTOKEN),
        ("tokenizer_config.json", br#"{"chat_template": "<<SYS>>"}"#),
        ("chat_template.jinja", chatml("").as_bytes()),
    ]);
    assert_eq!(folder.import().unwrap().file.chat, ChatTemplate::ChatMl);
}

#[test]
fn a_template_for_tools_is_kept_if_it_can_run() {
    let list = |tools: &str| {
        json!({"chat_template": [
            {"name": "default", "template": "a"},
            {"name": "rag", "template": "b"},
            {"name": "tool_use", "template": tools},
        ]})
        .to_string()
    };
    let import = |config: &str, files: &[(&str, &[u8])]| {
        let files = [files, &[("tokenizer_config.json", config.as_bytes())]].concat();
        let imported = Folder::new(&files).import().unwrap();
        let own = imported.file.chat_texts.own.unwrap();
        let mut notes = imported.notes;
        notes.retain(|note| note.contains("template"));
        (own.text, own.tool_text, notes)
    };
    let model: &[(&str, &[u8])] = &[("tokenizer.model", TIKTOKEN)];
    let (text, tools, notes) = import(&list("c"), model);
    assert_eq!((text.as_str(), tools.as_deref(), notes.len()), ("a", Some("c"), 0));
    let (text, tools, notes) = import(&list("{% if %}"), model);
    assert_eq!((text.as_str(), tools), ("a", None));
    assert!(notes[0].contains("for tools"), "{notes:?}");
    let object = r#"{"chat_template": {"default": "a", "tool_use": "a"}}"#;
    assert_eq!(import(object, model).1, None);
    // A file of its own goes before the list, and others may lie beside it.
    let file = [model, &[("chat_template.jinja", b"d".as_slice())]].concat();
    let (text, tools, _) = import(&list("c"), &file);
    assert_eq!((text.as_str(), tools), ("d", None));
}

#[test]
fn unknown_template_is_kept_and_not_taken_for_another() {
    let config = br#"{"chat_template": "<start_of_turn>", "bos_token": "<s>"}"#;
    let folder = Folder::new(&[("tokenizer.model", TIKTOKEN), ("tokenizer_config.json", config)]);
    let imported = folder.import().unwrap();
    assert_eq!(imported.file.chat, ChatTemplate::Own);
    let own = imported.file.chat_texts.own.unwrap();
    assert_eq!((own.text.as_str(), own.bos.as_str()), ("<start_of_turn>", "<s>"));
    assert!(!imported.notes.iter().any(|note| note.contains("template")));
    let config = br#"{"chat_template": "{% if %}"}"#;
    let folder = Folder::new(&[("tokenizer.model", TIKTOKEN), ("tokenizer_config.json", config)]);
    let imported = folder.import().unwrap();
    assert_eq!((imported.file.chat, imported.file.chat_texts.own), (ChatTemplate::Own, None));
    assert!(imported.notes[0].contains("--chat-template"), "{:?}", imported.notes);
}

/// Mistral 7B's template; `turn` writes a user's text.
fn mistral(turn: &str) -> String {
    [
        "{{ bos_token }}{% if messages[0].role == 'system' %}{% set told = messages[0].content + '\n\n' %}\
         {% set messages = messages[1:] %}{% endif %}{% for m in messages %}{% if m.role == 'user' %}\
         {{ ",
        turn,
        " }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    ]
    .concat()
}

const MISTRAL_TURN: &str =
    "'[INST] ' + (told if loop.first and told else '') + m.content + ' [/INST]'";
const LLAMA2: &str = "{% if messages[0].role == 'system' %}{% set told = '<<SYS>>\n' + messages[0].content \
    + '\n<</SYS>>\n\n' %}{% set messages = messages[1:] %}{% endif %}{% for m in messages %}\
    {% if m.role == 'user' %}{{ bos_token + '[INST] ' + (told if loop.first and told else '') \
    + m.content | trim + ' [/INST]' }}{% else %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}\
    {% endfor %}";
const ZEPHYR: &str = "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}\
    {% endfor %}{{ '<|assistant|>' }}";

#[test]
fn older_templates_are_recognised_but_for_white_space() {
    let v1 = mistral(MISTRAL_TURN);
    let last = v1.replace("loop.first and told", "loop.last and told");
    let refuses = v1.replace("{% set told", "{{ raise_exception('no') }}{% set told");
    for (jinja, template, tells_last) in [
        (LLAMA2, ChatTemplate::Llama2, false),
        (&v1, ChatTemplate::MistralV1, false),
        (&last, ChatTemplate::MistralV1, true),
        (&refuses, ChatTemplate::MistralV1, false),
        (ZEPHYR, ChatTemplate::Zephyr, false),
    ] {
        let wanted = template::Older { template, tells_last };
        assert_eq!(template::alike(jinja, false), Some(wanted), "{jinja}");
    }
    let found = [&v1, &last].map(|jinja| template::alike(jinja, true));
    let wanted = [false, true]
        .map(|tells_last| template::Older { template: ChatTemplate::MistralV3, tells_last });
    assert_eq!(found, wanted.map(Some));
}

/// Mistral Small 3.2 and Ministral 3 have a turn for the system's text, functionary one of its own.
#[test]
fn templates_that_share_markers_with_others_are_not_taken_for_them() {
    let v1 = mistral(MISTRAL_TURN);
    let small = "('[SYSTEM_PROMPT]' + (told or 'Be kind.') + '[/SYSTEM_PROMPT]' if loop.first else '') \
        + '[INST]' + m.content + '[/INST]'";
    let only_told = small.replace("if loop.first", "if loop.first and told");
    let header =
        "'<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content + '<|eot_id|>'";
    let functions = format!(
        "{{{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\nCall.<|eot_id|>' }}}}\
         {{% for m in messages %}}{{{{ {header} }}}}{{% endfor %}}\
         {{{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}}}"
    );
    for jinja in [
        &mistral(small),
        &mistral(&only_told),
        &functions,
        // The text comes in another turn of a longer conversation, or in each.
        &v1.replace("loop.first and told", "loop.index0 == 2 * (loop.length // 4) and told"),
        &v1.replace("loop.first and told", "told is defined and told"),
        &LLAMA2.replace("loop.first and told", "loop.last and told"),
        &v1.replace("eos_token", "''"),
        &v1.replace("' ' + m.content", "'[THINK][/THINK]' + m.content"),
        &ZEPHYR.replace("eos_token", "'<|end|>'"),
        "[INST] <<SYS>>",
        "<|start_header_id|>",
    ] {
        for has_inst_token in [false, true] {
            assert_eq!(template::alike(jinja, has_inst_token), None, "{jinja}");
        }
    }
}

/// ChatML as many repositories write it, with `system` where the messages bring none.
fn chatml(system: &str) -> String {
    [
        "{%- if messages[0]['role'] != 'system' %}{{- '",
        system,
        "' }}{%- endif %}\n{%- for message in messages %}\n    {{- '<|im_start|>' + \
         message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\n{%- endfor %}\n\
         {%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
    ]
    .concat()
}

#[test]
fn templates_are_recognised_by_what_they_write() {
    let known = template::recognise(&chatml(""), "").unwrap();
    assert_eq!((known.template, known.texts), (ChatTemplate::ChatMl, Default::default()));
    assert!(!template::recognise(&chatml(""), "<s>").unwrap().writes_bos);
    let with_bos = ["{{ bos_token }}", &chatml("")].concat();
    assert!(template::recognise(&with_bos, "<s>").unwrap().writes_bos);

    let fox = "<|im_start|>system\\nBe a fox on ' + strftime_now('%d %b %Y') + '.<|im_end|>\\n";
    let known = template::recognise(&chatml(fox), "").unwrap();
    let default = known.texts.thinking.default.as_deref();
    assert_eq!(default, Some("Be a fox on \u{2}%d %b %Y\u{3}."));
    assert_eq!(known.texts.thinking, known.texts.quiet);
}

#[test]
fn what_differs_between_releases_of_a_template_is_read_off() {
    let recognise =
        |jinja: &str| template::recognise(jinja, "").map(|known| (known.template, known.texts));
    // Qwen 3's releases of 2507 think always, or never.
    let strips = "(message['content'].split('</think>')[-1].lstrip('\\n') \
        if '</think>' in message['content'] else message['content'])";
    let never = chatml("").replacen("message['content']", strips, 1);
    let always = never.replacen("assistant\\n", "assistant\\n<think>\\n", 1);
    assert_eq!(recognise(&never).unwrap().0, ChatTemplate::Qwen3);
    let (known, texts) = recognise(&always).unwrap();
    assert_eq!((known, texts.quiet.prompt.as_str()), (ChatTemplate::Qwen3, "<think>\n"));
    // Phi 3's releases differ in whether they leave out an empty system text.
    let phi = "{% for m in messages %}{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ '<|end|>\\n' }}\
        {% endfor %}{{ '<|assistant|>\\n' }}";
    assert_eq!(recognise(phi).unwrap(), (ChatTemplate::Phi3, Default::default()));
    let skips = phi.replacen("messages", "messages if m.content or m.role != 'system'", 1);
    assert!(recognise(&skips).unwrap().1.thinking.skips_empty);
}

#[test]
fn templates_that_write_anything_else_are_unknown() {
    let plain = chatml("");
    for (from, to) in [
        ("message['content']", "message['content'] | trim"),
        ("assistant\\n", "assistant\\n<think>\\n"),
        ("'<|im_end|>' + '\\n'", "'<|im_end|>'"),
        ("'\\n' + message", "' ' + message"),
        ("messages %}", "messages if message.role != 'system' %}"),
    ] {
        let other = plain.replacen(from, to, 1);
        assert!(other != plain && template::recognise(&other, "").is_none(), "{to}");
    }
    let dated = chatml("<|im_start|>system\\n' + strftime_now('%H') + '<|im_end|>\\n");
    assert!(template::recognise(&dated, "").is_none());
}

#[test]
fn hostile_templates_are_unknown() {
    let nested = ["{{ ", &"(".repeat(100_000), "1", &")".repeat(100_000), " }}"].concat();
    let blocks = "{% if true %}".repeat(10_000);
    for jinja in [
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 100000000000 }}",
        "{{ raise_exception('no') }}",
        "{{ messages[99].content.no }}",
        "{% include 'chat' %}",
        "{{ strftime_now(1) }}",
        "{% endgeneration %}",
        &nested,
        &blocks,
        &"x".repeat(1 << 20),
    ] {
        assert!(template::recognise(jinja, "").is_none());
    }
}

/// Fuel bounds only time: a text may double at every step.
#[test]
fn templates_that_take_too_much_memory_are_refused() {
    let doubles = "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}\
        {% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let repeats = ["{% set x = [", &"'x' * 100000000, ".repeat(200), "] %}"].concat();
    for bomb in [doubles, &repeats] {
        let jinja = [bomb, &chatml("")].concat();
        // An emulator does not apply limits to the program that it emulates.
        if std::env::var_os("LEAP_TEST_RUNNER").is_none() {
            assert!(!template::is_harmless(&jinja, ""));
            let json = serde_json::json!({ "chat_template": jinja }).to_string();
            let config = ("tokenizer_config.json", json.as_bytes());
            let imported = Folder::new(&[("tokenizer.model", TIKTOKEN), config]).import().unwrap();
            assert_eq!(imported.file.chat, ChatTemplate::Own);
            let note = &imported.notes[0];
            assert!(note.contains("memory") && note.contains("--chat-template"), "{note}");
        }
    }
    assert!(template::is_harmless(&chatml(""), ""));
}

#[test]
fn vocabulary_must_fit_the_model() {
    let folder = Folder::new(&[("tokenizer.model", TIKTOKEN)]);
    assert_eq!(import(&folder.0, Some(7)).unwrap().file.vocab.len(), 7);
    for vocab_size in [2, VOCAB_MAX + 1, usize::MAX] {
        assert!(import(&folder.0, Some(vocab_size)).is_err(), "{vocab_size}");
    }
    let config = br#"{"eos_token_id": "two"}"#;
    let folder = Folder::new(&[("tokenizer.model", TIKTOKEN), ("config.json", config)]);
    assert!(folder.error().contains("config.json"));
}

#[test]
fn folder_without_tokenizer_is_told_apart_from_a_missing_one() {
    let folder = Folder::new(&[]);
    assert!(matches!(folder.import(), Err(ImportError::NotFound { .. })));
    assert!(!is_in(&folder.0));
    assert!(matches!(import(&folder.0.join("none"), None), Err(ImportError::Io { .. })));
}
