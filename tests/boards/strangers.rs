//! A master that waits for its ring ignores strangers' messages.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::folder::Folder;
use crate::common::leap;
use leap::internals::wire::datagram::{DatagramHeader, DatagramKind, HEADER_LEN};
use leap::internals::wire::hello::{
    HELLO_LEN, Hello, Nonce, PROTOCOL, REFUSE_LEN, Refusal, Refuse, RingInfo, WELCOME_LEN, Welcome,
    name,
};

const DEMO: &str = "models/demo.bin";
/// Digits of a key that looks random.
const KEY: &str = "8f1ac3570b9e24d6e17f3302c64bd98a5ee0713c2fa84916b7d20c85f36e41da";
/// Far longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(120);

fn datagram(kind: DatagramKind, session: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN + payload.len()];
    let (raw, body) = bytes.split_first_chunk_mut().unwrap();
    body.copy_from_slice(payload);
    DatagramHeader::control(kind, session, 1, payload.len()).emit_for(raw, body);
    bytes
}

/// Greetings of nodes of another ring: without a key, with another key, and of a later version.
fn greetings() -> Vec<Vec<u8>> {
    let greeting = |protocol: u16, has_key: bool| {
        let node = RingInfo { name: name("stray"), n_layers: 6, ..RingInfo::default() };
        let nonce = [7; 16];
        let hello = Hello {
            protocol,
            has_key,
            instance: 1,
            nonce,
            resume: 0,
            node,
            to: name(""),
            greeting: [1; 48],
        };
        let mut payload = [0; HELLO_LEN];
        hello.emit(&mut payload);
        datagram(DatagramKind::Hello, 0, &payload)
    };
    vec![greeting(PROTOCOL, false), greeting(PROTOCOL, true), greeting(PROTOCOL + 7, true)]
}

/// Answers of a stranger without a key to a HELLO that it reads.
fn answers(hello_nonce: Nonce) -> Vec<Vec<u8>> {
    let refuse = |refusal| {
        let mut payload = [0; REFUSE_LEN];
        Refuse { hello_nonce, refusal, name: name("false"), tag: [1; 16] }.emit(&mut payload);
        datagram(DatagramKind::Refuse, 0, &payload)
    };
    let welcome = |has_key| {
        let node = RingInfo { name: name("false"), n_layers: 6, ..RingInfo::default() };
        let (instance, nonce, answer, tag) = (1, [2; 16], [4; 48], [3; 16]);
        let mut payload = [0; WELCOME_LEN];
        Welcome { has_key, n_banks: 4, instance, hello_nonce, nonce, node, answer, tag }
            .emit(&mut payload);
        datagram(DatagramKind::Welcome, 5, &payload)
    };
    let model = Refusal::Model { prev: 1, next: 2 };
    vec![refuse(model), refuse(Refusal::KeyUnwanted), welcome(false), welcome(true)]
}

fn nonce(hello: &[u8]) -> Nonce {
    hello[HEADER_LEN + 16..HEADER_LEN + 32].try_into().unwrap()
}

