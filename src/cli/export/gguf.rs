//! `leap export OUT.gguf`: a file for other programs.

use std::time::Instant;

use super::Export;
use crate::cli::{Failure, convert, note};
use crate::export::ExportPlan;
use crate::format::ChatTemplate;
use crate::format::model::Header;
use crate::format::tokenizer::TokenizerFile;
use crate::quant::GROUP_DEFAULT;

impl Export {
    /// Refuses options that have no meaning for a GGUF file.
    pub(super) fn refuse_for_gguf(&self) -> Result<(), Failure> {
        let options = [
            (self.isa.is_some(), "--isa"),
            (self.layers.is_some(), "--layers"),
            (self.embedding_bits.is_some(), "--embedding-bits"),
            (self.group_size.is_some_and(|group| group != GROUP_DEFAULT), "--group-size"),
        ];
        match options.into_iter().find(|(is_given, _)| *is_given) {
            Some((_, option)) => {
                let problem = format!("{option} is for model files, not for a GGUF file");
                Err(Failure::Usage(problem))
            }
            None if self.calibrate.is_some() && self.version == 2 => {
                let problem = "--calibrate gains nothing for Q8_0: --version 3 or 4 of a GGUF file";
                Err(Failure::Usage(problem.to_owned()))
            }
            None => Ok(()),
        }
    }

    /// Writes the GGUF file.
    pub(super) fn write_gguf(
        &self,
        plan: &ExportPlan,
        tokenizer: Option<&[u8]>,
        start: Instant,
    ) -> Result<(), Failure> {
        let tokenizer = tokenizer.map(|bytes| TokenizerFile::parse(bytes, None)).transpose();
        let tokenizer = tokenizer.map_err(|e| Failure::input(&e))?;
        let has_text = |file: &TokenizerFile| file.chat_texts.own.is_some();
        if tokenizer.as_ref().is_some_and(|file| file.chat != ChatTemplate::None && !has_text(file))
        {
            note(
                "leap: the GGUF file has no chat template, because the checkpoint has none as text",
            );
        }
        note_what_embeddings_lose(plan.header());
        let bytes = convert::write_gguf(plan, &self.out, tokenizer.as_ref())?;
        note(&format!(
            "leap: {}: GGUF ({}), {:.1} MB{} in {:.1} s",
            self.out.display(),
            plan.gguf_types(),
            bytes as f64 / 1e6,
            if self.verify { ", verified," } else { "" },
            start.elapsed().as_secs_f64(),
        ));
        Ok(())
    }
}

/// Notes what a GGUF file of a model of embeddings does not say.
fn note_what_embeddings_lose(header: &Header) {
    if header.embedding().is_some_and(|model| !model.prompts.is_empty()) {
        note("leap: the GGUF file has no prompts, because such files have no place for them");
    }
    let n_positions = header.encoder().map_or(0, |encoder| encoder.n_positions);
    if n_positions > header.max_seq_len {
        note(&format!(
            "leap: the GGUF file says {n_positions} tokens, all that the model has positions for, and not {}",
            header.max_seq_len
        ));
    }
}
