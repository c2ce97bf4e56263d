//! Finds a place in the model file for every tensor of a checkpoint.

use std::collections::HashSet;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use super::Error;
use super::checkpoint::{Checkpoint, INT8_GROUP, Source};
use super::config::{Config, ROPE_FREQS};
use super::writer::{self, Job, Packing, Progress};
use crate::format::ChatTemplate;
use crate::format::model::{
    Header, Packed, Part, STOP_IDS_MAX, Tensor, TensorId, TensorKind, Weights,
};
use crate::quant;

/// What the model file should be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Form of the matrices. A group is halved until it divides the columns of every matrix.
    pub weights: Weights,
    /// Longest context, instead of the checkpoint's.
    pub ctx: Option<usize>,
    /// Whether to read the file again and check it before it gets its name.
    pub verify: bool,
}

/// What the tokenizer says about a model.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// Id that starts a text.
    pub bos: Option<u32>,
    /// Ids that end an answer.
    pub stop_ids: Vec<u32>,
    /// How conversations are written.
    pub chat_template: ChatTemplate,
    /// Fingerprint of the tokenizer file.
    pub tokenizer_hash: u64,
}

/// A checkpoint whose every tensor has its place in a model file.
pub struct Plan {
    checkpoint: Checkpoint,
    config_path: PathBuf,
    inputs: Vec<PathBuf>,
    naming: Naming,
    header: Header,
    packing: Option<Packing>,
    part: Option<Part>,
    verify: bool,
    notes: Vec<String>,
}

/// How a family of checkpoints names its tensors and orders the rows of wq and wk: Hugging Face
/// has each head's RoPE pairs as two halves, the others have them side by side.
#[derive(Clone, Copy)]
enum Naming {
    HuggingFace,
    Meta,
    Gguf,
}

impl Plan {
    /// Reads the checkpoint in `dir`: a Hugging Face folder (`config.json`) or a Meta one
    /// (`params.json`), with safetensors or PyTorch files. A folder with both is read as the
    /// former if it has weights as Hugging Face names them.
    ///
    /// # Errors
    /// Names the file, field or tensor that is missing, damaged or not supported.
    pub fn open(dir: &Path, options: &Options) -> Result<Plan, Error> {
        Plan::new(open_folder(dir)?, options)
    }

    /// Reads a GGUF file, or the first of the files that a model is split into.
    ///
    /// # Errors
    /// As [`Plan::open`].
    pub fn open_gguf(path: &Path, options: &Options) -> Result<Plan, Error> {
        let checkpoint = Checkpoint::gguf(path)?;
        let config = Config::gguf(&checkpoint)?;
        Plan::new((Naming::Gguf, checkpoint, config), options)
    }

    fn new(opened: (Naming, Checkpoint, Config), options: &Options) -> Result<Plan, Error> {
        let (naming, checkpoint, config) = opened;
        let Config { mut header, is_tied, path, files, mut warnings } = config;
        if let Some(ctx) = options.ctx {
            header.max_seq_len = ctx;
        }
        header.shared_classifier = is_shared(naming, &checkpoint, is_tied, &mut warnings)?;
        // Before the group is chosen: a bad dimension is the cause of a group that does not fit.
        check(&header, &path)?;
        header.weights = weights(options.weights, &header, &mut warnings)?;
        let mut inputs = files;
        inputs.extend(checkpoint.paths().map(Path::to_owned));
        let (verify, config_path) = (options.verify, path);
        let (packing, part, notes) = (None, None, warnings);
        let mut plan =
            Plan { checkpoint, config_path, inputs, naming, header, packing, part, verify, notes };
        check(&plan.header, &plan.config_path)?;
        plan.note_ignored()?;
        Ok(plan)
    }

    /// The header the file will have if it holds all layers.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What a user should know about this export, in sentences without a full stop.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Takes the group size in which all matrices are int8 already, if the file is to be int8 and
    /// they are: their codes are then copied, not rounded a second time.
    ///
    /// # Errors
    /// As [`Plan::open`].
    pub fn keep_groups(&mut self) -> Result<(), Error> {
        let mut are_int8 = true;
        for job in self.jobs() {
            let job = job?;
            are_int8 &= job.tensor.id.kind.is_norm() || job.source.is_int8();
        }
        if let (true, Weights::Q8 { group }) = (are_int8, &mut self.header.weights) {
            *group = INT8_GROUP;
            self.notes.push(format!("groups of {INT8_GROUP}, as in the file: codes are copied"));
        }
        Ok(())
    }

