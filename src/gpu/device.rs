//! Vulkan's devices: which there are, and one that is in use.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::io;
use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ash::{Device, Entry, Instance, vk};

use super::error::GpuError;
use crate::sys::library::Library;

/// Description of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    /// The device's own name.
    pub(crate) name: String,
    /// Name and version of its driver.
    pub(crate) driver: String,
    /// Whether it is a program on the CPU.
    pub(crate) is_software: bool,
    /// Bytes of its own memory.
    pub(crate) memory: u64,
}

/// The devices of this process. All engines that use one share it, and the pipelines that its driver has made.
static OPENED: Mutex<Vec<Weak<Handle>>> = Mutex::new(Vec::new());

/// A device that is in use, with a queue for its work.
pub(super) struct Handle {
    pub(super) info: DeviceInfo,
    pub(super) device: Device,
    queue: Mutex<vk::Queue>,
    /// Whether a call of its driver has failed: it is opened anew then.
    has_failed: AtomicBool,
    pub(super) family: u32,
    pub(super) memory_types: vk::PhysicalDeviceMemoryProperties,
    /// Largest allocation in bytes.
    pub(super) allocation_max: u64,
    /// Whether products of four bytes are one instruction.
    pub(super) has_dot: bool,
    /// Lives as long as the device.
    _instance: OwnInstance,
}

/// Vulkan, as one user of it sees it.
struct OwnInstance(Instance);

impl Drop for OwnInstance {
    fn drop(&mut self) {
        // SAFETY: a device that was made from the instance is destroyed before: its handle holds the instance.
        unsafe { self.0.destroy_instance(None) };
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: everything made from the device holds an `Arc` of this handle, so nothing of it is left.
        unsafe { self.device.destroy_device(None) };
    }
}

/// A device that is found, before it is opened.
struct Found {
    physical: vk::PhysicalDevice,
    info: DeviceInfo,
    family: Option<u32>,
    lacks: Option<&'static str>,
    has_dot: bool,
    allocation_max: u64,
    memory_types: vk::PhysicalDeviceMemoryProperties,
}

/// The devices that Vulkan finds.
///
/// # Errors
/// If there is no Vulkan loader, or it fails.
pub(super) fn devices() -> Result<Vec<DeviceInfo>, GpuError> {
    let found = find(&load()?)?;
    Ok(found.into_iter().map(|found| found.info).collect())
}

