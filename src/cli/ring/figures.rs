//! What this board can do: measured once, and kept.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::cli::bench::machine;
use crate::cli::{Failure, options};
use crate::engine::{Engine, Options};
use crate::sys::file::AtomicFile;
use crate::sys::memory;
use crate::wire::hello::NAME_MAX;

/// The part of the memory that is free which a model may take: the rest is the system's and other programs'.
const MEMORY_PART: f64 = 0.9;

/// What a board can do.
#[derive(Clone, Copy)]
pub(super) struct Own {
    /// Bytes a second that it reads.
    pub(super) read: f64,
    /// int8 operations a second.
    pub(super) int8: f64,
    /// Bytes of memory for a model.
    pub(super) memory: u64,
}

/// What this board can do with the threads that `options` ask for. What `folder` keeps of it is not measured again.
pub(super) fn own(options: &Options, folder: &Path) -> Result<Own, Failure> {
    let kernels = Engine::kernels(None, options.isa).map_err(options::engine_failure)?;
    let cpus = options.cpus();
    let machine = format!("{} {} {cpus:?}", name(), kernels.isa().name());
    let path = folder.join("figures");
    let free = memory::available_bytes().unwrap_or_default();
    let memory = (free as f64 * MEMORY_PART) as u64;
    if let Some((read, int8)) =
        fs::read_to_string(&path).ok().and_then(|kept| recall(&kept, &machine))
    {
        return Ok(Own { read, int8, memory });
    }
    let (read, int8) = machine::quick(&kernels, &cpus)?;
    // Where they cannot be kept they are measured again.
    let _ = AtomicFile::create(&path).and_then(|mut file| {
        write!(file, "{machine}\n{read:.0} {int8:.0}\n")?;
        file.commit()
    });
    Ok(Own { read, int8, memory })
}

fn recall(kept: &str, machine: &str) -> Option<(f64, f64)> {
    let (of, figures) = kept.split_once('\n')?;
    let (read, int8) = figures.trim().split_once(' ')?;
    let figure = |text: &str| text.parse::<f64>().ok().filter(|value| (1.0..1e18).contains(value));
    if of == machine { Some((figure(read)?, figure(int8)?)) } else { None }
}

/// What the system calls this machine.
pub(super) fn name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().filter(char::is_ascii_graphic).take(NAME_MAX).collect();
    if name.is_empty() || name.contains('#') { "board".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_elsewhere_does_not_count() {
        let kept = "pi dotprod [0, 1]\n11000000000 90000000000\n";
        assert_eq!(recall(kept, "pi dotprod [0, 1]"), Some((11e9, 90e9)));
        assert_eq!(recall(kept, "pi dotprod [0]"), None);
        for damaged in ["", "pi dotprod [0, 1]", "pi dotprod [0, 1]\n1", "pi dotprod [0, 1]\n0 NaN"]
        {
            assert_eq!(recall(damaged, "pi dotprod [0, 1]"), None, "{damaged:?}");
        }
    }
}
