//! Speeds of this board, measured once and kept in a file.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::events::{Event, Events};
use crate::sys::file::AtomicFile;
use crate::sys::memory;
use crate::wire::call::{SPEEDS_MAX, Speed};
use crate::wire::hello::NAME_MAX;

/// Part of the free memory that a model may take; the rest is for the system and other programs.
const MEMORY_PART: f64 = 0.9;

/// Measured speeds and free memory of a board.
#[derive(Clone)]
pub(crate) struct Own {
    /// Speeds by number of threads, all threads first.
    pub(crate) speeds: Vec<Speed>,
    /// Bytes of memory for a model.
    pub(crate) memory: u64,
}

/// A measurement, and the names that its figures are kept under.
pub(crate) struct Measuring<'a, E> {
    /// Names of the measured kernels, processors and sensor: kept figures of others do not count.
    pub(crate) machine: &'a str,
    /// Milliwatts idle and busy, if the user states them.
    pub(crate) milliwatts: Option<(u32, u32)>,
    /// Runs the measurement.
    pub(crate) measure: &'a mut dyn FnMut() -> Result<Vec<Speed>, E>,
}

/// Speeds, power and memory of this board. Figures that `folder` keeps are not measured again.
///
/// # Errors
/// If the measurement fails.
pub(crate) fn own<E>(
    folder: &Path,
    Measuring { machine, milliwatts, measure }: Measuring<'_, E>,
    events: &dyn Events,
) -> Result<Own, E> {
    // The version is part of the name because another one may be faster.
    let machine = format!("{} {} {machine}", name(), env!("CARGO_PKG_VERSION"));
    let free = memory::available_bytes().unwrap_or_default();
    let memory = (free as f64 * MEMORY_PART) as u64;
    let path = path(folder);
    let kept = fs::read_to_string(&path).ok().and_then(|kept| recall(&kept, &machine));
    let mut speeds = match kept {
        Some(speeds) => speeds,
        None => {
            events.tell(&Event::Measures);
            let speeds = measure()?;
            // The peak must not count the measurement's memory, which is free again.
            memory::forget_peak();
            // Figures that cannot be kept are measured again at the next start.
            let _ = keep(&path, &machine, &speeds);
            speeds
        }
    };
    if let (Some(all), Some(stated)) = (speeds.first_mut(), milliwatts) {
        all.milliwatts = Some(stated);
    }
    Ok(Own { speeds, memory })
}

/// Removes the kept figures, so that the board is measured at its next start.
pub(crate) fn forget(folder: &Path) -> io::Result<()> {
    match fs::remove_file(path(folder)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("figures")
}

/// Writes the figures to a file: the machine, then a line for each number of threads. A line has that number, the bytes
/// a second for each kind of weights, and the milliwatts idle and busy.
fn keep(path: &Path, machine: &str, speeds: &[Speed]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    writeln!(file, "{machine}")?;
    for Speed { threads, read: [f32, q8, q4, b2], milliwatts } in speeds {
        let (idle, busy) = milliwatts.unwrap_or_default();
        writeln!(file, "{threads} {f32} {q8} {q4} {b2} {idle} {busy}")?;
    }
    file.commit()
}

fn recall(kept: &str, machine: &str) -> Option<Vec<Speed>> {
    let (of, lines) = kept.split_once('\n')?;
    let speed = |line: &str| {
        let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [threads, f32, q8, q4, b2, idle, busy] = numbers[..] else { return None };
        let (idle, busy) = (u32::try_from(idle).ok()?, u32::try_from(busy).ok()?);
        let read = [f32, q8, q4, b2];
        let threads = u16::try_from(threads).ok().filter(|threads| *threads > 0)?;
        let is_one = read.iter().all(|read| *read > 0) && idle <= busy;
        is_one.then_some(Speed { threads, read, milliwatts: (busy > 0).then_some((idle, busy)) })
    };
    let speeds: Vec<Speed> = lines.lines().map(speed).collect::<Option<_>>()?;
    (of == machine && (1..=SPEEDS_MAX).contains(&speeds.len())).then_some(speeds)
}

/// The machine's host name.
pub(crate) fn name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().filter(char::is_ascii_graphic).take(NAME_MAX).collect();
    if name.is_empty() || name.contains('#') { "board".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_elsewhere_does_not_count() {
        let path = std::env::temp_dir().join(format!("leap-figures-{}", std::process::id()));
        let speeds = [
            Speed { threads: 2, read: [11, 12, 13, 14], milliwatts: Some((2000, 8000)) },
            Speed { threads: 1, read: [7; 4], milliwatts: None },
        ];
        keep(&path, "pi dotprod [0, 1]", &speeds).unwrap();
        let kept = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(recall(&kept, "pi dotprod [0, 1]").as_deref(), Some(&speeds[..]));
        assert_eq!(recall(&kept, "pi dotprod [0]"), None);
        for damaged in [
            "",
            "pi",
            "pi\n",
            "pi\n11000000000 90000000000\n",
            "pi\n1 0 1 1 1 0 0\n",
            "pi\n1 1 1 1 1 2 1\n",
        ] {
            assert_eq!(recall(damaged, "pi"), None, "{damaged:?}");
        }
    }
}
