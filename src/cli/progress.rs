//! Progress of long work: a bar with rate and time left on a terminal, elsewhere a line at its start. Quick work is at
//! most reported when it is done.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use super::note;

/// Longest quick work.
const QUICK: Duration = Duration::from_secs(1);

/// Interval between lines on a terminal without a bar.
const PERIOD: Duration = Duration::from_secs(10);

/// Progress of one piece of work; it ends when this is dropped.
pub(super) struct ProgressLine {
    /// The work in words: "packing weights".
    what: &'static str,
    pace: Pace,
    is_quiet: bool,
    is_terminal: bool,
    #[cfg(feature = "tools")]
    bar: Option<indicatif::ProgressBar>,
}

impl ProgressLine {
    /// Begins; shows nothing if `is_quiet`.
    pub(super) fn new(what: &'static str, is_quiet: bool) -> ProgressLine {
        ProgressLine {
            what,
            pace: Pace { start: Instant::now(), told: None },
            is_quiet,
            is_terminal: io::stderr().is_terminal(),
            #[cfg(feature = "tools")]
            bar: None,
        }
    }

    /// Notes that `done_bytes` of `total_bytes` are done.
    pub(super) fn update(&mut self, done_bytes: u64, total_bytes: u64) {
        if self.is_quiet {
            return;
        }
        match self.pace.step(Instant::now(), done_bytes == total_bytes) {
            ProgressStep::Quiet => {}
            ProgressStep::Begin => self.begin(total_bytes),
            ProgressStep::Again => self.again(done_bytes, total_bytes),
        }
        #[cfg(feature = "tools")]
        if let Some(bar) = &self.bar {
            bar.set_length(total_bytes);
            bar.set_position(done_bytes);
        }
    }

    #[cfg(feature = "tools")]
    fn begin(&mut self, total_bytes: u64) {
        match self.is_terminal {
            true => self.bar = Some(bar(self.what, self.pace.start)),
            false => self.line(total_bytes),
        }
    }

    #[cfg(not(feature = "tools"))]
    fn begin(&mut self, total_bytes: u64) {
        self.line(total_bytes);
    }

    fn line(&self, total_bytes: u64) {
        note(&format!("leap: {}, {:.1} MB", self.what, total_bytes as f64 / 1e6));
    }

    /// Repeats the line on a terminal only: a journal needs no more than start and end.
    fn again(&self, done_bytes: u64, total_bytes: u64) {
        if self.is_terminal && cfg!(not(feature = "tools")) {
            let percent = done_bytes as f64 / total_bytes as f64 * 100.0;
            note(&format!("leap: {}, {percent:.0} %", self.what));
        }
    }
}

#[cfg(feature = "tools")]
impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(feature = "tools")]
fn bar(what: &'static str, start: Instant) -> indicatif::ProgressBar {
    use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let bar = bar.with_elapsed(start.elapsed()).with_prefix(what);
    if let Ok(style) = ProgressStyle::with_template(
        "{prefix} {bar:20} {percent:>3} % {bytes}/{total_bytes} {binary_bytes_per_sec}, {eta} left",
    ) {
        bar.set_style(style);
    }
    bar
}

/// Times at which to say something.
struct Pace {
    start: Instant,
    told: Option<Instant>,
}

/// The message due at a step.
#[derive(Debug, PartialEq, Eq)]
enum ProgressStep {
    Quiet,
    /// The work has turned out to be long.
    Begin,
    /// The work has been going on for another while.
    Again,
}

impl Pace {
    fn step(&mut self, now: Instant, is_last: bool) -> ProgressStep {
        let step = match self.told {
            _ if is_last => ProgressStep::Quiet,
            None if now.duration_since(self.start) >= QUICK => ProgressStep::Begin,
            Some(told) if now.duration_since(told) >= PERIOD => ProgressStep::Again,
            _ => ProgressStep::Quiet,
        };
        if step != ProgressStep::Quiet {
            self.told = Some(now);
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(at_ms: &[u64]) -> Vec<ProgressStep> {
        let start = Instant::now();
        let mut pace = Pace { start, told: None };
        at_ms.iter().map(|&ms| pace.step(start + Duration::from_millis(ms), false)).collect()
    }

    #[test]
    fn quick_work_is_not_worth_a_word() {
        assert_eq!(
            steps(&[0, 10, 999]),
            [ProgressStep::Quiet, ProgressStep::Quiet, ProgressStep::Quiet]
        );
        let start = Instant::now();
        let mut pace = Pace { start, told: None };
        assert_eq!(pace.step(start + Duration::from_secs(5), true), ProgressStep::Quiet);
    }

    #[test]
    fn long_work_is_told_of_at_its_start_and_now_and_then() {
        let steps = steps(&[500, 1500, 1600, 9000, 12_000, 12_001, 22_000]);
        use ProgressStep::{Again, Begin, Quiet};
        assert_eq!(steps, [Quiet, Begin, Quiet, Quiet, Again, Quiet, Again]);
    }
}
