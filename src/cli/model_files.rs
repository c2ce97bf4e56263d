//! Finds the model and its tokenizer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(feature = "tools")]
use super::checkpoint::CheckpointPath;
use super::checkpoint::load_failure;
use super::options::ChatChoice;
use super::{Failure, warn};
#[cfg(feature = "tools")]
use super::{convert, names};
use crate::format::model::Header;
use crate::format::tokenizer::fingerprint;
use crate::format::{ChatTemplate, FormatError, foreign_kind, stand_in};
use crate::model::{Model, Share};
use crate::sys::file::read_file;
use crate::tokenizer::Tokenizer;

/// A model and the tokenizer that belongs to it.
pub(super) struct Loaded {
    pub(super) model: Arc<Model>,
    pub(super) tokenizer: Arc<Tokenizer>,
    /// Template of conversations.
    pub(super) chat_template: ChatTemplate,
    /// Name of the model.
    pub(super) name: String,
}

impl Loaded {
    /// Sets the template that the user chose.
    pub(super) fn choose_template(&mut self, choice: Option<&ChatChoice>) -> Result<(), Failure> {
        let in_use = || Failure::Runtime("the tokenizer is in use".to_owned());
        let tokenizer = Arc::get_mut(&mut self.tokenizer).ok_or_else(in_use)?;
        let chosen = ChatChoice::apply(choice, tokenizer)?;
        self.chat_template = chosen.unwrap_or(self.chat_template);
        Ok(())
    }
}

/// Opens the model at `path`, or the built-in one.
pub(super) fn load(path: Option<&Path>, tokenizer: Option<&Path>) -> Result<Loaded, Failure> {
    let whole = |model: Model| {
        model.check_whole().map_err(|e| Failure::input(&e))?;
        Ok(((), model))
    };
    Ok(load_with(path, tokenizer, whole)?.1)
}

/// Loads a model like [`load`]; `narrow` may reduce it to a part, and returns whose part it is.
pub(super) fn load_with<T>(
    path: Option<&Path>,
    tokenizer: Option<&Path>,
    narrow: impl FnOnce(Model) -> Result<(T, Model), Failure>,
) -> Result<(T, Loaded), Failure> {
    let model = self::model(path)?;
    let (tokenizer, name) = match path {
        Some(path) => {
            let tokenizer = self::tokenizer(path, model.header(), tokenizer)?;
            (tokenizer, path.display().to_string())
        }
        None => (demo_tokenizer(model.header(), tokenizer)?, "demo".to_owned()),
    };
    let chat_template = model.header().chat_template;
    let (whose, model) = narrow(model)?;
    let (model, tokenizer) = (Arc::new(model), Arc::new(tokenizer));
    Ok((whose, Loaded { model, tokenizer, chat_template, name }))
}

/// The model file that stands for `path`: a checkpoint is converted as `leap run` does it.
#[cfg(feature = "tools")]
pub(super) fn converted(path: &Path, is_quiet: bool) -> Result<PathBuf, Failure> {
    let wanted = convert::Wanted {
        version: None,
        ends: None,
        has_boards: false,
        needs_tokenizer: false,
        is_quiet,
    };
    let path = names::path(path)?;
    let found = convert::model_file(Some(path.clone()), wanted)?;
    Ok(found.unwrap_or(path))
}

/// The model file that stands for `path`; programs without `tools` convert no checkpoint.
#[cfg(not(feature = "tools"))]
pub(super) fn converted(path: &Path, _is_quiet: bool) -> Result<PathBuf, Failure> {
    Ok(path.to_owned())
}

/// The header of the model at `path`; a checkpoint has that of its conversion, which is not made.
pub(super) fn header(path: &Path) -> Result<Header, Failure> {
    Ok(look(path)?.0)
}

/// The header of the model at `path` like [`header`], and its fingerprint if that is known without reading the file.
pub(super) fn look(path: &Path) -> Result<(Header, Option<u64>), Failure> {
    #[cfg(feature = "tools")]
    let path = &*names::path(path)?;
    #[cfg(feature = "tools")]
    if let Some(checkpoint) = CheckpointPath::at(path) {
        return Ok((convert::planned(&checkpoint, None, None)?.header().clone(), None));
    }
    let model = open_whole(path)?;
    Ok((model.header().clone(), model.file().known_fingerprint()))
}

/// The model at `path`, with any range of layers, or the built-in one; without a tokenizer.
pub(super) fn model(path: Option<&Path>) -> Result<Model, Failure> {
    match path {
        Some(path) => Model::open_part(path).map_err(|e| load_failure(&e)),
        None => demo_model(),
    }
}

