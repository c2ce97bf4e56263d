//! GPUs, and whether they give the CPU's bits.

use super::finding::Finding;
use crate::engine::{DeviceLine, devices};

/// Reports each device that Vulkan finds; none in programs without support for GPUs.
pub(super) fn gpus() -> Vec<Finding> {
    if !cfg!(feature = "gpu") {
        return Vec::new();
    }
    match devices() {
        Err(why) => vec![Finding::good("GPU", why)],
        Ok(all) if all.is_empty() => vec![Finding::good("GPU", "none: Vulkan finds no device")],
        Ok(all) => all.iter().map(gpu).collect(),
    }
}

fn gpu(DeviceLine { name, driver, memory, is_software, exactness }: &DeviceLine) -> Finding {
    let gb = *memory as f64 / 1e9;
    let what = format!("{name}, {gb:.1} GB");
    match exactness {
        Err(why) => Finding::good("GPU", format!("{what}, {driver}: not used. {why}")),
        Ok(how) => {
            let use_it = match is_software {
                true => "a program, slower than the CPU",
                false => "`leap run --device gpu` uses it",
            };
            Finding::good("GPU", format!("{what}: exact {how}; {use_it}"))
        }
    }
}
