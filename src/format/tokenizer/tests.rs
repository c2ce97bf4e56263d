use super::bytes::FOOTER_BYTES;
use super::*;
use crate::format::{ChatTemplate, ChatTexts, OwnText, SystemTexts};

fn sample() -> TokenizerFile {
    let mut vocab = Vocab::default();
    for (bytes, score, kind) in [
        (b"a".as_slice(), 0.0, TokenKind::Normal),
        (b"b", -1.0, TokenKind::Normal),
        (b"ab", -2.0, TokenKind::Normal),
        (b"<|end|>", 0.0, TokenKind::Control),
        (b"", 0.0, TokenKind::Unused),
    ] {
        vocab.push(bytes, score, kind).unwrap();
    }
    TokenizerFile {
        kind: TokenizerKind::ByteLevel,
        splitter: Splitter::Llama3,
        flags: TokenizerFlags {
            whole_pieces: true,
            split_at_user_defined: true,
            ..TokenizerFlags::default()
        },
        vocab,
        merges: Merges::Listed(vec![(0, 1)]),
        bos: None,
        stop_ids: vec![3],
        strips_right: Vec::new(),
        strips_left: Vec::new(),
        whole_words: Vec::new(),
        chat: ChatTemplate::ChatMl,
        chat_texts: ChatTexts::default(),
    }
}

/// `body` with a footer that declares its last `trailer_bytes` bytes the trailer.
fn with_footer(mut body: Vec<u8>, trailer_bytes: u32) -> Vec<u8> {
    let crc = crc32fast::hash(&body);
    body.extend(trailer_bytes.to_le_bytes());
    body.extend(crc.to_le_bytes());
    body.extend(b"LEAT");
    body
}

fn published(tokens: &[&[u8]]) -> Vec<u8> {
    let longest = tokens.iter().map(|t| t.len()).max().unwrap_or(0);
    let mut out = (longest as u32).to_le_bytes().to_vec();
    for (i, token) in tokens.iter().enumerate() {
        out.extend((i as f32).to_le_bytes());
        out.extend((token.len() as u32).to_le_bytes());
        out.extend(*token);
    }
    out
}

#[test]
fn written_file_reads_back_the_same() {
    let file = sample();
    let bytes = file.to_bytes();
    assert_eq!(TokenizerFile::parse(&bytes, None).unwrap(), file);
    assert_eq!(TokenizerFile::parse(&bytes, Some(5)).unwrap(), file);
}

#[test]
fn splitters_are_stored_by_name_and_unknown_names_are_refused() {
    for splitter in Splitter::ALL {
        let file = TokenizerFile { splitter, ..sample() };
        assert_eq!(TokenizerFile::parse(&file.to_bytes(), None).unwrap(), file);
    }
    let mut file = TokenizerFile { splitter: Splitter::Gpt2Digits, ..sample() };
    file.flags.nfc = true;
    let bytes = file.to_bytes();
    assert_eq!(TokenizerFile::parse(&bytes, None).unwrap(), file);
    let at = bytes.windows(4).position(|word| word == b"gpt2").unwrap();
    let mut body = bytes[..bytes.len() - FOOTER_BYTES].to_vec();
    body[at..at + 4].copy_from_slice(b"word");
    let footer = bytes.len() - FOOTER_BYTES;
    let trailer_bytes = u32::from_le_bytes(bytes[footer..footer + 4].try_into().unwrap());
    let error = TokenizerFile::parse(&with_footer(body, trailer_bytes), None).unwrap_err();
    assert!(error.to_string().contains("splitter \"word-digits\""), "{error}");
}

#[test]
fn chat_texts_read_back_and_unknown_ones_are_refused() {
    let quiet = SystemTexts {
        head: "On \u{2}%d %B %Y\u{3}: ".to_owned(),
        default: Some(String::new()),
        skips_empty: true,
        tail: ".\n".to_owned(),
        prompt: "<think>".to_owned(),
    };
    let chat_texts = ChatTexts { quiet, ..ChatTexts::default() };
    let mut file = TokenizerFile { chat_texts, strips_right: vec![1, 3], ..sample() };
    file.flags.chat_without_bos = true;
    assert_eq!(TokenizerFile::parse(&file.to_bytes(), None).unwrap(), file);
    file.chat_texts.quiet.head = "\u{2}%q\u{3}".to_owned();
    let error = TokenizerFile::parse(&file.to_bytes(), None).unwrap_err().to_string();
    assert!(error.contains("chat text before"), "{error}");
    file.chat_texts = ChatTexts::default();
    for (ids, word) in
        [(vec![3, 1], "ascending"), (vec![1, 1], "ascending"), (vec![9], "less than 5")]
    {
        let error = TokenizerFile { strips_right: ids, ..file.clone() }.to_bytes();
        let error = TokenizerFile::parse(&error, None).unwrap_err().to_string();
        assert!(error.contains("stripping token") && error.contains(word), "{error}");
    }
}

