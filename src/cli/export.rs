//! `leap export`: converts a checkpoint to a model file, or to a GGUF file.

mod calibrate;
#[cfg(feature = "gguf")]
mod gguf;

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use argh::{ArgsInfo, FromArgs};

use self::calibrate::Text;
use super::checkpoint::{self, CheckpointPath};
use super::{Failure, convert, model_files, names, note, options, packing};
use crate::export::{ExportOptions, ExportPlan};
use crate::format::model::{Ends, SEQ_LEN_MAX, Weights};
use crate::kernels::Isa;
use crate::quant::GROUP_DEFAULT;
use crate::sys::signal;

/// Converts a checkpoint to a model file: a Hugging Face folder (config.json) or a Meta one
/// (params.json), with safetensors or PyTorch files, or a GGUF file.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "export")]
pub(super) struct Export {
    /// model file to write; a GGUF file, for other programs, if its name ends in .gguf
    #[argh(positional)]
    out: PathBuf,
    /// folder of the checkpoint, Meta's or Hugging Face's, or its name, as in hf:ORG/REPO
    #[argh(option, arg_name = "dir")]
    meta_llama: Option<PathBuf>,
    /// GGUF file of a model, the first of its files, or its name, as in hf:ORG/REPO:Q8_0
    #[argh(option, arg_name = "file")]
    gguf: Option<PathBuf>,
    /// version of the file: 1 for f32, 2 for int8 (default), 3 for 4-bit weights of 5 bits each, 4 for
    /// those of 4.5; of 3 and 4 the embedding and classifier are int8. 5 keeps the weights of a GGUF file
    /// exactly. In a GGUF file 2 is Q8_0, 3 is Q4_1, and 4 is Q4_K, with Q4_1 where that does not fit
    #[argh(option, default = "2")]
    version: u32,
    /// bits of a weight of the embedding and classifier of version 4: 8 (default), or 6, which takes a
    /// quarter less of them and is further from the unquantised model
    #[argh(option, arg_name = "bits", from_str_fn(options::embedding_bits))]
    embedding_bits: Option<Ends>,
    /// int8 weights that share a scale, and activations too (default 32, in which GGUF's Q8_0 is copied
    /// exactly); halved, down to 32, until it divides the columns of every matrix
    #[argh(option, from_str_fn(options::count))]
    group_size: Option<usize>,
    /// pack the weights for the kernels of one instruction set, which alone can run the file then
    /// and need no second copy (not with version 1): avx2, avxvnni, avx512vnni, neon, neondot, neoni8mm
    #[argh(option, from_str_fn(packing::packable_isa))]
    isa: Option<Isa>,
    /// only some layers, for one node of a ring: 0..8, the last one excluded; with layer 0 go the
    /// embedding and the classifier
    #[argh(option, arg_name = "a..b", from_str_fn(layers))]
    layers: Option<Range<usize>>,
    /// minimise the error of the weights' outputs on a text: a UTF-8 file, or `default`, a built-in one;
    /// takes minutes, and room for the model as f32 twice beside the output. The file is no larger and the
    /// model no slower
    #[argh(option, arg_name = "file")]
    calibrate: Option<PathBuf>,
    /// longest context in tokens (default: the checkpoint's; a Meta folder does not say and
    /// gets 4096, for Llama 3 8192, for Llama 3.1 and later 131072)
    #[argh(option, from_str_fn(options::count))]
    ctx: Option<usize>,
    /// read the file again and check it before it gets its name
    #[argh(switch)]
    verify: bool,
}

impl Export {
    pub(super) fn execute(self) -> Result<(), Failure> {
        let start = Instant::now();
        let is_gguf = self.out.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
        if is_gguf {
            self.refuse_for_gguf()?;
        }
        let options = self.options()?;
        let text = self.calibrate.as_deref().map(Text::read).transpose()?;
        signal::install()
            .map_err(|e| Failure::Runtime(format!("cannot listen for signals: {e}")))?;
        let checkpoint = self.checkpoint()?;
        let mut plan = convert::open(&checkpoint, &options)?;
        if let Some(isa) = self.isa {
            packing::pack_for(&mut plan, isa)?;
        }
        if let Some(layers) = &self.layers {
            plan.set_layers(layers.clone()).map_err(Failure::export)?;
        }
        let tokenizer = convert::tokenizer(&mut plan, checkpoint.path(), false)?;
        match tokenizer {
            None if is_gguf => note("leap: the checkpoint has no tokenizer; nor has the GGUF file"),
            None => note("leap: the checkpoint has no tokenizer; make one with `leap tokenizer`"),
            Some(_) => {}
        }
        for hint in plan.notes() {
            note(&format!("leap: {hint}"));
        }
        if let Some(text) = text {
            self.calibrate(&text, &checkpoint, &mut plan, tokenizer.as_deref())?;
        }
        #[cfg(feature = "gguf")]
        if is_gguf {
            return self.write_gguf(&plan, tokenizer.as_deref(), start);
        }
        let bytes = convert::write_model(&plan, &self.out, false)?;
        if let Some(tokenizer) = tokenizer {
            let path = self.tokenizer_path(&tokenizer);
            convert::write_file(&path, &tokenizer)?;
            note(&format!("leap: {}: its tokenizer", path.display()));
        }
        let seconds = start.elapsed().as_secs_f64();
        note(&format!("leap: {}", self.summary(&plan, bytes, seconds)));
        Ok(())
    }

