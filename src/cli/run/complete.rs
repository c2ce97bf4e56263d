//! Continues a prompt.

use super::session::{Screen, Session};
use super::thinking::Shown;
use super::{figures, input};
use crate::cli::{Failure, note, print, warn};
use crate::engine::{Job, Outcome, StopReason};
use crate::sys::signal;

/// Prints the prompt and its continuation.
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
    let starts_text = prompt.is_empty() && flags.suffix.is_none();
    let job = Job { starts_text, ..session.job(ids) };
    session.scheduler.check(&job).map_err(|e| session.failure(e))?;
    let screen = Screen::new();
    if !flags.json {
        screen.show(&prompt);
    }
    let reply = session.answer(job, &screen, Shown::new(flags.json))?;
    let outcome = reply.outcome;
    if flags.json {
        print(&figures::json(&outcome, &session, &prompt, &reply.text))?;
        return ended(&outcome);
    }
    screen.show(flags.suffix.as_deref().unwrap_or_default());
    screen.show("\n");
    screen.check()?;
    if outcome.reason == StopReason::ContextFull {
        warn(&format!("the context of {} tokens is full", session.engine.ctx_len()));
    }
    if !flags.quiet {
        note(&figures::line(&outcome, &session));
        figures::ring_line(&session.engine).iter().for_each(|line| note(line));
    }
    ended(&outcome)
}

/// Fails if a signal cut the answer short.
fn ended(outcome: &Outcome) -> Result<(), Failure> {
    match outcome.reason {
        StopReason::Interrupted if signal::interrupted() > 0 => Err(Failure::Interrupted),
        _ => Ok(()),
    }
}