/// Occupies the address of the master's next node, and also greets the master, until `is_over`.
fn pester_udp(master: SocketAddr, next: SocketAddr, is_over: &dyn Fn() -> bool) {
    let socket = UdpSocket::bind(next).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut room = [0; 2048];
    while !is_over() {
        for greeting in greetings() {
            socket.send_to(&greeting, master).unwrap();
        }
        if let Ok((n, from)) = socket.recv_from(&mut room)
            && n == HEADER_LEN + HELLO_LEN
        {
            for answer in answers(nonce(&room[..n])) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    }
}

fn record(datagram: &[u8]) -> Vec<u8> {
    [&(datagram.len() as u32).to_le_bytes()[..], datagram].concat()
}

fn pester_tcp(master: SocketAddr, next: SocketAddr, is_over: &dyn Fn() -> bool) {
    let listener = TcpListener::bind(next).unwrap();
    listener.set_nonblocking(true).unwrap();
    while !is_over() {
        thread::sleep(Duration::from_millis(100));
        if let Ok(mut stream) = TcpStream::connect(master) {
            for greeting in greetings() {
                let _ = stream.write_all(&record(&greeting));
            }
        }
        if let Ok((mut stream, _)) = listener.accept() {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let mut hello = [0; 4 + HEADER_LEN + HELLO_LEN];
            if stream.read_exact(&mut hello).is_ok() {
                for answer in answers(nonce(&hello[4..])) {
                    let _ = stream.write_all(&record(&answer));
                }
            }
        }
    }
}

/// A node of a ring of two on this machine, ended when it is dropped.
struct Node(Child);

impl Node {
    fn start(words: &[&str], key: &Path, ends: [SocketAddr; 2], out: &Path, err: &Path) -> Node {
        Node::spawn(Node::command(words, key, ends), out, err)
    }

    fn spawn(mut command: Command, out: &Path, err: &Path) -> Node {
        let file = |path| Stdio::from(File::create(path).unwrap());
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command.stdin(Stdio::null()).stdout(file(out)).stderr(file(err));
        Node(command.spawn().unwrap())
    }

    fn command(words: &[&str], key: &Path, ends: [SocketAddr; 2]) -> Command {
        let [own, next] = ends.map(|end| (end.ip().to_string(), end.port().to_string()));
        let mut command = leap();
        command.args(words).arg("--key").arg(key);
        command.args(["--split", "2", "--threads", "1", "--host", &own.0, "--port", &own.1]);
        command.args(["--next-host", &next.0, "--next-port", &next.1]);
        command
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn check(transport: &str, ports: [u16; 2], pester: fn(SocketAddr, SocketAddr, &dyn Fn() -> bool)) {
    let folder = Folder::new();
    let key = folder.join("key");
    fs::write(&key, KEY).unwrap();
    // An address that no other test on this machine has.
    let [.., high, low] = std::process::id().to_be_bytes();
    let [master, next] = ports.map(|port| SocketAddr::from(([127, 79, high, low], port)));
    let (out, err) = (folder.join("out"), folder.join("err"));
    let words = ["master", DEMO, "-p", "Once upon a time", "-n", "5", "--temp", "0"];
    let words = [&words[..], &["--transport", transport, "--ring-timeout", "100"]].concat();
    let mut waiting = Node::start(&words, &key, [master, next], &out, &err);
    let start = Instant::now();
    let told = || fs::read_to_string(&err).unwrap();
    let speaks = format!("speaks protocol {}", PROTOCOL + 7);
    // One for each greeting and each answer, except the answer that only a forger gives.
    let wanted = [
        "a node at 127.",
        "stray at 127.",
        "only this node has a key",
        "their keys differ; give all nodes the same --key",
        &speaks,
        "false at 127.79.",
        "refuses this node: only this node has a key",
        "is refused: only this node has a key",
    ];
    let is_told = || wanted.iter().all(|what| told().contains(what));
    pester(master, next, &|| is_told() || start.elapsed() > PATIENCE);
    assert!(is_told(), "{}", told());
    assert_eq!(waiting.0.try_wait().unwrap(), None, "the master goes on waiting: {}", told());
    assert!(!told().contains("has model"), "{}", told());
    // Only ports of connections may differ.
    let told_lines = told().replace(|c: char| c.is_ascii_digit(), "");
    let mut lines: Vec<&str> = told_lines.lines().collect();
    let n_lines = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), n_lines, "told once: {}", told());
    let words = ["worker", DEMO, "--transport", transport];
    let (worker_out, worker_err) = (folder.join("worker.out"), folder.join("worker.err"));
    let worker = Node::start(&words, &key, [next, master], &worker_out, &worker_err);
    while waiting.0.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < 2 * PATIENCE, "{}", told());
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(waiting.0.wait().unwrap().code(), Some(0), "{}", told());
    drop(worker);
    let text = fs::read_to_string(&out).unwrap();
    assert!(text.contains("in a green"), "{text}");
}

#[test]
fn strangers_do_not_end_a_master_that_waits_over_udp() {
    check("udp", [9101, 9102], pester_udp);
}

#[test]
fn strangers_do_not_end_a_master_that_waits_over_tcp() {
    check("tcp", [9103, 9104], pester_tcp);
}

/// Two masters: the address of each, and the address of its expected next node.
type Ways = [(SocketAddr, SocketAddr); 2];

