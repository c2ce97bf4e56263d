//! Finds a place in the model file for every tensor of a checkpoint.

mod gguf;

use std::collections::HashSet;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use super::calibration::Calibration;
use super::checkpoint::{Checkpoint, SourceTensor};
use super::config::{self, Config, Extras};
use super::encoder_names::is_of_head;
use super::error::ExportError;
use super::job::{Change, HalvedHeads, Order, Packing, TensorJob};
use super::names::{Naming, Place, ROPE_FACTORS, ROPE_FREQS, is_computable, is_of_seeing_part};
use super::writer::{self, Converter, ExportProgress};
use crate::format::ChatTemplate;
use crate::format::model::{
    FileShare, Header, Packed, STOP_IDS_MAX, Tensor, TensorId, TensorKind, Weights,
};
use crate::quant;

/// Options of the model file.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// Form of the matrices. A group is halved until it divides the columns of every matrix.
    pub weights: Weights,
    /// Longest context, instead of the checkpoint's.
    pub ctx: Option<usize>,
    /// Whether to read the file again and check it before it gets its name.
    pub verify: bool,
}

/// The tokenizer's ids that a model file repeats.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// Id that starts a text.
    pub bos: Option<u32>,
    /// Ids that end an answer.
    pub stop_ids: Vec<u32>,
    /// Template of conversations.
    pub chat_template: ChatTemplate,
    /// Fingerprint of the tokenizer file.
    pub tokenizer_hash: u64,
    /// Ids that the tokenizer puts before and behind a text.
    pub around: [Option<u32>; 2],
}

/// A checkpoint whose every tensor has its place in a model file.
pub struct ExportPlan {
    checkpoint: Checkpoint,
    config_path: PathBuf,
    inputs: Vec<PathBuf>,
    naming: Naming,
    header: Header,
    packing: Option<Packing>,
    share: Option<FileShare>,
    calibration: Option<Calibration>,
    verify: bool,
    extras: Extras,
}

impl ExportPlan {
    /// Reads the checkpoint in `dir`: a Hugging Face folder (`config.json`) or a Meta folder (`params.json`), with
    /// safetensors or PyTorch files. A folder with both is read as a Hugging Face folder if it has weights as Hugging
    /// Face names them.
    ///
    /// # Errors
    /// Names the file, field or tensor that is missing, damaged or not supported.
    pub fn open(dir: &Path, options: &ExportOptions) -> Result<ExportPlan, ExportError> {
        ExportPlan::new(open_folder(dir)?, options)
    }

    /// Reads a GGUF file, or the first of the files that a model is split into.
    ///
    /// # Errors
    /// As [`ExportPlan::open`].
    pub fn open_gguf(path: &Path, options: &ExportOptions) -> Result<ExportPlan, ExportError> {
        let checkpoint = Checkpoint::gguf(path)?;
        let config = config::gguf(&checkpoint)?;
        ExportPlan::new((Naming::Gguf, checkpoint, config), options)
    }

    fn new(
        opened: (Naming, Checkpoint, Config),
        options: &ExportOptions,
    ) -> Result<ExportPlan, ExportError> {
        let (naming, checkpoint, config) = opened;
        let Config { mut header, is_tied, path, files, mut extras } = config;
        set_ctx(&mut header, options.ctx);
        drop_ids(&mut header, &mut extras.notes);
        let notes = &mut extras.notes;
        header.shared_classifier =
            header.embedding().is_some() || is_shared(naming, &checkpoint, is_tied, notes)?;
        // Before the group is chosen: a bad dimension is the cause of a group that does not fit.
        check(&header, &path)?;
        header.weights = match options.weights {
            Weights::Ggml => Weights::F32,
            wanted => weights(wanted, &header, notes)?,
        };
        let mut inputs = files;
        inputs.extend(checkpoint.paths().map(Path::to_owned));
        let (verify, config_path) = (options.verify, path);
        let (packing, share) = (None, None);
        let mut plan = ExportPlan {
            checkpoint,
            config_path,
            inputs,
            naming,
            header,
            packing,
            share,
            calibration: None,
            verify,
            extras,
        };
        plan.header.features.more.has_next &= plan.has_next();
        // Types of blocks are known once the tensors are.
        if options.weights == Weights::Ggml {
            plan.keep_blocks()?;
        }
        check(&plan.header, &plan.config_path)?;
        plan.note_ignored()?;
        Ok(plan)
    }

