//! `--draft`: the source of drafts. It does not change texts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::draft_node::{self, DraftNode};
use super::model_files::{self, Loaded};
use super::weights::{self, Words};
use super::{Failure, note, options};
use crate::engine::{
    Cache, DRAFTS_MAX, DraftMode, Drafter, Engine, Huge, Model, ModelDrafter, NgramDrafter,
    Options, Scheduler, WeightsPlace,
};
use crate::fleet::interrupt::is_interrupted;
use crate::ring::Address;
use crate::tokenizer::Tokenizer;

/// Source of drafts.
#[derive(Clone)]
pub(super) enum Draft {
    /// The model's own block that guesses, if it has one, and n-grams.
    Auto,
    /// N-grams of the text so far.
    Ngrams,
    /// N-grams, and the smaller model in this file.
    Model(PathBuf),
    /// No drafts.
    Off,
}

/// Settings that a smaller model shares with the larger one.
pub(super) struct Beside<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) threads: Option<usize>,
    pub(super) cores: Option<&'a options::Cores>,
    pub(super) cache: &'a Cache,
    pub(super) huge: Huge,
    pub(super) is_quiet: bool,
    /// The board that drafts, if there is one.
    pub(super) node: Option<DraftNode<'a>>,
}

pub(super) fn parse(value: &str) -> Result<Draft, String> {
    match value {
        "" => Err("wanted auto, ngram, a model's file, or off".to_owned()),
        "auto" => Ok(Draft::Auto),
        "ngram" => Ok(Draft::Ngrams),
        "off" => Ok(Draft::Off),
        path => Ok(Draft::Model(PathBuf::from(path))),
    }
}

impl Draft {
    /// Most rows of a batch that may want logits, if `n_streams` answers are written at the same time.
    pub(super) fn max_logits(&self, n_streams: usize) -> usize {
        match self {
            Draft::Off => n_streams,
            Draft::Auto | Draft::Ngrams | Draft::Model(_) => n_streams.saturating_add(DRAFTS_MAX),
        }
    }

    /// `model` with its own block that guesses, if it has one and that is to draft. `is_alone` says that the CPUs of this
    /// machine compute the whole model.
    pub(super) fn with_next(
        &self,
        model: Arc<Model>,
        is_alone: bool,
    ) -> Result<Arc<Model>, Failure> {
        match matches!(self, Draft::Auto) && is_alone {
            true => model_files::with_next(model),
            false => Ok(model),
        }
    }

    /// Refuses options that contradict a draft node, if there is one.
    pub(super) fn check(&self, node: Option<&Address>, key: Option<&Path>) -> Result<(), Failure> {
        let what = match (self, node, key) {
            (_, None, _) | (Draft::Auto | Draft::Ngrams, Some(_), Some(_)) => return Ok(()),
            (Draft::Auto | Draft::Ngrams, Some(_), None) => {
                "--draft-node needs --key: the key file of that board"
            }
            _ => "give --draft-node or --draft, not both: the other board guesses",
        };
        Err(Failure::Usage(what.to_owned()))
    }

    /// Gives `scheduler`, which belongs to `engine`, a drafter that needs no other model.
    #[cfg(feature = "serve")]
    pub(super) fn begin_alone(
        &self,
        scheduler: &mut Scheduler<'_>,
        engine: &Engine,
    ) -> Result<(), Failure> {
        if matches!(self, Draft::Auto | Draft::Ngrams) {
            let drafter = NgramDrafter::new(scheduler.n_streams(), engine.ctx_len());
            scheduler.draft(Box::new(drafter), mode_from_environment()?);
        }
        Ok(())
    }

