//! Goes on from a prompt.

use super::{N_PREDICT, Screen, Session, failure, figures, input, shorten, stop_ids};
use crate::cli::{Failure, note, print, warn};
use crate::engine::{Outcome, Request, StopReason};
use crate::sys::signal;

/// Prints the prompt and what the model makes of it.
pub(super) fn run(mut session: Session<'_>) -> Result<(), Failure> {
    let flags = session.flags;
    let prompt = input::prompt(flags)?;
    let tokenizer = &session.loaded.tokenizer;
    let mut ids: Vec<u32> = tokenizer.bos().into_iter().collect();
    match &flags.suffix {
        None => tokenizer.encode(&prompt, &mut ids),
        Some(suffix) if tokenizer.encode_infill(&prompt, suffix, &mut ids) => {}
        Some(_) => {
            let problem = "--suffix: this model's vocabulary has no tokens for filling in";
            return Err(Failure::Usage(problem.to_owned()));
        }
    }
    if ids.is_empty() {
        return Err(Failure::Usage("the prompt is empty; give one with -p".to_owned()));
    }
    let ctx_len = session.engine.ctx_len();
    if ids.len() > ctx_len {
        let (n, mend) = (ids.len(), shorten(&session.engine));
        return Err(Failure::Usage(format!(
            "the prompt has {n} tokens, the context {ctx_len}; {mend}"
        )));
    }
    let screen = Screen::new();
    let stop_ids = stop_ids(session.loaded);
    let request = Request {
        prompt: &ids,
        n_predict: flags.n_predict.unwrap_or(N_PREDICT),
        stop_ids: &stop_ids,
        starts_text: prompt.is_empty() && flags.suffix.is_none(),
        is_interrupted: &|| screen.is_interrupted(),
    };
    let mut stream = session.engine.stream().map_err(|e| Failure::runtime(&e))?;
    let mut text = String::new();
    figures::begin(&mut session.engine);
    if !flags.json {
        screen.show(&prompt);
    }
    let outcome =
        session.generator.run(&mut session.engine, &mut stream, &request, &mut |part| match flags
            .json
        {
            true => text.push_str(part),
            false => screen.show(part),
        });
    let outcome = outcome.map_err(failure)?;
    if flags.json {
        print(&figures::json(&outcome, &session, &prompt, &text))?;
        return ended(&outcome);
    }
    screen.show(flags.suffix.as_deref().unwrap_or_default());
    screen.show("\n");
    screen.check()?;
    if outcome.reason == StopReason::ContextFull {
        warn(&format!("the context of {ctx_len} tokens is full"));
    }
    if !flags.quiet {
        note(&figures::line(&outcome, &session));
        figures::ring_line(&session.engine).iter().for_each(|line| note(line));
    }
    ended(&outcome)
}

/// An answer that a signal cut short is no success.
fn ended(outcome: &Outcome) -> Result<(), Failure> {
    match outcome.reason {
        StopReason::Interrupted if signal::interrupted() > 0 => Err(Failure::Stopped),
        _ => Ok(()),
    }
}
