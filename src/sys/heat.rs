//! How warm the machine is.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use super::tree::Tree;

const THERMAL: &str = "sys/class/thermal";
/// Thousandths of degrees that a chip which runs can have.
pub const MILLIDEGREES: std::ops::RangeInclusive<i64> = -40_000..=150_000;
/// How often a thermometer looks.
const LOOKED_EVERY: Duration = Duration::from_secs(2);
const UNKNOWN: u8 = u8::MAX;

/// A part of the machine whose temperature is known.
pub struct Zone {
    /// What the system calls it.
    pub name: String,
    /// Where it is in the tree.
    pub folder: String,
    /// Thousandths of degrees Celsius.
    pub millidegrees: i64,
}

/// All of them.
pub fn zones(tree: &Tree) -> Vec<Zone> {
    let zones = tree.names(THERMAL).into_iter().filter(|name| name.starts_with("thermal_zone"));
    let known = zones.filter_map(|zone| {
        let folder = format!("{THERMAL}/{zone}");
        let degrees = tree.number(&format!("{folder}/temp"));
        let millidegrees = degrees.filter(|degrees| MILLIDEGREES.contains(degrees))?;
        let name = tree.text(&format!("{folder}/type")).unwrap_or(zone);
        Some(Zone { name, folder, millidegrees })
    });
    known.collect()
}

/// Looks at the warmest zone again and again.
#[derive(Clone)]
pub struct Thermometer(Arc<AtomicU8>);

impl Thermometer {
    /// Looks from now on, for as long as the process lives; `None` if the machine does not say how warm it is.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start(tree: Tree) -> io::Result<Option<Thermometer>> {
        let Some(first) = warmest(&tree) else { return Ok(None) };
        let thermometer = Thermometer(Arc::new(AtomicU8::new(first)));
        let shown = Arc::clone(&thermometer.0);
        let look = move || {
            loop {
                thread::sleep(LOOKED_EVERY);
                shown.store(warmest(&tree).unwrap_or(UNKNOWN), Ordering::Relaxed);
            }
        };
        thread::Builder::new().name("leap-heat".to_owned()).spawn(look)?;
        Ok(Some(thermometer))
    }

    /// Whole degrees Celsius of the warmest zone, 0 if it is colder than that; `None` if that is not known any more.
    pub fn degrees(&self) -> Option<u8> {
        Some(self.0.load(Ordering::Relaxed)).filter(|degrees| *degrees != UNKNOWN)
    }
}

fn warmest(tree: &Tree) -> Option<u8> {
    let warmest = zones(tree).into_iter().map(|zone| zone.millidegrees).max()?;
    u8::try_from((warmest / 1000).max(0)).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_warmest_zone_is_what_is_told() {
        let root = std::env::temp_dir().join(format!("leap-heat-{}", std::process::id()));
        let zone = |index: usize, millidegrees: &str| {
            let folder = root.join(format!("{THERMAL}/thermal_zone{index}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("temp"), millidegrees).unwrap();
        };
        let tree = Tree::new(&root);
        assert!(Thermometer::start(tree.clone()).unwrap().is_none());
        zone(0, "41300\n");
        zone(1, "no number\n");
        // What no chip has.
        zone(2, "-274000\n");
        assert_eq!(warmest(&tree), Some(41));
        zone(3, "72900\n");
        assert_eq!(Thermometer::start(tree.clone()).unwrap().unwrap().degrees(), Some(72));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(warmest(&tree), None);
    }
}
