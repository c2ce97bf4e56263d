//! Values of options that several commands share.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Failure, warn};
use crate::engine::EngineError;
use crate::kernels::Isa;
use crate::model::{KvType, StartError};
use crate::sys::cpu;
use crate::wire::seal::{KEY_BYTES, Key};

/// `f16` or `f32`.
pub(super) fn kv_type(value: &str) -> Result<KvType, String> {
    match value {
        "f16" => Ok(KvType::F16),
        "f32" => Ok(KvType::F32),
        _ => Err(format!("{value:?} is neither f16 nor f32")),
    }
}

/// The instruction set that `LEAP_ISA` forces.
pub(super) fn isa_from_environment() -> Result<Option<Isa>, Failure> {
    let Some(name) = std::env::var_os("LEAP_ISA") else { return Ok(None) };
    match name.to_str().and_then(Isa::from_name) {
        Some(isa) => Ok(Some(isa)),
        None => {
            let known: Vec<&str> = Isa::ALL.iter().map(|isa| isa.name()).collect();
            let known = known.join(", ");
            Err(Failure::Usage(format!("LEAP_ISA is {name:?}, wanted one of {known}")))
        }
    }
}

/// The key in the file at `path`: 32 bytes, which nobody else should be able to read.
pub(super) fn key(path: &Path) -> Result<Key, Failure> {
    let shown = path.display();
    let fail = |e| Failure::Input(format!("cannot read the key file {shown}: {e}"));
    let file = File::open(path).map_err(fail)?;
    let mode = file.metadata().map_err(fail)?.permissions().mode();
    let mut bytes = Vec::new();
    file.take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(fail)?;
    let secret = <[u8; KEY_BYTES]>::try_from(bytes).map_err(|bytes| {
        let n = if bytes.len() > KEY_BYTES { "more".to_owned() } else { bytes.len().to_string() };
        let make = "head -c 32 /dev/urandom > FILE makes one";
        Failure::Input(format!("key file {shown} has {n} bytes, wanted {KEY_BYTES} ({make})"))
    })?;
    if mode & 0o077 != 0 {
        warn(&format!("others may read the key file {shown}: chmod 600 {shown}"));
    }
    Ok(Key::new(secret))
}

/// As many threads as asked for, but no more than cores: a thread without one delays the rest.
pub(super) fn useful_threads(wanted: usize) -> usize {
    let cores = cpu::cores().len();
    if wanted > cores {
        warn(&format!("--threads {wanted}: there are {cores} cores, one thread for each is used"));
    }
    wanted.min(cores)
}

/// Cores named on the command line.
pub(super) struct Cores(pub Vec<usize>);

/// Core numbers: `4-7`, `0,2` or both.
pub(super) fn cores(value: &str) -> Result<Cores, String> {
    let mut cores = Vec::new();
    for part in value.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&cpu| cpu < 4096);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => cores.extend(first..=last),
            _ => return Err(format!("{part:?} is no core or range of cores")),
        }
    }
    Ok(Cores(cores))
}

/// Sorts an engine that did not start under its exit code.
pub(super) fn engine_failure(error: EngineError) -> Failure {
    match &error {
        EngineError::Load(e) => Failure::input(e),
        EngineError::Isa(_) => Failure::Usage(error.to_string()),
        EngineError::Start(StartError::Plan(e)) => Failure::Usage(e.to_string()),
        EngineError::Start(e @ StartError::Packed { .. }) => Failure::input(e),
        _ => Failure::runtime(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_numbers_and_ranges() {
        assert_eq!(cores("4-6,0").map(|c| c.0), Ok(vec![4, 5, 6, 0]));
        for bad in ["", "x", "3-1", "1-", "99999"] {
            assert!(cores(bad).is_err(), "{bad}");
        }
    }
}
