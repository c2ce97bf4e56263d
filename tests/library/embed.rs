//! Models of embeddings: the reference's vectors, and the same bits whatever the batch, threads and instruction set.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leap::engine::{EmbedError, Embedder, Engine, EngineError, Options, TextIds, VectorForm};
use leap::export::tokenizer::import;
use leap::export::{ExportOptions, ExportPlan, Vocabulary};
use leap::format::model::{Pooling, Weights};
use leap::format::tokenizer::TokenizerFile;
use leap::internals::model::Model;
use leap::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::common::folder::Folder;
use crate::common::models::{bits, ids, isas, package};

/// Folders in `tests/golden` with vectors of sentence-transformers.
const MODELS: [&str; 4] =
    ["bert-embed-tiny", "nomic-embed-tiny", "qwen3-embed-tiny", "gemma3-embed-tiny"];

/// A model of `tests/golden` with its tokenizer, and the reference's texts and vectors.
struct Case {
    model: Arc<Model>,
    tokenizer: Tokenizer,
    golden: Value,
}

impl Case {
    fn new(name: &str, weights: Weights) -> Case {
        Case::of(&package("tests/golden").join(name), weights)
    }

    /// The plan of a folder's model, or of that of a GGUF file, and its tokenizer.
    fn plan(source: &Path, weights: Weights) -> (ExportPlan, TokenizerFile) {
        let options = ExportOptions { weights, ctx: None, verify: true };
        let mut plan = match source.is_dir() {
            true => ExportPlan::open(source, &options).unwrap(),
            false => ExportPlan::open_gguf(source, &options).unwrap(),
        };
        let imported = import(source, Some(plan.header().vocab_size)).unwrap();
        plan.set_vocabulary(Vocabulary { around: imported.around, ..Vocabulary::default() })
            .unwrap();
        (plan, imported.file)
    }

    /// The model of a folder, or of a GGUF file in one.
    fn of(source: &Path, weights: Weights) -> Case {
        let folder = Folder::new();
        let path = folder.join("model.bin");
        let (plan, tokenizer) = Case::plan(source, weights);
        plan.write(&path, |_| ControlFlow::Continue(())).unwrap();
        let golden = fs::read_to_string(
            if source.is_dir() { source } else { source.parent().unwrap() }
                .join("embedding_golden.json"),
        )
        .unwrap();
        Case {
            model: Arc::new(Model::open(&path).unwrap()),
            tokenizer: Tokenizer::new(tokenizer).unwrap(),
            golden: serde_json::from_str(&golden).unwrap(),
        }
    }

