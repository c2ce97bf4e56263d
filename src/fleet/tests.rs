//! A master and its boards in one process: rings are formed and changed without a command line.

mod board;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use board::{Stand, model, place};

use super::boards::{Boards, RingFile, Sought};
use super::events::{Event, Events, Shape};
use super::figures::Own;
use super::interrupt::Stop;
use super::master::Led;
use super::requests::Part;
use super::ring_board::RingBoard;
use super::settings::{LinkSettings, Settings, Wishes};
use super::worker::Worker;
use crate::control::Refusal;
use crate::engine::{Cache, Engine, Huge, Job, JobEvent, Options, Scheduler, WeightsPlace};
use crate::ring::Address;
use crate::ring::plan::Objective;
use crate::sys::net::free_port;
use crate::tokenizer::Tokenizer;
use crate::transport::carrier::Carrier;
use crate::wire::call::Speed;
use crate::wire::seal::Key;

/// Longest time that a test waits for something.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for which a board is away before the others take its part.
const AFTER: Duration = Duration::from_secs(1);

/// Writes down what happened.
#[derive(Default)]
struct Diary(Mutex<Vec<String>>);

impl Diary {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Events for Diary {
    fn tell(&self, event: &Event<'_>) {
        let layers = |nodes: &[(String, std::ops::Range<usize>)]| {
            let node = |(name, layers): &(String, std::ops::Range<usize>)| {
                format!(" {name} {}..{}", layers.start, layers.end)
            };
            nodes.iter().map(node).collect::<String>()
        };
        let line = match event {
            Event::Absent { place, why } => panic!("{place} does not answer: {why}"),
            Event::Divided { parts, .. } => format!("divided among {}", parts.len()),
            Event::Gone { name, .. } => format!("gone {name}"),
            Event::Came { name, .. } => format!("came {name}"),
            Event::OtherRing { nodes } => format!("ring{}", layers(nodes)),
            Event::Moved { nodes } => format!("moved{}", layers(nodes)),
            Event::Stays { why, .. } => format!("stays: {why}"),
            Event::Rests => "rests".to_owned(),
            Event::TooManyThreads { told, cores } => format!("{told} threads, {cores} cores"),
            Event::OrderFailed { why } => panic!("a worker failed: {why}"),
            _ => return,
        };
        self.0.lock().unwrap().push(line);
    }
}

/// A master with its boards.
struct Fleet {
    boards: Vec<Stand>,
    diary: Arc<Diary>,
    led: Led,
    engine: Engine,
    tokenizer: Tokenizer,
    /// The text that one board alone writes.
    wanted: String,
    folder: PathBuf,
}

fn speeds() -> Vec<Speed> {
    vec![Speed { threads: 1, read: [1 << 30; 4], milliwatts: None }]
}

impl Fleet {
    /// A ring of "desk" and boards of these names, each of which gets as much of the memory as the others.
    fn new(names: &[&str]) -> Fleet {
        let key = Key::new([names.len() as u8; 32]);
        let boards: Vec<Stand> = names.iter().map(|name| Stand::new(name, &key)).collect();
        let sought = boards.iter().map(Stand::called_at).collect();
        let mut fleet = Fleet::of(sought, &key);
        fleet.boards = boards;
        fleet
    }

    /// A ring of "desk" and the boards that are called there.
    fn of(sought: Vec<Address>, key: &Key) -> Fleet {
        let (diary, folder) = (Arc::new(Diary::default()), folder("desk"));
        let called = Boards::Called(Sought::Named(sought), Shape::Ring);
        let mut settings = settings(called, ("desk", key), diary.clone());
        (settings.is_master, settings.gives) = (true, Some(free_port()));
        settings.figures.own = Some(Own { speeds: speeds(), memory: 1 << 30 });
        let place = WeightsPlace {
            model: Some("models/demo.bin".into()),
            cache: Cache::At(folder.clone()),
            huge: Huge::Off,
        };
        let options =
            Options { threads: Some(1), ctx_len: Some(256), batch: Some(16), ..Options::default() };
        let (engine, led) = Led::start(&mut settings, &place, &options).unwrap();
        let tokenizer = std::fs::read("models/demo.tokenizer.bin").unwrap();
        let tokenizer = Tokenizer::from_bytes(&tokenizer, None).unwrap();
        let mut alone = Engine::open("models/demo.bin".as_ref(), &options).unwrap();
        let wanted = write(&mut alone, &tokenizer, &|_| {});
        let led = led.unwrap();
        Fleet { boards: Vec::new(), diary, led, engine, tokenizer, wanted, folder }
    }