    /// Refuses a GGUF file, which this program cannot write.
    #[cfg(not(feature = "gguf"))]
    fn refuse_for_gguf(&self) -> Result<(), Failure> {
        let problem = "this program writes no GGUF files: it was built without the feature `gguf`";
        Err(Failure::Usage(problem.to_owned()))
    }

    /// Sets up `plan` to encode weights for the activations that `text` causes.
    fn calibrate(
        &self,
        text: &Text,
        checkpoint: &CheckpointPath,
        plan: &mut ExportPlan,
        tokenizer: Option<&[u8]>,
    ) -> Result<(), Failure> {
        let Some(tokenizer) = tokenizer else {
            let problem = "--calibrate needs the checkpoint's tokenizer, and it has none";
            return Err(Failure::Input(problem.to_owned()));
        };
        let about = (checkpoint, plan.header(), tokenizer);
        let calibration = calibrate::run(text, about, self.ctx, &self.out)?;
        plan.set_calibration(calibration);
        Ok(())
    }

    /// The one checkpoint that the options name.
    fn checkpoint(&self) -> Result<CheckpointPath, Failure> {
        match (&self.meta_llama, &self.gguf) {
            (Some(dir), None) => Ok(CheckpointPath::Folder(names::path(dir)?)),
            (None, Some(file)) => {
                Ok(CheckpointPath::Gguf(checkpoint::gguf_at(&names::path(file)?)?))
            }
            _ => {
                let problem = "name one checkpoint: --meta-llama DIR or --gguf FILE";
                Err(Failure::Usage(problem.to_owned()))
            }
        }
    }

    /// Path for the tokenizer: `tokenizer.bin` beside the model, or under the model's name if that file belongs to
    /// another model.
    fn tokenizer_path(&self, bytes: &[u8]) -> PathBuf {
        let [own, common] = model_files::beside(&self.out);
        let is_free = fs::read(&common).map_or(true, |there| there == bytes);
        if is_free { common } else { own }
    }

    fn options(&self) -> Result<ExportOptions, Failure> {
        let group = self.group_size.unwrap_or(GROUP_DEFAULT);
        let weights = options::weights(self.version, group, self.embedding_bits)?;
        let of_quantised = [
            (self.group_size.is_some(), "--group-size"),
            (self.calibrate.is_some(), "--calibrate"),
        ];
        let given = of_quantised.into_iter().find(|(is_given, _)| *is_given);
        if let (Some((_, option)), Weights::F32 | Weights::Ggml) = (given, weights) {
            let problem = format!("{option} is for int8 and 4-bit weights: --version 2, 3 or 4");
            return Err(Failure::Usage(problem));
        }
        if self.isa.is_some() && weights == Weights::F32 {
            let problem =
                "--isa is for int8 weights, 4-bit ones and those of GGUF files: --version 2 to 5";
            return Err(Failure::Usage(problem.to_owned()));
        }
        if let Some(ctx) = self.ctx.filter(|ctx| *ctx > SEQ_LEN_MAX) {
            let problem =
                format!("--ctx: context of {ctx} tokens, a file allows 1 to {SEQ_LEN_MAX}");
            return Err(Failure::Usage(problem));
        }
        Ok(ExportOptions { weights, ctx: self.ctx, verify: self.verify })
    }

    fn summary(&self, plan: &ExportPlan, bytes: u64, seconds: f64) -> String {
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

/// Parses `a..b`.
fn layers(value: &str) -> Result<Range<usize>, String> {
    let range = || {
        let (first, end) = value.split_once("..")?;
        Some(first.trim().parse().ok()?..end.trim().parse().ok()?)
    };
    range().ok_or_else(|| format!("{value:?} are no layers; wanted as in 0..8, the last excluded"))
}