/// Misleads two masters until each has been heard `n` times: their datagrams go back to their sender, and to the other
/// master. `ways` are the masters, and the addresses of their expected next nodes.
fn mislead_udp(ways: Ways, is_over: &dyn Fn(usize) -> bool) {
    let sockets = ways.map(|(_, next)| UdpSocket::bind(next).unwrap());
    for socket in &sockets {
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    }
    let (mut room, mut heard) = ([0; 2048], [0; 2]);
    while !is_over(heard[0].min(heard[1])) {
        for way in 0..2 {
            let Ok((n, from)) = sockets[way].recv_from(&mut room) else { continue };
            heard[way] += 1;
            for (socket, to) in [
                (&sockets[way], from),
                (&sockets[1 - way], ways[1 - way].0),
                (&sockets[way], ways[way].0),
            ] {
                socket.send_to(&room[..n], to).unwrap();
            }
        }
    }
}

/// Misleads two masters over TCP: bytes go back to the sender, to the other master's stream, and to both masters'
/// listening addresses.
fn mislead_tcp(ways: Ways, is_over: &dyn Fn(usize) -> bool) {
    let listeners = ways.map(|(_, next)| TcpListener::bind(next).unwrap());
    for listener in &listeners {
        listener.set_nonblocking(true).unwrap();
    }
    let mut streams: [Vec<TcpStream>; 2] = [Vec::new(), Vec::new()];
    let mut doors: Vec<TcpStream> = Vec::new();
    let (mut room, mut heard) = ([0; 2048], [0; 2]);
    while !is_over(heard[0].min(heard[1])) {
        thread::sleep(Duration::from_millis(5));
        for way in 0..2 {
            if let Ok((stream, _)) = listeners[way].accept() {
                stream.set_nonblocking(true).unwrap();
                streams[way].push(stream);
            }
            let mut n = 0;
            for mut stream in &streams[way] {
                if n == 0 {
                    n = stream.read(&mut room).unwrap_or(0);
                }
            }
            if n == 0 {
                continue;
            }
            heard[way] += 1;
            doors.extend(ways.iter().filter_map(|(master, _)| TcpStream::connect(master).ok()));
            // Writes to closed connections fail.
            for mut to in streams.iter().flatten().chain(&doors) {
                let _ = to.write_all(&room[..n]);
            }
            if doors.len() > 8 {
                doors.drain(..2);
            }
        }
        streams.iter_mut().for_each(|streams| {
            let gone = streams.len().saturating_sub(4);
            streams.drain(..gone);
        });
    }
}

/// Two masters with the same key, which expect certain rings, hear only themselves and each other.
fn check_misled(transport: &str, ports: [u16; 4], mislead: fn(Ways, &dyn Fn(usize) -> bool)) {
    let folder = Folder::new();
    let key = folder.join("key");
    fs::write(&key, KEY).unwrap();
    let [.., high, low] = std::process::id().to_be_bytes();
    let at = ports.map(|port| SocketAddr::from(([127, 79, high, low], port)));
    let ways = [(at[0], at[1]), (at[2], at[3])];
    let file = |name: &str, kind: &str| folder.join(&format!("{name}.{kind}"));
    let start_node = |name: &str, role: &str, way: usize| {
        let (first, second) = ways[way];
        let ring = format!("m{way} {first} 0..2\nw{way} {second} 2..6\n");
        let node = format!("{}{way}", &role[..1]);
        let mut command = leap();
        command.args([role, DEMO, "--transport", transport, "--threads", "1", "--node", &node]);
        command.arg("--key").arg(&key).arg("--ring").arg(folder.write(&node, ring));
        if role == "master" {
            command.args(["-p", "Once upon a time", "-n", "5", "--temp", "0"]);
            command.args(["--ring-timeout", "200", "--control", "off"]);
        }
        Node::spawn(command, &file(name, "out"), &file(name, "err"))
    };
    let told = |name: &str| fs::read_to_string(file(name, "err")).unwrap();
    let mut waiting = start_node("first", "master", 0);
    let mut other = start_node("second", "master", 1);
    let start = Instant::now();
    let n_played = std::cell::Cell::new(0);
    mislead(ways, &|n| {
        n_played.set(n);
        n >= 8 || start.elapsed() > PATIENCE
    });
    assert!(n_played.get() >= 8, "each master says something again and again: {}", n_played.get());
    assert_eq!(waiting.0.try_wait().unwrap(), None, "it goes on waiting: {}", told("first"));
    assert_eq!(other.0.try_wait().unwrap(), None, "it goes on waiting: {}", told("second"));
    // The expected board comes.
    let worker = start_node("worker", "worker", 0);
    while waiting.0.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < 2 * PATIENCE, "{}", told("first"));
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(waiting.0.wait().unwrap().code(), Some(0), "{}", told("first"));
    drop(worker);
    let text = fs::read_to_string(file("first", "out")).unwrap();
    assert!(text.contains("in a green"), "{text}");
}

