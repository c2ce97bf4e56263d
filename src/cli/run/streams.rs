//! Answers several prompts at the same time, and shows them in their order.

use std::time::Instant;

use super::session::{Screen, Session};
use super::{energy, figures, input};
use crate::cli::{Failure, counted, note, warn};
use crate::engine::{Job, JobError, JobEvent, Outcome, StopReason};
use crate::format::json::JsonObject;
use crate::sys::signal;
use crate::tokenizer::Tokenizer;

/// A prompt and its answer so far.
struct StreamEntry<'a> {
    prompt: &'a str,
    text: String,
    end: Option<Result<Outcome, JobError>>,
}

/// Answers one prompt per line, as many at a time as there are streams.
pub(super) fn run(mut session: Session<'_>) -> Result<(), Failure> {
    let (flags, tokenizer) = (session.flags, &session.loaded.tokenizer);
    let input = input::prompt(flags)?;
    let lines = input.lines().filter(|line| !line.trim().is_empty());
    let mut entries: Vec<StreamEntry<'_>> =
        lines.map(|prompt| StreamEntry { prompt, text: String::new(), end: None }).collect();
    if entries.is_empty() {
        return Err(Failure::Usage("there is no prompt; give one a line".to_owned()));
    }
    let like = session.job(Vec::new());
    let prompts: Vec<&str> = entries.iter().map(|entry| entry.prompt).collect();
    let mut jobs =
        prompts.iter().map(|prompt| Job { prompt: ids(tokenizer, prompt), ..like.clone() });
    let (screen, start, mut n_shown) = (Screen::new(), Instant::now(), 0);
    session.run(&mut jobs, &screen, &mut |index, event| {
        match event {
            JobEvent::Text(part) => entries[index].text.push_str(part),
            JobEvent::Done { outcome, .. } => entries[index].end = Some(Ok(outcome)),
            JobEvent::Failed(error) => entries[index].end = Some(Err(error)),
            JobEvent::Logits { .. } | JobEvent::Token { .. } => {}
        }
        while let Some(entry) = entries.get(n_shown).filter(|entry| entry.end.is_some()) {
            if !flags.json && matches!(entry.end, Some(Ok(_))) {
                screen.show(&format!("{}{}\n", entry.prompt, entry.text));
            }
            n_shown += 1;
        }
    });
    if flags.json {
        entries.iter().for_each(|entry| screen.show(&object(&session, entry)));
    }
    screen.check()?;
    let seconds = start.elapsed().as_secs_f64();
    if !flags.quiet {
        summary(&session, &entries, seconds);
    }
    verdict(&session, entries)
}

fn ids(tokenizer: &Tokenizer, prompt: &str) -> Vec<u32> {
    let mut ids: Vec<u32> = tokenizer.bos().into_iter().collect();
    tokenizer.encode(prompt, &mut ids);
    ids
}

/// The object of an answer, or of a prompt without one; empty if the prompt was not begun.
fn object(session: &Session<'_>, entry: &StreamEntry<'_>) -> String {
    match &entry.end {
        Some(Ok(outcome)) => figures::json(outcome, session, entry.prompt, &entry.text),
        Some(Err(error)) => {
            let object = JsonObject::new().string("model", &session.loaded.name);
            object.string("prompt", entry.prompt).string("error", &error.to_string()).finish()
        }
        None => String::new(),
    }
}

fn summary(session: &Session<'_>, entries: &[StreamEntry<'_>], seconds: f64) {
    let outcomes = || entries.iter().filter_map(|entry| entry.end.as_ref()?.as_ref().ok());
    let n_tokens: usize = outcomes().map(|outcome| outcome.figures.generated_tokens).sum();
    let rate = n_tokens as f64 / seconds.max(f64::MIN_POSITIVE);
    let (answers, tokens) = (counted(outcomes().count(), "answer"), counted(n_tokens, "token"));
    let seed = figures::seed(session).map_or(String::new(), |seed| format!("; seed {seed}"));
    let energy = session.energy.all.map_or(String::new(), |all| {
        let joules = energy::shown(all.joules / n_tokens.max(1) as f64);
        format!("; {:.1} W, {joules} J a token", all.watts())
    });
    note(&format!("{answers}, {tokens} in {seconds:.1} s: {rate:.1} tokens/s{energy}{seed}"));
    figures::ring_line(&session.engine).iter().for_each(|line| note(line));
}

/// Names the prompts without an answer, and returns the worst result.
fn verdict(session: &Session<'_>, entries: Vec<StreamEntry<'_>>) -> Result<(), Failure> {
    let (mut n_failed, n_all) = (0, entries.len());
    let mut is_cut = false;
    for (number, entry) in (1..).zip(entries) {
        match entry.end {
            Some(Ok(outcome)) => is_cut |= outcome.reason == StopReason::Interrupted,
            None => is_cut = true,
            Some(Err(error @ JobError::Step(_))) => return Err(session.failure(error)),
            Some(Err(error)) => {
                n_failed += 1;
                let mend = match &error {
                    JobError::TooLong { .. } => format!("; {}", session.shorten()),
                    _ => String::new(),
                };
                warn(&format!("prompt {number}: {error}{mend}"));
            }
        }
    }
    match n_failed {
        _ if is_cut && signal::interrupted() > 0 => Err(Failure::Interrupted),
        0 => Ok(()),
        n => Err(Failure::Runtime(format!("{n} of {} have no answer", counted(n_all, "prompt")))),
    }
}
