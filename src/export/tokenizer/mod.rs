//! Tokenizers of other programs: tiktoken and SentencePiece `tokenizer.model`, Hugging Face
//! `tokenizer.json`, and what GGUF files hold.
//!
//! In a folder, `tokenizer.model` goes before `tokenizer.json`: the model was trained with the former, and the latter
//! is converted from it, without piece types and scores. If tokens were added that stand for their text, as for Gemma
//! and Phi-3, `tokenizer.json` goes first, because only this file says how they are found. Files beside it say which
//! tokens are special, which ones end a text, and how conversations are written (`settings`).

mod added;
mod around;
mod draft;
mod error;
mod files;
#[cfg(fuzzing)]
pub(super) mod fuzz;
mod gguf;
mod gguf_names;
mod hf_json;
mod sentencepiece;
mod settings;
mod steps;
mod template;
mod tiktoken;
mod to_gguf;
mod token;
mod wordpiece;

use std::path::{Path, PathBuf};

pub use error::ImportError;
pub(super) use to_gguf::write as write_gguf;

use crate::format::tokenizer::{TokenizerFile, TokenizerKind};
use crate::tokenizer::Tokenizer;
use draft::Draft;
use settings::Settings;

/// A tokenizer, ready to be written.
pub struct ImportedTokenizer {
    /// The contents of `tokenizer.bin`.
    pub file: TokenizerFile,
    /// The file that the vocabulary was read from.
    pub source: PathBuf,
    /// Notes for the user about the conversion, one line each.
    pub notes: Vec<String>,
    /// Ids that the tokenizer puts before and behind a text whose embedding is computed.
    pub around: [Option<u32>; 2],
}

/// Reads the tokenizer in the file or folder `path`.
///
/// A file called `tokenizer.model` or `tokenizer.json` is read with the settings beside it.
/// The vocabulary is padded to `vocab_size`, or else to what the model's config says.
///
/// # Errors
///
/// If there is no tokenizer, or it is damaged, or of a kind that LEAP cannot reproduce exactly.
pub fn import(path: &Path, vocab_size: Option<usize>) -> Result<ImportedTokenizer, ImportError> {
    let mut source = find(path)?;
    let (mut draft, settings) = match gguf::is_gguf(&source) {
        true => gguf::read(&source)?,
        false => {
            let folder = settings_folder(path, &source);
            let settings = folder.as_deref().map(Settings::read).transpose()?.unwrap_or_default();
            let json = path.join("tokenizer.json");
            if settings.added.iter().any(|token| !token.is_special) && json.is_file() {
                source = json.clone();
            }
            let mut draft = read_draft(&source, folder, &settings, vocab_size)?;
            // A SentencePiece model does not say it.
            if draft.kind == TokenizerKind::SentencePiece
                && draft.edges.around == [None; 2]
                && path.is_dir()
                && let Some(json) = settings::json(&json)?
            {
                draft.edges.around = around::parse(&json, &draft);
            }
            (draft, settings)
        }
    };
    let bad = |what| ImportError::Bad { path: source.clone(), what };
    let vocab_size = vocab_size.or(settings.vocab_size);
    draft.apply(&settings);
    draft.fit(vocab_size).map_err(bad)?;
    draft.note_missing_bytes();
    let notes = std::mem::take(&mut draft.notes);
    let around = draft.edges.around;
    let file = draft.finish().map_err(bad)?;
    // A tokenizer that cannot be used is an error here.
    Tokenizer::new(file.clone()).map_err(|e| bad(e.to_string()))?;
    Ok(ImportedTokenizer { file, source, notes, around })
}

/// Reads the tokenizer file `source` with the settings in `folder`.
fn read_draft(
    source: &Path,
    folder: Option<PathBuf>,
    settings: &Settings,
    vocab_size: Option<usize>,
) -> Result<Draft, ImportError> {
    let bytes = files::read(source)?;
    let draft = parse(&bytes, vocab_size.or(settings.vocab_size), settings);
    let mut draft = draft.map_err(|what| ImportError::Bad { path: source.to_path_buf(), what })?;
    if let Some(folder) = folder.filter(|_| draft.kind == TokenizerKind::SentencePiece)
        && let Some(prefixes) = settings.prefixes_segments(&folder)?
    {
        draft.flags.prefix_every_segment = prefixes;
    }
    Ok(draft)
}

/// Reads a tokenizer file, whose kind its first bytes show.
fn parse(bytes: &[u8], vocab_size: Option<usize>, settings: &Settings) -> Result<Draft, String> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    match (first, bytes.first()) {
        (None, _) => Err("the file is empty".to_owned()),
        (Some(b'{'), _) => hf_json::parse(bytes),
        _ if bytes.starts_with(b"[PAD]\n") || bytes.starts_with(b"[PAD]\r\n") => {
            wordpiece::parse(bytes, settings)
        }
        // The first piece of a SentencePiece model: field 1, bytes.
        (_, Some(b'\n')) => sentencepiece::parse(bytes),
        _ => tiktoken::parse(bytes, vocab_size, settings.added.is_empty()),
    }
}

/// Whether the checkpoint at `path`, a folder or a GGUF file, holds a tokenizer that [`import`]
/// would read.
pub fn is_in(path: &Path) -> bool {
    match path.is_dir() {
        true => find(path).is_ok(),
        false => gguf::has_tokenizer(path),
    }
}

fn find(path: &Path) -> Result<PathBuf, ImportError> {
    if !path.is_dir() {
        return Ok(path.to_path_buf());
    }
    let places = ["tokenizer.model", "tokenizer.json", "vocab.txt", "original/tokenizer.model"];
    // Meta's downloads of several models have one tokenizer, beside their folders.
    let shared = path.join("params.json").is_file().then_some("../tokenizer.model");
    let mut files = places.into_iter().chain(shared).map(|name| path.join(name));
    // A link whose file is missing is found, too: it is to be reported, not passed over.
    let is_there = |file: &PathBuf| file.is_file() || file.is_symlink() && !file.exists();
    files.find(is_there).ok_or_else(|| ImportError::NotFound { folder: path.to_path_buf() })
}

fn settings_folder(path: &Path, source: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_path_buf());
    }
    let is_standard = ["tokenizer.model", "tokenizer.json", "vocab.txt"]
        .map(Some)
        .contains(&source.file_name()?.to_str());
    let folder = source.parent()?;
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    is_standard.then(|| folder.to_path_buf())
}

#[cfg(test)]
mod tests;
