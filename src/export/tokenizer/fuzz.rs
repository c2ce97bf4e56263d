//! What the fuzz targets call.

use super::{Draft, Settings};
use crate::format::tokenizer::TokenizerFile;

/// Converts a `tokenizer.model` or `tokenizer.json`; what comes out must read back.
pub fn tokenizer(bytes: &[u8]) {
    let settings = Settings::default();
    let Ok(mut draft) = Draft::parse(bytes, None, &settings) else { return };
    if draft.apply(&settings).is_err() || draft.fit(None).is_err() {
        return;
    }
    let Ok(file) = draft.finish() else { return };
    let bytes = file.to_bytes();
    let again = TokenizerFile::parse(&bytes, None);
    assert_eq!(again.map(|again| again.to_bytes()), Ok(bytes));
}
