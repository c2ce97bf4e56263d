//! Tokenizers of other programs: tiktoken and SentencePiece `tokenizer.model`, Hugging Face
//! `tokenizer.json`, and what GGUF files hold.
//!
//! In a folder, `tokenizer.model` goes before `tokenizer.json`: it is what the model was
//! trained with, and the other is converted from it, without piece types and scores. Files
//! beside it say which tokens are special, which ones end a text, and how conversations are
//! written (`settings`).

mod error;
#[cfg(fuzzing)]
pub(super) mod fuzz;
mod gguf;
mod hf_json;
mod sentencepiece;
mod settings;
mod template;
mod tiktoken;

use std::fs;
use std::path::{Path, PathBuf};

pub use error::Error;

use crate::format::tokenizer::{
    Flags, Kind, Merges, STOP_IDS_MAX, TokenKind, TokenizerFile, Vocab,
};
use crate::format::{ChatTemplate, excerpt};
use crate::tokenizer::INFILL;
use settings::Settings;

/// Ranks up to here are exact as scores, which are `f32`, with room to spare.
const VOCAB_MAX: usize = 1 << 20;
/// The largest published tokenizer files are some 30 MB.
const FILE_BYTES_MAX: u64 = 1 << 29;

/// What SentencePiece writes for a space.
const SPACE_MARK: &str = "\u{2581}";

/// A tokenizer, ready to be written.
pub struct ImportedTokenizer {
    /// What `tokenizer.bin` will say.
    pub file: TokenizerFile,
    /// The file that the vocabulary was read from.
    pub source: PathBuf,
    /// What a person should know about the conversion, one line each.
    pub notes: Vec<String>,
}

/// Reads the tokenizer in the file or folder `path`.
///
/// A file called `tokenizer.model` or `tokenizer.json` is read with the settings beside it.
/// The vocabulary is padded to `vocab_size`, or else to what the model's config says.
///
/// # Errors
///
/// If there is no tokenizer, or it is damaged, or of a kind that LEAP cannot reproduce exactly.
pub fn import(path: &Path, vocab_size: Option<usize>) -> Result<ImportedTokenizer, Error> {
    let source = find(path)?;
    let bad = |what| Error::Bad { path: source.clone(), what };
    let (mut draft, settings) = match gguf::is_gguf(&source) {
        true => gguf::read(&source)?,
        false => read_draft(&source, settings_folder(path, &source), vocab_size)?,
    };
    let vocab_size = vocab_size.or(settings.vocab_size);
    draft.apply(&settings).map_err(bad)?;
    draft.fit(vocab_size).map_err(bad)?;
    let notes = std::mem::take(&mut draft.notes);
    let file = draft.finish().map_err(bad)?;
    Ok(ImportedTokenizer { file, source, notes })
}

/// Reads the tokenizer file `source` with the settings in `folder`.
fn read_draft(
    source: &Path,
    folder: Option<PathBuf>,
    vocab_size: Option<usize>,
) -> Result<(Draft, Settings), Error> {
    let settings = folder.as_deref().map(Settings::read).transpose()?.unwrap_or_default();
    let bytes = read(source)?;
    let draft = Draft::parse(&bytes, vocab_size.or(settings.vocab_size), &settings);
    let mut draft = draft.map_err(|what| Error::Bad { path: source.to_path_buf(), what })?;
    if let Some(folder) = folder.filter(|_| draft.kind == Kind::SentencePiece)
        && let Some(prefixes) = settings.prefixes_segments(&folder)?
    {
        draft.flags.prefix_every_segment = prefixes;
    }
    Ok((draft, settings))
}

/// Whether the checkpoint at `path`, a folder or a GGUF file, holds a tokenizer that [`import`]
/// would read.
pub fn is_in(path: &Path) -> bool {
    match path.is_dir() {
        true => find(path).is_ok(),
        false => gguf::has_tokenizer(path),
    }
}

fn find(path: &Path) -> Result<PathBuf, Error> {
    if !path.is_dir() {
        return Ok(path.to_path_buf());
    }
    let places = ["tokenizer.model", "tokenizer.json", "original/tokenizer.model"];
    // Meta's downloads of several models have one tokenizer, beside their folders.
    let shared = path.join("params.json").is_file().then_some("../tokenizer.model");
    let mut files = places.into_iter().chain(shared).map(|name| path.join(name));
    files.find(|file| file.is_file()).ok_or_else(|| Error::NotFound { folder: path.to_path_buf() })
}

