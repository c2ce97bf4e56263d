//! `leap export`: converts a checkpoint to a model file.

use std::fs;
use std::io::{IsTerminal, Write};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::time::Instant;

use argh::{ArgsInfo, FromArgs};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Failure, model_files, note};
use crate::export::tokenizer::{self as import, ImportedTokenizer};
use crate::export::{Blame, Error, Options, Packing, Plan, Progress, Rows, Vocabulary};
use crate::format::model::Weights;
use crate::format::tokenizer::fingerprint;
use crate::kernels::{Isa, PACKED_GROUP_MAX};
use crate::sys::file::AtomicFile;
use crate::sys::signal;

/// Converts a checkpoint to a model file: a Hugging Face folder (config.json) or a Meta one
/// (params.json), with safetensors or PyTorch files, or a GGUF file.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "export")]
pub(super) struct Export {
    /// model file to write
    #[argh(positional)]
    out: PathBuf,
    /// folder of the checkpoint, Meta's or Hugging Face's
    #[argh(option, arg_name = "dir")]
    meta_llama: Option<PathBuf>,
    /// GGUF file of a Llama or Mistral model, or the first of its files
    #[argh(option, arg_name = "file")]
    gguf: Option<PathBuf>,
    /// version of the file: 1 for f32, 2 for int8 (default), 3 for 4 bits with the embedding and
    /// classifier in int8
    #[argh(option, default = "2")]
    version: u32,
    /// weights that share a scale where they are int8, and activations that do (default 64; 32
    /// from GGUF files in Q8_0, which are then copied exactly); halved, down to 32, until it
    /// divides the columns of every matrix
    #[argh(option)]
    group_size: Option<usize>,
    /// pack the weights for the kernels of one instruction set, which alone can run the file then
    /// and need no second copy: avx2, avxvnni, avx512vnni, neon, neondot, neoni8mm
    #[argh(option, from_str_fn(packable_isa))]
    isa: Option<Isa>,
    /// only some layers, for one node of a ring: 0..8, the last one excluded; with layer 0 go the
    /// embedding and the classifier
    #[argh(option, arg_name = "a..b", from_str_fn(layers))]
    layers: Option<Range<usize>>,
    /// longest context in tokens (default: the checkpoint's; a Meta folder does not say and
    /// gets 4096, for Llama 3 8192, for Llama 3.1 and later 131072)
    #[argh(option)]
    ctx: Option<usize>,
    /// read the file again and check it before it gets its name
    #[argh(switch)]
    verify: bool,
}

impl Export {
    pub(super) fn execute(self) -> Result<(), Failure> {
        let start = Instant::now();
        let options = self.options()?;
        signal::install()
            .map_err(|e| Failure::Runtime(format!("cannot listen for signals: {e}")))?;
        let (mut plan, source) = self.open(&options)?;
        if let Some(isa) = self.isa {
            pack_for(&mut plan, isa)?;
        }
        if let Some(layers) = &self.layers {
            plan.set_layers(layers.clone()).map_err(failure)?;
        }
        let tokenizer = self.tokenizer(&mut plan, source)?;
        for hint in plan.notes() {
            note(&format!("leap: {hint}"));
        }
        let bytes = write(&plan, &self.out)?;
        if let Some(tokenizer) = tokenizer {
            tokenizer.write()?;
        }
        let seconds = start.elapsed().as_secs_f64();
        note(&format!("leap: {}", self.summary(&plan, bytes, seconds)));
        Ok(())
    }

    /// The plan of the one checkpoint that is named, and its path.
    fn open(&self, options: &Options) -> Result<(Plan, &Path), Failure> {
        match (&self.meta_llama, &self.gguf) {
            (Some(dir), None) => Ok((Plan::open(dir, options).map_err(failure)?, dir)),
            (None, Some(file)) => {
                let mut plan = Plan::open_gguf(file, options).map_err(failure)?;
                if self.group_size.is_none() {
                    plan.keep_groups().map_err(failure)?;
                }
                Ok((plan, file))
            }
            _ => {
                let problem = "name one checkpoint: --meta-llama DIR or --gguf FILE";
                Err(Failure::Usage(problem.to_owned()))
            }
        }
    }

    /// Takes over what the checkpoint's tokenizer says. It is written as `tokenizer.bin` beside
    /// the model, or under the model's name if that is another model's.
    fn tokenizer(&self, plan: &mut Plan, source: &Path) -> Result<Option<TokenizerOut>, Failure> {
        if !import::is_in(source) {
            note("leap: the checkpoint has no tokenizer; make one with `leap tokenizer`");
            return Ok(None);
        }
        let vocab_size = plan.header().vocab_size;
        let imported = import::import(source, Some(vocab_size));
        let ImportedTokenizer { file, notes, .. } = imported.map_err(|e| Failure::input(&e))?;
        for hint in notes {
            note(&format!("leap: {hint}"));
        }
        let bytes = file.to_bytes();
        let vocabulary = Vocabulary {
            bos: file.bos,
            stop_ids: file.stop_ids,
            chat_template: file.chat,
            tokenizer_hash: fingerprint(&bytes),
        };
        plan.set_vocabulary(vocabulary).map_err(failure)?;
        let [own, common] = model_files::beside(&self.out);
        let is_free = fs::read(&common).map_or(true, |there| there == bytes);
        Ok(Some(TokenizerOut { path: if is_free { common } else { own }, bytes }))
    }