    /// The header the file will have if it holds all layers.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Notes for the user about this export, in sentences without a full stop.
    pub fn notes(&self) -> &[String] {
        &self.extras.notes
    }

    /// Takes over what the tokenizer says. Its bos and stop ids count only if the checkpoint's configuration names
    /// none.
    ///
    /// # Errors
    /// If the model cannot be written.
    pub fn set_vocabulary(&mut self, vocabulary: Vocabulary) -> Result<(), ExportError> {
        self.header.bos = self.header.bos.or(vocabulary.bos);
        if self.header.stop_ids.is_empty() {
            self.header.stop_ids = vocabulary.stop_ids;
        }
        drop_ids(&mut self.header, &mut self.extras.notes);
        self.header.chat_template = vocabulary.chat_template;
        self.header.tokenizer_hash = vocabulary.tokenizer_hash;
        if let Some(embedding) = &mut self.header.features.embedding {
            [embedding.first, embedding.last] = vocabulary.around;
        }
        check(&self.header, &self.config_path)
    }

    /// Makes the export keep the blocks of a GGUF file, if matrices are in blocks.
    ///
    /// # Errors
    /// If a tensor is missing or has the wrong shape; or see [`ExportPlan::keep_blocks`].
    pub fn keep_blocks_if_any(&mut self) -> Result<(), ExportError> {
        let mut has_blocks = false;
        for tensor in self.header.tensors() {
            has_blocks |= self.source(tensor.id)?.is_in_blocks();
        }
        if has_blocks { self.keep_blocks() } else { Ok(()) }
    }

    /// Makes the export keep the blocks of a GGUF file: the model file has exactly its weights. Matrices of floats
    /// become blocks of int8.
    ///
    /// # Errors
    /// Names the first matrix whose type cannot be kept; or says that none is in blocks.
    pub fn keep_blocks(&mut self) -> Result<(), ExportError> {
        let (mut has_blocks, mut n_floats) = (false, 0);
        let types = self.header.ggml_types(|id| {
            let source = self.source(id)?;
            has_blocks |= source.is_in_blocks();
            n_floats += usize::from(!source.is_in_blocks());
            source.kept_as()
        })?;
        if !has_blocks {
            let problem = "has no matrix in blocks of a GGUF file, which version 5 keeps; version 2 \
                           makes int8 of it";
            let (path, problem) = (self.config_path.clone(), problem.to_owned());
            return Err(ExportError::BadFile { path, problem });
        }
        if n_floats > 0 {
            let matrices = if n_floats == 1 { "matrix" } else { "matrices" };
            let note = format!("version 5 makes Q8_0 of {n_floats} {matrices} of floats");
            self.extras.notes.push(note);
        }
        (self.header.weights, self.header.ggml) = (Weights::Ggml, types);
        check(&self.header, &self.config_path)
    }

    /// Makes the export pack matrices for the kernels of one instruction set, which use them straight from the file.
    /// Other kernels cannot use the file.
    ///
    /// # Errors
    /// If the weights stay f32.
    pub fn set_packing(&mut self, packing: Packing) -> Result<(), ExportError> {
        let Packing { layout, panel_rows, .. } = packing;
        // The fingerprint is known when every tensor has been converted.
        let shares_embedding = self.header.shared_classifier;
        self.header.packed = Some(Packed { layout, panel_rows, shares_embedding, fingerprint: 0 });
        self.packing = Some(packing);
        check(&self.header, &self.config_path)
    }

    /// Makes the export encode matrices so that the error of their outputs is least for the inputs that `calibration`
    /// has seen.
    pub fn set_calibration(&mut self, calibration: Calibration) {
        self.calibration = Some(calibration);
    }

