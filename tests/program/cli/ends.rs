//! Ends from outside: signals, readers that go away, full disks.

use std::fs;
use std::io::{PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{DEMO, FOX, PROMPT, command, generated, start};
use crate::common::folder::Folder;
use crate::common::ran::Ran;

/// A stdout without a reader.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn reader_that_goes_away_ends_the_answer() {
    for args in [&["run", "-p", PROMPT, "-n", "200"][..], &["run", "-c", "-p", FOX]] {
        let ran = Ran::new(command(args).stdout(closed()).output().unwrap()).succeeds();
        assert!(generated(&ran.err) <= 2, "{ran:?}");
    }
    for args in [&["run", "-n", "3", "--json"][..], &["--help"]] {
        let ran = Ran::new(command(args).stdout(closed()).output().unwrap()).succeeds();
        assert_eq!(ran.err, "", "{args:?}");
    }
}

#[test]
fn full_disk_is_a_failure() {
    let folder = Folder::new();
    let prompts = folder.write("prompts", "Once\nThe fox\n");
    let prompts = prompts.to_str().unwrap();
    let ids = folder.write("ids.json", "[4064, 589, 598]");
    let ids = ids.to_str().unwrap();
    for args in [
        &["run", "-p", PROMPT, "-n", "9"][..],
        &["run", "-p", PROMPT, "-n", "9", "--json"],
        &["run", "-c", "-p", FOX, "-n", "9"],
        &["run", DEMO, "--streams", "2", "--prompt-file", prompts, "-n", "9"],
        &["run", DEMO, "--streams", "2", "--prompt-file", prompts, "-n", "9", "--json"],
        &["info", DEMO],
        &["eval", DEMO, "--ids", ids],
        &["--help"],
        &["run", "--help"],
        &["--version"],
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ran = Ran::new(command(args).stdout(full).output().unwrap());
        ran.fails(1, "cannot write to stdout");
    }
}

/// A run of 1000 tokens that takes long enough to be interrupted.
fn slow(args: &[&str]) -> Child {
    start(&mut slow_command(args))
}

fn slow_command(args: &[&str]) -> Command {
    let mut command = command(&["run", "--temp", "5", "--top-p", "1", "--seed", "3"]);
    command.args(["--threads", "1"]).args(args).env("LEAP_ISA", "scalar");
    command
}

/// Reads `n` bytes of the child's text.
fn wait_for_text(child: &mut Child, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    child.stdout.as_mut().unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
}

#[test]
fn interrupt_ends_the_answer() {
    let mut child = slow(&["-p", "x", "-n", "1000"]);
    wait_for_text(&mut child, 10);
    interrupt(&child);
    let ran = Ran::new(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!((1..1000).contains(&generated(&ran.err)), "{ran:?}");
    assert!(ran.out.ends_with('\n'), "{ran:?}");
}

#[test]
fn interrupt_does_not_wait_for_the_prompt_to_be_read() {
    let prompt = "Once upon a time there was a fox. ".repeat(80);
    let mut child = slow(&["-p", &prompt, "--batch", "1024", "--cache", "off"]);
    // The prompt is shown before it is computed, which takes a single batch.
    wait_for_text(&mut child, prompt.len());
    std::thread::sleep(Duration::from_millis(200));
    interrupt(&child);
    let ran = Ran::new(child.wait_with_output().unwrap());
    assert_eq!((ran.code, generated(&ran.err)), (Some(130), 0), "{ran:?}");
}

#[test]
fn termination_ends_the_conversation() {
    for is_answering in [true, false] {
        let mut child = slow(if is_answering { &["-c"] } else { &["-c", "-n", "1"] });
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "x").unwrap();
        if is_answering {
            wait_for_text(&mut child, 10);
        } else {
            // The line of the answer has ended: the program waits for the next message, or soon will.
            while wait_for_text(&mut child, 1) != b"\n" {}
        }
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        // No further line comes, and the input stays open.
        let ran = Ran::new(child.wait_with_output().unwrap());
        drop(stdin);
        // A program that waits for a message has nothing to cut short.
        assert_eq!(ran.code, Some(if is_answering { 143 } else { 0 }), "{ran:?}");
    }
}

#[test]
fn interrupt_leaves_the_conversation_open() {
    let mut child = slow(&["-c"]);
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "x").unwrap();
    wait_for_text(&mut child, 10);
    interrupt(&child);
    // The line break after the answer shows that the program is ready for the next message.
    while wait_for_text(&mut child, 1) != b"\n" {}
    writeln!(stdin, "y").unwrap();
    wait_for_text(&mut child, 10);
    interrupt(&child);
    drop(stdin);
    let ran = Ran::new(child.wait_with_output().unwrap()).succeeds();
    assert_eq!(ran.err.matches("generated ").count(), 2, "{ran:?}");
}

/// Fills a pipe, while its other writers still block.
fn fill(pipe: &PipeWriter) {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let mut open = fs::OpenOptions::new();
    let mut pipe = open.write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    while pipe.write(&[0; 512]).is_ok() {}
    while pipe.write(&[0]).is_ok() {}
}

#[test]
fn second_interrupt_ends_the_program() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = slow_command(&["-p", "x", "-n", "1000"]);
    command.stdout(writer.try_clone().unwrap()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    reader.read_exact(&mut [0]).unwrap();
    // The pipe has no room for text from here on, so the program cannot end by itself.
    fill(&writer);
    interrupt(&child);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(child.try_wait().unwrap(), None, "the first interrupt ends the answer alone");
    let start = Instant::now();
    let status = loop {
        interrupt(&child);
        std::thread::sleep(Duration::from_millis(10));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the second one does not end it");
    };
    assert_eq!(status.signal(), Some(Signal::SIGINT as i32));
}

#[test]
fn model_shortened_while_in_use_ends_the_program_with_one_line() {
    let folder = Folder::new();
    let model = folder.write("model.bin", fs::read(DEMO).unwrap());
    folder.write("model.tokenizer.bin", fs::read("models/demo.tokenizer.bin").unwrap());
    let path = model.to_str().unwrap();
    // Without packed weights, every token reads the mapped file.
    let mut child = slow(&[path, "--cache", "off", "--huge", "off", "-p", "x", "-n", "1000"]);
    wait_for_text(&mut child, 10);
    fs::File::options().write(true).open(&model).unwrap().set_len(4096).unwrap();
    Ran::new(child.wait_with_output().unwrap()).fails(1, "another program shortened it");
}
