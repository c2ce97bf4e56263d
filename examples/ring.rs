//! A ring in one process: `cargo run --example ring`. A thread is a worker with the last layers of the demo model; the
//! main thread is the master with the first ones. Their frames go over UDP on the loopback interface. The text is that
//! of one board.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use leap::engine::{Cache, Huge, Job, JobEvent, Options, Scheduler, WeightsPlace};
use leap::fleet::{Boards, Carrier, Event, Events, Led, RingFile, Settings, Stop, Worker};
use leap::tokenizer::Tokenizer;

type Failure = Box<dyn Error + Send + Sync>;

/// A line for each board: its name, the address of its links, and its layers.
const RING: &str = "desk 127.0.0.1:7341 0..2\npi 127.0.0.1:7342 2..6\n";

fn main() -> Result<(), Failure> {
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let ends = stop.clone();
        let worker = scope.spawn(move || work(ends));
        let told = lead();
        stop.end();
        let ended = worker.join().map_err(|_| "the worker panicked")?;
        told.and(ended)
    })
}

/// The master: waits for the ring, and answers a prompt over it.
#[expect(clippy::print_stdout, reason = "a program that prints its text")]
fn lead() -> Result<(), Failure> {
    let tokenizer = Tokenizer::from_bytes(&std::fs::read("models/demo.tokenizer.bin")?, None)?;
    let options = Options { threads: Some(1), ctx_len: Some(256), ..Options::default() };
    let (mut engine, led) = Led::start(&mut settings("desk", true), &place(), &options)?;

    let mut scheduler = Scheduler::new(&mut engine, 1, Some(&tokenizer))?;
    let mut prompt: Vec<u32> = tokenizer.bos().into_iter().collect();
    tokenizer.encode("Once upon a time", &mut prompt);
    scheduler.submit(Job { n_predict: 20, ..Job::new(prompt) });
    print!("Once upon a time");
    let mut failure = None;
    while !scheduler.is_idle() {
        led.iter().for_each(|led| led.visit(&mut engine));
        scheduler.step(&mut engine, &mut |_, event| match event {
            JobEvent::Text(part) => print!("{part}"),
            JobEvent::Failed(error) => failure = Some(error),
            _ => {}
        });
    }
    println!();
    failure.map_or(Ok(()), |error| Err(error.into()))
}

/// The worker: computes its layers for the master until it is stopped.
fn work(stop: Stop) -> Result<(), Failure> {
    let settings = settings("pi", false);
    let options = Options { threads: Some(1), ..Options::default() };
    let worker = Worker { options, stop, ..Worker::new(&settings, place()) };
    Ok(worker.work()?)
}

/// Settings of the board of this name.
fn settings(name: &str, is_master: bool) -> Settings {
    let boards = Boards::Layers(RingFile::Told(RING.to_owned()));
    let mut settings = Settings::new(boards, is_master);
    settings.node = Some(name.to_owned());
    settings.links.carrier = Carrier::Udp;
    settings.events = Arc::new(Words);
    settings
}

/// Weights are used as they are in the model's file.
fn place() -> WeightsPlace {
    let model = Some(PathBuf::from("models/demo.bin"));
    WeightsPlace { model, cache: Cache::Off, huge: Huge::Off }
}

/// Prints what happens to the ring.
struct Words;

impl Events for Words {
    #[expect(clippy::print_stderr, reason = "a program that prints what happens")]
    fn tell(&self, event: &Event<'_>) {
        match event {
            Event::RingOpened { lines, .. } => eprintln!("ring of {} boards", lines.len()),
            Event::Ring { notice, .. } => eprintln!("{notice}"),
            _ => {}
        }
    }
}
