//! Ids to text, at once and in a stream.

use leap::tokenizer::{Decoder, Tokenizer, Utf8Stream};

use crate::tokenizer::{cases, encode, file, ids_of, llama2, llama3, reread, text_of};

/// Decodes token by token, and checks at each that text is neither withdrawn nor cut.
fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    stream_of(tokenizer, ids, true)
}

fn stream_of(tokenizer: &Tokenizer, ids: &[u32], show_special: bool) -> String {
    let mut text = String::new();
    let mut decoder = Decoder::new(tokenizer, show_special);
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
    // A token that is no byte ends an unfinished character.
    let x = encode(&llama2, "x");
    assert_eq!(stream(&llama2, &[&[0xe5 + 3], x.as_slice()].concat()), "\u{fffd} x");
    assert_eq!(llama2.decode(&[0, 1, 9999], false), " \u{2047} ");
}

/// Ids of byte tokens, in a vocabulary whose byte token 0 is `zero`.
fn bytes(zero: u32, bytes: &[u8]) -> Vec<u32> {
    bytes.iter().map(|&byte| zero + u32::from(byte)).collect()
}

#[test]
fn runs_with_stray_bytes_have_as_many_marks_as_tokenizers_gives() {
    let gemma = reread(&file("gemma3-tiny/tokenizer.json", None));
    let phi = reread(&file("phi3-tiny/tokenizer.json", None));
    // Byte tokens from <0x00> on, <bos> or <s>, <unk>, `x` and `▁the`; expected texts of tokenizers 0.23, without
    // special tokens and with them.
    for (tokenizer, zero, [bos, unknown, x, the], bos_name) in
        [(&gemma, 36, [2, 3, 696, 296], "<bos>"), (&phi, 3, [1, 0, 676, 264], "<s>")]
    {
        let run = |of: &[u8]| bytes(zero, of);
        let dummy = if bos_name == "<s>" { "" } else { " " };
        for (ids, hidden, shown) in [
            (run("字".as_bytes()), "字".to_owned(), "字".to_owned()),
            (run(b"\xe5\xad\x97\xe5"), "\u{fffd}".repeat(4), "\u{fffd}".repeat(4)),
            (run(b"\xf0\x9f\xe5\xad\x97"), "\u{fffd}".repeat(5), "\u{fffd}".repeat(5)),
            (run(b"\xed\xa0\x80\xc3\xa9"), "\u{fffd}".repeat(5), "\u{fffd}".repeat(5)),
            (
                [run(b"\xc3\xa9\xff"), vec![x], run(b"\xc3\xa9")].concat(),
                "\u{fffd}\u{fffd}\u{fffd}xé".to_owned(),
                "\u{fffd}\u{fffd}\u{fffd}xé".to_owned(),
            ),
            (
                [run(b"\xe5\xad"), vec![bos], run(b"\x97"), vec![x]].concat(),
                "字x".to_owned(),
                format!("\u{fffd}\u{fffd}{bos_name}\u{fffd}x"),
            ),
            (
                [run(b"\xc3"), vec![unknown], run(b"\xa9")].concat(),
                "é".to_owned(),
                "\u{fffd}<unk>\u{fffd}".to_owned(),
            ),
            ([run(b"  "), vec![the]].concat(), format!("{dummy}  the"), format!("{dummy}  the")),
            (vec![bos, the], format!("{dummy}the"), format!("{bos_name} the")),
            ([run(b"\x97"), vec![the]].concat(), "\u{fffd} the".into(), "\u{fffd} the".into()),
        ] {
            for (wanted, show) in [(hidden, false), (shown, true)] {
                assert_eq!(tokenizer.decode(&ids, show), wanted, "{ids:?}, special: {show}");
                assert_eq!(stream_of(tokenizer, &ids, show), wanted, "{ids:?}, special: {show}");
            }
        }
    }
}

#[test]
fn bytes_wait_no_longer_than_their_run_can_change() {
    let gemma = reread(&file("gemma3-tiny/tokenizer.json", None));
    let mut decoder = Decoder::new(&gemma, false);
    let mut parts = Vec::new();
    // é, then two stray bytes, then `x`; é again, then `x`.
    for id in [231, 205, 291, 291, 696, 231, 205, 696] {
        let mut part = String::new();
        decoder.push(id, &mut part);
        parts.push(part);
    }
    assert_eq!(parts, ["", "", "\u{fffd}\u{fffd}\u{fffd}", "\u{fffd}", "x", "", "", "éx"]);
}

#[test]
fn hidden_tokens_do_not_cut_a_character_of_a_byte_level_vocabulary() {
    let tokenizer = llama3();
    // Bytes of 字 around a reserved token; expected texts of tokenizers 0.23.
    let ids = [161, 4066, 255, 245];
    assert_eq!(tokenizer.decode(&ids, false), "字");
    assert_eq!(stream_of(&tokenizer, &ids, false), "字");
    let shown = "\u{fffd}<|reserved_special_token_0|>\u{fffd}\u{fffd}";
    assert_eq!(tokenizer.decode(&ids, true), shown);
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
