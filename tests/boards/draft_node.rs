//! Another board drafts: real programs on the loopback interface. Texts are the same if it drafts, dies, comes back, or
//! does not exist.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::folder::Folder;
use crate::common::models::package;
use crate::common::ran::Ran;
use crate::common::running::Running;
use crate::common::{leap, quick};
use crate::http::{Served, ask};
use crate::ports::free_port;
use serde_json::{Value, json};

const PROMPT: &str = "Once upon a time there was a";
/// A master's notice, given once while its draft node is of no use.
const NOTICE: &str = "texts go on without it, and it is tried again";

/// Folder of boards' keys and files.
pub(crate) struct Place(Folder);

impl Place {
    pub(crate) fn new() -> Place {
        let folder = Folder::new();
        for (name, first) in [("key", 130), ("other", 131)] {
            let key: Vec<u8> = (0..32usize).map(|i| (i * i * 7 + first) as u8).collect();
            let path = folder.write(name, key);
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(path, mode).unwrap();
        }
        Place(folder)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn leap(&self, args: &[&str]) -> Command {
        let mut command = leap();
        command.args(args).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
        command.env_remove("JOURNAL_STREAM").env("XDG_CACHE_HOME", self.0.path());
        command.env("XDG_RUNTIME_DIR", self.0.path());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran::new(self.leap(args).output().unwrap())
    }

    /// A draft node with this model on `port`, or on any port if it is 0.
    pub(crate) fn node(&self, model: &str, port: u16) -> Node {
        let (port, key) = (port.to_string(), self.path("key"));
        let mut command = self.leap(&["worker", "--draft-model", model, "--key", &key]);
        command.args(["--host", "127.0.0.1", "--port", &port, "--threads", "1", "--ctx", "512"]);
        Node::start(command)
    }
}

/// A draft node, killed when this is dropped.
pub(crate) struct Node {
    pub(crate) child: Child,
    pub(crate) port: u16,
    said: Arc<Mutex<String>>,
}

impl Node {
    fn start(mut command: Command) -> Node {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let port = loop {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the node has ended");
            if let Some((_, rest)) = line.split_once("drafts for masters that ask on 127.0.0.1:") {
                break rest.split(' ').next().unwrap().parse().unwrap();
            }
        };
        let said = Arc::new(Mutex::new(String::new()));
        let to = Arc::clone(&said);
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                *to.lock().unwrap() += &(line + "\n");
            }
        });
        Node { child, port, said }
    }

    fn at(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until its output contains `part`.
    fn says(&self, part: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.said().contains(part) {
            assert!(Instant::now() < until, "never said {part:?}: {}", self.said());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The text of the one JSON object that a run printed, and its drafts.
fn text_of(ran: &Ran) -> (String, u64) {
    let object = ran.objects().remove(0);
    let count = |field: &str| object[field].as_u64().unwrap();
    assert_eq!(count("passes") + count("accepted_tokens"), count("generated_tokens"), "{object}");
    (object["text"].as_str().unwrap().to_owned(), count("accepted_tokens"))
}

#[test]
fn texts_are_the_same_if_another_board_guesses() {
    let place = Place::new();
    let (key, node) = (place.path("key"), place.node("models/demo-draft.bin", 0));
    let at = node.at();
    let of_node = ["--draft-node", &at, "--key", &key];
    let [a, b] = [free_port(), free_port()];
    let lines = format!("desk 127.0.0.1:{a} 0..3\nnode 127.0.0.1:{b} 3..6\n");
    let ring = place.0.write("ring", lines).to_str().unwrap().to_owned();
    let of_ring = ["--ring", &ring, "--threads", "1", "--transport", "udp"];
    let mut worker = place.leap(&["worker", "-q", "--node", "node", "--key", &key]);
    let _worker = Running(worker.args(of_ring).stderr(Stdio::null()).spawn().unwrap());
    for sampling in [["--temp", "0"], ["--seed", "7"]] {
        let args = ["-p", PROMPT, "-n", "100", "--ctx", "256", "--json"];
        let args = [&args[..], &sampling].concat();
        let said = |first: &[&str]| text_of(&place.run(&[first, &args].concat()).succeeds());
        let (wanted, _) = said(&["run", "--draft", "off"]);
        assert_eq!(said(&[&["run"], &of_node[..]].concat()).0, wanted);
        // The board may have a name from the ring file.
        let named = format!("node:{}", node.port);
        let master = ["master", "--draft-node", &named, "--key", &key];
        assert_eq!(said(&[&master[..], &of_ring].concat()).0, wanted);
    }
    assert!(
        node.said().matches("leap: drafts 1 text of 127.0.0.1").count() >= 2,
        "{}",
        node.said()
    );
    // Drafts are used. The number that come in time depends on the machine.
    let forced = |more: &[&str]| {
        let args = ["run", "--temp", "0", "-n", "200", "--json", "-p", PROMPT];
        let mut command = place.leap(&[&args[..], more].concat());
        text_of(&Ran::new(command.env("LEAP_DRAFTS", "4").output().unwrap()).succeeds())
    };
    let (wanted, n_right) = forced(&[]);
    let is_used = (0..50).any(|_| {
        let (text, of_node) = forced(&of_node);
        assert_eq!(text, wanted);
        of_node > n_right + 20
    });
    assert!(is_used, "no more drafts are right than n-grams are: {n_right}");
}

#[test]
fn a_node_that_dies_and_comes_back_changes_no_text() {
    let begun = Instant::now();
    let place = Place::new();
    let (key, mut node) = (place.path("key"), Some(place.node("models/demo-draft.bin", 0)));
    let port = node.as_ref().unwrap().port;
    let at = node.as_ref().unwrap().at();
    let mut command = place.leap(&["serve", "--listen", "127.0.0.1:0", "--threads", "1"]);
    command.args(["--ctx", "512", "--draft-node", &at, "--key", &key, "--streams", "2"]);
    let served = Served::by(command);
    node.as_ref().unwrap().says("drafts 2 texts");
    let story =
        |seed: u64| json!({"prompt": PROMPT, "seed": seed, "max_tokens": 300, "temperature": 0.8});
    let wanted: Vec<String> = (1..3).map(|seed| plain(&place, seed)).collect();
    let answers = || {
        thread::scope(|scope| {
            let ask = |seed| served.post("/v1/completions", &story(seed));
            let asked = [1, 2].map(|seed| scope.spawn(move || ask(seed)));
            asked.map(|asked| text_in(&asked.join().unwrap()))
        })
    };
    for round in 0..if quick() { 1 } else { 3 } {
        assert_eq!(answers().to_vec(), wanted, "round {round}");
        // In the middle of a text: the first bytes of an answer are there.
        let mut body = story(1);
        body["stream"] = json!(true);
        let mut stream = served.begin("/v1/completions", &body);
        stream.read_exact(&mut [0; 200]).unwrap();
        drop(node.take());
        stream.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(answers().to_vec(), wanted, "without a node, round {round}");
        node = Some(place.node("models/demo-draft.bin", port));
        // The master tries the node again.
        node.as_ref().unwrap().says("drafts 2 texts");
    }
    let said = served.said(NOTICE);
    // After a minute the notice may come again.
    let n_told = said.matches(NOTICE).count();
    assert!(n_told == 1 || begun.elapsed() > Duration::from_secs(60), "{said}");
    let (_, metrics) = ask(&served.address, "GET", "/metrics", "");
    assert!(metrics.contains("\nleap_drafted_tokens_total "), "{metrics}");
}

fn text_in(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// The text of `leap run` with this seed, without drafts.
fn plain(place: &Place, seed: u64) -> String {
    let seed = seed.to_string();
    let args = ["run", "-q", "--ctx", "512", "-n", "300", "-p", PROMPT, "--seed", &seed];
    let more = ["--temp", "0.8", "--top-p", "1", "--draft", "off"];
    let said = place.run(&[&args[..], &more].concat()).succeeds().out;
    said.strip_prefix(PROMPT).unwrap().strip_suffix('\n').unwrap().to_owned()
}

#[test]
fn nodes_that_are_of_no_use_are_told_of_or_refused() {
    let place = Place::new();
    let (key, other) = (place.path("key"), place.path("other"));
    let node = place.node("models/demo-draft.bin", 0);
    let args = ["run", "--temp", "0", "-n", "60", "--draft-node"];
    let with = |more: &[&str]| place.run(&[&args[..], more].concat());
    let wanted = place.run(&[&args[..5], &["-p", PROMPT, "-q"]].concat()).succeeds();
    for (at, key, why) in [
        (&*node.at(), &other, "it has another key"),
        ("127.0.0.1:1", &key, "refused"),
        ("no.such.board.invalid", &key, "no.such.board.invalid"),
    ] {
        let ran = with(&[at, "--key", key, "-p", PROMPT, "-q"]).succeeds();
        assert_eq!(ran.out, wanted.out);
        assert!(ran.err.contains(why) && ran.err.contains(NOTICE), "{ran:?}");
        assert_eq!(ran.err.trim_end().lines().count(), 1, "{ran:?}");
    }
    // A model with another vocabulary is never of use.
    let out = place.path("llama.bin");
    let checkpoint = package("tests/golden/llama2-meta-tiny");
    let checkpoint = checkpoint.to_str().unwrap();
    place.run(&["export", &out, "--meta-llama", checkpoint, "--version", "1"]).succeeds();
    let llama = place.node(&out, 0);
    let refused = "tokens, the model 4096; wanted a model of the same tokenizer";
    with(&[&llama.at(), "--key", &key, "-p", PROMPT]).fails(3, refused);
    let at = node.at();
    with(&[&at, "-p", "a"]).fails(2, "--draft-node needs --key");
    with(&[&at, "--key", &key, "--draft", "off"])
        .fails(2, "give --draft-node or --draft, not both");
    with(&["a:b", "--key", &key]).fails(2, "no port");
    place.run(&["run", "--key", &key, "-p", "a"]).fails(2, "--key is for leap master");
    let worker = |more: &[&str]| {
        place.run(&[&["worker", "--draft-model", "models/demo-draft.bin"], more].concat())
    };
    worker(&[]).fails(2, "needs --key");
    worker(&["--key", &key, "models/demo.bin"]).fails(2, "no other model, and no ring");
    worker(&["--key", &key, "--join", "auto"]).fails(2, "no other model, and no ring");
    worker(&["--key", &key, "--draft-node", "a"]).fails(2, "no option of leap worker");
}
