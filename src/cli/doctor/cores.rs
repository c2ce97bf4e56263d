//! Cores, their clocks, and the pages of memory.

use super::finding::Finding;
use crate::kernels::{Isa, Kernels};
use crate::sys::cpu::{self, Core};
use crate::sys::memory;
use crate::sys::tree::Tree;

const CPUS: &str = "sys/devices/system/cpu";

/// Reports tiers of cores, kernels and page size, and cores that are switched off.
pub(super) fn cores(tree: &Tree, cores: &[Core], kernels: &Kernels) -> Vec<Finding> {
    let text = format!(
        "{}, {} kernels, pages of {} KiB",
        tiers(cores),
        kernels.isa().name(),
        memory::page_bytes() >> 10
    );
    let first = match kernels.isa() {
        Isa::Scalar => Finding::slow(
            "cores",
            format!("{text}: without vector instructions"),
            "unset LEAP_ISA  # or take a CPU with NEON or AVX2",
        ),
        _ => Finding::good("cores", text),
    };
    let mut findings = vec![first];
    findings.extend(switched_off(tree));
    findings.extend(quota(tree, cores.len()));
    findings
}

/// Reports a control group that leaves the process less time than its cores have.
fn quota(tree: &Tree, n_cores: usize) -> Option<Finding> {
    let cpus = cpu::quota(tree).filter(|cpus| *cpus < n_cores)?;
    let text = format!(
        "its control group leaves the time of {cpus} of {n_cores} cores: as many threads by default"
    );
    Some(Finding::good("cores", text))
}

/// `4 cores of speed 1024 and 4 of 530`.
fn tiers(cores: &[Core]) -> String {
    let mut tiers: Vec<(u32, usize)> = Vec::new();
    for core in cores {
        match tiers.last_mut() {
            Some((capacity, count)) if *capacity == core.capacity => *count += 1,
            _ => tiers.push((core.capacity, 1)),
        }
    }
    if let [(_, count)] = tiers[..] {
        return format!("{count} equal cores");
    }
    let tiers: Vec<String> = tiers
        .iter()
        .map(|(capacity, count)| format!("{count} cores of speed {capacity}"))
        .collect();
    tiers.join(" and ")
}

fn switched_off(tree: &Tree) -> Option<Finding> {
    let offline = tree.text(&format!("{CPUS}/offline")).filter(|cpus| !cpus.is_empty())?;
    // Boards list cores that were never built in as offline too: only those that are present
    // can be switched on.
    let present = numbers(&tree.text(&format!("{CPUS}/present"))?);
    let off: Vec<usize> =
        numbers(&offline).into_iter().filter(|cpu| present.contains(cpu)).collect();
    let first = off.first()?;
    let mend = match tree.has("etc/nvpmodel.conf") {
        true => "sudo nvpmodel -m 0".to_owned(),
        false => format!("echo 1 | sudo tee /{CPUS}/cpu{first}/online"),
    };
    Some(Finding::slow(
        "cores",
        format!("{} cores are switched off, the first is {first}", off.len()),
        mend,
    ))
}

/// The numbers of a list such as `0-3,6`, without the parts that are no numbers.
fn numbers(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?.min(4095))
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Judges whether cores, and the memory of boards that scale its clock, run at full clock.
pub(super) fn governors(tree: &Tree) -> Vec<Finding> {
    let policies = tree.names(&format!("{CPUS}/cpufreq")).into_iter();
    let policies = policies
        .filter(|name| name.starts_with("policy"))
        .map(|name| format!("{CPUS}/cpufreq/{name}/scaling_governor"));
    // Rockchip's memory controller is a device of its own, called dmc.
    let memories = tree.names("sys/class/devfreq").into_iter();
    let memories = memories
        .filter(|name| name.contains("dmc"))
        .map(|name| format!("sys/class/devfreq/{name}/governor"));

    let mut findings = Vec::new();
    let mut at_full_clock = 0;
    for file in policies.chain(memories) {
        match tree.text(&file).as_deref() {
            Some("performance") => at_full_clock += 1,
            Some(governor) => findings.push(Finding::slow(
                "governor",
                format!("/{file} is {governor:?}, which lowers the clock between tokens"),
                format!("echo performance | sudo tee /{file}"),
            )),
            None => {}
        }
    }
    if findings.is_empty() {
        let text = match at_full_clock {
            0 => "the system offers no choice of clocks".to_owned(),
            n => format!("performance, for all {n} clocks"),
        };
        findings.push(Finding::good("governor", text));
    }
    findings
}

/// Judges whether the clock is quick to read, and roughly right.
pub(super) fn clock(tree: &Tree, seconds_since_1970: u64) -> Vec<Finding> {
    /// 1 January 2025: no clock of a board with LEAP can be earlier.
    const EARLIEST: u64 = 1_735_689_600;
    let source = tree.text("sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.unwrap_or_else(|| "unknown".to_owned());
    let mut findings = vec![match source.as_str() {
        "hpet" | "acpi_pm" | "jiffies" => Finding::slow(
            "clock",
            format!("source {source:?} takes microseconds to read"),
            "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
        _ => Finding::good("clock", format!("source {source}")),
    }];
    if seconds_since_1970 < EARLIEST {
        findings.push(Finding::slow(
            "clock",
            "the date is before 2025, so that log lines mislead",
            "sudo timedatectl set-ntp true  # busybox: ntpd -n -q -p pool.ntp.org",
        ));
    }
    findings
}

/// Judges whether memory can be read through huge pages.
pub(super) fn huge_pages(tree: &Tree) -> Finding {
    const FILE: &str = "sys/kernel/mm/transparent_hugepage/enabled";
    match tree.text(FILE) {
        None => Finding::good("pages", "this kernel has no huge pages"),
        Some(modes) if modes.contains("[never]") => Finding::slow(
            "pages",
            "huge pages are switched off",
            format!("echo madvise | sudo tee /{FILE}"),
        ),
        Some(_) => Finding::good("pages", "huge pages for those who ask"),
    }
}