    fn options(&self) -> Result<Options, Failure> {
        let group = self.group_size.unwrap_or(64);
        let weights = match self.version {
            1 => Weights::F32,
            2 => Weights::Q8 { group },
            3 => Weights::Q4 { group, int8_embedding: true },
            other => {
                let problem =
                    format!("--version is {other}, wanted 1 (f32), 2 (int8) or 3 (4 bits)");
                return Err(Failure::Usage(problem));
            }
        };
        if self.ctx == Some(0) {
            return Err(Failure::Usage("--ctx is 0, wanted a number of tokens".to_owned()));
        }
        if self.isa.is_some() && weights == Weights::F32 {
            let problem = "--isa is for int8 and 4-bit weights: --version 2 or 3";
            return Err(Failure::Usage(problem.to_owned()));
        }
        Ok(Options { weights, ctx: self.ctx, verify: self.verify })
    }

    fn summary(&self, plan: &Plan, bytes: u64, seconds: f64) -> String {
        let weights = plan.header().weights;
        let packed = self.isa.map_or(String::new(), |isa| format!(", packed for {}", isa.name()));
        format!(
            "{}: version {} ({weights}{packed}), {:.1} MB{} in {seconds:.1} s",
            self.out.display(),
            weights.version(),
            bytes as f64 / 1e6,
            if self.verify { ", verified," } else { "" },
        )
    }
}

/// An instruction set whose kernels want weights in an order of their own.
fn packable_isa(name: &str) -> Result<Isa, String> {
    let is_packable = |isa: &Isa| isa.layout().is_some();
    Isa::from_name(name).filter(is_packable).ok_or_else(|| {
        let known = Isa::ALL.iter().filter(|isa| is_packable(isa));
        let known: Vec<&str> = known.map(|isa| isa.name()).collect();
        format!("{name:?} is no instruction set to pack for; there are {}", known.join(", "))
    })
}

/// Has `plan` pack matrices for the kernels of `isa`, which this CPU need not have.
fn pack_for(plan: &mut Plan, isa: Isa) -> Result<(), Failure> {
    let Some(layout) = isa.layout() else { return Ok(()) };
    let group = plan.header().weights.group().unwrap_or(0);
    if group > PACKED_GROUP_MAX {
        let problem = format!("--isa packs groups of up to {PACKED_GROUP_MAX}, not of {group}");
        return Err(Failure::Usage(problem));
    }
    let pack = move |rows: Rows<'_>, out: &mut [u8]| match rows {
        Rows::Q8(w) => layout.pack_q8(w, out),
        Rows::Q4(w) => layout.pack_q4(w, out),
    };
    let (layout, panel_rows) = (layout.id(), layout.panel_rows());
    plan.set_packing(Packing { layout, panel_rows, pack: Box::new(pack) }).map_err(failure)
}

/// `a..b`.
fn layers(value: &str) -> Result<Range<usize>, String> {
    let range = || {
        let (first, end) = value.split_once("..")?;
        Some(first.trim().parse().ok()?..end.trim().parse().ok()?)
    };
    range().ok_or_else(|| format!("{value:?} are no layers; wanted as in 0..8, the last excluded"))
}

/// A tokenizer file to write.
struct TokenizerOut {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl TokenizerOut {
    fn write(&self) -> Result<(), Failure> {
        let result = AtomicFile::create(&self.path).and_then(|mut file| {
            file.write_all(&self.bytes)?;
            file.commit()
        });
        let path = self.path.display();
        result.map_err(|e| Failure::Runtime(format!("cannot write {path}: {e}")))?;
        note(&format!("leap: {path}: its tokenizer"));
        Ok(())
    }
}

/// Writes the file, with a progress bar if somebody watches.
fn write(plan: &Plan, out: &Path) -> Result<u64, Failure> {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()),
        false => ProgressBar::hidden(),
    };
    if let Ok(style) = ProgressStyle::with_template(
        "{bar:30} {percent:>3} % {bytes}/{total_bytes} {binary_bytes_per_sec}, {eta} left",
    ) {
        bar.set_style(style);
    }
    let result = plan.write(out, |Progress { done_bytes, total_bytes }| {
        bar.set_length(total_bytes);
        bar.set_position(done_bytes);
        match signal::interrupted() {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    bar.finish_and_clear();
    result.map_err(failure)
}

fn failure(error: Error) -> Failure {
    match error.blame() {
        Blame::Input => Failure::input(&error),
        Blame::Request => Failure::Usage(error.to_string()),
        Blame::Runtime => Failure::runtime(&error),
    }
}
