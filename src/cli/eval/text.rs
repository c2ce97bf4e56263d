//! Perplexity of a text, and the difference of two models on it.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::flags::{Eval, open_model};
use super::report::{Mean, Report};
use crate::cli::{Failure, json, model_files};
use crate::engine::{Engine, Job, JobEvent, Scheduler, score};
use crate::format::text_without_mark;
use crate::sampler::argmax;

/// Measures the text or ids that `eval` names, in independent windows.
pub(super) fn run(eval: &Eval) -> Result<Report, Failure> {
    if eval.skip >= eval.window {
        return Err(Failure::Usage("--skip must be less than --window".to_owned()));
    }
    let texts = read_texts(eval)?;
    let mut model = Runner::open(eval, &eval.model)?;
    let vocab_size = model.vocab_size();
    if let Some(id) = texts.iter().flatten().find(|id| **id as usize >= vocab_size) {
        let what = format!("id {id} is not in the vocabulary of {vocab_size} tokens");
        let file = eval.ids.as_deref().or(eval.text.as_deref()).unwrap_or(Path::new(""));
        return Err(Failure::Input(format!("{}: {what}", file.display())));
    }
    let mut against = match &eval.against {
        Some(path) => Some(Runner::open(eval, path)?),
        None => None,
    };
    if against.as_ref().is_some_and(|other| other.vocab_size() != model.vocab_size()) {
        return Err(Failure::Input("the models' vocabularies differ in size".to_owned()));
    }
    let mut report = Report { part: "window", ..Report::default() };
    for window in texts.iter().flat_map(|ids| windows(ids, eval.window)) {
        // The last window of a short text may have no position that counts.
        if window.inputs.len() > eval.skip {
            report.n_parts += 1;
            measure(&mut model, against.as_mut(), &window, eval.skip, &mut report)?;
        }
    }
    match report.n_parts {
        0 => Err(Failure::Input(format!("the text has fewer than {} tokens", eval.skip + 2))),
        _ => Ok(report),
    }
}

/// Ids, and the id that follows each.
struct Window<'a> {
    inputs: &'a [u32],
    targets: &'a [u32],
}

/// The windows of a text. Each id predicts the next one; the last id of a window predicts the first of the next window.
/// Windows weigh the same, so an incomplete one at the end counts only if it is the only one.
fn windows(ids: &[u32], len: usize) -> impl Iterator<Item = Window<'_>> {
    let n_pairs = ids.len().saturating_sub(1);
    let n_pairs = if n_pairs < len { n_pairs } else { n_pairs - n_pairs % len };
    let (inputs, targets) = (&ids[..n_pairs], ids.get(1..n_pairs + 1).unwrap_or(&[]));
    let pairs = inputs.chunks(len).zip(targets.chunks(len));
    pairs.map(|(inputs, targets)| Window { inputs, targets })
}

/// A model, and its logits in the current window.
struct Runner {
    engine: Engine,
    scheduler: Scheduler<'static>,
    /// Logits of the latest rows, `[rows, vocab_size]`.
    logits: Vec<f32>,
}

impl Runner {
    fn open(eval: &Eval, path: &Path) -> Result<Runner, Failure> {
        let mut engine = eval.engine(path, open_model(path)?, eval.window)?;
        let scheduler = Scheduler::new(&mut engine, 1, None).map_err(|e| Failure::runtime(&e))?;
        Ok(Runner { engine, scheduler, logits: Vec::new() })
    }

    fn vocab_size(&self) -> usize {
        self.engine.header().vocab_size
    }

    /// Begins a window.
    fn begin(&mut self, ids: &[u32]) {
        self.scheduler.submit(Job { wants_logits: true, n_predict: 0, ..Job::new(ids.to_vec()) });
    }

    /// Logits of the window's next rows; empty at its end.
    fn next(&mut self) -> Result<&[f32], Failure> {
        let (logits, mut problem) = (&mut self.logits, None);
        logits.clear();
        while logits.is_empty() && problem.is_none() && !self.scheduler.is_idle() {
            self.scheduler.step(&mut self.engine, &mut |_, event| match event {
                JobEvent::Logits { logits: rows, .. } => logits.extend_from_slice(rows),
                JobEvent::Failed(error) => problem = Some(error),
                JobEvent::Text(_) | JobEvent::Token { .. } | JobEvent::Done { .. } => {}
            });
        }
        match problem {
            Some(error) => Err(Failure::input(&error)),
            None => Ok(logits),
        }
    }
}

/// Adds to `report` the figures of a window from its position `first` on.
fn measure(
    model: &mut Runner,
    mut against: Option<&mut Runner>,
    window: &Window<'_>,
    first: usize,
    report: &mut Report,
) -> Result<(), Failure> {
    let vocab_size = model.vocab_size();
    model.begin(window.inputs);
    if let Some(other) = against.as_deref_mut() {
        other.begin(window.inputs);
    }
    let (mut nll, mut other_nll) = (Mean::default(), Mean::default());
    let mut pos = 0;
    while pos < window.inputs.len() {
        let rows = model.next()?.chunks_exact(vocab_size).zip(&window.targets[pos..]);
        let n_skipped = first.saturating_sub(pos).min(rows.len());
        pos += rows.len();
        let rows = rows.skip(n_skipped);
        report.n_positions += rows.len();
        rows.clone().for_each(|(logits, &next)| nll.add(score::nll(logits, next)));
        let Some(other) = against.as_deref_mut() else { continue };
        // Both models run in batches of the same size.
        let references = other.next()?.chunks_exact(vocab_size).skip(n_skipped);
        for ((logits, &next), reference) in rows.zip(references) {
            other_nll.add(score::nll(reference, next));
            report.kl.add(score::kl_divergence(reference, logits));
            report.add_drift(score::drift(reference, logits));
            report.top1.add(f64::from(argmax(reference) == argmax(logits)));
        }
    }
    nll.value().into_iter().for_each(|nll| report.nll.add(nll));
    other_nll.value().into_iter().for_each(|nll| report.reference_nll.add(nll));
    Ok(())
}

/// The texts' ids; a file of ids may hold several texts.
fn read_texts(eval: &Eval) -> Result<Vec<Vec<u32>>, Failure> {
    if let Some(path) = &eval.ids {
        let value = json::read(path)?;
        let list = value.get("ids").unwrap_or(&value);
        let texts = match list.as_array() {
            Some(texts) if texts.first().is_some_and(Value::is_array) => &texts[..],
            _ => std::slice::from_ref(list),
        };
        let texts: Result<_, _> = texts.iter().map(json::ids).collect();
        return texts.map_err(|e| Failure::Input(format!("{}: {e}", path.display())));
    }
    let path = eval.text.as_deref().unwrap_or(Path::new(""));
    let text = fs::read_to_string(path).map_err(|e| Failure::unreadable(path, &e))?;
    let model = open_model(&eval.model)?;
    let tokenizer = model_files::tokenizer(&eval.model, model.header(), eval.tokenizer.as_deref())?;
    let mut ids: Vec<u32> = model.header().bos.into_iter().collect();
    tokenizer.encode(text_without_mark(&text), &mut ids);
    Ok(vec![ids])
}