    /// Makes the export write only these layers, one node's share of a ring; layer 0 brings the embedding, the final
    /// norm and the classifier. All tensors are converted nevertheless, for the fingerprint of the whole model.
    ///
    /// # Errors
    /// If the model has no such layers.
    pub fn set_layers(&mut self, layers: Range<usize>) -> Result<(), ExportError> {
        let n_layers = self.header.n_layers;
        if layers.start >= layers.end || layers.end > n_layers {
            return Err(ExportError::Layers { layers, n_layers });
        }
        // The fingerprint is known when every tensor has been converted.
        let has_ends = layers.start == 0;
        let share = FileShare { layers, has_ends, fingerprint: 0, slice: None };
        self.share = Some(share).filter(|share| share.layers.len() < n_layers);
        check(&Header { share: self.share.clone(), ..self.header.clone() }, &self.config_path)
    }

    /// Writes the model file `out`, which appears under its name only when it is complete, and returns its length.
    /// `progress` gets the state of the export at least ten times a second, and may end the work.
    ///
    /// # Errors
    /// If a weight is no finite number, `out` cannot be written or does not read back, or
    /// `progress` ended the work. No file is left then, and an older `out` stays.
    pub fn write(
        &self,
        out: &Path,
        progress: impl FnMut(ExportProgress) -> ControlFlow<()>,
    ) -> Result<u64, ExportError> {
        self.refuse_input_as_output(out)?;
        let mut jobs: Vec<TensorJob<'_>> = self.jobs().collect::<Result<_, ExportError>>()?;
        let header = Header { share: self.share.clone(), ..self.header.clone() };
        place(&mut jobs, &header);
        let (packing, calibration) = (self.packing.as_ref(), self.calibration.as_ref());
        let converter = Converter { header: &header, packing, calibration };
        writer::write(converter, &jobs, out, self.verify, progress)
    }