    /// Adds what the tokenizer says. Its bos and stop ids count only if the checkpoint's
    /// configuration names none.
    ///
    /// # Errors
    /// If an id is outside the model's vocabulary or there are too many stop ids.
    pub fn set_vocabulary(&mut self, vocabulary: Vocabulary) -> Result<(), Error> {
        self.header.bos = self.header.bos.or(vocabulary.bos);
        if self.header.stop_ids.is_empty() {
            self.header.stop_ids = vocabulary.stop_ids;
        }
        self.header.chat_template = vocabulary.chat_template;
        self.header.tokenizer_hash = vocabulary.tokenizer_hash;
        check(&self.header, &self.config_path)
    }

    /// Has the matrices packed as some kernels want them: those can use them straight from the
    /// file, others not at all.
    ///
    /// # Errors
    /// If the weights stay f32.
    pub fn set_packing(&mut self, packing: Packing) -> Result<(), Error> {
        let Packing { layout, panel_rows, .. } = packing;
        // The fingerprint is known when every tensor has been converted.
        self.header.packed = Some(Packed { layout, panel_rows, fingerprint: 0 });
        self.packing = Some(packing);
        check(&self.header, &self.config_path)
    }

    /// Has only these layers written, for one node of a ring: with the first of them also the
    /// embedding, the final norm and the classifier. All tensors are converted nevertheless, as
    /// the file says which model it is a part of.
    ///
    /// # Errors
    /// If the model has no such layers.
    pub fn set_layers(&mut self, layers: Range<usize>) -> Result<(), Error> {
        let n_layers = self.header.n_layers;
        if layers.start >= layers.end || layers.end > n_layers {
            return Err(Error::Layers { layers, n_layers });
        }
        // The fingerprint is known when every tensor has been converted.
        let has_ends = layers.start == 0;
        let part = Part { layers, has_ends, fingerprint: 0 };
        self.part = Some(part).filter(|part| part.layers.len() < n_layers);
        Ok(())
    }

    /// Writes the model file `out`, which appears under its name only when it is complete,
    /// and returns its length. `progress` is told how far it is, at least ten times a second,
    /// and may end the work.
    ///
    /// # Errors
    /// If a weight is no finite number, `out` cannot be written or does not read back, or
    /// `progress` ended the work. No file is left then, and an older `out` stays.
    pub fn write(
        &self,
        out: &Path,
        progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<u64, Error> {
        self.refuse_input_as_output(out)?;
        let mut jobs: Vec<Job<'_>> = self.jobs().collect::<Result<_, Error>>()?;
        let header = Header { part: self.part.clone(), ..self.header.clone() };
        place(&mut jobs, &header);
        let packing = self.packing.as_ref();
        writer::write((&header, packing), &jobs, out, self.verify, progress)
    }

    /// Each tensor of the whole model with its source.
    fn jobs(&self) -> impl Iterator<Item = Result<Job<'_>, Error>> {
        self.header.tensors().map(|tensor| {
            let source = self.checkpoint.tensor(&self.naming.name(tensor.id))?;
            check_shape(&source, &tensor)?;
            let is_halved = matches!(self.naming, Naming::HuggingFace)
                && matches!(tensor.id.kind, TensorKind::Wq | TensorKind::Wk);
            let halved_heads = is_halved.then_some(self.header.head_dim);
            let panel_rows =
                self.header.packing_of(tensor.id.kind).map_or(1, |packed| packed.panel_rows);
            Ok(Job { tensor, source, halved_heads, panel_rows, is_held: true })
        })
    }

    /// Refuses tensors without a place in the model file; notes those that need none.
    fn note_ignored(&mut self) -> Result<(), Error> {
        let mut used = HashSet::new();
        for job in self.jobs() {
            used.insert(job?.source.name);
        }
        let mut ignored = Vec::new();
        let unused = |name: &&str| !used.contains(name) && *name != ROPE_FREQS;
        for name in self.checkpoint.names().filter(unused) {
            if !self.is_ignored(name) {
                let path = self.checkpoint.path_of(name).unwrap_or(self.checkpoint.dir());
                return Err(Error::BadTensor {
                    name: name.to_owned(),
                    path: path.to_owned(),
                    problem: "has no place in this model".to_owned(),
                });
            }
            ignored.push(name);
        }
        if !ignored.is_empty() {
            self.notes.push(format!("not needed, left out: {}", ignored.join(", ")));
        }
        Ok(())
    }

