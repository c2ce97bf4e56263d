//! Sensors of power, and of heat that slows the machine down.

use std::thread;
use std::time::Duration;

use super::finding::Finding;
use crate::sys::heat::{self, Zone};
use crate::sys::power::{self, Meter, PowerSource, Sensor};
use crate::sys::tree::Tree;

const CPUFREQ: &str = "sys/devices/system/cpu/cpufreq";
/// Time over which power is measured.
const LOOK: Duration = Duration::from_millis(200);

/// Reports the sensor of power that figures of energy come from.
pub(super) fn sensor(tree: &Tree) -> Finding {
    if let Some(sensor) = Sensor::find(tree) {
        let name = sensor.name().to_owned();
        return match watts(sensor) {
            Some(watts) => Finding::good("power", format!("{name}: {watts:.1} W")),
            None => Finding::good("power", format!("{name} does not always answer")),
        };
    }
    match power::locked(tree) {
        // A locked sensor is no fault: LEAP lacks only a figure.
        Some(locked) => Finding::good("power", format!("{}: {}", locked.text, locked.mend)),
        None => Finding::good(
            "power",
            "no sensor: figures of energy need a meter (--power-cmd), or --watts IDLE,BUSY",
        ),
    }
}

fn watts(sensor: Sensor) -> Option<f64> {
    let meter = Meter::start(PowerSource::Sensor(sensor)).ok()?;
    meter.set_working(true);
    let begin = meter.read()?;
    thread::sleep(LOOK);
    Some(meter.read()?.since(&begin)?.watts())
}

/// Judges how warm the machine is, and what slows its cores down.
pub(super) fn heat(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = zones(tree).into_iter().collect();
    findings.extend(cooling(tree));
    findings.extend(caps(tree));
    findings
}

/// Reports the warmest zone, or the first that is as warm as where the system begins to slow down.
fn zones(tree: &Tree) -> Option<Finding> {
    let known: Vec<(String, i64, Option<i64>)> = heat::zones(tree)
        .into_iter()
        .map(|Zone { name, folder, millidegrees }| {
            (name, millidegrees, heat::passive_trip(tree, &folder))
        })
        .collect();
    let shown = |degrees: i64| format!("{:.1} °C", degrees as f64 / 1e3);
    if let Some((name, degrees, Some(limit))) =
        known.iter().find(|(_, degrees, limit)| limit.is_some_and(|limit| *degrees >= limit))
    {
        let (degrees, limit) = (shown(*degrees), shown(*limit));
        let text = format!("{name} has {degrees}: from {limit} on the system lowers clocks");
        return Some(Finding::slow("heat", text, "# a heat sink, a fan, or fewer --threads"));
    }
    let (name, degrees, _) = known.iter().max_by_key(|(_, degrees, _)| *degrees)?;
    Some(Finding::good("heat", format!("{} at most ({name})", shown(*degrees))))
}

/// Reports cores that the system slows down at the moment.
fn cooling(tree: &Tree) -> Option<Finding> {
    let (name, step, last) = heat::slowed_cores(tree)?;
    let text = format!("{name} is slowed down, step {step} of {last}");
    Some(Finding::slow("heat", text, "# a heat sink, a fan, or fewer --threads"))
}

/// Reports cores whose clock is limited below their maximum.
fn caps(tree: &Tree) -> Vec<Finding> {
    let policies = tree.names(CPUFREQ).into_iter().filter(|name| name.starts_with("policy"));
    let capped = policies.filter_map(|policy| {
        let folder = format!("{CPUFREQ}/{policy}");
        let most = tree.number(&format!("{folder}/cpuinfo_max_freq")).filter(|&most| most > 0)?;
        let file = format!("{folder}/scaling_max_freq");
        let allowed = tree.number(&file).filter(|allowed| (1..most).contains(allowed))?;
        let (allowed, best) = (allowed as f64 / 1e6, most as f64 / 1e6);
        let text = format!("{policy} may run at {allowed:.2} of {best:.2} GHz");
        Some(Finding::slow("clocks", text, format!("echo {most} | sudo tee /{file}")))
    });
    capped.collect()
}
