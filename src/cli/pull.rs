//! `leap pull`: fetches a model by its name.

use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::{Failure, names, note};
use crate::sys::signal;

/// Fetches a model from Hugging Face's hub or Ollama's registry, to the folder where their own programs keep it.
///
/// Without QUANT, the GGUF file that suits this machine best is fetched. A download that was cut short is continued.
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
        let found = names::fetch(&name, self.quiet)?;
        if !self.quiet {
            let (mb, path) = (found.bytes as f64 / 1e6, found.path.display());
            note(&format!("leap: {name}: {mb:.1} MB at {path}"));
        }
        Ok(())
    }
}
