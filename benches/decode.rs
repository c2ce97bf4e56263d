//! Times of a made-up model's stages after a context of `--depth` tokens: tokens one by one, a prompt in one batch, and
//! passes of few rows. A pass wants logits of its last row, or of all its rows if these are no more than `--logits`:
//! `cargo bench --bench decode -- [--shape tinyllama] [--version 2] [--group 32] [--layers N] [--prompt 128] [--passes
//! 1,2,4] [--rounds 1] [--depth 0] [--threads 1] [--logits 1]`. Of several rounds of passes it prints the fastest of
//! each, and their median.
//!
//! Each stage ends with a line on stdout, and does the same work in every run, so that
//! `scripts/arm-cost.sh` can count the instructions between two lines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leap::engine::{Engine, Listener, Options, Stream, Wants, WeightsPlace};
use leap::format::model::{Ends, Header, LayerSet, Weights};
use leap::internals::model::{Model, Shape};

/// Tokens decoded one by one.
const DECODED: usize = 4;

struct Args {
    header: Header,
    prompt: usize,
    /// Rows of each pass.
    passes: Vec<usize>,
    rounds: usize,
    /// Tokens of the context before each stage.
    depth: usize,
    threads: usize,
    /// Most rows of a pass that wants logits of all its rows.
    logits: usize,
}

/// The value behind `name` on the command line, else `default`.
fn value(name: &str, default: &str) -> String {
    let found = std::env::args().skip_while(|arg| arg != name).nth(1);
    found.unwrap_or_else(|| default.to_owned())
}

/// The number behind `name` on the command line, else `default`.
fn number(name: &str, default: usize) -> usize {
    let text = value(name, &default.to_string());
    text.parse().unwrap_or_else(|_| panic!("{name} {text}: no number"))
}

/// The header of a model of the first `n_layers` layers.
fn first_layers(mut header: Header, n_layers: usize) -> Header {
    header.n_layers = n_layers;
    if let Some(recurrent) = &mut header.features.recurrent {
        let all = recurrent.layers;
        let first = (0..n_layers).filter(|layer| all.contains(*layer));
        recurrent.layers = LayerSet::new(first).expect("they are some of the model's");
    }
    header
}

impl Args {
    fn read() -> Args {
        let name = value("--shape", "tinyllama");
        let shape = Shape::from_name(&name).unwrap_or_else(|| panic!("{name} is no shape"));
        let group = number("--group", 32);
        let weights = match number("--version", 2) {
            2 => Weights::Q8 { group },
            3 => Weights::Q4 { group, int8_embedding: true },
            4 => Weights::B2 { group, ends: Ends::Int8 },
            other => panic!("--version {other}: there are 2, 3 and 4"),
        };
        let header = shape.header(weights);
        let n_layers = number("--layers", header.n_layers);
        let passes = value("--passes", "");
        let passes = passes
            .split_terminator(',')
            .map(|rows| rows.parse().unwrap_or_else(|_| panic!("--passes {passes}: no numbers")));
        Args {
            header: first_layers(header, n_layers),
            prompt: number("--prompt", 128),
            passes: passes.collect(),
            rounds: number("--rounds", 1),
            depth: number("--depth", 0),
            threads: number("--threads", 1),
            logits: number("--logits", 1),
        }
    }
}

#[expect(clippy::print_stdout, reason = "a program that prints its stages")]
fn tell(name: &str, n_tokens: usize, took: Duration) {
    println!("{name} {n_tokens} tokens {:.3} ms each", 1e3 * took.as_secs_f64() / n_tokens as f64);
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn main() {
    let Args { header, prompt, passes, rounds, depth, threads, logits } = Args::read();
    let vocab_size = header.vocab_size;
    let most_rows = passes.iter().fold(prompt, |most, rows| most.max(*rows));
    let model = Arc::new(Model::synthetic(&header).expect("memory for the model"));
    let options = Options {
        ctx_len: Some(depth + most_rows + DECODED),
        batch: Some(most_rows),
        threads: Some(threads),
        max_logits: Some(logits),
        isa: std::env::var("LEAP_ISA").ok().map(|name| {
            leap::internals::kernels::Isa::from_name(&name)
                .unwrap_or_else(|| panic!("LEAP_ISA is {name}"))
        }),
        ..Options::default()
    };
    let mut engine = Engine::new(model, &options).expect("an engine");
    let prepared = engine.prepare(&WeightsPlace::default(), Listener::NONE);
    prepared.expect("memory for packed weights");
    let mut stream = engine.stream().expect("a stream");
    let n_ids = depth.max(1) + most_rows;
    let ids: Vec<u32> = (0..n_ids).map(|i| (i * 7919 % vocab_size) as u32).collect();
    // The first tokens also touch memory for the first time.
    let start = depth.max(1);
    tell("warm-up", start, time(|| push(&mut engine, &mut stream, &ids[..start])));
    let decode = time(|| {
        ids[depth..].iter().take(DECODED).for_each(|id| push(&mut engine, &mut stream, &[*id]))
    });
    tell("decode", DECODED, decode);
    let mut pass = |rows: usize| {
        let kept = engine.rewind(&mut stream, &ids[..=depth]);
        push(&mut engine, &mut stream, &ids[kept..depth]);
        let wants = if rows <= logits { Wants::All } else { Wants::Last };
        time(|| {
            let pass = engine.push_batch(&mut stream, &ids[depth..depth + rows], wants);
            pass.expect("ids of the vocabulary");
        })
    };
    tell("prefill", prompt, pass(prompt));
    let mut times = vec![Vec::with_capacity(rounds); passes.len()];
    for round in 1..=rounds {
        for (rows, times) in passes.iter().zip(&mut times) {
            times.push(pass(*rows));
            if round == rounds {
                times.sort_unstable();
                tell("pass of", *rows, times[0]);
            }
        }
    }
    for (rows, times) in passes.iter().zip(&times).filter(|_| rounds > 1) {
        tell("median of", *rows, times[rounds / 2]);
    }
}

fn push(engine: &mut Engine, stream: &mut Stream, ids: &[u32]) {
    engine.push(stream, ids).expect("ids of the vocabulary");
}