impl Handle {
    /// The first device for which `is_wanted` is true, opened if this process does not use it yet. `wanted` describes it
    /// in errors.
    pub(super) fn open(
        wanted: &str,
        is_wanted: &dyn Fn(&DeviceInfo) -> bool,
    ) -> Result<Arc<Handle>, GpuError> {
        // Two threads that want the same device must not open it twice.
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|handle| handle.strong_count() > 0);
        let instance = load()?;
        let found = find(&instance)?;
        let names: Vec<String> = found.iter().map(|found| found.info.name.clone()).collect();
        let chosen = found.into_iter().find(|found| is_wanted(&found.info));
        let none = GpuError::NoDevice { wanted: wanted.to_owned(), found: names };
        let chosen = chosen.ok_or(none)?;
        let known = opened.iter().filter_map(Weak::upgrade);
        let mut known = known.filter(|handle| handle.info == chosen.info && !handle.has_failed());
        if let Some(handle) = known.next() {
            return Ok(handle);
        }
        drop(known);
        let device = chosen.open(&instance)?;
        let handle = Arc::new(Handle::new(chosen, instance, device));
        opened.push(Arc::downgrade(&handle));
        Ok(handle)
    }

    fn new(found: Found, instance: OwnInstance, (device, family): (Device, u32)) -> Handle {
        // SAFETY: the device was made with a queue of this family.
        let queue = unsafe { device.get_device_queue(family, 0) };
        Handle {
            info: found.info,
            device,
            queue: Mutex::new(queue),
            has_failed: AtomicBool::new(false),
            family,
            memory_types: found.memory_types,
            allocation_max: found.allocation_max,
            has_dot: found.has_dot,
            _instance: instance,
        }
    }

    /// The queue. Vulkan wants one thread at a time there.
    pub(super) fn queue(&self) -> MutexGuard<'_, vk::Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the device opened anew when it is wanted next.
    pub(super) fn set_failed(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

fn load() -> Result<OwnInstance, GpuError> {
    let no_loader = |error: io::Error| GpuError::NoLoader(error.to_string());
    let library = Library::open(c"libvulkan.so.1").map_err(no_loader)?;
    let found = library.symbol(c"vkGetInstanceProcAddr");
    let found =
        found.ok_or_else(|| GpuError::NoLoader("it lacks vkGetInstanceProcAddr".to_owned()))?;
    // SAFETY: Vulkan's loader has this function with this type, and stays open.
    let functions = unsafe {
        let get_instance_proc_addr =
            mem::transmute::<NonNull<c_void>, vk::PFN_vkGetInstanceProcAddr>(found);
        ash::StaticFn { get_instance_proc_addr }
    };
    // SAFETY: as above.
    let entry = unsafe { Entry::from_static_fn(functions) };
    // Devices of version 1.2 are used too; dot products of bytes are of 1.3.
    let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
    let info = vk::InstanceCreateInfo::default().application_info(&app);
    // SAFETY: `info` and what it points to live during the call.
    let instance = unsafe { entry.create_instance(&info, None) };
    instance.map(OwnInstance).map_err(|result| match result {
        vk::Result::ERROR_INCOMPATIBLE_DRIVER => GpuError::NoDriver,
        result => GpuError::Vulkan { call: "vkCreateInstance", result },
    })
}

fn find(OwnInstance(instance): &OwnInstance) -> Result<Vec<Found>, GpuError> {
    // SAFETY: the instance is alive.
    let all = unsafe { instance.enumerate_physical_devices() };
    let all = all.map_err(GpuError::of("vkEnumeratePhysicalDevices"))?;
    Ok(all.into_iter().map(|physical| Found::new(instance, physical)).collect())
}

impl Found {
    fn new(instance: &Instance, physical: vk::PhysicalDevice) -> Found {
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut floats = vk::PhysicalDeviceFloatControlsProperties::default();
        let mut limits = vk::PhysicalDeviceMaintenance3Properties::default();
        let mut of_device = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut driver)
            .push_next(&mut floats)
            .push_next(&mut limits);
        // SAFETY: `physical` comes from this instance, and the structures live during the call.
        unsafe { instance.get_physical_device_properties2(physical, &mut of_device) };
        let properties = of_device.properties;
        // SAFETY: as above.
        let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
        // SAFETY: as above.
        let memory_types = unsafe { instance.get_physical_device_memory_properties(physical) };
        let computes = |family: &vk::QueueFamilyProperties| {
            family.queue_flags.contains(vk::QueueFlags::COMPUTE)
        };
        let family = families.iter().position(computes).map(|index| index as u32);
        let features = Features::of(instance, physical, properties.api_version);
        let is_too_old = properties.api_version < vk::API_VERSION_1_2;
        let limits_of = properties.limits;
        let lacks = [
            (is_too_old, "Vulkan 1.2"),
            (family.is_none(), "a queue for compute"),
            (!features.addresses, "addresses of buffers"),
            (!features.int64, "integers of 64 bits"),
            (floats.shader_rounding_mode_rte_float32 == 0, "rounding to nearest of f32"),
            (floats.shader_signed_zero_inf_nan_preserve_float32 == 0, "infinities of f32"),
            (limits_of.max_compute_work_group_invocations < 256, "workgroups of 256"),
            (limits_of.max_push_constants_size < 128, "128 bytes of push constants"),
        ];
        Found {
            physical,
            info: DeviceInfo {
                name: text(&properties.device_name),
                driver: format!("{} {}", text(&driver.driver_name), text(&driver.driver_info)),
                is_software: properties.device_type == vk::PhysicalDeviceType::CPU,
                memory: own_memory(&memory_types),
            },
            family,
            lacks: lacks.into_iter().find(|(lacks, _)| *lacks).map(|(_, what)| what),
            has_dot: features.dot,
            allocation_max: limits.max_memory_allocation_size,
            memory_types,
        }
    }

    /// Opens the device, with the features that [`Found::lacks`] is about.
    fn open(&self, OwnInstance(instance): &OwnInstance) -> Result<(Device, u32), GpuError> {
        let lacking = |feature| GpuError::Lacks { device: self.info.name.clone(), feature };
        if let Some(feature) = self.lacks {
            return Err(lacking(feature));
        }
        let family = self.family.ok_or_else(|| lacking("a queue for compute"))?;
        let priorities = [1.0];
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(family)
            .queue_priorities(&priorities)];
        let features = vk::PhysicalDeviceFeatures::default().shader_int64(true);
        let mut addresses =
            vk::PhysicalDeviceBufferDeviceAddressFeatures::default().buffer_device_address(true);
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default()
            .shader_integer_dot_product(true);
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_features(&features)
            .push_next(&mut addresses);
        if self.has_dot {
            info = info.push_next(&mut dot);
        }
        // SAFETY: `physical` comes from this instance, has these features, and `info` lives during the call.
        let device = unsafe { instance.create_device(self.physical, &info, None) };
        Ok((device.map_err(GpuError::of("vkCreateDevice"))?, family))
    }
}

/// Features of a device that shaders use.
struct Features {
    addresses: bool,
    int64: bool,
    dot: bool,
}

impl Features {
    fn of(instance: &Instance, physical: vk::PhysicalDevice, version: u32) -> Features {
        if version < vk::API_VERSION_1_2 {
            return Features { addresses: false, int64: false, dot: false };
        }
        let mut addresses = vk::PhysicalDeviceBufferDeviceAddressFeatures::default();
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
        let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut addresses);
        // Dot products of bytes belong to Vulkan 1.3.
        let has_1_3 = version >= vk::API_VERSION_1_3;
        if has_1_3 {
            all = all.push_next(&mut dot);
        }
        // SAFETY: `physical` comes from this instance, and the structures live during the call.
        unsafe { instance.get_physical_device_features2(physical, &mut all) };
        let int64 = all.features.shader_int64 != 0;
        Features {
            addresses: addresses.buffer_device_address != 0,
            int64,
            dot: has_1_3 && dot.shader_integer_dot_product != 0,
        }
    }
}

/// Bytes of the largest heap that is the device's own.
fn own_memory(types: &vk::PhysicalDeviceMemoryProperties) -> u64 {
    let heaps = &types.memory_heaps[..types.memory_heap_count as usize];
    let own = heaps.iter().filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    own.map(|heap| heap.size).max().unwrap_or(0)
}

/// Text of a driver, up to its zero byte.
fn text(bytes: &[std::ffi::c_char]) -> String {
    let bytes: &[u8] = bytemuck::cast_slice(bytes);
    let text = CStr::from_bytes_until_nul(bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}
