//! Models by name: `hf:ORG/REPO[:QUANT][@REVISION]` and `ollama:NAME[:TAG]` stand for files on this machine.

#[cfg(feature = "pull")]
use std::io::{self, IsTerminal};
#[cfg(feature = "pull")]
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::bench::machine;
#[cfg(feature = "pull")]
use super::note;
#[cfg(feature = "pull")]
use super::progress::ProgressLine;
use super::{Failure, options};
use crate::kernels::Kernels;
use crate::pool::Pool;
#[cfg(feature = "pull")]
use crate::store::PullEvent;
use crate::store::{self, FoundModel, MachineRoom, ModelName, StoreError};
#[cfg(feature = "pull")]
use crate::sys::signal;
use crate::sys::{cpu, memory};

/// Bytes read to measure bandwidth: more than caches hold.
const PROBE_BYTES: u64 = 128 << 20;

/// The name that `model` spells; `None` if it is a path.
pub(super) fn parsed(model: &Path) -> Result<Option<ModelName>, Failure> {
    let name = model.to_str().and_then(ModelName::parse);
    name.transpose().map_err(Failure::Usage)
}

/// The short name by which clients of a server call `model`: a path's file without its ending.
#[cfg(feature = "serve")]
pub(super) fn shown(model: &Path) -> Result<Option<String>, Failure> {
    let stem = || model.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
    Ok(parsed(model)?.map(|name| name.short()).or_else(stem))
}

/// The file or folder that `model` stands for: itself, or the model of this name on this machine.
pub(super) fn path(model: &Path) -> Result<PathBuf, Failure> {
    let Some(name) = parsed(model)? else { return Ok(model.to_owned()) };
    let found = find(&name)?.ok_or_else(|| missing(&name))?;
    Ok(found.path)
}

/// The file or folder that `model` stands for, like [`path`]. A person at a terminal gets a missing model fetched.
pub(super) fn path_or_fetched(model: &Path, is_quiet: bool) -> Result<PathBuf, Failure> {
    let named = parsed(model)?.map(|name| found_or_fetched(&name, is_quiet)).transpose()?;
    Ok(named.map_or_else(|| model.to_owned(), |found| found.path))
}

/// The model of this name. A person at a terminal gets a missing model fetched.
pub(super) fn found_or_fetched(name: &ModelName, is_quiet: bool) -> Result<FoundModel, Failure> {
    if let Some(found) = find(name)? {
        return Ok(found);
    }
    #[cfg(feature = "pull")]
    if is_watched() {
        return fetch(name, is_quiet);
    }
    let _ = is_quiet;
    Err(missing(name))
}

/// The model of this name, if it is on this machine.
pub(super) fn find(name: &ModelName) -> Result<Option<FoundModel>, Failure> {
    // A machine that cannot be measured takes the largest model.
    let any = MachineRoom { memory_bytes: u64::MAX, bytes_per_s: f64::MAX };
    store::find(name, &|| room().unwrap_or(any)).map_err(failure)
}

/// Whether a person watches at a terminal.
#[cfg(feature = "pull")]
fn is_watched() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Fetches the model of this name; shows progress unless `is_quiet`.
#[cfg(feature = "pull")]
pub(super) fn fetch(name: &ModelName, is_quiet: bool) -> Result<FoundModel, Failure> {
    let mut line = ProgressLine::new("fetching", is_quiet);
    let mut tell = |event: PullEvent<'_>| {
        match event {
            PullEvent::Note(text) if !is_quiet => note(&format!("leap: {text}")),
            PullEvent::Note(_) => {}
            PullEvent::Bytes { done, total, .. } if total > 0 => line.update(done, total),
            PullEvent::Bytes { .. } => {}
        }
        match signal::interrupted() {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    };
    let pulled = store::pull(name, room()?, &mut tell);
    drop(line);
    pulled.map_err(|error| match error {
        StoreError::Interrupted => {
            let again = format!("`leap pull {name}` goes on");
            Failure::Runtime(format!("interrupted; what has arrived is kept, and {again}"))
        }
        other => failure(other),
    })?;
    let lost = || Failure::Input(format!("{name} was fetched, but its files are no whole model"));
    find(name)?.ok_or_else(lost)
}

fn missing(name: &ModelName) -> Failure {
    let fetch = match cfg!(feature = "pull") {
        true => format!("`leap pull {name}` fetches it"),
        false => "this program was built without downloads".to_owned(),
    };
    Failure::Input(format!("{name} is not on this machine; {fetch}"))
}

/// Memory that is free here, and its measured speed.
pub(super) fn room() -> Result<MachineRoom, Failure> {
    let isa = options::isa_from_environment()?;
    let kernels = isa.and_then(Kernels::for_isa).unwrap_or_else(Kernels::best);
    let pool = Pool::new(&cpu::cores_worth_using()).map_err(|e| Failure::runtime(&e))?;
    Ok(MachineRoom {
        memory_bytes: memory::available_bytes().unwrap_or(u64::MAX),
        bytes_per_s: machine::read_bandwidth(&kernels, &pool, PROBE_BYTES)?,
    })
}

/// The failure of a search, a download or a removal.
pub(super) fn failure(error: StoreError) -> Failure {
    match error {
        StoreError::Input(what) => Failure::Input(what),
        StoreError::Runtime(what) => Failure::Runtime(what),
        #[cfg(feature = "pull")]
        StoreError::Interrupted => Failure::Runtime("interrupted".to_owned()),
    }
}
