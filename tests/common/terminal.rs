//! A pseudo-terminal, on which a test types like a person.
#![allow(dead_code, reason = "every test crate compiles this module; not all need a terminal")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

/// Far longer than any awaited output takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program that runs on a terminal of its own.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    /// Keeps the terminal open when the program has ended.
    slave: OwnedFd,
    screen: Receiver<Vec<u8>>,
    /// Output that no wait has consumed yet.
    shown: String,
}

impl Terminal {
    /// Starts `command` on a terminal; `stdout` and `stderr` go there too.
    pub(crate) fn start(command: &Command) -> Terminal {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let stdio = || pty.slave.try_clone().unwrap();
        // The terminal gets a session of its own, so that Ctrl-C there is a signal. Signals get their default actions,
        // whatever runs the tests (`nohup` ignores one).
        let mut on_terminal = Command::new("env");
        on_terminal.args(["--default-signal", "setsid", "--ctty"]).arg(command.get_program());
        on_terminal.args(command.get_args());
        on_terminal.env("TERM", "xterm");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => on_terminal.env(name, value),
                None => on_terminal.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            on_terminal.current_dir(folder);
        }
        on_terminal.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let child = on_terminal.spawn().unwrap();
        let keyboard = File::from(pty.master);
        let mut screen = keyboard.try_clone().unwrap();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = screen.read(&mut bytes) {
                if sender.send(bytes[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { child, keyboard, slave: pty.slave, screen: receiver, shown: String::new() }
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `what` is shown, and returns everything up to its end since the last call.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, what: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(at) = self.shown.find(what) {
                let rest = self.shown.split_off(at + what.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            let left = PATIENCE.saturating_sub(start.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("{what:?} is not shown, but {:?}", self.shown);
                }
            }
        }
    }

    /// The program's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// True if the terminal echoes input and passes it on line by line, the state that programs expect.
    pub(crate) fn is_cooked(&self) -> bool {
        let flags = tcgetattr(&self.slave).unwrap().local_flags;
        flags.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG)
    }

    /// Waits for the program to end.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the program goes on; shown: {:?}", self.shown);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A program still runs only if the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
