//! Ids to text, at once and as they come.

use leap::tokenizer::{Decoder, Tokenizer, Utf8Stream};

use crate::{cases, encode, ids_of, llama2, llama3, text_of};

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