    /// Whether the model can be computed without this tensor.
    fn is_ignored(&self, name: &str) -> bool {
        let is_classifier = name == self.naming.name(CLASSIFIER);
        let is_frequencies = name.ends_with(".rotary_emb.inv_freq") || name == "rope.freqs";
        is_frequencies || (is_classifier && self.header.shared_classifier)
    }

    fn refuse_input_as_output(&self, out: &Path) -> Result<(), Error> {
        let Ok(found) = fs::canonicalize(out) else { return Ok(()) };
        let is_input = |input: &PathBuf| fs::canonicalize(input).is_ok_and(|input| input == found);
        match self.inputs.iter().any(is_input) {
            true => Err(Error::Output {
                path: out.to_owned(),
                problem: "it is a file of the checkpoint".to_owned(),
            }),
            false => Ok(()),
        }
    }
}

const EMBEDDING: TensorId = TensorId { kind: TensorKind::Embedding, layer: 0 };
const CLASSIFIER: TensorId = TensorId { kind: TensorKind::Classifier, layer: 0 };

fn open_folder(dir: &Path) -> Result<(Naming, Checkpoint, Config), Error> {
    let has = |name: &str| dir.join(name).exists();
    if has("config.json") && (!has("params.json") || Checkpoint::is_hugging_face(dir)?) {
        // The configuration first: it says best what kind of model this is.
        let config = Config::hugging_face(dir)?;
        return Ok((Naming::HuggingFace, Checkpoint::hugging_face(dir)?, config));
    }
    if has("params.json") {
        let checkpoint = Checkpoint::meta(dir)?;
        let config = Config::meta(&checkpoint)?;
        return Ok((Naming::Meta, checkpoint, config));
    }
    let problem = match () {
        () if dir.is_dir() => "neither config.json nor params.json in this folder",
        () if dir.exists() => "is a file; name the folder it is in",
        () => "no such folder",
    };
    Err(Error::BadFile { path: dir.to_owned(), problem: problem.to_owned() })
}

