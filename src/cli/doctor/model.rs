//! Whether a model fits: memory, disk, and how fast it can be.

use std::path::Path;

use super::finding::Finding;
use crate::cli::checkpoint::quoted;
use crate::cli::counted;
use crate::cli::reads::TokenReads;
use crate::engine::Engine;
use crate::engine::made_up;
use crate::format::model::Header;
use crate::model::{Model, layout_number};
use crate::pack;
use crate::sys::file;
use crate::sys::map::Map;
use crate::sys::memory::available_bytes_of;
use crate::sys::tree::Tree;

/// Bytes of memory left to the rest of the system.
const SPARE_BYTES: u64 = 128 << 20;
/// Shortest context that is worth suggesting.
const CTX_MIN: usize = 256;

/// A model that is to run.
pub(super) struct WantedModel<'a> {
    pub(super) model: &'a Model,
    /// Bytes of the model file, nearly all of them weights.
    pub(super) file_bytes: u64,
    pub(super) ctx_len: usize,
}

/// Judges the machine's memory, and what a model takes of it.
pub(super) fn memory(tree: &Tree, wanted: Option<WantedModel<'_>>) -> Finding {
    let field = |name| tree.kib_field("proc/meminfo", name);
    let (Some(total), Some(of_machine)) = (field("MemTotal:"), field("MemAvailable:")) else {
        return Finding::bad("memory", "/proc/meminfo says nothing", "mount -t proc proc /proc");
    };
    let free = available_bytes_of(tree).unwrap_or(of_machine);
    let limit = if free < of_machine { ", as its control group leaves" } else { "" };
    let free_text = format!("{} of {} free{limit}", mib(free), mib(total));
    let Some(WantedModel { model, file_bytes: weights, ctx_len }) = wanted else {
        return Finding::good("memory", free_text);
    };
    let header = model.header();
    let Some(buffers) = made_up::buffer_bytes(header, ctx_len, None) else {
        let text =
            format!("a context of {ctx_len} tokens: the model allows 1 to {}", header.max_seq_len);
        return Finding::bad("memory", text, format!("--ctx {}", header.max_seq_len));
    };
    let needed = weights.saturating_add(buffers).saturating_add(SPARE_BYTES);
    let text = format!(
        "{} of weights{} and {} of buffers for {ctx_len} tokens; {free_text}",
        mib(weights),
        active(model),
        mib(buffers)
    );
    if needed <= free {
        return Finding::good("memory", text);
    }
    Finding::bad("memory", text, smaller(header, weights, ctx_len, free))
}

/// Experts and bytes that a token of a mixture of experts uses, in words.
fn active(model: &Model) -> String {
    match model.header().features.experts {
        Some(experts) => {
            let (n, bytes) = (experts.n_active, mib(model.bytes_per_token()));
            format!(" (a token uses {n} of {} experts, {bytes})", experts.n)
        }
        None => String::new(),
    }
}

/// Advice by which the model fits into `free` bytes.
fn smaller(header: &Header, weights: u64, ctx_len: usize, free: u64) -> String {
    let fits = |ctx: &usize| {
        let buffers = made_up::buffer_bytes(header, *ctx, None).unwrap_or(u64::MAX);
        weights.saturating_add(buffers).saturating_add(SPARE_BYTES) <= free
    };
    let halves = std::iter::successors(Some(ctx_len / 2), |ctx| Some(ctx / 2));
    match halves.take_while(|ctx| *ctx >= CTX_MIN).find(fits) {
        Some(ctx) => format!("--ctx {ctx}"),
        None if header.weights.version() < 4 => {
            "leap export OUT --version 4 --meta-llama DIR  # 4.5-bit weights; or share the layers in a ring".to_owned()
        }
        None => "share the layers with other boards in a ring, or take a smaller model".to_owned(),
    }
}

/// Reports how fast the machine reads memory, and the tokens a second that this allows at best.
pub(super) fn bandwidth(bytes_per_s: f64, threads: usize, model: Option<&Model>) -> Finding {
    let verb = if threads == 1 { "reads" } else { "read" };
    let threads = counted(threads, "thread");
    let mut text = format!("{threads} {verb} {:.1} GB/s", bytes_per_s / 1e9);
    if let Some(model) = model {
        let tokens = bytes_per_s / model.bytes_per_token() as f64;
        text.push_str(&format!(": at most {tokens:.1} tokens/s of this model"));
    }
    Finding::good("bandwidth", text)
}

/// Reports the bytes of weights that a token reads, by part of the model and encoding.
pub(super) fn reads(header: &Header) -> Finding {
    let reads = TokenReads::of(header);
    let text = format!("a token reads {:.1} MB of weights", reads.total() as f64 / 1e6);
    Finding { reads: Some(reads), ..Finding::good("reads", text) }
}

/// Judges whether the packed weights of `engine`'s model, whose file is `model`, lie ready at `path` or can be written
/// there. Without a path, weights are packed in memory, or the model's file is packed.
pub(super) fn cache(engine: &Engine, model: &Path, path: Option<&Path>) -> Finding {
    if let Some(isa) = engine.model().packed_for() {
        let text = format!("none needed: the model's file is packed for {}", isa.name());
        return Finding::good("cache", text);
    }
    let Some(path) = path else {
        return Finding::good("cache", "none needed: weights are packed in memory at each start");
    };
    let shown = path.display();
    let mend = format!("leap pack {}", quoted(model));
    if path.exists() {
        return match check_cache(path, engine) {
            Ok(bytes) => Finding::good("cache", format!("{shown}, {}", mib(bytes))),
            Err(what) => {
                let text = format!("{shown}: {what}; the next start packs what it needs");
                Finding::slow("cache", text, mend)
            }
        };
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let needed = engine.packed_bytes().unwrap_or(0);
    match file::free_bytes(folder) {
        Ok(free) if free < needed => {
            let (folder, free, needed) = (folder.display(), mib(free), mib(needed));
            let text = format!("{folder} has {free} free, packed weights need {needed}");
            Finding::slow("cache", text, format!("{mend} --cache FOLDER  # one with room"))
        }
        Ok(_) => {
            let text = format!("{shown} is not there: the first start takes longer, to build it");
            Finding::slow("cache", text, mend)
        }
        Err(e) => Finding::slow("cache", format!("{}: {e}", folder.display()), mend),
    }
}

/// Bytes of the packed weights at `path`, if the file has all that `engine` needs.
fn check_cache(path: &Path, engine: &Engine) -> Result<u64, String> {
    let map = Map::open(path).map_err(|e| e.to_string())?;
    let summary = pack::summary(map.as_bytes()).map_err(|what| format!("damaged {what}"))?;
    let weights = engine.model().header().weights;
    let layout = engine.isa().layout().map(|layout| layout_number(layout, weights));
    let fingerprint = engine.model().fingerprint().map_err(|e| e.to_string())?;
    if summary.identity.fingerprint != fingerprint {
        return Err("of another model".to_owned());
    }
    if Some(summary.identity.layout) != layout {
        return Err("for another kind of CPU".to_owned());
    }
    match engine.cache_lacks(path).map_err(|e| e.to_string())? {
        None | Some(0) => Ok(map.as_bytes().len() as u64),
        Some(n) => Err(format!("lacks {}", counted(n, "tensor"))),
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
