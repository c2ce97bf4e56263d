//! Holds a conversation: `echo "Tell me a story about a fox." | cargo run --example chat -- [MODEL]`.
//!
//! Each line of stdin is a message. MODEL is a model file that knows a chat template, with its tokenizer
//! beside it; the demo model by default. The conversation so far stays in the KV cache, so that only a new
//! message is computed.

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;

use leap::engine::chat::Conversation;
use leap::engine::{Engine, Job, JobEvent, Options, Scheduler};
use leap::format::Date;
use leap::tokenizer::{ChatFormat, ChatOptions, Tokenizer};

/// Tokens of the context that are kept free for an answer.
const RESERVE: usize = 256;

#[expect(clippy::print_stdout, reason = "a program that prints its text")]
fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).unwrap_or("models/demo.bin".to_owned());
    let model = PathBuf::from(model);
    let own = model.with_extension("tokenizer.bin");
    let beside = if own.exists() { own } else { model.with_file_name("tokenizer.bin") };
    let tokenizer = Tokenizer::from_bytes(&std::fs::read(beside)?, None)?;
    let mut engine = Engine::open(&model, &Options::default())?;
    let mut scheduler = Scheduler::new(&mut engine, 1, Some(&tokenizer))?;

    let today = Date::new(2026, 1, 31).ok_or("a date")?;
    let format = ChatFormat::new(tokenizer.chat_template(), &tokenizer, ChatOptions::new(today))?;
    let mut conversation = Conversation::new(&tokenizer, format, None);
    for message in std::io::stdin().lines() {
        let context = conversation.ask(&message?, engine.ctx_len(), RESERVE)?;
        let stop_ids = conversation.stop_ids().to_vec();
        let job = Job { stop_ids, starts_text: true, n_predict: RESERVE, ..Job::new(context.ids) };
        scheduler.submit(job);
        let (mut text, mut ids, mut failure) = (String::new(), Vec::new(), None);
        while !scheduler.is_idle() {
            scheduler.step(&mut engine, &mut |_, event| match event {
                JobEvent::Text(part) => {
                    print!("{part}");
                    let _ = std::io::stdout().flush();
                    text += part;
                }
                JobEvent::Done { ids: all, .. } => ids = all.to_vec(),
                JobEvent::Failed(error) => failure = Some(error),
                _ => {}
            });
        }
        println!();
        if let Some(error) = failure {
            return Err(error.into());
        }
        conversation.answer(&ids, &text);
    }
    Ok(())
}
