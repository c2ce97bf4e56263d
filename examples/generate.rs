//! Goes on from a prompt: `cargo run --example generate -- [MODEL] [PROMPT]`.
//!
//! MODEL is a model file with its tokenizer beside it, as `leap export` writes them; the demo model by default.

use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use leap::engine::{Engine, Job, JobEvent, Options, Scheduler};
use leap::sampler::Sampling;
use leap::tokenizer::Tokenizer;

#[expect(clippy::print_stdout, reason = "a program that prints its text")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = PathBuf::from(arguments.next().unwrap_or("models/demo.bin".to_owned()));
    let text = arguments.next().unwrap_or("Once upon a time".to_owned());

    let tokenizer = Tokenizer::from_bytes(&std::fs::read(tokenizer_of(&model))?, None)?;
    let mut engine = Engine::open(&model, &Options::default())?;
    let mut scheduler = Scheduler::new(&mut engine, 1, Some(&tokenizer))?;

    let mut prompt: Vec<u32> = tokenizer.bos().into_iter().collect();
    tokenizer.encode(&text, &mut prompt);
    // The same seed gives the same text, on every machine.
    let sampling = Sampling { temperature: 0.8, top_p: 0.9, seed: 42, ..Sampling::GREEDY };
    scheduler.submit(Job { n_predict: 60, sampling, ..Job::new(prompt) });

    print!("{text}");
    let mut failure = None;
    while !scheduler.is_idle() {
        scheduler.step(&mut engine, &mut |_, event| match event {
            JobEvent::Text(part) => {
                print!("{part}");
                // A reader sees text as it comes; nothing can be done if the terminal is gone.
                let _ = std::io::stdout().flush();
            }
            JobEvent::Failed(error) => failure = Some(error),
            _ => {}
        });
    }
    println!();
    failure.map_or(Ok(()), |error| Err(error.into()))
}

/// `demo.tokenizer.bin` beside `demo.bin`, else `tokenizer.bin` in its folder.
fn tokenizer_of(model: &Path) -> PathBuf {
    let own = model.with_extension("tokenizer.bin");
    if own.exists() { own } else { model.with_file_name("tokenizer.bin") }
}
