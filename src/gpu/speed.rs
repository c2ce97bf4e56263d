//! How fast a device reads its memory, and multiplies weights that lie there.

use std::time::Instant;

use bytemuck::{Pod, Zeroable};

use super::error::GpuError;
use super::exact::ExactGpu;
use super::memory::{Memory, Place};
use super::pipelines::Shader;
use super::record::On;
use super::room::Room;
use super::tensors::Tensor;
use crate::format::model::{Encoding, Header, Weights};
use crate::model::{DeviceSpeeds, KvKind, Plan};
use crate::quant::GROUP_DEFAULT;

/// Columns of the made-up weights.
const COLUMNS: usize = 4096;
/// Bytes of weights of the first trial.
const TRIAL_BYTES: u64 = 8 << 20;
/// Most bytes of weights: more than the caches of large GPUs hold.
const BYTES_MAX: u64 = 256 << 20;
/// Time of a run in seconds: a submission takes some tens of microseconds by itself.
const RUN_SECONDS: f64 = 0.02;
/// Most repetitions in a run.
const REPEATS_MAX: usize = 256;
/// Number of runs. The best one counts, because other work slows the rest.
const RUNS: usize = 3;
/// Invocations of a workgroup of `shaders/read.comp`, and bytes of a step of one.
const READERS: u64 = 256;
const STEP_BYTES: u64 = 16;
/// Steps of an invocation.
const STEPS: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ReadPush {
    from: u64,
    to: u64,
    steps: u32,
    zero: u32,
}

/// The weights that are multiplied and read, and buffers for that.
struct Trial {
    weights: Tensor,
    y: Memory,
    room: Room,
}

impl ExactGpu {
    /// Measures how fast the device reads and multiplies weights.
    ///
    /// # Errors
    /// If it has no memory for that, or its driver fails.
    pub(crate) fn speeds(&mut self) -> Result<DeviceSpeeds, GpuError> {
        let trial = Trial::new(self, TRIAL_BYTES)?;
        let rate = TRIAL_BYTES as f64 / trial.multiply(self, 1)?;
        let most = BYTES_MAX.min(self.handle.info.memory / 8).min(self.handle.allocation_max);
        let bytes = ((rate * RUN_SECONDS) as u64).clamp(TRIAL_BYTES, most.max(TRIAL_BYTES));
        drop(trial);
        let trial = Trial::new(self, bytes)?;
        let repeats = ((rate * RUN_SECONDS / bytes as f64) as usize).clamp(1, REPEATS_MAX);
        let (mut multiplied, mut read) = (0.0_f64, 0.0_f64);
        for _ in 0..RUNS {
            let seconds = trial.multiply(self, repeats)?;
            multiplied = multiplied.max(trial.weights.bytes() as f64 / seconds);
            read = read.max(trial.read_bytes() as f64 / trial.read(self, repeats)?);
        }
        Ok(DeviceSpeeds { read, multiplied })
    }
}

impl Trial {
    fn new(gpu: &mut ExactGpu, bytes: u64) -> Result<Trial, GpuError> {
        let rows = (bytes / COLUMNS as u64) as usize;
        let encoding = Encoding::Q8 { group: GROUP_DEFAULT };
        let weights = Tensor::blank(&gpu.handle, encoding, [rows, COLUMNS])?;
        weights.prepare(&mut gpu.pipelines, false)?;
        gpu.pipelines.prepare(Shader::Read)?;
        let plan = Plan {
            ctx_len: 1,
            max_batch: 1,
            max_logits: 1,
            n_streams: 1,
            kv: KvKind::F16,
            kv_pages: None,
        };
        let header = Header { dim: COLUMNS, ..Header::blank(Weights::F32) };
        let room = Room::new(&gpu.handle, &header, &plan, false)?;
        let y = Memory::new(&gpu.handle, 4 * rows as u64, Place::Device)?;
        Ok(Trial { weights, y, room })
    }

    /// Seconds of a product of one row, from some products.
    fn multiply(&self, gpu: &mut ExactGpu, repeats: usize) -> Result<f64, GpuError> {
        let start = Instant::now();
        gpu.commands.run(&gpu.pipelines, |recorder| {
            for _ in 0..repeats {
                let mut on = On { recorder: &mut *recorder, room: &self.room, m: 1, blocks: 0 };
                on.project(&[&self.weights], self.y.address, false);
            }
        })?;
        Ok(start.elapsed().as_secs_f64() / repeats as f64)
    }

    /// Workgroups that read the weights once.
    fn readers(&self) -> u64 {
        self.weights.bytes() / (READERS * STEP_BYTES * u64::from(STEPS))
    }

    fn read_bytes(&self) -> u64 {
        self.readers() * READERS * STEP_BYTES * u64::from(STEPS)
    }

    /// Seconds of reading the weights once, from some times.
    fn read(&self, gpu: &mut ExactGpu, repeats: usize) -> Result<f64, GpuError> {
        let [from, ..] = self.weights.addresses();
        let push = ReadPush { from, to: self.y.address, steps: STEPS, zero: 0 };
        let groups = self.readers() as usize;
        let start = Instant::now();
        gpu.commands.run(&gpu.pipelines, |recorder| {
            for _ in 0..repeats {
                recorder.dispatch(Shader::Read, &push, [groups, 1]);
            }
        })?;
        Ok(start.elapsed().as_secs_f64() / repeats as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::device;

    #[test]
    fn a_device_tells_how_fast_it_is() {
        if device().is_none() {
            return;
        }
        let mut gpu = ExactGpu::open(Some("llvmpipe")).unwrap();
        let DeviceSpeeds { read, multiplied } = gpu.speeds().unwrap();
        // No machine with this driver is as slow or as fast as that.
        let possible = 1e5..1e13;
        assert!(possible.contains(&read) && possible.contains(&multiplied), "{read} {multiplied}");
    }
}
