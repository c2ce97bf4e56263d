//! SentencePiece models: their settings, and the tokens that begin and end a text.

use super::{BPE, Folder, model, piece};
use crate::format::tokenizer::TokenizerKind;

#[test]
fn sentencepiece_model_is_read() {
    let folder = Folder::new(&[("tokenizer.model", &model(&BPE, &[4 << 3, 0]))]);
    let file = folder.import().unwrap().file;
    assert_eq!(file.kind, TokenizerKind::SentencePiece);
    assert!(file.flags.dummy_prefix && !file.flags.remove_extra_spaces);
    assert_eq!(file.vocab.get(5), Some(b" a".as_slice()));
    assert_eq!((file.bos, file.stop_ids), (Some(1), vec![2]));
}

#[test]
fn the_tokens_that_a_sentencepiece_model_names_begin_and_end_a_text() {
    // Fields 46 and 47, whose tags take two bytes.
    let named = |tag: u8, name: &str| [&[tag, 2, name.len() as u8], name.as_bytes()].concat();
    let trainer = [&BPE[..], &named(0xf2, "<b>"), &named(0xfa, "<e>")].concat();
    let bytes = [model(&trainer, &[]), piece("<b>", 0., 3), piece("<e>", 0., 3)].concat();
    let alone = Folder::new(&[("tokenizer.model", &bytes)]).import().unwrap().file;
    assert_eq!((alone.bos, &alone.stop_ids[..]), (Some(6), &[7][..]));
    // The model's configuration takes precedence where it says something.
    let config = br#"{"eos_token_id": 2}"#;
    let files = [("tokenizer.model", &bytes[..]), ("config.json", config)];
    let both = Folder::new(&files).import().unwrap().file;
    assert_eq!((both.bos, both.stop_ids[0]), (Some(6), 2), "{:?}", both.stop_ids);
}
