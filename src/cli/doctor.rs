//! `leap doctor`: what this machine lacks, and the command that mends it.

mod cores;
mod finding;
mod gpus;
mod link;
pub(super) mod model;
mod power;
mod server;
mod tune;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use argh::{ArgsInfo, FromArgs};

use super::bench::machine;
use super::weights;
use super::{Failure, model_files, note, options, print};
use crate::engine::{Cache, Engine, Options, WeightsPlace};
use crate::kernels::Kernels;
use crate::pool::Pool;
use crate::ring::PORT_DEFAULT;
use crate::sys::cpu;
use crate::sys::tree::Tree;
use finding::{Finding, FindingState};

/// Bytes read to measure bandwidth: more than caches hold, yet quick on a slow board.
const PROBE_BYTES: u64 = 256 << 20;

/// Looks for what keeps LEAP from working or slows it down, and names the command that mends it.
///
/// Exit code 0 if LEAP will work, though maybe slowly; 1 if something keeps it from working.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "doctor")]
pub(super) struct Doctor {
    /// model that shall run here
    #[argh(positional)]
    model: Option<PathBuf>,
    /// context it shall have in tokens (the model's, up to 4096)
    #[argh(option, from_str_fn(options::count))]
    ctx: Option<usize>,
    /// packed weights of MODEL: auto, a file, a folder, or off
    #[argh(option, from_str_fn(weights::cache), default = "Cache::Auto")]
    cache: Cache,
    /// look also at what a board of a ring needs: kernel module, port, network
    #[argh(switch)]
    ring: bool,
    /// port that it shall listen on there (9999); goes with --ring
    #[argh(option)]
    port: Option<u16>,
    /// look also whether `leap serve` could listen here: HOST:PORT or path; may be given several times
    #[argh(option)]
    listen: Vec<String>,
    /// look also at the file of keys that `leap serve` shall have
    #[argh(option)]
    api_key_file: Option<PathBuf>,
    /// first set clocks, pages, network devices and buffers as advised, until the next start; takes root
    #[argh(switch)]
    fix: bool,
    /// take back what --fix has changed, and do nothing else
    #[argh(switch)]
    undo: bool,
    /// print one JSON object a line
    #[argh(switch)]
    json: bool,
}

impl Doctor {
    pub(super) fn execute(mut self) -> Result<(), Failure> {
        let tree = super::power::board()?;
        match (self.fix, self.undo) {
            (true, true) => {
                return Err(Failure::Usage("give --fix or --undo, not both".to_owned()));
            }
            (false, true) => return tune::run(&tree, "stop"),
            (true, false) => tune::run(&tree, "start")?,
            (false, false) => {}
        }
        if let Some(path) = &mut self.model {
            *path = model_files::converted(path, false)?;
        }
        let findings = self.findings(&tree)?;
        for finding in &findings {
            print(&if self.json { finding.as_json() } else { finding.as_text() })?;
        }
        if !self.ring && !self.json {
            note("leap: for a board of a ring, check more with: leap doctor --ring");
        }
        let count = |state| findings.iter().filter(|finding| finding.state == state).count();
        match (count(FindingState::Bad), count(FindingState::Slow)) {
            (0, 0) => {}
            (0, slow) => {
                let slow = findings_of(slow);
                note(&format!("leap: fit, but slower than it could be: {slow}"));
            }
            (bad, _) => {
                return Err(Failure::Runtime(format!("not fit: mend {} first", findings_of(bad))));
            }
        }
        Ok(())
    }

    fn findings(&self, tree: &Tree) -> Result<Vec<Finding>, Failure> {
        let engine = self.model.as_deref().map(open).transpose()?;
        let isa = options::isa_from_environment()?;
        let kernels = isa.and_then(Kernels::for_isa).unwrap_or_else(Kernels::best);
        let all = cpu::cores();
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);

        let pool = Pool::new(&cpu::cores_worth_using()).map_err(|e| Failure::runtime(&e))?;
        let read = machine::read_bandwidth(&kernels, &pool, PROBE_BYTES)?;
        let mut findings = cores::cores(tree, &all, &kernels);
        findings.extend(cores::governors(tree));
        findings.push(cores::huge_pages(tree));
        findings.extend(gpus::gpus(read));
        findings.extend(power::heat(tree));
        findings.push(power::sensor(tree));
        findings.extend(self.memory(tree, engine.as_ref(), (read, pool.threads())));
        if self.ring {
            findings.push(link::module(tree));
            findings.push(link::port(tree, self.port.unwrap_or(PORT_DEFAULT)));
            findings.extend(link::devices(tree));
            findings.extend(link::buffers(tree));
        }
        findings.extend(self.listen.iter().map(|place| server::address(tree, place)));
        findings.extend(self.api_key_file.as_deref().map(server::key_file));
        findings.extend(cores::clock(tree, since_1970.unwrap_or(Duration::ZERO).as_secs()));
        Ok(findings)
    }

    /// Judges size and speed of memory, and the packed weights. `read` is the bytes a second that `threads` threads read.
    fn memory(
        &self,
        tree: &Tree,
        engine: Option<&Engine>,
        (read, threads): (f64, usize),
    ) -> Vec<Finding> {
        let loaded = engine.map(|engine| engine.model());
        let ctx_len = |max: usize| self.ctx.unwrap_or(max.min(crate::engine::CTX_LEN_DEFAULT));
        let file_bytes = self.model.as_deref().and_then(|path| fs::metadata(path).ok());
        let wanted = loaded.zip(file_bytes).map(|(model, file)| model::WantedModel {
            model,
            file_bytes: file.len(),
            ctx_len: ctx_len(model.header().max_seq_len),
        });
        let mut findings =
            vec![model::memory(tree, wanted), model::bandwidth(read, threads, loaded)];
        findings.extend(loaded.map(|model| model::reads(model.header())));
        if let (Some(engine), Some(path)) = (engine, &self.model) {
            let (model, cache) = (Some(path.clone()), self.cache.clone());
            let place = WeightsPlace { model, cache, ..WeightsPlace::default() };
            let cache = engine.cache_file(&place);
            findings.push(model::cache(engine, path, cache.as_deref()));
        }
        findings
    }
}

fn findings_of(n: usize) -> String {
    if n == 1 { "1 finding".to_owned() } else { format!("{n} findings") }
}

/// Opens the model with as little memory as possible: the machine may not have the memory of a run.
fn open(path: &Path) -> Result<Engine, Failure> {
    let options = Options {
        ctx_len: Some(1),
        batch: Some(1),
        threads: Some(1),
        isa: options::isa_from_environment()?,
        ..Options::default()
    };
    Engine::new(model_files::open_whole(path)?.into(), &options).map_err(options::engine_failure)
}

#[cfg(test)]
mod tests;
