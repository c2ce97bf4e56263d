//! The devices of this machine, each with its self-test.

use super::device::{DeviceInfo, devices};
use super::error::GpuError;
use super::exact::ExactGpu;
use super::self_test::Fusing;
use crate::model::DeviceSpeeds;

/// A device, and whether it gives the CPU's bits; if so, with its speeds.
pub(crate) struct Examined {
    pub(crate) info: DeviceInfo,
    pub(crate) result: Result<(Fusing, DeviceSpeeds), GpuError>,
}

/// Runs the self-test on each device that Vulkan finds, and measures those that pass.
///
/// # Errors
/// If there is no Vulkan loader, or it fails.
pub(crate) fn examine() -> Result<Vec<Examined>, GpuError> {
    let all = devices()?.into_iter();
    let examined = all.map(|info| {
        let result = ExactGpu::open_known(&info).and_then(|mut gpu| {
            let speeds = gpu.speeds()?;
            Ok((gpu.fusing, speeds))
        });
        Examined { info, result }
    });
    Ok(examined.collect())
}