fn settings_folder(path: &Path, source: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_path_buf());
    }
    let is_standard =
        ["tokenizer.model", "tokenizer.json"].map(Some).contains(&source.file_name()?.to_str());
    let folder = source.parent()?;
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    is_standard.then(|| folder.to_path_buf())
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let bytes = fs::metadata(path).map_err(io)?.len();
    if bytes > FILE_BYTES_MAX {
        let what = format!("{bytes} bytes are too many for a tokenizer");
        return Err(Error::Bad { path: path.to_path_buf(), what });
    }
    fs::read(path).map_err(io)
}

struct Token {
    bytes: Vec<u8>,
    score: f32,
    kind: TokenKind,
}

impl Token {
    fn unused() -> Token {
        Token { bytes: Vec::new(), score: 0.0, kind: TokenKind::Unused }
    }
}

/// A token that a converter added to the vocabulary.
#[derive(Clone, Debug, PartialEq)]
struct AddedToken {
    id: u32,
    name: String,
    /// Special tokens are markers; others stand for their text.
    is_special: bool,
}

/// A tokenizer in the making.
struct Draft {
    kind: Kind,
    flags: Flags,
    tokens: Vec<Token>,
    merges: Merges,
    bos: Option<u32>,
    stop_ids: Vec<u32>,
    chat: ChatTemplate,
    notes: Vec<String>,
}

impl Draft {
    fn new(kind: Kind, flags: Flags, tokens: Vec<Token>) -> Draft {
        Draft {
            kind,
            flags,
            tokens,
            merges: Merges::ByScore,
            bos: None,
            stop_ids: Vec::new(),
            chat: ChatTemplate::None,
            notes: Vec::new(),
        }
    }

    fn parse(
        bytes: &[u8],
        vocab_size: Option<usize>,
        settings: &Settings,
    ) -> Result<Draft, String> {
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        match (first, bytes.first()) {
            (None, _) => Err("the file is empty".to_owned()),
            (Some(b'{'), _) => hf_json::parse(bytes),
            // The first piece of a SentencePiece model: field 1, bytes.
            (_, Some(b'\n')) => sentencepiece::parse(bytes),
            _ => tiktoken::parse(bytes, vocab_size, settings.added.is_empty()),
        }
    }

    fn find(&self, name: &str) -> Option<u32> {
        let index = self.tokens.iter().position(|token| token.bytes == name.as_bytes())?;
        u32::try_from(index).ok()
    }

    /// Takes in what the files beside the tokenizer say.
    fn apply(&mut self, settings: &Settings) -> Result<(), String> {
        self.add(&settings.added)?;
        if settings.has_no_bos {
            self.bos = None;
        } else {
            let named = settings.bos.as_ref().and_then(|name| self.find(name));
            self.bos = named.or(settings.bos_id).or(self.bos);
        }
        let eos = settings.eos.as_ref().and_then(|name| self.find(name));
        let mut stop_ids: Vec<u32> = eos.into_iter().chain(settings.stop_ids.clone()).collect();
        if stop_ids.is_empty() {
            stop_ids.append(&mut self.stop_ids);
        }
        self.stop_ids = stop_ids;
        self.mark_infill_tokens();
        self.choose_template(settings);
        Ok(())
    }

    fn add(&mut self, added: &[AddedToken]) -> Result<(), String> {
        for AddedToken { id, name, is_special } in added {
            let index = *id as usize;
            if index >= VOCAB_MAX {
                return Err(format!("id {id} of the added token {:?} is too high", excerpt(name)));
            }
            if index >= self.tokens.len() {
                self.tokens.resize_with(index + 1, Token::unused);
            }
            let token = &mut self.tokens[index];
            let is_marker = matches!(token.kind, TokenKind::Unknown | TokenKind::Control);
            let is_known = shown(&token.bytes) == shown(name.as_bytes());
            if is_known && (is_marker || token.kind == TokenKind::Byte) {
                continue;
            }
            if !is_known && !token.bytes.is_empty() && !is_marker {
                let found = String::from_utf8_lossy(&token.bytes);
                return Err(format!(
                    "token {id} is {:?}, the added token {:?}",
                    excerpt(&found),
                    excerpt(name)
                ));
            }
            let kind = if *is_special { TokenKind::Control } else { TokenKind::UserDefined };
            *token = Token { bytes: name.clone().into_bytes(), score: 0.0, kind };
        }
        Ok(())
    }