    /// Each tensor of the whole model with its source.
    fn jobs(&self) -> impl Iterator<Item = Result<TensorJob<'_>, ExportError>> {
        self.header.tensors().map(|tensor| {
            let (header, kind) = (&self.header, tensor.id.kind);
            let source = self.source(tensor.id)?;
            check_shape(&source, &tensor)?;
            let halved = match kind {
                TensorKind::FullWq
                | TensorKind::FullWk
                | TensorKind::FullQNorm
                | TensorKind::FullKNorm => {
                    let width = header.full_head_dim();
                    HalvedHeads { width, rotary: width }
                }
                _ => HalvedHeads { width: header.head_dim, rotary: header.rotary_dim() },
            };
            let order = match self.naming.has_halved_heads(kind, header) {
                true => Order::Halved(halved),
                false => Order::Same,
            };
            let (rows, cols) = match kind.is_vector() {
                true => (Order::Same, order),
                false => (order, Order::Same),
            };
            let panel_rows = header.packing_of(kind).map_or(1, |packed| packed.panel_rows);
            let change = self.change(kind);
            let (is_held, runs, stored_as) = (true, None, None);
            Ok(TensorJob {
                tensor,
                source,
                rows,
                cols,
                change,
                panel_rows,
                is_held,
                runs,
                stored_as,
            })
        })
    }

    /// Where the values of a tensor are.
    fn place(&self, id: TensorId) -> Place {
        if self.is_zero_bias(id) {
            return Place::Zeros(self.header.shape(id.kind).1);
        }
        match self.naming.place(id, &self.header) {
            Place::Transposed(name, step) if !self.checkpoint.has(&name) => {
                Place::Blocks(["blocks", "scales"].map(|part| format!("{name}_{part}")), step)
            }
            Place::Whole(name)
                if id.kind == TensorKind::FullWv
                    && self.extras.has_keys_as_values
                    && !self.checkpoint.has(&name) =>
            {
                Place::Whole(self.naming.name(TensorId { kind: TensorKind::FullWk, ..id }))
            }
            place if place.names().first().is_some_and(|name| !self.checkpoint.has(name)) => {
                self.naming.single_experts(id, &self.header).unwrap_or(place)
            }
            place => place,
        }
    }

    /// Whether the checkpoint lacks a bias that the model may have, but has others in the same half of a layer
    /// (attention or FFN). GGUF files may lack a bias in some layers, other checkpoints only in all.
    fn is_zero_bias(&self, id: TensorId) -> bool {
        const OF_ATTENTION: &[TensorKind] =
            &[TensorKind::Bq, TensorKind::Bk, TensorKind::Bv, TensorKind::Bo];
        const OF_FFN: &[TensorKind] = &[TensorKind::B1, TensorKind::B2, TensorKind::B3];
        let half = [OF_ATTENTION, OF_FFN].into_iter().find(|half| half.contains(&id.kind));
        let Some(half) = half.filter(|_| self.extras.has_optional_biases) else { return false };
        let is_in_layer = match self.naming.place(id, &self.header) {
            Place::Whole(name) => self.checkpoint.has(&name),
            _ => true,
        };
        let is_there = |kind: &TensorKind| self.is_in_some_layer(*kind);
        let is_zero = matches!(self.naming, Naming::Gguf) || !is_there(&id.kind);
        !is_in_layer && is_zero && half.iter().any(is_there)
    }

    /// Whether some layer has a tensor of `kind` in the checkpoint.
    fn is_in_some_layer(&self, kind: TensorKind) -> bool {
        let Place::Whole(first) = self.naming.place(TensorId { kind, layer: 0 }, &self.header)
        else {
            return false;
        };
        let Some((layers, name)) = first.split_once(".0.") else { return false };
        let is_one = |found: &str| {
            let number = found.strip_prefix(layers).and_then(|rest| rest.strip_suffix(name));
            number.is_some_and(|number| number.starts_with('.') && number.ends_with('.'))
        };
        self.checkpoint.names().any(is_one)
    }

    /// Whether the checkpoint has all tensors of the block behind the last layer, which programs that train or convert
    /// a model may drop, and none that replace the model's embedding or classifier there.
    fn has_next(&self) -> bool {
        let own_ends = ["nextn.embed_tokens.weight", "nextn.shared_head_head.weight"];
        if self.checkpoint.names().any(|name| own_ends.iter().any(|end| name.ends_with(end))) {
            return false;
        }
        let is_there = |id| self.place(id).names().iter().all(|name| self.checkpoint.has(name));
        self.header.ids_of_next().all(is_there)
    }

    fn source(&self, id: TensorId) -> Result<SourceTensor<'_>, ExportError> {
        let tensor = |name: &String| self.checkpoint.tensor(name);
        let place = self.place(id);
        match &place {
            Place::Whole(name) if self.header.rows_of_one(id.kind).is_some() => {
                tensor(name)?.flattened(self.header.n_ffns(), id.kind.is_vector())
            }
            Place::Whole(name) => tensor(name),
            Place::Zeros(cols) => Ok(self.checkpoint.zeros(*cols)),
            Place::Stacked(names) => {
                SourceTensor::stacked(names.iter().map(tensor).collect::<Result<_, _>>()?)
            }
            Place::Rows(name, rows, all) => tensor(name)?.rows(*all, (rows.start, 1), rows.len()),
            Place::HeadParts(name, n, part) => tensor(name)?.head_parts(*n, *part),
            Place::FirstRow(name) => tensor(name)?.first_row(),
            Place::Flat(name, n) => tensor(name)?.flattened(*n, true),
            Place::Taps(name) => tensor(name)?.transposed(1, (0, 1)),
            Place::Transposed(name, step) => tensor(name)?.transposed(self.header.n_ffns(), *step),
            Place::Blocks([blocks, scales], step) => {
                let rows = self.header.shape(id.kind).0;
                let all = self.checkpoint.mxfp4(blocks, scales)?;
                all.rows(rows * step.1, *step, rows)
            }
        }
    }

    /// The change that the configuration makes to tensors of `kind`.
    fn change(&self, kind: TensorKind) -> Change {
        let Extras { norm_plus, logits_divisor, has_log_decay, .. } = self.extras;
        match kind {
            TensorKind::FinalNorm => Change::Linear { plus: norm_plus, divisor: logits_divisor },
            TensorKind::MixDecay if has_log_decay => Change::NegativeExp,
            TensorKind::RouterNorm => {
                Change::Linear { plus: 0.0, divisor: (self.header.dim as f32).sqrt() }
            }
            TensorKind::AttentionNorm
            | TensorKind::FfnNorm
            | TensorKind::QNorm
            | TensorKind::KNorm
            | TensorKind::AttentionPostNorm
            | TensorKind::FfnPostNorm
            | TensorKind::NextEmbeddingNorm
            | TensorKind::NextHiddenNorm
            | TensorKind::NextNorm => Change::Linear { plus: norm_plus, divisor: 1.0 },
            _ => Change::NONE,
        }
    }

    /// Refuses tensors without a place in the model file; notes those that need none.
    fn note_ignored(&mut self) -> Result<(), ExportError> {
        let mut used = HashSet::new();
        for job in self.jobs() {
            used.extend(self.place(job?.tensor.id).names().iter().cloned());
        }
        let mut ignored = Vec::new();
        let [short, long] = ROPE_FACTORS;
        let unused = |name: &&str| {
            !used.contains(*name)
                && ![ROPE_FREQS, short, long].contains(name)
                && !self.naming.is_of_shared_kv(name, &self.header)
                && !self.checkpoint.has_scales(name)
        };
        for name in self.checkpoint.names().filter(unused) {
            if !self.is_ignored(name) {
                let path = self.checkpoint.path_of(name).unwrap_or(self.checkpoint.dir());
                return Err(ExportError::BadTensor {
                    name: name.to_owned(),
                    path: path.to_owned(),
                    problem: "has no place in this model".to_owned(),
                });
            }
            ignored.push(name);
        }
        if !ignored.is_empty() {
            self.extras.notes.push(format!("not needed, left out: {}", ignored.join(", ")));
        }
        Ok(())
    }

    /// Whether the model can be computed without this tensor.
    fn is_ignored(&self, name: &str) -> bool {
        let is_classifier = name == self.naming.first(TensorKind::Classifier);
        let is_of_gguf = matches!(self.naming, Naming::Gguf);
        is_computable(name)
            || (is_of_gguf && is_of_seeing_part(name))
            || self.naming.is_of_next_token_block(name, &self.header)
            || (is_classifier && self.header.shared_classifier)
            || (self.header.encoder().is_some() && is_of_head(name))
    }

    fn refuse_input_as_output(&self, out: &Path) -> Result<(), ExportError> {
        let Ok(found) = fs::canonicalize(out) else { return Ok(()) };
        let is_input = |input: &PathBuf| fs::canonicalize(input).is_ok_and(|input| input == found);
        match self.inputs.iter().any(is_input) {
            true => Err(ExportError::Output {
                path: out.to_owned(),
                problem: "it is a file of the checkpoint".to_owned(),
            }),
            false => Ok(()),
        }
    }
}

