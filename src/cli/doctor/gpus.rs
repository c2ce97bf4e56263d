//! GPUs, and whether they give the CPU's bits.

use super::finding::Finding;
use crate::engine::{DeviceLine, DeviceSpeeds, devices};

/// Reports each device that Vulkan finds, beside CPUs that read `cpu_read` bytes a second; none in programs without
/// support for GPUs.
pub(super) fn gpus(cpu_read: f64) -> Vec<Finding> {
    if !cfg!(feature = "gpu") {
        return Vec::new();
    }
    match devices() {
        Err(why) => vec![Finding::good("GPU", why)],
        Ok(all) if all.is_empty() => vec![Finding::good("GPU", "none: Vulkan finds no device")],
        Ok(all) => all.iter().map(|line| gpu(line, cpu_read)).collect(),
    }
}

fn gpu(line: &DeviceLine, cpu_read: f64) -> Finding {
    let gb = line.memory as f64 / 1e9;
    let what = format!("{}, {gb:.1} GB", line.name);
    match &line.exactness {
        Err(why) => Finding::good("GPU", format!("{what}, {}: not used. {why}", line.driver)),
        Ok(how) => {
            let speeds = line.speeds.map(|speeds| speed(speeds, cpu_read)).unwrap_or_default();
            let kind = if line.is_software { "; a program on the CPU" } else { "" };
            Finding::good("GPU", format!("{what}: exact {how}{kind}{speeds}"))
        }
    }
}

/// The speed of a device, and whether it gains.
fn speed(DeviceSpeeds { read, multiplied }: DeviceSpeeds, cpu_read: f64) -> String {
    let verdict = match multiplied > cpu_read {
        true => "faster than the CPU, use it with --device auto",
        false => "slower than the CPU, do without it",
    };
    let (read, multiplied) = (read / 1e9, multiplied / 1e9);
    format!("; reads {read:.1} GB/s, multiplies weights at {multiplied:.1} GB/s: {verdict}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_gains_nothing_is_told_so() {
        let line = |read: f64, multiplied: f64| DeviceLine {
            name: "Some GPU".to_owned(),
            driver: "a driver".to_owned(),
            memory: 8_000_000_000,
            is_software: false,
            exactness: Ok("by its own fused multiply-add"),
            speeds: Some(DeviceSpeeds { read, multiplied }),
        };
        let text = |read, multiplied| gpu(&line(read, multiplied), 12e9).as_text();
        assert!(text(14e9, 9e9).contains("multiplies weights at 9.0 GB/s: slower than the CPU"));
        assert!(
            text(400e9, 310e9)
                .contains("reads 400.0 GB/s, multiplies weights at 310.0 GB/s: faster")
        );
        let refused =
            DeviceLine { exactness: Err("why".to_owned()), speeds: None, ..line(1.0, 1.0) };
        assert!(gpu(&refused, 12e9).as_text().contains("a driver: not used. why"));
    }
}
