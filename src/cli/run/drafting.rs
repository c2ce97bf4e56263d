//! `leap worker --draft-model`: drafts for the texts of other boards.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::flags::Run;
use crate::cli::model_files::{self, Loaded};
use crate::cli::{Failure, counted, key, note, options, warn, weights};
use crate::engine::draft_node::PORT_DEFAULT;
use crate::engine::draft_node::node::{self, DraftNotice};
use crate::engine::{CTX_LEN_DEFAULT, Engine, KvMemory, Options, WeightsPlace};
use crate::fleet::interrupt::is_interrupted;
use crate::sys::notify;
use crate::transport::place::HostPort;
use crate::wire::draft::TEXTS_MAX;

/// Ids of a text that are read at once: its master may send another text meanwhile.
const BATCH: usize = 64;
/// Interval between checks whether to end.
const LOOKED_EVERY: Duration = Duration::from_millis(100);

/// Drafts with the model at `path` until a signal ends it.
pub(super) fn work(flags: &Run, path: &Path) -> Result<(), Failure> {
    let Some(key) = &flags.key else {
        return Err(Failure::Usage(
            "--draft-model guesses for boards with its key: it needs --key".to_owned(),
        ));
    };
    let key = key::read(key)?;
    let path = model_files::converted(path, flags.quiet)?;
    let Loaded { model, tokenizer, name, .. } = model_files::load(Some(&path), None)?;
    let options = Options {
        ctx_len: flags.ctx.or(Some(model.header().max_seq_len.min(CTX_LEN_DEFAULT))),
        batch: flags.batch.or(Some(BATCH)),
        n_streams: flags.streams.or(Some(TEXTS_MAX)),
        kv_memory: KvMemory::Free,
        ..options::of_cores(flags.threads, flags.cores.as_ref())?
    };
    let mut engine = Engine::new(model, &options).map_err(options::engine_failure)?;
    let place = WeightsPlace { model: Some(path), ..flags.place() };
    weights::prepare(&mut engine, &place, flags.words())?;
    engine.interrupt_by(is_interrupted);
    notify::start();
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED).to_string();
    let host = flags.host.as_ref().unwrap_or(&any);
    let address = HostPort::new(host, flags.port.unwrap_or(PORT_DEFAULT)).resolve(|_| true);
    let address = address.map_err(|e| Failure::runtime(&e))?;
    let is_quiet = flags.quiet;
    let tell = move |notice: &DraftNotice| match notice {
        DraftNotice::Begun { from, n_texts } if !is_quiet => {
            note(&format!("leap: drafts {} of {from}", counted(*n_texts, "text")));
        }
        DraftNotice::Begun { .. } => {}
        DraftNotice::Stranger { from, why } => warn(&format!("drafts nothing for {from}: {why}")),
    };
    let bound = node::start((engine, tokenizer), address, key, Box::new(tell));
    let bound =
        bound.map_err(|e| Failure::Runtime(format!("cannot wait on {address} (TCP): {e}")))?;
    if !is_quiet {
        note(&format!("leap: {name} drafts for masters that ask on {bound} (TCP)"));
    }
    notify::ready();
    while !is_interrupted() {
        thread::sleep(LOOKED_EVERY);
    }
    Ok(())
}