    /// Gives `scheduler`, which belongs to `engine`, its drafter.
    pub(super) fn begin(
        &self,
        scheduler: &mut Scheduler<'_>,
        engine: &mut Engine,
        beside: &Beside<'_>,
    ) -> Result<(), Failure> {
        let sizes = (scheduler.n_streams(), engine.ctx_len());
        let drafter: Box<dyn Drafter> = match (self, beside.node) {
            (Draft::Auto | Draft::Ngrams, Some(node)) => {
                Box::new(draft_node::drafter(node, beside.tokenizer, sizes)?)
            }
            (Draft::Off, _) => return Ok(()),
            (Draft::Auto | Draft::Ngrams, None) => Box::new(NgramDrafter::new(sizes.0, sizes.1)),
            (Draft::Model(path), _) => Box::new(model(path, (sizes.0, engine), beside)?),
        };
        let mode = mode_from_environment()?;
        scheduler.draft(drafter, mode);
        if engine.guesses() && !beside.is_quiet {
            note("leap: the model's own block guesses tokens ahead (--draft auto)");
        }
        Ok(())
    }
}

/// Drafts per pass: as many as pay off, or the number that `LEAP_DRAFTS` forces.
fn mode_from_environment() -> Result<DraftMode, Failure> {
    let Some(n) = std::env::var_os("LEAP_DRAFTS") else { return Ok(DraftMode::Auto) };
    let known = n.to_str().and_then(|n| n.parse().ok()).filter(|n| (1..=DRAFTS_MAX).contains(n));
    let usage = || Failure::Usage(format!("LEAP_DRAFTS is {n:?}, wanted 1 to {DRAFTS_MAX}"));
    known.map(DraftMode::Fixed).ok_or_else(usage)
}

/// A drafter with the smaller model at `path`, for `n_streams` texts. It uses the threads of `engine`.
fn model(
    path: &Path,
    (n_streams, engine): (usize, &mut Engine),
    beside: &Beside<'_>,
) -> Result<ModelDrafter, Failure> {
    let path = model_files::converted(path, beside.is_quiet)?;
    let Loaded { model, tokenizer, .. } = model_files::load(Some(&path), None)?;
    check_vocabulary(&path, &tokenizer, beside.tokenizer)?;
    let options = Options {
        ctx_len: Some(engine.ctx_len().min(model.header().max_seq_len)),
        n_streams: Some(n_streams),
        threads: beside.threads.map(options::useful_threads),
        cores: beside.cores.map(|cores| cores.0.clone()),
        isa: options::isa_from_environment()?,
        ..Options::default()
    };
    let wants_threads = options.cpus_for(&model).len() > 1;
    let options = Options { threads: Some(1), ..options };
    let mut own = Engine::new(model, &options).map_err(options::engine_failure)?;
    let place = WeightsPlace { model: Some(path), cache: beside.cache.clone(), huge: beside.huge };
    let words = if beside.is_quiet { Words::None } else { Words::All };
    engine.trade_threads(&mut own);
    let prepared = weights::prepare(&mut own, &place, words);
    engine.trade_threads(&mut own);
    prepared?;
    own.interrupt_by(is_interrupted);
    ModelDrafter::new(own, wants_threads).map_err(|e| Failure::runtime(&e))
}

/// Refuses a draft model with another vocabulary: its drafts would only cost time.
fn check_vocabulary(path: &Path, of_draft: &Tokenizer, wanted: &Tokenizer) -> Result<(), Failure> {
    let shown = path.display();
    let (n_draft, n_wanted) = (of_draft.vocab_len(), wanted.vocab_len());
    if n_draft != n_wanted {
        return Err(Failure::Input(format!(
            "--draft {shown}: it knows {n_draft} tokens, the model {n_wanted}; wanted a model of the same \
             tokenizer"
        )));
    }
    let differs = |id: &u32| of_draft.token_bytes(*id) != wanted.token_bytes(*id);
    match (0..n_wanted as u32).find(differs) {
        None => Ok(()),
        Some(id) => Err(Failure::Input(format!(
            "--draft {shown}: token {id} is {}, the model's {}; wanted a model of the same tokenizer",
            show(of_draft, id),
            show(wanted, id)
        ))),
    }
}

fn show(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    format!("{:?}", String::from_utf8_lossy(bytes))
}