#[test]
fn a_master_that_hears_itself_and_another_goes_on_and_opens_over_udp() {
    check_misled("udp", [9110, 9111, 9112, 9113], mislead_udp);
}

#[test]
fn a_master_that_hears_itself_and_another_goes_on_and_opens_over_tcp() {
    check_misled("tcp", [9114, 9115, 9116, 9117], mislead_tcp);
}

/// A program that may open at most `n` files; a worker of the demo model needs 14.
fn with_files(n: u32, command: Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {n}; exec \"$@\""), "sh"]);
    limited.arg(command.get_program()).args(command.get_args());
    limited
}

#[test]
fn a_node_with_few_files_lets_its_friends_in_before_strangers() {
    let folder = Folder::new();
    let key = folder.join("key");
    fs::write(&key, KEY).unwrap();
    let [.., high, low] = std::process::id().to_be_bytes();
    let [master, next] = [9105, 9106].map(|port| SocketAddr::from(([127, 79, high, low], port)));
    let (out, err) = (folder.join("out"), folder.join("err"));
    let words = ["worker", DEMO, "--transport", "tcp"];
    let command = Node::command(&words, &key, [next, master]);
    let _worker = Node::spawn(with_files(18, command), &out, &err);
    // Silent strangers that connect again as soon as they are disconnected.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut strangers: Vec<TcpStream> = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                strangers.retain(|stranger| {
                    let mut stranger = stranger;
                    let _ = stranger.set_nonblocking(true);
                    matches!(stranger.read(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock)
                });
                if strangers.len() < 40 {
                    strangers.extend(TcpStream::connect(next).ok());
                }
                thread::sleep(Duration::from_millis(2));
            }
        });
        thread::sleep(Duration::from_secs(2));
        let words = ["master", DEMO, "-p", "Once upon a time", "-n", "5", "--temp", "0"];
        let words = [&words[..], &["--transport", "tcp", "--ring-timeout", "100"]].concat();
        let (out, err) = (folder.join("master.out"), folder.join("master.err"));
        let mut master = Node::start(&words, &key, [master, next], &out, &err);
        let code = master.0.wait().unwrap().code();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(code, Some(0), "{}", fs::read_to_string(&err).unwrap());
        assert!(fs::read_to_string(&out).unwrap().contains("in a green"));
    });
}

#[test]
fn a_node_that_speaks_another_transport_is_told_of() {
    let folder = Folder::new();
    let key = folder.join("key");
    fs::write(&key, KEY).unwrap();
    let [.., high, low] = std::process::id().to_be_bytes();
    let [udp, tcp] = [9107, 9108].map(|port| SocketAddr::from(([127, 79, high, low], port)));
    let words = ["worker", DEMO, "--transport", "udp"];
    let (out, udp_err) = (folder.join("out"), folder.join("udp.err"));
    let _udp = Node::start(&words, &key, [udp, tcp], &out, &udp_err);
    let words = ["worker", DEMO, "--transport", "tcp"];
    let (out, tcp_err) = (folder.join("tcp.out"), folder.join("tcp.err"));
    let _tcp = Node::start(&words, &key, [tcp, udp], &out, &tcp_err);
    let start = Instant::now();
    for (err, wanted) in [
        (udp_err, "is not heard on UDP port 9108 of"),
        (tcp_err, "no program listens on TCP port 9107 of"),
    ] {
        let told = || fs::read_to_string(&err).unwrap();
        while !told().contains(wanted) {
            assert!(start.elapsed() < PATIENCE, "{}", told());
            thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(told().matches("--transport").count(), 1, "{}", told());
    }
}
