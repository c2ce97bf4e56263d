//! `--sweep`: with how many threads, and at which clocks, a token takes the least energy.

use super::energy::{self, EnergyFigure};
use crate::cli::{Failure, note, power};
use crate::engine::Engine;
use crate::sys::clocks::Clocks;
use crate::sys::power::Meter;
use crate::sys::signal;

/// One setting and its measured energy.
pub(super) struct SweepFigure {
    pub(super) threads: usize,
    /// Highest clock of the cores, if it was chosen.
    pub(super) khz: Option<u64>,
    pub(super) energy: EnergyFigure,
}

/// Settings to try.
pub(super) struct Sweep<'a> {
    pub(super) threads: &'a [usize],
    /// Cores that this number of threads runs on.
    pub(super) cpus: &'a dyn Fn(usize) -> Vec<usize>,
    /// Makes an engine on these cores.
    pub(super) engine: &'a dyn Fn(&[usize]) -> Result<Engine, Failure>,
    /// Tokens of context before those that are measured.
    pub(super) depth: usize,
    /// The least speed that counts.
    pub(super) min_tokens_per_s: Option<f64>,
}

impl Sweep<'_> {
    /// Decodes for five seconds with each number of threads and at each clock, reports each result, and
    /// returns the one with the least energy of all that are quick enough.
    pub(super) fn run(
        &self,
        (meter, idle_watts): (&Meter, f64),
        tell: &mut dyn FnMut(&SweepFigure) -> Result<(), Failure>,
    ) -> Result<SweepFigure, Failure> {
        // Clocks are set back before the program ends.
        signal::install().map_err(|e| Failure::runtime(&e))?;
        let wanted = self.min_tokens_per_s.unwrap_or(0.0);
        let mut best: Option<SweepFigure> = None;
        let most = self.threads.iter().copied().max().unwrap_or(1);
        let clocks = clocks(&(self.cpus)(most))?;
        for &threads in self.threads {
            let mut engine = (self.engine)(&(self.cpus)(threads))?;
            for khz in steps(clocks.as_ref()) {
                if let (Some(clocks), Some(khz)) = (&clocks, khz) {
                    clocks.cap(khz).map_err(|e| Failure::runtime(&e))?;
                }
                let meter = (meter, idle_watts);
                let energy = energy::decode(&mut engine, meter, self.depth, energy::SECONDS)?;
                let figure = SweepFigure { threads, khz, energy };
                tell(&figure)?;
                let joules = |figure: &SweepFigure| figure.energy.joules_per_token();
                if figure.energy.tokens_per_s() >= wanted
                    && best.as_ref().is_none_or(|best| joules(&figure) < joules(best))
                {
                    best = Some(figure);
                }
            }
        }
        best.ok_or_else(|| Failure::Runtime(format!("no setting reaches {wanted} tokens/s here")))
    }
}

/// Clocks to try, the fastest first; a single `None` if there is no choice.
fn steps(clocks: Option<&Clocks>) -> Vec<Option<u64>> {
    clocks.map_or(vec![None], |clocks| clocks.steps().iter().rev().copied().map(Some).collect())
}

/// Clocks that the cores can be set to; `None` if only the number of threads can change.
fn clocks(cpus: &[usize]) -> Result<Option<Clocks>, Failure> {
    let Some(clocks) = Clocks::find(&power::board()?, cpus) else {
        note("the system offers no choice of clocks: threads alone are tried");
        return Ok(None);
    };
    match clocks.cap(u64::MAX) {
        Ok(()) => Ok(Some(clocks)),
        Err(e) => {
            note(&format!("clocks cannot be set ({e}; it takes root): threads alone are tried"));
            Ok(None)
        }
    }
}