    /// CodeLlama's model has the markers around what is to be filled in as ordinary pieces, which
    /// text could become; Hugging Face's folders declare them special.
    fn mark_infill_tokens(&mut self) {
        let pieces = INFILL
            .map(|name| self.find(name).or_else(|| self.find(&name.replace(SPACE_MARK, " "))));
        let [Some(prefix), Some(suffix), Some(middle), Some(end)] = pieces else { return };
        for (id, name) in [prefix, suffix, middle, end].into_iter().zip(INFILL) {
            let token = &mut self.tokens[id as usize];
            (token.bytes, token.kind) = (name.as_bytes().to_vec(), TokenKind::Control);
        }
        self.stop_ids.push(end);
    }

    fn choose_template(&mut self, settings: &Settings) {
        let has_marker = |name: &str| self.find(name).is_some();
        self.chat = match &settings.chat_template {
            Some(text) => {
                let known = template::recognise(text, has_marker("[INST]"));
                if known.is_none() {
                    self.notes.push(
                        "the chat template is none that LEAP knows; name one with --chat-template"
                            .to_owned(),
                    );
                }
                known.unwrap_or_default()
            }
            // A base model's folder has the file, and no template in it.
            None if settings.has_tokenizer_config => ChatTemplate::None,
            None => template::implied(has_marker),
        };
        for name in template::markers(self.chat) {
            // User text must not forge these, even where the file calls them plain tokens.
            if let Some(id) = self.find(name) {
                self.tokens[id as usize].kind = TokenKind::Control;
            }
        }
        let stops = template::stops(self.chat).iter().filter_map(|name| self.find(name));
        let stops: Vec<u32> = stops.collect();
        self.stop_ids.extend(stops);
    }

    /// Makes the vocabulary as long as the model's.
    fn fit(&mut self, vocab_size: Option<usize>) -> Result<(), String> {
        let have = self.tokens.len();
        let size = vocab_size.unwrap_or(have);
        if size > VOCAB_MAX || have > VOCAB_MAX {
            return Err(format!("{} tokens are more than {VOCAB_MAX}", size.max(have)));
        }
        if let Some(surplus) = self.tokens.get(size..) {
            let is_added = |t: &Token| {
                matches!(t.kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unused)
            };
            if !surplus.iter().all(is_added) {
                return Err(format!("the vocabulary has {have} tokens, the model only {size}"));
            }
            if have > size {
                let note = format!("{} added tokens are beyond the model's {size}", have - size);
                self.notes.push(note);
            }
        }
        self.tokens.resize_with(size, Token::unused);
        self.bos = self.bos.filter(|&id| (id as usize) < size);
        if let Some(id) = self.stop_ids.iter().find(|&&id| id as usize >= size) {
            return Err(format!("the end token {id} is not in the vocabulary of {size}"));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<TokenizerFile, String> {
        let mut stop_ids = Vec::new();
        for id in self.stop_ids.drain(..) {
            if !stop_ids.contains(&id) {
                stop_ids.push(id);
            }
        }
        if stop_ids.len() > STOP_IDS_MAX {
            return Err(format!("{} end tokens are more than {STOP_IDS_MAX}", stop_ids.len()));
        }
        let mut vocab = Vocab::default();
        for token in &self.tokens {
            vocab.push(&token.bytes, token.score, token.kind).map_err(|e| e.to_string())?;
        }
        Ok(TokenizerFile {
            kind: self.kind,
            flags: self.flags,
            vocab,
            merges: self.merges,
            bos: self.bos,
            stop_ids,
            chat: self.chat,
        })
    }
}

/// A token with `▁` read as the space that it stands for.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(SPACE_MARK, " ")
}

#[cfg(test)]
mod tests;
