//! A device that gives the CPU's bits, ready for work.

use std::sync::Arc;

use super::commands::Commands;
use super::device::{DeviceInfo, Handle};
use super::error::GpuError;
use super::pipelines::Pipelines;
use super::self_test::{Fusing, exact_pipelines};

/// A device that has passed the self-test.
pub(crate) struct ExactGpu {
    pub(super) handle: Arc<Handle>,
    pub(super) commands: Commands,
    pub(super) pipelines: Pipelines,
    /// How it computes fused multiply-adds.
    pub(crate) fusing: Fusing,
}

impl ExactGpu {
    /// Opens the device whose name contains `name`; without a name, the first that is no program on the CPU.
    ///
    /// # Errors
    /// If there is no such device, or it does not give the CPU's bits.
    pub(crate) fn open(name: Option<&str>) -> Result<ExactGpu, GpuError> {
        let handle = match name {
            None => Handle::open("gpu", &|info| !info.is_software),
            Some(name) => {
                let wanted = name.to_lowercase();
                Handle::open(name, &|info| info.name.to_lowercase().contains(&wanted))
            }
        };
        ExactGpu::new(handle?)
    }

    /// Opens the device that `info` describes.
    pub(super) fn open_known(info: &DeviceInfo) -> Result<ExactGpu, GpuError> {
        ExactGpu::new(Handle::open(&info.name, &|other| other == info)?)
    }

    fn new(handle: Arc<Handle>) -> Result<ExactGpu, GpuError> {
        let mut commands = Commands::new(&handle)?;
        let (pipelines, fusing) = exact_pipelines(&handle, &mut commands)?;
        Ok(ExactGpu { handle, commands, pipelines, fusing })
    }

    /// The device's own name.
    pub(crate) fn name(&self) -> &str {
        &self.handle.info.name
    }
}