/// Gives the jobs of the whole model their places in the file of `header`, if they have one.
fn place(jobs: &mut [Job<'_>], header: &Header) {
    let mut held = header.tensors().peekable();
    for job in jobs {
        match held.next_if(|held| held.id == job.tensor.id) {
            Some(tensor) => job.tensor = tensor,
            None => job.is_held = false,
        }
    }
}

/// Whether the embedding is the classifier too.
///
/// Checkpoints of tied models may still hold a copy of the embedding as the classifier, and
/// fine-tuned ones a classifier that has come to differ, whatever the configuration says.
fn is_shared(
    naming: Naming,
    checkpoint: &Checkpoint,
    is_tied: Option<bool>,
    notes: &mut Vec<String>,
) -> Result<bool, Error> {
    let Some(classifier) = checkpoint.find(&naming.name(CLASSIFIER))? else {
        // Where the configuration says it is not shared, the missing tensor is an error.
        return Ok(is_tied != Some(false));
    };
    if is_tied == Some(false) {
        return Ok(false);
    }
    let is_copy = classifier.equals(&checkpoint.tensor(&naming.name(EMBEDDING))?);
    if is_tied == Some(true) && !is_copy {
        notes.push(format!(
            "{} is kept: it differs from the embedding, though tie_word_embeddings is true",
            classifier.name
        ));
    }
    Ok(is_copy)
}

fn weights(wanted: Weights, header: &Header, notes: &mut Vec<String>) -> Result<Weights, Error> {
    let with_group = |group| match wanted {
        Weights::F32 => Weights::F32,
        Weights::Q8 { .. } => Weights::Q8 { group },
        Weights::Q4 { int8_embedding, .. } => Weights::Q4 { group, int8_embedding },
    };
    let Some(wanted) = wanted.group() else { return Ok(wanted) };
    if wanted == 0 || !wanted.is_multiple_of(quant::GROUP_MIN) {
        return Err(Error::Group(quant::Error::BadGroup { group: wanted }));
    }
    let cols = [header.dim, header.q_dim(), header.ffn_dim];
    let group = quant::group_size_for(cols, wanted).map_err(Error::Group)?;
    if group != wanted {
        notes.push(format!(
            "group size is {group}: {wanted} does not divide the columns of every matrix \
             (wq {}, wo {}, w1 {}, w2 {})",
            header.dim,
            header.q_dim(),
            header.dim,
            header.ffn_dim
        ));
    }
    Ok(with_group(group))
}

/// Checks that the header, which is from the file at `path`, is one that can be written.
fn check(header: &Header, path: &Path) -> Result<(), Error> {
    if header.stop_ids.len() > STOP_IDS_MAX {
        let problem = format!("more than {STOP_IDS_MAX} stop ids");
        return Err(Error::BadFile { path: path.to_owned(), problem });
    }
    header.check().map_err(|source| Error::Model { path: path.to_owned(), source })
}

fn check_shape(source: &Source<'_>, tensor: &Tensor) -> Result<(), Error> {
    let matrix = [tensor.rows, tensor.cols];
    let wanted = if tensor.id.kind.is_norm() { &matrix[1..] } else { &matrix[..] };
    match source.shape == wanted {
        true => Ok(()),
        false => Err(source.error(format!("has shape {:?}, wanted {wanted:?}", source.shape))),
    }
}

impl Naming {
    fn name(self, id: TensorId) -> String {
        match (self, id.kind.is_per_layer()) {
            (Naming::HuggingFace, true) => {
                format!("model.layers.{}.{}.weight", id.layer, hugging_face_name(id.kind))
            }
            (Naming::HuggingFace, false) => format!("{}.weight", hugging_face_name(id.kind)),
            (Naming::Meta, true) => format!("layers.{}.{}.weight", id.layer, meta_name(id.kind)),
            (Naming::Meta, false) => format!("{}.weight", meta_name(id.kind)),
            (Naming::Gguf, true) => format!("blk.{}.{}.weight", id.layer, gguf_name(id.kind)),
            (Naming::Gguf, false) => format!("{}.weight", gguf_name(id.kind)),
        }
    }
}

fn hugging_face_name(kind: TensorKind) -> &'static str {
    match kind {
        TensorKind::AttentionNorm => "input_layernorm",
        TensorKind::FfnNorm => "post_attention_layernorm",
        TensorKind::FinalNorm => "model.norm",
        TensorKind::Embedding => "model.embed_tokens",
        TensorKind::Wq => "self_attn.q_proj",
        TensorKind::Wk => "self_attn.k_proj",
        TensorKind::Wv => "self_attn.v_proj",
        TensorKind::Wo => "self_attn.o_proj",
        TensorKind::W1 => "mlp.gate_proj",
        TensorKind::W2 => "mlp.down_proj",
        TensorKind::W3 => "mlp.up_proj",
        TensorKind::Classifier => "lm_head",
    }
}

fn meta_name(kind: TensorKind) -> &'static str {
    match kind {
        TensorKind::AttentionNorm => "attention_norm",
        TensorKind::FfnNorm => "ffn_norm",
        TensorKind::FinalNorm => "norm",
        TensorKind::Embedding => "tok_embeddings",
        TensorKind::Wq => "attention.wq",
        TensorKind::Wk => "attention.wk",
        TensorKind::Wv => "attention.wv",
        TensorKind::Wo => "attention.wo",
        TensorKind::W1 => "feed_forward.w1",
        TensorKind::W2 => "feed_forward.w2",
        TensorKind::W3 => "feed_forward.w3",
        TensorKind::Classifier => "output",
    }
}

fn gguf_name(kind: TensorKind) -> &'static str {
    match kind {
        TensorKind::AttentionNorm => "attn_norm",
        TensorKind::FfnNorm => "ffn_norm",
        TensorKind::FinalNorm => "output_norm",
        TensorKind::Embedding => "token_embd",
        TensorKind::Wq => "attn_q",
        TensorKind::Wk => "attn_k",
        TensorKind::Wv => "attn_v",
        TensorKind::Wo => "attn_output",
        TensorKind::W1 => "ffn_gate",
        TensorKind::W2 => "ffn_down",
        TensorKind::W3 => "ffn_up",
        TensorKind::Classifier => "output",
    }
}