#[test]
fn tokens_that_take_in_what_is_before_them_or_are_whole_words_read_back() {
    let file = TokenizerFile { strips_left: vec![2, 3], whole_words: vec![0], ..sample() };
    let bytes = file.to_bytes();
    assert_eq!(TokenizerFile::parse(&bytes, None).unwrap(), file);
    for file in [
        TokenizerFile { whole_words: vec![3, 1], ..sample() },
        TokenizerFile { strips_left: vec![9], ..sample() },
    ] {
        assert!(TokenizerFile::parse(&file.to_bytes(), None).is_err());
    }
}

#[test]
fn the_checkpoints_own_template_reads_back() {
    let [text, bos, eos] = ["{{ bos_token }}\n", "<s>", ""].map(str::to_owned);
    let own = OwnText { text, tool_text: None, bos, eos };
    let with = |own| {
        let chat_texts = ChatTexts { own: Some(own), ..ChatTexts::default() };
        TokenizerFile { chat: ChatTemplate::Own, chat_texts, ..sample() }
    };
    let for_tools = with(OwnText { tool_text: Some("{{ tools }}".to_owned()), ..own.clone() });
    let file = with(own);
    let bytes = file.to_bytes();
    for file in [&file, &for_tools] {
        assert_eq!(&TokenizerFile::parse(&file.to_bytes(), None).unwrap(), file);
    }
    assert_eq!(for_tools.to_bytes().len(), bytes.len() + 4 + "{{ tools }}".len());
    let without = TokenizerFile { chat_texts: ChatTexts::default(), ..file }.to_bytes();
    assert_eq!(bytes.windows(4).filter(|four| *four == b"<s>\0").count(), 1);
    assert!(without.len() < bytes.len());
}

