//! Answers several prompts at the same time, and shows them in their order.

use std::collections::BTreeMap;
use std::time::Instant;

use super::{N_PREDICT, Screen, Session, failure, figures, input, shorten, stop_ids};
use crate::cli::{Failure, note};
use crate::engine::{Answer, Prompt, Request, Streams};

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
    let (loaded, ctx_len) = (session.loaded, session.engine.ctx_len());
    let seed = session.flags.seed();
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
        let setting = figures::Setting { engine: &session.engine, model: &session.loaded.name };
        for answer in &shown {
            let prompt = prompts[answer.index];
            screen.show(&figures::json(&answer.outcome, &setting, prompt, &answer.text));
        }
    }
    if !flags.quiet {
        let seconds = start.elapsed().as_secs_f64();
        let rate = tokens as f64 / seconds.max(f64::MIN_POSITIVE);
        let n_answers = shown.len();
        note(&format!(
            "{n_answers} answers, {tokens} tokens in {seconds:.1} s: {rate:.1} tokens/s"
        ));
        figures::ring_line(&session.engine).iter().for_each(|line| note(line));
    }
    Ok(())
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
