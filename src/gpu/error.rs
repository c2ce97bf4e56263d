//! Why a GPU is not used.

use std::fmt;
use std::io;

use ash::vk;

/// Why a GPU cannot compute a model's layers.
#[derive(Debug)]
#[non_exhaustive]
pub(crate) enum GpuError {
    /// No Vulkan loader can be opened.
    NoLoader(String),
    /// The loader finds no driver.
    NoDriver,
    /// No device fits what was asked for.
    NoDevice {
        /// The name or kind asked for.
        wanted: String,
        /// Names of the devices that there are.
        found: Vec<String>,
    },
    /// The device or its driver lacks a feature that is needed.
    Lacks {
        /// Name of the device.
        device: String,
        /// The feature.
        feature: &'static str,
    },
    /// An operation of the device gives other bits than the CPU, so that texts would differ.
    Inexact {
        /// Name of the device.
        device: String,
        /// The operation.
        operation: &'static str,
        /// How many of the inputs tried gave other bits.
        wrong: usize,
        /// Number of inputs tried.
        tried: usize,
    },
    /// The device multiplies weights more slowly than the CPU.
    Slow {
        /// Name of the device.
        device: String,
        /// Bytes of weights a second that it multiplies.
        of_device: f64,
        /// Bytes a second that the CPU reads.
        of_cpu: f64,
    },
    /// The model has layers for which there are no shaders.
    Unsupported(&'static str),
    /// The part of the device's memory that may be used is too small for any layer.
    Room {
        /// Bytes that the buffers and a layer take.
        needed: u64,
        /// Bytes that may be used.
        allowed: u64,
    },
    /// The device does not have enough memory.
    Memory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// A call of the driver failed.
    Vulkan {
        /// The call.
        call: &'static str,
        /// Its result.
        result: vk::Result,
    },
    /// The model's file cannot be mapped.
    Model(io::Error),
}

impl GpuError {
    /// A function that makes errors of a call.
    pub(super) fn of(call: &'static str) -> impl Fn(vk::Result) -> GpuError {
        move |result| GpuError::Vulkan { call, result }
    }
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuError::NoLoader(why) => {
                write!(f, "no GPU can be used: Vulkan's loader cannot be opened ({why})")
            }
            GpuError::NoDriver => f.write_str(
                "no GPU can be used: Vulkan finds no driver; is the GPU's driver installed?",
            ),
            GpuError::NoDevice { wanted, found } if found.is_empty() => {
                write!(f, "no device \"{wanted}\": Vulkan finds none here; is a driver installed?")
            }
            GpuError::NoDevice { wanted, found } => {
                write!(f, "no device \"{wanted}\"; there is: {}", found.join(", "))
            }
            GpuError::Lacks { device, feature } => {
                write!(f, "{device} cannot be used: its driver lacks {feature}")
            }
            GpuError::Inexact { device, operation, wrong, tried } => write!(
                f,
                "{device} cannot be used: its {operation} gives other bits than the CPU for {wrong} of {tried} inputs, \
                 so texts would differ"
            ),
            GpuError::Slow { device, of_device, of_cpu } => write!(
                f,
                "{device} multiplies weights at {:.1} GB/s, the CPU reads them at {:.1} GB/s",
                of_device / 1e9,
                of_cpu / 1e9
            ),
            GpuError::Unsupported(what) => {
                write!(f, "this model's layers run on the CPU alone: {what}")
            }
            GpuError::Room { needed, allowed } => write!(
                f,
                "{:.1} MB of the GPU's memory may be used, and one layer with its buffers takes {:.1} MB",
                *allowed as f64 / 1e6,
                *needed as f64 / 1e6
            ),
            GpuError::Memory { bytes } => {
                write!(f, "the GPU has no memory for another {:.1} MB", *bytes as f64 / 1e6)
            }
            GpuError::Vulkan { call, result } => {
                write!(f, "the GPU's driver failed: {call}: {result}")
            }
            GpuError::Model(error) => write!(f, "cannot map the layers for the GPU: {error}"),
        }
    }
}

impl std::error::Error for GpuError {}
