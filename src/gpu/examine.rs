//! The devices of this machine, each with its self-test.

use super::commands::Commands;
use super::device::{DeviceInfo, Handle, devices};
use super::error::GpuError;
use super::self_test::{Fusing, exact_pipelines};

/// A device, and whether it gives the CPU's bits.
pub(crate) struct Examined {
    pub(crate) info: DeviceInfo,
    pub(crate) result: Result<Fusing, GpuError>,
}

/// Runs the self-test on each device that Vulkan finds.
///
/// # Errors
/// If there is no Vulkan loader, or it fails.
pub(crate) fn examine() -> Result<Vec<Examined>, GpuError> {
    let all = devices()?.into_iter();
    let examined = all.map(|info| {
        let result = Handle::open(&info.name, &|other| *other == info).and_then(|handle| {
            let mut commands = Commands::new(&handle)?;
            exact_pipelines(&handle, &mut commands).map(|(_, fusing)| fusing)
        });
        Examined { info, result }
    });
    Ok(examined.collect())
}
