//! What the fuzz targets call.

use super::draft::Draft;
use super::settings::Settings;
use super::{gguf, parse};
use crate::format::tokenizer::TokenizerFile;

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

fn convert(mut draft: Draft, settings: &Settings) {
    if draft.apply(settings).is_err() || draft.fit(None).is_err() {
        return;
    }
    let Ok(file) = draft.finish() else { return };
    let bytes = file.to_bytes();
    let again = TokenizerFile::parse(&bytes, None);
    assert_eq!(again.map(|again| again.to_bytes()), Ok(bytes));
}
