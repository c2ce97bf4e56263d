//! Memory that a device can address, and that the host may map.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use ash::vk;
use bytemuck::Pod;

use super::device::Handle;
use super::error::GpuError;

/// The user of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The device alone.
    Device,
    /// The host too, which has it mapped.
    Host,
}

/// A buffer with its memory.
pub(super) struct Memory {
    pub(super) buffer: vk::Buffer,
    /// Address on the device.
    pub(super) address: u64,
    /// Length in bytes.
    pub(super) bytes: u64,
    memory: vk::DeviceMemory,
    mapped: Option<NonNull<u8>>,
    handle: Arc<Handle>,
}

// SAFETY: the mapped memory belongs to this value alone, and is only reached through references to it.
unsafe impl Send for Memory {}

impl Memory {
    /// Zeroed memory of `bytes` bytes for the host, or memory with any content for the device.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(super) fn new(handle: &Arc<Handle>, bytes: u64, place: Place) -> Result<Memory, GpuError> {
        let bytes = bytes.max(16);
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        // SAFETY: the device is alive, and `info` lives during the call.
        let buffer = unsafe { handle.device.create_buffer(&info, None) };
        let buffer = buffer.map_err(GpuError::of("vkCreateBuffer"))?;
        // Dropped if anything below fails.
        let mut made = Memory {
            buffer,
            address: 0,
            bytes,
            memory: vk::DeviceMemory::null(),
            mapped: None,
            handle: Arc::clone(handle),
        };
        made.allocate(place)?;
        Ok(made)
    }

    fn allocate(&mut self, place: Place) -> Result<(), GpuError> {
        let device = &self.handle.device;
        // SAFETY: the buffer was made by this device.
        let needs = unsafe { device.get_buffer_memory_requirements(self.buffer) };
        let kind = self.handle.memory_type(needs.memory_type_bits, place);
        let kind = kind.filter(|_| needs.size <= self.handle.allocation_max);
        let kind = kind.ok_or(GpuError::Memory { bytes: needs.size })?;
        let mut flags =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(kind)
            .push_next(&mut flags);
        // SAFETY: `info` lives during the call.
        let memory = unsafe { device.allocate_memory(&info, None) };
        self.memory = memory.map_err(|result| match result {
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
                GpuError::Memory { bytes: needs.size }
            }
            result => GpuError::Vulkan { call: "vkAllocateMemory", result },
        })?;
        // SAFETY: buffer and memory are new, and of this device.
        let bound = unsafe { device.bind_buffer_memory(self.buffer, self.memory, 0) };
        bound.map_err(GpuError::of("vkBindBufferMemory"))?;
        let info = vk::BufferDeviceAddressInfo::default().buffer(self.buffer);
        // SAFETY: the buffer is bound, and was made for its address to be asked.
        self.address = unsafe { device.get_buffer_device_address(&info) };
        if place == Place::Host {
            let flags = vk::MemoryMapFlags::empty();
            // SAFETY: the memory is of a type that the host can map, and is not mapped yet.
            let mapped = unsafe { device.map_memory(self.memory, 0, self.bytes, flags) };
            let mapped = mapped.map_err(GpuError::of("vkMapMemory"))?;
            self.mapped = NonNull::new(mapped.cast());
            self.as_mut_slice::<u8>().fill(0);
        }
        Ok(())
    }

    /// The memory as the host sees it; empty if it is not mapped.
    pub(super) fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        let Some(mapped) = self.mapped else { return &mut [] };
        // SAFETY: `bytes` bytes are mapped, coherent and owned by this value. The device does not use them now: each
        // submission is waited for. Maps begin at multiples of 64 bytes at least (minMemoryMapAlignment).
        let bytes = unsafe { slice::from_raw_parts_mut(mapped.as_ptr(), self.bytes as usize) };
        bytemuck::cast_slice_mut(
            &mut bytes[..self.bytes as usize / size_of::<T>() * size_of::<T>()],
        )
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: no submission that uses the buffer is running, because each is waited for. Null handles are allowed.
        unsafe {
            self.handle.device.destroy_buffer(self.buffer, None);
            self.handle.device.free_memory(self.memory, None);
        }
    }
}

impl Handle {
    /// The best type of memory of those in `bits`.
    fn memory_type(&self, bits: u32, place: Place) -> Option<u32> {
        let (own, host) = (
            vk::MemoryPropertyFlags::DEVICE_LOCAL,
            vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT,
        );
        let wanted = match place {
            Place::Device => [own, vk::MemoryPropertyFlags::empty()],
            // Cached memory is read fast by the host.
            Place::Host => [host | vk::MemoryPropertyFlags::HOST_CACHED, host],
        };
        let types = &self.memory_types.memory_types[..self.memory_types.memory_type_count as usize];
        let find = |flags: vk::MemoryPropertyFlags| {
            let mut all = (0u32..).zip(types);
            all.find(|(index, of)| bits >> index & 1 == 1 && of.property_flags.contains(flags))
        };
        wanted.into_iter().find_map(find).map(|(index, _)| index)
    }
}
