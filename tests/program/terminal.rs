//! The program on a terminal, as a person sees it: conversations, and the progress of long work.
//!
//! Not for the static build, which tests run in an emulator: keys and signals arrive late there.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::folder::Folder;
use crate::common::leap;
use crate::common::terminal::Terminal;
use nix::sys::signal::Signal;
use serde_json::Value;

const FOX: &str = "Tell me a story about a fox.";
const LEFT: &str = "\x1b[D";
const UP: &str = "\x1b[A";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
/// The prompt of a terminal's editor.
const PROMPT: &str = "> ";

/// A person at a terminal: `leap run --chat` reports each answer as a JSON object.
struct Person {
    terminal: Terminal,
}

impl Person {
    fn new(home: &Folder, args: &[&str]) -> Person {
        let mut person = Person { terminal: Terminal::start(&chat(home, args)) };
        person.terminal.wait_for(PROMPT);
        person
    }

    /// Types a message and returns LEAP's report.
    #[track_caller]
    fn say(&mut self, keys: &str) -> Value {
        self.terminal.press(keys);
        self.terminal.press("\r");
        self.terminal.wait_for("{\"model\"");
        let rest = self.terminal.wait_for("\n");
        self.terminal.wait_for(PROMPT);
        serde_json::from_str(&format!("{{\"model\"{rest}")).unwrap()
    }

    /// Types a message and returns the text that LEAP received.
    #[track_caller]
    fn message(&mut self, keys: &str) -> String {
        self.say(keys)["prompt"].as_str().unwrap().to_owned()
    }

    /// Types a command, and waits for LEAP's reply and its next prompt: an end of input typed earlier is lost.
    #[track_caller]
    fn command(&mut self, text: &str, reply: &str) {
        self.terminal.press(&format!("{text}\r"));
        self.terminal.wait_for(reply);
        self.terminal.wait_for(PROMPT);
    }

    #[track_caller]
    fn leave(mut self) {
        self.terminal.press(CTRL_D);
        assert_eq!(self.terminal.end().code(), Some(0));
        assert!(self.terminal.is_cooked());
    }
}

