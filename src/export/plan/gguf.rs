//! Finds a place in a GGUF file for every tensor of a checkpoint.

mod place;

use std::ops::ControlFlow;
use std::path::Path;

use super::ExportPlan;
use crate::export::checkpoint::Checkpoint;
use crate::export::config;
use crate::export::error::ExportError;
use crate::export::gguf::{F32, Gguf, GgufHead};
use crate::export::job::TensorJob;
use crate::export::tokenizer;
use crate::export::writer::{self, Converter, ExportProgress, GgufFrame};
use crate::format::model::{Header, Mixer, TensorId, TensorKind, TensorRole, Weights};
use crate::format::tokenizer::TokenizerFile;
use crate::quant::Ggml;

/// Numbers that llama.cpp has for a file of f32, and for files whose matrices are mostly of these types.
const FILE_TYPES: [(Option<Ggml>, u32); 4] =
    [(None, 0), (Some(Ggml::Q8_0), 7), (Some(Ggml::Q4_1), 3), (Some(Ggml::Q4K), 14)];
const FILE_TYPE: &str = "general.file_type";
const NAME: &str = "general.name";

impl ExportPlan {
    /// The types of blocks that a GGUF file of this model has, or `f32`.
    pub fn gguf_types(&self) -> String {
        let types = self.gguf_header().ggml.in_use();
        let names: Vec<&str> = types.into_iter().map(Ggml::name).collect();
        if names.is_empty() { "f32".to_owned() } else { names.join(", ") }
    }

    /// Writes the GGUF file `out`, with the tokenizer if there is one, as [`ExportPlan::write`] writes a model file.
    ///
    /// # Errors
    /// Those of [`ExportPlan::write`]; or if GGUF files cannot say what the model or its tokenizer is.
    pub fn write_gguf(
        &self,
        out: &Path,
        tokenizer: Option<&TokenizerFile>,
        progress: impl FnMut(ExportProgress) -> ControlFlow<()>,
    ) -> Result<u64, ExportError> {
        self.refuse_input_as_output(out)?;
        let header = self.gguf_header();
        let mut head = GgufHead::default();
        self.write_fields(&header, tokenizer, &mut head)
            .map_err(|what| ExportError::Unsupported { path: self.config_path.clone(), what })?;
        let mut values = Vec::new();
        for (name, divisors) in config::rope_tensors(&header) {
            let bytes: &[u8] = bytemuck::cast_slice(&divisors);
            let at = head.tensor(name, (&[divisors.len()], F32), bytes.len() as u64) as usize;
            values.resize(at, 0);
            values.extend(bytes);
        }
        let mut jobs: Vec<TensorJob<'_>> = self.jobs().collect::<Result<_, ExportError>>()?;
        self.place_in_gguf(&header, &mut jobs, &mut head)?;
        let mut bytes = head.finish();
        let start = bytes.len() as u64;
        jobs.iter_mut().for_each(|job| job.tensor.offset += start);
        bytes.extend(values);
        let frame = GgufFrame { head: bytes, file_bytes: start + head.data_bytes() };
        let calibration = self.calibration.as_ref();
        let converter = Converter { header: &header, packing: None, calibration };
        let read = |file: &Path| {
            let checkpoint = Checkpoint::gguf(file)?;
            config::check_gguf(&checkpoint, (&self.header, &self.extras))
                .map_err(|what| ExportError::Unsupported { path: self.config_path.clone(), what })
        };
        writer::write_gguf(converter, &jobs, (&frame, out, self.verify), read, progress)
    }

    /// The header with the type of each matrix in a GGUF file.
    fn gguf_header(&self) -> Header {
        let types = |of: fn(usize) -> Ggml| {
            let kind = |TensorId { kind, .. }: TensorId| {
                Ok::<Ggml, ExportError>(match kind.role() {
                    TensorRole::Embedding | TensorRole::Classifier => Ggml::Q8_0,
                    _ if self.has_controls(kind) => Ggml::Q8_0,
                    _ => of(self.header.shape(kind).1),
                })
            };
            self.header.ggml_types(kind).unwrap_or_default()
        };
        let ggml = match self.header.weights {
            Weights::F32 | Weights::Ggml => return self.header.clone(),
            Weights::Q8 { .. } => types(|_| Ggml::Q8_0),
            Weights::Q4 { .. } => types(|_| Ggml::Q4_1),
            Weights::B2 { .. } => types(|cols| match cols.is_multiple_of(Ggml::Q4K.len()) {
                true => Ggml::Q4K,
                false => Ggml::Q4_1,
            }),
        };
        Header { weights: Weights::Ggml, ggml, ..self.header.clone() }
    }

    /// Whether the GGUF file's tensor of matrices of `kind` also has the rows that steer a recurrent layer's state.
    /// Model files have these as f32.
    fn has_controls(&self, kind: TensorKind) -> bool {
        let mixer = self.header.features.recurrent.map(|recurrent| recurrent.mixer);
        matches!(mixer, Some(Mixer::StateSpace(_)))
            && matches!(kind, TensorKind::MixIn | TensorKind::MixGate)
    }

    /// Adds all fields.
    fn write_fields(
        &self,
        header: &Header,
        tokenizer: Option<&TokenizerFile>,
        head: &mut GgufHead,
    ) -> Result<(), String> {
        config::write_gguf(header, &self.extras, head)?;
        // A checkpoint that is no GGUF file has none of these fields.
        let source = Gguf::parse(self.checkpoint.first_bytes()).ok();
        let name = source.as_ref().and_then(|gguf| gguf.text(NAME).ok().flatten());
        let folder = self.checkpoint.dir().canonicalize().unwrap_or_default();
        let folder = folder.file_name().unwrap_or_default().to_string_lossy();
        head.text(NAME, name.unwrap_or(folder.trim_end_matches(".gguf")));
        let of_source = source.and_then(|gguf| gguf.unsigned(FILE_TYPE).ok().flatten());
        let is_kept = self.header.weights == Weights::Ggml;
        let types = header.ggml.in_use();
        let is_in_use =
            |kind: &Option<Ggml>| kind.map_or(types.is_empty(), |kind| types.contains(&kind));
        let known = FILE_TYPES.iter().rfind(|(kind, _)| is_in_use(kind));
        let file_type = match is_kept {
            true => of_source.and_then(|number| u32::try_from(number).ok()),
            false => known.map(|(_, number)| *number),
        };
        if let Some(number) = file_type {
            head.number(FILE_TYPE, number);
        }
        if !types.is_empty() {
            head.number("general.quantization_version", 2);
        }
        match tokenizer {
            Some(file) => tokenizer::write_gguf(file, header, head),
            None => {
                head.text("tokenizer.ggml.model", "none");
                Ok(())
            }
        }
    }
}
