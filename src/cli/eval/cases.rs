//! Reference cases: `golden.json` files.

use std::path::Path;

use serde_json::Value;

use super::flags::{Eval, open_model};
use super::report::{Mean, Report};
use crate::cli::{Failure, json};
use crate::engine::{Engine, Job, JobEvent, Scheduler, score};
use crate::sampler::argmax;

/// A prompt, and the reference's results.
struct Case {
    prompt_ids: Vec<u32>,
    last_logits: Option<Vec<f32>>,
    argmax_per_position: Option<Vec<u32>>,
    nll: Option<f64>,
    greedy_ids: Option<Vec<u32>>,
}

/// Runs every case of the file at `path`.
pub(super) fn run(eval: &Eval, path: &Path) -> Result<Report, Failure> {
    let cases = read(path)?;
    let model = open_model(&eval.model)?;
    let longest = cases.iter().map(Case::len).max().unwrap_or(0);
    let max = model.header().max_seq_len;
    if longest > max {
        let path = path.display();
        return Err(Failure::Input(format!(
            "{path}: a case has {longest} tokens, the model {max}"
        )));
    }
    let mut engine = eval.engine(&eval.model, model, longest)?;
    let mut scheduler = Scheduler::new(&mut engine, 1, None).map_err(|e| Failure::runtime(&e))?;
    let mut report = Report { n_parts: cases.len(), part: "case", ..Report::default() };
    for (index, case) in cases.iter().enumerate() {
        run_case(&mut engine, &mut scheduler, case, &mut report)
            .map_err(|e| Failure::Input(format!("{}: case {index}: {e}", path.display())))?;
    }
    Ok(report)
}

fn run_case(
    engine: &mut Engine,
    scheduler: &mut Scheduler<'_>,
    case: &Case,
    report: &mut Report,
) -> Result<(), String> {
    let vocab_size = engine.header().vocab_size;
    let mut nll = Mean::default();
    let (mut last, mut greedy, mut problem) = (Vec::new(), Vec::new(), None);
    let n_predict = case.greedy_ids.as_ref().map_or(0, Vec::len);
    scheduler.submit(Job { n_predict, wants_logits: true, ..Job::new(case.prompt_ids.clone()) });
    while !scheduler.is_idle() {
        scheduler.step(engine, &mut |_, event| match event {
            JobEvent::Logits { pos, logits } => {
                for (pos, logits) in (pos..).zip(logits.chunks_exact(vocab_size)) {
                    report.n_positions += usize::from(case.argmax_per_position.is_some());
                    case.compare(pos, logits, &mut nll, &mut report.top1);
                    last.clear();
                    last.extend_from_slice(logits);
                }
            }
            JobEvent::Text(_) | JobEvent::Token { .. } => {}
            JobEvent::Done { ids, .. } => greedy.extend_from_slice(ids),
            JobEvent::Failed(error) => problem = Some(error.to_string()),
        });
    }
    if let Some(problem) = problem {
        return Err(problem);
    }
    if let Some(wanted) = &case.last_logits {
        if wanted.len() != vocab_size {
            return Err(format!("last_logits has {} values, not {vocab_size}", wanted.len()));
        }
        report.add_drift(score::drift(wanted, &last));
        report.kl.add(score::kl_divergence(wanted, &last));
    }
    if let (Some(nll), Some(wanted)) = (nll.value(), case.nll) {
        report.nll.add(nll);
        report.reference_nll.add(wanted);
    }
    if let Some(wanted) = &case.greedy_ids {
        let matching =
            greedy.iter().zip(wanted).take_while(|(found, wanted)| found == wanted).count();
        let (sum, all) = report.greedy.unwrap_or_default();
        report.greedy = Some((sum + matching, all + wanted.len()));
    }
    Ok(())
}

impl Case {
    fn len(&self) -> usize {
        self.prompt_ids.len() + self.greedy_ids.as_ref().map_or(0, Vec::len)
    }

    /// Adds how well the logits after the id at `pos` predict the next id, and whether the most likely one agrees.
    fn compare(&self, pos: usize, logits: &[f32], nll: &mut Mean, top1: &mut Mean) {
        if let Some(&next) = self.prompt_ids.get(pos + 1) {
            nll.add(score::nll(logits, next));
        }
        if let Some(wanted) = &self.argmax_per_position {
            top1.add(f64::from(argmax(logits) == wanted.get(pos).copied()));
        }
    }
}

fn read(path: &Path) -> Result<Vec<Case>, Failure> {
    let value = json::read(path)?;
    let bad = |what: String| Failure::Input(format!("{}: {what}", path.display()));
    let Some(cases) = value.get("cases").and_then(Value::as_array) else {
        return Err(bad("no array \"cases\"".to_owned()));
    };
    if cases.is_empty() {
        return Err(bad("no cases".to_owned()));
    }
    let parse = |(index, case)| parse(case).map_err(|e| bad(format!("case {index}: {e}")));
    cases.iter().enumerate().map(parse).collect()
}

fn parse(case: &Value) -> Result<Case, String> {
    let ids = |key: &str| case.get(key).map(|v| json::ids(v).map_err(|e| format!("{key}: {e}")));
    let prompt_ids = ids("prompt_ids").ok_or("no prompt_ids")??;
    if prompt_ids.is_empty() {
        return Err("prompt_ids is empty".to_owned());
    }
    let argmax_per_position = ids("argmax_per_position").transpose()?;
    if argmax_per_position.as_ref().is_some_and(|ids| ids.len() != prompt_ids.len()) {
        return Err("argmax_per_position and prompt_ids differ in length".to_owned());
    }
    let last_logits = match case.get("last_logits") {
        Some(value) => Some(json::floats(value).map_err(|e| format!("last_logits: {e}"))?),
        None => None,
    };
    Ok(Case {
        prompt_ids,
        last_logits,
        argmax_per_position,
        nll: case.get("nll").and_then(Value::as_f64),
        greedy_ids: ids("greedy_ids").transpose()?,
    })
}