/// The model at `path`, which must have all its layers.
pub(super) fn open_whole(path: &Path) -> Result<Model, Failure> {
    Model::open(path).map_err(|e| load_failure(&e))
}

/// `model` with the block behind its last layer that guesses, if it is a whole model that has one.
pub(super) fn with_next(model: Arc<Model>) -> Result<Arc<Model>, Failure> {
    if *model.share() != Share::whole(model.header()) {
        return Ok(model);
    }
    let next = model.with_next().map_err(|e| Failure::runtime(&e))?;
    Ok(next.map_or(model, Arc::new))
}

/// The tokenizer of the model at `model`: the given one, else the one beside the model.
pub(super) fn tokenizer(
    model: &Path,
    header: &Header,
    given: Option<&Path>,
) -> Result<Tokenizer, Failure> {
    if let Some(path) = given {
        let bytes = read(path)?;
        let tokenizer = parse(path, &bytes, header.vocab_size)?;
        if header.tokenizer_hash != 0 && fingerprint(&bytes) != header.tokenizer_hash {
            let path = path.display();
            warn(&format!("{path} is not the tokenizer that the model was exported with"));
        }
        return Ok(tokenizer);
    }
    let candidates = beside(model);
    for path in candidates.iter().filter(|path| path.is_file()) {
        let bytes = read(path)?;
        if header.tokenizer_hash == 0 || fingerprint(&bytes) == header.tokenizer_hash {
            return parse(path, &bytes, header.vocab_size);
        }
    }
    let wanted: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
    let fitting = if candidates.iter().any(|path| path.is_file()) { "fitting " } else { "" };
    Err(Failure::Input(format!(
        "no {fitting}tokenizer beside the model ({}); name one with -t, or make one with `leap tokenizer`",
        wanted.join(", ")
    )))
}

/// Paths where the tokenizer of the model at `model` may lie: under the model's name, or the common one.
pub(super) fn beside(model: &Path) -> [PathBuf; 2] {
    [model.with_extension("tokenizer.bin"), model.with_file_name("tokenizer.bin")]
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = read_file(path).map_err(|e| Failure::unreadable(path, &e))?;
    match stand_in(&bytes) {
        Some(what) => Err(Failure::Input(format!("{}: {what}", path.display()))),
        None => Ok(bytes),
    }
}

fn parse(path: &Path, bytes: &[u8], vocab_size: usize) -> Result<Tokenizer, Failure> {
    Tokenizer::from_bytes(bytes, Some(vocab_size)).map_err(|e| {
        let why = match foreign_kind(bytes) {
            Some(kind) => format!("it is {kind}; `leap tokenizer` makes a tokenizer.bin"),
            None => e.to_string(),
        };
        Failure::Input(format!("cannot use tokenizer {}: {why}", path.display()))
    })
}

/// The model that is built into the program, if one is.
#[cfg(feature = "demo")]
pub(super) const BUILT_IN: Option<fn() -> Result<Model, FormatError>> = Some(|| {
    /// Gives the bytes the alignment that weights need.
    #[repr(C, align(128))]
    struct Aligned<T: ?Sized>(T);
    static MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!("../../models/demo.bin"));

    Model::from_static(&MODEL.0)
});

/// The model that is built into the program, if one is.
#[cfg(not(feature = "demo"))]
pub(super) const BUILT_IN: Option<fn() -> Result<Model, FormatError>> = None;

fn demo_model() -> Result<Model, Failure> {
    let none = || Failure::Usage("name a model file; this program has none built in".to_owned());
    BUILT_IN.ok_or_else(none)?().map_err(|e| Failure::input(&e))
}

#[cfg(feature = "demo")]
fn demo_tokenizer(header: &Header, given: Option<&Path>) -> Result<Tokenizer, Failure> {
    static TOKENIZER: &[u8] = include_bytes!("../../models/demo.tokenizer.bin");
    match given {
        Some(_) => Err(Failure::Usage("the built-in model brings its own tokenizer".to_owned())),
        None => parse(Path::new("of the built-in model"), TOKENIZER, header.vocab_size),
    }
}

#[cfg(not(feature = "demo"))]
fn demo_tokenizer(_header: &Header, _given: Option<&Path>) -> Result<Tokenizer, Failure> {
    Err(Failure::Usage("name a model file; this program has none built in".to_owned()))
}
