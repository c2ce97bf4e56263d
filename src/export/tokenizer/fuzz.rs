//! Entry points of the fuzz targets.

use super::draft::Draft;
use super::settings::Settings;
use super::{gguf, parse, template};
use crate::format::tokenizer::{TokenKind, TokenizerFile, TokenizerFlags, TokenizerKind, Vocab};

/// Converts a `tokenizer.model` or `tokenizer.json`; what comes out must read back.
pub fn tokenizer(bytes: &[u8]) {
    let settings = Settings::default();
    if let Ok(draft) = parse(bytes, None, &settings) {
        convert(draft, &settings);
    }
}

/// Converts the tokenizer in a GGUF file, likewise.
pub fn gguf_tokenizer(bytes: &[u8]) {
    if let Ok((draft, settings)) = gguf::parse(bytes) {
        convert(draft, &settings);
    }
}

/// Runs a chat template on the probes; what is read off must be what tokenizer files may hold.
pub fn chat_template(bytes: &[u8]) {
    let Ok(jinja) = std::str::from_utf8(bytes) else { return };
    let Some(known) = template::recognise(jinja, "<s>") else { return };
    let mut vocab = Vocab::default();
    vocab.push(b"<s>", 0.0, TokenKind::Control).expect("a score that is a number");
    let mut file = Draft::new(TokenizerKind::ByteLevel, TokenizerFlags::default(), Vec::new())
        .finish()
        .expect("an empty draft");
    (file.vocab, file.chat, file.chat_texts) = (vocab, known.template, known.texts);
    assert_eq!(TokenizerFile::parse(&file.to_bytes(), None), Ok(file));
}

fn convert(mut draft: Draft, settings: &Settings) {
    draft.apply(settings);
    if draft.fit(None).is_err() {
        return;
    }
    let Ok(file) = draft.finish() else { return };
    let bytes = file.to_bytes();
    let again = TokenizerFile::parse(&bytes, None);
    assert_eq!(again.map(|again| again.to_bytes()), Ok(bytes));
}
