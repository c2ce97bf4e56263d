//! `leap export --calibrate`: statistics of the matrices' inputs while the model reads a text.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::cli::checkpoint::CheckpointPath;
use crate::cli::progress::ProgressLine;
use crate::cli::{Failure, convert, note, options, packing};
use crate::engine::{CalibrateError, Engine, Options, calibrate};
use crate::export::{Calibration, ExportOptions};
use crate::format::model::{Header, Weights};
use crate::format::text_without_mark;
use crate::kernels::Isa;
use crate::model::Model;
use crate::quant::GROUP_DEFAULT;
use crate::sys::signal;
use crate::tokenizer::Tokenizer;

/// Tokens that the model reads at a time, unless its context is shorter.
const WINDOW: usize = 512;

/// Most tokens of a text that are read: more would gain little, and take memory.
const TOKENS_MAX: usize = 32 * WINDOW;

/// The text of `--calibrate default`: prose of a few languages, code, lists and conversations, written for
/// this purpose and put into the public domain.
static TEXT: &str = include_str!("text.txt");

/// A text to calibrate with.
pub(super) struct Text {
    /// File of the text; `None` if it is built in.
    path: Option<PathBuf>,
    text: String,
}

impl Text {
    /// Reads `file`; `default` is the built-in text.
    pub(super) fn read(file: &Path) -> Result<Text, Failure> {
        if file == Path::new("default") {
            return Ok(Text { path: None, text: TEXT.to_owned() });
        }
        let bytes = fs::read(file).map_err(|e| Failure::unreadable(file, &e))?;
        match String::from_utf8(bytes) {
            Ok(text) => {
                let text = text_without_mark(&text).to_owned();
                Ok(Text { path: Some(file.to_owned()), text })
            }
            Err(_) => Err(Failure::Input(format!("{}: is not UTF-8", file.display()))),
        }
    }

    /// Cuts the text into windows, each after a BOS if the model has one. The last one counts if it fills a quarter of
    /// a window.
    fn windows(&self, header: &Header, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>, Failure> {
        let window = WINDOW.min(header.max_seq_len);
        let bos = header.bos.as_slice();
        let mut ids = Vec::new();
        tokenizer.encode(&self.text, &mut ids);
        if ids.len() + bos.len() < window {
            let name = self.path.as_deref().unwrap_or(Path::new("the built-in text")).display();
            return Err(Failure::Input(format!(
                "{name}: has {} tokens, a calibration needs {window} at least",
                ids.len()
            )));
        }
        if ids.len() > TOKENS_MAX {
            note(&format!(
                "leap: only the first {TOKENS_MAX} of the text's {} tokens are used",
                ids.len()
            ));
            ids.truncate(TOKENS_MAX);
        }
        let texts = ids.chunks((window - bos.len()).max(1));
        let windows = texts.map(|text| [bos, text].concat());
        Ok(windows.filter(|ids| ids.len() >= window.div_ceil(4).max(2)).collect())
    }
}

/// Runs the model of `checkpoint` over `text` with int8 weights, which lie in a file in the folder of `out` meanwhile.
/// Int8 changes activations little compared with the choice of the text, and gives every machine the same result.
/// `header` is that of the file to be written, `tokenizer` its `tokenizer.bin`.
pub(super) fn run(
    text: &Text,
    (checkpoint, header, tokenizer): (&CheckpointPath, &Header, &[u8]),
    ctx: Option<usize>,
    out: &Path,
) -> Result<Calibration, Failure> {
    let tokenizer = Tokenizer::from_bytes(tokenizer, Some(header.vocab_size));
    let windows = text.windows(header, &tokenizer.map_err(|e| Failure::input(&e))?)?;
    let unwritable = |e| Failure::Runtime(format!("cannot write {}: {e}", out.display()));
    let mut calibration = Calibration::create(out).map_err(unwritable)?;
    // Checks this before a long conversion.
    let kernels = Engine::kernels(None, options::isa_from_environment()?);
    let isa = kernels.map_err(options::engine_failure)?.isa();
    let model = in_int8(checkpoint, ctx, isa, out)?;
    let bytes = model.header().tensors_end();
    let mut shown = ProgressLine::new("calibrating", false);
    let options = Options { isa: Some(isa), ..Options::default() };
    let result = calibrate(model, &windows, &options, &mut calibration, |done, total| {
        shown.update((bytes as u128 * u128::from(done) / u128::from(total)) as u64, bytes);
        match signal::interrupted() {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    drop(shown);
    let n_lacking = result.map_err(|error| failure(&error))?;
    let n_tokens: usize = windows.iter().map(Vec::len).sum();
    note(&format!("leap: calibrated with {n_tokens} tokens"));
    if n_lacking > 0 {
        note(&format!(
            "leap: {n_lacking} inputs of matrices occur too rarely in the text; their weights are encoded as without \
             a calibration"
        ));
    }
    Ok(calibration)
}

/// The model in int8, packed for this machine, in a file that is removed at once: the mapping keeps it until the model
/// is dropped.
fn in_int8(
    checkpoint: &CheckpointPath,
    ctx: Option<usize>,
    isa: Isa,
    out: &Path,
) -> Result<Model, Failure> {
    let weights = Weights::Q8 { group: GROUP_DEFAULT };
    let options = ExportOptions { weights, ctx, verify: false };
    let mut plan = convert::open(checkpoint, &options)?;
    packing::pack_for(&mut plan, isa)?;
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let path = out.with_file_name(format!(".{name}.{}.int8", std::process::id()));
    convert::write_model(&plan, &path, false)?;
    let model = Model::open(&path);
    // The mapping keeps the bytes of the removed file.
    let removed = fs::remove_file(&path);
    let model = model.map_err(|e| Failure::runtime(&e))?;
    removed.map_err(|e| Failure::Runtime(format!("cannot remove {}: {e}", path.display())))?;
    Ok(model)
}

fn failure(error: &CalibrateError) -> Failure {
    match error {
        CalibrateError::Forward(_) => Failure::input(error),
        _ => Failure::runtime(error),
    }
}