    fn texts(&self) -> Vec<&str> {
        self.golden["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
    }

    fn ids(&self, prompt: &str, text: &str) -> Vec<u32> {
        let (tokenizer, header) = (&self.tokenizer, self.model.header());
        let limit = header.max_seq_len;
        TextIds { tokenizer, header, limit, truncates: false }.of(prompt, text).unwrap()
    }

    fn all_ids(&self) -> Vec<Vec<u32>> {
        self.texts().iter().map(|text| self.ids("", text)).collect()
    }

    fn embedder(&self, options: &Options) -> Embedder {
        Embedder::new(Arc::clone(&self.model), options).unwrap()
    }
}

fn vectors(embedder: &mut Embedder, texts: &[Vec<u32>], form: VectorForm) -> Vec<Vec<f32>> {
    let mut found = Vec::new();
    let result = embedder.embed(texts, form, &mut |index, vector| {
        assert_eq!(index, found.len());
        found.push(vector.to_vec());
        true
    });
    result.unwrap();
    found
}

fn cosine(a: &[f32], b: &[f64]) -> f64 {
    let dot: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum();
    let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    assert_eq!(a.len(), b.len());
    let of_a = squares(&mut a.iter().map(|x| f64::from(*x)));
    dot / of_a / squares(&mut b.iter().copied())
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn ids_and_vectors_are_the_reference_s() {
    for name in MODELS {
        let case = Case::new(name, Weights::F32);
        let texts = case.all_ids();
        for (found, wanted) in texts.iter().zip(case.golden["ids"].as_array().unwrap()) {
            assert_eq!(*found, ids(wanted), "{name}");
        }
        let mut embedder = case.embedder(&Options::default());
        let form = embedder.form();
        let found = vectors(&mut embedder, &texts, form);
        for (found, wanted) in found.iter().zip(case.golden["vectors"].as_array().unwrap()) {
            let cosine = cosine(found, &floats(wanted));
            assert!(cosine > 0.999_999, "{name}: {cosine}");
            let length: f32 = found.iter().map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-5, "{name}: {length}");
        }
        if let Some(wanted) = case.golden.get("query") {
            let prompts = &case.model.header().embedding().unwrap().prompts;
            let prompt = &prompts.iter().find(|prompt| prompt.name == "query").unwrap().text;
            let text = case.ids(prompt, case.texts()[0]);
            let found = vectors(&mut embedder, &[text], form);
            assert!(cosine(&found[0], &floats(wanted)) > 0.999_999, "{name} with a prompt");
        }
    }
}

/// Files of llama.cpp's converter have the same weights, tokens and rules, and so have LEAP's own.
#[test]
fn gguf_files_give_the_vectors_of_their_folders() {
    let own = Folder::new();
    let files = MODELS.into_iter().flat_map(|name| {
        let source = package("tests/golden").join(name);
        let path = own.join(&format!("{name}.gguf"));
        let (plan, tokenizer) = Case::plan(&source, Weights::F32);
        plan.write_gguf(&path, Some(&tokenizer), |_| ControlFlow::Continue(())).unwrap();
        [source.join(format!("{name}-bf16.gguf")), path].map(|file| (name, file))
    });
    for (name, file) in files {
        let folder = Case::new(name, Weights::F32);
        own.write("embedding_golden.json", folder.golden.to_string());
        let file = Case::of(&file, Weights::F32);
        assert_eq!(file.all_ids(), folder.all_ids(), "{name}");
        let of = |case: &Case| {
            let mut embedder = case.embedder(&Options::default());
            let form = embedder.form();
            (form.pooling, vectors(&mut embedder, &case.all_ids(), form))
        };
        let (found, wanted) = (of(&file), of(&folder));
        assert_eq!(found.0, wanted.0, "{name}");
        for (found, wanted) in found.1.iter().zip(&wanted.1) {
            let wanted: Vec<f64> = wanted.iter().map(|x| f64::from(*x)).collect();
            assert!(cosine(found, &wanted) > 0.999_999, "{name}");
        }
    }
}

#[test]
fn a_vector_is_the_same_in_any_batch_with_any_threads_and_kernels() {
    for name in MODELS {
        for weights in [Weights::F32, Weights::Q8 { group: 32 }] {
            let case = Case::new(name, weights);
            let texts = case.all_ids();
            let mut embedder = case.embedder(&Options { threads: Some(1), ..Options::default() });
            let form = embedder.form();
            let wanted = vectors(&mut embedder, &texts, form);
            let bits_of = |all: &[Vec<f32>]| all.iter().map(|x| bits(x)).collect::<Vec<_>>();
            let alone: Vec<Vec<f32>> = texts
                .iter()
                .flat_map(|text| vectors(&mut embedder, std::slice::from_ref(text), form))
                .collect();
            assert_eq!(bits_of(&alone), bits_of(&wanted), "{name}, {weights}: alone");
            let mut turned = texts.clone();
            turned.reverse();
            let mut found = vectors(&mut embedder, &turned, form);
            found.reverse();
            assert_eq!(bits_of(&found), bits_of(&wanted), "{name}, {weights}: in another order");
            // A causal model's texts are also cut into parts of a few rows.
            let small = Options { batch: Some(7), threads: Some(2), ..Options::default() };
            let found = vectors(&mut case.embedder(&small), &texts, form);
            assert_eq!(bits_of(&found), bits_of(&wanted), "{name}, {weights}: small batches");
            for isa in isas() {
                let options = Options { isa: Some(isa), threads: Some(3), ..Options::default() };
                let found = vectors(&mut case.embedder(&options), &texts, form);
                assert_eq!(bits_of(&found), bits_of(&wanted), "{name}, {weights}: {isa:?}");
            }
        }
    }
}

#[test]
fn words_are_normalised_and_cut_as_bert_does() {
    let case = Case::new("bert-embed-tiny", Weights::F32);
    let ids = |text: &str| case.ids("", text);
    let same = [
        ("owl", "OWL"),
        ("cafe", "Caf\u{e9}"),
        ("cafe", "cafe\u{301}"),
        ("a b", "a\t\r\n\u{a0}b"),
        ("ab", "a\0\u{200d}\u{fffd}\u{ad}b"),
        ("\u{4f60} \u{597d}", "\u{4f60}\u{597d}"),
        ("a , b", "a,b"),
    ];
    for (plain, other) in same {
        assert_eq!(ids(plain), ids(other), "{other:?}");
    }
    let unknown = case.tokenizer.special("[UNK]").unwrap();
    let inner = |text: &str| {
        let mut ids = Vec::new();
        case.tokenizer.encode_with_special(text, &mut ids);
        ids
    };
    assert_eq!(inner(&"x".repeat(100)).len(), 100);
    assert_eq!(inner(&"x".repeat(101)), [unknown]);
    assert_eq!(inner("a\u{3a9}b c"), [&[unknown][..], &inner("c")].concat());
    assert_eq!(inner("[SEP]"), [case.tokenizer.special("[SEP]").unwrap()]);
    assert!(inner(" \n ").is_empty());
    // The vocabulary alone leads to the same ids.
    let vocab = import(&package("tests/golden/bert-embed-tiny/vocab.txt"), None).unwrap();
    let tokenizer = Tokenizer::new(vocab.file).unwrap();
    for text in case.texts() {
        let mut found = Vec::new();
        tokenizer.encode(text, &mut found);
        assert_eq!(found, inner(text));
    }
}

#[test]
fn int8_is_near_the_reference() {
    for name in MODELS {
        let case = Case::new(name, Weights::Q8 { group: 32 });
        let mut embedder = case.embedder(&Options::default());
        let form = embedder.form();
        let found = vectors(&mut embedder, &case.all_ids(), form);
        for (found, wanted) in found.iter().zip(case.golden["vectors"].as_array().unwrap()) {
            let cosine = cosine(found, &floats(wanted));
            assert!(cosine > 0.995, "{name}: {cosine}");
        }
    }
}

#[test]
fn forms_of_vectors_follow_from_each_other() {
    let case = Case::new("qwen3-embed-tiny", Weights::F32);
    let texts = case.all_ids();
    let mut embedder = case.embedder(&Options::default());
    let form = embedder.form();
    assert_eq!(form.pooling, Pooling::Last);
    let raw = VectorForm { is_normalised: false, ..form };
    let whole = vectors(&mut embedder, &texts, raw);
    let short = vectors(&mut embedder, &texts, VectorForm { dimensions: Some(5), ..raw });
    assert!(whole.iter().zip(&short).all(|(whole, short)| whole[..5] == short[..]));
    let normal = vectors(&mut embedder, &texts, VectorForm { dimensions: Some(5), ..form });
    for (short, normal) in short.iter().zip(&normal) {
        let wanted: Vec<f64> = short.iter().map(|x| f64::from(*x)).collect();
        assert!(cosine(normal, &wanted) > 0.999_999);
    }
    // The mean of a text of one token is that token's vector, as is the last and the first.
    let one = [vec![5]];
    let of =
        |embedder: &mut Embedder, pooling| vectors(embedder, &one, VectorForm { pooling, ..raw });
    let first = of(&mut embedder, Pooling::First);
    assert_eq!(first, of(&mut embedder, Pooling::Last));
    assert_eq!(first, of(&mut embedder, Pooling::Mean));
}

#[test]
fn texts_and_forms_that_do_not_fit_are_refused() {
    let case = Case::new("bert-embed-tiny", Weights::F32);
    // The reference cuts texts at 96 tokens, though the table has 128 positions.
    assert_eq!(case.model.header().max_seq_len, 96);
    let mut embedder = case.embedder(&Options::default());
    let form = embedder.form();
    let mut refused = |text: Vec<u32>, form| {
        embedder.embed(&[vec![1, 2], text], form, &mut |_, _| panic!("computed")).unwrap_err()
    };
    let wanted = EmbedError::TooLong { tokens: 97, limit: 96 };
    assert_eq!(refused(vec![5; 97], form), wanted);
    assert_eq!(refused(Vec::new(), form), EmbedError::Empty);
    assert!(refused(vec![192], form).to_string().contains("192"));
    for wanted in [0, 65] {
        let form = VectorForm { dimensions: Some(wanted), ..form };
        assert_eq!(refused(vec![1], form), EmbedError::Dimensions { wanted, dim: 64 });
    }
    let (tokenizer, header) = (&case.tokenizer, case.model.header());
    let ids = TextIds { tokenizer, header, limit: 8, truncates: false };
    let text = "a b c d e f g h i";
    assert_eq!(ids.of("", text), Err(EmbedError::TooLong { tokens: 11, limit: 8 }));
    let cut = TextIds { truncates: true, ..ids }.of("", text).unwrap();
    assert_eq!(cut, ids.of("", "a b c d e f").unwrap());
    let engine = Engine::new(Arc::clone(&case.model), &Options::default());
    assert!(matches!(engine, Err(EngineError::Embeddings)));
}

/// Copies a folder of `tests/golden`, with one JSON file changed.
fn changed(name: &str, file: &str, change: impl Fn(&mut Value)) -> Folder {
    fn copy(from: &std::path::Path, to: &std::path::Path) {
        for entry in fs::read_dir(from).unwrap().flatten() {
            let to = to.join(entry.file_name());
            if entry.path().is_dir() {
                fs::create_dir(&to).unwrap();
                copy(&entry.path(), &to);
            } else {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    let folder = Folder::new();
    copy(&package("tests/golden").join(name), folder.path());
    let path = folder.join(file);
    let mut json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(&path, json.to_string()).unwrap();
    folder
}

#[test]
fn the_default_prompt_goes_before_texts_of_no_purpose() {
    let file = "config_sentence_transformers.json";
    let default = |json: &mut Value| json["default_prompt_name"] = json!("query");
    let folder = changed("nomic-embed-tiny", file, default);
    let [own, with_default] = [package("tests/golden/nomic-embed-tiny"), folder.path().into()]
        .map(|source| Case::of(&source, Weights::F32));
    let of = |case: &Case| case.model.header().embedding().unwrap().clone();
    assert_eq!(of(&own).prompt(None), None);
    assert_eq!(of(&with_default).prompt(None), Some("search_query: "));
    for case in [&own, &with_default] {
        assert_eq!(of(case).prompt(Some("document")), Some("search_document: "));
        assert_eq!(of(case).prompt_names(), ["document", "query"]);
    }
}

#[test]
fn hostile_configurations_get_one_clear_error() {
    let options = ExportOptions { weights: Weights::F32, ctx: None, verify: false };
    let huge = json!(1u64 << 40);
    let cases: [(&str, &str, &str, Value, &str); 18] = [
        ("bert-embed-tiny", "modules.json", "/0/path", json!("../x"), "a module in"),
        ("bert-embed-tiny", "modules.json", "/1/type", json!("a.Magic"), "Magic"),
        (
            "bert-embed-tiny",
            "modules.json",
            "/1/type",
            json!("a.Normalize"),
            "no module of pooling",
        ),
        ("bert-embed-tiny", "modules.json", "", json!({}), "no list"),
        ("gemma3-embed-tiny", "modules.json", "/2/type", json!("a.Normalize"), "in this place"),
        (
            "nomic-embed-tiny",
            "config_sentence_transformers.json",
            "",
            json!({"prompts": {"a": "b"}, "default_prompt_name": "c"}),
            "default_prompt_name",
        ),
        (
            "bert-embed-tiny",
            "1_Pooling/config.json",
            "/pooling_mode_cls_token",
            json!(true),
            "pooling",
        ),
        (
            "bert-embed-tiny",
            "1_Pooling/config.json",
            "/pooling_mode_mean_tokens",
            json!(7),
            "pooling",
        ),
        (
            "bert-embed-tiny",
            "sentence_bert_config.json",
            "/max_seq_length",
            json!(-1),
            "max_seq_length",
        ),
        (
            "bert-embed-tiny",
            "config.json",
            "/max_position_embeddings",
            huge.clone(),
            "number of positions",
        ),
        (
            "bert-embed-tiny",
            "config.json",
            "/max_position_embeddings",
            json!(127),
            "position_embeddings",
        ),
        ("bert-embed-tiny", "config.json", "/hidden_act", json!("relu"), "hidden_act"),
        ("bert-embed-tiny", "config.json", "/layer_norm_eps", json!(-1.0), "norm_eps"),
        (
            "nomic-embed-tiny",
            "config_sentence_transformers.json",
            "/prompts",
            json!([1]),
            "prompts",
        ),
        (
            "nomic-embed-tiny",
            "config_sentence_transformers.json",
            "/prompts/query",
            json!("x".repeat(20_000)),
            "prompts",
        ),
        ("gemma3-embed-tiny", "2_Dense/config.json", "/out_features", huge, "out_features"),
        ("gemma3-embed-tiny", "2_Dense/config.json", "/bias", json!(true), "dense layer"),
        ("gemma3-embed-tiny", "3_Dense/config.json", "/out_features", json!(32), "dense layers"),
    ];
    for (name, file, pointer, value, wanted) in cases {
        let folder =
            changed(name, file, |json| *json.pointer_mut(pointer).unwrap() = value.clone());
        let error = ExportPlan::open(folder.path(), &options).map(drop).unwrap_err();
        let cause = std::error::Error::source(&error);
        let error = cause.map_or(error.to_string(), |cause| format!("{error}: {cause}"));
        assert!(error.contains(wanted), "{name}/{file} {pointer}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

/// A copy of a folder of `tests/golden`, whose files can be changed.
fn copied(name: &str) -> Folder {
    let folder = Folder::new();
    for file in fs::read_dir(package("tests/golden").join(name)).unwrap() {
        let path = file.unwrap().path();
        match path.is_dir() {
            true => {
                let inner = folder.join(path.file_name().unwrap().to_str().unwrap());
                fs::create_dir(&inner).unwrap();
                for file in fs::read_dir(&path).unwrap() {
                    let path = file.unwrap().path();
                    fs::copy(&path, inner.join(path.file_name().unwrap())).unwrap();
                }
            }
            false => {
                fs::copy(&path, folder.join(path.file_name().unwrap().to_str().unwrap())).unwrap();
            }
        }
    }
    folder
}

#[test]
fn small_letters_are_as_the_files_beside_the_tokenizer_say() {
    let folder = copied("bert-embed-tiny");
    let ids = |text: &str| {
        let tokenizer = Tokenizer::new(import(folder.path(), None).unwrap().file).unwrap();
        let mut ids = Vec::new();
        tokenizer.encode(text, &mut ids);
        ids
    };
    let of = |config: &str| {
        folder.write("tokenizer_config.json", config);
        (ids("OWL") == ids("owl"), ids("caf\u{e9}") == ids("cafe"))
    };
    let cased = r#"{"tokenizer_class": "BertTokenizer", "do_lower_case": false}"#;
    let accents =
        r#"{"tokenizer_class": "BertTokenizer", "do_lower_case": true, "strip_accents": false}"#;
    assert_eq!(of(cased), (false, false));
    assert_eq!(of(accents), (true, false));
    // Another class takes the file as it is.
    assert_eq!(of(&cased.replace("BertTokenizer", "PreTrainedTokenizerFast")), (true, true));
    // The vocabulary alone.
    fs::remove_file(folder.join("tokenizer.json")).unwrap();
    assert_eq!(of("{}"), (true, true));
    assert_eq!(of(cased), (false, false));
    assert_eq!(of(accents), (true, false));
    // sentence-transformers makes letters small before the tokenizer gets them.
    folder.write("sentence_bert_config.json", r#"{"do_lower_case": true}"#);
    assert_eq!(of(cased), (true, false));
    let other = copied("gemma3-embed-tiny");
    assert_eq!(import(other.path(), None).unwrap().notes, Vec::<String>::new());
    other.write("sentence_bert_config.json", r#"{"do_lower_case": true}"#);
    let notes = import(other.path(), None).unwrap().notes;
    assert!(notes[0].contains("small letters"), "{notes:?}");
}

/// Writes `value` behind `key` of the model's GGUF file in `folder`; returns the file's path.
fn set_in_gguf(folder: &Folder, name: &str, key: &str, value: &[u8]) -> PathBuf {
    let path = folder.join(&format!("{name}-bf16.gguf"));
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap();
    // A number for the value's type stands between.
    let at = at + key.len() + 4;
    assert_ne!(bytes[at..at + value.len()], *value);
    bytes[at..at + value.len()].copy_from_slice(value);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_gguf_file_says_whether_texts_get_a_bos_and_how_vectors_are_pooled() {
    let folder = copied("gemma3-embed-tiny");
    let whole = Case::of(&folder.join("gemma3-embed-tiny-bf16.gguf"), Weights::F32);
    let path = set_in_gguf(&folder, "gemma3-embed-tiny", "tokenizer.ggml.add_bos_token", &[0]);
    let bare = Case::of(&path, Weights::F32);
    for (whole, bare) in whole.all_ids().iter().zip(bare.all_ids()) {
        assert_eq!(whole[1..], bare[..]);
    }
    let options = ExportOptions { weights: Weights::F32, ctx: None, verify: true };
    let folder = copied("bert-embed-tiny");
    let path = folder.join("bert-embed-tiny-bf16.gguf");
    let plan = ExportPlan::open_gguf(&path, &options).unwrap();
    assert!(!plan.notes().iter().any(|note| note.contains("pooling_type")), "{:?}", plan.notes());
    let path = set_in_gguf(&folder, "bert-embed-tiny", ".pooling_type", &[0; 4]);
    let plan = ExportPlan::open_gguf(&path, &options).unwrap();
    assert_eq!(plan.header().embedding().unwrap().pooling, Pooling::Mean);
    assert!(
        plan.notes().iter().any(|note| note.contains("pooling_type is 0")),
        "{:?}",
        plan.notes()
    );
}

/// Folders of Hugging Face's cache hold links, whose files may be gone.
#[test]
fn a_link_without_its_file_is_not_passed_over() {
    let options = ExportOptions { weights: Weights::F32, ctx: None, verify: true };
    for name in ["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"] {
        let folder = copied("bert-embed-tiny");
        fs::remove_file(folder.join(name)).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.join(name)).unwrap();
        let error = ExportPlan::open(folder.path(), &options).err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
    }
    let folder = copied("bert-embed-tiny");
    fs::remove_file(folder.join("tokenizer_config.json")).unwrap();
    import(folder.path(), None).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.join("tokenizer_config.json")).unwrap();
    let error = import(folder.path(), None).err().unwrap().to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
    // Another vocabulary would give other vectors.
    let folder = copied("bert-embed-tiny");
    folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n");
    fs::remove_file(folder.join("tokenizer.json")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.join("tokenizer.json")).unwrap();
    let error = import(folder.path(), None).err().unwrap().to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
}
