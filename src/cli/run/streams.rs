//! Answers several prompts at the same time, and shows them in their order.

use std::collections::BTreeMap;
use std::time::Instant;

use super::{N_PREDICT, Screen, Session, failure, figures, input, shorten, stop_ids};
use crate::cli::{Failure, counted, note};
use crate::engine::{Answer, Prompt, Request, StopReason, Streams};
use crate::sys::signal;

/// Answers a prompt a line, up to `n` at the same time.
pub(super) fn run(mut session: Session<'_>, n: usize) -> Result<(), Failure> {
    let flags = session.flags;
    let text = input::prompt(flags)?;
    let prompts: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if prompts.is_empty() {
        return Err(Failure::Usage("there is no prompt; give one a line".to_owned()));
    }
    let ids = prompts.iter().map(|prompt| encode(&session, prompt));
    let mut ids = ids.collect::<Result<Vec<_>, _>>()?.into_iter();
    let screen = Screen::new();
    let stop_ids = stop_ids(session.loaded);
    let request = Request {
        prompt: &[],
        n_predict: flags.n_predict.unwrap_or(N_PREDICT),
        stop_ids: &stop_ids,
        starts_text: false,
        is_interrupted: &|| screen.is_interrupted(),
    };
    let (loaded, ctx_len, seed) = (session.loaded, session.engine.ctx_len(), session.seed);
    let begin = || flags.generator(loaded, ctx_len, seed);
    let mut streams = Streams::new(&mut session.engine, n).map_err(|e| Failure::runtime(&e))?;
    let (start, mut waiting, mut tokens) = (Instant::now(), BTreeMap::new(), 0);
    let mut shown = Vec::new();
    figures::begin(&mut session.engine);
    let result = streams.run(
        &mut session.engine,
        &request,
        &mut || ids.next(),
        &begin,
        &mut |answer: Answer| {
            tokens += answer.outcome.figures.generated_tokens;
            waiting.insert(answer.index, answer);
            while let Some(answer) = waiting.remove(&shown.len()) {
                if !flags.json {
                    screen.show(&format!("{}{}\n", prompts[answer.index], answer.text));
                }
                shown.push(answer);
            }
        },
    );
    result.map_err(failure)?;
    if flags.json {
        for answer in &shown {
            let prompt = prompts[answer.index];
            screen.show(&figures::json(&answer.outcome, &session, prompt, &answer.text));
        }
    }
    screen.check()?;
    if !flags.quiet {
        let seconds = start.elapsed().as_secs_f64();
        let rate = tokens as f64 / seconds.max(f64::MIN_POSITIVE);
        let (answers, tokens) = (counted(shown.len(), "answer"), counted(tokens, "token"));
        let seed = figures::seed(&session).map_or(String::new(), |seed| format!("; seed {seed}"));
        note(&format!("{answers}, {tokens} in {seconds:.1} s: {rate:.1} tokens/s{seed}"));
        figures::ring_line(&session.engine).iter().for_each(|line| note(line));
    }
    let is_cut = |answer: &Answer| answer.outcome.reason == StopReason::Interrupted;
    match shown.len() < prompts.len() || shown.iter().any(is_cut) {
        true if signal::interrupted() > 0 => Err(Failure::Stopped),
        _ => Ok(()),
    }
}

fn encode(session: &Session<'_>, prompt: &str) -> Result<Prompt, Failure> {
    let tokenizer = &session.loaded.tokenizer;
    let mut ids: Vec<u32> = tokenizer.bos().into_iter().collect();
    tokenizer.encode(prompt, &mut ids);
    let (n, ctx_len) = (ids.len(), session.engine.ctx_len());
    if n == 0 || n > ctx_len {
        let mend = shorten(&session.engine);
        return Err(Failure::Usage(format!(
            "a prompt has {n} tokens, the context {ctx_len}; {mend}"
        )));
    }
    Ok(Prompt { ids, starts_text: false })
}
