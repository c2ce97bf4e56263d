//! `leap pull`: fetches a model by its name.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::progress::ProgressLine;
use super::{Failure, names, note};
use crate::store::{self, FoundModel, ModelName, PullEvent, StoreError};
use crate::sys::signal;

/// Fetches a model from Hugging Face's hub or Ollama's registry, to the folder where their own programs keep it.
///
/// Of a hub's repository without QUANT, the model that suits this machine best is fetched. A download that was cut short
/// goes on where it ended.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "pull")]
pub(super) struct Pull {
    /// hf:ORG/REPO[:QUANT][@REVISION] or ollama:[HOST/][NAMESPACE/]MODEL[:TAG]
    #[argh(positional)]
    name: PathBuf,
    /// print nothing but errors
    #[argh(switch, short = 'q')]
    quiet: bool,
}

impl Pull {
    pub(super) fn execute(self) -> Result<(), Failure> {
        signal::install().map_err(|e| Failure::runtime(&e))?;
        let Some(name) = names::parsed(&self.name)? else {
            let name = self.name.display();
            let forms = "wanted hf:ORG/REPO[:QUANT] or ollama:MODEL[:TAG]";
            return Err(Failure::Usage(format!("{name} is no name of a model; {forms}")));
        };
        let found = fetch(&name, self.quiet)?;
        if !self.quiet {
            let (mb, path) = (found.bytes as f64 / 1e6, found.path.display());
            note(&format!("leap: {name}: {mb:.1} MB at {path}"));
        }
        Ok(())
    }
}

/// Whether a person watches at a terminal.
pub(super) fn is_watched() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Fetches the model of this name; shows progress unless `is_quiet`.
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
    let pulled = store::pull(name, names::room()?, &mut tell);
    drop(line);
    pulled.map_err(|error| match error {
        StoreError::Interrupted => {
            let again = format!("`leap pull {name}` goes on");
            Failure::Runtime(format!("interrupted; what has arrived is kept, and {again}"))
        }
        other => names::failure(other),
    })?;
    let lost = || Failure::Runtime(format!("{name} was fetched, and removed meanwhile"));
    names::find(name)?.ok_or_else(lost)
}
