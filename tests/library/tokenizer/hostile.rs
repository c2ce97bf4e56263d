//! Damaged files, and files without LEAP's trailer.

use leap::format::tokenizer::TokenizerFile;
use leap::format::{ChatTemplate, Date};
use leap::tokenizer::{ChatFormat, ChatOptions, ChatRole, Tokenizer};

use crate::tokenizer::{cases, encode_with_special, file, llama2, llama3, text_of};

/// Checks that any bytes give an error or a working tokenizer.
fn survive(bytes: &[u8], vocab_size: Option<usize>) {
    let Ok(file) = TokenizerFile::parse(bytes, vocab_size) else { return };
    let Ok(tokenizer) = Tokenizer::new(file) else { return };
    let ids = encode_with_special(&tokenizer, "Hello <|eot_id|> wörld\n\n  </s> 12345");
    tokenizer.decode(&ids, true);
    let options = ChatOptions::new(Date::new(2026, 3, 9).unwrap());
    for template in ChatTemplate::ALL {
        if let Ok(format) = ChatFormat::new(template, &tokenizer, options) {
            let messages = [(ChatRole::System, "s"), (ChatRole::User, "u")];
            format.render(&tokenizer, &messages, &mut Vec::new()).unwrap();
        }
    }
}

/// The written files, with and without their trailers.
fn hostile_subjects() -> Vec<(Vec<u8>, usize)> {
    let mut subjects = Vec::new();
    for file in [
        file("llama3-tiny/tokenizer.model", Some(4096)),
        file("llama2-meta-tiny/tokenizer.model", None),
        file("smollm3-tiny", None),
        file("phi3-tiny", None),
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

/// True if the published format's part of `bytes` ends at `cut`.
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