fn chat(home: &Folder, args: &[&str]) -> Command {
    let mut command = leap();
    command.args(["run", "--chat", "--temp", "0", "-n", "6", "--json"]).args(args);
    command.env("XDG_STATE_HOME", home.path()).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// A run whose answers take long enough to be interrupted.
fn slow_chat(home: &Folder) -> Command {
    let mut command = leap();
    command.args(["run", "--chat", "--temp", "5", "--top-p", "1", "--seed", "3", "--threads", "1"]);
    command.env("LEAP_ISA", "scalar").env("XDG_STATE_HOME", home.path());
    command
}

#[test]
fn arrows_edit_the_line_and_recall_the_last() {
    let home = Folder::new();
    let mut person = Person::new(&home, &[]);
    assert_eq!(person.message(&format!("ac{LEFT}b")), "abc");
    assert_eq!(person.message(&format!("{UP}d")), "abcd");
    person.leave();
}

#[test]
fn history_is_kept_for_its_owner_alone() {
    let home = Folder::new();
    let file = home.join("leap/chat-history");
    let mut person = Person::new(&home, &[]);
    person.message("the first");
    person.message("the second");
    person.leave();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(file.clone()), 0o600);
    assert_eq!(mode(home.join("leap")), 0o700);

    let mut again = Person::new(&home, &[]);
    assert_eq!(again.message(&format!("{UP}{UP}")), "the first");
    again.leave();

    let before = fs::read(&file).unwrap();
    let mut stranger = Person::new(&home, &["--no-history"]);
    assert_eq!(stranger.message(&format!("{UP}a secret")), "a secret");
    assert_eq!(stranger.message(UP), "a secret", "within a conversation it is recalled");
    stranger.leave();
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn history_is_bounded_and_a_damaged_one_begun_anew() {
    let home = Folder::new();
    fs::create_dir(home.join("leap")).unwrap();
    let file = home.write("leap/chat-history", "#V2\n".to_owned() + &"old\nother\n".repeat(2000));
    let mut person = Person::new(&home, &[]);
    person.message("new");
    person.message(&format!("\x1b[200~{}\x1b[201~", "long ".repeat(900)));
    person.leave();
    let kept = fs::read_to_string(&file).unwrap();
    assert!(kept.lines().count() <= 1001 && kept.ends_with("\nnew\n"), "{}", kept.lines().count());

    fs::write(&file, b"#V2\n\xff\xfe\n").unwrap();
    let mut person = Person::new(&home, &[]);
    person.message("hello");
    person.leave();
    assert_eq!(fs::read_to_string(&file).unwrap(), "#V2\nhello\n");
}

#[test]
fn conversation_goes_on_where_no_history_can_be_kept() {
    let home = Folder::new();
    home.write("leap", "a file where the folder should be");
    let mut person = Person::new(&home, &[]);
    assert_eq!(person.message("hello"), "hello");
    assert_eq!(person.message(UP), "hello");
    person.leave();
}

#[test]
fn pasted_paragraphs_are_one_message() {
    let home = Folder::new();
    let mut person = Person::new(&home, &[]);
    let pasted = "\x1b[200~make \\\r  all\r\n\r\nand go\r\x1b[201~";
    assert_eq!(person.message(pasted), "make \\\n  all\n\nand go");
    // Messages that are typed ahead wait for their turn.
    person.terminal.press("one\rtwo\r");
    for wanted in ["one", "two"] {
        person.terminal.wait_for(&format!("\"prompt\": \"{wanted}\""));
    }
    person.terminal.wait_for(PROMPT);
    person.leave();
}

#[test]
fn several_lines_can_be_written() {
    let home = Folder::new();
    let mut person = Person::new(&home, &[]);
    assert_eq!(person.message("one\\\rtwo\\\rthree"), "one\ntwo\nthree");
    assert_eq!(person.message("\"\"\"\rone\r\rtwo\r\"\"\""), "one\n\ntwo");
    person.leave();
}

#[test]
fn commands_are_answered_by_leap() {
    let home = Folder::new();
    let mut person = Person::new(&home, &[]);
    let tokens = |answer: &Value| answer["prompt_tokens"].as_u64().unwrap();
    let first = person.say(FOX);
    person.command("/help", "/system TEXT");
    person.command("/nonsense", "/nonsense is no command");
    person.command("/system", "there are no instructions");
    let second = person.say(FOX);
    assert!(tokens(&second) > 5, "it is added to the conversation: {second}");
    person.command("/clear", "begins anew");
    let anew = person.say(FOX);
    assert_eq!((tokens(&anew), &anew["text"]), (1, &first["text"]), "the context is the first's");
    person.command("/system You tell stories about owls.", "begins anew");
    let instructed = person.say(FOX);
    assert!(tokens(&instructed) > tokens(&first), "{instructed} after {first}");
    person.command("/clear", "begins anew");
    person.command("/system", "about owls.");
    assert_eq!(person.message("//help"), "/help");
    assert_eq!(person.message("/etc/passwd"), "/etc/passwd");
    person.terminal.press("/exit\r");
    assert_eq!(person.terminal.end().code(), Some(0));
}

#[test]
fn greeting_says_how_to_leave() {
    let home = Folder::new();
    let mut command = leap();
    command.args(["run", "--chat"]).env("XDG_STATE_HOME", home.path());
    let mut terminal = Terminal::start(&command);
    let greeting = terminal.wait_for(PROMPT);
    assert!(greeting.contains("/exit leaves"), "{greeting:?}");
    terminal.press(CTRL_D);
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn control_c_takes_a_line_back_and_ends_an_answer() {
    let home = Folder::new();
    let mut terminal = Terminal::start(&slow_chat(&home));
    terminal.wait_for(PROMPT);
    terminal.press(&format!("not this{CTRL_C}"));
    terminal.wait_for("/exit leaves");
    for message in ["one", "two"] {
        // Keys typed before the prompt may be lost with Ctrl-C, as on any terminal.
        terminal.wait_for(PROMPT);
        terminal.press(&format!("{message}\r"));
        terminal.wait_for(message);
        // The answer has begun.
        let text = terminal.wait_for("a");
        assert!(!text.contains("not this"), "{text:?}");
        terminal.press(CTRL_C);
        terminal.wait_for("generated ");
    }
    terminal.wait_for(PROMPT);
    terminal.press(CTRL_D);
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn signals_end_the_program_and_leave_the_terminal_as_it_was() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let home = Folder::new();
        let mut person = Person::new(&home, &[]);
        person.message("hello");
        person.terminal.press("half a mess");
        person.terminal.wait_for("half a mess");
        assert!(!person.terminal.is_cooked(), "the editor has the terminal");
        person.terminal.signal(signal);
        person.terminal.end();
        assert!(person.terminal.is_cooked(), "{signal}");
    }
}

#[test]
fn terminal_without_a_cursor_gives_plain_lines() {
    let home = Folder::new();
    let mut command = chat(&home, &[]);
    let mut terminal = Terminal::start(command.env("TERM", "dumb"));
    terminal.wait_for(PROMPT);
    assert!(terminal.is_cooked());
    terminal.press("/help\n");
    terminal.wait_for("/system TEXT");
    terminal.press("one\\\ntwo\n");
    terminal.wait_for("\"prompt\": \"one\\ntwo\"");
    terminal.press(CTRL_D);
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn lines_of_a_pipe_are_messages_whatever_they_hold() {
    let home = Folder::new();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let lines = ["/help", "//a", "b\\", "\"\"\"", "\u{1b}[D"];
    std::io::Write::write_all(&mut writer, lines.join("\n").as_bytes()).unwrap();
    drop(writer);
    let mut command = chat(&home, &[]);
    let output = command.stdin(reader).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let objects = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let prompts: Vec<String> = objects.map(|o| o["prompt"].as_str().unwrap().to_owned()).collect();
    assert_eq!(prompts, lines);
    assert!(output.stderr.is_empty(), "{:?}", String::from_utf8_lossy(&output.stderr));
    assert!(!home.join("leap").exists());
}

/// Starts `leap pack` on a locked folder, and unlocks it after more time than quick work takes.
fn pack_slowly(folder: &Folder, start: impl FnOnce(&Command) -> u32) {
    let lock = File::open(folder.path()).unwrap();
    lock.lock().unwrap();
    let mut command = leap();
    command.args(["pack", "models/demo.bin", "--cache"]).arg(folder.path());
    // Scalar kernels have nothing to pack.
    command.env_remove("LEAP_ISA");
    let pid = start(command.current_dir(env!("CARGO_MANIFEST_DIR")));
    let waits = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|&word| word != "->");
        words.nth(4).is_some_and(|word| word == pid.to_string())
    };
    let began = Instant::now();
    while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing waits for the folder");
        sleep(Duration::from_millis(10));
    }
    sleep(Duration::from_millis(1100));
    lock.unlock().unwrap();
}

