//! Temperatures of the machine.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use super::tree::Tree;

const THERMAL: &str = "sys/class/thermal";
/// Plausible temperatures of a running chip, in thousandths of degrees Celsius.
pub const MILLIDEGREES: std::ops::RangeInclusive<i64> = -40_000..=150_000;
/// Interval between measurements.
const LOOKED_EVERY: Duration = Duration::from_secs(2);
/// Flag of a reading: the machine is slowed down. The other bits are its degrees, or all are `UNKNOWN`.
const SLOWED: u16 = 1 << 8;
const UNKNOWN: u16 = u16::MAX;

/// A part of the machine whose temperature is known.
pub struct Zone {
    /// The system's name for the zone.
    pub name: String,
    /// Folder of the zone in the tree.
    pub folder: String,
    /// Temperature in thousandths of degrees Celsius.
    pub millidegrees: i64,
}

/// All zones with a plausible temperature.
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

/// Temperature from which on the system slows the machine down for the zone in `folder`, in thousandths of degrees.
pub fn passive_trip(tree: &Tree, folder: &str) -> Option<i64> {
    let points = (0..16).map(|point| format!("{folder}/trip_point_{point}"));
    let passive =
        points.filter(|point| tree.text(&format!("{point}_type")).as_deref() == Some("passive"));
    let degrees = passive.filter_map(|point| tree.number(&format!("{point}_temp")));
    degrees.filter(|degrees| *degrees > 0 && MILLIDEGREES.contains(degrees)).min()
}

/// The first core that the system slows down: its name, its cooling step, and the number of steps.
pub fn slowed_cores(tree: &Tree) -> Option<(String, i64, i64)> {
    let devices = tree.names(THERMAL).into_iter().filter(|name| name.starts_with("cooling_device"));
    devices.map(|device| format!("{THERMAL}/{device}")).find_map(|device| {
        let name = tree.text(&format!("{device}/type"))?;
        let is_core = ["cpufreq", "Processor", "cpuidle"].iter().any(|kind| name.contains(kind));
        let step =
            tree.number(&format!("{device}/cur_state")).filter(|&step| step > 0 && is_core)?;
        let last = tree.number(&format!("{device}/max_state")).unwrap_or(step);
        Some((name, step, last))
    })
}

/// Measures the warmest zone again and again.
#[derive(Clone)]
pub struct Thermometer(Arc<AtomicU16>);

impl Thermometer {
    /// Starts a thread that measures until the process ends; `None` if the machine reports no temperature.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start(tree: Tree) -> io::Result<Option<Thermometer>> {
        let first = look(&tree);
        if first == UNKNOWN {
            return Ok(None);
        }
        let thermometer = Thermometer(Arc::new(AtomicU16::new(first)));
        let shown = Arc::clone(&thermometer.0);
        let watch = move || {
            loop {
                thread::sleep(LOOKED_EVERY);
                shown.store(look(&tree), Ordering::Relaxed);
            }
        };
        thread::Builder::new().name("leap-heat".to_owned()).spawn(watch)?;
        Ok(Some(thermometer))
    }

    /// Whole degrees Celsius of the warmest zone, 0 if it is below 0, and whether heat slows the machine down; `None`
    /// if the temperature is no longer known.
    pub fn read(&self) -> Option<(u8, bool)> {
        let shown = self.0.load(Ordering::Relaxed);
        (shown != UNKNOWN).then_some((shown as u8, shown & SLOWED != 0))
    }
}

fn look(tree: &Tree) -> u16 {
    let Some(degrees) = warmest(tree) else { return UNKNOWN };
    let is_hot = |zone: Zone| {
        passive_trip(tree, &zone.folder).is_some_and(|limit| zone.millidegrees >= limit)
    };
    let is_slowed = slowed_cores(tree).is_some() || zones(tree).into_iter().any(is_hot);
    u16::from(degrees) | if is_slowed { SLOWED } else { 0 }
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
        // No chip is that cold.
        zone(2, "-274000\n");
        assert_eq!(warmest(&tree), Some(41));
        zone(3, "72900\n");
        let seen = || Thermometer::start(tree.clone()).unwrap().unwrap().read();
        assert_eq!(seen(), Some((72, false)));
        let folder = root.join(format!("{THERMAL}/thermal_zone3"));
        fs::write(folder.join("trip_point_0_type"), "passive\n").unwrap();
        fs::write(folder.join("trip_point_0_temp"), "72900\n").unwrap();
        assert_eq!(seen(), Some((72, true)));
        fs::remove_file(folder.join("trip_point_0_type")).unwrap();
        let device = root.join(format!("{THERMAL}/cooling_device0"));
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("type"), "cpufreq-cpu0\n").unwrap();
        fs::write(device.join("cur_state"), "2\n").unwrap();
        assert_eq!(seen(), Some((72, true)));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(warmest(&tree), None);
    }
}