fn open_folder(dir: &Path) -> Result<(Naming, Checkpoint, Config), ExportError> {
    let has = |name: &str| dir.join(name).exists();
    if has("config.json") && (!has("params.json") || Checkpoint::is_hugging_face(dir)?) {
        // The configuration comes first: it says best what kind of model this is.
        let mut config = config::hugging_face(dir)?;
        let mut checkpoint = Checkpoint::hugging_face(dir)?;
        if config.extras.has_scales || checkpoint.has_any_scales() {
            checkpoint.require_scales();
        }
        if config.extras.is_wrapped {
            let n = checkpoint.keep_text_part()?;
            config.extras.notes.push(format!("{n} tensors of the vision part are left out"));
        }
        if config.header.embedding().is_some() {
            checkpoint.name_as_within(config.header.encoder().is_some())?;
            checkpoint.add_dense(&config.extras.embedder.dense)?;
        }
        return Ok((Naming::HuggingFace, checkpoint, config));
    }
    if has("params.json") {
        let checkpoint = Checkpoint::meta(dir)?;
        let config = config::meta(&checkpoint)?;
        return Ok((Naming::Meta, checkpoint, config));
    }
    let problem = match () {
        () if holds_gguf(dir) => {
            "neither config.json nor params.json in this folder, but a GGUF file, which is for --gguf"
        }
        () if dir.is_dir() => "neither config.json nor params.json in this folder",
        () if dir.extension().is_some_and(|end| end == "gguf") => "is a file for --gguf",
        () if dir.exists() => "is a file; name the folder it is in",
        () => "no such folder",
    };
    Err(ExportError::BadFile { path: dir.to_owned(), problem: problem.to_owned() })
}