    /// Writes, and checks that it is what one board writes, until `is_done`.
    fn write_until(&mut self, what: &str, is_done: impl Fn(&[String]) -> bool) {
        let start = Instant::now();
        loop {
            let led = &self.led;
            let text = write(&mut self.engine, &self.tokenizer, &|engine| led.visit(engine));
            assert_eq!(text, self.wanted, "{:?}", self.diary.lines());
            if is_done(&self.diary.lines()) {
                return;
            }
            let lines = self.diary.lines();
            assert!(start.elapsed() < PATIENCE, "waited for {what}; heard {lines:?}");
        }
    }

    /// Asks for these layers, as users do: the result is there once the ring has them.
    fn ask(&self, layers: Vec<Range<usize>>) -> JoinHandle<Result<Vec<Part>, Refusal>> {
        let led = self.led.clone();
        thread::spawn(move || {
            let moves = led.moves().unwrap();
            moves.split(&moves.mailbox.seen(), layers, &mut |_| Ok(()))
        })
    }

    /// Names of the nodes, in the order of the ring.
    fn nodes(&self) -> Vec<String> {
        self.engine.ring().unwrap().lines().iter().map(|line| line.name.to_string()).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Files that remain do no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A folder that no other board has.
fn folder(name: &str) -> PathBuf {
    static FOLDERS: AtomicUsize = AtomicUsize::new(0);
    let n = FOLDERS.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("leap-fleet-{}-{n}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Settings of the board called `name`, which a master may do without after a second.
fn settings(boards: Boards, (name, key): (&str, &Key), events: Arc<Diary>) -> Settings {
    let usual = Settings::new(boards, false);
    Settings {
        named_by: "the test",
        node: Some(name.to_owned()),
        links: LinkSettings {
            carrier: Carrier::Udp,
            port: Some(free_port()),
            key: Some(key.clone()),
            timeout: Some(PATIENCE),
            ..usual.links
        },
        // Speeds vary; memory is the same at each run.
        wishes: Wishes { objective: Objective::Memory, patience: Some(AFTER), is_taking: false },
        events,
        ..usual
    }
}

/// A board without a model file, on a thread of this process, which waits for masters until it is dropped.
struct Hand {
    port: u16,
    stop: Stop,
    diary: Arc<Diary>,
    thread: Option<JoinHandle<()>>,
}

impl Hand {
    fn new(name: &'static str, key: &Key) -> Hand {
        let (port, stop, key) = (free_port(), Stop::default(), key.clone());
        let (ended_by, diary) = (stop.clone(), Arc::<Diary>::default());
        let events = Arc::clone(&diary);
        let work = move || {
            let folder = folder(name);
            let waiting = Boards::Waiting(port);
            let mut settings = settings(waiting, (name, &key), events);
            settings.links.host = Some("127.0.0.1".to_owned());
            settings.figures.own = Some(Own { speeds: speeds(), memory: 1 << 30 });
            let place =
                WeightsPlace { model: None, cache: Cache::At(folder.clone()), huge: Huge::Off };
            let options = Options { threads: Some(1), ..Options::default() };
            let worker = Worker { options, stop, ..Worker::new(&settings, place) };
            worker.work().unwrap();
            // Files that remain do no harm.
            let _ = std::fs::remove_dir_all(folder);
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work).unwrap();
        Hand { port, stop: ended_by, diary, thread: Some(thread) }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.stop.end();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

/// Forty tokens of a story; `between` two steps something else may be done.
fn write(engine: &mut Engine, tokenizer: &Tokenizer, between: &dyn Fn(&mut Engine)) -> String {
    let mut scheduler = Scheduler::new(engine, 1, Some(tokenizer)).unwrap();
    let mut prompt: Vec<u32> = tokenizer.bos().into_iter().collect();
    tokenizer.encode("Once upon a time", &mut prompt);
    scheduler.submit(Job { n_predict: 40, ..Job::new(prompt) });
    let (mut text, mut failure) = (String::new(), None);
    while !scheduler.is_idle() {
        between(engine);
        scheduler.step(engine, &mut |_, event| match event {
            JobEvent::Text(part) => text += part,
            JobEvent::Failed(error) => failure = Some(error.to_string()),
            _ => {}
        });
    }
    assert_eq!(failure, None);
    text
}

#[test]
fn a_ring_is_formed_loses_a_board_gains_it_and_moves_layers_in_one_process() {
    let mut fleet = Fleet::new(&["pi", "orange"]);
    assert_eq!(fleet.diary.lines(), ["divided among 3"]);
    fleet.write_until("a text", |_| true);
    assert_eq!(fleet.nodes().len(), 3);

    fleet.boards[0].go_away();
    fleet.write_until("a ring without pi", |lines| lines.iter().any(|l| l.starts_with("ring")));
    let lines = fleet.diary.lines();
    assert_eq!(lines[1], "gone pi", "{lines:?}");
    assert!(!lines[2].contains("pi "), "{lines:?}");
    assert_eq!(fleet.nodes(), ["desk", "orange"]);

    fleet.boards[0].come_back();
    let rings = |lines: &[String]| lines.iter().filter(|line| line.starts_with("ring")).count();
    fleet.write_until("a ring with pi", |lines| rings(lines) == 2);
    assert!(fleet.diary.lines().contains(&"came pi".to_owned()), "{:?}", fleet.diary.lines());
    assert_eq!(fleet.nodes().len(), 3);

    let asked = fleet.ask(vec![0..1, 1..5, 5..6]);
    fleet.write_until("moved layers", |_| asked.is_finished());
    let moved = asked.join().unwrap().unwrap();
    assert_eq!(
        moved.iter().map(|(_, layers)| layers.clone()).collect::<Vec<_>>(),
        [0..1, 1..5, 5..6]
    );
    assert!(fleet.diary.lines().last().unwrap().starts_with("moved desk 0..1"));
}

#[test]
fn workers_of_the_library_get_their_layers_and_write_with_a_master() {
    let key = Key::new([77; 32]);
    let hands = [Hand::new("pi", &key), Hand::new("fig", &key)];
    let mut fleet = Fleet::of(hands.iter().map(|hand| local(hand.port)).collect(), &key);
    fleet.write_until("a text", |_| true);
    assert_eq!(fleet.nodes().len(), 3);
    let asked = fleet.ask(vec![0..1, 1..5, 5..6]);
    fleet.write_until("moved layers", |_| asked.is_finished());
    let moved = asked.join().unwrap().unwrap();
    assert_eq!(moved.len(), 3, "{:?}", fleet.diary.lines());
}

#[test]
fn a_worker_that_waits_for_a_master_says_so_once() {
    let hand = Hand::new("lime", &Key::new([78; 32]));
    let start = Instant::now();
    while hand.diary.lines().is_empty() {
        assert!(start.elapsed() < PATIENCE, "the worker never says that it waits");
        thread::sleep(Duration::from_millis(10));
    }
    // Some turns of its wait.
    thread::sleep(Duration::from_millis(500));
    assert_eq!(hand.diary.lines(), ["rests"]);
}

#[test]
fn more_threads_in_a_ring_file_than_cores_are_limited_with_a_warning() {
    let diary = Arc::<Diary>::default();
    let file = "desk 127.0.0.1:1 0..3\npi 127.0.0.1:2 3..6 threads=4000\n";
    let boards = Boards::Layers(RingFile::Told(file.to_owned()));
    let settings = settings(boards, ("pi", &Key::new([79; 32])), Arc::clone(&diary));
    let model = model();
    let board = RingBoard::new(&settings, model.header()).ok().unwrap();
    let cores = crate::sys::cpu::cores().len();
    assert_eq!(board.threads(), Some(cores));
    assert_eq!(diary.lines(), [format!("4000 threads, {cores} cores")]);
}

#[test]
fn a_worker_that_is_told_other_work_stops_packing_weights() {
    let diary = Arc::<Diary>::default();
    let options = Options { ctx_len: Some(1), threads: Some(1), ..Options::default() };
    let mut engine = Engine::new(model().into(), &options).ok().unwrap();
    let place = WeightsPlace { cache: Cache::At(folder("packing")), ..place() };
    let stop = Stop::default();
    stop.heed();
    stop.end_for_other_work();
    let ended = super::weights::prepare(&mut engine, &place, 1.0, (&*diary, &|| {}));
    assert!(ended.is_err(), "the weights were packed to the end");
}

/// Address of a board on this machine, which is called on `port`.
fn local(port: u16) -> Address {
    Address { host: "127.0.0.1".to_owned(), port }
}
