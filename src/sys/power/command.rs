//! A command that prints watts, such as one that asks a meter between the board and its plug.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::shared::Shared;
use super::totals::{PowerReading, Sample};

/// Its name.
pub(super) const NAME: &str = "--power-cmd";
/// How long its first reading is waited for.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// A command that ends is started again after this time.
const PERIOD: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(1));
/// A reading holds until the next one, but no longer.
const AGE_MAX: Duration = Duration::from_secs(10);
/// Longest line.
const LINE_BYTES: u64 = 256;

/// A command that runs again and again, or goes on printing.
pub(super) struct CommandSensor {
    shared: Arc<Shared>,
    group: Arc<Mutex<Option<Pid>>>,
}

impl CommandSensor {
    pub(super) fn start(command: String) -> io::Result<CommandSensor> {
        let group: Arc<Mutex<Option<Pid>>> = Arc::default();
        let of_thread = Arc::clone(&group);
        let shared = Shared::start(move |shared| {
            let mut started = Instant::now();
            loop {
                run(&command, shared, &of_thread);
                if shared.wait(started, PERIOD).is_none() {
                    return;
                }
                started = Instant::now();
            }
        })?;
        shared.wait_for_first(START_PATIENCE);
        Ok(CommandSensor { shared, group })
    }

    pub(super) fn set_working(&self, is_working: bool) {
        self.shared.set_working(is_working);
    }

    pub(super) fn read(&self) -> Option<PowerReading> {
        self.shared.held(AGE_MAX, NAME)
    }

    /// Ends the command.
    pub(super) fn stop(&self) {
        self.shared.ask_to_end();
        kill(&self.group);
        self.shared.end();
    }
}

impl Drop for CommandSensor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Takes the lines of one run of the command, which is in a process group of its own.
fn run(command: &str, shared: &Shared, group: &Mutex<Option<Pid>>) {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // SAFETY: between fork and exec the closure makes one system call, which takes no pointers.
    unsafe { shell.process_group(0).pre_exec(end_with_parent) };
    let Ok(mut child) = shell.spawn() else { return add(shared, None) };
    *group.lock().unwrap_or_else(PoisonError::into_inner) =
        i32::try_from(child.id()).ok().map(Pid::from_raw);
    // The end of the meter kills what runs: this process may have started too late for that.
    if shared.is_ending() {
        kill(group);
    }
    let n_lines = child.stdout.take().map_or(0, |stdout| read_lines(stdout, shared));
    kill(group);
    end(&mut child);
    if n_lines == 0 && !shared.is_ending() {
        add(shared, None);
    }
}

/// Has the system end this process when its parent dies in any way. If that is not possible, the end of their
/// pipe does, at the next output.
fn end_with_parent() -> io::Result<()> {
    // SAFETY: it takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    Ok(())
}

fn read_lines(stdout: ChildStdout, shared: &Shared) -> usize {
    let (mut stdout, mut line, mut n_lines) = (BufReader::new(stdout), Vec::new(), 0);
    loop {
        line.clear();
        match stdout.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(1..) if !shared.is_ending() => {}
            _ => return n_lines,
        }
        add(shared, watts(&line).map(Sample::Watts));
        n_lines += 1;
    }
}

/// The number that a line begins with.
pub(super) fn watts(line: &[u8]) -> Option<f64> {
    let word = std::str::from_utf8(line).ok()?.split_whitespace().next()?;
    word.parse().ok()
}

fn add(shared: &Shared, sample: Option<Sample>) {
    shared.add(sample, u64::MAX, NAME);
}

/// Ends the command and what it has started.
fn kill(group: &Mutex<Option<Pid>>) {
    // Taken before the command is waited for, when its number may be another process's.
    if let Some(group) = group.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // It may have ended.
        let _ = killpg(group, Signal::SIGKILL);
    }
}

fn end(child: &mut Child) {
    // It has been killed; that there is nothing to wait for is as well.
    let _ = child.wait();
}
