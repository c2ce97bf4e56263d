//! The choice of a device beside the CPUs.

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
    let name = match &options.device {
        DeviceChoice::Cpu => return Ok(()),
        DeviceChoice::Auto => None,
        DeviceChoice::Gpu { name } => name.clone(),
    };
    match (give(transformer, name, options.device_memory), &options.device) {
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
