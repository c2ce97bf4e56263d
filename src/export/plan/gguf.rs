//! Finds a place in a GGUF file for every tensor of a checkpoint.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use super::ExportPlan;
use crate::export::checkpoint::Checkpoint;
use crate::export::config;
use crate::export::error::ExportError;
use crate::export::gguf::{F32, Gguf, GgufHead};
use crate::export::job::{Change, TensorJob};
use crate::export::names::{Naming, Place};
use crate::export::tokenizer;
use crate::export::writer::{self, Converter, ExportProgress, GgufFrame};
use crate::format::model::{Encoding, Header, TensorId, TensorRole, Weights};
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
            Some(file) => tokenizer::write_gguf(file, (header.bos, &header.stop_ids), head),
            None => {
                head.text("tokenizer.ggml.model", "none");
                Ok(())
            }
        }
    }

    /// Gives the jobs their places in the data of a GGUF file, and adds its tensors to `head`. Their values get the
    /// order that such a file of this family has.
    fn place_in_gguf(
        &self,
        header: &Header,
        jobs: &mut [TensorJob<'_>],
        head: &mut GgufHead,
    ) -> Result<(), ExportError> {
        let mut offsets = HashMap::new();
        for TensorJob { tensor, halved_heads, change, .. } in jobs {
            let (id, cols) = (tensor.id, tensor.cols);
            let (row_bytes, kind) = match header.encoding(id) {
                Encoding::Ggml(kind) => (kind.row_bytes(cols), kind.id()),
                _ => (size_of::<f32>() * cols, F32),
            };
            let (name, first, rows) = match Naming::Gguf.place(id, header) {
                Place::Whole(name) => (name, 0, tensor.rows),
                Place::Rows(name, own, all) => (name, own.start, all),
                place => {
                    let (name, path) = (place.names().concat(), self.config_path.clone());
                    let what = format!("a GGUF file with the tensor {name}");
                    return Err(ExportError::Unsupported { path, what });
                }
            };
            let shape = match header.rows_of_one(id.kind) {
                Some(_) if id.kind.is_vector() => {
                    vec![cols / header.n_ffns(), header.n_ffns()]
                }
                Some(of_one) => vec![cols, of_one, rows / of_one],
                None if id.kind.is_vector() => vec![cols],
                None => vec![cols, rows],
            };
            let bytes = (rows * row_bytes) as u64;
            let mut add = |name: &String| head.tensor(name, (&shape, kind), bytes);
            let start = *offsets.entry(name).or_insert_with_key(&mut add);
            tensor.offset = start + (first * row_bytes) as u64;
            tensor.bytes = (tensor.rows * row_bytes) as u64;
            if Naming::Gguf.has_halved_heads(id.kind, header) {
                // They stand so in each checkpoint of such a family.
                *halved_heads = None;
            }
            // The divisor of the logits is a field.
            if let Change::Linear { divisor, .. } = change {
                *divisor = 1.0;
            }
        }
        Ok(())
    }
}
