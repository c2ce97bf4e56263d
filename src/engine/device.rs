//! Devices beside the CPUs: which there are, and the choice of one.

use super::error::EngineError;
use super::options::{DeviceChoice, Options};
use crate::model::Transformer;

/// Has the device that `options` choose compute the last layers of `transformer`.
///
/// # Errors
/// If a GPU was asked for and cannot be used.
pub(super) fn give_layers(
    transformer: &mut Transformer,
    options: &Options,
) -> Result<(), EngineError> {
    let name = match &options.device.choice {
        DeviceChoice::Cpu => return Ok(()),
        DeviceChoice::Auto => None,
        DeviceChoice::Gpu { name } => name.clone(),
    };
    match (give(transformer, name, options.device.memory), &options.device.choice) {
        (Err(why), DeviceChoice::Auto) => {
            log::info!("layers stay on the CPU: {why}");
            Ok(())
        }
        (result, _) => result.map_err(EngineError::Device),
    }
}

#[cfg(feature = "gpu")]
fn give(
    transformer: &mut Transformer,
    name: Option<String>,
    memory: Option<u64>,
) -> Result<(), String> {
    use crate::gpu::{Gpu, GpuOptions};
    use crate::model::Stage;

    let plan = *transformer.about().plan;
    let opened = Gpu::open(transformer.model(), &plan, &GpuOptions { name, memory });
    let gpu = opened.map_err(|error| error.to_string())?;
    transformer.give_to(Box::new(gpu)).map_err(|error| error.to_string())
}

#[cfg(not(feature = "gpu"))]
fn give(_: &mut Transformer, _: Option<String>, _: Option<u64>) -> Result<(), String> {
    Err("this program computes on CPUs alone; one with the feature \"gpu\" uses GPUs".to_owned())
}

/// A device beside the CPUs, and whether it gives their bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLine {
    /// The device's own name.
    pub name: String,
    /// Name and version of its driver.
    pub driver: String,
    /// Bytes of its own memory.
    pub memory: u64,
    /// Whether it is a program on the CPU.
    pub is_software: bool,
    /// How it comes to the CPUs' bits, or why it cannot be used.
    pub exactness: Result<&'static str, String>,
}

/// The devices that Vulkan finds, each after a self-test.
///
/// # Errors
/// Why none is found.
#[cfg(feature = "gpu")]
pub fn devices() -> Result<Vec<DeviceLine>, String> {
    use crate::gpu::{Examined, Fusing, examine};

    let examined = examine().map_err(|error| error.to_string())?;
    let line = |Examined { info, result }: Examined| DeviceLine {
        name: info.name,
        driver: info.driver,
        memory: info.memory,
        is_software: info.is_software,
        exactness: match result {
            Ok(Fusing::Device) => Ok("by its own fused multiply-add"),
            Ok(Fusing::Sums) => Ok("by sums of known error"),
            Err(error) => Err(error.to_string()),
        },
    };
    Ok(examined.into_iter().map(line).collect())
}

/// No devices: this program has no feature `gpu`.
///
/// # Errors
/// Always.
#[cfg(not(feature = "gpu"))]
pub fn devices() -> Result<Vec<DeviceLine>, String> {
    Err("this program computes on CPUs alone".to_owned())
}
