//! Recording and submitting work.
#![allow(unsafe_code)]

use std::sync::Arc;

use ash::vk;
use bytemuck::Pod;

use super::device::Handle;
use super::error::GpuError;
use super::memory::Memory;
use super::pipelines::{PUSH_BYTES, Pipelines, Shader};

/// Longest wait for a submission between two looks at it, in nanoseconds. A device that hangs is reset by its driver.
const WAIT_NS: u64 = 1_000_000_000;

/// A command buffer that is recorded anew for each submission.
pub(super) struct Commands {
    handle: Arc<Handle>,
    pool: vk::CommandPool,
    buffer: vk::CommandBuffer,
    fence: vk::Fence,
}

/// Commands that are being recorded.
pub(super) struct Recorder<'a> {
    handle: &'a Handle,
    buffer: vk::CommandBuffer,
    pipelines: &'a Pipelines,
}

impl Commands {
    pub(super) fn new(handle: &Arc<Handle>) -> Result<Commands, GpuError> {
        let device = &handle.device;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(handle.family);
        // SAFETY: the device is alive, and `info` lives during the call.
        let pool = unsafe { device.create_command_pool(&info, None) };
        let pool = pool.map_err(GpuError::of("vkCreateCommandPool"))?;
        let mut made = Commands {
            handle: Arc::clone(handle),
            pool,
            buffer: vk::CommandBuffer::null(),
            fence: vk::Fence::null(),
        };
        let info =
            vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: the pool is alive.
        let buffers = unsafe { device.allocate_command_buffers(&info) };
        made.buffer = buffers.map_err(GpuError::of("vkAllocateCommandBuffers"))?[0];
        // SAFETY: the device is alive.
        let fence = unsafe { device.create_fence(&vk::FenceCreateInfo::default(), None) };
        made.fence = fence.map_err(GpuError::of("vkCreateFence"))?;
        Ok(made)
    }

    /// Records commands, submits them, and waits until the device has done them.
    ///
    /// # Errors
    /// If the driver fails or the device is lost.
    pub(super) fn run(
        &mut self,
        pipelines: &Pipelines,
        record: impl FnOnce(&mut Recorder<'_>),
    ) -> Result<(), GpuError> {
        let done = self.submit(pipelines, record).and_then(|()| self.wait());
        if done.is_err() {
            self.handle.set_failed();
        }
        done
    }

    fn submit(
        &mut self,
        pipelines: &Pipelines,
        record: impl FnOnce(&mut Recorder<'_>),
    ) -> Result<(), GpuError> {
        let device = &self.handle.device;
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the last submission of the buffer was waited for.
        unsafe {
            let reset = device.reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty());
            reset.map_err(GpuError::of("vkResetCommandPool"))?;
            let begun = device.begin_command_buffer(self.buffer, &begin);
            begun.map_err(GpuError::of("vkBeginCommandBuffer"))?;
        }
        let mut recorder = Recorder { handle: &self.handle, buffer: self.buffer, pipelines };
        record(&mut recorder);
        recorder.barrier();
        // SAFETY: the buffer is being recorded, and then submitted once. The fence is not in use.
        unsafe {
            let ended = device.end_command_buffer(self.buffer);
            ended.map_err(GpuError::of("vkEndCommandBuffer"))?;
            let buffers = [self.buffer];
            let submits = [vk::SubmitInfo::default().command_buffers(&buffers)];
            let submitted = device.queue_submit(*self.handle.queue(), &submits, self.fence);
            submitted.map_err(GpuError::of("vkQueueSubmit"))
        }
    }

    fn wait(&self) -> Result<(), GpuError> {
        let device = &self.handle.device;
        loop {
            // SAFETY: the fence was submitted.
            match unsafe { device.wait_for_fences(&[self.fence], true, WAIT_NS) } {
                Ok(()) => break,
                Err(vk::Result::TIMEOUT) => {}
                Err(result) => return Err(GpuError::Vulkan { call: "vkWaitForFences", result }),
            }
        }
        // SAFETY: the submission of the fence has ended.
        let reset = unsafe { device.reset_fences(&[self.fence]) };
        reset.map_err(GpuError::of("vkResetFences"))
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        // SAFETY: waiting for the idle queue makes sure that a submission whose wait failed has ended.
        unsafe {
            let _ = self.handle.device.queue_wait_idle(*self.handle.queue());
            self.handle.device.destroy_fence(self.fence, None);
            self.handle.device.destroy_command_pool(self.pool, None);
        }
    }
}

impl Recorder<'_> {
    /// Has a prepared shader compute `groups` workgroups, before all later commands. `push` holds its parameters: those
    /// that are addresses must be of memory that lives until the submission has ended, and is as long as the shader's
    /// loops reach.
    pub(super) fn dispatch<P: Pod>(&mut self, shader: Shader, push: &P, groups: [usize; 2]) {
        self.dispatch_beside(shader, push, groups);
        self.barrier();
    }

