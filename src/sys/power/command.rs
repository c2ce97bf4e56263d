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

/// Name of the sensor.
pub(super) const NAME: &str = "--power-cmd";
/// Longest wait for the first reading.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// Shortest time between two starts of a command that ends, with work and without.
const PERIOD: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(1));
/// Longest validity of a reading; the next reading replaces it sooner.
const AGE_MAX: Duration = Duration::from_secs(10);
/// Longest line, in bytes.
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
    // A meter that ended before the command's number was known did not kill the command.
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

/// Makes the system kill this process when its parent dies in any way. If that is not possible, the closed pipe ends it
/// at its next output.
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
    // Taken before the command is waited for: afterwards its number may be another process's.
    if let Some(group) = group.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // The command may have ended already.
        let _ = killpg(group, Signal::SIGKILL);
    }
}

fn end(child: &mut Child) {
    // The command has been killed, and an error here only means that there is nothing to wait for.
    let _ = child.wait();
}
