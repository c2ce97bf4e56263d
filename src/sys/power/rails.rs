//! Sensors for the power of supply rails, through hwmon or the driver of JetPack 4.

use crate::sys::tree::Tree;

const HWMON: &str = "sys/class/hwmon";
const I2C: &str = "sys/bus/i2c/devices";
/// Rails that supply all others: of NVIDIA's boards, and of Corsair's power supplies.
const WHOLE: [&str; 3] = ["VDD_IN", "POM_5V_IN", "power total"];
/// Channels of an INA3221; the driver's seventh adds up shunts of several.
const CHANNELS: std::ops::RangeInclusive<u32> = 1..=3;
/// Devices that measure a part of the machine which LEAP does not use, or what flows into a battery.
const OTHERS: [&str; 8] =
    ["amdgpu", "radeon", "nouveau", "i915", "xe", "nvme", "BAT", "ucsi_source_psy"];
/// Plausible readings of a board's rail, in thousandths. Without current, a reading may be some thousandths below zero.
const MILLIVOLTS: std::ops::RangeInclusive<i64> = 0..=100_000;
const MILLIAMPERES: std::ops::RangeInclusive<i64> = -1_000..=100_000;

/// A rail, and the files with its readings.
struct Rail {
    label: String,
    files: RailFiles,
}

enum RailFiles {
    Product { millivolts: String, milliamperes: String },
    Power { file: String, per_watt: f64 },
}

/// The rails whose sum is the power.
pub(super) struct Rails {
    tree: Tree,
    rails: Vec<Rail>,
}

impl Rails {
    /// Power of all rails, in watts; `None` if one does not answer.
    pub(super) fn watts(&self) -> Option<f64> {
        self.rails.iter().map(|rail| rail.watts(&self.tree)).sum()
    }

    /// The name, and the rails to read: of `rails` the one that supplies all others, else all.
    fn new(tree: &Tree, what: &str, mut rails: Vec<Rail>) -> Option<(String, Rails)> {
        if let Some(at) = rails.iter().position(|rail| WHOLE.contains(&rail.label.as_str())) {
            rails = vec![rails.swap_remove(at)];
        }
        let name = match &*rails {
            [] => return None,
            [one] => format!("{what} {}", one.label),
            several => format!("{what}, {} rails", several.len()),
        };
        Some((name.trim_end().to_owned(), Rails { tree: tree.clone(), rails }))
    }
}

impl Rail {
    fn watts(&self, tree: &Tree) -> Option<f64> {
        match &self.files {
            RailFiles::Product { millivolts, milliamperes } => {
                let millivolts = tree.number(millivolts).filter(|v| MILLIVOLTS.contains(v))?;
                let milliamperes =
                    tree.number(milliamperes).filter(|a| MILLIAMPERES.contains(a))?;
                Some(millivolts as f64 * milliamperes as f64 / 1e6)
            }
            RailFiles::Power { file, per_watt } => {
                Some(tree.number(file).filter(|&power| power >= 0)? as f64 / per_watt)
            }
        }
    }
}

/// The INA3221 of NVIDIA's boards.
pub(super) fn ina3221(tree: &Tree) -> Option<(String, Rails)> {
    let mut rails = Vec::new();
    for device in devices(tree, HWMON).filter(|device| name(tree, device) == "ina3221") {
        for channel in CHANNELS {
            let label = tree.text(&format!("{device}/in{channel}_label")).unwrap_or_default();
            let file = |kind: &str| format!("{device}/{kind}{channel}_input");
            let is_off = tree.number(&format!("{device}/in{channel}_enable")) == Some(0);
            if is_off || label.contains("NC") || !tree.has(&file("curr")) {
                continue;
            }
            let files = RailFiles::Product { millivolts: file("in"), milliamperes: file("curr") };
            rails.push(Rail { label, files });
        }
    }
    if rails.is_empty() {
        rails = jetpack4(tree);
    }
    Rails::new(tree, "INA3221", rails)
}

/// The INA3221 through the driver of JetPack 4, which counts channels from 0 and gives milliwatts.
fn jetpack4(tree: &Tree) -> Vec<Rail> {
    let mut rails = Vec::new();
    for chip in devices(tree, I2C).filter(|chip| name(tree, chip) == "ina3221x") {
        for device in devices(tree, &chip).filter(|device| device.contains("/iio:device")) {
            for channel in 0..3 {
                let file = format!("{device}/in_power{channel}_input");
                let label = tree.text(&format!("{device}/rail_name_{channel}")).unwrap_or_default();
                if !label.contains("NC") && tree.has(&file) {
                    rails.push(Rail { label, files: RailFiles::Power { file, per_watt: 1e3 } });
                }
            }
        }
    }
    rails
}

/// Power from other devices: from the one for the whole machine, if there is one.
pub(super) fn hwmon(tree: &Tree) -> Option<(String, Rails)> {
    let all = devices(tree, HWMON).map(|device| (name(tree, &device), device));
    let mut all: Vec<_> =
        all.filter(|(name, _)| !OTHERS.iter().any(|other| name.starts_with(other))).collect();
    if let Some(at) = all.iter().position(|(name, _)| name == "power_meter") {
        all = vec![all.swap_remove(at)];
    }
    let mut rails = Vec::new();
    for (name, device) in all {
        for channel in 1..=16 {
            let file = |kind: &str| format!("{device}/power{channel}_{kind}");
            let known = ["input", "average"].map(file).into_iter().find(|file| tree.has(file));
            let Some(file) = known else { continue };
            let label = tree.text(&format!("{device}/power{channel}_label"));
            let label = label.unwrap_or_else(|| name.clone());
            rails.push(Rail { label, files: RailFiles::Power { file, per_watt: 1e6 } });
        }
    }
    Rails::new(tree, "hwmon", rails)
}

/// Entries of `folder`, by their whole paths.
fn devices(tree: &Tree, folder: &str) -> impl Iterator<Item = String> {
    tree.names(folder).into_iter().map(move |name| format!("{folder}/{name}"))
}

fn name(tree: &Tree, device: &str) -> String {
    tree.text(&format!("{device}/name")).unwrap_or_default()
}