/// Drops ids that the model has no token for, because it cannot write them, and stop ids beyond those that a model file
/// has room for.
fn drop_ids(header: &mut Header, notes: &mut Vec<String>) {
    let n = header.vocab_size;
    let is_unknown = |id: &u32| *id as usize >= n;
    let mut note = |what: &str, id: u32| {
        notes.push(format!("the {what} {id} is left out: the model has {n} tokens"));
    };
    if let Some(id) = header.bos.take_if(|id| is_unknown(id)) {
        note("id that begins a text", id);
    }
    for id in header.stop_ids.extract_if(.., |id| is_unknown(id)) {
        note("id that ends one", id);
    }
    let beyond = header.stop_ids.split_off(STOP_IDS_MAX.min(header.stop_ids.len()));
    if !beyond.is_empty() {
        notes.push(format!(
            "eos_token_id lists more than {STOP_IDS_MAX} ids: {beyond:?} end no text; name theirs with --stop"
        ));
    }
}

fn holds_gguf(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().extension().is_some_and(|end| end == "gguf"))
}

/// Sets the context that the user asked for. A context within LongRoPE's original one has no long texts.
fn set_ctx(header: &mut Header, ctx: Option<usize>) {
    header.max_seq_len = ctx.unwrap_or(header.max_seq_len);
    let longest = header.max_seq_len;
    header.features.long_rope.take_if(|long| longest <= long.original_ctx);
}

/// Gives the jobs of the whole model their places in the file of `header`, if they have one.
fn place(jobs: &mut [TensorJob<'_>], header: &Header) {
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
) -> Result<bool, ExportError> {
    let Some(classifier) = checkpoint.find(&naming.first(TensorKind::Classifier))? else {
        // If the configuration says that it is not shared, the missing tensor is an error.
        return Ok(is_tied != Some(false));
    };
    if is_tied == Some(false) {
        return Ok(false);
    }
    let is_copy = classifier.equals(&checkpoint.tensor(&naming.first(TensorKind::Embedding))?);
    if is_tied == Some(true) && !is_copy {
        notes.push(format!(
            "{} is kept: it differs from the embedding, though tie_word_embeddings is true",
            classifier.name
        ));
    }
    Ok(is_copy)
}

fn weights(
    wanted: Weights,
    header: &Header,
    notes: &mut Vec<String>,
) -> Result<Weights, ExportError> {
    let with_group = |group| match wanted {
        Weights::F32 => Weights::F32,
        Weights::Q8 { .. } => Weights::Q8 { group },
        Weights::Q4 { int8_embedding, .. } => Weights::Q4 { group, int8_embedding },
        Weights::B2 { ends, .. } => Weights::B2 { group, ends },
        Weights::Ggml => Weights::Ggml,
    };
    let Some(wanted_group) = wanted.group() else { return Ok(wanted) };
    if wanted_group == 0 || !wanted_group.is_multiple_of(quant::GROUP_MIN) {
        return Err(ExportError::Group(quant::QuantError::BadGroup { group: wanted_group }));
    }
    let group =
        quant::group_size_for(header.matrix_cols(), wanted_group).map_err(ExportError::Group)?;
    if group != wanted_group {
        notes.push(format!(
            "group size is {group}: {wanted_group} does not divide the columns of every matrix \
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
fn check(header: &Header, path: &Path) -> Result<(), ExportError> {
    header.check().map_err(|source| ExportError::Model { path: path.to_owned(), source })
}

fn check_shape(source: &SourceTensor<'_>, tensor: &Tensor) -> Result<(), ExportError> {
    let matrix = [tensor.rows, tensor.cols];
    // Programs that quantise GGUF files write a matrix of one row as a vector.
    let is_row = tensor.rows == 1 && source.shape == matrix[1..];
    let wanted = if tensor.id.kind.is_vector() { &matrix[1..] } else { &matrix[..] };
    match is_row || source.shape == wanted {
        true => Ok(()),
        false => Err(source.error(format!("has shape {:?}, wanted {wanted:?}", source.shape))),
    }
}