#[test]
fn long_work_is_told_of_in_a_journal_and_drawn_on_a_terminal() {
    let folder = Folder::new();
    let mut child = None;
    pack_slowly(&folder, |command| {
        let mut again = Command::new(command.get_program());
        again.args(command.get_args()).current_dir(command.get_current_dir().unwrap());
        again.env_remove("LEAP_ISA");
        child.insert(again.stderr(Stdio::piped()).spawn().unwrap()).id()
    });
    let output = child.unwrap().wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("leap: packing weights, "), "{told}");
    assert!(lines[1].starts_with("leap: packed "), "{told}");

    let folder = Folder::new();
    let mut terminal = None;
    pack_slowly(&folder, |command| terminal.insert(Terminal::start(command)).pid());
    let mut terminal = terminal.unwrap();
    let shown = terminal.wait_for("leap: packed ");
    assert!(shown.contains("packing weights") && shown.contains(" left"), "{shown:?}");
    assert_eq!(terminal.end().code(), Some(0));

    // Quick work gets no message.
    let folder = Folder::new();
    let mut command = leap();
    command.args(["pack", "models/demo.bin", "--cache"]).arg(folder.path()).env_remove("LEAP_ISA");
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert_eq!(output.stderr.iter().filter(|&&byte| byte == b'\n').count(), 1, "{output:?}");
}