    /// Like [`Recorder::dispatch`], but later commands may run at the same time, until the next
    /// [barrier](Recorder::barrier): they must not read or write what this one writes, nor write what it reads.
    pub(super) fn dispatch_beside<P: Pod>(&mut self, shader: Shader, push: &P, [x, y]: [usize; 2]) {
        const { assert!(size_of::<P>() <= PUSH_BYTES as usize) };
        let (device, layout) = (&self.handle.device, self.pipelines.layout());
        let pipeline = self.pipelines.get(shader);
        let bytes = bytemuck::bytes_of(push);
        // SAFETY: the buffer is being recorded; pipeline and layout are of this device and outlive the submission.
        unsafe {
            device.cmd_bind_pipeline(self.buffer, vk::PipelineBindPoint::COMPUTE, pipeline);
            let stage = vk::ShaderStageFlags::COMPUTE;
            device.cmd_push_constants(self.buffer, layout, stage, 0, bytes);
            device.cmd_dispatch(self.buffer, x as u32, y as u32, 1);
        }
    }

    /// Ends all commands so far before later ones, to which and to the host what was written is visible then.
    pub(super) fn barrier(&mut self) {
        let barriers = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(
                vk::AccessFlags::SHADER_READ
                    | vk::AccessFlags::SHADER_WRITE
                    | vk::AccessFlags::TRANSFER_READ
                    | vk::AccessFlags::TRANSFER_WRITE
                    | vk::AccessFlags::HOST_READ,
            )];
        let work = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
        // SAFETY: the buffer is being recorded.
        unsafe {
            self.handle.device.cmd_pipeline_barrier(
                self.buffer,
                work,
                work | vk::PipelineStageFlags::HOST,
                vk::DependencyFlags::empty(),
                &barriers,
                &[],
                &[],
            );
        }
    }

    /// Fills a memory with zeros.
    pub(super) fn clear(&mut self, memory: &Memory) {
        self.clear_part((memory, 0), memory.bytes / 4 * 4);
    }

    /// Fills `bytes` bytes from an offset in a memory on with zeros, in words.
    ///
    /// # Panics
    /// If they do not lie in the memory, or are not whole words.
    pub(super) fn clear_part(&mut self, (to, at): (&Memory, u64), bytes: u64) {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= to.bytes));
        assert!(at.is_multiple_of(4) && bytes.is_multiple_of(4));
        if bytes == 0 {
            return;
        }
        // SAFETY: the buffer is being recorded, and the range lies in the memory's buffer.
        unsafe { self.handle.device.cmd_fill_buffer(self.buffer, to.buffer, at, bytes, 0) };
        self.barrier();
    }

    /// Copies `bytes` bytes from an offset in one memory to an offset in another. They may not overlap.
    ///
    /// # Panics
    /// If they do not lie in the memories.
    pub(super) fn copy(
        &mut self,
        (from, from_at): (&Memory, u64),
        (to, to_at): (&Memory, u64),
        bytes: u64,
    ) {
        assert!(from_at.checked_add(bytes).is_some_and(|end| end <= from.bytes));
        assert!(to_at.checked_add(bytes).is_some_and(|end| end <= to.bytes));
        if bytes == 0 {
            return;
        }
        let regions = [vk::BufferCopy::default().src_offset(from_at).dst_offset(to_at).size(bytes)];
        // SAFETY: the buffer is being recorded, and the ranges lie in the buffers.
        unsafe {
            self.handle.device.cmd_copy_buffer(self.buffer, from.buffer, to.buffer, &regions);
        }
        self.barrier();
    }
}