#[test]
fn bytes_of_the_file_are_pinned() {
    let mut wanted = Vec::new();
    wanted.extend(7u32.to_le_bytes());
    for (score, bytes) in
        [(0f32, b"a".as_slice()), (-1., b"b"), (-2., b"ab"), (0., b"<|end|>"), (0., b"")]
    {
        wanted.extend(score.to_le_bytes());
        wanted.extend((bytes.len() as u32).to_le_bytes());
        wanted.extend(bytes);
    }
    let body_bytes = wanted.len();
    wanted.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    wanted.extend([0, 6, 2, 0, 0x41, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    wanted.extend([1, 0, 0, 0, 3, 0, 0, 0]);
    wanted.extend([2, 0, 0, 0, 3, 0, 0, 0, 2, 4, 0, 0, 0, 5]);
    wanted.extend([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    let trailer_bytes = (wanted.len() - body_bytes) as u32;
    assert_eq!(sample().to_bytes(), with_footer(wanted, trailer_bytes));
}

#[test]
fn wrong_vocabulary_size_is_refused() {
    let error = TokenizerFile::parse(&sample().to_bytes(), Some(6)).unwrap_err();
    assert_eq!(error.to_string(), "n_vocab is 5, wanted 6, as the model has");
}

#[test]
fn every_truncation_is_refused_when_the_size_is_known() {
    let bytes = sample().to_bytes();
    let body_bytes = bytes.len() - FOOTER_BYTES - 54;
    for len in (0..bytes.len()).filter(|&len| len != body_bytes) {
        assert!(TokenizerFile::parse(&bytes[..len], Some(5)).is_err(), "cut at {len}");
    }
    // Without its trailer the file has the published format, and is valid.
    assert!(TokenizerFile::parse(&bytes[..body_bytes], Some(5)).is_ok());
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = sample().to_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(TokenizerFile::parse(&bytes, Some(5)).is_err(), "bit {bit}");
    }
}

#[test]
fn impossible_trailer_fields_are_refused_even_with_a_good_checksum() {
    let bytes = sample().to_bytes();
    let before_footer = bytes.len() - FOOTER_BYTES;
    let trailer_at = before_footer - 54;
    for at in (trailer_at..before_footer).step_by(2) {
        for value in [0xffu8, 0x80, 9] {
            let mut body = bytes[..before_footer].to_vec();
            body[at] = value;
            // Parsing must not panic or allocate much; in a few fields these values are valid.
            let _ = TokenizerFile::parse(&with_footer(body, 54), Some(5));
        }
    }
    for trailer_bytes in [0, 53, 55, u32::MAX] {
        let body = bytes[..before_footer].to_vec();
        assert!(TokenizerFile::parse(&with_footer(body, trailer_bytes), Some(5)).is_err());
    }
}

#[test]
fn header_fields_out_of_range_are_refused() {
    let good = published(&[b"<unk>", b"<s>", b"</s>", b"x"]);
    assert!(TokenizerFile::parse(&good, Some(4)).is_ok());
    for at in [0, 8] {
        for value in [0u32, u32::MAX, 1 << 31, 1 << 20] {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            assert!(TokenizerFile::parse(&bytes, Some(4)).is_err(), "{value} at {at}");
        }
    }
    assert!(TokenizerFile::parse(&good, Some(usize::MAX)).is_err());
    assert!(TokenizerFile::parse(&good, Some(3)).is_err());
    assert!(TokenizerFile::parse(&[], None).is_err());
}

#[test]
fn score_that_is_not_a_number_is_refused() {
    let mut bytes = published(&[b"<unk>"]);
    bytes[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(TokenizerFile::parse(&bytes, None).is_err());
}

#[test]
fn published_llama2_file_is_recognised() {
    for (bos, eos) in [("<s>", "</s>"), ("\n<s>\n", "\n</s>\n")] {
        let mut tokens = vec!["<unk>".to_owned(), bos.to_owned(), eos.to_owned()];
        tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
        tokens.push(" the".to_owned());
        let tokens: Vec<&[u8]> = tokens.iter().map(String::as_bytes).collect();
        let file = TokenizerFile::parse(&published(&tokens), None).unwrap();
        assert_eq!(file.kind, TokenizerKind::SentencePiece);
        assert!(file.flags.dummy_prefix && file.flags.byte_fallback);
        assert_eq!((file.bos, file.stop_ids), (Some(1), vec![2]));
        assert_eq!(file.vocab.get(2), Some(b"</s>".as_slice()));
        assert_eq!(file.vocab.kind(258), Some(TokenKind::Byte));
        assert_eq!(file.vocab.kind(259), Some(TokenKind::Normal));
    }
}

#[test]
fn published_llama3_file_is_recognised() {
    let tokens: [&[u8]; 6] = [
        b"a",
        b"b",
        b"<|begin_of_text|>",
        b"<|end_of_text|>",
        b"<|start_header_id|>",
        b"<|eot_id|>",
    ];
    let file = TokenizerFile::parse(&published(&tokens), Some(6)).unwrap();
    assert_eq!(file.kind, TokenizerKind::ByteLevel);
    assert!(file.flags.whole_pieces);
    assert_eq!((file.bos, file.stop_ids), (Some(2), vec![3, 5]));
    assert_eq!(file.chat, ChatTemplate::Llama3);
    assert_eq!(file.vocab.score(1), Some(-1.0));
    assert_eq!(file.vocab.kind(1), Some(TokenKind::Normal));
    assert_eq!(file.vocab.kind(5), Some(TokenKind::Control));
}

#[test]
fn byte_pieces_are_two_hex_digits() {
    assert_eq!(byte_piece(b"<0x0A>"), Some(10));
    assert_eq!(byte_piece(b"<0xff>"), Some(255));
    for other in [b"<0x+1>".as_slice(), b"<0x1>", b"<0x100>", b"0x0A", b"<0xG0>", b"<0x\xc3\xa9>"] {
        assert_eq!(byte_piece(other), None);
    }
}

#[test]
fn fingerprint_depends_on_every_byte_and_the_length() {
    assert_eq!(fingerprint(b""), fingerprint(b""));
    let base = fingerprint(b"tokenizer");
    assert_ne!(base, fingerprint(b"tokenizer\0"));
    assert_ne!(base, fingerprint(b"tokenizes"));
    assert_ne!(base, fingerprint(b"Tokenizer"));
}
